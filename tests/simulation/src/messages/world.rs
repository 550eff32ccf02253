//! The run: one network node, one proxy, hosts outside, programs and processes inside, on virtual time.

use std::net::Ipv4Addr;

use csp_app::ProxyTarget;
use csp_lan::faulty::{FaultHandle, wrap};
use csp_lan::memory::Hub;
use csp_messages::{ContextsConfig, HashKey, PoolConfig, SubscriptionsConfig};
use csp_network_node::NetworkWorker;
use csp_proxy_node::ProxyWorker;
use csp_proxy_node::core::PoolServer;
use csp_services::{MessageBroker, MessagesConfig};
use csp_transport::{ClusterKey, Purpose};
use csp_types::{Duration, Instant, MacAddr, NodeId};
use csp_vi::memory::{InFlight, MemoryFabric};
use csp_vi::{ViAddress, ViId};

use super::handlers::Handlers;
use super::inside::Program;
use super::judge::{self, MessageReport};
use super::outside::Outside;
use super::peer::{Peer, Stage};
use super::plan::PeerPlan;
use super::resets::Resets;
use super::scenario::{MessageIncident, MessageScenario, VIP};
use crate::application::{Application, PORT, app_side};
use crate::client::Client;
use crate::clock::Clock;
use crate::host::{LanHost, Router, host_tcp};
use crate::network::{configure, network_node, provider_name, proxy_spec};
use crate::pattern::Request;
use crate::proxy::{Policy, Sizes, proxy};

const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 101);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 2);
const NN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Longest step of time, so that conditions that depend on the time itself are evaluated.
const STEP_MAX: Duration = Duration::from_millis(50);
/// Time after which a condition that a run waits for is not reached any more: some retransmissions with
/// back-off.
const PATIENCE: Duration = Duration::from_secs(200);
/// Time without a byte at any peer after which all that was to arrive has.
const QUIET: Duration = Duration::from_secs(3);
/// Turns at one instant before it counts as a livelock.
const TURNS_MAX: u32 = 100_000;
/// How often in succession a node may request to be woken at an instant that has passed.
const OVERDUE_MAX: u32 = 1_000;

/// The nodes' clocks; those of the hosts outside show the simulation's time.
pub(super) struct Clocks {
    network: Clock,
    pub(super) proxy: Clock,
    programs: [Clock; 2],
}

/// All nodes of a run.
pub struct MessageWorld {
    pub(super) scenario: MessageScenario,
    pub(super) now: Instant,
    key: ClusterKey,
    fabric: MemoryFabric,
    hub: Hub,
    host_faults: [FaultHandle; 2],
    pub(super) client: Client,
    pub(super) outside: Outside,
    pub(super) network: Vec<(NetworkWorker, FaultHandle)>,
    pub(super) proxy: ProxyWorker,
    /// Processes that serve byte streams.
    pub(super) servers: [Application; 2],
    pub(super) programs: [Option<Program>; 2],
    pub(super) peers: Vec<Peer>,
    pub(super) plans: Vec<PeerPlan>,
    lives: u64,
    /// The channel that the policy leaves out.
    pub(super) without: Option<usize>,
    pub(super) clocks: Clocks,
    /// When the senders started.
    pub(super) began: Option<Instant>,
    struck: bool,
    healed: bool,
    /// Bytes of all peers, and since when they have not changed.
    moved: (u64, Instant),
    overdue: u32,
    pub(super) handlers: Option<Handlers>,
    pub(super) resets: Resets,
    pub(super) report: MessageReport,
}

fn node(name: &str) -> NodeId {
    name.parse().expect("the simulation's own names are valid")
}

