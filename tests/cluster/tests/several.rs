//! Several of each tier as real daemons: two network nodes and three proxies of two workers each, three
//! application hosts.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::thread;
use std::time::{Duration, Instant};

use csp_api::Tier;
use csp_api::mgmt::{RecentView, TraceEventView, TraceView};
use csp_cluster::several::{
    self, APP_NODES, Lans, MGMT_NODE, NETWORK_NODES, OWNED, PROXIES, SINGLE_PORT, Several,
};
use csp_cluster::steady::{SETTLED, Steady, end, going_on};
use csp_cluster::{Far, San, UPLOAD_PORT, wait_until};
use csp_types::{FourTuple, limits, steering};

/// Longer than a peer may be silent (800 ms).
const LONG_CUT: Duration = Duration::from_secs(3);

/// Bytes through each network node to and from each application host, and from each application host by
/// egress.
fn bytes(cluster: &Several) {
    for client in 0..cluster.clients.len() {
        for port in [80].into_iter().chain((SINGLE_PORT..).take(APP_NODES.len())) {
            cluster.download(client, port, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
        }
        for _ in APP_NODES {
            cluster.upload(client, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
        }
    }
    for id in APP_NODES {
        for client in [0, 1, 0, 1] {
            cluster.egress(id, client, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
        }
    }
    cluster.all_answered(12).unwrap();
}

/// Starts clients of every service of nginx on both LANs, until each proxy has connections of both.
fn clients(cluster: &Several) -> Vec<Steady> {
    let mut all = Vec::new();
    wait_until("connections of each proxy", SETTLED, || {
        let ports = (SINGLE_PORT..).take(APP_NODES.len());
        all.extend(ports.flat_map(|port| {
            let clients = cluster.clients.iter().enumerate();
            clients
                .map(move |(at, host)| Steady::connect(host, cluster.scratch(), cluster.lans.vip(at), port))
        }));
        going_on(&mut all);
        PROXIES.iter().all(|id| !flows(cluster, id).is_empty()).then_some(())
    })
    .unwrap();
    let count = all.len();
    assert_eq!(going_on(&mut all), count, "clients before the failure: {}", endings(&all));
    all
}

fn endings(all: &[Steady]) -> String {
    all.iter().map(|steady| steady.last() + "\n").collect()
}

/// Returns the connections to nginx that a proxy has.
fn flows(cluster: &Several, id: &str) -> Vec<csp_api::proxy::Flow> {
    let text = cluster.ask(id, "/v1/flows?limit=1000").unwrap();
    let flows: Vec<csp_api::proxy::Flow> = serde_json::from_str(&text).expect("the proxy's flows");
    flows
        .into_iter()
        .filter(|flow| flow.service.starts_with("web-an-") && flow.state.ends_with("/open"))
        .collect()
}

/// Checks that at least `least` clients go on, ends them, and checks that both network nodes reach every
/// service.
fn check(cluster: &Several, what: &str, mut all: Vec<Steady>, least: usize) {
    let (left, count) = (going_on(&mut all), all.len());
    println!("  {what}: {left} of {count} connections go on; required are {least}");
    assert!(
        left >= least,
        "{what}: {left} of {count} go on, not {least}\n{}\n{}",
        endings(&all),
        cluster.logs()
    );
    end(all);
    cluster.all_answered(6).unwrap();
}

/// A proxy's connections end with it; the others' go on.
fn proxy_ended(cluster: &mut Several, id: &str, kill: bool) {
    let all = clients(cluster);
    let others = all.len() - flows(cluster, id).len();
    again(cluster, id, kill);
    check(cluster, &format!("{id} ended"), all, others);
}

/// A network node's connections go on when it comes back; the other's are not affected.
fn network_node_ended(cluster: &mut Several, id: &str, kill: bool) {
    let all = clients(cluster);
    let count = all.len();
    again(cluster, id, kill);
    check(cluster, &format!("{id} ended"), all, if kill { count } else { count / NETWORK_NODES.len() });
}

/// Connections that an agent carries (`carried`) may end with it: they go on only if it is back before its
/// peers' 800 ms of silence have passed. All others go on.
fn agent_ended(cluster: &mut Several, id: &str, kill: bool, carried: bool) {
    let all = clients(cluster);
    let count = all.len();
    let ended = if carried { count / APP_NODES.len() } else { 0 };
    again(cluster, id, kill);
    check(cluster, &format!("{id} ended"), all, count - ended);
}

/// Ends a daemon by SIGKILL or SIGTERM, and starts it again.
fn again(cluster: &mut Several, id: &str, kill: bool) {
    if kill {
        cluster.daemon(id).unwrap().kill();
    } else {
        cluster.stop_daemon(id).unwrap();
    }
    cluster.start(id).unwrap();
    cluster.wait_recovered(id).unwrap();
}

/// The interface of one proxy goes down and comes back. Connections of the other proxies go on.
fn link_cut(cluster: &Several, id: &str) {
    let all = clients(cluster);
    let others = all.len() - flows(cluster, id).len();
    let host = cluster.host(id);
    host.ip(&["link", "set", "san0", "down"]).unwrap();
    thread::sleep(LONG_CUT); // the cut's length
    host.ip(&["link", "set", "san0", "up"]).unwrap();
    cluster.wait_recovered(id).unwrap();
    check(cluster, &format!("link of {id} cut"), all, others);
}

/// A service is taken out of the policy and added again. Connections of the other services go on.
fn policy_changed(cluster: &Several) {
    let all = clients(cluster);
    let count = all.len();
    cluster.apply(false).unwrap();
    wait_until("the service to be gone", SETTLED, || {
        (0..cluster.clients.len()).all(|client| !cluster.answers(client, UPLOAD_PORT)).then_some(())
    })
    .unwrap();
    cluster.apply(true).unwrap();
    cluster.wait_served().unwrap();
    check(cluster, "upload removed and added", all, count);
}

fn faults(name: &str, san: San, lans: Lans) {
    let Some(mut cluster) = several::lay_out(name, san, lans) else { return };
    cluster.serve().unwrap();
    let began = Instant::now();
    let lap = |what: &str| println!("{what}: until {:.1} s", began.elapsed().as_secs_f64());
    bytes(&cluster);
    lap("bytes");
    policy_changed(&cluster);
    lap("policy");
    for kill in [false, true] {
        agent_ended(&mut cluster, "an-2", kill, matches!(san, San::Apart(_)));
        lap("agent");
        network_node_ended(&mut cluster, "nn-2", kill);
        lap("network node");
        proxy_ended(&mut cluster, "pn-2", kill);
        lap("proxy");
    }
    link_cut(&cluster, "pn-3");
    lap("link cut");
    bytes(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// Checks that traces of one label, which two proxies have used, contain one connection each.
fn traces_are_kept_apart(cluster: &Several) {
    let text = cluster.ask(MGMT_NODE, "/api/v1/trace/recent?limit=1000").unwrap();
    let recent: RecentView = serde_json::from_str(&text).expect("recent flows");
    let proxies_of =
        |label| recent.recent.iter().filter(move |flow| flow.label == label).map(|flow| &flow.proxy);
    let shared = recent.recent.iter().map(|flow| flow.label).find(|label| proxies_of(*label).count() > 1);
    let label = shared.unwrap_or_else(|| panic!("no two proxies used one label:\n{text}"));
    for proxy in proxies_of(label) {
        let label = label.to_string();
        let text =
            cluster.cspctl(&["flow", "trace", &label, "--proxy", proxy.as_str(), "-o", "json"]).unwrap();
        let trace: TraceView = serde_json::from_str(&text).expect("a trace");
        let count =
            |wanted: &dyn Fn(&TraceEventView) -> bool| trace.events.iter().filter(|e| wanted(e)).count();
        let own = count(&|e| e.tier == Tier::ProxyNode && e.node == *proxy);
        let proxies = count(&|e| e.tier == Tier::ProxyNode);
        let (bound, opened) = (count(&|e| e.kind == "label-bound"), count(&|e| e.kind == "app-open"));
        assert!(own > 0 && own == proxies && bound == 1 && opened <= 1, "{proxy}:\n{text}");
        assert!(!trace.other_proxies.is_empty() && !trace.other_proxies.contains(proxy), "{text}");
    }
}

#[test]
fn bytes_pass_each_network_node_and_each_application_host() {
    let Some(mut cluster) = several::lay_out("several", San::Shm, Lans::Apart) else { return };
    cluster.serve().unwrap();
    // Few and small connections, so that the recorders still hold all events.
    cluster.all_answered(12).unwrap();
    traces_are_kept_apart(&cluster);
    bytes(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// Checks that each VIP has the Ethernet address of the network node that owns it, that each client reaches
/// each VIP, and that no network node has another's connections.
fn addresses_have_one_owner(cluster: &Several) {
    for (at, client) in cluster.clients.iter().enumerate() {
        for (owner, id) in NETWORK_NODES.iter().enumerate() {
            let vip = cluster.lans.vip(owner);
            client
                .run("curl", &["-sSf", "-m", "10", "-o", "/dev/null", &format!("http://{vip}/1KiB")])
                .unwrap();
            let link = cluster.host(id).run("ip", &["-o", "link", "show", "lan0"]).unwrap();
            let mac = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap();
            let neighbour = client.run("ip", &["neighbour", "show", vip]).unwrap();
            assert!(neighbour.contains(mac), "client {at}: {neighbour}, {id} has {mac}");
        }
    }
    for (id, owned) in NETWORK_NODES.iter().zip(OWNED) {
        let text = cluster.ask(id, "/v1/flows?limit=1000").unwrap();
        let flows: Vec<csp_api::network::Flow> = serde_json::from_str(&text).expect("a network node's flows");
        let owned: csp_types::Prefix = owned.parse().unwrap();
        assert!(flows.iter().all(|flow| owned.contains(flow.server.ip())), "{id} owns {owned}: {text}");
        let opened = |flow: &&csp_api::network::Flow| flow.server.port() >= limits::EGRESS_PORT_FIRST;
        let opened: Vec<_> = flows.iter().filter(opened).collect();
        assert!(!opened.is_empty(), "{id} has no connection that an application opened: {text}");
        for flow in opened {
            let tuple = FourTuple { local: flow.server, remote: flow.client };
            assert_eq!(flow.worker, u32::from(steering::worker_of(&tuple, 2)), "{id}: {flow:?}");
        }
    }
}

#[test]
fn network_nodes_of_one_lan_own_different_addresses() {
    let Some(mut cluster) = several::lay_out("onelan", San::Shm, Lans::Shared) else { return };
    cluster.serve().unwrap();
    bytes(&cluster);
    addresses_have_one_owner(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn faults_on_one_lan_end_what_they_must() {
    faults("severallan", San::Shm, Lans::Shared);
}

/// A network node is stopped for good; another one is given its addresses. Connections of both go on.
#[test]
#[ignore = "depends on load: make test-faults"]
fn addresses_are_given_to_another_network_node() {
    let Some(mut cluster) = several::lay_out("heir", San::Shm, Lans::Shared) else { return };
    cluster.serve().unwrap();
    let all = clients(&cluster);
    let count = all.len();
    let [old, heir] = NETWORK_NODES;
    cluster.stop_daemon(old).unwrap();
    cluster.stop_daemon(heir).unwrap();
    cluster.set_owned(heir, &OWNED).unwrap();
    cluster.start(heir).unwrap();
    wait_until("the heir to serve both VIPs", SETTLED, || {
        (0..cluster.clients.len()).all(|client| cluster.answers(client, 80)).then_some(())
    })
    .unwrap();
    check(&cluster, &format!("{old} gone, {heir} has its addresses"), all, count);
    cluster.egress("an-1", 0, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
    cluster.set_owned(old, &["10.76.0.112/30"]).unwrap();
    cluster.start(old).unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn faults_over_shm_end_what_they_must() {
    faults("severalshm", San::Shm, Lans::Apart);
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn faults_over_tcp_end_what_they_must() {
    faults("severaltcp", San::Apart(Far::Tcp), Lans::Apart);
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn faults_over_ucx_end_what_they_must() {
    faults("severalucx", San::Apart(Far::Ucx), Lans::Apart);
}
