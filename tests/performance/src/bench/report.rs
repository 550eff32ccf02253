//! What was measured: samples, their medians, and ratios within rounds beside their bars.

use std::fmt;

use anyhow::{Context, Result};
use csp_cluster::micros;
use serde::Serialize;

use super::contender::Contender;
use super::work::Work;
use super::{Layout, Plan};

/// One contender's turn in one round.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Sample {
    /// Requests a second that were answered.
    pub requests_per_second: f64,
    /// Latency of 50, 90 and 99 % of them, in microseconds.
    pub latency_us: [f64; 3],
    /// Processor time a request by tier, user and system, in microseconds. What the kernel does in interrupts
    /// is nobody's.
    pub processor_us: Vec<(String, f64)>,
    /// Memory of the processes at the edge, by connection, in bytes, where that is measured.
    pub memory: Option<f64>,
    /// What went wrong: there is no ratio then.
    pub wrong: Option<String>,
}

impl Sample {
    /// Reads a report of `wrk --latency`.
    pub(super) fn of_wrk(report: &str) -> Result<Self> {
        let value =
            |name: &str| report.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
        let rate = value("Requests/sec:").context("wrk printed no rate")?;
        let percentile = |name: &str| value(name).and_then(micros).with_context(|| format!("wrk: {name}"));
        let is_wrong = |line: &&str| line.contains("Socket errors") || line.contains("Non-2xx");
        let rate: f64 = rate.parse().with_context(|| rate.to_owned())?;
        let nothing = (rate == 0.0).then(|| "no request was answered in the time".to_owned());
        Ok(Sample {
            requests_per_second: rate,
            latency_us: [percentile("50%")?, percentile("90%")?, percentile("99%")?],
            processor_us: Vec::new(),
            memory: None,
            wrong: report.lines().find(is_wrong).map(|line| line.trim().to_owned()).or(nothing),
        })
    }
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Requests a second: more is better.
    Rate,
    /// Median latency.
    P50,
    /// Latency of 90 %.
    P90,
    /// Latency of 99 %.
    P99,
    /// The application's processor time a request.
    ApplicationTime,
    /// The processor time a request of what stands at the edge.
    EdgeTime,
    /// Memory of a connection.
    Memory,
}

impl Measure {
    /// Returns its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Rate => "requests/s",
            Measure::P50 => "p50",
            Measure::P90 => "p90",
            Measure::P99 => "p99",
            Measure::ApplicationTime => "application's processor time",
            Measure::EdgeTime => "edge's processor time",
            Measure::Memory => "memory",
        }
    }

    pub(super) fn of(self, sample: &Sample) -> f64 {
        match self {
            Measure::Rate => sample.requests_per_second,
            Measure::P50 => sample.latency_us[0],
            Measure::P90 => sample.latency_us[1],
            Measure::P99 => sample.latency_us[2],
            Measure::ApplicationTime => sample
                .processor_us
                .iter()
                .find(|(tier, _)| tier == "application")
                .map_or(f64::NAN, |(_, us)| *us),
            Measure::EdgeTime => {
                let at_edge = |tier: &str| tier != "application" && tier != "agent";
                sample.processor_us.iter().filter(|(tier, _)| at_edge(tier)).map(|(_, us)| us).sum()
            }
            Measure::Memory => sample.memory.unwrap_or(f64::NAN),
        }
    }
}

/// All samples of a contender at a work.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where tiers and servers are.
    pub layout: &'static str,
    /// What was asked.
    pub work: String,
    /// Of whom.
    pub contender: &'static str,
    /// Its rounds, in order.
    pub rounds: Vec<Sample>,
    /// Their medians; what went wrong in any round.
    pub median: Sample,
    #[serde(skip)]
    key: (Layout, Work, Contender),
}

