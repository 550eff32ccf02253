//! Processes the events of clients' ends: connections are established, finish, or fail.

use csp_types::{FlowLabel, FourTuple, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use super::client::ClientEvent;
use super::connection_log::End;
use super::context::Turn;
use super::flow::{Attachment, Flow, Joint, Stage};
use super::service::between::Towards;
use super::service::local::LocalServices;
use super::service_counters::Counted;
use super::shares::Charge;
use super::{Lane, ProxyOutput, reason};

/// `Flow::service` of active opens.
pub(super) const NO_SERVICE: u32 = u32::MAX;

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    pub(super) fn process_client_events(&mut self) {
        while let Some((label, event)) = self.cx.next_client_event() {
            match event {
                ClientEvent::Connected { service, tuple } => self.client_connected(label, service, tuple),
                ClientEvent::Changed if self.prefaces.has(label) => self.read_preface(label),
                ClientEvent::Changed if self.cx.tls.has(label) => self.session_changed(label),
                ClientEvent::Opened => self.active_open_done(label),
                ClientEvent::Changed => self.pump.enqueue(self.cx.flows, label),
                ClientEvent::Closed => self.client_closed(label),
                ClientEvent::Reset => self.remove_flow(label),
                ClientEvent::Broken(code) => self.client_broken(label, code),
                ClientEvent::Failed(code) => self.client_failed(label, code),
            }
        }
    }

    fn client_connected(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) {
        self.cx.recorder.counters.connections_passive += 1;
        match self.awaits_header(label, service, tuple) {
            true => self.keep_reserve(),
            false => self.client_begins(label, service, tuple),
        }
    }

    /// Serves a client's new connection, whose first byte is the client's.
    pub(super) fn client_begins(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) {
        match self.awaits_hello(label, service, tuple) {
            true => self.keep_reserve(),
            false => self.begin_client(label, service, tuple),
        }
    }

    /// Serves a client's new connection at its service, or at the one that its ClientHello asks for.
    pub(super) fn begin_client(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) {
        let now = self.cx.now;
        if self.dispatcher.service(service).is_none() {
            // The policy removed the service during the handshake, and it has no other connections.
            self.cx.recorder.counters.drop_no_server += 1;
            self.cx.recorder.log.refused(now, (label, tuple, service), End::Proxy);
            self.cx.abort_client(label);
            return;
        }
        let counted = self.dispatcher.counted(service);
        let Some(window) = self.reserve_window() else {
            self.cx.recorder.counters.drop_no_budget += 1;
            self.cx.recorder.services.refused(counted, End::NoMemory);
            self.cx.recorder.log.refused(now, (label, tuple, service), End::NoMemory);
            self.cx.abort_client(label);
            return;
        };
        self.cx.tcp.set_send_capacity(label, window);
        if !self.begin_handshake(label, service, tuple, window) {
            self.serve_client(label, service, tuple, window);
        }
        self.keep_reserve();
    }

    /// Serves a client's connection whose bytes are its service's from now on.
    pub(super) fn serve_client(&mut self, label: FlowLabel, service: u32, tuple: FourTuple, window: u32) {
        let (now, secured) = (self.cx.now, self.cx.tls.has(label));
        let counted = self.dispatcher.counted(service);
        let arrived = self.dispatcher.next_arrival();
        let flow = new_flow(now, (label, tuple), service, Stage::Pending, window);
        self.admit(Flow { arrived, counted, secured, ..flow });
        self.cx.recorder.services.opened(counted);
        if self.cx.recorder.log.is_on() {
            let handshake = self.cx.tcp.figures(label).srtt_us;
            self.cx.recorder.log.began(label, handshake);
            self.note_session(label);
        }
        self.find_application(label, service, tuple);
    }

    /// Passes a new connection to the local service at its address, or to a process of its pool.
    pub(super) fn find_application(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) {
        let spec = self.dispatcher.service(service).map(|service| &service.spec);
        let (local, between) = spec.map_or((None, None), |spec| (spec.local, spec.between));
        if let Some(number) = between {
            if !self.local.begun(self.cx.now, label, number, tuple) {
                return self.abandon(label);
            }
            if let Some(flow) = self.cx.flows.get_mut(label) {
                flow.between = true;
            }
        }
        match local {
            None => {
                self.meter(label);
                self.dispatcher.dispatch(&mut self.cx, label);
            }
            Some(number) if self.local.connected(self.cx.now, label, number, tuple) => {
                self.cx.flows.set_stage(self.cx.now, label, Stage::Local);
            }
            Some(_) => return self.abandon(label),
        }
        self.pump.enqueue(self.cx.flows, label);
    }

    fn active_open_done(&mut self, label: FlowLabel) {
        let cx = &mut self.cx;
        let Some(flow) = cx.flows.get_mut(label) else { return };
        let (lane, tuple, window) = (flow.lane, flow.tuple, flow.from_app_window);
        let (channel, request) = match flow.stage {
            Stage::Connecting { channel, request } => (channel, request),
            Stage::Called(client) => return self.server_connected(label, client),
            Stage::Checking(member) => return self.check_connected(label, member),
            _ => return,
        };
        cx.recorder.counters.connections_active += 1;
        cx.flows.set_stage(cx.now, label, Stage::Open(Attachment { channel, choice: None }));
        let payload = OpenPayload { local: tuple.local, remote: tuple.remote, window }.emit();
        let header = MessageHeader::of_flow(MessageKind::Connected, label, request, payload.len() as u32);
        cx.send(lane, header, &payload);
        cx.record(label, TraceKind::OpenSent, 0);
        self.pump.enqueue(cx.flows, label);
        self.meter(label);
    }

    /// Processes the regular end of a connection: both directions are finished and acknowledged.
    fn client_closed(&mut self, label: FlowLabel) {
        self.cx.recorder.counters.connections_closed += 1;
        self.prefaces.forget(label);
        self.forget_handshake(label);
        if self.cx.tls.is_cut_off(label) {
            self.cx.flows.ends(label, End::ClientReset);
            return self.fail(label, reason::CONNECTION_RESET);
        }
        if self.is_cut_off(label, Towards::Application) {
            self.cx.flows.ends(label, End::Protocol);
            return self.fail(label, reason::INVALID);
        }
        self.joined_closed(label);
        if let Some(lane) = self.cx.flows.get(label).filter(|f| f.channel().is_some()).map(|f| f.lane) {
            self.cx.send(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
        }
        self.remove_flow(label);
    }

    /// Processes the failure of a connection with unread bytes. A process receives them before the failure,
    /// as from a kernel's socket; a client that was not accepted yet has left.
    fn client_broken(&mut self, label: FlowLabel, code: u32) {
        if let Some(code) = self.broken_handshake(label, code) {
            self.cx.abort_client(label);
            return self.client_failed(label, code);
        }
        let waits =
            |flow: &Flow| matches!(flow.stage, Stage::Pending | Stage::Offered(_) | Stage::Calling(_));
        if self.cx.flows.get(label).is_none_or(waits) {
            self.cx.abort_client(label);
            return self.client_failed(label, code);
        }
        self.pump.enqueue(self.cx.flows, label);
        self.server_broken(label);
        // A local service, or the other end of two joined connections, may never read the remaining bytes,
        // where a process would close the connection.
        let flow = self.cx.flows.get(label);
        let is_local = flow.is_some_and(|flow| matches!(flow.stage, Stage::Local | Stage::Joined(_)));
        if is_local && !self.pump.fail_later(&mut self.cx, label) {
            self.fail_broken(label);
        }
    }

    /// Ends a flow whose client's connection has failed, discards the bytes that its process has not
    /// received, and reports the reason of the failure to the process.
    pub(super) fn fail_broken(&mut self, label: FlowLabel) {
        let code = self.cx.client_failure(label);
        self.cx.abort_client(label);
        self.client_failed(label, code);
    }

    fn client_failed(&mut self, label: FlowLabel, code: u32) {
        self.prefaces.forget(label);
        self.forget_handshake(label);
        match self.cx.flows.get(label).map(|flow| flow.stage) {
            Some(Stage::Called(client)) => return self.call_failed(label, client, code),
            Some(Stage::Checking(member)) => return self.check_failed(label, member, code),
            _ => {}
        }
        self.cx.recorder.counters.connections_failed += 1;
        self.log_failure(label, code);
        self.fail(label, code);
    }

    /// Notes in the log whose connection has failed, and how.
    fn log_failure(&mut self, label: FlowLabel, code: u32) {
        match self.cx.flows.get(label).map(|flow| flow.stage) {
            Some(Stage::Joined(Joint { peer, member: None })) => {
                self.cx.flows.ends(peer, End::of_server(code));
            }
            _ => self.cx.flows.ends(label, End::of_client(code)),
        }
    }

    /// Ends a flow and reports the reason to its process.
    pub(super) fn fail(&mut self, label: FlowLabel, code: u32) {
        self.notify_failure(label, code);
        self.remove_flow(label);
    }

    /// Reports the failure of a flow to its process.
    pub(super) fn notify_failure(&mut self, label: FlowLabel, code: u32) {
        let notice = self.cx.flows.get(label).and_then(|flow| match flow.stage {
            Stage::Connecting { request, .. } => {
                Some((flow.lane, MessageHeader::new(MessageKind::Refused, request, code, 0)))
            }
            Stage::Offered(_) | Stage::Open(_) => {
                Some((flow.lane, MessageHeader::of_flow(MessageKind::Reset, label, code, 0)))
            }
            Stage::Pending
            | Stage::Local
            | Stage::Left(_)
            | Stage::Calling(_)
            | Stage::Called(_)
            | Stage::Joined(_)
            | Stage::Behind(_)
            | Stage::Checking(_)
            | Stage::Finishing => None,
        });
        if let Some((lane, header)) = notice {
            self.cx.send(lane, header, &[]);
        }
    }
}

pub(super) fn new_flow(
    now: Instant,
    (label, tuple): (FlowLabel, FourTuple),
    service: u32,
    stage: Stage,
    window: u32,
) -> Flow {
    Flow {
        label,
        tuple,
        service,
        stage,
        lane: Lane(0),
        since: now,
        began: now,
        arrived: 0,
        waiting: false,
        to_app_credit: 0,
        from_app_window: window,
        from_app_outstanding: 0,
        client_finished: false,
        shutdown_sent: false,
        app_finished: false,
        broken: false,
        charge: Charge::NONE,
        withdrawals: 0,
        calls: 0,
        between: false,
        secured: false,
        queued: false,
        bytes_to_app: 0,
        bytes_from_app: 0,
        counted: Counted::NOWHERE,
        end: None,
    }
}
