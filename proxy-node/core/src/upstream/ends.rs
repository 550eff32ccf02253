//! The ends of connections as a local service sees them while one of its connections is served.

use std::sync::Arc;

use csp_tcp::{Buffer, Slices as ByteSlices, Stack};
use csp_tls::ClientIdentity;
use csp_types::{FlowLabel, Instant};

use super::End;
use crate::ProxyOutput;
use crate::context::Context;
use crate::flow::{Flow, Stage};
use crate::hairpin::LoopEnd;
use crate::output::Blocked;
use crate::pump::Pump;
use crate::pump::budget::SendBudget;
use crate::pump::parked::Parked;
use crate::recorder::Recorder;
use crate::service::local::Step;
use crate::service::upstream::{Ended, Ends, UpstreamEnd};
use crate::service::{ApplicationEnd, ClientEnd, DATA_MAX, PARTS_MAX, TcpEnd, TlsEnd};

/// The ends of all connections of the local services of a worker.
pub(crate) struct ServiceEnds<'a, 'b, O> {
    pub(crate) cx: &'a mut Context<'b, O>,
    pub(crate) pump: &'a mut Pump,
    /// The connection that is served.
    pub(crate) served: FlowLabel,
    /// Whether it was at the front of its lane's queue, so that other flows need not be served first.
    pub(crate) front: bool,
}

impl<O: ProxyOutput> ServiceEnds<'_, '_, O> {
    /// Returns the end of an upstream connection to a process that the service uses.
    pub(super) fn channel_end(&mut self, label: FlowLabel) -> Option<ChannelEnd<'_, O>> {
        let Context { now, flows, tcp, upstreams, recorder, out, .. } = &mut *self.cx;
        let end = upstreams.get_mut(label).filter(|end| end.is_served())?;
        let flow = flows.get_mut(label)?;
        let front = self.front && label == self.served;
        let (parked, budget) = self.pump.lanes_and_budget();
        Some(ChannelEnd { now: *now, label, end, flow, tcp, recorder, out, parked, budget, front })
    }

    /// Prepares for changes at a client's connection other than the served one. Their consequences take
    /// effect in this turn.
    fn touch(&mut self, label: FlowLabel) {
        if label == self.served {
            return;
        }
        if let Some(peer) = self.cx.hairpin.peer(label) {
            self.cx.hairpin.settle_later(label);
            self.pump.enqueue(self.cx.flows, peer);
            return;
        }
        let (now, tcp, tls) = (self.cx.now, &mut *self.cx.tcp, &mut *self.cx.tls);
        if let Some(flow) = self.cx.flows.get_mut(label) {
            let finished = flow.client_finished;
            match flow.secured {
                false => self.pump.widen(&mut TcpEnd { now, label, finished, tcp }, flow),
                true => self.pump.widen(&mut TlsEnd { now, label, tcp, tls }, flow),
            }
        }
    }

    /// Prepares for changes at an upstream connection other than the served one. If its process has finished
    /// and all bytes are read, it ends.
    fn touch_upstream(&mut self, label: FlowLabel) {
        if label != self.served && self.cx.is_finishing(label) {
            self.pump.enqueue(self.cx.flows, label);
        }
    }

    fn pass_to_upstream(&mut self, from: FlowLabel, to: FlowLabel, max: usize) -> usize {
        let mut moved = 0;
        while moved < max {
            let Context { now, flows, tcp, tls, hairpin, upstreams, recorder, out } = &mut *self.cx;
            let secured = flows.get(from).is_some_and(|flow| flow.secured);
            let (Some(end), Some(flow)) = (upstreams.get_mut(to), flows.get_mut(to)) else { break };
            let front = self.front && to == self.served;
            let (parked, _) = self.pump.lanes_and_budget();
            let mut lane: LaneEnd<'_, O> =
                LaneEnd { now: *now, label: to, parked: &mut end.parked, flow, recorder, out };
            let want = lane.room().min(DATA_MAX).min(max - moved);
            let mut client = match hairpin.is_of(from) {
                false if secured => LocalClient::Tls(TlsEnd { now: *now, label: from, tcp, tls }),
                false => LocalClient::Tcp(TcpEnd { now: *now, label: from, finished: false, tcp }),
                true => LocalClient::Loop(LoopEnd { label: from, hairpin }),
            };
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let (mut count, mut len) = (0, 0);
            for (part, slice) in parts.iter_mut().zip(client.peek(want)) {
                *part = slice;
                (count, len) = (count + 1, len + slice.len());
            }
            if len == 0 || !lane.send(&parts[..count], len, parked, front) {
                break;
            }
            client.consume(len);
            moved += len;
            if secured {
                self.pump.enqueue(self.cx.flows, from); // its session may have ended
            }
        }
        moved
    }

    fn pass_to_client(&mut self, from: FlowLabel, to: FlowLabel, max: usize) -> usize {
        let cx = &mut *self.cx;
        let Some(end) = cx.upstreams.get_mut(from) else { return 0 };
        let mut moved = 0;
        if cx.tls.has(to) {
            let room = TlsEnd { now: cx.now, label: to, tcp: cx.tcp, tls: cx.tls }.room();
            let Some(secured) = cx.tls.get_mut(to) else { return 0 };
            for slice in cx.tcp.held(&mut end.held, max.min(room)) {
                secured.session.write(slice);
                moved += slice.len();
            }
            cx.tls.flush_later(to);
        } else if cx.hairpin.is_of(to) {
            let mut client = LoopEnd { label: to, hairpin: cx.hairpin };
            for slice in cx.tcp.held(&mut end.held, max.min(client.room())) {
                moved += client.write(slice, None);
            }
        } else {
            return cx.tcp.write_held(cx.now, to, &mut end.held, max);
        }
        cx.tcp.discard_held(&mut end.held, moved);
        moved
    }
}

