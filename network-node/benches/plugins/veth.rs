//! A worker at a veth port, in a network namespace of the bench's own.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csp_lan::af_packet::{self, AfPacketConfig};
use csp_network_node::core::CoreConfig;
use csp_types::Instant;

use crate::load::{self, CLIENT_MAC, Case, OUR_MAC, frames, processor_time};

const SECONDS: u64 = 2;
const CASES: [Case; 3] = [Case::None, Case::NoOp, Case::Counter];

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip of iproute2");
    assert!(status.success(), "ip {arguments:?}: {status}; run it as root in a namespace: unshare -n");
}

/// What a worker received and was sent in one run.
struct Run {
    sent: u64,
    received: u64,
    /// Processor time of the worker's thread, user and system.
    busy: Duration,
}

fn run(config: CoreConfig, case: Case, len: usize) -> Run {
    let mut port = af_packet::open(&AfPacketConfig::new("cspb0")).unwrap();
    port.info.mac = OUR_MAC;
    let mut client = af_packet::open(&AfPacketConfig::new("cspb1")).unwrap();
    let frames = frames(case, len);
    let stop = Arc::new(AtomicBool::new(false));
    let sender = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut sent = 0u64;
            for batch in frames.chunks(64).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let accepted =
                    batch.iter().filter(|frame| client.transmitter.transmit(&[frame], None).is_ok());
                sent += accepted.count() as u64;
                client.transmitter.flush();
            }
            sent
        })
    };
    let mut worker = load::worker(config, port);
    worker.change_plugins(&mut load::change(case), &[]);
    let (begin, end) = (std::time::Instant::now(), Duration::from_secs(SECONDS));
    let (before, time) = (worker.lan_counters().receive.frames, processor_time());
    while begin.elapsed() < end {
        let now = Instant::from_nanos(10_000_000_000 + begin.elapsed().as_nanos() as u64);
        if !worker.turn(now, 1_800_000_000) {
            std::thread::yield_now();
        }
    }
    let (received, busy) = (worker.lan_counters().receive.frames - before, processor_time() - time);
    stop.store(true, Ordering::Relaxed);
    Run { sent: sender.join().unwrap(), received, busy }
}

/// Measures all cases; returns a section of evaluation.md.
pub fn measure(config: CoreConfig) -> String {
    let (ours, theirs) = (OUR_MAC.to_string(), CLIENT_MAC.to_string());
    ip(&[
        "link", "add", "cspb0", "address", &ours, "type", "veth", "peer", "name", "cspb1", "address", &theirs,
    ]);
    for name in ["cspb0", "cspb1"] {
        ip(&["link", "set", name, "mtu", "9000", "up"]);
    }
    let mut text = format!(
        "\n## A worker at a veth port\n\nOne thread sends as fast as it can for {SECONDS} s, another is the worker; both share two cores with what else \
         runs. Loss is what the port's queue had no room for.\n\n| rules and plug-in | bytes | k frames/s | Gb/s | loss | µs of the worker a frame \
         | rate beside no rules |\n|---|---|---|---|---|---|---|\n"
    );
    for len in [72, 1460] {
        let mut base = 0.0;
        for case in CASES {
            let Run { sent, received, busy } = run(config.clone(), case, len);
            let rate = received as f64 / SECONDS as f64;
            if case == Case::None {
                base = rate;
            }
            let (loss, each) =
                (1.0 - received as f64 / sent as f64, busy.as_secs_f64() * 1e6 / received as f64);
            let line = format!(
                "| {} | {len} | {:.0} | {:.2} | {:.0} % | {each:.2} | {:.2} |",
                case.name(),
                rate / 1e3,
                rate * len as f64 * 8.0 / 1e9,
                loss * 100.0,
                rate / base
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
        }
    }
    ip(&["link", "delete", "cspb0"]);
    text
}
