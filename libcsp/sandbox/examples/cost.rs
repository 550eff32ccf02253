//! What supplied handlers cost: a call, a copy, a stop, a restart. Prints medians and p99; `cargo run
//! --release -p csp-sandbox --example cost [guarded]`: with the argument, of modules in guarded memory, as
//! clients' are.
// A bench has a clock.
#![allow(clippy::disallowed_types)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Clock;

use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State, builtin::Forward};
use csp_sandbox::{
    Backoff, Confinement, Engine, Finally, Limits, Module, NoFields, OnStop, StopPolicy, Supplied,
};
use csp_types::{Duration, Instant};

/// A message of 600 bytes in one slice, and an output that counts.
struct Sink {
    bytes: [u8; 600],
    emitted: u64,
}

impl Port for Sink {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        (self.bytes.get(place.at as usize..).unwrap_or(&[]), Place { at: 600, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(600)
    }

    fn emit(&mut self, _: u8, emit: Emit<'_>) -> Result<(), Full> {
        black_box(&emit);
        self.emitted += 1;
        Ok(())
    }
}

fn send(handler: &mut dyn Handler, state: &mut State, sink: &mut Sink, now: u64) -> bool {
    let message = Message { format: FormatId(1), sequence: 1, arrived: Instant::ZERO, len: 600, frames: 1 };
    handler.on_message(&mut Call::new(message, Instant::from_nanos(now), state, sink)).is_ok()
}

/// Text of a module: declaration numbers, imports, other fields, the body of `on_message`.
fn text(numbers: [u32; 10], imports: &str, rest: &str, body: &str) -> Vec<u8> {
    let bytes: String =
        numbers.iter().flat_map(|number| number.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module {imports} (memory (export "memory") 32) (data (i32.const 16) "{bytes}")
        (func (export "csp_declaration") (result i32) i32.const 16)
        (func (export "csp_abi") (result i32) i32.const 1) {rest}
        (func (export "on_message") (param i32 i32 i32) (result i32) {body}))"#
    );
    wat::parse_str(text).expect("the text is a module")
}

const SAME: &str = r#"(import "csp" "emit_same" (func $same (param i32) (result i32)))"#;
const EMIT: &str = r#"(import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))"#;
const READ: &str = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))"#;
const BUFFER: [u32; 10] = [40, 1, 1000, 0, 1024, 600, 0, 0, 0, 0];
const NONE: [u32; 10] = [40, 1, 1000, 0, 0, 0, 0, 0, 0, 0];
const FORWARD: &str = "(call $same (i32.const 0))";
const LOOP: &str = "(loop $again br $again) unreachable";

fn main() {
    let confinement = match std::env::args().nth(1).as_deref() {
        Some("guarded") => Confinement::Guarded,
        _ => Confinement::Compared,
    };
    let limits = Limits { confinement, ..Limits::default() };
    let engine = Engine::new(limits).expect("WebAssembly runs here");
    println!("call with a message of 600 bytes, ns (median and least of 41 rounds of 20,000 calls)");
    let mut forward = Forward;
    row("built-in forward, for comparison", &mut forward);
    for (name, module) in [
        ("supplied, nothing read or emitted", text(NONE, "", "", "i32.const 0")),
        ("supplied, 600 B copied into its buffer", text(BUFFER, "", "", "i32.const 0")),
        ("supplied, emits the same, nothing read", text(NONE, SAME, "", FORWARD)),
        ("supplied no-op: 600 B copied, emits the same", text(BUFFER, SAME, "", FORWARD)),
        (
            "supplied, 600 B read by import",
            text(
                NONE,
                READ,
                "",
                "(drop (call $read (i32.const 0) (i32.const 600) (i32.const 1024))) i32.const 0",
            ),
        ),
        (
            "supplied, 600 B copied in and emitted as new",
            text(
                BUFFER,
                EMIT,
                "",
                "(call $emit (i32.const 0) (i32.const 1) (i32.const 1024) (i32.const 600))",
            ),
        ),
    ] {
        row(name, &mut start(&compile(&engine, &module)));
    }
    // 16 KiB summed up and written: what a module does that looks at all of a long message.
    let sums = text(
        NONE,
        "",
        "",
        "(local $sum i32) (local $at i32) (loop $again
            (local.set $sum (i32.add (local.get $sum) (i32.load (i32.add (local.get $at) (i32.const 65536)))))
            (i32.store (i32.add (local.get $at) (i32.const 131072)) (local.get $sum))
            (local.set $at (i32.add (local.get $at) (i32.const 4)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 16384)))) i32.const 0",
    );
    row("supplied, 4,096 loads and stores", &mut start(&compile(&engine, &sums)));
    println!(
        "\nns of the wall: median, p99; of the processor (with 0.3 us for reading its clock): median, p99, most; 2,000 times"
    );
    stop_load_restart(&engine);
    stops(&engine);
}