pub(super) fn policy(scenario: &MessageScenario) -> Policy {
    let subscriptions = SubscriptionsConfig {
        entries_max: 256,
        nodes_max: 1024,
        channel_entries_max: 256,
        channel_nodes_max: 1024,
        ..SubscriptionsConfig::default()
    };
    // With handlers, so few that swaps have to wait for paths that are not empty.
    let paths_max = if scenario.handlers.is_some() { 8 } else { ContextsConfig::default().paths_max };
    let messages = MessagesConfig {
        pool: PoolConfig { block_len: 2048, blocks: scenario.pool_blocks },
        contexts: ContextsConfig { paths_max, ..ContextsConfig::default() },
        subscriptions,
        channels_max: 8,
        peers_max: 64,
        ..MessagesConfig::new(HashKey([1, 2]))
    };
    Policy {
        sizes: Sizes { hairpins: 64, messages, ..Sizes::default() },
        cookies: scenario.links.cookies,
        logged: scenario.links.logged,
        ..Policy::new((VIP, PORT).into(), vec![PoolServer::of_node(node("an-1"), PORT)], EGRESS.into())
    }
}

impl MessageWorld {
    /// Creates everything of a scenario, without connections.
    pub fn new(scenario: MessageScenario) -> Self {
        let (key, seed) = (ClusterKey::from_bytes([7; 32]), scenario.links.seed);
        let fabric = MemoryFabric::with_seed(seed);
        if scenario.incident.resumes() {
            fabric.let_break();
        }
        fabric.set_default_delay(scenario.links.san);
        let hub = Hub::new(4096);
        let port = |name: &str, last: u8, turn: u32| {
            let port = hub.attach(name, MacAddr([2, 0, 0, 0, 0, last]), 1500);
            wrap(port, scenario.links.lan[0], seed.rotate_left(turn))
        };
        let ((client, client_faults), (host, host_faults)) = (port("client", 1, 0), port("host", 9, 31));
        let of = |name: &str| {
            if scenario.links.clocks_differ { Clock::of(seed, name) } else { Clock::default() }
        };
        let programs = [1, 2].map(|n| of(&format!("program-{n}")));
        let clocks = Clocks { network: of("nn-1"), proxy: of("pn-1"), programs };
        let birth = (clocks.proxy.at(Instant::ZERO), 1);
        let proxy = proxy(&fabric, &key, "pn-1", birth, &policy(&scenario));
        let target = ProxyTarget {
            node: node("pn-1"),
            worker: 0,
            address: ViAddress::Name("pn-1.channel".into()),
            draining: false,
        };
        let servers = [1u64, 2].map(|n| {
            let provider = Box::new(fabric.provider(&format!("process-{n}")));
            Application::new(provider, &key, node("an-1"), &format!("p{n}"), std::slice::from_ref(&target), n)
        });
        let programs = [0usize, 1].map(|at| {
            let provider = Box::new(fabric.provider(&format!("program-{at}")));
            let names = (node("an-1"), &*format!("m{at}"));
            Some(Program::new(
                at,
                app_side(provider, &key, names, std::slice::from_ref(&target), 10 + at as u64),
            ))
        });
        let router = Router { mtu: scenario.links.path_mtu, marks: scenario.links.marks };
        let tcp = host_tcp(seed.rotate_left(9), scenario.links.marks);
        let plans = scenario.peers.clone();
        let peer = |(number, plan): (u32, &PeerPlan)| Peer::new(number, plan.clone(), plan.channel == 1);
        let mut world = MessageWorld {
            client: Client::new(CLIENT, client, &scenario.links),
            outside: Outside::new(LanHost::new(HOST, host, router, tcp, None)),
            network: Vec::new(),
            now: Instant::ZERO,
            key,
            fabric,
            hub,
            host_faults: [client_faults, host_faults],
            proxy,
            servers,
            programs,
            peers: (0..).zip(&plans).map(peer).collect(),
            plans,
            lives: 1,
            without: None,
            clocks,
            began: None,
            struck: false,
            healed: false,
            moved: (0, Instant::ZERO),
            overdue: 0,
            handlers: scenario.handlers.clone().map(Handlers::new),
            resets: Resets::default(),
            report: MessageReport::default(),
            scenario,
        };
        world.stamp_peers();
        world.network = world.network_node();
        world.put_into_force(None);
        world
    }

