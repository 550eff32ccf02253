//! The network node: LAN ports, flow table, SAN tunnel.
//!
//! [`core`] is the node's logic without clock, socket or thread; the daemon around it owns those.
#![forbid(unsafe_code)]

pub mod core;