impl Row {
    pub(super) fn new(layout: Layout, work: Work, contender: Contender, rounds: Vec<Sample>) -> Self {
        let of = |value: &dyn Fn(&Sample) -> f64| median(rounds.iter().map(value).collect());
        let tiers = rounds.first().map(|sample| sample.processor_us.clone()).unwrap_or_default();
        let tier = |at: usize| of(&|sample| sample.processor_us.get(at).map_or(f64::NAN, |(_, us)| *us));
        let median = Sample {
            requests_per_second: of(&|sample| sample.requests_per_second),
            latency_us: [0, 1, 2].map(|at| of(&|sample| sample.latency_us[at])),
            processor_us: tiers.into_iter().enumerate().map(|(at, (name, _))| (name, tier(at))).collect(),
            memory: rounds.first().and_then(|sample| sample.memory),
            wrong: rounds.iter().find_map(|sample| sample.wrong.clone()),
        };
        let key = (layout, work, contender);
        let contender = contender.name();
        Row { layout: layout.name(), work: work.name(), contender, rounds, median, key }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure of this platform divided by another contender's.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Where tiers and servers are.
    pub layout: &'static str,
    /// What was asked.
    pub work: String,
    /// Of whom.
    pub of: &'static str,
    /// What is compared.
    pub measure: Measure,
    /// With whom.
    pub to: &'static str,
    /// The median of the rounds' ratios; `None`: see `wrong`.
    pub median: Option<f64>,
    /// The lowest and the highest of them.
    pub spread: (f64, f64),
    /// What it must be: at least, for rates; at most, for times.
    pub bar: Option<f64>,
    /// Whether it is; `None`: there is no bar, or no ratio.
    pub met: Option<bool>,
    /// Why there is no ratio.
    pub wrong: Option<String>,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine and what else it did.
    pub machine: String,
    /// The commit of the programs, if this is a repository.
    pub commit: String,
    /// Rounds of each work.
    pub rounds: u32,
    /// Seconds of each turn.
    pub seconds: u32,
    /// Network node and proxy node are one process, where they are on one host.
    pub edge: bool,
    /// What was measured.
    pub rows: Vec<Row>,
    /// Ratios to the contenders with a bar, and to all others in requests a second.
    pub ratios: Vec<Ratio>,
}

impl Report {
    pub(super) fn new(plan: &Plan) -> Self {
        let Plan { rounds, seconds, edge, .. } = *plan;
        let (rows, ratios) = (Vec::new(), Vec::new());
        Report { machine: machine(), commit: commit(), rounds, seconds, edge, rows, ratios }
    }

    /// Takes the ratios.
    pub(super) fn compare(&mut self) {
        let is_ours = |row: &&Row| row.key.2.is_ours();
        let mut ratios = Vec::new();
        for own in self.rows.iter().filter(is_ours) {
            let (layout, work, of) = own.key;
            let others = |row: &&Row| (row.key.0, row.key.1) == (layout, work) && row.key.2 != of;
            for other in self.rows.iter().filter(others) {
                let to = other.key.2;
                let mut measures = match of {
                    Contender::Csp => bars(layout, work, to),
                    _ if to.is_ours() => continue, // it is compared the other way round
                    Contender::CspHttp | Contender::CspHttpPlain | Contender::CspCache => {
                        bars_of_http(work, to)
                    }
                    _ => bars_of_plain(layout, work, self.edge, to),
                };
                let has_rate = !work.is_open_loop() && !work.is_memory();
                if has_rate && !measures.iter().any(|(measure, _)| *measure == Measure::Rate) {
                    measures.insert(0, (Measure::Rate, None));
                }
                ratios.extend(measures.into_iter().map(|(measure, bar)| ratio(own, other, measure, bar)));
            }
        }
        self.ratios = ratios;
    }

    /// Returns whether nothing went wrong; bars are reported and do not matter here.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.rows.iter().all(|row| row.median.wrong.is_none())
    }
}

