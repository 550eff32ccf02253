//! Handlers that an operator supplies: brought by `cspctl handler put`, run in a path, replaced while
//! messages wait, stopped when they run too long, given to proxies that join later, removed. With real
//! programs on both ends.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use csp_cluster::several::{self, Lans, MGMT_NODE};
use csp_cluster::{Cluster, Far, Process, San, Tier, VIP, testing, wait_until};
use serde_json::Value;

const PORT: u16 = 5557;
const DEADLINE: Duration = Duration::from_secs(120);
/// Messages: more than queues, windows and sockets hold.
const COUNT: u64 = 20_000;
/// After so many the receiver reads no more, until the module was replaced.
const GATE: u64 = 2_000;

/// A module that calls `work` for each message, and emits it as it is.
fn module(work: &str) -> String {
    format!(
        r#"(module
            (import "csp" "emit_same" (func $emit (param i32) (result i32)))
            (memory (export "memory") 1 1)
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "on_message") (param i32 i32 i32) (result i32) {work} (call $emit (i32.const 0))))"#
    )
}

/// A module of less than 256 KiB for which the compiler needs gigabytes: loops within loops, in the innermost
/// of which all locals change.
fn hungry() -> String {
    let (locals, loops) = (6_000, 2_000);
    let change = |local| format!("(local.set {local} (i32.add (local.get {local}) (i32.const 1)))");
    let inner: String = (1..=locals).map(change).collect();
    format!(
        "(module (func (export \"f\") (param i32) (local{}) {} {inner} {}))",
        " i32".repeat(locals),
        "(loop ".repeat(loops),
        "(br_if 0 (local.get 0)))".repeat(loops)
    )
}

/// Writes a module to a file of the cluster.
fn write(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let file = cluster.scratch().join(name);
    fs::write(&file, wat::parse_str(text).unwrap()).unwrap();
    file
}

/// Gives a module to the proxies. Returns the name by which a policy uses it.
fn put(cluster: &Cluster, name: &str, text: &str) -> String {
    let file = write(cluster, name, text);
    let printed = cluster.cspctl(&["handler", "put", &file.to_string_lossy()]).unwrap();
    let (hash, stored) = printed.split_once('\n').unwrap();
    assert_eq!(stored.trim(), "stored at pn-1");
    hash.to_owned()
}

fn policy(module: &str, on_stop: &str) -> String {
    format!(
        "apiVersion: csp/v1\nhandlers:\n  - {{name: mine, module: {module}, on_stop: {on_stop}}}\nchannels:\n  - name: jobs\n    \
         vip: {VIP}\n    port: {PORT}\n    pattern: push\n    path:\n      - {{handler: mine}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    )
}

fn apply(cluster: &Cluster, text: &str) -> Result<String, String> {
    let file = cluster.scratch().join("handlers.yaml");
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map_err(|error| error.to_string())
}

fn cluster(name: &str) -> Option<Cluster> {
    cluster_over(name, San::Shm)
}

fn cluster_over(name: &str, san: San) -> Option<Cluster> {
    let mut cluster = testing::lay_out_over(name, san)?;
    cluster.start_daemons().unwrap();
    fs::write(cluster.scratch().join("zmq_pipe.py"), include_str!("../apps/zmq_pipe.py")).unwrap();
    Some(cluster)
}

/// Returns the stage that runs the module.
fn stage(cluster: &Cluster) -> Option<Value> {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["handler", "list", "-o", "json"]).ok()?).ok()?;
    view["nodes"][0]["stages"].as_array()?.last().cloned()
}

/// Starts a receiver and a sender of [`COUNT`] messages. The receiver waits for `gate` in the middle.
fn start(cluster: &Cluster) -> (Process, Process, PathBuf) {
    let script = cluster.scratch().join("zmq_pipe.py").to_string_lossy().into_owned();
    let (endpoint, count) = (format!("tcp://{VIP}:{PORT}"), COUNT.to_string());
    let gate = cluster.scratch().join("gate");
    let mut pull = cluster.client.command("/usr/bin/python3");
    pull.args([&script, "pull", &endpoint, &count, &GATE.to_string()]).arg(&gate);
    let mut push = cluster.client.command("/usr/bin/python3");
    push.args([&script, "push", &endpoint, &count]);
    let run =
        |name, command| Process::spawn(name, command, &cluster.scratch().join(format!("log/{name}.log")));
    (run("pull", pull).unwrap(), run("push", push).unwrap(), gate)
}

