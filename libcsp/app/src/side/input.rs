//! Messages from proxies. All are untrusted: a message that violates the protocol breaks its link, and
//! nothing else.

use csp_types::FlowLabel;
use csp_wire::channel::{
    CREDIT_WIDER, ConnectedPayload, Message, MessageHeader, MessageKind, Messages, OpenPayload, Redirect,
    TakenOverPayload,
};

use super::channel::Lane;
use super::records::{Flow, Interest, Phase};
use super::slots::{FlowId, ListenerId};
use super::{AppSide, Handle, MESSAGES_PER_PROGRESS, errno, errors};
use csp_transport::LinkEvent;
use csp_transport::SendCredit;

/// The proxy violated the protocol.
pub(super) struct Violation;

impl AppSide {
    /// Processes link events and received messages; returns whether there were any.
    pub(super) fn process_input(&mut self) -> bool {
        let mut any = false;
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..MESSAGES_PER_PROGRESS {
            if let Some(event) = self.endpoint.poll_event() {
                any = true;
                match event {
                    LinkEvent::Up { link, .. } => self.link_up(link),
                    LinkEvent::Down { link, reason } => self.link_down(link, &reason),
                }
                continue;
            }
            let Some(received) = self.endpoint.receive(self.now, &mut scratch) else { break };
            any = true;
            let body = scratch.get(..received.len).unwrap_or(&[]);
            if let Some(lane) = self.lane_of(received.link)
                && self.body(lane, body).is_err()
            {
                self.violation(lane);
            }
        }
        self.scratch = scratch;
        any
    }

    fn body(&mut self, lane: Lane, body: &[u8]) -> Result<(), Violation> {
        for message in Messages::new(body) {
            self.message(lane, &message.map_err(|_| Violation)?)?;
        }
        Ok(())
    }

    fn message(&mut self, lane: Lane, message: &Message<'_>) -> Result<(), Violation> {
        let header = &message.header;
        match header.kind {
            MessageKind::Open => self.on_open(lane, message),
            MessageKind::Connected => {
                let open = ConnectedPayload::parse(message.payload).map_err(|_| Violation)?;
                self.on_connected(lane, header, TakenOverPayload { open, in_flight: 0, shut: false })
            }
            MessageKind::TakenOver => {
                let payload = TakenOverPayload::parse(message.payload).map_err(|_| Violation)?;
                self.on_connected(lane, header, payload)
            }
            MessageKind::HandedOver => match self.known(lane, header) {
                Some(id) => self.on_handed_over(id),
                None => Ok(()),
            },
            MessageKind::Refused => self.on_refused(lane, header),
            MessageKind::Data => self.on_data(lane, message),
            MessageKind::Credit => self.on_credit(lane, header),
            MessageKind::Shutdown => self.on_shutdown(lane, header),
            MessageKind::Reset => self.on_reset(lane, header),
            MessageKind::Close => self.on_close(lane, header),
            MessageKind::AcceptCredit => {
                let id = ListenerId::from_wire(header.id).ok_or(Violation)?;
                self.on_credit_returned(lane.channel, id, header.argument).then_some(()).ok_or(Violation)
            }
            // A proxy sets no options here.
            MessageKind::Info => self.on_info(lane, message),
            MessageKind::Option | MessageKind::Ping | MessageKind::Pong => Ok(()),
            MessageKind::Listen
            | MessageKind::Unlisten
            | MessageKind::Accepted
            | MessageKind::HandOver
            | MessageKind::TakeOver
            | MessageKind::Connect => Err(Violation),
        }
    }

    /// The flow that a message names, if it belongs to this link: a proxy cannot address a flow of another
    /// proxy.
    pub(super) fn known(&mut self, lane: Lane, header: &MessageHeader) -> Option<FlowId> {
        let id = self.channels.get(lane.channel).and_then(|c| c.labels.get(&header.id)).copied();
        let id = id.filter(|id| self.flows.get(id.0).is_some_and(|flow| flow.lane == lane));
        if id.is_none() {
            self.counters.messages_unknown += 1;
        }
        id
    }

