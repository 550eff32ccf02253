//! Whatever the slices in which a stream arrives, its items are the same; whatever byte is damaged, the
//! outcome is an error or items, and the same for every split. A failing case prints its input and is stored
//! by proptest.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::sync::Arc;

use common::client::{
    CurveClient, command, command_body, frame, greeting, message, null_handshake, property,
};
use common::{Got, Server};
use csp_types::Instant;
use csp_zmtp::{Config, Connection, CurveKeys, LocalType, ZmtpError};
use proptest::prelude::*;

/// What a peer does after its handshake.
#[derive(Clone, Debug)]
enum Action {
    Message(Vec<Vec<u8>>),
    Subscribe { old: bool, cancel: bool, topic: Vec<u8> },
    Ping(Vec<u8>),
    Unknown,
}

fn any_action() -> impl Strategy<Value = Action> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    let body = prop_oneof![4 => bytes(20usize), 1 => bytes(600)];
    prop_oneof![
        4 => prop::collection::vec(body, 1..7).prop_map(Action::Message),
        3 => (any::<bool>(), any::<bool>(), bytes(40))
            .prop_map(|(old, cancel, topic)| Action::Subscribe { old, cancel, topic }),
        1 => bytes(17).prop_map(Action::Ping),
        1 => Just(Action::Unknown),
    ]
}

/// The frames of an action: flags and bodies.
fn frames(action: &Action) -> Vec<(u8, Vec<u8>)> {
    match action {
        Action::Message(frames) => {
            let last = frames.len() - 1;
            frames.iter().enumerate().map(|(at, body)| ((at < last).into(), body.clone())).collect()
        }
        Action::Subscribe { old: true, cancel, topic } => {
            vec![(0, [&[u8::from(!cancel)], &topic[..]].concat())]
        }
        Action::Subscribe { cancel, topic, .. } => {
            vec![(4, command_body(if *cancel { "CANCEL" } else { "SUBSCRIBE" }, topic))]
        }
        Action::Ping(context) => vec![(4, command_body("PING", &[b"\0\x05", &context[..]].concat()))],
        Action::Unknown => vec![(4, command_body("WHAT", b"ever"))],
    }
}

/// What an XPUB makes of an action.
fn expected(action: &Action) -> Option<Got> {
    let topic = |subscribe: bool, topic: &[u8]| {
        if subscribe { Got::Subscribe(topic.to_vec()) } else { Got::Cancel(topic.to_vec()) }
    };
    match action {
        Action::Message(frames) => match &frames[..] {
            [only] if only.first().is_some_and(|first| *first < 2) => Some(topic(only[0] == 1, &only[1..])),
            // One of too many frames is refused, and nothing else is.
            _ => (frames.len() <= 4).then(|| Got::Message(frames.clone())),
        },
        Action::Subscribe { cancel, topic: name, .. } => Some(topic(!cancel, name)),
        Action::Ping(_) | Action::Unknown => None,
    }
}

fn config() -> Config {
    Config { topic_len_max: 1000, message_len_max: 3000, frames_max: 4, ..Config::new(LocalType::Xpub) }
}

fn null_stream(actions: &[Action]) -> Vec<u8> {
    let traffic = actions.iter().flat_map(frames).flat_map(|(flags, body)| frame(flags, &body));
    null_handshake("XSUB", 1).into_iter().chain(traffic).collect()
}

fn keys() -> Arc<CurveKeys> {
    Arc::new(CurveKeys::new([1; 32]))
}

fn curve_server() -> Server {
    Server::new(Connection::curve(Arc::new(config()), keys(), &[4; 144], Instant::ZERO))
}

/// The whole stream of a CURVE client, for the server of [`curve_server`].
fn curve_stream(actions: &[Action]) -> Vec<u8> {
    let mut client = CurveClient::new(keys().public(), [2; 32], [3; 32]);
    let mut stream = [greeting(1, "CURVE"), client.hello()].concat();
    let mut server = curve_server();
    server.feed(&stream).unwrap();
    stream.extend(client.initiate(&server.output()[64..], &property("Socket-Type", b"XSUB")));
    for (flags, body) in actions.iter().flat_map(frames) {
        let flags = if flags == 4 { 2 } else { flags };
        stream.extend(client.sealed(0, flags, &body));
    }
    stream
}