fn ratio(own: &Row, other: &Row, measure: Measure, bar: Option<f64>) -> Ratio {
    let wrong = own.median.wrong.clone().or_else(|| other.median.wrong.clone());
    let mut rounds: Vec<f64> =
        own.rounds.iter().zip(&other.rounds).map(|(a, b)| measure.of(a) / measure.of(b)).collect();
    rounds.sort_by(f64::total_cmp);
    let at = |at: usize| rounds.get(at).copied().unwrap_or(f64::NAN);
    let median = Some(at(rounds.len() / 2)).filter(|_| wrong.is_none());
    let keeps = |bar: f64, value: f64| if measure == Measure::Rate { value >= bar } else { value <= bar };
    Ratio {
        layout: own.layout,
        work: own.work.clone(),
        of: own.contender,
        measure,
        to: other.contender,
        median,
        spread: (at(0), at(rounds.len().saturating_sub(1))),
        bar,
        met: bar.zip(median).map(|(bar, value)| keeps(bar, value)),
        wrong,
    }
}

/// Returns what is compared with a contender at a work, with the bar of each.
fn bars(layout: Layout, work: Work, to: Contender) -> Vec<(Measure, Option<f64>)> {
    use Contender::{Direct, DirectCopied, HaproxyTcp};
    use Measure::{ApplicationTime, P50, P90, P99, Rate};
    let some = |all: &[(Measure, f64)]| all.iter().map(|(measure, bar)| (*measure, Some(*bar))).collect();
    match (layout, work, to) {
        (Layout::OneHost, Work::Kept("100B", 64 | 256), HaproxyTcp) => some(&[(Rate, 1.3)]),
        (Layout::OneHost, Work::Kept("100B", 64), Direct) => some(&[(Rate, 0.85), (ApplicationTime, 0.5)]),
        (Layout::OneHost, Work::Kept("100B", 256), Direct) => some(&[(Rate, 0.85)]),
        (Layout::OneHost, Work::Kept("100B", 1), Direct) => some(&[(P50, 1.2)]),
        (Layout::OneHost, Work::Kept("16KiB", _), HaproxyTcp) => some(&[(Rate, 1.6)]),
        (Layout::OneHost, Work::Kept("16KiB", _), Direct) => some(&[(Rate, 1.0)]),
        (Layout::OneHost, Work::Kept("16KiB", _), DirectCopied) => some(&[(ApplicationTime, 0.65)]),
        (Layout::OneHost, Work::Kept("1MiB", _), HaproxyTcp) => some(&[(Rate, 1.8)]),
        (Layout::OneHost, Work::Kept("1MiB", _), Direct) => some(&[(Rate, 0.6)]),
        (Layout::OneHost, Work::Kept("1MiB", _), DirectCopied) => {
            some(&[(Rate, 0.9), (ApplicationTime, 0.6)])
        }
        (Layout::OneHost, Work::Upload(_), HaproxyTcp) => some(&[(Rate, 1.2)]),
        (Layout::OneHost, Work::Upload(_), Direct) => some(&[(Rate, 0.7)]),
        (Layout::OneHost, Work::Each(..), HaproxyTcp) => some(&[(Rate, 1.8)]),
        (Layout::OneHost, Work::Each(..), Direct) => some(&[(Rate, 0.95)]),
        (Layout::OneHost, Work::OpenLoop, HaproxyTcp) => some(&[(P90, 0.9), (P99, 1.0)]),
        (Layout::Edge, Work::Kept("1MiB", _), HaproxyTcp) => some(&[(Rate, 0.7)]),
        (Layout::Apart, Work::Kept("1MiB", _), HaproxyTcp) => some(&[(Rate, 0.5)]),
        (Layout::Edge, Work::OpenLoop, HaproxyTcp) | (Layout::Apart, Work::OpenLoop, HaproxyTcp) => {
            vec![(P90, None), (P99, None)]
        }
        (Layout::Edge, _, HaproxyTcp) => some(&[(Rate, 1.0)]),
        (Layout::Apart, _, HaproxyTcp) => some(&[(Rate, 0.8)]),
        (_, Work::OpenLoop, _) => vec![(P90, None), (P99, None)],
        _ => Vec::new(),
    }
}

