//! Look-ups a second, times of changes and memory of the multi-field classifier, beside linear search in the
//! same run.
//!
//! Times are processor time of one thread. `cargo bench -p csp-classify --bench multifield`; with `--
//! --quick` fewer look-ups. `-- --instructions KIND RULES COUNT` runs look-ups only, for `perf stat` or
//! callgrind.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{KINDS, Kind};
use csp_classify::multifield::{
    Fields, InstanceId, Linear, Match, Owner, PortRange, Published, Rule, Worker, covered_rules,
};
use csp_support::Random;

/// The processor time of this thread: what other programs take does not count, but for their share of the
/// caches.
#[derive(Clone, Copy)]
struct Instant(Duration);

impl Instant {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Instant(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    fn elapsed(self) -> Duration {
        Instant::now().0.saturating_sub(self.0)
    }
}

const SEED: u64 = 20;
/// Different headers of the uniform load.
const HEADERS: usize = 65_536;
/// Flows of the Zipf load.
const FLOWS: usize = 1 << 20;
/// Flows that a worker remembers.
const CACHE: usize = 32_768;

/// Millions a second, the best of some rounds over all packets: others use the machine, too.
fn rate(packets: &[Fields], rounds: usize, mut look_up: impl FnMut(&Fields) -> bool) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let begin = Instant::now();
        let mut found = 0;
        for packet in packets {
            found += usize::from(look_up(packet));
        }
        black_box(found);
        best = best.min(begin.elapsed());
    }
    packets.len() as f64 / best.as_secs_f64() / 1e6
}

