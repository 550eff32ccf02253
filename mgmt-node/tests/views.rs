//! What `cspctl` and the API show of a cluster: real registrations, scripted admin endpoints.
#![forbid(unsafe_code)]

mod support;

use std::net::SocketAddr;

use csp_api::app::{AcceptQueue, Socket};
use csp_api::proxy::PoolMember;
use csp_api::{RecentFlow, network, proxy};
use csp_types::TraceKind::{AppDataIn, AppOpen, LanIn, LanOut, SegmentIn, SegmentOut};
use csp_types::{FlowLabel, Role};
use serde_json::json;

use support::{FakeNode, Mgmt, Policies, body, event, eventually, policy, trace};

const SYN: u8 = 2;
const SYN_ACK: u8 = 18;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn label(text: &str) -> FlowLabel {
    csp_api::label::parse(text).expect("a label")
}

fn recent(number: &str, t_ns: u64) -> RecentFlow {
    RecentFlow::new(label(number), t_ns, false)
}

/// A connection of `service` with this many bytes in and out.
fn flow(number: &str, client: &str, service: &str, (bytes_in, bytes_out): (u64, u64)) -> proxy::Flow {
    proxy::Flow {
        label: label(number),
        client: address(client),
        server: address("10.76.0.100:80"),
        service: service.into(),
        member: "an-1".into(),
        process: "nginx.42.1".into(),
        state: "Established/open".into(),
        bytes_in,
        bytes_out,
        age_ms: 1200,
        srtt_us: 90,
        congestion: "cubic".into(),
        cwnd_bytes: 14_480,
        ssthresh_bytes: 65_536,
        ecn: false,
        pacing_bytes_per_s: None,
        delivery_bytes_per_s: 0,
        retransmits: 0,
        queued_in: 0,
        queued_out: 2048,
        credit_in: 65_536,
        credit_out: 1024,
    }
}

/// Service `web` as a proxy reports it whose member has this many open connections and connections in all.
fn web(pending: u64, open: u64, connections_total: u64) -> proxy::Service {
    let member = PoolMember {
        node: "an-1".into(),
        address: None,
        down: None,
        port: 80,
        listeners: 2,
        open,
        accept_credit: 8,
        connections_total,
    };
    let (address, figures) = (address("10.76.0.100:80"), None);
    proxy::Service { name: "web".into(), address, pending, members: vec![member], figures }
}

/// A plain server as a proxy reports it.
fn plain(address: &str, down: Option<&str>) -> PoolMember {
    let mut members = web(0, 1, 20).members;
    let member = members.remove(0);
    let address = Some(address.parse().expect("address"));
    PoolMember { node: "".into(), address, down: down.map(Into::into), port: 8080, listeners: 0, ..member }
}

fn network_flow() -> network::Flow {
    network::Flow {
        label: label("0040001f"),
        client: address("10.76.0.1:41822"),
        server: address("10.76.0.100:80"),
        proxy: "pn-1".into(),
        proxy_worker: 0,
        state: "bound".into(),
        interface: Some("lan0".into()),
        peer_mac: None,
        segments_in: 3,
        segments_out: 2,
        age_ms: 1200,
        idle_ms: 3,
        worker: 0,
    }
}

/// A listener and a connection of nginx, and a kernel listener of Python.
fn sockets() -> Vec<Socket> {
    let connection = Socket {
        process: "nginx.42.1".into(),
        pid: 42,
        program: "nginx".into(),
        kind: "connection".into(),
        reason: "accelerated".into(),
        fd: 9,
        label: Some(label("0040001f")),
        local: address("10.76.0.100:80"),
        remote: address("10.76.0.1:41822"),
        error: Some("ECONNRESET".into()),
        queue: None,
    };
    let any = address("0.0.0.0:80");
    let listener = Socket {
        kind: "listener".into(),
        fd: 6,
        label: None,
        local: any,
        remote: any,
        error: None,
        queue: Some(AcceptQueue { waiting: 3, backlog: 511 }),
        ..connection.clone()
    };
    let loopback = address("127.0.0.1:8000");
    let kernel = Socket {
        process: "python3.7.1".into(),
        pid: 7,
        program: "python3".into(),
        kind: "kernel-listener".into(),
        reason: "loopback".into(),
        fd: 3,
        local: loopback,
        remote: loopback,
        queue: None,
        ..listener.clone()
    };
    vec![connection, listener, kernel]
}

