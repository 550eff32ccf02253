//! `bench`: half round-trip times of the verbs provider, compared with the reference programs of rdma-core,
//! perftest, rsockets and the kernel's TCP in the same guest.
//!
//! Each end has a processor of its own, and both use the same device. All programs run in turn, in short
//! batches, and the best batch of each point counts, since the processor is emulated and the host does other
//! work. The times are meaningless outside the guest; the ratios are not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use csp_cluster::demo::step;
use csp_cluster::wait_until;

use crate::kernel::Kernel;
use crate::{Fleet, Guest, Output, Program, Sizes};

const SIZES: Sizes = Sizes { memory_mib: 1024, cpus: 2, mtu: 1500 };
/// Lengths of the messages, in bytes.
const LENGTHS: [u32; 4] = [64, 1 << 10, 16 << 10, 64 << 10];
/// Time limit of one measurement.
const DEADLINE: Duration = Duration::from_secs(120);
/// Largest allowed ratio of the verbs provider's time to that of ibv_rc_pingpong, both polling.
const BOUND: f64 = 1.2;
/// The ports of csp-perf's server.
const PORTS: [(&str, u16); 2] = [("verbs", 7200), ("tcp", 7201)];
/// Batches of a point per run.
const BATCHES: usize = 6;
/// Runs a reference program's server, and its client once the server listens, each on a processor of its own.
const PAIR: &str = "for batch in $(seq $batches); do
      taskset -c 1 $server > /tmp/server 2>&1 & tries=0
      until taskset -c 0 $client > /tmp/client 2>&1; do
        tries=$((tries + 1)); [ $tries -lt 50 ] || { cat /tmp/server /tmp/client; exit 1; }; sleep 0.1
      done
      cat /tmp/client; wait
    done";

const PINGPONG: &str = "ibv_rc_pingpong";
const VERBS: &str = "csp verbs";

/// The settings of a measurement.
pub struct Settings {
    /// The directory of csp-perf.
    pub binaries: PathBuf,
    /// Length of a batch of csp-perf. The other programs run a number of rounds that takes about as long.
    pub seconds: f64,
    /// Runs of each point, of six batches each.
    pub runs: u32,
}

/// One measured point.
#[derive(Clone, Debug)]
pub struct Point {
    /// The program or provider.
    pub over: &'static str,
    /// `poll` or `block`.
    pub wait: &'static str,
    /// Length of the message in bytes.
    pub bytes: u32,
    /// Half a round trip in microseconds: the mean of the best batch.
    pub time_us: f64,
}

/// The results.
#[derive(Debug)]
pub struct Figures {
    /// Every point.
    pub points: Vec<Point>,
}

/// Measures everything.
///
/// # Errors
/// The guest does not boot, or a measurement fails; the error contains the output of the programs.
pub fn run(kernel: &Kernel, settings: &Settings) -> Result<Figures> {
    let mut fleet = step("a guest (Soft-RoCE on an emulated processor)", || Fleet::boot(kernel, 1, SIZES))?;
    let guest = fleet.guests.first_mut().context("a guest was booted")?;
    let perf = settings.binaries.join("csp-perf");
    let perf = perf.canonicalize().with_context(|| perf.display().to_string())?.display().to_string();
    let _server = step("csp-perf serves", || serve(guest, &perf))?;
    let mut figures = Figures { points: Vec::new() };
    for run in 1..=settings.runs {
        for bytes in LENGTHS {
            step(&format!("run {run} of {}: {bytes} bytes", settings.runs), || {
                Bench { guest, perf: &perf, seconds: settings.seconds, bytes }.all(&mut figures)
            })?;
        }
    }
    Ok(figures)
}

/// Starts csp-perf's server over verbs and TCP.
fn serve(guest: &mut Guest, perf: &str) -> Result<Program> {
    let places = PORTS.map(|(name, port)| format!("{name}:{}:{port}", guest.address()));
    let server = guest.start(&[perf, "serve", &places[0], &places[1], "--cpu", "1"], Output::Memory)?;
    wait_until("csp-perf serve", DEADLINE, || server.captured().contains("ready").then_some(()))
        .with_context(|| server.captured())?;
    Ok(server)
}

/// Measurements of one length.
struct Bench<'a> {
    guest: &'a mut Guest,
    perf: &'a str,
    seconds: f64,
    bytes: u32,
}

