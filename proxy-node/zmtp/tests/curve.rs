//! CURVE connections: bytes as libsodium computes them for fixed keys, bounds, replays, keys that are denied.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::sync::Arc;

use common::client::{CurveClient, command_body, frame, greeting, property};
use common::{Got, Server, hex};
use csp_types::Instant;
use csp_zmtp::{
    Config, Connection, CurveKeys, ENTROPY_LEN, EncodeError, Excess, LocalType, SocketType, ZmtpError,
    sealed_len,
};

// Computed with libsodium 1.0.18 (crypto_box_easy) for the keys below: what the client sends and what the
// server answers.
const HELLO: &str =
    "04c80548454c4c4f01000000000000000000000000000000000000000000000000000000000000000000000000000000
    000000000000000000000000000000000000000000000000000000000000000000005dfedd3b6bd47f6fa28ee15d969d
    5bb0ea53774d488bdaf9df1c6e0124b3ef220000000000000001cb2381916e946e2ee6849a26d1c7be76bd4bf97083e5
    2852897e696b8989c72f1b1955bdab8b6affeae1a4cf4a9267f383ae105aaad2c99179bdc7978c5a195bcd8e510261fb
    ee5db7e05c017156fa31";
const WELCOME: &str =
    "04a80757454c434f4d45202122232425262728292a2b2c2d2e2fa80f384a81769ae327d9bb868b5f84b1504f58031016
    ed6f12d1870226eae52e91969af228e1a8a1aee16c0562e622653b03a50580eb38a2086f0ae2881d1363ceb491993376
    6a7c1d8cf821e59b940ca1d29b13d6da9b3bc3532a84f4156332ca42288ac8bfe95190157c387760fe6a3ee2d64ca2a6
    03c4b952c35a2ea09171327593beb13296a0e3c062b1a21ab48c";
const INITIATE: &str =
    "06000000000000011408494e495449415445303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d
    4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d
    7e7f808182838485868788898a8b8c8d8e8f000000000000000289065294506bdc2fb9f4d12f4348d1be4d54207b9335
    29b7512a08ca9ed02f5c2fb4d764e9b6b1075821d52e0c10108740575a314c23dab4d2608d8bd4e8e834394a7cf43464
    0211005cfbbe681d0ae6b2e843544c6137ce2d243f3c67e971eeb2d505be8126a1e594e053f5e4185244e00175f12fa8
    eaa3c1cc74eb8539e92a0ad4974f287f54cb122ed9fbeb395878996355885eddbf235d5b43f29ad691c0e0ec8e";
const READY: &str =
    "043105524541445900000000000000019913c9abcdb4aef19e9cd5c7760602709598037f46c0798fa9b5abe9adeaa956
    3a707e";
const MESSAGE: &str = "0026074d45535341474500000000000000021a957df8eb7953838a31382e8a7dfec1049ed7d64b3e";
const SUBSCRIBE: &str =
    "002f074d455353414745000000000000000340a51bde41e0845ddd9f30b4a915f8dc0a4f65dded5b7654cf1d849f6384
    ac";

const SERVER: [u8; 32] = [1; 32];
const LONG: [u8; 32] = [2; 32];
const TRANSIENT: [u8; 32] = [3; 32];

fn entropy() -> [u8; ENTROPY_LEN] {
    core::array::from_fn(|at| at as u8)
}

fn server(config: Config) -> Server {
    let keys = Arc::new(CurveKeys::new(SERVER));
    Server::new(Connection::curve(Arc::new(config), keys, &entropy(), Instant::ZERO))
}

fn client() -> CurveClient {
    CurveClient::new(CurveKeys::new(SERVER).public(), LONG, TRANSIENT)
}

fn client_key() -> [u8; 32] {
    CurveKeys::new(LONG).public()
}

