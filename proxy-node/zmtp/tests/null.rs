//! NULL connections: bytes as documented, subscriptions in both forms, heartbeats, what may be consumed when.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::client::{command, frame, greeting, message, null_handshake, property};
use common::{Got, Server, hex};
use csp_types::{Duration, Instant};
use csp_zmtp::{
    Config, Connection, Counters, Cursor, EncodeError, FrameHeader, Heartbeat, Item, LocalType, SocketType,
    ZmtpError,
};

/// The greeting of libzmq 4.3.4, but for `as-server`, and the READY of a PUB.
const GREETING: &str = "ff 0000000000000001 7f 03 01 4e554c4c 00000000000000000000000000000000 00
    00000000000000000000000000000000000000000000000000000000000000";
const READY_PUB: &str = "04 19 05 5245414459 0b 536f636b65742d54797065 00000003 505542";

#[test]
fn a_handshake_is_these_bytes() {
    let mut server = Server::of(LocalType::Pub);
    assert_eq!(server.output(), hex(GREETING));
    // As libzmq sends it: the signature, the major version when it has ours, the rest.
    let peer = hex(GREETING);
    for part in [&peer[..10], &peer[10..11], &peer[11..]] {
        assert_eq!(server.feed(part), Ok(vec![]));
        assert_eq!(server.output(), b"");
    }
    // READY of a SUB of libzmq 4.3.4.
    let ready = hex("04 19 05 5245414459 0b 536f636b65742d54797065 00000003 535542");
    assert_eq!(server.feed(&ready), Ok(vec![Got::Ready(SocketType::Sub)]));
    assert_eq!(server.output(), hex(READY_PUB));
    assert!(server.connection.is_ready());
    assert_eq!(server.connection.peer().unwrap().minor, 1);
    assert_eq!(server.counters, Counters { handshakes_completed: 1, ..Counters::default() });
}

#[test]
fn names_of_properties_ignore_case_and_others_are_passed_over() {
    let mut server = Server::of(LocalType::Router);
    let data = [
        property("X-Color", b"blue"),
        property("SOCKET-type", b"DEALER"),
        property("identity", b"me"),
        property("Resource", b""),
    ];
    let bytes = [greeting(0, "NULL"), command("READY", &data.concat())].concat();
    assert_eq!(server.feed(&bytes), Ok(vec![Got::Ready(SocketType::Dealer)]));
    assert_eq!(server.connection.peer().unwrap().identity, b"me");
    assert_eq!(server.connection.peer().unwrap().minor, 0);
}

#[test]
fn a_later_major_version_is_taken_for_ours() {
    let mut server = Server::of(LocalType::Pull);
    let mut bytes = null_handshake("PUSH", 7);
    bytes[10] = 4;
    assert_eq!(server.feed(&bytes), Ok(vec![Got::Ready(SocketType::Push)]));
    assert_eq!(server.connection.peer().unwrap().minor, 1);
}

#[test]
fn each_type_talks_to_its_counterparts_only() {
    use LocalType as L;
    let table: [(LocalType, &[&str]); 8] = [
        (L::Pub, &["SUB", "XSUB"]),
        (L::Xpub, &["SUB", "XSUB"]),
        (L::Sub, &["PUB", "XPUB"]),
        (L::Xsub, &["PUB", "XPUB"]),
        (L::Push, &["PULL"]),
        (L::Pull, &["PUSH"]),
        (L::Rep, &["REQ", "DEALER"]),
        (L::Router, &["REQ", "DEALER", "ROUTER"]),
    ];
    for (local, accepted) in table {
        for peer in SocketType::ALL {
            let mut server = Server::of(local);
            let outcome = server.feed(&null_handshake(peer.name(), 1));
            if accepted.contains(&peer.name()) {
                assert_eq!(outcome, Ok(vec![Got::Ready(peer)]), "{local:?} {peer:?}");
                continue;
            }
            let error = ZmtpError::SocketType {
                at: null_handshake(peer.name(), 1).len() as u64,
                peer,
                local: local.socket_type(),
            };
            assert_eq!(outcome, Err(error));
            assert_eq!(server.output()[64..], command("ERROR", b"\x0bSocket-Type"));
            assert_eq!(server.counters.failed_socket_type, 1);
        }
    }
}

