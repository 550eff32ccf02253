//! Level 3: plug-ins move to `csp-context packets` and back while requests run; the host stops and returns.

use std::time::{Duration, Instant};

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Process, Tier, wait_until};

use super::{BLOCKED, OTHERS, URLS, cluster, control, fetch, json, refused};

/// How long a death may go unnoticed, and what a request takes.
const NOTICED: Duration = Duration::from_millis(1_000);
const SLACK: Duration = Duration::from_millis(500);

/// What the policy has for it.
pub fn policy(cluster: &Cluster) -> String {
    let socket = cluster.scratch().join("run/h0.sock");
    format!("plugin_hosts:\n  - {{name: h0, node: an-1, shm: \"{}\"}}\n", socket.display())
}

/// Starts the host of packet plug-ins beside the application node.
pub fn start(cluster: &Cluster) -> Process {
    let program = cluster.binary("csp-context").to_string_lossy().into_owned();
    let mut command = cluster.host(Tier::AppNode).command(&program);
    command.args(["packets", "--node", "an-1", "--cluster-key-file"]);
    command.arg(cluster.scratch().join("an-1.key"));
    command.arg("--shm").arg(cluster.scratch().join("run/h0.sock"));
    Process::spawn("packets", command, &cluster.scratch().join("log/packets.log")).unwrap()
}

fn runs(cluster: &Cluster) -> bool {
    let listed = json(cluster, &["plugin", "list"]);
    let environments = listed["nodes"][0]["environments"].as_array().unwrap().clone();
    environments.iter().any(|known| known["name"] == "h0" && known["level"] == 3 && known["running"] == true)
}

pub fn wait_running(cluster: &Cluster, running: bool) {
    wait_until("the state of the host", SERVING_DEADLINE, || (runs(cluster) == running).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", cluster.all_logs()));
}

/// Steps of the test in which requests run all the time: plug-ins move, operations reach them, the host stops
/// and returns.
pub fn moves(cluster: &Cluster) {
    let (code, text) = refused(cluster, "plugin move blocked 3 --context h9");
    assert!(code == 65 && text.contains("\"h9\" is not among the policy's plugin_hosts"), "{code} {text}");
    let mut host = start(cluster);
    for line in ["plugin move blocked 3", "plugin move tap 3", "plugin move mark 3"] {
        control(cluster, line);
    }
    wait_running(cluster, true);
    for address in BLOCKED {
        control(cluster, &format!("blocks add {address} --time 1h --from web-shop"));
    }
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(!fetch(cluster, url, from), "{from} is blocked by the host\n{}", host.log_tail(20));
    }
    for (url, from) in URLS.iter().zip(OTHERS) {
        assert!(fetch(cluster, url, from), "{from} is served through the host");
    }
    let listed = json(cluster, &["blocks", "list"]);
    let rows = listed["nodes"][0]["rows"].as_array().unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["note"] == "web-shop"), "{listed}");
    let dropped = || cluster.metric(Tier::NetworkNode, "csp_plugin_dropped_total", "instance=\"blocked\"");
    wait_until("the host's counters", SERVING_DEADLINE, || dropped().is_ok_and(|n| n >= 2.0).then_some(()))
        .unwrap();
    // It ends by SIGTERM: the rule lets packets pass at once, also those of the hosts that were blocked.
    assert!(host.stop().unwrap().success(), "{}", host.log_tail(20));
    wait_running(cluster, false);
    let listed = control(cluster, "plugin list");
    assert!(listed.contains("does not run, its rules fall back: plug-in host h0: "), "{listed}");
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(fetch(cluster, url, from), "{from}: nothing blocks it");
    }
    let (code, text) = refused(cluster, "plugin call blocked list");
    assert!(code == 1 && text.contains("the plug-in host does not run"), "{code} {text}");
    host = start(cluster);
    wait_running(cluster, true);
    // Its lists are empty. One plug-in stays there, the others go back.
    for line in ["plugin move tap 2", "plugin move blocked 2"] {
        control(cluster, line);
    }
    for (url, from) in URLS.iter().zip(OTHERS) {
        assert!(fetch(cluster, url, from), "{from} is served by plug-ins on both levels");
    }
    control(cluster, "plugin move mark 2");
    wait_until("nothing runs there", SERVING_DEADLINE, || (!runs(cluster)).then_some(())).unwrap();
    assert!(host.stop().unwrap().success());
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn a_host_that_hangs_is_noticed_within_a_second() {
    let Some(mut cluster) = cluster("pluginhost", |_| {}) else { return };
    let mut host = start(&cluster);
    for line in
        ["plugin create count counter --level 3", "rule add all proto tcp dport 80 ingress plugin count"]
    {
        control(&cluster, line);
    }
    wait_running(&cluster, true);
    for (url, from) in URLS.iter().zip(OTHERS) {
        assert!(fetch(&cluster, url, from));
    }
    host.signal("STOP").unwrap();
    let begin = Instant::now();
    let url = URLS[0];
    let brief = ["-sf", "-m", "0.1", "-o", "/dev/null", url];
    while !cluster.client.output("curl", &brief).is_ok_and(|output| output.status.success()) {
        assert!(begin.elapsed() < SERVING_DEADLINE, "{}", cluster.all_logs());
    }
    let served = begin.elapsed();
    eprintln!("served again after {} ms", served.as_millis());
    assert!(served < NOTICED + SLACK, "{} ms", served.as_millis());
    host.signal("CONT").unwrap();
    wait_running(&cluster, true);
    assert!(fetch(&cluster, url, OTHERS[0]));
    assert!(host.stop().unwrap().success());
    cluster.stop().unwrap();
}
