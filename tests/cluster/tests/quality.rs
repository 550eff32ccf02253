//! Information flows through real daemons: a promise that cannot be kept is refused; a protected flow loses
//! nothing beside one that fills the link; schemes, promises and contexts change while traffic runs; the
//! operator sees all of it.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::{Cluster, Fetch, Process, San, Tier, VIP, configs, testing, wait_until};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(120);
const GATES: u16 = 5561;
const BULK: u16 = 5562;
const GATE_MESSAGES: u32 = 2_000;
const LEN: u32 = 1_500;

/// With `contexts`, handlers of gates run behind their queue, in contexts of which one is theirs; else
/// before.
fn policy(promise: u64, scheme: &str, contexts: u16) -> String {
    let channels = format!(
        "apiVersion: csp/v1\nchannels:\n  - {{name: gates, vip: {VIP}, port: {GATES}, path: [{{handler: forward}}]}}\n  - {{name: bulk, vip: {VIP}, \
         port: {BULK}}}\n"
    );
    let (own, cost, contexts) = match contexts {
        0 => ("", "", String::new()),
        count => (", contexts: 1", "    cost_us: 100\n", format!(", contexts: {{count: {count}}}")),
    };
    let flows = format!(
        "information_flows:\n  - name: gates\n    match: {{channel: gates}}\n    priority: 9\n    reserve: {{mbps: {promise}{own}}}\n{cost}    message_bytes: {LEN}\n    \
         queue: {{full: hold}}\n  - {{name: bulk, match: {{channel: bulk, source: 10.0.0.0/8}}, message_bytes: {LEN}, before: [drop-when-full]}}\n  \
         - {{name: default, message_bytes: {LEN}}}\nlink: {{mbps: 20, scheme: {scheme}{contexts}}}\n"
    );
    if scheme.is_empty() { channels } else { channels + &flows }
}

fn apply(cluster: &Cluster, text: &str) -> Result<String, String> {
    let file = cluster.scratch().join("flows.yaml");
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map_err(|error| error.to_string())
}

fn run(cluster: &Cluster, name: &str, arguments: &[&str]) -> Process {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join("zmq_flows.py")).args(arguments);
    Process::spawn(name, command, &cluster.scratch().join(format!("log/{name}.log"))).unwrap()
}

/// What `cspctl information-flows top` shows.
fn top(cluster: &Cluster) -> Option<Value> {
    let shown =
        cluster.cspctl(&["information-flows", "top", "--once", "--interval", "0.2", "-o", "json"]).ok()?;
    serde_json::from_str(&shown).ok()
}

fn flow(top: &Value, name: &str) -> Value {
    let flows = top["flows"].as_array().cloned().unwrap_or_default();
    flows.into_iter().find(|flow| flow["flow"] == name).unwrap_or_default()
}

#[test]
fn a_protected_flow_loses_nothing_while_schemes_change() {
    let Some(mut cluster) = testing::lay_out_over("quality", San::Shm) else { return };
    cluster.start_daemons().unwrap();
    fs::write(cluster.scratch().join("zmq_flows.py"), include_str!("../apps/zmq_flows.py")).unwrap();
    apply(&cluster, csp_support::yaml_blocks(include_str!("../../../docs/quality.md"))[0]).unwrap();
    let refused = apply(&cluster, &policy(20, "PAR", 0)).unwrap_err();
    assert!(refused.contains("flow \"gates\" asks for 20 Mb/s") && refused.contains("are left"), "{refused}");
    apply(&cluster, &policy(5, "PAR", 0)).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());

    let (gates, bulk) = (format!("tcp://{VIP}:{GATES}"), format!("tcp://{VIP}:{BULK}"));
    let count = GATE_MESSAGES.to_string();
    let mut all = run(&cluster, "gates-receiver", &["all", &gates, &count]);
    let mut sink = run(&cluster, "bulk-receiver", &["receive", &bulk, "600"]);
    let receivers = |cluster: &Cluster| {
        let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).ok()?).ok()?;
        let seen = view["channels"].as_array()?.iter().filter(|channel| channel["receivers"] == 1).count();
        (seen == 2).then_some(())
    };
    wait_until("both receivers are there", DEADLINE, || receivers(&cluster)).unwrap();
    let size = LEN.to_string();
    let mut flood = run(&cluster, "bulk", &["publish", &bulk, &size, "60:600"]);
    wait_until("bulk fills the link", DEADLINE, || {
        top(&cluster).filter(|top| flow(top, "bulk")["dropped_total"].as_u64() > Some(100))
    })
    .unwrap();
    let mut publisher = run(&cluster, "gates", &["count", &gates, &size, &count, "4"]);

    for (promise, scheme, contexts) in [(5, "RR", 0), (6, "PA", 8), (4, "EAS", 2), (5, "PAR", 8)] {
        apply(&cluster, &policy(promise, scheme, contexts)).unwrap();
        let seen = wait_until("the scheme is in force", DEADLINE, || {
            top(&cluster).filter(|top| top["links"][0]["scheme"] == scheme)
        });
        let seen = seen.unwrap_or_else(|error| panic!("{error}\n{}", cluster.all_logs()));
        assert_eq!(flow(&seen, "gates")["promised_mbps"], promise as f64, "{seen}");
        assert_eq!(seen["links"][0]["contexts"], contexts, "{seen}");
        assert_eq!(flow(&seen, "gates")["contexts"], u16::from(contexts > 0), "{seen}");
    }
    let refused = apply(&cluster, &policy(5, "PAR", 1)).unwrap_err();
    assert!(refused.contains("flow \"gates\" asks for") && refused.contains("of 1 are left"), "{refused}");
    let metric = |name, flow| cluster.metric(Tier::ProxyNode, name, flow).unwrap();
    wait_until("gates are released", DEADLINE, || {
        let seen = ["csp_information_flow_released_messages_total", "csp_information_flow_processed_total"];
        seen.iter().all(|name| metric(name, "flow=\"gates\"") > 10.0).then_some(())
    })
    .unwrap();
    // All that is left is delivered when there are no flows any more.
    apply(&cluster, &policy(0, "", 0)).unwrap();
    let none = wait_until("there are no flows", DEADLINE, || {
        cluster
            .cspctl(&["information-flows", "top", "--once", "--interval", "0.1"])
            .ok()
            .filter(|text| text.starts_with("No information flows"))
    });
    none.unwrap();
    let status = wait_until("all gates have arrived", DEADLINE, || all.exited());
    let status = status.unwrap_or_else(|error| panic!("{error}\n{}", cluster.all_logs()));
    assert!(status.success(), "{}", all.log_tail(5));
    assert!(wait_until("the publisher ends", DEADLINE, || publisher.exited()).unwrap().success());
    flood.kill();
    sink.kill();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// Mb/s of the link at which [`web_traffic_takes_the_link_with_messages`] fetches.