impl<O: ProxyOutput> Ends for ServiceEnds<'_, '_, O> {
    fn client(&mut self, label: FlowLabel) -> Option<impl ClientEnd> {
        let flow = self.cx.flows.get(label).filter(|flow| flow.stage == Stage::Local)?;
        let (finished, secured) = (flow.client_finished, flow.secured);
        self.touch(label);
        let Context { now, tcp, tls, hairpin, .. } = &mut *self.cx;
        Some(match hairpin.is_of(label) {
            false if secured => LocalClient::Tls(TlsEnd { now: *now, label, tcp, tls }),
            false => LocalClient::Tcp(TcpEnd { now: *now, label, finished, tcp }),
            true => LocalClient::Loop(LoopEnd { label, hairpin }),
        })
    }

    fn upstream(&mut self, label: FlowLabel) -> Option<impl UpstreamEnd> {
        self.touch_upstream(label);
        self.upstream_end(label)
    }

    fn splice(&mut self, from: FlowLabel, to: FlowLabel, max: usize) -> usize {
        let (client, upstream) = if self.cx.upstreams.is_of(from) { (to, from) } else { (from, to) };
        let is_local = self.cx.flows.get(client).is_some_and(|flow| flow.stage == Stage::Local);
        let is_served = self.cx.upstreams.is_served(upstream);
        if !is_local || !is_served {
            return 0;
        }
        self.touch(client);
        self.touch_upstream(upstream);
        if let Some(server) = self.cx.server_of(upstream) {
            return self.pass_plain((from, to), (upstream, server), max);
        }
        if upstream == to {
            return self.pass_to_upstream(from, to, max);
        }
        let moved = self.pass_to_client(from, to, max);
        if let Some(mut end) = self.channel_end(from) {
            end.return_room();
        }
        moved
    }

    fn is_wanted(&self, upstream: FlowLabel) -> bool {
        self.cx.upstreams.is_wanted(upstream)
    }

    fn end(&mut self, label: FlowLabel, how: Step) {
        let is_local = self.cx.flows.get(label).is_some_and(|flow| flow.stage == Stage::Local);
        if is_local || self.cx.upstreams.is_served(label) {
            self.pump.end_later(label, how);
        }
    }

