//! Names of the metrics that the operations page shows. A daemon exposes them under these names, which its
//! tests check.

/// Flows in the table. Network node, proxy node.
pub const FLOWS: &str = "csp_flows_entries";
/// TCP payload from clients, in bytes. Network node, proxy node.
pub const CLIENT_RECEIVED_BYTES: &str = "csp_client_received_bytes_total";
/// TCP payload to clients, in bytes. Network node, proxy node.
pub const CLIENT_SENT_BYTES: &str = "csp_client_sent_bytes_total";
/// Tunnels that are up. Network node.
pub const TUNNELS_UP: &str = "csp_tunnels_up";
/// TCP packets from clients. Network node.
pub const LAN_PACKETS_RECEIVED: &str = "csp_lan_packets_received_total";
/// Connections that clients established. Proxy node.
pub const CONNECTIONS_PASSIVE: &str = "csp_connections_passive_total";
/// TCP segments sent again. Proxy node.
pub const SEGMENTS_RETRANSMITTED: &str = "csp_tcp_segments_retransmitted_total";
/// Processes that are attached. App node.
pub const PROCESSES: &str = "csp_processes_entries";
/// Accelerated sockets of those processes. App node.
pub const APPLICATION_SOCKETS: &str = "csp_application_sockets";
/// Connections that programs accepted. App node.
pub const APPLICATION_ACCEPTED: &str = "csp_application_accepted_total";
/// Bytes that programs read from connections. App node.
pub const APPLICATION_BYTES_READ: &str = "csp_application_bytes_read_total";
/// Bytes that programs wrote to connections. App node.
pub const APPLICATION_BYTES_WRITTEN: &str = "csp_application_bytes_written_total";

/// Those of the network node.
pub const NETWORK_NODE: &[&str] =
    &[FLOWS, TUNNELS_UP, LAN_PACKETS_RECEIVED, CLIENT_RECEIVED_BYTES, CLIENT_SENT_BYTES];
/// Those of the proxy node.
pub const PROXY_NODE: &[&str] =
    &[FLOWS, CONNECTIONS_PASSIVE, CLIENT_RECEIVED_BYTES, CLIENT_SENT_BYTES, SEGMENTS_RETRANSMITTED];
/// Those of the app node.
pub const APP_NODE: &[&str] = &[
    PROCESSES,
    APPLICATION_SOCKETS,
    APPLICATION_ACCEPTED,
    APPLICATION_BYTES_READ,
    APPLICATION_BYTES_WRITTEN,
];
