//! The SAN's figures: runs csp-perf and the programs it is compared with, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

/// Sizes of messages, in bytes.
const SIZES: [u32; 4] = [64, 1024, 16 * 1024, 64 * 1024];

/// Sizes of the replies of Fig. 2, whose requests have 256 bytes.
const REPLIES: [u32; 9] = [1, 64, 256, 1024, 4096, 8192, 16_384, 32_768, 65_536];

/// Directory of the C sources of these programs, relative to the root of the tree.
const PEERS: &str = "tests/performance/peers";

/// Name of the bare ring with empty messages.
const ONE_LINE: &str = "one cache line";

/// Port on the loopback interface for these programs.
const PORT: u16 = 7391;

/// Settings of the measurement.
pub struct Settings {
    /// The folder of csp-perf.
    pub binaries: PathBuf,
    /// Length of the measurement of each point.
    pub seconds: f64,
    /// Runs of each point; the median counts.
    pub runs: u32,
}

/// One measured point. Times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// `latency`, `transaction` or `bandwidth`.
    pub test: &'static str,
    /// The transport.
    pub over: String,
    /// `poll` or `block`.
    pub wait: String,
    /// Bytes of the message, or of the reply.
    pub bytes: u32,
    /// Half a round trip, a transaction, or the time between two messages.
    pub time_us: f64,
    /// Processor time of both ends for each, if the program reports it.
    pub cpu_us: Option<f64>,
}

/// A promised ratio.
pub struct Promise {
    /// Its description.
    pub what: String,
    /// The bound.
    pub bound: f64,
    /// What was measured.
    pub measured: f64,
    /// Whether it was kept.
    pub holds: bool,
}

/// All results.
pub struct Figures {
    /// Every point, the median of its runs.
    pub points: Vec<Point>,
    /// The promises about them.
    pub promises: Vec<Promise>,
}

