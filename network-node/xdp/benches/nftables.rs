//! The classifier beside nftables: the same rules and headers, what a packet costs, and what changes of rules
//! cost.
//!
//! `cargo bench -p csp-xdp --bench nftables` (root, in a network namespace of its own: `unshare -n`); `--
//! --quick` has fewer rounds, `-- --write FOLDER` writes nftables.md there. Without nft, or where the kernel
//! refuses a part, it says so and writes nothing.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a bench"
)]

#[path = "../../../libcsp/classify/tests/common/mod.rs"]
mod common;
#[path = "../tests/frames/mod.rs"]
mod frames;
#[path = "nftables/live.rs"]
mod live;
#[path = "nftables/ours.rs"]
mod ours;
#[path = "nftables/sets.rs"]
mod sets;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use common::{KINDS, Kind};
use csp_classify::multifield::{Direction, Fields, Rule};
use live::Live;

const HEADERS: usize = 65_536;
const SEED: u64 = 20;
/// Rules of a chain that are measured.
const CHAIN_MAX: usize = 5_192;
/// Maps that are measured: a packet asks half of them.
const MAPS_MAX: usize = 1_500;
/// Headers of rulesets that take long.
const FEW: usize = 4_096;
/// Single changes.
const CHANGES: usize = 20;
static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));

/// The chain at which frames enter: whatever no rule has is dropped, too.
const HOOK: &str = "type filter hook ingress device lo priority 0; policy drop;";

/// How often things are measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: u32,
    replacements: usize,
}

/// Rules of five fields and packets of them, with their frames.
struct Load {
    rules: Vec<Rule>,
    packets: Vec<Fields>,
    frames: Vec<Vec<u8>>,
}

impl Load {
    fn new(kind: Kind, count: usize) -> Self {
        let rules = sets::five_fields(&common::rules(kind, count, SEED, 0));
        // Rules for all addresses have IPv6 packets, too.
        let drawn = common::uniform(&rules, HEADERS + HEADERS / 8, SEED, 0);
        let ingress = |packet: Fields| Fields { interface: 0, direction: Direction::Ingress, ..packet };
        let packets: Vec<Fields> =
            drawn.into_iter().filter(|packet| packet.source.is_ipv4()).map(ingress).take(HEADERS).collect();
        assert_eq!(packets.len(), HEADERS);
        let frames = packets.iter().map(|packet| frames::frame_of(packet, 74)).collect();
        Load { rules, packets, frames }
    }
}

/// Nanoseconds a frame, the lowest of the rounds.
fn nanoseconds(live: &mut Live, frames: usize, rounds: u32) -> f64 {
    let rounds = (0..rounds).map(|_| live.receive(frames as u32).expect("it ran before"));
    rounds.min().unwrap().as_nanos() as f64 / frames as f64
}

/// The packets of each rule that nft counts are those of which the classifier finds it, for so many headers;
/// else an error. Returns nanoseconds a frame, the lowest of the rounds.
fn verified(live: &mut Live, load: &Load, headers: usize, rounds: u32) -> Result<f64, String> {
    live.receive(headers as u32).map_err(|error| error.to_string())?;
    let counted = sets::counted("netdev", load.rules.len());
    let found = ours::hits(&load.rules, &load.packets[..headers]);
    let differ = (0..load.rules.len()).filter(|&at| counted[at] != found[at]).count();
    match differ {
        0 => Ok(nanoseconds(live, headers, rounds)),
        _ => Err(format!("nft finds other packets for {differ} of {} rules", load.rules.len())),
    }
}

/// Wall time and processor time of nft for a ruleset, the lowest, in milliseconds.
fn replacement(text: &str, times: usize) -> Result<(f64, f64), String> {
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..times {
        let (begin, processor) = (Instant::now(), ours::children_time());
        sets::nft(text)?;
        best.0 = best.0.min(begin.elapsed().as_secs_f64() * 1e3);
        best.1 = best.1.min((ours::children_time() - processor).as_secs_f64() * 1e3);
    }
    Ok(best)
}

