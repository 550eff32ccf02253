//! The life of a hairpin: how it begins, and how it ends like a connection over TCP.

use std::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple, TraceEvent, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload, Redirect};

use super::HAIRPIN_WINDOW;
use crate::connect::PORT_TRIES;
use crate::context::{Context, Turn};
use crate::events::{NO_SERVICE, new_flow};
use crate::flow::{Attachment, Flow, Stage};
use crate::service::local::LocalServices;
use crate::{ChannelId, Egress, Lane, ProxyOutput, reason};

impl Egress {
    /// Chooses the source address of a hairpin to `remote`: as the policy specifies for this destination, and
    /// different from that of any other connection. The error is the reason code of REFUSED.
    fn hairpin_source<O>(&mut self, cx: &Context<'_, O>, remote: SocketAddr) -> Result<SocketAddr, u32> {
        let (_, candidates) = self.candidates(remote).ok_or(reason::NETWORK_UNREACHABLE)?;
        let is_free = |tuple: &FourTuple| {
            let reverse = FourTuple { local: tuple.remote, remote: tuple.local };
            !cx.hairpin.is_source(tuple.local)
                && cx.tcp.label_of(tuple).is_none()
                && cx.tcp.label_of(&reverse).is_none()
        };
        let found = candidates.take(PORT_TRIES).find(is_free);
        found.map(|tuple| tuple.local).ok_or(reason::ADDRESS_IN_USE)
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes CONNECT to a service of this proxy. Returns `false` if no hairpin is free, or this user may
    /// open no further one. The connection is established at once; its service's end waits for a process like
    /// any other flow, as with a listening socket of the kernel. CONNECT is refused if the address belongs to
    /// a local service on another proxy worker.
    pub(crate) fn open_hairpin(
        &mut self,
        (channel, lane): (ChannelId, Lane),
        request: MessageHeader,
        remote: SocketAddr,
        service: u32,
    ) -> Result<bool, u32> {
        let spec = self.dispatcher.service(service).map(|service| &service.spec);
        if spec.is_some_and(|spec| spec.tls.is_some() || spec.sni.is_some()) {
            return Ok(false); // the program speaks TLS, which a connection over the LAN ends or passes on
        }
        let local = spec.and_then(|spec| spec.local);
        if let Some(owner) = local.and_then(|number| self.local.elsewhere(number)) {
            self.cx.recorder.counters.connects_elsewhere += 1;
            return Err(Redirect::at(&owner).to_argument());
        }
        let user = self.dispatcher.user_of(channel);
        if !self.egress.shares.admit_hairpin(user, self.free()) {
            return Ok(false);
        }
        let source = self.egress.hairpin_source(&self.cx, remote)?;
        let Some((client, server)) = self.cx.hairpin.open(source) else { return Ok(false) };
        let now = self.cx.now;
        let tuple = FourTuple { local: source, remote };
        let stage = Stage::Open(Attachment { channel, choice: None });
        let flow = new_flow(now, (client, tuple), NO_SERVICE, stage, HAIRPIN_WINDOW);
        let charge = self.egress.shares.charge_hairpin_end(user);
        self.admit(Flow { to_app_credit: request.argument, lane, charge, ..flow });
        let tuple = FourTuple { local: remote, remote: source };
        let arrived = self.dispatcher.next_arrival();
        let flow = new_flow(now, (server, tuple), service, Stage::Pending, HAIRPIN_WINDOW);
        let charge = self.egress.shares.charge_hairpin_end(user);
        self.admit(Flow { arrived, charge, ..flow });
        self.cx.recorder.counters.connections_hairpin += 1;
        let payload = OpenPayload { local: source, remote, window: HAIRPIN_WINDOW }.emit();
        let header = MessageHeader::of_flow(MessageKind::Connected, client, request.id, payload.len() as u32);
        self.cx.send(lane, header, &payload);
        self.cx.recorder.event(TraceEvent {
            at: now,
            label: client,
            kind: TraceKind::OpenSent,
            aux: server.to_wire(),
            ..TraceEvent::default()
        });
        self.find_application(server, service, tuple);
        Ok(true)
    }

    /// Ends the stream of a flow's process. The other end passes the end of the stream on after all bytes.
    pub(crate) fn finish_hairpin(&mut self, label: FlowLabel) {
        if let Some(peer) = self.cx.hairpin.finish(label) {
            self.pump.enqueue(self.cx.flows, peer);
        }
    }

    /// Closes the end of a flow's process: queued bytes are delivered, then the end of the stream.
    pub(crate) fn close_hairpin(&mut self, label: FlowLabel) {
        if self.cx.hairpin.is_resetting(label) {
            return self.remove_flow(label);
        }
        let (unread, _) = self.cx.hairpin.waiting(label);
        if unread > 0 {
            // RFC 9293 §3.6.1: the other end must be informed that its data was not read.
            return self.abandon(label);
        }
        let peer = self.cx.hairpin.peer(label);
        let is_closed =
            |peer: &FlowLabel| self.cx.flows.get(*peer).is_some_and(|f| f.stage == Stage::Finishing);
        if let Some(peer) = peer.filter(is_closed).filter(|peer| self.cx.hairpin.waiting(*peer).0 > 0) {
            // A local service has written after the process closed. The bytes have no reader.
            self.cx.recorder.counters.connections_closed += 1;
            self.remove_flow(peer);
            return self.remove_flow(label);
        }
        self.finish_hairpin(label);
        if let Some(choice) = self.cx.flows.get(label).and_then(Flow::choice) {
            self.dispatcher.release(choice);
        }
        self.cx.flows.set_stage(self.cx.now, label, Stage::Finishing);
    }

    /// Processes data of a flow's process: the other end passes it on, unless its process has closed.
    pub(crate) fn hairpin_written(&mut self, label: FlowLabel) {
        let Some(peer) = self.cx.hairpin.peer(label) else { return };
        let closed = self.cx.flows.get(peer).is_none_or(|flow| flow.stage == Stage::Finishing);
        if closed {
            self.remove_flow(peer);
            self.reset_peer(label);
        } else {
            self.pump.enqueue(self.cx.flows, peer);
        }
    }

    /// Resets the remaining end of a hairpin whose other end was reset. The reset follows the bytes that wait
    /// for the remaining end's process, and the end of their stream; it waits for these at most as long as
    /// one over TCP.
    pub(crate) fn reset_peer(&mut self, peer: FlowLabel) {
        self.cx.recorder.counters.connections_failed += 1;
        if self.has_received(peer) || !self.cx.hairpin.reset_later(self.cx.now, peer) {
            return self.fail(peer, reason::CONNECTION_RESET);
        }
        self.cx.recorder.counters.hairpin_resets_delayed += 1;
        self.pump.enqueue(self.cx.flows, peer);
    }

    /// Returns whether no bytes of the other process wait for the process of this flow: it has received all
    /// of them, or has closed.
    fn has_received(&self, label: FlowLabel) -> bool {
        let (waiting, finished) = self.cx.hairpin.waiting(label);
        let Some(flow) = self.cx.flows.get(label) else { return true };
        flow.stage == Stage::Finishing || (waiting == 0 && (!finished || flow.shutdown_sent))
    }

    /// Ends hairpins whose both directions are finished, as TCP does when both FINs are acknowledged.
    pub(crate) fn settle_hairpins(&mut self) {
        while let Some(label) = self.cx.hairpin.next_to_settle() {
            let Some(peer) = self.cx.hairpin.peer(label) else {
                if self.cx.hairpin.is_resetting(label) && self.has_received(label) {
                    self.fail(label, reason::CONNECTION_RESET);
                }
                continue;
            };
            if !self.has_all(label) || !self.has_all(peer) {
                continue;
            }
            self.cx.recorder.counters.connections_closed += 1;
            for label in [label, peer] {
                if let Some(lane) = self.cx.flows.get(label).filter(|f| f.channel().is_some()).map(|f| f.lane)
                {
                    self.cx.send(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
                }
                self.remove_flow(label);
            }
        }
    }

    /// Returns whether the process of a flow has received everything that the other process wrote, including
    /// its end of stream.
    fn has_all(&self, label: FlowLabel) -> bool {
        let (waiting, finished) = self.cx.hairpin.waiting(label);
        let Some(flow) = self.cx.flows.get(label) else { return false };
        let informed = match flow.stage {
            Stage::Open(_) => flow.shutdown_sent,
            Stage::Finishing => true,
            Stage::Pending
            | Stage::Local
            | Stage::Offered(_)
            | Stage::Connecting { .. }
            | Stage::Left(_)
            | Stage::Calling(_)
            | Stage::Called(_)
            | Stage::Joined(_)
            | Stage::Behind(_)
            | Stage::Checking(_) => false,
        };
        finished && waiting == 0 && informed
    }
}