/// As [`bars`], of a plain server behind this platform, which `edge` says is one process at the edge.
fn bars_of_plain(layout: Layout, work: Work, edge: bool, to: Contender) -> Vec<(Measure, Option<f64>)> {
    match (layout, to, edge) {
        _ if work.is_open_loop() => vec![(Measure::P90, None), (Measure::P99, None)],
        (Layout::Edge, Contender::HaproxyTcp, true) => {
            vec![(Measure::Rate, Some(1.0)), (Measure::P50, Some(1.0))]
        }
        (Layout::Edge, Contender::HaproxyTcp, false) => {
            vec![(Measure::Rate, Some(0.75)), (Measure::P50, Some(1.5))]
        }
        _ => Vec::new(),
    }
}

/// As [`bars`], of requests that this platform reads.
fn bars_of_http(work: Work, to: Contender) -> Vec<(Measure, Option<f64>)> {
    match (work, to) {
        (Work::OpenLoop, Contender::HaproxyHttp) => vec![(Measure::P90, None), (Measure::P99, Some(1.0))],
        _ if work.is_open_loop() => vec![(Measure::P90, None), (Measure::P99, None)],
        (Work::Kept("100B" | "16KiB", 64), Contender::HaproxyHttp) => {
            vec![
                (Measure::Rate, Some(1.3)),
                (Measure::EdgeTime, Some(0.8)),
                (Measure::ApplicationTime, Some(0.5)),
            ]
        }
        (Work::Http2(..), Contender::HaproxyHttp) => vec![(Measure::Rate, Some(0.8))],
        (Work::Handshakes(_), Contender::NginxHttp) => vec![(Measure::Rate, Some(1.0))],
        (Work::TlsKept("1MiB", _), Contender::NginxHttp) => vec![(Measure::Rate, Some(0.9))],
        (Work::Memory(_), Contender::HaproxyHttp) => vec![(Measure::Memory, Some(1.0))],
        (Work::Cached("1KiB", _), Contender::Varnish) => {
            vec![(Measure::Rate, Some(1.0)), (Measure::EdgeTime, None)]
        }
        (Work::Memory(_), _) => vec![(Measure::Memory, None)],
        _ => Vec::new(),
    }
}

impl Ratio {
    /// Returns it for a cell of a table: the ratio, its measure unless that is the rate, its bar.
    pub(super) fn short(&self) -> String {
        let Some(median) = self.median else { return "no ratio".to_owned() };
        let name = if self.measure == Measure::Rate { "" } else { self.measure.name() };
        let bar = self.bar_and_sign().map_or(String::new(), |bar| format!(" ({bar})"));
        format!("{name} {median:.2}{bar}").trim_start().to_owned()
    }

    /// Returns the bar as `≥ 1.3`, and whether it is met.
    fn bar_and_sign(&self) -> Option<String> {
        let sign = if self.measure == Measure::Rate { '≥' } else { '≤' };
        let met = self.met.map_or("", |met| if met { " ✓" } else { " ✗" });
        self.bar.map(|bar| format!("{sign} {bar}{met}"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, to) = (self.measure.name(), self.to);
        if self.of != Contender::Csp.name() {
            write!(f, "{}: ", self.of)?;
        }
        match (&self.wrong, self.median) {
            (Some(wrong), _) => write!(f, "{name} of {to}: no ratio ({wrong})")?,
            (None, Some(median)) => {
                let (low, high) = self.spread;
                write!(f, "{name} of {to}: {median:.2} ({low:.2} to {high:.2})")?;
            }
            (None, None) => write!(f, "{name} of {to}: no ratio")?,
        }
        self.bar_and_sign().map_or(Ok(()), |bar| write!(f, ", bar {bar}"))
    }
}

/// Describes the machine and its load.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches([' ', '\t', ':']).to_owned()))
    };
    let model = field(&cpus, "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or_default();
    format!("{count} × {model}, {memory} of memory, Linux {}, load before the run {load}", kernel.trim())
}

