//! Web traffic beside messages at one link: wrk's latencies while a bulk flow has more to send than the link
//! takes.
//!
//! ```text
//!  [wrk] ⇄ nginx's service ─┐
//!                           ├─ one proxy worker: flows, link ─▶ clients
//!  [bulk] ─▶ channel ───────┘
//! ```
//! wrk drives nginx in two ways: at a fixed pace, far below its reservation, where latency counts; and as
//! fast as responses come, where rate counts.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{PORT, Plan, SETTLE_S, apply, endpoint, mbps, parse, start};
use crate::client::{Fetch, micros};
use crate::{Cluster, VIP, configs, testing, wait_until};

/// wrk's kept-alive connections.
const CONNECTIONS: u32 = 16;
/// At the fixed pace, how long a connection waits after each response.
const THINK_MS: u32 = 40;
/// Parts of the link that web traffic and bulk messages are promised, in percent.
const PROMISED: [u32; 2] = [60, 10];
const START: Duration = Duration::from_secs(60);
/// Seconds that messages are sent after wrk has ended.
const MARGIN_S: u32 = 1;

/// wrk's counts in one run.
#[derive(Clone, Debug)]
pub struct WebRow {
    /// What wrk fetches.
    pub load: &'static str,
    /// Whether a publisher sends bulk messages meanwhile, the link's scheme, and which flow has a promise.
    pub case: &'static str,
    /// Responses a second.
    pub per_second: f64,
    /// Median and 99th percentile of the latency, in milliseconds.
    pub latency_ms: [f64; 2],
    /// Mb/s that the receiver of bulk messages got meanwhile; `None`: there were none.
    pub bulk_mbps: Option<f64>,
    /// Time that the hypervisor took from the machine meanwhile, in milliseconds.
    pub stolen_ms: u64,
}

struct Load {
    name: &'static str,
    file: &'static str,
    bytes: usize,
    paced: bool,
}

const LOADS: [Load; 2] = [
    Load { name: "1 KiB, paced", file: "1KiB", bytes: 1 << 10, paced: true },
    Load { name: "16 KiB, without pause", file: "16KiB", bytes: 16 << 10, paced: false },
];

struct Case {
    name: &'static str,
    scheme: &'static str,
    /// Web traffic and messages have a flow each, in place of one for both.
    apart: bool,
    promised: bool,
    bulk: bool,
}

const fn case(name: &'static str, scheme: &'static str, [apart, promised, bulk]: [bool; 3]) -> Case {
    Case { name, scheme, apart, promised, bulk }
}

const CASES: [Case; 5] = [
    case("no bulk messages", "PAR", [true, true, false]),
    case("bulk, one flow for both", "RR", [false, false, true]),
    case("bulk, RR", "RR", [true, false, true]),
    case("bulk, EAS", "EAS", [true, false, true]),
    case("bulk, PAR, web promised", "PAR", [true, true, true]),
];

fn policy(plan: &Plan, case: &Case) -> String {
    let mut text = configs::policy();
    let _ = writeln!(text, "channels:\n  - {{name: bulk, vip: {VIP}, port: {PORT}}}\ninformation_flows:");
    let reserve = PROMISED.map(|percent| match case.promised {
        true => format!(", reserve: {{mbps: {}}}", plan.link_mbps * percent / 100),
        false => String::new(),
    });
    if case.apart {
        let _ = writeln!(
            text,
            "  - {{name: web, match: {{destination: {VIP}/32, port: 80}}, priority: 9{}, message_bytes: 4096}}\n  \
             - {{name: bulk, match: {{channel: bulk}}, message_bytes: {}{}}}",
            reserve[0], plan.size, reserve[1]
        );
    }
    let _ = writeln!(
        text,
        "  - {{name: default, message_bytes: 4096}}\nlink: {{mbps: {}, scheme: {}, quantum_kib: 4}}",
        plan.link_mbps, case.scheme
    );
    text
}

/// Measures wrk in all cases under both loads.
pub(super) fn run(cluster: &mut Cluster, plan: &Plan, progress: &impl Fn(&str)) -> Result<Vec<WebRow>> {
    for load in &LOADS {
        fs::write(cluster.scratch().join("www").join(load.file), testing::pattern(load.bytes))?;
    }
    fs::write(script(cluster), format!("function delay() return {THINK_MS} end\n"))?;
    apply(cluster, &policy(plan, &CASES[0]))?;
    cluster.start_nginx()?;
    let url = format!("http://{VIP}/{}", LOADS[0].file);
    wait_until(&url, START, || cluster.answers(&url).then_some(()))?;
    let mut rows = Vec::new();
    for load in &LOADS {
        for case in &CASES {
            progress(&format!("web: {}, {}", load.name, case.name));
            apply(cluster, &policy(plan, case))?;
            rows.push(measure(cluster, plan, load, case)?);
        }
    }
    Ok(rows)
}

