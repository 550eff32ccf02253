//! Connections between two owners: one process has left them with a ticket, another one will bring it.
//!
//! Meanwhile the client's bytes wait in its TCB under TCP's own flow control. A connection that nobody takes is reset.

use std::collections::VecDeque;

use csp_types::{Duration, FlowLabel, Instant, TraceKind};
use csp_wire::channel::{
    Message, MessageHeader, MessageKind, OpenPayload, TakeOverPayload, TakenOverPayload, Ticket,
};

use super::application::Verdict;
use super::flow::{Attachment, Stage};
use super::{ChannelId, Lane, ProxyCore, ProxyOutput, reason};

/// How long a connection waits for its new owner before it is reset.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that were left, the oldest first; some have an owner again.
pub(super) type Left = VecDeque<(Instant, FlowLabel)>;

impl ProxyCore {
    /// HAND_OVER: what came before it on the lane was taken in; nothing more is sent to this owner but the answer.
    pub(super) fn on_hand_over(
        &mut self,
        now: Instant,
        label: FlowLabel,
        message: &Message<'_>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let Ok(ticket) = Ticket::parse(message.payload) else { return Verdict::Violation };
        let Some(flow) = self.flows.get(label) else { return Verdict::Fine };
        let lane = flow.lane;
        if let Some(choice) = flow.choice() {
            self.pools.release(choice);
        }
        self.flows.set_stage(now, label, Stage::Left(ticket));
        self.left.push_back((now, label));
        self.counters.handed_over += 1;
        self.record(now, label, TraceKind::HandedOver, 0);
        let answer = MessageHeader::of_flow(MessageKind::HandedOver, label, 0, 0);
        let _ = out.channel(lane, answer, &[]); // a lost channel reports itself down; the flow waits for its new owner
        Verdict::Fine
    }

    /// TAKE_OVER: the bearer of the ticket is the owner from now on.
    pub(super) fn on_take_over(
        &mut self,
        now: Instant,
        (channel, lane): (ChannelId, Lane),
        message: &Message<'_>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let Ok(TakeOverPayload { label, ticket }) = TakeOverPayload::parse(message.payload) else {
            return Verdict::Violation;
        };
        let (request, window) = (message.header.id, message.header.argument);
        let entitled = self.flows.get(label).is_some_and(|flow| flow.stage == Stage::Left(ticket));
        let info = self.tcp.info(label).filter(|_| entitled);
        let attachment = Attachment { channel, choice: None };
        let flow = info.and_then(|_| self.flows.set_stage(now, label, Stage::Open(attachment)));
        let (Some(info), Some(flow)) = (info, flow) else {
            let refused = MessageHeader::new(MessageKind::Refused, request, reason::CONNECTION_RESET, 0);
            let _ = out.channel(lane, refused, &[]);
            return Verdict::Fine;
        };
        flow.lane = lane;
        flow.to_app_credit = window;
        flow.shutdown_sent = false;
        let window = flow.from_app_window;
        let open = OpenPayload { local: info.tuple.local, remote: info.tuple.remote, window };
        let in_flight = flow.from_app_outstanding;
        let payload = TakenOverPayload { open, in_flight, shut: flow.app_finished }.emit();
        let header = MessageHeader::of_flow(MessageKind::TakenOver, label, request, payload.len() as u32);
        let _ = out.channel(lane, header, &[&payload]); // a lost channel reports itself down
        self.record(now, label, TraceKind::TakenOver, 0);
        self.enqueue(label);
        Verdict::Fine
    }

    /// When the connection that was left longest ago is to be given up.
    pub(super) fn left_deadline(&self) -> Option<Instant> {
        self.left.front().map(|(since, _)| *since + HANDOVER_TIMEOUT)
    }

    /// Resets connections that nobody took.
    pub(super) fn expire_left(&mut self, now: Instant) {
        while let Some((since, label)) = self.left.front().copied()
            && since + HANDOVER_TIMEOUT <= now
        {
            self.left.pop_front();
            let left = |f: &&super::Flow| matches!(f.stage, Stage::Left(_)) && f.since == since;
            if self.flows.get(label).filter(left).is_some() {
                self.counters.drop_not_taken_over += 1;
                self.abandon(now, label);
            }
        }
    }
}
