//! What a worker's information flows show, on the admin endpoint and as metrics.

use csp_api::quality::{InformationFlow, Link, Quality, Trigger};
use csp_quality::{FlowStatus, LinkStatus};
use csp_telemetry::MetricWriter;
use csp_types::{Duration, Instant};

use crate::ProxyWorker;

/// Returns the flows of a worker. The worker's number is set by the reader.
pub(super) fn of_worker(worker: &mut ProxyWorker, now: Instant) -> Quality {
    let Some((status, flows)) = worker.link_status(now) else { return Quality::default() };
    Quality { links: vec![link(&status)], flows: flows.iter().map(flow).collect() }
}

/// Joins those of all workers, in the order of the workers.
pub(super) fn join(workers: impl Iterator<Item = Quality>) -> Quality {
    let mut all = Quality::default();
    for (worker, mut of_worker) in (0u64..).zip(workers) {
        of_worker.links.iter_mut().for_each(|link| link.worker = worker);
        of_worker.flows.iter_mut().for_each(|flow| flow.worker = worker);
        all.links.append(&mut of_worker.links);
        all.flows.append(&mut of_worker.flows);
    }
    all
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn link(status: &LinkStatus) -> Link {
    let trigger = |(name, changes): &(String, u64)| Trigger { name: name.into(), changes_total: *changes };
    Link {
        worker: 0,
        scheme: status.scheme.abbreviation().into(),
        capacity_bits_per_s: status.capacity.0,
        part_bits_per_s: status.capacity.1,
        waits: status.waits,
        contexts: status.contexts.0.into(),
        contexts_percent: status.contexts.1.into(),
        triggers: status.triggers.iter().map(trigger).collect(),
    }
}

fn flow(status: &FlowStatus) -> InformationFlow {
    let FlowStatus { name, priority, promised, queued, counters, delay_sum, seen, blocked, .. } = status;
    InformationFlow {
        worker: 0,
        name: name.into(),
        priority: (*priority).into(),
        promised_bits_per_s: *promised,
        promised_messages_per_s: status.promised_messages.into(),
        contexts: status.contexts.into(),
        processed_total: counters.taken,
        absorbed_total: counters.absorbed,
        made_total: counters.made,
        context_ns_total: nanos(status.context_time),
        cost_ns: nanos(status.cost),
        queued_messages: queued.0.into(),
        queued_bytes: queued.1,
        blocked: *blocked,
        offered_total: counters.offered,
        offered_bytes_total: counters.offered_bytes,
        released_total: counters.released,
        released_bytes_total: counters.released_bytes,
        filtered_total: counters.filtered,
        dropped_total: counters.dropped_newest + counters.dropped_oldest,
        held_total: counters.held,
        oversized_total: counters.oversized,
        delay_ns_total: nanos(*delay_sum),
        arriving_bits_per_s: seen.arriving,
        leaving_bits_per_s: seen.leaving,
        delay_mean_ns: nanos(seen.delay_mean),
        delay_max_ns: nanos(seen.delay_max),
    }
}

/// Writes the metrics of a worker's flows.
pub(super) fn collect(out: &mut MetricWriter, quality: &Quality, worker: &str) {
    for link in &quality.links {
        let labels = [("worker", worker)];
        let help = "What a worker may send of its node's output link, in bits a second";
        out.gauge("csp_link_part_bits_per_second", help, &labels, link.part_bits_per_s as f64);
        for trigger in &link.triggers {
            let labels = [("trigger", trigger.name.as_str()), ("worker", worker)];
            let help = "How often a trigger of information flows has fired or was released";
            out.counter("csp_information_flow_trigger_changes_total", help, &labels, trigger.changes_total);
        }
    }
    for flow in &quality.flows {
        let labels = [("flow", flow.name.as_str()), ("worker", worker)];
        let counters = [
            (
                "csp_information_flow_messages_total",
                "Messages of an information flow that arrived",
                flow.offered_total,
            ),
            ("csp_information_flow_bytes_total", "Their bytes in all copies", flow.offered_bytes_total),
            (
                "csp_information_flow_released_messages_total",
                "Messages released to receivers",
                flow.released_total,
            ),
            (
                "csp_information_flow_released_bytes_total",
                "Their bytes in all copies",
                flow.released_bytes_total,
            ),
            (
                "csp_information_flow_filtered_total",
                "Messages that a filter let not pass",
                flow.filtered_total,
            ),
            (
                "csp_information_flow_dropped_total",
                "Messages dropped because the queue was full",
                flow.dropped_total,
            ),
            ("csp_information_flow_held_total", "Times that a publisher was held back", flow.held_total),
            (
                "csp_information_flow_oversized_total",
                "Messages longer than message_bytes",
                flow.oversized_total,
            ),
            (
                "csp_information_flow_processed_total",
                "Messages that contexts have taken",
                flow.processed_total,
            ),
            (
                "csp_information_flow_absorbed_total",
                "Messages that handlers let not pass",
                flow.absorbed_total,
            ),
            (
                "csp_information_flow_made_total",
                "Messages that handlers made beside those they took",
                flow.made_total,
            ),
            (
                "csp_information_flow_context_nanoseconds_total",
                "Time of contexts that messages of an information flow have had",
                flow.context_ns_total,
            ),
            (
                "csp_information_flow_delay_nanoseconds_total",
                "Time from arrival to release of all messages that were released",
                flow.delay_ns_total,
            ),
        ];
        counters.into_iter().for_each(|(name, help, value)| out.counter(name, help, &labels, value));
        let gauges = [
            (
                "csp_information_flow_queued_messages",
                "Messages of an information flow that wait",
                flow.queued_messages,
            ),
            ("csp_information_flow_queued_bytes", "Their bytes in all copies", flow.queued_bytes),
            (
                "csp_information_flow_cost_nanoseconds",
                "What handlers take for a message, as measured",
                flow.cost_ns,
            ),
        ];
        gauges.into_iter().for_each(|(name, help, value)| out.gauge(name, help, &labels, value as f64));
    }
}
