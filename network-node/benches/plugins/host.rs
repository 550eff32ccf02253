//! Level 3: a worker at a memory port gives packets to a plug-in host in another thread, over shared memory,
//! and they come back: rate, round trip and loss against offered load, beside the ping-pong of two endpoints
//! over the same SAN, and beside the same plug-in in the worker.
//!
//! ```text
//!  client ─ memory port ─▶ worker: 5,192 rules ─ shm ─▶ host: no-op or counter
//!     ▲                       redirect ◀──────── shm ──────┘
//!     └── second memory port ─────┘
//! ```
//! The round trip is the client's: from when it has put the frame to the port until it has it back.

#[path = "host/offered.rs"]
mod offered;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use csp_classify::multifield::Rule;
use csp_lan::LanPort;
use csp_lan::memory::Hub;
use csp_network_node::core::{CoreConfig, PluginCapacity, PluginChange, PluginCounts, PortConfig};
use csp_network_node::{DialSpec, HostInstances, HostSpec, NetworkWorker, TokenSource};
use csp_plugin_host::{HostWorker, SessionConfig};
use csp_plugins::remote::write_hosted;
use csp_plugins::{Binding, Desired, DesiredInstance, EnvironmentId, Fallback, HashKey, Level};
use csp_policy::plugin_manager;
use csp_transport::{
    ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, MessageKind, PeerIdentity, Purpose, TokenClaims,
    token,
};
use csp_types::{Instant, Role};
use csp_vi::{ProviderKind, ViAddress};

use self::offered::{Offered, unmatched_beside};
use crate::load::{self, CLIENT_MAC, Case, OUR_MAC};

const HOST: EnvironmentId = EnvironmentId(2);
/// Frames that wait at the memory port.
const PORT_FRAMES: usize = 4096;
/// Most frames that are under way while the rate is measured: less than would be lost.
const WINDOW: u64 = 2048;
const UNIX_S: u64 = 1_800_000_000;

fn key() -> ClusterKey {
    ClusterKey::from_bytes([1; 32])
}

fn endpoint(role: Role, name: &str) -> Endpoint {
    let identity = PeerIdentity::daemon(role, name.parse().unwrap(), 1, 0);
    let verify = (role == Role::AppNode).then(|| key().into());
    Endpoint::new(ProviderKind::Shm.open().unwrap(), EndpointConfig::tunnel(identity, verify))
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("csp-bench-{name}-{}.sock", std::process::id()))
}

/// A thread that takes turns until it is stopped.
struct Thread(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Thread {
    fn start(mut turn: impl FnMut(Instant) -> bool + Send + 'static, begin: Clock) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !turn(now(begin)) {
                    std::thread::yield_now();
                }
            }
        });
        Thread(stop, Some(thread))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().unwrap().join();
    }
}

fn now(begin: Clock) -> Instant {
    Instant::from_nanos(1_000_000_000 + begin.elapsed().as_nanos() as u64)
}

/// A worker whose rules lead to a host, and the client at its port.
struct Bed {
    begin: Clock,
    worker: NetworkWorker,
    client: LanPort,
    back_at: LanPort,
    frames: Vec<Vec<u8>>,
    sent: u64,
    back: u64,
    /// When frames were sent, by their number modulo the ring's length.
    sent_at: Vec<Clock>,
    trips: Vec<u64>,
    _host: Thread,
}

