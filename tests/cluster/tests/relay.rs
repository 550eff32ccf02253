//! App node and proxy node as if on separate hosts: processes reach the proxy through their agent, over tcp.
//!
//! One machine has one boot id, so the configuration forbids shared memory between nodes.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::thread;
use std::time::Instant;

use csp_cluster::steady::{
    CONNECTIONS, SETTLED, Steady, children, end, going_on, signal, steady_clients, steady_clients_of,
};
use csp_cluster::{Cluster, Far, Fetch, San, Tier, testing, wait_until};

fn metric(cluster: &Cluster, name: &str, label: &str) -> f64 {
    cluster.metric(Tier::AppNode, name, label).unwrap()
}

/// Files of many sizes are transferred unchanged in both directions, and all of their bytes pass the agent.
fn whole_files(cluster: &mut Cluster) {
    let www = cluster.scratch().join("www");
    for len in [0, 1, 16_000, 1 << 20, 16 << 20] {
        let name = format!("{len}B");
        fs::write(www.join(&name), testing::pattern(len)).unwrap();
        Fetch(cluster).file(&name).map_err(|error| error.context(cluster.all_logs())).unwrap();
    }
    Fetch(cluster).upload("PUT", &www.join("1048576B")).unwrap();
    let report = Fetch(cluster).wrk("1KiB", 32, 2).unwrap();
    println!("{}", report.lines().filter(|line| line.contains("requests")).collect::<String>());
    wait_until("the agent's numbers", SETTLED, || {
        let [out, back] = ["out", "in"].map(|d| metric(cluster, "csp_relay_bytes_total", d));
        (out > f64::from(17 << 20) && back > f64::from(1 << 20)).then_some(())
    })
    .unwrap();
    // Two nginx workers, their master and Python, each with its pool of VIs; no process was refused.
    assert!(metric(cluster, "csp_relay_vis_entries", "") >= 3.0);
    assert_eq!(metric(cluster, "csp_relay_refused_total", ""), 0.0);
    assert_eq!(metric(cluster, "csp_relay_routes", "up"), 1.0);
    let proxies = cluster.ask(Tier::AppNode, "/v1/proxies").unwrap();
    assert!(proxies.contains("\"provider\":\"tcp\"") && proxies.contains("10.77.0.2:7356"), "{proxies}");
}

fn nginx_worker_killed(cluster: &mut Cluster) {
    let master = cluster.program("nginx").unwrap().pid();
    let before = children(master, "nginx");
    let mut clients = steady_clients_of(cluster, &before);
    signal(before[0], "KILL");
    let left = going_on(&mut clients);
    assert!((1..clients.len()).contains(&left), "{left} go on: one of two workers was killed");
    wait_until("a new nginx worker", SETTLED, || (children(master, "nginx").len() == 2).then_some(()))
        .unwrap();
    cluster.wait_served().unwrap();
    end(clients);
}

fn proxy_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    cluster.daemon(Tier::ProxyNode).unwrap().kill();
    cluster.start(Tier::ProxyNode).unwrap();
    cluster.wait_ready(Tier::ProxyNode).unwrap();
    cluster.wait_served().unwrap();
    assert_eq!(going_on(&mut clients), 0, "a proxy's connections end with it");
    end(steady_clients(cluster));
}

/// A proxy that is silent, as after its host vanished, is detected although no process sends anything.
fn proxy_stopped(cluster: &mut Cluster) {
    let pid = cluster.daemon(Tier::ProxyNode).unwrap().pid();
    let silent = || metric(cluster, "csp_relay_proxies_silent_total", "");
    let before = silent();
    let since = Instant::now();
    signal(pid, "STOP");
    wait_until("the agent to notice", SETTLED, || (silent() > before).then_some(())).unwrap();
    let noticed = since.elapsed();
    signal(pid, "CONT");
    // One second in the transport's tests with virtual time; here also the metrics' age, curl, and the
    // machine's load.
    println!("  noticed after {:.1} s", noticed.as_secs_f64());
    cluster.wait_served().unwrap();
}

/// The processes of a stopped agent continue: their connections are reset, rather than ended as if they were
/// complete.
fn agent_stopped(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    cluster.daemon(Tier::AppNode).unwrap().stop().unwrap();
    assert_eq!(going_on(&mut clients), 0, "connections through an agent that is gone");
    for client in &clients {
        let last = client.last();
        let reset = last.contains("ConnectionResetError") || last.contains("BrokenPipeError");
        assert!(reset, "a client saw an end instead of a reset: {last}");
    }
    cluster.start(Tier::AppNode).unwrap();
    cluster.wait_ready(Tier::AppNode).unwrap();
    cluster.wait_served().unwrap();
    end(steady_clients(cluster));
}

/// Unlike connections to a proxy of the same host, these end with the agent; processes attach to its
/// successor.
fn agent_killed(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    cluster.daemon(Tier::AppNode).unwrap().kill();
    assert_eq!(going_on(&mut clients), 0, "connections through an agent that is dead");
    cluster.start(Tier::AppNode).unwrap();
    cluster.wait_ready(Tier::AppNode).unwrap();
    cluster.wait_served().unwrap();
    end(steady_clients(cluster));
}

