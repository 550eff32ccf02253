//! What a worker's channels of messages show, on the admin endpoint and as metrics.

use csp_api::proxy::{Channel, ChannelFigures, LostRows, RequestedQuery};
use csp_services::{ChannelSnapshot, MessageBroker, Moved, RequestNotice, RequestedSnapshot};
use csp_telemetry::MetricWriter;
use csp_types::Instant;

use super::contexts::lost_rows;
use crate::ProxyWorker;

/// Returns the channels of a worker, each with its name.
pub(super) fn of_worker(broker: &MessageBroker, now: Instant) -> Vec<(String, Channel)> {
    let block_len = broker.block_len();
    let mut channels: Vec<(String, Channel)> =
        broker.snapshots().into_iter().map(|snapshot| describe(snapshot, block_len)).collect();
    for (name, path) in &broker.contexts().paths {
        if let Some((_, channel)) = channels.iter_mut().find(|(known, _)| known == name) {
            let lost = path.stages.iter().map(|stage| lost_rows(&stage.losses));
            lost.for_each(|lost| channel.figures.lost_rows.add(&lost));
        }
    }
    for (name, requested) in broker.requested() {
        if let Some((_, channel)) = channels.iter_mut().find(|(known, _)| *known == name) {
            channel.requested = Some(describe_request(&requested, now));
        }
    }
    channels
}

fn describe_request(query: &RequestedSnapshot, now: Instant) -> RequestedQuery {
    RequestedQuery {
        of: (&query.of).into(),
        by: (&query.by).into(),
        requesters: query.requesters,
        sql: (&query.sql).into(),
        output: if query.json { "json" } else { "sbe" }.into(),
        address: query.address,
        topic: (&query.topic).into(),
        lease_s: query.lease.as_secs(),
        ends_in_s: query.ends.map(|ends| ends.saturating_since(now).as_secs()),
    }
}

fn describe(snapshot: ChannelSnapshot, block_len: u64) -> (String, Channel) {
    let ChannelSnapshot { name, senders, receivers, waiting, malformed, refused, status, owner, .. } =
        snapshot;
    let (unknown_format_total, unknown_dropped) = (snapshot.unknown_format, snapshot.unknown_dropped);
    let counters = status.counters;
    let figures = ChannelFigures {
        messages_total: counters.published,
        bytes_total: counters.bytes_published,
        unmatched_total: counters.unmatched,
        delivered_total: counters.taken,
        dropped_total: counters.dropped_newest
            + counters.dropped_oldest
            + counters.dropped_stalled
            + counters.dropped_memory
            + counters.dropped_path
            + counters.dropped_flow
            + unknown_dropped,
        lost_total: counters.lost,
        held_total: counters.held,
        malformed_total: malformed,
        unknown_format_total,
        refused_total: refused,
        lost_rows: LostRows::default(),
        last_values: status.cached as u64,
        last_values_evicted_total: status.cache.evicted,
        last_values_too_long_total: status.cache.too_long,
        waiting,
        memory_bytes: u64::from(status.memory.used) * block_len,
        memory_max_bytes: u64::from(status.memory.max) * block_len,
    };
    let subscriptions = status.subscriptions.entries as u64;
    let owner = owner.map(|owner| owner.to_string()).unwrap_or_default().into();
    let requested = None;
    let channel =
        Channel { name: (&name).into(), owner, senders, receivers, subscriptions, requested, figures };
    (name, channel)
}

/// Writes the metrics of a worker's channels.
pub(super) fn collect(out: &mut MetricWriter, channels: &[(String, Channel)], worker: &str) {
    for (name, channel) in channels {
        let labels = [("channel", name.as_str()), ("worker", worker)];
        let figures = &channel.figures;
        let counters = [
            ("csp_channel_messages_total", "Messages that arrived on a channel", figures.messages_total),
            ("csp_channel_bytes_total", "Bytes of messages that arrived on a channel", figures.bytes_total),
            ("csp_channel_unmatched_total", "Messages to which nobody subscribed", figures.unmatched_total),
            ("csp_channel_delivered_total", "Copies of messages given to receivers", figures.delivered_total),
            (
                "csp_channel_dropped_total",
                "Copies of messages not delivered because a queue was full or memory was short, or that were of none of the channel's formats",
                figures.dropped_total,
            ),
            (
                "csp_channel_lost_total",
                "Messages lost with a receiver that had been given them",
                figures.lost_total,
            ),
            ("csp_channel_held_total", "How often senders of a channel were held back", figures.held_total),
            (
                "csp_channel_malformed_total",
                "Length-prefixed connections reset for a malformed length, or a stream that ended within a message",
                figures.malformed_total,
            ),
            (
                "csp_channel_unknown_format_total",
                "Messages of none of the channel's formats",
                figures.unknown_format_total,
            ),
            (
                "csp_channel_refused_total",
                "Messages refused while their senders stayed connected",
                figures.refused_total,
            ),
            (
                "csp_channel_last_values_evicted_total",
                "Last values of a channel that gave way to others",
                figures.last_values_evicted_total,
            ),
            (
                "csp_channel_last_values_too_long_total",
                "Messages longer than the memory for all last values of their channel",
                figures.last_values_too_long_total,
            ),
        ];
        for (name, help, value) in counters {
            out.counter(name, help, &labels, value);
        }
        let gauges = [
            ("csp_channel_senders", "Connected peers that publish or push", channel.senders),
            ("csp_channel_receivers", "Connected peers that subscribe or pull", channel.receivers),
            ("csp_channel_subscriptions", "Pairs of a receiver and a topic", channel.subscriptions),
            ("csp_channel_last_values", "Last values of a channel that are kept", figures.last_values),
            ("csp_channel_waiting_messages", "Copies of messages that wait for receivers", figures.waiting),
            ("csp_channel_memory_bytes", "Memory of a channel's messages", figures.memory_bytes),
        ];
        for (name, help, value) in gauges {
            out.gauge(name, help, &labels, value as f64);
        }
    }
}

/// Returns what the moves of a worker's channels have cost, each with the channel's name.
pub(super) fn moved(broker: &MessageBroker) -> Vec<(String, Moved)> {
    broker.snapshots().into_iter().map(|snapshot| (snapshot.name, snapshot.moved)).collect()
}

/// Writes the metrics of moves of a worker's channels to other workers.
pub(super) fn collect_moved(out: &mut MetricWriter, moved: &[(String, Moved)], worker: &str) {
    for (name, moved) in moved {
        let labels = [("channel", name.as_str()), ("worker", worker)];
        let (connections, lost) = (moved.connections, moved.lost);
        let help = "Connections of a channel ended because another proxy worker owns it";
        out.counter("csp_channel_moved_connections_total", help, &labels, connections);
        let help = "Messages of a channel lost when its connections moved to another proxy worker";
        out.counter("csp_channel_moved_lost_total", help, &labels, lost);
    }
}

/// Logs queries and handlers on request that begin and end.
pub(super) fn log_requests(worker: &mut ProxyWorker) {
    while let Some(notice) = worker.poll_request_notice() {
        match notice {
            RequestNotice::Granted { channel, by, sql } => {
                tracing::info!(channel, by, sql, "query on request begins");
            }
            RequestNotice::Supplied { channel, by, name, module } => {
                tracing::info!(channel, by, name, module, "a client's handler begins");
            }
            RequestNotice::Released { channel, by, why, read } => {
                tracing::info!(channel, by, why, read, "query or handler on request has ended");
            }
        }
    }
}
