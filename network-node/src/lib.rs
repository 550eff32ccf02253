//! The network node: LAN ports, flow table, SAN tunnel.
