//! `cspctl support-bundle` and `cspctl doctor` on a cluster: a real management node, and nodes that are
//! scripted at their admin endpoints.
#![forbid(unsafe_code)]

mod support;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use csp_types::Role;
use serde_json::json;
use support::{FakeNode, Mgmt, Policies, Scratch, eventually};

/// A text that must not get into a bundle.
const SECRET: &str = "hunter2-never-to-be-seen";
/// A key of `anonymise`, which the management node shows to operators.
const KEY: &str = "000102030405060708090a0b0c0d0e0f";

const POLICY: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    schema: |
      <messageSchema package="a" id="1" version="0">
        <types>
          <composite name="messageHeader">
            <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
            <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
          </composite>
          <type name="text" primitiveType="char" length="8"/>
        </types>
        <message name="Flight" id="1"><field name="name" id="1" type="text"/></message>
      </messageSchema>
services:
  - {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}, {node: an-2, port: 80}]}
channels:
  - name: flights
    vip: 10.76.0.101
    port: 5601
    formats: [flight]
    path: [{handler: anonymise, parameters: "hash name, key 000102030405060708090a0b0c0d0e0f"}]
"#;

/// The files of an archive, by their names below its folder.
fn files(path: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).expect("bundle");
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let files = tar.entries().expect("entries").map(|entry| {
        let mut entry = entry.expect("entry");
        let name = entry.path().expect("path").components().skip(1).collect::<std::path::PathBuf>();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        (name.display().to_string(), text)
    });
    files.collect()
}

async fn node(mgmt: &Mgmt, id: &str, role: Role, answers: serde_json::Value) -> FakeNode {
    let node = FakeNode::start(mgmt, id, role, Policies::Follow, answers).await;
    eventually("the node", async || {
        let nodes = mgmt.get("/api/v1/nodes").await?;
        nodes["nodes"]
            .as_array()?
            .iter()
            .any(|node| node["id"] == id && node["state"] == "ready")
            .then_some(())
    })
    .await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_of_a_cluster_has_its_views_and_none_of_its_secrets() {
    let mgmt = Mgmt::start().await;
    let _proxy = node(&mgmt, "pn-1", Role::ProxyNode, json!({})).await;
    let mut silent = node(&mgmt, "an-2", Role::AppNode, json!({})).await;
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY);
    mgmt.cspctl(&["policy", "apply", policy.to_str().expect("path")]).await.exited(0);
    assert!(mgmt.cspctl(&["policy", "show"]).await.exited(0).out.contains(KEY), "an operator sees the key");
    silent.close_admin().await;

    std::fs::create_dir_all(scratch.0.join("root/etc/csp")).expect("folder");
    scratch.file("root/etc/csp/proxy-node.yaml", &format!("node: {{id: pn-1}}\netcd: {{endpoints: [\"http://u:{SECRET}@127.0.0.1:1\"]}}\npassword: {SECRET}\n"));
    let bundle = scratch.0.join("case.tar.gz");
    let (to, root) = (bundle.to_str().expect("path"), scratch.0.join("root").display().to_string());
    let arguments = ["support-bundle", "--output-file", to, "--root", &root];
    let ran = mgmt.cspctl(&[&["-o", "json"][..], &arguments].concat()).await.exited(0);
    assert_eq!(std::fs::metadata(&bundle).expect("bundle").permissions().mode() & 0o777, 0o600);
    let files = files(&bundle);
    for (name, text) in &files {
        assert!(!text.contains(SECRET) && !text.contains(KEY), "a secret is in {name}:\n{text}");
    }
    let has = |name: &str, words: &str| {
        let text =
            files.get(name).unwrap_or_else(|| panic!("{name} is missing; there are {:?}", files.keys()));
        assert!(text.contains(words), "{words} is missing in {name}:\n{text}");
    };
    has("cluster/policy.yaml", "key (redacted)");
    has("cluster/policy-history.json", "\"generation\": 1");
    has("cluster/nodes.json", "pn-1");
    has("cluster/overview.json", "\"version\"");
    has("nodes/pn-1/metrics.txt", "csp_drops_total");
    has("nodes/pn-1/node.json", "");
    has("nodes/pn-1/readyz.json", "conditions");
    has("configuration/etc-csp-proxy-node.yaml", "id: pn-1");
    has("doctor.json", "capabilities");
    has("MANIFEST", "missing   nodes/an-2/metrics.txt");
    let missing = ran.json()["missing"].to_string();
    assert!(missing.contains("nodes/an-2/metrics.txt"), "{missing}");
    assert_eq!(ran.json()["files"], files.len());

    let before = std::fs::read(&bundle).expect("bundle");
    mgmt.cspctl(&arguments).await.exited(73);
    assert_eq!(std::fs::read(&bundle).expect("bundle"), before, "a file that is there is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_and_policy_check_compare_the_policy_with_what_nodes_have_registered() {
    let mgmt = Mgmt::start().await;
    let _app = node(&mgmt, "an-1", Role::AppNode, json!({})).await;
    let scratch = Scratch::new();
    let policy = scratch.file("policy.yaml", POLICY).display().to_string();
    let ran = mgmt.cspctl(&["policy", "check", &policy, "-o", "json"]).await;
    let found = |ran: &support::Ran| {
        let findings = ran.json()["findings"].as_array().expect("findings").clone();
        let bad = findings.iter().filter(|finding| finding["level"] != "ok");
        bad.map(|finding| format!("{} {}", finding["level"], finding["found"])).collect::<Vec<_>>().join("\n")
    };
    // The scripted node registers no capabilities, as one of an earlier release.
    assert!(found(&ran).contains("of an earlier release"), "{ran:?}");
    let ran = ran.exited(0);
    assert!(ran.out.contains("1 service, 1 channel"), "{}", ran.out);
    let wrong =
        scratch.file("wrong.yaml", "apiVersion: csp/v1\nservices: [{name: Web}]\n").display().to_string();
    let ran = mgmt.cspctl(&["policy", "check", &wrong]).await.exited(65);
    assert!(ran.err.contains("wrong.yaml:2:") && !ran.err.contains("nothing was changed"), "{ran:?}");

    let root = scratch.0.display().to_string();
    let only = "server,nodes,etcd,clock,capabilities";
    let ran = mgmt.cspctl(&["doctor", "--root", &root, "--only", only, "-o", "json"]).await.exited(0);
    let report = ran.json();
    assert_eq!((&report["worst"], &report["version"]), (&json!("info"), &json!(env!("CARGO_PKG_VERSION"))));
    let text = found(&ran);
    assert!(
        text.contains("an etcd of its own") && text.contains("whether the clock is synchronised"),
        "{text}"
    );
    let ran = mgmt.cspctl(&["doctor", "--root", &root, "--only", "server"]).await.exited(0);
    assert!(ran.out.contains("answers, mgmt-1 leads") && ran.out.ends_with("1 ok\n"), "{}", ran.out);
    mgmt.cspctl(&["doctor", "--only", "nothing"]).await.exited(64);
    let list = mgmt.cspctl(&["doctor", "--list"]).await.exited(0);
    assert!(list.out.contains("firewall") && list.out.contains("capabilities"), "{}", list.out);
}
