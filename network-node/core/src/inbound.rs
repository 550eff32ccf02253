//! From the LAN to the tunnel: validation, flow table, and selection of a proxy for new flows.

use std::net::{IpAddr, SocketAddr};

use csp_classify::{PacketKey, Verdict};
use csp_types::{FlowLabel, FourTuple, Instant, MacAddr, TraceEvent, TraceKind};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::QuotedTcp;
use csp_wire::offload::{Checksum as FrameChecksum, Frame};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{Ecn, WireError, ipv4, ipv6};

use super::api::{NetworkOutput, PortId, ProxyId};
use super::emit::Route;
use super::flow_table::{FlowIndex, FlowState, NewFlow};
use super::forward::Arrived;
use super::node::{NetworkCore, channel_at};
use super::path_error::icmp_record;
use super::peer_location::Sent;
use super::search::{self, Search};

/// An IP packet from the LAN that carries TCP.
struct Inbound<'a> {
    now: Instant,
    port: PortId,
    peer_mac: MacAddr,
    tuple: FourTuple,
    hash: u64,
    ecn: Ecn,
    /// The whole IP packet.
    packet: &'a [u8],
    /// TCP header and data within it.
    bytes: &'a [u8],
    segment: Segment<'a>,
    /// Number of packets that it represents.
    coalesced: u16,
    /// TCP payload per packet, in bytes; 0 if it is one packet.
    segment_size: u16,
}

/// Returns whether no host may use the address as a source.
pub(super) fn is_martian(source: IpAddr) -> bool {
    let broadcast = matches!(source, IpAddr::V4(v4) if v4.is_broadcast());
    broadcast || source.is_multicast() || source.is_unspecified() || source.is_loopback()
}

impl NetworkCore {
    /// Processes a frame from a LAN port.
    pub fn on_frame(&mut self, now: Instant, port: PortId, frame: &Frame<'_>, out: &mut impl NetworkOutput) {
        self.counters.frames_in += 1;
        let ethernet = match ethernet::Frame::parse(frame.bytes) {
            Ok(ethernet) => ethernet,
            // A priority tag, which the kernel ignores.
            Err(_) if self.plugins.ingress() && self.has_reinjection(port) => {
                return self.receive_classified(now, port, frame, out);
            }
            Err(error) => return self.unreadable(port, frame, &error, out),
        };
        let destination = ethernet.destination();
        if !(destination == self.port_mac(port) || destination.is_multicast()) {
            self.counters.drop_not_ours += 1;
            return;
        }
        if self.plugins.ingress() {
            return self.receive_classified(now, port, frame, out);
        }
        self.receive(now, port, frame, &ethernet, out);
    }

