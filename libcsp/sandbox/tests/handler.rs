//! What a module can do: read, emit, keep state, be configured, wait for room, hand its state over.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{FakePort, Fixture, at, compile, declaration, engine, no_op, send, tick, with};
use csp_handlers::{FormatId, Handler, State, Stop};
use csp_sandbox::{FieldAt, Fields, NoFields, OnStop, Reason, Supplied};
use csp_types::Duration;

const ALL: &str = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))
    (import "csp" "frame_len" (func $frame_len (param i32) (result i32)))
    (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
    (import "csp" "emit_same" (func $same (param i32) (result i32)))
    (import "csp" "emit_frames" (func $frames (param i32 i32 i32 i32) (result i32)))
    (import "csp" "emit_range" (func $range (param i32 i32 i32 i32) (result i32)))
    (import "csp" "emit_new" (func $new (param i32 i32 i32 i32 i32 i32) (result i32)))
    (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
    (import "csp" "state_write" (func $write (param i32 i32 i32)))
    (import "csp" "now" (func $now (result i64)))
    (import "csp" "arrived" (func $arrived (result i64)))
    (import "csp" "sequence" (func $sequence (result i64)))
    (import "csp" "locate" (func $locate (param i32 i32 i32 i32) (result i32)))
    (import "csp" "parameters" (func $parameters (param i32 i32 i32) (result i32)))
    (import "csp" "refuse" (func $refuse (param i32 i32)))(;end;)"#;

fn message(numbers: [u32; 10], rest: &str, body: &str) -> String {
    with(&format!(
        r#"{ALL} {} {rest} (func (export "on_message") (param $format i32) (param $len i32) (param $frames i32)
            (result i32) {body})"#,
        declaration(numbers),
    ))
}

const PLAIN: [u32; 10] = [40, 1, 60_000, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_message_is_copied_into_the_buffer_if_it_fits_and_read_in_pieces_otherwise() {
    let buffered = [40, 1, 600, 0, 1000, 600, 0, 0, 0, 0];
    let text = message(
        buffered,
        "",
        "(call $emit (i32.const 0) (local.get $format) (i32.const 1000) (local.get $len))",
    );
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    let bytes: Vec<u8> = (0..600u32).map(|at| at as u8).collect();
    let mut port = FakePort::new(&bytes);
    assert_eq!(it.send(&mut port, 1), Ok(()));
    assert_eq!(port.emitted, [(0, 7, bytes)]);

    // 200 bytes at a time, each with its bytes as a message.
    let text = message(
        PLAIN,
        "",
        "(local $at i32) (local $n i32)
         (loop $more
            (local.set $n (call $read (local.get $at) (i32.const 200) (i32.const 1000)))
            (if (local.get $n) (then
                (drop (call $emit (i32.const 0) (i32.const 9) (i32.const 1000) (local.get $n)))
                (local.set $at (i32.add (local.get $at) (local.get $n)))
                (br $more))))
         i32.const 0",
    );
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    let bytes: Vec<u8> = (0..1234u32).map(|at| at as u8).collect();
    let mut port = FakePort::new(&bytes);
    assert_eq!(it.send(&mut port, 1), Ok(()));
    assert_eq!(port.emitted.len(), 7);
    assert!(port.emitted.iter().all(|(output, format, _)| (*output, *format) == (0, 9)));
    assert_eq!(port.emitted.iter().flat_map(|(.., bytes)| bytes.clone()).collect::<Vec<_>>(), bytes);
}

#[test]
fn frames_ranges_pieces_and_facts_reach_the_outputs() {
    let text = message(
        [40, 3, 1000, 0, 0, 0, 0, 0, 0, 0],
        // Frames of 2 and 5 bytes; the message's bytes 1..4, then four of the guest's own.
        r#"(data (i32.const 100) "\02\00\00\00\05\00\00\00")
           (data (i32.const 200) "\01\00\00\00\01\00\00\00\03\00\00\00" "\00\00\00\00\2c\01\00\00\04\00\00\00")
           (data (i32.const 300) "own!")"#,
        "(drop (call $frames (i32.const 0) (i32.const 1) (i32.const 1) (i32.const 1)))
         (drop (call $range (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4)))
         (drop (call $new (i32.const 2) (i32.const 3) (i32.const 100) (i32.const 2) (i32.const 200) (i32.const 2)))
         (i64.store (i32.const 400) (call $now))
         (i64.store (i32.const 408) (call $arrived))
         (i64.store (i32.const 416) (call $sequence))
         (i32.store (i32.const 424) (call $frame_len (i32.const 1)))
         (i32.store (i32.const 428) (call $frame_len (i32.const 2)))
         (drop (call $emit (i32.const 0) (i32.const 4) (i32.const 400) (i32.const 32)))
         i32.const 0",
    );
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    let mut port = FakePort { frames: vec![b"topic".to_vec(), b"body".to_vec()], ..FakePort::new(b"") };
    assert_eq!(it.send(&mut port, 5), Ok(()));
    let facts: Vec<u8> =
        [5_000_000u64, 1_000_000, 42, 4 | 0xffff_ffff << 32].iter().flat_map(|it| it.to_le_bytes()).collect();
    let parts =
        [(0, 1, b"body".to_vec()), (1, 2, b"icbo".to_vec()), (2, 3, b"opiown!".to_vec()), (0, 4, facts)];
    assert_eq!(port.emitted, parts);
}

#[test]
fn full_reaches_the_guest_and_comes_back_with_the_state_as_it_was() {
    // Counts before it emits, which it must not keep when there is no room.
    let text = message(
        [40, 1, 0, 0, 0, 0, 1, 8, 1, 0],
        "",
        "(drop (call $state_read (i32.const 0) (i32.const 8) (i32.const 0)))
         (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 1)))
         (call $write (i32.const 0) (i32.const 8) (i32.const 0))
         (call $same (i32.const 0))",
    );
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    let mut port = FakePort { room: 1, ..FakePort::new(b"x") };
    assert_eq!(it.send(&mut port, 1), Ok(()));
    assert_eq!(it.send(&mut port, 2), Err(Stop::Full));
    assert_eq!(it.state.number(0), 1);
    port.room = 1;
    assert_eq!(it.send(&mut port, 3), Ok(()));
    assert_eq!((it.state.number(0), port.emitted.len()), (2, 2));
}

