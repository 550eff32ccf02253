//! Connections between two owners: one process has handed them over with a ticket, and the next one presents
//! the ticket.
//!
//! Meanwhile the client's bytes wait in the TCB under TCP's own flow control. A connection that no process
//! takes over in time is reset.

use std::collections::BTreeSet;

use csp_types::{Duration, FlowLabel, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload, TakeOverPayload, TakenOverPayload, Ticket};

use super::Dispatcher;
use super::pool::ChannelId;
use crate::context::Context;
use crate::flow::{Attachment, Flow, Stage};
use crate::{Lane, ProxyOutput, reason};

/// How long a connection waits for its new owner before it is reset.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that were left and have no new owner yet, by the time at which they were left. A connection
/// has one entry however often its owner changes.
pub(super) type Left = BTreeSet<(Instant, u32)>;

impl Dispatcher {
    /// Processes HAND_OVER. Earlier messages on the lane have been processed; the answer is the last message
    /// to this owner.
    pub(crate) fn hand_over(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        label: FlowLabel,
        ticket: Ticket,
    ) {
        let Some(flow) = cx.flows.get(label) else { return };
        let lane = flow.lane;
        if let Some(choice) = flow.choice() {
            self.pools.release(choice);
        }
        cx.flows.set_stage(cx.now, label, Stage::Left(ticket));
        self.left.insert((cx.now, label.to_wire()));
        cx.recorder.counters.handed_over += 1;
        cx.record(label, TraceKind::HandedOver, 0);
        // If the lane is down, the flow still waits for its new owner.
        cx.send(lane, MessageHeader::of_flow(MessageKind::HandedOver, label, 0, 0), &[]);
    }

    /// Processes TAKE_OVER: the process with the ticket becomes the owner. Returns `false` if it is refused.
    pub(crate) fn take_over(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        (channel, lane): (ChannelId, Lane),
        header: MessageHeader,
        TakeOverPayload { label, ticket }: TakeOverPayload,
    ) -> bool {
        let (request, window) = (header.id, header.argument);
        let left =
            cx.flows.get(label).filter(|flow| flow.stage == Stage::Left(ticket)).map(|flow| flow.since);
        let attachment = Attachment { channel, choice: None };
        if let Some(since) = left {
            self.left.remove(&(since, label.to_wire()));
        }
        let flow = left.and_then(|_| cx.flows.set_stage(cx.now, label, Stage::Open(attachment)));
        let Some(flow) = flow else {
            let refused = MessageHeader::new(MessageKind::Refused, request, reason::CONNECTION_RESET, 0);
            cx.send(lane, refused, &[]);
            return false;
        };
        flow.lane = lane;
        flow.to_app_credit = window;
        flow.shutdown_sent = false;
        let window = flow.from_app_window;
        let open = OpenPayload { local: flow.tuple.local, remote: flow.tuple.remote, window };
        let in_flight = flow.from_app_outstanding;
        let payload = TakenOverPayload { open, in_flight, shut: flow.app_finished }.emit();
        let header = MessageHeader::of_flow(MessageKind::TakenOver, label, request, payload.len() as u32);
        cx.send(lane, header, &payload);
        cx.record(label, TraceKind::TakenOver, 0);
        true
    }

    /// Returns the number of connections that have no owner.
    pub(crate) fn left_count(&self) -> usize {
        self.left.len()
    }

    /// Returns when the connection that was left first expires.
    pub(crate) fn left_deadline(&self) -> Option<Instant> {
        self.left.first().map(|(since, _)| *since + HANDOVER_TIMEOUT)
    }

    /// Removes and returns the next connection that no process took over in time.
    pub(crate) fn next_abandoned(&mut self, now: Instant) -> Option<FlowLabel> {
        while let Some(&(since, label)) = self.left.first()
            && since + HANDOVER_TIMEOUT <= now
        {
            self.left.pop_first();
            if let Some(label) = FlowLabel::from_wire(label) {
                return Some(label);
            }
        }
        None
    }

    /// Removes the entry of a flow that has ended.
    pub(super) fn left_ended(&mut self, flow: &Flow) {
        if let Stage::Left(_) = flow.stage {
            self.left.remove(&(flow.since, flow.label.to_wire()));
        }
    }
}
