//! Modules that loop, grow, trap, emit without end, lie about addresses: each is stopped for a reason that is
//! counted, and nothing of the call stays in the state.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FakePort, Fixture, compile, declaration, engine, no_op, with};
use csp_handlers::Stop;
use csp_sandbox::{
    Backoff, Engine, Finally, Limits, Module, ModuleError, NoFields, OnStop, Reason, StartError, StopPolicy,
    Stopped, Supplied,
};
use csp_types::Duration;
use std::sync::Arc;

/// `on_message` with a body, which must stop for a reason; the block of 8 bytes that it has changed before is
/// as it was.
fn stopped(limits: Limits, imports: &str, rest: &str, body: &str, reason: Reason) {
    let engine = Engine::new(limits).unwrap();
    let text = with(&format!(
        r#"(import "csp" "state_write" (func $write (param i32 i32 i32))) {imports}(;end;)
        {} {rest}
        (func (export "on_message") (param $format i32) (param $len i32) (param $frames i32) (result i32)
            (call $write (i32.const 0) (i32.const 8) (i32.const 16))
            {body})"#,
        declaration([40, 1, 1000, 0, 0, 0, 1, 8, 1, 0]),
    ));
    let mut it = Fixture::new(&engine, &text, StopPolicy::Finally(Finally::EndPath), "");
    it.state.set_number(0, 77);
    let report = it.handler.report();
    let mut port = FakePort::new(b"message");
    let Err(Stop::Fault(why)) = it.send(&mut port, 1) else { panic!("{body} was not stopped") };
    assert!(why.starts_with("the module was stopped: "), "{why}");
    assert_eq!(report.status().stops, [(reason, 1)], "{body}");
    assert_eq!(it.state.number(0), 77, "{body}");
    assert!(report.is_ended());
    // It is not called again.
    let emitted = port.emitted.len();
    let over = Stop::Fault("the module was stopped, and its path is to end");
    assert_eq!(it.send(&mut port, 2), Err(over));
    assert_eq!((port.emitted.len(), report.status().waited), (emitted, 1));
}

fn usual(body: &str, reason: Reason) {
    stopped(Limits::default(), "", "", body, reason);
}

const LOOP: &str = "(loop $again br $again) unreachable";

#[test]
fn an_endless_loop_runs_out_of_fuel() {
    usual(LOOP, Reason::Fuel);
}

#[test]
fn a_module_that_is_slow_by_data_runs_out_of_fuel_at_the_same_message_each_time() {
    let engine = engine();
    // Quadratic in the length of the message.
    let text = with(
        r#"(func (export "on_message") (param i32 i32 i32) (result i32) (local $i i32) (local $k i32)
            (loop $outer (local.set $k (i32.const 0))
                (loop $inner
                    (local.set $k (i32.add (local.get $k) (i32.const 1)))
                    (br_if $inner (i32.lt_u (local.get $k) (local.get 1))))
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $outer (i32.lt_u (local.get $i) (local.get 1))))
            i32.const 0)"#,
    );
    let first_slow = || {
        let mut it = Fixture::new(&engine, &text, OnStop::default(), "");
        let report = it.handler.report();
        let slow = (1..1000).find(|len| it.send(&mut FakePort::new(&vec![0; *len]), 1).is_err()).unwrap();
        assert_eq!(report.status().stops, [(Reason::Fuel, 1)]);
        (slow, report.status().fuel_max)
    };
    let first = first_slow();
    assert!((100..400).contains(&first.0), "{first:?}");
    assert_eq!(first_slow(), first);
}

#[test]
fn memory_does_not_grow_beyond_its_bound_and_who_insists_is_stopped() {
    let insists = "(loop $again (drop (memory.grow (i32.const 1))) br $again) unreachable";
    stopped(Limits { fuel: 100_000_000, ..Limits::default() }, "", "", insists, Reason::Memory);
    // A refused growth is an answer, not a stop.
    let engine = engine();
    let text = with(
        r#"(func (export "on_message") (param i32 i32 i32) (result i32)
            (if (i32.ne (memory.grow (i32.const 1000)) (i32.const -1)) (then unreachable))
            i32.const 0)"#,
    );
    let mut it = Fixture::new(&engine, &text, OnStop::default(), "");
    assert_eq!(it.send(&mut FakePort::new(b""), 1), Ok(()));
}

#[test]
fn large_fills_cost_fuel_by_their_length() {
    let fills =
        "(loop $again (memory.fill (i32.const 0) (i32.const 1) (i32.const 60000)) br $again) unreachable";
    usual(fills, Reason::Fuel);
}

#[test]
fn what_traps_is_stopped() {
    usual("unreachable", Reason::Trap);
    usual("(i32.div_u (i32.const 1) (i32.const 0))", Reason::Trap);
    usual("(i32.load (i32.const -4))", Reason::Trap);
    usual("(i32.load (i32.const 65533))", Reason::Trap);
}

