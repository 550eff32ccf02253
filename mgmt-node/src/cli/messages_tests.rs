//! What `cspctl subscriptions` and `cspctl message trace` print.

use csp_api::messages::{Peer, TracedMessage};
use csp_api::mgmt::PeerView;

use super::*;

fn outside(port: u16, socket: &str) -> PeerName {
    PeerName {
        address: Some(([10, 76, 0, 1], port).into()),
        node: "".into(),
        process: "".into(),
        socket: socket.into(),
    }
}

fn inside(socket: &str) -> PeerName {
    PeerName { node: "an-1".into(), process: "python3.7.1".into(), ..outside(40_101, socket) }
}

fn copy(receiver: PeerName, state: CopyState, at_ns: u64) -> TracedCopy {
    let bytes = if state == CopyState::Written { 640 } else { 0 };
    TracedCopy { receiver, state, at_ns, bytes }
}

fn message() -> TracedMessage {
    TracedMessage {
        channel: "ticks".into(),
        worker: 0,
        sequence: 4711,
        topic: "ACME".into(),
        frames: vec![4, 12, 608],
        t_ns: 77,
        publisher: outside(40_312, "PUB"),
        looked_up_ns: 850,
        receivers: 5,
        matched: 3,
        contexts: Vec::new(),
        copies: vec![
            copy(outside(40_330, "SUB"), CopyState::Written, 9_100),
            copy(inside("SUB"), CopyState::Written, 12_340),
            copy(outside(40_331, "XSUB"), CopyState::DroppedNewest, 2_000),
        ],
        more: 0,
    }
}

fn drawn(message: TracedMessage, ascii: bool) -> String {
    let messages = vec![TracedMessageView { proxy: "pn-1".into(), message }];
    draw_messages(&MessageTraceView { messages, unreachable: Vec::new() }, ascii, Paint::off())
}

#[test]
fn a_message_is_drawn_as_a_tree_with_times() {
    let expected = "\
ticks #4711  3 frames 624 B  topic ACME  from 10.76.0.1:40312 (PUB)
      +0.0 µs  arrived at pn-1/0
      +0.8 µs  3 of 5 receivers subscribe
      +9.1 µs  ├─ 10.76.0.1:40330 (SUB)   written 640 B
     +12.3 µs  ├─ an-1 python3.7.1 (SUB)  written 640 B
      +2.0 µs  └─ 10.76.0.1:40331 (XSUB)  dropped: its queue was full
";
    assert_eq!(drawn(message(), false), expected);
}

#[test]
fn contexts_stand_between_look_ups_and_receivers_and_what_was_not_followed_is_counted() {
    let stage =
        Stage { context: "c-0".into(), handler: "select".into(), at_ns: 1_200, took_ns: 130, bytes: 600 };
    let left = PeerName { address: None, ..outside(1, "SUB") };
    let copies = vec![copy(left, CopyState::Left, 5_000)];
    let drawn =
        drawn(TracedMessage { contexts: vec![stage], copies, matched: 70, more: 69, ..message() }, true);
    let expected = "\
ticks #4711  3 frames 624 B  topic ACME  from 10.76.0.1:40312 (PUB)
      +0.0 us  arrived at pn-1/0
      +0.8 us  70 of 5 receivers subscribe
      +1.2 us  context c-0: select, 600 B in 0.1 µs
      +5.0 us  |- a peer that has left (SUB)  has left
               `- 69 more receivers, not followed
";
    assert_eq!(drawn, expected);
}

#[test]
fn what_nobody_gets_and_what_one_puller_gets_is_said() {
    let unmatched = TracedMessage { matched: 0, copies: Vec::new(), topic: "".into(), ..message() };
    let text = drawn(unmatched, false);
    assert!(text.contains("none of 5 receivers subscribes") && text.contains("topic (empty)"), "{text}");
    let copies = vec![copy(outside(40_330, "PULL"), CopyState::Waiting, 0)];
    let pushed = TracedMessage { publisher: outside(1, "PUSH"), matched: 1, copies, ..message() };
    let text = drawn(pushed, false);
    assert!(text.contains("one of 5 receivers gets it") && text.contains("waits in its queue"), "{text}");
}

#[test]
fn peers_are_listed_with_what_they_subscribe_to_and_how_many_more_there_are() {
    let peer = |name, role: &str, subscriptions, prefixes: &[&str]| PeerView {
        proxy: "pn-1".into(),
        peer: Peer {
            channel: "ticks".into(),
            worker: 1,
            name,
            role: role.into(),
            age_ms: 61_000,
            messages_in: 7,
            messages_out: 5,
            waiting: 2,
            waiting_bytes: 1_300,
            dropped: 1,
            subscriptions,
            prefixes: prefixes.iter().map(|prefix| (*prefix).into()).collect(),
        },
    };
    let long = "0123456789".repeat(5);
    let peers = vec![
        peer(outside(40_312, "PUB"), "publisher", 0, &[]),
        peer(inside("SUB"), "subscriber", 5, &["", "a\\x00", &long]),
    ];
    let view = SubscriptionsView { peers, more: 3, unreachable: Vec::new() };
    let expected = "\
CHANNEL  PEER              SOCKET  SINCE  IN  OUT  WAITING  DROPPED  WORKER  TOPICS
ticks    10.76.0.1:40312   PUB     61 s    7    5        2        1  pn-1/1  -
ticks    an-1 python3.7.1  SUB     61 s    7    5        2        1  pn-1/1  (all), a\\x00, 01234567890123456789012345678901…, 2 more
3 more peers; --limit shows more.
";
    assert_eq!(peers_table(&view, Paint::off()), expected);
    let nobody = SubscriptionsView::default();
    assert!(peers_table(&nobody, Paint::off()).starts_with("No peers"));
}
