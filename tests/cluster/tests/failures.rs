//! Processes and daemons that are killed or stopped under load: what goes on, what ends, what comes back.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};

/// How long a connection may take to go on, or to end, after a failure.
const SETTLED: Duration = Duration::from_secs(12);
/// Longer than the lease of a registration (5 s), so that leases lapse while etcd stands still.
const ETCD_AWAY: Duration = Duration::from_secs(8);
const CONNECTIONS: usize = 6;

/// A client with one kept-alive connection that asks again and again, and ends when the connection does.
struct Steady(Process);

impl Steady {
    fn start(cluster: &Cluster) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let at = STARTED.fetch_add(1, Ordering::Relaxed);
        let script = cluster.scratch().join("steady.py");
        let mut command = cluster.client.command("/usr/bin/python3");
        command.arg(&script).args([VIP, "80", "/1KiB"]);
        let log = cluster.scratch().join(format!("log/steady-{at}.log"));
        Steady(Process::spawn("steady client", command, &log).unwrap())
    }

    fn answers(&self) -> usize {
        let text = fs::read_to_string(self.0.log()).unwrap_or_default();
        text.lines().filter(|line| *line == "answer 200 1024").count()
    }

    /// Waits until it was answered again or has ended; whether it goes on.
    fn goes_on(&mut self) -> bool {
        let before = self.answers();
        wait_until("a client to be answered or cut off", SETTLED, || {
            let more = self.answers() > before + 1;
            (more || self.0.exited().is_some()).then_some(more)
        })
        .unwrap_or_else(|error| panic!("{error:#}: it hangs after {before} answers"))
    }
}

/// So many of them, each answered at least twice.
fn steady_clients(cluster: &Cluster) -> Vec<Steady> {
    let mut all: Vec<Steady> = (0..CONNECTIONS).map(|_| Steady::start(cluster)).collect();
    let told: Vec<bool> = all.iter_mut().map(Steady::goes_on).collect();
    let last: Vec<String> = all.iter().map(|steady| steady.0.log_tail(1)).collect();
    assert_eq!(told, [true; CONNECTIONS], "clients before the failure: {last:#?}\n{}", cluster.all_logs());
    all
}

fn going_on(all: &mut [Steady]) -> usize {
    all.iter_mut().map(Steady::goes_on).filter(|goes_on| *goes_on).count()
}

fn end(all: Vec<Steady>) {
    for mut steady in all {
        steady.0.kill();
    }
}

/// Process ids of the children of `pid` whose program is called `name`.
fn children(pid: u32, name: &str) -> Vec<u32> {
    // A child is listed under the thread that started it.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let text: String = threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default())
        .collect();
    let ids = text.split_whitespace().filter_map(|word| word.parse().ok());
    ids.filter(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == name)
    })
    .collect()
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {name} {pid}");
}

fn kill(cluster: &mut Cluster, tier: Tier) {
    cluster.daemon(tier).unwrap().kill();
}

/// Starts the daemon again and waits until it and both services answer.
fn restart(cluster: &mut Cluster, tier: Tier) {
    cluster.start(tier).unwrap();
    cluster.wait_ready(tier).unwrap();
    cluster.wait_served().unwrap();
}

fn nginx_worker_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    let master = cluster.program("nginx").unwrap().pid();
    let before = children(master, "nginx");
    assert_eq!(before.len(), 2, "nginx workers: {before:?}");
    signal(before[0], "KILL");
    let left = going_on(&mut clients);
    assert!(left > 0, "a worker's death ended the other worker's connections too\n{}", cluster.all_logs());
    assert!(left < CONNECTIONS, "none of {CONNECTIONS} connections was the dead worker's");
    wait_until("a new nginx worker", SETTLED, || {
        let now = children(master, "nginx");
        (now.len() == 2 && !now.contains(&before[0])).then_some(())
    })
    .unwrap();
    cluster.wait_served().unwrap();
    end(steady_clients(cluster));
    assert_eq!(going_on(&mut clients), left, "connections of the worker that lives");
    end(clients);
}

