//! Packet plug-ins of a worker: in front of the flow table for frames that are received, behind it for those
//! that are transmitted.
//!
//! ```text
//!  frame ─▶ classifier ── no rule ─────────────────────────────▶ flow table
//!               │ rule                                              ▲  (or the kernel: `kernel`)
//!               ▼                                                   │ pass: with rule and hops, not classified again
//!             copy ─▶ graph ────────────────────────────────────────┘
//!                       ├─▶ drop
//!                       ├─▶ plug-in host, and back (`hosted`)
//!                       └─▶ transmitted on a port (copies, too)
//! ```
//! Without rules of a direction this is one branch for each frame. A [`PluginChange`] is applied between two
//! frames. It returns the former tables to its sender, which frees them, so that the worker neither frees a
//! large table nor waits.

use std::net::IpAddr;

use csp_classify::multifield::{
    Direction, Fields, Hit, HitCount, InstanceId, Parsed, Published, RuleHandle, Table, Worker,
    parse_ethernet,
};
use csp_plugins::{
    Answer, Binding, CallError, Command, EnvironmentId, Fallback, Graph, GraphCounters, InstanceCount, Level,
    Metadata, Output, Packet, Plugin, Settings, Verdict,
};
use csp_types::Instant;
use csp_wire::ethernet;
use csp_wire::offload::TxOffload;
use csp_wire::packets::Head;
use csp_wire::tunnel::Record;

use super::api::{NetworkOutput, PortId, ProxyId, TunnelFull};
use super::hosts::{HostCounters, Hosts, Offload};
use super::node::NetworkCore;
use super::ports::{Ports, gather};

/// Longest frame that plug-ins process: Ethernet header and the longest IP packet.
const FRAME_LEN_MAX: usize = ethernet::HEADER_LEN + 65_535;

/// Capacities for packet plug-ins. If all are zero, there are no plug-ins, and no memory is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PluginCapacity {
    /// Rules at once.
    pub rules: usize,
    /// Instances at once.
    pub instances: usize,
    /// Execution environments.
    pub environments: usize,
    /// Number of flows whose rule is cached.
    pub flows: usize,
}

/// A change of a worker's plug-ins. Once applied, it contains the former parts, which the sender frees.
#[derive(Default)]
pub struct PluginChange {
    /// Commands for the graph, in order; empty after the change.
    pub commands: Vec<Command>,
    /// The new rules; after the change, the former ones. `None`: the rules stay.
    pub table: Option<Published>,
    /// Whether rules for received packets exist, and whether rules for transmitted packets do.
    pub directions: (bool, bool),
    /// The rules that the program in the driver (level 1) decides by itself; after the change, the former
    /// ones.
    pub driver: DriverRules,
    /// Removed plug-ins. The sender reserves space for as many as there are commands.
    pub retired: Vec<Box<dyn Plugin>>,
}

impl core::fmt::Debug for PluginChange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let generation = self.table.as_ref().map(|table| table.generation);
        write!(
            f,
            "PluginChange({} commands, table {generation:?}, {:?})",
            self.commands.len(),
            self.directions
        )
    }
}

/// The part of a frame's processing that the program in the driver has already done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DriverRules {
    /// LAN ports on which the program runs, one bit each.
    pub ports: u32,
    /// Whether the program decides by itself on all rules for received packets.
    pub complete: bool,
    /// The rules that the program decides by itself: one bit for each slot of the rule table.
    pub rules: Vec<u64>,
}

impl DriverRules {
    /// Returns whether the program has classified a packet.
    fn has_seen(&self, port: PortId, parsed: &Parsed) -> bool {
        self.ports >> port.0.min(31) & 1 == 1 && parsed.is_plain()
    }

    /// Returns whether the program has processed packets that match a rule.
    fn has_done(&self, rule: RuleHandle) -> bool {
        let word = self.rules.get(rule.slot as usize / 64).copied().unwrap_or(0);
        word >> (rule.slot % 64) & 1 == 1
    }
}

