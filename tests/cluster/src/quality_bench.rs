//! The paper's scenarios of quality through real daemons: three publishers, three channels, and a link that
//! flows share.
//!
//! ```text
//!  [publishers A B C] ─▶ network node ─ SAN ─ proxy node: flows, link ─▶ network node ─▶ [receivers A B C]
//! ```
//! Rates are the paper's in proportion to the link. Bytes are counted by the receivers, in each tenth of a
//! second; tenths in which the hypervisor took time from the machine are left out, and the report has their
//! number.

mod contexts;
mod controller;
mod htb;
mod ring;
mod web;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{Cluster, Options, Process, San, Tier, VIP, wait_until};

pub use controller::{Consistency, section as controller_section};
pub use web::{WebRow, section as web_section};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PORT: u16 = 5571;
/// The paper's link, in Mb/s: its rates are scaled by ours over this.
const PAPER: f64 = 500.0;
/// Seconds at the beginning that are not measured.
const SETTLE_S: u32 = 2;
/// Tenths of a second at the end that are not measured.
const END: u64 = 3;

/// The figures that can be measured, web traffic beside messages, changes of the configuration, and the
/// kernel's HTB.
pub const FIGURES: [&str; 9] = ["2", "3", "4", "5", "11", "12", "web", "controller", "htb"];

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which of [`FIGURES`].
    pub figures: Vec<String>,
    /// The folder of the programs.
    pub binaries: PathBuf,
    /// Capacity of the link, in Mb/s.
    pub link_mbps: u32,
    /// Seconds of each measurement.
    pub seconds: u32,
    /// Bytes of a message.
    pub size: u32,
}

/// One line of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The figure of the paper.
    pub figure: &'static str,
    /// The scheme.
    pub scheme: &'static str,
    /// What was sent, by flow, in Mb/s.
    pub sent: [f64; 3],
    /// What the scheme gives by calculation; `None`: it depends on which publishers wait.
    pub expected: [f64; 3],
    /// What arrived, in Mb/s.
    pub received: [f64; 3],
    /// Mean time from when a message was to be sent until it was received, in milliseconds.
    pub delay_ms: [f64; 3],
    /// The least part of a promise in a window of 100 ms in which messages waited, in percent; `None`:
    /// nothing is promised.
    pub least: Option<f64>,
    /// Windows measured, and those left out because the machine was stolen from us.
    pub windows: (usize, usize),
    /// Messages that arrived after a later one.
    pub disordered: u64,
}

struct Scenario {
    figure: &'static str,
    scheme: &'static str,
    sent: [f64; 3],
    promised: [f64; 3],
    expected: [f64; 3],
}

fn scenarios() -> Vec<Scenario> {
    let third = PAPER / 3.0;
    let case =
        |figure, scheme, sent, promised, expected| Scenario { figure, scheme, sent, promised, expected };
    let even = [330.0; 3];
    let promised = [50.0, 200.0, 50.0];
    vec![
        case("3", "RR", even, [0.0; 3], [third; 3]),
        case("3", "EAS", even, [0.0; 3], [PAPER / 4.0; 3]),
        case("3", "SA", even, [100.0, 200.0, 100.0], [100.0, 200.0, 100.0]),
        case("3", "PA", even, [0.0; 3], [85.0, 330.0, 85.0]),
        case("3", "PAR", even, promised, [85.0, 330.0, 85.0]),
        case("4", "PA", [150.0, 700.0, 150.0], [0.0; 3], [0.0, 500.0, 0.0]),
        case("4", "PAR", [150.0, 700.0, 150.0], [50.0, 0.0, 50.0], [50.0, 400.0, 50.0]),
    ]
}

/// What a receiver saw: by window, bytes, messages and delays; and stolen ticks.
struct Seen {
    windows: BTreeMap<u64, [f64; 3]>,
    steal: BTreeMap<u64, u64>,
    disordered: u64,
}