impl Bed {
    fn new(case: Case, level: Level, rules: Vec<Rule>, len: usize) -> Self {
        let begin = Clock::now();
        let path = socket("host");
        let mut host = endpoint(Role::AppNode, "an-1");
        host.listen(&ViAddress::Path(path.clone())).unwrap();
        let mut host = HostWorker::new(vec![host], SessionConfig::default());
        let thread = Thread::start(move |now| host.turn(now, UNIX_S), begin);
        let hub = Hub::new(PORT_FRAMES);
        let client = hub.attach("eth0", CLIENT_MAC, 9000);
        // Frames leave as they came: they are for the node's address, which a station of the second hub has.
        let second = Hub::new(PORT_FRAMES);
        let lans = vec![hub.attach("lan0", OUR_MAC, 9000), second.attach("lan1", CLIENT_MAC, 9000)];
        let back_at = second.attach("back", OUR_MAC, 9000);
        let plugins = PluginCapacity { rules: 16_384, instances: 256, environments: 16, flows: 8192 };
        let config =
            CoreConfig { plugins, ..CoreConfig::new(vec![PortConfig::new(OUR_MAC, 9000); 2], (1, 2)) };
        let tokens = TokenSource { keys: key().into(), node: "nn-1".parse().unwrap(), nonce: 9 };
        let endpoints = vec![endpoint(Role::NetworkNode, "nn-1")];
        let mut worker = NetworkWorker::new(config, 0, lans, endpoints, tokens);
        let frames = load::frames_of(&rules, len);
        let (mut change, hosted) = change(case, level, rules);
        worker.change_plugins(&mut change, &[hosted]);
        let dial = DialSpec { worker: 0, endpoint: 0, address: ViAddress::Path(path) };
        worker.set_hosts(now(begin), &[HostSpec { environment: HOST, node: "an-1".parse().unwrap(), dial }]);
        let mut bed = Bed {
            begin,
            worker,
            client,
            back_at,
            frames,
            sent: 0,
            back: 0,
            sent_at: vec![begin; 1 << 16],
            trips: Vec::new(),
            _host: thread,
        };
        let deadline = Clock::now() + Duration::from_secs(10);
        while level == Level::Host && !bed.runs() {
            bed.turn();
            assert!(Clock::now() < deadline, "the host does not run");
        }
        bed
    }

    fn counts(&self) -> PluginCounts {
        let mut counts = PluginCounts { environments: vec![(HOST, false)], ..PluginCounts::default() };
        self.worker.core().count_plugins(&mut counts);
        counts
    }

    fn runs(&self) -> bool {
        self.counts().environments[0].1
    }

    /// Sends the next of `different` frames, with its number in its last bytes.
    fn send(&mut self, different: usize) {
        let at = self.sent as usize % different.clamp(1, self.frames.len());
        let frame = &mut self.frames[at];
        let end = frame.len() - 8;
        frame[end..].copy_from_slice(&self.sent.to_le_bytes());
        let slot = self.sent as usize % self.sent_at.len();
        self.sent_at[slot] = Clock::now();
        // What the port has no room for is lost, as at any port.
        let _ = self.client.transmitter.transmit(&[frame], None);
        self.client.transmitter.flush();
        self.sent += 1;
    }

    /// A turn of the worker, and what has come back.
    fn turn(&mut self) -> bool {
        let busy = self.worker.turn(now(self.begin), UNIX_S);
        let (sent_at, trips, back) = (&self.sent_at, &mut self.trips, &mut self.back);
        let arrived = self.back_at.receiver.receive(&mut |frame| {
            let Some(number) = frame.bytes.last_chunk::<8>() else { return };
            let slot = u64::from_le_bytes(*number) as usize % sent_at.len();
            *back += 1;
            if trips.len() < trips.capacity() {
                trips.push(sent_at[slot].elapsed().as_nanos() as u64);
            }
        });
        if !busy && arrived == 0 {
            std::thread::yield_now();
        }
        busy || arrived > 0
    }

    fn reset(&mut self) {
        let until = Clock::now() + Duration::from_millis(50);
        while self.turn() || Clock::now() < until {}
        (self.sent, self.back, self.trips) = (0, 0, Vec::with_capacity(1 << 20));
    }

    /// Packets a second with a window of frames under way.
    fn rate(&mut self, time: Duration) -> f64 {
        self.reset();
        let begin = Clock::now();
        while begin.elapsed() < time {
            for _ in 0..64.min(WINDOW.saturating_sub(self.sent - self.back)) {
                self.send(usize::MAX);
            }
            self.turn();
        }
        self.back as f64 / begin.elapsed().as_secs_f64()
    }

