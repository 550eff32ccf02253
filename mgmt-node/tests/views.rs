//! What `cspctl` and the API show of a cluster: real registrations, scripted admin endpoints.
#![forbid(unsafe_code)]

mod support;

use csp_types::Role;
use serde_json::json;

use support::{FakeNode, Mgmt, Policies, event, eventually, policy};

/// A network node, two proxies and an app node with one traced transaction.
async fn nodes(mgmt: &Mgmt) -> Vec<FakeNode> {
    let nn = json!({
        "/v1/trace": [event(1000, "lan_in", "S", 0), event(90_000, "lan_out", "SA", 0)],
        "/v1/trace/recent": [{"label": "0040001f", "t_ns": 90_000, "ended": false}],
        "/v1/flows": [{"label": "0040001f", "client": "10.76.0.1:41822", "state": "bound"}],
    });
    let pn_1 = json!({
        "/v1/trace": [event(40_000, "segment_in", "S", 0), event(60_000, "segment_out", "SA", 0)],
        "/v1/trace/recent": [{"label": "0040001f", "t_ns": 60_000}, {"label": "00000007", "t_ns": 10}],
        "/v1/flows": [
            {"label": "0040001f", "client": "10.76.0.1:41822", "server": "10.76.0.100:80", "service": "web",
             "state": "established", "bytes_in": 81, "bytes_out": 12345, "age_ms": 1200,
             "queued_in": 0, "queued_out": 2048, "credit_in": 65536, "credit_out": 1024},
            {"label": "00000009", "client": "10.76.0.1:41823", "service": "other", "bytes_in": 5, "bytes_out": 1},
        ],
        "/v1/services": {"services": [{"name": "web", "pending": 1,
            "pool": [{"node": "an-1", "port": 80, "processes": 2, "open_connections": 3, "connections_total": 40}]}]},
    });
    let pn_2 = json!({
        "/v1/trace": [], "/v1/trace/recent": [], "/v1/flows": [],
        "/v1/services": [{"name": "web", "address": "10.76.0.100:80", "pending": 0,
            "members": [{"node": "an-1", "port": 80, "listeners": 2, "open": 4, "accept_credit": 8}]}],
    });
    let socket = json!({"process": "nginx.42.1", "pid": 42, "program": "nginx", "kind": "connection", "fd": 9,
        "reason": "accelerated", "label": "0040001f", "local": "10.76.0.100:80", "remote": "10.76.0.1:41822",
        "error": "ECONNRESET", "queue": null});
    let listener = json!({"process": "nginx.42.1", "pid": 42, "program": "nginx", "kind": "listener", "fd": 6,
        "reason": "accelerated", "label": null, "local": "0.0.0.0:80", "remote": "0.0.0.0:80",
        "error": null, "queue": {"waiting": 3, "backlog": 511}});
    let kernel = json!({"process": "python3.7.1", "pid": 7, "program": "python3", "kind": "kernel-listener", "fd": 3,
        "reason": "loopback", "label": null, "local": "127.0.0.1:8000", "remote": "127.0.0.1:8000"});
    let an = json!({
        "/v1/trace": [event(150_000, "app_open", "", 0), event(160_000, "app_data_in", "", 81)],
        "/v1/sockets": [socket, listener, kernel],
    });
    vec![
        FakeNode::start(mgmt, "nn-1", Role::NetworkNode, Policies::Follow, nn).await,
        FakeNode::start(mgmt, "pn-1", Role::ProxyNode, Policies::Follow, pn_1).await,
        FakeNode::start(mgmt, "pn-2", Role::ProxyNode, Policies::Follow, pn_2).await,
        FakeNode::start(mgmt, "an-1", Role::AppNode, Policies::Follow, an).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_services_flows_and_traces_of_the_whole_cluster() {
    let mgmt = Mgmt::start().await;
    let mut nodes = nodes(&mgmt).await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);

    let listed = eventually("five nodes that are ready", async || {
        let ran = mgmt.cspctl(&["nodes"]).await.exited(0);
        (ran.out.matches(" ready ").count() == 5).then_some(ran.out)
    })
    .await;
    let ids: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["nn-1", "pn-1", "pn-2", "an-1", "mgmt-1"], "in path order:\n{listed}");
    assert!(listed.contains("mgmt-node (leader)"), "{listed}");

    let services = mgmt.cspctl(&["services"]).await.exited(0).out;
    let row: Vec<&str> = services.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row, ["web", "10.76.0.100:80", "an-1:80", "2", "7", "40", "1"], "{services}");

    let flows = mgmt.cspctl(&["flows", "--limit", "1"]).await.exited(0).out;
    assert!(
        flows.contains("0040001f") && flows.contains("12.1 KiB") && flows.contains("More flows"),
        "{flows}"
    );
    let of_service = mgmt.cspctl(&["flows", "--service", "other", "-o", "json"]).await.exited(0).json();
    assert_eq!(of_service["flows"][0]["label"], "00000009");
    assert_eq!(of_service["flows"].as_array().map(Vec::len), Some(1));

    let sockets = mgmt.cspctl(&["sockets"]).await.exited(0).out;
    let words =
        |line: usize| sockets.lines().nth(line).expect("a row").split_whitespace().collect::<Vec<_>>();
    let (listener, nginx, python) = (words(1), words(2), words(3));
    assert_eq!(listener[..5], ["an-1", "nginx.42.1", "6", "listener", "accelerated"], "{sockets}");
    assert!(listener.contains(&"3/511"), "{sockets}");
    assert_eq!(nginx[..5], ["an-1", "nginx.42.1", "9", "connection", "accelerated"], "{sockets}");
    assert_eq!(nginx.last(), Some(&"ECONNRESET"), "{sockets}");
    assert!(sockets.contains("12.1 KiB") && sockets.contains("0 B/2.0 KiB"), "{sockets}");
    assert_eq!(python[..6], ["an-1", "python3.7.1", "3", "listener", "kernel:", "loopback"], "{sockets}");
    let of_process = mgmt.cspctl(&["sockets", "--process", "nginx", "-o", "json"]).await.exited(0).json();
    assert_eq!(of_process["sockets"].as_array().map(Vec::len), Some(2));
    assert_eq!(of_process["sockets"][1]["queues"]["credit_in"], 65536);

    for arguments in [vec!["--last"], vec!["0x40001f"], vec!["--client", "10.76.0.1:41822"]] {
        let drawn = mgmt.cspctl(&[&["flow", "trace"], &arguments[..]].concat()).await.exited(0).out;
        assert!(drawn.contains("Flow 0040001f: 6 events in 159.0 µs"), "{drawn}");
        assert!(drawn.contains("SYN/ACK") && drawn.contains("2 messages: OPEN, DATA 81 in"), "{drawn}");
        assert!(!drawn.contains("note:"), "{drawn}");
    }
    let ran = mgmt.cspctl(&["flow", "trace", "--client", "10.76.0.9:1"]).await.exited(1);
    assert!(ran.err.contains("10.76.0.9:1"), "{ran:?}");

    // A node that falls silent is named everywhere, and hides nobody else.
    nodes[1].close_admin().await;
    let drawn = mgmt.cspctl(&["flow", "trace", "0040001f"]).await.exited(0).out;
    assert!(drawn.contains("note: pn-1 did not answer") && drawn.contains("DATA 81 in"), "{drawn}");
    let services = mgmt.cspctl(&["services"]).await.exited(0).out;
    assert!(services.contains("note: pn-1 did not answer") && services.contains("an-1:80"), "{services}");
    eventually("pn-1 to be shown as unreachable", async || {
        let ran = mgmt.cspctl(&["nodes"]).await.exited(0);
        ran.out.lines().any(|line| line.starts_with("pn-1") && line.contains("unreachable")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_and_its_overview() {
    let mgmt = Mgmt::start().await;
    let _nodes = nodes(&mgmt).await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
    for (path, words) in
        [("/", "The way of a request"), ("/style.css", "prefers-color-scheme"), ("/app.js", "overview")]
    {
        let text = mgmt.get(path).await.expect(path);
        let text = text.as_str().expect("no JSON");
        assert!(text.contains(words), "{path}");
        for elsewhere in ["src=\"http", "href=\"http", "url(", "@import"] {
            assert!(!text.contains(elsewhere), "{path} must not load anything from elsewhere: {elsewhere}");
        }
    }
    let overview = eventually("drops in the overview", async || {
        let overview = mgmt.get("/api/v1/overview").await?;
        (!overview["drops"].as_array()?.is_empty()).then_some(overview)
    })
    .await;
    let drop = &overview["drops"][0];
    assert_eq!(
        (&drop["reason"], &drop["total"], &drop["recent"]),
        (&json!("bad_checksum"), &json!(3), &json!(0))
    );
    let tiers: Vec<_> =
        overview["tiers"].as_array().expect("tiers").iter().map(|t| (&t["role"], &t["nodes"])).collect();
    let expected =
        [(json!("network-node"), json!(1)), (json!("proxy-node"), json!(2)), (json!("app-node"), json!(1))];
    assert_eq!(tiers, expected.each_ref().map(|(role, n)| (role, n)));
    assert_eq!(
        overview["tiers"][1]["figures"][0],
        json!({"name": "flows", "value": 4.0, "per_second": null})
    );
    assert_eq!(overview["active"]["acks"].as_array().map(Vec::len), Some(4));
    let metrics = mgmt.get("/metrics").await.expect("metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("csp_policy_generation{state=\"active\"} 1"), "{metrics}");
}
