//! Processes the messages of application processes: listeners, answers to OPEN, data, ends of streams.

use csp_tcp::Buffer;
use csp_types::{FlowLabel, TraceKind};
use csp_wire::channel::{
    CLOSE_UNREAD, ListenPayload, Message, MessageHeader, MessageKind, TakeOverPayload, Ticket,
};

use super::connection_log::End;
use super::context::{Context, Ends, Turn};
use super::dispatch::pool::Choice;
use super::flow::{Attachment, Stage};
use super::service::between::{Passage, Towards};
use super::service::local::LocalServices;
use super::service::{ApplicationEnd, ClientEnd, Passed, Relay, Service};
use super::{ChannelId, Lane, ProxyOutput, options};

/// Result of processing a message of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Processed, or ignored as stale.
    Fine,
    /// The process violated the protocol; the caller must fail its channel.
    Violation,
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Passes a message of a channel to the part that it concerns.
    pub(super) fn on_message(
        &mut self,
        (channel, lane): (ChannelId, Lane),
        message: &Message<'_>,
        buffer: Option<&Buffer>,
    ) -> Verdict {
        let header = message.header;
        let verdict = match header.kind {
            MessageKind::Listen => self.on_listen(channel, lane, message),
            MessageKind::Unlisten => {
                self.dispatcher.unlisten(self.cx.now, channel, header.id);
                Verdict::Fine
            }
            MessageKind::AcceptCredit if header.argument == 0 => {
                let unused = self.dispatcher.withdraw_credit(channel, header.id);
                let answer = MessageHeader::new(MessageKind::AcceptCredit, header.id, unused, 0);
                if !self.cx.send(lane, answer, &[])
                    && let Some(other) = self.cx.out.lane(channel, header.id)
                {
                    self.cx.send(other, answer, &[]);
                }
                Verdict::Fine
            }
            MessageKind::AcceptCredit => {
                self.dispatcher.grant(channel, header.id, header.argument);
                Verdict::Fine
            }
            MessageKind::Connect => self.on_connect(channel, lane, message),
            MessageKind::TakeOver => self.on_take_over(channel, lane, message),
            MessageKind::Ping | MessageKind::Pong => Verdict::Fine,
            MessageKind::Open | MessageKind::Connected | MessageKind::HandedOver | MessageKind::TakenOver => {
                Verdict::Violation
            }
            _ => self.on_flow_message((channel, lane), message, buffer),
        };
        self.cx.recorder.counters.violations += u64::from(verdict == Verdict::Violation);
        verdict
    }

    fn on_listen(&mut self, channel: ChannelId, lane: Lane, message: &Message<'_>) -> Verdict {
        let Ok(payload) = ListenPayload::parse(message.payload) else { return Verdict::Violation };
        let id = message.header.id;
        if let Err(refusal) = self.dispatcher.listen(self.cx.recorder, channel, id, payload.address) {
            self.cx.send(lane, MessageHeader::new(MessageKind::Refused, id, refusal, 0), &[]);
        }
        Verdict::Fine
    }

    fn on_take_over(&mut self, channel: ChannelId, lane: Lane, message: &Message<'_>) -> Verdict {
        let Ok(payload) = TakeOverPayload::parse(message.payload) else { return Verdict::Violation };
        if self.dispatcher.take_over(&mut self.cx, (channel, lane), message.header, payload) {
            self.upstream_taken_over(payload.label);
            self.pump.enqueue(self.cx.flows, payload.label);
        }
        Verdict::Fine
    }

    /// Processes a message that names a flow. The flow must belong to this channel, in exactly this
    /// generation.
    fn on_flow_message(
        &mut self,
        (channel, lane): (ChannelId, Lane),
        message: &Message<'_>,
        buffer: Option<&Buffer>,
    ) -> Verdict {
        let header = message.header;
        let Some(label) = header.label() else { return Verdict::Violation };
        if self.dispatcher.on_withdrawn(self.cx.recorder, (channel, lane), label, header.kind) {
            return Verdict::Fine;
        }
        let Some(flow) = self.cx.flows.get_mut(label).filter(|f| f.channel() == Some(channel)) else {
            self.cx.recorder.counters.stale_messages += 1; // it crossed our CLOSE or RESET
            return Verdict::Fine;
        };
        if flow.lane != lane {
            return Verdict::Violation;
        }
        let close = MessageHeader::of_flow(MessageKind::Close, label, 0, 0);
        self.cx.upstreams.note_read(label, &header, flow.bytes_to_app);
        match (header.kind, flow.stage) {
            (MessageKind::Accepted, Stage::Offered(choice)) => {
                flow.to_app_credit = header.argument;
                self.offer_accepted(label, choice);
            }
            (MessageKind::Refused, Stage::Offered(choice)) => self.offer_refused(label, choice),
            (MessageKind::Data, Stage::Open(_)) => {
                let examined = flow.between.then_some(flow.bytes_from_app);
                return self.on_data(label, examined, message.payload, buffer);
            }
            (MessageKind::Credit, Stage::Open(_)) => {
                flow.to_app_credit = flow.to_app_credit.saturating_add(header.argument);
                self.pump.enqueue(self.cx.flows, label);
            }
            (MessageKind::Shutdown, Stage::Open(_)) => self.application_finished(label),
            (MessageKind::Close, Stage::Open(_)) => {
                self.cx.send(lane, close, &[]);
                if header.flags & CLOSE_UNREAD == 0 {
                    self.application_closed(label);
                } else {
                    // RFC 9293 §3.6.1: the client must be informed that its data was not read.
                    self.cx.record(label, TraceKind::CloseReceived, 0);
                    self.cx.flows.ends(label, End::ServerReset);
                    self.abandon(label);
                }
            }
            (MessageKind::Reset, Stage::Open(_) | Stage::Offered(_)) => {
                self.cx.send(lane, close, &[]);
                self.cx.record(label, TraceKind::CloseReceived, 0);
                self.cx.flows.ends(label, End::ServerReset);
                self.abandon(label);
            }
            (MessageKind::HandOver, Stage::Open(_)) => match Ticket::parse(message.payload) {
                Ok(ticket) => self.dispatcher.hand_over(&mut self.cx, label, ticket),
                Err(_) => return Verdict::Violation,
            },
            (MessageKind::Option, Stage::Open(_)) => return options::on_option(&mut self.cx, label, message),
            (MessageKind::Info, Stage::Open(_)) => options::answer_info(&mut self.cx, label, lane),
            _ => return Verdict::Violation,
        }
        Verdict::Fine
    }

    /// Processes ACCEPTED, the answer of a process to its offer.
    fn offer_accepted(&mut self, label: FlowLabel, choice: Choice) {
        let attachment = Attachment { channel: choice.channel, choice: Some(choice) };
        self.cx.flows.set_stage(self.cx.now, label, Stage::Open(attachment));
        self.dispatcher.accepted(self.cx.flows, choice);
        if self.cx.recorder.log.is_on() {
            let process = self.dispatcher.process_name(choice.channel);
            self.cx.recorder.log.opened(self.cx.now, label, choice.member, process);
        }
        self.cx.record(label, TraceKind::AcceptedReceived, 0);
        if self.cx.upstreams.is_of(label) {
            self.upstream_accepted(label, choice);
        }
        self.pump.enqueue(self.cx.flows, label);
    }

    /// Processes REFUSED: the connection is offered to another process, or its local service decides.
    fn offer_refused(&mut self, label: FlowLabel, choice: Choice) {
        self.cx.recorder.counters.opens_refused += 1;
        self.dispatcher.take_back(self.cx.now, self.cx.flows, label, choice);
        match self.cx.upstreams.is_of(label) {
            false => self.dispatcher.dispatch(&mut self.cx, label),
            true => self.open_refused(label, choice),
        }
    }

    /// Processes bytes of an application. `examined`: a service between both ends examines them; the value is
    /// the number of the application's bytes that precede them.
    fn on_data(
        &mut self,
        label: FlowLabel,
        examined: Option<u64>,
        bytes: &[u8],
        buffer: Option<&Buffer>,
    ) -> Verdict {
        let (outcome, malformed) = match examined {
            None => (pass_on(&mut self.cx, &mut Relay, label, bytes, buffer), false),
            Some(before) => {
                let mut passage = Passage::new(&mut *self.local, label, before);
                (pass_on(&mut self.cx, &mut passage, label, bytes, buffer), passage.malformed)
            }
        };
        match outcome {
            Outcome::PassedOn if malformed => self.reset_both(label),
            Outcome::PassedOn => {}
            // Without unread bytes the failure is about to be reported.
            Outcome::Over => {
                if self.cx.unread(label) > 0 && !self.pump.fail_later(&mut self.cx, label) {
                    self.fail_broken(label);
                }
            }
            Outcome::PassedOnInHairpin => {
                self.hairpin_written(label);
                if malformed {
                    self.reset_both(label);
                }
            }
            Outcome::ForService => return self.upstream_data(label, bytes, buffer),
            Outcome::BeyondWindow => return Verdict::Violation,
            Outcome::Lost => self.abandon(label),
        }
        Verdict::Fine
    }

    /// Processes the end of an application's stream, which still receives.
    fn application_finished(&mut self, label: FlowLabel) {
        if self.is_cut_off(label, Towards::Client) {
            return self.reset_both(label);
        }
        let Some(flow) = self.cx.flows.get_mut(label) else { return };
        flow.app_finished = true;
        self.cx.flows.ends(label, End::ClosedByServer);
        self.shutdown_client(label);
        self.cx.record(label, TraceKind::CloseReceived, 0);
    }

    /// Processes the end of an application's connection: queued bytes are delivered, then FIN. The flow keeps
    /// only the budget for the queued bytes.
    pub(super) fn application_closed(&mut self, label: FlowLabel) {
        self.cx.record(label, TraceKind::CloseReceived, 0);
        if self.is_cut_off(label, Towards::Client) {
            self.cx.flows.ends(label, End::Protocol);
            return self.abandon(label);
        }
        let is_unread = self.cx.unread(label) > 0;
        self.cx.flows.ends(label, if is_unread { End::ServerReset } else { End::ClosedByServer });
        let cx = &mut self.cx;
        if cx.flows.get(label).is_some_and(|flow| flow.stage == Stage::Local) {
            self.local.gone(cx.now, label);
            cx.flows.set_stage(cx.now, label, Stage::Finishing);
        }
        self.close_client(label);
    }
}

