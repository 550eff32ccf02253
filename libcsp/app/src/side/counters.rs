//! Counters of the application's end.

/// Totals since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AppCounters {
    /// Links to proxies that came up.
    pub links_up: u64,
    /// Links that were lost after they were up.
    pub links_lost: u64,
    /// Attempts to reach a proxy that failed.
    pub link_failures: u64,
    /// Connections offered by proxies.
    pub opens: u64,
    /// Connections that the program accepted.
    pub accepted: u64,
    /// Connections returned to the proxy unaccepted.
    pub refused: u64,
    /// Pauses of listeners that lasted longer than [`PAUSE_MAX`](super::PAUSE_MAX).
    pub pauses_ended: u64,
    /// Connections that ended before the program accepted them.
    pub gone_before_accept: u64,
    /// Connections that the program requested.
    pub connects: u64,
    /// Of these, connections that failed.
    pub connect_failures: u64,
    /// CONNECTs that a proxy worker refused because another one serves the address. Not among
    /// [`named`](Self::named).
    pub connects_elsewhere: u64,
    /// Sockets closed by the program.
    pub closed: u64,
    /// Flows that ended by a reset or a lost link.
    pub resets: u64,
    /// Bytes the program read.
    pub bytes_read: u64,
    /// Bytes the program wrote.
    pub bytes_written: u64,
    /// Writes that found the byte window closed.
    pub write_blocked_window: u64,
    /// Writes that found no descriptor credit.
    pub write_blocked_descriptors: u64,
    /// Bytes that arrived after the program had closed the socket.
    pub bytes_after_close: u64,
    /// LISTENs that a proxy refused.
    pub listen_refused: u64,
    /// Messages for unknown flows or listeners, such as those closed before.
    pub messages_unknown: u64,
    /// Links broken because a proxy broke the protocol.
    pub protocol_violations: u64,
}

impl AppCounters {
    /// Names and values for exposition; each name is the middle part of a metric's name.
    pub fn named(&self) -> [(&'static str, u64); 20] {
        [
            ("links_up", self.links_up),
            ("links_lost", self.links_lost),
            ("link_failures", self.link_failures),
            ("opens", self.opens),
            ("accepted", self.accepted),
            ("refused", self.refused),
            ("pauses_ended", self.pauses_ended),
            ("gone_before_accept", self.gone_before_accept),
            ("connects", self.connects),
            ("connect_failures", self.connect_failures),
            ("closed", self.closed),
            ("resets", self.resets),
            ("bytes_read", self.bytes_read),
            ("bytes_written", self.bytes_written),
            ("write_blocked_window", self.write_blocked_window),
            ("write_blocked_descriptors", self.write_blocked_descriptors),
            ("bytes_after_close", self.bytes_after_close),
            ("listen_refused", self.listen_refused),
            ("messages_unknown", self.messages_unknown),
            ("protocol_violations", self.protocol_violations),
        ]
    }
}
