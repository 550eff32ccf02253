//! What a neighbour notices while modules are compiled: a message through a supplied handler of a channel,
//! beside a thread that compiles all the time, on the same processor and on another one, at normal and at low
//! priority.
//!
//! Two kinds of neighbour: one that always has messages (the time of a turn), and one that sleeps until a
//! message is due every 200 µs (from then until it is delivered). Rounds of all cases take turns; each number
//! is the median of the rounds' numbers. `cargo run --release -p csp-sandbox --example neighbours [ROUNDS]`
#![allow(clippy::unwrap_used, clippy::disallowed_types)]

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant as Wall};

use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelKind, HashKey, MessagePlane, PathSpec, PeerId, PlaneConfig, PoolConfig,
    QueueLimits, Role, StageMaker, SubscriptionsConfig,
};
use csp_sandbox::{Engine, Limits, Module, NoFields, OnStop, Supplied};
use csp_types::Instant;
use rustix::thread::{CpuSet, sched_setaffinity};

const ROUND: Duration = Duration::from_millis(300);
const EVERY: Duration = Duration::from_micros(200);
const NICE: i32 = 19;

/// What compiles beside the neighbour.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Processor and nice value; `None`: nothing compiles.
    compiles: Option<(usize, i32)>,
}

const CASES: [Case; 5] = [
    Case { name: "nothing compiles", compiles: None },
    Case { name: "same processor, priority of the worker", compiles: Some((0, 0)) },
    Case { name: "same processor, low priority", compiles: Some((0, NICE)) },
    Case { name: "another processor, priority of the worker", compiles: Some((1, 0)) },
    Case { name: "another processor, low priority", compiles: Some((1, NICE)) },
];

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// A module whose compilation takes a while, as large ones do.
fn large() -> Vec<u8> {
    let mut text = String::from(
        r#"(module (memory (export "memory") 1 1) (func (export "csp_abi") (result i32) i32.const 1)
        (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0)"#,
    );
    for number in 0..600 {
        write!(
            text,
            "(func (param i32) (result i32) (loop $l (i32.store (local.get 0) (i32.mul (i32.load (local.get 0)) (i32.const {number})))
             (local.set 0 (i32.sub (local.get 0) (i32.const 4))) (br_if $l (local.get 0))) (local.get 0))"
        )
        .unwrap();
    }
    wat::parse_str(text + ")").unwrap()
}

struct World {
    plane: MessagePlane,
    publisher: PeerId,
    receiver: PeerId,
}

impl World {
    fn new(engine: &Engine) -> Self {
        let pool = PoolConfig { block_len: 2048, blocks: 1024 };
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { pool, subscriptions, ..PlaneConfig::new(HashKey([1, 2])) };
        let mut plane = MessagePlane::new(config).unwrap();
        let queue = QueueLimits { messages: 100, bytes: 1 << 20, in_flight: 10 };
        let config = ChannelConfig {
            name: "jobs".to_owned(),
            kind: ChannelKind::PushPull { backlog: queue },
            budget: Budget { guaranteed: 1 << 20, max: 1 << 20 },
            message_len_max: 4096,
            queue,
            sequence: false,
        };
        let channel = plane.add_channel(config).unwrap();
        let publisher = plane.attach(channel, Role::Pusher).unwrap();
        let receiver = plane.attach(channel, Role::Puller).unwrap();
        let text = r#"(module (import "csp" "emit_same" (func $same (param i32) (result i32)))
            (memory (export "memory") 1 1) (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0 call $same))"#;
        let module = Module::compile(engine, &wat::parse_str(text).unwrap()).unwrap();
        let handler = Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "").unwrap();
        let mut spec = PathSpec::chain(channel, &[("supplied", 0, "")]);
        spec.stages[0].maker = Some(StageMaker::once("", Box::new(handler)));
        plane.activate_path(Instant::ZERO, spec).unwrap();
        World { plane, publisher, receiver }
    }

    /// One message of 600 bytes, from its arrival to its delivery.
    fn turn(&mut self) {
        let bytes = [7; 600];
        self.plane
            .publish_as(Instant::ZERO, self.publisher, FormatId(7), &[600], [&bytes[..]].into_iter())
            .unwrap();
        // The context's turn; the receiver, which has one too, is served below.
        while let Some(mut turn) = self.plane.next_flow() {
            let is_context = self.plane.is_context(&turn);
            if is_context {
                self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            }
            self.plane.end_turn(turn);
            if is_context {
                break;
            }
        }
        let delivery = self.plane.next_delivery(Instant::ZERO, self.receiver).unwrap();
        self.plane.delivered(self.receiver, delivery.handle).unwrap();
    }
}

