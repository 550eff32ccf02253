//! Network node and proxy node as one process, csp-edge-node: it serves as two processes do, and shows two
//! nodes.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use csp_cluster::steady::SETTLED;
use csp_cluster::{Far, Fetch, San, Tier, testing, wait_until};

fn check(name: &str, san: San, workers: [u8; 2]) {
    let Some(mut cluster) = testing::lay_out_edge(name, san) else { return };
    for (tier, workers) in [Tier::NetworkNode, Tier::ProxyNode].into_iter().zip(workers) {
        cluster.set_workers(tier, workers).unwrap();
    }
    cluster.serve().unwrap();
    let fetch = Fetch(&cluster);
    for name in ["1KiB", "16KiB"] {
        std::fs::write(cluster.scratch().join("www").join(name), vec![7; 16 << 10]).unwrap();
        fetch.file(name).map_err(|error| error.context(cluster.all_logs())).unwrap();
    }
    fetch.upload("PUT", &cluster.scratch().join("www/16KiB")).unwrap();
    // What crosses a thread does not cross the tunnel.
    let metric = |name: &str| cluster.metric(Tier::NetworkNode, name, "").unwrap();
    let (sent, through_tunnels) =
        (metric("csp_lan_sent_bytes_total"), metric("csp_san_received_bytes_total"));
    let large = testing::pattern(4 << 20);
    std::fs::write(cluster.scratch().join("www/4MiB"), &large).unwrap();
    fetch.file("4MiB").map_err(|error| error.context(cluster.all_logs())).unwrap();
    wait_until("the download to be counted", SETTLED, || {
        (metric("csp_lan_sent_bytes_total") - sent > large.len() as f64).then_some(())
    })
    .unwrap();
    let through_tunnels = metric("csp_san_received_bytes_total") - through_tunnels;
    // A worker of the network node without a partner uses the tunnel, as do others' flows to it.
    if workers[0] <= workers[1] {
        assert!(through_tunnels < 65_536.0, "{through_tunnels} bytes went through tunnels within a thread");
    }
    // Two nodes, each with its own endpoint; every tunnel between them is up.
    wait_until("both nodes to be shown as ready", SETTLED, || {
        let nodes = cluster.cspctl(&["nodes"]).unwrap();
        let is_ready = |node| nodes.lines().any(|line| line.contains(node) && line.contains(" ready "));
        ["nn-1", "pn-1"].into_iter().all(is_ready).then_some(())
    })
    .unwrap();
    let tunnels = cluster.ask(Tier::NetworkNode, "/v1/tunnels").unwrap();
    assert_eq!(
        tunnels.matches("\"state\":\"up\"").count(),
        usize::from(workers[0] * workers[1]),
        "{tunnels}"
    );
    let pid = cluster.daemon(Tier::NetworkNode).unwrap().pid();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let data = names.filter(|name| name.starts_with("data-")).count();
    assert_eq!(data, usize::from(workers[0].max(workers[1])), "a thread for two workers");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn an_edge_serves_processes_of_its_host() {
    check("edge", San::Shm, [1, 1]);
}

#[test]
fn an_edge_of_unequal_nodes_serves_processes_of_another_host() {
    check("edgefar", San::ToProcesses(Far::Tcp), [1, 2]);
}

#[test]
fn an_edge_with_a_worker_that_shares_its_thread_with_none_serves() {
    check("edgemore", San::Shm, [2, 1]);
}

/// A worker of the edge whose other half cannot be had must not wait for it.
#[test]
fn an_edge_ends_if_one_of_its_nodes_cannot_be_had() {
    let Some(cluster) = testing::lay_out_edge("edgehalf", San::Shm) else { return };
    let config = cluster.config(Tier::NetworkNode);
    let text = std::fs::read_to_string(&config).unwrap().replace("interface: lan0", "interface: none0");
    std::fs::write(&config, text).unwrap();
    let mut command =
        cluster.host(Tier::NetworkNode).command(&cluster.binary("csp-edge-node").to_string_lossy());
    command.arg("--network-node").arg(&config).arg("--proxy-node").arg(cluster.config(Tier::ProxyNode));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("csp-edge-node: network node: ") && said.contains("none0"), "{said}");
}
