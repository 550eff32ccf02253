//! Metrics of supplied handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_api::handlers::SuppliedStage;
use csp_sandbox::Reason;
use csp_telemetry::{MetricSource, MetricWriter};

use crate::daemon::modules::Modules;

/// The supplied handlers of a proxy, summed over its workers.
#[derive(Debug)]
pub struct ModuleMetrics(pub Arc<Modules>);

impl MetricSource for ModuleMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let stages = self.0.describe_stages();
        let figures: [Figure; 5] = [
            ("csp_handler_calls_total", "Calls that supplied handlers ended themselves", |s| s.calls_total),
            ("csp_handler_fuel_total", "Their fuel, about an instruction each", |s| s.fuel_total),
            (
                "csp_handler_given_up_total",
                "Messages given up by supplied handlers, or since they were stopped",
                |s| s.given_up_total + s.waited_total,
            ),
            ("csp_handler_passed_total", "Messages that passed by stopped handlers", |s| s.passed_total),
            ("csp_handler_restarts_total", "Restarts of supplied handlers", |s| s.restarts_total),
        ];
        for (name, help, figure) in figures {
            for ((channel, handler), value) in
                sums(&stages, |stage| vec![((), figure(stage))]).into_iter().map(flat)
            {
                out.counter(name, help, &[("channel", channel), ("handler", handler)], value);
            }
        }
        // Each reason from the start, or the first stop would be no increase.
        let stops = |stage: &SuppliedStage| {
            let none = Reason::ALL.into_iter().map(|reason| (reason.name().to_owned(), 0));
            let some = stage.stops.iter().map(|stops| (stops.reason.to_string(), stops.total));
            none.chain(some).collect()
        };
        let help = "How often supplied handlers were stopped";
        for (((channel, handler), reason), value) in sums(&stages, stops) {
            let labels = [("channel", channel), ("handler", handler), ("reason", reason.as_str())];
            out.counter("csp_handler_stops_total", help, &labels, value);
        }
        let help = "Workers at which a supplied handler runs and was not stopped";
        for ((channel, handler), value) in
            sums(&stages, |stage| vec![((), u64::from(&*stage.state == "running"))]).into_iter().map(flat)
        {
            out.gauge(
                "csp_handler_running",
                help,
                &[("channel", channel), ("handler", handler)],
                value as f64,
            );
        }
    }
}

/// Name and help of a metric, and what it is of a stage.
type Figure = (&'static str, &'static str, fn(&SuppliedStage) -> u64);

type Stage<'s> = (&'s str, &'s str);

fn flat<'s>(((stage, ()), value): ((Stage<'s>, ()), u64)) -> (Stage<'s>, u64) {
    (stage, value)
}

/// Sums what `figures` takes of stages, by channel, handler and key.
fn sums<K: Ord>(
    stages: &[SuppliedStage],
    figures: impl Fn(&SuppliedStage) -> Vec<(K, u64)>,
) -> BTreeMap<(Stage<'_>, K), u64> {
    let mut sums = BTreeMap::new();
    for stage in stages {
        for (key, value) in figures(stage) {
            *sums.entry(((&*stage.channel, &*stage.handler), key)).or_insert(0) += value;
        }
    }
    sums
}
