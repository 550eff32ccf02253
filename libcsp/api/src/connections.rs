//! Records of connections that have ended: a line of the connection log as JSON.

use serde::{Deserialize, Serialize};

use crate::Text;

/// A connection that has ended at a proxy.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// When it ended, in UTC (RFC 3339).
    pub time: String,
    /// The proxy node.
    pub proxy: Text,
    /// Its worker.
    pub worker: u8,
    /// The flow's label, eight hex digits: `cspctl flow trace LABEL`.
    pub label: String,
    /// Address and port of the client; its network, or nothing, if the policy says so.
    pub client: String,
    /// Address and port that it connected to.
    pub vip: String,
    /// The service.
    pub service: Text,
    /// The server that had it: NODE:PORT, or ADDRESS:PORT of a plain server; empty: none.
    pub server: Text,
    /// The first 24 bytes of the process's name; empty: none had it, or a plain server.
    pub process: Text,
    /// Bytes that the server got of the client.
    pub bytes_in: u64,
    /// Bytes that the server sent to the client.
    pub bytes_out: u64,
    /// Time from the SYN/ACK to its acknowledgement, in microseconds; absent: not measured (SYN cookies).
    pub handshake_us: Option<u64>,
    /// Time from the establishment until a server had it, in microseconds; absent: none had it.
    pub wait_us: Option<u64>,
    /// Time from the establishment to the server's first byte, in microseconds; absent: none came.
    pub first_byte_us: Option<u64>,
    /// Time from the establishment to the end, in microseconds.
    pub total_us: u64,
    /// Segments sent again to the client.
    pub retransmits: u32,
    /// Smoothed round-trip time to the client in microseconds at the end; absent: not measured.
    pub rtt_us: Option<u64>,
    /// How it ended, such as `closed_by_client` or `server_reset` (docs/operations/connection-log.md).
    pub end: Text,
    /// The same in two letters: who (C, S, P), and how.
    pub code: Text,
    /// The server's name (SNI) by which the connection went on to its service, or was refused; empty: names
    /// were not looked at.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub server_name: Text,
    /// The subject of the client's certificate (RFC 4514); empty: it has sent none.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub client_subject: Text,
    /// Why the handshake of TLS failed; empty: it did not, or nothing more is known.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub fault: Text,
}

fn is_empty(text: &Text) -> bool {
    text.is_empty()
}
