//! Unmodified programs of libzmq (pyzmq, Debian package python3-zmq) as peers, over TCP on loopback.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::tcp::{End, Program, Tcp, has_pyzmq, heartbeat};
use common::{Got, hex};
use csp_types::Duration;
use csp_zmtp::{Config, CurveKeys, LocalType, SocketType, ZmtpError};

const SERVER: [u8; 32] = [0x5a; 32];
const CLIENT: [u8; 32] = [0xc1; 32];

/// A NULL listener with the default bounds.
fn null(local: LocalType) -> Tcp {
    Tcp::new(Config::new(local), None)
}

fn curve(local: LocalType) -> Tcp {
    Tcp::new(Config::new(local), Some(SERVER))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The keys of a client that knows the server by this key, as arguments.
fn keys(server: [u8; 32]) -> [String; 3] {
    [
        format!("curve_serverkey={}", digits(&CurveKeys::new(server).public())),
        format!("curve_secretkey={}", digits(&CLIENT)),
        format!("curve_publickey={}", digits(&CurveKeys::new(CLIENT).public())),
    ]
}

fn start_curve(server: &Tcp, name: &str, known: [u8; 32]) -> Program {
    let keys = keys(known);
    Program::start(server, &[name, &keys[0], &keys[1], &keys[2]])
}

fn subscribe(topic: &[u8]) -> Got {
    Got::Subscribe(topic.to_vec())
}

fn cancel(topic: &[u8]) -> Got {
    Got::Cancel(topic.to_vec())
}

fn long() -> Vec<u8> {
    vec![b'x'; 1 << 20]
}

/// What a SUB does, and what it receives.
fn sub(mut server: Tcp, program: Program) {
    let is_curve = {
        let mut peer = server.accept();
        let mut got = peer.next();
        let is_curve = got == Got::Authorise(CurveKeys::new(CLIENT).public());
        if is_curve {
            got = peer.next();
        }
        assert_eq!(got, Got::Ready(SocketType::Sub));
        assert_eq!(peer.connection.peer().unwrap().minor, 1);
        for expected in [subscribe(b"news"), subscribe(b""), cancel(b"")] {
            assert_eq!(peer.next(), expected);
        }
        peer.send(&[b"news"]);
        peer.send(&[b"news.1", b"", b"body"]);
        peer.send(&[b"news.2", &long(), &[7; 255], &[8; 256]]);
        assert_eq!([peer.next(), peer.next()], [cancel(b"news"), subscribe(b"end")]);
        peer.send(&[b"end"]);
        assert_eq!(peer.end(), End::Closed);
        is_curve
    };
    let expected = ["6e657773", "6e6577732e31||626f6479", "6e6577732e32|1048576:78|255:07|256:08", "656e64"];
    assert_eq!(program.finish(), expected);
    assert_eq!(server.counters.subscriptions_received, 3, "curve {is_curve}");
}

#[test]
fn a_sub_subscribes_and_receives() {
    if has_pyzmq() {
        let server = null(LocalType::Pub);
        let program = Program::start(&server, &["sub"]);
        sub(server, program);
    }
}

#[test]
fn a_sub_subscribes_and_receives_under_curve() {
    if has_pyzmq() {
        let server = curve(LocalType::Pub);
        let program = start_curve(&server, "sub", SERVER);
        sub(server, program);
    }
}

#[test]
fn an_xsub_sends_subscriptions_and_messages() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Xpub);
    let program = Program::start(&server, &["xsub"]);
    let mut peer = server.accept();
    assert_eq!(peer.next(), Got::Ready(SocketType::Xsub));
    assert_eq!([peer.next(), peer.next()], [subscribe(b"topic"), Got::message(&[b"hello"])]);
    assert_eq!(peer.next(), cancel(b"topic"));
    peer.send(&[b"t", b"u"]);
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), ["74|75"]);
}

/// What a PUB or XPUB sends to a subscriber of `news`.
fn published(peer: &mut common::tcp::Session<'_>) {
    let long = long();
    let first = loop {
        let got = peer.next();
        if got != Got::message(&[b"news.try"]) {
            break got;
        }
    };
    assert_eq!(first, Got::message(&[b"news.1", b"", b"body"]));
    assert_eq!(peer.next(), Got::message(&[b"news.2", &long]));
    assert_eq!(peer.next(), Got::message(&[b"news.end"]));
}

#[test]
fn a_pub_sends_what_the_proxy_subscribes_to() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Sub);
    let program = Program::start(&server, &["pub"]);
    let mut peer = server.accept();
    assert_eq!(peer.next(), Got::Ready(SocketType::Pub));
    peer.subscribe(b"news", true);
    published(&mut peer);
    assert_eq!(peer.end(), End::Closed);
    program.finish();
}