/// The course of Fig. 11: Mb/s that arrived in each tenth of a second from the first one that is measured, by
/// flow, and when the scheme changed.
#[derive(Clone, Debug)]
pub struct Adaptation {
    /// By flow.
    pub received: [Vec<f64>; 3],
    /// The least of the link that was in use in half a second, in percent.
    pub link_least: f64,
    /// What B received of what it sent in its surge, in percent.
    pub surge: f64,
    /// How often the trigger has fired or was released.
    pub changes: u64,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// Figs. 2 to 5 and 12.
    pub rows: Vec<Row>,
    /// Fig. 11.
    pub adaptation: Option<Adaptation>,
    /// wrk beside bulk messages.
    pub web: Vec<WebRow>,
    /// Changes of the flows' configuration.
    pub consistency: Option<Consistency>,
    /// The kernel's HTB.
    pub htb: Vec<Row>,
}

/// Measures what is planned.
///
/// # Errors
/// If something cannot be set up or measured.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Report> {
    let tag = format!("qb{}", std::process::id());
    let mut cluster =
        Cluster::lay_out(Options { binaries: plan.binaries.clone(), san: San::Shm, edge: false, tag })?;
    cluster.start_daemons()?;
    fs::write(cluster.scratch().join("zmq_flows.py"), include_str!("../apps/zmq_flows.py"))?;
    let wanted = |figure: &str| plan.figures.iter().any(|known| known == figure);
    let mut rows = Vec::new();
    if wanted("2") {
        rows.extend(ring::run(&cluster, plan, &progress)?);
    }
    for scenario in scenarios().iter().filter(|scenario| wanted(scenario.figure)) {
        progress(&format!("Fig. {}, {}", scenario.figure, scenario.scheme));
        rows.push(measure(&cluster, plan, scenario)?);
    }
    for figure in ["5", "12"].into_iter().filter(|figure| wanted(figure)) {
        rows.extend(contexts::run(&cluster, plan, figure, &progress)?);
    }
    let mut adapted = None;
    if wanted("11") {
        progress("Fig. 11");
        adapted = Some(adaptation(&cluster, plan)?);
    }
    let consistency =
        if wanted("controller") { Some(controller::run(&cluster, plan, &progress)?) } else { None };
    let web = if wanted("web") { web::run(&mut cluster, plan, &progress)? } else { Vec::new() };
    let casualties = cluster.casualties();
    if !casualties.is_empty() {
        bail!("{casualties}");
    }
    cluster.stop()?;
    let htb = if wanted("htb") { htb::run(plan, &progress)? } else { Vec::new() };
    Ok(Report { rows, adaptation: adapted, web, consistency, htb })
}

fn policy(plan: &Plan, scheme: &str, promised: [f64; 3], more: &str) -> String {
    let part = f64::from(plan.link_mbps) / PAPER;
    let mut text = "apiVersion: csp/v1\nchannels:\n".to_owned();
    for (name, port) in NAMES.iter().zip(PORT..) {
        let _ = writeln!(text, "  - {{name: {name}, vip: {VIP}, port: {port}}}");
    }
    text += "information_flows:\n";
    for (name, promise) in NAMES.iter().zip(promised) {
        let _ = writeln!(
            text,
            "  - {{name: {name}, match: {{channel: {name}}}, priority: {}, reserve: {{mbps: {}}}, message_bytes: {}, queue: {{messages: 256}}}}",
            if *name == "b" { 9 } else { 0 },
            (promise * part).floor(),
            plan.size
        );
    }
    let _ = writeln!(text, "  - {{name: default, message_bytes: {}}}", plan.size);
    let _ = writeln!(text, "link:\n  mbps: {}\n  scheme: {scheme}\n{more}", plan.link_mbps);
    text
}

fn apply(cluster: &Cluster, text: &str) -> Result<()> {
    let file = cluster.scratch().join("quality.yaml");
    fs::write(&file, text)?;
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map(drop)
}

fn start(cluster: &Cluster, name: &str, arguments: &[String]) -> Result<(Process, PathBuf)> {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join("zmq_flows.py")).args(arguments);
    let log = cluster.scratch().join(format!("log/{name}.log"));
    let _ = fs::remove_file(&log); // of the scenario before
    Ok((Process::spawn(name, command, &log)?, log))
}

