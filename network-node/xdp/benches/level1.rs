//! What the program of level 1 costs a packet, by BPF_PROG_TEST_RUN on one processor.
//!
//! `cargo bench -p csp-xdp --bench level1` (root); `-- --quick` has fewer rounds, `-- --write FOLDER` writes
//! level1.md there.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

#[path = "../../../libcsp/classify/tests/common/mod.rs"]
mod common;
#[path = "../tests/frames/mod.rs"]
mod frames;
#[path = "../tests/mount/mod.rs"]
mod mount;

use std::collections::HashMap;
use std::fmt::Write as _;

use aya::maps::{Array, MapData};
use common::{KINDS, Kind};
use csp_classify::multifield::{Direction, Fields, InstanceId, Match, Rule};
use csp_plugins::{Binding, DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_types::{Instant, MacAddr};
use csp_xdp::{Driver, Plan, PortConfig};

const RULES: usize = 5_192;
const HEADERS: usize = 65_536;
const SEED: u64 = 20;
static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));

/// The headers of Ethernet, IP and TCP.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Header([u8; 80]);

// SAFETY: an array of bytes.
unsafe impl aya::Pod for Header {}

fn install(driver: &mut Driver, rules: &[Rule], module: &str, settings: &[(&str, &str)]) {
    let mut manager =
        Manager::new(ManagerConfig { rules_max: 16_384, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    let instance = manager.create("plugin", module, DRIVER, settings).unwrap();
    let bound = Binding { instance, fallback: Fallback::Pass }.encode();
    manager
        .replace_rules(rules.iter().map(|rule| Rule { instance: bound, ..rule.clone() }).collect())
        .unwrap();
    let table = manager.publish_rules().table;
    if csp_plugins::is_supplied(module) {
        driver.load("plugin", module, "", || Ok(supplied_no_op())).unwrap();
    }
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    assert!(plan.demoted.is_empty() && plan.rules().len() == rules.len());
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
}

/// An object that gives each packet back.
fn supplied_no_op() -> Vec<u8> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = "CSP_XDP(1);\nSEC(\"xdp\") int none(struct xdp_md *context) { return csp_next(context, 0); }";
    csp_support::bpf_object_of(&root, text)
}

/// Leaves the thread the capabilities of the packaged unit, without CAP_PERFMON.
fn as_the_unit_has_it() {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    let kept = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

fn open(folder: &std::path::Path) -> Option<Driver> {
    let mut driver = match Driver::open_program(Some(folder), PROGRAM) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let mac = MacAddr([2, 0, 0, 0, 0, 0x0a]);
    driver.set_ports(&[Some(PortConfig { ifindex: 1, mac, has_sockets: false })]).unwrap();
    Some(driver)
}

fn rules_of(kind: Kind, v6: u64) -> Vec<Rule> {
    let rules = common::rules(kind, RULES, SEED, v6).into_iter();
    // Conditions that the frames of one port meet, all received.
    let fields =
        |fields: Match| Match { interface: None, direction: Some(Direction::Ingress), dscp: None, ..fields };
    rules.map(|rule| Rule { fields: fields(rule.fields), instance: InstanceId(0), ..rule }).collect()
}

/// Frames whose rules are drawn uniformly; every rule is drawn.
fn frames_of(rules: &[Rule], len: usize) -> Vec<Vec<u8>> {
    let packets = common::uniform(rules, HEADERS, SEED, 0);
    packets
        .iter()
        .map(|packet| {
            frames::frame_of(&Fields { interface: 0, direction: Direction::Ingress, ..*packet }, len)
        })
        .collect()
}

/// Nanoseconds a packet: the program behind another one that writes the next header, less that one alone.
fn measure(
    driver: &mut Driver,
    headers: &mut Array<MapData, Header>,
    frames: &[Vec<u8>],
    rounds: u32,
) -> (f64, f64) {
    for (at, frame) in frames.iter().enumerate() {
        let mut header = [0; 80];
        let len = frame.len().min(80);
        header[..len].copy_from_slice(&frame[..len]);
        headers.set(at as u32, Header(header), 0).unwrap();
    }
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        let run = |driver: &mut Driver, name| {
            driver.test_program(name, &frames[0], 8 * HEADERS as u32).unwrap().2.as_nanos() as f64
        };
        best.0 = best.0.min(run(driver, "csp_headers"));
        best.1 = best.1.min(run(driver, "csp_measured"));
    }
    (best.0, best.1)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 10 };
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
    let mount = mount::Mount::new();
    let Some(mut driver) = open(&mount.0.join("node")) else { return };
    let mut headers: Array<MapData, Header> = driver.take_map("headers").unwrap();
    let supplied = "0".repeat(64);
    let mut text = String::from(
        "# Packet plug-ins of level 1, measured\n\nWritten by `make bench-plugins`: BPF_PROG_TEST_RUN on one processor, 65,536 different headers in turn, whose rules are drawn uniformly from \
         5,192 rules as ClassBench makes them. The lowest of the rounds. The time of writing the header is subtracted; it is in the last column. No driver and no system call are \
         included.\n\n| rules | plug-in | bytes | ns a packet | M packets/s | ns for the header |\n|---|---|---|---|---|---|\n",
    );
    for (kind, v6, name) in
        [(KINDS[0], 0, "ACL"), (KINDS[1], 0, "FW"), (KINDS[2], 0, "IPC"), (KINDS[0], 100, "ACL, IPv6")]
    {
        let rules = rules_of(kind, v6);
        for (module, settings) in [
            ("no-op", &[][..]),
            (&*supplied, &[]),
            ("counter", &[]),
            ("dscp", &[("dscp", "10")]),
            ("policer", &[("rate", "1000G")]),
        ] {
            let shown = if module == supplied { "supplied no-op" } else { module };
            if module != "no-op" && (v6 > 0 || kind != KINDS[0]) {
                continue;
            }
            install(&mut driver, &rules, module, settings);
            for len in [74, 1_460] {
                let (header, all) = measure(&mut driver, &mut headers, &frames_of(&rules, len), rounds);
                let ns = all - header;
                let line = format!("| {name} | {shown} | {len} | {ns:.0} | {:.2} | {header:.0} |", 1e3 / ns);
                eprintln!("{line}");
                let _ = writeln!(text, "{line}");
            }
        }
    }
    let counts = driver.counts().unwrap();
    eprintln!("{:?}", counts.totals);
    // The same as the packaged unit runs it.
    as_the_unit_has_it();
    let Some(mut driver) = open(&mount.0.join("unit")) else { return };
    let mut headers: Array<MapData, Header> = driver.take_map("headers").unwrap();
    let rules = rules_of(KINDS[0], 0);
    for (module, shown) in [("no-op", "no-op"), (&*supplied, "supplied no-op")] {
        install(&mut driver, &rules, module, &[]);
        let (header, all) = measure(&mut driver, &mut headers, &frames_of(&rules, 74), rounds);
        let ns = all - header;
        let line =
            format!("| ACL | {shown}, without CAP_PERFMON | 74 | {ns:.0} | {:.2} | {header:.0} |", 1e3 / ns);
        eprintln!("{line}");
        let _ = writeln!(text, "{line}");
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "--write") {
        let folder = std::path::Path::new(&arguments[at + 1]);
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("level1.md"), text).unwrap();
    }
}
