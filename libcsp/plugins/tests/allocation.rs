//! No packet causes an allocation: classifier, graph and every built-in plug-in.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod fixture;

use csp_classify::multifield::{Direction, Match, Worker};
use csp_plugins::{
    Binding, Fallback, Graph, HashKey, Level, Manager, ManagerConfig, Metadata, Output, Packet, builtin,
};
use csp_support::allocation;
use csp_types::Instant;
use fixture::build;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

struct Count(u64);

impl Output for Count {
    fn copy(&mut self, _: u16, frame: &[u8]) {
        self.0 += frame.len() as u64;
    }
}

#[test]
fn packets_cause_no_allocation() {
    let mut manager = Manager::new(ManagerConfig { rules_max: 64, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment("workers", Level::Worker).unwrap();
    manager.start("workers").unwrap();
    // A chain of all; the policer has a source blocked now and then, also when the block list is full.
    let chain: [(&str, &[(&str, &str)]); 7] = [
        ("block-list", &[("prefixes_max", "128")]),
        ("no-op", &[]),
        ("counter", &[("prefixes_max", "100"), ("length_v4", "32")]),
        ("policer", &[("rate", "1M"), ("burst", "1k"), ("block", "block-list"), ("block_time", "3ms")]),
        ("dscp", &[("dscp", "5")]),
        ("mirror", &[("interface", "1")]),
        ("capture", &[("buffer", "64k"), ("filter", "proto udp")]),
    ];
    for (at, (module, settings)) in chain.iter().enumerate() {
        manager.create(module, module, "workers", settings).unwrap();
        if at > 0 {
            manager.connect(chain[at - 1].0, 0, module).unwrap();
        }
    }
    manager.add_rule("all", 1, Match::ANY, "block-list", Fallback::Drop).unwrap();
    let mut graph = Graph::new(256, 16);
    while let Some(command) = manager.poll_command(0) {
        graph.apply(command);
    }
    let mut classifier = Worker::new(manager.publish_rules(), 64, 256);
    let mut frames: Vec<Vec<u8>> = (0..=255)
        .map(|at| {
            build(&["ipv4", &format!("10.0.0.{at}"), ">", "198.51.100.2", "udp", "1", ">", "2", "len", "9"]).0
        })
        .chain([build(&["ipv6", "2001:db8::1", ">", "2001:db8::2", "tcp", "1", ">", "2", "S"]).0])
        .collect();
    let mut copies = Count(0);
    let before = allocation::count();
    for round in 0..200_000u64 {
        let count = frames.len() as u64;
        let frame = &mut frames[(round * 7 % count) as usize];
        let len = frame.len() as u32;
        let mut packet = Packet::new(frame, Metadata::new(0, Direction::Ingress));
        let hit =
            packet.fields().and_then(|fields| classifier.classify(fields, len)).expect("one rule for all");
        let (now, binding) = (Instant::from_nanos(round * 10_000), Binding::decode(hit.instance));
        graph.enter(now, hit.rule, binding, &mut packet, &mut copies);
    }
    assert_eq!(allocation::count() - before, 0);
    let counters = *graph.counters();
    assert!(counters.passed > 1000 && counters.dropped > 1000 && copies.0 > 0, "{counters:?}");
    assert!(counters.calls > 1000 && counters.calls_failed > 0, "{counters:?}");
}
