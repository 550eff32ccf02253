//! Supplied eBPF objects: one is refused with the verifier's log, one blocks a client in the driver, gets
//! other parameters, outlives the daemon, and is removed.

use std::path::Path;

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Tier, wait_until};
use csp_support::bpf_object_of;
use serde_json::Value;

use super::{BLOCKED, OTHERS, URLS, control, fetch, has_program, json, refused};

/// Drops what it gets if its parameter is 1, and counts.
const GATE: &str = "CSP_XDP_NUMBERS(1, 1, 2);\nCSP_PARAMETERS\nCSP_COUNTERS(2)
    SEC(\"xdp\") int gate(struct xdp_md *context) {
        const struct csp_parameters *parameters = csp_read_parameters();
        int closed = parameters && parameters->numbers[0] == 1;
        csp_count(closed);
        return closed ? csp_drop(context) : csp_next(context, 0);
    }";
/// Reads behind what it has checked.
const WRONG: &str =
    "CSP_XDP(1);\nSEC(\"xdp\") int wrong(struct xdp_md *c) { return *(__u8 *)(long)c->data; }";

fn object(cluster: &Cluster, text: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = cluster.scratch().join("filter.o");
    std::fs::write(&file, bpf_object_of(&root, text)).unwrap();
    file.display().to_string()
}

fn number(row: &Value, name: &str) -> u64 {
    let numbers = row["numbers"].as_array().unwrap();
    numbers.iter().find(|number| number["name"] == name).map_or(0, |n| n["value"].as_u64().unwrap())
}

/// Packets that the object was given and has dropped, and its second counter.
fn read(cluster: &Cluster) -> (u64, u64, u64) {
    let read = json(cluster, &["plugin", "call", "own", "read"]);
    let rows = read["nodes"][0]["rows"].as_array().unwrap();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap();
    let total = row("");
    (number(total, "given_packets"), number(total, "dropped_packets"), number(row("counter-1"), "value"))
}

fn state(cluster: &Cluster) -> Value {
    let listed = json(cluster, &["plugin", "list"]);
    let instances = listed["nodes"][0]["instances"].as_array().unwrap().clone();
    let own = instances.into_iter().find(|instance| instance["name"] == "own").unwrap_or_default();
    own["supplied"].clone()
}

fn blocked(cluster: &Cluster, what: &str) {
    for ((url, blocked), other) in URLS.iter().zip(BLOCKED).zip(OTHERS) {
        assert!(!fetch(cluster, url, blocked), "{what}: the object drops what comes from {blocked}");
        assert!(fetch(cluster, url, other), "{what}: {other} is served");
    }
}

fn is_refused(cluster: &Cluster, line: &str, part: &str) {
    let (code, text) = refused(cluster, line);
    assert!(code != 0 && text.contains(part), "cspctl {line}: {code} {text}");
}

/// Steps of the test of level 1.
pub fn run(cluster: &mut Cluster) {
    let wrong = object(cluster, WRONG);
    let (code, text) = refused(cluster, &format!("plugin install {wrong}"));
    let parts = ["nn-1: the kernel's verifier refuses the program", "invalid access to packet"];
    assert!(code == 1 && parts.iter().all(|part| text.contains(part)), "{code} {text}");

    let installed = control(cluster, &format!("plugin install {}", object(cluster, GATE)));
    let gate = installed.lines().next().unwrap().to_owned();
    is_refused(cluster, &format!("plugin create own {gate}"), "runs at level 1 only, not at level 2");
    is_refused(cluster, &format!("plugin create own {gate} --level auto"), "not at level auto");
    let wrong = format!("plugin create own {gate} --level 1 parameters=3");
    is_refused(cluster, &wrong, "parameters: `3` is no number from 1 to 2");
    control(cluster, &format!("plugin create own {gate} --level 1 parameters=1"));
    is_refused(cluster, "plugin move own 2", "runs at level 1 only, not at level 2");
    is_refused(cluster, "rule add own4 proto tcp plugin own", "add `ingress`");
    let idle = state(cluster);
    assert!(idle["state"] == "fallback" && idle["reason"].as_str().unwrap().contains("no rule"), "{idle}");
    for (name, address) in ["own4", "own6"].iter().zip(BLOCKED) {
        control(
            cluster,
            &format!("rule add {name} prio 5 src {address} proto tcp ingress plugin own fallback pass"),
        );
    }
    assert_eq!(state(cluster)["state"], "running", "{}", cluster.log_tail(Tier::NetworkNode));
    blocked(cluster, "in the driver");
    let (given, dropped, counted) = read(cluster);
    assert!(given >= 2 && (dropped, counted) == (given, given), "{given} {dropped} {counted}");
    is_refused(cluster, &format!("plugin uninstall {gate}"), "has the module as plug-in own");

    // Other parameters between two packets, with the same state.
    control(cluster, "plugin config own parameters=2");
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(fetch(cluster, url, from), "{from} is served");
    }
    control(cluster, "plugin config own parameters=1");
    blocked(cluster, "closed again");
    assert!(read(cluster).2 > counted, "the counters went on");

    let before = read(cluster).0;
    cluster.daemon(Tier::NetworkNode).unwrap().kill();
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(!fetch(cluster, url, from));
    }
    assert!(has_program(cluster), "a daemon that is killed leaves its programs");
    cluster.start(Tier::NetworkNode).unwrap();
    for (url, from) in URLS.iter().zip(OTHERS) {
        wait_until("an answer", SERVING_DEADLINE, || fetch(cluster, url, from).then_some(())).unwrap();
    }
    blocked(cluster, "after a restart");
    assert!(read(cluster).0 > before && state(cluster)["state"] == "running", "{:?}", read(cluster));

    control(cluster, "rule del own4 own6");
    control(cluster, "plugin remove own");
    for (url, from) in URLS.iter().zip(BLOCKED) {
        wait_until("it is served", SERVING_DEADLINE, || fetch(cluster, url, from).then_some(())).unwrap();
    }
    control(cluster, &format!("plugin uninstall {gate}"));
}
