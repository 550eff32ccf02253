//! Clients that make work which costs them less than the proxy.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::raw::*;
use common::{Happened, OK, requests};
use csp_http2::{Cause, Flood, Limits, Reason};
use csp_types::Instant;

const CALM: Option<u32> = Some(11);

/// Gives the same bytes again and again. Returns how often, and the cause of the end.
fn repeated(raw: &mut Raw, mut bytes: impl FnMut(u32) -> Vec<u8>, most: u32) -> Option<(u32, Cause)> {
    for at in 0..most {
        for event in raw.give(&bytes(at)) {
            match event {
                Happened::Closed(cause) => return Some((at, cause)),
                // Half of the requests are answered, the others wait.
                Happened::Request { stream, .. } if stream % 4 == 1 => {
                    let _ = raw.server.respond_text(stream, OK, false);
                }
                _ => {}
            }
        }
    }
    None
}

/// CVE-2023-44487: streams that are opened and reset at once, in one piece or one by one.
#[test]
fn rapid_resets() {
    let limits = Limits::default();
    let mut raw = Raw::new(limits);
    let pair =
        |stream: u32| [get(stream, &[], END_STREAM), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat();
    let (at, cause) = repeated(&mut raw, |at| pair(2 * at + 1), 1_000).unwrap();
    assert_eq!((at, cause), (limits.resets_max, Cause::Flood(Flood::Resets)));
    assert_eq!(go_away(&raw.frames()), CALM);

    // In one piece h2 sees them before they are accepted.
    let mut raw = Raw::new(limits);
    let crowd: Vec<u8> = (0..50).flat_map(|at| pair(2 * at + 1)).collect();
    let happened = raw.give(&crowd);
    assert!(requests(&happened).is_empty(), "no request is begun that was reset already");
    assert_eq!(happened, [Happened::Closed(Cause::Fault(Reason::ENHANCE_YOUR_CALM))]);
    assert_eq!(go_away(&raw.frames()), CALM);
}

/// A browser that leaves a page resets all of its streams; so do impatient users, for hours.
#[test]
fn resets_of_honest_clients() {
    let mut raw = Raw::new(Limits::default());
    let mut stream = 1;
    for second in 0..500 {
        raw.now = Instant::from_nanos(second * 1_000_000_000);
        for _ in 0..8 {
            assert_eq!(requests(&raw.give(&get(stream, &[], END_STREAM))), [stream]);
            let events = raw.give(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
            assert_eq!(events, [Happened::Reset { stream, reason: Reason::CANCEL, by_peer: true }]);
            stream += 2;
        }
    }
    assert_eq!(go_away(&raw.frames()), None);
    // Completed streams earn, too, without time.
    for _ in 0..1_000 {
        assert_eq!(requests(&raw.give(&get(stream, &[], END_STREAM))), [stream]);
        raw.server.respond_text(stream, OK, true).unwrap();
        assert_eq!(raw.give(&[]), [Happened::Done(stream)]);
        assert_eq!(requests(&raw.give(&get(stream + 2, &[], END_STREAM))), [stream + 2]);
        raw.give(&frame(RST_STREAM, 0, stream + 2, &[0, 0, 0, 8]));
        stream += 4;
    }
    assert_eq!(go_away(&raw.frames()), None);
}

#[test]
fn frames_without_payload() {
    let limits = Limits::default();
    let ping = frame(PING, 0, 0, &[1; 8]);
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    let priority = frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 5]);
    let unknown = frame(0x77, 0, 0, b"grease");
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    for (name, bytes) in [
        ("PING", ping),
        ("SETTINGS", settings),
        ("PRIORITY", priority),
        ("unknown", unknown),
        ("WINDOW_UPDATE", window),
    ] {
        let mut raw = Raw::new(limits);
        let (at, cause) = repeated(&mut raw, |_| bytes.clone(), 2_000).unwrap();
        assert_eq!(cause, Cause::Flood(Flood::ControlFrames), "{name}");
        // One of the credits was spent for the first SETTINGS.
        assert_eq!(at, limits.control_frames_max - 1, "{name}");
        assert_eq!(go_away(&raw.frames()), CALM, "{name}");
    }
}

