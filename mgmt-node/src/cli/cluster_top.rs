//! `cspctl top`: what the cluster does now, from answers of the management node.

use std::time::Duration;

use csp_api::mgmt::{
    DropView, FlowView, NodeState, NodeView, OverviewView, PoolMemberView, ServiceView, TierView,
};
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::paint::{Colour, Paint};
use super::table::{Cell, Table, bytes};
use super::top::{TopArgs, watch};

/// Services, flows and reasons of drops that are shown.
const LINES_MAX: usize = 20;

/// What is shown, and printed with `--output json`: one document a look.
#[derive(Debug, Serialize)]
struct Top {
    /// Between the two answers.
    seconds: f64,
    generation: u64,
    tiers: Vec<TierView>,
    /// Nodes that are not ready, or drain.
    nodes: Vec<NodeView>,
    services: Vec<ServiceLine>,
    services_total: usize,
    flows: Vec<FlowLine>,
    /// Those of the last minute.
    drops: Vec<DropView>,
}

#[derive(Debug, Serialize)]
struct ServiceLine {
    name: String,
    address: String,
    members: usize,
    down: usize,
    connections_per_s: Option<f64>,
    open: u64,
    waiting: u64,
}

#[derive(Debug, Serialize)]
struct FlowLine {
    label: String,
    proxy: String,
    client: String,
    service: String,
    member: String,
    state: String,
    bytes_in_per_s: Option<f64>,
    bytes_out_per_s: Option<f64>,
}

pub(super) async fn top(context: &Context, args: &TopArgs) -> Result<(), CliError> {
    watch(context, "/api/v1/overview", args, compare, |top, _| render(top, context.paint)).await
}

/// Returns the growth of a total in a second; `None` where it was not known before, or has begun anew.
fn rate(before: Option<u64>, now: u64, seconds: f64) -> Option<f64> {
    before.filter(|before| *before <= now).map(|before| (now - before) as f64 / seconds)
}

fn compare(before: &OverviewView, now: &OverviewView, between: Duration) -> Top {
    // The management node may give the same answer twice.
    let told = now.now_unix_ms.saturating_sub(before.now_unix_ms) as f64 / 1e3;
    let seconds = if told > 0.0 { told } else { between.as_secs_f64().max(1e-3) };
    let mut services: Vec<ServiceLine> = now
        .services
        .services
        .iter()
        .map(|service| {
            let old = before.services.services.iter().find(|old| old.name == service.name);
            service_line(old, service, seconds)
        })
        .collect();
    let busy = |line: &ServiceLine| line.connections_per_s.unwrap_or(0.0);
    services.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    services.truncate(LINES_MAX);
    let flows = now.flows.flows.iter().take(LINES_MAX).map(|flow| {
        let same = |old: &&FlowView| (old.label, &old.node) == (flow.label, &flow.node);
        flow_line(before.flows.flows.iter().find(same), flow, seconds)
    });
    let ill = |node: &&NodeView| node.draining || node.state != NodeState::Ready;
    Top {
        seconds,
        generation: now.active.as_ref().map_or(0, |active| active.generation),
        tiers: now.tiers.clone(),
        nodes: now.cluster.nodes.iter().filter(ill).cloned().collect(),
        services,
        services_total: now.services.total.max(now.services.services.len()),
        flows: flows.collect(),
        drops: now.drops.iter().filter(|drop| drop.recent > 0).take(LINES_MAX).cloned().collect(),
    }
}

fn service_line(before: Option<&ServiceView>, now: &ServiceView, seconds: f64) -> ServiceLine {
    let total = |service: &ServiceView| {
        service.pool.iter().filter_map(|member| member.connections_total).sum::<u64>()
    };
    ServiceLine {
        name: now.name.clone(),
        address: format!("{}:{}", now.vip, now.port),
        members: now.pool.len(),
        down: now.pool.iter().filter(|member| PoolMemberView::is_down(member)).count(),
        connections_per_s: rate(before.map(total), total(now), seconds),
        open: now.pool.iter().filter_map(|member| member.open_connections).sum(),
        waiting: now.pending,
    }
}

fn flow_line(before: Option<&FlowView>, now: &FlowView, seconds: f64) -> FlowLine {
    FlowLine {
        label: format!("{:08x}", now.label.to_wire()),
        proxy: now.node.to_string(),
        client: now.client.to_string(),
        service: now.service.to_string(),
        member: now.member.to_string(),
        state: now.state.to_string(),
        bytes_in_per_s: rate(before.map(|flow| flow.bytes_in), now.bytes_in, seconds),
        bytes_out_per_s: rate(before.map(|flow| flow.bytes_out), now.bytes_out, seconds),
    }
}

fn render(top: &Top, paint: Paint) -> String {
    let mut out = format!("generation {}, {:.1} s\n\n", top.generation, top.seconds);
    let mut tiers = Table::new(&["TIER", "READY", "FIGURES"]);
    for tier in &top.tiers {
        let figure = |figure: &csp_api::mgmt::Figure| match figure.per_second {
            Some(rate) => format!("{} {rate:.0}/s", figure.name),
            None => format!("{} {:.0}", figure.name, figure.value),
        };
        let ready = Cell::from(format!("{} of {}", tier.ready, tier.nodes));
        let well = tier.ready == tier.nodes;
        tiers.row([
            tier.role.clone().into(),
            ready.coloured(if well { Colour::Green } else { Colour::Red }),
            tier.figures.iter().map(figure).collect::<Vec<_>>().join(", ").into(),
        ]);
    }
    out += &tiers.render(paint);
    if !top.nodes.is_empty() {
        let mut nodes = Table::new(&["NODE", "STATE", "DETAIL"]);
        for node in &top.nodes {
            let state = if node.draining {
                format!("{}, draining", node.state.as_str())
            } else {
                node.state.as_str().to_owned()
            };
            nodes.row([
                node.id.clone().into(),
                Cell::from(state).coloured(Colour::Yellow),
                node.detail.clone().into(),
            ]);
        }
        out += &("\n".to_owned() + &nodes.render(paint));
    }
    out += &("\n".to_owned() + &services(top, paint));
    out += &flows(top, paint);
    out + &drops(top, paint)
}

