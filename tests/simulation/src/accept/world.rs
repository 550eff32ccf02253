//! The run: one network node, one proxy, the processes and the clients, on virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use csp_app::ProxyTarget;
use csp_lan::faulty::{FaultHandle, wrap};
use csp_lan::memory::Hub;
use csp_network_node::NetworkWorker;
use csp_proxy_node::ProxyWorker;
use csp_proxy_node::core::{BacklogLimits, OFFER_PATIENCE, PoolServer};
use csp_transport::ClusterKey;
use csp_types::{Duration, FlowLabel, Instant, MacAddr, NodeId};
use csp_vi::ViAddress;
use csp_vi::memory::{InFlight, MemoryFabric};

use super::backlog::BacklogWatch;
use super::crowd::Crowd;
use super::judge::{self, AcceptReport};
use super::scenario::{AcceptScenario, Change, End};
use super::server::{Server, server_name};
use crate::network::{configure, network_node, proxy_spec};
use crate::proxy::{Policy, Sizes, proxy};

const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 76, 0, 100), 80);
const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 101);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);
const MTU: u16 = 1_500;
const STEP_MAX: Duration = Duration::from_millis(50);
/// A run that takes longer than this is stuck.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Time within which the proxy must have removed all connections after the last client was served.
const SETTLE: Duration = Duration::from_secs(90);
/// Turns at one instant before it counts as a livelock.
const TURNS_MAX: u32 = 100_000;
/// How often in succession a node may request to be woken at an instant that has passed.
const OVERDUE_MAX: u32 = 1_000;
/// Capacity of the proxy's flight recorder: every event of a run.
pub(super) const TRACE_EVENTS: usize = 1 << 17;

/// How long the proxy prefers other processes to one that lost an offer or handed one back.
const DOUBT: Duration = Duration::from_millis(200);
/// Largest factor by which the proxy multiplies its patience with the offers of one connection.
const PATIENCE_FACTOR: u32 = 8;
/// The longest transit time of a message there and back, and the millisecond between the proxy's examinations
/// of offers.
const WAYS: Duration = Duration::from_millis(2 * 2 + 1);
/// Time between two examinations of a process that is idle for long.
const LOOK_REST: Duration = Duration::from_millis(20);

/// Processes, clients and the nodes between them.
pub struct AcceptWorld {
    pub(super) scenario: AcceptScenario,
    pub(super) now: Instant,
    began: Instant,
    key: ClusterKey,
    fabric: MemoryFabric,
    faults: [FaultHandle; 2],
    pub(super) crowd: Crowd,
    network: NetworkWorker,
    pub(super) proxy: ProxyWorker,
    /// The processes by index; `None` until a process is replaced.
    pub(super) servers: Vec<Option<Server>>,
    /// Processes that have been requested to exit.
    leaving: Vec<Server>,
    /// Processes that have ended.
    pub(super) gone: Vec<Server>,
    changes: VecDeque<Change>,
    /// When each index gets its next process.
    arriving: BTreeSet<(Instant, usize)>,
    processes: u64,
    /// Connections that a killed process had accepted.
    pub(super) excused: BTreeSet<usize>,
    /// When each connection was established at the proxy, and by which client.
    pub(super) arrivals: BTreeMap<FlowLabel, (Instant, SocketAddr)>,
    established: u64,
    looks_at: Instant,
    pub(super) backlog: BacklogWatch,
    overdue: u32,
    pub(super) report: AcceptReport,
}

fn node(name: &str) -> NodeId {
    name.parse().expect("the simulation's own names are valid")
}

fn policy(scenario: &AcceptScenario) -> Policy {
    let pool = scenario.members.iter().map(|(name, port)| PoolServer::of_node(node(name), *port));
    let limits = BacklogLimits { connections: scenario.backlog, ..BacklogLimits::default() };
    Policy {
        backlog: limits,
        sizes: Sizes {
            connections: 1024,
            half_open: scenario.half_open,
            blocks: 8192,
            trace_events: TRACE_EVENTS,
            ..Sizes::default()
        },
        cookies: scenario.cookies,
        ..Policy::new(SERVICE.into(), pool.collect(), EGRESS.into())
    }
}