    fn on_open(&mut self, lane: Lane, message: &Message<'_>) -> Result<(), Violation> {
        let payload = OpenPayload::parse(message.payload).map_err(|_| Violation)?;
        let label = message.header.label().ok_or(Violation)?;
        self.counters.opens += 1;
        if self.channels.get(lane.channel).is_some_and(|c| c.labels.contains_key(&label.to_wire())) {
            return Err(Violation);
        }
        let listener_id = ListenerId::from_wire(message.header.argument).ok_or(Violation)?;
        let Some(listener) = self.listeners.get_mut(listener_id.0) else {
            // The listener was closed while the OPEN was in transit.
            self.refuse(lane, label.to_wire());
            return Ok(());
        };
        let offer = listener.offers.get_mut(lane.channel).ok_or(Violation)?;
        if !offer.take() {
            return Err(Violation);
        }
        if listener.interest == Interest::None {
            self.refuse(lane, label.to_wire());
            return Ok(());
        }
        let mut flow = Flow::new(Phase::Pending, lane, payload.local, payload.remote);
        flow.label = Some(label);
        (flow.traced_label, flow.traced_proxy) = (label, self.proxy_tag(lane));
        flow.listener = Some(listener_id.0);
        flow.send = SendCredit::new(payload.window);
        let Some(id) = self.flows.insert(flow).map(FlowId) else {
            self.flows_were_full = true; // the credit used by the offer is granted again when flows have ended
            self.refuse(lane, label.to_wire());
            return Ok(());
        };
        self.bind_label(lane.channel, label, id);
        self.enqueue(listener_id, id, lane);
        Ok(())
    }

    /// Returns the tag of the proxy at the other end of a link.
    fn proxy_tag(&self, lane: Lane) -> u16 {
        self.channels.get(lane.channel).map_or(0, |channel| channel.target().node.tag())
    }

