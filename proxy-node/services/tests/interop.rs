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
    // With a wrong key of the server nothing can be answered that the client would believe; its connection
    // ends.
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

/// Random subscriptions and cancellations of two peers, repeated and overlapping ones among them: each gets
/// the same messages from the broker as from an XPUB of libzmq.
#[test]
fn repeated_subscriptions_count_as_at_an_xpub_of_libzmq() {
    if !has_pyzmq() {
        return;
    }
    let mut server = Server::new(open_channel());
    let mut publisher = Program::start(&server, "publish", &[], &[]);
    let mut theirs = Program::start(&server, "xpub", &[], &[]);
    assert_eq!(publisher.line(&mut server), "connected");
    let ports = [server.port(), theirs.line(&mut server).parse().unwrap()];
    // Each peer has a connection to the broker and one to the XPUB.
    let mut peers = [(); 2].map(|()| ports.map(|port| Raw::new(&mut server, port)));
    let twice = ["SUBSCRIBE", "SUBSCRIBE", "CANCEL"].map(|name| (0, client::command(name, b"A")));
    let mut random = csp_support::Random::new(36);
    let mut act = |_| {
        let name = ["SUBSCRIBE", "CANCEL"][random.below(2) as usize];
        let prefix = [&b""[..], b"A", b"AB", b"B"][random.below(4) as usize];
        (random.below(2) as usize, client::command(name, prefix))
    };
    let rounds =
        std::iter::once(twice.to_vec()).chain((0..30).map(|n| (0..1 + n % 9).map(&mut act).collect()));
    let mut commands = 0;
    for (round, mut acts) in rounds.enumerate() {
        if round == 0 {
            acts.extend([0, 1].map(|peer| (peer, client::command("SUBSCRIBE", b"end"))));
        }
        commands += acts.len() as u64;
        for (peer, command) in &acts {
            peers[*peer].iter_mut().for_each(|end| end.send(command));
        }
        let received = |b: &csp_services::MessageBroker| {
            b.zmtp().subscriptions_received + b.zmtp().cancellations_received
        };
        server.until(|broker| received(broker) == commands);
        let topics = ["A1", "AB1", "B1", "C1", "end"];
        topics.iter().for_each(|topic| publisher.give(topic));
        theirs.give(&format!("{} {}", acts.len(), topics.join(" ")));
        for peer in &mut peers {
            let [ours, theirs] = peer.each_mut().map(|end| end.received(&mut server, &message(&[b"end"])));
            assert_eq!(ours, theirs, "round {round}: {acts:02x?}");
        }
    }
}

/// A PULL of libzmq takes messages of any number of frames. Here one of too many is refused, and those behind
/// it on the connection arrive.
#[test]
fn a_message_of_too_many_frames_costs_a_pusher_no_other() {
    if !has_pyzmq() {
        return;
    }
    let mut spec = open_channel();
    spec.channel.kind = csp_messages::ChannelKind::PushPull { backlog: spec.channel.queue };
    let mut server = Server::new(spec);
    let puller = Program::start(&server, "pull", &[], &[]);
    let frames = csp_messages::FRAMES_MAX + 1;
    let pusher = Program::start(&server, "push", &[], &["50", &frames.to_string(), "49"]);
    assert_eq!(pusher.line(&mut server), "100");
    for n in (0..50).chain(51..100) {
        assert_eq!(puller.line(&mut server), format!("message {n}"));
    }
    let snapshot = &server.broker.snapshots()[0];
    assert_eq!((snapshot.refused, snapshot.senders, snapshot.status.counters.published), (1, 1, 99));
}

/// A SUB of libzmq gets more last values than its queue at the broker holds, and none twice.
#[test]
fn a_joiner_gets_all_last_values() {
    if !has_pyzmq() {
        return;
    }
    let (mut spec, topics) = (open_channel(), 2_500);
    let cache =
        csp_messages::CacheConfig { key: csp_messages::LastValueKey::Topic, entries: 4_000, bytes: 8 << 20 };
    let policy = csp_messages::FullQueue::DropNewest;
    spec.channel.kind = csp_messages::ChannelKind::PublishSubscribe { policy, cache: Some(cache) };
    assert!(spec.channel.queue.messages < topics);
    let mut server = Server::new(spec);
    let mut publisher = Program::start(&server, "publish", &[], &[]);
    assert_eq!(publisher.line(&mut server), "connected");
    let sent: Vec<String> = (0..topics).map(|n| format!("T{n:04} value")).collect();
    // A PUB keeps 1,000 messages.
    for (n, lines) in (1..).zip(sent.chunks(500)) {
        lines.iter().for_each(|line| publisher.give(line));
        server.until(|broker| broker.snapshots()[0].status.counters.published == 500 * n);
    }
    let joiner = Program::start(&server, "subscribe", &[], &["T", "T1"]);
    let got: Vec<String> = sent.iter().map(|_| joiner.line(&mut server)).collect();
    assert_eq!(got, sent);
    publisher.give("T9999 live");
    assert_eq!(joiner.line(&mut server), "T9999 live");
}

/// A peer that is played by bytes.
struct Raw(std::net::TcpStream, Vec<u8>);

impl Raw {
    /// Connects and completes the handshake of a SUB. libzmq reads READY once its greeting was sent.
    fn new(server: &mut Server, port: u16) -> Self {
        let mut raw = Raw(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap(), Vec::new());
        raw.0.set_nonblocking(true).unwrap();
        let handshake = client::null_handshake("SUB", 1);
        raw.send(&handshake[..64]);
        raw.until(server, |got| got.len() >= 64);
        raw.send(&handshake[64..]);
        raw.until(server, |got| got.len() > 65 && got.len() == 66 + usize::from(got[65]));
        raw.1.clear();
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        std::io::Write::write_all(&mut self.0, bytes).unwrap();
    }

    /// Receives until `done`.
    fn until(&mut self, server: &mut Server, done: impl Fn(&[u8]) -> bool) {
        server.until(|_| {
            let _ = std::io::Read::read_to_end(&mut self.0, &mut self.1);
            done(&self.1)
        });
    }

    /// Returns what has come up to `last`.
    fn received(&mut self, server: &mut Server, last: &[u8]) -> Vec<u8> {
        self.until(server, |got| got.ends_with(last));
        std::mem::take(&mut self.1)
    }
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