/// Milliseconds of nft for one element that is added, and for one that is deleted; the mean.
fn single_changes() -> Result<(f64, f64), String> {
    let (mut added, mut deleted) = (Duration::ZERO, Duration::ZERO);
    for at in 0..CHANGES {
        // No rule has this source: the bench's are drawn from 16 networks, none of them 255.0.0.0/8.
        let key = format!("255.0.0.{at} . 255.0.0.1 . 6 . 0-65535 . 80");
        let begin = Instant::now();
        sets::nft(&format!("add element netdev csp s0 {{ {key} : drop }}"))?;
        added += begin.elapsed();
        let begin = Instant::now();
        sets::nft(&format!("delete element netdev csp s0 {{ {key} : drop }}"))?;
        deleted += begin.elapsed();
    }
    let mean = |sum: Duration| sum.as_secs_f64() * 1e3 / CHANGES as f64;
    Ok((mean(added), mean(deleted)))
}

/// The tables of nftables.md.
#[derive(Default)]
struct Tables {
    packets: String,
    changes: String,
}

/// Figures of nft for rules in maps.
struct Maps {
    ns: f64,
    replaced: (f64, f64),
    changed: (f64, f64),
}

fn in_maps(
    live: &mut Live,
    load: &Load,
    ruleset: &str,
    headers: usize,
    effort: Effort,
) -> Result<Maps, String> {
    let replaced = replacement(ruleset, effort.replacements)?;
    let ns = verified(live, load, headers, effort.rounds)?;
    Ok(Maps { ns, replaced, changed: single_changes()? })
}

fn shown(number: Option<f64>, digits: usize) -> String {
    number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
}

fn measure(
    live: &mut Live,
    kind: Kind,
    count: usize,
    effort: Effort,
    tables: &mut Tables,
) -> Result<(), String> {
    let load = Load::new(kind, count);
    live.set_frames(&load.frames);
    let (name, rules) = (format!("{kind:?}").to_uppercase(), load.rules.len());
    sets::nft(&sets::table("netdev", "", HOOK, ""))?;
    let empty = nanoseconds(live, HEADERS, effort.rounds);
    let mut chain = None;
    if count <= CHAIN_MAX {
        sets::nft(&sets::table("netdev", "", HOOK, &sets::chain(&load.rules, "drop")))?;
        chain = Some(verified(live, &load, FEW, effort.rounds)? - empty);
    }
    let begin = Instant::now();
    let (declared, lines, count) = sets::maps(&load.rules, "drop");
    let divided = begin.elapsed();
    let mut maps = None;
    if count <= MAPS_MAX {
        let headers = if count > 100 { FEW } else { HEADERS };
        maps = Some(in_maps(live, &load, &sets::table("netdev", &declared, HOOK, &lines), headers, effort)?);
    }
    sets::nft("delete table netdev csp")?;
    let ours = ours::measure(&load.rules, &load.frames, effort.rounds);
    let driver = ours::at_level1(PROGRAM, &load.rules, &load.frames, effort.rounds);
    let ns = maps.as_ref().map(|maps| maps.ns - empty);
    let better = [ns, chain].into_iter().flatten().min_by(f64::total_cmp);
    let line = format!(
        "| {name} | {rules} | {count} | {} | {} | {:.0} | {} | {} | {} | {empty:.0} |",
        shown(ns, 0),
        shown(chain, 0),
        ours.worker,
        shown(driver, 0),
        shown(better.map(|better| better / ours.worker), 1),
        shown(better.zip(driver).map(|(better, driver)| better / driver), 1)
    );
    eprintln!("{line}");
    let _ = writeln!(tables.packets, "{line}");
    let Some(Maps { replaced: (wall, processor), changed: (added, deleted), .. }) = maps else {
        return Ok(());
    };
    let line = format!(
        "| {name} | {rules} | {wall:.0} | {processor:.0} | {:.1} | {:.0} | {added:.1} | {deleted:.1} | {:.1} | {:.0} |",
        ours.replaced_ms,
        wall / ours.replaced_ms,
        ours.changed_us,
        divided.as_secs_f64() * 1e3,
    );
    eprintln!("{line}");
    let _ = writeln!(tables.changes, "{line}");
    Ok(())
}

