//! Peers of channels and traces of messages over several proxies: real registrations, scripted admin
//! endpoints.
#![forbid(unsafe_code)]

mod support;

use csp_api::messages::{CopyState, MessageTrace, Peer, PeerName, Subscriptions, TracedCopy, TracedMessage};
use csp_api::proxy::{Channel, ChannelFigures};
use csp_types::Role;
use serde_json::json;

use support::{FakeNode, Mgmt, Policies, body};

const POLICY: &str = "apiVersion: csp/v1\nchannels:\n  - {name: ticks, vip: 10.76.0.100, port: 5556}\n";

fn name(port: u16, socket: &str) -> PeerName {
    PeerName {
        address: Some(([10, 76, 0, 1], port).into()),
        node: "".into(),
        process: "".into(),
        socket: socket.into(),
    }
}

fn peer(port: u16, role: &str, prefixes: &[&str]) -> Peer {
    Peer {
        channel: "ticks".into(),
        worker: 0,
        name: name(port, if role == "publisher" { "PUB" } else { "SUB" }),
        role: role.into(),
        age_ms: 5_000,
        messages_in: 10,
        messages_out: 20,
        waiting: 0,
        waiting_bytes: 0,
        dropped: 0,
        subscriptions: prefixes.len() as u64,
        prefixes: prefixes.iter().map(|prefix| (*prefix).into()).collect(),
    }
}

fn message(sequence: u64) -> TracedMessage {
    let receiver = PeerName { node: "an-1".into(), process: "python3.7.1".into(), ..name(40_330, "SUB") };
    TracedMessage {
        channel: "ticks".into(),
        worker: 1,
        sequence,
        topic: "ACME".into(),
        frames: vec![4, 620],
        t_ns: sequence,
        publisher: name(40_312, "PUB"),
        looked_up_ns: 700,
        receivers: 3,
        matched: 1,
        contexts: Vec::new(),
        copies: vec![TracedCopy { receiver, state: CopyState::Written, at_ns: 9_000, bytes: 640 }],
        more: 0,
    }
}

/// The channel as both proxies know it.
fn channel() -> Channel {
    let figures = ChannelFigures { messages_total: 5, ..ChannelFigures::default() };
    Channel {
        name: "ticks".into(),
        owner: "pn-2/1".into(),
        senders: 1,
        receivers: 0,
        subscriptions: 0,
        requested: None,
        figures,
    }
}

/// A proxy whose admin endpoint answers like this.
async fn proxy(mgmt: &Mgmt, id: &str, peers: Subscriptions, messages: Vec<TracedMessage>) -> FakeNode {
    let answers = json!({
        "/v1/subscriptions": body(peers),
        "/v1/messages/trace": body(MessageTrace { messages }),
        "/v1/channels": body([channel()]),
    });
    FakeNode::start(mgmt, id, Role::ProxyNode, Policies::Follow, answers).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_and_messages_of_all_proxies() {
    let mgmt = Mgmt::start().await;
    let first = Subscriptions { peers: vec![peer(40_001, "subscriber", &["", "\\xff"])], more: 2 };
    let second = Subscriptions { peers: vec![peer(40_002, "publisher", &[])], more: 0 };
    let _one = proxy(&mgmt, "pn-1", first, Vec::new()).await;
    let mut two = proxy(&mgmt, "pn-2", second, vec![message(4711), message(4712)]).await;
    let file = mgmt.scratch.file("policy.yaml", POLICY);
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);

    let channels = mgmt.cspctl(&["channels"]).await.exited(0).out;
    let row: Vec<&str> = channels.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..5], ["ticks", "10.76.0.100:5556", "publish", "pn-2/1", "2"], "{channels}");

    let peers = mgmt.cspctl(&["subscriptions", "ticks"]).await.exited(0).out;
    let lines: Vec<&str> = peers.lines().collect();
    assert!(lines[1].contains("10.76.0.1:40002") && lines[1].contains("pn-2/0"), "senders first:\n{peers}");
    assert!(lines[2].contains("10.76.0.1:40001") && lines[2].ends_with("(all), \\xff"), "{peers}");
    assert_eq!(lines[3], "2 more peers; --limit shows more.");
    let json = mgmt.cspctl(&["subscriptions", "--limit", "1", "-o", "json"]).await.exited(0).json();
    assert_eq!((&json["peers"][0]["proxy"], &json["more"]), (&json!("pn-2"), &json!(3)));
    assert_eq!(json["peers"].as_array().map(Vec::len), Some(1));

    let drawn = mgmt.cspctl(&["message", "trace", "ticks", "--topic", "ACME"]).await.exited(0).out;
    assert!(drawn.contains("ticks #4711  2 frames 624 B  topic ACME  from 10.76.0.1:40312 (PUB)"), "{drawn}");
    assert!(drawn.contains("arrived at pn-2/1") && !drawn.contains("#4712"), "{drawn}");
    assert!(drawn.contains("+9.0 µs  └─ an-1 python3.7.1 (SUB)  written 640 B"), "{drawn}");
    let ran = mgmt.cspctl(&["message", "trace", "ticks", "--count", "3", "-o", "json"]).await.exited(0);
    assert_eq!(ran.json()["messages"].as_array().map(Vec::len), Some(2));

    mgmt.cspctl(&["message", "trace", "ticks", "--count", "33"]).await.exited(64);
    mgmt.cspctl(&["message", "trace", "ticks", "--topic", "\\n"]).await.exited(64);
    let ran = mgmt.cspctl(&["message", "trace", "jobs"]).await.exited(1);
    assert!(ran.err.contains("no channel \"jobs\"") && ran.err.contains("cspctl channels"), "{ran:?}");
    mgmt.cspctl(&["subscriptions", "jobs"]).await.exited(1);

    two.close_admin().await;
    let ran = mgmt.cspctl(&["message", "trace", "ticks"]).await.exited(1);
    assert!(ran.err.contains("pn-2 did not answer") && ran.err.contains("no message came to"), "{ran:?}");
    let peers = mgmt.cspctl(&["subscriptions"]).await.exited(0).out;
    assert!(peers.contains("note: pn-2 did not answer"), "{peers}");
}
