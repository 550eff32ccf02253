//! The TCP engine's counts as metrics: all of them, under the names that the engine has for them.

use csp_tcp::Counters;
use csp_telemetry::MetricWriter;

/// Name, help and value of a count.
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
    segments_received: "Segments taken by the TCP engine",
    segments_sent: "Segments (up to 64 KB) handed to tunnels",
    bytes_received: "Bytes of the streams that clients sent, each once",
    bytes_sent: "Bytes handed to tunnels, retransmissions included",
    active_opens: "Connections begun for applications",
    passive_opens: "Connections begun by clients",
    established: "Handshakes completed",
    closed: "Connections closed by both sides",
    failed_reset: "Connections that the client reset",
    failed_refused: "Connections that were refused",
    failed_timed_out: "Connections whose client fell silent",
    failed_data_after_close: "Connections reset because data came for an application that had closed",
    aborted: "Connections that the application aborted",
    half_open_evicted: "Half-open connections pushed out",
    zero_window_evicted: "Connections ended because their windows stayed closed while memory was short",
    syn_cookies_sent: "SYNs answered without keeping state",
    syn_cookies_accepted: "Connections brought about by a cookie",
    syn_cookies_rejected: "Acknowledgements of no valid cookie while cookies were about",
    time_wait_entered: "Connections that entered TIME-WAIT",
    time_wait_evicted: "TIME-WAIT entries pushed out",
    time_wait_reused: "TIME-WAIT entries replaced by a new connection",
    resets_sent: "RSTs sent",
    replies_suppressed: "Answers to segments without a connection that were not sent",
    challenge_acks_sent: "Challenge ACKs sent (RFC 5961)",
    challenge_acks_suppressed: "Challenge ACKs not sent, because one had just been",
    segments_retransmitted: "Segments sent again",
    bytes_retransmitted: "Bytes sent again",
    syn_retransmitted: "SYNs and SYN/ACKs sent again",
    retransmission_timeouts: "Retransmission timers that ran out",
    fast_recoveries: "Losses repaired without a timeout",
    tail_loss_probes: "Tail loss probes",
    window_probes: "Zero-window probes",
    keepalive_probes: "Keepalive probes",
    ecn_marks_received: "Segments that arrived with congestion experienced (RFC 3168)",
    ecn_echoes_received: "Acknowledgements that told of congestion",
    ecn_reductions: "Windows reduced because of them",
    spurious_recoveries: "Loss responses taken back",
    retransmissions_lost: "Retransmissions found lost without a timeout",
    sack_blocks_skipped: "Acknowledgements of which not every SACK block was read",
    duplicates_reported: "D-SACKs received (RFC 2883)",
    reneged: "Peers that discarded what they had SACKed",
    path_errors_ignored: "ICMP errors about nothing in flight, or without news",
    path_mtu_lowered: "Path MTUs lowered by ICMP",
    path_mtu_raised: "Path MTUs raised by probing",
    path_probes_sent: "Probes of a larger path MTU",
    path_black_holes_suspected: "Segment sizes lowered because full segments vanished",
    duplicate_bytes_received: "Bytes received again",
    out_of_order_bytes_received: "Bytes received behind a hole",
    bytes_beyond_window: "Bytes behind the window that was told, cut off",
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

/// Writes everything one worker's engine counted.
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
