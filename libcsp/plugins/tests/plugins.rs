//! Manager, graph and plug-ins beyond what fixtures say: levels, bounds, many prefixes, files.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod fixture;

use csp_classify::multifield::{
    Direction, InstanceId, Match, PortRange, Rule, RuleHandle, TcpFlags, parse_ethernet,
};
use csp_plugins::text::{MatchText, parse_match, parse_rule};
use csp_plugins::{
    Action, Answer, Binding, Call, CallError, Command, Effects, Fallback, Graph, HOPS_MAX, HashKey, Level,
    Manager, ManagerConfig, ManagerError, Metadata, Module, Operation, Packet, Plugin, PluginError, Row,
    Settings, Verdict, builtin,
};
use csp_support::Random;
use csp_types::{Duration, Instant};
use fixture::{Copies, build};
use proptest::prelude::*;

const RULE: RuleHandle = RuleHandle { slot: 0, generation: 1 };
const KEY: HashKey = HashKey(7, 9);

fn manager(workers: usize) -> Manager {
    let mut manager = Manager::new(ManagerConfig { rules_max: 2000, ..ManagerConfig::new(workers, KEY) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment("workers", Level::Worker).unwrap();
    manager.start("workers").unwrap();
    manager
}

fn graph_of(manager: &mut Manager, worker: usize) -> Graph {
    let mut graph = Graph::new(256, 16);
    catch_up(manager, worker, &mut graph);
    graph
}

fn catch_up(manager: &mut Manager, worker: usize, graph: &mut Graph) {
    while let Some(command) = manager.poll_command(worker) {
        graph.apply(command);
    }
}

fn enter(graph: &mut Graph, at: u64, instance: InstanceId, frame: &mut [u8]) -> (Verdict, Metadata) {
    let mut packet = Packet::new(frame, Metadata::new(0, Direction::Ingress));
    let binding = Binding { instance, fallback: Fallback::Drop };
    let verdict = graph.enter(Instant::from_nanos(at), RULE, binding, &mut packet, &mut Copies::default());
    (verdict, packet.metadata)
}

fn syn() -> Vec<u8> {
    build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "1000", ">", "80", "S"]).0
}

const REMOTE: Module =
    Module { name: "remote", levels: &[Level::Host, Level::Worker], outputs: 1, ..builtin::NO_OP };