fn text_of(tables: &Tables, program_ms: f64) -> String {
    let unix_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    format!(
        "# The classifier beside nftables, measured\n\n\
         Written by `make bench-plugins` at Unix time {unix_s}, load {load} at the end. Rules as ClassBench makes them, of five fields: what they say about interface, TCP flags and codepoint is left out for both, since an \
         interval cannot state it, and equal rules are one. 65,536 IPv4 headers whose rules are drawn uniformly ({FEW} of them for chains and for more than 100 maps), frames of 74 bytes. One processor; the lowest of the rounds.\n\n\
         **nftables** runs in the kernel, in a chain at the ingress of a network device, which drops what matches. BPF_PROG_TEST_RUN with live frames has the stack receive the frames, each with its \
         header. Given is the processor time with the rules less that with an empty chain (last column: header, buffer and drop). A *chain* compares rules one after the other, each of them the protocol of the frame, too, as nft has it in this family. *Maps* are of concatenated \
         intervals (`{FIELDS_SHOWN}`), each rule an element with a verdict and a counter. Elements of a map must not overlap, and rules do. They are divided among as many maps as the longest chain of rules has of which each overlaps the next; \
         the chain asks one map after the other, so that the first that has the packet has its first rule. Rules that an earlier one contains are left out. More than {MAPS_MAX} maps are not measured.\n\n\
         **Ours** parses the same frames and counts hits, too: in a worker (no flow cache), and in the program of level 1 (parsing, look-up and `drop`, less what writing the header takes; – where the rules are more than it takes). \
         Before each measurement the headers pass once: nftables must count as many packets for each rule as the classifier finds, or the bench ends.\n\n\
         | rules | | maps | nftables maps, ns a packet | nftables chain, ns | worker, ns | level 1, ns | better of nftables / worker | better / level 1 | empty chain, ns |\n\
         |---|---|---|---|---|---|---|---|---|---|\n{}\n\
         ## Changes\n\n\
         All rules in maps are replaced in one transaction (`nft -f`), the lowest of some, with parsing the text; ours has the rules in memory and publishes the table to the workers (processor time). A single change by nft is a process of its own, which alone takes {program_ms:.1} ms; ours is the mean of \
         removals and insertions. An element is added to the first map; a rule that overlaps others has to be divided again, which the last column has for all rules and no other one includes.\n\n\
         | rules | | nft, ms | its processor time, ms | ours, ms | ratio | nft adds one, ms | nft deletes one, ms | ours changes one, µs | divided among maps in, ms |\n\
         |---|---|---|---|---|---|---|---|---|---|\n{}",
        tables.packets, tables.changes
    )
}

const FIELDS_SHOWN: &str = "ip saddr . ip daddr . meta l4proto . th sport . th dport";

/// Milliseconds of an nft that does next to nothing.
fn program_alone() -> Result<f64, String> {
    let begin = Instant::now();
    for _ in 0..CHANGES {
        sets::nft("add table netdev csp")?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e3 / CHANGES as f64)
}

fn run(arguments: &[String]) -> Result<String, String> {
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let effort =
        if quick { Effort { rounds: 3, replacements: 2 } } else { Effort { rounds: 10, replacements: 5 } };
    let mut live = Live::open(PROGRAM)?;
    live.set_frames(&[vec![0; 74]]);
    live.receive(64).map_err(|error| format!("live frames of BPF_PROG_TEST_RUN: {error}"))?;
    let program_ms = program_alone()?;
    let mut tables = Tables::default();
    for kind in KINDS {
        for count in [1_000, 5_192, 10_000, 100_000] {
            measure(&mut live, kind, count, effort, &mut tables)?;
        }
    }
    Ok(text_of(&tables, program_ms))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
    let text = match run(&arguments) {
        Ok(text) => text,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    match arguments.iter().position(|argument| argument == "--write") {
        Some(at) => {
            let folder = std::path::Path::new(&arguments[at + 1]);
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("nftables.md"), text).unwrap();
        }
        None => print!("{text}"),
    }
}
