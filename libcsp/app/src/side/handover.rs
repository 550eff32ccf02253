//! Connections that move from one process to another: over fork, exec, or a Unix socket.
//!
//! ```text
//!  former owner              proxy                new owner
//!    HAND_OVER(ticket) ───────▶ holds it
//!    ◀─────────────── HANDED_OVER        nothing more of it comes
//!    unread bytes, label, ticket ─────────────────▶ (their own affair)
//!                               ◀───────── TAKE_OVER(label, ticket)
//!                       TAKEN_OVER ───────▶
//! ```
//! What the former owner wrote is in front of its HAND_OVER on the same link. What it had received and not read goes along
//! with the ticket, so that no byte is lost or doubled.

use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant, NodeId, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, TICKET_LEN, TakeOverPayload, Ticket};

use super::channel::{AppChannel, Lane};
use super::input::Violation;
use super::records::{Flow, Phase};
use super::slots::FlowId;
use super::{AppError, AppSide};
use csp_transport::ReceiveCredit;

/// Where a connection stands that is being handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// The proxy has not answered yet.
    Waiting,
    /// [`AppSide::leave`] may be called.
    Done,
}

/// What the new owner of a connection needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftFlow {
    /// The proxy worker that holds it, and under which label; `None`: the connection is over, and only `unread` is left.
    pub held: Option<(NodeId, u8, FlowLabel)>,
    /// The cluster's end.
    pub local: SocketAddr,
    /// The client's end.
    pub remote: SocketAddr,
    /// Bytes that were received and not read.
    pub unread: Vec<u8>,
    /// After these the stream ends.
    pub peer_shutdown: bool,
    /// This side has sent the end of its stream.
    pub write_shutdown: bool,
    /// It broke: what was unread is followed by a reset.
    pub broken: bool,
}

impl AppSide {
    /// Leaves an open connection to whoever brings `ticket` to its proxy: nothing may be read or written any more. Progress
    /// until [`handing_over`](Self::handing_over) says that it is done, then take what is left with [`leave`](Self::leave).
    ///
    /// Errors: [`AppError::NotConnected`] while it is not established, [`AppError::Unknown`].
    pub fn hand_over(&mut self, now: Instant, id: FlowId, ticket: Ticket) -> Result<(), AppError> {
        self.now = now;
        let flow = self.flows.get(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        if flow.phase != Phase::Open {
            return Err(AppError::NotConnected);
        }
        if flow.is_over() {
            return Ok(());
        }
        self.release_held(id);
        let flow = self.flows.get_mut(id.0).ok_or(AppError::Unknown)?;
        flow.handover = Some(HandOver::Waiting);
        let (lane, label) = (flow.lane, flow.label.ok_or(AppError::NotConnected)?);
        let header = MessageHeader::of_flow(MessageKind::HandOver, label, 0, TICKET_LEN as u32);
        self.send_control_with(lane, header, &ticket.0);
        Ok(())
    }

    /// Whether the proxy has answered a [`hand_over`](Self::hand_over), or the connection ended meanwhile.
    pub fn handing_over(&self, id: FlowId) -> HandOver {
        match self.flows.get(id.0) {
            Some(flow) if flow.handover == Some(HandOver::Waiting) && !flow.is_over() => HandOver::Waiting,
            _ => HandOver::Done,
        }
    }

    /// Takes a connection that was handed over out; its [`FlowId`] means nothing any more. One whose proxy has not answered
    /// counts as broken. `None` for an unknown one.
    pub fn leave(&mut self, id: FlowId) -> Option<LeftFlow> {
        let flow = self.flows.get(id.0).filter(|f| !f.orphan)?;
        let waits = self.handing_over(id) == HandOver::Waiting;
        let done = flow.handover == Some(HandOver::Done);
        let target = self.channels.get(flow.lane.channel).map(AppChannel::target).filter(|_| done);
        let held = target.map(|target| (target.node, target.worker, flow.traced_label));
        self.record(TraceKind::AppHandedOver, id, 0);
        self.release_label(id);
        let flow = self.flows.remove(id.0)?;
        Some(LeftFlow {
            held,
            local: flow.local,
            remote: flow.remote,
            unread: flow.queue.into(),
            peer_shutdown: flow.peer_shutdown,
            write_shutdown: flow.write_shutdown,
            broken: flow.broken || waits,
        })
    }

    /// Takes a connection over that another process left at a proxy worker; it is writable when it is there, and broken when
    /// the proxy does not know it.
    ///
    /// Errors: [`AppError::NoProxy`] without a link to that worker, [`AppError::Full`].
    pub fn take_over(
        &mut self,
        now: Instant,
        (node, worker): (&NodeId, u8),
        label: FlowLabel,
        ticket: Ticket,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Result<FlowId, AppError> {
        self.now = now;
        let lane = self.lane_to(node, worker).ok_or(AppError::NoProxy)?;
        let mut flow = Flow::new(Phase::Connecting, lane, local, remote);
        flow.receive = ReceiveCredit::new(self.config.receive_window);
        let id = self.flows.insert(flow).map(FlowId).ok_or(AppError::Full("flow"))?;
        let window = self.config.receive_window;
        let header = MessageHeader::new(MessageKind::TakeOver, id.to_wire(), window, 0);
        self.send_control_with(lane, header, &TakeOverPayload { label, ticket }.emit());
        Ok(id)
    }

    /// A link of a proxy worker that is up.
    fn lane_to(&self, node: &NodeId, worker: u8) -> Option<Lane> {
        (0..self.channels.len()).find_map(|channel| {
            let at = self.channels.get(channel)?;
            let target = at.target();
            let index = at.first_up().filter(|_| target.node == *node && target.worker == worker)?;
            Some(Lane { channel, index })
        })
    }

    /// Nothing more comes of a connection that is handed over.
    pub(super) fn on_handed_over(&mut self, id: FlowId) -> Result<(), Violation> {
        let flow = self.flows.get_mut(id.0).filter(|f| f.handover == Some(HandOver::Waiting));
        flow.ok_or(Violation)?.handover = Some(HandOver::Done);
        self.release_label(id);
        Ok(())
    }
}

impl Flow {
    /// The proxy needs to hear nothing more of it.
    fn is_over(&self) -> bool {
        self.broken || self.ended_there || self.ended_here
    }
}