/// Times in ns, sorted, of a neighbour that always has a message.
fn busy(world: &mut World) -> Vec<u64> {
    let (end, mut times) = (Wall::now() + ROUND, Vec::with_capacity(1 << 21));
    while Wall::now() < end {
        let begin = Wall::now();
        world.turn();
        times.push(begin.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times
}

/// The same of one that sleeps until a message is due.
fn woken(world: &mut World) -> Vec<u64> {
    let (begin, mut times) = (Wall::now(), Vec::with_capacity(1 << 14));
    let mut due = begin;
    while due < begin + ROUND {
        due += EVERY;
        std::thread::sleep(due.saturating_duration_since(Wall::now()));
        world.turn();
        let late = due.elapsed();
        times.push(late.as_nanos() as u64);
        // What has passed meanwhile is late once, not as often as messages were due.
        due = due.max(Wall::now() - EVERY);
    }
    times.sort_unstable();
    times
}

/// Median, 99th percentile, most; and messages a second.
fn quantiles(times: &[u64]) -> [u64; 4] {
    let rate = times.len() as f64 / ROUND.as_secs_f64();
    [times[times.len() / 2], times[times.len() * 99 / 100], times[times.len() - 1], rate as u64]
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// Runs `measure` beside a thread that compiles. Returns its numbers, and how many modules were compiled.
fn beside(case: Case, engine: &Engine, bytes: &[u8], measure: impl FnOnce() -> Vec<u64>) -> ([u64; 4], u32) {
    let (over, compiled) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        if let Some((cpu, nice)) = case.compiles {
            let (over, compiled) = (&over, &compiled);
            scope.spawn(move || {
                pin(cpu);
                rustix::process::setpriority_process(None, nice).unwrap();
                while !over.load(Ordering::Relaxed) {
                    Module::compile(engine, bytes).unwrap();
                    compiled.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let numbers = quantiles(&measure());
        over.store(true, Ordering::Relaxed);
        (numbers, compiled.load(Ordering::Relaxed))
    })
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(11, |text| text.parse().unwrap());
    let engine = Engine::new(Limits::default()).unwrap();
    let bytes = large();
    pin(0);
    let begin = Wall::now();
    Module::compile(&engine, &bytes).unwrap();
    println!("a module of {} KiB is compiled in {} ms\n", bytes.len() >> 10, begin.elapsed().as_millis());
    let mut world = World::new(&engine);
    let mut all = vec![[vec![], vec![]]; CASES.len()];
    let mut done = vec![[0, 0]; CASES.len()];
    for _ in 0..rounds {
        for (at, case) in CASES.into_iter().enumerate() {
            let (numbers, compiled) = beside(case, &engine, &bytes, || busy(&mut world));
            all[at][0].push(numbers);
            done[at][0] += compiled;
            let (numbers, compiled) = beside(case, &engine, &bytes, || woken(&mut world));
            all[at][1].push(numbers);
            done[at][1] += compiled;
        }
    }
    println!(
        "| neighbour | what compiles | p50 µs | p99 µs | most µs | messages a second | compiled a second |\n|---|---|---|---|---|---|---|"
    );
    for (kind, neighbour) in ["always has messages", "a message every 200 µs"].into_iter().enumerate() {
        for (at, case) in CASES.iter().enumerate() {
            let of = |quantile: usize| {
                median(all[at][kind].iter().map(|numbers| numbers[quantile]).collect()) as f64 / 1e3
            };
            let rate = f64::from(done[at][kind]) / (rounds as f64 * ROUND.as_secs_f64());
            println!(
                "| {neighbour} | {} | {:.2} | {:.2} | {:.1} | {:.0} | {rate:.1} |",
                case.name,
                of(0),
                of(1),
                of(2),
                of(3) * 1e3
            );
        }
    }
}