#[test]
fn a_graph_crosses_levels_and_packets_come_back() {
    let mut manager = manager(1);
    manager.install(REMOTE).unwrap();
    manager.add_environment("host-a", Level::Host).unwrap();
    manager.create("before", "no-op", "workers", &[]).unwrap();
    let far = manager.create("far", "remote", "host-a", &[]).unwrap();
    manager.create("after", "dscp", "workers", &[("dscp", "9")]).unwrap();
    manager.connect("before", 0, "far").unwrap();
    manager.connect("far", 0, "after").unwrap();
    let error = manager.connect("after", 0, "before").unwrap_err();
    assert_eq!(error.to_string(), "the connection would close a cycle: after -> before -> far -> after");
    manager.install(Module { name: "local", levels: &[Level::Worker], ..builtin::NO_OP }).unwrap();
    let error = manager.create("x", "local", "host-a", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "module local has no implementation for level 3; environment host-a is on it"
    );
    let mut graph = graph_of(&mut manager, 0);
    let before = manager.instance("before").unwrap();
    // The host is absent: the rule's fallback applies, at whatever place of the graph.
    assert_eq!(enter(&mut graph, 0, before, &mut syn()).0, Verdict::Drop);
    assert_eq!(graph.counters().fallback_dropped, 1);
    manager.start("host-a").unwrap();
    catch_up(&mut manager, 0, &mut graph);
    let mut frame = syn();
    let (verdict, metadata) = enter(&mut graph, 0, before, &mut frame);
    let Verdict::HandOver { instance, level: Level::Host, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!((instance, metadata.hops, metadata.rule), (far, 1, Some(RULE)), "counted where it runs");
    // It comes back with its metadata and goes on behind the instance.
    let mut packet = Packet::new(&mut frame, metadata);
    let after = Binding { instance: manager.instance("after").unwrap(), fallback: Fallback::Pass };
    assert_eq!(graph.run(Instant::ZERO, after, &mut packet, &mut Copies::default()), Verdict::Pass);
    assert_eq!((packet.metadata.hops, packet.fields().unwrap().dscp), (2, 9));
    manager.stop("host-a").unwrap();
    catch_up(&mut manager, 0, &mut graph);
    assert_eq!(enter(&mut graph, 0, before, &mut frame).0, Verdict::Drop);
}

#[test]
fn a_packet_goes_through_a_bounded_number_of_plug_ins() {
    let mut manager = manager(1);
    for at in 0..=HOPS_MAX {
        manager.create(&format!("p{at}"), "no-op", "workers", &[]).unwrap();
        if at > 0 {
            manager.connect(&format!("p{}", at - 1), 0, &format!("p{at}")).unwrap();
        }
    }
    let mut graph = graph_of(&mut manager, 0);
    let (verdict, metadata) = enter(&mut graph, 0, InstanceId(0), &mut syn());
    assert_eq!((verdict, metadata.hops, graph.counters().drop_hops), (Verdict::Drop, HOPS_MAX, 1));
    let (verdict, metadata) = enter(&mut graph, 0, InstanceId(1), &mut syn());
    assert_eq!((verdict, metadata.hops), (Verdict::Pass, HOPS_MAX));
}

#[test]
fn every_worker_has_instances_of_its_own_and_answers_are_added() {
    let mut manager = manager(2);
    let id = manager.create("count", "counter", "workers", &[]).unwrap();
    let mut graphs = [graph_of(&mut manager, 0), graph_of(&mut manager, 1)];
    for (graph, packets) in graphs.iter_mut().zip([2, 3]) {
        for _ in 0..packets {
            enter(graph, 0, id, &mut syn());
        }
    }
    let other = build(&["ipv6", "2001:db8::1", ">", "2001:db8::2", "tcp", "1", ">", "2", "S"]).0;
    enter(&mut graphs[1], 0, id, &mut other.clone());
    let (id, operation, arguments) = manager.prepare_call("count", "read", &[]).unwrap();
    let answers =
        graphs.iter_mut().map(|graph| graph.call(Instant::ZERO, id, operation, &arguments).unwrap());
    let row = |key: &str, packets, bytes| Row {
        key: key.into(),
        numbers: vec![("packets", packets), ("bytes", bytes)],
        ..Row::default()
    };
    let expected = Answer::Rows(vec![row("192.0.2.0/24", 5, 270), row("2001:db8::/64", 1, 74)]);
    assert_eq!(answers.reduce(Answer::merge), Some(expected));
    assert_eq!(graphs[1].count(id).unwrap().packets, 4);
}

#[test]
fn what_is_in_use_is_not_removed_and_the_rest_is() {
    let mut manager = manager(1);
    manager.create("a", "no-op", "workers", &[]).unwrap();
    assert!(matches!(manager.uninstall("no-op"), Err(ManagerError::InUse { .. })));
    manager.add_rule("r", 1, Match::ANY, "a", Fallback::Pass).unwrap();
    assert_eq!(manager.remove("a").unwrap_err().to_string(), "a is in use by rule r");
    // A replacement of all rules releases what no rule is bound to any more, and refuses what is bound to
    // nothing.
    let rule =
        |instance| Rule { name: "x".into(), priority: 1, fields: Match::ANY, instance: InstanceId(instance) };
    assert!(matches!(manager.replace_rules(vec![rule(5)]), Err(ManagerError::Unknown { .. })));
    assert!(manager.remove("a").is_err());
    manager.create("b", "no-op", "workers", &[]).unwrap();
    manager.replace_rules(vec![rule(1)]).unwrap();
    manager.remove("a").unwrap();
    assert_eq!(manager.remove("b").unwrap_err().to_string(), "b is in use by rule x");
    manager.remove_rule("x").unwrap();
    manager.remove("b").unwrap();
    manager.uninstall("no-op").unwrap();
    assert!(manager.create("c", "no-op", "workers", &[]).is_err());
    let mut graph = graph_of(&mut manager, 0);
    assert_eq!(enter(&mut graph, 0, InstanceId(0), &mut syn()).0, Verdict::Drop, "nothing is left");
}

#[test]
fn covered_rules_are_named() {
    let mut manager = manager(1);
    manager.create("a", "no-op", "workers", &[]).unwrap();
    for (name, prio, text) in
        [("all-tcp", 1, "proto tcp"), ("web", 2, "proto tcp dport 80"), ("dns", 3, "dport 53")]
    {
        let fields = parse_match(&text.split(' ').collect::<Vec<_>>()).unwrap();
        manager.add_rule(name, prio, fields, "a", Fallback::Pass).unwrap();
    }
    let covered: Vec<_> =
        manager.covered_rules().into_iter().map(|c| (c.rule.to_string(), c.by.to_string())).collect();
    assert_eq!(covered, [("web".into(), "all-tcp".into())]);
}

#[test]
fn a_block_list_holds_a_hundred_thousand_networks_and_lets_them_expire() {
    let mut manager = manager(1);
    let id = manager.create("blocks", "block-list", "workers", &[]).unwrap();
    let mut graph = graph_of(&mut manager, 0);
    let name = |at: u32| format!("{}.{}.{}.0/24", 11 + (at >> 16), at >> 8 & 0xff, at & 0xff);
    for at in 0..100_000u32 {
        // Half of them for a minute, half for good.
        let time = if at % 2 == 0 { "60s" } else { "forever" };
        let (id, operation, arguments) =
            manager.prepare_call("blocks", "add", &[("prefix", &name(at)), ("time", time)]).unwrap();
        graph.call(Instant::ZERO, id, operation, &arguments).unwrap();
    }
    let from = |at: u32| {
        let address = name(at).replace(".0/24", ".77");
        build(&["ipv4", &address, ">", "198.51.100.2", "udp", "1", ">", "2"]).0
    };
    let mut random = Random::new(5);
    for _ in 0..2000 {
        let at = random.below(131_072) as u32;
        let expected = if at < 100_000 { Verdict::Drop } else { Verdict::Pass };
        assert_eq!(enter(&mut graph, 1, id, &mut from(at)).0, expected, "{at}");
    }
    // From the minute on only those that stay are dropped, whether the others were removed yet or not.
    let later = Duration::from_secs(60).as_nanos() as u64;
    for _ in 0..2000 {
        let at = random.below(100_000) as u32;
        let expected = if at % 2 == 1 { Verdict::Drop } else { Verdict::Pass };
        assert_eq!(enter(&mut graph, later, id, &mut from(at)).0, expected, "{at}");
    }
    for _ in 0..50_000 {
        enter(&mut graph, later, id, &mut from(1));
    }
    let Answer::Rows(rows) =
        graph.call(Instant::from_nanos(later), id, "read", &Settings::default()).unwrap()
    else {
        panic!("rows")
    };
    assert_eq!(rows[0].numbers[0], ("prefixes", 50_000));
}

#[test]
fn a_capture_is_a_pcap_file_of_the_sampled_packets() {
    let mut manager = manager(1);
    let settings = [
        ("filter", "proto udp"),
        ("sample", "2"),
        ("snap_len", "60"),
        ("buffer", "4096"),
        ("clock_offset_ns", "1000000000"),
    ];
    let id = manager.create("wire", "capture", "workers", &settings).unwrap();
    let mut graph = graph_of(&mut manager, 0);
    let frames: Vec<Vec<u8>> = (0..4u16)
        .map(|at| {
            build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "udp", &at.to_string(), ">", "9", "len", "40"])
                .0
        })
        .collect();
    for (at, frame) in frames.iter().enumerate() {
        enter(&mut graph, at as u64 * 1_500_000_000, id, &mut frame.clone());
        enter(&mut graph, at as u64 * 1_500_000_000, id, &mut syn());
    }
    let take = |graph: &mut Graph| match graph.call(Instant::ZERO, id, "take", &Settings::default()) {
        Ok(Answer::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let file = take(&mut graph);
    assert_eq!(file.len(), 24 + 2 * (16 + 60));
    assert_eq!(file[..4], 0xa1b2_3c4du32.to_le_bytes());
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(16), word(20)), (60, 1), "length of records, Ethernet");
    for (record, (frame, seconds)) in [(24, (0, 1)), (24 + 76, (2, 4))] {
        assert_eq!(
            [word(record), word(record + 4), word(record + 8), word(record + 12)],
            [seconds, 0, 60, 82]
        );
        assert_eq!(file[record + 16..record + 76], frames[frame][..60]);
    }
    assert_eq!(take(&mut graph).len(), 24, "the next file begins");
    // A full buffer loses packets, counts them, and never grows.
    for _ in 0..200 {
        enter(&mut graph, 0, id, &mut frames[0].clone());
    }
    assert!(take(&mut graph).len() <= 4096);
    let Ok(Answer::Rows(rows)) = graph.call(Instant::ZERO, id, "read", &Settings::default()) else {
        panic!("rows")
    };
    assert_eq!(rows[0].numbers[1..3], [("captured", 2 + 53), ("lost", 100 - 53)]);
}

