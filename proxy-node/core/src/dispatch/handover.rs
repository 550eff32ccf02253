//! Connections between two owners: a process has left them with a ticket, and another one will present it.
//!
//! Meanwhile the client's bytes wait in the TCB under TCP's own flow control. A connection that no process takes over
//! in time is reset.

use std::collections::VecDeque;

use csp_types::{Duration, FlowLabel, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload, TakeOverPayload, TakenOverPayload, Ticket};

use super::Dispatcher;
use super::pool::ChannelId;
use crate::context::Context;
use crate::flow::{Attachment, Flow, FlowTable, Stage};
use crate::{Lane, ProxyOutput, reason};

/// How long a connection waits for its new owner before it is reset.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that were left, oldest first; some of them have a new owner already.
pub(super) type Left = VecDeque<(Instant, FlowLabel)>;

impl Dispatcher {
    /// Processes HAND_OVER. Earlier messages on the lane have been processed; the answer is the last message to this
    /// owner.
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
        self.left.push_back((cx.now, label));
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
        let entitled = cx.flows.get(label).is_some_and(|flow| flow.stage == Stage::Left(ticket));
        let attachment = Attachment { channel, choice: None };
        let flow = entitled.then(|| cx.flows.set_stage(cx.now, label, Stage::Open(attachment))).flatten();
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

    /// Returns when the connection that was left first expires.
    pub(crate) fn left_deadline(&self) -> Option<Instant> {
        self.left.front().map(|(since, _)| *since + HANDOVER_TIMEOUT)
    }

    /// Returns the next connection that no process took over in time.
    pub(crate) fn next_abandoned(&mut self, now: Instant, flows: &FlowTable) -> Option<FlowLabel> {
        while let Some((since, label)) = self.left.pop_front_if(|(since, _)| *since + HANDOVER_TIMEOUT <= now)
        {
            let left = |f: &&Flow| matches!(f.stage, Stage::Left(_)) && f.since == since;
            if flows.get(label).filter(left).is_some() {
                return Some(label);
            }
        }
        None
    }
}
