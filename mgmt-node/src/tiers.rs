//! Which figures of which tier the operations page shows.

use std::collections::BTreeMap;

use csp_api::metrics;
use csp_api::mgmt::{Figure, NodeState, NodeView, TierView};

use crate::poller::Health;

/// One figure: its title and its metric. A figure whose metric no node of the tier exposes is left out.
struct Source {
    title: &'static str,
    metric: &'static str,
    /// Shown per second.
    counter: bool,
}

const fn rate(title: &'static str, metric: &'static str) -> Source {
    Source { title, metric, counter: true }
}

const fn gauge(title: &'static str, metric: &'static str) -> Source {
    Source { title, metric, counter: false }
}

const NETWORK: &[Source] = &[
    gauge("flows", metrics::FLOWS),
    gauge("tunnels up", metrics::TUNNELS_UP),
    rate("packets in", metrics::LAN_PACKETS_RECEIVED),
    rate("bytes in", metrics::CLIENT_RECEIVED_BYTES),
    rate("bytes out", metrics::CLIENT_SENT_BYTES),
];

const PROXY: &[Source] = &[
    gauge("flows", metrics::FLOWS),
    rate("connections", metrics::CONNECTIONS_PASSIVE),
    rate("bytes in", metrics::CLIENT_RECEIVED_BYTES),
    rate("bytes out", metrics::CLIENT_SENT_BYTES),
    rate("retransmits", metrics::SEGMENTS_RETRANSMITTED),
];

const APP: &[Source] = &[
    gauge("processes", metrics::PROCESSES),
    gauge("sockets", metrics::APPLICATION_SOCKETS),
    rate("accepts", metrics::APPLICATION_ACCEPTED),
    rate("bytes in", metrics::APPLICATION_BYTES_READ),
    rate("bytes out", metrics::APPLICATION_BYTES_WRITTEN),
];

/// The tiers in path order.
const TIERS: [(&str, &[Source]); 3] = [("network-node", NETWORK), ("proxy-node", PROXY), ("app-node", APP)];

/// The tiers with their figures.
pub fn tiers(nodes: &[NodeView], health: &BTreeMap<String, Health>) -> Vec<TierView> {
    TIERS
        .iter()
        .map(|(role, sources)| {
            let members: Vec<&NodeView> = nodes.iter().filter(|node| node.role == *role).collect();
            let samples: Vec<&Health> = members.iter().filter_map(|node| health.get(&node.id)).collect();
            TierView {
                role: (*role).to_owned(),
                nodes: members.len(),
                ready: members.iter().filter(|node| node.state == NodeState::Ready).count(),
                figures: sources.iter().filter_map(|source| figure(source, &samples)).collect(),
            }
        })
        .collect()
}

fn figure(source: &Source, health: &[&Health]) -> Option<Figure> {
    let mut known = false;
    let (mut value, mut per_second) = (0.0, None);
    for node in health {
        let Some((read_at, sample)) = &node.sample else { continue };
        let Some(now) = sample.sums.get(source.metric) else { continue };
        known = true;
        value += now;
        let before = node.previous.as_ref().and_then(|(at, s)| Some((*at, *s.sums.get(source.metric)?)));
        if let (true, Some((before_at, before))) = (source.counter, before) {
            let seconds = read_at.duration_since(before_at).as_secs_f64();
            // A counter that fell was started anew.
            if seconds > 0.0 && *now >= before {
                *per_second.get_or_insert(0.0) += (now - before) / seconds;
            }
        }
    }
    known.then(|| Figure { name: source.title.to_owned(), value, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_made_of_a_metric_that_its_tier_exposes() {
        let exposed = [metrics::NETWORK_NODE, metrics::PROXY_NODE, metrics::APP_NODE];
        for ((role, sources), exposed) in TIERS.iter().zip(exposed) {
            let shown: Vec<&str> = sources.iter().map(|source| source.metric).collect();
            assert_eq!(shown, exposed, "{role}");
        }
    }
}
