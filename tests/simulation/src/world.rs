//! The run: nodes, virtual time, and the incident.

mod describe;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_app::ProxyTarget;
use csp_lan::LanPort;
use csp_lan::faulty::{FaultHandle, wrap};
use csp_lan::memory::Hub;
use csp_network_node::{Adjacent, NetworkWorker, ProxySpec};
use csp_proxy_node::core::PoolServer;
use csp_transport::{Adjacency, ClusterKey, Purpose};
use csp_types::{Duration, Instant, MacAddr, NodeId};
use csp_vi::memory::{InFlight, MemoryFabric};
use csp_vi::{ViAddress, ViId};

use crate::application::{Application, PORT};
use crate::client::{Client, SERVER_PORT};
use crate::clock::Clock;
use crate::http::HttpState;
use crate::judge::{self, Report};
use crate::measured::{measured_network_turn, measured_process_turn, measured_proxy_turn};
use crate::network::{configure, network_node, provider_name, proxy_spec};
use crate::pattern::Request;
use crate::proxy::{Policy, proxy};
use crate::scenario::{Incident, Scenario, Transaction};
use crate::signing::Signing;

pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 100);
const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 101);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);
const NN_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3])];
/// Longest step of time, so that conditions that depend on the time itself are evaluated.
const STEP_MAX: Duration = Duration::from_millis(50);
/// A run that takes longer than this is stuck.
const TIME_MAX: Duration = Duration::from_secs(900);
/// Time within which TIME-WAIT, lingering and keepalive must have ended after the last transaction.
const SETTLE: Duration = Duration::from_secs(150);
/// Turns at one instant before it counts as a livelock.
const TURNS_MAX: u32 = 100_000;
/// How often in succession a node may request to be woken at an instant that has passed.
const OVERDUE_MAX: u32 = 1_000;

/// A network node on the LAN.
pub(crate) struct NetworkNode {
    /// By number, each with the faults of its part of the LAN port.
    pub workers: Vec<(SharedWorker, FaultHandle)>,
}

/// A worker that a proxy's worker reaches, too, if the two share a thread.
#[derive(Clone)]
pub(crate) struct SharedWorker(Arc<Mutex<NetworkWorker>>);

impl SharedWorker {
    pub(crate) fn get(&self) -> MutexGuard<'_, NetworkWorker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes' clocks; the client's shows the simulation's time.
pub(crate) struct Clocks {
    networks: [Clock; 2],
    pub(crate) proxies: [Clock; 2],
    applications: [Clock; 2],
}

impl Clocks {
    fn of(scenario: &Scenario) -> Self {
        let of = |name: &str| {
            if scenario.clocks_differ { Clock::of(scenario.seed, name) } else { Clock::default() }
        };
        let pair = |tier: &str| [1, 2].map(|n| of(&format!("{tier}-{n}")));
        let (networks, mut proxies) = (pair("nn"), pair("pn"));
        if scenario.edge {
            proxies[0] = networks[0];
        }
        Clocks { networks, proxies, applications: pair("process") }
    }
}

/// All nodes of a run.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Instant,
    key: ClusterKey,
    fabric: MemoryFabric,
    hub: Hub,
    client_faults: FaultHandle,
    pub(crate) client: Client,
    pub(crate) networks: Vec<Option<NetworkNode>>,
    pub(crate) proxies: [Option<csp_proxy_node::ProxyWorker>; 2],
    pub(crate) applications: [Option<Application>; 2],
    /// Incarnation of the first proxy and of the first network node.
    lives: u64,
    /// What makes steps of handshakes for the proxies; `None`: they do.
    signing: Option<Signing>,
    pub(crate) clocks: Clocks,
    pub(crate) began: Instant,
    struck: bool,
    healed: bool,
    stalled: bool,
    /// The proxy that gets no new connections at this instant.
    pub(crate) draining: Option<usize>,
    overdue: u32,
    pub(crate) http: HttpState,
    pub(crate) report: Report,
}