fn end(cluster: &Cluster, process: &mut Process) {
    let status = wait_until("a program ends", DEADLINE, || process.exited());
    let status =
        status.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", stage(cluster), cluster.all_logs()));
    assert!(status.success(), "{}\n{:?}", process.log_tail(5), stage(cluster));
}

#[test]
fn a_module_is_brought_runs_and_is_replaced_while_messages_wait() {
    let Some(mut cluster) = cluster("handlers") else { return };
    let missing = apply(&cluster, &policy(&"0".repeat(64), "restart")).unwrap_err();
    assert!(missing.contains("bring it with `cspctl handler put FILE`"), "{missing}");
    let wrong = write(&cluster, "wrong.wasm", r#"(module (import "env" "open" (func)))"#);
    let refused = cluster.cspctl(&["handler", "put", &wrong.to_string_lossy()]).unwrap_err().to_string();
    assert!(refused.contains("pn-1: the module imports `env.open`, which is not offered"), "{refused}");
    let first = put(&cluster, "first.wasm", &module(""));
    let second = put(&cluster, "second.wasm", &module("(drop (i32.const 7))"));
    assert_ne!(first, second);
    apply(&cluster, &policy(&first, "restart")).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    let (mut pull, mut push, gate) = start(&cluster);
    let calls = |stage: &Value| stage["calls_total"].as_u64();
    wait_until("messages wait behind the module", DEADLINE, || {
        stage(&cluster).filter(|stage| calls(stage) > Some(GATE))
    })
    .unwrap();
    let top: Value =
        serde_json::from_str(&cluster.cspctl(&["contexts", "top", "--once", "-o", "json"]).unwrap()).unwrap();
    let seen = top["stages"].as_array().unwrap().iter().find(|stage| stage["waiting"] != 0).unwrap();
    assert_eq!(
        (&seen["handler"], &seen["context"], &seen["stops_total"]),
        (&"mine".into(), &"c0".into(), &0.into())
    );
    let times = [&seen["p50_ns"], &seen["p99_ns"], &seen["max_ns"]].map(|time| time.as_u64().unwrap());
    assert!(times[0] > 0 && times.is_sorted(), "{seen}");
    // One page of memory; the bytes of a message are of no format.
    assert_eq!((&seen["memory_bytes"], &seen["formats"][0]["format"]), (&65_536.into(), &"unknown".into()));
    assert!(seen["fuel"].as_u64() > Some(0), "{seen}");
    apply(&cluster, &policy(&second, "restart")).unwrap();
    fs::write(&gate, "").unwrap();
    end(&cluster, &mut pull);
    end(&cluster, &mut push);
    let last = stage(&cluster).unwrap();
    assert_eq!((&last["module"], &last["state"]), (&second.into(), &"running".into()), "{last}");
    assert!(calls(&last) > Some(0), "the second module had the later messages: {last}");
    let table = cluster.cspctl(&["handler", "list"]).unwrap();
    assert!(table.contains("running") && table.contains(&first), "{table}");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn a_module_that_never_ends_is_stopped_and_messages_pass_by() {
    let Some(mut cluster) = cluster("endless") else { return };
    // The hundredth message is one too many for it.
    let endless = module(
        "(if (i32.eq (i32.load (i32.const 0)) (i32.const 100)) (then (loop $on (br $on))))
         (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))",
    );
    let hash = put(&cluster, "endless.wasm", &endless);
    apply(&cluster, &policy(&hash, "pass")).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    let (mut pull, mut push, gate) = start(&cluster);
    fs::write(&gate, "").unwrap();
    wait_until("the module was stopped", DEADLINE, || {
        stage(&cluster).filter(|stage| stage["state"] == "passed-by" && stage["passed_total"] != 0)
    })
    .unwrap();
    let stopped = stage(&cluster).unwrap();
    assert_eq!(stopped["stops"], serde_json::json!([{"reason": "fuel", "total": 1}]));
    assert_eq!(stopped["calls_total"], 100);
    assert!(stopped["passed_total"].as_u64() > Some(0), "{stopped}");
    // The message that stopped it is the only one that is lost, and it is counted.
    let lost = wait_until("the receiver sees the gap", DEADLINE, || pull.exited()).unwrap();
    assert!(!lost.success() && pull.log_tail(5).contains("100"), "{}", pull.log_tail(5));
    push.kill();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn a_proxy_that_joins_later_gets_its_modules_and_what_nothing_names_is_removed() {
    let Some(mut cluster) = several::lay_out("modules", San::Shm, Lans::Apart) else { return };
    let apply = |cluster: &several::Several, text: &str| {
        let file = cluster.scratch().join("handlers.yaml");
        fs::write(&file, text).unwrap();
        cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])
    };
    let list = |cluster: &several::Several, node: &str| -> Option<Value> {
        let view: Value =
            serde_json::from_str(&cluster.cspctl(&["handler", "list", "-o", "json"]).ok()?).ok()?;
        view["nodes"].as_array()?.iter().find(|known| known["node"] == node).cloned()
    };
    let [first, second] =
        [module(""), module("(drop (i32.const 7))")].map(|text| wat::parse_str(text).unwrap());
    let file = cluster.scratch().join("module.wasm");
    let put = |cluster: &several::Several, bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let printed = cluster.cspctl(&["handler", "put", &file.to_string_lossy()]).unwrap();
        printed.lines().next().unwrap().to_owned()
    };
    [MGMT_NODE, "pn-1"].into_iter().for_each(|id| cluster.start(id).unwrap());
    wait_until("a proxy is there", DEADLINE, || list(&cluster, "pn-1")).unwrap();
    let [first, second] = [first, second].map(|bytes| put(&cluster, &bytes));
    apply(&cluster, &policy(&first, "restart")).unwrap();
    cluster.start("pn-2").unwrap();
    let late = wait_until("the proxy that joins runs the module", DEADLINE, || {
        list(&cluster, "pn-2")
            .filter(|node| node["stages"].as_array().is_some_and(|stages| !stages.is_empty()))
    });
    let late = late.unwrap_or_else(|error| panic!("{error}: {}", cluster.logs()));
    assert_eq!(late["stages"][0]["module"], first.as_str(), "{late}");
    assert_eq!(late["modules"].as_array().unwrap().len(), 1, "it got what the policy names: {late}");
    // A policy with a module of before the proxy's time: the proxy gets it first.
    apply(&cluster, &policy(&second, "restart")).unwrap();
    let refused = cluster.cspctl(&["handler", "remove", &second]).unwrap_err().to_string();
    assert!(refused.contains("has the module as handler mine; apply one without it first"), "{refused}");
    // A proxy refuses as long as a path still runs it.
    let modules = |node| list(&cluster, node).map_or(0, |node| node["modules"].as_array().unwrap().len());
    wait_until("both proxies have removed the first module", DEADLINE, || {
        let _ = cluster.cspctl(&["handler", "remove", &first]);
        (modules("pn-1") == 1 && modules("pn-2") == 1).then_some(())
    })
    .unwrap();
    let unknown = cluster.cspctl(&["handler", "remove", &first]).unwrap_err().to_string();
    assert!(unknown.contains("no proxy has this module"), "{unknown}");
    assert_eq!(cluster.casualties(), "");
    ["pn-2", "pn-1", MGMT_NODE].into_iter().for_each(|id| cluster.stop_daemon(id).unwrap());
}