fn millis(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// Mean and largest time of single changes, each published, in µs.
fn single_changes(owner: &mut Owner, rules: &[Rule], worker: &mut Worker, count: usize) -> (f64, f64) {
    let mut random = Random::new(SEED);
    let (mut sum, mut worst) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..count {
        let rule = &rules[random.below(rules.len() as u64) as usize];
        let begin = Instant::now();
        owner.remove(&rule.name).unwrap();
        let published = owner.publish();
        let first = begin.elapsed();
        worker.adopt(published);
        let begin = Instant::now();
        owner.insert(rule.clone()).unwrap();
        let published = owner.publish();
        let second = begin.elapsed();
        worker.adopt(published);
        sum += first + second;
        worst = worst.max(first).max(second);
    }
    (sum.as_secs_f64() * 1e6 / (2 * count) as f64, worst.as_secs_f64() * 1e6)
}

fn measure(kind: Kind, count: usize, v6_percent: u64, rounds: usize) {
    let rules = common::rules(kind, count, SEED, v6_percent);
    let uniform = common::uniform(&rules, HEADERS, SEED, 0);
    let flows = common::uniform(&rules, FLOWS, SEED + 1, 0);
    let zipf = common::zipf(&flows, 4 * HEADERS, SEED);
    let mut owner = Owner::new(count + 1);
    let begin = Instant::now();
    owner.replace(rules.clone()).unwrap();
    let published = owner.publish();
    let replaced = millis(begin);
    let stats = published.table.stats();
    let table = published.table.clone();
    let plain = rate(&uniform, rounds, |packet| table.find(packet).is_some());
    drop(table);
    let mut uncached = Worker::new(published.clone(), count + 1, 0);
    let counted = rate(&uniform, rounds, |packet| uncached.classify(packet, 72).is_some());
    drop(uncached);
    let mut worker = Worker::new(published, count + 1, CACHE);
    let cached = rate(&uniform, rounds, |packet| worker.classify(packet, 72).is_some());
    let skewed = rate(&zipf, rounds, |packet| worker.classify(packet, 72).is_some());
    let before = worker.lookups();
    for packet in &zipf {
        black_box(worker.classify(packet, 72));
    }
    let after = worker.lookups();
    let answered = 100.0 * (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
    let linear = Linear::new(&rules);
    let few = &uniform[..(20_000_000 / count).clamp(16, HEADERS)];
    let searched = rate(few, 1, |packet| linear.find(packet).is_some());
    let (mean, worst) = single_changes(&mut owner, &rules, &mut worker, 500);
    let begin = Instant::now();
    let covered = covered_rules(&rules).len();
    let analysed = millis(begin);
    println!(
        "{:>4} {count:>7} {v6_percent:>3} | {plain:>7.2} {counted:>7.2} {cached:>7.2} {skewed:>7.2} {answered:>3.0} {searched:>9.4} {:>7.0} | {replaced:>8.1} {mean:>7.2} {worst:>8.1} | {:>3}/{:<3} {:>4} {:>7.1} | {covered:>6} {analysed:>7.1}",
        format!("{kind:?}"),
        plain / searched,
        stats.tuples_v4,
        stats.tuples_v6,
        stats.longest_chain,
        stats.bytes as f64 / 1048576.0,
    );
}

/// What a worker does while another thread changes rules, one after the other or all at once.
fn under_change(kind: Kind, count: usize, whole: bool) {
    const LOOK_UPS: usize = 4_000_000;
    const BATCH: usize = 64;
    let rules = common::rules(kind, count, SEED, 0);
    let uniform = common::uniform(&rules, HEADERS, SEED, 0);
    let mut owner = Owner::new(count);
    owner.replace(rules.clone()).unwrap();
    let first = owner.publish();
    let mailbox: Mutex<Option<Published>> = Mutex::new(None);
    let stop = AtomicBool::new(false);
    let mut worker = Worker::new(first, count, 0);
    let run = |worker: &mut Worker| {
        let (begin, mut worst, mut adopted) = (Instant::now(), Duration::ZERO, 0);
        for at in 0..LOOK_UPS / BATCH {
            let batch = Instant::now();
            if let Some(published) = mailbox.try_lock().ok().and_then(|mut mail| mail.take()) {
                worker.adopt(published);
                adopted += 1;
            }
            for packet in uniform[at * BATCH % HEADERS..].iter().take(BATCH) {
                black_box(worker.classify(packet, 72));
            }
            worst = worst.max(batch.elapsed());
        }
        (LOOK_UPS as f64 / begin.elapsed().as_secs_f64() / 1e6, worst, adopted)
    };
    let (alone, worst_alone, _) = run(&mut worker);
    let ((rate, worst, adopted), changes, copies) = std::thread::scope(|scope| {
        let control = scope.spawn(|| {
            let mut changes = 0;
            while !stop.load(Ordering::Relaxed) {
                if whole {
                    owner.replace(rules.clone()).unwrap();
                } else {
                    let rule = &rules[changes / 2 % rules.len()];
                    match changes % 2 {
                        0 => owner.remove(&rule.name).unwrap(),
                        _ => drop(owner.insert(rule.clone()).unwrap()),
                    }
                }
                changes += 1;
                let published = owner.publish();
                *mailbox.lock().unwrap() = Some(published);
                // A thousand changes a second: what an operator's program may do.
                std::thread::sleep(Duration::from_millis(1));
            }
            (changes, owner.copies())
        });
        let measured = run(&mut worker);
        stop.store(true, Ordering::Relaxed);
        let (changes, copies) = control.join().unwrap();
        (measured, changes, copies)
    });
    let what = if whole { "all rules replaced" } else { "single changes" };
    println!(
        "{kind:?} {count}, {what}: {alone:.2} M look-ups/s without and {rate:.2} with {changes} changes ({adopted} adopted, {copies} copies); longest batch of {BATCH}: {:.0} and {:.0} µs",
        worst_alone.as_secs_f64() * 1e6,
        worst.as_secs_f64() * 1e6,
    );
}

/// Rules that nothing divides: what an operator may do at worst.
fn alike(count: usize) {
    let rules: Vec<Rule> = (0..count)
        .map(|at| {
            let ports = PortRange::new((at % 1000) as u16, 40_000 + (at / 1000) as u16).unwrap();
            let fields = Match { protocol: Some(6), destination_ports: ports, ..Match::ANY };
            Rule { name: format!("r{at}").into(), priority: at as u32, fields, instance: InstanceId(1) }
        })
        .collect();
    let mut owner = Owner::new(count);
    let begin = Instant::now();
    owner.replace(rules.clone()).unwrap();
    let mut worker = Worker::new(owner.publish(), count, 0);
    let replaced = millis(begin);
    let (mean, worst) = single_changes(&mut owner, &rules, &mut worker, 200);
    println!(
        "{count} rules that differ in ranges only: replaced in {replaced:.0} ms; one change {mean:.0} µs, at most {worst:.0} µs"
    );
}

fn instructions(arguments: &[String]) {
    let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == arguments[0]).unwrap();
    let (count, look_ups) = (arguments[1].parse().unwrap(), arguments[2].parse().unwrap());
    let rules = common::rules(kind, count, SEED, 0);
    let uniform = common::uniform(&rules, HEADERS, SEED, 0);
    let mut owner = Owner::new(count);
    owner.replace(rules).unwrap();
    let table = owner.publish().table;
    for tuple in table.tuples_v4() {
        println!("{:016x} {:016x} {:>6} rules, longest chain {}", tuple.0[0], tuple.0[1], tuple.1, tuple.2);
    }
    let found = uniform.iter().cycle().take(look_ups).filter(|packet| table.find(packet).is_some()).count();
    println!("{found} of {look_ups} found");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--instructions") {
        return instructions(&arguments[at + 1..]);
    }
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 10 };
    println!(
        "rates in millions a second; 65,536 uniform headers; Zipf (exponent 1) over 1,048,576 flows, cache of 32,768"
    );
    println!(
        "kind   rules  v6 |   table   +hits  +cache    Zipf   %    linear   ratio | ms:repl. µs:one    worst | tuples chain     MiB | covered      ms"
    );
    for kind in KINDS {
        for count in [1_000, 5_192, 10_000, 100_000] {
            measure(kind, count, 0, rounds);
        }
        measure(kind, 10_000, 100, rounds);
        measure(kind, 100_000, 50, rounds);
    }
    for kind in KINDS {
        under_change(kind, 100_000, false);
    }
    under_change(Kind::Fw, 100_000, true);
    alike(10_000);
    alike(100_000);
}
