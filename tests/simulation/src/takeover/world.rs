//! The run: two network nodes, proxies, clients and an application on virtual time, and the faults.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use csp_app::ProxyTarget;
use csp_lan::faulty::{FaultHandle, wrap};
use csp_lan::memory::Hub;
use csp_proxy_node::core::PoolServer;
use csp_proxy_node::{ProxyWorker, WorkerPolicy};
use csp_transport::ClusterKey;
use csp_types::{Duration, Instant, MacAddr, NodeId};
use csp_vi::ViAddress;
use csp_vi::memory::MemoryFabric;

use super::clocks::{Clocks, boot_time};
use super::host::{EGRESS, NetworkHost, Site, VIP, group_id, proxy_name};
use super::judge::{self, TakeoverReport, Watch};
use super::scenario::{Fault, PROXIES_MAX, TakeoverScenario, Target, Visit};
use crate::application::{Application, PORT};
use crate::client::Client;
use crate::host::Router;
use crate::pattern::Request;
use crate::proxy::{Policy, proxy, worker_policy};

/// Client hosts, each with an ARP table of its own.
const CLIENTS: usize = 2;
/// Longest step of time, so that conditions that depend on the time itself are evaluated.
const STEP_MAX: Duration = Duration::from_millis(50);
/// A run that takes longer than this is stuck.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Time within which all tables must be empty after the last connection.
const SETTLE: Duration = Duration::from_secs(150);
/// Turns at one instant before it counts as a livelock.
const TURNS_MAX: u32 = 100_000;
/// How often in succession a node may request to be woken at an instant that has passed.
const OVERDUE_MAX: u32 = 1_000;
/// How often a client asks who answers for the VIP.
const RESOLVE_EVERY: Duration = Duration::from_millis(500);
/// Visits after the faults.
const LATE_VISITS: usize = 3;
/// Of this number of runs, one waits until all tables are empty.
const SETTLES: u64 = 8;

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Strike(usize),
    /// It struck these network nodes.
    Heal(usize, [bool; 2]),
    Visit(usize, Visit),
    Resolve,
    /// The visits after the faults must be over.
    Late,
}

/// A proxy with its host's clocks.
pub(super) struct ProxyHost {
    pub worker: ProxyWorker,
    clocks: Clocks,
}

/// All nodes of a run.
pub struct TakeoverWorld {
    pub(super) scenario: TakeoverScenario,
    pub(super) now: Instant,
    site: Site,
    client_faults: Vec<FaultHandle>,
    pub(super) clients: Vec<Client>,
    pub(super) hosts: [NetworkHost; 2],
    pub(super) proxies: Vec<ProxyHost>,
    pub(super) application: Application,
    /// Faults that cut each network node from each proxy.
    cuts: [[u32; PROXIES_MAX]; 2],
    /// What happens next, in order: by time, then in the order of planning.
    agenda: BTreeMap<(Instant, usize), Step>,
    planned: usize,
    pub(super) began: Instant,
    pub(super) watch: Watch,
    overdue: u32,
    pub(super) report: TakeoverReport,
}

fn node(name: &str) -> NodeId {
    name.parse().expect("the simulation's own names are valid")
}

fn policy() -> Policy {
    Policy {
        logged: true,
        ..Policy::new((VIP, PORT).into(), vec![PoolServer::of_node(node("an-1"), PORT)], EGRESS.into())
    }
}

fn proxy_host(at: usize, site: &Site, scenario: &TakeoverScenario) -> ProxyHost {
    let name = proxy_name(at);
    let clocks = if scenario.clocks_differ { Clocks::of(scenario.seed, &name) } else { Clocks::default() };
    let (shown, policy) = (clocks.show(Instant::ZERO), policy());
    let mut worker = proxy(&site.fabric, &site.key, &name, (shown, 1), &policy);
    worker.set_election_clock(boot_time);
    let vip_groups = [VIP, EGRESS].map(|address| (IpAddr::V4(address), group_id()));
    let policy = WorkerPolicy { vip_groups: HashMap::from(vip_groups), ..worker_policy(&policy) };
    worker.set_policy(shown, policy).expect("the policy has no channels");
    ProxyHost { worker, clocks }
}

fn application(site: &Site, scenario: &TakeoverScenario) -> Application {
    let target = |at| ProxyTarget {
        node: node(&proxy_name(at)),
        worker: 0,
        address: ViAddress::Name(format!("{}.channel", proxy_name(at))),
        draining: false,
    };
    let targets: Vec<ProxyTarget> = (0..scenario.proxies).map(target).collect();
    let provider = Box::new(site.fabric.provider("process-1"));
    Application::new(provider, &site.key, node("an-1"), "p1", &targets, 1)
}

