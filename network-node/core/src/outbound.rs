//! From the tunnel to the LAN: labels, the headers that they replace, and the end of flows.

use std::net::{IpAddr, SocketAddr};

use csp_types::{FlowLabel, FourTuple, Instant, MacAddr, TraceEvent, TraceKind};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record, RecordKind};
use csp_wire::{Ecn, WireError, ipv4, ipv6};

use super::api::{NetworkOutput, PortId, ProxyId};
use super::emit::{self, OutSegment, Route, SegmentError};
use super::flow_table::{FlowIndex, FlowState, NewFlow};
use super::neighbour::{Lookup, Request, Waiting};
use super::node::NetworkCore;
use super::peer_location::Sent;
use super::plugins::{Egress, fields_of};

/// A TCP packet that a proxy sent with its IP header.
struct WholePacket<'a> {
    tuple: FourTuple,
    ecn: Ecn,
    bytes: &'a [u8],
    segment: Segment<'a>,
}

impl<'a> WholePacket<'a> {
    fn parse(packet: &'a [u8]) -> Result<Self, WireError> {
        let (source, destination, ecn, bytes): (IpAddr, IpAddr, Ecn, &[u8]);
        if packet.first().is_some_and(|b| b >> 4 == 6) {
            let view = ipv6::Packet::parse(packet)?;
            check_protocol(view.protocol())?;
            (source, destination) = (view.source().into(), view.destination().into());
            (ecn, bytes) = (view.ecn(), view.payload());
        } else {
            let view = ipv4::Packet::parse(packet)?;
            check_protocol(view.protocol())?;
            (source, destination) = (view.source().into(), view.destination().into());
            (ecn, bytes) = (view.ecn(), view.payload());
        }
        let segment = Segment::parse(bytes)?;
        let local = SocketAddr::new(source, segment.source_port());
        let remote = SocketAddr::new(destination, segment.destination_port());
        Ok(WholePacket { tuple: FourTuple { local, remote }, ecn, bytes, segment })
    }
}

fn check_protocol(protocol: u8) -> Result<(), WireError> {
    if protocol == ipv4::PROTOCOL_TCP {
        return Ok(());
    }
    Err(WireError::Unsupported { what: "protocol of a tunnelled packet", offset: 0 })
}

impl NetworkCore {
    /// Processes a record from the tunnel of worker `record.worker` of `proxy`. The caller has verified that
    /// it arrived on that worker's link.
    pub fn on_record(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        out: &mut impl NetworkOutput,
    ) {
        self.counters.records_out += 1;
        match record.kind {
            RecordKind::Segment if record.flags.contains(Flags::COMPACTED) => {
                self.on_compacted(now, proxy, record, out);
            }
            RecordKind::Segment => self.on_whole(now, proxy, record, out),
            RecordKind::FlowEnd => {
                if let Some(index) = self.flow_of(proxy, record) {
                    self.end_flow(now, index);
                }
            }
            RecordKind::Unknown => self.on_unknown(now, proxy, record, out),
            // Only network nodes send ICMP errors through the tunnel; elections are the worker's.
            RecordKind::IcmpError | RecordKind::Election => self.counters.drop_bad_record += 1,
        }
    }

    /// Returns the flow that the record's label is bound to. If there is none, the record is counted as
    /// dropped.
    fn flow_of(&mut self, proxy: ProxyId, record: &Record<'_>) -> Option<FlowIndex> {
        let Some(index) = self.labels.get(proxy, record.label) else {
            self.counters.drop_unknown_label += 1;
            return None;
        };
        let flow = self.flows.flow(index);
        if flow.is_none_or(|f| f.label != record.label || f.worker != record.worker) {
            self.counters.drop_stale_label += 1;
            return None;
        }
        Some(index)
    }

    fn on_compacted(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let Some(index) = self.flow_of(proxy, record) else { return };
        let Some(tuple) = self.flows.flow(index).map(|f| f.tuple) else { return };
        let segment = match Segment::parse(record.payload) {
            Ok(segment)
                if segment.source_port() == tuple.local.port()
                    && segment.destination_port() == tuple.remote.port() =>
            {
                segment
            }
            _ => return self.counters.drop_bad_record += 1,
        };
        self.transmit(now, Some(index), &tuple, record, record.ecn, record.payload, segment, out);
        if record.flags.contains(Flags::FLOW_END) {
            self.end_flow(now, index);
        }
    }

    fn on_whole(&mut self, now: Instant, proxy: ProxyId, record: &Record<'_>, out: &mut impl NetworkOutput) {
        let packet = match WholePacket::parse(record.payload) {
            Ok(packet) => packet,
            Err(_) => return self.counters.drop_bad_record += 1,
        };
        if !self.classifier.owns(packet.tuple.local.ip()) {
            self.counters.drop_foreign_flow += 1;
            return;
        }
        let index = if record.label.is_none() {
            self.find_flow(self.flows.hash(&packet.tuple), &packet.tuple)
        } else {
            let Some(index) = self.bind(now, proxy, record, &packet, out) else { return };
            Some(index)
        };
        let WholePacket { tuple, ecn, bytes, segment } = packet;
        self.transmit(now, index, &tuple, record, ecn, bytes, segment, out);
        if let (Some(index), true) = (index, record.flags.contains(Flags::FLOW_END)) {
            self.end_flow(now, index);
        }
    }

