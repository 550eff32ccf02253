//! What the TCP engine tells: connections come up, finish, fail.

use csp_tcp::{Event, FailReason};
use csp_types::{FlowLabel, FourTuple, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use super::flow::{Attachment, Flow, Stage};
use super::{Lane, ProxyCore, ProxyOutput, reason};

/// `Flow::service` of active opens.
pub(super) const NO_SERVICE: u32 = u32::MAX;

impl ProxyCore {
    pub(super) fn take_tcp_events(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        while let Some((label, event)) = self.tcp.poll_event() {
            match event {
                Event::Established { passive: true, service, tuple } => {
                    self.client_connected(now, label, (service, tuple), out);
                }
                Event::Established { passive: false, .. } => self.active_open_done(now, label, out),
                Event::Readable | Event::Writable => self.enqueue(label),
                Event::PeerFinished => {
                    if let Some(flow) = self.flows.get_mut(label) {
                        flow.client_finished = true;
                    }
                    self.enqueue(label);
                }
                Event::Closed => self.tcp_closed(now, label, out),
                Event::Failed(why) => self.tcp_failed(now, label, why, out),
            }
        }
    }

    fn client_connected(
        &mut self,
        now: Instant,
        label: FlowLabel,
        (service, tuple): (u32, FourTuple),
        out: &mut impl ProxyOutput,
    ) {
        self.counters.connections_passive += 1;
        if self.services.get(service).is_none() {
            // Policy dropped the service during the handshake, and nothing of it is left.
            self.counters.drop_no_server += 1;
            self.tcp.abort(now, label);
            return;
        }
        let Some(window) = self.reserve_window(now, out) else {
            self.counters.drop_no_budget += 1;
            self.tcp.abort(now, label);
            return;
        };
        self.tcp.set_send_capacity(label, window);
        let arrived = self.counters.connections_passive;
        self.admit(now, Flow { arrived, ..new_flow(now, (label, tuple), service, Stage::Pending, window) });
        self.dispatch(now, label, out);
        self.enqueue(label);
    }

    /// Puts a flow into the table; what an older generation left in its slot is given back first.
    pub(super) fn admit(&mut self, now: Instant, flow: Flow) {
        self.services.flow_began(flow.service);
        if let Some(old) = self.flows.insert(flow) {
            self.give_back(now, &old);
        }
    }

    fn active_open_done(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        let Some(info) = self.tcp.info(label) else { return };
        let Some(flow) = self.flows.get_mut(label) else { return };
        let lane = flow.lane;
        let Stage::Connecting { channel, request } = flow.stage else { return };
        self.counters.connections_active += 1;
        let window = flow.from_app_window;
        self.flows.set_stage(now, label, Stage::Open(Attachment { channel, choice: None }));
        let payload = OpenPayload { local: info.tuple.local, remote: info.tuple.remote, window }.emit();
        let header = MessageHeader::of_flow(MessageKind::Connected, label, request, payload.len() as u32);
        let _ = out.channel(lane, header, &[&payload]); // a lost channel reports itself down
        self.record(now, label, TraceKind::OpenSent, 0);
        self.enqueue(label);
    }

    /// Both directions are done and acknowledged.
    fn tcp_closed(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        self.counters.connections_closed += 1;
        if let Some(flow) = self.flows.get(label).filter(|f| f.channel().is_some()) {
            let _ = out.channel(flow.lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
        }
        self.forget(now, label);
    }

    fn tcp_failed(&mut self, now: Instant, label: FlowLabel, why: FailReason, out: &mut impl ProxyOutput) {
        self.counters.connections_failed += 1;
        let code = match why {
            FailReason::Reset | FailReason::DataAfterClose => reason::CONNECTION_RESET,
            FailReason::Refused => reason::CONNECTION_REFUSED,
            FailReason::TimedOut => reason::TIMED_OUT,
        };
        let told = self.flows.get(label).and_then(|flow| match flow.stage {
            Stage::Connecting { request, .. } => {
                Some((flow.lane, MessageHeader::new(MessageKind::Refused, request, code, 0)))
            }
            Stage::Offered(_) | Stage::Open(_) => {
                Some((flow.lane, MessageHeader::of_flow(MessageKind::Reset, label, code, 0)))
            }
            Stage::Pending | Stage::Left(_) | Stage::Finishing => None,
        });
        if let Some((lane, header)) = told {
            let _ = out.channel(lane, header, &[]);
        }
        self.forget(now, label);
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
        withdrawals: 0,
        queued: false,
        bytes_to_app: 0,
        bytes_from_app: 0,
    }
}