    fn relate(&mut self, client: FlowLabel, upstream: FlowLabel) {
        self.cx.relate(client, upstream);
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.cx.tcp.give_back(buffer);
    }
}

/// The sending half of an upstream connection.
struct LaneEnd<'a, O> {
    now: Instant,
    label: FlowLabel,
    parked: &'a mut bool,
    flow: &'a mut Flow,
    recorder: &'a mut Recorder,
    out: &'a mut O,
}

impl<O: ProxyOutput> LaneEnd<'_, O> {
    fn room(&self) -> usize {
        match self.flow.stage {
            Stage::Open(_) if !self.flow.shutdown_sent => self.flow.to_app_credit as usize,
            _ => 0,
        }
    }

    /// Sends one message. If the lane has no descriptor, or other flows wait for it, the connection waits for
    /// the lane.
    fn send(&mut self, parts: &[&[u8]], len: usize, lanes: &mut Parked, front: bool) -> bool {
        let lane = self.flow.lane;
        let LaneEnd { now, flow, recorder, out, .. } = self;
        let sent = match *self.parked || (lanes.waits(lane) && !front) {
            true => Err(Blocked::NoCredit),
            false => {
                let mut application: ApplicationEnd<'_, O> =
                    ApplicationEnd { now: *now, flow, recorder, out };
                application.send(parts, len)
            }
        };
        // A lane that is down needs no waiting: its loss ends the flow.
        if sent == Err(Blocked::NoCredit) && !std::mem::replace(self.parked, true) {
            lanes.park(lane, self.label);
        }
        sent.is_ok()
    }
}

/// The service's end of an upstream connection to a process.
pub(crate) struct ChannelEnd<'a, O> {
    now: Instant,
    label: FlowLabel,
    end: &'a mut End,
    flow: &'a mut Flow,
    tcp: &'a mut Stack,
    recorder: &'a mut Recorder,
    out: &'a mut O,
    parked: &'a mut Parked,
    budget: &'a mut SendBudget,
    front: bool,
}

impl<O: ProxyOutput> ChannelEnd<'_, O> {
    /// Advertises the room of bytes that were read, in steps of a quarter of the window.
    pub(super) fn return_room(&mut self) {
        let held = self.end.held.len() as u32;
        let mut application = self.application();
        let (window, in_use) = application.window();
        let free = in_use.saturating_sub(held);
        if free > 0 && free >= window / 4 && application.is_open() {
            application.return_room(free);
        }
    }

    fn application(&mut self) -> ApplicationEnd<'_, O> {
        ApplicationEnd { now: self.now, flow: self.flow, recorder: self.recorder, out: self.out }
    }

    fn lane(&mut self) -> (LaneEnd<'_, O>, &mut Parked) {
        let ChannelEnd { now, label, end, flow, recorder, out, parked, .. } = self;
        let lane: LaneEnd<'_, O> =
            LaneEnd { now: *now, label: *label, parked: &mut end.parked, flow, recorder, out };
        (lane, parked)
    }
}

/// What [`UpstreamEnd`] has, for a process.
impl<O: ProxyOutput> ChannelEnd<'_, O> {
    pub(super) fn readable(&self) -> usize {
        self.end.held.len()
    }

    pub(super) fn slices(&mut self, max: usize) -> ByteSlices<'_> {
        self.tcp.held(&mut self.end.held, max)
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.tcp.discard_held(&mut self.end.held, len);
        self.return_room();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.flow.app_finished || self.end.ended.is_some()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.end.ended
    }

    pub(super) fn tells_reads(&self) -> bool {
        !self.end.moved
    }

    pub(super) fn bytes_read(&self) -> Option<u64> {
        self.end.bytes_read
    }

    pub(super) fn room(&self) -> usize {
        match self.flow.stage {
            Stage::Open(_) if !self.flow.shutdown_sent && !self.end.parked => {
                self.flow.to_app_credit as usize
            }
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, parts: &[&[u8]]) -> usize {
        let front = self.front;
        let (mut lane, parked) = self.lane();
        let (mut rest, mut part): (_, &[u8]) = (parts.iter().copied(), &[]);
        let mut written = 0;
        loop {
            let want = DATA_MAX.min(lane.room());
            let mut message: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let (mut count, mut len) = (0, 0);
            while count < PARTS_MAX && len < want {
                if part.is_empty() {
                    let Some(next) = rest.next() else { break };
                    part = next;
                    continue;
                }
                let (piece, later) = part.split_at(part.len().min(want - len));
                (message[count], part) = (piece, later);
                (count, len) = (count + 1, len + piece.len());
            }
            if len == 0 || !lane.send(&message[..count], len, parked, front) {
                return written;
            }
            written += len;
        }
    }

    pub(super) fn window(&self) -> u32 {
        self.flow.from_app_window
    }

    pub(super) fn widen(&mut self, window: u32) -> u32 {
        let before = self.flow.from_app_window;
        if self.application().is_open() {
            let wider = self.budget.widen(before, window);
            if wider > before {
                self.application().widen(wider);
            }
        }
        self.flow.from_app_window
    }
}

