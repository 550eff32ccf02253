//! What a worker's message broker has counted over all channels: handshakes, peers and messages that it
//! refused.

use csp_services::{MessageBroker, Refusals, RequestCounters};
use csp_telemetry::MetricWriter;

/// The counters of a broker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BrokerCounters {
    zmtp: csp_zmtp::Counters,
    refusals: Refusals,
    plane: csp_messages::Counters,
    requests: RequestCounters,
    requested: u64,
}

impl BrokerCounters {
    pub(super) fn of(broker: &MessageBroker) -> Self {
        let plane = broker.plane().map(csp_messages::MessagePlane::counters).unwrap_or_default();
        let (zmtp, refusals, requests) = (*broker.zmtp(), *broker.refusals(), broker.request_counters());
        BrokerCounters { zmtp, refusals, plane, requests, requested: broker.requested().len() as u64 }
    }
}

pub(super) fn collect(out: &mut MetricWriter, counters: &BrokerCounters, worker: &str) {
    let worker = ("worker", worker);
    let by_reason = [
        (
            "csp_message_peers_refused_total",
            "Peers of channels that were refused or disconnected",
            peers(counters).to_vec(),
        ),
        ("csp_messages_refused_total", "Messages that are on no channel", messages(counters).to_vec()),
        (
            "csp_message_subscriptions_refused_total",
            "Subscriptions that had no effect",
            vec![
                ("full", counters.plane.subscribe_refused),
                ("cancelled_unknown", counters.plane.cancel_unknown),
            ],
        ),
    ];
    for (name, help, values) in by_reason {
        for (reason, value) in values {
            out.counter(name, help, &[("reason", reason), worker], value);
        }
    }
    requests(out, counters, worker);
    for (name, help, value) in totals(counters) {
        out.counter(name, help, &[worker], value);
    }
}

/// Queries that programs ask for.
fn requests(out: &mut MetricWriter, counters: &BrokerCounters, worker: (&str, &str)) {
    let r = &counters.requests;
    let results = [
        ("granted", r.granted),
        ("shared", r.shared),
        ("format", r.formats),
        ("handler", r.handlers),
        ("swapped", r.swapped),
        ("refused", r.refused),
    ];
    for (result, value) in results {
        let help = "Requests for queries, formats and handlers, by what became of them";
        out.counter("csp_query_requests_total", help, &[("result", result), worker], value);
    }
    let ends = [("no_subscriber", r.expired), ("released", r.released), ("policy", r.withdrawn)];
    for (reason, value) in ends {
        let help = "Queries and handlers on request that have ended, by reason";
        out.counter("csp_query_ends_total", help, &[("reason", reason), worker], value);
    }
    let help = "Requests that were refused because others were being planned, or their address had used up its time for that";
    out.counter("csp_query_requests_busy_total", help, &[worker], r.busy);
    let help = "Time that planning of queries and formats on request has taken";
    out.counter("csp_query_planning_nanoseconds_total", help, &[worker], r.planning_ns);
    let help = "Queries and handlers on request that run";
    out.gauge("csp_requested_queries", help, &[worker], counters.requested as f64);
}

/// Reasons of ends of connections. The three counts of refused keys stand for `failed_denied`.
fn peers(counters: &BrokerCounters) -> [(&'static str, u64); 26] {
    let (z, r) = (&counters.zmtp, &counters.refusals);
    [
        ("signature", z.failed_signature),
        ("version", z.failed_version),
        ("mechanism", z.failed_mechanism),
        ("frame", z.failed_frame),
        ("message_too_long", z.failed_message_too_long),
        ("command_too_long", z.failed_command_too_long),
        ("topic_too_long", z.failed_topic_too_long),
        ("too_many_frames", z.failed_too_many_frames),
        ("malformed", z.failed_malformed),
        ("unexpected", z.failed_unexpected),
        ("socket_type", z.failed_socket_type),
        ("sealed", z.failed_sealed),
        ("nonce", z.failed_nonce),
        ("peer_error", z.failed_peer_error),
        ("handshake_timeout", z.failed_handshake_timeout),
        ("heartbeat_timeout", z.failed_heartbeat_timeout),
        ("ttl_timeout", z.failed_ttl_timeout),
        ("internal", z.failed_gap),
        ("unknown_key", r.unknown_key),
        ("no_key", r.no_key),
        ("may_not_publish", r.may_not_publish),
        ("may_not_subscribe", r.may_not_subscribe),
        ("may_not_control", r.may_not_control),
        ("rights_removed", r.rights_removed),
        ("peers_full", r.peers_full),
        ("incomplete", r.incomplete),
    ]
}

/// Reasons for which a message is on no channel, while its peer stays connected.
fn messages(counters: &BrokerCounters) -> [(&'static str, u64); 6] {
    let p = &counters.plane;
    [
        ("frames", p.refused_frames + counters.zmtp.messages_refused_frames),
        ("too_long", p.refused_too_long + counters.zmtp.messages_refused_length),
        ("topic", p.refused_topic),
        ("not_a_publisher", p.refused_peer),
        ("wrong_direction", counters.zmtp.messages_ignored),
        ("internal", p.refused_mismatch + p.delivered_refused + p.unknown),
    ]
}

fn totals(counters: &BrokerCounters) -> [(&'static str, &'static str, u64); 12] {
    let (z, p) = (&counters.zmtp, &counters.plane);
    [
        (
            "csp_message_handshakes_total",
            "Handshakes of peers of channels that are complete",
            z.handshakes_completed,
        ),
        ("csp_message_peers_attached_total", "Peers that joined a channel", p.attached),
        ("csp_message_peers_detached_total", "Peers that left a channel", p.detached),
        (
            "csp_message_subscriptions_total",
            "Subscriptions of peers, repeated ones included",
            z.subscriptions_received,
        ),
        ("csp_message_cancellations_total", "Subscriptions that peers cancelled", z.cancellations_received),
        ("csp_message_pings_received_total", "Heartbeats of peers", z.pings_received),
        (
            "csp_message_pings_coalesced_total",
            "Heartbeats answered together with one before",
            z.pings_coalesced,
        ),
        ("csp_message_pongs_sent_total", "Answers to heartbeats of peers", z.pongs_sent),
        ("csp_message_pings_sent_total", "Heartbeats to peers", z.pings_sent),
        ("csp_message_pongs_received_total", "Answers of peers to heartbeats", z.pongs_received),
        (
            "csp_message_copies_unwritable_total",
            "Copies that length-prefixed receivers did not get: shorter than their header, or longer than its length field can say",
            z.prefixed_unwritable,
        ),
        ("csp_message_commands_ignored_total", "Commands that ZMTP 3.1 does not define", z.commands_ignored),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_for_which_framing_ends_a_connection_is_a_figure() {
        let counters = BrokerCounters::default();
        let text = format!("{:?}", counters.zmtp);
        let failed =
            text.split([' ', '{']).filter_map(|word| word.strip_prefix("failed_")?.strip_suffix(':'));
        // "denied" is split into its reasons; "gap" is a mistake of the proxy's own.
        let failed: Vec<&str> = failed.filter(|reason| !["denied", "gap"].contains(reason)).collect();
        assert!(failed.len() > 15, "{text}");
        for reason in failed {
            assert!(peers(&counters).iter().any(|(name, _)| *name == reason), "{reason} is not shown");
        }
    }
}
