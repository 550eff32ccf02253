//! The demo of messages: ZeroMQ programs on both sides of the cluster, with the proxy as their broker; then
//! modules that an operator supplies.
//!
//! ```text
//!  [client]  publisher "outside", subscriber ──TCP── network node ── proxy node ── channels ── [app host, under csp-run]
//!                                                     the broker                     publisher "inside", subscriber
//! ```

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, San, Tier};
use crate::configs::VIP;
use crate::demo::{in_cluster, kernel_tcp, step};
use crate::process::{Process, wait_until};

/// Ports of the channels `ticks` (PUB, SUB) and `jobs` (PUSH, PULL).
const PORTS: [u16; 2] = [5556, 5557];
/// Messages of each sender.
const COUNT: u64 = 4_000;
/// Messages that each sender (`zmq_peer.py`) sends before and after them.
const UNNUMBERED: u64 = 101;
const SENDERS: [&str; 2] = ["outside", "inside"];
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs every step.
///
/// # Errors
/// The first step that failed, with the reason.
pub fn run(san: San) -> Result<()> {
    println!(
        "CSP demo of messages: ZeroMQ programs outside and on an application node, the proxy is the broker\n"
    );
    in_cluster(san, prove, |_| String::new())
}

/// What the demo proves, in a cluster without daemons.
///
/// # Errors
/// The first step that failed, with the reason.
pub fn prove(cluster: &mut Cluster) -> Result<()> {
    step("etcd and the four daemons", || cluster.start_daemons())?;
    step("cspctl policy apply: channels ticks and jobs", || apply(cluster))?;
    step("all daemons ready", || Tier::ALL.iter().try_for_each(|tier| cluster.wait_ready(*tier)))?;
    fs::write(cluster.scratch().join("zmq_peer.py"), include_str!("../apps/zmq_peer.py"))?;
    let mut trace = String::new();
    let received = step("PUB to SUB: 2 publishers, 3 subscribers, outside and under csp-run", || {
        exchange(cluster, ["publish", "subscribe"], PORTS[0], |cluster| {
            trace =
                cluster.cspctl(&["message", "trace", "ticks", "--topic", SENDERS[0], "--timeout", "30"])?;
            Ok(())
        })
    })?;
    step(&format!("every subscriber has {COUNT} messages of each publisher, in order"), || {
        received.iter().try_for_each(|numbers| numbers.iter().try_for_each(|of_sender| in_order(of_sender)))
    })?;
    let received = step("PUSH to PULL: 2 pushers, 3 pullers", || {
        exchange(cluster, ["push", "pull"], PORTS[1], |_| Ok(()))
    })?;
    step("every pushed message has arrived once, at one of them", || once(&received))?;
    step("no kernel TCP socket of the channels on application host and proxy host", || {
        no_kernel_tcp(cluster)
    })?;
    let table = step("cspctl channels", || cluster.cspctl(&["channels"]))?;
    let contexts =
        step("cspctl contexts: both handlers of channel jobs have had every message", || handlers(cluster))?;
    println!("\n{table}\n{contexts}");
    step("cspctl message trace: one message of the publisher outside, and each subscriber's copy", || {
        let (written, inside) = (trace.matches("written").count(), trace.contains("an-1 python3"));
        ensure!(written == 3 && inside && trace.contains("3 of 3 receivers subscribe"), "{trace}");
        Ok(())
    })?;
    println!("\n{trace}");
    crate::demo_supplied::prove(cluster)
}

/// Checks that the handlers of `jobs` have processed all messages, and returns what people are shown.
fn handlers(cluster: &Cluster) -> Result<String> {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["contexts", "-o", "json"])?)?;
    let stages = view["nodes"][0]["stages"].as_array().context("no stages")?;
    ensure!(stages.len() == 2, "{} stages", stages.len());
    for stage in stages {
        let processed = stage["messages_total"].as_u64().unwrap_or(0);
        ensure!(processed == 2 * (COUNT + UNNUMBERED), "a stage has processed {processed} messages: {stage}");
    }
    cluster.cspctl(&["contexts"])
}

fn apply(cluster: &Cluster) -> Result<()> {
    let channel = |name: &str, port, pattern: &str| {
        format!("  - {{name: {name}, vip: {VIP}, port: {port}, pattern: {pattern}}}\n")
    };
    let path = "push, path: [{handler: forward, context: c0}, {handler: forward, context: c1}]";
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n{}{}egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n",
        channel("ticks", PORTS[0], "publish"),
        channel("jobs", PORTS[1], path)
    );
    let file = cluster.scratch().join("messages.yaml");
    fs::write(&file, text)?;
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map(drop)
}