/// Measures everything.
pub fn measure(settings: &Settings) -> Result<Figures> {
    let folder = std::env::temp_dir().join(format!("csp-san-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let points = Runner { settings, folder: &folder, points: Vec::new() }.all();
    let _ = std::fs::remove_dir_all(&folder);
    let points = medians(points?);
    let promises = promises(&points);
    Ok(Figures { points, promises })
}

struct Runner<'a> {
    settings: &'a Settings,
    folder: &'a Path,
    points: Vec<Point>,
}

impl Runner<'_> {
    fn all(mut self) -> Result<Vec<Point>> {
        let sizes = SIZES.map(|size| size.to_string()).join(",");
        let replies = REPLIES.map(|size| size.to_string()).join(",");
        let local = "local shm --vs unix,tcp,ucx --cpus 0,1 --output json";
        for run in 1..=self.settings.runs {
            eprintln!("run {run} of {}: latency", self.settings.runs);
            self.csp_perf("latency", &format!("{local} --sizes {sizes}"))?;
            self.veth(&sizes)?;
            for (name, flags) in [("raw_ring", &[][..]), ("zmq_ipc", &["-lzmq"][..])] {
                self.peer(name, flags)?;
            }
            self.ucx_perftest()?;
            eprintln!("run {run}: transactions");
            let fig2 =
                format!("local shm --vs tcp --cpus 0,1 --output json --test transaction --sizes {replies}");
            self.csp_perf("transaction", &fig2)?;
            eprintln!("run {run}: bandwidth");
            self.csp_perf("bandwidth", &format!("{local} --test bandwidth --wait poll --sizes {sizes}"))?;
        }
        Ok(self.points)
    }

    /// Adds a point to those of the same kind of other runs.
    fn keep(&mut self, point: Point) {
        self.points.push(point);
    }

    fn csp_perf(&mut self, test: &'static str, words: &str) -> Result<()> {
        let seconds = format!("--seconds={}", self.settings.seconds);
        let program = self.settings.binaries.join("csp-perf");
        let output = Command::new(program).args(words.split(' ')).arg(seconds).output()?;
        self.keep_records(test, &output, None)
    }

    fn keep_records(
        &mut self,
        test: &'static str,
        output: &std::process::Output,
        name: Option<&str>,
    ) -> Result<()> {
        ensure!(output.status.success(), "csp-perf: {}", String::from_utf8_lossy(&output.stderr));
        let records: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        for record in &records {
            self.keep(point_of(test, record, name).context("csp-perf's record lacks a field")?);
        }
        Ok(())
    }

    /// Measures the kernel's TCP between two network namespaces.
    fn veth(&mut self, sizes: &str) -> Result<()> {
        let hosts = VethPair::new()?;
        let program = self.settings.binaries.join("csp-perf").display().to_string();
        let address = format!("tcp:{}:{PORT}", VethPair::FAR);
        let mut server =
            hosts.in_far(&[&program, "serve", &address, "--cpu", "1"]).stdout(Stdio::piped()).spawn()?;
        let _ended = Ended(&mut server);
        // Connecting is tried until the server listens.
        let seconds = format!("--seconds={}", self.settings.seconds);
        let words = ["run", &address, "--cpus", "0", "--sizes", sizes, "--output", "json", &seconds];
        for _ in 0..100 {
            let output = hosts.in_near(&[&[program.as_str()], &words[..]].concat()).output()?;
            if output.status.success() {
                return self.keep_records("latency", &output, Some("tcp over veth"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("no connection over the veth pair")
    }

    /// Compiles and runs a C program.
    fn peer(&mut self, name: &str, flags: &[&str]) -> Result<()> {
        let program = self.folder.join(name);
        if !program.exists() {
            let source = Path::new(PEERS).join(format!("{name}.c"));
            let status =
                Command::new("gcc").arg("-O2").arg("-o").arg(&program).arg(source).args(flags).status();
            ensure!(status.context("gcc")?.success(), "{name}.c does not compile");
        }
        let raw = name == "raw_ring";
        let wait = if raw { "poll" } else { "block" };
        let rounds = (self.settings.seconds * if raw { 20_000.0 } else { 10_000.0 }) as u32;
        // Size 0: the time to move one cache line on this machine, a lower bound for messages of 64 bytes.
        for size in SIZES.into_iter().chain(raw.then_some(0)) {
            let output =
                Command::new(&program).args([size, rounds.max(100)].map(|n| n.to_string())).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let nanos: f64 = text.trim().parse().with_context(|| format!("{name} printed {text:?}"))?;
            let (over, bytes) = match size {
                0 => (ONE_LINE.to_owned(), SIZES[0]),
                _ => (name.replace('_', " "), size),
            };
            let (wait, time_us) = (wait.to_owned(), nanos / 1e3);
            self.keep(Point { test: "latency", over, wait, bytes, time_us, cpu_us: None });
        }
        Ok(())
    }

    fn ucx_perftest(&mut self) -> Result<()> {
        for size in SIZES {
            let command = |cpu: &str| {
                let mut command = Command::new("taskset");
                command.args(["-c", cpu, "ucx_perftest", "-p", &PORT.to_string()]);
                command.env("UCX_TLS", "tcp").stderr(Stdio::null());
                command
            };
            let mut server = command("1").stdout(Stdio::null()).spawn().context("ucx_perftest")?;
            let _ended = Ended(&mut server);
            let rounds = (self.settings.seconds * 20_000.0).max(1000.0) as u32;
            let (size_word, rounds) = (size.to_string(), rounds.to_string());
            let words = ["127.0.0.1", "-t", "ucp_am_lat", "-s", &size_word, "-n", &rounds, "-f"];
            let mut found = None;
            for _ in 0..100 {
                let output = command("0").args(words).output()?;
                found = output.status.success().then(|| last_latency(&output.stdout)).flatten();
                if found.is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let (over, wait) = ("ucx_perftest".to_owned(), "poll".to_owned());
            let time_us = found.context("ucx_perftest reported no latency")?;
            self.keep(Point { test: "latency", over, wait, bytes: size, time_us, cpu_us: None });
        }
        Ok(())
    }
}

/// Returns the median of all points of a kind, in the order in which the kinds were first measured. Not the
/// best point: if the hypervisor at times runs both processors on one core, the best point reflects that.
fn medians(points: Vec<Point>) -> Vec<Point> {
    let mut kinds: Vec<Vec<Point>> = Vec::new();
    let kind = |p: &Point| (p.test, p.over.clone(), p.wait.clone(), p.bytes);
    for point in points {
        match kinds.iter_mut().find(|kept| kept.first().is_some_and(|first| kind(first) == kind(&point))) {
            Some(kept) => kept.push(point),
            None => kinds.push(vec![point]),
        }
    }
    let middle = |mut kept: Vec<Point>| {
        kept.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
        kept.swap_remove(kept.len() / 2)
    };
    kinds.into_iter().map(middle).collect()
}

fn point_of(test: &'static str, record: &Value, name: Option<&str>) -> Option<Point> {
    let number = |name: &str| record[name].as_f64();
    let time_us = match test {
        "latency" => number("half_round_trip_ns")? / 1e3,
        "transaction" => record["transaction_ns"]["p50"].as_f64()? / 1e3,
        _ => 1e6 / number("messages_per_second")?,
    };
    let bytes = number("reply_bytes").or(number("request_bytes"))? as u32;
    let over = name.or(record["transport"].as_str())?.to_owned();
    let wait = record["waiting"].as_str()?.to_owned();
    let cpu_us = Some((number("client_cpu_ns")? + number("server_cpu_ns")?) / 1e3);
    Some(Point { test, over, wait, bytes, time_us, cpu_us })
}

/// Returns the last typical latency that ucx_perftest reports, in microseconds: the second number of its last
/// line of numbers.
fn last_latency(output: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(output);
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse::<f64>().ok()).collect::<Option<Vec<_>>>();
    text.lines().filter_map(numbers).rfind(|line| line.len() >= 3)?.get(1).copied()
}

/// A process that is terminated when dropped.
struct Ended<'a>(&'a mut Child);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two network namespaces joined by a veth pair, removed when dropped.
struct VethPair {
    near: String,
    far: String,
}

impl VethPair {
    const FAR: &str = "10.79.0.2";

    fn new() -> Result<Self> {
        let id = std::process::id();
        let pair = VethPair { near: format!("csp-sb-{id}-a"), far: format!("csp-sb-{id}-b") };
        let (near, far) = (&pair.near, &pair.far);
        for line in [
            format!("netns add {near}"),
            format!("netns add {far}"),
            format!("-n {near} link add eth0 type veth peer name eth0 netns {far}"),
            format!("-n {near} address add 10.79.0.1/24 dev eth0"),
            format!("-n {far} address add {}/24 dev eth0", Self::FAR),
            format!("-n {near} link set eth0 up"),
            format!("-n {far} link set eth0 up"),
        ] {
            let status = Command::new("ip").args(line.split(' ')).status().context("ip")?;
            ensure!(status.success(), "ip {line} failed (root is needed)");
        }
        Ok(pair)
    }

    fn command(namespace: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).args(words);
        command
    }

    fn in_near(&self, words: &[&str]) -> Command {
        Self::command(&self.near, words)
    }

    fn in_far(&self, words: &[&str]) -> Command {
        Self::command(&self.far, words)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

/// Finds points by their kind.
struct Lookup<'a>(BTreeMap<(&'a str, &'a str, &'a str, u32), &'a Point>);

impl<'a> Lookup<'a> {
    fn new(points: &'a [Point]) -> Self {
        Lookup(points.iter().map(|p| ((p.test, p.over.as_str(), p.wait.as_str(), p.bytes), p)).collect())
    }

    fn time(&self, test: &str, over: &str, wait: &str, bytes: u32) -> f64 {
        self.0.get(&(test, over, wait, bytes)).map_or(f64::NAN, |p| p.time_us)
    }

    fn cpu(&self, test: &str, over: &str, wait: &str, bytes: u32) -> f64 {
        self.0.get(&(test, over, wait, bytes)).and_then(|p| p.cpu_us).unwrap_or(f64::NAN)
    }
}

fn promises(points: &[Point]) -> Vec<Promise> {
    let look = Lookup::new(points);
    let at_most =
        |what: String, measured: f64, bound: f64| Promise { what, bound, measured, holds: measured <= bound };
    let at_least =
        |what: String, measured: f64, bound: f64| Promise { what, bound, measured, holds: measured >= bound };
    let mut all = vec![at_most(
        "shm polling, 64 bytes, half round trip in us".to_owned(),
        look.time("latency", "shm", "poll", 64),
        0.15,
    )];
    for size in SIZES {
        let of = |over| look.time("latency", over, "poll", size);
        all.push(at_most(format!("shm / raw ring, {size} bytes"), of("shm") / of("raw ring"), 2.0));
        all.push(at_most(format!("ucx / ucx_perftest, {size} bytes"), of("ucx") / of("ucx_perftest"), 1.2));
    }
    for reply in REPLIES {
        for wait in ["poll", "block"] {
            let time = |over| look.time("transaction", over, wait, reply);
            let cpu = |over| look.cpu("transaction", over, wait, reply);
            let what =
                |what| format!("Fig. 2, reply of {reply} bytes: {what}, kernel TCP / shm, both {wait}");
            all.push(at_least(what("latency"), time("tcp") / time("shm"), 3.0));
            all.push(at_least(what("processor time"), cpu("tcp") / cpu("shm"), 5.0));
        }
    }
    all
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = [
            ("latency", "half round trip, us"),
            ("transaction", "Fig. 2: request of 256 bytes, transaction, us (processor time of both ends)"),
            ("bandwidth", "messages one way: us between two (MB/s)"),
        ];
        for (test, title) in titles {
            let points: Vec<_> = self.points.iter().filter(|p| p.test == test).collect();
            let mut sizes: Vec<u32> = points.iter().map(|p| p.bytes).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let mut rows: Vec<(&str, &str)> = Vec::new();
            for point in &points {
                let row = (point.over.as_str(), point.wait.as_str());
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
            write!(f, "\n{title}\n{:<22}", "over, waiting")?;
            sizes.iter().try_for_each(|size| write!(f, "{:>16}", format!("{size} B")))?;
            for (over, wait) in rows {
                write!(f, "\n{:<22}", format!("{over}, {wait}"))?;
                for &size in &sizes {
                    let point = points
                        .iter()
                        .find(|p| (p.over.as_str(), p.wait.as_str(), p.bytes) == (over, wait, size));
                    write!(f, "{:>16}", point.map_or(String::new(), |p| cell(p)))?;
                }
            }
            writeln!(f)?;
        }
        writeln!(f, "\npromises")?;
        for promise in &self.promises {
            let mark = if promise.holds { "holds " } else { "BROKEN" };
            writeln!(f, "  {mark} {:<75} {:>7.2} (bound {})", promise.what, promise.measured, promise.bound)?;
        }
        Ok(())
    }
}

fn cell(point: &Point) -> String {
    match (point.test, point.cpu_us) {
        ("transaction", Some(cpu)) => format!("{:.2} ({cpu:.2})", point.time_us),
        ("bandwidth", _) => format!("{:.2} ({:.0})", point.time_us, f64::from(point.bytes) / point.time_us),
        _ => format!("{:.3}", point.time_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_without_figures_is_broken() {
        assert!(promises(&[]).iter().all(|promise| !promise.holds));
        let point = |over: &str, time_us| Point {
            test: "latency",
            over: over.to_owned(),
            wait: "poll".to_owned(),
            bytes: 64,
            time_us,
            cpu_us: None,
        };
        let held = promises(&[point("shm", 0.14), point("raw ring", 0.1)]);
        assert_eq!(held.iter().filter(|promise| promise.holds).count(), 2);
    }

    #[test]
    fn the_median_of_each_kind_counts() {
        let point = |over: &str, time_us| Point {
            test: "latency",
            over: over.to_owned(),
            wait: "poll".to_owned(),
            bytes: 64,
            time_us,
            cpu_us: None,
        };
        let kept = medians(vec![
            point("shm", 3.0),
            point("tcp", 9.0),
            point("shm", 0.1),
            point("shm", 2.0),
            point("tcp", 8.0),
            point("tcp", 7.0),
        ]);
        let kept: Vec<_> = kept.iter().map(|p| (p.over.as_str(), p.time_us)).collect();
        assert_eq!(kept, [("shm", 2.0), ("tcp", 8.0)]);
    }

    #[test]
    fn the_last_line_of_numbers_is_what_ucx_perftest_found() {
        let output = b"| Stage | x |\n 100  5.1 5.2 5.3 6 7 8 9\n1000  4.9 5.0 5.0 6 7 8 9\n";
        assert_eq!(last_latency(output), Some(4.9));
        assert_eq!(last_latency(b"error\n"), None);
    }
}
