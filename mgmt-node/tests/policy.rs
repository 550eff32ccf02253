//! Publication of policy through `cspctl` and a real management node with its own etcd.
#![forbid(unsafe_code)]

mod support;

use csp_types::Role;
use serde_json::json;

use support::{FakeNode, Mgmt, Policies, policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_staged_by_all_activated_shown_and_compared() {
    let mgmt = Mgmt::start().await;
    let none = mgmt.cspctl(&["policy", "show"]).await.exited(1);
    assert!(none.err.contains("cspctl policy apply"), "{none:?}");
    let _pn = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({})).await;
    let _nn = FakeNode::start(&mgmt, "nn-1", Role::NetworkNode, Policies::Follow, json!({})).await;
    let first = mgmt.scratch.file("first.yaml", &policy("web", 80));
    let first = first.to_str().expect("path");

    let dry = mgmt.cspctl(&["policy", "apply", "--dry-run", first]).await.exited(0);
    assert!(dry.out.ends_with("right, 1 service; nodes were not asked, nothing was changed\n"), "{dry:?}");
    assert_eq!(mgmt.get("/api/v1/policy/history").await, Some(json!([])));

    let applied = mgmt.cspctl(&["policy", "apply", first]).await.exited(0);
    assert_eq!(applied.out, "generation 1 is active on 2 nodes\n");
    assert!(applied.err.contains("pn-1 active") && applied.err.contains("nn-1 active"), "{applied:?}");
    let again = mgmt.cspctl(&["policy", "apply", first]).await.exited(0);
    assert!(again.out.contains("unchanged"), "{again:?}");

    let shown = mgmt.cspctl(&["policy", "show"]).await.exited(0);
    assert!(shown.out.contains("# generation 1") && shown.out.contains("name: web"), "{shown:?}");
    let same = mgmt.scratch.file("same.yaml", &shown.out);
    mgmt.cspctl(&["policy", "diff", same.to_str().expect("path")]).await.exited(0);

    let second = mgmt.scratch.file("second.yaml", &policy("web", 8080));
    let second = second.to_str().expect("path");
    let diff = mgmt.cspctl(&["policy", "diff", second]).await.exited(1);
    assert!(
        diff.out.contains("-  port: 80\n+  port: 8080\n") || diff.out.contains("+    port: 8080\n"),
        "{diff:?}"
    );
    assert_eq!(diff.err, "");
    let applied = mgmt.cspctl(&["policy", "apply", second, "--output", "json"]).await.exited(0).json();
    assert_eq!((&applied["generation"], &applied["phase"]), (&json!(2), &json!("active")));

    let history = mgmt.cspctl(&["policy", "history", "-o", "json"]).await.exited(0).json();
    let phases: Vec<_> =
        history.as_array().expect("array").iter().map(|g| (&g["generation"], &g["phase"])).collect();
    assert_eq!(phases, [(&json!(2), &json!("active")), (&json!(1), &json!("superseded"))]);
    let old = mgmt.cspctl(&["policy", "show", "--generation", "1"]).await.exited(0);
    assert!(old.out.contains("port: 80\n"), "{old:?}");
    mgmt.cspctl(&["policy", "show", "--generation", "9"]).await.exited(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_publishes_an_earlier_policy_anew() {
    let mgmt = Mgmt::start().await;
    let none = mgmt.cspctl(&["policy", "rollback"]).await.exited(1);
    assert!(none.err.contains("no policy is active"), "{none:?}");
    let _pn = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({})).await;
    for (at, port) in [80, 81, 82].into_iter().enumerate() {
        let file = mgmt.scratch.file("policy.yaml", &policy("web", port));
        mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
        if at == 0 {
            let first = mgmt.cspctl(&["policy", "rollback"]).await.exited(1);
            assert!(first.err.contains("no policy was in force before generation 1"), "{first:?}");
        }
    }
    let port = async || {
        let shown = mgmt.cspctl(&["policy", "show"]).await.exited(0).out;
        shown.lines().find(|line| line.trim_start().starts_with("port:")).map(|line| line.trim().to_owned())
    };
    // There, and back again; then to one that is named.
    for (arguments, generation, expected) in [
        (&["policy", "rollback"][..], 4, "port: 81"),
        (&["policy", "rollback"][..], 5, "port: 82"),
        (&["policy", "rollback", "--generation", "1"][..], 6, "port: 80"),
    ] {
        let back = mgmt.cspctl(arguments).await.exited(0);
        assert_eq!(back.out, format!("generation {generation} is active on 1 nodes\n"));
        assert_eq!(port().await.as_deref(), Some(expected));
    }
    let same = mgmt.cspctl(&["policy", "rollback", "--generation", "6"]).await.exited(0);
    assert!(same.out.starts_with("unchanged"), "{same:?}");
    let unknown = mgmt.cspctl(&["policy", "rollback", "--generation", "9"]).await.exited(1);
    assert!(unknown.err.contains("there is no generation 9"), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_policy_names_every_mistake_and_leaves_the_active_one_alone() {
    let mgmt = Mgmt::start().await;
    let _pn = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({})).await;
    let good = mgmt.scratch.file("good.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", good.to_str().expect("path")]).await.exited(0);
    let before = mgmt.get("/api/v1/policy").await;

    let wrong =
        mgmt.scratch.file("wrong.yaml", &policy("web", 80).replace("    port: 80\n", "    prot: 80\n"));
    let wrong = wrong.to_str().expect("path");
    for arguments in [vec!["policy", "apply", wrong], vec!["policy", "diff", wrong]] {
        let ran = mgmt.cspctl(&arguments).await.exited(65);
        assert!(ran.err.contains("wrong.yaml:5:") && ran.err.contains("prot"), "{ran:?}");
        assert!(ran.err.contains("port"), "what is allowed is named: {ran:?}");
        assert_eq!(ran.out, "");
    }
    let doubled = mgmt.scratch.file("doubled.yaml", &(policy("web", 80) + &policy("web", 80)[29..]));
    let ran = mgmt.cspctl(&["policy", "apply", doubled.to_str().expect("path")]).await.exited(65);
    assert!(ran.err.contains("doubled.yaml:7:") && ran.err.contains("services[1]"), "{ran:?}");
    let four = policy("web", 80)
        .replace("csp/v1", "csp/v2")
        .replace("vip: 10.76.0.100", "vip: 10.76.0.300")
        .replace("    port: 80\n", "    port: 70000\n")
        .replace("node: an-1, port: 80", "node: an-1, prot: 80");
    let four = mgmt.scratch.file("four.yaml", &four);
    let ran = mgmt.cspctl(&["policy", "apply", four.to_str().expect("path")]).await.exited(65);
    let lines: Vec<&str> = ran.err.lines().collect();
    let fields = ["apiVersion", "services[0].vip", "services[0].port", "services[0].pool[0].prot"];
    for (line, (at, field)) in lines.iter().zip([1, 4, 5, 6].iter().zip(fields)) {
        assert!(
            line.contains(&format!("four.yaml:{at}:")) && line.contains(&format!("`{field}`")),
            "{ran:?}"
        );
        assert!(line.contains("; allowed: "), "what would be right is named: {ran:?}");
    }
    assert_eq!(lines[4..], ["cspctl: 4 mistakes in the policy; nothing was changed"], "{ran:?}");
    let garbage = mgmt.scratch.0.join("garbage.yaml");
    std::fs::write(&garbage, [0xff, 0xfe, 0x00]).expect("file");
    mgmt.cspctl(&["policy", "apply", garbage.to_str().expect("path")]).await.exited(65);

    assert_eq!(mgmt.get("/api/v1/policy").await, before);
    assert_eq!(
        mgmt.get("/api/v1/policy/history").await.expect("history").as_array().expect("array").len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_a_node_refuses_or_ignores_is_not_activated() {
    let mgmt = Mgmt::start().await;
    let _pn = FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({})).await;
    let good = mgmt.scratch.file("good.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", good.to_str().expect("path")]).await.exited(0);

    let refused = mgmt.scratch.file("refused.yaml", &policy("unwanted", 80));
    let ran = mgmt.cspctl(&["policy", "apply", refused.to_str().expect("path")]).await.exited(1);
    assert!(
        ran.err.contains("pn-1 refused: no room for it") && ran.err.contains("stays in force"),
        "{ran:?}"
    );

    let nodes = mgmt.cspctl(&["nodes"]).await.exited(0);
    assert!(nodes.out.contains("1 (2 refused)"), "{nodes:?}");

    let _deaf = FakeNode::start(&mgmt, "nn-1", Role::NetworkNode, Policies::Ignore, json!({})).await;
    let late = mgmt.scratch.file("late.yaml", &policy("web", 81));
    let ran =
        mgmt.cspctl(&["policy", "apply", "--timeout", "1", late.to_str().expect("path")]).await.exited(1);
    assert!(ran.err.contains("timed-out") && ran.err.contains("nn-1"), "{ran:?}");
    // The node that would have taken it has it staged for good.
    let nodes = mgmt.cspctl(&["nodes"]).await.exited(0);
    assert!(nodes.out.contains("1 (3 timed-out)"), "{nodes:?}");

    assert_eq!(mgmt.get("/api/v1/policy").await.expect("policy")["generation"], 1);
    let history = mgmt.cspctl(&["policy", "history"]).await.exited(0);
    let states: Vec<&str> =
        history.out.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(states, ["timed-out", "refused", "active"], "{history:?}");
}