    fn network_node(&self) -> Vec<(NetworkWorker, FaultHandle)> {
        let links = &self.scenario.links;
        let ports = self.hub.attach_workers(links.network_workers, "nn-1", NN_MAC, links.lan_mtu);
        let services: Vec<_> =
            self.scenario.channels.iter().map(|c| c.address).chain([(VIP, PORT).into()]).collect();
        let place = |number| (number, links.network_workers as u8);
        let worker = |(port, number)| {
            let (port, faults) =
                wrap(port, links.lan[1], links.seed.rotate_left(17 + u32::from(number)) ^ self.lives);
            faults.set_now(self.now);
            let mut worker = network_node(&self.fabric, &self.key, "nn-1", self.lives, place(number), port);
            let now = self.clocks.network.at(self.now);
            configure(&mut worker, now, &[proxy_spec("pn-1", 1, false)], &services, &[EGRESS.into()]);
            (worker, faults)
        };
        ports.into_iter().zip(0..).map(worker).collect()
    }

    pub(super) fn broker(&self) -> &MessageBroker {
        self.proxy.broker()
    }

    /// Returns the time since the senders' start, if that was.
    fn since(&self) -> Option<Duration> {
        self.began.map(|began| self.now - began)
    }

    /// Runs to the end and returns the result.
    pub fn run(mut self) -> MessageReport {
        if let Err(stuck) = self.run_work() {
            self.report.violations.push(stuck);
        }
        judge::judge(&mut self);
        self.report.elapsed = self.now - Instant::ZERO;
        self.report
    }

    fn run_work(&mut self) -> Result<(), String> {
        let workers = self.scenario.links.network_workers;
        self.until("links", |w| {
            let up = w.network.iter().flat_map(|(worker, _)| worker.tunnels()).filter(|t| t.up).count();
            let servers: usize = w.servers.iter().map(Application::channels_up).sum();
            up == workers && servers == 2 && w.programs.iter().flatten().all(Program::is_up)
        })?;
        while self.client.gateways() + self.outside.lan.gateways() < 2 {
            self.client.resolve(VIP);
            self.outside.lan.resolve(VIP);
            let end = self.now + Duration::from_secs(1);
            self.until("answers to ARP", |w| {
                w.client.gateways() + w.outside.lan.gateways() == 2 || w.now >= end
            })?;
        }
        self.until("receivers", Self::are_receivers_there)?;
        self.began = Some(self.now);
        for (at, work) in self.scenario.work.clone().into_iter().enumerate() {
            let start = self.now + work.start;
            self.until("the start of a transaction", |w| w.now >= start)?;
            let request = Request {
                upload: work.upload,
                download: work.download,
                key: self.key_of(at),
                half_close: work.half_close,
                duplex: work.duplex,
                refusal: work.refusal,
            };
            self.client.start(self.now, (VIP, PORT).into(), request, None, None);
        }
        if let Some(late) = self.plans.iter().filter(|plan| plan.late).find_map(|plan| plan.start) {
            self.until("the end of the incident", |w| w.since() >= Some(late))?;
            self.until("late receivers", Self::are_receivers_there)?;
            self.peers.iter_mut().for_each(|peer| peer.released = true);
        }
        self.until("the end of byte streams", |w| w.client.under_way() == 0)?;
        self.until("messages that wait, with their receivers reading", Self::is_quiet)?;
        judge::count(self);
        self.peers.iter_mut().for_each(|peer| peer.is_last = true);
        self.until("the end of all connections", |w| {
            w.peers.iter().all(|peer| !matches!(peer.stage, Stage::Open | Stage::Waits))
        })?;
        let end = self.now + (PATIENCE - Duration::from_secs(1));
        self.until("settling", |w| w.now >= end || judge::leftovers(w).is_empty())
    }

    /// Returns the key of byte stream `at`.
    pub(super) fn key_of(&self, at: usize) -> u32 {
        (self.scenario.links.seed as u32).rotate_left(8) ^ (at as u32 + 1)
    }

    /// Returns whether the broker knows all receivers that are connected, and what they subscribe to.
    fn are_receivers_there(&self) -> bool {
        let is_due = |peer: &&Peer| !peer.plan.sends() && peer.plan.start <= self.since();
        let due = || self.peers.iter().filter(is_due);
        let open = || due().filter(|peer| peer.stage == Stage::Open);
        let subscriptions: usize = open().map(|peer| peer.plan.subscriptions()).sum();
        let snapshots = self.broker().snapshots();
        due().all(|peer| peer.stage != Stage::Waits)
            && open().count() as u64 == snapshots.iter().map(|s| s.receivers).sum::<u64>()
            && subscriptions as u64
                == snapshots.iter().map(|s| u64::from(s.status.subscriptions.entries)).sum::<u64>()
    }

