//! The multi-field classifier against its definition: every look-up finds the first rule by priority and
//! insertion that [`Match::matches`] accepts. `CSP_SEED=n` replays the seeded tests from seed n.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;

use common::{KINDS, Kind};
use csp_classify::multifield::{
    Counters, Direction, Fields, Hit, HitCount, InstanceId, Linear, Match, Owner, OwnerError, PORTS_ANY,
    PortRange, Rule, RuleError, TcpFlags, Worker, covered_rules,
};
use csp_support::Random;
use csp_types::Prefix;
use proptest::prelude::*;

fn seed() -> u64 {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CSP_SEED={seed}");
    seed
}

/// The index of the rule that decides, by definition.
fn expected(rules: &[Rule], packet: &Fields) -> Option<usize> {
    let matching = rules.iter().enumerate().filter(|(_, rule)| rule.fields.matches(packet));
    matching.min_by_key(|(at, rule)| (rule.priority, *at)).map(|(at, _)| at)
}

fn name_of(owner: &Owner, hit: Option<Hit>) -> Option<&str> {
    hit.map(|hit| {
        let found = owner.rules().into_iter().find(|(_, handle)| *handle == hit.rule);
        let (rule, _) = found.expect("a rule of this table");
        assert_eq!(rule.instance, hit.instance);
        &*rule.name
    })
}

/// Checks table, worker and linear search with each packet, twice, so that the second answer is the cache's.
fn check(rules: &[Rule], owner: &Owner, worker: &mut Worker, packets: &[Fields]) {
    let linear = Linear::new(rules);
    for packet in packets {
        let right = expected(rules, packet);
        let name = right.map(|at| &*rules[at].name);
        assert_eq!(linear.find(packet), right, "{packet:?}");
        for _ in 0..2 {
            let hit = worker.classify(packet, 100);
            assert_eq!(name_of(owner, hit), name, "{packet:?}");
        }
    }
}

// Few values of each field, so that rules overlap in every way and packets hit them.

fn network() -> impl Strategy<Value = Option<Prefix>> {
    let v4 = (0u32..8, prop::sample::select(vec![0u8, 1, 7, 8, 9, 15, 16, 24, 31, 32])).prop_map(
        |(bits, length)| {
            let address = 0x0a00_0000u32 ^ bits << 29 ^ bits << 15 ^ bits;
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Some(Prefix::new(std::net::IpAddr::V4((address & mask).into()), length).expect("masked"))
        },
    );
    let v6 = (0u128..8, prop::sample::select(vec![0u8, 3, 32, 63, 64, 65, 127, 128])).prop_map(
        |(bits, length)| {
            let address = 0x2001_0db8u128 << 96 ^ bits << 125 ^ bits << 63 ^ bits;
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Some(Prefix::new(std::net::IpAddr::V6((address & mask).into()), length).expect("masked"))
        },
    );
    prop_oneof![2 => Just(None), 3 => v4, 2 => v6]
}

fn port_range() -> impl Strategy<Value = PortRange> {
    let value = prop::sample::select(vec![0u16, 1, 79, 80, 81, 1023, 1024, 8080, 65534, 65535]);
    prop_oneof![
        Just(PORTS_ANY),
        value.clone().prop_map(PortRange::one),
        (value.clone(), value).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).expect("ordered")),
    ]
}

prop_compose! {
    fn conditions()(
        source in network(), destination in network(), source_ports in port_range(), destination_ports in port_range(),
        protocol in prop::option::of(prop::sample::select(vec![1u8, 6, 17])),
        interface in prop::option::weighted(0.3, 0u16..3),
        egress in prop::option::weighted(0.3, any::<bool>()),
        flags in prop::option::weighted(0.3, (0u8..4, 1u8..4)),
        dscp in prop::option::weighted(0.2, 0u8..3),
    ) -> Match {
        let direction = egress.map(|egress| if egress { Direction::Egress } else { Direction::Ingress });
        let tcp_flags = flags.map(|(value, mask)| TcpFlags { value: value & mask, mask });
        Match { source, destination, source_ports, destination_ports, protocol, interface, direction, tcp_flags, dscp }
    }
}

