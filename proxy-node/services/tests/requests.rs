//! REQ and DEALER peers ask a channel.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::*;

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
