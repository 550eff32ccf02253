//! What is kept of each flow and listener.

use std::collections::VecDeque;
use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant};
use csp_wire::channel::{ChannelOption, InfoPayload};

use super::channel::Lane;
use super::config::CHANNELS_MAX;
use super::handover::HandOver;
use super::slots::FlowId;
use csp_transport::{ReceiveCredit, SendCredit};

/// Where a flow stands in the program's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Offered; waits in the accept queue.
    Pending,
    /// CONNECT was sent.
    Connecting,
    /// Bytes may flow.
    Open,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub phase: Phase,
    /// The link that all its messages use.
    pub lane: Lane,
    /// The label while either side still uses it.
    pub label: Option<FlowLabel>,
    /// The label for the flight recorder; stays when the label is given back.
    pub traced_label: FlowLabel,
    /// The listener that it was offered to.
    pub listener: Option<u32>,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub send: SendCredit,
    pub receive: ReceiveCredit,
    pub queue: VecDeque<u8>,
    /// The peer sent SHUTDOWN or CLOSE: after the queue comes the end of stream.
    pub peer_shutdown: bool,
    /// The peer sent CLOSE: nothing that is written would be read.
    pub peer_closed: bool,
    /// The program shut its writing direction.
    pub write_shutdown: bool,
    /// The program shut its reading direction.
    pub read_shutdown: bool,
    /// An error number that the program has not seen.
    pub error: Option<i32>,
    /// The flow broke; after `error` was told, writing gives EPIPE and reading the end of stream.
    pub broken: bool,
    /// This side sent its CLOSE, RESET or REFUSED.
    pub ended_here: bool,
    /// The peer sent its CLOSE or RESET.
    pub ended_there: bool,
    /// What the proxy answered to INFO.
    pub info: Option<InfoPayload>,
    /// Options set while it is being asked for, told when it is there.
    pub options: Vec<(ChannelOption, u64)>,
    /// How far it is with being handed over; `None`: it is not.
    pub handover: Option<HandOver>,
    /// The program closed it; the slot stays until the label is free.
    pub orphan: bool,
    /// A write was cut short or refused, or left too little room to count as writable: tell when there is some.
    pub wants_write: bool,
    /// Its last write found no descriptor; it is in its channel's list of those that are told when there are some.
    pub blocked: bool,
    /// Small writes are gathered (TCP_CORK).
    pub corked: bool,
    /// Bytes that were gathered so far; they count as written.
    pub held: Vec<u8>,
    /// CREDIT waits in the channel's outbox.
    pub credit_queued: bool,
    pub queued_ready: bool,
}

impl Flow {
    pub fn new(phase: Phase, lane: Lane, local: SocketAddr, remote: SocketAddr) -> Self {
        Flow {
            phase,
            lane,
            label: None,
            traced_label: FlowLabel::NONE,
            listener: None,
            local,
            remote,
            send: SendCredit::default(),
            receive: ReceiveCredit::default(),
            queue: VecDeque::new(),
            peer_shutdown: false,
            peer_closed: false,
            write_shutdown: false,
            read_shutdown: false,
            error: None,
            broken: false,
            ended_here: false,
            ended_there: false,
            info: None,
            options: Vec::new(),
            handover: None,
            orphan: false,
            wants_write: false,
            blocked: false,
            corked: false,
            held: Vec::new(),
            credit_queued: false,
            queued_ready: false,
        }
    }

    /// Whether there is room enough to count as writable: a third of the window, as in the kernel.
    pub fn has_room(&self) -> bool {
        u64::from(self.send.available()) * 3 >= u64::from(self.send.window())
    }
}

/// How many connections a channel may still offer (`granted`), and has waiting (`waiting`).
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Offer {
    pub granted: u32,
    pub waiting: u32,
    /// The proxy was asked to give back what it has not used of `granted`, and has not answered.
    pub withdrawing: bool,
    /// What was granted before the listener was announced anew: the proxy may have used it already.
    pub former: u32,
}

impl Offer {
    /// The proxy is told anew what it may offer.
    pub fn restart(&mut self) {
        self.former = self.former.saturating_add(std::mem::take(&mut self.granted));
        self.withdrawing = false;
    }

    /// The proxy has given up `count` credits; `false`: it never had so many. The answer may be to a withdrawal from before the
    /// listener was announced anew, and credit of that time may be among it: what the proxy has and what is under way is never
    /// more than `granted` and `former` together.
    pub fn returned(&mut self, count: u32) -> bool {
        self.withdrawing = false;
        let of_former = count.saturating_sub(self.granted);
        self.granted = self.granted.saturating_sub(count);
        let valid = of_former <= self.former;
        self.former = self.former.saturating_sub(of_former);
        valid
    }

    /// Takes an offered connection in; `false`: the proxy had no credit for it.
    pub fn take(&mut self) -> bool {
        let credit = if self.granted > 0 { &mut self.granted } else { &mut self.former };
        let any = *credit > 0;
        *credit = credit.saturating_sub(1);
        any
    }
}

/// Whether the program waits for connections on a listener.
///
/// ```text
///            polls or accepts                 stops polling
///   None ───────────────────────▶ Waiting ◀─────────────────▶ Paused
///    ▲                                     polls or accepts      │
///    └───────────────────── PAUSE_MAX later: what waits is refused ┘
/// ```
/// Programs take a busy listener out of their set for a moment (nginx every 16 accepts, Apache while its threads are
/// busy); the kernel's queue stands meanwhile, and so does ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interest {
    /// It does not: nothing is granted, and offers that arrive are refused.
    None,
    /// It polls the listener or accepts from it.
    Waiting,
    /// It stopped polling a moment ago: what waits stays. The time at which it counts as `None`; not known before the
    /// first [`progress`](super::AppSide::progress) after the change, since `set_interest` has no clock.
    Paused(Option<Instant>),
}

/// A listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub address: SocketAddr,
    pub backlog: u32,
    pub interest: Interest,
    pub queue: VecDeque<FlowId>,
    pub offers: [Offer; CHANNELS_MAX],
    pub queued_ready: bool,
}
