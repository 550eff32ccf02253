//! A path that leaves the proxy worker, passes a handler of `csp-context` on the application node, and comes
//! back: with real programs, over shared memory and over TCP, while the context is not there yet, and when it
//! is killed in the middle.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::{Cluster, Far, Process, San, Tier, VIP, testing, wait_until};
use serde_json::Value;

const PORT: u16 = 5557;
const DEADLINE: Duration = Duration::from_secs(120);
/// Messages: more than queues, windows and sockets hold.
const COUNT: u64 = 20_000;
/// After so many the receiver reads no more, until the context was killed and started again.
const GATE: u64 = 2_000;

fn cluster(name: &str, san: San) -> Option<Cluster> {
    let mut cluster = testing::lay_out_over(name, san)?;
    cluster.start_daemons().unwrap();
    fs::write(cluster.scratch().join("zmq_pipe.py"), include_str!("../apps/zmq_pipe.py")).unwrap();
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n  - name: jobs\n    vip: {VIP}\n    port: {PORT}\n    pattern: push\n    path:\n\
         \x20     - {{handler: forward, context: c0}}\n\
         \x20     - {{handler: forward, context: g0}}\n\
         \x20     - {{handler: forward, context: c1}}\n\
         contexts:\n  - {{name: g0, pool: [{{node: an-1, port: 7100}}]}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    );
    apply(&mut cluster, &text);
    Some(cluster)
}

fn apply(cluster: &mut Cluster, text: &str) {
    let file = cluster.scratch().join("contexts.yaml");
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
}

/// Starts the context on the application node.
fn start_context(cluster: &mut Cluster, name: &str) {
    let program = cluster.binary("csp-context").to_string_lossy().into_owned();
    cluster.run_accelerated(name, &program, &["--listen", "0.0.0.0:7100"]).unwrap();
}

/// Returns the state of g0, and how many messages its stage has processed.
fn context(cluster: &Cluster) -> Option<(String, u64)> {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["contexts", "-o", "json"]).ok()?).ok()?;
    let node = &view["nodes"][0];
    let find =
        |list: &str, key: &str| node[list].as_array()?.iter().find(|entry| entry[key] == "g0").cloned();
    let place = find("contexts", "name")?["place"].as_str()?.to_owned();
    Some((place, find("stages", "context")?["messages_total"].as_u64()?))
}

fn wait_context(cluster: &Cluster, what: &str, is: impl Fn(&str, u64) -> bool) {
    let done = wait_until(what, DEADLINE, || context(cluster).filter(|(place, n)| is(place, *n)));
    done.unwrap_or_else(|error| {
        panic!("{error}: {:?}\n{}\n{}", context(cluster), cluster.program_logs(20), cluster.all_logs())
    });
}

fn check(name: &str, san: San) {
    let Some(mut cluster) = cluster(name, san) else { return };
    let script = cluster.scratch().join("zmq_pipe.py").to_string_lossy().into_owned();
    let (endpoint, count) = (format!("tcp://{VIP}:{PORT}"), COUNT.to_string());
    let mut command = cluster.client.command("/usr/bin/python3");
    let gate = cluster.scratch().join("gate");
    command.args([&script, "pull", &endpoint, &count, &GATE.to_string()]).arg(&gate);
    let log = cluster.scratch().join("log/pull.log");
    let mut receiver = Process::spawn("pull", command, &log).unwrap();
    cluster.run_accelerated("push", "/usr/bin/python3", &[&script, "push", &endpoint, &count]).unwrap();
    wait_context(&cluster, "messages wait for a context that is not there", |place, n| {
        place == "absent" && n == 0
    });
    start_context(&mut cluster, "context-1");
    wait_context(&cluster, "the context runs handlers", |place, n| place == "connected" && n > GATE);
    cluster.program("context-1").unwrap().kill();
    cluster.remove_program("context-1");
    let (_, before) = context(&cluster).unwrap();
    assert!(before < COUNT, "it was killed in the middle: {before}");
    wait_context(&cluster, "the loss is seen", |place, _| place == "absent");
    start_context(&mut cluster, "context-2");
    wait_context(&cluster, "another one takes its place", |place, _| place == "connected");
    fs::write(&gate, "").unwrap();
    let status = wait_until("all messages", DEADLINE, || receiver.exited())
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", context(&cluster), cluster.all_logs()));
    assert!(status.success(), "{}\n{}", receiver.log_tail(5), cluster.program_logs(20));
    wait_context(&cluster, "each message was answered once", |place, n| place == "connected" && n == COUNT);
    let sender = cluster.program("push").unwrap();
    let sent = wait_until("the sender", DEADLINE, || sender.exited()).unwrap();
    assert!(sent.success(), "{}", sender.log_tail(5));
    cluster.remove_program("push");
    let table = cluster.cspctl(&["contexts"]).unwrap();
    assert!(table.contains("g0") && table.contains("connected"), "{table}");
    let status = cluster.program("context-2").unwrap().stop().unwrap();
    assert!(status.success(), "it stops by SIGTERM with {status}");
    cluster.remove_program("context-2");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn a_path_passes_a_context_on_the_application_node_over_shared_memory() {
    check("ctxshm", San::Shm);
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn a_path_passes_a_context_on_the_application_node_over_tcp() {
    check("ctxtcp", San::Apart(Far::Tcp));
}

/// Emits each message as it is.
const MODULE: &str = r#"(module
    (import "csp" "emit_same" (func $emit (param i32) (result i32)))
    (memory (export "memory") 1 1)
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "on_message") (param i32 i32 i32) (result i32) (call $emit (i32.const 0))))"#;

