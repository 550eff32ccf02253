//! The engine's counters. The daemon's telemetry exposes them.

use crate::api::DropReason;

/// Monotonic counts since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names say it; those that do not have a line of their own
pub struct Counters {
    pub segments_received: u64,
    /// Segments and flow-end records returned to the caller.
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
    /// Connections that failed because their peer kept its window closed while memory was short.
    pub zero_window_evicted: u64,
    pub syn_cookies_sent: u64,
    /// Connections opened by a valid cookie.
    pub syn_cookies_accepted: u64,
    /// Acknowledgements to a listener that carry no valid cookie although cookies were sent recently.
    pub syn_cookies_rejected: u64,
    /// Cookies not sent because their queue was full.
    pub syn_cookies_suppressed: u64,
    pub time_wait_entered: u64,
    pub time_wait_evicted: u64,
    pub time_wait_reused: u64,
    pub resets_sent: u64,
    /// Replies to segments without a connection that were not sent: rate limit, full queue, or network node
    /// not ready.
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
    /// Data segments received with Congestion Experienced (RFC 3168).
    pub ecn_marks_received: u64,
    /// Acknowledgements received with ECE.
    pub ecn_echoes_received: u64,
    /// Window reductions in response to ECE.
    pub ecn_reductions: u64,
    /// Loss responses undone because the original had arrived (RFC 3522).
    pub spurious_recoveries: u64,
    /// Times that lost retransmissions were detected without a timeout.
    pub retransmissions_lost: u64,
    /// Acknowledgements whose SACK blocks were not all processed, because the step budget was used up.
    pub sack_blocks_skipped: u64,
    /// D-SACKs received (RFC 2883).
    pub duplicates_reported: u64,
    /// Timeouts at which a peer had discarded SACKed data (RFC 2018 §8).
    pub reneged: u64,
    /// Resets that waited for written data.
    pub resets_delayed: u64,
    /// Delayed resets that were sent before all data was acknowledged, because the peer took too long.
    pub resets_overdue: u64,
    /// ICMP errors that quote no segment in flight, or report no smaller MTU.
    pub path_errors_ignored: u64,
    pub path_mtu_lowered: u64,
    pub path_mtu_raised: u64,
    pub path_probes_sent: u64,
    pub path_black_holes_suspected: u64,
    pub duplicate_bytes_received: u64,
    pub out_of_order_bytes_received: u64,
    /// Bytes beyond the window's right edge, cut off.
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
