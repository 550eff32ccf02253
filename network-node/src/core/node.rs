//! The core itself: construction, control and time.

use std::net::{IpAddr, SocketAddr};

use csp_classify::{Classifier, Rule, RuleError, ServiceIndex, Target};
use csp_types::{Duration, Instant, MacAddr, NodeId, TraceRing};

use super::api::{CoreConfig, Counters, FlowInfo, NetworkOutput, PortConfig, PortId, ProxyId};
use super::flow_table::{Flow, FlowIndex, FlowState, FlowTable, Lifetimes, NewFlow};
use super::label_table::LabelTable;
use super::neighbour::Neighbours;
use super::proxies::Proxies;
use super::responder::AnswerLimit;

/// How often a new address is announced, and how far apart (RFC 5227 §2.3 asks for two, two seconds apart; one more
/// costs nothing and makes up for a switch port that comes up late).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(2);
/// Flows that one call of `on_timeout` removes at most, so that a burst of expiries does not stop the worker.
const EXPIRIES_PER_CALL_MAX: usize = 1024;

/// An address that is still to be announced.
struct Announcement {
    address: IpAddr,
    left: u8,
    due: Instant,
}

/// The network node's logic; one worker's own.
pub struct NetworkCore {
    ports: Vec<PortConfig>,
    pub(super) classifier: Classifier,
    pub(super) flows: FlowTable,
    pub(super) labels: LabelTable,
    pub(super) neighbours: Neighbours,
    pub(super) proxies: Proxies,
    pub(super) answer_limit: AnswerLimit,
    pub(super) counters: Counters,
    pub(super) trace: TraceRing,
    announcements: Vec<Announcement>,
    rules: Vec<Rule>,
    identification: u16,
    pub(super) settled: bool,
}

impl NetworkCore {
    /// A core without services and proxies. All tables are allocated here, but for a proxy's label table, which is
    /// made when its slot is first used.
    pub fn new(config: CoreConfig) -> Self {
        let lifetimes =
            Lifetimes { pending: config.pending_timeout, idle: config.idle_timeout, linger: config.linger };
        NetworkCore {
            ports: config.ports,
            classifier: Classifier::new(config.rules_max),
            flows: FlowTable::new(config.flows_max, config.table_key, lifetimes),
            labels: LabelTable::new(config.proxies_max),
            neighbours: Neighbours::new(config.neighbours_max),
            proxies: Proxies::new(config.proxies_max),
            answer_limit: AnswerLimit::default(),
            counters: Counters::default(),
            trace: TraceRing::new(config.trace_len),
            announcements: Vec::with_capacity(config.rules_max),
            rules: Vec::with_capacity(config.rules_max),
            identification: 0,
            settled: true,
        }
    }

    /// Replaces the services (virtual address and port) and egress addresses; flows go on. Addresses that are new are
    /// announced to the LAN.
    ///
    /// # Errors
    /// More rules than fit, or two services with one address and port: nothing changes.
    pub fn set_services(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        egress: &[IpAddr],
        out: &mut impl NetworkOutput,
    ) -> Result<(), RuleError> {
        let (count, capacity) = (services.len() + egress.len(), self.classifier.capacity());
        if count > capacity || services.len() > usize::from(u16::MAX) {
            return Err(RuleError::TooMany { count, capacity });
        }
        self.rules.clear();
        for (at, service) in services.iter().enumerate() {
            let target = Target::Service { port: service.port(), service: ServiceIndex(at as u16) };
            self.rules.push(Rule { address: service.ip(), target });
        }
        self.rules.extend(egress.iter().map(|address| Rule { address: *address, target: Target::Egress }));

        let before = self.classifier.clone();
        self.classifier.replace(&self.rules)?;
        self.announcements.retain(|a| self.classifier.owns(a.address));
        for address in self.classifier.addresses() {
            if !before.owns(*address) {
                self.announcements.push(Announcement { address: *address, left: ANNOUNCEMENTS, due: now });
            }
        }
        self.announce_due(now, out);
        Ok(())
    }

    /// All `workers` of a proxy can be sent to.
    pub fn proxy_up(&mut self, proxy: ProxyId, node: NodeId, workers: u8) {
        for worker in 0..workers {
            self.worker_up(proxy, node, worker);
        }
    }

    /// The proxy is dead or gone: its flows are forgotten, their next segments go to other proxies.
    pub fn proxy_down(&mut self, proxy: ProxyId) {
        for worker in 0..=u8::MAX {
            if self.proxies.is_up(proxy, worker) {
                self.proxies.set_down(proxy, worker);
            }
        }
        self.remove_flows(proxy, None);
    }

    /// One worker of a proxy can be sent to. A slot that holds another node is emptied first.
    pub fn worker_up(&mut self, proxy: ProxyId, node: NodeId, worker: u8) {
        if self.proxies.node(proxy).is_some_and(|known| known != node) {
            self.proxy_down(proxy);
        }
        self.labels.prepare(proxy);
        self.proxies.set_up(proxy, node, worker);
    }

    /// One worker of a proxy is dead or gone, as [`proxy_down`](Self::proxy_down).
    pub fn worker_down(&mut self, proxy: ProxyId, worker: u8) {
        self.proxies.set_down(proxy, worker);
        self.remove_flows(proxy, Some(worker));
    }