/// The module begins in `csp-context`, which gets it from the proxy, and enters the worker when its calls
/// were short for long enough: the bounds here are such that they are on any machine.
#[test]
fn a_supplied_handler_begins_in_another_program_and_enters_the_worker() {
    let Some(mut cluster) = cluster("ctxmod", San::Shm) else { return };
    start_context(&mut cluster, "context");
    let file = cluster.scratch().join("module.wasm");
    fs::write(&file, wat::parse_str(MODULE).unwrap()).unwrap();
    let printed = cluster.cspctl(&["handler", "put", &file.to_string_lossy()]).unwrap();
    let module = printed.lines().next().unwrap();
    let text = format!(
        "apiVersion: csp/v1\nhandlers:\n  - {{name: mine, module: {module}}}\nchannels:\n  - name: jobs\n    vip: {VIP}\n    \
         port: {PORT}\n    pattern: push\n    path: [{{handler: mine, place: {{auto: [c1, g0], calls: 20, hold_s: 1, p99_us: 1000000}}}}]\n\
         contexts:\n  - {{name: g0, pool: [{{node: an-1, port: 7100}}]}}\n"
    );
    apply(&mut cluster, &text);
    let stage = |cluster: &Cluster, context: &str| -> Option<Value> {
        let view: Value = serde_json::from_str(&cluster.cspctl(&["contexts", "-o", "json"]).ok()?).ok()?;
        view["nodes"][0]["stages"].as_array()?.iter().find(|stage| stage["context"] == context).cloned()
    };
    let begins = stage(&cluster, "g0").unwrap();
    assert_eq!((&begins["handler"], &begins["moves_total"]), (&"mine".into(), &0.into()));
    let script = cluster.scratch().join("zmq_pipe.py").to_string_lossy().into_owned();
    let (endpoint, count) = (format!("tcp://{VIP}:{PORT}"), COUNT.to_string());
    let gate = cluster.scratch().join("gate");
    let spawn = |cluster: &Cluster, name: &str, more: &[&str]| {
        let mut command = cluster.client.command("/usr/bin/python3");
        command.args([&script, name, &endpoint, &count]).args(more);
        Process::spawn(name, command, &cluster.scratch().join(format!("log/{name}.log"))).unwrap()
    };
    let mut receiver = spawn(&cluster, "pull", &[&GATE.to_string(), &gate.to_string_lossy()]);
    let mut sender = spawn(&cluster, "push", &[]);
    let moved = wait_until("the module is moved", DEADLINE, || stage(&cluster, "c1"));
    let moved =
        moved.unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", stage(&cluster, "g0"), cluster.all_logs()));
    assert_eq!(moved["moves_total"], 1, "{moved}");
    fs::write(&gate, "").unwrap();
    for process in [&mut receiver, &mut sender] {
        let status = wait_until("all messages", DEADLINE, || process.exited())
            .unwrap_or_else(|error| panic!("{error}\n{}", cluster.all_logs()));
        assert!(status.success(), "{}", process.log_tail(5));
    }
    let table = cluster.cspctl(&["handler", "list"]).unwrap();
    assert!(table.contains("c1") && table.contains("WHY THERE"), "{table}");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