#[test]
fn subscriptions_have_two_forms_and_both_are_understood() {
    for minor in [0, 1] {
        for local in [LocalType::Pub, LocalType::Xpub] {
            let mut server = Server::ready(Config::new(local), "SUB", minor);
            let bytes = [
                message(&[b"\x01old"]),
                command("SUBSCRIBE", b"new"),
                message(&[b"\x01"]),
                command("CANCEL", b"new"),
                message(&[b"\x00old"]),
            ];
            let expected = [
                Got::Subscribe(b"old".into()),
                Got::Subscribe(b"new".into()),
                Got::Subscribe(b"".into()),
                Got::Cancel(b"new".into()),
                Got::Cancel(b"old".into()),
            ];
            assert_eq!(server.feed(&bytes.concat()).unwrap(), expected);
            assert_eq!(server.counters.subscriptions_received, 3);
            assert_eq!(server.counters.cancellations_received, 2);
        }
    }
}

#[test]
fn other_messages_of_subscribers_reach_an_xpub_and_no_pub() {
    let bytes = [message(&[b"hello"]), message(&[b""]), message(&[b"\x01a", b"b"])].concat();
    let mut server = Server::ready(Config::new(LocalType::Xpub), "XSUB", 1);
    let expected = [Got::message(&[b"hello"]), Got::message(&[b""]), Got::message(&[b"\x01a", b"b"])];
    assert_eq!(server.feed(&bytes).unwrap(), expected);
    let mut server = Server::ready(Config::new(LocalType::Pub), "XSUB", 1);
    assert_eq!(server.feed(&bytes), Ok(vec![]));
    assert_eq!(server.counters.messages_ignored, 3);
    assert_eq!(server.connection.released(), server.connection.examined());
}

#[test]
fn the_proxy_subscribes_in_the_form_of_the_peer() {
    for (minor, expected) in [
        (0, [frame(0, b"\x01news"), frame(0, b"\x00news")]),
        (1, [command("SUBSCRIBE", b"news"), command("CANCEL", b"news")]),
    ] {
        let mut server = Server::ready(Config::new(LocalType::Sub), "PUB", minor);
        let mut out = [0; 64];
        for (subscribe, expected) in [true, false].into_iter().zip(expected) {
            let len = server.connection.subscribe(b"news", subscribe, &mut out).unwrap();
            assert_eq!(out[..len], expected);
        }
        let short = server.connection.subscribe(b"news", true, &mut out[..5]);
        assert!(matches!(short, Err(EncodeError::NoSpace { .. })));
    }
    let mut early = Server::of(LocalType::Sub);
    assert_eq!(early.connection.subscribe(b"", true, &mut [0; 99]), Err(EncodeError::NotReady));
    assert_eq!(early.connection.encrypt(&[], false, &mut [0; 99]), Err(EncodeError::Mechanism));
}

#[test]
fn a_message_says_where_its_frames_lie() {
    let mut server = Server::ready(Config::new(LocalType::Pull), "PUSH", 1);
    let start = server.connection.examined();
    let long = vec![7; 300];
    let bytes = message(&[b"", b"topic", &long]);
    let mut input = Cursor::new(start, std::iter::once(&bytes[..]));
    let mut counters = Counters::default();
    let Ok(Some(Item::Message(found))) = server.connection.next(Instant::ZERO, &mut input, &mut counters)
    else {
        panic!("no message")
    };
    let places: Vec<_> =
        found.frames().iter().map(|frame| (frame.at - start, frame.len, frame.header_len)).collect();
    assert_eq!(places, [(2, 0, 2), (4, 5, 2), (18, 300, 9)]);
    assert_eq!(found.span(), start..start + bytes.len() as u64);
    assert_eq!((found.body_len(), found.envelope_len()), (305, Some(1)));
    // The stored bytes are what the proxy itself would send.
    let sent: Vec<u8> = [(0, true, &b""[..]), (5, true, b"topic"), (300, false, &long)]
        .iter()
        .flat_map(|(len, more, body)| [FrameHeader::message(*len, *more).as_bytes(), body].concat())
        .collect();
    assert_eq!(sent, bytes);
}

