//! What the operations page costs: 16 nodes, 1,000 services, ten viewers. A measurement, run by hand: `cargo
//! test --release -p csp-features -p csp-mgmt-node --test viewers -- --ignored --nocapture`. `HOLD_S=600`
//! keeps the node running, and prints the page's address.
#![forbid(unsafe_code)]
// Measures time.
#![allow(clippy::disallowed_types)]

mod support;

use std::time::{Duration, Instant};

use csp_types::Role;
use serde_json::{Value, json};

use support::{FakeNode, Mgmt, Policies, http};

const SERVICES: usize = 1000;
const VIEWERS: usize = 10;
/// The page's files, and what it asks for first.
const FILES: [&str; 11] = [
    "/",
    "/style.css",
    "/base.js",
    "/charts.js",
    "/drops.js",
    "/topology.js",
    "/act.js",
    "/app.js",
    "/policy.js",
    "/planes.js",
    "/events.js",
];
/// What it asks for again and again: path, and how often in seconds.
const POLLS: [(&str, u64); 11] = [
    ("/api/v1/overview?limit=20&offset=0&find=", 2),
    ("/api/v1/topology", 2),
    ("/api/v1/vip-groups", 2),
    ("/api/v1/nodes", 2),
    ("/api/v1/quality", 2),
    ("/api/v1/contexts", 2),
    ("/api/v1/handlers", 2),
    ("/api/v1/plugins", 2),
    ("/api/v1/policy/history", 5),
    ("/api/v1/audit?limit=40", 5),
    (
        "/api/v1/series?points=60&object=service/s-0001,service/s-0003,service/s-0005,service/s-0007,node/pn-1",
        5,
    ),
];

fn policy() -> String {
    let one = |n: usize| {
        format!(
            "  - {{name: s-{n:04}, vip: 10.76.{}.{}, port: 80, pool: [{{node: an-1, port: 80}}, {{node: an-2, port: 80}}]}}\n",
            n / 250,
            n % 250
        )
    };
    format!("apiVersion: csp/v1\nservices:\n{}", (0..SERVICES).map(one).collect::<String>())
}

fn proxy() -> Value {
    let member = |node: &str, n: usize| json!({"node": node, "port": 80, "listeners": 2, "open": n % 7, "accept_credit": 128, "connections_total": 100 * n});
    let service = |n: usize| {
        json!({"name": format!("s-{n:04}"), "address": format!("10.76.{}.{}:80", n / 250, n % 250), "pending": 0,
            "members": [member("an-1", n), member("an-2", n)]})
    };
    json!({"/v1/services": (0..SERVICES).map(service).collect::<Vec<_>>(), "/v1/flows": [], "/v1/channels": []})
}

async fn nodes(mgmt: &Mgmt) -> Vec<FakeNode> {
    let mut nodes = Vec::new();
    let tunnel = |proxy: usize| {
        json!({"proxy": format!("pn-{proxy}"), "proxy_worker": 0, "provider": "tcp", "address": "10.77.0.2:7000", "worker": 0,
            "state": "up"})
    };
    let reached = |proxy: usize| json!({"proxy": format!("pn-{proxy}"), "worker": 0, "socket": "/run/s", "provider": "tcp", "address": "/run/s", "direct": null});
    for (role, name, count) in
        [(Role::NetworkNode, "nn", 4), (Role::ProxyNode, "pn", 6), (Role::AppNode, "an", 6)]
    {
        for n in 1..=count {
            let answers = match role {
                Role::NetworkNode => {
                    json!({"/v1/tunnels": (1..=6).map(tunnel).collect::<Vec<_>>(), "/v1/groups": {"voters": 0, "groups": []},
                    "/v1/plugins": {"environments": [], "instances": [], "rules": [], "totals": {}}})
                }
                Role::ProxyNode => proxy(),
                _ => json!({"/v1/proxies": (1..=6).map(reached).collect::<Vec<_>>()}),
            };
            nodes.push(FakeNode::start(mgmt, &format!("{name}-{n}"), role, Policies::Follow, answers).await);
        }
    }
    nodes
}

/// Processor time of a process so far, in seconds.
fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

async fn length(client: &reqwest::Client, url: String) -> usize {
    let answer = client.get(url).header("cache-control", "max-age=1").send().await.expect("an answer");
    answer.bytes().await.expect("a body").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of half a minute"]
async fn a_thousand_services_and_ten_viewers() {
    let mgmt = Mgmt::start().await;
    let _nodes = nodes(&mgmt).await;
    let file = mgmt.scratch.file("policy.yaml", &policy());
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);
    let client = http().no_proxy().build().expect("client");
    let began = Instant::now();
    let mut total = 0;
    for path in FILES {
        total += length(&client, mgmt.url() + path).await;
    }
    let files = total;
    for (path, _) in POLLS {
        let asked = Instant::now();
        let len = length(&client, mgmt.url() + path).await;
        println!("{path}: {len} bytes in {:.0} ms", asked.elapsed().as_secs_f64() * 1e3);
        total += len;
    }
    println!(
        "files {files} bytes, with the first answers {total} bytes, one after another in {:.0} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    let pid = mgmt.child.id();
    let measure = async |what: &str| {
        let before = processor_s(pid);
        tokio::time::sleep(Duration::from_secs(20)).await;
        println!("{what}: {:.1} % of one processor", (processor_s(pid) - before) * 5.0);
    };
    measure("no viewer").await;
    let mut viewers = Vec::new();
    for viewer in 0..VIEWERS {
        for (path, seconds) in POLLS {
            let (client, url) = (client.clone(), mgmt.url() + path);
            viewers.push(tokio::spawn(async move {
                // Pages are opened at different times.
                tokio::time::sleep(Duration::from_millis(137 * viewer as u64)).await;
                loop {
                    length(&client, url.clone()).await;
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
            }));
        }
    }
    measure("ten viewers").await;
    viewers.iter().for_each(tokio::task::JoinHandle::abort);
    if let Some(hold) = std::env::var("HOLD_S").ok().and_then(|hold| hold.parse().ok()) {
        println!("{}", mgmt.url());
        tokio::time::sleep(Duration::from_secs(hold)).await;
    }
    assert!(total < 1 << 20, "the page takes {total} bytes to load");
}
