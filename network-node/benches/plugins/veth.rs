//! A worker at a veth port, by raw socket and by AF_XDP, and the program of level 1 there, in a network
//! namespace of the bench's own.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csp_lan::LanPort;
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_lan::af_xdp::{self, AfXdpConfig};
use csp_network_node::core::CoreConfig;
use csp_types::Instant;
use csp_xdp::{Driver, Plan, PortConfig};

use crate::load::{self, CLIENT_MAC, Case, OUR_MAC, frames, processor_time};

const SECONDS: u64 = 2;
/// The headers of cases with rules are for no address of the node: they do not reach AF_XDP sockets.
const CASES: [(Kind, Case); 4] = [
    (Kind::AfPacket, Case::None),
    (Kind::AfPacket, Case::NoOp),
    (Kind::AfPacket, Case::Counter),
    (Kind::AfXdp, Case::None),
];

/// A kind of port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    AfPacket,
    AfXdp,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::AfPacket => "AF_PACKET",
            Kind::AfXdp => "AF_XDP",
        }
    }

    /// Opens a port; the program ends with what is returned beside it.
    fn open(self) -> (LanPort, Option<Driver>) {
        if self == Kind::AfPacket {
            return (af_packet::open(&AfPacketConfig::new("cspb0")).unwrap(), None);
        }
        let open = af_xdp::open(&AfXdpConfig::new("cspb0")).unwrap();
        let mut driver = program(true);
        for (queue, socket) in &open.sockets {
            driver.set_socket(0, *queue, socket.as_raw_fd()).unwrap();
        }
        driver.classify(false, csp_xdp::Diverted::Nothing).unwrap();
        driver.set_addresses(std::iter::once(load::service().ip())).unwrap();
        (open.port, Some(driver))
    }
}

/// The program at the port.
fn program(has_sockets: bool) -> Driver {
    let mut driver = Driver::open(None).unwrap();
    let port = PortConfig::of("cspb0", OUR_MAC, has_sockets).unwrap();
    driver.set_ports(&[Some(port)]).unwrap();
    driver.attach(port.ifindex).unwrap();
    driver
}

/// Runs ip(8).
pub fn ip(arguments: &[&str]) {
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

/// Sends frames out of an interface as fast as it can while `measured` runs; returns what that returns, and
/// how many it has sent.
pub fn beside_sender<T>(interface: &str, frames: Vec<Vec<u8>>, measured: impl FnOnce() -> T) -> (T, u64) {
    let mut client = af_packet::open(&AfPacketConfig::new(interface)).unwrap();
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
    let result = measured();
    stop.store(true, Ordering::Relaxed);
    (result, sender.join().unwrap())
}

fn run(config: CoreConfig, kind: Kind, case: Case, len: usize) -> Run {
    let (mut port, _program) = kind.open();
    port.info.mac = OUR_MAC;
    let mut worker = load::worker(config, vec![port]);
    worker.change_plugins(&mut load::change(case), &[]);
    let measured = || {
        let (begin, end) = (std::time::Instant::now(), Duration::from_secs(SECONDS));
        let (before, time) = (worker.lan_counters().receive.frames, processor_time());
        while begin.elapsed() < end {
            let now = Instant::from_nanos(10_000_000_000 + begin.elapsed().as_nanos() as u64);
            if !worker.turn(now, 1_800_000_000) {
                std::thread::yield_now();
            }
        }
        (worker.lan_counters().receive.frames - before, processor_time() - time)
    };
    let ((received, busy), sent) = beside_sender("cspb1", frames(case, len), measured);
    Run { sent, received, busy }
}

/// The rates at which the program takes frames at the port, without a worker: it drops all that match 5,192
/// rules.
fn level1(text: &mut String) {
    let _ = writeln!(
        text,
        "\n## The program of level 1 at a veth port\n\nThe sender's processor runs the program, too. Nobody else receives: frames that pass are \
         for no address of the host.\n\n| program | bytes | k frames/s sent | of these seen by the program | dropped by it |\n|---|---|---|---|---|"
    );
    for len in [72, 1460] {
        for module in [None, Some("no-op"), Some("drop")] {
            let mut driver = module.map(|_| program(false));
            if let (Some(module), Some(driver)) = (module, &mut driver) {
                let (manager, table) = load::at_level1(module);
                let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
                assert!(plan.demoted.is_empty() && !plan.is_empty());
                driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
            }
            let pause = || std::thread::sleep(Duration::from_secs(SECONDS));
            let ((), sent) = beside_sender("cspb1", frames(Case::NoOp, len), pause);
            let totals = driver.as_ref().map(|driver| driver.counts().unwrap().totals).unwrap_or_default();
            let share = |count: u64| format!("{:.3}", count as f64 / sent as f64);
            let (name, rate) = (module.unwrap_or("none"), sent as f64 / SECONDS as f64 / 1e3);
            let line = format!(
                "| {name} | {len} | {rate:.0} | {} | {} |",
                share(totals.seen),
                share(totals.dropped)
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
        }
    }
}

/// Measures all cases; returns a section of evaluation.md.
pub fn measure(config: CoreConfig) -> String {
    let (ours, theirs) = (OUR_MAC.to_string(), CLIENT_MAC.to_string());
    ip(&[
        "link", "add", "cspb0", "address", &ours, "type", "veth", "peer", "name", "cspb1", "address", &theirs,
    ]);
    for name in ["cspb0", "cspb1"] {
        ip(&["link", "set", name, "up"]);
    }
    let mut text = format!(
        "\n## A worker at a veth port\n\nOne thread sends as fast as it can for {SECONDS} s, another is the worker; both share two cores with what else \
         runs. Loss is what the port's queue had no room for.\n\n| port | rules and plug-in | bytes | k frames/s | Gb/s | loss | µs of the worker a frame \
         | rate beside no rules |\n|---|---|---|---|---|---|---|---|\n"
    );
    for len in [72, 1460] {
        let mut base = 0.0;
        for (kind, case) in CASES {
            let Run { sent, received, busy } = run(config.clone(), kind, case, len);
            let rate = received as f64 / SECONDS as f64;
            if (kind, case) == (Kind::AfPacket, Case::None) {
                base = rate;
            }
            let (loss, each) =
                (1.0 - received as f64 / sent as f64, busy.as_secs_f64() * 1e6 / received as f64);
            let line = format!(
                "| {} | {} | {len} | {:.0} | {:.2} | {:.0} % | {each:.2} | {:.2} |",
                kind.name(),
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
    level1(&mut text);
    ip(&["link", "delete", "cspb0"]);
    text
}
