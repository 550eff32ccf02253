//! The same rules and frames in the classifier: in a worker, and in the program of level 1.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use aya::maps::{Array, MapData};
use csp_classify::multifield::{Direction, Fields, Owner, Rule, Worker, parse_ethernet};
use csp_plugins::{Binding, DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_support::Random;
use csp_types::{Instant, MacAddr};
use csp_xdp::{Driver, Plan, PortConfig};

use crate::live::{self, Header, processor_time};

/// Figures of a worker.
pub struct Ours {
    /// Parsing, look-up and counting the hit, in nanoseconds.
    pub worker: f64,
    pub replaced_ms: f64,
    pub changed_us: f64,
}

/// Packets by rule.
pub fn hits(rules: &[Rule], packets: &[Fields]) -> Vec<u64> {
    let mut owner = Owner::new(rules.len());
    owner.replace(rules.to_vec()).unwrap();
    let table = owner.publish().table;
    let mut hits = vec![0; rules.len()];
    for hit in packets.iter().filter_map(|packet| table.find(packet)) {
        hits[hit.instance.0 as usize] += 1;
    }
    hits
}

/// Times of a worker and of the owner of its table.
pub fn measure(rules: &[Rule], frames: &[Vec<u8>], rounds: u32) -> Ours {
    let mut owner = Owner::new(rules.len() + 1);
    let mut replaced = Duration::MAX;
    for _ in 0..rounds {
        let rules = rules.to_vec();
        let begin = processor_time();
        owner.replace(rules).unwrap();
        black_box(owner.publish());
        replaced = replaced.min(processor_time() - begin);
    }
    let mut worker = Worker::new(owner.publish(), rules.len() + 1, 0);
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let begin = processor_time();
        for frame in frames {
            let parsed = parse_ethernet(frame, 0, Direction::Ingress).unwrap();
            black_box(worker.classify(&parsed.fields, 74));
        }
        best = best.min(processor_time() - begin);
    }
    let mut random = Random::new(1);
    let changes = 500;
    let begin = processor_time();
    for _ in 0..changes {
        let rule = &rules[random.below(rules.len() as u64) as usize];
        owner.remove(&rule.name).unwrap();
        worker.adopt(owner.publish());
        owner.insert(rule.clone()).unwrap();
        worker.adopt(owner.publish());
    }
    let changed = processor_time() - begin;
    Ours {
        worker: best.as_nanos() as f64 / frames.len() as f64,
        replaced_ms: replaced.as_secs_f64() * 1e3,
        changed_us: changed.as_secs_f64() * 1e6 / f64::from(2 * changes),
    }
}

/// Nanoseconds a packet of the program that drops what matches; `None` where the rules are too many for it.
pub fn at_level1(object: &[u8], rules: &[Rule], frames: &[Vec<u8>], rounds: u32) -> Option<f64> {
    let mut driver = Driver::open_program(None, object).ok()?;
    let port = PortConfig { ifindex: 1, mac: MacAddr([2, 0, 0, 0, 0, 0x0a]), has_sockets: false };
    driver.set_ports(&[Some(port)]).ok()?;
    let config = ManagerConfig { rules_max: rules.len(), ..ManagerConfig::new(1, HashKey(1, 2)) };
    let mut manager = Manager::new(config);
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    let instance = manager.create("plugin", "drop", DRIVER, &[]).unwrap();
    let bound = Binding { instance, fallback: Fallback::Pass }.encode();
    manager
        .replace_rules(rules.iter().map(|rule| Rule { instance: bound, ..rule.clone() }).collect())
        .unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).ok()?;
    if !plan.demoted.is_empty() || plan.rules().len() != rules.len() {
        return None;
    }
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).ok()?;
    let mut headers: Array<MapData, Header> = driver.take_map("headers").ok()?;
    live::write(&mut headers, frames);
    let count = frames.len() as u32;
    let mut run = |name| {
        let rounds = (0..rounds).map(|_| {
            let begin = processor_time();
            driver.test_program(name, &frames[0], 4 * count).unwrap();
            processor_time() - begin
        });
        rounds.min().unwrap().as_nanos() as f64 / f64::from(4 * count)
    };
    Some(run("csp_measured") - run("csp_headers"))
}

/// The processor time of child processes that have ended.
pub fn children_time() -> Duration {
    // SAFETY: all zeros is a value of the structure, which consists of integers.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one structure to the pointer, which is valid for that.
    let result = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert_eq!(result, 0);
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