fn rule_set(max: usize) -> impl Strategy<Value = Vec<Rule>> {
    let valid =
        conditions().prop_filter("conditions that some packet meets", |fields| fields.check().is_ok());
    prop::collection::vec((valid, 0u32..6), 1..max).prop_map(|rules| {
        let rule = |(at, (fields, priority)): (usize, (Match, u32))| Rule {
            name: format!("r{at}").into(),
            priority,
            fields,
            instance: InstanceId(at as u32 % 7),
        };
        rules.into_iter().enumerate().map(rule).collect()
    })
}

/// Packets of the rules, and the same with a field changed.
fn packets_for(rules: &[Rule], seed: u64, count: usize) -> Vec<Fields> {
    let mut random = Random::new(seed);
    let mut packets = Vec::new();
    for _ in 0..count {
        let rule = &rules[random.below(rules.len() as u64) as usize];
        let packet = common::packet_of(&mut random, &rule.fields);
        let (source, destination) = packet.ports.unwrap_or((80, 80));
        packets.push(packet);
        packets.push(match random.below(7) {
            0 => Fields { ports: None, tcp_flags: None, ..packet },
            1 => Fields { ports: Some((source.wrapping_add(1), destination)), ..packet },
            2 => Fields { ports: Some((source, destination.wrapping_sub(1))), ..packet },
            3 => Fields { protocol: [1, 6, 17][random.below(3) as usize], ..packet },
            4 => Fields { interface: random.below(3) as u16, direction: Direction::Egress, ..packet },
            5 => Fields { tcp_flags: Some(random.below(4) as u8), ..packet },
            _ => Fields { dscp: random.below(3) as u8, ..packet },
        });
    }
    packets
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_look_up_finds_what_linear_search_finds(rules in rule_set(120), seed in any::<u64>()) {
        let mut owner = Owner::new(128);
        owner.replace(rules.clone()).expect("valid rules");
        let mut worker = Worker::new(owner.publish(), 128, 64);
        check(&rules, &owner, &mut worker, &packets_for(&rules, seed, 100));
    }

    #[test]
    fn single_changes_lead_to_the_table_of_all_changes(rules in rule_set(100), seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut owner = Owner::new(100);
        let mut worker = Worker::new(owner.publish(), 100, 16);
        let (mut present, mut absent): (Vec<Rule>, Vec<Rule>) = (Vec::new(), rules.clone());
        for _ in 0..60 {
            for _ in 0..=random.below(4) {
                if !absent.is_empty() && random.below(3) > 0 {
                    let rule = absent.swap_remove(random.below(absent.len() as u64) as usize);
                    owner.insert(rule.clone()).expect("room");
                    present.push(rule);
                } else if !present.is_empty() {
                    let rule = present.remove(random.below(present.len() as u64) as usize);
                    owner.remove(&rule.name).expect("present");
                    absent.push(rule);
                }
            }
            // A worker that is late makes the owner copy, one that is not does not: both must be right.
            let published = owner.publish();
            if random.below(3) > 0 {
                worker.adopt(published);
                let packets = packets_for(&rules, random.number(), 3);
                check(&present, &owner, &mut worker, &packets);
            }
        }
        let mut rebuilt = Owner::new(100);
        rebuilt.replace(present.clone()).expect("valid rules");
        let table = rebuilt.publish().table;
        worker.adopt(owner.publish());
        for packet in packets_for(&rules, seed, 50) {
            prop_assert_eq!(name_of(&owner, worker.classify(&packet, 1)), name_of(&rebuilt, table.find(&packet)));
        }
    }

    #[test]
    fn a_covered_rule_decides_on_no_packet(rules in rule_set(60), seed in any::<u64>()) {
        let covered = covered_rules(&rules);
        let index = |name: &str| rules.iter().position(|rule| &*rule.name == name).expect("a rule of the set");
        for found in &covered {
            let (rule, by) = (index(&found.rule), index(&found.by));
            prop_assert!((rules[by].priority, by) < (rules[rule].priority, rule));
            let mut random = Random::new(seed);
            for _ in 0..50 {
                let packet = common::packet_of(&mut random, &rules[rule].fields);
                prop_assert!(!rules[rule].fields.matches(&packet) || rules[by].fields.matches(&packet));
                prop_assert_ne!(expected(&rules, &packet), Some(rule));
            }
        }
        // All that one rule covers is found: the search through the tables omits no pair.
        for (at, rule) in rules.iter().enumerate() {
            let earlier = |by: usize| (rules[by].priority, by) < (rule.priority, at);
            let is = (0..rules.len()).any(|by| earlier(by) && rules[by].fields.covers(&rule.fields));
            prop_assert_eq!(is, covered.iter().any(|found| found.rule == rule.name), "{}", rule.name);
        }
    }
}