impl Bench<'_> {
    fn all(&mut self, figures: &mut Figures) -> Result<()> {
        let bytes = self.bytes;
        let mut keep = |over, wait, time: Result<f64>| {
            let time_us = time.with_context(|| format!("{over}, {wait}, {bytes} bytes"))?;
            figures.keep(Point { over, wait, bytes, time_us });
            anyhow::Ok(())
        };
        for wait in ["poll", "block"] {
            // Programs that are compared run one after the other, so that the machine is in the same state
            // for both.
            keep(PINGPONG, wait, self.pingpong(wait))?;
            keep(VERBS, wait, self.csp(VERBS, wait))?;
            keep("ib_send_lat", wait, self.perftest("ib_send_lat", wait))?;
            if wait == "poll" {
                keep("ib_write_lat", wait, self.perftest("ib_write_lat", wait))?;
            }
            keep("rsockets", wait, self.rsockets(wait))?;
            keep("kernel TCP", wait, self.csp("kernel TCP", wait))?;
        }
        Ok(())
    }

    fn csp(&mut self, over: &str, wait: &str) -> Result<f64> {
        let (kind, port) = if over == VERBS { PORTS[0] } else { PORTS[1] };
        let place = format!("{kind}:{}:{port}", self.guest.address());
        let (sizes, seconds) = (vec![self.bytes.to_string(); BATCHES].join(","), self.seconds.to_string());
        let words = ["run", &place, "--sizes", &sizes, "--wait", wait, "--seconds", &seconds];
        let command = [&[self.perf], &words[..], &["--cpus", "0", "--output", "json"]].concat();
        let text = self.guest.run(&command, DEADLINE)?;
        let json: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let rates =
            json.as_array().into_iter().flatten().filter_map(|batch| batch["messages_per_second"].as_f64());
        best(rates.map(|rate| 1e6 / rate / 2.0)).with_context(|| text.clone())
    }

    fn pingpong(&mut self, wait: &str) -> Result<f64> {
        let events = if wait == "block" { " -e" } else { "" };
        let program =
            format!("ibv_rc_pingpong -d rxe0 -g 1 -n {} -s {}{events}", self.rounds(wait), self.bytes);
        let text = self.pair(&program, &format!("{program} 127.0.0.1"))?;
        let lines = text.lines().filter(|line| line.contains("usec/iter"));
        let trips = lines.filter_map(|line| line.split_whitespace().rev().nth(1)?.parse::<f64>().ok());
        best(trips.map(|trip| trip / 2.0)).with_context(|| text.clone())
    }

    fn perftest(&mut self, name: &str, wait: &str) -> Result<f64> {
        let events = if wait == "block" { " -e" } else { "" };
        let program = format!("{name} -d rxe0 -x 1 -F -n {} -s {}{events}", self.rounds(wait), self.bytes);
        let text = self.pair(&program, &format!("{program} 127.0.0.1"))?;
        best(means_of_perftest(&text)).with_context(|| text.clone())
    }

    fn rsockets(&mut self, wait: &str) -> Result<f64> {
        // With `n` rstream polls, since it must not block.
        let test = if wait == "block" { "b" } else { "n" };
        let program = format!("rstream -T {test} -S {} -I {} -C 1", self.bytes, self.rounds(wait));
        let address = self.guest.address();
        let text = self.pair(&format!("{program} -b {address}"), &format!("{program} -s {address}"))?;
        // The last word of a line of figures; that of the heading is not a number.
        let last = |line: &str| line.split_whitespace().next_back()?.parse().ok();
        best(text.lines().filter_map(last)).with_context(|| text.clone())
    }

    /// Returns a number of round trips that takes about as long as a batch of csp-perf.
    fn rounds(&self, wait: &str) -> u32 {
        let each_us = f64::from(self.bytes) / 40.0 + if wait == "block" { 400.0 } else { 100.0 };
        (self.seconds * 1e6 / each_us) as u32
    }

    /// Runs batches of a reference program's server and client. Returns the output of the client.
    fn pair(&mut self, server: &str, client: &str) -> Result<String> {
        let script = format!("server='{server}' client='{client}' batches={BATCHES}\n{PAIR}");
        self.guest.run(&["/bin/sh", "-ec", &script], DEADLINE)
    }
}