/// Calls its target more often than a packet may.
struct Caller(InstanceId);

impl Plugin for Caller {
    fn process(&mut self, _: Instant, _: &mut Packet<'_>, effects: &mut dyn Effects) -> Action {
        for _ in 0..10 {
            effects.call(Call { instance: self.0, operation: "read", arguments: Settings::default() });
        }
        Action::Next(0)
    }
    fn configure(&mut self, _: &Settings) -> Result<(), PluginError> {
        Ok(())
    }
    fn call(&mut self, _: Instant, operation: &str, _: &Settings) -> Result<Answer, CallError> {
        if operation == "read" { Ok(Answer::Done) } else { Err(CallError::NoOperation(operation.into())) }
    }
}

#[test]
fn calls_of_others_are_bounded_and_a_plug_in_may_call_itself() {
    const OPERATIONS: &[Operation] = &[Operation { name: "read", arguments: &[] }];
    let mut manager = manager(1);
    let make = |_: &Settings, _| Ok(Box::new(Caller(InstanceId(0))) as Box<dyn Plugin>);
    manager.install(Module { name: "caller", operations: OPERATIONS, make, ..builtin::NO_OP }).unwrap();
    let id = manager.create("caller", "caller", "workers", &[]).unwrap();
    let mut graph = graph_of(&mut manager, 0);
    assert_eq!(enter(&mut graph, 0, id, &mut syn()).0, Verdict::Pass);
    assert_eq!((graph.counters().calls, graph.counters().calls_failed), (4, 6));
    graph.apply(Command::Remove(id));
    assert_eq!(graph.call(Instant::ZERO, id, "read", &Settings::default()), Err(CallError::NoInstance));
}

