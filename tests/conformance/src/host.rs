//! The engine under test and its network node, in virtual time, with the segments and events that the engine
//! produced.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use csp_tcp::{Arrival, Event, Stack, Transmit};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Repr, Segment};

use crate::config::Config;

/// Start of every script on the engine's clock.
const START: Instant = Instant::from_nanos(1_000_000_000);

/// A segment as the network node transmits it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub at: Instant,
    pub tuple: FourTuple,
    pub header: Repr,
    pub payload: Vec<u8>,
    /// The segment size of the tunnel record.
    pub segment_size: u16,
    pub ecn: u8,
}

/// The engine and its surroundings.
pub(crate) struct Host {
    pub stack: Stack,
    pub now: Instant,
    /// Segments sent and not yet processed, oldest first.
    pub sent: VecDeque<Sent>,
    /// Events reported and not yet processed.
    pub events: Vec<(FlowLabel, Event)>,
    /// The labels that the network node knows.
    known: BTreeMap<FourTuple, FlowLabel>,
    use_labels: bool,
}

impl Host {
    pub fn new(config: &Config) -> Self {
        Host {
            stack: Stack::new(config.stack.clone()),
            now: START,
            sent: VecDeque::new(),
            events: Vec::new(),
            known: BTreeMap::new(),
            use_labels: config.labels,
        }
    }

    /// Returns the time since the start of the script.
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_since(START)
    }

    /// Converts an instant to the script's time.
    pub fn script_time(at: Instant) -> Duration {
        at.saturating_since(START)
    }

    /// Delivers a segment now. Returns the reason if the engine dropped it.
    pub fn deliver(&mut self, tuple: FourTuple, bytes: &[u8], ecn: u8) -> Option<String> {
        let Ok(segment) = Segment::parse(bytes) else { return Some("no TCP header".into()) };
        let known = self.known.get(&tuple).copied().filter(|_| self.use_labels);
        let arrival = Arrival {
            label: known.unwrap_or(FlowLabel::NONE),
            tuple: known.is_none().then_some(tuple),
            ingress: self.now,
            via: 1,
            ecn,
            segment_size: 0,
        };
        let result = self.stack.on_segment(self.now, arrival, &segment, segment.payload());
        self.pump();
        result.err().map(|reason| format!("{reason:?}"))
    }

    /// Collects all segments and events that the engine has now.
    pub fn pump(&mut self) {
        loop {
            while let Some(transmit) = self.stack.poll_transmit(self.now) {
                network_node(self.now, &transmit, &mut self.known, &mut self.sent);
            }
            let Some(event) = self.stack.poll_event() else { break };
            self.events.push(event);
        }
    }

    /// Advances the time to `to` and fires the timers on the way.
    pub fn advance(&mut self, to: Instant) {
        while self.step(to) {}
    }

    /// Advances the time to the next timer, or to `to`. Returns `false` when `to` is reached.
    pub fn step(&mut self, to: Instant) -> bool {
        self.pump();
        let next = self.stack.next_timeout().filter(|&at| at <= to);
        let Some(next) = next else {
            self.now = self.now.max(to);
            return false;
        };
        // Advance by at least 1 ns, since a timer that stays due would stop the time.
        self.now = if next <= self.now { self.now + Duration::from_nanos(1) } else { next };
        self.stack.on_timeout(self.now);
        self.pump();
        self.now < to
    }

    /// Converts the script's time to an instant.
    pub fn instant(script: Duration) -> Instant {
        START + script
    }
}

/// Processes a record as the network node does: adds and removes labels, and cuts the payload into packets.
fn network_node(
    now: Instant,
    transmit: &Transmit<'_>,
    known: &mut BTreeMap<FourTuple, FlowLabel>,
    sent: &mut VecDeque<Sent>,
) {
    let tuple = transmit.tuple;
    if !transmit.label.is_none() {
        if transmit.flow_new {
            known.insert(tuple, transmit.label);
        }
        if transmit.flow_end && known.get(&tuple) == Some(&transmit.label) {
            known.remove(&tuple);
        }
    }
    let Some(header) = transmit.header else { return };
    let payload: Vec<u8> = transmit.payload().flatten().copied().collect();
    let size = match payload.len() {
        0 => 1,
        len => usize::from(transmit.segment_size).clamp(1, len),
    };
    let count = payload.len().div_ceil(size).max(1);
    for n in 0..count {
        let chunk = payload.get(n * size..payload.len().min((n + 1) * size)).unwrap_or(&[]);
        let mut header = Repr { seq: header.seq.wrapping_add((n * size) as u32), ..header };
        // As segmentation offload does: FIN and PSH belong to the last packet, CWR to the first.
        if n + 1 < count {
            header.flags.0 &= !(Flags::FIN | Flags::PSH).0;
        }
        if n > 0 {
            header.flags.0 &= !Flags::CWR.0;
        }
        // Emit and parse the header, so that the checks apply to what a peer would read.
        let mut bytes = [0; HEADER_LEN_MAX];
        let parsed = header.emit(&mut bytes).and_then(|len| Segment::parse(bytes.get(..len)?).ok());
        let header = parsed.map_or(header, |segment| Repr::parse(&segment));
        let (payload, segment_size) = (chunk.to_vec(), transmit.segment_size);
        sent.push_back(Sent { at: now, tuple, header, payload, segment_size, ecn: transmit.ecn });
    }
}