fn client(at: usize, site: &Site, scenario: &TakeoverScenario) -> (Client, FaultHandle) {
    let number = at as u8 + 1;
    let mac = MacAddr([2, 0, 0, 0, 1, number]);
    let port = site.hub.attach(&format!("client-{number}"), mac, 1_500);
    let (port, faults) = wrap(port, scenario.lan[0], scenario.seed.rotate_left(at as u32));
    let router = Router { mtu: 1_500, marks: 0 };
    let address = Ipv4Addr::new(10, 76, 0, number);
    let mut client = Client::behind(router, address, port, scenario.seed + at as u64);
    client.follow(VIP);
    (client, faults)
}

impl TakeoverWorld {
    /// Creates everything of a scenario, without connections.
    pub fn new(scenario: TakeoverScenario) -> Self {
        let fabric = MemoryFabric::with_seed(scenario.seed);
        if scenario.breakable {
            fabric.let_break();
        }
        fabric.set_default_delay(scenario.san);
        let site = Site { key: ClusterKey::from_bytes([7; 32]), fabric, hub: Hub::new(4096) };
        let (clients, client_faults) = (0..CLIENTS).map(|at| client(at, &site, &scenario)).unzip();
        let proxies = (0..scenario.proxies).map(|at| proxy_host(at, &site, &scenario)).collect();
        TakeoverWorld {
            now: Instant::ZERO,
            client_faults,
            clients,
            hosts: [0, 1].map(|at| NetworkHost::new(at, &site, &scenario)),
            proxies,
            application: application(&site, &scenario),
            cuts: Default::default(),
            agenda: BTreeMap::new(),
            planned: 0,
            began: Instant::ZERO,
            watch: Watch::default(),
            overdue: 0,
            report: TakeoverReport::default(),
            site,
            scenario,
        }
    }

    /// Runs to the end and returns the result.
    pub fn run(mut self) -> TakeoverReport {
        if let Err(stuck) = self.run_work() {
            self.report.violations.push(stuck);
        }
        judge::judge(&mut self);
        self.report.elapsed = self.now - Instant::ZERO;
        self.report
    }

