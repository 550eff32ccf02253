//! What the admin endpoint shows of packet plug-ins, from the workers' counters.

use csp_api::handlers::Stops;
use csp_api::plugins as api;
use csp_plugin_modules::Status;

use crate::core::PluginCounts;

/// Adds the counters of another worker.
pub fn add(sum: &mut PluginCounts, other: &PluginCounts) {
    for ((_, sum), (_, other)) in sum.rules.iter_mut().zip(&other.rules) {
        *sum = *sum + *other;
    }
    for ((_, sum), (_, other)) in sum.instances.iter_mut().zip(&other.instances) {
        sum.packets += other.packets;
        sum.bytes += other.bytes;
        sum.dropped += other.dropped;
    }
    for ((_, sum), (_, other)) in sum.environments.iter_mut().zip(&other.environments) {
        *sum &= other;
    }
    sum.hosts.add(&other.hosts);
    let (graph, more) = (&mut sum.graph, &other.graph);
    for (sum, more) in [
        (&mut graph.entered, more.entered),
        (&mut graph.passed, more.passed),
        (&mut graph.dropped, more.dropped),
        (&mut graph.transmitted, more.transmitted),
        (&mut graph.handed_over, more.handed_over),
        (&mut graph.fallback_passed, more.fallback_passed),
        (&mut graph.fallback_dropped, more.fallback_dropped),
        (&mut graph.drop_hops, more.drop_hops),
        (&mut graph.calls, more.calls),
        (&mut graph.calls_failed, more.calls_failed),
        (&mut sum.lookups.0, other.lookups.0),
        (&mut sum.lookups.1, other.lookups.1),
        (&mut sum.untransmitted, other.untransmitted),
    ] {
        *sum += more;
    }
}

/// Returns the totals as `/v1/plugins` shows them.
pub fn totals(counts: &PluginCounts) -> api::Totals {
    let graph = &counts.graph;
    api::Totals {
        classified: counts.lookups.0,
        cached: counts.lookups.1,
        entered: graph.entered,
        passed: graph.passed,
        dropped: graph.dropped,
        transmitted: graph.transmitted,
        fallback_passed: graph.fallback_passed,
        fallback_dropped: graph.fallback_dropped,
        dropped_hops: graph.drop_hops,
        untransmitted: counts.untransmitted,
        hosted: counts.hosts.sent,
        host_lost: counts.hosts.lost,
        host_full: counts.hosts.full + counts.hosts.dropped,
        host_refused: counts.hosts.refused(),
        calls: graph.calls,
        calls_failed: graph.calls_failed,
    }
}

/// Returns a row of an answer.
pub fn row(row: csp_plugins::Row) -> api::Row {
    let number = |(name, value): (&'static str, u64)| api::Number { name: name.into(), value };
    api::Row {
        key: row.key.into(),
        note: (&*row.note).into(),
        numbers: row.numbers.into_iter().map(number).collect(),
    }
}

/// Returns the state of an instance of a supplied module.
pub fn supplied(status: &Status) -> api::Supplied {
    let stops = status.stops.iter().map(|stop| Stops { reason: stop.reason.into(), total: stop.total });
    api::Supplied {
        state: status.state.into(),
        reason: "".into(),
        calls_total: status.calls,
        fuel_total: status.fuel,
        fuel_max: status.fuel_max,
        not_run_total: status.not_run,
        restarts_total: status.restarts,
        stops: stops.collect(),
    }
}
