//! The core: construction, control and timers.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_classify::{ChannelIndex, Classifier, PacketKey, RuleError, Verdict};
use csp_types::{Instant, MacAddr, NodeId, PlacementKey, Prefix, TraceRing};
use csp_wire::ipv4;

use super::addresses::Announcement;
use super::api::{CoreConfig, Counters, FlowInfo, NetworkOutput, PortConfig, PortId, ProxyId};
use super::flow_table::{FlowIndex, FlowState, FlowTable, Lifetimes, NewFlow};
use super::forward::Forwarding;
use super::label_table::LabelTable;
use super::neighbour::Neighbours;
use super::plugins::PacketPlugins;
use super::proxies::Proxies;
use super::rate_limit::RateLimit;
use super::reassembly::Reassembly;
use super::responder::ANSWERS_PER_SECOND_MAX;
use super::rules::{AddressGroup, RuleSet};
use super::search::SEARCHES_PER_SECOND_MAX;
use super::sweep::Sweep;

/// Largest number of flows that one call of `on_timeout` removes, so that a burst of expiries does not delay
/// the worker.
const EXPIRIES_PER_CALL_MAX: usize = 1024;

/// The network node's logic for one worker.
pub struct NetworkCore {
    ports: Vec<PortConfig>,
    pub(super) classifier: Classifier,
    pub(super) flows: FlowTable,
    pub(super) labels: LabelTable,
    pub(super) neighbours: Neighbours,
    pub(super) proxies: Proxies,
    pub(super) answer_limit: RateLimit,
    pub(super) search_limit: RateLimit,
    pub(super) counters: Counters,
    pub(super) trace: TraceRing,
    pub(super) plugins: PacketPlugins,
    pub(super) reassembly: Reassembly,
    pub(super) forwarding: Forwarding,
    /// This worker's number, and the number of workers that share the frames of the ports.
    pub(super) worker: u8,
    pub(super) workers: u8,
    pub(super) groups: Vec<AddressGroup>,
    /// The time by which groups are held.
    pub(super) lan_time: Instant,
    /// When an address was last announced because another host claimed it.
    pub(super) defended_at: Option<Instant>,
    /// In the order of their times.
    pub(super) announcements: VecDeque<Announcement>,
    /// What is to be done to the flows of workers that are gone.
    pub(super) sweeps: VecDeque<Sweep>,
    identification: u16,
    pub(super) settled: bool,
    pub(super) complete: bool,
    /// Ports with a path to the kernel, one bit each.
    kernel: u32,
}

impl NetworkCore {
    /// Creates a core without services and proxies. All tables are allocated here, except a proxy's label
    /// table, which is allocated when its slot is first used.
    pub fn new(config: CoreConfig) -> Self {
        let lifetimes =
            Lifetimes { pending: config.pending_timeout, idle: config.idle_timeout, linger: config.linger };
        NetworkCore {
            ports: config.ports,
            classifier: Classifier::new(config.rules_max),
            flows: FlowTable::new(config.flows_max, config.table_key, lifetimes),
            labels: LabelTable::new(config.proxies_max),
            neighbours: Neighbours::new(config.neighbours_max),
            proxies: Proxies::new(config.proxies_max, config.own_proxy),
            answer_limit: RateLimit::new(ANSWERS_PER_SECOND_MAX),
            search_limit: RateLimit::new(SEARCHES_PER_SECOND_MAX),
            counters: Counters::default(),
            trace: TraceRing::new(config.trace_len),
            plugins: PacketPlugins::new(config.plugins),
            reassembly: Reassembly::new(),
            forwarding: Forwarding::new(config.flows_max),
            worker: config.worker,
            workers: config.workers.max(1),
            groups: Vec::new(),
            lan_time: Instant::ZERO,
            defended_at: None,
            announcements: VecDeque::with_capacity(config.rules_max),
            sweeps: VecDeque::new(),
            identification: 0,
            settled: true,
            complete: true,
            kernel: 0,
        }
    }

    /// Enables the path to the host's kernel for a port whose frames the kernel does not receive itself. A
    /// frame received on the port for an address that is not the node's is passed to
    /// [`NetworkOutput::kernel`] instead of being dropped.
    pub fn set_reinjection(&mut self, port: PortId) {
        self.kernel |= 1 << port.0.min(31);
    }