    /// Binds the record's label to the flow of `tuple`, unless it is bound already. `None` if it cannot be
    /// bound; the reason is counted.
    fn bind(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        packet: &WholePacket<'_>,
        out: &mut impl NetworkOutput,
    ) -> Option<FlowIndex> {
        let tuple = &packet.tuple;
        let hash = self.flows.hash(tuple);
        let found = self.find_flow(hash, tuple);
        if let Some((index, flow)) = found.and_then(|i| self.flows.flow(i).map(|f| (i, f))) {
            let theirs = flow.proxy == proxy && flow.worker == record.worker;
            if flow.state == FlowState::Bound && theirs && flow.label == record.label {
                return Some(index);
            }
            // Another proxy may use a lingering tuple, but not that of a pending or bound flow.
            if !theirs && flow.state != FlowState::Lingering {
                self.counters.drop_foreign_flow += 1;
                let flags = packet.segment.flags();
                if flags.syn() && !flags.ack() {
                    // A proxy that opens a connection is notified at once that another proxy uses these
                    // addresses and ports; it then tries another port. If the tunnel is full, the next SYN
                    // causes the notification.
                    let _ = out.tunnel(now, proxy, &Record::flow_end(record.label, record.worker), &[]);
                }
                return None;
            }
        }
        if !record.flags.contains(Flags::FLOW_NEW) {
            self.counters.drop_unknown_label += 1;
            return None;
        }
        if !self.proxies.is_up(proxy, record.worker) {
            // The link was lost while the record waited; the flow must not be created.
            self.counters.drop_stale_label += 1;
            return None;
        }
        let index = match found {
            Some(index) => index,
            None => self.insert_active(now, proxy, record.worker, tuple, hash)?,
        };
        self.bind_label(now, proxy, record, index);
        Some(index)
    }

    /// Creates the entry of a connection that an application opens.
    fn insert_active(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        worker: u8,
        tuple: &FourTuple,
        hash: u64,
    ) -> Option<FlowIndex> {
        let (port, _) = self.next_hop(tuple.remote.ip());
        let (tuple, state) = (*tuple, FlowState::Pending);
        let new = NewFlow { tuple, hash, state, proxy, worker, search: None, port, peer_mac: None };
        let index = self.insert_flow(now, new);
        self.counters.drop_table_full += u64::from(index.is_none());
        index
    }

    fn bind_label(&mut self, now: Instant, proxy: ProxyId, record: &Record<'_>, index: FlowIndex) {
        self.unbind(index);
        if let Some(before) = self.labels.set(proxy, record.label, index) {
            // The proxy assigned the slot again without ending its former flow, which is therefore over.
            if let Some(flow) = self.flows.flow_mut(before) {
                flow.label = FlowLabel::NONE;
            }
            self.flows.set_state(now, before, FlowState::Lingering);
        }
        self.flows.set_state(now, index, FlowState::Bound);
        let Some(flow) = self.flows.flow_mut(index) else { return };
        (flow.label, flow.proxy, flow.worker, flow.search) = (record.label, proxy, record.worker, None);
        flow.sent = Sent::default();
        let hash = flow.hash;
        self.counters.labels_bound += 1;
        self.trace_label(TraceKind::LabelBound, now, (proxy, record.label), hash);
    }

    /// Ends the flow's label and keeps its proxy for late segments.
    pub(super) fn end_flow(&mut self, now: Instant, index: FlowIndex) {
        let Some(flow) = self.flows.flow(index) else { return };
        let (label, hash, proxy) = (flow.label, flow.hash, flow.proxy);
        self.unbind(index);
        self.flows.set_state(now, index, FlowState::Lingering);
        if !label.is_none() {
            self.counters.labels_ended += 1;
            self.trace_label(TraceKind::LabelEnded, now, (proxy, label), hash);
        }
    }

