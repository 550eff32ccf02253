//! Channels with keys at the broker: which peers the broker admits, for which of them it seals frames, and
//! which sessions a new policy ends.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::*;
use csp_messages::{CopyState, TraceRequest};
use csp_services::{Refusals, Rights};
use csp_types::{Duration, Instant};

/// ERROR with the status of 27/ZAP that libzmq sends and understands.
const ERROR_400: &[u8] = b"\x04\x0a\x05ERROR\x03400";

#[test]
fn what_one_client_seals_the_others_open() {
    let mut w = World::new(keyed_channel());
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut reader = w.connect_curve(2, READER, "SUB");
    let mut both = w.connect_curve(3, BOTH, "SUB");
    w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBEap"));
    w.arrive(3, &both.sealed(0, 0, b"\x01")); // the form of 3.0: to everything
    let two = [writer.sealed(0, 1, b"apple"), writer.sealed(0, 0, b"red"), writer.sealed(0, 0, b"pear")];
    w.arrive(1, &two.concat());
    let apple = [(1, b"apple".to_vec()), (0, b"red".to_vec())];
    assert_eq!(open_all(&mut reader, &w.taken(2)), apple);
    assert_eq!(open_all(&mut both, &w.taken(3)), [&apple[..], &[(0, b"pear".to_vec())]].concat());
    assert_eq!((*w.broker.refusals(), w.broker.zmtp().handshakes_completed), (Refusals::default(), 3));
}

#[test]
fn a_traced_message_is_done_with_when_it_was_sealed_for_its_receiver() {
    let mut w = World::new(keyed_channel());
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut reader = w.connect_curve(2, READER, "SUB");
    w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBEap"));
    let clock = || Instant::from_nanos(7);
    let until = w.now + Duration::from_secs(1);
    let id =
        w.broker.arm_trace(w.now, "ticks", TraceRequest { messages: 1, topic: b"", until, clock }).unwrap();
    w.arrive(1, &writer.sealed(0, 0, b"apple"));
    assert_eq!(w.broker.trace_progress(id), Some((1, true)));
    let state = w.broker.traced(id).unwrap()[0].message.copies[0].state;
    assert!(matches!(state, CopyState::Written(_)), "{state:?}");
}

#[test]
fn each_key_may_do_what_the_policy_says_and_others_get_400() {
    let mut w = World::new(keyed_channel());
    let mut expected = Refusals::default();
    for (n, (secret, socket, refused)) in [
        (READER, "PUB", Some(1)),
        (READER, "XPUB", Some(1)),
        (WRITER, "SUB", Some(2)),
        (STRANGER, "SUB", Some(3)),
        (STRANGER, "PUB", Some(3)),
        (WRITER, "XPUB", None),
        (READER, "XSUB", None),
    ]
    .into_iter()
    .enumerate()
    {
        let n = n as u32;
        let (answer, _) = w.initiate(n, secret, socket);
        match refused {
            Some(1) => expected.may_not_publish += 1,
            Some(2) => expected.may_not_subscribe += 1,
            Some(_) => expected.unknown_key += 1,
            None => {}
        }
        assert_eq!((answer == ERROR_400, w.has_ended(n)), (refused.is_some(), refused.is_some()), "{n}");
        assert_eq!(*w.broker.refusals(), expected);
    }
    assert_eq!(w.broker.zmtp().failed_denied, 5);
    assert_eq!(w.broker.plane().unwrap().peers(), 2);
}