/// Feeds `bytes` in chunks whose lengths are those of `cuts`, again and again.
fn feed(mut server: Server, bytes: &[u8], cuts: &[usize]) -> (Vec<Got>, Result<(), ZmtpError>) {
    let (mut rest, mut got) = (bytes, Vec::new());
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (chunk, next) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
        rest = next;
        let (items, outcome) = server.feed_all(chunk);
        got.extend(items);
        server.output();
        if outcome.is_err() {
            return (got, outcome);
        }
        assert!(server.connection.needed() > server.connection.examined());
    }
    (got, Ok(()))
}

fn any_cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![prop::collection::vec(1usize..6, 1..10), prop::collection::vec(1usize..200, 1..10),]
}

proptest! {
    #[test]
    fn any_split_of_a_null_stream_gives_the_same_items(
        actions in prop::collection::vec(any_action(), 0..12),
        cuts in any_cuts(),
    ) {
        let (got, outcome) = feed(Server::null(config()), &null_stream(&actions), &cuts);
        prop_assert_eq!(outcome, Ok(()));
        let items: Vec<Got> = actions.iter().filter_map(expected).collect();
        prop_assert_eq!(&got[1..], &items[..]);
    }

    #[test]
    fn damage_to_a_null_stream_has_one_outcome_for_every_split(
        actions in prop::collection::vec(any_action(), 0..6),
        cuts in any_cuts(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = null_stream(&actions);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(1 + cut.index(bytes.len()));
        let whole = feed(Server::null(config()), &bytes, &[bytes.len()]);
        prop_assert_eq!(feed(Server::null(config()), &bytes, &cuts), whole);
    }

    #[test]
    fn noise_after_a_handshake_has_one_outcome_for_every_split(
        noise in prop::collection::vec(prop_oneof![3 => 0u8..8, 1 => any::<u8>()], 1..300),
        cuts in any_cuts(),
    ) {
        let bytes = [null_handshake("XSUB", 0), noise].concat();
        let whole = feed(Server::null(config()), &bytes, &[bytes.len()]);
        prop_assert_eq!(feed(Server::null(config()), &bytes, &cuts), whole);
    }
}

proptest! {
    // Each case takes a handshake or two: a millisecond of arithmetic.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_of_a_curve_stream_gives_the_same_items(
        actions in prop::collection::vec(any_action(), 0..8),
        cuts in any_cuts(),
    ) {
        let (got, outcome) = feed(curve_server(), &curve_stream(&actions), &cuts);
        prop_assert_eq!(outcome, Ok(()));
        let items: Vec<Got> = actions.iter().filter_map(expected).collect();
        prop_assert_eq!(&got[2..], &items[..]);
    }

    #[test]
    fn damage_to_a_curve_stream_has_one_outcome_for_every_split(
        actions in prop::collection::vec(any_action(), 1..4),
        cuts in any_cuts(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut bytes = curve_stream(&actions);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let whole = feed(curve_server(), &bytes, &[bytes.len()]);
        prop_assert_eq!(feed(curve_server(), &bytes, &cuts), whole);
    }
}

/// Every single bit of a short stream, damaged.
#[test]
fn no_single_bit_panics() {
    let bytes = [
        null_handshake("XSUB", 1),
        message(&[b"\x01a"]),
        command("SUBSCRIBE", b"b"),
        message(&[b"one", &[7; 300]]),
        command("PING", b"\0\x01x"),
    ]
    .concat();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let whole = feed(Server::null(config()), &damaged, &[bytes.len()]);
            assert_eq!(feed(Server::null(config()), &damaged, &[1]), whole, "byte {at} bit {bit}");
        }
    }
}
