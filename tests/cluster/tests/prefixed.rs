//! Plain TCP programs that send messages behind a length: towards an unmodified server of a pool, and as
//! publishers and subscribers of a channel that ZeroMQ programs use too.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};
use serde_json::Value;

/// Ports: requests to the pool; ZMTP, SOFH both ways, SOFH for publishers.
const ORDERS: u16 = 5600;
const TICKS: [u16; 3] = [5556, 5557, 5558];
const SERVER_PORT: u16 = 9000;
const DEADLINE: Duration = Duration::from_secs(90);
/// Messages of each publisher: fewer than the queue of a subscriber, so that a busy machine causes no loss.
const COUNT: usize = 300;

/// A cluster with the two channels, and the programs' scripts.
fn cluster(name: &str) -> Option<Cluster> {
    let mut cluster = testing::lay_out(name)?;
    cluster.start_daemons().unwrap();
    let [zmtp, both, publishers] = TICKS;
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n\
         \x20 - {{name: orders, vip: {VIP}, port: {ORDERS}, framing: sofh, pool: [{{node: an-1, port: {SERVER_PORT}}}]}}\n\
         \x20 - name: ticks\n    vip: {VIP}\n    port: {zmtp}\n    listen:\n\
         \x20     - {{port: {both}, framing: sofh, header: strip}}\n\
         \x20     - {{port: {publishers}, framing: sofh, header: strip, clients: publish}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    );
    let file = cluster.scratch().join("prefixed.yaml");
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    for (name, text) in [
        ("frame_server.py", include_str!("../apps/frame_server.py")),
        ("frame_peer.py", include_str!("../apps/frame_peer.py")),
        ("zmq_feed.py", include_str!("../apps/zmq_feed.py")),
    ] {
        fs::write(cluster.scratch().join(name), text).unwrap();
    }
    Some(cluster)
}

/// Starts a script on the client's host.
fn outside(cluster: &Cluster, name: &str, script: &str, arguments: &[&str]) -> Process {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join(script)).args(arguments);
    Process::spawn(name, command, &cluster.scratch().join("log").join(format!("{name}.log"))).unwrap()
}

/// Waits for the end of a program; returns its output.
fn result(cluster: &Cluster, process: &mut Process) -> String {
    let name = process.name().to_owned();
    let ended = wait_until(&name, DEADLINE, || process.exited());
    let context = |process: &Process| format!("{}\n{}", process.log_tail(20), cluster.all_logs());
    let status = ended.unwrap_or_else(|error| panic!("{error}: {}", context(process)));
    assert!(status.success(), "{} ended with {status}: {}", process.name(), context(process));
    fs::read_to_string(process.log()).unwrap().trim().to_owned()
}

fn channel(cluster: &Cluster, name: &str) -> Value {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).unwrap()).unwrap();
    let channels = view["channels"].as_array().unwrap();
    channels.iter().find(|channel| channel["name"] == name).unwrap().clone()
}

