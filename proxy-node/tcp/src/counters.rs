//! What the engine counts. Only the telemetry of the daemon knows how these are exposed.

use crate::api::DropReason;

/// Monotonic counts since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names say it; those that do not have a line of their own
pub struct Counters {
    pub segments_received: u64,
    /// Segments and flow-end records handed to the owner.
    pub segments_sent: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub active_opens: u64,
    pub passive_opens: u64,
    pub established: u64,
    pub closed: u64,
    pub failed_reset: u64,
    pub failed_refused: u64,
    pub failed_timed_out: u64,
    pub failed_data_after_close: u64,
    pub aborted: u64,
    pub half_open_evicted: u64,
    /// Connections that failed because their peers' windows stayed closed while memory was short.
    pub zero_window_evicted: u64,
    pub syn_cookies_sent: u64,
    /// Connections that came about by a cookie.
    pub syn_cookies_accepted: u64,
    /// Acknowledgements to a listener, while cookies were about, that hold none or one that is too old.
    pub syn_cookies_rejected: u64,
    /// Cookies that were not sent because their queue was full.
    pub syn_cookies_suppressed: u64,
    pub time_wait_entered: u64,
    pub time_wait_evicted: u64,
    pub time_wait_reused: u64,
    pub resets_sent: u64,
    /// Answers to segments without a connection that were not sent: rate limit or full queue.
    pub replies_suppressed: u64,
    pub challenge_acks_sent: u64,
    pub challenge_acks_suppressed: u64,
    pub segments_retransmitted: u64,
    pub bytes_retransmitted: u64,
    pub syn_retransmitted: u64,
    pub retransmission_timeouts: u64,
    pub fast_recoveries: u64,
    pub tail_loss_probes: u64,
    pub window_probes: u64,
    pub keepalive_probes: u64,
    /// Data that arrived with congestion experienced (RFC 3168).
    pub ecn_marks_received: u64,
    /// Acknowledgements that told of such data.
    pub ecn_echoes_received: u64,
    /// Windows reduced for them.
    pub ecn_reductions: u64,
    /// Loss responses taken back because the original had arrived (RFC 3522).
    pub spurious_recoveries: u64,
    /// Losses of what had been sent again, found without a timeout.
    pub retransmissions_lost: u64,
    /// Acknowledgements of which not every SACK block was read: finding them took too many steps.
    pub sack_blocks_skipped: u64,
    /// D-SACKs (RFC 2883).
    pub duplicates_reported: u64,
    /// Peers that discarded what they had SACKed (RFC 2018 §8).
    pub reneged: u64,
    /// ICMP errors that quote no segment in flight, or tell no smaller MTU.
    pub path_errors_ignored: u64,
    pub path_mtu_lowered: u64,
    pub path_mtu_raised: u64,
    pub path_probes_sent: u64,
    pub path_black_holes_suspected: u64,
    pub duplicate_bytes_received: u64,
    pub out_of_order_bytes_received: u64,
    /// Bytes behind the window's right edge, cut off.
    pub bytes_beyond_window: u64,
    /// In-order bytes not stored because the block pool was empty.
    pub bytes_dropped_no_block: u64,
    /// Bytes out of order not stored: no block, no range set, or too many holes.
    pub out_of_order_bytes_dropped: u64,
    pub dropped_stale_label: u64,
    pub dropped_no_addresses: u64,
    pub dropped_ports_differ: u64,
    pub dropped_no_connection: u64,
    pub dropped_bad_flags: u64,
    pub dropped_table_full: u64,
    pub dropped_backlog_full: u64,
    pub dropped_outside_window: u64,
    pub dropped_paws: u64,
    pub dropped_bad_ack: u64,
    pub dropped_unexpected_syn: u64,
    pub dropped_bad_reset: u64,
    pub dropped_data_after_close: u64,
    pub dropped_time_wait: u64,
}

impl Counters {
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        let counter = match reason {
            DropReason::StaleLabel => &mut self.dropped_stale_label,
            DropReason::NoAddresses => &mut self.dropped_no_addresses,
            DropReason::PortsDiffer => &mut self.dropped_ports_differ,
            DropReason::NoConnection => &mut self.dropped_no_connection,
            DropReason::BadFlags => &mut self.dropped_bad_flags,
            DropReason::TableFull => &mut self.dropped_table_full,
            DropReason::BacklogFull => &mut self.dropped_backlog_full,
            DropReason::OutsideWindow => &mut self.dropped_outside_window,
            DropReason::Paws => &mut self.dropped_paws,
            DropReason::BadAck => &mut self.dropped_bad_ack,
            DropReason::UnexpectedSyn => &mut self.dropped_unexpected_syn,
            DropReason::BadReset => &mut self.dropped_bad_reset,
            DropReason::DataAfterClose => &mut self.dropped_data_after_close,
            DropReason::TimeWait => &mut self.dropped_time_wait,
        };
        *counter += 1;
    }
}