/// Counters of a worker's plug-ins. The caller fills in the rules and instances whose counters it requests.
#[derive(Clone, Debug, Default)]
pub struct PluginCounts {
    /// Hit counters by rule.
    pub rules: Vec<(RuleHandle, HitCount)>,
    /// Counters by instance.
    pub instances: Vec<(InstanceId, InstanceCount)>,
    /// Environments, and whether each runs.
    pub environments: Vec<(EnvironmentId, bool)>,
    /// Counters of the graph.
    pub graph: GraphCounters,
    /// Counters of packets for plug-in hosts.
    pub hosts: HostCounters,
    /// Classifier look-ups, and the number of them that the flow cache answered.
    pub lookups: (u64, u64),
    /// Frames for a port that does not exist, or that cannot be transmitted unchanged.
    pub untransmitted: u64,
}

/// A worker's classifier and graph.
pub(super) struct PacketPlugins {
    classifier: Worker,
    pub(super) graph: Graph,
    pub(super) hosts: Hosts,
    /// Buffer for a received frame while plug-ins change it; empty while in use.
    pub(super) received: Box<[u8]>,
    /// Buffer for a transmitted frame, which may be the answer to a received one.
    frame: Box<[u8]>,
    ingress: bool,
    egress: bool,
    driver: DriverRules,
    untransmitted: u64,
}

impl PacketPlugins {
    pub(super) fn new(capacity: PluginCapacity) -> Self {
        let PluginCapacity { rules, instances, environments, flows } = capacity;
        let none = Published { generation: 0, table: Table::new().into() };
        let frame = || vec![0; if rules == 0 { 0 } else { FRAME_LEN_MAX }].into_boxed_slice();
        PacketPlugins {
            classifier: Worker::new(none, rules, flows),
            graph: Graph::new(instances, environments),
            hosts: Hosts::new(environments),
            received: frame(),
            frame: frame(),
            ingress: false,
            egress: false,
            driver: DriverRules::default(),
            untransmitted: 0,
        }
    }

    /// Returns whether received frames are classified.
    #[inline]
    pub(super) const fn ingress(&self) -> bool {
        self.ingress
    }

    /// Returns whether transmitted frames are classified.
    #[inline]
    pub(super) const fn egress(&self) -> bool {
        self.egress
    }

    /// Returns the rule that matches a packet.
    pub(super) fn classify(&mut self, fields: &Fields, len: usize) -> Option<Hit> {
        self.classifier.classify(fields, u32::try_from(len).unwrap_or(u32::MAX))
    }

    /// Returns the rule that matches a received packet, unless the program in the driver has processed it.
    pub(super) fn classify_received(&mut self, port: PortId, parsed: &Parsed, len: usize) -> Option<Hit> {
        if !self.driver.has_seen(port, parsed) {
            return self.classify(&parsed.fields, len);
        }
        if self.driver.complete {
            return None;
        }
        let hit = self.classifier.find(&parsed.fields).filter(|hit| !self.driver.has_done(hit.rule))?;
        self.classifier.count(hit, u32::try_from(len).unwrap_or(u32::MAX));
        Some(hit)
    }

