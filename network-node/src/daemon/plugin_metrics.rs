//! Metrics of packet plug-ins, by rule and by instance.

use std::sync::{Arc, Mutex, PoisonError};

use csp_api::plugins::Totals;
use csp_classify::multifield::HitCount;
use csp_plugins::InstanceCount;
use csp_telemetry::{MetricSource, MetricWriter};

/// Number of rules with their own series, the first ones in match order. All others share one series.
const RULES_MAX: usize = 256;
const OTHERS: &str = "(others)";

/// The counters as last read, about once a second.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Name, instance and hits of rules, in match order.
    pub rules: Vec<(String, String, HitCount)>,
    /// Name, module and counters of instances.
    pub instances: Vec<(String, String, InstanceCount)>,
    /// State of the instances of supplied modules.
    pub supplied: Vec<csp_plugin_modules::Status>,
    /// Name, module and number of moves of instances that the node places.
    pub moves: Vec<(String, String, u64)>,
    /// Counters of all packets.
    pub totals: Totals,
    /// Rejected records of plug-in hosts, by reason.
    pub refused: [(&'static str, u64); 7],
}

/// Counters that the refreshing task writes and a scrape reads.
pub type Shared = Arc<Mutex<Numbers>>;

/// Returns the counters of a node without rules.
pub fn no_numbers() -> Shared {
    Arc::default()
}

/// The metric source.
pub struct PluginMetrics(pub Shared);

impl MetricSource for PluginMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (rule, instance, hits)) in numbers.rules.iter().enumerate() {
            let (rule, instance) =
                if at < RULES_MAX { (rule.as_str(), instance.as_str()) } else { (OTHERS, OTHERS) };
            let labels = [("rule", rule), ("instance", instance)];
            out.counter(
                "csp_packet_rule_hits_total",
                "Packets that a rule decided on",
                &labels,
                hits.packets,
            );
            let help = "Bytes of packets that a rule decided on";
            out.counter("csp_packet_rule_bytes_total", help, &labels, hits.bytes);
        }
        collect_instances(&numbers, out);
        let Totals { classified, cached, passed, transmitted, calls_failed, fallback_passed, hosted, .. } =
            numbers.totals;
        for (name, help, value) in [
            ("csp_plugins_classified_total", "Packets that were compared with rules", classified),
            ("csp_plugins_cached_total", "Of these, packets of flows whose rule was remembered", cached),
            ("csp_plugins_passed_total", "Packets that plug-ins let pass", passed),
            ("csp_plugins_transmitted_total", "Packets that plug-ins transmitted elsewhere", transmitted),
            (
                "csp_plugins_fallback_passed_total",
                "Packets that passed without their plug-in",
                fallback_passed,
            ),
            ("csp_plugins_hosted_total", "Packets that plug-in hosts got (level 3)", hosted),
            ("csp_plugins_calls_failed_total", "Calls between plug-ins that failed", calls_failed),
        ] {
            out.counter(name, help, &[], value);
        }
        for (reason, count) in numbers.refused.iter().filter(|(reason, _)| !reason.is_empty()) {
            let help = "Records of plug-in hosts that were refused";
            out.counter("csp_plugin_host_refused_total", help, &[("reason", reason)], *count);
        }
        let Totals { dropped, fallback_dropped, dropped_hops, untransmitted, .. } = numbers.totals;
        let Totals { host_lost, host_full, .. } = numbers.totals;
        out.drops(&[
            ("plugin", dropped),
            ("plugin_fallback", fallback_dropped),
            ("plugin_hops", dropped_hops),
            ("plugin_untransmitted", untransmitted),
            ("plugin_host_lost", host_lost),
            ("plugin_host_full", host_full),
        ]);
    }
}

/// Writes the metrics by instance.
fn collect_instances(numbers: &Numbers, out: &mut MetricWriter) {
    for (instance, module, count) in &numbers.instances {
        let labels = [("instance", instance.as_str()), ("module", module.as_str())];
        let help = "Packets that a plug-in processed";
        out.counter("csp_plugin_packets_total", help, &labels, count.packets);
        let help = "Bytes of packets that a plug-in processed";
        out.counter("csp_plugin_bytes_total", help, &labels, count.bytes);
        let help = "Packets that a plug-in dropped";
        out.counter("csp_plugin_dropped_total", help, &labels, count.dropped);
    }
    for (instance, module, moves) in &numbers.moves {
        let labels = [("instance", instance.as_str()), ("module", module.as_str())];
        let help = "Moves of a plug-in between levels 1 and 2 by the node itself";
        out.counter("csp_plugin_moves_total", help, &labels, *moves);
    }
    for status in &numbers.supplied {
        let labels = [("instance", status.instance.as_str()), ("module", status.module.as_str())];
        let help = "Fuel of a supplied plug-in's calls, about an instruction each";
        out.counter("csp_plugin_fuel_total", help, &labels, status.fuel);
        let help = "Packets that came while a supplied plug-in waited to be restarted";
        out.counter("csp_plugin_not_run_total", help, &labels, status.not_run);
        // Each reason from the start, or the first stop would be no increase.
        for reason in csp_plugin_modules::Reason::ALL.map(csp_plugin_modules::Reason::name) {
            let help = "Stops of a supplied plug-in";
            let labels = [labels[0], labels[1], ("reason", reason)];
            let total = status.stops.iter().filter(|stop| stop.reason == reason).map(|stop| stop.total).sum();
            out.counter("csp_plugin_stops_total", help, &labels, total);
        }
    }
}
