//! Which figures of which tier the operations page shows.

use std::collections::BTreeMap;

use crate::api::{Figure, NodeState, NodeView, TierView};
use crate::poller::Health;

/// One figure: its title, and the metrics it is made of. Those that a node has are added up; a figure none of whose
/// metrics exists anywhere is left out.
struct Source {
    title: &'static str,
    metrics: &'static [&'static str],
    /// Shown per second.
    counter: bool,
}

const fn rate(title: &'static str, metrics: &'static [&'static str]) -> Source {
    Source { title, metrics, counter: true }
}

const fn gauge(title: &'static str, metrics: &'static [&'static str]) -> Source {
    Source { title, metrics, counter: false }
}

const NETWORK: &[Source] = &[
    gauge("flows", &["csp_flows_entries"]),
    gauge("tunnels up", &["csp_tunnels_up"]),
    rate("packets in", &["csp_lan_packets_received_total"]),
    rate("bytes in", &["csp_client_received_bytes_total"]),
    rate("bytes out", &["csp_client_sent_bytes_total"]),
];

const PROXY: &[Source] = &[
    gauge("flows", &["csp_flows_entries"]),
    rate("connections", &["csp_connections_passive_total"]),
    rate("bytes in", &["csp_client_received_bytes_total"]),
    rate("bytes out", &["csp_client_sent_bytes_total"]),
    rate("retransmits", &["csp_tcp_segments_retransmitted_total"]),
];

const APP: &[Source] = &[
    gauge("processes", &["csp_processes_entries", "csp_processes"]),
    gauge("sockets", &["csp_sockets_entries", "csp_sockets"]),
    rate("accepts", &["csp_accepts_total", "csp_accepted_total"]),
    rate("bytes in", &["csp_application_received_bytes_total"]),
    rate("bytes out", &["csp_application_sent_bytes_total"]),
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
        for metric in source.metrics {
            let Some(now) = sample.sums.get(*metric) else { continue };
            known = true;
            value += now;
            let before = node.previous.as_ref().and_then(|(at, s)| Some((*at, *s.sums.get(*metric)?)));
            if let (true, Some((before_at, before))) = (source.counter, before) {
                let seconds = read_at.duration_since(before_at).as_secs_f64();
                // A counter that fell was started anew.
                if seconds > 0.0 && *now >= before {
                    *per_second.get_or_insert(0.0) += (now - before) / seconds;
                }
            }
        }
    }
    known.then(|| Figure { name: source.title.to_owned(), value, per_second })
}