/// What an XPUB sees of the proxy's subscriptions.
fn xpub(mut server: Tcp, program: Program) {
    let mut peer = server.accept();
    if peer.next() != Got::Ready(SocketType::Xpub) {
        assert_eq!(peer.next(), Got::Ready(SocketType::Xpub));
    }
    peer.subscribe(b"news", true);
    published(&mut peer);
    peer.subscribe(b"news", false);
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), [digits(b"\x01news"), digits(b"\x00news")]);
}

#[test]
fn an_xpub_receives_the_proxys_subscriptions() {
    if has_pyzmq() {
        let server = null(LocalType::Xsub);
        let program = Program::start(&server, &["xpub"]);
        xpub(server, program);
    }
}

#[test]
fn an_xpub_receives_the_proxys_subscriptions_under_curve() {
    if has_pyzmq() {
        let server = curve(LocalType::Sub);
        let program = start_curve(&server, "xpub", SERVER);
        xpub(server, program);
    }
}

/// A thousand messages of a PUSH and a long one, in order.
fn push(mut server: Tcp, program: Program) {
    let mut peer = server.accept();
    if peer.next() != Got::Ready(SocketType::Push) {
        assert_eq!(peer.next(), Got::Ready(SocketType::Push));
    }
    for number in 0..1000 {
        let body = vec![b'y'; number % 600];
        assert_eq!(peer.next(), Got::message(&[number.to_string().as_bytes(), &body]));
    }
    assert_eq!(peer.next(), Got::message(&[&long()]));
    assert_eq!(peer.end(), End::Closed);
    program.finish();
    assert_eq!(server.counters.messages_received, 1001);
}

#[test]
fn a_push_loses_nothing() {
    if has_pyzmq() {
        let server = null(LocalType::Pull);
        let program = Program::start(&server, &["push"]);
        push(server, program);
    }
}

#[test]
fn a_push_loses_nothing_under_curve() {
    if has_pyzmq() {
        let server = curve(LocalType::Pull);
        let program = start_curve(&server, "push", SERVER);
        push(server, program);
    }
}

#[test]
fn a_pull_receives() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Push);
    let program = Program::start(&server, &["pull"]);
    let mut peer = server.accept();
    assert_eq!(peer.next(), Got::Ready(SocketType::Pull));
    peer.send(&[b"1"]);
    peer.send(&[b""]);
    peer.send(&[b"2", b"3"]);
    peer.send(&[&long()]);
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), ["31", "", "32|33", "1048576:78"]);
}

#[test]
fn a_req_gets_its_replies() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Rep);
    let program = Program::start(&server, &["req"]);
    let mut peer = server.accept();
    assert_eq!(peer.next(), Got::Ready(SocketType::Req));
    for text in [b"one", b"two"] {
        assert_eq!(peer.next(), Got::message(&[b"", text]));
        peer.send(&[b"", b"re", text]);
    }
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), ["7265|6f6e65", "7265|74776f"]);
}

#[test]
fn a_dealer_says_its_identity() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Router);
    let program = Program::start(&server, &["dealer"]);
    let mut peer = server.accept();
    assert_eq!(peer.next(), Got::Ready(SocketType::Dealer));
    assert_eq!(peer.connection.peer().unwrap().identity, b"dealer-7");
    assert_eq!(peer.next(), Got::message(&[b"", b"ask"]));
    assert_eq!(peer.next(), Got::message(&[b"", b"again"]));
    peer.send(&[b"", b"second"]);
    peer.send(&[b"", b"first"]);
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), ["|7365636f6e64", "|6669727374"]);
}

/// Heartbeats of both ends.
fn heartbeats(mut server: Tcp, program: Program) {
    let mut peer = server.accept();
    peer.until(|counters| counters.pongs_received >= 5 && counters.pongs_sent >= 5);
    peer.send(&[b"done"]);
    assert_eq!(peer.end(), End::Closed);
    assert_eq!(program.finish(), ["646f6e65"]);
    let counters = &server.counters;
    assert!(counters.pings_received >= 5 && counters.pings_sent >= 5, "{counters:?}");
}

const HEARTBEATS: [&str; 3] = ["heartbeat_ivl=30", "heartbeat_timeout=5000", "heartbeat_ttl=10000"];

fn beating(local: LocalType, timeout_ms: u64) -> Config {
    Config { heartbeat: heartbeat(30, timeout_ms), ..Config::new(local) }
}

#[test]
fn heartbeats_pass_both_ways() {
    if has_pyzmq() {
        let server = Tcp::new(beating(LocalType::Pub, 5000), None);
        let program = Program::start(&server, &[&["idle"][..], &HEARTBEATS].concat());
        heartbeats(server, program);
    }
}

#[test]
fn heartbeats_pass_both_ways_under_curve() {
    if has_pyzmq() {
        let server = Tcp::new(beating(LocalType::Pub, 5000), Some(SERVER));
        let keys = keys(SERVER);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let program = Program::start(&server, &[&["idle"][..], &HEARTBEATS, &keys].concat());
        heartbeats(server, program);
    }
}