/// Result of passing on an application's bytes.
enum Outcome {
    PassedOn,
    /// To the other flow of a hairpin.
    PassedOnInHairpin,
    /// Not passed on yet: a local service is to read them.
    ForService,
    /// The client's connection has ended; the bytes were discarded.
    Over,
    /// The bytes exceed the window granted to the process.
    BeyondWindow,
    /// Some or all of the bytes are lost.
    Lost,
}

/// Passes an application's bytes to the client's end, by the service of the flow.
#[inline]
fn pass_on(
    cx: &mut Context<'_, impl ProxyOutput>,
    service: &mut impl Service,
    label: FlowLabel,
    bytes: &[u8],
    buffer: Option<&Buffer>,
) -> Outcome {
    match cx.ends(label) {
        Some(Ends::Tcp(client, application)) => pass_on_to(service, client, application, bytes, buffer),
        Some(Ends::Tls(client, application)) => pass_on_to(service, client, application, bytes, buffer),
        Some(Ends::Loop(client, application)) => {
            match pass_on_to(service, client, application, bytes, buffer) {
                Outcome::PassedOn | Outcome::Over => Outcome::PassedOnInHairpin,
                other => other,
            }
        }
        Some(Ends::Upstream) => Outcome::ForService,
        None => Outcome::PassedOn,
    }
}

fn pass_on_to(
    service: &mut impl Service,
    mut client: impl ClientEnd,
    mut application: ApplicationEnd<'_, impl ProxyOutput>,
    bytes: &[u8],
    buffer: Option<&Buffer>,
) -> Outcome {
    if !application.received(bytes.len() as u32) {
        return Outcome::BeyondWindow;
    }
    match service.pass_to_client(&mut client, bytes, buffer) {
        Passed::All => Outcome::PassedOn,
        Passed::Over => Outcome::Over,
        Passed::Lost => {
            // Windows are granted only for available memory, so this is an error of the proxy. A stream with
            // missing bytes must not continue.
            application.report_loss();
            Outcome::Lost
        }
    }
}
