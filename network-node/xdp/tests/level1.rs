//! The program of level 1, run by BPF_PROG_TEST_RUN: the fixtures of level 2, and the classifier against
//! linear search.
//!
//! The tests have the capabilities that the packaged unit grants: the verifier refuses more without
//! CAP_PERFMON.
//!
//! Needs root and bpf(2); the tests are skipped without. `CSP_SEED=n` replays the seeded ones.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[path = "../../../libcsp/classify/tests/common/mod.rs"]
mod common;
#[path = "../../../libcsp/plugins/tests/fixture/mod.rs"]
mod fixture;
mod frames;
mod kernel;
mod mount;
mod overlap;
mod supplied;

use std::collections::HashMap;
use std::path::Path;

use csp_classify::multifield::{
    Direction, Fields, InstanceId, Linear, Match, Published, Rule, parse_ethernet,
};
use csp_plugins::{
    Answer, Binding, Command, DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, Settings, Verdict,
    builtin,
};
use csp_support::Random;
use csp_types::{Duration, Instant, MacAddr};
use csp_xdp::{Driver, Plan, PortConfig};

use mount::Mount;
use overlap::overlapping;
use rustix::thread::{CapabilitySet, CapabilitySets};

use fixture::{Copies, Subject, WorkerLevel, run_with};