    /// Returns whether a port has a path to the kernel.
    #[inline]
    pub(super) fn has_reinjection(&self, port: PortId) -> bool {
        self.kernel >> port.0.min(31) & 1 == 1
    }

    /// Replaces the rules by those of a policy without channels; see [`set_rules`](Self::set_rules).
    ///
    /// # Errors
    /// As for `set_rules`.
    pub fn set_services(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        egress: &[IpAddr],
        out: &mut impl NetworkOutput,
    ) -> Result<(), RuleError> {
        self.set_rules(now, services, &[], egress, out)
    }

    /// Replaces the services (virtual address and port), the addresses of message channels, and the egress
    /// addresses. Connections to a channel go to the worker that owns the channel's key. Existing flows
    /// continue. New addresses are announced on the LAN.
    ///
    /// # Errors
    /// There are more rules than fit, or two with the same address and port. The previous rules stay in
    /// force.
    pub fn set_rules(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        channels: &[(SocketAddr, PlacementKey)],
        egress: &[IpAddr],
        out: &mut impl NetworkOutput,
    ) -> Result<(), RuleError> {
        let (capacity, before) = (self.classifier.capacity(), self.classifier.addresses());
        let mut rules = RuleSet::new(capacity, services, channels, Arc::default(), egress, before)?;
        self.exchange_rules(now, &mut rules, out);
        Ok(())
    }

    /// Exchanges the rules in force for others; those are returned in their place, for the caller to free.
    /// Otherwise as [`set_rules`](Self::set_rules).
    pub fn exchange_rules(&mut self, now: Instant, rules: &mut RuleSet, out: &mut impl NetworkOutput) {
        std::mem::swap(&mut self.classifier, &mut rules.classifier);
        std::mem::swap(&mut self.groups, &mut rules.groups);
        self.proxies.set_channels(rules.channels.iter().copied());
        std::mem::swap(&mut self.forwarding.askers, &mut rules.egress);
        self.exchange_pools(now, &mut rules.pools, out);
        self.announce_new(now, rules.new.drain(..), out);
    }

    /// Records that all `workers` of a proxy are reachable.
    pub fn proxy_up(&mut self, proxy: ProxyId, node: NodeId, workers: u8) {
        for worker in 0..workers {
            self.worker_up(proxy, node, worker);
        }
    }

    /// Records that a proxy is down. Its flows are removed; their next segments go to other proxies.
    pub fn proxy_down(&mut self, proxy: ProxyId) {
        for worker in 0..=u8::MAX {
            if self.proxies.is_up(proxy, worker) {
                self.proxies.set_down(proxy, worker);
            }
        }
        self.remove_flows(proxy, None);
    }

    /// Records that one worker of a proxy is reachable. If the slot belongs to another node, that node is
    /// removed first.
    pub fn worker_up(&mut self, proxy: ProxyId, node: NodeId, worker: u8) {
        if self.proxies.node(proxy).is_some_and(|known| known != node) {
            self.proxy_down(proxy);
        }
        self.finish_sweeps(proxy);
        self.labels.prepare(proxy);
        self.proxies.set_up(proxy, node, worker);
    }

    /// Records that one worker of a proxy is down, as [`proxy_down`](Self::proxy_down) does for all of them.
    pub fn worker_down(&mut self, proxy: ProxyId, worker: u8) {
        self.proxies.set_down(proxy, worker);
        self.remove_flows(proxy, Some(worker));
    }

    /// Records that one worker of a proxy is unreachable while it is unknown whether it is alive. New flows
    /// go to other workers; its own flows are kept without their labels. Either
    /// [`worker_up`](Self::worker_up) or [`worker_down`](Self::worker_down) follows.
    pub fn worker_unreachable(&mut self, now: Instant, proxy: ProxyId, worker: u8) {
        self.proxies.set_down(proxy, worker);
        self.unbind_flows(now, proxy, worker);
    }

    /// Sets whether a proxy gets no new flows. Its existing flows continue.
    pub fn set_draining(&mut self, proxy: ProxyId, draining: bool) {
        self.proxies.set_draining(proxy, draining);
    }