fn compile(engine: &Engine, bytes: &[u8]) -> Arc<Module> {
    Module::compile(engine, bytes).expect("the module follows the ABI")
}

fn start(module: &Arc<Module>) -> Supplied {
    Supplied::new(module, Arc::new(NoFields), OnStop::default(), "").expect("there is room")
}

fn row(name: &str, handler: &mut dyn Handler) {
    let (mut state, mut sink) = (State::new(&handler.needs()), Sink { bytes: [7; 600], emitted: 0 });
    let mut rounds: Vec<u64> = (0..41)
        .map(|_| {
            let begin = Clock::now();
            (0..20_000).for_each(|now| assert!(send(black_box(handler), &mut state, &mut sink, now)));
            begin.elapsed().as_nanos() as u64 / 20_000
        })
        .collect();
    rounds.sort_unstable();
    println!("  {name:48} {:6} {:6}", rounds[20], rounds[0]);
}

/// Time of the wall, and processor time of the thread: that of others on a busy machine is not in it.
type Times = (u64, u64);

fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn timed<R>(run: impl FnOnce() -> R) -> (R, Times) {
    let (before, begin) = (processor_time(), Clock::now());
    let done = run();
    let wall = begin.elapsed().as_nanos() as u64;
    (done, (wall, processor_time() - before))
}

fn quantiles(name: &str, times: &[Times]) {
    let of = |mut nanos: Vec<u64>| {
        nanos.sort_unstable();
        [0.5, 0.99, 1.0].map(|share| nanos[((nanos.len() - 1) as f64 * share) as usize])
    };
    let [median, p99, _] = of(times.iter().map(|times| times.0).collect());
    let [cpu_median, cpu_p99, cpu_most] = of(times.iter().map(|times| times.1).collect());
    println!("  {name:40} {median:8} {p99:9}   {cpu_median:8} {cpu_p99:8} {cpu_most:8}");
}

/// The old one ends, the module is started, and the new one takes its place; compiled before, and not.
fn stop_load_restart(engine: &Engine) {
    // State of 4 KiB in its block.
    let bytes = text([40, 1, 1000, 0, 1024, 600, 1, 4096, 1, 0], SAME, "", FORWARD);
    let module = compile(engine, &bytes);
    let time = |count, with: &dyn Fn() -> Arc<Module>| -> Vec<Times> {
        let mut running = Some(start(&module));
        (0..count)
            .map(|_| {
                timed(|| {
                    drop(running.take());
                    running = Some(start(&with()));
                })
                .1
            })
            .collect()
    };
    quantiles("stop and restart, compiled before", &time(2_000, &|| module.clone()));
    quantiles("stop, load, compile, restart (of 200)", &time(200, &|| compile(engine, &bytes)));
}

fn stops(engine: &Engine) {
    let rest = "(func $deep (param i32) (result i32)
        (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (local.get 0)))";
    let always = Backoff {
        first: Duration::ZERO,
        most: Duration::ZERO,
        forgiven_after: Duration::ZERO,
        restarts_max: u32::MAX,
    };
    for (name, module) in [
        ("stopped: endless loop", text(NONE, "", "", LOOP)),
        ("stopped: loop of loads and stores", text(NONE, "", "", "(loop $again
            (i32.store (i32.const 2048) (i32.add (i32.load (i32.const 2048)) (i32.const 1))) br $again) unreachable")),
        ("stopped: loop of divisions", text(NONE, "", "", "(loop $again
            (drop (i64.div_u (i64.const -3) (i64.extend_i32_u (local.get 1)))) br $again) unreachable")),
        ("stopped: fills of 60,000 B", text(NONE, "", "", "(loop $again
            (memory.fill (i32.const 0) (i32.const 1) (i32.const 60000)) br $again) unreachable")),
        ("stopped: reads without end", text(NONE, READ, "", "(loop $again
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 0))) br $again) unreachable")),
        ("stopped: emits without end", text(NONE, EMIT, "", "(loop $again
            (drop (call $emit (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1000))) br $again) unreachable")),
        ("stopped: deep recursion", text(NONE, "", rest, "(call $deep (i32.const 0))")),
        ("stopped: memory without end", text(NONE, "", "", "(loop $again
            (drop (memory.grow (i32.const 1))) br $again) unreachable")),
        ("stopped: trap at once", text(NONE, "", "", "unreachable")),
    ] {
        let module = compile(engine, &module);
        let on_stop = StopPolicy::Restart(always, Finally::PassBy);
        let started = Supplied::new(&module, Arc::new(NoFields), on_stop, "");
        let mut handler = started.expect("there is room");
        let (mut state, mut sink) = (State::new(&handler.needs()), Sink { bytes: [7; 600], emitted: 0 });
        // With the start of a new instance, from the second time on, and the release of the stopped one.
        let times = (0..2_000).map(|now| {
            let (done, time) = timed(|| send(&mut handler, &mut state, &mut sink, now));
            assert!(!done);
            time
        });
        quantiles(name, &times.collect::<Vec<_>>());
    }
}
