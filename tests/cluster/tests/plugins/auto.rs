//! Level auto: the network node places a plug-in by what is expected and by what it measures.

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Tier, wait_until};

use super::{OTHERS, URLS, blocked_and_served, control, fetch, json, level};

/// Where the node runs `blocked`, and why.
fn shown(cluster: &Cluster) -> (String, String, u64) {
    let listed = json(cluster, &["plugin", "list"]);
    let instances = listed["nodes"][0]["instances"].as_array().unwrap();
    let blocked = instances.iter().find(|one| one["name"] == "blocked").unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let auto = &blocked["auto"];
    (text(&blocked["environment"]), text(&auto["reason"]), auto["moves_total"].as_u64().unwrap())
}

/// Steps of the test of level 1, whose rule `from-clients` leads to the block list `blocked`.
pub fn is_placed(cluster: &Cluster) {
    control(cluster, "plugin move blocked 2");
    assert_eq!(level(cluster, "from-clients").0, 2);
    control(cluster, "plugin move blocked auto --expects 1M");
    assert_eq!(level(cluster, "from-clients").0, 1, "{}", cluster.log_tail(Tier::NetworkNode));
    let reason = "1.0M packets/s expected".to_owned();
    assert_eq!(shown(cluster), ("driver".to_owned(), reason, 1));
    let listed = control(cluster, "plugin list");
    assert!(listed.contains("1 (auto: 1.0M packets/s expected)"), "{listed}");
    blocked_and_served(cluster, "placed in the driver");

    // Measured: one packet a second is enough here.
    control(cluster, "plugin move blocked 2");
    control(cluster, "plugin move blocked auto --driver-pps 1 --hold-s 1");
    wait_until("it moves to the driver by its packets", SERVING_DEADLINE, || {
        for (url, from) in URLS.iter().zip(OTHERS) {
            assert!(fetch(cluster, url, from), "{from} is served while it moves");
        }
        (level(cluster, "from-clients").0 == 1).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", shown(cluster), cluster.log_tail(Tier::NetworkNode)));
    blocked_and_served(cluster, "moved to the driver");
    wait_until("metrics have the moves", SERVING_DEADLINE, || {
        let moves =
            cluster.metric(Tier::NetworkNode, "csp_plugin_moves_total", "instance=\"blocked\"").ok()?;
        (moves >= 1.0).then_some(())
    })
    .unwrap();
}