#[test]
fn deep_recursion_fills_the_stack_of_a_call_not_the_hosts() {
    let deep = "(func $deep (param i32) (result i32)
        (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (local.get 0)))";
    let limits = Limits { fuel: 100_000_000, ..Limits::default() };
    stopped(limits, "", deep, "(call $deep (i32.const 0))", Reason::Stack);
}

const EMIT: &str = r#"(import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))"#;

#[test]
fn outputs_are_bounded_in_number_length_and_count() {
    let usual = |body, reason| stopped(Limits::default(), EMIT, "", body, reason);
    usual("(call $emit (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 1001))", Reason::Output);
    usual("(call $emit (i32.const 1) (i32.const 7) (i32.const 0) (i32.const 10))", Reason::Output);
    usual("(call $emit (i32.const -1) (i32.const 7) (i32.const 0) (i32.const 10))", Reason::Output);
    let endless = "(loop $again (drop (call $emit (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 10)))
        br $again) unreachable";
    usual(endless, Reason::Emits);
    let limits = Limits { emits_max: 1_000_000, copied_max: 100_000, ..Limits::default() };
    stopped(limits, EMIT, "", endless, Reason::Copied);
}

#[test]
fn addresses_outside_the_memory_stop_a_module() {
    let imports = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))
        (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
        (import "csp" "locate" (func $locate (param i32 i32 i32 i32) (result i32)))
        (import "csp" "parameters" (func $parameters (param i32 i32 i32) (result i32)))
        (import "csp" "refuse" (func $refuse (param i32 i32)))
        (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
        (import "csp" "emit_new" (func $new (param i32 i32 i32 i32 i32 i32) (result i32)))"#;
    for body in [
        "(call $read (i32.const 0) (i32.const 8) (i32.const 65529))",
        "(call $read (i32.const 0) (i32.const 8) (i32.const -1))",
        "(call $emit (i32.const 0) (i32.const 7) (i32.const 65530) (i32.const 10))",
        "(call $state_read (i32.const 0) (i32.const 8) (i32.const 65529))",
        "(call $parameters (i32.const 0) (i32.const 8) (i32.const 65529))",
        "(call $locate (i32.const 0) (i32.const 65535) (i32.const 2) (i32.const 0))",
        "(call $refuse (i32.const 65535) (i32.const 2)) i32.const 0",
        "(call $new (i32.const 0) (i32.const 7) (i32.const 65533) (i32.const 1) (i32.const 0) (i32.const 0))",
        "(call $new (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 1) (i32.const 65530) (i32.const 1))",
        "(call $write (i32.const 4) (i32.const 8) (i32.const 0)) i32.const 0",
        "(call $write (i32.const -4) (i32.const 8) (i32.const 0)) i32.const 0",
        "(call $write (i32.const 0) (i32.const 8) (i32.const 65529)) i32.const 0",
    ] {
        stopped(Limits::default(), imports, "", body, Reason::Pointer);
    }
    let endless = "(loop $again (drop (call $read (i32.const 0) (i32.const 60000) (i32.const 0))) br $again) unreachable";
    stopped(Limits::default(), imports, "", endless, Reason::Copied);
}

#[test]
fn pieces_and_frames_that_do_not_fit_together_stop_a_module() {
    let imports = r#"(import "csp" "emit_new" (func $new (param i32 i32 i32 i32 i32 i32) (result i32)))
        (import "csp" "emit_range" (func $range (param i32 i32 i32 i32) (result i32)))
        (import "csp" "emit_frames" (func $frames (param i32 i32 i32 i32) (result i32)))"#;
    for body in [
        // A frame of 5 bytes of a piece of 4; a kind of piece that there is not; too many frames, pieces, and
        // none.
        "(i32.store (i32.const 100) (i32.const 5)) (i32.store (i32.const 208) (i32.const 4))
         (call $new (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 1) (i32.const 200) (i32.const 1))",
        "(i32.store (i32.const 200) (i32.const 2))
         (call $new (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 1) (i32.const 200) (i32.const 1))",
        "(call $new (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 17) (i32.const 200) (i32.const 0))",
        "(call $new (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 0) (i32.const 200) (i32.const 0))",
        "(call $new (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 1) (i32.const 200) (i32.const 33))",
        // Bytes of a message of 7 that it does not have.
        "(call $range (i32.const 0) (i32.const 7) (i32.const 3) (i32.const 5))",
        "(call $range (i32.const 0) (i32.const 7) (i32.const -1) (i32.const 2))",
        "(call $frames (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 2))",
        "(call $frames (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 0))",
        "(call $frames (i32.const 0) (i32.const 7) (i32.const 255) (i32.const 255))",
    ] {
        stopped(Limits::default(), imports, "", body, Reason::Output);
    }
}

#[test]
fn who_waits_for_room_that_there_is_breaks_the_abi() {
    usual("i32.const 1", Reason::Abi);
}

#[test]
fn the_epoch_stops_what_the_fuel_does_not() {
    let engine = Engine::new(Limits { fuel: u64::MAX, ..Limits::default() }).unwrap();
    let text = with(&format!(r#"(func (export "on_message") (param i32 i32 i32) (result i32) {LOOP})"#));
    let mut it = Fixture::new(&engine, &text, OnStop::default(), "");
    let report = it.handler.report();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| it.send(&mut FakePort::new(b""), 1));
        while !running.is_finished() {
            engine.tick();
            std::thread::yield_now();
        }
        assert!(running.join().unwrap().is_err());
    });
    assert_eq!(report.status().stops, [(Reason::Epoch, 1)]);
}

