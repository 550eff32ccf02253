//! What a seed determines: the nodes, the faults with their times, and the clients' work.

use csp_lan::faulty::FaultConfig;
use csp_types::Duration;
use csp_vi::memory::Delay;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::client::Pace;
use crate::scenario::link;

/// The most proxies of a scenario.
pub(super) const PROXIES_MAX: usize = 3;

/// Which network node a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The one that holds the group at that time, or else the first.
    Holder,
    /// The other one.
    Other,
    /// Both.
    Both,
    /// This one, by index.
    Node(usize),
}

/// A fault of a network node, and what ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Its process ends; then it is started again.
    Kill,
    /// Its host loses power: its peers notice only its silence. Then it is started again.
    Crash,
    /// Its process is stopped, and continued.
    Stop,
    /// Its host sleeps: CLOCK_MONOTONIC stands still. Then it wakes.
    Sleep,
    /// Nothing passes between it and some proxies.
    Cut([bool; PROXIES_MAX]),
    /// Its LAN port is cut off; the node notices the loss of its link or it does not.
    Lan {
        /// Whether it notices.
        noticed: bool,
    },
    /// It drains, and then does not any more.
    Drain,
    /// It is stopped in order; then it is started again.
    Leave,
}

impl Fault {
    /// Returns its name, for counting.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Crash => "crash",
            Fault::Stop => "stop",
            Fault::Sleep => "sleep",
            Fault::Cut(_) => "cut",
            Fault::Lan { noticed: true } => "lan",
            Fault::Lan { noticed: false } => "silent lan",
            Fault::Drain => "drain",
            Fault::Leave => "leave",
        }
    }

    fn drawn(random: &mut ChaCha8Rng, proxies: usize) -> Self {
        match random.random_range(0..14) {
            0 | 1 => Fault::Kill,
            2 => Fault::Crash,
            3 | 4 => Fault::Stop,
            5 => Fault::Sleep,
            6..=9 => {
                let mut cut: [bool; PROXIES_MAX] = Default::default();
                cut.iter_mut().take(proxies).for_each(|cut| *cut = random.random_range(0..2) == 0);
                cut[random.random_range(0..proxies)] = true;
                Fault::Cut(cut)
            }
            10 | 11 => Fault::Lan { noticed: random.random_range(0..4) > 0 },
            12 => Fault::Drain,
            _ => Fault::Leave,
        }
    }
}

/// A fault that begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// When it begins, relative to the earliest start of the work.
    pub from: Duration,
    /// Its length.
    pub length: Duration,
    /// Which network node it strikes.
    pub target: Target,
    /// What it is.
    pub fault: Fault,
}

/// A connection of a client to the VIP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visit {
    /// When it starts, relative to the earliest start.
    pub start: Duration,
    /// Bytes to the application.
    pub upload: u32,
    /// Bytes from the application.
    pub download: u32,
    /// The download does not wait for the end of the upload.
    pub duplex: bool,
    /// How slowly the client sends.
    pub pace: Option<Pace>,
    /// The client reads nothing until this time after the earliest start.
    pub deaf: Option<Duration>,
}

/// Parameters of a run, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct TakeoverScenario {
    /// The seed.
    pub seed: u64,
    /// Proxies, 1 to 3.
    pub proxies: usize,
    /// Workers of each network node, 1 or 2.
    pub network_workers: usize,
    /// The nodes' clocks are hours apart, drift and step; otherwise all show the simulation's time.
    pub clocks_differ: bool,
    /// VIs can break while both ends live: a link then waits for another one, as over kernel TCP.
    pub breakable: bool,
    /// Faults of the LAN towards the clients, and towards the network nodes.
    pub lan: [FaultConfig; 2],
    /// Delay of every VI.
    pub san: Delay,
    /// The first network node is preferred.
    pub prefers: bool,
    /// How long the preferred node must have been well before it gets the group back; `None`: never.
    pub failback: Option<Duration>,
    /// The faults, in the order of their beginnings.
    pub outages: Vec<Outage>,
    /// The work, in the order of its start.
    pub visits: Vec<Visit>,
}

