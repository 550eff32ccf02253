//! Channels over several proxies of several workers, with ZeroMQ programs outside and on application nodes:
//! each lives at its owner, and its peers follow it when the owner drains.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use csp_cluster::configs::VIP;
use csp_cluster::several::{self, Lans, PROXIES, Several};
use csp_cluster::{Process, San, wait_until};
use serde_json::Value;

/// Ports of channels; the last ones are of the pattern `push`.
const PORTS: std::ops::Range<u16> = 5_601..5_609;
const FIRST_PUSH: u16 = 5_607;
/// How long programs may take to connect, and messages to arrive.
const PATIENCE: Duration = Duration::from_secs(60);
const SENDERS: [&str; 2] = ["outside", "inside"];

/// The programs at all channels: a sender and a receiver each outside and under `csp-run`.
struct Programs {
    processes: Vec<Process>,
    upto: PathBuf,
    states: [PathBuf; 2],
}

fn name_of(port: u16) -> String {
    format!("channel-{port}")
}

fn endpoint(port: u16) -> String {
    format!("tcp://{VIP}:{port}")
}

fn endpoints([publish, push]: [&str; 2]) -> String {
    let entry = |port| format!("{}={}", if port < FIRST_PUSH { publish } else { push }, endpoint(port));
    PORTS.map(entry).collect::<Vec<_>>().join(",")
}

fn apply(cluster: &Several) {
    let file = cluster.scratch().join("policy.yaml");
    let mut text = fs::read_to_string(&file).unwrap().replace("10.76.0.9/32", "10.76.0.0/24");
    text += "channels:\n";
    for port in PORTS {
        let (name, pattern) = (name_of(port), if port < FIRST_PUSH { "publish" } else { "push" });
        text += &format!("  - {{name: {name}, vip: {VIP}, port: {port}, pattern: {pattern}}}\n");
    }
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
}

impl Programs {
    fn start(cluster: &Several) -> Self {
        let scratch = cluster.scratch();
        let script = scratch.join("zmq_channels.py");
        fs::write(&script, include_str!("../apps/zmq_channels.py")).unwrap();
        let upto = scratch.join("upto");
        let states = ["outside", "inside"].map(|place| scratch.join(format!("received-{place}")));
        let mut programs = Programs { processes: Vec::new(), upto, states };
        let upto = programs.upto.to_string_lossy().into_owned();
        for (at, place) in SENDERS.into_iter().enumerate() {
            let state = programs.states[at].to_string_lossy().into_owned();
            let receives = ["receive".to_owned(), state, endpoints(["SUB", "PULL"])];
            let sends = ["send".to_owned(), place.to_owned(), upto.clone(), endpoints(["PUB", "PUSH"])];
            for (arguments, client, app) in [(&receives[..], 1, "an-2"), (&sends[..], 0, "an-1")] {
                let mut command = match place {
                    "outside" => cluster.clients[client].command("/usr/bin/python3"),
                    _ => cluster.accelerated(app, "/usr/bin/python3").unwrap(),
                };
                command.arg(&script).args(arguments);
                let name = format!("{}-{place}", arguments[0]);
                let log = scratch.join("log").join(format!("{name}.log"));
                programs.processes.push(Process::spawn(&name, command, &log).unwrap());
            }
        }
        programs
    }

    /// Has every sender send up to this number at every channel.
    fn send_up_to(&self, number: u64) {
        let file = self.upto.with_extension("new");
        fs::write(&file, number.to_string()).unwrap();
        fs::rename(file, &self.upto).unwrap();
    }

