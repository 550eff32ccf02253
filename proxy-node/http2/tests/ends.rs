//! How connections of clients end: GOAWAY, drained or at once.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::raw::{ACK, END_STREAM, GOAWAY, PING, Raw, frame, get, resets};
use common::{Happened, OK, Pair, body, poll, requests};
use csp_http2::{Cause, Limits, Reason, ServerConnection};

/// The numbers of streams in GOAWAY frames, with the reasons.
fn go_aways(frames: &[common::raw::Sent]) -> Vec<(u32, u32)> {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let frames = frames.iter().filter(|frame| frame.0 == GOAWAY);
    frames.map(|frame| (number(&frame.3[..4]), number(&frame.3[4..8]))).collect()
}

#[test]
fn a_drained_connection_completes_its_streams() {
    let mut pair = Pair::new(Limits::default());
    let mut responses = [pair.get("/1"), pair.get("/2")];
    assert_eq!(requests(&pair.turn()), [1, 3]);
    pair.server.go_away();
    assert_eq!(pair.turn(), []);
    let refused = pair.client.send_request(http::Request::get("http://a/").body(()).unwrap(), true);
    assert!(refused.is_err(), "the client knows");
    for stream in [3, 1] {
        pair.server.respond_text(stream, OK, false).unwrap();
        assert_eq!(pair.server.send(stream, &[1; 30_000], true), 30_000);
    }
    let happened = pair.turn();
    let done = [Happened::Done(1), Happened::Done(3), Happened::Closed(Cause::Finished)];
    assert_eq!(happened, done);
    for response in &mut responses {
        let (bytes, ended) = body(&mut poll(response).unwrap().unwrap().into_body());
        assert_eq!((bytes.len(), ended), (30_000, true));
    }
}

/// RFC 9113 §6.8: requests that were on their way when GOAWAY was sent are processed; only the second GOAWAY
/// names the last one.
#[test]
fn streams_that_cross_the_first_go_away_are_processed() {
    let mut raw = Raw::new(Limits::default());
    raw.give(&get(1, &[], END_STREAM));
    raw.server.go_away();
    let frames = raw.frames();
    assert_eq!(go_aways(&frames), [((1 << 31) - 1, 0)]);
    let ping = frames.iter().find(|frame| frame.0 == PING).unwrap().3.clone();
    assert_eq!(requests(&raw.give(&get(3, &[], END_STREAM))), [3]);
    raw.give(&frame(PING, ACK, 0, &ping));
    assert_eq!(go_aways(&raw.frames()), [(3, 0)]);
    assert_eq!(raw.give(&get(5, &[], END_STREAM)), [], "above the number");
    raw.server.respond_text(1, OK, true).unwrap();
    raw.server.respond_text(3, OK, true).unwrap();
    let happened = raw.give(&[]);
    assert_eq!(happened, [Happened::Done(1), Happened::Done(3), Happened::Closed(Cause::Finished)]);
}

/// A connection that is drained before its preface has come is drained afterwards.
#[test]
fn a_connection_is_drained_before_it_has_begun() {
    let mut pair = Pair::new(Limits::default());
    pair.server.go_away();
    let mut response = pair.get("/");
    let happened = pair.turn();
    assert_eq!(requests(&happened), [1], "{happened:?}");
    pair.server.respond_text(1, OK, true).unwrap();
    assert_eq!(pair.turn(), [Happened::Done(1), Happened::Closed(Cause::Finished)]);
    assert_eq!(poll(&mut response).unwrap().unwrap().status(), 200);
}

#[test]
fn an_abrupt_end_names_its_reason() {
    let mut raw = Raw::new(Limits::default());
    raw.give(&[get(1, &[], END_STREAM), get(3, &[], 0)].concat());
    raw.server.abrupt(Reason::ENHANCE_YOUR_CALM);
    let happened = raw.give(&[]);
    assert!(matches!(happened.last(), Some(Happened::Closed(_))), "{happened:?}");
    assert_eq!(raw.server.streams(), 0);
    assert_eq!(go_aways(&raw.frames()), [(3, 11)]);

    let mut unborn = ServerConnection::new(&Limits::default(), 0);
    unborn.abrupt(Reason::NO_ERROR);
    assert_eq!(
        unborn.next_event().map(common::owned),
        Some(Happened::Closed(Cause::Fault(Reason::NO_ERROR)))
    );
}

/// What a client says by GOAWAY is the cause of the end, once its streams are done.
#[test]
fn a_client_that_goes_away() {
    let mut raw = Raw::new(Limits::default());
    raw.give(&get(1, &[], END_STREAM));
    assert_eq!(raw.give(&frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])), []);
    raw.server.respond_text(1, OK, true).unwrap();
    let happened = raw.give(&[]);
    assert_eq!(happened, [Happened::Done(1), Happened::Closed(Cause::Peer(Reason::INTERNAL_ERROR))]);
    assert_eq!(resets(&raw.frames()), []);
}

#[test]
fn every_refusal_is_documented() {
    let readme = include_str!("../README.md");
    for fault in csp_http2::Malformed::ALL {
        let remedy = match fault.remedy() {
            csp_http2::Remedy::Answer(status) => status.to_string(),
            csp_http2::Remedy::Reset => "reset".to_owned(),
        };
        let row = format!("| `{}` | {remedy} | {fault} |", fault.code());
        assert!(readme.contains(&row), "README.md lacks {row}");
    }
}