impl TakeoverScenario {
    /// How long after the end of the last fault a network node must hold the group: a lost link is dialled
    /// again within 2 s, votes end within 0.9 s, and an attempt that fails is repeated within 0.6 s.
    pub const RECOVERY: Duration = Duration::from_millis(4_000);
    /// The faults begin in this time.
    const DISTURBED: Duration = Duration::from_secs(4);

    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x7461_6b65_6f76_6572);
        let proxies = random.random_range(1..=PROXIES_MAX);
        // A slow SAN: what the others do is known late, but within the time of an attempt.
        let slow = if random.random_range(0..4) == 0 { 80_000 } else { 1_000 };
        let mut us = |most: u64| Duration::from_micros(random.random_range(0..most));
        let san = Delay { fixed: us(slow), jitter: us(slow.min(20_000)) };
        let failback = us(4_000_000);
        let mut outages = match random.random_range(0..6) {
            0 if proxies == PROXIES_MAX => unreached(&mut random),
            1 if proxies == PROXIES_MAX => minority(&mut random),
            _ => Vec::new(),
        };
        let more = random.random_range(usize::from(outages.is_empty())..=4 - outages.len());
        outages.extend((0..more).map(|_| outage(&mut random, proxies)));
        outages.sort_by_key(|outage| outage.from);
        let healed = end(&outages);
        let mut visits: Vec<Visit> =
            (0..random.random_range(3..8)).map(|_| visit(&mut random, healed)).collect();
        visits.sort_by_key(|visit| visit.start);
        TakeoverScenario {
            seed,
            proxies,
            network_workers: random.random_range(1..=2),
            clocks_differ: random.random_range(0..4) > 0,
            breakable: random.random_range(0..2) == 0,
            lan: [link(&mut random), link(&mut random)],
            san,
            prefers: random.random_range(0..2) == 0,
            failback: (random.random_range(0..2) == 0).then_some(failback),
            outages,
            visits,
        }
    }

    /// Returns when the last fault ends, relative to the earliest start.
    pub fn healed(&self) -> Duration {
        end(&self.outages)
    }
}

fn end(outages: &[Outage]) -> Duration {
    outages.iter().map(|outage| outage.from + outage.length).max().unwrap_or_default()
}

fn outage(random: &mut ChaCha8Rng, proxies: usize) -> Outage {
    let from = random.random_range(0..TakeoverScenario::DISTURBED.as_micros() as u64);
    let longest = if random.random_range(0..3) == 0 { 400_000 } else { 3_000_000 };
    let target = match random.random_range(0..6) {
        0..=2 => Target::Holder,
        3 | 4 => Target::Other,
        _ => Target::Both,
    };
    Outage {
        from: Duration::from_micros(from),
        length: Duration::from_micros(random.random_range(20_000..longest)),
        target,
        fault: Fault::drawn(random, proxies),
    }
}

/// The other node takes over while it cannot reach a proxy, which has connections.
fn unreached(random: &mut ChaCha8Rng) -> Vec<Outage> {
    let mut ms = |from: u64, to: u64| Duration::from_millis(random.random_range(from..to));
    let (from, length, after) = (ms(0, 1_000), ms(2_500, 3_500), ms(800, 1_500));
    let holder_away = ms(300, 2_000);
    let mut cut = [false; PROXIES_MAX];
    cut[random.random_range(0..PROXIES_MAX)] = true;
    let faults = [Fault::Kill, Fault::Crash, Fault::Stop, Fault::Drain, Fault::Leave];
    let fault = faults[random.random_range(0..faults.len())];
    vec![
        Outage { from, length, target: Target::Other, fault: Fault::Cut(cut) },
        Outage { from: from + after, length: holder_away, target: Target::Holder, fault },
    ]
}

/// A node starts while it cannot reach one of three proxies, takes the group, and then loses another proxy
/// when the other node has returned.
fn minority(random: &mut ChaCha8Rng) -> Vec<Outage> {
    let mut ms = |from: u64, to: u64| Duration::from_millis(random.random_range(from..to));
    let (from, away, both) = (ms(0, 500), ms(100, 300), ms(1_500, 2_500));
    let (lost, other_away) = (ms(1_200, 1_800), ms(1_000, 1_300));
    let (node, proxy) = (random.random_range(0..2), random.random_range(0..PROXIES_MAX));
    let cut = |missing: usize| Fault::Cut([0, 1, 2].map(|at| at == (proxy + missing) % PROXIES_MAX));
    let of = |node, from, length, fault| Outage { from, length, target: Target::Node(node), fault };
    vec![
        of(node, from, both + lost + Duration::from_secs(1), cut(0)),
        of(node, from, away, Fault::Kill),
        of(1 - node, from + Duration::from_millis(900), other_away, Fault::Kill),
        of(node, from + lost, both, cut(1)),
    ]
}

/// Draws a visit: a short one, one that sends slowly throughout the faults, or one that does not read until
/// they are over.
fn visit(random: &mut ChaCha8Rng, healed: Duration) -> Visit {
    let most = healed.as_micros() as u64;
    let start = Duration::from_micros(random.random_range(0..most));
    let size = |random: &mut ChaCha8Rng, most: u32| random.random_range(0..most);
    let (upload, download) = (size(random, 20_000), size(random, 60_000));
    let duplex = random.random_range(0..2) == 0;
    let visit = Visit { start, upload, download, duplex, pace: None, deaf: None };
    match random.random_range(0..4) {
        0 => visit,
        1 => Visit { start: start / 8, deaf: Some(healed), download: size(random, 200_000), ..visit },
        _ => {
            let every = Duration::from_millis(random.random_range(40..200));
            let sends = (most / every.as_micros() as u64).max(1);
            let bytes = (u64::from(upload) / sends).max(1) + 1;
            Visit { start: start / 8, pace: Some(Pace { bytes, every }), ..visit }
        }
    }
}
