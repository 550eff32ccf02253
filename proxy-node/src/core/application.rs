//! Messages of application processes: listeners, answers to OPEN, bytes, ends.

use csp_tcp::Buffer;
use csp_types::{FlowLabel, Grant, Instant, TraceKind};
use csp_wire::channel::{CLOSE_UNREAD, ListenPayload, Message, MessageHeader, MessageKind};

use super::flow::{Attachment, Flow, Stage};
use super::pool::ListenError;
use super::{CHANNELS_MAX, ChannelId, Lane, Process, ProxyCore, ProxyOutput, reason};

/// What a message did to its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Taken, or ignored as stale.
    Fine,
    /// The process broke the protocol: its channel must be failed.
    Violation,
}

impl ProxyCore {
    /// A channel to a process is up; `false` where [`CHANNELS_MAX`] is reached.
    pub fn channel_up(&mut self, channel: ChannelId, process: Process) -> bool {
        if self.processes.len() >= CHANNELS_MAX {
            return false;
        }
        self.processes.insert(channel, process);
        true
    }

    /// A process that has a channel brought another token: what that grants counts from now on.
    pub fn set_grant(&mut self, channel: ChannelId, grant: Grant) {
        if let Some(process) = self.processes.get_mut(&channel) {
            process.grant = grant;
        }
    }

    /// Takes one message of a channel. Call [`drive`](Self::drive) after a batch of them.
    pub fn on_message(
        &mut self,
        now: Instant,
        channel: ChannelId,
        lane: Lane,
        message: &Message<'_>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        self.on_message_in(now, (channel, lane), message, None, out)
    }

    /// As [`on_message`](Self::on_message) for a message that lies in a buffer of [`lend_buffer`](Self::lend_buffer).
    pub fn on_message_in(
        &mut self,
        now: Instant,
        (channel, lane): (ChannelId, Lane),
        message: &Message<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let header = message.header;
        let verdict = match header.kind {
            MessageKind::Listen => self.on_listen(channel, lane, message, out),
            MessageKind::Unlisten => {
                self.pools.unlisten(now, channel, header.id);
                Verdict::Fine
            }
            MessageKind::AcceptCredit if header.argument == 0 => {
                let unused = self.pools.withdraw_credit(channel, header.id);
                let answer = MessageHeader::new(MessageKind::AcceptCredit, header.id, unused, 0);
                if out.channel(lane, answer, &[]).is_err()
                    && let Some(other) = out.lane(channel, header.id)
                {
                    let _ = out.channel(other, answer, &[]); // a lost channel reports itself down
                }
                Verdict::Fine
            }
            MessageKind::AcceptCredit => {
                self.pools.grant(channel, header.id, header.argument);
                Verdict::Fine
            }
            MessageKind::Connect => self.on_connect(now, channel, lane, message, out),
            MessageKind::TakeOver => self.on_take_over(now, (channel, lane), message, out),
            MessageKind::Ping | MessageKind::Pong => Verdict::Fine,
            MessageKind::Open | MessageKind::Connected | MessageKind::HandedOver | MessageKind::TakenOver => {
                Verdict::Violation
            }
            _ => self.on_flow_message(now, (channel, lane), message, buffer, out),
        };
        self.counters.violations += u64::from(verdict == Verdict::Violation);
        verdict
    }

    fn on_listen(
        &mut self,
        channel: ChannelId,
        lane: Lane,
        message: &Message<'_>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let Ok(payload) = ListenPayload::parse(message.payload) else { return Verdict::Violation };
        let Some(process) = self.processes.get(&channel) else { return Verdict::Fine };
        let (id, port) = (message.header.id, payload.address.port());
        let refusal = match process.may_listen(port, &self.pools) {
            Ok(claim) => match self.pools.listen(process.node, port, channel, id) {
                Ok(member) => {
                    self.pools.claim(member, claim);
                    return Verdict::Fine;
                }
                Err(ListenError::Duplicate) => reason::ADDRESS_IN_USE,
                Err(ListenError::Full) => reason::NO_BUFFERS,
            },
            Err(refusal) => {
                self.counters.listens_denied += 1;
                refusal
            }
        };
        let _ = out.channel(lane, MessageHeader::new(MessageKind::Refused, id, refusal, 0), &[]);
        Verdict::Fine
    }

