//! Unmodified programs of libzmq (pyzmq, Debian package python3-zmq) at the broker, over TCP on loopback.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]
#![allow(clippy::disallowed_types, reason = "a test plays programs outside")]

mod common;

use common::tcp::{Program, Server, crowd, has_pyzmq, keys, subscriptions};
use common::*;

/// A publisher and two subscribers, of which one subscribes to less.
fn publish_and_subscribe(mut server: Server, writer: &[String], reader: &[String]) {
    let all = Program::start(&server, "subscribe", reader, &[]);
    let some = Program::start(&server, "subscribe", reader, &["b", "c"]);
    let mut publisher = Program::start(&server, "publish", writer, &[]);
    assert_eq!(publisher.line(&mut server), "connected");
    server
        .until(|broker| subscriptions(broker) == 3 && broker.plane().is_some_and(|plane| plane.peers() == 3));
    let long = "x".repeat(200_000);
    for line in ["apple red", "banana", &format!("cherry {long}"), "date"] {
        publisher.give(line);
    }
    let mut lines =
        |program: &Program, count| (0..count).map(|_| program.line(&mut server)).collect::<Vec<_>>();
    assert_eq!(lines(&some, 2), ["banana", &format!("cherry {long}")]);
    assert_eq!(lines(&all, 4), ["apple red", "banana", &format!("cherry {long}"), "date"]);
}

#[test]
fn pyzmq_publishes_and_subscribes() {
    if has_pyzmq() {
        publish_and_subscribe(Server::new(open_channel()), &[], &[]);
    }
}

#[test]
fn pyzmq_publishes_and_subscribes_under_curve() {
    if has_pyzmq() {
        let server = Server::new(keyed_channel());
        publish_and_subscribe(server, &keys(public(SERVER), WRITER), &keys(public(SERVER), READER));
    }
}

#[test]
fn pyzmq_without_keys_and_with_them_share_a_channel_that_does_not_require_them() {
    if has_pyzmq() {
        let spec = with_keys(keyed_channel(), |keys| (keys.require, keys.any) = (false, SUBSCRIBE));
        publish_and_subscribe(Server::new(spec), &keys(public(SERVER), WRITER), &[]);
    }
}