fn services(top: &Top, paint: Paint) -> String {
    let mut table = Table::new(&["SERVICE", "ADDRESS", "NEW/S", "OPEN", "WAITING", "MEMBERS"]);
    for line in &top.services {
        let members = match line.down {
            0 => Cell::from(format!("{} up", line.members)),
            down => Cell::from(format!("{down} of {} down", line.members)).coloured(Colour::Red),
        };
        table.row([
            line.name.clone().into(),
            line.address.clone().into(),
            per_second(line.connections_per_s, |rate| format!("{rate:.0}")),
            line.open.into(),
            line.waiting.into(),
            members,
        ]);
    }
    let more = top.services_total.saturating_sub(top.services.len());
    let note = if more > 0 { format!("{more} more services: cspctl services\n") } else { String::new() };
    table.render(paint) + &note
}

fn flows(top: &Top, paint: Paint) -> String {
    if top.flows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["FLOW", "PROXY", "CLIENT", "SERVICE", "MEMBER", "STATE", "IN/S", "OUT/S"]);
    for line in &top.flows {
        let rate = |rate| per_second(rate, |rate: f64| bytes(rate as u64));
        table.row([
            line.label.clone().into(),
            line.proxy.clone().into(),
            line.client.clone().into(),
            line.service.clone().into(),
            line.member.clone().into(),
            line.state.clone().into(),
            rate(line.bytes_in_per_s),
            rate(line.bytes_out_per_s),
        ]);
    }
    "\n".to_owned() + &table.render(paint)
}

fn drops(top: &Top, paint: Paint) -> String {
    if top.drops.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["DROPS", "NODE", "LAST MINUTE", "TOTAL"]);
    for drop in &top.drops {
        table.row([
            drop.reason.clone().into(),
            drop.node.clone().into(),
            drop.recent.into(),
            drop.total.into(),
        ]);
    }
    "\n".to_owned() + &table.render(paint)
}

fn per_second(rate: Option<f64>, text: impl Fn(f64) -> String) -> Cell {
    Cell::from(rate.map(text).unwrap_or_default()).right()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overview(json: &str) -> OverviewView {
        serde_json::from_str(json).unwrap()
    }

    /// An answer at `ms`, with this total of connections and bytes.
    fn answer(ms: u64, total: u64, bytes: u64) -> OverviewView {
        overview(&format!(
            r#"{{"node": "mn-1", "version": "0.1.0", "now_unix_ms": {ms},
                "cluster": {{"nodes": [], "leader": null, "etcd": {{"connected": true, "private": true, "silent_ms": 0}}}},
                "tiers": [{{"role": "proxy-node", "nodes": 2, "ready": 1, "figures": [{{"name": "flows", "value": 3.0, "per_second": null}}]}}],
                "active": null, "latest": null,
                "services": {{"generation": 1, "unreachable": [], "total": 40, "services": [
                    {{"name": "web", "vip": "10.76.0.100", "port": 80, "pending": 2, "pool": [
                        {{"node": "an-1", "port": 80, "processes": 1, "open_connections": 5, "connections_total": {total}}},
                        {{"node": "an-2", "port": 80, "processes": 0, "open_connections": 0, "connections_total": 0}}]}}]}},
                "flows": {{"flows": [{{"node": "pn-1", "role": "proxy-node", "label": "00000b05", "client": "10.76.0.1:4242", "server": "10.76.0.100:80",
                    "service": "web", "member": "an-1", "state": "Established/open", "bytes_in": 10, "bytes_out": {bytes}, "age_ms": 9}}],
                    "unreachable": [], "truncated": false}},
                "drops": [{{"node": "pn-1", "reason": "no_server", "total": 9, "recent": 4}}, {{"node": "pn-1", "reason": "tcp", "total": 9, "recent": 0}}]}}"#
        ))
    }

    #[test]
    fn two_looks_become_rates() {
        let top = compare(&answer(1_000, 100, 0), &answer(3_000, 500, 4096), Duration::from_secs(9));
        let (service, flow) = (&top.services[0], &top.flows[0]);
        assert_eq!((top.seconds, service.connections_per_s, service.down), (2.0, Some(200.0), 1));
        assert_eq!((flow.bytes_out_per_s, flow.bytes_in_per_s), (Some(2048.0), Some(0.0)));
        let text = render(&top, Paint::off());
        for words in ["1 of 2", "flows 3", "200", "1 of 2 down", "2.0 KiB", "no_server", "39 more services"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("tcp"), "only what was dropped lately: {text}");
        // A daemon that began anew has no rate yet.
        let top = compare(&answer(1_000, 100, 0), &answer(3_000, 5, 0), Duration::from_secs(9));
        assert_eq!(top.services[0].connections_per_s, None);
    }
}
