//! `cspctl contexts top`: what contexts and handlers do now, from two answers of the server.

use std::cmp::Reverse;
use std::time::Duration;

use csp_api::contexts::{Context as OfWorker, ContextsView, FormatProfile, PathStage};
use csp_api::mgmt::Unreachable;
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::{Colour, Paint};
use super::table::{Cell, Table, bytes};
use super::top::{TopArgs, watch};

/// What is shown, and printed with `--output json`: one document a look.
#[derive(Debug, Serialize)]
struct Top {
    /// Between the two answers.
    seconds: f64,
    contexts: Vec<ContextLine>,
    stages: Vec<StageLine>,
    unreachable: Vec<Unreachable>,
}

#[derive(Debug, Serialize)]
struct ContextLine {
    node: String,
    worker: u64,
    context: String,
    stages: u64,
    waiting: u64,
    calls_per_s: u64,
    bytes_per_s: u64,
    /// Part of the time that the context was in handlers.
    busy: f64,
    state_bytes: u64,
}

#[derive(Debug, Serialize)]
struct StageLine {
    node: String,
    worker: u64,
    channel: String,
    handler: String,
    context: String,
    /// Why the stage runs there, if the proxy has placed it; why it does not run.
    why: String,
    moves_total: u64,
    path: String,
    waiting: u64,
    calls_per_s: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    /// Mean of a call.
    fuel: u64,
    stops_total: u64,
    memory_bytes: u64,
    formats: Vec<FormatProfile>,
}

pub(super) async fn top(context: &Context, args: &TopArgs) -> Result<(), CliError> {
    watch(context, "/api/v1/contexts", args, compare, |top, _| {
        render(top, context.paint) + &missing(context, &top.unreachable)
    })
    .await
}

/// Returns by how much a total has grown. One that is less than it was has begun anew.
fn grown(before: Option<u64>, now: u64) -> u64 {
    let before = before.unwrap_or(now);
    if now < before { now } else { now - before }
}

fn compare(before: &ContextsView, now: &ContextsView, between: Duration) -> Top {
    let seconds = between.as_secs_f64().max(1e-3);
    let rate = |count: u64| (count as f64 / seconds).round() as u64;
    let (mut contexts, mut stages) = (Vec::new(), Vec::new());
    for node in &now.nodes {
        let old = before.nodes.iter().find(|old| old.node == node.node).map(|old| &old.contexts);
        for of_worker in &node.contexts.contexts {
            let same = |old: &&OfWorker| (old.worker, &old.name) == (of_worker.worker, &of_worker.name);
            let old = old.and_then(|old| old.contexts.iter().find(same));
            contexts.push(ContextLine {
                node: node.node.clone(),
                worker: of_worker.worker,
                context: of_worker.name.to_string(),
                stages: of_worker.stages,
                waiting: of_worker.waiting,
                calls_per_s: rate(grown(old.map(|old| old.messages_total), of_worker.messages_total)),
                bytes_per_s: rate(grown(old.map(|old| old.bytes_total), of_worker.bytes_total)),
                busy: grown(old.map(|old| old.busy_ns_total), of_worker.busy_ns_total) as f64 / 1e9 / seconds,
                state_bytes: of_worker.state_bytes,
            });
        }
        for stage in &node.contexts.stages {
            let key = |stage: &PathStage| {
                (stage.worker, stage.channel.clone(), stage.stage, stage.handler.clone(), stage.state.clone())
            };
            let old = old.and_then(|old| old.stages.iter().find(|old| key(old) == key(stage)));
            let calls = grown(old.map(|old| old.messages_total), stage.messages_total);
            let fuel = grown(old.map(|old| old.fuel_total), stage.fuel_total);
            let (fuel, of) = if calls > 0 { (fuel, calls) } else { (stage.fuel_total, stage.messages_total) };
            stages.push(StageLine {
                node: node.node.clone(),
                worker: stage.worker,
                channel: stage.channel.to_string(),
                handler: stage.handler.to_string(),
                context: stage.context.to_string(),
                why: stage.why.to_string(),
                moves_total: stage.moves_total,
                path: stage.state.to_string(),
                waiting: stage.waiting,
                calls_per_s: rate(calls),
                p50_ns: stage.p50_ns,
                p99_ns: stage.p99_ns,
                max_ns: stage.max_ns,
                fuel: fuel / of.max(1),
                stops_total: stage.stops_total,
                memory_bytes: stage.memory_bytes,
                formats: stage.formats.clone(),
            });
        }
    }
    stages.sort_by_key(|stage| Reverse(stage.calls_per_s));
    contexts.sort_by_key(|context| Reverse(context.calls_per_s));
    Top { seconds, contexts, stages, unreachable: now.unreachable.clone() }
}

