//! What happens when a management node or etcd goes away, and who may be one.
#![forbid(unsafe_code)]

mod support;

use csp_control::{EtcdAccess, EtcdClient, ManagerError, PolicyManager, keys};
use csp_policy::Policy;
use csp_types::{Role, TraceKind};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use support::{
    FakeNode, Mgmt, Policies, Ran, Scratch, config_text, daemon, event, eventually, free_address, policy,
    trace,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_of_the_same_id_is_refused_with_73() {
    let mut mgmt = Mgmt::start().await;
    let scratch = Scratch::new();
    let rest = format!("etcd: {{endpoints: [\"http://{}\"]}}\n", mgmt.etcd);
    let config = scratch.file("second.yaml", &config_text(&scratch, "mgmt-1", free_address(), &rest));
    let mut second = daemon(&config);
    let ran = tokio::task::spawn_blocking(move || second.output()).await.expect("task").expect("daemon runs");
    let ran = Ran::of(ran).exited(73);
    assert!(ran.err.contains("mgmt-1 is taken"), "{ran:?}");

    // The same state directory, too, belongs to one process.
    let mut third = daemon(&mgmt.scratch.0.join("mgmt.yaml"));
    let ran = tokio::task::spawn_blocking(move || third.output()).await.expect("task").expect("daemon runs");
    let ran = Ran::of(ran).exited(73);
    assert!(ran.err.contains("state_dir"), "{ran:?}");

    // The first one is not disturbed and ends cleanly, with its etcd.
    let etcd = mgmt.etcd_pid().expect("a private etcd");
    assert_eq!(mgmt.stop().await, Some(0));
    assert!(rustix::process::test_kill_process(etcd).is_err(), "etcd outlives its management node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sends_changes_to_the_leader_and_takes_over_when_it_stops() {
    let first = Mgmt::start().await;
    let mut second = Mgmt::join(&first, "mgmt-2").await;
    let third = Mgmt::join(&first, "mgmt-3").await;
    let file = first.scratch.file("policy.yaml", &policy("web", 80));
    let file = file.to_str().expect("path");

    // Through a follower, by redirection to the leader.
    let applied = second.cspctl(&["policy", "apply", file]).await.exited(0);
    assert!(applied.out.contains("generation 1 is active"), "{applied:?}");
    let client = support::http().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    let url = second.url() + "/api/v1/policy";
    let request = client.expect("client").post(url).header("content-type", "application/yaml");
    let answer = request.body(policy("web", 81)).send().await.expect("answer");
    assert_eq!(answer.status(), 307);
    let body: serde_json::Value = answer.json().await.expect("JSON");
    assert_eq!(body["leader"], json!({"id": "mgmt-1", "url": first.url()}));
    assert_eq!(
        second.get("/api/v1/policy").await.expect("policy")["generation"],
        1,
        "followers answer reads"
    );

    // The leader key goes away under the leader: someone else may lead, and the policy store stays usable.
    let etcd = EtcdAccess::bare(format!("http://{}", first.etcd));
    let mut raw = etcd_client::Client::connect(&etcd.section.endpoints, None).await.expect("etcd");
    let fence = raw.get(keys::LEADER, None).await.expect("leader").kvs()[0].create_revision();
    raw.delete(keys::LEADER, None).await.expect("delete");
    eventually("a leader with another fence", async || {
        let found = raw.get(keys::LEADER, None).await.ok()?;
        (found.kvs().first()?.create_revision() != fence).then_some(())
    })
    .await;
    // What the deposed leader still had in hand cannot write any more.
    let stale =
        PolicyManager::new(EtcdClient::connect(&etcd).await.expect("etcd")).fenced(keys::LEADER, fence);
    let other = Policy::parse_yaml(&policy("web", 8080), "other").expect("policy");
    for refused in [stale.publish(&other, None).await.map(drop), stale.activate(1, 1).await] {
        assert!(matches!(refused, Err(ManagerError::FenceLost)), "{refused:?}");
    }

    assert_eq!(second.stop().await, Some(0));
    let file = first.scratch.file("next.yaml", &policy("web", 82));
    eventually("a change through the third node", async || {
        let ran = third.cspctl(&["policy", "apply", file.to_str().expect("path")]).await;
        (ran.code == 0).then_some(())
    })
    .await;
    assert_eq!(first.get("/api/v1/policy/history").await.map(|h| h[0]["generation"].clone()), Some(json!(2)));
}

/// As after an outage of etcd, which prolongs all leases when it starts, or after a management node was
/// killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_earlier_lease_still_holds_the_leader_key_leads_again() {
    let mgmt = Mgmt::start().await;
    let mut raw = etcd_client::Client::connect([format!("http://{}", mgmt.etcd)], None).await.expect("etcd");
    let own = raw.get(keys::LEADER, None).await.expect("leader").kvs()[0].value().to_vec();
    eventually("the key to be left", async || {
        let lease = raw.lease_grant(600, None).await.ok()?.id();
        raw.delete(keys::LEADER, None).await.ok()?;
        let options = etcd_client::PutOptions::new().with_lease(lease);
        let free = etcd_client::Compare::create_revision(keys::LEADER, etcd_client::CompareOp::Equal, 0);
        let put = etcd_client::TxnOp::put(keys::LEADER, own.clone(), Some(options));
        let left = raw.txn(etcd_client::Txn::new().when([free]).and_then([put])).await.ok()?;
        left.succeeded().then_some(())
    })
    .await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    eventually("a change by the node that leads again", async || {
        let ran = mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await;
        (ran.code == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_silent_questions_are_answered_and_changes_refused() {
    let mgmt = Mgmt::start().await;
    let _pn =
        FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({"/v1/services": []})).await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    let file = file.to_str().expect("path").to_owned();
    mgmt.cspctl(&["policy", "apply", &file]).await.exited(0);
    let etcd = mgmt.etcd_pid().expect("a private etcd");

    kill_process(etcd, Signal::STOP).expect("stop etcd");
    eventually("etcd to be missed", async || {
        (mgmt.get("/api/v1/nodes").await?["etcd"]["connected"] == false).then_some(())
    })
    .await;
    let nodes = mgmt.cspctl(&["nodes"]).await.exited(0).out;
    assert!(nodes.contains("pn-1") && nodes.contains("etcd has been silent"), "{nodes}");
    mgmt.cspctl(&["policy", "show"]).await.exited(0);
    mgmt.cspctl(&["services"]).await.exited(0);
    let next = mgmt.scratch.file("next.yaml", &policy("web", 81));
    let next = next.to_str().expect("path").to_owned();
    let ran = mgmt.cspctl(&["policy", "apply", &next]).await.exited(69);
    assert!(ran.err.contains("etcd"), "{ran:?}");

    kill_process(etcd, Signal::CONT).expect("continue etcd");
    eventually("a change once etcd is back", async || {
        (mgmt.cspctl(&["policy", "apply", &next]).await.code == 0).then_some(())
    })
    .await;

    // A private etcd that dies is started again on its data.
    kill_process(etcd, Signal::KILL).expect("kill etcd");
    eventually("another etcd", async || mgmt.etcd_pid().filter(|pid| *pid != etcd)).await;
    eventually("a change through the new etcd", async || {
        (mgmt.cspctl(&["policy", "apply", &file]).await.code == 0).then_some(())
    })
    .await;
    let history = mgmt.get("/api/v1/policy/history").await.expect("history");
    assert_eq!(history.as_array().map(Vec::len), Some(3), "nothing was lost: {history}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_admin_endpoints_do_no_harm() {
    let mgmt = Mgmt::start().await;
    let long = "x".repeat(9 << 20);
    let clear = "\u{1b}[2J";
    let mut events = trace(clear, &[event(1, TraceKind::SegmentIn, 2, 0)]);
    events[0]["kind"] = json!(format!("{clear}red"));
    let answers = json!({
        "/v1/flows": long, "/v1/services": [{"name": 5, "members": [null, 7]}],
        "/v1/trace": events,
        "/v1/trace/recent": [{"label": "0040001f", "t_ns": 1, "ended": false, "surprise": [1]}],
    });
    let _pn = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Ignore, answers).await;
    eventually("the node", async || {
        let nodes = mgmt.get("/api/v1/nodes").await?;
        nodes["nodes"].as_array()?.iter().any(|n| n["id"] == "pn-1").then_some(())
    })
    .await;
    let flows = mgmt.get("/api/v1/flows").await.expect("flows");
    assert!(flows["unreachable"][0]["error"].as_str().expect("error").contains("longer than"), "{flows}");
    let drawn = mgmt.cspctl(&["flow", "trace", "--last"]).await.exited(0).out;
    assert!(!drawn.contains('\u{1b}') && drawn.contains("Flow 0040001f"), "{drawn:?}");
    let services = mgmt.cspctl(&["services"]).await.exited(0).out;
    assert!(services.contains("pn-1 did not answer") && services.contains("/v1/services"), "{services}");
    let wrong = mgmt.get("/api/v1/trace?label=zz").await.expect("answer");
    assert!(wrong["error"].as_str().expect("error").contains("hex digits"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_proxy_node_in_service_drains_only_by_force() {
    let mgmt = Mgmt::start().await;
    let mut nodes = Vec::new();
    for (id, role) in [("pn-1", Role::ProxyNode), ("pn-2", Role::ProxyNode), ("an-1", Role::AppNode)] {
        nodes.push(FakeNode::start(&mgmt, id, role, Policies::Follow, json!({})).await);
    }
    mgmt.cspctl(&["drain", "pn-2"]).await.exited(0);
    mgmt.cspctl(&["drain", "pn-2"]).await.exited(0);
    let refused = mgmt.cspctl(&["drain", "pn-1"]).await.exited(75);
    assert!(refused.err.contains("pn-1 is the last proxy node in service"), "{refused:?}");
    mgmt.cspctl(&["drain", "an-1"]).await.exited(0); // connections wait for its return
    mgmt.cspctl(&["drain", "pn-1", "--force"]).await.exited(0);
    mgmt.cspctl(&["resume", "pn-2"]).await.exited(0);
}