/// Returns the shortest time. `None` if there is none.
fn best(times: impl Iterator<Item = f64>) -> Option<f64> {
    times.filter(|time| time.is_finite()).min_by(f64::total_cmp)
}

/// Returns the means that perftest's latency tests print: `t_avg`, the sixth number of a line of numbers.
fn means_of_perftest(text: &str) -> impl Iterator<Item = f64> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().filter_map(numbers).filter_map(|line| line.get(5).copied())
}

impl Figures {
    /// Records a point, unless an earlier run had a better one.
    fn keep(&mut self, point: Point) {
        let same = |p: &&mut Point| (p.over, p.wait, p.bytes) == (point.over, point.wait, point.bytes);
        match self.points.iter_mut().find(same) {
            Some(best) if best.time_us <= point.time_us => {}
            Some(best) => *best = point,
            None => self.points.push(point),
        }
    }

    fn time(&self, over: &str, wait: &str, bytes: u32) -> Option<f64> {
        let found = self.points.iter().find(|p| (p.over, p.wait, p.bytes) == (over, wait, bytes));
        found.map(|point| point.time_us)
    }

    /// Returns the ratios of the verbs provider's time to ibv_rc_pingpong's, by length.
    fn ratios(&self, wait: &str) -> [f64; LENGTHS.len()] {
        let of = |over, bytes| self.time(over, wait, bytes).unwrap_or(f64::NAN);
        LENGTHS.map(|bytes| of(VERBS, bytes) / of(PINGPONG, bytes))
    }

    /// Returns whether the verbs provider is within its bound at every length.
    pub fn holds(&self) -> bool {
        self.ratios("poll").iter().all(|&ratio| ratio <= BOUND)
    }

    /// Writes all points as JSON. Times are in microseconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let point = |p: &Point| serde_json::json!({"over": p.over, "wait": p.wait, "bytes": p.bytes, "time_us": p.time_us});
        let points: Vec<_> = self.points.iter().map(point).collect();
        std::fs::write(path, serde_json::to_string_pretty(&points)?)
            .with_context(|| path.display().to_string())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nhalf round trip in one guest, us\n{:<22}", "over, waiting")?;
        LENGTHS.iter().try_for_each(|bytes| write!(f, "{:>12}", format!("{bytes} B")))?;
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for row in self.points.iter().map(|point| (point.over, point.wait)) {
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        for (over, wait) in rows {
            write!(f, "\n{:<22}", format!("{over}, {wait}"))?;
            for bytes in LENGTHS {
                let time = self.time(over, wait, bytes);
                write!(f, "{:>12}", time.map_or(String::new(), |time| format!("{time:.1}")))?;
            }
        }
        writeln!(f)?;
        for wait in ["poll", "block"] {
            write!(f, "{:<22}", format!("verbs / pingpong, {wait}"))?;
            self.ratios(wait).iter().try_for_each(|ratio| write!(f, "{ratio:>12.2}"))?;
            writeln!(f)?;
        }
        let mark = if self.holds() { "holds" } else { "BROKEN" };
        writeln!(f, "\nbound: verbs <= {BOUND} x ibv_rc_pingpong at every size, polling: {mark}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_applies_to_every_size() {
        let mut figures = Figures { points: Vec::new() };
        assert!(!figures.holds(), "nothing was measured");
        for bytes in LENGTHS {
            for (over, time_us) in [(PINGPONG, 10.0), (VERBS, 15.0), (VERBS, 11.0), (VERBS, 13.0)] {
                figures.keep(Point { over, wait: "poll", bytes, time_us });
            }
        }
        assert!(figures.holds(), "the best run of each point counts");
        assert_eq!(figures.points.len(), 2 * LENGTHS.len());
        let text = figures.to_string();
        assert!(text.contains("csp verbs, poll               11.0"), "{text}");
        assert!(text.ends_with("every size, polling: holds\n"), "{text}");
        figures.points[7].time_us = 12.1;
        assert!(!figures.holds());
    }

    #[test]
    fn perftests_mean_is_found() {
        let text = " #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%\n 64 500 10.1 99.0 11.0 12.5 1.0 20.0 90.0\n---\n";
        let again = text.replace("12.5", "11.5") + &text.replace("12.5", "inf");
        assert_eq!(best(means_of_perftest(&format!("{text}{again}"))), Some(11.5));
        assert_eq!(best(means_of_perftest("Couldn't connect\n")), None);
    }
}
