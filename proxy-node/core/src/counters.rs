//! Counters of a proxy worker. Plain numbers; the daemon converts them to metrics.

use csp_tls::FailureClass;

/// Counters of one worker since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Tunnel records received.
    pub records_in: u64,
    /// Tunnel records sent.
    pub records_out: u64,
    /// TCP payload bytes received from clients.
    pub client_bytes_in: u64,
    /// TCP payload bytes sent to network nodes, retransmissions included.
    pub client_bytes_out: u64,
    /// Bytes sent to applications.
    pub app_bytes_out: u64,
    /// Bytes received from applications.
    pub app_bytes_in: u64,
    /// Connections established by clients.
    pub connections_passive: u64,
    /// Connections opened for applications.
    pub connections_active: u64,
    /// Connections opened to plain servers for clients and local services.
    pub connections_called: u64,
    /// Those of them that were not established.
    pub calls_failed: u64,
    /// Connections to plain servers that could not be begun: no egress address, network node, port or memory.
    pub calls_unsent: u64,
    /// Connections reset because their client moved nothing for long after the plain server had finished.
    pub half_closed_given_up: u64,
    /// Active checks of plain servers that were begun.
    pub checks: u64,
    /// Those of them that failed.
    pub checks_failed: u64,
    /// Bytes passed between plain servers and clients or local services.
    pub joined_bytes: u64,
    /// Connections between two programs of the cluster that use no TCP.
    pub connections_hairpin: u64,
    /// Connections that local services requested.
    pub connections_upstream: u64,
    /// Upstream connections that no process accepted, and requests that were refused at once.
    pub upstream_opens_failed: u64,
    /// Resets between two programs of the cluster that waited for the bytes before them.
    pub hairpin_resets_delayed: u64,
    /// Resets between two programs of the cluster that were sent before all bytes, because the receiving
    /// program took too long.
    pub hairpin_resets_overdue: u64,
    /// Connections that ended without an error.
    pub connections_closed: u64,
    /// Connections that ended with an error.
    pub connections_failed: u64,
    /// LISTENs refused: not granted to the process, or the port belongs to another user.
    pub listens_denied: u64,
    /// CONNECTs refused: not granted to the process.
    pub connects_denied: u64,
    /// CONNECTs refused because the user's processes hold their share of the tables or of the send budget.
    pub connects_over_share: u64,
    /// CONNECTs refused because another proxy worker serves the address.
    pub connects_elsewhere: u64,
    /// OPENs that a process refused.
    pub opens_refused: u64,
    /// Unanswered offers withdrawn from a process and made to a different one.
    pub offers_withdrawn: u64,
    /// Connections that one process handed over to another.
    pub handed_over: u64,
    /// Connections dropped because no process took them over in time.
    pub drop_not_taken_over: u64,
    /// Connections of balancers in front that did not begin with a header of the PROXY protocol.
    pub proxy_headers_refused: u64,
    /// Handshakes of TLS that were completed.
    pub tls_handshakes: u64,
    /// Those that failed, or took too long.
    pub tls_handshakes_failed: u64,
    /// Connections that were reset since their source had begun too many handshakes.
    pub tls_handshakes_not_admitted: u64,
    /// Steps of handshakes that another thread has made.
    pub tls_handshake_steps_elsewhere: u64,
    /// Connections whose session failed later: a violation of the protocol, or an end without close_notify.
    pub tls_sessions_failed: u64,
    /// Handshakes of TLS with plain servers that were completed, checks included.
    pub tls_server_handshakes: u64,
    /// Those of them that have resumed a former session.
    pub tls_server_resumed: u64,
    /// Those that failed, by class.
    pub tls_server_failed: [u64; FailureClass::ALL.len()],
    /// Those that were not complete in time.
    pub tls_server_late: u64,
    /// Connections dropped because no process of their service listened.
    pub drop_no_server: u64,
    /// Connections dropped because no listening process accepted them within the backlog's time limit.
    pub drop_backlog_time: u64,
    /// Connections dropped because their clients acknowledged nothing for long while the send budget was
    /// exhausted.
    pub stalled_given_up: u64,
    /// Connections reset because their clients were idle while the table of connections was nearly full, or
    /// the send budget exhausted.
    pub idle_given_up: u64,
    /// Connections dropped because the send budget was exhausted.
    pub drop_no_budget: u64,
    /// Records dropped: not parseable as IP or TCP.
    pub drop_malformed: u64,
    /// Records dropped: for another worker, or of a kind that proxies do not process.
    pub drop_misdirected: u64,
    /// Records dropped because no policy was in force yet. Their sender retransmits them.
    pub drop_no_policy: u64,
    /// Records dropped by the TCP engine (its own counters give the reasons).
    pub drop_tcp: u64,
    /// Records dropped because their tunnel had no room or was down.
    pub drop_no_tunnel: u64,
    /// Segments returned to a network node that searches for the proxy of their connection.
    pub unknown_returned: u64,
    /// Channel messages about flows that have ended, or never belonged to the channel.
    pub stale_messages: u64,
    /// Channel messages that violate the protocol: bytes beyond the window, malformed payloads.
    pub violations: u64,
}