#[test]
fn sets_like_real_ones_are_searched_rightly() {
    let seed = seed();
    for (kind, v6_percent) in KINDS.into_iter().flat_map(|kind| [(kind, 0), (kind, 50)]) {
        let rules = common::rules(kind, 3000, seed, v6_percent);
        let mut owner = Owner::new(3000);
        owner.replace(rules.clone()).expect("valid rules");
        let published = owner.publish();
        let stats = published.table.stats();
        // What the speed rests on: few tables, short chains.
        assert!(
            stats.tuples_v4 <= 32 && stats.tuples_v6 <= 32 && stats.longest_chain <= 16,
            "{kind:?} {stats:?}"
        );
        let mut worker = Worker::new(published, 3000, 256);
        check(&rules, &owner, &mut worker, &common::uniform(&rules, 3000, seed, 10));
        check(&rules, &owner, &mut worker, &packets_for(&rules, seed, 1000));
    }
}

#[test]
fn rules_alike_but_for_ranges_and_flags_are_found() {
    // Nothing divides these chains: the search in them still finds the first.
    let rules: Vec<Rule> = (0..500u32)
        .map(|at| Rule {
            name: format!("r{at}").into(),
            priority: 500 - at,
            fields: Match {
                protocol: Some(6),
                destination_ports: PortRange::new(at as u16, 40_000 + at as u16).unwrap(),
                ..Match::ANY
            },
            instance: InstanceId(at),
        })
        .collect();
    let mut owner = Owner::new(500);
    owner.replace(rules.clone()).unwrap();
    let mut worker = Worker::new(owner.publish(), 500, 0);
    check(&rules, &owner, &mut worker, &packets_for(&rules, seed(), 500));
}

#[test]
fn a_chain_that_cannot_be_divided_does_not_keep_others_in_it() {
    let rule = |at: u32, destination: Option<Prefix>| Rule {
        name: format!("r{at}").into(),
        priority: at,
        fields: Match {
            protocol: Some(6),
            destination,
            destination_ports: PortRange::new(at as u16 % 1000, 40_000 + at as u16 % 1000).unwrap(),
            ..Match::ANY
        },
        instance: InstanceId(at),
    };
    let host = |at: u32| Prefix::new(std::net::Ipv4Addr::from(0x0a00_0000 + at * 77).into(), 32).ok();
    // Ranges without addresses share a chain; rules for hosts do not stay in it, whichever come first.
    let alike = (0..200).map(|at| rule(at, None));
    let mut rules: Vec<Rule> = alike.chain((200..2200).map(|at| rule(at, host(at)))).collect();
    for _ in 0..2 {
        let mut owner = Owner::new(rules.len());
        for rule in &rules {
            owner.insert(rule.clone()).unwrap();
        }
        let single = owner.publish().table.stats();
        owner.replace(rules.clone()).unwrap();
        let published = owner.publish();
        let whole = published.table.stats();
        assert!(single.longest_chain <= 250 && whole.longest_chain <= 250, "{single:?} {whole:?}");
        let mut worker = Worker::new(published, rules.len(), 0);
        check(&rules, &owner, &mut worker, &packets_for(&rules, seed(), 100));
        rules.reverse();
    }
}

fn any_rule(name: &str, priority: u32) -> Rule {
    Rule { name: name.into(), priority, fields: Match::ANY, instance: InstanceId(1) }
}

fn packet() -> Fields {
    Fields {
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.2".parse().unwrap(),
        ports: Some((1000, 80)),
        protocol: 6,
        interface: 0,
        direction: Direction::Ingress,
        tcp_flags: Some(2),
        dscp: 0,
    }
}

#[test]
fn ties_go_to_the_rule_that_was_first() {
    let mut owner = Owner::new(4);
    for (name, priority) in [("late", 9), ("first", 5), ("second", 5)] {
        owner.insert(any_rule(name, priority)).unwrap();
    }
    let table = owner.publish().table;
    assert_eq!(name_of(&owner, table.find(&packet())), Some("first"));
    owner.remove("first").unwrap();
    let table = owner.publish().table;
    assert_eq!(name_of(&owner, table.find(&packet())), Some("second"));
    owner.insert(any_rule("first", 5)).unwrap();
    let table = owner.publish().table;
    assert_eq!(name_of(&owner, table.find(&packet())), Some("second"));
    let names: Vec<&str> = owner.rules().iter().map(|(rule, _)| &*rule.name).collect();
    assert_eq!(names, ["second", "first", "late"]);
}

