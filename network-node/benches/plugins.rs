//! What packet plug-ins of level 2 cost a worker, and how many packets pass through them; what a host across
//! the SAN (level 3) adds.
//!
//! `cargo bench -p csp-network-node --bench plugins`; `-- --quick` has fewer rounds, `-- --veth` measures
//! over a veth pair as well (root, in a network namespace of its own), `-- --host SECONDS` measures level 3
//! as well, so long for each figure, `-- --only-host` nothing else, `-- --only-forward` forwarding beside
//! nftables and nothing else, `-- --write FOLDER` writes evaluation.md there. `-- core CASE COUNT` runs one
//! case so many times, for counting instructions.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a bench"
)]

#[path = "../../libcsp/classify/tests/common/mod.rs"]
mod common;
#[path = "plugins/forward.rs"]
mod forward;
#[path = "plugins/host.rs"]
mod host;
#[path = "plugins/load.rs"]
mod load;
#[path = "plugins/plot.rs"]
mod plot;
#[path = "../xdp/benches/nftables/sets.rs"]
mod sets;
#[path = "plugins/veth.rs"]
mod veth;

use std::fmt::Write as _;
use std::hint::black_box;

use csp_lan::memory::Hub;
use csp_network_node::core::{CoreConfig, NetworkCore, NetworkOutput, PluginCapacity, PortConfig};
use csp_network_node::core::{PortId, ProxyId, TunnelFull};
use csp_types::Instant;
use csp_wire::offload::{Frame, TxOffload};
use csp_wire::tunnel::Record;

use load::{CLIENT_MAC, Case, OUR_MAC, RULES, frames, processor_time};

const CASES: [Case; 6] =
    [Case::None, Case::OtherDirection, Case::Unmatched, Case::NoOp, Case::Counter, Case::Dscp];
const BATCH: usize = 512;

/// Takes what the core puts out, and counts it.
#[derive(Default)]
struct Sink(u64);

impl NetworkOutput for Sink {
    fn tunnel(
        &mut self,
        _: Instant,
        _: ProxyId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), TunnelFull> {
        black_box((record, parts));
        self.0 += 1;
        Ok(())
    }

    fn lan(&mut self, _: PortId, parts: &[&[u8]], _: Option<TxOffload>) {
        black_box(parts);
        self.0 += 1;
    }
}

fn config() -> CoreConfig {
    let plugins = PluginCapacity { rules: 16_384, instances: 16, environments: 2, flows: 8192 };
    CoreConfig { plugins, ..CoreConfig::new(vec![PortConfig::new(OUR_MAC, 9000)], (1, 2)) }
}

/// A core whose flow table has the frames' connections, and the frames.
fn core_of(case: Case, len: usize) -> (NetworkCore, Vec<Vec<u8>>) {
    let mut core = NetworkCore::new(config());
    let mut sink = Sink::default();
    core.set_services(Instant::ZERO, &[load::service()], &[], &mut sink).unwrap();
    core.proxy_up(ProxyId(0), "pn-1".parse().unwrap(), 1);
    core.change_plugins(&mut load::change(case));
    let frames = frames(case, len);
    (core, frames)
}

fn run(core: &mut NetworkCore, frames: &[Vec<u8>], round: u64) -> u64 {
    let mut sink = Sink::default();
    for frame in frames {
        core.on_frame(
            Instant::from_nanos(round + 10_000_000_000),
            PortId(0),
            &Frame::plain(frame),
            &mut sink,
        );
    }
    sink.0
}

/// Nanoseconds of processor time for a frame, in the core alone.
fn in_core(case: Case, len: usize, rounds: u64) -> f64 {
    let (mut core, frames) = core_of(case, len);
    let best = (0..rounds).map(|round| {
        let begin = processor_time();
        black_box(run(&mut core, &frames, round));
        processor_time() - begin
    });
    best.min().unwrap().as_nanos() as f64 / frames.len() as f64
}

/// Nanoseconds of processor time for a frame, of a worker at a memory port.
fn at_memory_port(case: Case, len: usize, rounds: u64) -> f64 {
    let hub = Hub::new(2 * BATCH);
    let lan = hub.attach("lan0", OUR_MAC, 9000);
    let mut client = hub.attach("eth0", CLIENT_MAC, 9000);
    let mut worker = load::worker(config(), vec![lan]);
    worker.change_plugins(&mut load::change(case), &[]);
    let frames = frames(case, len);
    let (mut best, mut now) = (f64::MAX, 10_000_000_000);
    for _ in 0..rounds {
        let mut spent = std::time::Duration::ZERO;
        for batch in frames.chunks(BATCH) {
            batch.iter().for_each(|frame| client.transmitter.transmit(&[frame], None).unwrap());
            client.transmitter.flush();
            let begin = processor_time();
            while worker.turn(Instant::from_nanos(now), 1_800_000_000) {
                now += 1;
            }
            spent += processor_time() - begin;
        }
        best = best.min(spent.as_nanos() as f64 / frames.len() as f64);
    }
    best
}

fn table(text: &mut String, title: &str, measure: impl Fn(Case, usize) -> f64) {
    let _ = writeln!(
        text,
        "\n## {title}\n\n| rules and plug-in | bytes | ns a frame | M frames/s | Gb/s | beside no rules |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|");
    for len in [72, 1460] {
        let base = measure(Case::None, len);
        for case in CASES {
            let ns = if case == Case::None { base } else { measure(case, len) };
            let (rate, gigabits) = (1e3 / ns, len as f64 * 8.0 / ns);
            let line = format!(
                "| {} | {len} | {ns:.1} | {rate:.2} | {gigabits:.1} | {:.2} |",
                case.name(),
                base / ns
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let after =
        |name: &str| arguments.iter().position(|argument| argument == name).map(|at| &arguments[at + 1..]);
    if let Some([case, count, ..]) = after("core") {
        let case = CASES.into_iter().find(|known| known.key() == case).expect("a case");
        let (mut core, frames) = core_of(case, 72);
        for round in 0..count.parse().unwrap() {
            black_box(run(&mut core, &frames[..4096], round));
        }
        return;
    }
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 10 };
    let mut text = load::preface();
    if after("--only-forward").is_some() {
        return print!("{}", forward::measure(&config()));
    }
    if after("--only-host").is_none() {
        table(&mut text, "In the core, without a port", |case, len| in_core(case, len, rounds));
        table(&mut text, "A worker at a memory port", |case, len| at_memory_port(case, len, rounds.min(5)));
    }
    if arguments.iter().any(|argument| argument == "--veth") {
        text += &veth::measure(config());
        text += &forward::measure(&config());
    }
    if let Some(words) = after("--host") {
        let seconds = words.first().and_then(|word| word.parse().ok()).unwrap_or(1.0);
        let folder = after("--write").and_then(|words| words.first());
        text += &host::measure(seconds, folder.map(String::as_str));
    }
    match after("--write") {
        Some([folder, ..]) => {
            let file = std::path::Path::new(folder).join("evaluation.md");
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(&file, text).unwrap();
            eprintln!("written to {}; {RULES} rules", file.display());
        }
        _ => print!("{text}"),
    }
}