impl AcceptWorld {
    /// Creates everything of a scenario, without connections.
    pub fn new(scenario: AcceptScenario) -> Self {
        let key = ClusterKey::from_bytes([7; 32]);
        let fabric = MemoryFabric::with_seed(scenario.seed);
        fabric.set_default_delay(scenario.san);
        let hub = Hub::new(4096);
        let client = hub.attach("client", MacAddr([2, 0, 0, 0, 0, 1]), MTU);
        let (client, client_faults) = wrap(client, scenario.lan, scenario.seed);
        let port = hub.attach("nn-1", MacAddr([2, 0, 0, 0, 0, 2]), MTU);
        let (port, network_faults) = wrap(port, scenario.lan, scenario.seed.rotate_left(17));
        let proxy = proxy(&fabric, &key, "pn-1", (Instant::ZERO, 1), &policy(&scenario));
        let mut network = network_node(&fabric, &key, "nn-1", 1, (0, 1), port);
        configure(
            &mut network,
            Instant::ZERO,
            &[proxy_spec("pn-1", 1, false)],
            &[SERVICE.into()],
            &[EGRESS.into()],
        );
        let mut world = AcceptWorld {
            crowd: Crowd::new(CLIENT, SERVICE.into(), client, scenario.seed),
            now: Instant::ZERO,
            began: Instant::FAR_FUTURE,
            key,
            fabric,
            faults: [client_faults, network_faults],
            network,
            proxy,
            servers: Vec::new(),
            leaving: Vec::new(),
            gone: Vec::new(),
            changes: scenario.changes.iter().copied().collect(),
            arriving: BTreeSet::new(),
            processes: 0,
            excused: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            established: 0,
            looks_at: Instant::ZERO,
            backlog: BacklogWatch::default(),
            overdue: 0,
            report: AcceptReport::default(),
            scenario,
        };
        world.servers = (0..world.scenario.servers.len()).map(|place| Some(world.server(place))).collect();
        world
    }

    fn server(&mut self, place: usize) -> Server {
        self.processes += 1;
        let number = self.processes;
        let plan = self.scenario.servers[place];
        let (name, port) = self.scenario.members[plan.member];
        let target = ProxyTarget {
            node: node("pn-1"),
            worker: 0,
            address: ViAddress::Name("pn-1.channel".into()),
            draining: false,
        };
        let provider = Box::new(self.fabric.provider(&server_name(number)));
        let names = (number, self.scenario.seed);
        Server::new(provider, &self.key, (node(name), port), names, plan, &target)
    }

    /// Runs to the end and judges the result.
    pub fn run(mut self) -> AcceptReport {
        if let Err(stuck) = self.run_work() {
            self.report.violations.push(stuck);
        }
        judge::judge(&mut self);
        self.report.elapsed = self.now - Instant::ZERO;
        self.report
    }

    fn run_work(&mut self) -> Result<(), String> {
        self.until("links", |w| {
            w.network.tunnels().filter(|t| t.up).count() == 1 && w.servers.iter().flatten().all(Server::is_up)
        })?;
        while !self.crowd.has_gateway() {
            self.crowd.resolve();
            let end = self.now + Duration::from_secs(1);
            self.until("answers to ARP", |w| w.crowd.has_gateway() || w.now >= end)?;
        }
        self.began = self.now;
        self.crowd.plan(self.began, &self.scenario.visits);
        self.until("the end of all connections", |w| {
            w.crowd.is_over() && w.changes.is_empty() && w.arriving.is_empty()
        })?;
        let end = self.now + SETTLE;
        self.until("settling", |w| w.now >= end || judge::leftovers(w).is_empty())
    }

