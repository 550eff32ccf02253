//! What the management node reports when etcd is full, or has forgotten everything.
#![forbid(unsafe_code)]

mod support;

use csp_support::EtcdCluster;
use csp_types::Role;
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions};
use serde_json::{Value, json};

use support::{FakeNode, Mgmt, Policies, eventually, policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_is_reported_with_its_remedy_and_all_goes_on_afterwards() {
    let Some(etcd) = EtcdCluster::start(1, &["--quota-backend-bytes", "2097152"]) else { return };
    let mgmt = Mgmt::on(&etcd).await;
    let _pn =
        FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({"/v1/services": []})).await;
    let apply = async |port: u16| {
        let file = mgmt.scratch.file("policy.yaml", &policy("web", port));
        mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await
    };
    apply(80).await.exited(0);

    let mut raw = Client::connect(etcd.endpoints(), None).await.expect("etcd");
    while raw.put("/fill", "x".repeat(100 << 10), None).await.is_ok() {}
    let refused = apply(81).await.exited(69);
    for words in ["etcd's database is full", "nodes go on", "etcdctl defrag", "etcdctl alarm disarm"] {
        assert!(refused.err.contains(words), "{refused:?}");
    }
    mgmt.cspctl(&["drain", "pn-1", "--force"]).await.exited(69);
    let nodes = mgmt.cspctl(&["nodes"]).await.exited(0).out;
    assert!(nodes.contains("pn-1"), "{nodes}");

    raw.delete("/fill", None).await.expect("delete");
    let revision = raw.get("x", None).await.expect("get").header().expect("header").revision();
    raw.compact(revision, Some(CompactionOptions::new().with_physical())).await.expect("compact");
    raw.defragment().await.expect("defragment");
    let alarms = raw.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.expect("alarms");
    for alarm in alarms.alarms() {
        let mut options = AlarmOptions::new();
        options.with_member(alarm.member_id());
        raw.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await.expect("disarm");
    }
    eventually("a change once there is room", async || (apply(81).await.code == 0).then_some(())).await;
}

/// The reason of a condition of `/readyz`; none while it is well.
async fn reason(mgmt: &Mgmt, name: &str) -> Option<String> {
    let body = mgmt.get("/readyz").await?;
    let conditions = body["conditions"].as_array()?.clone();
    let found = conditions.into_iter().find(|condition| condition["name"] == name)?;
    (found["state"] != "ok").then(|| found["reason"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_etcd_is_reported_and_filled_again_by_publishing() {
    let Some(mut etcd) = EtcdCluster::start(1, &[]) else { return };
    let mgmt = Mgmt::on(&etcd).await;
    let _pn =
        FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({"/v1/services": []})).await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);

    etcd.kill(0);
    etcd.wipe(0);
    etcd.restart(0);
    let words = "etcd holds no policy in force, but nodes keep generation 1 of before";
    let found = eventually("the loss of the policy", async || {
        reason(&mgmt, "policy").await.filter(|reason| reason.contains(words))
    })
    .await;
    let shown = mgmt.get("/api/v1/policy").await.expect("an answer");
    assert_eq!(shown["error"], Value::String(found));
    let metrics = mgmt.get("/metrics").await.expect("metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("csp_control_etcd_history_losses_total 1"), "{metrics}");

    // The same number with another policy: nothing of before is shown.
    let next = mgmt.scratch.file("next.yaml", &policy("web", 81));
    eventually("a change in the new etcd", async || {
        (mgmt.cspctl(&["policy", "apply", next.to_str().expect("path")]).await.code == 0).then_some(())
    })
    .await;
    let shown = mgmt.get("/api/v1/policy").await.expect("the policy");
    assert_eq!((&shown["generation"], &shown["policy"]["services"][0]["port"]), (&json!(1), &json!(81)));
    eventually("no problem with the policy", async || reason(&mgmt, "policy").await.is_none().then_some(()))
        .await;
}