/// Waits until a channel's figures satisfy `is`.
fn wait_channel(cluster: &Cluster, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
    wait_until(what, DEADLINE, || is(&channel(cluster, name)).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", channel(cluster, name), cluster.all_logs()));
}

#[test]
fn an_unmodified_server_answers_the_messages_of_plain_tcp_clients() {
    let Some(mut cluster) = cluster("pool") else { return };
    let script = cluster.scratch().join("frame_server.py").to_string_lossy().into_owned();
    cluster.run_accelerated("server", "/usr/bin/python3", &[&script, &SERVER_PORT.to_string()]).unwrap();
    let port = ORDERS.to_string();
    let requests = 300u64;
    let ask = ["ask", VIP, &port, &requests.to_string()];
    // The first one waits in the backlog until the server listens, or tries again.
    wait_until("a server that listens", testing::SERVING_DEADLINE, || {
        let mut probe = outside(&cluster, "probe", "frame_peer.py", &["ask", VIP, &port, "1"]);
        wait_until("the probe", DEADLINE, || probe.exited()).unwrap().success().then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}{}", cluster.all_logs(), cluster.program_logs(20)));
    let before = channel(&cluster, "orders")["messages_total"].as_u64().unwrap();
    let clients: Vec<Process> =
        (0..4).map(|n| outside(&cluster, &format!("client-{n}"), "frame_peer.py", &ask)).collect();
    // A program of the cluster reaches the server without TCP.
    let script = cluster.scratch().join("frame_peer.py").to_string_lossy().into_owned();
    let arguments = [&[&script[..]], &ask[..]].concat();
    cluster.run_accelerated("client-inside", "/usr/bin/python3", &arguments).unwrap();
    for mut client in clients {
        assert_eq!(result(&cluster, &mut client), requests.to_string());
    }
    let ended = wait_until("client-inside", DEADLINE, || cluster.program("client-inside")?.exited()).unwrap();
    assert!(ended.success(), "{}", cluster.program_logs(20));
    cluster.remove_program("client-inside");
    let passed = 2 * 5 * requests;
    wait_channel(&cluster, "orders", "all messages counted", |c| c["messages_total"] == before + passed);
    let services = cluster.cspctl(&["services", "-o", "json"]).unwrap();
    let services: Value = serde_json::from_str(&services).unwrap();
    let orders = services["services"].as_array().unwrap().iter().find(|service| service["name"] == "orders");
    assert_eq!(
        orders.unwrap()["pool"][0]["processes"],
        1,
        "its pool is shown as that of a service: {services}"
    );
    // A client that sends nonsense is reset; the server serves on.
    let mut bad = outside(&cluster, "nonsense", "frame_peer.py", &["nonsense", VIP, &port]);
    assert_eq!(result(&cluster, &mut bad), "reset");
    wait_channel(&cluster, "orders", "the reset counted", |c| c["malformed_total"] == 1);
    let mut last = outside(&cluster, "last", "frame_peer.py", &["ask", VIP, &port, "20"]);
    assert_eq!(result(&cluster, &mut last), "20");
    wait_channel(&cluster, "orders", "no connection is left", |c| c["senders"] == 0);
    // Workers publish their metrics now and then.
    wait_until("the metric of it", DEADLINE, || {
        let metric = cluster.metric(Tier::ProxyNode, "csp_channel_malformed_total", "orders").ok()?;
        (metric == 1.0).then_some(())
    })
    .unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn plain_tcp_programs_and_zeromq_programs_share_a_channel() {
    let Some(mut cluster) = cluster("feed") else { return };
    let [zmtp, both, publishers] = TICKS.map(|port| port.to_string());
    let (endpoint, names, count) = (format!("tcp://{VIP}:{zmtp}"), "plain,inside,zeromq", COUNT.to_string());
    let mut receivers = vec![
        outside(&cluster, "subscriber", "frame_peer.py", &["subscribe", VIP, &both, names, &count]),
        outside(&cluster, "zmq-subscriber", "zmq_feed.py", &["subscribe", &endpoint, names, &count]),
    ];
    let script = cluster.scratch().join("frame_peer.py").to_string_lossy().into_owned();
    let arguments = [&script[..], "subscribe", VIP, &both, names, &count];
    cluster.run_accelerated("subscriber-inside", "/usr/bin/python3", &arguments).unwrap();
    // Plain subscribers receive everything, the ZeroMQ one has a topic for each name.
    wait_channel(&cluster, "ticks", "three receivers", |c| c["receivers"] == 3 && c["subscriptions"] == 5);
    let mut publisher =
        outside(&cluster, "publisher", "frame_peer.py", &["publish", VIP, &publishers, "plain", &count]);
    let arguments = [&script[..], "publish", VIP, &publishers, "inside", &count];
    cluster.run_accelerated("publisher-inside", "/usr/bin/python3", &arguments).unwrap();
    result(&cluster, &mut publisher);
    let mut outputs: Vec<String> = Vec::new();
    let mut zeromq =
        outside(&cluster, "zmq-publisher", "zmq_feed.py", &["publish", &endpoint, "zeromq", &count]);
    result(&cluster, &mut zeromq);
    for receiver in &mut receivers {
        outputs.push(result(&cluster, receiver));
    }
    let mut inside = |name: &str| {
        let ended = wait_until(name, DEADLINE, || cluster.program(name)?.exited()).unwrap();
        assert!(ended.success(), "{name}: {}", cluster.program_logs(20));
        fs::read_to_string(cluster.program(name).unwrap().log()).unwrap()
    };
    outputs.push(inside("subscriber-inside"));
    inside("publisher-inside");
    for output in outputs {
        let seen: Value = serde_json::from_str(output.trim()).unwrap();
        for name in names.split(',') {
            let numbers: Vec<u64> = seen[name].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
            assert!(numbers.iter().copied().eq(0..COUNT as u64), "{name}: {} of {COUNT}", numbers.len());
        }
    }
    assert_eq!(
        (&channel(&cluster, "ticks")["dropped_total"], &channel(&cluster, "ticks")["malformed_total"]),
        (&0.into(), &0.into())
    );
    the_documented_programs_run(&mut cluster);
    cluster.remove_program("subscriber-inside");
    cluster.remove_program("publisher-inside");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// Runs the publisher and the subscriber of docs/messages.md as they stand there.
fn the_documented_programs_run(cluster: &mut Cluster) {
    let docs = include_str!("../../../docs/messages.md");
    let (_, section) = docs.split_once("## Length-prefixed TCP").unwrap();
    let blocks: Vec<&str> =
        section.split("```python\n").skip(1).map(|b| b.split("```").next().unwrap()).collect();
    let [publisher, subscriber] = [0, 1].map(|at| blocks[at]);
    let files = [("documented-publisher.py", publisher), ("documented-subscriber.py", subscriber)];
    files.iter().for_each(|(name, text)| fs::write(cluster.scratch().join(name), text).unwrap());
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg("-u").arg(cluster.scratch().join(files[1].0));
    cluster.spawn("documented-subscriber", command).unwrap();
    wait_channel(cluster, "ticks", "the documented subscriber", |c| c["receivers"] == 1);
    let mut publisher = outside(cluster, "documented-publisher", files[0].0, &[]);
    result(cluster, &mut publisher);
    let log = cluster.program("documented-subscriber").unwrap().log().to_owned();
    wait_until("the documented message", DEADLINE, || {
        (fs::read_to_string(&log).ok()?.trim() == "b'ACME 17.25'").then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", cluster.program_logs(10)));
    cluster.program("documented-subscriber").unwrap().stop().unwrap();
    cluster.remove_program("documented-subscriber");
}