fn refused(text: &str) -> ModuleError {
    compile(&engine(), text).unwrap_err()
}

#[test]
fn modules_that_are_no_handlers_are_refused_with_what_is_wrong() {
    let message = r#"(func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0)"#;
    let abi = |version: i32| format!(r#"(func (export "csp_abi") (result i32) i32.const {version})"#);
    let memory = r#"(memory (export "memory") 1)"#;
    let cases = [
        (with(""), "does not export `on_message`"),
        (format!("(module {memory} {message})"), "does not export `csp_abi`"),
        (format!("(module {} {message})", abi(1)), "does not export `memory`"),
        (format!("(module {memory} {} {message})", abi(2)), "follows version 2 of the ABI"),
        (
            format!(r#"(module (memory (export "memory") 65) {} {message})"#, abi(1)),
            "minimum byte size of 4259840",
        ),
        (format!("(module {memory} {} {message} (table 5000 funcref))", abi(1)), "table"),
        (
            with(r#"(func (export "on_message") (param i32 i32) (result i32) i32.const 0)"#),
            "should be (i32, i32, i32) -> i32",
        ),
        (with(r#"(global (export "on_message") i32 (i32.const 1))"#), "should be a function"),
        (
            with(&format!(
                r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))(;end;) {message}"#
            )),
            "imports `wasi_snapshot_preview1.fd_write`, which is not offered",
        ),
        (
            with(&format!(r#"(import "csp" "exec" (func))(;end;) {message}"#)),
            "imports `csp.exec`, which is not offered",
        ),
        (
            with(&format!(r#"(import "csp" "read" (func))(;end;) {message}"#)),
            "imports `csp.read` as () -> ()",
        ),
        (with(&format!(r#"(import "csp" "now" (global i64))(;end;) {message}"#)), "as no function"),
        (
            with(&format!(r#"{message} (func (export "csp_state_export") (result i64) i64.const 0)"#)),
            "lacks `csp_state_import`",
        ),
        (with(&format!("{message} {}", declaration([40, 1, 0, 5, 0, 0, 0, 0, 0, 0]))), "lacks `on_timer`"),
        (with(&format!("{message} {}", declaration([40, 1, 0, 0, 0, 0, 2, 0, 0, 0]))), "state to hand over"),
        (with(&format!("{message} {}", declaration([40, 9, 0, 0, 0, 0, 0, 0, 0, 0]))), "names 9 outputs"),
        (
            with(&format!("{message} {}", declaration([40, 1, 0, 0, 0, 0, 1, 1 << 20, 0, 0]))),
            "1048576 bytes of state",
        ),
        (
            with(&format!("{message} {}", declaration([40, 1, 2 << 20, 0, 0, 0, 0, 0, 0, 0]))),
            "bytes of message",
        ),
    ];
    for (text, why) in cases {
        let error = refused(&text).to_string();
        assert!(error.contains(why), "{error} does not contain {why}");
    }
    let engine = engine();
    assert!(matches!(Module::compile(&engine, b"\0asm\x01\0\0\0junk"), Err(ModuleError::Invalid(_))));
    assert!(matches!(Module::compile(&engine, b"(module)"), Err(ModuleError::Invalid(_))));
    assert!(matches!(Module::compile(&engine, b""), Err(ModuleError::Invalid(_))));
    let memory64 = r#"(module (memory (export "memory") i64 1))"#;
    assert!(matches!(compile(&engine, memory64), Err(ModuleError::Invalid(_))));
    assert_eq!(engine.usage(), csp_sandbox::Usage::default());
}

#[test]
fn a_module_of_100_mb_is_refused_unread() {
    let engine = engine();
    let bytes = vec![0; 100 << 20];
    assert_eq!(Module::compile(&engine, &bytes).unwrap_err(), ModuleError::Len(100 << 20, 1 << 20));
}

#[test]
fn starts_and_declarations_that_loop_are_stopped() {
    let message = r#"(func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0)"#;
    let start = with(&format!("{message} (func $start {LOOP}) (start $start)"));
    assert_eq!(refused(&start), ModuleError::Stopped(Stopped { reason: Reason::Fuel, function: "start" }));
    let declares = with(&format!(r#"{message} (func (export "csp_declaration") (result i32) {LOOP})"#));
    let stopped = Stopped { reason: Reason::Fuel, function: "csp_declaration" };
    assert_eq!(refused(&declares), ModuleError::Stopped(stopped));
    // A start that calls an import finds no call to which it belongs.
    let start = with(&format!(
        r#"(import "csp" "emit_same" (func $same (param i32) (result i32)))(;end;)
        {message} (func $start (drop (call $same (i32.const 0)))) (start $start)"#
    ));
    let stopped = Stopped { reason: Reason::Output, function: "start" };
    assert_eq!(refused(&start), ModuleError::Stopped(stopped));
    // So is a module whose configuration loops.
    let engine = engine();
    let text = with(&format!(r#"{message} (func (export "configure") (param i32) (result i32) {LOOP})"#));
    let module = compile(&engine, &text).unwrap();
    let stopped = StartError::Stopped(Stopped { reason: Reason::Fuel, function: "configure" });
    let started = Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "x");
    assert_eq!(started.err(), Some(stopped));
    assert_eq!(engine.usage(), csp_sandbox::Usage::default());
}

#[test]
fn a_module_is_restarted_with_back_off_and_keeps_its_state_block() {
    let engine = engine();
    // Counts messages in its block, and traps on those of one byte.
    let text = with(&format!(
        r#"(import "csp" "state_write" (func $write (param i32 i32 i32)))
        (import "csp" "state_read" (func $read (param i32 i32 i32) (result i32)))(;end;)
        {}
        (func (export "on_message") (param i32 i32 i32) (result i32)
            (drop (call $read (i32.const 0) (i32.const 8) (i32.const 0)))
            (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 1)))
            (call $write (i32.const 0) (i32.const 8) (i32.const 0))
            (if (i32.eq (local.get 1) (i32.const 1)) (then unreachable))
            i32.const 0)"#,
        declaration([40, 1, 0, 0, 0, 0, 1, 8, 1, 0]),
    ));
    let millis = Duration::from_millis;
    let backoff =
        Backoff { first: millis(10), most: millis(100), forgiven_after: millis(1000), restarts_max: 2 };
    let mut it = Fixture::new(&engine, &text, StopPolicy::Restart(backoff, Finally::PassBy), "");
    let report = it.handler.report();
    let (good, bad) = (&mut FakePort::new(b"good"), &mut FakePort::new(b"b"));
    assert_eq!(it.send(good, 0), Ok(()));
    assert!(it.send(bad, 1).is_err());
    assert_eq!(it.send(good, 10), Err(Stop::Fault("the module waits to be restarted")));
    assert_eq!(it.send(good, 11), Ok(()));
    assert_eq!(it.state.number(0), 2);
    assert!(it.send(bad, 20).is_err() && it.send(good, 39).is_err());
    assert_eq!(it.send(good, 40), Ok(()));
    assert!(it.send(bad, 41).is_err());
    // Passed by for good.
    assert!(good.emitted.is_empty());
    assert_eq!(it.send(good, 100_000), Ok(()));
    assert_eq!(good.emitted, [(0, 7, b"good".to_vec())]);
    let status = report.status();
    assert_eq!((status.restarts, status.waited, status.passed, status.state), (2, 2, 1, "passed-by"));
    assert_eq!((status.stops, it.state.number(0)), (vec![(Reason::Trap, 3)], 3));
}

#[test]
fn instances_beyond_the_bound_are_not_admitted() {
    let engine = Engine::new(Limits { instances_max: 3, ..Limits::default() }).unwrap();
    let module = compile(&engine, &no_op()).unwrap();
    let start = || Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "");
    let mut running = vec![start().unwrap(), start().unwrap(), start().unwrap()];
    assert!(matches!(start(), Err(StartError::Admission(_))));
    running.pop();
    assert!(start().is_ok());
}

#[test]
fn no_signal_handler_is_installed() {
    let caught = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigCgt:")).unwrap().to_owned();
        u64::from_str_radix(line.trim_start_matches("SigCgt:").trim(), 16).unwrap()
    };
    let before = caught();
    usual("unreachable", Reason::Trap);
    usual("(i32.load (i32.const -4))", Reason::Trap);
    usual("(i32.div_u (i32.const 1) (i32.const 0))", Reason::Trap);
    assert_eq!(caught(), before);
    // SIGILL, SIGFPE, which the runtime would catch if it could.
    assert_eq!(caught() & (1 << 3 | 1 << 7), 0);
}
