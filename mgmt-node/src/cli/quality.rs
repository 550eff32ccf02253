//! `cspctl information-flows top`: information flows with their rates, queues and delays.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_api::quality::{InformationFlow, Link, QualityView};
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::Colour;
use super::table::{Cell, Table, bytes};
use super::top::{TopArgs, watch};

/// What is shown of a flow, summed over workers.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Row {
    flow: String,
    node: String,
    priority: u64,
    promised_mbps: f64,
    promised_messages_per_s: u64,
    in_mbps: f64,
    out_mbps: f64,
    out_messages_per_s: f64,
    contexts: u64,
    contexts_used: f64,
    cost_us: f64,
    queued_messages: u64,
    queued_bytes: u64,
    delay_ms: f64,
    dropped_per_s: f64,
    dropped_total: u64,
    held_total: u64,
}

/// What one look shows.
#[derive(Debug, Serialize)]
struct Top {
    seconds: f64,
    flows: Vec<Row>,
    links: Vec<NodeLink>,
}

/// The link of a node.
#[derive(Debug, Serialize)]
struct NodeLink {
    node: String,
    scheme: String,
    /// Whether the scheme keeps promises.
    keeps_promises: bool,
    mbps: f64,
    contexts: u64,
    contexts_percent: u64,
    triggers_fired: Vec<String>,
}

/// `cspctl information-flows top`.
pub(super) async fn top(context: &Context, args: &TopArgs) -> Result<(), CliError> {
    watch(context, "/api/v1/quality", args, compare, |top, view: &QualityView| {
        render(top, context, &missing(context, &view.unreachable))
    })
    .await
}

type Key<'a> = (&'a str, &'a str);

/// Sums a node's flows over its workers.
fn sum(view: &QualityView) -> BTreeMap<Key<'_>, InformationFlow> {
    let mut all: BTreeMap<Key<'_>, InformationFlow> = BTreeMap::new();
    for node in &view.nodes {
        for flow in &node.quality.flows {
            let known = all.entry((&node.node, flow.name.as_str()));
            known
                .and_modify(|sum| {
                    sum.queued_messages += flow.queued_messages;
                    sum.queued_bytes += flow.queued_bytes;
                    sum.offered_bytes_total += flow.offered_bytes_total;
                    sum.released_total += flow.released_total;
                    sum.released_bytes_total += flow.released_bytes_total;
                    sum.filtered_total += flow.filtered_total;
                    sum.dropped_total += flow.dropped_total;
                    sum.held_total += flow.held_total;
                    sum.delay_ns_total += flow.delay_ns_total;
                    sum.context_ns_total += flow.context_ns_total;
                    sum.cost_ns = sum.cost_ns.max(flow.cost_ns);
                })
                .or_insert_with(|| flow.clone());
        }
    }
    all
}