/// PING every second for a day, and WINDOW_UPDATE for what was sent, are no flood.
#[test]
fn frames_of_honest_clients() {
    let mut raw = Raw::new(Limits::default());
    for second in 0..86_400 {
        raw.now = Instant::from_nanos(second * 1_000_000_000);
        assert_eq!(raw.give(&frame(PING, 0, 0, &[0; 8])), []);
    }
    assert_eq!(requests(&raw.give(&get(1, &[], END_STREAM))), [1]);
    raw.server.respond_text(1, OK, false).unwrap();
    for _ in 0..20_000 {
        assert_eq!(raw.server.send(1, &[0; 1_000], false), 1_000);
        let windows = [0, 1].map(|stream| frame(WINDOW_UPDATE, 0, stream, &1_000u32.to_be_bytes()));
        assert_eq!(raw.give(&windows.concat()), []);
    }
    assert_eq!(go_away(&raw.frames()), None);
}

#[test]
fn endless_heads() {
    let mut raw = Raw::new(Limits::default());
    raw.give(&frame(HEADERS, 0, 1, &block(&GET)));
    let (at, cause) = repeated(&mut raw, |_| frame(CONTINUATION, 0, 1, &block(&[("x", "y")])), 100).unwrap();
    assert!(at < 10, "after {at} frames");
    assert_eq!(cause, Cause::Fault(Reason::ENHANCE_YOUR_CALM));
    assert_eq!(go_away(&raw.frames()), CALM);
}

#[test]
fn empty_and_small_data() {
    let mut raw = Raw::new(Limits::default());
    raw.give(&get(1, &[], 0));
    let (at, cause) = repeated(&mut raw, |_| frame(DATA, 0, 1, b""), 1_000).unwrap();
    assert_eq!((at, cause), (100, Cause::Fault(Reason::ENHANCE_YOUR_CALM)));
    assert_eq!(go_away(&raw.frames()), CALM);

    // One byte at a time is slow, and no fault: the window bounds it.
    let mut raw = Raw::new(Limits::default());
    raw.give(&get(1, &[], 0));
    for _ in 0..20_000 {
        let happened = raw.give(&frame(DATA, 0, 1, b"x"));
        assert!(happened.iter().all(|event| *event == Happened::Readable(1)), "{happened:?}");
    }
    assert_eq!(raw.server.buffered(), 20_000);
    assert_eq!(raw.server.data(1).len(), 20_000, "they lie together");
}

#[test]
fn streams_beyond_the_limit_are_refused_and_counted() {
    let limits = Limits { streams_max: 10, ..Limits::default() };
    let mut raw = Raw::new(limits);
    let crowd: Vec<u8> = (0..30).flat_map(|at| get(2 * at + 1, &[], END_STREAM)).collect();
    assert_eq!(requests(&raw.give(&crowd)).len(), 10);
    let refused = resets(&raw.frames());
    assert_eq!(refused.len(), 20);
    assert!(refused.iter().all(|(_, reason)| *reason == 7), "REFUSED_STREAM");
    let (_, cause) = repeated(&mut raw, |at| get(2 * at + 61, &[], END_STREAM), 1_000).unwrap();
    assert_eq!(cause, Cause::Fault(Reason::ENHANCE_YOUR_CALM));
}

/// A client that asks and does not read: the output is bounded, and so is what is read of it.
#[test]
fn a_client_that_does_not_read() {
    let mut server =
        csp_http2::ServerConnection::new(&Limits { control_frames_max: 1 << 20, ..Limits::default() }, 0);
    let pings: Vec<u8> = (0..200_000).flat_map(|_| frame(PING, 0, 0, &[0; 8])).collect();
    let bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &pings].concat();
    let mut at = 0;
    for _ in 0..100_000 {
        at += server.receive(Instant::ZERO, &[&bytes[at..]]);
        server.poll();
        assert!(server.output().len() <= (64 << 10) + (16 << 10));
    }
    assert!(at < 200_000, "{at} bytes were taken");
    // It reads: all goes on.
    while at < bytes.len() {
        server.sent(server.output().len());
        server.poll();
        at += server.receive(Instant::ZERO, &[&bytes[at..]]);
    }
    assert!(server.next_event().is_none());
}