#[test]
fn a_stopped_program_is_noticed() {
    if !has_pyzmq() {
        return;
    }
    let mut server = Tcp::new(beating(LocalType::Pub, 300), None);
    let program = Program::start(&server, &["idle"]);
    let mut peer = server.accept();
    peer.until(|counters| counters.pongs_received >= 2);
    program.signal("STOP");
    assert_eq!(peer.end(), End::Failed(ZmtpError::HeartbeatTimeout));
}

#[test]
fn a_client_with_another_servers_key_is_refused() {
    if !has_pyzmq() {
        return;
    }
    let mut server = curve(LocalType::Pub);
    let _program = start_curve(&server, "sub", [7; 32]);
    let end = server.accept().end();
    assert!(matches!(end, End::Failed(ZmtpError::Sealed { what: "HELLO", .. })), "{end:?}");
}

#[test]
fn a_client_whose_key_is_denied_gets_an_error() {
    if !has_pyzmq() {
        return;
    }
    let mut server = curve(LocalType::Pub);
    let program = start_curve(&server, "refused", SERVER);
    let mut peer = server.accept();
    peer.allow = false;
    assert_eq!(peer.end(), End::Failed(ZmtpError::Denied));
    assert_eq!(program.finish(), ["EVENT_HANDSHAKE_FAILED_AUTH 400"]);
}

#[test]
fn clients_of_another_mechanism_are_refused() {
    if !has_pyzmq() {
        return;
    }
    // libzmq compares the mechanisms, too: the end that is first closes the connection.
    let refused = |end| matches!(end, End::Closed | End::Failed(ZmtpError::Mechanism { at: 12 }));
    let mut server = curve(LocalType::Pub);
    let _program = Program::start(&server, &["sub"]);
    assert!(refused(server.accept().end()));
    let mut server = null(LocalType::Pub);
    let _program = start_curve(&server, "sub", SERVER);
    assert!(refused(server.accept().end()));
}

#[test]
fn a_pull_does_not_connect_to_a_pub() {
    if !has_pyzmq() {
        return;
    }
    let mut server = null(LocalType::Pub);
    let program = Program::start(&server, &["refused", "pull"]);
    let end = server.accept().end();
    let expected = |error| matches!(error, ZmtpError::SocketType { peer: SocketType::Pull, .. });
    assert!(matches!(end, End::Failed(error) if expected(error)), "{end:?}");
    // libzmq reports the reasons of ERROR that are status codes of ZAP, and otherwise the end of the
    // connection.
    let lines = program.finish();
    assert!(lines[0].starts_with("EVENT_DISCONNECTED"), "{lines:?}");
}

/// A SUB whose connections end after each message.
fn reconnects(mut server: Tcp, program: Program) {
    for round in 0..5u8 {
        let mut peer = server.accept();
        while peer.next() != subscribe(b"again") {}
        peer.send(&[b"again", &[round]]);
        // The program may close before it has read what is on the way, so the last connection is its to end.
        if round < 4 {
            for _ in 0..10 {
                peer.turn();
            }
        } else {
            assert_eq!(peer.end(), End::Closed);
        }
    }
    let expected: Vec<String> = (0..5).map(|round| format!("616761696e|{round:02x}")).collect();
    assert_eq!(program.finish(), expected);
    assert_eq!(server.counters.handshakes_completed, 5);
}

#[test]
fn a_sub_reconnects_and_subscribes_again() {
    if has_pyzmq() {
        let server = null(LocalType::Pub);
        let program = Program::start(&server, &["reconnect"]);
        reconnects(server, program);
    }
}

#[test]
fn a_sub_reconnects_and_subscribes_again_under_curve() {
    if has_pyzmq() {
        let server = curve(LocalType::Pub);
        let program = start_curve(&server, "reconnect", SERVER);
        reconnects(server, program);
    }
}

/// What libzmq 4.3 sends to a peer of ZMTP 3.0 it sends as messages; a peer of 3.0 is played by bytes.
#[test]
fn a_peer_of_3_0_is_understood_over_tcp() {
    use std::io::{Read as _, Write as _};
    let mut server = null(LocalType::Pub);
    let mut stream = server.connect();
    let mut bytes = common::client::null_handshake("SUB", 0);
    bytes.extend(hex("00 05 01 6e657773"));
    stream.write_all(&bytes).unwrap();
    let mut peer = server.accept();
    assert_eq!([peer.next(), peer.next()], [Got::Ready(SocketType::Sub), subscribe(b"news")]);
    peer.send(&[b"news"]);
    drop(peer);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received[64 + 27..], hex("00 04 6e657773"));
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let config = Config { handshake_timeout: Duration::from_millis(50), ..Config::new(LocalType::Pub) };
    let mut server = Tcp::new(config, None);
    let _stream = server.connect();
    assert_eq!(server.accept().end(), End::Failed(ZmtpError::HandshakeTimeout));
}
