//! What a seed determines: faults of the links, the work, and the incident with its time.

use csp_lan::faulty::FaultConfig;
use csp_types::Duration;
use csp_vi::memory::Delay;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::http::HttpPlan;
use crate::pattern::Refusal;

/// Makes the random source of hairpins independent of all others.
const HAIRPIN_SEED: u64 = 0x6861_6972_7069_6e73;
/// The same for draining.
const DRAIN_SEED: u64 = 0x6472_6169_6e69_6e67;

/// An event in the middle of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incident {
    /// Nothing: every transaction must complete.
    None,
    /// The first proxy dies: its connections may fail, new ones use the other.
    ProxyDies,
    /// The first proxy dies and is restarted with a new incarnation.
    ProxyRestarts,
    /// The first application process dies: its connections may end early, new ones use the other.
    ProcessDies,
    /// The VI between the first proxy and the first process breaks and is replaced; connections on it may
    /// fail.
    ChannelBreaks,
    /// The VI between a network node and the first proxy breaks and is replaced: connections continue.
    TunnelBreaks,
    /// The VI between the first proxy and the first process breaks while both are alive: the link resumes on
    /// another VI, and connections are not affected.
    ChannelResumes,
    /// The same, between a network node and the first proxy.
    TunnelResumes,
    /// The first network node loses its tables: clients' connections continue.
    NetworkNodeRestarts,
    /// The first of two network nodes dies: clients' connections continue through the second.
    NetworkNodeDies,
}

impl Incident {
    /// All of them; the first is drawn more often than any other.
    const DRAWN: [Incident; 14] = [
        Incident::ChannelResumes,
        Incident::TunnelResumes,
        Incident::None,
        Incident::None,
        Incident::None,
        Incident::None,
        Incident::None,
        Incident::ProxyDies,
        Incident::ProxyRestarts,
        Incident::ProcessDies,
        Incident::ChannelBreaks,
        Incident::TunnelBreaks,
        Incident::NetworkNodeRestarts,
        Incident::NetworkNodeDies,
    ];

    /// Returns whether a connection that a client opened may end early or with an error.
    pub fn may_break_clients(self) -> bool {
        !matches!(
            self,
            Incident::None
                | Incident::TunnelBreaks
                | Incident::ChannelResumes
                | Incident::TunnelResumes
                | Incident::NetworkNodeRestarts
                | Incident::NetworkNodeDies
        )
    }

    /// Returns whether a node ends that an edge has in one process with another, which would end with it.
    fn ends_an_edge(self) -> bool {
        use Incident::{NetworkNodeDies, NetworkNodeRestarts, ProxyDies, ProxyRestarts};
        matches!(self, ProxyDies | ProxyRestarts | NetworkNodeDies | NetworkNodeRestarts)
    }

    /// Returns whether VIs break although both of their ends are alive.
    pub fn resumes(self) -> bool {
        matches!(self, Incident::ChannelResumes | Incident::TunnelResumes)
    }

    /// Returns whether a connection that an application opened may end early or with an error.
    pub fn may_break_applications(self) -> bool {
        !matches!(self, Incident::None | Incident::NetworkNodeRestarts | Incident::NetworkNodeDies)
            && !self.resumes()
    }

    /// Returns whether a connection that an application opens may be refused because the proxy has no network
    /// node.
    pub fn may_cut_off(self) -> bool {
        matches!(self, Incident::NetworkNodeRestarts | Incident::NetworkNodeDies)
    }
}

/// One transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// When it starts, relative to the earliest start.
    pub start: Duration,
    /// The process that sends a request to the client host, or to the service; `None`: the client requests
    /// from the service.
    pub by_process: Option<usize>,
    /// The process sends its request to the service: a hairpin.
    pub hairpin: bool,
    /// Bytes from the requesting side.
    pub upload: u32,
    /// Bytes to the requesting side.
    pub download: u32,
    /// The requesting side ends its direction first, and the response waits for that.
    pub half_close: bool,
    /// The response does not wait for the end of the upload.
    pub duplex: bool,
    /// The requesting side resets the connection after this number of bytes in both directions.
    pub abort_after: Option<u64>,
    /// The serving side refuses the upload.
    pub refusal: Option<Refusal>,
    /// It starts after the incident is over: it must complete.
    pub late: bool,
    /// The requesting client reads nothing until this time after the earliest start.
    pub deaf: Option<Duration>,
}