    /// Returns whether every sender has sent all it has, every receiver reads, and nothing waits or is on its
    /// way.
    fn is_quiet(&self) -> bool {
        let since = self.since().unwrap_or_default();
        self.now - self.moved.1 >= QUIET
            && self.outside.is_quiet()
            && self.proxy.core().tcp().connections().all(|connection| connection.send_queue == 0)
            && self.peers.iter().all(|peer| peer.is_done(since))
            && self.broker().snapshots().iter().all(|snapshot| snapshot.waiting == 0)
            && self.waiting_in_paths() == 0
            && self.scenario.stop.is_none_or(|stop| since >= stop.from + stop.length)
    }

    /// Advances time until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end = self.now + PATIENCE;
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
            if self.now > end {
                return Err(format!("stuck waiting for {what}: {}", self.describe()));
            }
            self.fabric.advance(self.now);
            self.network.iter().map(|(_, f)| f).chain(&self.host_faults).for_each(|f| f.set_now(self.now));
            self.happen();
        }
        Ok(())
    }

    /// Runs every node as far as possible at this instant.
    fn settle_instant(&mut self) -> Result<(), String> {
        let (now, since, mut quiet) = (self.now, self.since(), 0);
        for _ in 0..TURNS_MAX {
            let given = (&self.scenario.channels[..], &self.plans[..]);
            let mut busy = self.client.turn(now);
            busy |= self.outside.turn(now, since, &mut self.peers, given);
            for (worker, _) in &mut self.network {
                busy |= worker.turn(self.clocks.network.at(now), 1);
            }
            busy |= crate::measured::measured_proxy_turn(&mut self.proxy, self.clocks.proxy.at(now));
            for server in &mut self.servers {
                busy |= server.turn(now);
            }
            for (clock, program) in self.clocks.programs.iter().zip(&mut self.programs) {
                let turn = |p: &mut Program| p.turn(clock.at(now), since, &mut self.peers, given);
                busy |= program.as_mut().is_some_and(turn);
            }
            // Twice, because what the last node sent may reach the first one without delay.
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 2 {
                self.resets.observe(self.proxy.core().tcp());
                let bytes = self.peers.iter().map(|peer| peer.bytes).sum();
                if bytes != self.moved.0 {
                    self.moved = (bytes, now);
                }
                return Ok(());
            }
        }
        Err(format!("the nodes never come to rest at one instant: {}", self.describe()))
    }

    fn next_event(&self) -> Option<Instant> {
        let now = self.now;
        let faults = self.network.iter().map(|(_, faults)| faults).chain(&self.host_faults);
        let due = faults.filter_map(FaultHandle::next_due).min();
        let timeout = self.network.iter().filter_map(|(worker, _)| worker.next_timeout()).min();
        let network = timeout.map(|at| self.clocks.network.when(now, at));
        let proxy = self.proxy.next_timeout().map(|at| self.clocks.proxy.when(now, at));
        let servers = self.servers.iter().filter_map(Application::next_timeout).min();
        let programs = self.clocks.programs.iter().zip(&self.programs);
        let programs = programs
            .filter_map(|(clock, program)| Some(clock.when(now, program.as_ref()?.next_timeout()?)))
            .min();
        let began = self.began;
        let wakes = began.and_then(|began| {
            let swap = self.handlers.as_ref().and_then(Handlers::next_due);
            self.peers
                .iter()
                .flat_map(Peer::wakes)
                .chain(swap)
                .map(|at| began + at)
                .filter(|at| *at > now)
                .min()
        });
        let lan = [self.client.next_timeout(), self.outside.lan.tcp.next_timeout(), self.fabric.next_due()];
        [due, network, proxy, servers, programs, wakes].into_iter().chain(lan).flatten().min()
    }

    /// Performs what the scenario schedules for this instant.
    fn happen(&mut self) {
        let Some(since) = self.since() else { return };
        if since >= self.scenario.strikes && !self.struck {
            self.struck = true;
            self.strike();
        }
        if since >= self.scenario.strikes + self.scenario.outage && !self.healed {
            self.healed = true;
            match self.scenario.incident {
                MessageIncident::NetworkNodeRestarts => {
                    self.lives += 1;
                    self.network = self.network_node();
                }
                MessageIncident::PolicyRemoves(_) => self.put_into_force(None),
                _ => {}
            }
        }
        self.swap(since);
        let Some(stop) = self.scenario.stop else { return };
        if let Some(program) = &mut self.programs[stop.process] {
            program.stopped = since >= stop.from && since < stop.from + stop.length;
        }
    }

    fn strike(&mut self) {
        let later = self.scenario.outage / 2;
        match self.scenario.incident {
            MessageIncident::None => {}
            MessageIncident::ChannelResumes => self.interrupt(Purpose::Channel, later),
            MessageIncident::TunnelResumes => self.interrupt(Purpose::Tunnel, later),
            MessageIncident::ChannelBreaks => self.break_vi(Purpose::Channel, InFlight::Delivered),
            MessageIncident::TunnelBreaks => self.break_vi(Purpose::Tunnel, InFlight::Lost),
            MessageIncident::ProgramDies => {
                self.fabric.kill_node("program-0", InFlight::Delivered);
                self.programs[0] = None;
                let died =
                    |peer: &&mut Peer| peer.is_inside(0) && matches!(peer.stage, Stage::Open | Stage::Waits);
                self.peers
                    .iter_mut()
                    .filter(died)
                    .for_each(|peer| peer.stage = Stage::Failed("it died".to_owned()));
            }
            MessageIncident::NetworkNodeRestarts => {
                for number in 0..self.scenario.links.network_workers as u8 {
                    self.fabric.kill_node(&provider_name("nn-1", number), InFlight::Lost);
                }
                self.network.clear();
            }
            MessageIncident::PolicyRemoves(channel) => {
                judge::count_channel(self, channel);
                self.put_into_force(Some(channel));
            }
            MessageIncident::PolicyChanges(channel) => {
                judge::count_channel(self, channel);
                self.scenario.channels[channel].spec.channel.queue.messages += 1;
                self.put_into_force(None);
            }
        }
    }

    /// Returns the proxy's VI of this purpose that a seed chooses.
    fn a_vi(&self, purpose: Purpose) -> Option<ViId> {
        let links = self.proxy.endpoints().flat_map(|e| e.links()).filter(|l| l.purpose == purpose);
        let mut vis: Vec<ViId> = links.map(|l| l.vi).collect();
        vis.sort_unstable_by_key(|vi| vi.0);
        vis.get(self.scenario.links.seed as usize % vis.len().max(1)).copied()
    }

    /// Breaks a VI while both of its ends are alive; one of them may be notified later.
    fn interrupt(&mut self, purpose: Purpose, later: Duration) {
        let seed = self.scenario.links.seed as usize;
        let notified = [(Duration::ZERO, later), (later, Duration::ZERO)][seed / 16 % 2];
        let broken = self.a_vi(purpose).is_some_and(|vi| self.fabric.break_vi(vi, notified));
        assert!(broken, "the scenario breaks a VI that is not there");
    }

    /// Breaks a VI permanently.
    fn break_vi(&mut self, purpose: Purpose, in_flight: InFlight) {
        let broken = self.a_vi(purpose).is_some_and(|vi| self.fabric.kill_vi(vi, in_flight));
        assert!(broken, "the scenario breaks a VI that is not there");
    }

    /// Describes the state of all nodes, for debugging a seed.
    fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("at {:?}, senders' start at {:?}", self.now, self.began);
        for peer in &self.peers {
            let _ = write!(text, "\n  {}", peer.describe());
        }
        for flow in self.proxy.core().flows(self.now, 64) {
            let _ = write!(text, "\n  pn-1: {flow:?}");
        }
        for snapshot in self.broker().snapshots() {
            let _ = write!(text, "\n  {snapshot:?}");
        }
        for (host, tcp) in [("outside", &self.outside.lan.tcp), ("client", self.client.tcp())] {
            tcp.connections().for_each(|talk| text += &format!("\n  {host}: {talk:?}"));
        }
        text
    }
}