/// Cuts the connections that carry the SAN, at the proxy's host: a socket that is killed ends as if a switch
/// had dropped its state.
const CUT: &str = "ss -K '( dst 10.77.0.1 or dst 10.77.0.3 )' >/dev/null";

fn all_go_on(cluster: &Cluster, clients: &mut [Steady]) {
    let left = going_on(clients);
    let last: Vec<String> = clients.iter().map(Steady::last).collect();
    assert_eq!(left, CONNECTIONS, "connections go on: {last:#?}\n{}", cluster.all_logs());
}

/// The connections that carry the SAN are cut repeatedly while all processes run, each time as soon as all
/// clients have been answered again. No client is affected.
fn san_cut(cluster: &mut Cluster) {
    let cluster = &*cluster;
    let mut clients = steady_clients(cluster);
    let links = |what: &str| cluster.metric(Tier::ProxyNode, &format!("csp_links_{what}_total"), "").unwrap();
    let before = links("resumed");
    let mut files = 0;
    thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            for _ in 0..10 {
                cluster.host(Tier::ProxyNode).run("sh", &["-c", CUT]).unwrap();
                all_go_on(cluster, &mut clients);
            }
        });
        while !cutter.is_finished() {
            let load = Fetch(cluster).wrk("16000B", 8, 1);
            let file = load.and_then(|_| Fetch(cluster).file("16777216B"));
            file.map_err(|error| error.context(cluster.all_logs())).unwrap();
            files += 1;
        }
    });
    wait_until("the proxy's numbers", SETTLED, || (links("resumed") > before).then_some(())).unwrap();
    println!("  {files} files; {} interruptions, {} resumed", links("interrupted"), links("resumed"));
    end(clients);
}

/// The connections are cut while nothing runs for longer than a peer may be silent, as on a machine during
/// migration: a peer that had no chance to send is not declared dead.
fn all_still(cluster: &mut Cluster) {
    let mut clients = steady_clients(cluster);
    let cuts = || cluster.metric(Tier::ProxyNode, "csp_links_interrupted_total", "").unwrap();
    let before = cuts();
    let hosts = [Tier::NetworkNode, Tier::ProxyNode, Tier::AppNode].map(|tier| cluster.host(tier));
    let pids: Vec<u32> =
        hosts.iter().chain([&&cluster.client]).flat_map(|host| host.pids().unwrap()).collect();
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    for cut_after in ["0", "1"] {
        let still = format!(
            "kill -STOP {pids} || true; sleep {cut_after}; {CUT}; sleep 1; kill -CONT {pids} || true"
        );
        cluster.host(Tier::ProxyNode).run("sh", &["-c", &still]).unwrap();
        all_go_on(cluster, &mut clients);
    }
    wait_until("the proxy's numbers", SETTLED, || (cuts() > before).then_some(())).unwrap();
    end(clients);
}

/// An action, and its required result.
type Step = fn(&mut Cluster);

#[test]
#[ignore = "depends on load: make test-faults"]
fn unmodified_programs_serve_through_their_agent() {
    let Some(mut cluster) = testing::lay_out_over("relay", San::Apart(Far::Tcp)) else { return };
    cluster.serve().unwrap();
    let steps: [(&str, Step); 8] = [
        ("whole files", whole_files),
        ("the SAN's connections are cut", san_cut),
        ("all stands still while they are cut", all_still),
        ("an nginx worker is killed", nginx_worker_killed),
        ("the proxy node is killed", proxy_killed),
        ("the proxy node is stopped", proxy_stopped),
        ("the agent is stopped", agent_stopped),
        ("the agent is killed", agent_killed),
    ];
    for (name, step) in steps {
        let began = Instant::now();
        println!("{name}");
        step(&mut cluster);
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// UCX listens before any peer has shown a token: on the SAN's interface, and on no other that a host has.
#[test]
fn nothing_listens_beside_the_san() {
    let Some(mut cluster) = testing::lay_out_over("sanonly", San::Apart(Far::Ucx)) else { return };
    let tiers = [Tier::NetworkNode, Tier::ProxyNode, Tier::AppNode];
    for tier in tiers {
        let host = cluster.host(tier);
        host.ip(&["link", "add", "other0", "type", "veth", "peer", "name", "other1"]).unwrap();
        host.address("other0", "192.0.2.1/24").unwrap();
        host.ip(&["link", "set", "other0", "up"]).unwrap();
        host.ip(&["link", "set", "other1", "up"]).unwrap();
    }
    cluster.serve().unwrap();
    Fetch(&cluster).file("1KiB").unwrap();
    for tier in tiers {
        let pid = format!("pid={},", cluster.daemon(tier).unwrap().pid());
        let listening = cluster.host(tier).run("ss", &["-Htlnp"]).unwrap();
        let own: Vec<&str> = listening.lines().filter(|line| line.contains(&pid)).collect();
        let on_san =
            |line: &&str| line.split_whitespace().nth(3).is_some_and(|at| at.starts_with("10.77.0."));
        // The admin endpoint, and those of UCX.
        assert!(own.len() > 1 && own.iter().all(on_san), "{tier:?}: {listening}");
    }
    cluster.stop().unwrap();
}