#[test]
fn pyzmq_asks_the_channel() {
    if !has_pyzmq() {
        return;
    }
    for (spec, keys) in [(open_channel(), vec![]), (keyed_channel(), keys(public(SERVER), BOTH).to_vec())] {
        let mut server = Server::new(spec);
        let asker = Program::start(&server, "ask", &keys, &[r#"{"get": "channel"}"#, "nonsense"]);
        for envelope in ["", "1  "] {
            let answer = asker.line(&mut server);
            assert!(
                answer.starts_with(&format!("{envelope}{{")) && answer.contains("\"channel\":\"ticks\""),
                "{answer}"
            );
            let refusal = asker.line(&mut server);
            assert!(refusal.contains("\"error\":\"not JSON"), "{refusal}");
        }
    }
}

#[test]
fn who_may_not_is_refused_and_knows_it() {
    if !has_pyzmq() {
        return;
    }
    let mut server = Server::new(keyed_channel());
    let known = public(SERVER);
    for (pair, kind, expected) in [
        (keys(known, READER), "PUB", "EVENT_HANDSHAKE_FAILED_AUTH 400"),
        (keys(known, WRITER), "SUB", "EVENT_HANDSHAKE_FAILED_AUTH 400"),
        (keys(known, STRANGER), "SUB", "EVENT_HANDSHAKE_FAILED_AUTH 400"),
        (keys(known, READER), "SUB", "EVENT_HANDSHAKE_SUCCEEDED 0"),
        (keys(known, WRITER), "PUB", "EVENT_HANDSHAKE_SUCCEEDED 0"),
    ] {
        let program = Program::start(&server, "outcome", &pair, &[kind]);
        assert_eq!(program.line(&mut server), expected, "{kind}");
    }
    let refusals = server.broker.refusals();
    assert_eq!((refusals.may_not_publish, refusals.may_not_subscribe, refusals.unknown_key), (1, 1, 1));
    // With a wrong key of the server nothing can be answered that the client would believe; its connection ends.
    let program = Program::start(&server, "outcome", &keys(public(STRANGER), READER), &["SUB"]);
    let line = program.line(&mut server);
    assert!(line.starts_with("EVENT_DISCONNECTED") || line.starts_with("EVENT_HANDSHAKE_FAILED"), "{line}");
    assert!(server.broker.zmtp().failed_sealed >= 1);
    // So does that of one without keys.
    let program = Program::start(&server, "outcome", &[], &["SUB"]);
    let line = program.line(&mut server);
    assert!(line.starts_with("EVENT_DISCONNECTED") || line.starts_with("EVENT_HANDSHAKE_FAILED"), "{line}");
}

#[test]
fn old_and_new_subscriptions_are_understood() {
    if !has_pyzmq() {
        return;
    }
    use std::io::{Read as _, Write as _};
    // libzmq 4.3 sends SUBSCRIBE to a peer of ZMTP 3.1; a peer of 3.0 is played by bytes.
    let mut server = Server::new(open_channel());
    let mut old = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    old.write_all(&[client::null_handshake("SUB", 0), subscribe_old(b"b")].concat()).unwrap();
    let new = Program::start(&server, "subscribe", &[], &["b"]);
    let mut publisher = Program::start(&server, "publish", &[], &[]);
    assert_eq!(publisher.line(&mut server), "connected");
    server
        .until(|broker| subscriptions(broker) == 2 && broker.plane().is_some_and(|plane| plane.peers() == 3));
    publisher.give("apple");
    publisher.give("banana");
    assert_eq!(new.line(&mut server), "banana");
    let (mut received, expected) = (Vec::new(), message(&[b"banana"]));
    old.set_nonblocking(true).unwrap();
    server.until(|_| {
        let _ = old.read_to_end(&mut received);
        received.ends_with(&expected)
    });
}

#[test]
fn subscribers_connect_again_under_curve() {
    if !has_pyzmq() {
        return;
    }
    let mut server = Server::new(keyed_channel());
    let reader = Program::start(&server, "subscribe", &keys(public(SERVER), READER), &[]);
    let mut writer = Program::start(&server, "publish", &keys(public(SERVER), WRITER), &[]);
    assert_eq!(writer.line(&mut server), "connected");
    for round in 0..3 {
        // Both are there, and the subscription, which is repeated after each connection.
        server.until(|b| subscriptions(b) == 1 && b.snapshots()[0].senders == 1);
        let line = format!("round-{round}");
        writer.give(&line);
        assert_eq!(reader.line(&mut server), line);
        server.hang_up();
        writer.give("?");
        assert_eq!(writer.line(&mut server), "connected");
    }
    assert!(server.broker.zmtp().handshakes_completed >= 7);
}

#[test]
fn thirty_subscribers_get_everything_and_again_after_their_connections_have_ended() {
    crowd(&[15, 15], 50);
}

/// The programs of a section of docs/messages.md.
fn documented(section: &str) -> Vec<String> {
    let text = include_str!("../../../docs/messages.md");
    let section = text.split_once(section).unwrap().1.split("\n## ").next().unwrap();
    section.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_documented_programs_with_keys_run() {
    if !has_pyzmq() {
        return;
    }
    let mut server = Server::new(with_keys(keyed_channel(), |keys| keys.any = SUBSCRIBE));
    let folder = std::env::temp_dir().join(format!("csp-documented-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [_, public_key, secret_key] = keys(public(SERVER), WRITER);
    let pair = format!("curve\n    public-key = \"{public_key}\"\n    secret-key = \"{secret_key}\"\n");
    std::fs::write(folder.join("feed.key_secret"), pair).unwrap();
    let server_key = common::tcp::text(public(SERVER));
    std::fs::write(folder.join("ticks.key"), format!("curve\n    public-key = \"{server_key}\"\n")).unwrap();
    let here = format!("127.0.0.1:{}", server.port());
    let programs = documented("## Keys and permissions");
    let [publisher, subscriber] = &programs[..] else { panic!("{} programs", programs.len()) };
    let subscriber = Program::start_text(&subscriber.replace("10.76.0.100:5556", &here), &folder);
    server.until(|broker| subscriptions(broker) == 1);
    // What a PUB sends before it is connected is lost: this one goes on sending.
    let again =
        "import time\nwhile True:\n    time.sleep(0.02)\n    publisher.send_multipart([b'ACME', b'17.25'])\n";
    let publisher = publisher.replace("10.76.0.100:5556", &here) + again;
    let _publisher = Program::start_text(&publisher, &folder);
    assert_eq!(subscriber.line(&mut server), "[b'ACME', b'17.25']");
    std::fs::remove_dir_all(&folder).unwrap();
}