#[test]
fn refused_changes_leave_everything_as_it_was() {
    let mut owner = Owner::new(2);
    owner.insert(any_rule("a", 1)).unwrap();
    assert_eq!(owner.insert(any_rule("a", 2)), Err(OwnerError::Duplicate("a".into())));
    assert_eq!(owner.remove("b"), Err(OwnerError::Unknown("b".into())));
    owner.insert(any_rule("b", 2)).unwrap();
    assert_eq!(owner.insert(any_rule("c", 2)), Err(OwnerError::TooMany { count: 3, capacity: 2 }));
    let three = vec![any_rule("x", 0), any_rule("y", 0), any_rule("z", 0)];
    assert_eq!(owner.replace(three), Err(OwnerError::TooMany { count: 3, capacity: 2 }));
    assert_eq!(
        owner.replace(vec![any_rule("x", 0), any_rule("x", 1)]),
        Err(OwnerError::Duplicate("x".into()))
    );
    let wrong = Rule { fields: Match { dscp: Some(64), ..Match::ANY }, ..any_rule("x", 0) };
    let error = RuleError::Dscp(64);
    assert_eq!(owner.replace(vec![wrong]), Err(OwnerError::Rule { name: "x".into(), error }));
    assert_eq!(owner.len(), 2);
    let table = owner.publish().table;
    assert_eq!(name_of(&owner, table.find(&packet())), Some("a"));
}

