//! A host: the engine behind its network node, or a model of another stack. Applications use both alike.

use std::collections::BTreeMap;

use csp_tcp::{
    Arrival, ConnectionInfo, DropReason, Event, FailReason, PathError, Stack, StackConfig, State, Transmit,
};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{HEADER_LEN_MAX, Segment};

use crate::model::{self, ModelHost};
use crate::packet::Packet;

/// Identifies a connection at its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Id {
    Engine(FlowLabel),
    Model(usize),
}

#[allow(clippy::large_enum_variant)] // there are two of them
pub enum Host {
    Engine(EngineHost),
    Model(ModelHost),
}

impl Host {
    pub fn engine(&self) -> Option<&EngineHost> {
        match self {
            Host::Engine(engine) => Some(engine),
            Host::Model(_) => None,
        }
    }

    /// `None` if the addresses are not permitted or the table is full.
    pub fn connect(&mut self, now: Instant, tuple: FourTuple) -> Option<Id> {
        match self {
            Host::Engine(engine) => {
                let label = engine.stack.connect(now, tuple, engine.via, 1).ok()?;
                Some(Id::Engine(label))
            }
            Host::Model(model) => model.connect(now, tuple).map(Id::Model),
        }
    }

    pub fn write(&mut self, now: Instant, id: Id, data: &[u8]) -> usize {
        match (self, id) {
            (Host::Engine(engine), Id::Engine(label)) => engine.stack.write(now, label, data),
            (Host::Model(model), Id::Model(id)) => model.write(now, id, data),
            _ => unreachable!("an id of another host"),
        }
    }

    pub fn read(&mut self, now: Instant, id: Id, max: usize, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        match (self, id) {
            (Host::Engine(engine), Id::Engine(label)) => engine.stack.read_with(now, label, max, f),
            (Host::Model(model), Id::Model(id)) => model.read(now, id, max, f),
            _ => unreachable!("an id of another host"),
        }
    }

    pub fn shutdown(&mut self, now: Instant, id: Id) {
        match (self, id) {
            (Host::Engine(engine), Id::Engine(label)) => engine.stack.shutdown(now, label),
            (Host::Model(model), Id::Model(id)) => model.shutdown(now, id),
            _ => unreachable!("an id of another host"),
        }
    }

    pub fn close(&mut self, now: Instant, id: Id) {
        match (self, id) {
            (Host::Engine(engine), Id::Engine(label)) => engine.stack.close(now, label),
            (Host::Model(model), Id::Model(id)) => model.close(now, id),
            _ => unreachable!("an id of another host"),
        }
    }

    pub fn abort(&mut self, now: Instant, id: Id) {
        match (self, id) {
            (Host::Engine(engine), Id::Engine(label)) => engine.stack.abort(now, label),
            (Host::Model(model), Id::Model(id)) => model.abort(now, id),
            _ => unreachable!("an id of another host"),
        }
    }

    /// The next event, and the addresses if the connection is new.
    pub fn poll_event(&mut self) -> Option<(Id, Event)> {
        match self {
            Host::Engine(engine) => {
                let (label, event) = engine.stack.poll_event()?;
                engine.calls.established += u64::from(matches!(event, Event::Established { .. }));
                Some((Id::Engine(label), event))
            }
            Host::Model(model) => {
                let (id, event) = model.poll_event()?;
                let tuple = model.tuple(id);
                let event = match event {
                    model::Event::Established { passive } => {
                        Event::Established { passive, service: 1, tuple }
                    }
                    model::Event::Readable => Event::Readable,
                    model::Event::PeerFinished => Event::PeerFinished,
                    model::Event::Closed => Event::Closed,
                    model::Event::Reset => Event::Failed(FailReason::Reset),
                    model::Event::Refused => Event::Failed(FailReason::Refused),
                    model::Event::TimedOut => Event::Failed(FailReason::TimedOut),
                    model::Event::DataAfterClose => Event::Failed(FailReason::DataAfterClose),
                };
                Some((Id::Model(id), event))
            }
        }
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        match self {
            Host::Engine(engine) => engine.stack.next_timeout(),
            Host::Model(model) => model.next_timeout(),
        }
    }

    pub fn on_too_big(&mut self, now: Instant, tuple: &FourTuple, seq: u32, mtu: usize) {
        match self {
            Host::Engine(engine) => {
                let error = PathError::PacketTooBig { mtu: mtu as u16 };
                engine.stack.on_path_error(now, tuple, seq, error);
            }
            Host::Model(model) => model.on_too_big(now, tuple, mtu),
        }
    }
}

/// Operations on a stack, for comparison with its counters.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Calls {
    pub segments_received: u64,
    pub segments_sent: u64,
    pub bytes_sent: u64,
    pub retransmissions: u64,
    pub drops: u64,
    pub established: u64,
}

/// One record for the network node, split into packets.
pub struct Sent {
    pub label: FlowLabel,
    pub packets: Vec<Packet>,
}

/// The engine and its network node.
pub struct EngineHost {
    pub stack: Stack,
    /// Label table: tuple (`local` is ours) → label.
    pub known: BTreeMap<FourTuple, FlowLabel>,
    /// For each connection, the data in flight when the window was last reduced for ECN.
    reduced: BTreeMap<FlowLabel, u32>,
    pub via: u32,
    pub calls: Calls,
}

impl EngineHost {
    pub fn new(config: StackConfig) -> EngineHost {
        let (stack, calls) = (Stack::new(config), Calls::default());
        EngineHost { stack, known: BTreeMap::new(), reduced: BTreeMap::new(), via: 7, calls }
    }