/// Numbers that a receiver got, of each sender.
type Received = [Vec<u64>; 2];

/// Runs a sender and a receiver under `csp-run`, a sender and two receivers outside, and `meanwhile` when all
/// have started.
fn exchange(
    cluster: &mut Cluster,
    [sends, receives]: [&str; 2],
    port: u16,
    meanwhile: impl FnOnce(&mut Cluster) -> Result<()>,
) -> Result<Vec<Received>> {
    let endpoint = format!("tcp://{VIP}:{port}");
    let script = cluster.scratch().join("zmq_peer.py").to_string_lossy().into_owned();
    let names = SENDERS.join(",");
    let outside = |cluster: &Cluster, name: &str, arguments: &[&str]| {
        let mut command = cluster.client.command("/usr/bin/python3");
        command.arg(&script).args(arguments);
        Process::spawn(name, command, &cluster.scratch().join("log").join(format!("{name}.log")))
    };
    let mut receivers = Vec::new();
    for at in 1..=2 {
        let name = format!("{receives}-outside-{at}");
        receivers.push(outside(cluster, &name, &[receives, &endpoint, &names])?);
    }
    let inside = format!("{receives}-inside");
    cluster.run_accelerated(&inside, "/usr/bin/python3", &[&script, receives, &endpoint, &names])?;
    wait_until("three receivers at the channel", DEADLINE, || {
        let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).ok()?).ok()?;
        let channels = view["channels"].as_array()?;
        let channel = channels.iter().find(|channel| channel["port"] == port)?;
        (channel["receivers"] == 3).then_some(())
    })
    .with_context(|| cluster.program_logs(5))?;
    let count = COUNT.to_string();
    let mut sender = outside(cluster, &format!("{sends}-outside"), &[sends, &endpoint, SENDERS[0], &count])?;
    let inside_sender = format!("{sends}-inside");
    let arguments = [script.as_str(), sends, &endpoint, SENDERS[1], &count];
    cluster.run_accelerated(&inside_sender, "/usr/bin/python3", &arguments)?;
    meanwhile(cluster)?;
    let mut all = Vec::new();
    for mut receiver in receivers {
        all.push(result(&mut receiver)?);
    }
    all.push(result(cluster.program(&inside).context("it was started")?)?);
    ended(&mut sender)?;
    ended(cluster.program(&inside_sender).context("it was started")?)?;
    cluster.remove_program(&inside);
    cluster.remove_program(&inside_sender);
    Ok(all)
}

fn ended(process: &mut Process) -> Result<()> {
    let status = wait_until(process.name().to_owned().as_str(), DEADLINE, || process.exited())?;
    ensure!(status.success(), "{} ended with {status}: {}", process.name(), process.log_tail(10));
    Ok(())
}

fn result(receiver: &mut Process) -> Result<Received> {
    ended(receiver)?;
    let text = fs::read_to_string(receiver.log())?;
    let value: Value = serde_json::from_str(text.trim()).with_context(|| receiver.log_tail(10))?;
    let numbers = |sender: &str| -> Vec<u64> {
        value["numbers"][sender].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    Ok(SENDERS.map(numbers))
}

fn in_order(numbers: &[u64]) -> Result<()> {
    let count = numbers.len();
    ensure!(numbers.iter().copied().eq(0..COUNT), "{count} of {COUNT} messages, or not in order");
    Ok(())
}

fn once(received: &[Received]) -> Result<()> {
    for sender in 0..SENDERS.len() {
        let mut all: Vec<u64> = received.iter().flat_map(|numbers| numbers[sender].clone()).collect();
        for numbers in received {
            ensure!(numbers[sender].is_sorted(), "a puller got messages of {} out of order", SENDERS[sender]);
        }
        all.sort_unstable();
        in_order(&all)?;
    }
    Ok(())
}

fn no_kernel_tcp(cluster: &Cluster) -> Result<()> {
    for tier in [Tier::AppNode, Tier::ProxyNode] {
        if let Some(line) = kernel_tcp(cluster.host(tier), &PORTS)? {
            bail!("a kernel TCP socket on the host of {}: {line}", tier.daemon());
        }
    }
    Ok(())
}
