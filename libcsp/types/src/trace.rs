//! The flight recorder: what happened to each flow lately, kept by every tier in a ring of fixed size.
//!
//! Recording costs a store of 40 bytes; nothing is filtered at that time, so that a flow can be traced after the fact
//! (`cspctl flow trace`).

use alloc::boxed::Box;
use alloc::vec;

use crate::{FlowLabel, Instant};

/// What happened. The tiers use disjoint groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum TraceKind {
    /// An empty ring entry.
    #[default]
    None = 0,
    /// Network node: a segment came from the LAN.
    LanIn = 1,
    /// Network node: a segment went to the LAN.
    LanOut = 2,
    /// Network node: the proxy's label was bound to the flow; `aux` is the tuple hash of its unlabelled past.
    LabelBound = 3,
    /// Network node: the flow's entry was removed.
    LabelEnded = 4,
    /// Proxy: a segment came out of the tunnel.
    SegmentIn = 10,
    /// Proxy: a segment went into the tunnel.
    SegmentOut = 11,
    /// Proxy: OPEN went to the application.
    OpenSent = 12,
    /// Proxy: the application accepted.
    AcceptedReceived = 13,
    /// Proxy: DATA went to the application.
    DataSent = 14,
    /// Proxy: DATA came from the application.
    DataReceived = 15,
    /// Proxy: the client's end of stream was passed on.
    ShutdownSent = 16,
    /// Proxy: the application closed or shut down.
    CloseReceived = 17,
    /// Proxy: the connection ended and the label was given back.
    Ended = 18,
    /// Proxy: the application left the connection to another one.
    HandedOver = 19,
    /// Proxy: another application has it.
    TakenOver = 20,
    /// Application: a connection was handed to accept().
    AppOpen = 30,
    /// Application: data was read by the program.
    AppDataIn = 31,
    /// Application: data was written by the program.
    AppDataOut = 32,
    /// Application: the program closed the socket.
    AppClose = 33,
    /// Application: the connection was reset.
    AppReset = 34,
    /// Application: the connection was left to another process or to the agent.
    AppHandedOver = 35,
}

/// One thing that happened to one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceEvent {
    /// When, on this host's CLOCK_MONOTONIC.
    pub at: Instant,
    /// The flow; [`FlowLabel::NONE`] before it has a label.
    pub label: FlowLabel,
    /// What.
    pub kind: TraceKind,
    /// TCP flags (RFC 9293 §3.1, low 8 bits) where the event concerns a segment.
    pub tcp_flags: u8,
    /// Payload length in bytes.
    pub len: u32,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Network node: hash of the 4-tuple. Proxy: in the OPEN of a hairpin's client the label of its other flow. Else 0.
    pub aux: u32,
}

/// The last `capacity` events of one worker, oldest overwritten first.
#[derive(Debug)]
pub struct TraceRing {
    entries: Box<[TraceEvent]>,
    next: usize,
}

impl TraceRing {
    /// A ring of `capacity` events (at least 1), allocated once.
    pub fn new(capacity: usize) -> Self {
        TraceRing { entries: vec![TraceEvent::default(); capacity.max(1)].into_boxed_slice(), next: 0 }
    }

    /// Records an event.
    pub fn record(&mut self, event: TraceEvent) {
        self.entries[self.next] = event;
        self.next = if self.next + 1 == self.entries.len() { 0 } else { self.next + 1 };
    }

    /// The events still held, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &TraceEvent> {
        let (newer, older) = self.entries.split_at(self.next);
        older.iter().chain(newer).filter(|e| e.kind != TraceKind::None)
    }
}