fn node(name: &str) -> NodeId {
    name.parse().expect("the simulation's own names are valid")
}

fn proxy_name(at: usize) -> String {
    format!("pn-{}", at + 1)
}

pub(crate) fn policy(scenario: &Scenario) -> Policy {
    Policy {
        same_secrets: scenario.same_ports,
        cookies: scenario.cookies,
        tls: scenario.tls,
        http: scenario.http.clone(),
        logged: scenario.logged,
        ..Policy::new((VIP, PORT).into(), vec![PoolServer::of_node(node("an-1"), PORT)], EGRESS.into())
    }
}

impl World {
    /// Creates everything of a scenario, without connections.
    pub fn new(scenario: Scenario) -> Self {
        let key = ClusterKey::from_bytes([7; 32]);
        let fabric = MemoryFabric::with_seed(scenario.seed);
        if scenario.incident.resumes() {
            fabric.let_break();
        }
        fabric.set_default_delay(scenario.san);
        let hub = Hub::new(4096);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let port = hub.attach("client", mac, 1500);
        scenario.fragments.into_iter().for_each(|mtu| hub.fragment(mac, mtu));
        let (client_port, client_faults) = wrap(port, scenario.lan[0], scenario.seed);
        let clocks = Clocks::of(&scenario);
        let mut proxies = [0, 1].map(|at| {
            let birth = (clocks.proxies[at].at(Instant::ZERO), 1);
            Some(proxy(&fabric, &key, &proxy_name(at), birth, &policy(&scenario)))
        });
        let signing = scenario.signs_elsewhere().then(|| Signing::new(scenario.seed, &mut proxies));
        let target = |at| ProxyTarget {
            node: node(&proxy_name(at)),
            worker: 0,
            address: ViAddress::Name(format!("{}.channel", proxy_name(at))),
            draining: false,
        };
        let applications = [1u64, 2].map(|n| {
            let provider = Box::new(fabric.provider(&format!("process-{n}")));
            let targets = [target(0), target(1)];
            let mut application =
                Application::new(provider, &key, node("an-1"), &format!("p{n}"), &targets, n);
            (application.moves, application.http) = (scenario.moves, scenario.http.is_some());
            Some(application)
        });
        let mut world = World {
            client: Client::new(CLIENT, client_port, &scenario),
            networks: Vec::new(),
            now: Instant::ZERO,
            key,
            fabric,
            hub,
            client_faults,
            proxies,
            applications,
            lives: 1,
            signing,
            clocks,
            began: Instant::ZERO,
            struck: false,
            healed: false,
            stalled: false,
            draining: None,
            overdue: 0,
            http: HttpState::default(),
            report: Report::default(),
            scenario,
        };
        world.networks = (0..world.scenario.network_nodes).map(|at| Some(world.network(at))).collect();
        if world.scenario.edge {
            world.join();
        }
        world
    }

    /// Makes the first workers of the first network node and the first proxy share a thread.
    fn join(&mut self) {
        let (network, proxy) = (self.networks.first().and_then(Option::as_ref), self.proxies[0].as_mut());
        let Some((network, proxy)) = network.zip(proxy) else { return };
        let adjacency = Arc::new(Adjacency::new(node("nn-1"), node(&proxy_name(0)), 1));
        let Some((worker, _)) = network.workers.first() else { return };
        adjacency.set(0, Arc::new(Adjacent::new(&worker.0, adjacency.proxy_node)));
        worker.get().set_adjacency(Arc::clone(&adjacency));
        proxy.set_adjacency(adjacency);
    }