    /// Runs a frame of `len` bytes at the start of `room` through the graph. Returns the verdict and the
    /// frame's length afterwards.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        hit: Hit,
        (room, len): (&mut [u8], usize),
        metadata: Metadata,
        ports: &mut Ports<'_, impl NetworkOutput>,
    ) -> (Verdict, usize) {
        let mut packet = Packet::with_room(room, len, metadata);
        let binding = Binding::decode(hit.instance);
        let verdict = self.graph.enter(now, hit.rule, binding, &mut packet, ports);
        let (metadata, len) = (packet.metadata, packet.bytes().len());
        let frame = room.get(..len).unwrap_or_default();
        self.follow(now, verdict, (metadata, binding.fallback), frame, ports);
        (verdict, len)
    }

    /// Passes a frame whose first plug-in runs on a host to that host without copying the frame first.
    /// Returns `false` if the plug-in runs here, or does not run.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        hit: Hit,
        frame: &[u8],
        metadata: Metadata,
        ports: &mut Ports<'_, impl NetworkOutput>,
    ) -> bool {
        let binding = Binding::decode(hit.instance);
        let Some(verdict) = self.graph.leave(binding, metadata.hops) else { return false };
        let metadata = Metadata { rule: Some(hit.rule), ..metadata };
        self.follow(now, verdict, (metadata, binding.fallback), frame, ports);
        true
    }

    /// Runs a frame through the graph from an instance on.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        binding: Binding,
        (room, len): (&mut [u8], usize),
        metadata: Metadata,
        ports: &mut Ports<'_, impl NetworkOutput>,
    ) -> (Verdict, usize) {
        let mut packet = Packet::with_room(room, len, metadata);
        let verdict = self.graph.run(now, binding, &mut packet, ports);
        let (metadata, len) = (packet.metadata, packet.bytes().len());
        let frame = room.get(..len).unwrap_or_default();
        self.follow(now, verdict, (metadata, binding.fallback), frame, ports);
        (verdict, len)
    }

    /// Transmits a frame that has left the graph, or passes it to its host.
    fn follow(
        &mut self,
        now: Instant,
        verdict: Verdict,
        (metadata, fallback): (Metadata, Fallback),
        frame: &[u8],
        ports: &mut Ports<'_, impl NetworkOutput>,
    ) {
        match verdict {
            Verdict::Transmit(interface) => ports.copy(interface, frame),
            Verdict::HandOver { instance, environment, level: Level::Host } => {
                let known = (metadata, fallback, ports.offload);
                self.hosts.hand_over(now, (environment, instance), known, frame, ports.out);
            }
            // Instances of other levels run in the workers.
            Verdict::HandOver { .. } => self.untransmitted += 1,
            Verdict::Pass | Verdict::Drop => {}
        }
        self.untransmitted += core::mem::take(&mut ports.refused);
    }

    /// Transmits a frame on a port on behalf of a host.
    pub(super) fn transmit(
        &mut self,
        interface: u16,
        frame: &[u8],
        ports: &mut Ports<'_, impl NetworkOutput>,
    ) {
        ports.copy(interface, frame);
        self.untransmitted += core::mem::take(&mut ports.refused);
    }
}

/// An output that classifies frames before they are transmitted, unless they were classified already.
pub(super) struct Egress<'a, O> {
    pub(super) plugins: &'a mut PacketPlugins,
    pub(super) now: Instant,
    /// The rule, if the frames are classified already.
    pub(super) hit: Option<Hit>,
    pub(super) ports: usize,
    pub(super) out: &'a mut O,
}

impl<O: NetworkOutput> NetworkOutput for Egress<'_, O> {
    fn host(
        &mut self,
        now: Instant,
        host: EnvironmentId,
        head: &Head,
        frame: &[u8],
    ) -> Result<(), TunnelFull> {
        self.out.host(now, host, head, frame)
    }

    fn tunnel(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), TunnelFull> {
        self.out.tunnel(now, proxy, record, parts)
    }

    fn kernel(&mut self, port: PortId, frame: &[u8], offload: Option<TxOffload>) {
        self.out.kernel(port, frame, offload);
    }

    fn lan(&mut self, port: PortId, parts: &[&[u8]], offload: Option<TxOffload>) {
        let mut frame = core::mem::take(&mut self.plugins.frame);
        let len = gather(&mut frame, parts);
        self.lan_frame(port, parts, offload, (&mut frame, len));
        self.plugins.frame = frame;
    }
}