    /// Handles CONNECTED and TAKEN_OVER: a requested connection is established, or one that another process
    /// left is taken over.
    fn on_connected(
        &mut self,
        lane: Lane,
        header: &MessageHeader,
        payload: TakenOverPayload,
    ) -> Result<(), Violation> {
        let label = header.label().ok_or(Violation)?;
        let id = FlowId::from_wire(header.argument).ok_or(Violation)?;
        let proxy = self.proxy_tag(lane);
        let connecting = |f: &&mut Flow| f.lane == lane && f.phase == Phase::Connecting;
        let flow = self.flows.get_mut(id.0).filter(connecting).ok_or(Violation)?;
        flow.phase = Phase::Open;
        flow.label = Some(label);
        (flow.traced_label, flow.traced_proxy) = (label, proxy);
        flow.bytes_read = flow.bytes_read.filter(|_| header.kind == MessageKind::Connected);
        flow.local = payload.open.local;
        flow.remote = payload.open.remote;
        flow.send = SendCredit::new(payload.open.window);
        flow.write_shutdown = payload.shut;
        let used = flow.send.take(payload.in_flight);
        debug_assert!(used, "checked when the payload was parsed");
        let orphan = flow.orphan;
        flow.ended_here |= orphan;
        if !self.bind_label(lane.channel, label, id) {
            return Err(Violation);
        }
        if orphan {
            self.send_control(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0));
        } else {
            self.record(csp_types::TraceKind::AppOpen, id, 0);
            self.send_deferred_options(id);
        }
        self.notify(Handle::Flow(id));
        Ok(())
    }

    fn on_refused(&mut self, lane: Lane, header: &MessageHeader) -> Result<(), Violation> {
        if let Some(id) = ListenerId::from_wire(header.id) {
            self.on_listen_refused(lane.channel, id, header.argument);
            return Ok(());
        }
        let id = FlowId::from_wire(header.id).ok_or(Violation)?;
        let connecting = |f: &&mut Flow| f.lane == lane && f.phase == Phase::Connecting;
        self.flows.get_mut(id.0).filter(connecting).ok_or(Violation)?;
        if Redirect::from_argument(header.argument).is_some_and(|there| self.follow_redirect(id, there)) {
            return Ok(());
        }
        let flow = self.flows.get_mut(id.0).ok_or(Violation)?;
        flow.ended_here = true;
        flow.ended_there = true;
        if flow.orphan {
            self.counters.connect_failures += 1;
            self.flows.remove(id.0);
        } else {
            self.break_flow(id, errors::reason(header.argument, errno::ECONNREFUSED));
        }
        Ok(())
    }

    fn on_data(&mut self, lane: Lane, message: &Message<'_>) -> Result<(), Violation> {
        let Some(id) = self.known(lane, &message.header) else { return Ok(()) };
        let flow = self.flows.get_mut(id.0).ok_or(Violation)?;
        if flow.ended_here {
            self.counters.bytes_after_close += message.payload.len() as u64;
            return Ok(());
        }
        if flow.phase != Phase::Open || flow.peer_shutdown {
            return Err(Violation);
        }
        flow.receive.received(message.header.payload_len).map_err(|_| Violation)?;
        if flow.read_shutdown {
            // As kernel TCP does after SHUT_RD: received, acknowledged, discarded.
            flow.receive.consumed(message.header.payload_len);
            self.send_credit(id);
            return Ok(());
        }
        flow.queue.extend(message.payload);
        self.notify(Handle::Flow(id));
        Ok(())
    }

    fn on_credit(&mut self, lane: Lane, header: &MessageHeader) -> Result<(), Violation> {
        let Some(id) = self.known(lane, header) else { return Ok(()) };
        let flow = self.flows.get_mut(id.0).ok_or(Violation)?;
        if flow.ended_here {
            return Ok(());
        }
        let outcome = match header.flags & CREDIT_WIDER {
            0 => flow.send.returned(header.argument),
            _ => flow.send.widened(header.argument),
        };
        outcome.map_err(|_| Violation)?;
        if flow.wants_write && flow.has_room() {
            flow.wants_write = false;
            self.notify(Handle::Flow(id));
        }
        Ok(())
    }

    fn on_shutdown(&mut self, lane: Lane, header: &MessageHeader) -> Result<(), Violation> {
        let Some(id) = self.known(lane, header) else { return Ok(()) };
        let flow = self.flows.get_mut(id.0).ok_or(Violation)?;
        if flow.ended_there || (flow.peer_shutdown && !flow.ended_here) {
            return Err(Violation);
        }
        flow.peer_shutdown = true;
        self.notify(Handle::Flow(id));
        Ok(())
    }

    fn on_reset(&mut self, lane: Lane, header: &MessageHeader) -> Result<(), Violation> {
        let Some((id, label)) = self.peer_ends(lane, header)? else { return Ok(()) };
        self.answer_close(id, lane, label);
        let Some(flow) = self.flows.get(id.0) else { return Ok(()) };
        let (orphan, broken) = (flow.orphan, flow.broken);
        // As kernel TCP does in CLOSE-WAIT: the program has the whole stream, only writing to it fails.
        let only_writing = flow.peer_shutdown && !flow.write_shutdown;
        self.release_label(id);
        if orphan {
            self.flows.remove(id.0);
        } else if !broken {
            let error = match errors::reason(header.argument, errno::ECONNRESET) {
                errno::ECONNRESET if only_writing => errno::EPIPE,
                error => error,
            };
            self.break_flow(id, error);
        }
        Ok(())
    }

    fn on_close(&mut self, lane: Lane, header: &MessageHeader) -> Result<(), Violation> {
        let Some((id, label)) = self.peer_ends(lane, header)? else { return Ok(()) };
        // Releases the label for the proxy, however long the program keeps its descriptor.
        self.answer_close(id, lane, label);
        self.release_label(id);
        let Some(flow) = self.flows.get_mut(id.0) else { return Ok(()) };
        flow.peer_shutdown = true;
        flow.peer_closed = true;
        if flow.orphan {
            self.flows.remove(id.0);
        } else {
            self.notify(Handle::Flow(id));
        }
        Ok(())
    }

    /// Handles the peer's CLOSE or RESET: marks the flow. A connection that still waits to be accepted is
    /// removed; then `None` is returned.
    fn peer_ends(
        &mut self,
        lane: Lane,
        header: &MessageHeader,
    ) -> Result<Option<(FlowId, FlowLabel)>, Violation> {
        let Some(id) = self.known(lane, header) else { return Ok(None) };
        let label = header.label().ok_or(Violation)?;
        let flow = self.flows.get_mut(id.0).ok_or(Violation)?;
        if std::mem::replace(&mut flow.ended_there, true) {
            return Err(Violation);
        }
        if flow.phase != Phase::Pending {
            return Ok(Some((id, label)));
        }
        let listener = flow.listener;
        self.answer_close(id, lane, label);
        self.release_label(id);
        self.drop_pending(id, listener, lane);
        Ok(None)
    }

    fn answer_close(&mut self, id: FlowId, lane: Lane, label: FlowLabel) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        if !std::mem::replace(&mut flow.ended_here, true) {
            self.send_control(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0));
        }
    }
}