fn render(top: &Top, paint: Paint) -> String {
    if top.contexts.is_empty() {
        return "No contexts in use: no channel of the active policy has a path.\n".to_owned();
    }
    let mut contexts = Table::new(&[
        "CONTEXT", "NODE", "WORKER", "STAGES", "WAITING", "CALLS/S", "BYTES/S", "BUSY", "STATE",
    ]);
    for context in &top.contexts {
        contexts.row([
            context.context.clone().into(),
            context.node.clone().into(),
            context.worker.into(),
            context.stages.into(),
            context.waiting.into(),
            context.calls_per_s.into(),
            Cell::from(bytes(context.bytes_per_s)).right(),
            Cell::from(format!("{:.1} %", context.busy * 100.0)).right(),
            Cell::from(bytes(context.state_bytes)).right(),
        ]);
    }
    contexts.render(paint) + "\n" + &stages(top).render(paint)
}

fn stages(top: &Top) -> Table {
    let mut table = Table::new(&[
        "CHANNEL",
        "HANDLER",
        "CONTEXT",
        "NODE",
        "WORKER",
        "PATH",
        "WAITING",
        "CALLS/S",
        "P50",
        "P99",
        "MAX",
        "FUEL",
        "MEMORY",
        "STOPS",
        "WHY THERE",
    ]);
    let time = |stage: &StageLine, ns: u64| match stage.max_ns {
        0 => Cell::from("-").right(),
        _ => Cell::from(format!("{ns} ns")).right(),
    };
    for stage in &top.stages {
        let path = if stage.path == "ended" { Colour::Red } else { Colour::Plain };
        let stops = if stage.stops_total > 0 { Colour::Yellow } else { Colour::Plain };
        table.row([
            stage.channel.clone().into(),
            stage.handler.clone().into(),
            stage.context.clone().into(),
            stage.node.clone().into(),
            stage.worker.into(),
            Cell::from(stage.path.clone()).coloured(path),
            stage.waiting.into(),
            stage.calls_per_s.into(),
            time(stage, stage.p50_ns),
            time(stage, stage.p99_ns),
            time(stage, stage.max_ns),
            if stage.fuel > 0 { stage.fuel.into() } else { Cell::from("-").right() },
            Cell::from(bytes(stage.memory_bytes)).right(),
            Cell::from(stage.stops_total).coloured(stops),
            stage.why.clone().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(messages: u64, fuel: u64) -> ContextsView {
        let text = format!(
            r#"{{"nodes": [{{"node": "pn-1", "contexts": [{{"worker": 0, "name": "c0", "stages": 1, "waiting": 3, "waiting_max": 9,
            "messages_total": {messages}, "bytes_total": {bytes}, "points_total": 1, "busy_ns_total": {busy}, "state_bytes": 16}}],
            "stages": [{{"worker": 0, "channel": "ticks", "format": null, "state": "active", "stage": 0, "handler": "mine",
            "context": "c0", "why": "p99 415 ns <= 50 us, for 34 s", "moves_total": 1, "waiting": 3, "held": false, "entered_total": 0, "dropped_total": 0, "messages_total": {messages},
            "emitted_total": 0, "mean_ns": 90, "max_ns": 900, "p50_ns": 95, "p99_ns": 415, "fuel_total": {fuel},
            "stops_total": 2, "memory_bytes": 65536}}], "handlers": []}}], "unreachable": []}}"#,
            bytes = messages * 100,
            busy = messages * 1_000,
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let top = compare(&view(1_000, 10_000), &view(5_000, 90_000), Duration::from_secs(2));
        assert_eq!((top.contexts[0].calls_per_s, top.contexts[0].bytes_per_s), (2_000, 200_000));
        assert!((top.contexts[0].busy - 0.002).abs() < 1e-9);
        assert_eq!((top.stages[0].calls_per_s, top.stages[0].fuel), (2_000, 20));
        let shown = render(&top, Paint::off());
        let line = shown.lines().last().unwrap();
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = [
            "ticks",
            "mine",
            "c0",
            "pn-1",
            "0",
            "active",
            "3",
            "2000",
            "95 ns",
            "415 ns",
            "900 ns",
            "20",
            "64.0 KiB",
            "2",
            "p99 415 ns <= 50 us, for 34 s",
        ];
        assert_eq!(cells, expected, "{shown}");
    }

    #[test]
    fn a_path_that_began_anew_counts_from_there() {
        let top = compare(&view(1_000, 10_000), &view(100, 500), Duration::from_secs(1));
        assert_eq!((top.stages[0].calls_per_s, top.contexts[0].calls_per_s), (100, 100));
        let top = compare(&ContextsView::default(), &view(100, 500), Duration::from_secs(1));
        assert_eq!((top.stages[0].calls_per_s, top.stages[0].fuel), (0, 5), "unknown before: no rate yet");
    }
}
