//! Checks of a cluster.

use super::*;

pub(super) fn node(id: &str, role: &str, capabilities: &[&str], san: &str) -> NodeView {
    NodeView {
        id: id.into(),
        role: role.into(),
        state: NodeState::Ready,
        detail: String::new(),
        version: env!("CARGO_PKG_VERSION").into(),
        admin: "https://10.77.0.1:9101".into(),
        workers: 1,
        san: vec![san.into()],
        owns: Vec::new(),
        capabilities: capabilities.iter().map(|&name| name.into()).collect(),
        events: None,
        draining: false,
        started_unix_ms: 1,
        policy_generation: 3,
        policy_state: "active".into(),
        policy_active: 3,
        leader: false,
    }
}

pub(super) fn nodes() -> Vec<NodeView> {
    vec![
        node("nn-1", "network-node", &["tunnel", "steers-egress"], "tcp:10.77.0.1:7100"),
        node("pn-1", "proxy-node", &["tcp", "channel"], "shm:/run/csp/pn-1"),
        node("an-1", "app-node", &["agent", "relay"], "tcp:10.77.0.3:7100"),
    ]
}

pub(super) fn policy() -> Policy {
    let text = "apiVersion: csp/v1\nservices:\n  - {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}\n\
                egress:\n  - {address: 10.76.0.101, destinations: [10.1.0.0/16]}\n";
    Policy::parse_yaml(text, "policy").unwrap()
}

/// A world with a change of its nodes.
fn with(change: impl FnOnce(&mut Vec<NodeView>)) -> World {
    let mut world = World::new();
    if let Some((nodes, _)) = &mut world.cluster {
        change(nodes);
    }
    world
}

#[test]
fn nodes_in_each_state() {
    let world = with(|nodes| {
        (nodes[0].state, nodes[0].detail) = (NodeState::NotReady, "no tunnel".into());
        (nodes[1].policy_state, nodes[1].policy_active, nodes[1].draining) = ("refused".into(), 2, true);
        nodes[2].policy_active = 2;
        nodes.push(NodeView { state: NodeState::Lapsed, ..node("an-2", "app-node", &[], "") });
        nodes.push(NodeView { state: NodeState::Unreachable, ..node("an-3", "app-node", &[], "") });
    });
    world.finds(
        "nodes",
        &[
            "error: nn-1 (network-node) is not-ready: no tunnel",
            "error: pn-1 has refused generation 3",
            "info: pn-1 drains",
            "warning: an-1 works by generation 2, 3 is in force",
            "error: an-2 (app-node) is lapsed",
            "error: an-3 (app-node) is unreachable",
        ],
    );
}

#[test]
fn releases_that_differ() {
    let world = with(|nodes| nodes[2].version = "0.0.9".into());
    world.finds("versions", &["warning: nodes have different releases (0.0.9: an-1; 0.1.0: nn-1 pn-1)"]);
}

#[test]
fn servers_and_etcd_that_do_not_answer() {
    let mut world = World::new();
    world.leader = false;
    world.etcd = EtcdView { connected: false, private: false, silent_ms: 90_000 };
    world.fake.refused = true;
    world.finds("server", &["error: https://10.77.0.4:9104 answers, and no management node leads"]);
    world.finds(
        "etcd",
        &[
            "error: etcd has not answered the management node for 90 s",
            "warning: https://10.77.0.4:2379 is not reached from here: Connection refused",
        ],
    );
    world.etcd = EtcdView { connected: true, private: true, silent_ms: 0 };
    world.fake.refused = false;
    world.finds("etcd", &["info: the management node runs an etcd of its own"]);
    world.cluster = None;
    world.finds("server", &["error: no answer"]);
    world.finds("nodes", &["info: not checked: the cluster's nodes (no management node answers)"]);
}

#[test]
fn a_policy_needs_network_nodes_that_own_its_addresses() {
    with(|nodes| nodes[0].owns = vec!["10.76.0.101/32".into()])
        .finds("capabilities", &["error: no network node in service owns 10.76.0.100 (service web)"]);
    with(|nodes| nodes[0].owns = vec!["10.76.0.100/31".into()]).finds("capabilities", &[]);
    with(|nodes| nodes[0].capabilities.clear()).finds(
        "capabilities",
        &["error: no network node in service owns 10.76.0.100 (service web), 10.76.0.101 (an egress rule)"],
    );
}

#[test]
fn a_policy_needs_proxies_and_agents() {
    with(|nodes| nodes[1].draining = true)
        .finds("capabilities", &["error: no proxy node in service ends TCP"]);
    with(|nodes| nodes[1].capabilities = vec!["tcp".into()])
        .finds("capabilities", &["error: no proxy node in service has channels"]);
    with(|nodes| drop(nodes.pop()))
        .finds("capabilities", &["warning: pools name nodes that are not registered: an-1 (service web)"]);
    with(|nodes| nodes[2] = node("an-1", "proxy-node", &["tcp", "channel"], "")).finds(
        "capabilities",
        &["error: pools name nodes that run no agent: an-1, a proxy-node (service web)"],
    );
    with(|nodes| nodes[2].capabilities = vec!["agent".into()])
        .finds("capabilities", &["info: an-1 have no relay"]);
}

#[test]
fn answers_to_egress_connections_are_steered_by_all_network_nodes() {
    let old = |workers: u32| {
        with(|nodes| (nodes[0].workers, nodes[0].capabilities) = (workers, vec!["tunnel".into()]))
    };
    old(1).finds("capabilities", &[]);
    old(4).finds("capabilities", &["warning: nn-1 have several workers and no steers-egress"]);
}

#[test]
fn a_management_node_that_shows_no_capabilities_is_of_an_earlier_release() {
    with(|nodes| nodes.iter_mut().for_each(|node| node.capabilities.clear()))
        .finds("capabilities", &["info: not checked: what the policy needs of nodes"]);
}
