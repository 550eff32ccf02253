//! The VIP is an address of hosts of every tier, on `lo`, as described in docs/operations.md: services,
//! egress and the SAN work as without it, over TCP and the relay, where the kernel's choice of addresses
//! matters most.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_cluster::{CLIENT_ADDRESS, Cluster, Far, Fetch, San, Tier, VIP, demo, testing, wait_until};

/// The port of a server on the client's host, for connections from the application host.
const OUTSIDE_PORT: u16 = 8001;

/// Stops the network node's host from answering the VIP's clients itself: its kernel would reset them.
fn keep_kernel_from_the_lan(cluster: &Cluster) {
    let host = cluster.host(Tier::NetworkNode);
    for rule in ["del pref 0", "add pref 10 lookup local", &format!("add pref 5 iif lan0 to {VIP} blackhole")]
    {
        host.ip(&[&["rule"], &rule.split(' ').collect::<Vec<_>>()[..]].concat()).unwrap();
    }
}

/// A program of the application host opens a connection by the egress rule.
fn egress(cluster: &mut Cluster) {
    cluster.start_outside(OUTSIDE_PORT).unwrap();
    let (run, agent) = (cluster.binary("csp-run"), cluster.scratch().join("run/agent.sock"));
    let filter = cluster.scratch().join("run/libcsp_sockfilter.so");
    let got = cluster.scratch().join("got");
    let url = format!("http://{CLIENT_ADDRESS}:{OUTSIDE_PORT}/1MiB");
    let fetch = || {
        let mut command = cluster.host(Tier::AppNode).command(&run.to_string_lossy());
        command.env("CSP_SOCKFILTER", &filter).arg("--agent").arg(&agent);
        command.args(["curl", "-sf", "-m", "5", "-o"]).arg(&got).arg(&url);
        command.output().unwrap().status.success().then_some(())
    };
    wait_until("a file by the egress rule", testing::SERVING_DEADLINE, fetch).unwrap();
    assert_eq!(fs::read(&got).unwrap(), fs::read(cluster.scratch().join("www/1MiB")).unwrap());
}

#[test]
fn services_and_egress_work_where_hosts_have_the_vip() {
    let Some(mut cluster) = testing::lay_out_over("onlo", San::Apart(Far::Tcp)) else { return };
    for tier in [Tier::NetworkNode, Tier::ProxyNode, Tier::AppNode] {
        cluster.vip_on_lo(tier).unwrap();
    }
    keep_kernel_from_the_lan(&cluster);
    fs::write(cluster.scratch().join("www/1MiB"), testing::pattern(1 << 20)).unwrap();
    cluster.serve().unwrap();
    for file in ["1KiB", "1MiB"] {
        (0..3).for_each(|_| Fetch(&cluster).file(file).unwrap());
    }
    Fetch(&cluster).upload("PUT", &cluster.scratch().join("www/1MiB")).unwrap();
    egress(&mut cluster);
    demo::no_kernel_tcp(&cluster, std::time::Duration::ZERO).unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
