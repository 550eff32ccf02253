//! A seeded simulation of the engine in virtual time: against itself, and against models of other stacks.
//!
//! - `CSP_TCP_SEEDS=n` runs n seeds, starting with `CSP_TCP_START=n`; all cores are used.
//! - `CSP_TCP_SEED=n` replays one seed and prints every packet (with `--nocapture`).
//!
//! A seed determines hosts, links and conversations (`scenario.rs`); `watch.rs` and `invariants.rs` contain
//! the checks.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod app;
mod host;
mod invariants;
mod link;
mod model;
mod packet;
mod pattern;
mod progress;
#[path = "../common/random.rs"]
mod random;
mod scenario;
mod spans;
mod watch;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_tcp::Counters;

use world::World;

/// Number of seeds if CSP_TCP_SEEDS is not set.
const SEEDS: u64 = 1_000;
/// Number of failing seeds after which the run ends.
const FAILURES_MAX: usize = 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Situations that the seeds must have covered at least once; otherwise they prove less than intended.
type Met = Vec<(&'static str, u64)>;

fn rare_things(c: &Counters) -> Met {
    vec![
        ("fast_recoveries", c.fast_recoveries),
        ("retransmission_timeouts", c.retransmission_timeouts),
        ("tail_loss_probes", c.tail_loss_probes),
        ("window_probes", c.window_probes),
        ("keepalive_probes", c.keepalive_probes),
        ("spurious_recoveries", c.spurious_recoveries),
        ("syn_retransmitted", c.syn_retransmitted),
        ("duplicate_bytes_received", c.duplicate_bytes_received),
        ("out_of_order_bytes_received", c.out_of_order_bytes_received),
        ("out_of_order_bytes_dropped", c.out_of_order_bytes_dropped),
        ("bytes_dropped_no_block", c.bytes_dropped_no_block),
        ("half_open_evicted", c.half_open_evicted),
        ("time_wait_entered", c.time_wait_entered),
        ("time_wait_evicted", c.time_wait_evicted),
        ("time_wait_reused", c.time_wait_reused),
        ("failed_reset", c.failed_reset),
        ("failed_data_after_close", c.failed_data_after_close),
        ("dropped_time_wait", c.dropped_time_wait),
        ("dropped_table_full", c.dropped_table_full),
        ("challenge_acks_sent", c.challenge_acks_sent),
        ("ecn_reductions", c.ecn_reductions),
        ("syn_cookies_accepted", c.syn_cookies_accepted),
    ]
}

fn run_seed(seed: u64, trace: bool) -> Met {
    let mut world = World::new(seed, trace);
    if trace {
        println!("{:#?}", world.scenario);
    }
    world.run();
    let mut met = rare_things(&Counters::default());
    for engine in world.hosts.iter().filter_map(|host| host.engine()) {
        add(&mut met, &rare_things(engine.stack.counters()));
    }
    met
}

fn add(total: &mut Met, more: &Met) {
    for (a, b) in total.iter_mut().zip(more) {
        a.1 += b.1;
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

/// Runs all seeds on all cores; returns the situations covered and the failures.
fn run_seeds(start: u64, count: u64) -> (Met, Vec<(u64, String)>) {
    let next = AtomicU64::new(start);
    let met = Mutex::new(rare_things(&Counters::default()));
    let failures: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= start + count || failures.lock().unwrap().len() >= FAILURES_MAX {
                return;
            }
            if seed > start && (seed - start).is_multiple_of(10_000) {
                println!("{} seeds", seed - start);
            }
            match catch_unwind(AssertUnwindSafe(|| run_seed(seed, false))) {
                Ok(more) => add(&mut met.lock().unwrap(), &more),
                Err(panic) => failures.lock().unwrap().push((seed, message(&*panic))),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    (met.into_inner().unwrap(), failures.into_inner().unwrap())
}

#[test]
fn every_seed_keeps_its_promises() {
    if let Some(seed) = number("CSP_TCP_SEED") {
        run_seed(seed, true);
        return;
    }
    let (start, count) = (number("CSP_TCP_START").unwrap_or(0), number("CSP_TCP_SEEDS").unwrap_or(SEEDS));
    std::panic::set_hook(Box::new(|_| {})); // failures are reported below, each with its seed
    let (met, mut failures) = run_seeds(start, count);
    drop(std::panic::take_hook());
    failures.sort();
    for (seed, message) in &failures {
        println!("seed {seed}: {message}");
        println!("  CSP_TCP_SEED={seed} cargo test -p csp-tcp --test simulation -- --nocapture every_seed\n");
    }
    println!("seeds {start}..{}: {met:?}", start + count);
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
    let never: Vec<_> = met.iter().filter(|(_, count)| *count == 0).collect();
    assert!(count < 1_000 || never.is_empty(), "never met: {never:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..5 {
        assert_eq!(run_seed(seed, false), run_seed(seed, false));
    }
}
