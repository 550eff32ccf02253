//! Draining: a node loses its work without losing connections.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use csp_cluster::several::{self, APP_NODES, Lans, MGMT_NODE, PROXIES, SINGLE_PORT, Several};
use csp_cluster::steady::{SETTLED, Steady, end, going_on};
use csp_cluster::{Far, San, wait_until};

/// Returns the connections to nginx that a proxy has: the application node of each.
fn served_by(cluster: &Several, proxy: &str) -> Vec<String> {
    let text = cluster.ask(proxy, "/v1/flows?limit=1000").unwrap();
    let flows: Vec<csp_api::proxy::Flow> = serde_json::from_str(&text).expect("the proxy's flows");
    let open = flows.into_iter().filter(|flow| flow.state.ends_with("/open"));
    open.map(|flow| flow.member.as_str().to_owned()).collect()
}

fn all_served_by(cluster: &Several) -> Vec<String> {
    PROXIES.iter().flat_map(|proxy| served_by(cluster, proxy)).collect()
}

/// Starts clients of a service until `enough` is true.
fn connect(cluster: &Several, port: u16, what: &str, enough: impl Fn() -> bool) -> Vec<Steady> {
    let mut all = Vec::new();
    wait_until(what, SETTLED, || {
        for (at, host) in cluster.clients.iter().enumerate() {
            all.push(Steady::connect(host, cluster.scratch(), cluster.lans.vip(at), port));
        }
        going_on(&mut all);
        enough().then_some(())
    })
    .unwrap();
    all
}

#[test]
fn a_draining_node_gets_no_new_connections_and_keeps_its_own() {
    let Some(mut cluster) = several::lay_out("drain", San::Shm, Lans::Apart) else { return };
    cluster.serve().unwrap();
    let [proxy, ..] = PROXIES;
    let has = |cluster: &Several| served_by(cluster, proxy).len();

    let mut old = connect(&cluster, SINGLE_PORT, "a connection of the proxy", || has(&cluster) > 0);
    let (count, at_first) = (old.len(), has(&cluster));
    cluster.cspctl(&["drain", proxy]).unwrap();
    assert!(cluster.cspctl(&["nodes"]).unwrap().contains("ready, draining"));
    cluster.all_answered(12).unwrap();
    assert_eq!(has(&cluster), at_first, "new connections while {proxy} drains");
    assert_eq!(going_on(&mut old), count);
    let left = cluster.cspctl(&["drain", proxy, "--wait", "--deadline", "1"]).unwrap_err().to_string();
    assert!(left.contains("connections left") || left.contains("are left"), "{left}");
    end(old);
    cluster.cspctl(&["drain", proxy, "--wait", "--deadline", "30"]).unwrap();

    // It restarts, and goes on draining until it is taken back.
    cluster.stop_daemon(proxy).unwrap();
    cluster.start(proxy).unwrap();
    cluster.wait_recovered(proxy).unwrap();
    let others = connect(&cluster, SINGLE_PORT, "connections of the other proxies", || {
        PROXIES[1..].iter().all(|other| !served_by(&cluster, other).is_empty())
    });
    assert_eq!(has(&cluster), 0, "after its restart");
    cluster.cspctl(&["resume", proxy]).unwrap();
    let back = connect(&cluster, SINGLE_PORT, "a connection of the proxy", || has(&cluster) > 0);
    end(others);
    end(back);

    // An application node drains: the others of its pool serve.
    cluster.cspctl(&["drain", "an-1"]).unwrap();
    let all = connect(&cluster, 80, "connections of the others", || all_served_by(&cluster).len() >= 8);
    let nodes = all_served_by(&cluster);
    assert!(nodes.iter().all(|member| !member.starts_with("an-1")), "{nodes:?}");
    cluster.cspctl(&["resume", "an-1"]).unwrap();
    let more = connect(&cluster, 80, "a connection of an-1", || {
        all_served_by(&cluster).iter().any(|member| member.starts_with("an-1"))
    });
    end(all);
    end(more);

    // A network node has nothing to give away here: the policy has no VIP groups.
    assert!(cluster.cspctl(&["drain", "nn-1", "--wait"]).unwrap().contains("nn-1 is drained"));
    cluster.cspctl(&["resume", "nn-1"]).unwrap();
    let refused = cluster.cspctl(&["drain", MGMT_NODE]).unwrap_err().to_string();
    assert!(refused.contains("proxy nodes and application nodes drain"), "{refused}");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn an_application_node_whose_agent_was_restarted_serves_alone() {
    let Some(mut cluster) = several::lay_out("alone", San::BetweenNodes(Far::Tcp), Lans::Apart) else {
        return;
    };
    cluster.serve().unwrap();
    for node in APP_NODES.iter().cycle().take(6) {
        cluster.cspctl(&["drain", node]).unwrap();
        cluster.stop_daemon(node).unwrap();
        cluster.start(node).unwrap();
        cluster.cspctl(&["resume", node]).unwrap();
        cluster.wait_recovered(node).unwrap();
        let others = || APP_NODES.iter().filter(|other| *other != node);
        others().for_each(|other| drop(cluster.cspctl(&["drain", other]).unwrap()));
        let all = connect(&cluster, 80, "connections of the node", || {
            all_served_by(&cluster).iter().any(|member| member.starts_with(node))
        });
        end(all);
        others().for_each(|other| drop(cluster.cspctl(&["resume", other]).unwrap()));
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
