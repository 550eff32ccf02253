//! Peers that send nonsense, too much or nothing: each gets a defined answer and is counted, and a publisher
//! and a subscriber beside it go on undisturbed.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use client::{command, frame, greeting, null_handshake};
use common::*;
use csp_proxy_core::service::local::LocalServices as _;
use csp_zmtp::Counters;

/// The bad peer.
const BAD: u32 = 9;

/// A publisher, a subscriber to everything, and a channel for everybody.
fn world() -> World {
    with_neighbours(config())
}

fn with_neighbours(config: csp_services::MessagesConfig) -> World {
    let mut w = World::with(config, open_channel());
    w.connect_null(1, "PUB");
    w.connect_null(2, "SUB");
    w.arrive(2, &subscribe(b""));
    w
}

/// What the publisher sends arrives at the subscriber.
fn neighbours_go_on(w: &mut World) {
    let news = message(&[b"news", b"body"]);
    w.arrive(1, &news);
    assert_eq!(w.taken(2), news);
    assert!(!w.has_ended(1) && !w.has_ended(2));
}

/// The bad peer sends `bytes` and is disconnected; `counter` counts it, and nothing else does.
fn refused(bytes: &[u8], counter: fn(&mut Counters) -> &mut u64) {
    let mut w = world();
    let before = *w.broker.zmtp();
    let peers = w.broker.plane().unwrap().peers();
    w.connect(BAD);
    w.arrive(BAD, bytes);
    assert!(w.has_ended(BAD), "{:02x?}", &bytes[..bytes.len().min(80)]);
    let mut expected = before;
    *counter(&mut expected) += 1;
    let mut found = *w.broker.zmtp();
    found.handshakes_completed = expected.handshakes_completed;
    assert_eq!(found, expected);
    w.broker.gone(w.now, World::label(BAD));
    w.ends.remove(&BAD);
    assert_eq!(w.broker.plane().unwrap().peers(), peers, "nothing is left of it");
    neighbours_go_on(&mut w);
}

#[test]
fn a_malformed_greeting() {
    refused(b"GET / HTTP/1.1\r\n\r\n", |c| &mut c.failed_signature);
    refused(&[&[0xff; 9][..], &[0]].concat(), |c| &mut c.failed_signature);
}

#[test]
fn a_greeting_of_another_version_or_mechanism() {
    let mut old = greeting(0, "NULL");
    old[10] = 1;
    refused(&old[..11], |c| &mut c.failed_version);
    refused(&greeting(1, "PLAIN"), |c| &mut c.failed_mechanism);
    refused(&greeting(1, "CURVE"), |c| &mut c.failed_mechanism);
    refused(&greeting(1, "NULLX"), |c| &mut c.failed_mechanism);
}

#[test]
fn a_malformed_command() {
    let before = |bytes: &[u8]| [&greeting(1, "NULL"), bytes].concat();
    let after = |bytes: &[u8]| [&null_handshake("SUB", 1), bytes].concat();
    refused(&before(&command("READY", b"\x0bSocket-Type\0\0\0\x50SUB")), |c| &mut c.failed_malformed);
    refused(&before(&command("READY", b"")), |c| &mut c.failed_malformed);
    refused(&before(&command("SUBSCRIBE", b"early")), |c| &mut c.failed_unexpected);
    refused(&after(&frame(4, b"")), |c| &mut c.failed_malformed);
    refused(&after(&frame(4, b"\x20short")), |c| &mut c.failed_malformed);
    refused(&after(&command("PING", b"\0")), |c| &mut c.failed_malformed);
    refused(&after(&command("READY", b"")), |c| &mut c.failed_unexpected);
    let ready = |socket: &[u8]| before(&command("READY", &client::property("Socket-Type", socket)));
    refused(&ready(b"PULL"), |c| &mut c.failed_socket_type);
    refused(&ready(b"TUB"), |c| &mut c.failed_malformed);
}

#[test]
fn a_malformed_frame_or_length() {
    let after = |bytes: &[u8]| [&null_handshake("PUB", 1), bytes].concat();
    for flags in [8, 0x10, 0x80, 5] {
        refused(&after(&[flags, 0]), |c| &mut c.failed_frame);
    }
    refused(&after(&[2, 0x80, 0, 0, 0, 0, 0, 0, 0]), |c| &mut c.failed_frame); // 2^63
    refused(&after(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), |c| &mut c.failed_message_too_long);
    refused(&after(&[6, 0, 0, 0, 0, 1, 0, 0, 0]), |c| &mut c.failed_command_too_long);
    // A long frame of a short body is legal: libzmq sends none, and reads them.
    let mut w = world();
    w.connect_null(BAD, "PUB");
    w.arrive(BAD, &[2, 0, 0, 0, 0, 0, 0, 0, 1, b'x']);
    assert_eq!(w.taken(2), message(&[b"x"]));
}

