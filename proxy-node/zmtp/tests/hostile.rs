//! Malformed input: a defined error with its place, a counter, and nothing after it.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::client::{command, frame, greeting, message, null_handshake, property};
use common::{Got, Server};
use csp_zmtp::{Config, Counters, Excess, LocalType, ZmtpError};

/// Small bounds.
fn config(local: LocalType) -> Config {
    Config {
        message_len_max: 1000,
        frames_max: 4,
        command_len_max: 200,
        topic_len_max: 100,
        ..Config::new(local)
    }
}

/// Feeds `bytes` whole and byte by byte to a connection; both must end in `expected`, counted once by
/// `counter`.
fn check(local: LocalType, bytes: &[u8], expected: ZmtpError, counter: fn(&Counters) -> u64) {
    for step in [bytes.len(), 1] {
        let mut server = Server::null(config(local));
        let mut outcome = Ok(vec![]);
        for chunk in bytes.chunks(step) {
            outcome = server.feed(chunk);
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(outcome, Err(expected));
        assert_eq!(server.feed(b"\0\0"), Err(expected), "an error is final");
        assert_eq!(counter(&server.counters), 1, "{expected}");
        assert_eq!(server.connection.failure(), Some(expected));
    }
}

#[test]
fn greetings_of_others_and_of_older_versions_are_refused_at_once() {
    // ZMTP 1.0: an anonymous peer, a peer with an identity of 300 bytes; HTTP.
    let signature = |at, found| ZmtpError::Signature { at, found };
    check(LocalType::Pub, b"\x01\x00", signature(0, 1), |c| c.failed_signature);
    check(LocalType::Pub, b"\xff\0\0\0\0\0\0\x01\x2d\x00", signature(9, 0), |c| c.failed_signature);
    check(LocalType::Pub, b"GET / HTTP/1.1\r\n", signature(0, b'G'), |c| c.failed_signature);
    // ZMTP 2.0: revision 1, socket type, anonymous identity.
    let version = |found| ZmtpError::Version { at: 10, found };
    check(LocalType::Pub, b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x02\0\0", version(1), |c| c.failed_version);
    check(LocalType::Pub, b"\xff\0\0\0\0\0\0\0\x01\x7f\x00", version(0), |c| c.failed_version);
    for name in ["CURVE", "PLAIN", "GSSAPI", "NULLX", "", "null"] {
        let bytes = greeting(1, name);
        check(LocalType::Pub, &bytes, ZmtpError::Mechanism { at: 12 }, |c| c.failed_mechanism);
    }
}

/// Greeting, then `bytes`.
fn greeted(bytes: &[u8]) -> Vec<u8> {
    [&greeting(1, "NULL"), bytes].concat()
}

/// Handshake of a peer of this type, then `bytes`; their first byte is at the position returned.
fn after(socket: &str, bytes: &[u8]) -> (Vec<u8>, u64) {
    let handshake = null_handshake(socket, 1);
    let at = handshake.len() as u64;
    ([&handshake, bytes].concat(), at)
}

#[test]
fn metadata_must_follow_its_grammar() {
    let check_ready = |data: &[u8], what| {
        let bytes = greeted(&command("READY", data));
        let error = ZmtpError::Malformed { what, at: bytes.len() as u64 };
        check(LocalType::Pub, &bytes, error, |c| c.failed_malformed);
    };
    let sub = property("Socket-Type", b"SUB");
    check_ready(b"", "Socket-Type");
    check_ready(&property("Socket-Type", b"sub"), "Socket-Type");
    check_ready(&property("Socket-Type", b"STREAM"), "Socket-Type");
    check_ready(&[&sub[..], &sub].concat(), "Socket-Type");
    check_ready(&[&sub[..], b"\0\0\0\0\0"].concat(), "metadata");
    check_ready(&[&sub[..], b"\x05X-"].concat(), "metadata");
    check_ready(&[&sub[..], b"\x02X-\0\0"].concat(), "metadata");
    check_ready(&[&sub[..], b"\x02X-\xff\xff\xff\xffa"].concat(), "metadata");
    check_ready(&[&sub[..], &property("X Y", b"")].concat(), "metadata");
    for end in 1..sub.len() {
        check_ready(&sub[..end], "metadata");
    }
}

#[test]
fn a_handshake_takes_its_commands_only() {
    let unexpected = |what, at| ZmtpError::Unexpected { what, at };
    let start = |body: &[u8]| greeted(body).len() as u64;
    for (bytes, what) in [
        (command("PING", b"\0\0"), "PING"),
        (command("SUBSCRIBE", b"a"), "SUBSCRIBE"),
        (command("HELLO", b"a"), "HELLO"),
        (command("FOO", b""), "unknown command"),
    ] {
        let error = unexpected(what, start(&bytes));
        check(LocalType::Pub, &greeted(&bytes), error, |c| c.failed_unexpected);
    }
    let error = unexpected("message before the end of the handshake", 64);
    check(LocalType::Pub, &greeted(&message(&[b"\x01"])), error, |c| c.failed_unexpected);
    let bytes = greeted(&command("ERROR", b"\x03400"));
    let error = ZmtpError::PeerError { at: bytes.len() as u64 };
    check(LocalType::Pub, &bytes, error, |c| c.failed_peer_error);
    let long = greeted(&command("READY", &[0; 196]));
    let error = ZmtpError::TooLong { what: Excess::Command, at: 64, found: 202, most: 200 };
    check(LocalType::Pub, &long, error, |c| c.failed_command_too_long);
}

#[test]
fn frames_must_have_defined_flags_and_lengths() {
    for flags in [8, 0x80, 5, 7, 0xff] {
        let (bytes, at) = after("PUSH", &[flags]);
        check(LocalType::Pull, &bytes, ZmtpError::Flags { at, found: flags }, |c| c.failed_frame);
    }
    let (bytes, at) = after("PUSH", b"\x02\x80\0\0\0\0\0\0\x01");
    check(LocalType::Pull, &bytes, ZmtpError::Length { at, found: (1 << 63) + 1 }, |c| c.failed_frame);
}

#[test]
fn a_message_of_too_many_frames_or_bytes_costs_no_other() {
    let good = |n: u8| message(&[&[n], b"good"]);
    let many = [frame(1, b"x").repeat(16), frame(0, b"x")].concat();
    let long =
        [frame(1, &[7; 900]), command("PING", b"\0\0"), frame(1, &[7; 900]), frame(0, &[7; 900])].concat();
    let (bytes, _) = after("PUSH", &[good(1), many.clone(), good(2), long, good(3), many, good(4)].concat());
    for step in [bytes.len(), 1, 7, 1000] {
        let mut server = Server::null(config(LocalType::Pull));
        let got: Vec<Got> = bytes.chunks(step).flat_map(|chunk| server.feed(chunk).unwrap()).collect();
        assert_eq!(
            got[1..],
            (1..5).map(|n| Got::Message(vec![vec![n], b"good".to_vec()])).collect::<Vec<_>>()
        );
        let counters = &server.counters;
        assert_eq!((counters.messages_refused_frames, counters.messages_refused_length), (2, 1));
        assert_eq!((counters.messages_received, counters.pings_received), (4, 1));
    }
}

#[test]
fn bounds_hold_before_the_bytes_arrive() {
    let too_long = |what, at, found, most| ZmtpError::TooLong { what, at, found, most };
    let huge = (1 << 63) - 1u64;
    let (bytes, at) = after("PUSH", &[&[2][..], &huge.to_be_bytes()].concat());
    check(LocalType::Pull, &bytes, too_long(Excess::Message, at, huge, 1000), |c| c.failed_message_too_long);
    let (bytes, at) = after("PUSH", &[&[6][..], &huge.to_be_bytes()].concat());
    check(LocalType::Pull, &bytes, too_long(Excess::Command, at, huge, 200), |c| c.failed_command_too_long);
    // The frames of a message together, and their number: of a request. Of others they cost the message
    // alone.
    let (bytes, at) = after("REQ", &[frame(1, &[0; 200]), frame(1, &[0; 800]), vec![0, 1]].concat());
    let error = too_long(Excess::Message, at + 202 + 809, 1001, 1000);
    check(LocalType::Router, &bytes, error, |c| c.failed_message_too_long);
    let (bytes, at) = after("REQ", &[frame(1, b"").repeat(4), vec![0, 0]].concat());
    let error = ZmtpError::TooManyFrames { at: at + 8, most: 4 };
    check(LocalType::Router, &bytes, error, |c| c.failed_too_many_frames);
    // A frame of its own that is too long, of a message that is refused anyway.
    let (bytes, at) = after("PUSH", &[frame(1, b"").repeat(5), vec![2, 0, 0, 0, 0, 0, 1, 0, 0]].concat());
    let error = too_long(Excess::Message, at + 10, 1 << 16, 1000);
    check(LocalType::Pull, &bytes, error, |c| c.failed_message_too_long);
    // A topic of 1 MiB, in both forms: of the command the length alone is known.
    let topic = [&[1][..], &vec![b'a'; 1 << 20]].concat();
    let (bytes, at) = after("SUB", &frame(0, &topic));
    check(LocalType::Pub, &bytes, too_long(Excess::Topic, at, 1 << 20, 100), |c| c.failed_topic_too_long);
    let (bytes, at) = after("SUB", &command("SUBSCRIBE", &topic));
    let error = too_long(Excess::Command, at, (1 << 20) + 11, 200);
    check(LocalType::Pub, &bytes, error, |c| c.failed_command_too_long);
    let (bytes, at) = after("SUB", &command("SUBSCRIBE", &topic[..101]));
    check(LocalType::Pub, &bytes, too_long(Excess::Topic, at + 2, 101, 100), |c| c.failed_topic_too_long);
}

#[test]
fn commands_must_follow_their_grammar() {
    for (bytes, what) in [
        (frame(4, b""), "command name"),
        (frame(4, b"\0"), "command name"),
        (frame(4, b"\x05PING"), "command name"),
        (command("PING", b"\0"), "PING"),
        (command("PING", b"\0\0seventeen bytes !"), "PING"),
        (command("PONG", b"seventeen bytes !"), "PONG"),
    ] {
        let (bytes, _) = after("PUSH", &bytes);
        let error = ZmtpError::Malformed { what, at: bytes.len() as u64 };
        check(LocalType::Pull, &bytes, error, |c| c.failed_malformed);
    }
    for (bytes, what) in [
        (command("SUBSCRIBE", b""), "SUBSCRIBE"),
        (command("CANCEL", b""), "CANCEL"),
        (command("READY", b""), "READY"),
        (command("INITIATE", b""), "INITIATE"),
    ] {
        let (bytes, _) = after("PUSH", &bytes);
        let error = ZmtpError::Unexpected { what, at: bytes.len() as u64 };
        check(LocalType::Pull, &bytes, error, |c| c.failed_unexpected);
    }
    let mut server = Server::ready(config(LocalType::Pull), "PUSH", 1);
    assert_eq!(server.feed(&command("JOIN", b"group")), Ok(vec![]));
    assert_eq!(server.counters.commands_ignored, 1);
}

#[test]
fn a_flood_of_pings_costs_one_answer() {
    let mut server = Server::ready(config(LocalType::Pull), "PUSH", 1);
    // One call processes some hundreds of them, so that others have their turn.
    server.feed(&command("PING", b"\0\0x").repeat(1000)).unwrap();
    while server.connection.is_paused() {
        server.feed(b"").unwrap();
    }
    assert_eq!(server.output(), command("PONG", b"x"));
    assert_eq!(server.counters.pings_coalesced, 999);
}