#[test]
fn no_frame_panics_a_plug_in_and_what_comes_out_parses() {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CSP_SEED={seed}");
    let mut random = Random::new(seed);
    let mut manager = manager(1);
    let settings: [(&str, &[(&str, &str)]); 6] = [
        ("counter", &[]),
        ("policer", &[("rate", "1M")]),
        ("dscp", &[("dscp", "3")]),
        ("block-list", &[]),
        ("capture", &[("filter", "proto tcp"), ("buffer", "4096")]),
        ("mirror", &[("interface", "1")]),
    ];
    for (at, (module, settings)) in settings.iter().enumerate() {
        manager.create(module, module, "workers", settings).unwrap();
        if at > 0 {
            manager
                .connect(["counter", "policer", "dscp", "block-list", "capture"][at - 1], 0, module)
                .unwrap();
        }
    }
    let mut graph = graph_of(&mut manager, 0);
    for round in 0..100_000u64 {
        let mut frame = match round % 3 {
            0 => syn(),
            1 => build(&["ipv6", "2001:db8::1", ">", "2001:db8::2", "udp", "later", "len", "9"]).0,
            _ => build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "udp", "1", ">", "2", "vlan", "3"]).0,
        };
        for _ in 0..random.below(5) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.number() as u8;
        }
        frame.truncate(random.below(frame.len() as u64 * 2) as usize);
        let before = parse_ethernet(&frame, 0, Direction::Ingress);
        enter(&mut graph, round * 1_000_000, InstanceId(0), &mut frame);
        let after = parse_ethernet(&frame, 0, Direction::Ingress);
        assert_eq!(before.is_ok(), after.is_ok(), "seed {seed}, round {round}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conditions_as_text_are_the_same_conditions(
        source in prop::option::of((any::<u32>(), 0u8..=32)), ports in prop::option::of((any::<u16>(), any::<u16>())),
        flags in prop::option::of((any::<u8>(), 1u8..)), interface in prop::option::of(any::<u16>()),
        dscp in prop::option::of(0u8..64), egress in prop::option::of(any::<bool>()),
    ) {
        let source = source.map(|(bits, length)| {
            let masked = bits & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            csp_types::Prefix::new(std::net::IpAddr::V4(masked.into()), length).unwrap()
        });
        let ports = ports.and_then(|(a, b)| PortRange::new(a.min(b), a.max(b))).unwrap_or(Match::ANY.source_ports);
        let tcp_flags = flags.map(|(value, mask)| TcpFlags { value: value & mask, mask });
        let direction = egress.map(|egress| if egress { Direction::Egress } else { Direction::Ingress });
        let fields = Match { source, destination_ports: ports, tcp_flags, interface, dscp, direction, protocol: Some(6), ..Match::ANY };
        let text = MatchText(&fields).to_string();
        let words: Vec<&str> = text.split_whitespace().collect();
        prop_assert_eq!(parse_match(&words), Ok(fields), "{}", text);
    }

    #[test]
    fn no_text_panics_the_parser(words in prop::collection::vec("[a-z0-9/.:,-]{0,8}|src|dst|flags|proto|plugin|ip|prio", 0..12)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _ = parse_rule(&words);
        let _ = parse_match(&words);
    }
}

