//! What a proxy worker counts. Plain numbers; the daemon turns them into metrics.

/// Counters of one worker since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Tunnel records taken.
    pub records_in: u64,
    /// Tunnel records sent.
    pub records_out: u64,
    /// TCP payload bytes taken from clients.
    pub client_bytes_in: u64,
    /// TCP payload bytes passed to network nodes, retransmissions included.
    pub client_bytes_out: u64,
    /// Bytes passed to applications.
    pub app_bytes_out: u64,
    /// Bytes taken from applications.
    pub app_bytes_in: u64,
    /// Connections established by clients.
    pub connections_passive: u64,
    /// Connections opened for applications.
    pub connections_active: u64,
    /// Connections that ended without an error.
    pub connections_closed: u64,
    /// Connections that ended with an error.
    pub connections_failed: u64,
    /// LISTENs refused: not granted to the process, or the port is another user's.
    pub listens_denied: u64,
    /// CONNECTs refused: not granted to the process.
    pub connects_denied: u64,
    /// OPENs that a process handed back.
    pub opens_refused: u64,
    /// Offers that a process left unanswered and that were made to another one.
    pub offers_withdrawn: u64,
    /// Connections that a process left to another one.
    pub handed_over: u64,
    /// Connections dropped because nobody took them over in time.
    pub drop_not_taken_over: u64,
    /// Connections dropped because no process of their service listened.
    pub drop_no_server: u64,
    /// Connections dropped because no process took them within the backlog's time, though some listened.
    pub drop_backlog_time: u64,
    /// Connections given up because their clients took nothing for long while the send budget was used up.
    pub stalled_given_up: u64,
    /// Connections dropped because the send budget was used up.
    pub drop_no_budget: u64,
    /// Records dropped: not parseable as IP or TCP.
    pub drop_malformed: u64,
    /// Records dropped: for another worker, or without a meaning here.
    pub drop_misdirected: u64,
    /// Records dropped by the TCP engine (its own counters say why).
    pub drop_tcp: u64,
    /// Records that found their network node gone.
    pub drop_no_tunnel: u64,
    /// Channel messages about flows that are gone, or were never this channel's.
    pub stale_messages: u64,
    /// Channel messages that broke the rules: bytes beyond the window, nonsense payloads.
    pub violations: u64,
}