    /// One worker of a proxy cannot be reached, and it is not known yet whether it lives: new flows go to others, its
    /// own are kept without their labels. Either [`worker_up`](Self::worker_up) or
    /// [`worker_down`](Self::worker_down) follows.
    pub fn worker_unreachable(&mut self, now: Instant, proxy: ProxyId, worker: u8) {
        self.proxies.set_down(proxy, worker);
        for at in 0..self.flows.capacity() {
            let index = FlowIndex(at as u32);
            let bound = |f: &&Flow| f.proxy == proxy && f.worker == worker && f.state == FlowState::Bound;
            if self.flows.flow(index).filter(bound).is_some() {
                self.unbind(index);
                self.flows.set_state(now, index, FlowState::Lingering);
            }
        }
    }

    /// Whether all proxies that should be there were tried. Until then connections that are not known are left alone:
    /// given to the wrong proxy, they would be reset.
    pub fn set_settled(&mut self, settled: bool) {
        self.settled = settled;
    }

    fn remove_flows(&mut self, proxy: ProxyId, worker: Option<u8>) {
        for at in 0..self.flows.capacity() {
            let index = FlowIndex(at as u32);
            let theirs = |w: u8| worker.is_none_or(|worker| worker == w);
            if self.flows.flow(index).is_some_and(|f| f.proxy == proxy && theirs(f.worker)) {
                self.remove_flow(index);
                self.counters.flows_lost += 1;
            }
        }
    }

    /// Does what is due: expiry, announcements, repeated questions.
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        for _ in 0..EXPIRIES_PER_CALL_MAX {
            let Some(index) = self.flows.expired(now) else { break };
            let lingering = self.flows.flow(index).is_some_and(|f| f.state == FlowState::Lingering);
            self.counters.flows_expired += u64::from(!lingering);
            self.remove_flow(index);
        }
        self.announce_due(now, out);
        while let Some(request) = self.neighbours.due(now, &mut self.counters.drop_unresolved) {
            self.ask(&request, out);
        }
    }

    /// When to call [`on_timeout`](Self::on_timeout) next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let announcement = self.announcements.iter().map(|a| a.due).min();
        [self.flows.next_deadline(), self.neighbours.next_deadline(), announcement]
            .into_iter()
            .flatten()
            .min()
    }

    fn announce_due(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        for at in 0..self.announcements.len() {
            let announcement = &mut self.announcements[at];
            if announcement.due > now {
                continue;
            }
            announcement.left -= 1;
            announcement.due = now + ANNOUNCEMENT_INTERVAL;
            let address = announcement.address;
            for port in 0..self.ports.len() {
                self.announce(PortId(port as u16), address, out);
            }
        }
        self.announcements.retain(|a| a.left > 0);
    }

    /// Adds a flow, pushing out one that matters less where the table is full.
    pub(super) fn insert_flow(&mut self, now: Instant, new: NewFlow) -> Option<FlowIndex> {
        if let Some(victim) = self.flows.victim(new.state) {
            self.remove_flow(victim);
            self.counters.flows_evicted += 1;
        }
        let index = self.flows.insert(now, new);
        self.counters.flows_created += u64::from(index.is_some());
        index
    }

    fn remove_flow(&mut self, index: FlowIndex) {
        self.unbind(index);
        self.flows.remove(index);
    }

    pub(super) fn port_mac(&self, port: PortId) -> MacAddr {
        self.ports.get(usize::from(port.0)).map_or(MacAddr::default(), |p| p.mac)
    }

    pub(super) fn port_mtu(&self, port: PortId) -> u16 {
        self.ports.get(usize::from(port.0)).map_or(0, |p| p.mtu)
    }

    /// The port and the neighbour by which `destination` is reached.
    pub(super) fn next_hop(&self, destination: IpAddr) -> (PortId, IpAddr) {
        let on_link = |p: &PortConfig| p.on_link.iter().any(|net| net.contains(destination));
        if let Some(at) = self.ports.iter().position(on_link) {
            return (PortId(at as u16), destination);
        }
        let gateway =
            |p: &PortConfig| p.gateways.iter().find(|g| g.is_ipv4() == destination.is_ipv4()).copied();
        let routed =
            self.ports.iter().enumerate().find_map(|(at, p)| gateway(p).map(|g| (PortId(at as u16), g)));
        routed.unwrap_or((PortId(0), destination))
    }

    /// The next IPv4 identification. All packets are sent with DF, for which any value does (RFC 6864 §4.1).
    pub(super) fn next_identification(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The flight recorder.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// The flows in the table, in no order.
    pub fn flows(&self) -> impl Iterator<Item = FlowInfo> + '_ {
        self.flows.iter().map(|(_, flow)| FlowInfo {
            tuple: flow.tuple,
            label: flow.label,
            proxy: flow.proxy,
            worker: flow.worker,
            port: flow.port,
            peer_mac: flow.peer_mac,
            created: flow.created,
            last_used: flow.last_used,
            segments_in: flow.segments_in,
            segments_out: flow.segments_out,
        })
    }

    /// How many flows are in the table.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// How many of them linger: their connection is over.
    pub fn lingering_count(&self) -> usize {
        self.flows.count(FlowState::Lingering)
    }

    /// How many flows the table holds.
    pub fn flow_capacity(&self) -> usize {
        self.flows.capacity()
    }

    /// How many labels are bound.
    pub fn label_count(&self) -> usize {
        self.labels.len()
    }
}
