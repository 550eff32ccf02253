//! Events over ZeroMQ: the subscriber of docs/operations/events.md, with libzmq, as it stands there.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "waits for programs")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use csp_api::events::What;
use csp_control::NodeRecord;
use csp_daemon::Events;
use csp_types::Role;
use rustix::process::{Pid, Signal, kill_process};
use support::{Mgmt, SOON, eventually, free_address};

/// Debian's interpreter, for which python3-zmq is installed.
const PYTHON: &str = "/usr/bin/python3";

/// The program in the documentation.
fn script() -> String {
    let page = include_str!("../../docs/operations/events.md");
    let code = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    code.expect("a program in the page").to_owned()
}

/// A subscriber that is killed with its owner, and the lines that it prints with the time of each.
struct Program(Child, mpsc::Receiver<(Instant, String)>);

impl Program {
    fn start(endpoint: &str, server_key: &str, keys: &Path) -> Program {
        let mut command = Command::new(PYTHON);
        command.args(["-c", &script(), endpoint, server_key]).arg(keys);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python starts");
        let (lines, got) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = lines.send((Instant::now(), line));
            }
        });
        Program(child, got)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).expect("a process"), signal).expect("a signal");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_pyzmq() -> bool {
    let found = Command::new(PYTHON).args(["-c", "import zmq"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        csp_support::skip("pyzmq is not installed for /usr/bin/python3 (Debian package python3-zmq)");
    }
    found
}

/// A pair of keys: the public one, and the file with both.
async fn pair(mgmt: &Path, name: &str) -> (String, std::path::PathBuf) {
    let base = mgmt.join(name);
    let output = support::cspctl().arg("channel-key").arg(&base).output().expect("cspctl runs");
    assert!(output.status.success(), "{output:?}");
    let mut public = String::new();
    let file = std::fs::File::open(base.with_extension("key")).expect("the public key");
    file.take(4096).read_to_string(&mut public).expect("text");
    let key = public.split('"').nth(1).expect("a key in quotes").to_owned();
    (key, base.with_extension("key_secret"))
}

/// How many events are recorded: more by `make test-operations`.
fn count() -> u64 {
    std::env::var("CSP_EVENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(1000)
}

/// Records an event each millisecond; returns when.
fn record_all(events: &Events, most: u64) -> Vec<Instant> {
    let (begin, pace) = (Instant::now(), Duration::from_millis(1));
    let at = |number: u64| begin + pace * u32::try_from(number).unwrap_or(u32::MAX);
    let mut recorded = Vec::new();
    for generation in 1..=most {
        std::thread::sleep(at(generation).saturating_duration_since(Instant::now()));
        recorded.push(Instant::now());
        events.record(&What::PolicyStagedHere { generation });
    }
    recorded
}

/// How long after they were recorded events arrived; bounded where that is measured.
fn check_delays(arrived: &[Instant], recorded: &[Instant]) {
    let mut delays: Vec<Duration> =
        arrived.iter().zip(recorded).map(|(at, since)| at.saturating_duration_since(*since)).collect();
    delays.sort_unstable();
    let (half, most_of) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    println!("{} events: p50 {half:?}, p99 {most_of:?} after they were recorded", delays.len());
    if std::env::var_os("CSP_EVENTS").is_some() {
        assert!(most_of <= Duration::from_millis(100), "p99 is {most_of:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_subscriber_of_the_documentation_gets_each_event_while_another_one_is_stopped() {
    if !csp_support::installed("etcd", "etcd-server") || !has_pyzmq() {
        return;
    }
    let keys = support::Scratch::new();
    let (server_key, server_file) = pair(&keys.0, "events").await;
    let (own_key, own_file) = pair(&keys.0, "siem").await;
    let (_, stranger) = pair(&keys.0, "stranger").await;
    let listen = free_address();
    let section = format!("events: {{listen: \"{listen}\", key: {}}}\n", server_file.display());
    let mgmt = Mgmt::start_with(&section).await;
    let policy = format!("apiVersion: csp/v1\nevent_subscribers: [{{name: siem, key: '{own_key}'}}]\n");
    let file = mgmt.scratch.file("policy.yaml", &policy);
    let ran = mgmt.cspctl(&["policy", "apply", file.to_str().expect("a path")]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);

    // Where it publishes, and its public key, are in its registration.
    let nodes = mgmt.cspctl(&["nodes", "-o", "json"]).await.json();
    let expected = serde_json::json!({ "address": listen.to_string(), "key": server_key });
    assert_eq!(nodes["nodes"][0]["events"], expected, "{nodes}");
    let endpoint = format!("tcp://{listen}");
    let start = |file: &Path| Program::start(&endpoint, &server_key, file);
    let (reads, stopped, denied) = (start(&own_file), start(&own_file), start(&stranger));
    let figure = async |name: &str, least: f64| {
        eventually(name, async || {
            let metrics = mgmt.get("/metrics").await?;
            let line = metrics.as_str()?.lines().find(|line| line.starts_with(name))?.to_owned();
            let value: f64 = line.split(' ').nth(1)?.parse().ok()?;
            (value >= least).then_some(value)
        })
        .await
    };
    figure("csp_event_subscribers ", 2.0).await;
    figure("csp_event_subscribers_denied_total ", 1.0).await;
    stopped.signal(Signal::STOP);

    let record = NodeRecord::new("pn-9".parse().expect("an id"), Role::ProxyNode, String::new());
    let events = Events::of(&record);
    let membership = support::membership(&[&mgmt]);
    let own = "pn-9".parse().expect("an id");
    let pushing = tokio::spawn(csp_daemon::events::push(events.clone(), own, membership, None));
    let most = count();
    let recording = std::thread::spawn(move || record_all(&events, most));
    let mut arrived = Vec::new();
    while arrived.len() < most as usize {
        let (at, line) = reads.1.recv_timeout(SOON).expect("an event arrives");
        if let Some(rest) = line.strip_prefix("pn-9 ") {
            let expected = format!("{0} can use generation {0}", arrived.len() + 1);
            assert_eq!(rest, expected, "each once, in order");
            arrived.push(at);
        }
    }
    check_delays(&arrived, &recording.join().expect("it does not panic"));
    assert!(denied.1.try_recv().is_err(), "a key that the policy does not name gets nothing");
    stopped.signal(Signal::CONT);

    // A policy that no longer names the key.
    let file = mgmt.scratch.file("policy.yaml", "apiVersion: csp/v1\n");
    let ran = mgmt.cspctl(&["policy", "apply", file.to_str().expect("a path")]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    eventually("they are disconnected", async || {
        let metrics = mgmt.get("/metrics").await?;
        metrics.as_str()?.contains("\ncsp_event_subscribers 0").then_some(())
    })
    .await;
    pushing.abort();
}