    /// Messages that name a flow: it must be this channel's own, in this very generation.
    fn on_flow_message(
        &mut self,
        now: Instant,
        (channel, lane): (ChannelId, Lane),
        message: &Message<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let header = message.header;
        let Some(label) = header.label() else { return Verdict::Violation };
        if self.on_withdrawn((channel, lane), label, header.kind) {
            return Verdict::Fine;
        }
        let Some(flow) = self.flows.get_mut(label).filter(|f| f.channel() == Some(channel)) else {
            self.counters.stale_messages += 1; // it crossed our CLOSE or RESET on the way
            return Verdict::Fine;
        };
        if flow.lane != lane {
            return Verdict::Violation;
        }
        match (header.kind, flow.stage) {
            (MessageKind::Accepted, Stage::Offered(choice)) => {
                flow.to_app_credit = header.argument;
                let attachment = Attachment { channel, choice: Some(choice) };
                self.flows.set_stage(now, label, Stage::Open(attachment));
                self.pools.accepted(choice);
                self.drop_answered();
                self.record(now, label, TraceKind::AcceptedReceived, 0);
                self.enqueue(label);
            }
            (MessageKind::Refused, Stage::Offered(choice)) => {
                self.counters.opens_refused += 1;
                self.take_back(now, label, choice);
                self.dispatch(now, label, out);
            }
            (MessageKind::Data, Stage::Open(_)) => {
                return self.on_data(now, label, message.payload, buffer, out);
            }
            (MessageKind::Credit, Stage::Open(_)) => {
                flow.to_app_credit = flow.to_app_credit.saturating_add(header.argument);
                self.enqueue(label);
            }
            (MessageKind::Shutdown, Stage::Open(_)) => {
                flow.app_finished = true;
                self.tcp.shutdown(now, label);
                self.record(now, label, TraceKind::CloseReceived, 0);
            }
            (MessageKind::Close, Stage::Open(_)) => {
                let _ = out.channel(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
                if header.flags & CLOSE_UNREAD == 0 {
                    self.application_closed(now, label);
                } else {
                    // RFC 9293 §3.6.1: the client must learn that its data was not read.
                    self.record(now, label, TraceKind::CloseReceived, 0);
                    self.abandon(now, label);
                }
            }
            (MessageKind::Reset, Stage::Open(_) | Stage::Offered(_)) => {
                let _ = out.channel(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
                self.record(now, label, TraceKind::CloseReceived, 0);
                self.abandon(now, label);
            }
            (MessageKind::HandOver, Stage::Open(_)) => return self.on_hand_over(now, label, message, out),
            (MessageKind::Option, Stage::Open(_)) => return self.on_option(now, label, message),
            (MessageKind::Info, Stage::Open(_)) => self.tell_info(label, lane, out),
            _ => return Verdict::Violation,
        }
        Verdict::Fine
    }

    fn on_data(
        &mut self,
        now: Instant,
        label: FlowLabel,
        bytes: &[u8],
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let Some(flow) = self.flows.get_mut(label) else { return Verdict::Fine };
        let len = bytes.len() as u32;
        if len > flow.from_app_window - flow.from_app_outstanding || flow.app_finished {
            return Verdict::Violation;
        }
        flow.from_app_outstanding += len;
        flow.bytes_from_app += u64::from(len);
        self.counters.app_bytes_in += u64::from(len);
        let taken = match buffer {
            Some(buffer) => self.tcp.write_in(now, label, bytes, buffer),
            None => self.tcp.write(now, label, bytes),
        };
        self.record(now, label, TraceKind::DataReceived, len);
        if taken < bytes.len() && self.tcp.info(label).is_some_and(|info| info.state != csp_tcp::State::Done)
        {
            // Windows are granted out of memory that is there for them: this is a mistake of ours. A stream with a hole
            // must not go on.
            self.counters.drop_no_budget += 1;
            if let Some(lane) = self.flows.get(label).map(|f| f.lane) {
                let reset = MessageHeader::of_flow(MessageKind::Reset, label, reason::NO_BUFFERS, 0);
                let _ = out.channel(lane, reset, &[]);
            }
            self.abandon(now, label);
        }
        Verdict::Fine
    }

    /// The process is done with the connection: what it wrote is delivered, then FIN. The flow keeps only the budget
    /// for the bytes that wait.
    pub(super) fn application_closed(&mut self, now: Instant, label: FlowLabel) {
        self.record(now, label, TraceKind::CloseReceived, 0);
        self.tcp.close(now, label);
        let waiting = self.tcp.info(label).map_or(0, |i| i.send_queue) as u32;
        let Some(flow) = self.flows.get_mut(label) else { return };
        if let Some(choice) = flow.choice() {
            self.pools.release(choice);
        }
        let keep = waiting.min(flow.from_app_window);
        self.budget.shrink(flow.from_app_window, keep);
        flow.from_app_window = keep;
        self.flows.set_stage(now, label, Stage::Finishing);
    }

    /// Which process a flow is at, for people.
    pub(super) fn process_of(&self, flow: &Flow) -> Option<(csp_types::NodeId, &str)> {
        let process = self.processes.get(&flow.channel()?)?;
        Some((process.node, process.name.as_str()))
    }
}
