//! REQ and DEALER peers ask a channel.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::sync::Arc;

use common::*;
use csp_services::{ChannelFormats, ChannelSpec, FormatText};

fn text(answer: &[u8]) -> String {
    String::from_utf8(answer.to_vec()).unwrap()
}

#[test]
fn a_req_peer_is_told_what_the_channel_is() {
    let mut w = World::new(open_channel());
    w.connect_null(1, "PUB");
    w.arrive(1, &[message(&[b"a"]), message(&[b"bc"])].concat());
    w.connect_null(2, "REQ");
    w.arrive(2, &message(&[b"", br#"{"get": "channel"}"#]));
    let answer = frames(&w.taken(2));
    assert_eq!(answer.len(), 2);
    assert!(answer[0].is_empty());
    assert_eq!(
        text(&answer[1]),
        r#"{"bytes":3,"channel":"ticks","last_values":false,"message_bytes_max":1048576,"messages":2,"pattern":"publish","sequence":false,"subscriptions":0}"#
    );
}

#[test]
fn a_dealer_gets_its_envelope_back_and_answers_in_order() {
    let mut w = World::new(open_channel());
    w.connect_null(2, "DEALER");
    w.ends.get_mut(&2).unwrap().room = 5;
    let asked: Vec<u8> = (0..9u8).flat_map(|n| message(&[&[n], b"", br#"{"get": "channel"}"#])).collect();
    w.arrive(2, &asked);
    assert_eq!(w.taken(2).len(), 5, "as much as there is room for");
    assert!(w.ends[&2].arrived.len() > asked.len() / 2, "further requests wait in the window");
    w.give_room(2, 1 << 20);
    let answers = frames(&[&[0; 5][..], &w.taken(2)].concat()[5..]);
    let envelopes: Vec<u8> = answers.iter().filter(|frame| frame.len() == 1).map(|frame| frame[0]).collect();
    assert_eq!(envelopes, (1..9).collect::<Vec<u8>>(), "the first was cut by the test itself");
    // Without an envelope the answer has none.
    w.arrive(2, &message(&[br#"{"get": "channel"}"#]));
    assert_eq!(frames(&w.taken(2)).len(), 1);
}

#[test]
fn what_is_not_understood_is_said() {
    let mut w = World::new(open_channel());
    w.connect_null(2, "REQ");
    let long = vec![b' '; 20_000];
    for (request, answer) in [
        (&b"{"[..], "not JSON"),
        (b"[]", "a request is an object"),
        (br#"{"get": "chanel"}"#, "`chanel` is not known"),
        (&long, "at most 16384 bytes"),
        (b"", "not JSON"),
    ] {
        w.arrive(2, &message(&[b"", request]));
        let said = text(frames(&w.taken(2)).last().unwrap());
        assert!(said.starts_with(r#"{"error":"#) && said.contains(answer), "{said}");
    }
    assert!(!w.has_ended(2));
}

#[test]
fn a_key_needs_the_right_to_ask() {
    let mut w = World::new(keyed_channel());
    let mut asker = w.connect_curve(1, BOTH, "REQ");
    w.arrive(1, &[asker.sealed(0, 1, b""), asker.sealed(0, 0, br#"{"get": "channel"}"#)].concat());
    let answer = open_all(&mut asker, &w.taken(1));
    assert_eq!((answer.len(), &answer[0]), (2, &(1, Vec::new())));
    assert!(text(&answer[1].1).contains(r#""channel":"ticks""#));
    w.initiate(2, READER, "REQ");
    assert!(w.has_ended(2));
    assert_eq!(w.broker.refusals().may_not_control, 1);
}

/// What a REQ is answered begins with its empty frame, else it waits for ever.
#[test]
fn a_request_that_is_too_long_is_answered_behind_its_envelope() {
    let mut w = World::new(open_channel());
    let long = vec![b'x'; 20_000];
    for (n, socket, envelope) in [(2, "REQ", &[&b""[..]][..]), (3, "DEALER", &[b"id", b""])] {
        w.connect_null(n, socket);
        w.arrive(n, &message(&[envelope, &[&long]].concat()));
        let answer = frames(&w.taken(n));
        assert_eq!(&answer[..envelope.len()], envelope, "{socket}");
        assert!(text(&answer[envelope.len()]).contains("at most 16384 bytes"), "{socket}");
        // The next one is answered as usual.
        w.arrive(n, &message(&[envelope, &[br#"{"get": "channel"}"#]].concat()));
        assert!(text(frames(&w.taken(n)).last().unwrap()).contains(r#""channel":"ticks""#), "{socket}");
    }
    // Frames before a request that are too long do not come back, but for the empty one.
    w.arrive(3, &message(&[&long, b"", br#"{"get": "channel"}"#]));
    let answer = frames(&w.taken(3));
    assert_eq!((answer.len(), answer[0].len()), (2, 0));
    assert!(text(&answer[1]).contains("the frames before a request have at most"), "{}", text(&answer[1]));
    assert!(!w.has_ended(2) && !w.has_ended(3));
}

/// `ZMQ_PROBE_ROUTER`: a peer sends an empty message when it has connected, and takes no answer to it for
/// that to its first request.
#[test]
fn an_empty_message_of_a_peer_that_has_connected_has_no_answer() {
    let mut w = World::new(open_channel());
    for (n, socket) in [(2, "REQ"), (3, "DEALER")] {
        w.connect_null(n, socket);
        w.arrive(n, &[message(&[b""]), message(&[b"", br#"{"get": "channel"}"#])].concat());
        let answer = frames(&w.taken(n));
        assert_eq!((answer.len(), answer[0].len()), (2, 0), "{socket}");
        assert!(text(&answer[1]).contains(r#""channel":"ticks""#), "{socket}");
    }
}

#[test]
fn frames_that_are_no_request_are_said_to_be_none() {
    let mut w = World::new(open_channel());
    w.connect_null(2, "DEALER");
    const GET: &[u8] = br#"{"get": "channel"}"#;
    const HANDLER: &[u8] = br#"{"handler": {"name": "mine"}}"#;
    for (frames_of, expected) in [
        // An identity without an empty frame behind it.
        (
            &[&b"id"[..], GET][..],
            "not JSON: expected value at line 1 column 1; frames that are to come back with the answer end with an empty one",
        ),
        (&[b"7", GET], "a request is an object"),
        (&[GET, b"more"], "only a request for a handler is followed by a further frame"),
        (&[b"", GET, b"more"], "only a request for a handler is followed by a further frame"),
        (&[b"", GET, b"more", b"yet"], "behind a request there may be one frame more, the bytes of a module"),
        (&[b"", HANDLER, b"\0asm"], "nobody brings handlers to the channel"),
        (&[b"", HANDLER], "nobody brings handlers to the channel"),
    ] {
        w.arrive(2, &message(frames_of));
        let said = text(frames(&w.taken(2)).last().unwrap());
        assert!(said.starts_with(r#"{"error":"#) && said.contains(expected), "{said}");
    }
}

/// A channel whose formats have long schemas.
fn long_formats() -> ChannelSpec {
    let text = |name: &str| FormatText {
        name: name.to_owned(),
        message: "Message".to_owned(),
        schema: "<".repeat(300 << 10),
    };
    let formats = ChannelFormats::new("long", Arc::default()).with_texts(vec![text("one"), text("two")]);
    ChannelSpec { formats: Some(formats), ..open_channel() }
}

#[test]
fn peers_that_read_no_answers_keep_a_bounded_memory() {
    const FORMATS: &[u8] = br#"{"get": "formats"}"#;
    let mut w = World::new(long_formats());
    let connect = |w: &mut World, n: u32, host: u8| {
        w.connect_null_from(n, "REQ", CHANNEL, host);
        w.ends.get_mut(&n).unwrap().room = 0;
        w.arrive(n, &message(&[b"", FORMATS]));
    };
    // One address, and then many.
    for n in 0..100 {
        connect(&mut w, 10 + n, 1);
    }
    let its = w.broker.unread_bytes();
    assert!((600 << 10..=2 << 20).contains(&its), "{its}");
    for n in 0..200u8 {
        connect(&mut w, 200 + u32::from(n), 10 + n);
    }
    let all = w.broker.unread_bytes();
    assert!((30 << 20..=32 << 20).contains(&all), "{all}");
    // Those that were refused learn it; short answers come all the same.
    let n = 10 + 99;
    w.give_room(n, 1 << 20);
    let said = frames(&w.taken(n));
    assert!(text(&said[1]).contains("to the address were not read"), "{}", text(&said[1]));
    w.arrive(n, &message(&[b"", br#"{"get": "channel"}"#]));
    assert!(text(frames(&w.taken(n)).last().unwrap()).contains(r#""channel":"ticks""#));
    let n = 200 + 199;
    w.give_room(n, 1 << 20);
    assert!(text(&frames(&w.taken(n))[1]).contains("were not read, this one has"));
    // What is read, or whose reader has gone, makes room.
    w.give_room(10, 1 << 20);
    assert_eq!(frames(&w.taken(10)).len(), 2);
    assert!(w.broker.unread_bytes() < all);
    for n in (10..110).chain(200..400) {
        w.hang_up(n);
    }
    assert_eq!(w.broker.unread_bytes(), 0);
}