/// A server and a client after the handshake, in which the client announces `socket`.
fn established(config: Config, socket: &str) -> (Server, CurveClient) {
    let (mut server, mut client) = (server(config), client());
    server.feed(&[greeting(1, "CURVE"), client.hello()].concat()).unwrap();
    let out = server.output();
    let initiate = client.initiate(&out[64..], &property("Socket-Type", socket.as_bytes()));
    let got = server.feed(&initiate).unwrap();
    let socket = SocketType::from_name(socket.as_bytes()).unwrap();
    assert_eq!(got, [Got::Authorise(client_key()), Got::Ready(socket)]);
    let ready = client.open_ready(&server.output()).unwrap();
    assert!(ready.starts_with(&property("Socket-Type", server_name(&server))));
    (server, client)
}

fn server_name(server: &Server) -> &'static [u8] {
    match server.connection.peer().unwrap().socket_type {
        SocketType::Sub => b"PUB",
        SocketType::Push => b"PULL",
        SocketType::Req => b"ROUTER",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handshake_is_these_bytes() {
    let mut server = server(Config::new(LocalType::Pub));
    let greeted = server.output();
    assert_eq!((&greeted[12..20], greeted[32]), (&b"CURVE\0\0\0"[..], 1));
    server.feed(&greeting(1, "CURVE")).unwrap();
    assert_eq!(server.feed(&hex(HELLO)), Ok(vec![]));
    assert_eq!(server.output(), hex(WELCOME));
    let got = server.feed(&hex(INITIATE)).unwrap();
    assert_eq!(got, [Got::Authorise(client_key()), Got::Ready(SocketType::Sub)]);
    assert_eq!(server.output(), hex(READY));
    let mut out = [0; 64];
    let len = server.connection.encrypt(&[b"to", b"", b"pic"], true, &mut out).unwrap();
    assert_eq!((&out[..len], len), (&hex(MESSAGE)[..], sealed_len(5)));
    assert_eq!(server.feed(&hex(SUBSCRIBE)), Ok(vec![Got::Subscribe(b"news".into())]));
    let mut client = client();
    assert_eq!([client.hello()].concat(), hex(HELLO));
    assert_eq!(client.initiate(&hex(WELCOME), &property("Socket-Type", b"SUB")), hex(INITIATE));
}

#[test]
fn messages_come_decrypted_with_their_frames() {
    let (mut server, mut client) = established(Config::new(LocalType::Pull), "PUSH");
    let long = vec![7; 100_000];
    let mut bytes = client.sealed(0, 1, b"one");
    // As a command, which 25/ZMTP-CURVE describes.
    bytes.extend(client.sealed(4, 1, b""));
    bytes.extend(client.sealed(0, 2, &command_body("PING", b"\0\0ctx")));
    bytes.extend(client.sealed(0, 0, &long));
    bytes.extend(client.sealed(0, 0, b"next"));
    let expected = [Got::message(&[b"one", b"", &long]), Got::message(&[b"next"])];
    assert_eq!(server.feed(&bytes).unwrap(), expected);
    assert_eq!(server.connection.released(), server.connection.examined());
    assert_eq!(client.open(&server.output()), Some((2, command_body("PONG", b"ctx"))));
    // Both directions, more than once.
    for len in [0, 222, 223, 1000] {
        let mut out = vec![0; sealed_len(len)];
        assert_eq!(server.connection.encrypt(&[&long[..len]], false, &mut out), Ok(out.len()));
        assert_eq!(client.open(&out), Some((0, long[..len].to_vec())));
        let needed = out.len();
        let short = server.connection.encrypt(&[&long[..len]], false, &mut out[1..]);
        assert_eq!(short, Err(EncodeError::NoSpace { needed }));
    }
}

#[test]
fn subscriptions_have_two_forms_inside_the_box() {
    let (mut server, mut client) = established(Config::new(LocalType::Pub), "SUB");
    let bytes = [
        client.sealed(0, 0, b"\x01old"),
        client.sealed(0, 2, &command_body("SUBSCRIBE", b"new")),
        client.sealed(0, 0, b"\x00old"),
        client.sealed(0, 0, b"ignored"),
        client.sealed(0, 2, &command_body("CANCEL", b"")),
    ];
    let expected = [
        Got::Subscribe(b"old".into()),
        Got::Subscribe(b"new".into()),
        Got::Cancel(b"old".into()),
        Got::Cancel(b"".into()),
    ];
    assert_eq!(server.feed(&bytes.concat()).unwrap(), expected);
    assert_eq!(server.counters.messages_ignored, 1);
}

#[test]
fn a_key_waits_for_the_callers_decision() {
    let mut server = server(Config::new(LocalType::Pub));
    server.allow = None;
    server.feed(&[greeting(1, "CURVE"), hex(HELLO)].concat()).unwrap();
    server.output();
    assert_eq!(server.feed(&hex(INITIATE)), Ok(vec![Got::Authorise(client_key())]));
    assert!(!server.connection.is_ready() && !server.connection.has_output());
    assert_eq!(server.feed(b""), Ok(vec![]));
    server.connection.allow();
    assert_eq!(server.connection.encrypt(&[], false, &mut [0; 99]), Err(EncodeError::NotReady));
    assert_eq!(server.feed(b""), Ok(vec![Got::Ready(SocketType::Sub)]));
    assert_eq!(server.output(), hex(READY));
    server.connection.deny(&mut server.counters);
    assert!(server.connection.is_ready(), "a decision is taken once");
}

#[test]
fn a_key_that_is_denied_gets_an_error() {
    let mut server = server(Config::new(LocalType::Pub));
    server.allow = Some(false);
    server.feed(&[greeting(1, "CURVE"), hex(HELLO)].concat()).unwrap();
    server.output();
    let (got, outcome) = server.feed_all(&hex(INITIATE));
    assert_eq!((got, outcome), (vec![Got::Authorise(client_key())], Err(ZmtpError::Denied)));
    assert_eq!(server.output(), frame(4, b"\x05ERROR\x03400"));
    assert_eq!(server.counters.failed_denied, 1);
    assert_eq!(server.connection.next_timeout(), None);
}

#[test]
fn a_socket_type_that_does_not_fit_is_refused_before_the_key_is_asked_for() {
    let (mut server, mut client) = (server(Config::new(LocalType::Pub)), client());
    server.feed(&[greeting(1, "CURVE"), client.hello()].concat()).unwrap();
    let out = server.output();
    let initiate = client.initiate(&out[64..], &property("Socket-Type", b"PUSH"));
    let (got, outcome) = server.feed_all(&initiate);
    assert!(got.is_empty() && matches!(outcome, Err(ZmtpError::SocketType { .. })));
    assert_eq!(server.output(), frame(4, b"\x05ERROR\x0bSocket-Type"));
}

#[test]
fn peers_that_are_servers_or_have_no_encryption_are_refused() {
    let mut bytes = greeting(1, "CURVE");
    bytes[32] = 1;
    let error = server(Config::new(LocalType::Pub)).feed(&bytes).unwrap_err();
    assert_eq!(error, ZmtpError::AsServer { at: 32 });
    let error = server(Config::new(LocalType::Pub)).feed(&greeting(1, "NULL")).unwrap_err();
    assert_eq!(error, ZmtpError::Mechanism { at: 12 });
}

/// Feeds a HELLO that was changed.
fn hello_with(change: impl FnOnce(&mut Vec<u8>)) -> ZmtpError {
    let mut server = server(Config::new(LocalType::Pub));
    let mut hello = hex(HELLO);
    change(&mut hello);
    server.feed(&[greeting(1, "CURVE"), hello].concat()).unwrap_err()
}

#[test]
fn a_hello_must_be_right_in_every_field() {
    let at = 64 + 202;
    let malformed = ZmtpError::Malformed { what: "HELLO", at };
    let sealed = ZmtpError::Sealed { what: "HELLO", at };
    assert_eq!(hello_with(|hello| hello[8] = 2), malformed);
    assert_eq!(hello_with(|hello| hello[20] = 1), malformed);
    assert_eq!(hello_with(|hello| hello[90] ^= 1), sealed);
    assert_eq!(hello_with(|hello| hello[120] ^= 1), sealed);
    assert_eq!(hello_with(|hello| hello[201] ^= 1), sealed);
    let short = hello_with(|hello| {
        hello[1] -= 1;
        hello.pop();
    });
    assert_eq!(short, ZmtpError::Malformed { what: "HELLO", at: at - 1 });
    // Keys of small order: zero, one, and one of order eight.
    let order_eight = hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800");
    for key in [vec![0; 32], [&[1][..], &[0; 31]].concat(), order_eight] {
        let weak = hello_with(|hello| hello[82..114].copy_from_slice(&key));
        assert_eq!(weak, ZmtpError::WeakKey { what: "transient key of HELLO", at });
    }
    // A client with another server's key.
    let mut wrong = CurveClient::new(CurveKeys::new([8; 32]).public(), LONG, TRANSIENT);
    let error = hello_with(|hello| *hello = wrong.hello());
    assert_eq!(error, sealed);
}

#[test]
fn damage_anywhere_in_an_initiate_is_found() {
    let len = hex(INITIATE).len();
    for at in 18..len {
        let mut server = server(Config::new(LocalType::Pub));
        let mut initiate = hex(INITIATE);
        initiate[at] ^= 0x80;
        server.feed(&[greeting(1, "CURVE"), hex(HELLO)].concat()).unwrap();
        let (got, outcome) = server.feed_all(&initiate);
        assert!(got.is_empty() && outcome.is_err(), "byte {at}");
        assert_eq!(server.counters.failed_sealed, 1, "byte {at}: {outcome:?}");
    }
    // Before HELLO, and with a nonce that does not count up.
    let mut early = server(Config::new(LocalType::Pub));
    let error = early.feed(&[greeting(1, "CURVE"), hex(INITIATE)].concat()).unwrap_err();
    assert!(matches!(error, ZmtpError::Unexpected { what: "INITIATE", .. }));
    let (mut server, mut client) = (server(Config::new(LocalType::Pub)), client());
    server.feed(&[greeting(1, "CURVE"), client.hello()].concat()).unwrap();
    let welcome = server.output()[64..].to_vec();
    client.nonce = 0;
    let error = server.feed(&client.initiate(&welcome, b"")).unwrap_err();
    assert!(matches!(error, ZmtpError::Nonce { found: 1, last: 1, .. }));
}

#[test]
fn replayed_and_damaged_messages_end_the_connection() {
    let (mut server, mut client) = established(Config::new(LocalType::Pull), "PUSH");
    let first = client.sealed(0, 0, b"once");
    server.feed(&first).unwrap();
    assert!(matches!(server.feed(&first), Err(ZmtpError::Nonce { found: 3, last: 3, .. })));
    for at in 2..first.len() {
        let (mut server, mut client) = established(Config::new(LocalType::Pull), "PUSH");
        let mut bytes = client.sealed(0, 0, b"once");
        bytes[at] ^= 1;
        assert!(server.feed(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn bounds_hold_inside_the_box() {
    let config = |local| Config {
        message_len_max: 1000,
        frames_max: 3,
        command_len_max: 600,
        topic_len_max: 60,
        ..Config::new(local)
    };
    let fails = |local, socket, frames: &[(u8, u8, usize)]| {
        let (mut server, mut client) = established(config(local), socket);
        let sealed = |(outer, flags, len): &(u8, u8, usize)| client.sealed(*outer, *flags, &vec![1; *len]);
        let bytes: Vec<u8> = frames.iter().flat_map(sealed).collect();
        let (got, outcome) = server.feed_all(&bytes);
        assert!(got.is_empty());
        outcome.unwrap_err()
    };
    let is_long = |error, expected| matches!(error, ZmtpError::TooLong { what, .. } if what == expected);
    let pull = |frames: &[_]| fails(LocalType::Pull, "PUSH", frames);
    let request = |frames: &[_]| fails(LocalType::Router, "REQ", frames);
    assert!(is_long(pull(&[(0, 0, 1001)]), Excess::Message));
    assert!(is_long(request(&[(0, 1, 950), (0, 0, 51)]), Excess::Message));
    assert!(is_long(pull(&[(0, 2, 601)]), Excess::Command));
    assert!(matches!(request(&[(0, 1, 0); 4]), ZmtpError::TooManyFrames { most: 3, .. }));
    assert!(matches!(pull(&[(0, 4, 5)]), ZmtpError::Flags { found: 4, .. }));
    assert!(matches!(pull(&[(0, 3, 5)]), ZmtpError::Flags { found: 3, .. }));
    assert!(matches!(pull(&[(1, 0, 5)]), ZmtpError::Flags { found: 1, .. }));
    assert!(is_long(fails(LocalType::Pub, "SUB", &[(0, 0, 62)]), Excess::Topic));
    // A frame too short for its box, and a command that is not sealed.
    let (mut server, _) = established(config(LocalType::Pull), "PUSH");
    let error = server.feed(&frame(0, &[7; 32])).unwrap_err();
    assert!(matches!(error, ZmtpError::Malformed { what: "MESSAGE", .. }));
    let (mut server, _) = established(config(LocalType::Pull), "PUSH");
    let error = server.feed(&frame(4, &command_body("PING", &[0; 40]))).unwrap_err();
    assert!(matches!(error, ZmtpError::Unexpected { what: "command other than MESSAGE", .. }));
}

#[test]
fn a_sealed_message_of_too_many_frames_or_bytes_costs_no_other() {
    let config = Config { message_len_max: 1000, frames_max: 3, ..Config::new(LocalType::Pull) };
    let (mut server, mut client) = established(config, "PUSH");
    let good = (0, b"good".to_vec());
    let long = [(1, vec![7; 950]), (1, vec![7; 950]), (2, command_body("PING", b"\0\0")), (0, vec![7; 1000])];
    let many = [vec![(1, vec![7]); 16], vec![(0, vec![7])]].concat();
    let frames =
        [std::slice::from_ref(&good), &long, std::slice::from_ref(&good), &many, std::slice::from_ref(&good)]
            .concat();
    let bytes: Vec<u8> = frames.iter().flat_map(|(flags, body)| client.sealed(0, *flags, body)).collect();
    let got: Vec<Got> = bytes.chunks(11).flat_map(|chunk| server.feed(chunk).unwrap()).collect();
    assert_eq!(got, vec![Got::Message(vec![b"good".to_vec()]); 3]);
    let counters = &server.counters;
    assert_eq!((counters.messages_refused_frames, counters.messages_refused_length), (1, 1));
    assert_eq!(counters.pings_received, 1);
}

#[test]
fn the_largest_message_fits_however_it_is_cut() {
    let config = Config { message_len_max: 1000, frames_max: 10, ..Config::new(LocalType::Pull) };
    let (mut server, mut client) = established(config, "PUSH");
    let bodies: Vec<Vec<u8>> = (0..10).map(|at| vec![at; 100]).collect();
    for round in 0..3 {
        let mut bytes = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            bytes.extend(client.sealed(0, (at < 9).into(), body));
            bytes.extend(client.sealed(0, 2, &command_body("PING", b"\0\0")));
        }
        let got: Vec<Got> = bytes.chunks(7 + round).flat_map(|chunk| server.feed(chunk).unwrap()).collect();
        assert_eq!(got, [Got::Message(bodies.clone())]);
    }
}

#[test]
fn keys_do_not_appear_in_debug_output() {
    let text = format!("{:?} {:?}", CurveKeys::new(SERVER), server(Config::new(LocalType::Pub)).connection);
    assert!(!text.contains("1, 1, 1, 1"), "{text}");
}
