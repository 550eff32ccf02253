//! The TCP engine's counters as metrics: all of them, under the engine's names.

use csp_tcp::Counters;
use csp_telemetry::MetricWriter;

/// Name, help text and value of a counter.
type Figure = (&'static str, &'static str, fn(&Counters) -> u64);

/// Reason and value of a drop.
type Dropped = (&'static str, fn(&Counters) -> u64);

/// `field: help` becomes the counter `csp_tcp_<field>_total`.
macro_rules! figures {
    ($($field:ident: $help:literal,)*) => {
        &[$((concat!("csp_tcp_", stringify!($field), "_total"), $help, |c: &Counters| c.$field),)*]
    };
}

/// `reason: field` becomes the series `csp_drops_total{reason="tcp_<reason>"}`.
macro_rules! drops {
    ($($reason:ident: $field:ident,)*) => {
        &[$((concat!("tcp_", stringify!($reason)), |c: &Counters| c.$field),)*]
    };
}

const FIGURES: &[Figure] = figures![
    segments_received: "Segments received by the TCP engine",
    segments_sent: "Segments (up to 64 KB) passed to tunnels",
    bytes_received: "Bytes of the streams that clients sent, each once",
    bytes_sent: "Bytes passed to tunnels, retransmissions included",
    active_opens: "Connections opened for applications",
    passive_opens: "Connections opened by clients",
    established: "Handshakes completed",
    closed: "Connections closed by both sides",
    failed_reset: "Connections that the client reset",
    failed_refused: "Connections that were refused",
    failed_timed_out: "Connections whose client fell silent",
    failed_data_after_close: "Connections reset because data arrived for an application that had closed",
    aborted: "Connections that the application aborted",
    half_open_evicted: "Half-open connections evicted",
    zero_window_evicted: "Connections ended because their windows stayed closed while memory was short",
    syn_cookies_sent: "SYNs answered without storing state",
    syn_cookies_accepted: "Connections established by a cookie",
    syn_cookies_rejected: "Acknowledgements without a valid cookie while cookies were in use",
    time_wait_entered: "Connections that entered TIME-WAIT",
    time_wait_evicted: "TIME-WAIT entries evicted",
    time_wait_reused: "TIME-WAIT entries replaced by a new connection",
    resets_sent: "RSTs sent",
    replies_suppressed: "Replies to segments without a connection that were suppressed",
    challenge_acks_sent: "Challenge ACKs sent (RFC 5961)",
    challenge_acks_suppressed: "Challenge ACKs suppressed by the rate limit",
    segments_retransmitted: "Segments retransmitted",
    bytes_retransmitted: "Bytes retransmitted",
    syn_retransmitted: "SYNs and SYN/ACKs retransmitted",
    retransmission_timeouts: "Retransmission timeouts",
    fast_recoveries: "Losses repaired without a timeout",
    tail_loss_probes: "Tail loss probes",
    window_probes: "Zero-window probes",
    keepalive_probes: "Keepalive probes",
    ecn_marks_received: "Segments that arrived with congestion experienced (RFC 3168)",
    ecn_echoes_received: "Acknowledgements that echoed congestion",
    ecn_reductions: "Congestion windows reduced because of ECN echoes",
    spurious_recoveries: "Loss responses undone as spurious",
    retransmissions_lost: "Lost retransmissions detected without a timeout",
    sack_blocks_skipped: "Acknowledgements with more SACK blocks than were processed",
    duplicates_reported: "D-SACKs received (RFC 2883)",
    reneged: "Peers that discarded what they had SACKed",
    resets_delayed: "Resets that waited until the client had acknowledged what was written before",
    resets_overdue: "Delayed resets that were sent before that, because the client took too long",
    path_errors_ignored: "ICMP errors about no segment in flight, or without effect",
    path_mtu_lowered: "Path MTUs lowered by ICMP",
    path_mtu_raised: "Path MTUs raised by probing",
    path_probes_sent: "Probes of a larger path MTU",
    path_black_holes_suspected: "Segment sizes lowered because full segments vanished",
    duplicate_bytes_received: "Bytes received again",
    out_of_order_bytes_received: "Bytes received behind a hole",
    bytes_beyond_window: "Bytes beyond the advertised window, discarded",
    bytes_dropped_no_block: "Bytes in order that were not stored for lack of memory",
    out_of_order_bytes_dropped: "Bytes behind a hole that were not stored for lack of memory or of room for holes",
];

const DROPS: &[Dropped] = drops![
    stale_label: dropped_stale_label,
    no_addresses: dropped_no_addresses,
    ports_differ: dropped_ports_differ,
    no_connection: dropped_no_connection,
    bad_flags: dropped_bad_flags,
    table_full: dropped_table_full,
    backlog_full: dropped_backlog_full,
    outside_window: dropped_outside_window,
    paws: dropped_paws,
    bad_ack: dropped_bad_ack,
    unexpected_syn: dropped_unexpected_syn,
    bad_reset: dropped_bad_reset,
    data_after_close: dropped_data_after_close,
    time_wait: dropped_time_wait,
    cookie_queue_full: syn_cookies_suppressed,
];

/// Writes all counters of one worker's engine.
pub(super) fn collect(out: &mut MetricWriter, counters: &Counters, labels: &[(&str, &str)]) {
    for (name, help, value) in FIGURES {
        out.counter(name, help, labels, value(counters));
    }
    for (reason, value) in DROPS {
        out.drops(&[(reason, value(counters))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_engine_counts_is_exported() {
        let shown = format!("{:?}", Counters::default());
        let fields = shown.trim_start_matches("Counters { ").trim_end_matches(" }").split(", ");
        let fields: Vec<&str> = fields.filter_map(|field| field.strip_suffix(": 0")).collect();
        let exported = |field: &str| {
            let counter = format!("csp_tcp_{field}_total");
            let reason = field.strip_prefix("dropped_").map(|reason| format!("tcp_{reason}"));
            FIGURES.iter().any(|(name, ..)| *name == counter)
                || DROPS.iter().any(|(name, _)| Some(*name) == reason.as_deref())
                || field == "syn_cookies_suppressed"
        };
        let missing: Vec<&&str> = fields.iter().filter(|field| !exported(field)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(fields.len(), FIGURES.len() + DROPS.len());
    }
}
