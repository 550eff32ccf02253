//! The state that the parts of the core share.
//!
//! The output is a generic parameter of these two types and of no long-lived type. A worker has one kind of
//! output, so that every call to it is direct and can be inlined. A queue of actions would copy each payload,
//! and a trait object would cost a dynamic call for each segment ([decision
//! 0022](../../../docs/decisions/0022-parts-and-services.md)).

use csp_quality::OutputLink;
use csp_tcp::Stack;
use csp_types::{FlowLabel, Instant, TraceEvent, TraceKind};
use csp_wire::channel::MessageHeader;

use super::dispatch::Dispatcher;
use super::flow::FlowTable;
use super::hairpin::{Hairpin, LoopEnd};
use super::idle::IdleClients;
use super::preface::Prefaces;
use super::pump::Pump;
use super::recorder::Recorder;
use super::servers::Calls;
use super::service::{ApplicationEnd, TcpEnd, TlsEnd};
use super::tls::Sessions;
use super::tunnels::Tunnels;
use super::upstream::Upstreams;
use super::{Egress, Lane, ProxyOutput};

/// The time, the flows with both of their ends, and the recorder, for the duration of one input. Each part
/// takes it as an argument.
pub(crate) struct Context<'a, O> {
    pub(crate) now: Instant,
    pub(crate) flows: &'a mut FlowTable,
    pub(crate) tcp: &'a mut Stack,
    pub(crate) tls: &'a mut Sessions,
    pub(crate) hairpin: &'a mut Hairpin,
    pub(crate) upstreams: &'a mut Upstreams,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) out: &'a mut O,
}

/// Both ends of a flow, by the type of the client's end.
pub(crate) enum Ends<'a, O> {
    Tcp(TcpEnd<'a>, ApplicationEnd<'a, O>),
    Tls(TlsEnd<'a>, ApplicationEnd<'a, O>),
    Loop(LoopEnd<'a>, ApplicationEnd<'a, O>),
    /// The client's end is a local service, which reads and writes by calls of its own.
    Upstream,
}

impl<O: ProxyOutput> Context<'_, O> {
    /// Sends a message to a process; `false` if its lane is down. The loss of a lane is reported separately
    /// and ends the flows on it, so most callers can ignore the result.
    pub(crate) fn send(&mut self, lane: Lane, header: MessageHeader, payload: &[u8]) -> bool {
        let parts = [payload];
        let parts: &[&[u8]] = if payload.is_empty() { &[] } else { &parts };
        self.out.channel(self.now, lane, header, parts).is_ok()
    }

    /// Returns both ends of a flow.
    #[inline]
    pub(crate) fn ends(&mut self, label: FlowLabel) -> Option<Ends<'_, O>> {
        let Context { now, flows, tcp, tls, hairpin, recorder, out, .. } = self;
        let is_inner = flows.is_inner(label);
        let (now, flow) = (*now, flows.get_mut(label)?);
        let (finished, secured) = (flow.client_finished, flow.secured);
        let application: ApplicationEnd<'_, O> = ApplicationEnd { now, flow, recorder, out };
        Some(match is_inner {
            false if secured => Ends::Tls(TlsEnd { now, label, tcp, tls }, application),
            false => Ends::Tcp(TcpEnd { now, label, finished, tcp }, application),
            true if hairpin.is_of(label) => Ends::Loop(LoopEnd { label, hairpin }, application),
            true => Ends::Upstream,
        })
    }

    /// Returns whether a plain server may be chosen for a flow: hairpins reach processes only.
    pub(crate) fn may_call(&self, label: FlowLabel) -> bool {
        !self.flows.is_inner(label) || self.upstreams.is_of(label)
    }

    /// Returns whether the server of an upstream connection has finished or ended.
    pub(crate) fn is_finishing(&self, label: FlowLabel) -> bool {
        let finished = self.flows.get(label).is_some_and(|flow| flow.app_finished);
        finished || self.upstreams.get(label).is_some_and(|end| end.ended.is_some())
    }

    /// Records in the traces of a client's connection and an upstream connection that the latter serves
    /// requests of the former.
    pub(crate) fn relate(&mut self, client: FlowLabel, upstream: FlowLabel) {
        if client.is_none() {
            return;
        }
        for (label, other) in [(client, upstream), (upstream, client)] {
            let (at, kind, aux) = (self.now, TraceKind::Related, other.to_wire());
            self.recorder.event(TraceEvent { at, label, kind, aux, ..TraceEvent::default() });
        }
    }

    /// Records an event of a flow.
    pub(crate) fn record(&mut self, label: FlowLabel, kind: TraceKind, len: u32) {
        self.recorder.record(self.now, label, kind, len);
    }
}

/// The parts of the core and their context, for the duration of one input. Its methods pass an input from one
/// part to the next; they decide only what concerns more than one part.
pub(crate) struct Turn<'a, O, S> {
    pub(crate) cx: Context<'a, O>,
    pub(crate) dispatcher: &'a mut Dispatcher,
    pub(crate) pump: &'a mut Pump,
    pub(crate) egress: &'a mut Egress,
    pub(crate) idle: &'a mut IdleClients,
    pub(crate) calls: &'a mut Calls,
    pub(crate) prefaces: &'a mut Prefaces,
    pub(crate) tunnels: &'a mut Tunnels,
    pub(crate) local: &'a mut S,
    pub(crate) link: &'a mut OutputLink,
}