/// A network node, two proxies and an app node with one traced transaction.
async fn nodes(mgmt: &Mgmt) -> Vec<FakeNode> {
    let nn = json!({
        "/v1/trace": trace("nn-1", &[event(1000, LanIn, SYN, 0), event(90_000, LanOut, SYN_ACK, 0)]),
        "/v1/trace/recent": body([recent("0040001f", 90_000)]),
        "/v1/flows": body([network_flow()]),
    });
    let pn_1 = json!({
        "/v1/trace": trace("pn-1", &[event(40_000, SegmentIn, SYN, 0), event(60_000, SegmentOut, SYN_ACK, 0)]),
        "/v1/trace/recent": body([recent("0040001f", 60_000), recent("00000007", 10)]),
        "/v1/flows": body([
            flow("0040001f", "10.76.0.1:41822", "web", (81, 12_345)),
            flow("00000009", "10.76.0.1:41823", "other", (5, 1)),
        ]),
        "/v1/services": body([web(1, 3, 40)]),
    });
    let nothing = body([(); 0]);
    let pn_2 = json!({
        "/v1/trace": nothing, "/v1/trace/recent": nothing, "/v1/flows": nothing,
        "/v1/services": body([web(0, 4, 2)]),
    });
    let an = json!({
        "/v1/trace": trace("an-1", &[event(150_000, AppOpen, 0, 0), event(160_000, AppDataIn, 0, 81)]),
        "/v1/sockets": body(sockets()),
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
    assert_eq!(row, ["web", "10.76.0.100:80", "an-1:80", "2", "processes", "7", "42", "1"], "{services}");

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

const NAMED: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 80
    pool: [{name: a.example, port: 8080}, {address: 10.1.0.3, port: 8080}, {name: b.example, port: 8081}]
egress:
  - {address: 10.76.0.101, destinations: [10.1.0.0/16]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_by_name_are_shown_with_their_addresses() {
    let mgmt = Mgmt::start().await;
    let [first, second] = [None, Some("connection refused")].map(|down| {
        let members = vec![plain("10.1.0.3", None), plain("10.1.0.2", down), plain("10.1.0.1", None)];
        json!({"/v1/services": body([proxy::Service { members, ..web(0, 0, 0) }])})
    });
    let _nodes = [
        FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, first).await,
        FakeNode::start(&mgmt, "pn-2", Role::ProxyNode, Policies::Follow, second).await,
    ];
    let file = mgmt.scratch.file("policy.yaml", NAMED);
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
    let services = mgmt.cspctl(&["services"]).await.exited(0).out;
    let rows: Vec<String> =
        services.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "web 10.76.0.100:80 10.1.0.1:8080 (a.example) up 2 40 0",
        "10.1.0.2:8080 (a.example) down (pn-2: connection refused) 2 40",
        "10.1.0.3:8080 up 2 40",
        "b.example:8081 no address - -",
    ];
    assert_eq!(rows, expected, "{services}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_and_its_overview() {
    let mgmt = Mgmt::start().await;
    let _nodes = nodes(&mgmt).await;
    let file = mgmt.scratch.file("policy.yaml", &policy("web", 80));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
    for (path, words) in [
        ("/", "Topology"),
        ("/style.css", "prefers-color-scheme"),
        ("/app.js", "overview"),
        ("/planes.js", "drawQuality"),
        ("/base.js", "function h("),
        ("/act.js", "if_generation"),
        ("/policy.js", "dry_run"),
        ("/charts.js", "polyline"),
        ("/topology.js", "Network nodes"),
        ("/drops.js", "bad_checksum"),
        ("/events.js", "wait_s"),
    ] {
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