#[test]
fn a_message_of_too_many_frames_or_bytes() {
    let after = |bytes: &[u8]| [&null_handshake("PUB", 1), bytes].concat();
    let long = vec![0; MESSAGE_LEN_MAX + 1];
    refused(&after(&frame(0, &long)[..9]), |c| &mut c.failed_message_too_long); // by its header alone
    // Of several frames it costs the message only, and what is before and behind it arrives.
    let mut w = world();
    w.connect_null(BAD, "PUB");
    let many = [frame(1, b"x").repeat(csp_messages::FRAMES_MAX), frame(0, b"x")].concat();
    let split = [frame(1, &long[1..]), frame(0, b"x")].concat();
    let good = [&b"1"[..], b"2", b"3"].map(|n| message(&[b"good", n]));
    w.arrive(BAD, &[&good[0], &many, &good[1], &split, &good[2]].map(|bytes| &bytes[..]).concat());
    assert_eq!(w.taken(2), good.concat());
    assert_eq!((w.broker.zmtp().messages_refused(), w.broker.snapshots()[0].refused), (2, 2));
    assert!(!w.has_ended(BAD) && w.broker.incomplete_bytes() < MESSAGE_LEN_MAX);
    neighbours_go_on(&mut w);
}

#[test]
fn a_topic_of_a_mebibyte() {
    let topic = vec![b't'; 1 << 20];
    let after = |bytes: &[u8]| [&null_handshake("SUB", 1), bytes].concat();
    refused(&after(&subscribe(&topic)), |c| &mut c.failed_command_too_long);
    refused(&after(&subscribe_old(&topic)), |c| &mut c.failed_topic_too_long);
    // The longest command is longer than the longest topic.
    refused(&after(&subscribe(&topic[..300])), |c| &mut c.failed_topic_too_long);
    // Of a message it costs the message only.
    let mut w = world();
    w.connect_null(BAD, "PUB");
    w.arrive(BAD, &message(&[&topic[1..], b"x"]));
    w.arrive(BAD, &message(&[&topic[..255], b"x"]));
    assert_eq!(w.taken(2), message(&[&topic[..255], b"x"]));
    assert_eq!(w.broker.plane().unwrap().counters().refused_topic, 1);
    assert_eq!(w.broker.snapshots()[0].refused, 1);
    assert!(!w.has_ended(BAD));
    neighbours_go_on(&mut w);
}

#[test]
fn more_topics_than_there_is_room_for() {
    let mut config = config();
    config.subscriptions.entries_max = 5_000;
    config.subscriptions.subscriber_entries_max = 4_000;
    let mut w = with_neighbours(config);
    w.connect_null(BAD, "SUB");
    for n in 0..10_000u32 {
        w.arrive(BAD, &subscribe(format!("topic-{n}").as_bytes()));
    }
    let plane = w.broker.plane().unwrap();
    let peers: u64 =
        w.broker.snapshots().iter().map(|channel| channel.status.subscriptions.entries as u64).sum();
    assert_eq!((peers, plane.counters().subscribe_refused), (4_001, 6_000), "others can still subscribe");
    assert!(!w.has_ended(BAD));
    w.arrive(1, &[message(&[b"topic-17"]), message(&[b"topic-9999"])].concat());
    // "topic-9999" begins with "topic-999", which was in time.
    assert_eq!(w.taken(BAD), [message(&[b"topic-17"]), message(&[b"topic-9999"])].concat());
    w.taken(2);
    neighbours_go_on(&mut w);
}

#[test]
fn a_million_topics_of_one_subscriber() {
    let mut w = world();
    w.connect_null(BAD, "SUB");
    let mut batch = Vec::new();
    for n in 0..1_100_000u32 {
        batch.extend(subscribe(format!("{n:07}").as_bytes()));
        if batch.len() > 60_000 {
            w.arrive(BAD, &batch);
            batch.clear();
        }
    }
    w.arrive(BAD, &batch);
    let entries = w.broker.snapshots()[0].status.subscriptions.entries;
    let refused = w.broker.plane().unwrap().counters().subscribe_refused;
    assert_eq!(u64::from(entries) + refused, 1_100_001);
    assert!(refused > 0 && !w.has_ended(BAD), "{refused}");
    w.arrive(1, &message(&[b"0000007"]));
    assert_eq!(w.taken(BAD), message(&[b"0000007"]));
    w.taken(2);
    neighbours_go_on(&mut w);
    w.broker.gone(w.now, World::label(BAD));
    w.ends.remove(&BAD);
    assert_eq!(w.broker.snapshots()[0].status.subscriptions.entries, 1);
}

