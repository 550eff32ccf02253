//! What a seed determines: the processes, how they use their listeners, how they end, and the clients'
//! arrivals.

use csp_lan::faulty::FaultConfig;
use csp_types::Duration;
use csp_vi::memory::{Delay, InFlight};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Largest number of processes.
const SERVERS_MAX: usize = 5;
/// Time in which a run's processes can serve all its clients, so that none waits for the backlog's 60 s.
const WORK_MAX: Duration = Duration::from_secs(10);
/// The same if SYNs may be dropped: clients retransmit them after 1, 3, 7, 15 and 31 s.
const WORK_SMALL_BACKLOG_MAX: Duration = Duration::from_secs(3);

/// How a process uses its listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An event server that stops polling the listener after this number of accepts, and polls it again after
    /// `away`; zero: in the same turn (nginx).
    Toggling { every: u32, away: Duration, progresses: bool },
    /// An event server with this number of slots; it stops polling the listener while all are in use
    /// (Apache).
    Limited { slots: usize },
    /// A process that serves one connection at a time. It serves `computes` of eight connections without
    /// reading its channel. `stops_polling`: it removes the listener from its set meanwhile.
    Prefork { computes: u32, stops_polling: bool },
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerPlan {
    pub kind: Kind,
    /// Index of its member in the pool.
    pub member: usize,
    /// It accepts until no connection waits (EAGAIN), rather than only while the listener is readable.
    pub until_empty: bool,
    /// Longest time for which it serves one connection.
    pub serves_max: Duration,
    pub accept_window: u32,
    pub backlog: u32,
    /// Number of links to the proxy.
    pub links: u8,
    pub flows_max: usize,
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It closes its listener, serves what it has accepted, and exits.
    Closes,
    /// It is killed.
    Killed(InFlight),
}

/// The end of the process at index `server`; another process replaces it `gap` later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub at: Duration,
    pub server: usize,
    pub end: End,
    pub gap: Duration,
}

/// A client's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Visit {
    pub at: Duration,
    /// When the client aborts it, unless it has been served by then.
    pub leaves: Option<Duration>,
}

/// Parameters of a run, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct AcceptScenario {
    /// The seed.
    pub seed: u64,
    pub(crate) lan: FaultConfig,
    pub(crate) san: Delay,
    pub(crate) cookies: bool,
    pub(crate) half_open: usize,
    /// Connections in the backlog beyond which SYNs are dropped.
    pub(crate) backlog: usize,
    /// Application node and port of each pool member.
    pub(crate) members: Vec<(&'static str, u16)>,
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) changes: Vec<Change>,
    pub(crate) visits: Vec<Visit>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl AcceptScenario {
    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let random = &mut random;
        let pool = [("an-1", 8001), ("an-2", 8001), ("an-2", 8002)];
        let members = pool[..random.random_range(1..=pool.len())].to_vec();
        let servers = servers(random, members.len());
        let calm = servers.iter().all(|s| matches!(s.kind, Kind::Toggling { .. }));
        let changes =
            if calm || random.random_range(0..3) == 0 { Vec::new() } else { changes(random, servers.len()) };
        let small = random.random_range(0..4) == 0;
        let backlog = if small { random.random_range(4..24) } else { 4096 };
        let lossy = random.random_range(0..4) == 0;
        AcceptScenario {
            seed,
            lan: FaultConfig {
                loss_ppm: if lossy { random.random_range(0..10_000) } else { 0 },
                delay: Duration::from_micros(random.random_range(0..5_000)),
                ..FaultConfig::default()
            },
            san: Delay {
                fixed: Duration::from_micros(random.random_range(0..1_000)),
                jitter: Duration::from_micros(random.random_range(0..1_000)),
            },
            cookies: random.random_range(0..4) == 0,
            half_open: if random.random_range(0..4) == 0 { 64 } else { 1024 },
            backlog,
            members,
            visits: visits(random, &servers, small),
            servers,
            changes,
        }
    }

    /// Returns whether no process ever delays a connection for long, or ends: no offer is refused then.
    pub(crate) fn only_toggling(&self) -> bool {
        self.changes.is_empty()
            && self.servers.iter().all(|s| matches!(s.kind, Kind::Toggling { .. }) && s.flows_max >= 512)
    }
}

