//! Connections that move from one process to another: over fork, exec, or a Unix socket.
//!
//! ```text
//!  former owner              proxy                new owner
//!    HAND_OVER(ticket) ───────▶ holds it
//!    ◀─────────────── HANDED_OVER        last message to the former owner
//!    unread bytes, label, ticket ─────────────────▶ (by a channel of their own)
//!                               ◀───────── TAKE_OVER(label, ticket)
//!                       TAKEN_OVER ───────▶
//! ```
//! Bytes that the former owner wrote precede its HAND_OVER on the same link. Bytes that it had received and
//! not read are passed on with the ticket. So no byte is lost or duplicated.

use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant, NodeId, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, TICKET_LEN, TakeOverPayload, Ticket};

use super::channel::{AppChannel, Lane};
use super::input::Violation;
use super::records::{Flow, Phase};
use super::slots::FlowId;
use super::{AppError, AppSide};
use csp_transport::ReceiveCredit;

/// State of a connection that is being handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// The proxy has not answered yet.
    Waiting,
    /// [`AppSide::leave`] may be called.
    Done,
}

/// The state of a connection that its new owner needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftFlow {
    /// The proxy worker that holds it, and its label there; `None`: the connection has ended, and only
    /// `unread` remains.
    pub held: Option<(NodeId, u8, FlowLabel)>,
    /// The cluster's end.
    pub local: SocketAddr,
    /// The client's end.
    pub remote: SocketAddr,
    /// Bytes received and not read.
    pub unread: Vec<u8>,
    /// The stream ends after `unread`.
    pub peer_shutdown: bool,
    /// This side has sent the end of its stream.
    pub write_shutdown: bool,
    /// The connection broke: a reset follows `unread`.
    pub broken: bool,
}

impl AppSide {
    /// Leaves an open connection to the process that presents `ticket` to its proxy. It must not be read or
    /// written any more. The caller calls `progress` until [`handing_over`](Self::handing_over) returns
    /// [`HandOver::Done`], then obtains the rest with [`leave`](Self::leave).
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

    /// Removes a connection that was handed over; its [`FlowId`] becomes invalid. If its proxy has not
    /// answered, it counts as broken. Returns `None` for an unknown id.
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

    /// Takes over a connection that another process left at a proxy worker. It becomes writable when it is
    /// established, and broken if the proxy does not know it.
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

    /// A link to this proxy worker that is up.
    fn lane_to(&self, node: &NodeId, worker: u8) -> Option<Lane> {
        (0..self.channels.len()).find_map(|channel| {
            let at = self.channels.get(channel)?;
            let target = at.target();
            let index = at.first_up().filter(|_| target.node == *node && target.worker == worker)?;
            Some(Lane { channel, index })
        })
    }

    /// Handles HANDED_OVER, the last message of a connection that is handed over.
    pub(super) fn on_handed_over(&mut self, id: FlowId) -> Result<(), Violation> {
        let flow = self.flows.get_mut(id.0).filter(|f| f.handover == Some(HandOver::Waiting));
        flow.ok_or(Violation)?.handover = Some(HandOver::Done);
        self.release_label(id);
        Ok(())
    }
}

impl Flow {
    /// Whether the proxy needs no further message about it.
    fn is_over(&self) -> bool {
        self.broken || self.ended_there || self.ended_here
    }
}