    /// Routes a frame with this node's Ethernet address, which matched no rule or has left the plug-ins.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        ethernet: &ethernet::Frame<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let peer_mac = ethernet.source();
        match ethernet.ether_type() {
            Some(EtherType::Arp) => self.on_arp(now, port, ethernet.payload(), out),
            Some(EtherType::Ipv4) => self.on_ipv4(now, port, peer_mac, frame, ethernet.payload(), out),
            Some(EtherType::Ipv6) => self.on_ipv6(now, port, peer_mac, frame, ethernet.payload(), out),
            None if self.has_reinjection(port) => self.reinject(port, frame, out),
            None => self.counters.drop_protocol += 1,
        }
    }

    fn on_ipv4(
        &mut self,
        now: Instant,
        port: PortId,
        peer_mac: MacAddr,
        frame: &Frame<'_>,
        payload: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        let packet = match ipv4::Packet::parse(payload) {
            Ok(packet) => packet,
            Err(error) => return self.unreadable(port, frame, &error, out),
        };
        let (source, destination) = (packet.source().into(), packet.destination().into());
        if packet.is_fragment() && self.take_fragment(now, port, frame, out) {
            return;
        }
        if !self.classifier.owns(destination) {
            return self.reinject(port, frame, out);
        }
        if is_martian(source) || self.classifier.owns(source) {
            self.counters.drop_malformed += 1;
            return;
        }
        let whole = &payload[..packet.total_len()];
        if self.forwarding.is_used() {
            let (ends, protocol) = ((source, destination), packet.protocol());
            let header_len = packet.header_len();
            let arrived = Arrived { now, port, peer_mac, frame, ends, protocol, packet: whole, header_len };
            if self.forward_to_server(&arrived, out) {
                return;
            }
        }
        match packet.protocol() {
            ipv4::PROTOCOL_TCP => {
                let ends = (source, destination, packet.ecn());
                self.on_tcp(now, port, peer_mac, frame, ends, whole, packet.payload(), out);
            }
            ipv4::PROTOCOL_ICMP => {
                let route = self.route_to_sender(port, peer_mac, source, destination);
                self.on_icmp_v4(now, &route, whole, packet.payload(), out);
            }
            _ => self.counters.drop_protocol += 1,
        }
    }

    fn on_ipv6(
        &mut self,
        now: Instant,
        port: PortId,
        peer_mac: MacAddr,
        frame: &Frame<'_>,
        payload: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        let packet = match ipv6::Packet::parse(payload) {
            Ok(packet) => packet,
            Err(WireError::Unsupported { what: "ipv6 fragment", .. })
                if self.take_fragment(now, port, frame, out) =>
            {
                return;
            }
            Err(WireError::Unsupported { what: "ipv6 fragment", .. }) if !self.is_for_node(frame.bytes) => {
                return self.reinject(port, frame, out);
            }
            Err(error) => return self.unreadable(port, frame, &error, out),
        };
        let (source, destination) = (packet.source().into(), packet.destination().into());
        let ours = self.classifier.owns(destination);
        let is_kernels = || self.has_reinjection(port) && !self.is_for_node(frame.bytes);
        if !ours && (!packet.destination().is_multicast() || is_kernels()) {
            return self.reinject(port, frame, out);
        }
        let probe = packet.protocol() == ipv6::PROTOCOL_ICMPV6 && packet.source().is_unspecified();
        if (is_martian(source) && !probe) || self.classifier.owns(source) {
            self.counters.drop_malformed += 1;
            return;
        }
        let whole = &payload[..packet.total_len()];
        if self.forwarding.is_used() && ours {
            let (ends, protocol) = ((source, destination), packet.protocol());
            let header_len = packet.header_len();
            let arrived = Arrived { now, port, peer_mac, frame, ends, protocol, packet: whole, header_len };
            if self.forward_to_server(&arrived, out) {
                return;
            }
        }
        match packet.protocol() {
            ipv6::PROTOCOL_TCP if ours => {
                let ends = (source, destination, packet.ecn());
                self.on_tcp(now, port, peer_mac, frame, ends, whole, packet.payload(), out);
            }
            ipv6::PROTOCOL_ICMPV6 => {
                let route = self.route_to_sender(port, peer_mac, source, destination);
                self.on_icmp_v6(now, &route, whole, &packet, out);
            }
            _ => self.counters.drop_protocol += 1,
        }
    }

    fn route_to_sender(&self, port: PortId, peer_mac: MacAddr, source: IpAddr, destination: IpAddr) -> Route {
        let source_mac = self.port_mac(port);
        Route { port, source_mac, destination_mac: peer_mac, source: destination, destination: source }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one caller for each address family; a struct would be built twice"
    )]
    fn on_tcp(
        &mut self,
        now: Instant,
        port: PortId,
        peer_mac: MacAddr,
        frame: &Frame<'_>,
        (source, destination, ecn): (IpAddr, IpAddr, Ecn),
        packet: &[u8],
        bytes: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        let segment = match Segment::parse(bytes) {
            Ok(segment) => segment,
            Err(error) => return self.count_wire_error(&error),
        };
        if frame.checksum == FrameChecksum::Unchecked && !is_sum_valid(source, destination, bytes) {
            self.counters.drop_bad_checksum += 1;
            return;
        }
        let local = SocketAddr::new(destination, segment.destination_port());
        let remote = SocketAddr::new(source, segment.source_port());
        let tuple = FourTuple { local, remote };
        let hash = self.flows.hash(&tuple);
        let (coalesced, segment_size) = match frame.gso {
            Some(gso) => {
                let count = segment.payload().len().div_ceil(usize::from(gso.segment_size).max(1));
                (count.clamp(1, usize::from(u16::MAX)) as u16, gso.segment_size)
            }
            None => (1, 0),
        };
        let inbound = Inbound {
            now,
            port,
            peer_mac,
            tuple,
            hash,
            ecn,
            packet,
            bytes,
            segment,
            coalesced,
            segment_size,
        };
        match self.find_flow(hash, &tuple) {
            Some(index) => self.forward_known(&inbound, index, out),
            None => self.forward_unknown(&inbound, out),
        }
    }

    fn forward_known(&mut self, inbound: &Inbound<'_>, index: FlowIndex, out: &mut impl NetworkOutput) {
        let Some(flow) = self.flows.flow_mut(index) else { return };
        let begins = inbound.segment.flags().syn() && !inbound.segment.flags().ack();
        let again = flow.state == FlowState::Lingering && begins;
        if again {
            flow.sent = Sent::default();
        }
        if begins && flow.search.take().is_some() {
            let channel = channel_at(&self.classifier, inbound.tuple.local);
            let chosen = self.proxies.choose(&inbound.tuple, channel);
            (flow.proxy, flow.worker) = chosen.unwrap_or((flow.proxy, flow.worker));
        }
        let moved = (flow.port, flow.peer_mac) != (inbound.port, Some(inbound.peer_mac));
        if moved && (flow.peer_mac.is_none() || flow.sent.plausible(&inbound.segment)) {
            (flow.port, flow.peer_mac) = (inbound.port, Some(inbound.peer_mac));
        } else if moved {
            self.counters.moves_doubted += 1;
        }
        flow.last_used = inbound.now;
        flow.segments_in += 1;
        let (proxy, worker, label) = (flow.proxy, flow.worker, flow.label);
        let flags = search::flags_of(flow.search);
        if again {
            // The tuple is used again. The proxy that may hold it in TIME-WAIT decides (RFC 6191).
            self.flows.set_state(inbound.now, index, FlowState::Pending);
        }
        self.forward(inbound, (proxy, worker), label, flags, out);
    }

    fn forward_unknown(&mut self, inbound: &Inbound<'_>, out: &mut impl NetworkOutput) {
        let flags = inbound.segment.flags();
        let begins = flags.syn() && !flags.ack();
        let verdict = self.classifier.classify(&PacketKey {
            source: inbound.tuple.remote,
            destination: inbound.tuple.local,
            protocol: ipv4::PROTOCOL_TCP,
            lan_port: inbound.port.0,
        });
        let channel = match verdict {
            Verdict::Service(_) => None,
            Verdict::Channel(channel) => Some(channel),
            Verdict::Egress if !begins => None,
            Verdict::Egress | Verdict::NoService => {
                let route = self.reply_route(&inbound.tuple, inbound.port, inbound.peer_mac);
                return self.refuse(inbound.now, &route, &inbound.segment, out);
            }
            // Only for what is not forwarded: fragments of nobody.
            Verdict::Forward(_) => return self.counters.drop_no_service += 1,
            Verdict::NotOurs => return self.counters.drop_not_ours += 1,
        };
        let begun = Some(Search::begin(self.proxies.generation()));
        let (state, chosen, search) = if begins {
            (FlowState::Pending, self.proxies.choose(&inbound.tuple, channel), None)
        } else {
            (FlowState::Lingering, self.proxies.candidate(&inbound.tuple, channel, 0), begun)
        };
        // The owner of the channel may be a proxy that was not tried yet.
        let known_well = (begins && channel.is_none()) || self.settled;
        let Some((proxy, worker)) = chosen.filter(|_| known_well) else {
            return self.counters.drop_no_proxy += 1;
        };
        let new = NewFlow {
            tuple: inbound.tuple,
            hash: inbound.hash,
            state,
            proxy,
            worker,
            search,
            port: inbound.port,
            peer_mac: Some(inbound.peer_mac),
        };
        match self.insert_flow(inbound.now, new) {
            Some(index) => self.forward_known(inbound, index, out),
            None => self.counters.drop_table_full += 1,
        }
    }

    /// Sends the segment to its proxy: without IP header if it has a label, otherwise as the whole packet.
    fn forward(
        &mut self,
        inbound: &Inbound<'_>,
        (proxy, worker): (ProxyId, u8),
        label: FlowLabel,
        flags: Flags,
        out: &mut impl NetworkOutput,
    ) {
        let flags = flags | Flags::CHECKSUM_VERIFIED;
        let (flags, payload) = match label.is_none() {
            true => (flags, inbound.packet),
            false => (flags | Flags::COMPACTED, inbound.bytes),
        };
        let record = Record {
            kind: RecordKind::Segment,
            label,
            worker,
            flags,
            ecn: inbound.ecn,
            age: Age::ZERO,
            coalesced: inbound.coalesced,
            segment_size: inbound.segment_size,
            payload: &[],
        };
        let segment = (&inbound.segment, inbound.segment.payload().len());
        self.trace_segment(TraceKind::LanIn, inbound.now, label, segment, inbound.hash);
        if out.tunnel(inbound.now, proxy, &record, &[payload]).is_err() {
            self.counters.drop_tunnel_full += 1;
            return;
        }
        self.counters.segments_in += 1;
        self.counters.packets_in += u64::from(inbound.coalesced);
        self.counters.bytes_in += inbound.segment.payload().len() as u64;
    }

    /// Sends an ICMP error about a segment of a bound flow to the flow's proxy, which validates it (RFC
    /// 5927).
    pub(super) fn on_icmp_error(
        &mut self,
        now: Instant,
        packet: &[u8],
        quoted: Result<QuotedTcp, WireError>,
        out: &mut impl NetworkOutput,
    ) {
        let quoted = match quoted {
            Ok(quoted) => quoted,
            Err(error) => return self.count_wire_error(&error),
        };
        let tuple = FourTuple { local: quoted.source, remote: quoted.destination };
        let index = self.find_flow(self.flows.hash(&tuple), &tuple);
        let Some(flow) = index.and_then(|i| self.flows.flow(i)).filter(|f| f.state == FlowState::Bound)
        else {
            self.counters.drop_no_service += 1;
            return;
        };
        match out.tunnel(now, flow.proxy, &icmp_record(flow), &[packet]) {
            Ok(()) => self.counters.icmp_errors_in += 1,
            Err(_) => self.counters.drop_tunnel_full += 1,
        }
    }

    pub(super) fn trace_segment(
        &mut self,
        kind: TraceKind,
        at: Instant,
        label: FlowLabel,
        (segment, payload_len): (&Segment<'_>, usize),
        hash: u64,
    ) {
        self.trace.record(TraceEvent {
            at,
            label,
            kind,
            tcp_flags: segment.flags().0,
            len: payload_len as u32,
            seq: segment.seq(),
            ack: segment.ack(),
            aux: hash as u32,
            ..TraceEvent::default()
        });
    }

    pub(super) fn count_wire_error(&mut self, error: &WireError) {
        match error {
            WireError::Checksum { .. } => self.counters.drop_bad_checksum += 1,
            WireError::Unsupported { what: "ipv6 fragment", .. } => self.counters.drop_fragment += 1,
            WireError::Unsupported { .. } => self.counters.drop_protocol += 1,
            _ => self.counters.drop_malformed += 1,
        }
    }
}

pub(super) fn is_sum_valid(source: IpAddr, destination: IpAddr, segment: &[u8]) -> bool {
    let sum = Checksum::pseudo(source, destination, ipv4::PROTOCOL_TCP, segment.len() as u32);
    sum.is_some_and(|mut sum| {
        sum.add(segment);
        sum.is_valid()
    })
}