fn script(cluster: &Cluster) -> std::path::PathBuf {
    cluster.scratch().join("think.lua")
}

fn measure(cluster: &Cluster, plan: &Plan, load: &Load, case: &Case) -> Result<WebRow> {
    if !case.bulk {
        return Ok(wrk(cluster, plan, load, case)?.0);
    }
    let seconds = SETTLE_S + plan.seconds + MARGIN_S;
    let receive = ["receive".to_owned(), endpoint(PORT), (seconds + 1).to_string()];
    let (mut receiver, log) = start(cluster, "receive-bulk", &receive)?;
    let steps = format!("{}:{seconds}", 2 * plan.link_mbps);
    let publish = ["publish".to_owned(), endpoint(PORT), plan.size.to_string(), steps];
    let (mut sender, _) = start(cluster, "publish-bulk", &publish)?;
    let wait = Duration::from_secs(u64::from(seconds) + 60);
    std::thread::sleep(Duration::from_secs(SETTLE_S.into()));
    let (mut row, windows) = wrk(cluster, plan, load, case)?;
    let status = wait_until("the receiver of bulk messages ends", wait, || receiver.exited())?;
    let text = fs::read_to_string(log)?;
    if !status.success() {
        bail!("the receiver of bulk messages: {text}");
    }
    wait_until("the publisher of bulk messages ends", wait, || sender.exited())?;
    let seen = parse(&text)?;
    let bytes: f64 = seen.windows.range(windows.clone()).map(|(_, of)| of[0]).sum();
    row.bulk_mbps = Some(mbps(bytes, windows.count()));
    Ok(row)
}

/// Tenths of a second of the machine's clock, as receivers count them.
fn window() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 10 + now.tv_nsec as u64 / 100_000_000
}

/// Ticks of 10 ms that the hypervisor took.
fn stolen() -> Option<u64> {
    fs::read_to_string("/proc/stat").ok()?.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// Runs wrk; returns its counts and the windows that lie wholly in its run.
fn wrk(cluster: &Cluster, plan: &Plan, load: &Load, case: &Case) -> Result<(WebRow, std::ops::Range<u64>)> {
    let (from, ticks) = (window() + 1, stolen());
    let script = script(cluster).to_string_lossy().into_owned();
    let more: &[&str] = if load.paced { &["-s", &script] } else { &[] };
    let report = Fetch(cluster).wrk_with(load.file, CONNECTIONS, plan.seconds, more)?;
    let until = window();
    let field = |name: &str| report.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    let latency = |name: &str| {
        let micros = field(name).and_then(micros).with_context(|| format!("wrk's {name}:\n{report}"))?;
        anyhow::Ok(micros / 1e3)
    };
    let per_second = field("Requests/sec:").and_then(|text| text.parse().ok());
    let row = WebRow {
        load: load.name,
        case: case.name,
        per_second: per_second.with_context(|| format!("wrk's requests a second:\n{report}"))?,
        latency_ms: [latency("50%")?, latency("99%")?],
        bulk_mbps: None,
        stolen_ms: ticks.zip(stolen()).map_or(0, |(before, after)| 10 * after.saturating_sub(before)),
    };
    Ok((row, from..until))
}

/// Returns the section of the report.
pub fn section(plan: &Plan, rows: &[WebRow]) -> String {
    let mut out = format!(
        "\nWeb traffic beside messages: unmodified nginx behind a service and {} Mb/s of bulk messages, at the same link of {} Mb/s ({CONNECTIONS} kept-alive \
         connections of wrk, {} s each; quanta of 4 KiB). Paced: each connection waits {THINK_MS} ms after a response, so that web traffic is far below what it is \
         promised, and its latency counts. Without pause: web traffic takes what it is given. PAR promises web {} % and bulk {} % of the link, and web has the higher \
         priority. A flow for both is a queue of 256 items that bulk messages fill. EAS allots a third of the link to each of web, bulk and `default`.\n\n\
         | load | beside it | responses/s | p50 ms | p99 ms | bulk Mb/s | stolen ms |\n|---|---|---|---|---|---|---|\n",
        2 * plan.link_mbps,
        plan.link_mbps,
        plan.seconds,
        PROMISED[0],
        PROMISED[1]
    );
    for WebRow { load, case, per_second, latency_ms: [p50, p99], bulk_mbps, stolen_ms } in rows {
        let bulk = bulk_mbps.map_or_else(|| "–".to_owned(), |mbps| format!("{mbps:.1}"));
        let _ = writeln!(
            out,
            "| {load} | {case} | {per_second:.0} | {p50:.2} | {p99:.2} | {bulk} | {stolen_ms} |"
        );
    }
    out
}