    fn network(&self, at: usize) -> NetworkNode {
        let name = format!("nn-{}", at + 1);
        let count = self.scenario.network_workers;
        let ports = self.hub.attach_workers(count, &name, NN_MACS[at], self.scenario.lan_mtu);
        let proxies = self.known_proxies();
        let now = self.clocks.networks[at].at(self.now);
        let worker = |(port, number): (LanPort, u8)| {
            let seed = self.scenario.seed.rotate_left(17 + at as u32 + u32::from(number)) ^ self.lives;
            let (port, faults) = wrap(port, self.scenario.lan[1], seed);
            faults.set_now(self.now);
            let mut worker =
                network_node(&self.fabric, &self.key, &name, self.lives, (number, count as u8), port);
            configure(&mut worker, now, &proxies, &[(VIP, PORT).into()], &[EGRESS.into()]);
            (SharedWorker(Arc::new(Mutex::new(worker))), faults)
        };
        NetworkNode { workers: ports.into_iter().zip(0..).map(worker).collect() }
    }

    /// Returns what network nodes know of the proxies at this instant.
    fn known_proxies(&self) -> [ProxySpec; 2] {
        let restarts = self.scenario.incident == Incident::ProxyRestarts;
        let lives = [if restarts { self.lives } else { 1 }, 1];
        [0, 1].map(|at| proxy_spec(&proxy_name(at), lives[at], self.draining == Some(at)))
    }

    fn network_workers(&self) -> impl Iterator<Item = &(SharedWorker, FaultHandle)> {
        self.networks.iter().flatten().flat_map(|network| &network.workers)
    }

    /// Runs to the end and returns the result.
    pub fn run(mut self) -> Report {
        if let Err(stuck) = self.run_work() {
            self.report.violations.push(stuck);
        }
        judge::judge(&mut self);
        self.report.elapsed = self.now - Instant::ZERO;
        self.report
    }

    fn run_work(&mut self) -> Result<(), String> {
        let nodes = self.networks.len();
        self.until("links", |w| {
            let tunnels =
                w.network_workers().map(|(worker, _)| worker.get().tunnels().filter(|t| t.up).count());
            let tunnels: usize = tunnels.sum();
            let channels: usize = w.applications.iter().flatten().map(Application::channels_up).sum();
            tunnels == 2 * nodes * w.scenario.network_workers && channels == 4
        })?;
        while self.client.gateways() < nodes {
            self.client.resolve(VIP);
            let end = self.now + Duration::from_secs(1);
            self.until("answers to ARP", |w| w.client.gateways() == nodes || w.now >= end)?;
        }
        self.began = self.now;
        for (at, transaction) in self.scenario.work.clone().into_iter().enumerate() {
            let start = self.began + transaction.start;
            self.until("the start of a transaction", |w| w.now >= start)?;
            self.start(at, transaction);
        }
        self.until("the end of all transactions", |w| {
            w.client.under_way() == 0 && w.applications.iter().flatten().all(|a| a.under_way() == 0)
        })?;
        let end = self.now + SETTLE;
        self.until("settling", |w| w.now >= end || judge::is_clean(w))
    }

    /// Returns the key of transaction number `at` of the scenario's work.
    pub(crate) fn key_of(&self, at: usize) -> u32 {
        (self.scenario.seed as u32).rotate_left(8) ^ (at as u32 + 1)
    }

    fn start(&mut self, at: usize, work: Transaction) {
        let Transaction { upload, download, half_close, duplex, refusal, deaf, .. } = work;
        let request = Request { upload, download, key: self.key_of(at), half_close, duplex, refusal };
        let now = self.now;
        if self.speaks_http(&work) {
            return self.start_http(at, work, request);
        }
        let Some(process) = work.by_process else {
            let deaf = deaf.map(|time| self.began + time);
            return self.client.start(now, (VIP, PORT).into(), request, work.abort_after, deaf);
        };
        let process = if self.applications[process].is_some() { process } else { 1 - process };
        if let Some(application) = &mut self.applications[process] {
            let remote = if work.hairpin { (VIP, PORT) } else { (CLIENT, SERVER_PORT) };
            application.start(remote.into(), request, work.abort_after);
        }
    }