fn endpoint(port: u16) -> String {
    format!("tcp://{VIP}:{port}")
}

/// Runs publishers with the given steps beside receivers, a channel for each; returns what receivers saw.
fn exchange(cluster: &Cluster, size: u32, steps: [String; 3], seconds: u32) -> Result<Vec<Seen>> {
    let time = (seconds + 2).to_string();
    let receive = |port| vec!["receive".to_owned(), endpoint(port), time.clone()];
    let publish = |(port, steps)| vec!["publish".to_owned(), endpoint(port), size.to_string(), steps];
    let receivers = [0, 1, 2].map(|at| receive(PORT + at));
    run_programs(cluster, &receivers, &(PORT..).zip(steps).map(publish).collect::<Vec<_>>(), seconds)
}

/// Runs senders beside three receivers; returns what these saw.
fn run_programs(
    cluster: &Cluster,
    receive: &[Vec<String>; 3],
    send: &[Vec<String>],
    seconds: u32,
) -> Result<Vec<Seen>> {
    let deadline = Duration::from_secs(u64::from(seconds) + 60);
    let mut receivers = Vec::new();
    for (name, arguments) in NAMES.iter().zip(receive) {
        receivers.push(start(cluster, &format!("receive-{name}"), arguments)?);
    }
    let mut senders = Vec::new();
    for (name, arguments) in NAMES.iter().zip(send) {
        senders.push(start(cluster, &format!("publish-{name}"), arguments)?);
    }
    let mut seen = Vec::new();
    for (process, log) in &mut receivers {
        let status = wait_until("a receiver ends", deadline, || process.exited())?;
        let text = fs::read_to_string(log)?;
        if !status.success() {
            bail!("a receiver: {text}");
        }
        seen.push(parse(&text)?);
    }
    for (process, _) in &mut senders {
        wait_until("a publisher ends", deadline, || process.exited())?;
    }
    Ok(seen)
}

fn parse(text: &str) -> Result<Seen> {
    let line = text.lines().rev().find(|line| line.starts_with('{')).with_context(|| text.to_owned())?;
    let value: Value = serde_json::from_str(line)?;
    let object = |key: &str| value[key].as_object().cloned().unwrap_or_default();
    let windows = object("windows").into_iter().filter_map(|(at, of)| {
        let number = |at: usize| of[at].as_f64().unwrap_or(0.0);
        Some((at.parse().ok()?, [number(0), number(1), number(2)]))
    });
    let steal =
        object("steal").into_iter().filter_map(|(at, ticks)| Some((at.parse().ok()?, ticks.as_u64()?)));
    Ok(Seen {
        windows: windows.collect(),
        steal: steal.collect(),
        disordered: value["disordered"].as_u64().unwrap_or(0),
    })
}

/// The windows in which all flows were measured, with those in which time was stolen apart.
fn windows(seen: &[Seen]) -> (Vec<u64>, usize) {
    let first = seen.iter().filter_map(|seen| seen.windows.keys().next()).min().copied().unwrap_or(0);
    let last = seen.iter().filter_map(|seen| seen.windows.keys().next_back()).max().copied().unwrap_or(0);
    let from = first + u64::from(SETTLE_S) * 10;
    let all: Vec<u64> = (from..last.saturating_sub(END)).collect();
    let stolen = |at: &u64| {
        seen.iter().any(|seen| {
            (at.saturating_sub(1)..=at + 1).any(|at| seen.steal.get(&at).is_some_and(|ticks| *ticks > 0))
        })
    };
    let kept: Vec<u64> = all.iter().filter(|at| !stolen(at)).copied().collect();
    let out = all.len() - kept.len();
    (kept, out)
}

fn mbps(bytes: f64, windows: usize) -> f64 {
    bytes * 8.0 / 1e5 / windows.max(1) as f64
}

fn measure(cluster: &Cluster, plan: &Plan, scenario: &Scenario) -> Result<Row> {
    let part = f64::from(plan.link_mbps) / PAPER;
    apply(cluster, &policy(plan, scenario.scheme, scenario.promised, ""))?;
    let seconds = plan.seconds + SETTLE_S;
    let steps = scenario.sent.map(|rate| format!("{}:{seconds}", rate * part));
    let seen = exchange(cluster, plan.size, steps, seconds)?;
    Ok(row(scenario, part, &seen))
}

