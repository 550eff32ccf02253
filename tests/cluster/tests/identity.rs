//! A second daemon with the id of a running one is refused, and the first one continues to serve.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Process, Tier, testing, wait_until};

/// The refusal takes one request to etcd; the deadline allows for a busy machine.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(20);

/// Writes the tier's configuration for a second daemon beside the first: same id, nothing else shared.
fn second_config(cluster: &Cluster, tier: Tier) -> String {
    let scratch = cluster.scratch().display().to_string();
    let own = cluster.host(tier).namespace().to_owned();
    fs::read_to_string(cluster.config(tier))
        .unwrap()
        .replace(&format!("{scratch}/state"), &format!("{scratch}/second-{own}/state"))
        .replace(&format!("{scratch}/run"), &format!("{scratch}/second-{own}/run"))
        .replace(":910", ":920")
        .replace("port: 7100", "port: 7200")
        .replace("endpoints: []", "endpoints: [\"https://10.77.0.4:2379\"]")
}

fn refused(cluster: &mut Cluster, tier: Tier) {
    let before = identity(cluster, tier);
    let config = cluster.scratch().join("second.yaml");
    fs::write(&config, second_config(cluster, tier)).unwrap();
    let mut command = cluster.host(tier).command(&cluster.binary(tier.daemon()).to_string_lossy());
    command.arg("--config").arg(&config);
    let name = format!("second {}", tier.daemon());
    let mut second = Process::spawn(&name, command, &cluster.scratch().join("log/second.log")).unwrap();
    let status = wait_until(&format!("the end of the {name}"), REFUSAL_DEADLINE, || second.exited())
        .map_err(|error| error.context(second.log_tail(20)))
        .unwrap();
    let reported = second.log_tail(3);
    assert_eq!(status.code(), Some(73), "{name}: {status}\n{reported}");
    let id = before.0.as_str();
    assert!(reported.contains(id), "the {name} does not name the id {id}: {reported}");
    assert_eq!(before, identity(cluster, tier), "the first {} was disturbed", tier.daemon());
}

/// Returns id and incarnation as the daemon itself reports them.
fn identity(cluster: &Cluster, tier: Tier) -> (String, String) {
    let text = cluster.ask(tier, "/v1/node").unwrap();
    let node: serde_json::Value = serde_json::from_str(&text).unwrap();
    (node["id"].as_str().unwrap_or_default().to_owned(), node["incarnation"].to_string())
}

#[test]
fn a_second_daemon_with_a_live_id_is_refused_with_73() {
    let Some(mut cluster) = testing::lay_out("identity") else { return };
    cluster.start_daemons().unwrap();
    cluster.apply_policy().unwrap();
    for tier in Tier::ALL {
        refused(&mut cluster, tier);
    }
    for tier in Tier::ALL {
        cluster.wait_ready(tier).unwrap();
    }
    wait_until("four nodes to be ready", SERVING_DEADLINE, || {
        let nodes: serde_json::Value =
            serde_json::from_str(&cluster.cspctl(&["nodes", "-o", "json"]).ok()?).unwrap();
        let nodes = nodes["nodes"].as_array().unwrap();
        (nodes.len() == 4 && nodes.iter().all(|node| node["state"] == "ready")).then_some(())
    })
    .unwrap();
    cluster.stop().unwrap();
}