impl<O: NetworkOutput> Egress<'_, O> {
    fn lan_frame(
        &mut self,
        port: PortId,
        parts: &[&[u8]],
        offload: Option<TxOffload>,
        (room, len): (&mut [u8], usize),
    ) {
        let frame = room.get(..len).unwrap_or_default();
        let hit = self.hit.or_else(|| {
            let parsed = parse_ethernet(frame, port.0, Direction::Egress).ok()?;
            self.plugins.classify(&parsed.fields, frame.len())
        });
        let Some(hit) = hit else { return self.out.lan(port, parts, offload) };
        let mut metadata = Metadata {
            checksum_partial: offload.is_some(),
            resizable: offload.is_none(),
            ..Metadata::new(port.0, Direction::Egress)
        };
        if let Some(gso) = offload.and_then(|offload| offload.gso) {
            let count = frame.len().div_ceil(usize::from(gso.segment_size).max(1));
            metadata.coalesced = count.clamp(1, usize::from(u16::MAX)) as u16;
        }
        let offload_of = Offload::Transmitted(offload);
        if self.plugins.hosts.holds() {
            return self.plugins.hosts.hold(self.now, hit, (metadata, offload_of), frame);
        }
        let mut ports = Ports::new(self.out, self.ports, offload_of);
        let (verdict, len) = self.plugins.enter(self.now, hit, (&mut *room, len), metadata, &mut ports);
        if verdict == Verdict::Pass {
            self.out.lan(port, &[room.get(..len).unwrap_or_default()], offload);
        }
    }
}

/// Returns the classifier fields of a TCP segment that the node transmits.
pub(super) fn fields_of(
    (source, destination): (IpAddr, IpAddr),
    ports: (u16, u16),
    tcp_flags: u8,
    port: PortId,
) -> Fields {
    Fields {
        source,
        destination,
        ports: Some(ports),
        protocol: csp_wire::ipv4::PROTOCOL_TCP,
        interface: port.0,
        direction: Direction::Egress,
        tcp_flags: Some(tcp_flags),
        dscp: 0,
    }
}

impl NetworkCore {
    /// Transmits a frame that the node itself originates, through the plug-ins if a rule matches it.
    pub(super) fn transmit_frame(
        &mut self,
        now: Instant,
        port: PortId,
        parts: &[&[u8]],
        out: &mut impl NetworkOutput,
    ) {
        if !self.plugins.egress() {
            return out.lan(port, parts, None);
        }
        let ports = self.port_count();
        Egress { plugins: &mut self.plugins, now, hit: None, ports, out }.lan(port, parts, None);
    }

    /// Applies a change, between two frames.
    pub fn change_plugins(&mut self, change: &mut PluginChange) {
        self.plugins.hosts.changed();
        for command in change.commands.drain(..) {
            if let Some(plugin) = self.plugins.graph.apply(command) {
                change.retired.push(plugin);
            }
        }
        change.table = change.table.take().map(|table| self.plugins.classifier.adopt(table));
        (self.plugins.ingress, self.plugins.egress) = change.directions;
        core::mem::swap(&mut self.plugins.driver, &mut change.driver);
    }

    /// Executes an operation of an instance.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_plugin(
        &mut self,
        now: Instant,
        instance: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, CallError> {
        self.plugins.graph.call(now, instance, operation, arguments)
    }

    /// Fills in the counters of plug-ins.
    pub fn count_plugins(&self, counts: &mut PluginCounts) {
        let plugins = &self.plugins;
        for (rule, count) in &mut counts.rules {
            *count = plugins.classifier.counters().of(*rule);
        }
        for (instance, count) in &mut counts.instances {
            *count = plugins.graph.count(*instance).unwrap_or_default();
        }
        for (environment, running) in &mut counts.environments {
            *running = plugins.graph.is_running(*environment);
        }
        counts.graph = *plugins.graph.counters();
        counts.hosts = plugins.hosts.counters;
        (counts.lookups, counts.untransmitted) = (plugins.classifier.lookups(), plugins.untransmitted);
    }
}