    /// Advances time until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
        while !done(self) {
            self.settle_instant()?;
            if done(self) {
                return Ok(());
            }
            let next = self.next_event().unwrap_or(Instant::FAR_FUTURE).min(self.now + STEP_MAX);
            self.overdue = if next <= self.now { self.overdue + 1 } else { 0 };
            if self.overdue > OVERDUE_MAX {
                return Err(format!("a node asks to be woken again and again: {}", self.describe()));
            }
            self.now = next.max(self.now + Duration::from_nanos(1));
            if self.now - Instant::ZERO > TIME_MAX {
                return Err(format!("stuck waiting for {what}: {}", self.describe()));
            }
            self.fabric.advance(self.now);
            self.client_faults.set_now(self.now);
            self.network_workers().for_each(|(_, faults)| faults.set_now(self.now));
            self.happen();
            judge::look_at_round_trips(self);
        }
        Ok(())
    }

    /// Runs every node as far as possible at this instant.
    fn settle_instant(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            let now = self.now;
            let mut busy = self.client.turn(now);
            let Clocks { networks, proxies, applications } = &self.clocks;
            for (clock, network) in networks.iter().zip(&self.networks) {
                for (worker, _) in network.iter().flat_map(|n| &n.workers) {
                    busy |= measured_network_turn(&mut worker.get(), clock.at(now));
                }
            }
            for (clock, proxy) in proxies.iter().zip(&mut self.proxies) {
                busy |= proxy.as_mut().is_some_and(|p| measured_proxy_turn(p, clock.at(now)));
            }
            busy |= self.signing.as_mut().is_some_and(|it| it.turn(now, &mut self.proxies));
            for (clock, application) in applications.iter().zip(&mut self.applications) {
                busy |= application.as_mut().is_some_and(|a| measured_process_turn(a, clock.at(now)));
            }
            // Twice, because what the last node sent may reach the first one without delay.
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 2 {
                return Ok(());
            }
        }
        Err(format!("the nodes never come to rest at one instant: {}", self.describe()))
    }

    fn next_event(&self) -> Option<Instant> {
        let faults = self.network_workers().map(|(_, faults)| faults).chain([&self.client_faults]);
        let due = faults.filter_map(FaultHandle::next_due);
        let now = self.now;
        let workers = self.clocks.networks.iter().zip(&self.networks).flat_map(|(clock, node)| {
            let workers = node.iter().flat_map(|n| &n.workers);
            workers.filter_map(move |(worker, _)| Some(clock.when(now, worker.get().next_timeout()?)))
        });
        let proxies = self
            .clocks
            .proxies
            .iter()
            .zip(&self.proxies)
            .filter_map(|(clock, node)| Some(clock.when(now, node.as_ref()?.next_timeout()?)));
        let applications = self
            .clocks
            .applications
            .iter()
            .zip(&self.applications)
            .filter_map(|(clock, node)| Some(clock.when(now, node.as_ref()?.next_timeout()?)));
        let signing = self.signing.as_ref().and_then(Signing::next_due);
        let rest = [self.client.next_timeout(), self.fabric.next_due(), signing].into_iter().flatten();
        due.chain(workers).chain(proxies).chain(applications).chain(rest).min()
    }

    /// Performs what the scenario schedules for this instant.
    fn happen(&mut self) {
        if self.began == Instant::ZERO {
            return;
        }
        let since = self.now - self.began;
        if since >= self.scenario.strikes && !self.struck {
            self.struck = true;
            self.strike();
        }
        if since >= self.scenario.strikes + self.scenario.outage && !self.healed {
            self.healed = true;
            self.heal();
        }
        self.drain(since);
        self.happen_http(since);
        let Some(stall) = self.scenario.stall else { return };
        let stalled = since >= stall.from && since < stall.from + stall.length;
        if stalled != self.stalled {
            self.stalled = stalled;
            if !stalled {
                judge::check_backpressure(self);
            }
            if let Some(application) = &mut self.applications[stall.process] {
                application.stalled = stalled;
                application.stopped = stalled && stall.stopped;
            }
        }
    }

    /// Makes the network nodes use or spare a proxy as the scenario has it at this time after the earliest
    /// start.
    fn drain(&mut self, since: Duration) {
        let drains = self.scenario.drain.filter(|d| since >= d.from && since < d.from + d.length);
        let draining = drains.map(|drain| drain.proxy);
        if draining == self.draining {
            return;
        }
        self.draining = draining;
        let proxies = self.known_proxies();
        for (clock, network) in self.clocks.networks.iter().zip(&self.networks) {
            for (worker, _) in network.iter().flat_map(|n| &n.workers) {
                worker.get().set_proxies(clock.at(self.now), &proxies);
            }
        }
    }

    fn strike(&mut self) {
        match self.scenario.incident {
            Incident::None => {}
            Incident::ProxyDies | Incident::ProxyRestarts => {
                for purpose in ["tunnel", "channel"] {
                    self.fabric.kill_node(&format!("pn-1.{purpose}"), InFlight::Lost);
                }
                self.proxies[0] = None;
            }
            Incident::ProcessDies => {
                self.fabric.kill_node("process-1", InFlight::Delivered);
                let served = self.applications[0].take().map(|application| application.served);
                self.http.served.extend(served.into_iter().flatten());
            }
            Incident::ChannelBreaks => self.break_vi(Purpose::Channel, InFlight::Delivered),
            Incident::TunnelBreaks => self.break_vi(Purpose::Tunnel, InFlight::Lost),
            Incident::ChannelResumes => self.interrupt(Purpose::Channel),
            Incident::TunnelResumes => self.interrupt(Purpose::Tunnel),
            Incident::NetworkNodeRestarts | Incident::NetworkNodeDies => {
                for number in 0..self.scenario.network_workers as u8 {
                    self.fabric.kill_node(&provider_name("nn-1", number), InFlight::Lost);
                }
                self.networks[0] = None;
            }
        }
    }

    fn heal(&mut self) {
        match self.scenario.incident {
            Incident::ProxyRestarts => {
                self.lives += 1;
                let birth = (self.clocks.proxies[0].at(self.now), self.lives);
                let mut proxy = proxy(&self.fabric, &self.key, "pn-1", birth, &policy(&self.scenario));
                self.signing.iter_mut().for_each(|signing| signing.serve(0, &mut proxy));
                self.proxies[0] = Some(proxy);
            }
            Incident::NetworkNodeRestarts => {
                self.lives += 1;
                self.networks[0] = Some(self.network(0));
            }
            Incident::NetworkNodeDies => self.client.remove_gateway(NN_MACS[0]),
            _ => {}
        }
    }

    /// Returns the first proxy's first VI of this purpose.
    fn first_vi(&self, purpose: Purpose) -> Option<ViId> {
        let links = self.proxies[0].iter().flat_map(|proxy| proxy.endpoints()).flat_map(|e| e.links());
        links.filter(|l| l.purpose == purpose).map(|l| l.vi).min_by_key(|vi| vi.0)
    }

    /// Breaks that VI while both of its ends are alive; one of them may be notified later.
    fn interrupt(&mut self, purpose: Purpose) {
        let later = self.scenario.outage / 2;
        let notified = [(Duration::ZERO, later), (later, Duration::ZERO)][self.scenario.seed as usize % 2];
        let broken = self.first_vi(purpose).is_some_and(|vi| self.fabric.break_vi(vi, notified));
        assert!(broken, "the scenario breaks a VI that is not there");
    }

    /// Breaks that VI permanently.
    fn break_vi(&mut self, purpose: Purpose, in_flight: InFlight) {
        let broken = self.first_vi(purpose).is_some_and(|vi| self.fabric.kill_vi(vi, in_flight));
        assert!(broken, "the scenario breaks a VI that is not there");
    }
}