fn agent_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    kill(cluster, Tier::AppNode);
    assert_eq!(going_on(&mut clients), CONNECTIONS, "established connections without the agent");
    cluster.wait_served().unwrap();
    restart(cluster, Tier::AppNode);
    assert_eq!(going_on(&mut clients), CONNECTIONS, "established connections after the agent's return");
    cluster.program("upload").unwrap().stop().unwrap();
    cluster.forget_program("upload");
    cluster.start_upload().unwrap();
    cluster.wait_served().unwrap();
    end(clients);
}

fn proxy_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    kill(cluster, Tier::ProxyNode);
    restart(cluster, Tier::ProxyNode);
    assert_eq!(going_on(&mut clients), 0, "a proxy's connections end with it");
    end(steady_clients(cluster));
}

fn network_node_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    kill(cluster, Tier::NetworkNode);
    restart(cluster, Tier::NetworkNode);
    // It kept nothing: proxies tell it the labels of connections that they find it does not know.
    let left = going_on(&mut clients);
    let last: Vec<String> = clients.iter().map(|steady| steady.0.log_tail(1)).collect();
    assert_eq!(
        left,
        CONNECTIONS,
        "connections over a network node's restart: {last:?}\n{}",
        cluster.all_logs()
    );
    end(clients);
    end(steady_clients(cluster));
}

fn etcd_stopped(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    let mgmt = cluster.daemon(Tier::MgmtNode).unwrap().pid();
    let etcd = children(mgmt, "etcd");
    assert_eq!(etcd.len(), 1, "etcd of process {mgmt}");
    signal(etcd[0], "STOP");
    let until = Instant::now() + ETCD_AWAY;
    while Instant::now() < until {
        assert!(cluster.answers(&format!("http://{VIP}/1KiB")), "without etcd\n{}", cluster.all_logs());
    }
    let left = going_on(&mut clients);
    signal(etcd[0], "CONT");
    assert_eq!(left, CONNECTIONS, "established connections without etcd\n{}", cluster.all_logs());
    for tier in Tier::ALL {
        cluster.wait_ready(tier).unwrap();
    }
    wait_until("all nodes to be registered and ready again", SETTLED, || {
        let text = cluster.cspctl(&["nodes", "-o", "json"]).ok()?;
        let view: serde_json::Value = serde_json::from_str(&text).ok()?;
        let nodes = view["nodes"].as_array()?;
        (nodes.len() == 4 && nodes.iter().all(|n| n["state"] == "ready")).then_some(())
    })
    .unwrap();
    cluster.wait_served().unwrap();
    end(clients);
}

/// A failure, and what must follow.
type Step = fn(&mut Cluster);

/// Sockets that a folder still holds.
fn sockets(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt;
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let left = entries.filter(|entry| entry.file_type().unwrap().is_socket());
    left.map(|entry| entry.path().display().to_string()).collect()
}

#[test]
fn failures_end_what_they_must_and_nothing_else() {
    let Some(mut cluster) = testing::lay_out("fail") else { return };
    fs::write(cluster.scratch().join("steady.py"), include_str!("../apps/steady.py")).unwrap();
    cluster.serve().unwrap();
    let steps: [(&str, Step); 5] = [
        ("an nginx worker is killed", nginx_worker_killed),
        ("the agent is killed", agent_killed),
        ("the network node is killed", network_node_killed),
        ("the proxy node is killed", proxy_killed),
        ("etcd is stopped", etcd_stopped),
    ];
    for (name, step) in steps {
        let began = Instant::now();
        println!("{name}");
        step(&mut cluster);
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
    assert_eq!(cluster.casualties(), "");
    // Each within 10 s and with exit code 0.
    cluster.stop().unwrap();
    assert_eq!(sockets(&cluster.scratch().join("run")), Vec::<String>::new(), "sockets left over");
}