#[test]
fn a_peer_without_keys_is_refused_unless_the_policy_lets_any_peer_in() {
    let mut w = World::new(keyed_channel());
    w.connect(1);
    w.arrive(1, &client::null_handshake("SUB", 1));
    assert!(w.has_ended(1) && w.broker.zmtp().failed_mechanism == 1);

    let mut w = World::new(with_keys(keyed_channel(), |keys| (keys.require, keys.any) = (false, SUBSCRIBE)));
    w.connect(1);
    assert_eq!(w.taken(1).len(), 12, "signature and version: the mechanism follows the peer's");
    w.arrive(1, &client::null_handshake("SUB", 1));
    let answer = w.taken(1);
    assert!(answer.starts_with(b"NULL") && answer[52..].starts_with(b"\x04"), "{answer:?}");
    w.arrive(1, &subscribe(b""));
    w.connect(2);
    w.arrive(2, &client::null_handshake("PUB", 1));
    assert!(w.taken(2).ends_with(ERROR_400) && w.has_ended(2));
    assert_eq!(w.broker.refusals().no_key, 1);
    // Such a peer and one with a key are on the same channel.
    let mut writer = w.connect_curve(3, WRITER, "PUB");
    let mut stranger = w.connect_curve(4, STRANGER, "SUB");
    w.arrive(4, &stranger.sealed(0, 2, b"\x09SUBSCRIBE"));
    w.arrive(3, &writer.sealed(0, 0, b"news"));
    assert_eq!(w.taken(1), message(&[b"news"]));
    assert_eq!(open_all(&mut stranger, &w.taken(4)), [(0, b"news".to_vec())]);
}

#[test]
fn a_key_that_the_policy_removes_ends_its_sessions_and_no_others() {
    let mut w = World::new(keyed_channel());
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut reader = w.connect_curve(2, READER, "SUB");
    let mut both = w.connect_curve(3, BOTH, "SUB");
    w.connect_curve(4, BOTH, "PUB");
    for (n, client) in [(2, &mut reader), (3, &mut both)] {
        w.arrive(n, &client.sealed(0, 2, b"\x09SUBSCRIBE"));
    }
    let less = with_keys(keyed_channel(), |keys| {
        keys.clients.remove(&public(READER));
        keys.clients.insert(public(BOTH), SUBSCRIBE);
    });
    w.apply([less]).unwrap();
    w.settle();
    assert!(w.has_ended(2) && w.has_ended(4), "unknown now, and not to publish any more");
    assert!(!w.has_ended(1) && !w.has_ended(3));
    assert_eq!(w.broker.refusals().rights_removed, 2);
    w.arrive(1, &writer.sealed(0, 0, b"goes on"));
    assert_eq!(open_all(&mut both, &w.taken(3)), [(0, b"goes on".to_vec())]);
    assert!(w.taken(2).is_empty());
    assert_eq!(w.initiate(5, READER, "SUB").0, ERROR_400);
    // With another pair of its own the channel is another one to its clients.
    let other = with_keys(keyed_channel(), |keys| {
        keys.server = std::sync::Arc::new(csp_zmtp::CurveKeys::new([1; 32]))
    });
    w.apply([other]).unwrap();
    w.settle();
    assert!(w.has_ended(1) && w.has_ended(3));
}