fn compare(before: &QualityView, after: &QualityView, between: Duration) -> Top {
    let seconds = between.as_secs_f64();
    let (was, is) = (sum(before), sum(after));
    let row = |((node, name), flow): (&Key<'_>, &InformationFlow)| {
        let was = was.get(&(*node, *name));
        let more =
            |total: fn(&InformationFlow) -> u64| total(flow).saturating_sub(was.map_or(0, total)) as f64;
        let mbps = |total| more(total) * 8.0 / 1e6 / seconds;
        let released = more(|flow| flow.released_total);
        Row {
            flow: (*name).to_owned(),
            node: (*node).to_owned(),
            priority: flow.priority,
            promised_mbps: flow.promised_bits_per_s as f64 / 1e6,
            promised_messages_per_s: flow.promised_messages_per_s,
            in_mbps: mbps(|flow| flow.offered_bytes_total),
            out_mbps: mbps(|flow| flow.released_bytes_total),
            out_messages_per_s: released / seconds,
            contexts: flow.contexts,
            contexts_used: more(|flow| flow.context_ns_total) / 1e9 / seconds,
            cost_us: flow.cost_ns as f64 / 1e3,
            queued_messages: flow.queued_messages,
            queued_bytes: flow.queued_bytes,
            delay_ms: if released > 0.0 { more(|flow| flow.delay_ns_total) / released / 1e6 } else { 0.0 },
            dropped_per_s: more(|flow| flow.dropped_total + flow.filtered_total) / seconds,
            dropped_total: flow.dropped_total + flow.filtered_total,
            held_total: flow.held_total,
        }
    };
    let mut flows: Vec<Row> = is.iter().map(row).collect();
    flows.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.flow.cmp(&b.flow)));
    let node = |(node, links): (&str, &[Link])| {
        let first = links.first()?;
        let fired = links.iter().flat_map(|link| &link.triggers).filter(|t| t.changes_total % 2 == 1);
        Some(NodeLink {
            node: node.to_owned(),
            scheme: first.scheme.to_string(),
            keeps_promises: keeps_promises(&first.scheme),
            mbps: first.capacity_bits_per_s as f64 / 1e6,
            contexts: first.contexts,
            contexts_percent: first.contexts_percent,
            triggers_fired: fired.map(|trigger| trigger.name.to_string()).collect(),
        })
    };
    let links = after.nodes.iter().filter_map(|of| node((&of.node, &of.quality.links))).collect();
    Top { seconds, flows, links }
}

/// Returns whether a scheme looks at what flows are promised.
fn keeps_promises(scheme: &str) -> bool {
    !matches!(scheme, "RR" | "EAS" | "PA")
}

/// What a flow is promised of the link: Mb/s, and the messages that they come from.
fn promised(row: &Row) -> String {
    match (row.promised_mbps, row.promised_messages_per_s) {
        (mbps, _) if mbps <= 0.0 => "-".to_owned(),
        (mbps, 0) => format!("{mbps:.1}"),
        (mbps, messages) => format!("{mbps:.1} ({messages}/s)"),
    }
}