    /// Sets whether every expected proxy has been tried. Until then segments of unknown connections are
    /// dropped: a proxy that does not own the connection would reset it.
    pub fn set_settled(&mut self, settled: bool) {
        self.settled = settled;
    }

    /// Sets whether all proxies that may have connections can be asked for them. Until then, a segment whose
    /// connection nobody has is dropped instead of reset.
    pub fn set_complete(&mut self, complete: bool) {
        self.complete = complete;
    }

    /// Processes what is due: expired flows, announcements, repeated neighbour requests.
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        for _ in 0..EXPIRIES_PER_CALL_MAX {
            let Some(index) = self.flows.expired(now) else { break };
            let lingering = self.flows.flow(index).is_some_and(|f| f.state == FlowState::Lingering);
            self.counters.flows_expired += u64::from(!lingering);
            self.remove_flow(index);
        }
        self.sweep();
        self.reassembly.expire(now, &mut self.counters);
        self.announce_due(now, out);
        self.look_for_servers(now, out);
        self.resume_held(now, out);
        while let Some(request) = self.neighbours.due(now, &mut self.counters.drop_unresolved) {
            self.ask(&request, out);
        }
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout) next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let announcement = self.announcements.front().map(|a| a.due);
        let held = self.plugins.hosts.next_timeout();
        let sweep = (!self.sweeps.is_empty()).then_some(Instant::ZERO);
        let tables =
            [self.flows.next_deadline(), self.neighbours.next_deadline(), self.reassembly.next_deadline()];
        let servers = self.forwarding.next_timeout();
        tables.into_iter().chain([announcement, held, sweep, servers]).flatten().min()
    }

    /// Adds a flow. If the table is full, a flow of lower priority is evicted ([`FlowTable::victim`]).
    pub(super) fn insert_flow(&mut self, now: Instant, new: NewFlow) -> Option<FlowIndex> {
        if let Some(victim) = self.flows.victim(new.state) {
            self.remove_flow(victim);
            self.counters.flows_evicted += 1;
        }
        let index = self.flows.insert(now, new);
        self.counters.flows_created += u64::from(index.is_some());
        index
    }

    pub(super) fn remove_flow(&mut self, index: FlowIndex) {
        self.unbind(index);
        self.flows.remove(index);
    }

    pub(super) fn port_mac(&self, port: PortId) -> MacAddr {
        self.ports.get(usize::from(port.0)).map_or(MacAddr::default(), |p| p.mac)
    }

    pub(super) fn port_count(&self) -> usize {
        self.ports.len()
    }

    pub(super) fn on_link(&self, port: PortId) -> &[Prefix] {
        self.ports.get(usize::from(port.0)).map_or(&[], |p| &p.on_link)
    }

    pub(super) fn port_mtu(&self, port: PortId) -> u16 {
        self.ports.get(usize::from(port.0)).map_or(0, |p| p.mtu)
    }

    /// Returns the port and the neighbour by which `destination` is reached.
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

    /// Returns the next IPv4 identification. All packets are sent with DF, for which any value is valid (RFC
    /// 6864 §4.1).
    pub(super) fn next_identification(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the flight recorder.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// Returns the flows in the table, in no particular order.
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

    /// Returns the number of flows in the table.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of lingering flows, whose connection is over.
    pub fn lingering_count(&self) -> usize {
        self.flows.count(FlowState::Lingering)
    }

    /// Returns the capacity of the flow table.
    pub fn flow_capacity(&self) -> usize {
        self.flows.capacity()
    }

    /// Returns the number of bound labels.
    pub fn label_count(&self) -> usize {
        self.labels.len()
    }
}

/// Returns the index of the message channels at an address of the cluster, if there are any.
pub(super) fn channel_at(classifier: &Classifier, local: SocketAddr) -> Option<ChannelIndex> {
    let key = PacketKey { source: local, destination: local, protocol: ipv4::PROTOCOL_TCP, lan_port: 0 };
    match classifier.classify(&key) {
        Verdict::Channel(channel) => Some(channel),
        _ => None,
    }
}
