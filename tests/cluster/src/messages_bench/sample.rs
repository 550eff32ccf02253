//! One load: clients on libzmq, and what they and the broker needed.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Host;
use crate::process::cpu_ns_of_all;

/// How messages are distributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// PUB to SUB.
    Publish,
    /// PUSH to PULL.
    Push,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::Publish => "publish",
            Pattern::Push => "push",
        })
    }
}

/// A load on one broker.
#[derive(Debug)]
pub struct Load<'a> {
    /// `zmq_load`.
    pub program: &'a Path,
    /// The clients' host.
    pub client: &'a Host,
    /// How messages are distributed.
    pub pattern: Pattern,
    /// Where messages are sent to, and received from.
    pub endpoints: [String; 2],
    /// Number of receivers.
    pub receivers: u32,
    /// Bytes of a message.
    pub size: u32,
    /// Messages a second; 0 is as fast as receivers permit.
    pub rate: f64,
    /// Seconds.
    pub seconds: u32,
}

/// What one load has shown. Processor times are in nanoseconds for each message that was sent.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sample {
    /// Messages sent a second.
    pub rate: f64,
    /// Copies that did not arrive.
    pub lost: f64,
    /// Copies that arrived after a later one.
    pub disordered: f64,
    /// Median of the time from send to receive, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
    /// Processor time of the broker's processes, kernel's included.
    pub broker_ns: f64,
    /// Processor time of the whole machine without that of the clients' processes.
    pub machine_ns: f64,
}

impl Load<'_> {
    /// Runs clients to their end; `broker_cpu` returns the broker's processor time in nanoseconds.
    pub fn run(&self, broker_cpu: impl Fn() -> Result<u64>) -> Result<Sample> {
        let pattern = self.pattern.to_string();
        let [to, from] = &self.endpoints;
        let mut receiver = self.start(&["receive", &pattern, from, &self.receivers.to_string()])?;
        let (size, rate, seconds) = (self.size.to_string(), self.rate.to_string(), self.seconds.to_string());
        let mut sender = self.start(&["send", &pattern, to, &size, &rate, &seconds])?;
        let clients = [sender.id(), receiver.id()];
        let cpu = || {
            let clients = cpu_ns_of_all(clients[0])? + cpu_ns_of_all(clients[1])?;
            anyhow::Ok([broker_cpu()?, machine_ns()?.saturating_sub(clients)])
        };
        let mut lines = BufReader::new(sender.stdout.take().context("its output")?).lines();
        let mut line = || lines.next().context("zmq_load send has ended early")?.map_err(anyhow::Error::from);
        line()?;
        let before = cpu()?;
        let sent: Value = serde_json::from_str(&line()?)?;
        let after = cpu()?;
        sender.wait()?;
        let mut text = String::new();
        receiver.stdout.take().context("its output")?.read_to_string(&mut text)?;
        receiver.wait()?;
        let received: Value =
            serde_json::from_str(&text).with_context(|| format!("zmq_load receive: {text:?}"))?;
        let number =
            |value: &Value, key: &str| value[key].as_f64().with_context(|| format!("{key} of {value}"));
        if number(&received, "ended")? as u32 != self.receivers {
            bail!("receivers were left without the last message: {received}");
        }
        let count = number(&sent, "sent")?;
        let each = |at: usize| (after[at] - before[at]) as f64 / count;
        Ok(Sample {
            rate: count / number(&sent, "seconds")?,
            lost: number(&received, "lost")?,
            disordered: number(&received, "disordered")?,
            p50_us: number(&received, "p50_us")?,
            p99_us: number(&received, "p99_us")?,
            broker_ns: each(0),
            machine_ns: each(1),
        })
    }

    fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.client.command(&self.program.to_string_lossy());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().context("zmq_load")
    }
}

/// Returns the time that all processors have spent on anything, in nanoseconds.
fn machine_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let ticks: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        bail!("/proc/stat: {text:?}");
    };
    Ok((user + nice + system + irq + softirq) * 10_000_000)
}

/// Returns the median of values; the upper one of two.
pub fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median of each figure.
pub fn median(samples: &[Sample]) -> Sample {
    let of = |figure: fn(&Sample) -> f64| middle(samples.iter().map(figure));
    Sample {
        rate: of(|s| s.rate),
        lost: of(|s| s.lost),
        disordered: of(|s| s.disordered),
        p50_us: of(|s| s.p50_us),
        p99_us: of(|s| s.p99_us),
        broker_ns: of(|s| s.broker_ns),
        machine_ns: of(|s| s.machine_ns),
    }
}