fn commit() -> String {
    let git = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    const WRK: &str = "Running 3s test @ http://10.76.0.100:80/100B
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   826.26us  171.46us   6.36ms   88.68%
    Req/Sec    77.48k     3.21k   82.06k    80.00%
  Latency Distribution
     50%  806.00us
     75%    0.88ms
     90%    0.96ms
     99%    1.35ms
  231389 requests in 3.00s, 74.36MB read
Requests/sec:  77104.88
Transfer/sec:     24.78MB
";

    fn row(contender: Contender, rates: &[f64], wrong: Option<&str>) -> Row {
        let sample = |rate: &f64| Sample {
            requests_per_second: *rate,
            latency_us: [1.0; 3],
            processor_us: vec![("application".to_owned(), 1e6 / rate)],
            memory: None,
            wrong: wrong.map(str::to_owned),
        };
        Row::new(Layout::OneHost, Work::KEPT_SMALL, contender, rates.iter().map(sample).collect())
    }

    #[test]
    fn a_report_of_wrk_is_read() {
        let sample = Sample::of_wrk(WRK).unwrap();
        assert_eq!((sample.requests_per_second, sample.latency_us), (77104.88, [806.0, 960.0, 1350.0]));
        let failed = WRK
            .replace("Requests/sec", "  Socket errors: connect 0, read 1, write 0, timeout 0\nRequests/sec");
        assert!(Sample::of_wrk(&failed).unwrap().wrong.unwrap().starts_with("Socket errors"));
        assert!(Sample::of_wrk("unable to connect").is_err());
    }

    #[test]
    fn a_plain_server_behind_this_platform_has_bars_of_its_own() {
        let at_the_edge = |(contender, rate): (Contender, f64)| {
            let row = row(contender, &[rate], None);
            Row { key: (Layout::Edge, row.key.1, contender), ..row }
        };
        for (edge, met) in [(true, false), (false, true)] {
            let rows = [(Contender::Csp, 120.0), (Contender::CspPlain, 90.0), (Contender::HaproxyTcp, 100.0)];
            let rows = rows.map(at_the_edge).to_vec();
            let (machine, commit) = (String::new(), String::new());
            let mut report =
                Report { machine, commit, rounds: 1, seconds: 1, edge, rows, ratios: Vec::new() };
            report.compare();
            let of_plain: Vec<&Ratio> =
                report.ratios.iter().filter(|ratio| ratio.of == Contender::CspPlain.name()).collect();
            let rate = of_plain.iter().find(|ratio| ratio.measure == Measure::Rate).unwrap();
            assert_eq!((of_plain.len(), rate.to, rate.met), (2, Contender::HaproxyTcp.name(), Some(met)));
            assert!(rate.to_string().starts_with("CSP, plain server: requests/s of HAProxy TCP: 0.90"));
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_refused_where_something_failed() {
        let own = row(Contender::Csp, &[100.0, 50.0, 130.0], None);
        let other = row(Contender::Direct, &[100.0, 50.0, 100.0], None);
        let taken = ratio(&own, &other, Measure::Rate, Some(0.85));
        assert_eq!((taken.median, taken.spread, taken.met), (Some(1.0), (1.0, 1.3), Some(true)));
        let taken = ratio(&own, &other, Measure::ApplicationTime, Some(0.5));
        assert_eq!((taken.median, taken.met), (Some(1.0), Some(false)));
        let failed = row(Contender::Direct, &[100.0; 3], Some("Non-2xx or 3xx responses: 3"));
        let refused = ratio(&own, &failed, Measure::Rate, Some(0.85));
        assert_eq!((refused.median, refused.met), (None, None));
        assert!(refused.to_string().contains("no ratio (Non-2xx"), "{refused}");
        assert_eq!(
            (taken.short().as_str(), refused.short().as_str()),
            ("application's processor time 1.00 (≤ 0.5 ✗)", "no ratio")
        );
    }
}