const WEB_LINK: u64 = 20;

#[test]
fn web_traffic_takes_the_link_with_messages() {
    let Some(mut cluster) = testing::lay_out_over("quality-web", San::Shm) else { return };
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    fs::write(cluster.scratch().join("zmq_flows.py"), include_str!("../apps/zmq_flows.py")).unwrap();
    let file = cluster.scratch().join("www/2MiB");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    let fetch = |cluster: &Cluster| {
        let begun = std::time::Instant::now();
        Fetch(cluster).file("2MiB").unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.all_logs()));
        begun.elapsed()
    };
    apply(&cluster, &configs::policy()).unwrap();
    wait_until("nginx serves", DEADLINE, || Fetch(&cluster).file("2MiB").ok()).unwrap();
    let policy = configs::policy()
        + &format!(
            "channels:\n  - {{name: bulk, vip: {VIP}, port: {BULK}}}\ninformation_flows:\n  - {{name: web, match: {{port: 80}}, priority: 9, reserve: {{mbps: 5}}, message_bytes: 4096}}\n  \
             - {{name: bulk, match: {{channel: bulk}}, message_bytes: {LEN}}}\n  - {{name: default, message_bytes: 4096}}\n\
             link: {{mbps: {WEB_LINK}, scheme: PAR, quantum_kib: 4}}\n"
        );
    apply(&cluster, &policy).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    wait_until("the flows are in force", DEADLINE, || {
        top(&cluster).filter(|top| flow(top, "web") != Value::Null)
    })
    .unwrap();
    // No more than the link takes: 16.8 Mb at 20 Mb/s, but for what the windows of the start let through.
    let alone = fetch(&cluster);
    assert!(alone > Duration::from_millis(700), "{alone:?}");

    let bulk = format!("tcp://{VIP}:{BULK}");
    let mut sink = run(&cluster, "bulk-receiver", &["receive", &bulk, "600"]);
    let mut flood = run(&cluster, "bulk", &["publish", &bulk, &LEN.to_string(), "60:600"]);
    wait_until("bulk fills the link", DEADLINE, || {
        top(&cluster).filter(|top| flow(top, "bulk")["dropped_total"].as_u64() > Some(100))
    })
    .unwrap();
    fetch(&cluster);
    let released = || {
        cluster.metric(Tier::ProxyNode, "csp_information_flow_released_bytes_total", "flow=\"web\"").unwrap()
    };
    let sent = f64::from(4 << 20);
    wait_until("both files are counted", DEADLINE, || (released() >= sent).then_some(())).unwrap();
    assert!(released() < 1.1 * sent, "{} bytes of two fetches of 2 MiB", released());

    // A connection that waits goes on at once when there is no link any more.
    let path = cluster.scratch().join("fetched-over");
    let mut curl = cluster.client.command("curl");
    curl.args(["-sS", "-f", "-m", "100", "-o", &path.to_string_lossy(), &format!("http://{VIP}/2MiB")]);
    let mut waits = Process::spawn("curl", curl, &cluster.scratch().join("log/curl.log")).unwrap();
    apply(&cluster, &configs::policy()).unwrap();
    assert!(wait_until("curl ends", DEADLINE, || waits.exited()).unwrap().success(), "{}", waits.log_tail(3));
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 20);
    flood.kill();
    sink.kill();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