#[test]
fn a_command_between_two_frames_is_processed_and_splits_the_message() {
    let mut server = Server::ready(Config::new(LocalType::Pull), "PUSH", 1);
    let ping = command("PING", b"\x00\x00ctx");
    let bytes = [frame(1, b"one"), ping.clone(), frame(0, b"two")].concat();
    let start = server.connection.examined();
    let mut input = Cursor::new(start, bytes.chunks(3));
    let found = server.connection.next(Instant::ZERO, &mut input, &mut server.counters);
    let Ok(Some(Item::Message(found))) = found else { panic!("{found:?}") };
    let places: Vec<_> = found.frames().iter().map(|frame| (frame.at - start, frame.len)).collect();
    assert_eq!(places, [(2, 3), (2 + 3 + ping.len() as u64 + 2, 3)]);
    assert_eq!(found.body_len(), 6);
    assert_eq!(server.output(), command("PONG", b"ctx"));
}

#[test]
fn what_is_released_starts_at_the_incomplete_message() {
    let mut server = Server::ready(Config::new(LocalType::Pull), "PUSH", 1);
    let start = server.connection.examined();
    let first = message(&[b"aaaa", b"bbbb"]);
    let check = |server: &mut Server, bytes: &[u8], released: u64, needed: u64| {
        let got = server.feed(bytes).unwrap();
        assert_eq!(server.connection.released() - start, released, "{got:?}");
        assert_eq!(server.connection.needed() - start, needed);
        got
    };
    check(&mut server, &first[..1], 0, 2);
    check(&mut server, &first[1..3], 0, 6);
    check(&mut server, &first[3..6], 0, 8);
    check(&mut server, &first[6..8], 0, 12);
    let got = check(&mut server, &first[8..], 12, 14);
    assert_eq!(got, [Got::message(&[b"aaaa", b"bbbb"])]);
    // A long header: 9 bytes, then the body.
    let long = frame(0, &[1; 256]);
    check(&mut server, &long[..1], 12, 12 + 9);
    check(&mut server, &long[1..10], 12, 12 + 9 + 256);
    check(&mut server, &long[10..], 12 + 9 + 256, 12 + 9 + 256 + 2);
}

#[test]
fn a_caller_that_consumes_a_body_early_loses_nothing() {
    let mut server = Server::ready(Config::new(LocalType::Pull), "PUSH", 1);
    let bytes = frame(0, &[5; 1000]);
    let mut counters = Counters::default();
    for chunk in bytes.chunks(100) {
        // Each chunk is consumed as soon as it was examined.
        let mut input = Cursor::new(server.connection.examined(), std::iter::once(chunk));
        match server.connection.next(Instant::ZERO, &mut input, &mut counters).unwrap() {
            Some(Item::Message(message)) => assert_eq!(message.body_len(), 1000),
            other => assert!(other.is_none()),
        }
    }
    assert_eq!(counters.messages_received, 1);
    let at = server.connection.examined();
    let mut input = Cursor::new(at + 1, std::iter::once(&b"\0\0"[..]));
    let gap = server.connection.next(Instant::ZERO, &mut input, &mut counters);
    assert_eq!(gap.unwrap_err(), ZmtpError::Gap { at, found: at + 1 });
}

