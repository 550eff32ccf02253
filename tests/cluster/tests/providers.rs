//! A cluster between whose hosts UCX carries the SAN changes to TCP node by node, and partly back: whatever
//! two nodes have in common carries their links.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_cluster::steady::{CONNECTIONS, SETTLED, end, going_on, steady_clients};
use csp_cluster::{Cluster, Far, Fetch, San, Tier, testing, wait_until};

/// Restarts a node with another `san.provider`, as its service manager would.
fn change(cluster: &mut Cluster, tier: Tier, from: &str, to: &str) {
    let config = cluster.config(tier);
    let text = fs::read_to_string(&config).unwrap();
    let (from, to) = (format!("provider: {from}\n"), format!("provider: {to}\n"));
    assert!(text.contains(&from), "{text}");
    fs::write(&config, text.replace(&from, &to)).unwrap();
    cluster.daemon(tier).unwrap().stop().unwrap();
    cluster.start(tier).unwrap();
    cluster.wait_ready(tier).unwrap();
    cluster.wait_served().unwrap();
}

/// Waits until the network node's tunnel and the agent's routes are carried by these providers, and checks
/// that bytes pass.
fn expect(cluster: &Cluster, tunnel: &str, routes: &str) {
    for (tier, path, provider) in
        [(Tier::NetworkNode, "/v1/tunnels", tunnel), (Tier::AppNode, "/v1/proxies", routes)]
    {
        wait_until(&format!("{path} of {provider}"), SETTLED, || {
            let said = cluster.ask(tier, path).ok()?;
            let is_up = tier != Tier::NetworkNode || said.contains("\"state\":\"up\"");
            (is_up && said.contains(&format!("\"provider\":\"{provider}\""))).then_some(())
        })
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
    }
    Fetch(cluster).file("1MiB").map_err(|error| error.context(cluster.all_logs())).unwrap();
    Fetch(cluster).upload("PUT", &cluster.scratch().join("www/1MiB")).unwrap();
}

#[test]
fn hosts_change_from_ucx_to_tcp_one_by_one() {
    let Some(mut cluster) = testing::lay_out_over("providers", San::Apart(Far::Ucx)) else { return };
    fs::write(cluster.scratch().join("www/1MiB"), testing::pattern(1 << 20)).unwrap();
    cluster.serve().unwrap();
    expect(&cluster, "ucx", "ucx");
    // The proxy offers both: those that know only UCX go on with it, on another port.
    change(&mut cluster, Tier::ProxyNode, "ucx", "auto");
    expect(&cluster, "ucx", "ucx");
    change(&mut cluster, Tier::AppNode, "ucx", "tcp");
    expect(&cluster, "ucx", "tcp");
    // Clients' connections live through a change of the network node.
    let mut clients = steady_clients(&cluster);
    change(&mut cluster, Tier::NetworkNode, "ucx", "tcp");
    expect(&cluster, "tcp", "tcp");
    assert_eq!(going_on(&mut clients), CONNECTIONS, "{}", cluster.all_logs());
    end(clients);
    // A node that goes back finds the proxy, too.
    change(&mut cluster, Tier::AppNode, "tcp", "ucx");
    expect(&cluster, "tcp", "ucx");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