/// A process that stops reading for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Number of the process.
    pub process: usize,
    /// When it begins, relative to the earliest start.
    pub from: Duration,
    /// Its length.
    pub length: Duration,
    /// Whether the process does nothing else either, as a stopped process.
    pub stopped: bool,
}

/// A proxy that gets no new connections for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// Number of the proxy.
    pub proxy: usize,
    /// When it begins, relative to the earliest start.
    pub from: Duration,
    /// Its length.
    pub length: Duration,
}

/// Parameters of a run, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Network nodes, 1 or 2.
    pub network_nodes: usize,
    /// Workers of each network node, 1 to 3: frames of its LAN port are distributed among them.
    pub network_workers: usize,
    /// The first workers of the first network node and the first proxy share a thread and a clock, and
    /// records to the network node take the way of an edge.
    pub edge: bool,
    /// The nodes' clocks are hours apart, drift and step; otherwise all show the simulation's time.
    pub clocks_differ: bool,
    /// Faults towards the client, and towards the network nodes.
    pub lan: [FaultConfig; 2],
    /// Delay of every VI.
    pub san: Delay,
    /// The incident.
    pub incident: Incident,
    /// When it happens, relative to the earliest start.
    pub strikes: Duration,
    /// How long it takes until the node is replaced, or another one takes over.
    pub outage: Duration,
    /// The proxies try the same source ports for connections that applications open. One network node detects
    /// that; two that share addresses cannot.
    pub same_ports: bool,
    /// A process that stops reading.
    pub stall: Option<Stall>,
    /// A proxy that drains, and then goes on.
    pub drain: Option<Drain>,
    /// The proxies answer every SYN with a cookie, as in a flood.
    pub cookies: bool,
    /// The clients' connections are ones of TLS, which ends at the proxies.
    pub tls: bool,
    /// The service is one of HTTP.
    pub http: Option<HttpPlan>,
    /// The proxies keep a log of connections.
    pub logged: bool,
    /// The largest IP packet on the path to the client; a router in front of it reports larger ones (RFC
    /// 1191).
    pub path_mtu: u16,
    /// The MTU of a router that fragments the client's packets to the network nodes, whose DF it ignores.
    pub fragments: Option<u16>,
    /// The MTU of the network nodes' LAN ports.
    pub lan_mtu: u16,
    /// A router marks one in this number of ECN-capable packets of each direction (RFC 3168); 0: none, and
    /// the client does not propose ECN.
    pub marks: u32,
    /// One in this number of connections that a process serves is left half-way, and taken over again; 0:
    /// none.
    pub moves: u32,
    /// The work, in the order of its start.
    pub work: Vec<Transaction>,
}

impl Scenario {
    /// How long after an incident new transactions must complete: death is detected within a second, and a
    /// lost VI is dialled again within two.
    pub const RECOVERY: Duration = Duration::from_millis(3_500);

    /// Returns the scenario of a seed with TLS. Programs of the cluster do not speak it.
    pub fn with_tls(seed: u64) -> Self {
        let mut scenario = Scenario { tls: true, ..Scenario::of(seed) };
        for transaction in scenario.work.iter_mut().filter(|transaction| transaction.hairpin) {
            // The client serves it instead, and reads nothing of what it refuses, whoever dies.
            (transaction.hairpin, transaction.refusal) = (false, None);
        }
        scenario
    }