/// A module that emits each message with a mark at its end.
fn marking() -> String {
    // A declaration: 64 bytes at most, a buffer of 64 bytes at 256, no state.
    let declaration = r#"\28\00\00\00\01\00\00\00\40\00\00\00\00\00\00\00\00\01\00\00\40\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00"#;
    format!(
        r#"(module
            (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (data (i32.const 0) "{declaration}")
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "csp_declaration") (result i32) i32.const 0)
            (func (export "on_message") (param $format i32) (param $len i32) (param i32) (result i32)
                (i32.store8 (i32.add (i32.const 256) (local.get $len)) (i32.const 33))
                (call $emit (i32.const 0) (local.get $format) (i32.const 256)
                    (i32.add (local.get $len) (i32.const 1)))))"#
    )
}

#[test]
fn programs_bring_handlers_by_request_and_a_hostile_one_harms_nobody_else() {
    check_brought("supply", San::Shm);
}

/// The same in a proxy whose SAN is UCX, in one process with faults of modules.
#[test]
#[ignore = "depends on load: make test-faults"]
fn programs_bring_hostile_handlers_to_a_proxy_whose_san_is_ucx() {
    check_brought("supplyux", San::BetweenNodes(Far::Ucx));
}

fn check_brought(name: &str, san: San) {
    let Some(mut cluster) = cluster_over(name, san) else { return };
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n  - name: numbers\n    vip: {VIP}\n    port: {PORT}\n    requests: {{port: 5620, queries: 4, \
         lease_s: 2, handlers: {{anyone: true, each: 4, on_stop: end, fuel: 20000}}}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    );
    apply(&cluster, &text).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    let script = cluster.scratch().join("zmq_handler.py");
    fs::write(&script, include_str!("../apps/zmq_handler.py")).unwrap();
    let (endpoint, gate) = (format!("tcp://{VIP}:{PORT}"), cluster.scratch().join("gate"));
    let start = |cluster: &Cluster, name: &str, arguments: &[&str]| {
        let mut command = cluster.client.command("/usr/bin/python3");
        command.arg(&script).arg(arguments[0]).arg(&endpoint).args(&arguments[1..]);
        Process::spawn(name, command, &cluster.scratch().join(format!("log/{name}.log"))).unwrap()
    };
    let first = write(&cluster, "first.wasm", &module("")).to_string_lossy().into_owned();
    let endless =
        write(&cluster, "endless.wasm", &module("(loop $on (br $on))")).to_string_lossy().into_owned();
    let mut publisher = start(&cluster, "publish", &["publish"]);
    let mut reader = start(&cluster, "bring", &["bring", &first, "200", &gate.to_string_lossy()]);
    // Reads beyond its memory: a fault of the proxy's process.
    let wild = write(&cluster, "wild.wasm", &module("(drop (i32.load (i32.const -4)))"));
    let stages = |cluster: &Cluster| -> Option<Vec<Value>> {
        let view: Value =
            serde_json::from_str(&cluster.cspctl(&["handler", "list", "-o", "json"]).ok()?).ok()?;
        view["nodes"][0]["stages"].as_array().cloned()
    };
    let of = |cluster: &Cluster, handler: &str| {
        stages(cluster)?.into_iter().find(|stage| stage["handler"] == handler)
    };
    // A program of an address has one request at a time: each begins when the one before has its answer.
    let begun = |name: &str| {
        let begun = wait_until("a handler begins", DEADLINE, || of(&cluster, name));
        begun.unwrap_or_else(|error| panic!("{name}: {error}: {}", cluster.all_logs()));
    };
    begun("mine");
    // Its asker gets the error, and nobody else notices.
    let hungry = write(&cluster, "hungry.wasm", &hungry()).to_string_lossy().into_owned();
    let mut refused = start(&cluster, "hungry", &["keep", &hungry, "hungry"]);
    let answer = wait_until("the refusal of a module that takes the compiler too much", DEADLINE, || {
        fs::read_to_string(refused.log()).ok().filter(|log| log.contains("error"))
    });
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {}", cluster.all_logs()));
    assert!(answer.contains("the compiler needed more than 256 MiB of memory for the module"), "{answer}");
    refused.kill();
    let wild = wild.to_string_lossy().into_owned();
    let mut hostile = [("endless", &endless), ("wild", &wild)].map(|(name, file)| {
        let process = start(&cluster, name, &["keep", file, name]);
        begun(name);
        process
    });
    for (name, reason) in [("endless", "fuel"), ("wild", "trap")] {
        let stopped = wait_until("the hostile module was stopped", DEADLINE, || {
            of(&cluster, name).filter(|stage| stage["state"] == "ended")
        });
        let stopped =
            stopped.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", stages(&cluster), cluster.all_logs()));
        assert_eq!(stopped["stops"], serde_json::json!([{"reason": reason, "total": 1}]));
        assert_eq!((&stopped["of"], &stopped["lease_s"]), (&"numbers".into(), &2.into()), "{stopped}");
        assert!(stopped["by"].as_str().unwrap().starts_with("10."), "{stopped}");
    }
    wait_until("the other one runs", DEADLINE, || {
        of(&cluster, "mine").filter(|stage| stage["calls_total"].as_u64() > Some(250))
    })
    .unwrap_or_else(|error| panic!("{error}: {}\n{}", reader.log_tail(5), cluster.all_logs()));
    // The file is there as a whole at once.
    let draft = write(&cluster, "second.wasm", &marking());
    fs::rename(draft, &gate).unwrap();
    end(&cluster, &mut reader);
    let printed = fs::read_to_string(reader.log()).unwrap();
    assert!(printed.contains(r#""swapped": true"#) && printed.contains(" 200\n"), "{printed}");
    let table = cluster.cspctl(&["handler", "list"]).unwrap();
    assert!(table.contains("to numbers") && table.contains("2 s"), "{table}");
    hostile.iter_mut().for_each(Process::kill);
    wait_until("the leases are over", DEADLINE, || stages(&cluster).filter(Vec::is_empty))
        .unwrap_or_else(|error| panic!("{error}: {:?}", stages(&cluster)));
    publisher.kill();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