fn render(top: &Top, context: &Context, missing: &str) -> String {
    if top.links.is_empty() {
        return "No information flows: the active policy has no `link`, or no channels.\n".to_owned()
            + missing;
    }
    let mut out = String::new();
    for link in &top.links {
        let fired = match &link.triggers_fired[..] {
            [] => String::new(),
            fired => format!(", fired: {}", fired.join(", ")),
        };
        let contexts = match link.contexts {
            0 => String::new(),
            count => format!(" and {count} contexts in {} % of each worker", link.contexts_percent),
        };
        let promises = if link.keeps_promises { "" } else { ", which looks at no promise," };
        let NodeLink { node, scheme, mbps, .. } = link;
        out += &format!("{node}: {scheme}{promises} over {mbps} Mb/s{contexts}{fired}\n");
    }
    let has_contexts = top.links.iter().any(|link| link.contexts > 0);
    let mut head = vec!["FLOW", "NODE", "PRIORITY", "PROMISED", "IN Mb/s", "OUT Mb/s", "OUT/s"];
    if has_contexts {
        head.extend(["CONTEXTS", "USED", "COST"]);
    }
    head.extend(["QUEUE", "BYTES", "DELAY", "DROPPED/s", "DROPPED", "HELD"]);
    let mut table = Table::new(&head);
    for row in &top.flows {
        let dropped = if row.dropped_per_s > 0.0 { Colour::Yellow } else { Colour::Plain };
        let number = |value: f64| Cell::from(format!("{value:.1}")).right();
        let contexts: [Cell; 3] = [
            row.contexts.into(),
            Cell::from(format!("{:.2}", row.contexts_used)).right(),
            Cell::from(format!("{:.1} us", row.cost_us)).right(),
        ];
        let cells: [Cell; 7] = [
            row.flow.clone().into(),
            row.node.clone().into(),
            row.priority.into(),
            Cell::from(promised(row)).right(),
            number(row.in_mbps),
            number(row.out_mbps),
            number(row.out_messages_per_s),
        ];
        let rest: [Cell; 6] = [
            row.queued_messages.into(),
            Cell::from(bytes(row.queued_bytes)).right(),
            Cell::from(format!("{:.3} ms", row.delay_ms)).right(),
            number(row.dropped_per_s).coloured(dropped),
            row.dropped_total.into(),
            row.held_total.into(),
        ];
        table.row_of(cells.into_iter().chain(contexts.into_iter().filter(|_| has_contexts)).chain(rest));
    }
    out + &table.render(context.paint) + missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_api::quality::{NodeQuality, Quality};

    fn view(flows: Vec<serde_json::Value>) -> QualityView {
        let link = serde_json::json!({"worker": 0, "scheme": "PAR", "capacity_bits_per_s": 5e8 as u64, "part_bits_per_s": 5e8 as u64,
            "waits": false, "triggers": [{"name": "full", "changes_total": 1}]});
        let quality: Quality =
            serde_json::from_value(serde_json::json!({"links": [link], "flows": flows})).unwrap();
        QualityView { nodes: vec![NodeQuality { node: "pn-1".to_owned(), quality }], unreachable: Vec::new() }
    }

    fn flow(worker: u64, name: &str, released: u64) -> serde_json::Value {
        serde_json::json!({"worker": worker, "name": name, "priority": 1, "promised_bits_per_s": 50_000_000, "queued_messages": 3,
            "queued_bytes": 30, "blocked": false, "offered_total": released, "offered_bytes_total": released * 1_000, "released_total":
            released, "released_bytes_total": released * 1_000, "filtered_total": 0, "dropped_total": released / 10, "held_total": 0,
            "oversized_total": 0, "delay_ns_total": released * 2_000_000, "arriving_bits_per_s": 0, "leaving_bits_per_s": 0,
            "delay_mean_ns": 0, "delay_max_ns": 0})
    }

    #[test]
    fn rates_and_delays_are_those_between_two_looks_over_all_workers() {
        let before = view(vec![flow(0, "gates", 1_000), flow(1, "gates", 0)]);
        let after = view(vec![flow(0, "gates", 2_000), flow(1, "gates", 500)]);
        let top = compare(&before, &after, Duration::from_secs(2));
        let row = &top.flows[0];
        assert_eq!((top.flows.len(), row.queued_messages), (1, 6));
        assert!((row.out_mbps - 1_500.0 * 8_000.0 / 2e6).abs() < 1e-9, "{row:?}");
        assert!((row.delay_ms - 2.0).abs() < 1e-9 && (row.dropped_per_s - 75.0).abs() < 1e-9, "{row:?}");
        assert_eq!(top.links[0].triggers_fired, ["full"]);
        assert_eq!((row.contexts, row.contexts_used), (0, 0.0), "of a proxy that does not report them");
    }

    #[test]
    fn what_is_promised_is_shown_in_both_units() {
        let mut flows = vec![flow(0, "gates", 1), flow(0, "bulk", 1), flow(0, "rest", 1)];
        flows[1]["promised_bits_per_s"] = 6_000_000.into();
        flows[1]["promised_messages_per_s"] = 500.into();
        flows[2]["promised_bits_per_s"] = 0.into();
        let view = view(flows);
        let mut top = compare(&view, &view, Duration::from_secs(1));
        assert_eq!([0, 1, 2].map(|at| promised(&top.flows[at])), ["6.0 (500/s)", "50.0", "-"]);
        let link = |top: &Top| (top.links[0].scheme.clone(), top.links[0].keeps_promises);
        assert_eq!(link(&top), ("PAR".to_owned(), true));
        let mut other = view.clone();
        other.nodes[0].quality.links[0].scheme = "RR".into();
        top = compare(&view, &other, Duration::from_secs(1));
        assert_eq!(link(&top), ("RR".to_owned(), false));
    }
}
