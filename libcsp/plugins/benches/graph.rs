//! Packets a second through parser, classifier and graph of one worker, in process: without the port.
//!
//! `cargo bench -p csp-plugins --bench graph`; with `-- --quick` fewer rounds.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

#[path = "../../classify/tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Duration;

use common::Kind;
use csp_classify::multifield::{Fields, Rule, Worker};
use csp_plugins::{
    Binding, Fallback, Graph, HashKey, Level, Manager, ManagerConfig, Metadata, Output, Packet, builtin,
};
use csp_types::Instant;
use csp_wire::checksum::checksum;

/// The processor time of this thread: what other programs take does not count, but for their share of the
/// caches.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

const SEED: u64 = 20;
const RULES: usize = 5_192;
const HEADERS: usize = 65_536;

struct Nowhere;

impl Output for Nowhere {
    fn copy(&mut self, _: u16, frame: &[u8]) {
        black_box(frame);
    }
}

/// A frame of `len` bytes with these fields; checksums of the transport are not computed, since nobody looks
/// at them.
fn frame(fields: &Fields, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (fields.source, fields.destination) else {
        unreachable!()
    };
    bytes[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut bytes[14..];
    ip[0] = 0x45;
    ip[1] = fields.dscp << 2;
    ip[2..4].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = fields.protocol;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    let sum = checksum(&ip[..20]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    if let Some((source, destination)) = fields.ports {
        ip[20..22].copy_from_slice(&source.to_be_bytes());
        ip[22..24].copy_from_slice(&destination.to_be_bytes());
    }
    ip[32] = 5 << 4;
    ip[33] = fields.tcp_flags.unwrap_or(0);
    bytes
}

fn measure(module: &str, settings: &[(&str, &str)], len: usize, cache: usize, rounds: usize) {
    let mut manager =
        Manager::new(ManagerConfig { rules_max: RULES, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment("workers", Level::Worker).unwrap();
    manager.start("workers").unwrap();
    let instance = manager.create("plugin", module, "workers", settings).unwrap();
    let binding = Binding { instance, fallback: Fallback::Pass }.encode();
    let rules: Vec<Rule> = common::rules(Kind::Acl, RULES, SEED, 0)
        .into_iter()
        .map(|rule| Rule { instance: binding, ..rule })
        .collect();
    let headers = common::uniform(&rules, HEADERS, SEED, 0);
    manager.replace_rules(rules).unwrap();
    let mut graph = Graph::new(16, 16);
    while let Some(command) = manager.poll_command(0) {
        graph.apply(command);
    }
    let mut classifier = Worker::new(manager.publish_rules(), RULES, cache);
    let mut frames: Vec<Vec<u8>> = headers.iter().map(|fields| frame(fields, len)).collect();
    let mut best = Duration::MAX;
    let mut entered = 0;
    for round in 0..rounds {
        let begin = processor_time();
        for (at, frame) in frames.iter_mut().enumerate() {
            let interface = headers[at].interface;
            let mut packet = Packet::new(frame, Metadata::new(interface, headers[at].direction));
            let hit = packet.fields().and_then(|fields| classifier.classify(fields, len as u32));
            if let Some(hit) = hit {
                let now = Instant::from_nanos((round * HEADERS + at) as u64 * 1000);
                let verdict =
                    graph.enter(now, hit.rule, Binding::decode(hit.instance), &mut packet, &mut Nowhere);
                black_box(verdict);
                entered += 1;
            }
        }
        best = best.min(processor_time() - begin);
    }
    let rate = HEADERS as f64 / best.as_secs_f64();
    let gigabits = rate * len as f64 * 8.0 / 1e9;
    let share = entered as f64 / (rounds * HEADERS) as f64;
    println!(
        "{module:>10} {len:>5} B  cache {cache:>6} | {:>6.2} M packets/s {gigabits:>7.2} Gb/s, {share:.3} matched",
        rate / 1e6
    );
}

fn main() {
    let rounds = if std::env::args().any(|argument| argument == "--quick") { 3 } else { 10 };
    println!("{RULES} rules (ACL), {HEADERS} headers drawn from all of them, one core, without a port");
    for len in [72, 1460] {
        for cache in [0, 32_768] {
            measure("no-op", &[], len, cache, rounds);
        }
        measure("counter", &[], len, 0, rounds);
        measure("block-list", &[], len, 0, rounds);
        measure("policer", &[("rate", "100G")], len, 0, rounds);
        measure("dscp", &[("dscp", "10")], len, 0, rounds);
    }
}