    fn run_work(&mut self) -> Result<(), String> {
        self.plan(self.now, Step::Resolve);
        self.until("links and a holder", |w| {
            w.application.channels_up() == w.proxies.len()
                && w.hosts.iter().any(|host| host.holds(w.now))
                && w.clients.iter().all(|client| client.gateways() == 1)
        })?;
        self.began = self.now;
        let (outages, visits) = (self.scenario.outages.clone(), self.scenario.visits.clone());
        for (at, outage) in outages.iter().enumerate() {
            self.plan(self.began + outage.from, Step::Strike(at));
        }
        for (at, visit) in visits.iter().enumerate() {
            self.plan(self.began + visit.start, Step::Visit(at, *visit));
        }
        let recovered = self.scenario.healed() + TakeoverScenario::RECOVERY;
        for at in visits.len()..visits.len() + LATE_VISITS {
            let late = Visit { start: recovered, download: 3_000, pace: None, deaf: None, ..visits[0] };
            self.plan(self.began + recovered, Step::Visit(at, Visit { upload: 200, ..late }));
        }
        let end = self.began + recovered;
        self.plan(end + judge::LATE_MAX, Step::Late);
        self.until("the end of all connections", |w| {
            w.now > end && w.clients.iter().all(|client| client.under_way() == 0)
        })?;
        if !self.scenario.seed.is_multiple_of(SETTLES) {
            return Ok(());
        }
        let end = self.now + SETTLE;
        self.until("settling", |w| w.now >= end || judge::leftovers(w).is_empty())?;
        self.report.violations.extend(judge::leftovers(self));
        Ok(())
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), step);
    }

    /// Returns the key of visit number `at`.
    pub(super) fn key_of(&self, at: usize) -> u32 {
        (self.scenario.seed as u32).rotate_left(8) ^ (at as u32 + 1)
    }

    /// Returns the number of visits of the scenario, and of those after it.
    pub(super) fn visits(&self) -> (usize, usize) {
        (self.scenario.visits.len(), LATE_VISITS)
    }

    /// Advances time until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        while !done(self) {
            self.settle_instant()?;
            judge::look(self);
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
            self.site.fabric.advance(self.now);
            self.client_faults.iter().for_each(|faults| faults.set_now(self.now));
            self.hosts.iter().for_each(|host| host.set_now(self.now));
            while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let step = entry.remove();
                self.happen(step);
            }
        }
        Ok(())
    }

    /// Runs every node as far as possible at this instant.
    fn settle_instant(&mut self) -> Result<(), String> {
        let (now, mut quiet) = (self.now, 0);
        for _ in 0..TURNS_MAX {
            let mut busy = self.clients.iter_mut().fold(false, |any, client| client.turn(now) | any);
            for at in 0..self.hosts.len() {
                let held = self.hosts[at].holds(now);
                busy |= self.hosts[at].turn(now);
                judge::after_turn(self, at, held);
            }
            for proxy in &mut self.proxies {
                let shown = proxy.clocks.show(now);
                busy |= proxy.worker.turn(shown, 1);
            }
            busy |= self.application.turn(now);
            // Twice, because what the last node sent may reach the first one without delay.
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 2 {
                return Ok(());
            }
        }
        Err(format!("the nodes never come to rest at one instant: {}", self.describe()))
    }

    fn next_event(&self) -> Option<Instant> {
        let now = self.now;
        let faults = self.client_faults.iter().filter_map(FaultHandle::next_due);
        let clients = self.clients.iter().filter_map(Client::next_timeout);
        let hosts = self.hosts.iter().filter_map(|host| host.next_timeout(now));
        let proxies = self.proxies.iter();
        let proxies = proxies.filter_map(|p| Some(p.clocks.when(now, p.worker.next_timeout()?)));
        let agenda = self.agenda.first_key_value().map(|((at, _), _)| *at);
        let rest = [self.application.next_timeout(), self.site.fabric.next_due(), agenda];
        faults.chain(clients).chain(hosts).chain(proxies).chain(rest.into_iter().flatten()).min()
    }

    fn happen(&mut self, step: Step) {
        match step {
            Step::Strike(at) => self.strike(at),
            Step::Heal(at, struck) => self.heal(at, struck),
            Step::Visit(at, visit) => self.visit(at, visit),
            Step::Resolve => {
                self.clients.iter_mut().for_each(|client| client.resolve(VIP));
                self.plan(self.now + RESOLVE_EVERY, Step::Resolve);
            }
            Step::Late => judge::look_for_late(self),
        }
    }

    fn visit(&mut self, at: usize, visit: Visit) {
        let (key, now) = (self.key_of(at), self.now);
        let Visit { upload, download, duplex, .. } = visit;
        let request = Request { upload, download, key, half_close: false, duplex, refusal: None };
        let client = &mut self.clients[at % CLIENTS];
        client.start(now, (VIP, PORT).into(), request, None, visit.deaf.map(|time| self.began + time));
        if let Some(pace) = visit.pace {
            client.pace(now, key, pace);
        }
    }

    fn strike(&mut self, at: usize) {
        let outage = self.scenario.outages[at];
        let holder = usize::from(!self.hosts[0].holds(self.now) && self.hosts[1].holds(self.now));
        let struck = match outage.target {
            Target::Holder => [holder == 0, holder == 1],
            Target::Other => [holder == 1, holder == 0],
            Target::Both => [true; 2],
            Target::Node(node) => [node == 0, node == 1],
        };
        let struck = [0, 1].map(|node| {
            let scenario = &self.scenario;
            struck[node] && self.hosts[node].strike(self.now, outage.fault, &self.site, scenario)
        });
        for node in [0, 1].into_iter().filter(|node| struck[*node]) {
            *self.report.struck.entry(outage.fault.name()).or_default() += 1;
            self.cut(node, outage.fault, true);
        }
        self.watch.disturbed(self.now);
        self.plan(self.now + outage.length, Step::Heal(at, struck));
    }

    fn heal(&mut self, at: usize, struck: [bool; 2]) {
        let fault = self.scenario.outages[at].fault;
        for node in [0, 1].into_iter().filter(|node| struck[*node]) {
            self.cut(node, fault, false);
            self.hosts[node].heal(self.now, fault, &self.site, &self.scenario);
        }
        self.watch.disturbed(self.now);
    }

    /// Begins or ends the cuts of a fault between a network node and proxies.
    fn cut(&mut self, node: usize, fault: Fault, begins: bool) {
        let Fault::Cut(which) = fault else { return };
        for proxy in (0..self.proxies.len()).filter(|proxy| which[*proxy]) {
            let count = &mut self.cuts[node][proxy];
            *count = if begins { *count + 1 } else { *count - 1 };
            let is_cut = *count > 0;
            for provider in self.hosts[node].providers(&self.scenario) {
                self.site.fabric.cut(&provider, &format!("{}.tunnel", proxy_name(proxy)), is_cut);
            }
            self.watch.cut(self.now, (node, proxy), is_cut);
        }
    }

    /// Describes the state of all nodes, for debugging a seed.
    pub(super) fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("at {:?}", self.now);
        for talk in self.clients.iter().flat_map(|client| client.tcp().connections()) {
            let _ = write!(text, "\n  client: {talk:?}");
        }
        for (at, proxy) in self.proxies.iter().enumerate() {
            for flow in proxy.worker.core().flows(self.now, 64) {
                let _ = write!(text, "\n  {}: {flow:?}", proxy_name(at));
            }
        }
        for host in &self.hosts {
            let _ = write!(text, "\n  {}", host.describe(self.now));
        }
        let _ = write!(text, "\n  process:{}", self.application.describe());
        text
    }
}
