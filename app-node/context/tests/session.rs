//! The session of a proxy worker's connection: what handlers emit, whatever the cuts of the stream; room; and
//! proxies that are none.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "session/supplied.rs"]
mod supplied;

use csp_context::library;
use csp_context::session::{Limits, Session, SessionError, SessionEvent};
use csp_support::Random;
use csp_types::Instant;
use csp_wire::context::{Place, Record, Supply, message_of};

const NOW: Instant = Instant::from_nanos(1_000_000);
const A: Place = Place { path: 1, generation: 2, stage: 0 };
const B: Place = Place { path: 1, generation: 2, stage: 3 };

fn emit(record: Record<'_>) -> Vec<u8> {
    let mut bytes = [0; 300];
    let len = record.emit_head(None, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

fn hello() -> Vec<u8> {
    emit(Record::Hello { credit: 64 })
}

fn stage(place: Place, room: u64, handler: &str, parameters: &str) -> Vec<u8> {
    emit(Record::Stage { place, room, handler, parameters, supply: Supply::default() })
}

fn call(place: Place, sequence: u64, frames: &[&[u8]]) -> Vec<u8> {
    let lens: Vec<u32> = frames.iter().map(|frame| frame.len() as u32).collect();
    let bytes = frames.concat();
    let record = Record::Call { place, sequence, age_ns: 5, message: message_of(3) };
    let mut head = [0; 300];
    let len = record.emit_head(Some((&lens, bytes.len())), &mut head).unwrap();
    [&head[..len], &bytes].concat()
}

/// What a session answers, as the names of records with their stage.
fn names(mut bytes: &[u8]) -> Vec<(&'static str, u8)> {
    let mut all = Vec::new();
    while let Some((record, len)) = Record::parse(bytes).unwrap() {
        let name = match record {
            Record::Hello { .. } => "hello",
            Record::Same { .. } => "same",
            Record::Done { fault: false, .. } => "done",
            Record::Done { fault: true, .. } => "fault",
            // What a stage has counted, or that it does not run.
            Record::Report { .. } => {
                bytes = &bytes[len..];
                continue;
            }
            other => panic!("{other:?}"),
        };
        all.push((name, record.place().map_or(0, |place| place.stage)));
        bytes = &bytes[len..];
    }
    assert!(bytes.is_empty(), "whole records");
    all
}

fn session(limits: Limits) -> Session {
    Session::new(limits, library::make)
}

fn answers(session: &mut Session, bytes: &[u8]) -> Vec<(&'static str, u8)> {
    let mut out = Vec::new();
    session.receive(NOW, bytes, &mut out).unwrap();
    names(&out)
}

#[test]
fn handlers_answer_in_order_and_keep_their_state() {
    let mut s = session(Limits::default());
    let begin = [hello(), stage(A, 1 << 20, "drop-every", "3"), stage(B, 1 << 20, "duplicate", "2")].concat();
    assert_eq!(answers(&mut s, &begin), [("hello", 0)]);
    assert_eq!(s.take_events().len(), 2);
    let calls: Vec<u8> = (0..4).flat_map(|n| call(A, n, &[b"topic", &[]])).collect();
    let expected =
        [("same", 0), ("done", 0), ("same", 0), ("done", 0), ("done", 0), ("same", 0), ("done", 0)];
    assert_eq!(answers(&mut s, &calls), expected);
    assert_eq!(answers(&mut s, &call(B, 9, &[b"x"])), [("same", 3), ("same", 3), ("done", 3)]);
    // The same stage again: other parameters, the same count.
    assert_eq!(
        answers(&mut s, &[stage(A, 0, "drop-every", "2"), call(A, 5, &[b"x"])].concat()),
        [("done", 0)]
    );
    assert_eq!(answers(&mut s, &emit(Record::Gone { place: A })), []);
    let profile = s.profile();
    assert_eq!((s.stages(), profile.messages, profile.emitted, profile.bytes), (1, 6, 5, 22));
}

#[test]
fn a_stage_without_room_waits_and_repeats_nothing() {
    let mut s = session(Limits::default());
    let length = emit(Record::Same { place: A, output: 0 }).len() as u64;
    // Room for 10 records; the last one may exceed it.
    let begin = [hello(), stage(A, 9 * length + 1, "duplicate", "25"), stage(B, 1, "forward", "")].concat();
    answers(&mut s, &begin);
    let two = [call(A, 1, &[b"x"]), call(A, 2, &[b"yz"])].concat();
    assert_eq!(answers(&mut s, &two), [("same", 0); 10]);
    assert_eq!(s.waiting(), 2);
    assert_eq!(answers(&mut s, &call(B, 1, &[b"other"])), [("same", 3), ("done", 3)], "others go on");
    let mut all = Vec::new();
    for _ in 0..4 {
        all.extend(answers(&mut s, &emit(Record::Room { place: A, bytes: 10 * length })));
    }
    let one = [vec![("same", 0); 25], vec![("done", 0)]].concat();
    assert_eq!([vec![("same", 0); 10], all].concat(), one.repeat(2));
    assert_eq!((s.waiting(), s.profile().messages), (0, 3));
}

#[test]
fn a_stage_that_cannot_run_holds_up_only_itself() {
    let mut s = session(Limits::default());
    let begin = [hello(), stage(A, 1 << 20, "no-such", ""), stage(B, 1 << 20, "forward", "")].concat();
    answers(&mut s, &begin);
    assert_eq!(s.take_events()[0], SessionEvent::NoHandler { handler: "no-such".to_owned() });
    let calls = [call(A, 1, &[b"x"]), call(B, 1, &[b"x"])].concat();
    assert_eq!(answers(&mut s, &calls), [("same", 3), ("done", 3)]);
    assert_eq!(s.waiting(), 1);
    // Parameters that are refused later leave the former ones.
    answers(&mut s, &emit(Record::Gone { place: A }));
    assert_eq!(s.waiting(), 0);
    answers(&mut s, &[stage(A, 1 << 20, "duplicate", "2"), stage(A, 1 << 20, "duplicate", "no")].concat());
    assert!(matches!(s.take_events()[1], SessionEvent::Refused { .. }));
    assert_eq!(answers(&mut s, &call(A, 1, &[b"x"])).len(), 3);
}

/// A conversation with everything that a proxy sends.
fn conversation(random: &mut Random) -> Vec<u8> {
    let handlers = [("forward", ""), ("duplicate", "5"), ("drop-every", "2"), ("multicast", "")];
    let mut bytes = hello();
    let places: Vec<Place> = (0..4).map(|stage| Place { stage, ..A }).collect();
    for (place, (handler, parameters)) in places.iter().zip(handlers) {
        bytes.extend(stage(*place, 200, handler, parameters));
    }
    for n in 0..200 {
        let place = places[random.below(4) as usize];
        let body = vec![n as u8; random.below(300) as usize];
        bytes.extend(call(place, n, &[b"topic", &body]));
        bytes.extend(emit(Record::Room { place: places[random.below(4) as usize], bytes: 400 }));
    }
    bytes
}

#[test]
fn the_cuts_of_the_stream_mean_nothing() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let bytes = conversation(&mut random);
        let limits = Limits { calls: 4096, ..Limits::default() };
        let mut expected = Vec::new();
        session(limits).receive(NOW, &bytes, &mut expected).unwrap();
        let (mut s, mut out, mut rest) = (session(limits), Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let most = [3, 40, 4_000][random.below(3) as usize];
            let (part, later) = rest.split_at(rest.len().min(random.below(most) as usize));
            s.receive(NOW, part, &mut out).unwrap();
            rest = later;
        }
        assert!(out == expected, "seed {seed}");
    }
}