    /// The next record.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Sent> {
        let EngineHost { stack, known, via, calls, .. } = self;
        let transmit = stack.poll_transmit(now)?;
        calls.segments_sent += 1;
        calls.bytes_sent += transmit.payload_len as u64;
        calls.retransmissions += u64::from(transmit.retransmission);
        learn(&transmit, known, *via);
        Some(Sent { label: transmit.label, packets: cut(&transmit) })
    }

    /// Runs the timers that are due. Returns the connection whose retransmission timer fired, if that is
    /// certain.
    pub fn on_timeout(&mut self, now: Instant) -> Option<FourTuple> {
        let due: Vec<_> =
            self.stack.connections().filter(|info| info.deadline.is_some_and(|at| at <= now)).collect();
        let before = self.stack.counters().retransmission_timeouts;
        self.stack.on_timeout(now);
        assert!(self.stack.next_timeout().is_none_or(|at| at > now), "a timer is still due after on_timeout");
        let fired = self.stack.counters().retransmission_timeouts - before;
        match &due[..] {
            [info] if fired == 1 && !matches!(info.state, State::SynSent | State::SynReceived) => {
                Some(info.tuple)
            }
            _ => None,
        }
    }

    /// Delivers a packet that the network node received at `ingress`.
    pub fn on_packet(&mut self, now: Instant, ingress: Instant, packet: &Packet) -> Result<(), DropReason> {
        let tuple = packet.at_receiver();
        let before = self.stack.label_of(&tuple).and_then(|label| self.stack.info(label));
        let (recoveries, reductions) = (self.recoveries(), self.stack.counters().ecn_reductions);
        let label = self.known.get(&tuple).copied().unwrap_or(FlowLabel::NONE);
        let arrival = Arrival {
            label,
            tuple: label.is_none().then_some(tuple),
            ingress,
            via: self.via,
            ecn: packet.ecn,
            segment_size: packet.segment_size,
        };
        let mut bytes = [0; HEADER_LEN_MAX];
        let len = packet.header.emit(&mut bytes).unwrap();
        let segment = Segment::parse(&bytes[..len]).unwrap();
        let result = self.stack.on_segment(now, arrival, &segment, &packet.payload);
        self.calls.segments_received += 1;
        self.calls.drops += u64::from(result.is_err());
        if let Some(before) = before
            && let Some(after) = self.stack.info(before.label)
        {
            let lost = self.recoveries() == (recoveries.0 + 1, recoveries.1);
            let marked = self.stack.counters().ecn_reductions > reductions;
            self.check_response(&before, &after, lost, marked);
        }
        result
    }

    /// Checks that congestion reduces the window, once for the data that was in flight when it was signalled
    /// (RFC 3168 §6.1.2).
    fn check_response(&mut self, before: &ConnectionInfo, after: &ConnectionInfo, lost: bool, marked: bool) {
        let covered = self.reduced.get(&before.label).is_some_and(|&left| left > 0);
        if lost || marked {
            // RFC 9438 §4.6 reduces least, to 0.7 of the window; a window at the minimum stays at two
            // segments.
            let most = (before.cwnd / 100 * 71).max(2 * u32::from(before.mss)) + u32::from(before.mss);
            let bound = if covered { most.max(before.ssthresh) } else { most };
            assert!(
                after.ssthresh <= bound,
                "congestion, and ssthresh stays at {}: {before:?}",
                after.ssthresh
            );
        }
        if marked {
            self.reduced.insert(before.label, after.in_flight);
        } else if let Some(left) = self.reduced.get_mut(&before.label) {
            *left = left.saturating_sub(before.in_flight.saturating_sub(after.in_flight));
        }
    }

    /// Loss responses begun, and undone.
    fn recoveries(&self) -> (u64, u64) {
        let counters = self.stack.counters();
        (counters.fast_recoveries, counters.spurious_recoveries)
    }

    /// Replaces the network node by one with an empty label table.
    pub fn replace_node(&mut self, other: bool) {
        let from = self.via;
        self.via += u32::from(other);
        self.known.clear();
        self.stack.redirect(from, self.via);
    }
}

/// Updates the network node's label table.
fn learn(transmit: &Transmit<'_>, known: &mut BTreeMap<FourTuple, FlowLabel>, via: u32) {
    let (label, tuple) = (transmit.label, transmit.tuple);
    if label.is_none() {
        return;
    }
    assert_eq!(transmit.via, via, "through another node than the peer came through");
    if transmit.flow_new {
        known.insert(tuple, label);
    }
    if transmit.flow_end {
        if known.get(&tuple) == Some(&label) {
            known.remove(&tuple);
        }
    } else {
        assert_eq!(known.get(&tuple), Some(&label), "the flow was never announced to the node");
    }
}

/// The packets of a record.
fn cut(transmit: &Transmit<'_>) -> Vec<Packet> {
    let Some(header) = transmit.header else { return Vec::new() };
    let tuple = transmit.tuple;
    assert_eq!((header.source_port, header.destination_port), (tuple.local.port(), tuple.remote.port()));
    let payload: Vec<u8> = transmit.payload().flatten().copied().collect();
    assert_eq!(payload.len(), transmit.payload_len, "payload_len");
    assert!(transmit.payload().all(|slice| !slice.is_empty()), "an empty slice");
    assert!(payload.len() <= 1 << 16, "a record of {} bytes", payload.len());
    let size = usize::from(transmit.segment_size);
    assert!(payload.is_empty() == (size == 0), "segment_size {size} with {} bytes", payload.len());
    let packet = Packet { tuple, header, payload, ecn: transmit.ecn, coalesced: 1, segment_size: 0 };
    packet.split(size.max(1))
}