    /// Round trips of one frame at a time, in microseconds: median and 99th percentile. So many `different`
    /// frames take turns.
    fn round_trip(&mut self, different: usize, time: Duration) -> (f64, f64) {
        self.reset();
        let begin = Clock::now();
        while begin.elapsed() < time {
            self.send(different);
            while self.back < self.sent {
                self.turn();
            }
        }
        percentiles(&mut self.trips)
    }

    /// Packets a second that came back, round trips, and the share that did not.
    fn offered(&mut self, thousands: u64, time: Duration) -> (f64, (f64, f64), f64) {
        self.reset();
        let (begin, rate) = (Clock::now(), thousands as f64 * 1e3);
        while begin.elapsed() < time {
            let due = (begin.elapsed().as_secs_f64() * rate) as u64;
            for _ in 0..due.saturating_sub(self.sent).min(256) {
                self.send(usize::MAX);
            }
            self.turn();
        }
        let (sent, back, seconds) = (self.sent, self.back, begin.elapsed().as_secs_f64());
        let trips = percentiles(&mut self.trips);
        // What is still under way is not lost.
        let until = Clock::now() + Duration::from_millis(50);
        while self.turn() || Clock::now() < until {}
        (back as f64 / seconds, trips, 1.0 - self.back as f64 / sent as f64)
    }
}

fn percentiles(nanos: &mut [u64]) -> (f64, f64) {
    nanos.sort_unstable();
    let at = |share: f64| {
        let index = (nanos.len() as f64 * share) as usize;
        nanos.get(index.min(nanos.len().saturating_sub(1))).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    };
    (at(0.5), at(0.99))
}

fn change(case: Case, level: Level, rules: Vec<Rule>) -> (PluginChange, HostInstances) {
    let mut manager = plugin_manager(1, HashKey(1, 2));
    let module = if case == Case::Counter { "counter" } else { "no-op" };
    let far = DesiredInstance {
        name: "far".to_owned(),
        module: module.to_owned(),
        outputs: vec![Some("back".to_owned())],
        level,
        host: if level == Level::Host { "h0".to_owned() } else { String::new() },
        ..DesiredInstance::default()
    };
    let back = DesiredInstance {
        name: "back".to_owned(),
        module: "redirect".to_owned(),
        settings: vec![("interface".to_owned(), "1".to_owned())],
        ..DesiredInstance::default()
    };
    manager.reconcile(&Desired { instances: vec![far, back], rules: vec![] }).unwrap();
    let instance = manager.instance("far").unwrap();
    let binding = Binding { instance, fallback: Fallback::Drop }.encode();
    let rules = rules.into_iter();
    manager.replace_rules(rules.map(|rule| Rule { instance: binding, ..rule }).collect()).unwrap();
    let text = write_hosted(&manager, "h0").unwrap().into();
    let commands: Vec<_> = std::iter::from_fn(|| manager.poll_command(0)).collect();
    let (table, directions) = (Some(manager.publish_rules()), (true, false));
    let change = PluginChange {
        commands,
        table,
        directions,
        retired: Vec::with_capacity(8),
        ..PluginChange::default()
    };
    (change, HostInstances { environment: HOST, text })
}

/// An endpoint, its link and a buffer.
fn step(
    endpoint: &mut Endpoint,
    now: Instant,
    link: &mut Option<LinkId>,
    buffer: &mut [u8],
) -> Option<usize> {
    endpoint.progress(now, UNIX_S);
    while let Some(event) = endpoint.poll_event() {
        if let LinkEvent::Up { link: up, .. } = event {
            *link = Some(up);
        }
    }
    endpoint.receive(now, buffer).map(|received| received.len)
}

