//! The proxy's message broker beside libzmq's forwarder: rate, latency and processor time a message.
//!
//! ```text
//!                 ┌── lan0 ── network node ── SAN ── proxy node: channels        (csp)
//!  [load, libzmq] ┤
//!                 └── direct0 ───────────────────── zmq_proxy on its host        (zmq_proxy)
//! ```
//! The same clients drive both, one after the other in each round; medians over the rounds are compared.
//! [`Neighbours`] measures what a busy channel costs a byte service of the same worker; [`Swaps`] how long
//! messages wait while a supplied handler is replaced; a soak pushes messages for minutes and counts each of
//! them.

mod neighbours;
mod sample;
mod swaps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::process::cpu_ns_of_all;
use crate::{Cluster, Options, San, Tier, VIP, configs};

pub use neighbours::Neighbours;
pub use sample::{Load, Pattern, Sample};
pub use swaps::Swaps;

/// Client and proxy host are joined by a veth of their own for `zmq_proxy`.
const DIRECT: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
/// Part of the largest rate at which nothing may be lost.
const LOSSLESS_PART: f64 = 0.8;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder of the programs.
    pub binaries: PathBuf,
    /// Whether network node and proxy node are one process.
    pub edge: bool,
    /// Rounds; each round measures every load on both systems.
    pub rounds: u32,
    /// Seconds of each load.
    pub seconds: u32,
    /// Bytes of a message.
    pub size: u32,
    /// Numbers of subscribers; none: no comparison of brokers.
    pub subscribers: Vec<u32>,
    /// Whether wrk is measured beside a busy channel.
    pub neighbours: bool,
    /// Replacements of a supplied handler; 0: none.
    pub swaps: u32,
    /// Seconds of the soak; 0: none.
    pub soak_s: u32,
}

/// What was measured.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Both brokers under each load.
    pub rows: Vec<Row>,
    /// A byte service beside a busy channel.
    pub neighbours: Option<Neighbours>,
    /// Messages while their handler is replaced.
    pub swaps: Option<Swaps>,
    /// PUSH to PULL through the channel at 80 % of its largest rate, for the time of the soak.
    pub soak: Option<Sample>,
}

/// A broker between the peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broker {
    /// libzmq's forwarder or streamer.
    ZmqProxy,
    /// Network node and proxy node.
    Csp,
}

/// Medians of one load on both brokers.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// Number of receivers.
    pub receivers: u32,
    /// Through zmq_proxy.
    pub zmq: Sample,
    /// Through network node and proxy node.
    pub csp: Sample,
}

/// Channels of the policy, and ports of the forwarders: what is dropped is dropped as libzmq does; or
/// publishers are held back; or pushed.
const CHANNELS: [(&str, u16, &str); 3] = [
    ("drop", 5556, ""),
    ("block", 5557, "    queue: {full: block}\n"),
    ("push", 5558, "    pattern: push\n"),
];

/// Measures what is planned. SIGINT and SIGTERM end the measurement before the next load, and leave nothing
/// behind.
///
/// # Errors
/// If something cannot be set up or measured, with the reason.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Report> {
    let mut bench = Bench::set_up(plan)?;
    let rows = bench.brokers(&progress)?;
    let neighbours = if plan.neighbours { Some(bench.neighbours(&progress)?) } else { None };
    let swaps = if plan.swaps > 0 { Some(bench.swaps(plan.swaps, &progress)?) } else { None };
    let soak = if plan.soak_s > 0 { Some(bench.soak(&progress)?) } else { None };
    bench.stop()?;
    Ok(Report { rows, neighbours, swaps, soak })
}

struct Bench<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    load: PathBuf,
    daemons: Vec<u32>,
    forwarders: Vec<u32>,
    ended: Arc<AtomicBool>,
}

