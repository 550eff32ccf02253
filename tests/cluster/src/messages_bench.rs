//! The proxy's message broker beside libzmq's forwarder: rate, latency and processor time a message.
//!
//! ```text
//!                 ┌── lan0 ── network node ── SAN ── proxy node: channels        (csp)
//!  [load, libzmq] ┤
//!                 └── direct0 ───────────────────── zmq_proxy on its host        (zmq_proxy)
//! ```
//! The same clients drive both, one after the other in each round; medians over the rounds are compared.

mod sample;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::cpu_ns_of_all;
use crate::{Cluster, Options, San, Tier, VIP};

pub use sample::{Load, Pattern, Sample};

/// Client and proxy host are joined by a veth of their own for `zmq_proxy`.
const DIRECT: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
/// Part of the largest rate at which nothing may be lost.
const LOSSLESS_PART: f64 = 0.8;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder of the programs.
    pub binaries: PathBuf,
    /// Rounds; each round measures every load on both systems.
    pub rounds: u32,
    /// Seconds of each load.
    pub seconds: u32,
    /// Bytes of a message.
    pub size: u32,
    /// Numbers of subscribers.
    pub subscribers: Vec<u32>,
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

/// Channels of the policy, and ports of the forwarders: what is dropped is dropped as libzmq does; or publishers are held back; or
/// pushed.
const CHANNELS: [(&str, u16, &str); 3] = [
    ("drop", 5556, ""),
    ("block", 5557, "    queue: {full: block}\n"),
    ("push", 5558, "    pattern: push\n"),
];

/// Measures everything, `rounds` times.
///
/// # Errors
/// If something cannot be set up or measured, with the reason.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let bench = Bench::set_up(plan)?;
    let mut all: Vec<(String, u32, [Vec<Sample>; 2])> = Vec::new();
    for round in 1..=plan.rounds {
        let mut at = 0;
        let mut keep = |name: &str, receivers: u32, samples: [Sample; 2]| {
            if all.len() == at {
                all.push((name.to_owned(), receivers, Default::default()));
            }
            all[at].2.iter_mut().zip(samples).for_each(|(kept, sample)| kept.push(sample));
            at += 1;
        };
        for receivers in &plan.subscribers {
            for pattern in [Pattern::Publish, Pattern::Push] {
                if pattern == Pattern::Push && *receivers != 1 {
                    continue;
                }
                let what = format!("{pattern}, {receivers} receivers");
                let mut both = |name: &str, rates: [f64; 2]| {
                    progress(&format!("round {round} of {}: {what}, {name}", plan.rounds));
                    let samples = [
                        bench.measure(Broker::ZmqProxy, pattern, *receivers, rates[0])?,
                        bench.measure(Broker::Csp, pattern, *receivers, rates[1])?,
                    ];
                    keep(&format!("{pattern}, {name}"), *receivers, samples);
                    anyhow::Ok(samples)
                };
                let full = both("as fast as it goes", [0.0, 0.0])?;
                let half = full[0].rate / 2.0;
                both("half of zmq_proxy's rate", [half, half])?;
                both("80 % of its own rate", full.map(|sample| sample.rate * LOSSLESS_PART))?;
            }
        }
    }
    bench.stop()?;
    let row = |(name, receivers, [zmq, csp]): (String, u32, [Vec<Sample>; 2])| Row {
        name,
        receivers,
        zmq: sample::median(&zmq),
        csp: sample::median(&csp),
    };
    Ok(all.into_iter().map(row).collect())
}

struct Bench<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    load: PathBuf,
    daemons: Vec<u32>,
    forwarders: Vec<u32>,
}

impl<'a> Bench<'a> {
    fn set_up(plan: &'a Plan) -> Result<Self> {
        let tag = format!("mb{}", std::process::id());
        let mut cluster = Cluster::lay_out(Options { binaries: plan.binaries.clone(), san: San::Shm, tag })?;
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
        let mut daemons = Vec::new();
        for tier in [Tier::NetworkNode, Tier::ProxyNode] {
            daemons.push(cluster.daemon(tier).context("it was started")?.pid());
        }
        Ok(Bench { plan, cluster, load, daemons, forwarders })
    }

    /// Drives one load; `rate` 0 is as fast as receivers permit.
    fn measure(&self, broker: Broker, pattern: Pattern, receivers: u32, rate: f64) -> Result<Sample> {
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
            seconds: self.plan.seconds,
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

fn policy_text() -> String {
    let channel = |(name, port, more): (&str, u16, &str)| {
        format!("  - name: {name}\n    vip: {VIP}\n    port: {port}\n{more}")
    };
    format!("apiVersion: csp/v1\nchannels:\n{}", CHANNELS.map(channel).concat())
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