/// Round trips of a message of `len` bytes between two endpoints over shared memory, in microseconds.
fn ping_pong(len: usize, time: Duration) -> (f64, f64) {
    let begin = Clock::now();
    let path = socket("ping");
    let mut far = endpoint(Role::AppNode, "an-1");
    far.listen(&ViAddress::Path(path.clone())).unwrap();
    let (mut link, mut buffer) = (None, vec![0; far.message_len()]);
    let echo = move |now: Instant| {
        let Some(len) = step(&mut far, now, &mut link, &mut buffer) else { return false };
        far.send(now, link.unwrap(), MessageKind::Packets, 0, &[&buffer[..len]]).unwrap();
        true
    };
    let _thread = Thread::start(echo, begin);
    let mut near = endpoint(Role::NetworkNode, "nn-1");
    let node = "nn-1".parse().unwrap();
    let claims = TokenClaims {
        role: Role::NetworkNode,
        node,
        process: csp_transport::ProcessId::NONE,
        uid: None,
        grant: csp_types::Grant::NONE,
        not_before: UNIX_S,
        expires: UNIX_S + 100,
        nonce: 1,
    };
    let token = token::issue(&key().signing(&claims).link("an-1".parse().unwrap()), &claims);
    near.connect(now(begin), &ViAddress::Path(path), Purpose::Packets, 0, (0, 1), token.as_bytes()).unwrap();
    let (mut link, mut buffer) = (None, vec![0; near.message_len()]);
    while link.is_none() {
        let _ = near.arm();
        step(&mut near, now(begin), &mut link, &mut buffer);
    }
    let (message, mut trips, started) = (vec![7; len], Vec::with_capacity(1 << 20), Clock::now());
    while started.elapsed() < time && trips.len() < trips.capacity() {
        let sent = Clock::now();
        near.send(now(begin), link.unwrap(), MessageKind::Packets, 0, &[&message]).unwrap();
        while step(&mut near, now(begin), &mut link, &mut buffer).is_none() {
            std::thread::yield_now();
        }
        trips.push(sent.elapsed().as_nanos() as u64);
    }
    percentiles(&mut trips)
}

/// Measures all of it, `seconds` for each figure; plots are written into the folder `write`.
pub fn measure(seconds: f64, write: Option<&str>) -> String {
    let time = Duration::from_secs_f64(seconds);
    let mut text = String::from(
        "\n## Level 3: a host across the SAN, over shared memory\n\nTwo threads, the worker with its client and the host, which poll; each figure was \
         measured for ",
    );
    let _ = writeln!(
        text,
        "{seconds} s. The round trip is that of one frame at a time, from the client's port and back to it; the SAN's own is that of a message of the \
         same length with its record's header between two endpoints over the same provider, the same message again and again. So is the first \
         column's frame; the second column's are all of the frames in turn, which are in no cache, nor is what the classifier reads for each.\n\n| \
         plug-in | bytes | k packets/s | Gb/s | the SAN's own round trip, median (p99) | of one frame | ratio | of all frames | ratio \
         |\n|---|---|---|---|---|---|---|---|---|"
    );
    let mut plots = Offered::default();
    for len in [72, 1460] {
        let own = ping_pong(len + csp_wire::packets::HEADER_LEN, time);
        for case in [Case::NoOp, Case::Counter] {
            let mut bed = Bed::new(case, Level::Host, load::rules(case), len);
            let rate = bed.rate(time);
            let (one, all) = (bed.round_trip(1, time), bed.round_trip(usize::MAX, time));
            let trip = |(median, p99): (f64, f64)| format!("{median:.2} µs ({p99:.2})");
            let line = format!(
                "| {} | {len} | {:.0} | {:.2} | {} | {} | {:.2} | {} | {:.2} |",
                case.name(),
                rate / 1e3,
                rate * len as f64 * 8.0 / 1e9,
                trip(own),
                trip(one),
                one.0 / own.0,
                trip(all),
                all.0 / own.0
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
            plots.measure(&mut bed, (3, case, len), time);
        }
        let mut bed = Bed::new(Case::NoOp, Level::Worker, load::rules(Case::NoOp), len);
        plots.measure(&mut bed, (2, Case::NoOp, len), time);
    }
    text + &plots.finish(write) + &unmatched_beside(time)
}