fn heartbeat() -> Config {
    let (interval, timeout) = (Duration::from_secs(10), Duration::from_secs(3));
    let ttl = Duration::from_millis(12_345);
    Config { heartbeat: Some(Heartbeat { interval, timeout, ttl }), ..Config::new(LocalType::Pub) }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// Lets the deadline that is next pass, which is at `seconds`.
fn pass(server: &mut Server, seconds: u64) -> Result<(), ZmtpError> {
    assert_eq!(server.connection.next_timeout(), Some(at(seconds)));
    server.now = at(seconds);
    server.connection.on_timeout(server.now, &mut server.counters)
}

#[test]
fn heartbeats_go_out_and_any_traffic_answers_them() {
    let mut server = Server::ready(heartbeat(), "SUB", 1);
    pass(&mut server, 10).unwrap();
    // 123 tenths of a second.
    assert_eq!(server.output(), command("PING", b"\x00\x7b"));
    assert_eq!(server.connection.next_timeout(), Some(at(13)));
    server.feed(&command("PONG", b"")).unwrap();
    pass(&mut server, 20).unwrap();
    server.output();
    server.feed(&[4]).unwrap();
    pass(&mut server, 30).unwrap();
    server.output();
    assert_eq!(pass(&mut server, 33), Err(ZmtpError::HeartbeatTimeout));
    assert_eq!(server.connection.failure(), Some(ZmtpError::HeartbeatTimeout));
    assert_eq!(server.connection.next_timeout(), None);
    assert_eq!((server.counters.pings_sent, server.counters.failed_heartbeat_timeout), (3, 1));
}

#[test]
fn a_ping_that_cannot_be_sent_starts_no_deadline() {
    let mut server = Server::ready(heartbeat(), "SUB", 1);
    pass(&mut server, 10).unwrap();
    pass(&mut server, 20).unwrap();
    assert_eq!(server.output().len(), command("PING", b"\0\0").len());
    assert_eq!(pass(&mut server, 23), Err(ZmtpError::HeartbeatTimeout));
}

#[test]
fn peers_of_3_0_get_no_heartbeats() {
    let server = Server::ready(heartbeat(), "SUB", 0);
    assert_eq!(server.connection.next_timeout(), None);
}

#[test]
fn pings_are_answered_with_their_context_and_bind_the_peer_to_its_ttl() {
    let mut server = Server::ready(Config::new(LocalType::Pub), "SUB", 1);
    server.feed(&command("PING", b"\x00\x14sixteen bytes ok")).unwrap();
    assert_eq!(server.output(), command("PONG", b"sixteen bytes ok"));
    assert_eq!(server.connection.next_timeout(), Some(at(2)));
    server.feed(&command("PING", b"\x00\x00one")).unwrap();
    assert_eq!(server.connection.next_timeout(), None);
    server.feed(&command("PING", b"\x00\x0atwo")).unwrap();
    assert_eq!(server.output(), command("PONG", b"two"));
    assert_eq!(pass(&mut server, 1), Err(ZmtpError::TtlTimeout));
    assert_eq!((server.counters.pings_received, server.counters.pings_coalesced), (3, 1));
}

#[test]
fn a_peer_that_stalls_in_the_handshake_is_refused() {
    for len in [0, 5, 64, 70] {
        let mut server = Server::of(LocalType::Pub);
        server.feed(&null_handshake("SUB", 1)[..len]).unwrap();
        assert_eq!(pass(&mut server, 30), Err(ZmtpError::HandshakeTimeout));
        assert_eq!(server.feed(b"\0"), Err(ZmtpError::HandshakeTimeout));
        assert_eq!(server.counters.failed_handshake_timeout, 1);
    }
}

#[test]
fn a_short_buffer_loses_nothing() {
    let mut server = Server::of(LocalType::Pub);
    let mut counters = Counters::default();
    let short = server.connection.transmit(Instant::ZERO, &mut [0; 100], &mut counters);
    assert!(matches!(short, Err(EncodeError::NoSpace { .. })));
    assert_eq!(server.output(), hex(GREETING));
    assert!(!server.connection.has_output());
}

#[test]
fn a_connection_takes_little_memory() {
    assert!(size_of::<Connection>() <= 640, "{}", size_of::<Connection>());
}