/// What receivers saw, in the rates of `part` of the paper's.
fn row(scenario: &Scenario, part: f64, seen: &[Seen]) -> Row {
    let (kept, out) = windows(seen);
    let of =
        |flow: usize, at: &u64, what: usize| seen[flow].windows.get(at).map_or(0.0, |window| window[what]);
    let sum = |flow: usize, what: usize| kept.iter().map(|at| of(flow, at, what)).sum::<f64>();
    let received = [0, 1, 2].map(|flow| mbps(sum(flow, 0), kept.len()));
    let delay_ms = [0, 1, 2].map(|flow| sum(flow, 2) / sum(flow, 1).max(1.0) / 1e6);
    let mut least: Option<f64> = None;
    if scenario.scheme == "PAR" {
        for (flow, promise) in scenario.promised.iter().enumerate().filter(|(_, promise)| **promise > 0.0) {
            let promise = (promise * part).floor();
            for at in &kept {
                let of_promise = 100.0 * mbps(of(flow, at, 0), 1) / promise;
                least = Some(least.map_or(of_promise, |least| least.min(of_promise)));
            }
        }
    }
    Row {
        figure: scenario.figure,
        scheme: scenario.scheme,
        sent: scenario.sent.map(|rate| rate * part),
        expected: scenario.expected.map(|rate| rate * part),
        received,
        delay_ms,
        least,
        windows: (kept.len(), out),
        disordered: seen.iter().map(|seen| seen.disordered).sum(),
    }
}

/// Fig. 11: B surges and ebbs; the trigger that ships with the policy follows it.
fn adaptation(cluster: &Cluster, plan: &Plan) -> Result<Adaptation> {
    let part = f64::from(plan.link_mbps) / PAPER;
    let more = format!(
        "  adapt: {{flow: b, surge_mbps: {:.0}, ebb_mbps: {:.0}, back_ms: 50}}\n",
        250.0 * part,
        150.0 * part
    );
    apply(cluster, &policy(plan, "RR", [40.0, 0.0, 40.0], &more))?;
    // Two seconds each; the first two of them are not measured.
    let steps = |rates: [f64; 4]| rates.map(|rate| format!("{}:2", rate * part)).join(",");
    let steps = [
        steps([170.0, 170.0, 170.0, 220.0]),
        steps([170.0, 170.0, 400.0, 100.0]),
        steps([170.0, 170.0, 170.0, 220.0]),
    ];
    let seen = exchange(cluster, plan.size, steps, 8)?;
    let first = seen.iter().filter_map(|seen| seen.windows.keys().next()).min().copied().unwrap_or(0);
    let from = first + u64::from(SETTLE_S) * 10;
    let course = |flow: usize| -> Vec<f64> {
        (from..from + 60).map(|at| mbps(seen[flow].windows.get(&at).map_or(0.0, |of| of[0]), 1)).collect()
    };
    let received = [0, 1, 2].map(course);
    // All but the last half a second, in which publishers end one after the other.
    let link_least = (0..11)
        .map(|half| {
            let used: f64 = received.iter().flat_map(|of| &of[half * 5..half * 5 + 5]).sum();
            100.0 * used / 5.0 / f64::from(plan.link_mbps)
        })
        .fold(f64::MAX, f64::min);
    // From a tenth of a second after its beginning on.
    let surge = received[1][21..39].iter().sum::<f64>() / 18.0;
    let shown: Value =
        serde_json::from_str(&cluster.host_ask_quality()?).context("/v1/quality of the proxy")?;
    let changes = shown["links"][0]["triggers"][0]["changes_total"].as_u64().unwrap_or(0);
    Ok(Adaptation { received, link_least, surge: 100.0 * surge / (400.0 * part), changes })
}

impl Cluster {
    fn host_ask_quality(&self) -> Result<String> {
        self.ask(Tier::ProxyNode, "/v1/quality")
    }
}
