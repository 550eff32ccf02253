//! The flight recorder: the recent events of all flows, which every tier keeps in a ring of fixed size.
//!
//! Recording an event costs a store of 32 bytes. Nothing is filtered at that time, so that a flow can be
//! traced afterwards (`cspctl flow trace`).

use alloc::boxed::Box;
use alloc::vec;

use crate::{FlowLabel, Instant};

/// The kind of an event. The tiers use disjoint groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum TraceKind {
    /// An empty ring entry.
    #[default]
    None = 0,
    /// Network node: a segment was received from the LAN.
    LanIn = 1,
    /// Network node: a segment was transmitted to the LAN.
    LanOut = 2,
    /// Network node: the proxy's label was bound to the flow; `aux` is the hash of its 4-tuple, which its
    /// unlabelled events have.
    LabelBound = 3,
    /// Network node: the flow's entry was removed.
    LabelEnded = 4,
    /// Proxy: a segment was received from the tunnel.
    SegmentIn = 10,
    /// Proxy: a segment was sent into the tunnel.
    SegmentOut = 11,
    /// Proxy: OPEN was sent to the application.
    OpenSent = 12,
    /// Proxy: the application accepted the connection.
    AcceptedReceived = 13,
    /// Proxy: DATA was sent to the application.
    DataSent = 14,
    /// Proxy: DATA was received from the application.
    DataReceived = 15,
    /// Proxy: the end of the client's stream was forwarded.
    ShutdownSent = 16,
    /// Proxy: the application closed or shut down.
    CloseReceived = 17,
    /// Proxy: the connection ended and its label was released.
    Ended = 18,
    /// Proxy: the application handed the connection over to another one.
    HandedOver = 19,
    /// Proxy: another application took the connection over.
    TakenOver = 20,
    /// Proxy: from now on an upstream connection of a local service serves requests of a client's connection.
    /// Both record the event; `aux` is the label of the other one.
    Related = 21,
    /// Application: the connection was accepted, connected, or taken over from another process.
    AppOpen = 30,
    /// Application: the program read data.
    AppDataIn = 31,
    /// Application: the program wrote data.
    AppDataOut = 32,
    /// Application: the program closed the socket.
    AppClose = 33,
    /// Application: the connection was reset.
    AppReset = 34,
    /// Application: the connection was handed over to another process or to the agent.
    AppHandedOver = 35,
}

/// An event of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceEvent {
    /// Time of the event, on this host's CLOCK_MONOTONIC.
    pub at: Instant,
    /// The flow; [`FlowLabel::NONE`] before a label is assigned.
    pub label: FlowLabel,
    /// The kind of the event.
    pub kind: TraceKind,
    /// TCP flags (RFC 9293 §3.1, low 8 bits), if the event concerns a segment.
    pub tcp_flags: u8,
    /// [`NodeId::tag`](crate::NodeId::tag) of the proxy that assigned the label. Recorded by processes, and
    /// by network nodes with LABEL_BOUND and LABEL_ENDED; 0 otherwise. Labels are unique only within one
    /// proxy.
    pub proxy: u16,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Network node: hash of the 4-tuple. Proxy: the label of the other flow, in the OPEN of a
    /// hairpin's client and in [`Related`](TraceKind::Related). Else 0.
    pub aux: u32,
}

/// The last `capacity` events of one worker. A new event overwrites the oldest.
#[derive(Debug)]
pub struct TraceRing {
    entries: Box<[TraceEvent]>,
    next: usize,
}

impl TraceRing {
    /// Creates a ring of `capacity` events (at least 1), allocated once.
    pub fn new(capacity: usize) -> Self {
        TraceRing { entries: vec![TraceEvent::default(); capacity.max(1)].into_boxed_slice(), next: 0 }
    }

    /// Records an event.
    pub fn record(&mut self, event: TraceEvent) {
        self.entries[self.next] = event;
        self.next = if self.next + 1 == self.entries.len() { 0 } else { self.next + 1 };
    }

    /// Iterates over the events in the ring, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &TraceEvent> {
        let (newer, older) = self.entries.split_at(self.next);
        older.iter().chain(newer).filter(|e| e.kind != TraceKind::None)
    }
}
