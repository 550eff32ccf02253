//! Figs. 5 and 12: handlers behind the queues, and contexts that flows share.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::{NAMES, PAPER, PORT, Plan, Row, SETTLE_S, Scenario, apply, exchange, row};
use crate::{Cluster, VIP};

const CONTEXTS: u32 = 8;
/// Part of the worker's time that contexts have together.
const PERCENT: u32 = 25;

/// What handlers do with a flow's messages.
struct Kind {
    /// What a message occupies the worker for, in microseconds.
    cost_us: u32,
    /// Rounds of a loop that the handler runs, so that it does cost something.
    rounds: u32,
    /// Bytes that it leaves; `None`: all.
    leaves: Option<u32>,
    contexts: u16,
    /// What is promised of the link.
    messages_per_s: u32,
    mbps: u32,
}

/// A module that works for a while and emits the message, or its first bytes.
fn module(kind: &Kind) -> String {
    let rounds = kind.rounds;
    // The declaration: its length, one output, the longest message that the module makes; no timer, buffer or
    // state.
    let made = kind.leaves.unwrap_or(0).to_le_bytes();
    let declared = [40, 0, 0, 0, 1, 0, 0, 0].into_iter().chain(made).chain([0; 28]);
    let declaration: String = declared.map(|byte: u8| format!("\\{byte:02x}")).collect();
    let emit = match kind.leaves {
        Some(len) => format!("(call $range (i32.const 0) (local.get 0) (i32.const 0) (i32.const {len}))"),
        None => "(call $same (i32.const 0))".to_owned(),
    };
    format!(
        r#"(module
            (import "csp" "emit_same" (func $same (param i32) (result i32)))
            (import "csp" "emit_range" (func $range (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (data (i32.const 64) "{declaration}")
            (func (export "csp_declaration") (result i32) i32.const 64)
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "on_message") (param i32 i32 i32) (result i32) (local $left i32) (local $sum i32)
              (local.set $left (i32.const {rounds}))
              (loop $again
                (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (local.get $left)))
                (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                (br_if $again (i32.gt_s (local.get $left) (i32.const 0))))
              (i32.store (i32.const 0) (local.get $sum))
              {emit}))"#
    )
}

/// Brings a module to the proxies; returns its name.
fn put(cluster: &Cluster, name: &str, text: &str) -> Result<String> {
    let file = cluster.scratch().join(format!("{name}.wasm"));
    fs::write(&file, wat::parse_str(text)?)?;
    let printed = cluster.cspctl(&["handler", "put", &file.to_string_lossy()])?;
    let hash = printed.lines().next().context("`cspctl handler put` prints the module's name")?;
    Ok(hash.to_owned())
}

fn policy(modules: &[String], kinds: &[Kind; 3], scheme: &str, link_mbps: f64, size: u32) -> String {
    let mut text = "apiVersion: csp/v1\nhandlers:\n".to_owned();
    for (name, module) in NAMES.iter().zip(modules) {
        let _ = writeln!(text, "  - {{name: work-{name}, module: {module}, on_stop: restart}}");
    }
    text += "channels:\n";
    for (name, port) in NAMES.iter().zip(PORT..) {
        let _ = writeln!(
            text,
            "  - {{name: {name}, vip: {VIP}, port: {port}, path: [{{handler: work-{name}}}]}}"
        );
    }
    text += "information_flows:\n";
    for (name, kind) in NAMES.iter().zip(kinds) {
        let priority = u8::from(*name == "b");
        let _ = writeln!(
            text,
            "  - {{name: {name}, match: {{channel: {name}}}, priority: {priority}, reserve: {{contexts: {}, messages_per_s: {}, mbps: {}}}, cost_us: {}, message_bytes: \
             {size}, queue: {{messages: 256}}}}",
            kind.contexts, kind.messages_per_s, kind.mbps, kind.cost_us
        );
    }
    let _ = writeln!(
        text,
        "  - {{name: default, message_bytes: {size}}}\nlink:\n  mbps: {}\n  scheme: {scheme}\n  contexts: {{count: {CONTEXTS}, worker_percent: {PERCENT}}}",
        link_mbps.round().max(1.0)
    );
    text
}