/// Frames of 64 KiB, as ports coalesce them, offered at ten times the rate: the rate passes, whatever the
/// burst, and not more.
#[test]
fn a_policer_lets_its_rate_of_coalesced_frames_pass() {
    const RATE: u64 = 50_000_000;
    const SEGMENTS: u64 = 44;
    for burst in [&[][..], &[("burst", "1k")][..], &[("burst", "1M")][..]] {
        let mut manager = manager(1);
        let settings = [&[("rate", "50M")], burst].concat();
        let id = manager.create("limit", "policer", "workers", &settings).unwrap();
        let mut graph = graph_of(&mut manager, 0);
        let mut frame =
            build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "1", ">", "2", "len", "63712"]).0;
        // Each segment has had its headers: Ethernet, IP and TCP.
        let wire_bits = 8 * (frame.len() as u64 + (SEGMENTS - 1) * 54);
        let (interval_ns, mut passed, mut now) = (wire_bits * 1_000_000_000 / (10 * RATE), 0, 0);
        while now < 10_000_000_000 {
            let metadata = Metadata { coalesced: SEGMENTS as u16, ..Metadata::new(0, Direction::Ingress) };
            let mut packet = Packet::new(&mut frame, metadata);
            let binding = Binding { instance: id, fallback: Fallback::Pass };
            let verdict =
                graph.enter(Instant::from_nanos(now), RULE, binding, &mut packet, &mut Copies::default());
            passed += if verdict == Verdict::Pass { wire_bits } else { 0 };
            now += interval_ns;
        }
        let rate = passed / 10;
        // What the bucket holds at first, and the debt at the end, is beyond the rate.
        assert!((RATE * 98 / 100..RATE * 103 / 100).contains(&rate), "burst {burst:?}: {rate} bit/s");
    }
}
