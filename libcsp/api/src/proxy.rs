//! Bodies of the proxy node.

use std::net::SocketAddr;

use csp_types::FlowLabel;
use serde::{Deserialize, Serialize};

use crate::Text;

/// A connection: an element of `/v1/flows`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Client's address; of a connection that an application opened, the destination's.
    pub client: SocketAddr,
    /// Virtual address and port; of a connection that an application opened, the egress address.
    pub server: SocketAddr,
    /// Service; `egress` for connections that applications opened, `(removed)` when policy no longer names it.
    pub service: Text,
    /// App node of the process that the connection was given to; empty before.
    pub member: Text,
    /// That process; empty before.
    pub process: Text,
    /// State of TCP and stage towards the application, such as `Established/open`. Stages are `pending`, `offered`, `open`,
    /// `connecting`, `handed over` and `finishing`.
    pub state: Text,
    /// Payload bytes from the client to the application.
    pub bytes_in: u64,
    /// Payload bytes from the application to the client.
    pub bytes_out: u64,
    /// Milliseconds in this stage.
    pub age_ms: u64,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u64,
    /// Congestion control: `newreno` or `cubic`.
    pub congestion: Text,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow start threshold in bytes.
    pub ssthresh_bytes: u64,
    /// Whether both ends use ECN (RFC 3168).
    pub ecn: bool,
    /// Bytes per second that may leave; `null` where the connection is not paced.
    pub pacing_bytes_per_s: Option<u64>,
    /// Bytes per second that were delivered lately.
    pub delivery_bytes_per_s: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes that wait at the proxy for the application.
    pub queued_in: u64,
    /// Bytes that wait at the proxy for the client's acknowledgement.
    pub queued_out: u64,
    /// Bytes that the application lets come.
    pub credit_in: u64,
    /// Bytes that the application may still send.
    pub credit_out: u64,
}

/// A service over all workers of the proxy: an element of `/v1/services`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Name.
    pub name: Text,
    /// Virtual address and port.
    pub address: SocketAddr,
    /// Established connections that wait for a process.
    pub pending: u64,
    /// Pool, by node and port.
    pub members: Vec<PoolMember>,
}

/// A member of a service's pool. Members are shared: two services that name the same node and port show the same figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolMember {
    /// App node.
    pub node: Text,
    /// Port that its processes listen on.
    pub port: u16,
    /// Processes that listen; each listens at every worker and counts once.
    pub listeners: u64,
    /// Connections that are open at it or offered to it.
    pub open: u64,
    /// Connections that its processes have room for.
    pub accept_credit: u64,
    /// Connections that its processes accepted since the proxy came to know the member.
    pub connections_total: u64,
}
