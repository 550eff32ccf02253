//! Supplied plug-ins: a module is installed, blocks a client, is replaced by one that never ends and is
//! stopped, and is removed; others are served meanwhile.

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, wait_until};
use serde_json::Value;

use super::{BLOCKED, OTHERS, URLS, control, fetch, json, refused};

/// Text of a module whose `on_packet` has this body.
fn module(body: &str) -> String {
    let declared = r"\18\00\00\00\01\00\00\00\40\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00";
    format!(
        r#"(module (memory (export "memory") 1 1) (data (i32.const 16) "{declared}")
        (func (export "csp_packet_abi") (result i32) i32.const 1)
        (func (export "csp_packet_declaration") (result i32) i32.const 16)
        (func (export "on_packet") (result i32) {body}))"#
    )
}

fn install(cluster: &Cluster, body: &str) -> String {
    let file = cluster.scratch().join("plugin.wasm");
    std::fs::write(&file, wat::parse_str(module(body)).unwrap()).unwrap();
    let printed = control(cluster, &format!("plugin install {}", file.display()));
    printed.lines().next().unwrap().to_owned()
}

fn instance(cluster: &Cluster) -> Value {
    let listed = json(cluster, &["plugin", "list"]);
    let instances = listed["nodes"][0]["instances"].as_array().unwrap().clone();
    instances.into_iter().find(|instance| instance["name"] == "own").unwrap_or_default()
}

/// Needs the clients' rules to lead nowhere else.
pub fn runs(cluster: &Cluster) {
    let absent = "1".repeat(64);
    let (code, text) = refused(cluster, &format!("plugin create own {absent}"));
    assert!(
        code != 0 && text.contains("is not here; bring it with `cspctl plugin install FILE`"),
        "{code} {text}"
    );
    let (drops, endless) = (install(cluster, "i32.const 1"), install(cluster, "(loop (br 0)) unreachable"));
    control(cluster, &format!("plugin create own {drops}"));
    for address in BLOCKED {
        let name = if address.contains(':') { "own6" } else { "own4" };
        control(
            cluster,
            &format!("rule add {name} prio 5 src {address} proto tcp ingress plugin own fallback pass"),
        );
    }
    for ((url, blocked), other) in URLS.iter().zip(BLOCKED).zip(OTHERS) {
        assert!(!fetch(cluster, url, blocked), "the module drops what comes from {blocked}");
        assert!(fetch(cluster, url, other), "{other} is served");
    }
    let shown = instance(cluster);
    assert!(shown["dropped_total"].as_u64() > Some(1) && shown["supplied"]["state"] == "running", "{shown}");
    let (code, text) = refused(cluster, &format!("plugin uninstall {drops}"));
    assert!(
        code == 1 && text.contains("has the module as plug-in own; apply one without it first"),
        "{code} {text}"
    );
    // One that never ends is stopped, and the rules' fallback lets packets pass.
    control(cluster, &format!("plugin config own --module {endless}"));
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(fetch(cluster, url, from), "without the module {from} is served");
    }
    wait_until("the stop is shown", SERVING_DEADLINE, || {
        let stops = instance(cluster)["supplied"]["stops"].clone();
        (stops[0]["reason"] == "fuel" && stops[0]["total"].as_u64() > Some(0)).then_some(())
    })
    .unwrap();
    control(cluster, "rule del own4 own6");
    control(cluster, "plugin remove own");
    for module in [drops, endless] {
        control(cluster, &format!("plugin uninstall {module}"));
    }
    let listed = json(cluster, &["plugin", "modules"]);
    assert_eq!(listed["supplied"]["nodes"][0]["modules"], serde_json::json!([]), "{listed}");
}