    /// What a receiver has got: endpoint → sender → numbers, or for subscribers last number, missing,
    /// repeated.
    fn received(&self, at: usize) -> BTreeMap<String, BTreeMap<String, Vec<i64>>> {
        let text = fs::read_to_string(&self.states[at]).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Waits until the messages before `number` have arrived at every channel; returns how many each
    /// subscriber lacks.
    fn wait_for(&mut self, cluster: &Several, number: i64) -> Vec<(u16, i64)> {
        let arrived = || {
            let received = [self.received(0), self.received(1)];
            let mut missing = Vec::new();
            for port in PORTS {
                for sender in SENDERS {
                    let of = |at: usize| received[at].get(&endpoint(port))?.get(sender);
                    if port >= FIRST_PUSH {
                        let all: BTreeSet<i64> = (0..2).filter_map(of).flatten().copied().collect();
                        let count: usize = (0..2).filter_map(of).map(Vec::len).sum();
                        assert_eq!(all.len(), count, "pushed messages arrive once: {port} {sender}");
                        (all.len() as i64 == number).then_some(())?;
                        continue;
                    }
                    for at in 0..2 {
                        let [last, lacks, again] = of(at)?[..] else { return None };
                        assert_eq!(again, 0, "in order, and once: {port} {sender}");
                        (last == number - 1).then_some(())?;
                        missing.push((port, lacks));
                    }
                }
            }
            Some(missing)
        };
        let waited = wait_until(&format!("messages up to {number}"), PATIENCE, arrived);
        waited
            .map_err(|error| {
                let logs: String = self.processes.iter().map(|process| process.log_tail(5)).collect();
                let received = [self.received(0), self.received(1)];
                error.context(format!("{}{logs}{received:?}\n{}", table(cluster), cluster.logs()))
            })
            .unwrap()
    }

    fn stop(&mut self) {
        for process in &mut self.processes {
            assert!(process.exited().is_none(), "{}", process.log_tail(20));
            process.kill();
        }
    }
}

fn table(cluster: &Several) -> String {
    cluster.cspctl(&["channels"]).unwrap_or_default()
}

/// Returns for each channel the workers that have peers of it: `pn-1/0` and how many.
fn peers(cluster: &Several) -> BTreeMap<String, Vec<(String, u64)>> {
    let mut found: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for proxy in PROXIES {
        let text = cluster.ask(proxy, "/metrics").unwrap();
        for line in text.lines() {
            let Some(rest) = ["csp_channel_senders{", "csp_channel_receivers{"]
                .iter()
                .find_map(|metric| line.strip_prefix(metric))
            else {
                continue;
            };
            let label = |name: &str| rest.split(&format!("{name}=\"")).nth(1)?.split('"').next();
            let (channel, worker) = (label("channel").unwrap(), label("worker").unwrap());
            let count: f64 = rest.split_whitespace().last().unwrap().parse().unwrap();
            if count > 0.0 {
                let workers = found.entry(channel.to_owned()).or_default();
                *workers.entry(format!("{proxy}/{worker}")).or_default() += count as u64;
            }
        }
    }
    found.into_iter().map(|(channel, workers)| (channel, workers.into_iter().collect())).collect()
}

/// Waits until every channel has its four peers, all at one worker of a proxy that `may` have them; returns
/// the owners.
fn wait_placed(cluster: &Several, may: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let placed = || {
        let peers = peers(cluster);
        (peers.len() == PORTS.len()).then_some(())?;
        let owner = |(channel, workers): (String, Vec<(String, u64)>)| match &workers[..] {
            [(worker, 4)] if may(worker) => Some((channel, worker.clone())),
            _ => None,
        };
        peers.into_iter().map(owner).collect::<Option<BTreeMap<_, _>>>()
    };
    let placed = wait_until("every channel's peers at one worker", PATIENCE, placed);
    placed.map_err(|error| error.context(format!("{:?}\n{}", peers(cluster), cluster.logs()))).unwrap()
}

/// The proxy with the most channels.
fn busiest(owners: &BTreeMap<String, String>) -> &'static str {
    let count = |proxy: &str| owners.values().filter(|owner| owner.starts_with(proxy)).count();
    PROXIES.into_iter().max_by_key(|proxy| count(proxy)).unwrap()
}

#[test]
fn channels_live_at_their_owners_and_follow_when_one_drains() {
    let Some(mut cluster) = several::lay_out("placement", San::Shm, Lans::Apart) else { return };
    cluster.serve().unwrap();
    apply(&cluster);
    let mut programs = Programs::start(&cluster);
    let owners = wait_placed(&cluster, |_| true);
    let workers: BTreeSet<&String> = owners.values().collect();
    assert!(workers.len() >= 3, "channels are spread over workers: {owners:?}");
    programs.send_up_to(150);
    let missing = programs.wait_for(&cluster, 150);
    assert!(missing.iter().all(|(_, count)| *count == 0), "{missing:?}");

    // Messages flow on while the owner of some channels drains.
    let drained = busiest(&owners);
    programs.send_up_to(1_150);
    cluster.cspctl(&["drain", drained]).unwrap();
    let moved = wait_placed(&cluster, |worker| !worker.starts_with(drained));
    for (channel, owner) in owners.iter().filter(|(_, owner)| !owner.starts_with(drained)) {
        assert_eq!(moved[channel], *owner, "only channels of {drained} move");
    }
    let missing = programs.wait_for(&cluster, 1_150);
    let lost: i64 = missing.iter().map(|(_, count)| count).sum();
    println!("drained {drained} of {owners:?}: subscribers missed {lost} messages");
    for (port, count) in missing {
        let stayed = !owners[&name_of(port)].starts_with(drained);
        assert!(!stayed || count == 0, "{port} did not move, and lost {count} messages");
    }
    // From now on nothing is lost, and the proxy that is taken back gets its channels again.
    cluster.cspctl(&["resume", drained]).unwrap();
    assert_eq!(wait_placed(&cluster, |_| true).len(), PORTS.len());
    wait_until("the former owners", PATIENCE, || (wait_placed(&cluster, |_| true) == owners).then_some(()))
        .unwrap();
    let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).unwrap()).unwrap();
    assert_eq!(view["channels"].as_array().unwrap().len(), PORTS.len());
    programs.stop();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// The owner of some channels is killed while messages flow: their peers are soon at the next owner, and
/// nobody else notices.
#[test]
#[ignore = "depends on load: make test-faults"]
fn channels_of_an_owner_that_is_killed_go_on_at_another() {
    let Some(mut cluster) = several::lay_out("placementkill", San::Shm, Lans::Apart) else { return };
    cluster.serve().unwrap();
    apply(&cluster);
    let mut programs = Programs::start(&cluster);
    let owners = wait_placed(&cluster, |_| true);
    let killed = busiest(&owners);
    programs.send_up_to(100);
    programs.wait_for(&cluster, 100);
    cluster.daemon(killed).unwrap().kill();
    cluster.start(killed).unwrap();
    cluster.wait_recovered(killed).unwrap();
    // The proxy that is back gets its channels again.
    let back = || (wait_placed(&cluster, |_| true) == owners).then_some(());
    wait_until("the channels at their owners", PATIENCE, back).unwrap();
    let of_killed = |port: u16| owners[&name_of(port)].starts_with(killed);
    programs.send_up_to(300);
    let missing = programs.wait_for(&cluster, 300);
    assert!(missing.iter().all(|(port, count)| of_killed(*port) || *count == 0), "{missing:?}");
    programs.stop();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