/// The client's end of a connection that ends at a local service.
enum LocalClient<'a> {
    Tcp(TcpEnd<'a>),
    Tls(TlsEnd<'a>),
    Loop(LoopEnd<'a>),
}

/// The slices of any of them.
enum Slices<A, B, C> {
    Tcp(A),
    Tls(B),
    Loop(C),
}

impl<'a, A, B, C> Iterator for Slices<A, B, C>
where
    A: Iterator<Item = &'a [u8]>,
    B: Iterator<Item = &'a [u8]>,
    C: Iterator<Item = &'a [u8]>,
{
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Slices::Tcp(slices) => slices.next(),
            Slices::Tls(slices) => slices.next(),
            Slices::Loop(slices) => slices.next(),
        }
    }
}

/// Calls a method of any end.
macro_rules! of_any {
    ($end:ident, $client:ident => $call:expr) => {
        match $end {
            LocalClient::Tcp($client) => $call,
            LocalClient::Tls($client) => $call,
            LocalClient::Loop($client) => $call,
        }
    };
}

impl ClientEnd for LocalClient<'_> {
    #[inline]
    fn readable(&self) -> usize {
        of_any!(self, client => client.readable())
    }

    #[inline]
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        match self {
            LocalClient::Tcp(client) => Slices::Tcp(client.peek(max)),
            LocalClient::Tls(client) => Slices::Tls(client.peek(max)),
            LocalClient::Loop(client) => Slices::Loop(client.peek(max)),
        }
    }

    #[inline]
    fn consume(&mut self, len: usize) {
        of_any!(self, client => client.consume(len));
    }

    #[inline]
    fn is_finished(&self) -> bool {
        of_any!(self, client => client.is_finished())
    }

    fn protocol(&self) -> Option<&[u8]> {
        of_any!(self, client => client.protocol())
    }

    fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        of_any!(self, client => client.identity())
    }

    #[inline]
    fn write(&mut self, bytes: &[u8], buffer: Option<&Buffer>) -> usize {
        of_any!(self, client => client.write(bytes, buffer))
    }

    fn lend(&mut self) -> Option<Buffer> {
        of_any!(self, client => client.lend())
    }

    fn give_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        of_any!(self, client => client.give_back(buffer))
    }

    #[inline]
    fn room(&self) -> usize {
        of_any!(self, client => client.room())
    }

    #[inline]
    fn unacknowledged(&self) -> u32 {
        of_any!(self, client => client.unacknowledged())
    }

    fn useful_window(&self) -> u32 {
        of_any!(self, client => client.useful_window())
    }

    fn set_window(&mut self, window: u32) {
        of_any!(self, client => client.set_window(window));
    }

    #[inline]
    fn is_over(&self) -> bool {
        of_any!(self, client => client.is_over())
    }

    #[inline]
    fn unsent(&self) -> usize {
        of_any!(self, client => client.unsent())
    }

    fn call_again(&mut self) {
        of_any!(self, client => client.call_again());
    }

    #[inline]
    fn is_local(&self) -> bool {
        of_any!(self, client => client.is_local())
    }
}