/// BPF_PROG_TEST_RUN gives packets to this interface.
const LOOPBACK: u32 = 1;
const XDP_ABORTED: u32 = 0;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn open(folder: Option<&Path>) -> Option<Driver> {
    if !csp_support::is_root("the test loads a BPF program") {
        return None;
    }
    as_the_unit_has_it();
    // State of policers is by processor.
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
    match Driver::open(folder) {
        Ok(driver) => Some(driver),
        // EACCES is the verifier's answer: that is a failure.
        Err(error) if format!("{error:?}").contains("Operation not permitted") => {
            csp_support::skip(format_args!("bpf(2) is not permitted: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Leaves the thread the capabilities of packaging/systemd/csp-network-node.service, for good. Programs that
/// it starts have root's.
fn as_the_unit_has_it() {
    let unit = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    let before = rustix::thread::capabilities(None).unwrap();
    let kept = before.permitted & unit;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

/// The frame arrives at this port.
fn at_port(driver: &mut Driver, port: u16, frame: &[u8]) {
    let mut ports = vec![None; 16];
    let mac = frame.first_chunk().map_or(MacAddr([0; 6]), |mac| MacAddr(*mac));
    ports[usize::from(port)] = Some(PortConfig { ifindex: LOOPBACK, mac, has_sockets: false });
    driver.set_ports(&ports).unwrap();
}

/// Level 1 in front of level 2, as the daemon has them.
struct BothLevels {
    driver: Driver,
    /// Supplied objects, by SHA-256.
    objects: HashMap<String, Vec<u8>>,
    worker: WorkerLevel,
    /// Name and module by number; for `redirect` the port.
    instances: HashMap<InstanceId, (String, String, u16)>,
    /// Rules of level 1, a bit by slot.
    done: Vec<u64>,
    at_level1: u64,
}

/// The kernel's time begins at zero when the host does, and 0 means that it is to be used.
fn later(now: Instant) -> Instant {
    now + Duration::from_secs(1)
}

impl Subject for BothLevels {
    fn apply(&mut self, command: Command) {
        self.worker.apply(command);
    }

    fn adopt(&mut self, published: Published) {
        self.worker.adopt(published);
    }

    fn settle(&mut self, manager: &Manager, published: &Published) {
        for (_, name, module, _) in manager.instances() {
            if let Some(object) = self.objects.get(module) {
                let parameters = manager.settings_of(name).unwrap().1.text("parameters");
                self.driver.load(name, module, parameters, || Ok(object.clone())).unwrap();
            }
        }
        let plan = Plan::new(manager, &published.table, self.driver.slots()).unwrap();
        self.done = plan.slots();
        self.driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
        let known = manager.instances().map(|(id, name, module, _)| {
            let settings = manager.settings_of(name).unwrap().1;
            let port = if module == "redirect" { settings.number("interface") as u16 } else { 0 };
            (id, (name.to_owned(), module.to_owned(), port))
        });
        self.instances = known.collect();
    }

    fn process(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        interface: u16,
        copies: &mut Copies,
    ) -> Option<Verdict> {
        self.driver.set_now(later(now)).unwrap();
        // Redirections go to any port of the host's that there is.
        let mut ports =
            vec![Some(PortConfig { ifindex: LOOPBACK, mac: MacAddr([0; 6]), has_sockets: false }); 16];
        let mac = frame.first_chunk().map_or(MacAddr([0; 6]), |mac| MacAddr(*mac));
        ports
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| *at != usize::from(interface))
            .for_each(|(_, port)| *port = None);
        ports[usize::from(interface)] = Some(PortConfig { ifindex: LOOPBACK, mac, has_sockets: false });
        self.driver.set_ports(&ports).unwrap();
        let before = self.driver.counts().unwrap().instances;
        let (verdict, out, _) = self.driver.test_run(frame, 1).unwrap();
        frame.copy_from_slice(&out);
        match verdict {
            XDP_DROP | XDP_ABORTED => {
                self.at_level1 += 1;
                let after = self.driver.counts().unwrap();
                // The port of a redirection does not exist here: the kernel drops it.
                let used = |name: &str| after.instances.get(name) != before.get(name);
                let redirected =
                    self.instances.values().find(|(name, module, _)| module == "redirect" && used(name));
                Some(redirected.map_or(Verdict::Drop, |(_, _, port)| Verdict::Transmit(*port)))
            }
            XDP_PASS => {
                let parsed = parse_ethernet(frame, interface, Direction::Ingress).ok()?;
                if let Some(hit) = self.worker.classifier.find(&parsed.fields).filter(|_| parsed.is_plain()) {
                    let slot = hit.rule.slot as usize;
                    if self.done.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1) {
                        self.at_level1 += 1;
                        return Some(Verdict::Pass);
                    }
                }
                self.worker.process(later(now), frame, interface, copies)
            }
            other => panic!("XDP action {other}"),
        }
    }

    fn call(
        &mut self,
        now: Instant,
        id: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, String> {
        let answer = self.worker.call(later(now), id, operation, arguments)?;
        let (name, module, _) = &self.instances[&id];
        let own = self.driver.call(later(now), name, module, operation, arguments);
        match own.map_err(|error| error.to_string())? {
            Some(own) => Ok(csp_xdp::merge(answer, own)),
            None => Ok(answer),
        }
    }
}

fn check(text: &str, at_level1: bool) {
    let Some(driver) = open(None) else { return };
    let seen = run_at_level1(driver, text, HashMap::new());
    assert_eq!(seen > 0, at_level1, "{seen} packets were decided on at level 1");
}

/// Runs a fixture; returns how many packets level 1 decided on.
fn run_at_level1(driver: Driver, text: &str, objects: HashMap<String, Vec<u8>>) -> u64 {
    let mut seen = 0;
    let supply = supplied::Supplied::of(&objects);
    run_with(text, (DRIVER, Level::Driver), Some(supply), |published| {
        let worker = WorkerLevel::new(published);
        let (instances, done) = (HashMap::new(), Vec::new());
        Counted(BothLevels { driver, objects, worker, instances, done, at_level1: 0 }, &mut seen)
    });
    seen
}

/// Notes how many packets level 1 decided on.
struct Counted<'a>(BothLevels, &'a mut u64);

impl Subject for Counted<'_> {
    fn apply(&mut self, command: Command) {
        self.0.apply(command);
    }
    fn adopt(&mut self, published: Published) {
        self.0.adopt(published);
    }
    fn settle(&mut self, manager: &Manager, published: &Published) {
        self.0.settle(manager, published);
    }
    fn process(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        interface: u16,
        copies: &mut Copies,
    ) -> Option<Verdict> {
        let verdict = self.0.process(now, frame, interface, copies);
        *self.1 = self.0.at_level1;
        verdict
    }
    fn call(
        &mut self,
        now: Instant,
        id: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, String> {
        self.0.call(now, id, operation, arguments)
    }
}

macro_rules! fixtures {
    ($($name:ident: $file:literal, $at_level1:literal;)*) => {
        $(#[test]
        fn $name() {
            check(include_str!(concat!("../../../libcsp/plugins/tests/fixtures/", $file, ".txt")), $at_level1);
        })*
    };
}

fixtures! {
    no_op: "no-op", true;
    drop_all: "drop", true;
    redirect: "redirect", true;
    counter: "counter", true;
    policer: "policer", true;
    policer_that_calls_stays_at_level_2: "policer-block", false;
    dscp: "dscp", true;
    block_list: "block-list", true;
    graph: "graph", true;
    rules: "rules", true;
}

fn manager(rules_max: usize) -> Manager {
    let mut manager = Manager::new(ManagerConfig { rules_max, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    manager
}

/// Puts rules into force, which lead to 63 instances that mark packets: so the codepoint shows which rule
/// decided.
fn install(driver: &mut Driver, rules: &[Rule]) {
    let mut manager = manager(16_384);
    for at in 0..63 {
        manager.create(&format!("i{at}"), "dscp", DRIVER, &[("dscp", &at.to_string())]).unwrap();
    }
    let bound = rules.iter().map(|rule| {
        let binding = Binding { instance: InstanceId(rule.instance.0 % 63), fallback: Fallback::Pass };
        Rule { instance: binding.encode(), ..rule.clone() }
    });
    manager.replace_rules(bound.collect()).unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    assert_eq!((plan.demoted.as_slice(), plan.is_complete()), (&[][..], true));
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
}

fn compare(driver: &mut Driver, rules: &[Rule], packets: &[Fields]) -> usize {
    let linear = Linear::new(rules);
    let mut hits = 0;
    for packet in packets {
        // The codepoint 63 is what no instance sets.
        let packet = Fields { dscp: 63, direction: Direction::Ingress, ..*packet };
        let frame = frames::frame_of(&packet, 72);
        assert_eq!(parse_ethernet(&frame, packet.interface, Direction::Ingress).unwrap().fields, packet);
        at_port(driver, packet.interface, &frame);
        let (verdict, out, _) = driver.test_run(&frame, 1).unwrap();
        assert_eq!(verdict, XDP_PASS);
        let dscp = parse_ethernet(&out, packet.interface, Direction::Ingress).unwrap().fields.dscp;
        let right = linear.find(&packet).map_or(63, |at| (rules[at].instance.0 % 63) as u8);
        assert_eq!(dscp, right, "{packet:?}: {:?}", linear.find(&packet).map(|at| &rules[at]));
        hits += usize::from(right != 63);
    }
    hits
}

fn seed() -> u64 {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CSP_SEED={seed}");
    seed
}

#[test]
fn a_look_up_finds_what_linear_search_finds() {
    let Some(mut driver) = open(None) else { return };
    let seed = seed();
    for (kind, v6) in common::KINDS.into_iter().zip([0, 30, 100]) {
        let rules = common::rules(kind, 5_192, seed, v6).into_iter();
        let rules: Vec<Rule> =
            rules.map(|rule| Rule { fields: Match { dscp: None, ..rule.fields }, ..rule }).collect();
        install(&mut driver, &rules);
        let hits = compare(&mut driver, &rules, &common::uniform(&rules, 1_000, seed, 5));
        assert!(hits > 500, "{hits}");
    }
}

#[test]
fn rules_that_overlap_in_every_way_decide_in_order() {
    let Some(mut driver) = open(None) else { return };
    let mut random = Random::new(seed());
    let mut hits = 0;
    for _ in 0..30 {
        let count = 1 + random.below(60) as usize;
        let rules: Vec<Rule> =
            (0..count).map(|at| overlapping(&mut random, at)).filter(|rule| rule.check().is_ok()).collect();
        if rules.is_empty() {
            continue;
        }
        install(&mut driver, &rules);
        let packets: Vec<Fields> = (0..60)
            .map(|_| {
                let rule = &rules[random.below(rules.len() as u64) as usize];
                let packet = common::packet_of(&mut random, &rule.fields);
                Fields { interface: random.below(3) as u16, ..packet }
            })
            .collect();
        hits += compare(&mut driver, &rules, &packets);
    }
    assert!(hits > 300, "{hits}");
}

#[test]
fn no_frame_makes_the_levels_disagree() {
    let Some(mut driver) = open(None) else { return };
    let mut manager = manager(16);
    manager.create("none", "drop", DRIVER, &[]).unwrap();
    manager.add_rule("tcp", 1, Match { protocol: Some(6), ..Match::ANY }, "none", Fallback::Pass).unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    let mut random = Random::new(seed());
    let (mut dropped, mut passed) = (0, 0);
    for round in 0..20_000 {
        let description: &[&str] = match round % 4 {
            0 => &["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "1000", ">", "80", "S", "len", "9"],
            1 => &["ipv6", "2001:db8::1", ">", "2001:db8::2", "tcp", "1000", ">", "80", "S"],
            2 => &["ipv6", "2001:db8::1", ">", "2001:db8::2", "tcp", "later", "len", "9"],
            _ => &["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "1", ">", "2", "S", "vlan", "3"],
        };
        let mut frame = fixture::build(description).0;
        for _ in 0..random.below(3) {
            let at = 12 + random.below(frame.len() as u64 - 12) as usize;
            frame[at] = random.number() as u8;
        }
        let len =
            if random.below(3) == 0 { 14 + random.below(frame.len() as u64) as usize } else { frame.len() };
        frame.resize(len.max(14), 0);
        at_port(&mut driver, 0, &frame);
        let (verdict, out, _) = driver.test_run(&frame, 1).unwrap();
        let parsed = parse_ethernet(&frame, 0, Direction::Ingress);
        let right = parsed.is_ok_and(|parsed| parsed.is_plain() && parsed.fields.protocol == 6);
        assert_eq!(verdict, if right { XDP_DROP } else { XDP_PASS }, "round {round}: {frame:02x?}");
        assert_eq!(out, frame);
        if right { dropped += 1 } else { passed += 1 }
    }
    assert!(dropped > 2_000 && passed > 2_000, "{dropped} {passed}");
}

#[test]
fn what_is_pinned_goes_on_and_is_taken_over() {
    if open(None).is_none() {
        return;
    }
    let mount = Mount::new();
    let folder = mount.0.join("node");
    let Some(mut driver) = open(Some(&folder)) else { return };
    let mut manager = manager(16);
    manager.create("blocked", "block-list", DRIVER, &[("prefixes_max", "200000")]).unwrap();
    manager.add_rule("all", 1, Match::ANY, "blocked", Fallback::Pass).unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    let now = Instant::from_nanos(5_000_000_000);
    let call = |driver: &mut Driver, operation: &str, arguments: &[(&str, &str)]| {
        let (_, operation, arguments) = manager.prepare_call("blocked", operation, arguments).unwrap();
        driver.call(now, "blocked", "block-list", operation, &arguments).unwrap().unwrap()
    };
    // More than a hundred thousand networks.
    for at in 0..100_001u32 {
        let prefix = format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 + at));
        call(&mut driver, "add", &[("prefix", &prefix), ("from", "web-shop"), ("time", "1h")]);
    }
    let frame =
        |source: &str| fixture::build(&["ipv4", source, ">", "198.51.100.2", "tcp", "1", ">", "2", "S"]).0;
    let verdict = |driver: &mut Driver, source: &str| {
        let frame = frame(source);
        at_port(driver, 0, &frame);
        driver.set_now(now).unwrap();
        driver.test_run(&frame, 1).unwrap().0
    };
    assert_eq!(verdict(&mut driver, "10.0.3.9"), XDP_DROP);
    assert_eq!(verdict(&mut driver, "11.0.3.9"), XDP_PASS);
    drop(driver);
    let mut driver = Driver::open(Some(&folder)).unwrap();
    assert_eq!(verdict(&mut driver, "10.0.3.9"), XDP_DROP, "before any rule was set");
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    assert_eq!(verdict(&mut driver, "10.0.3.9"), XDP_DROP);
    let Answer::Rows(rows) = call(&mut driver, "find", &[("address", "10.0.3.9")]) else { panic!("rows") };
    assert_eq!((&*rows[0].note, rows[0].numbers[1]), ("web-shop", ("packets", 3)));
    let Answer::Rows(rows) = call(&mut driver, "read", &[]) else { panic!("rows") };
    assert_eq!(rows[0].numbers[0], ("prefixes", 100_001));
    driver.detach().unwrap();
    assert!(!folder.join("v2").exists());
}

#[test]
fn counts_follow_an_instance_that_leaves_and_returns() {
    let Some(mut driver) = open(None) else { return };
    let mut manager = manager(16);
    manager.create("count", "counter", DRIVER, &[]).unwrap();
    let rule = manager.add_rule("all", 1, Match::ANY, "count", Fallback::Pass).unwrap();
    let table = manager.publish_rules().table;
    let frame =
        fixture::build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "udp", "1", ">", "2", "len", "58"]).0;
    let run = |driver: &mut Driver, plan: &Plan| {
        driver.apply(plan, Instant::ZERO, &HashMap::new()).unwrap();
        at_port(driver, 0, &frame);
        driver.test_run(&frame, 10).unwrap();
        let counts = driver.counts().unwrap();
        (counts.rules.get(&rule).copied().unwrap_or_default().packets, counts.instances["count"].packets)
    };
    let here = Plan::new(&manager, &table, driver.slots()).unwrap();
    assert_eq!(run(&mut driver, &here), (10, 10));
    let empty = self::manager(16);
    let away = Plan::new(&empty, &csp_classify::multifield::Table::new(), driver.slots()).unwrap();
    assert!(away.is_empty());
    assert_eq!(run(&mut driver, &away), (10, 10), "kept, and no further ones");
    let (_, read, none) = manager.prepare_call("count", "read", &[]).unwrap();
    let Some(Answer::Rows(rows)) = driver.call(Instant::ZERO, "count", "counter", read, &none).unwrap()
    else {
        panic!("rows")
    };
    assert_eq!((rows[0].key.as_str(), rows[0].numbers[0].1), ("192.0.2.0/24", 10));
    let back = Plan::new(&manager, &table, driver.slots()).unwrap();
    assert_eq!(run(&mut driver, &back), (20, 20));
    let Some(Answer::Rows(rows)) = driver.call(Instant::ZERO, "count", "counter", read, &none).unwrap()
    else {
        panic!("rows")
    };
    assert_eq!((rows.len(), rows[0].numbers[0].1), (1, 20));
}