#[test]
fn conditions_that_no_packet_meets_are_refused() {
    let v4: Option<Prefix> = Some("10.0.0.0/8".parse().unwrap());
    let v6: Option<Prefix> = Some("2001:db8::/32".parse().unwrap());
    let flags = Some(TcpFlags { value: 2, mask: 2 });
    let http = PortRange::one(80);
    for (fields, expected) in [
        (Match { source: v4, destination: v6, ..Match::ANY }, "different address families"),
        (Match { tcp_flags: flags, protocol: Some(17), ..Match::ANY }, "protocol 17 has none"),
        (Match { tcp_flags: Some(TcpFlags { value: 3, mask: 2 }), ..Match::ANY }, "the mask has"),
        (Match { tcp_flags: Some(TcpFlags { value: 0, mask: 0 }), ..Match::ANY }, "the mask has"),
        (Match { source_ports: http, protocol: Some(1), ..Match::ANY }, "protocols with ports are"),
    ] {
        let error = fields.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(PortRange::new(2, 1).is_none());
}

#[test]
fn hits_are_counted_by_rule_and_summed_over_workers() {
    let mut owner = Owner::new(8);
    let a = owner.insert(any_rule("a", 1)).unwrap();
    let published = owner.publish();
    let mut workers = [Worker::new(published.clone(), 8, 0), Worker::new(published, 8, 16)];
    for worker in &mut workers {
        worker.classify(&packet(), 100);
        worker.classify(&packet(), 60);
    }
    let sum = |owner: &Owner, handle, workers: &[Worker; 2]| {
        owner.hits(handle, workers.iter().map(Worker::counters).collect::<Vec<&Counters>>())
    };
    assert_eq!(sum(&owner, a, &workers), HitCount { packets: 4, bytes: 320 });
    // A rule that stays as it was keeps its place and its counters; another one starts at zero, whatever its
    // place.
    owner.replace(vec![any_rule("new", 9), any_rule("a", 1)]).unwrap();
    let (_, again) = owner.rule("a").unwrap();
    assert_eq!(again, a);
    let changed = Rule { instance: InstanceId(2), ..any_rule("a", 1) };
    owner.replace(vec![changed]).unwrap();
    let (_, handle) = owner.rule("a").unwrap();
    assert_eq!(sum(&owner, handle, &workers), HitCount::default());
    let published = owner.publish();
    for worker in &mut workers {
        worker.adopt(published.clone());
    }
    workers[0].classify(&packet(), 10);
    assert_eq!(sum(&owner, handle, &workers), HitCount { packets: 1, bytes: 10 });
    assert_eq!(workers[1].lookups(), (2, 1));
}

/// More flows than the cache holds would only displace each other: it is left aside, and asked again from
/// time to time.
#[test]
fn a_cache_that_does_not_answer_is_left_aside() {
    let mut owner = Owner::new(8);
    owner.insert(any_rule("a", 1)).unwrap();
    let mut worker = Worker::new(owner.publish(), 8, 16);
    let answers = |worker: &mut Worker, flows: u16, lookups: u32| {
        let before = worker.lookups();
        for at in 0..lookups {
            // Every tenth packet is of the flow of the one before it.
            let at = if at % 10 == 9 { at - 1 } else { at };
            let ports = Some((1 + (at % u32::from(flows)) as u16, 80));
            assert!(worker.classify(&Fields { ports, ..packet() }, 60).is_some());
        }
        let after = worker.lookups();
        assert_eq!(after.0 - before.0, u64::from(lookups));
        (after.1 - before.1) as f64 / f64::from(lookups)
    };
    // With few flows nearly every answer is the cache's, before and after many flows.
    assert!(answers(&mut worker, 4, 100_000) > 0.99);
    let of_many = answers(&mut worker, 10_000, 100_000);
    assert!(of_many > 0.0 && of_many < 0.02, "{of_many}: a tenth, if the cache were asked each time");
    answers(&mut worker, 4, 20_000);
    assert!(answers(&mut worker, 4, 100_000) > 0.99);
}

#[test]
fn a_place_used_again_inherits_no_counters() {
    let mut owner = Owner::new(1);
    owner.insert(any_rule("a", 1)).unwrap();
    let mut worker = Worker::new(owner.publish(), 1, 16);
    worker.classify(&packet(), 100);
    owner.remove("a").unwrap();
    let b = owner.insert(any_rule("b", 1)).unwrap();
    assert_eq!(owner.hits(b, [worker.counters()]), HitCount::default());
    worker.adopt(owner.publish());
    worker.classify(&packet(), 7);
    assert_eq!(owner.hits(b, [worker.counters()]), HitCount { packets: 1, bytes: 7 });
}

#[test]
fn a_table_that_a_worker_has_never_changes() {
    let rules = common::rules(Kind::Acl, 200, seed(), 20);
    let mut owner = Owner::new(200);
    owner.replace(rules.clone()).unwrap();
    let old = owner.publish();
    let packets = packets_for(&rules, 3, 100);
    let before: Vec<Option<Hit>> = packets.iter().map(|packet| old.table.find(packet)).collect();
    for rule in &rules[..150] {
        owner.remove(&rule.name).unwrap();
        owner.publish();
    }
    let after: Vec<Option<Hit>> = packets.iter().map(|packet| old.table.find(packet)).collect();
    assert_eq!(before, after);
    assert!(owner.publish().generation > old.generation);
    // Nobody had the tables in between: they were used again, not copied. The first change after a
    // replacement copies.
    assert!(owner.copies() <= 2, "{}", owner.copies());
    assert_eq!(Arc::strong_count(&old.table), 1);
}

#[test]
fn a_covered_rule_is_reported_with_the_rule_that_covers_it() {
    let network = |text: &str| Some(text.parse::<Prefix>().unwrap());
    let narrow = Match { source: network("10.1.0.0/16"), protocol: Some(6), ..Match::ANY };
    let wide = Match { source: network("10.0.0.0/8"), ..Match::ANY };
    let rule = |name: &str, priority, fields| Rule { fields, ..any_rule(name, priority) };
    let covered = covered_rules(&[rule("narrow", 20, narrow), rule("wide", 10, wide)]);
    assert_eq!(covered.iter().map(|c| (&*c.rule, &*c.by)).collect::<Vec<_>>(), [("narrow", "wide")]);
    assert!(covered_rules(&[rule("narrow", 10, narrow), rule("wide", 20, wide)]).is_empty());
    // Flags imply TCP.
    let syn = Match { tcp_flags: Some(TcpFlags { value: 2, mask: 2 }), ..Match::ANY };
    let tcp = Match { protocol: Some(6), ..Match::ANY };
    assert_eq!(covered_rules(&[rule("tcp", 1, tcp), rule("syn", 2, syn)]).len(), 1);
}
