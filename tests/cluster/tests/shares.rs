//! Attacks by an unprivileged user on a small proxy: silent connections from the LAN, and connections that
//! its programs open without end. Clients and other users are served meanwhile.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};

/// User nobody, and another one.
const NOBODY: u32 = 65534;
const OTHER: u32 = 1000;
const OUTSIDE_PORT: u16 = 8000;
const CONNECTIONS: u32 = 64;
const REQUESTS: u32 = 24;
const ATTACK_DEADLINE: Duration = Duration::from_secs(60);

/// Opens connections and sends nothing.
const SILENT: &str = "import socket, sys, time
held = [socket.create_connection((sys.argv[1], 80), 30) for n in range(300)]
print('opened', flush=True)
while True:
    held.append(socket.create_connection((sys.argv[1], 80), 30))
    time.sleep(0.02)";

/// Opens connections until it gets an error.
const GREEDY: &str = "import socket, sys, time
held = []
try:
    while True:
        held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 30))
except OSError as error:
    print(f'{len(held)} connections, then error {error.errno}', flush=True)
time.sleep(600)";

/// Words that run a program as this user.
fn by_user(uid: u32) -> Vec<String> {
    let uid = uid.to_string();
    ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"].map(str::to_owned).to_vec()
}

/// Returns `csp-run` of Python with this program, by a user on the application host.
fn accelerated(cluster: &Cluster, uid: u32, program: &str, arguments: &[&str]) -> Command {
    let run = cluster.scratch().join("run");
    let mut words = by_user(uid);
    words.extend([run.join("csp-run"), run.join("agent.sock")].map(|path| path.display().to_string()));
    words.insert(words.len() - 1, "--agent".to_owned());
    words.extend(["/usr/bin/python3", "-c", program].map(str::to_owned));
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    let mut command = cluster.host(Tier::AppNode).command(&words[0]);
    command.env("CSP_SOCKFILTER", run.join("libcsp_sockfilter.so")).args(&words[1..]);
    command
}

/// Starts an attack and waits until it prints `ready`; returns what it printed.
fn attack(cluster: &Cluster, name: &str, command: Command, ready: &str) -> (Process, String) {
    let log = cluster.scratch().join(format!("log/{name}.log"));
    let process = Process::spawn(name, command, &log).unwrap();
    let printed = || fs::read_to_string(&log).ok().filter(|text| text.contains(ready));
    let text = wait_until(&format!("{name} to print {ready:?}"), ATTACK_DEADLINE, printed)
        .map_err(|error| error.context(process.log_tail(20) + &cluster.all_logs()))
        .unwrap();
    (process, text)
}

/// Waits until a metric of the proxy exceeds `bound`: workers publish their numbers at intervals.
fn metric_exceeds(cluster: &Cluster, name: &str, bound: f64) {
    let exceeds = || cluster.metric(Tier::ProxyNode, name, "").ok().filter(|value| *value > bound);
    wait_until(&format!("{name} above {bound}"), Duration::from_secs(10), exceeds).unwrap();
}

fn clients_are_served(cluster: &Cluster) {
    for request in 0..REQUESTS {
        let url = format!("http://{VIP}/1KiB");
        let output = cluster.client.output("curl", &["-sSf", "-m", "10", "-o", "/dev/null", &url]).unwrap();
        assert!(output.status.success(), "request {request}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Programs of user nobody open as many connections as they get; another user's program still gets one.
fn connections_without_end(cluster: &Cluster) {
    let mut server = cluster.client.command("/usr/bin/python3");
    server.args(["-m", "http.server", &OUTSIDE_PORT.to_string(), "--bind", CLIENT_ADDRESS]);
    let log = cluster.scratch().join("log/outside.log");
    let mut outside = Process::spawn("the server outside", server, &log).unwrap();
    let url = format!("http://{CLIENT_ADDRESS}:{OUTSIDE_PORT}/");
    let answers = || cluster.answers(&url).then_some(());
    wait_until("the server outside", Duration::from_secs(10), answers).unwrap();
    let greedy = accelerated(cluster, NOBODY, GREEDY, &[CLIENT_ADDRESS, &OUTSIDE_PORT.to_string()]);
    let (mut greedy, printed) = attack(cluster, "greedy", greedy, "connections, then error");
    let held: u32 = printed.split_whitespace().next().unwrap().parse().unwrap();
    assert!((CONNECTIONS / 4..=CONNECTIONS / 2 + 1).contains(&held), "{printed}");
    assert!(printed.contains("error 105"), "ENOBUFS: {printed}");
    metric_exceeds(cluster, "csp_connects_over_share_total", 0.0);
    let fetch = format!("import urllib.request; urllib.request.urlopen('{url}', timeout=10).read()");
    let output = accelerated(cluster, OTHER, &fetch, &[]).output().unwrap();
    assert!(output.status.success(), "another user: {}", String::from_utf8_lossy(&output.stderr));
    clients_are_served(cluster);
    greedy.stop().unwrap();
    outside.stop().unwrap();
}

/// A program of user nobody on the client's host opens connections and sends nothing; clients beside it are
/// served.
fn silent_connections(cluster: &Cluster) {
    let words = by_user(NOBODY);
    let mut command = cluster.client.command(&words[0]);
    command.args(&words[1..]).args(["/usr/bin/python3", "-c", SILENT, VIP]);
    let (mut silent, _) = attack(cluster, "silent", command, "opened");
    clients_are_served(cluster);
    metric_exceeds(cluster, "csp_idle_given_up_total", f64::from(300 - CONNECTIONS));
    assert!(silent.exited().is_none(), "the attack lasts: {}", silent.log_tail(5));
    silent.stop().unwrap();
}

#[test]
fn an_unprivileged_user_keeps_out_neither_clients_nor_other_users() {
    let Some(mut cluster) = testing::lay_out("shares") else { return };
    let config = cluster.config(Tier::ProxyNode);
    let small = format!("capacity:\n  connections: {CONNECTIONS}\n  half_open: 32\n");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &small).unwrap();
    cluster.serve().unwrap();
    fs::copy(cluster.binary("csp-run"), cluster.scratch().join("run/csp-run")).unwrap();
    connections_without_end(&cluster);
    silent_connections(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
