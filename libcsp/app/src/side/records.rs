//! The records of flows and listeners.

use std::collections::VecDeque;
use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant};
use csp_wire::channel::{ChannelOption, InfoPayload};

use super::channel::Lane;
use super::config::CHANNELS_MAX;
use super::handover::HandOver;
use super::slots::FlowId;
use csp_transport::{ReceiveCredit, SendCredit};

/// State of a flow as the program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Offered by a proxy; waits in the accept queue.
    Pending,
    /// CONNECT was sent.
    Connecting,
    /// Established: data may be sent and received.
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
    /// The label for the flight recorder; kept after the label itself is released.
    pub traced_label: FlowLabel,
    /// The tag of the proxy that assigned it.
    pub traced_proxy: u16,
    /// Number of CONNECTs sent for it; 0 if another process or a client opened it.
    pub connects: u8,
    /// The listener to which it was offered.
    pub listener: Option<u32>,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub send: SendCredit,
    pub receive: ReceiveCredit,
    /// How many bytes the program has read, modulo 2³²; `None`: another process has read some.
    pub bytes_read: Option<u32>,
    pub queue: VecDeque<u8>,
    /// The peer sent SHUTDOWN or CLOSE: the end of stream follows the queue.
    pub peer_shutdown: bool,
    /// The peer sent CLOSE: it reads nothing that is written from now on.
    pub peer_closed: bool,
    /// The program shut down its writing direction.
    pub write_shutdown: bool,
    /// The program shut down its reading direction.
    pub read_shutdown: bool,
    /// A pending error number, not reported to the program yet.
    pub error: Option<i32>,
    /// The flow broke. After `error` was reported, writing returns EPIPE and reading returns the end of
    /// stream.
    pub broken: bool,
    /// This side sent its CLOSE, RESET or REFUSED.
    pub ended_here: bool,
    /// The peer sent its CLOSE or RESET.
    pub ended_there: bool,
    /// The proxy's answer to INFO.
    pub info: Option<InfoPayload>,
    /// Options set before the connection was established; sent when it is.
    pub options: Vec<(ChannelOption, u64)>,
    /// Progress of a handover; `None`: the flow is not being handed over.
    pub handover: Option<HandOver>,
    /// The program closed it; the slot remains until the label is free.
    pub orphan: bool,
    /// A write was short or refused, or left too little room to count as writable: notify when there is room.
    pub wants_write: bool,
    /// Its last write found no descriptor; the flow is in its lane's list of flows to notify when there are
    /// some.
    pub blocked: bool,
    /// Small writes are collected into full messages (TCP_CORK).
    pub corked: bool,
    /// Corked bytes; they count as written.
    pub held: Vec<u8>,
    /// A CREDIT message is in the lane's outbox.
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
            traced_proxy: 0,
            connects: 0,
            listener: None,
            local,
            remote,
            send: SendCredit::default(),
            receive: ReceiveCredit::default(),
            bytes_read: Some(0),
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

    /// Whether there is enough room to count as writable: a third of the window, as in the kernel.
    pub fn has_room(&self) -> bool {
        u64::from(self.send.available()) * 3 >= u64::from(self.send.window())
    }
}

/// Accept credit of a channel: connections that it may still offer (`granted`), and connections that wait to
/// be accepted (`waiting`).
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Offer {
    pub granted: u32,
    pub waiting: u32,
    /// The proxy was asked to return the unused part of `granted`, and has not answered.
    pub withdrawing: bool,
    /// Credit granted before the listener was announced again, which the proxy may have used already.
    pub former: u32,
}

impl Offer {
    /// Restarts the credit when the listener is announced again.
    pub fn restart(&mut self) {
        self.former = self.former.saturating_add(std::mem::take(&mut self.granted));
        self.withdrawing = false;
    }

    /// Records that the proxy returned `count` credits. Returns `false` if it never had as many. The answer
    /// may concern a withdrawal that preceded a new announcement of the listener, and may include credit from
    /// before: the credit that the proxy has and that is in transit never exceeds `granted` and `former`
    /// together.
    pub fn returned(&mut self, count: u32) -> bool {
        self.withdrawing = false;
        let of_former = count.saturating_sub(self.granted);
        self.granted = self.granted.saturating_sub(count);
        let valid = of_former <= self.former;
        self.former = self.former.saturating_sub(of_former);
        valid
    }

    /// Uses one credit for an offered connection. Returns `false` if the proxy had no credit for it.
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
///    └───────── PAUSE_MAX later: waiting connections are refused ┘
/// ```
/// Programs remove a busy listener from their set for short times (nginx every 16 accepts, Apache while its
/// threads are busy). The kernel's accept queue remains meanwhile, and so does this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interest {
    /// It does not: no credit is granted, and arriving offers are refused.
    None,
    /// It polls the listener or accepts from it.
    Waiting,
    /// It stopped polling recently: waiting connections remain. The value is the time at which the state
    /// becomes `None`. It is not known before the first [`progress`](super::AppSide::progress) after the
    /// change, since `set_interest` has no clock.
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