#[test]
fn a_guest_gives_messages_up_without_being_stopped() {
    let text = message(
        [40, 1, 0, 0, 0, 0, 1, 8, 1, 0],
        "",
        "(call $write (i32.const 0) (i32.const 8) (i32.const 16)) i32.const 5",
    );
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    let report = it.handler.report();
    for _ in 0..3 {
        assert_eq!(it.send(&mut FakePort::new(b"x"), 1), Err(Stop::Fault("the module gives the message up")));
    }
    assert_eq!((report.status().given_up, report.status().stops.len(), it.state.number(0)), (3, 0, 0));
}

#[test]
fn a_timer_emits_and_keeps_time() {
    let text = with(&format!(
        r#"{ALL} {} (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0)
        (func (export "on_timer") (result i32)
            (i64.store (i32.const 0) (call $now))
            (call $emit (i32.const 0) (i32.const 3) (i32.const 0) (i32.const 8)))"#,
        declaration([40, 1, 8, 250, 0, 0, 0, 0, 0, 0]),
    ));
    let mut it = Fixture::new(&engine(), &text, OnStop::default(), "");
    assert_eq!(it.handler.needs().period, Some(Duration::from_millis(250)));
    let mut port = FakePort::new(b"");
    assert_eq!(tick(&mut it.handler, &mut it.state, &mut port, at(250)), Ok(()));
    assert_eq!(port.emitted, [(0, 3, 250_000_000u64.to_le_bytes().to_vec())]);
}

/// A module whose parameter is the byte that it emits; anything but one byte is refused.
fn configurable() -> String {
    message(
        PLAIN,
        r#"(data (i32.const 100) "one byte, please") (func (export "configure") (param i32) (result i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then
                (call $refuse (i32.const 100) (i32.const 16)) (return (i32.const 1))))
            (drop (call $parameters (i32.const 0) (i32.const 1) (i32.const 50)))
            i32.const 0)"#,
        "(call $emit (i32.const 0) (i32.const 7) (i32.const 50) (i32.const 1))",
    )
}