    /// Returns whether other threads than the proxies' make the long steps of handshakes.
    pub(crate) fn signs_elsewhere(&self) -> bool {
        self.tls && self.seed % 2 == 1
    }

    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let lan = [link(&mut random), link(&mut random)];
        let slow = if random.random_range(0..8) == 0 { 10_000 } else { 200 };
        let san = Delay {
            fixed: Duration::from_micros(random.random_range(0..slow)),
            jitter: Duration::from_micros(random.random_range(0..slow)),
        };
        let incident = Incident::DRAWN[random.random_range(0..Incident::DRAWN.len())];
        let strikes = Duration::from_micros(random.random_range(0..300_000));
        let outage = Duration::from_micros(random.random_range(0..500_000));
        let network_nodes =
            if incident == Incident::NetworkNodeDies { 2 } else { random.random_range(1..=2) };
        let same_ports = network_nodes == 1 && random.random_range(0..4) == 0;
        let stall = (random.random_range(0..4) == 0).then(|| Stall {
            process: random.random_range(0..2),
            from: Duration::from_micros(random.random_range(0..200_000)),
            length: Duration::from_micros(random.random_range(100_000..4_000_000)),
            stopped: random.random_range(0..2) == 0,
        });
        // A process that does not run cannot complete its transactions in time.
        let stall = stall.filter(|stall| incident != Incident::ChannelResumes || !stall.stopped);
        let mut work: Vec<_> = (0..random.random_range(1..16)).map(|_| transaction(&mut random)).collect();
        if incident != Incident::None {
            let start = strikes + outage + Self::RECOVERY;
            work.extend((0..4).map(|_| Transaction { start, late: true, ..transaction(&mut random) }));
        }
        // From a separate source, so that seeds draw the same values as before hairpins were added.
        let mut random_hairpins = ChaCha8Rng::seed_from_u64(seed ^ HAIRPIN_SEED);
        for transaction in work.iter_mut().filter(|t| t.by_process.is_some()) {
            transaction.hairpin = random_hairpins.random_range(0..2) == 0;
        }
        work.sort_by_key(|t| t.start);
        let mut random_drains = ChaCha8Rng::seed_from_u64(seed ^ DRAIN_SEED);
        let drain = (random_drains.random_range(0..3) == 0).then(|| Drain {
            proxy: random_drains.random_range(0..2),
            from: Duration::from_micros(random_drains.random_range(0..100_000)),
            length: Duration::from_micros(random_drains.random_range(10_000..400_000)),
        });
        let cookies = random.random_range(0..4) == 0;
        let mut mtu = || if random.random_range(0..4) == 0 { random.random_range(600..1_500) } else { 1_500 };
        let (path_mtu, lan_mtu) = (mtu(), mtu());
        let marks = if random.random_range(0..4) == 0 { random.random_range(1..100) } else { 0 };
        let moves = random.random_range(0..4);
        Scenario {
            seed,
            network_nodes,
            network_workers: seed as usize % 3 + 1,
            edge: seed % 4 < 2 && !incident.ends_an_edge(),
            clocks_differ: true,
            lan,
            san,
            incident,
            strikes,
            outage,
            same_ports,
            stall,
            drain,
            cookies,
            tls: false,
            http: None,
            logged: seed % 2 == 1,
            path_mtu,
            fragments: None,
            lan_mtu,
            marks,
            moves,
            work,
        }
    }
}

/// Draws the faults of a LAN port.
pub(crate) fn link(random: &mut ChaCha8Rng) -> FaultConfig {
    let mut chance = |in_how_many: u32, ppm_max: u32| {
        if random.random_range(0..in_how_many) == 0 { random.random_range(0..ppm_max) } else { 0 }
    };
    FaultConfig {
        loss_ppm: chance(2, 50_000),
        duplicate_ppm: chance(3, 20_000),
        reorder_ppm: chance(3, 50_000),
        corrupt_ppm: chance(4, 10_000),
        delay: Duration::from_micros(chance(1, 20_000).into()),
        reorder_delay: Duration::from_millis(3),
    }
}

fn transaction(random: &mut ChaCha8Rng) -> Transaction {
    let size = |random: &mut ChaCha8Rng| match random.random_range(0..6) {
        0 => 0,
        1 => 1,
        2 | 3 => random.random_range(0..4_000),
        4 => random.random_range(0..64_000),
        _ => random.random_range(0..400_000),
    };
    let (upload, download): (u32, u32) = (size(random), size(random));
    let aborts = random.random_range(0..8) == 0;
    // Of the sizes, so that a seed keeps its other parts.
    let mixed = upload.wrapping_mul(0x9e37_79b1) ^ download;
    let refuses = !aborts && download > 0 && mixed >> 8 & 3 == 0;
    let refusal = Refusal { shuts: mixed >> 10 & 1 == 0, resets: mixed >> 11 & 1 == 0 };
    Transaction {
        start: Duration::from_micros(random.random_range(0..200_000)),
        by_process: (random.random_range(0..5) == 0).then(|| random.random_range(0..2)),
        hairpin: false,
        upload,
        download,
        half_close: random.random_range(0..4) == 0,
        duplex: random.random_range(0..4) == 0,
        abort_after: aborts.then(|| random.random_range(0..u64::from(upload) + u64::from(download) + 20)),
        refusal: refuses.then_some(refusal),
        late: false,
        deaf: None,
    }
}