/// Measures Fig. 5 or Fig. 12.
pub(super) fn run(
    cluster: &Cluster,
    plan: &Plan,
    figure: &'static str,
    progress: &impl Fn(&str),
) -> Result<Vec<Row>> {
    if figure == "5" { scarce(cluster, plan, progress) } else { airline(cluster, plan, progress) }
}

/// Eight contexts just fill the link. One is A's, two are B's, one is C's; four are allotted to nobody.
fn scarce(cluster: &Cluster, plan: &Plan, progress: &impl Fn(&str)) -> Result<Vec<Row>> {
    let link = f64::from(plan.link_mbps);
    // So many messages a second fill the link; contexts can do that and 1 to 2 % more.
    let fills = link * 1e6 / 8.0 / f64::from(plan.size);
    let cost_us = ((f64::from(PERCENT) * 1e4 / fills / 1.01).floor() as u32).max(1);
    let sent = [38.0, 500.0, 38.0];
    // At the link A and C are promised what they send; B has what they leave.
    let own = (sent[0] / PAPER * fills).ceil() as u32;
    let kind = |contexts, messages_per_s| Kind {
        cost_us,
        rounds: 10_000,
        leaves: None,
        contexts,
        messages_per_s,
        mbps: 0,
    };
    let kinds = [kind(1, own), kind(2, 0), kind(1, own)];
    let module = put(cluster, "busy", &module(&kinds[0]))?;
    let modules = [module.clone(), module.clone(), module];
    let mut rows = Vec::new();
    for (scheme, expected) in [("SA", [38.0, 125.0, 38.0]), ("PAR", [38.0, 424.0, 38.0])] {
        progress(&format!("Fig. 5, {scheme}"));
        let scenario = Scenario { figure: "5", scheme, sent, promised: [0.0; 3], expected };
        let text = policy(&modules, &kinds, scheme, link, plan.size);
        rows.push(measure(cluster, (&scenario, link / PAPER), plan, (&text, plan.size))?);
    }
    Ok(rows)
}

/// Three kinds of data items, equally frequent: A is standardised to 100 B at great cost, B becomes 300 B and
/// has the highest priority, C passes with little change. A quarter of the other figures' rates, since
/// messages are short.
fn airline(cluster: &Cluster, plan: &Plan, progress: &impl Fn(&str)) -> Result<Vec<Row>> {
    const SIZE: u32 = 600;
    progress("Fig. 12, PAR");
    let link = (f64::from(plan.link_mbps) / 4.0).floor();
    let part = link / PAPER;
    let kind = |cost_us, rounds, leaves, mega: f64| Kind {
        cost_us,
        rounds,
        leaves: Some(leaves),
        contexts: 0,
        messages_per_s: 0,
        // Whole Mb/s.
        mbps: (mega * part).max(1.0) as u32,
    };
    let kinds = [kind(20, 6_000, 100, 40.0), kind(5, 500, 300, 200.0), kind(3, 50, 540, 40.0)];
    let modules = NAMES.iter().zip(&kinds).map(|(name, kind)| put(cluster, name, &module(kind)));
    let modules = modules.collect::<Result<Vec<_>>>()?;
    // What handlers leave of A and B would be 100 and 300 Mb/s; C has the rest.
    let (sent, expected) = ([600.0; 3], [100.0, 300.0, 100.0]);
    let scenario = Scenario { figure: "12", scheme: "PAR", sent, promised: [0.0; 3], expected };
    let text = policy(&modules, &kinds, "PAR", link, SIZE);
    Ok(vec![measure(cluster, (&scenario, part), plan, (&text, SIZE))?])
}

fn measure(
    cluster: &Cluster,
    (scenario, part): (&Scenario, f64),
    plan: &Plan,
    (policy, size): (&str, u32),
) -> Result<Row> {
    apply(cluster, policy)?;
    let seconds = plan.seconds + SETTLE_S;
    let steps = scenario.sent.map(|rate| format!("{}:{seconds}", rate * part));
    let seen = exchange(cluster, size, steps, seconds)?;
    Ok(row(scenario, part, &seen))
}
