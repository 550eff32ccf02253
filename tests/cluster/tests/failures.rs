//! Processes and daemons that are killed or stopped under load: which connections continue, which end, what
//! recovers.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use csp_cluster::steady::{
    CONNECTIONS, SETTLED, children, end, going_on, signal, steady_clients, steady_clients_of,
};
use csp_cluster::{Cluster, San, Tier, testing, wait_until};

/// Longer than the lease of a registration (5 s), so that leases expire while etcd is stopped.
const ETCD_AWAY: Duration = Duration::from_secs(8);

fn kill(cluster: &mut Cluster, tier: Tier) {
    cluster.daemon(tier).unwrap().kill();
}

/// Restarts the daemon and waits until it and both services answer.
fn restart(cluster: &mut Cluster, tier: Tier) {
    cluster.start(tier).unwrap();
    cluster.wait_ready(tier).unwrap();
    cluster.wait_served().unwrap();
}

fn nginx_worker_killed(cluster: &mut Cluster) {
    let master = cluster.program("nginx").unwrap().pid();
    let before = children(master, "nginx");
    assert_eq!(before.len(), 2, "nginx workers: {before:?}");
    let mut clients = steady_clients_of(cluster, &before);
    signal(before[0], "KILL");
    let left = going_on(&mut clients);
    assert!(left > 0, "a worker's death ended the other worker's connections too\n{}", cluster.all_logs());
    assert!(left < clients.len(), "none of the connections was the dead worker's");
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
    cluster.remove_program("upload");
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
    // It has lost its state: proxies announce to it the labels of connections that it does not know.
    let left = going_on(&mut clients);
    let last: Vec<String> = clients.iter().map(|steady| steady.last()).collect();
    assert_eq!(
        left,
        CONNECTIONS,
        "connections over a network node's restart: {last:?}\n{}",
        cluster.all_logs()
    );
    end(clients);
    end(steady_clients(cluster));
}

/// Both of its nodes end, and the connections with the proxy's; others are served at once when it is back.
fn edge_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    kill(cluster, Tier::NetworkNode);
    restart(cluster, Tier::NetworkNode);
    cluster.wait_ready(Tier::ProxyNode).unwrap();
    assert_eq!(going_on(&mut clients), 0, "an edge's connections end with it");
    end(steady_clients(cluster));
}

/// A pause that is shorter than a link may be silent (0.8 s) ends nothing, neither within the edge nor at its
/// peers.
fn edge_paused(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    let edge = cluster.daemon(Tier::NetworkNode).unwrap().pid();
    for _ in 0..3 {
        signal(edge, "STOP");
        std::thread::sleep(Duration::from_millis(300)); // the time that passes is what is tested
        signal(edge, "CONT");
        assert_eq!(going_on(&mut clients), CONNECTIONS, "after a pause\n{}", cluster.all_logs());
    }
    end(clients);
}

fn etcd_stopped(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    let mgmt = cluster.daemon(Tier::MgmtNode).unwrap().pid();
    let etcd = children(mgmt, "etcd");
    assert_eq!(etcd.len(), 1, "etcd of process {mgmt}");
    signal(etcd[0], "STOP");
    let until = Instant::now() + ETCD_AWAY;
    while Instant::now() < until {
        cluster.wait_answer("1KiB").unwrap();
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

/// A failure, and its required result.
type Step = fn(&mut Cluster);

/// Returns the sockets left in a folder.
fn sockets(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt;
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let left = entries.filter(|entry| entry.file_type().unwrap().is_socket());
    left.map(|entry| entry.path().display().to_string()).collect()
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn failures_end_what_they_must_and_nothing_else() {
    let Some(cluster) = testing::lay_out("fail") else { return };
    take(
        cluster,
        &[
            ("an nginx worker is killed", nginx_worker_killed),
            ("the agent is killed", agent_killed),
            ("the network node is killed", network_node_killed),
            ("the proxy node is killed", proxy_killed),
            ("etcd is stopped", etcd_stopped),
        ],
    );
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn failures_beside_an_edge_end_what_they_must_and_nothing_else() {
    let Some(cluster) = testing::lay_out_edge("failedge", San::Shm) else { return };
    take(
        cluster,
        &[
            ("an nginx worker is killed", nginx_worker_killed),
            ("the agent is killed", agent_killed),
            ("the edge is paused", edge_paused),
            ("the edge is killed", edge_killed),
            ("etcd is stopped", etcd_stopped),
        ],
    );
}

fn take(mut cluster: Cluster, steps: &[(&str, Step)]) {
    cluster.set_workers(Tier::NetworkNode, 2).unwrap();
    cluster.serve().unwrap();
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