#[test]
fn what_has_no_room_is_sealed_once_and_arrives_whole() {
    for room in [1, 40, 1_000, 70_000, 300_000] {
        let mut w = World::new(keyed_channel());
        let mut writer = w.connect_curve(1, WRITER, "PUB");
        let mut reader = w.connect_curve(2, READER, "SUB");
        w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBE"));
        w.ends.get_mut(&2).unwrap().room = 0;
        let long = vec![b'x'; if room < 1_000 { 3_000 } else { 600_000 }];
        let frames: [(u8, &[u8]); 7] =
            [(1, b"a"), (1, &long), (0, b""), (0, b"b"), (1, b"c"), (1, &long), (0, &[7; 300])];
        for (flags, body) in frames {
            let sealed = writer.sealed(0, flags, body);
            sealed.chunks(50_000).for_each(|part| w.arrive(1, part));
        }
        let mut all = Vec::new();
        while let more = w.taken(2)
            && (!more.is_empty() || all.is_empty())
        {
            all.extend(more);
            w.give_room(2, room);
        }
        let got = open_all(&mut reader, &all);
        assert!(
            got.iter().map(|(flags, body)| (*flags, &body[..])).eq(frames),
            "room for {room}: {:?}",
            got.iter().map(|(flags, body)| (*flags, body.len())).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_publisher_that_is_held_back_publishes_its_sealed_message_once() {
    let mut spec = keyed_channel();
    spec.channel.kind =
        csp_messages::ChannelKind::PublishSubscribe { policy: csp_messages::FullQueue::Block, cache: None };
    spec.channel.queue.messages = 5;
    let mut w = World::new(spec);
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut reader = w.connect_curve(2, READER, "SUB");
    w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBE"));
    w.ends.get_mut(&2).unwrap().room = 0;
    let bodies: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 100]).collect();
    for body in &bodies {
        let sealed = writer.sealed(0, 0, body);
        w.arrive(1, &sealed);
    }
    assert!(!w.ends[&1].arrived.is_empty(), "it is held back");
    let mut got = Vec::new();
    for _ in 0..200 {
        w.give_room(2, 100);
        w.serve(1);
        w.settle();
    }
    got.extend(open_all(&mut reader, &w.taken(2)).into_iter().map(|(_, body)| body));
    assert!(got == bodies, "{} of {}", got.len(), bodies.len());
}

#[test]
fn heartbeats_go_to_peers_and_a_silent_one_is_disconnected() {
    let mut spec = keyed_channel();
    spec.heartbeat = Some(std::time::Duration::from_secs(10));
    let mut w = World::new(spec);
    let mut reader = w.connect_curve(1, READER, "SUB");
    let mut silent = w.connect_curve(2, READER, "SUB");
    let start = w.now;
    assert_eq!(w.pass_to_deadline(), start + std::time::Duration::from_secs(10));
    // The time-to-live is three intervals, in tenths of seconds.
    let ping = [&b"\x04PING"[..], &300u16.to_be_bytes()].concat();
    for (n, client) in [(1, &mut reader), (2, &mut silent)] {
        assert_eq!(open_all(client, &w.taken(n)), [(2, ping.clone())]);
    }
    w.arrive(1, &reader.sealed(0, 2, b"\x04PONG"));
    w.arrive(1, &reader.sealed(0, 2, b"\x04PING\0\0context"));
    assert_eq!(open_all(&mut reader, &w.taken(1)), [(2, b"\x04PONGcontext".to_vec())]);
    w.pass_to_deadline();
    assert!(w.has_ended(2) && !w.has_ended(1));
    let counters = w.broker.zmtp();
    assert_eq!((counters.pings_received, counters.pongs_sent, counters.pongs_received), (1, 1, 1));
    assert_eq!(counters.failed_heartbeat_timeout, 1);
}

#[test]
fn a_channel_with_keys_needs_random_bytes() {
    let mut broker = csp_services::MessageBroker::new(config());
    let error = broker.apply(Instant::ZERO, &of_channels([keyed_channel()])).unwrap_err();
    assert!(error.to_string().contains("ticks"), "{error}");
    assert_eq!(
        Rights::default(),
        Rights { publish: false, subscribe: false, control: false, query: false, supply: false }
    );
}

#[test]
fn numbers_are_a_last_sealed_frame_whatever_the_room() {
    for room in [1, 60, 100_000] {
        let mut spec = keyed_channel();
        spec.channel.sequence = true;
        let mut w = World::new(spec);
        let mut writer = w.connect_curve(1, WRITER, "PUB");
        let mut reader = w.connect_curve(2, READER, "SUB");
        w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBE"));
        w.ends.get_mut(&2).unwrap().room = 0;
        let bytes: Vec<u8> = [b"one", b"two"].iter().flat_map(|body| writer.sealed(0, 0, *body)).collect();
        w.arrive(1, &bytes);
        let mut all = Vec::new();
        for _ in 0..400 {
            w.give_room(2, room);
            all.extend(w.taken(2));
        }
        let got = open_all(&mut reader, &all);
        let flags: Vec<u8> = got.iter().map(|(flags, _)| *flags).collect();
        let numbers: Vec<u64> =
            [1, 3].map(|at| u64::from_be_bytes(got[at].1[..8].try_into().unwrap())).to_vec();
        assert_eq!((flags, numbers), (vec![1, 0, 1, 0], vec![1, 2]), "room for {room}");
    }
}