#[test]
fn parameters_change_alone_and_wrong_ones_are_refused_with_the_modules_reason() {
    let mut it = Fixture::new(&engine(), &configurable(), OnStop::default(), "a");
    let mut port = FakePort::new(b"x");
    it.send(&mut port, 1).unwrap();
    let error = it.handler.configure("ab", &mut it.state).unwrap_err();
    assert_eq!(error.0, "one byte, please");
    it.send(&mut port, 2).unwrap();
    it.handler.configure("b", &mut it.state).unwrap();
    it.send(&mut port, 3).unwrap();
    let emitted: Vec<u8> = port.emitted.iter().map(|(.., bytes)| bytes[0]).collect();
    assert_eq!(emitted, b"aab");
    let error = it.handler.configure(&"x".repeat(20_000), &mut it.state).unwrap_err();
    assert!(error.0.contains("may have 16384"), "{error}");
    // A module without `configure` has no parameters.
    let mut it = Fixture::new(&engine(), &no_op(), OnStop::default(), "");
    assert!(it.handler.configure("b", &mut it.state).unwrap_err().0.contains("no parameters"));
}

struct Two;

impl Fields for Two {
    fn locate(&self, format: FormatId, path: &str) -> Option<FieldAt> {
        let offset = match (format.0, path) {
            (7, "price") => 8,
            (8, "price") => 24,
            _ => return None,
        };
        Some(FieldAt { offset, size: 8, kind: b'i', is_big_endian: true, since_version: 3 })
    }

    fn formats(&self) -> Vec<FormatId> {
        vec![FormatId(7), FormatId(8), FormatId(9)]
    }
}

#[test]
fn one_module_serves_several_formats_by_descriptor() {
    let text = message(
        PLAIN,
        r#"(data (i32.const 100) "price")
        (func $find (param i32) (result i32) (call $locate (local.get 0) (i32.const 100) (i32.const 5) (i32.const 200)))
        (func (export "csp_accepts") (param i32) (result i32) (i32.eqz (call $find (local.get 0))))
        (func (export "csp_yields") (param i32 i32) (result i32) (i32.add (local.get 1) (i32.const 100)))"#,
        "(drop (call $find (local.get $format)))
         (call $emit (i32.const 0) (i32.const 1) (i32.const 200) (i32.const 16))",
    );
    let module = compile(&engine(), &text).unwrap();
    let mut handler = Supplied::new(&module, Arc::new(Two), OnStop::default(), "").unwrap();
    let accepts: Vec<bool> = (6..11).map(|format| handler.accepts(FormatId(format))).collect();
    assert_eq!(accepts, [false, true, true, false, false]);
    assert_eq!(handler.yields(0, FormatId(8)), FormatId(108));
    let mut port = FakePort { format: 8, ..FakePort::new(b"x") };
    send(&mut handler, &mut State::default(), &mut port, at(1)).unwrap();
    let words: Vec<u8> =
        [24u32, 8, u32::from(b'i'), 1 | 3 << 16].iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!(port.emitted, [(0, 1, words)]);
}

/// Counts messages in its memory, which it hands over if layouts are the same, and emits the count with a
/// letter.
fn in_memory(letter: &str, layout: u32) -> String {
    message(
        [40, 1, 100, 0, 0, 0, 2, 0, layout, 0],
        &format!(
            r#"(data (i32.const 2000) "{letter}")
            (func (export "csp_state_export") (result i64) (i64.const {}))
            (func (export "csp_state_import") (param $layout i32) (param $len i32) (result i32)
                (if (result i32) (i32.eq (local.get $layout) (i32.const {layout}))
                    (then (i32.const 2001)) (else (i32.const 0))))"#,
            2001u64 << 32 | 40_000
        ),
        "(i32.store8 (i32.const 2001) (i32.add (i32.load8_u (i32.const 2001)) (i32.const 1)))
         (call $emit (i32.const 0) (i32.const 7) (i32.const 2000) (i32.const 2))",
    )
}

fn supplied(engine: &csp_sandbox::Engine, text: &str) -> Supplied {
    let module = compile(engine, text).unwrap();
    Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "").unwrap()
}