fn servers(random: &mut ChaCha8Rng, members: usize) -> Vec<ServerPlan> {
    let theme = random.random_range(0..6);
    let serves_max = ms([20, 200, 2_000][random.random_range(0..3)]);
    let count = random.random_range(1..=SERVERS_MAX);
    let server = |n: usize| ServerPlan {
        kind: kind(random, theme),
        // Each member gets one process before any gets two.
        member: if n < members { n } else { random.random_range(0..members) },
        until_empty: random.random_range(0..2) == 0,
        serves_max,
        accept_window: [1, 2, 16, 256, 256][random.random_range(0..5)],
        backlog: [5, 128, 511][random.random_range(0..3)],
        links: random.random_range(1..=2),
        flows_max: if theme != 0 && random.random_range(0..4) == 0 { 24 } else { 512 },
    };
    (0..count).map(server).collect()
}

fn kind(random: &mut ChaCha8Rng, theme: u32) -> Kind {
    match if theme < 3 { theme } else { random.random_range(0..3) } {
        0 => Kind::Toggling {
            every: random.random_range(1..=32),
            away: if random.random_range(0..2) == 0 {
                Duration::ZERO
            } else {
                ms(random.random_range(0..16))
            },
            progresses: random.random_range(0..2) == 0,
        },
        1 => Kind::Limited { slots: random.random_range(1..=64) },
        _ => Kind::Prefork {
            computes: random.random_range(0..=8),
            stops_polling: random.random_range(0..2) == 0,
        },
    }
}

fn changes(random: &mut ChaCha8Rng, servers: usize) -> Vec<Change> {
    // In a third of the runs there may be no process for up to 2.5 s: the proxy's grace is 3 s.
    let gaps = random.random_range(0..3) == 0;
    let change = |_| Change {
        at: Duration::from_micros(random.random_range(0..6_000_000)),
        server: random.random_range(0..servers),
        end: match random.random_range(0..4) {
            0 | 1 => End::Closes,
            2 => End::Killed(InFlight::Delivered),
            _ => End::Killed(InFlight::Lost),
        },
        gap: match (gaps, random.random_range(0..3)) {
            (_, 0) => Duration::ZERO,
            (true, _) => ms(random.random_range(0..2_500)),
            (false, _) => ms(random.random_range(0..100)),
        },
    };
    let mut changes: Vec<_> = (0..12).map(change).collect();
    changes.truncate(random.random_range(1..=12));
    changes.sort_by_key(|change| change.at);
    changes
}

/// Returns the number of connections that processes of this plan serve within `time`.
fn served_within(servers: &[ServerPlan], time: Duration) -> usize {
    let slots = |s: &ServerPlan| match s.kind {
        Kind::Toggling { .. } => s.flows_max,
        Kind::Limited { slots } => slots.min(s.flows_max),
        Kind::Prefork { .. } => 1,
    };
    let slots: usize = servers.iter().map(slots).sum();
    let mean_us = servers.iter().map(|s| mean(s.serves_max).as_micros()).max().unwrap_or(1).max(1);
    slots * (time.as_micros() / mean_us) as usize
}

/// Returns how long a connection is served: a quarter of them for up to `most`, the others for up to 100 ms
/// of it.
pub(crate) fn service_time(random: &mut ChaCha8Rng, most: Duration) -> Duration {
    let bound = if random.random_range(0..4) == 0 { most } else { most.min(ms(100)) };
    Duration::from_micros(random.random_range(1_000..1_000 + bound.as_micros() as u64))
}

fn mean(most: Duration) -> Duration {
    ms(1) + most / 8 + most.min(ms(100)) * 3 / 8
}

fn visits(random: &mut ChaCha8Rng, servers: &[ServerPlan], small_backlog: bool) -> Vec<Visit> {
    let (most, work) = if small_backlog { (150, WORK_SMALL_BACKLOG_MAX) } else { (400, WORK_MAX) };
    let most = served_within(servers, work).clamp(8, most);
    let count = random.random_range(most.div_ceil(4)..=most);
    let impatient = random.random_range(0..2) == 0;
    let bursts: Vec<(u64, u64)> = (0..random.random_range(1..=4))
        .map(|_| {
            (random.random_range(0..4_000_000), [1, 2_000, 50_000, 1_000_000][random.random_range(0..4)])
        })
        .collect();
    let visit = |_| {
        let (start, width) = bursts[random.random_range(0..bursts.len())];
        let at = Duration::from_micros(start + random.random_range(0..width));
        let leaves = (impatient && random.random_range(0..6) == 0)
            .then(|| at + Duration::from_micros(random.random_range(0..500_000)));
        Visit { at, leaves }
    };
    let mut visits: Vec<_> = (0..count).map(visit).collect();
    visits.sort_by_key(|visit| visit.at);
    visits
}