#[test]
fn a_proxy_that_is_none_is_refused() {
    let small = Limits { calls: 2, stages: 1, waiting_bytes: 100, record_len: 1_000, ..Limits::default() };
    let waits = stage(A, 0, "forward", "");
    let error = |bytes: &[&[u8]]| session(small).receive(NOW, &bytes.concat(), &mut Vec::new()).unwrap_err();
    let hello = &hello()[..];
    assert_eq!(error(&[&waits]), SessionError::Greeting);
    assert_eq!(error(&[hello, hello]), SessionError::Greeting);
    for wrong in [
        Record::Same { place: A, output: 0 },
        Record::Frames { place: A, output: 0, format: 0, first: 0, count: 1 },
        Record::Range { place: A, output: 0, format: 0, start: 0, len: 1 },
        Record::Done { place: A, fault: false, ended: false },
    ] {
        assert_eq!(error(&[hello, &emit(wrong)]), SessionError::Direction);
    }
    assert_eq!(error(&[hello, &call(A, 1, &[b"x"])]), SessionError::UnknownStage(A));
    assert_eq!(error(&[hello, &emit(Record::Gone { place: B })]), SessionError::UnknownStage(B));
    assert_eq!(error(&[hello, &emit(Record::Room { place: B, bytes: 1 })]), SessionError::UnknownStage(B));
    assert_eq!(error(&[hello, &waits, &stage(A, 0, "duplicate", "")]), SessionError::UnknownStage(A));
    assert_eq!(error(&[hello, &waits, &stage(B, 0, "forward", "")]), SessionError::Stages(1));
    assert_eq!(error(&[hello, &waits, &call(A, 1, &[b"x"]).repeat(3)]), SessionError::Credit(2));
    assert_eq!(error(&[hello, &waits, &call(A, 1, &[&[7; 101]])]), SessionError::Waiting(100));
    // Before the bytes have arrived.
    assert_eq!(error(&[hello, &1_001u32.to_le_bytes()]), SessionError::TooLong(1_001));
    assert!(matches!(error(&[hello, &[0; 8]]), SessionError::Wire(_)));
    assert!(matches!(error(&[hello, &[40, 0, 0, 0], &[99; 36]]), SessionError::Wire(_)));
}

#[test]
fn changed_bytes_end_a_session_or_mean_something_else() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let mut bytes = conversation(&mut random);
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let mut s = session(Limits { waiting_bytes: 1 << 20, ..Limits::default() });
        let mut out = Vec::new();
        for part in bytes.chunks(1 + random.below(2_000) as usize) {
            if s.receive(NOW, part, &mut out).is_err() {
                break;
            }
        }
        names(&out);
        assert!(s.waiting() <= 64 * s.stages());
    }
}