#[test]
fn a_block_is_kept_between_modules_of_one_layout_and_length_that_keep_state() {
    let engine = engine();
    let needs = |kind, len, layout| {
        let numbers = [40, 1, 100, 0, 0, 0, kind, len, layout, 0];
        supplied(&engine, &message(numbers, "", "i32.const 0")).needs()
    };
    let state = State::new(&needs(1, 8, 1));
    let others = [(1, 8, 1), (1, 8, 2), (1, 16, 1), (0, 8, 1)];
    let kept = others.map(|(kind, len, layout)| state.fits(&needs(kind, len, layout)));
    assert_eq!(kept, [true, false, false, false]);
}

/// Hands state over as a path does that takes another's place. Returns whether the new module has taken it;
/// `None` if the former one hands none over.
fn hand_over(former: &mut Fixture, new: &mut Supplied) -> Option<bool> {
    let (layout, bytes) = former.handler.hand_over(&mut former.state)?;
    assert_eq!(bytes.len(), 40_000);
    Some(new.take_over(layout, bytes))
}

#[test]
fn a_module_continues_with_what_the_former_one_hands_over_if_it_knows_the_layout() {
    let engine = engine();
    for (layout, taken, then) in [(1, true, b"b\x03"), (2, false, b"b\x01")] {
        let mut it = Fixture::new(&engine, &in_memory("a", 1), OnStop::default(), "");
        let mut port = FakePort::new(b"x");
        it.send(&mut port, 1).unwrap();
        it.send(&mut port, 2).unwrap();
        let mut new = supplied(&engine, &in_memory("b", layout));
        assert_eq!(hand_over(&mut it, &mut new), Some(taken));
        it.handler = new;
        it.send(&mut port, 3).unwrap();
        assert_eq!(port.emitted.last(), Some(&(0, 7, then.to_vec())));
    }
}

#[test]
fn a_hand_over_that_lies_about_addresses_stops_the_module_that_lies() {
    let engine = engine();
    let mut port = FakePort::new(b"x");
    // The new one: it names 40,000 bytes at the end of its memory.
    let liar = in_memory("b", 1).replace("(then (i32.const 2001))", "(then (i32.const 65000))");
    let mut it = Fixture::new(&engine, &in_memory("a", 1), OnStop::default(), "");
    it.send(&mut port, 1).unwrap();
    let mut new = supplied(&engine, &liar);
    assert_eq!(hand_over(&mut it, &mut new), Some(false));
    it.send(&mut port, 2).unwrap();
    assert_eq!(port.emitted.last(), Some(&(0, 7, b"a\x02".to_vec())));
    // One that loops instead, with the fuel of a message.
    let loops =
        in_memory("b", 1).replace("(then (i32.const 2001))", "(then (loop $again br $again) unreachable)");
    let mut new = supplied(&engine, &loops);
    assert_eq!(hand_over(&mut it, &mut new), Some(false));
    assert_eq!(new.report().status().stops, [(Reason::Fuel, 1)]);
    // The former one: it hands nothing over, and starts again at the next message.
    let liar = in_memory("a", 1).replace(&format!("{}", 2001u64 << 32 | 40_000), "-1");
    let mut it = Fixture::new(&engine, &liar, OnStop::default(), "");
    let report = it.handler.report();
    assert_eq!(hand_over(&mut it, &mut supplied(&engine, &in_memory("b", 1))), None);
    assert_eq!(report.status().stops, [(Reason::Pointer, 1)]);
    it.send(&mut port, 3).unwrap();
    assert_eq!(port.emitted.last(), Some(&(0, 7, b"a\x01".to_vec())));
}

#[test]
fn parameters_that_stop_a_module_leave_the_former_ones_in_force() {
    let trapping = configurable().replace("(return (i32.const 1))", "unreachable");
    let mut it = Fixture::new(&engine(), &trapping, OnStop::default(), "a");
    let report = it.handler.report();
    let error = it.handler.configure("ab", &mut it.state).unwrap_err();
    assert_eq!(error.0, "the module was stopped in configure: it trapped");
    let mut port = FakePort::new(b"x");
    it.send(&mut port, 1).unwrap();
    assert_eq!(port.emitted, [(0, 7, b"a".to_vec())]);
    assert_eq!((report.status().restarts, report.status().state), (1, "running"));
}
