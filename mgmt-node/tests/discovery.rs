//! What Prometheus gets of a management node: the targets, and the services of the cluster.
#![forbid(unsafe_code)]

mod support;

use csp_api::proxy::{PoolMember, Service};
use csp_types::Role;
use serde_json::{Value, json};

use support::{FakeNode, Mgmt, Policies, body, eventually, policy};

/// A service of a member that is up, one that nobody listens at, a plain server that is up and one that is
/// not.
fn service() -> Value {
    let of = |node: &str, address: Option<&str>, down: Option<&str>, listeners| PoolMember {
        node: node.into(),
        address: address.map(|address| address.parse().expect("an address")),
        down: down.map(Into::into),
        port: 80,
        listeners,
        open: 3,
        accept_credit: 8,
        connections_total: 40,
    };
    let members = vec![
        of("an-1", None, None, 2),
        of("an-2", None, None, 0),
        of("", Some("10.1.0.3"), None, 0),
        of("", Some("2001:db8::4"), Some("connection refused"), 0),
    ];
    let address = "10.76.0.100:80".parse().expect("an address");
    let channel = Service { name: "a-channel".into(), address, pending: 0, members: vec![], figures: None };
    body([Service { name: "web".into(), address, pending: 5, members, figures: None }, channel])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_targets_and_their_services_metrics() {
    let mgmt = Mgmt::start().await;
    let answers = json!({"/v1/services": service()});
    let proxy = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, answers).await;
    let admin = proxy.admin.as_ref().expect("an admin endpoint").address();
    let expected = json!([
        {"targets": [mgmt.api.to_string()],
         "labels": {"__scheme__": "http", "host": "127.0.0.1", "node": "mgmt-1", "tier": "mgmt-node"}},
        {"targets": [admin.to_string()],
         "labels": {"__scheme__": "http", "host": "127.0.0.1", "node": "pn-1", "tier": "proxy-node"}},
    ]);
    eventually("both as targets", async || (mgmt.get("/api/v1/discovery").await? == expected).then_some(()))
        .await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
    // The first scrape asks for the services.
    let lines = [
        "csp_service_members{reporter=\"pn-1\",service=\"web\"} 4",
        "csp_service_waiting_connections{reporter=\"pn-1\",service=\"web\"} 5",
        "csp_service_member_up{member=\"an-1:80\",reporter=\"pn-1\",service=\"web\"} 1",
        "csp_service_member_up{member=\"an-2:80\",reporter=\"pn-1\",service=\"web\"} 0",
        "csp_service_member_up{member=\"10.1.0.3:80\",reporter=\"pn-1\",service=\"web\"} 1",
        "csp_service_member_up{member=\"[2001:db8::4]:80\",reporter=\"pn-1\",service=\"web\"} 0",
        "csp_service_member_connections_total{member=\"an-1:80\",reporter=\"pn-1\",service=\"web\"} 40",
        "csp_service_member_processes{member=\"an-1:80\",reporter=\"pn-1\",service=\"web\"} 2",
        "csp_service_members_left_out 0",
        "csp_member_policy_refused{member=\"pn-1\"} 0",
    ];
    eventually("the services", async || {
        let page = mgmt.get("/metrics").await?;
        let page = page.as_str()?;
        assert!(!page.contains("a-channel"), "it has no pool");
        lines.iter().all(|line| page.lines().any(|found| found == *line)).then_some(())
    })
    .await;
    // A policy that the node refuses is shown until there is another one.
    let refused = "csp_member_policy_refused{member=\"pn-1\"} 1";
    for (name, shows) in [("unwanted", true), ("other", false)] {
        let file = mgmt.scratch.file("policy.yaml", &policy(name, 80));
        mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(u8::from(shows).into());
        eventually("whether the policy is refused", async || {
            let page = mgmt.get("/metrics").await?;
            (page.as_str()?.lines().any(|line| line == refused) == shows).then_some(())
        })
        .await;
    }
}