#[test]
fn a_subscriber_that_never_reads() {
    let mut w = world();
    w.connect_null(BAD, "SUB");
    w.arrive(BAD, &subscribe(b""));
    w.ends.get_mut(&BAD).unwrap().room = 0;
    let news = message(&[b"news", &[7; 1_000]]);
    for _ in 0..3_000 {
        w.arrive(1, &news);
        assert_eq!(w.taken(2), news);
    }
    let snapshot = &w.broker.snapshots()[0];
    assert!(snapshot.waiting <= 1_010, "{} messages wait", snapshot.waiting);
    assert!(snapshot.status.counters.dropped_newest >= 1_900);
    neighbours_go_on(&mut w);
}

#[test]
fn a_handshake_that_never_completes() {
    for bytes in [&b""[..], &greeting(1, "NULL")[..40], &null_handshake("SUB", 1)[..70]] {
        let mut w = world();
        w.connect(BAD);
        w.arrive(BAD, bytes);
        assert!(!w.has_ended(BAD));
        let start = w.now;
        assert_eq!(w.pass_to_deadline(), start + Duration::from_secs(30));
        assert!(w.has_ended(BAD) && w.broker.zmtp().failed_handshake_timeout == 1);
        neighbours_go_on(&mut w);
    }
}

#[test]
fn half_a_frame_and_then_silence() {
    let mut spec = open_channel();
    spec.heartbeat = Some(Duration::from_secs(10));
    let mut w = World::new(spec);
    w.connect_null(BAD, "PUB");
    let long = frame(0, &[1; 100_000]);
    w.arrive(BAD, &long[..50_000]);
    let start = w.now;
    w.pass_to_deadline();
    assert_eq!(w.taken(BAD), command("PING", &300u16.to_be_bytes()));
    assert_eq!(w.pass_to_deadline(), start + Duration::from_secs(20));
    assert!(w.has_ended(BAD) && w.broker.zmtp().failed_heartbeat_timeout == 1);

    // Without heartbeats it waits, as TCP lets it; what it costs is the message it has begun.
    let mut w = world();
    w.connect_null(BAD, "PUB");
    w.arrive(BAD, &long[..50_000]);
    assert!(!w.has_ended(BAD) && w.broker.next_timeout().is_none());
    neighbours_go_on(&mut w);
}

#[test]
fn a_hello_or_initiate_whose_box_does_not_open() {
    let mut w = World::new(keyed_channel());
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut reader = w.connect_curve(2, READER, "SUB");
    w.arrive(2, &reader.sealed(0, 2, b"\x09SUBSCRIBE"));
    // Another server's key.
    w.connect(BAD);
    let mut lost = client::CurveClient::new(public(STRANGER), BOTH, [3; 32]);
    w.arrive(BAD, &[greeting(1, "CURVE"), lost.hello()].concat());
    assert!(w.has_ended(BAD) && w.broker.zmtp().failed_sealed == 1);
    // A damaged box, of HELLO and of INITIATE.
    for damage_initiate in [false, true] {
        let n = BAD + 1 + u32::from(damage_initiate);
        w.connect(n);
        let mut client = client::CurveClient::new(public(SERVER), BOTH, [n as u8; 32]);
        let mut hello = client.hello();
        if !damage_initiate {
            *hello.last_mut().unwrap() ^= 1;
        }
        w.arrive(n, &[greeting(1, "CURVE"), hello].concat());
        let answer = w.taken(n);
        if damage_initiate {
            let mut initiate = client.initiate(&answer[64..], &client::property("Socket-Type", b"SUB"));
            *initiate.last_mut().unwrap() ^= 1;
            w.arrive(n, &initiate);
        }
        assert!(w.has_ended(n));
    }
    assert_eq!(w.broker.zmtp().failed_sealed, 3);
    // A message that was changed on its way.
    let mut both = w.connect_curve(20, BOTH, "PUB");
    let mut sealed = both.sealed(0, 0, b"news");
    *sealed.last_mut().unwrap() ^= 1;
    w.arrive(20, &sealed);
    assert!(w.has_ended(20) && w.broker.zmtp().failed_sealed == 4);
    w.arrive(1, &writer.sealed(0, 0, b"news"));
    assert_eq!(open_all(&mut reader, &w.taken(2)), [(0, b"news".to_vec())]);
}

#[test]
fn more_peers_than_there_is_room_for() {
    let mut config = config();
    config.peers_max = 3;
    let mut w = with_neighbours(config);
    w.connect_null(3, "SUB");
    w.connect_null(BAD, "SUB");
    assert!(w.has_ended(BAD) && !w.has_ended(3));
    assert_eq!(w.broker.refusals().peers_full, 1);
    w.taken(3);
    neighbours_go_on(&mut w);
}

#[test]
fn a_subscriber_that_sends_messages() {
    let mut w = world();
    w.connect_null(BAD, "XSUB");
    w.arrive(BAD, &message(&[b"from", b"below"]));
    assert!(w.taken(2).is_empty() && !w.has_ended(BAD));
    assert_eq!(w.broker.plane().unwrap().counters().refused_peer, 1);
    neighbours_go_on(&mut w);
}