    /// Advances time until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        while !done(self) {
            self.settle_instant()?;
            self.look_for_missed();
            self.backlog.look(self.now, self.proxy.core(), &self.arrivals, &mut self.report.violations);
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
            self.faults.iter().for_each(|faults| faults.set_now(self.now));
            self.happen();
        }
        Ok(())
    }

    /// Runs every node as far as possible at this instant.
    fn settle_instant(&mut self) -> Result<(), String> {
        let (now, mut quiet) = (self.now, 0);
        for _ in 0..TURNS_MAX {
            let mut busy = self.crowd.turn(now);
            busy |= self.network.turn(now, 1);
            busy |= self.proxy.turn(now, 1);
            self.note_arrivals();
            let servers = self.servers.iter_mut().flatten().chain(&mut self.leaving);
            busy |= servers.fold(false, |any, server| server.turn(now) | any);
            // Twice, because what the last node sent may reach the first one without delay.
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 2 {
                return Ok(());
            }
        }
        Err(format!("the nodes never come to rest at one instant: {}", self.describe()))
    }

    fn next_event(&self) -> Option<Instant> {
        let due = self.faults.iter().filter_map(FaultHandle::next_due);
        let servers = self.servers.iter().flatten().chain(&self.leaving).filter_map(Server::next_timeout);
        let change = self.changes.front().map(|change| self.began + change.at);
        let arrival = self.arriving.first().map(|(at, _)| *at);
        let workers = [self.network.next_timeout(), self.proxy.next_timeout(), self.crowd.next_timeout()];
        let rest = [change, arrival, self.fabric.next_due()];
        due.chain(servers).chain(workers.into_iter().chain(rest).flatten()).min()
    }

    /// Records the connections that the proxy has established since the last call.
    fn note_arrivals(&mut self) {
        let core = self.proxy.core();
        let established = core.counters().connections_passive;
        let new = (established - std::mem::replace(&mut self.established, established)) as usize;
        if new == 0 {
            return;
        }
        // Those that entered their stage last come first; the others of this turn are few.
        for limit in [2 * new + 64, usize::MAX] {
            let before = self.arrivals.len();
            for flow in core.flows(self.now, limit) {
                self.arrivals.entry(flow.label).or_insert((self.now, flow.tuple.remote));
            }
            if self.arrivals.len() - before == new {
                return;
            }
        }
    }

    /// Ends and starts processes that are due.
    fn happen(&mut self) {
        while let Some(change) = self.changes.pop_front_if(|c| self.began + c.at <= self.now) {
            let Some(mut server) = self.servers[change.server].take() else { continue };
            self.arriving.insert((self.now + change.gap, change.server));
            match change.end {
                End::Closes => {
                    server.closes = true;
                    self.leaving.push(server);
                }
                End::Killed(in_flight) => {
                    self.excused.extend(server.accepted.iter().map(|client| Crowd::number_of(*client)));
                    self.exit(server, in_flight);
                }
            }
        }
        while let Some((_, place)) = self.arriving.first().copied().filter(|(at, _)| *at <= self.now) {
            self.arriving.pop_first();
            self.servers[place] = Some(self.server(place));
        }
        let over: Vec<Server> = self.leaving.extract_if(.., |server| server.is_over()).collect();
        over.into_iter().for_each(|server| self.exit(server, InFlight::Delivered));
    }

    fn exit(&mut self, server: Server, in_flight: InFlight) {
        self.fabric.kill_node(&server.name, in_flight);
        self.gone.push(server);
    }

    /// Returns how long an idle process and a waiting connection may miss each other. The connection may be
    /// offered to every other process in turn, replacements included. With each it stays for the longest
    /// patience of the proxy, which is longer than a pausing process keeps it (`PAUSE_MAX`), and the offer
    /// and its withdrawal take their transit time. The idle process may be in doubt at first, because it
    /// handed connections back before.
    fn missed_max(&self) -> Duration {
        let processes = (self.scenario.servers.len() + self.scenario.changes.len()) as u32;
        DOUBT + (processes + 1) * (PATIENCE_FACTOR * OFFER_PATIENCE + WAYS)
    }

    /// Reports a connection that waits while a process is idle.
    fn look_for_missed(&mut self) {
        let (now, bound) = (self.now, self.missed_max());
        let missed = |since: Instant| now.saturating_since(since) > bound;
        let idle = self.servers.iter().flatten().find(|s| s.idle_since.is_some_and(missed));
        let Some(idle) = idle.filter(|_| now >= self.looks_at) else { return };
        self.looks_at = now + LOOK_REST;
        let waits = |state: &str| state.ends_with("offered") || state.ends_with("pending");
        let stuck = self.proxy.core().flows(now, usize::MAX).into_iter().find(|flow| {
            waits(&flow.state) && self.arrivals.get(&flow.label).is_some_and(|(since, _)| missed(*since))
        });
        if let Some(flow) = stuck {
            let text =
                format!("at {now:?} {} is idle since {:?}, and waits: {flow:?}", idle.name, idle.idle_since);
            self.report.violations.push(text);
            self.looks_at = now + TIME_MAX; // one report is enough
        }
    }

    /// Describes the state of all nodes, for debugging a seed.
    fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("at {:?}", self.now);
        for flow in self.proxy.core().flows(self.now, 64) {
            let _ = write!(text, "\n  {flow:?}");
        }
        for service in self.proxy.core().services() {
            let _ = write!(text, "\n  {service:?}");
        }
        for server in self.servers.iter().flatten().chain(&self.leaving) {
            let (plan, wakes, idle) = (server.plan, server.next_timeout(), server.idle_since);
            let _ = write!(text, "\n  {} {plan:?} wakes {wakes:?}, idle since {idle:?}", server.name);
        }
        text
    }

    /// Returns all processes that there were.
    pub(super) fn all_servers(&self) -> impl Iterator<Item = &Server> {
        self.gone.iter().chain(self.servers.iter().flatten()).chain(&self.leaving)
    }
}