    /// Releases the flow's label, if it has one.
    pub(super) fn unbind(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.flow_mut(index) else { return };
        if !flow.label.is_none() {
            let (proxy, label) = (flow.proxy, flow.label);
            flow.label = FlowLabel::NONE;
            self.labels.clear(proxy, label, index);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the two callers have the parts from different places")]
    fn transmit(
        &mut self,
        now: Instant,
        index: Option<FlowIndex>,
        tuple: &FourTuple,
        record: &Record<'_>,
        ecn: Ecn,
        bytes: &[u8],
        segment: Segment<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let known = index.and_then(|i| self.flows.flow(i)).and_then(|f| f.peer_mac.map(|mac| (f.port, mac)));
        let Some((port, mac)) = known.or_else(|| self.resolve(now, tuple, ecn, bytes, out)) else { return };
        let (segment_size, identification) = (record.segment_size, self.next_identification());
        let out_segment = OutSegment { segment, bytes, more: &[], ecn, segment_size, identification };
        self.send(now, index, tuple, (port, mac), record.label, &out_segment, out);
    }

    /// Sends a segment to its peer, whose port and Ethernet address are known.
    #[expect(clippy::too_many_arguments, reason = "the two callers have the parts from different places")]
    #[inline]
    pub(super) fn send(
        &mut self,
        now: Instant,
        index: Option<FlowIndex>,
        tuple: &FourTuple,
        (port, mac): (PortId, MacAddr),
        label: FlowLabel,
        out_segment: &OutSegment<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let (segment, payload_len) = (&out_segment.segment, out_segment.payload_len());
        if let Some(flow) = index.and_then(|i| self.flows.flow_mut(i)) {
            (flow.port, flow.peer_mac, flow.last_used) = (port, Some(mac), now);
            flow.segments_out += 1;
            flow.sent.note(segment, payload_len);
        }
        let route = emit::route(tuple, port, self.port_mac(port), mac);
        let mtu = self.port_mtu(port);
        if self.emit_segment(now, &route, out_segment, out).is_err() {
            self.counters.drop_too_long += 1;
            return self.report_too_long(now, index, out_segment.bytes, mtu, out);
        }
        self.counters.segments_out += 1;
        self.counters.bytes_out += payload_len as u64;
        let hash = index.and_then(|i| self.flows.flow(i)).map_or_else(|| self.flows.hash(tuple), |f| f.hash);
        self.trace_segment(TraceKind::LanOut, now, label, (segment, payload_len), hash);
    }

    /// Passes a segment to its port, through the plug-ins if a rule matches it.
    #[inline]
    pub(super) fn emit_segment(
        &mut self,
        now: Instant,
        route: &Route,
        out_segment: &OutSegment<'_>,
        out: &mut impl NetworkOutput,
    ) -> Result<(), SegmentError> {
        match self.plugins.egress() {
            false => emit::segment(route, self.port_mtu(route.port), out_segment, out),
            true => self.emit_classified(now, route, out_segment, out),
        }
    }

    #[inline(never)]
    fn emit_classified(
        &mut self,
        now: Instant,
        route: &Route,
        out_segment: &OutSegment<'_>,
        out: &mut impl NetworkOutput,
    ) -> Result<(), SegmentError> {
        let mtu = self.port_mtu(route.port);
        let segment = &out_segment.segment;
        let ports = (segment.source_port(), segment.destination_port());
        let fields = fields_of((route.source, route.destination), ports, segment.flags().0, route.port);
        let Some(hit) = self.plugins.classify(&fields, out_segment.bytes.len()) else {
            return emit::segment(route, mtu, out_segment, out);
        };
        let ports = self.port_count();
        let mut out = Egress { plugins: &mut self.plugins, now, hit: Some(hit), ports, out };
        emit::segment(route, mtu, out_segment, &mut out)
    }

    /// Returns the Ethernet address of the peer or its router. If it has to be requested first, the segment
    /// is queued.
    fn resolve(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        ecn: Ecn,
        bytes: &[u8],
        out: &mut impl NetworkOutput,
    ) -> Option<(PortId, MacAddr)> {
        let (port, address) = self.next_hop(tuple.remote.ip());
        let request = Request { port, address, requester: tuple.local.ip() };
        match self.neighbours.look_up(now, request) {
            Lookup::Known(mac) => return Some((port, mac)),
            Lookup::Renew(request, mac) => {
                self.ask(&request, out);
                return Some((port, mac));
            }
            Lookup::Ask(request) => self.ask(&request, out),
            Lookup::Asking => {}
            Lookup::Full => {
                self.counters.drop_unresolved += 1;
                return None;
            }
        }
        if !self.neighbours.wait(request, *tuple, ecn, bytes) {
            self.counters.drop_unresolved += 1;
        }
        None
    }

    /// Transmits a queued segment whose neighbour has answered.
    pub(super) fn send_waiting(
        &mut self,
        now: Instant,
        waiting: &Waiting,
        mac: MacAddr,
        out: &mut impl NetworkOutput,
    ) {
        let Ok(segment) = Segment::parse(waiting.segment()) else { return };
        let index = self.find_flow(self.flows.hash(&waiting.tuple), &waiting.tuple);
        if let Some(flow) = index.and_then(|i| self.flows.flow_mut(i)) {
            (flow.port, flow.peer_mac) = (waiting.port, Some(mac));
        }
        let label = index.and_then(|i| self.flows.flow(i)).map_or(FlowLabel::NONE, |f| f.label);
        // `transmit` reads only the label and the segment size (none) of it.
        let record = Record::flow_end(label, 0);
        self.transmit(now, index, &waiting.tuple, &record, waiting.ecn, waiting.segment(), segment, out);
    }

    fn trace_label(&mut self, kind: TraceKind, at: Instant, (proxy, label): (ProxyId, FlowLabel), hash: u64) {
        let (proxy, aux) = (self.proxies.tag(proxy), hash as u32);
        self.trace.record(TraceEvent { at, label, kind, proxy, aux, ..TraceEvent::default() });
    }
}