impl<'a> Bench<'a> {
    fn set_up(plan: &'a Plan) -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&ended))?;
        }
        let tag = format!("mb{}", std::process::id());
        let mut cluster = Cluster::lay_out(Options {
            binaries: plan.binaries.clone(),
            san: San::Shm,
            edge: plan.edge,
            tag,
        })?;
        cluster.client.join("direct0", cluster.host(Tier::ProxyNode), "direct0")?;
        cluster.client.address("direct0", &format!("{}/24", DIRECT[0]))?;
        cluster.host(Tier::ProxyNode).address("direct0", &format!("{}/24", DIRECT[1]))?;
        cluster.start_daemons()?;
        let policy = cluster.scratch().join("messages.yaml");
        fs::write(&policy, policy_text())?;
        cluster.cspctl(&["policy", "apply", &policy.to_string_lossy()])?;
        let forwarder = compile(cluster.scratch(), "zmq_forwarder", include_str!("../apps/zmq_forwarder.c"))?;
        let load = compile(cluster.scratch(), "zmq_load", include_str!("../apps/zmq_load.c"))?;
        let mut forwarders = Vec::new();
        for (name, port, _) in CHANNELS {
            let mut command = cluster.host(Tier::ProxyNode).command(&forwarder.to_string_lossy());
            command.arg(if name == "push" { "push" } else { "publish" });
            command.args([Broker::ZmqProxy.sends_to(port), Broker::ZmqProxy.receives_from(port)]);
            if name == "block" {
                command.env("NODROP", "1");
            }
            cluster.spawn(name, command)?;
            forwarders.push(cluster.program(name).context("it was started")?.pid());
        }
        // One process is the daemon of both tiers.
        let tiers = [Tier::NetworkNode, Tier::ProxyNode];
        let daemons = tiers.iter().filter_map(|tier| Some(cluster.daemon(*tier)?.pid())).collect();
        Ok(Bench { plan, cluster, load, daemons, forwarders, ended })
    }

    /// Returns an error if the measurement is to end.
    fn go_on(&self) -> Result<()> {
        match self.ended.load(Ordering::Relaxed) {
            true => bail!("ended by a signal"),
            false => Ok(()),
        }
    }

    /// Measures every load on both brokers, `rounds` times; returns the medians.
    fn brokers(&self, progress: &impl Fn(&str)) -> Result<Vec<Row>> {
        let plan = self.plan;
        let mut all: Vec<(String, u32, [Vec<Sample>; 2])> = Vec::new();
        for round in 1..=plan.rounds {
            let mut at = 0;
            for (receivers, pattern) in loads(&plan.subscribers) {
                let mut both = |name: &str, rates: [f64; 2]| {
                    progress(&format!(
                        "round {round} of {}: {pattern}, {receivers} receivers, {name}",
                        plan.rounds
                    ));
                    let zmq = self.measure(Broker::ZmqProxy, pattern, receivers, rates[0], plan.seconds)?;
                    let csp = self.measure(Broker::Csp, pattern, receivers, rates[1], plan.seconds)?;
                    if all.len() == at {
                        all.push((format!("{pattern}, {name}"), receivers, Default::default()));
                    }
                    all[at].2.iter_mut().zip([zmq, csp]).for_each(|(kept, sample)| kept.push(sample));
                    at += 1;
                    anyhow::Ok([zmq, csp])
                };
                let full = both("as fast as it goes", [0.0, 0.0])?;
                let half = full[0].rate / 2.0;
                both("half of zmq_proxy's rate", [half, half])?;
                both("80 % of its own rate", full.map(|sample| sample.rate * LOSSLESS_PART))?;
            }
        }
        let row = |(name, receivers, [zmq, csp]): (String, u32, [Vec<Sample>; 2])| Row {
            name,
            receivers,
            zmq: sample::median(&zmq),
            csp: sample::median(&csp),
        };
        Ok(all.into_iter().map(row).collect())
    }

    /// Pushes messages through the channel at 80 % of its largest rate for the time of the soak.
    fn soak(&self, progress: &impl Fn(&str)) -> Result<Sample> {
        let full = self.measure(Broker::Csp, Pattern::Push, 1, 0.0, self.plan.seconds)?;
        let rate = full.rate * LOSSLESS_PART;
        progress(&format!("{} s of {rate:.0} pushed messages a second", self.plan.soak_s));
        self.measure(Broker::Csp, Pattern::Push, 1, rate, self.plan.soak_s)
    }

    /// Drives one load; `rate` 0 is as fast as receivers permit.
    fn measure(
        &self,
        broker: Broker,
        pattern: Pattern,
        receivers: u32,
        rate: f64,
        seconds: u32,
    ) -> Result<Sample> {
        self.go_on()?;
        let port = match (pattern, rate) {
            (Pattern::Push, _) => CHANNELS[2].1,
            (Pattern::Publish, 0.0) => CHANNELS[1].1,
            (Pattern::Publish, _) => CHANNELS[0].1,
        };
        let load = Load {
            program: &self.load,
            client: &self.cluster.client,
            pattern,
            endpoints: [broker.sends_to(port), broker.receives_from(port)],
            receivers,
            size: self.plan.size,
            rate,
            seconds,
        };
        let pids = match broker {
            Broker::ZmqProxy => &self.forwarders,
            Broker::Csp => &self.daemons,
        };
        load.run(|| pids.iter().map(|pid| cpu_ns_of_all(*pid)).sum())
            .with_context(|| format!("{broker:?}, {pattern}, {receivers} receivers, {rate} a second"))
    }

    fn stop(mut self) -> Result<()> {
        let casualties = self.cluster.casualties();
        if !casualties.is_empty() {
            bail!("{casualties}");
        }
        self.cluster.stop()
    }
}

impl Broker {
    fn sends_to(self, port: u16) -> String {
        let host = if self == Broker::Csp { VIP } else { DIRECT[1] };
        format!("tcp://{host}:{port}")
    }

    /// The forwarder has a port for either side.
    fn receives_from(self, port: u16) -> String {
        self.sends_to(if self == Broker::Csp { port } else { port + 1000 })
    }
}

/// Returns the numbers of receivers with the patterns that are measured with them.
fn loads(subscribers: &[u32]) -> impl Iterator<Item = (u32, Pattern)> {
    let of = |receivers: &u32| {
        let receivers = *receivers;
        let push = (receivers == 1).then_some((receivers, Pattern::Push));
        std::iter::once((receivers, Pattern::Publish)).chain(push)
    };
    subscribers.iter().flat_map(of)
}

fn policy_text() -> String {
    let channel = |(name, port, more): (&str, u16, &str)| {
        format!("  - name: {name}\n    vip: {VIP}\n    port: {port}\n{more}")
    };
    format!("{}channels:\n{}", configs::policy(), CHANNELS.map(channel).concat())
}

fn compile(folder: &Path, name: &str, source: &str) -> Result<PathBuf> {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&file, source)?;
    let output =
        Command::new("cc").args(["-O2", "-o"]).args([&program, &file]).arg("-lzmq").output().context("cc")?;
    if !output.status.success() {
        bail!("{name}.c (it needs libzmq3-dev): {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}
