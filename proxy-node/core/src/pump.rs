//! The pump: finds the flows that may have something to move, calls their services, and grants their windows.
//!
//! It owns the list of flows to serve, the queues of flows that wait for their lane ([`parked`]), the memory
//! for windows ([`budget`]) and the list of clients that acknowledge nothing ([`stalled`]).

pub(crate) mod budget;
pub(crate) mod parked;
mod stalled;

use std::collections::VecDeque;

use csp_quality::OutputLink;
use csp_tcp::Stack;
use csp_types::limits::RESET_STALL;
use csp_types::{FlowLabel, Instant};

use self::budget::SendBudget;
use self::parked::Parked;
use self::stalled::Stalled;
use super::ProxyOutput;
use super::context::{Context, Ends};
use super::flow::{Flow, FlowTable, Stage};
use super::service::between::Passage;
use super::service::local::{LocalServices, Step};
use super::service::{ApplicationEnd, ClientEnd, Progress, Relay, Service};
use super::upstream::ServiceEnds;
use super::waits::{Ahead, Waits};

/// The pump of one worker.
#[derive(Debug)]
pub(crate) struct Pump {
    /// Flows that may have bytes, an end of stream or credits to pass on.
    to_pump: VecDeque<FlowLabel>,
    /// Flows that wait for their lane.
    parked: Parked,
    budget: SendBudget,
    stalled: Stalled,
    /// Failures that are not reported yet, since the process has not received all bytes that precede them
    /// although it writes.
    failures: Waits,
    /// Flows that their service has finished with, and how they end, in the order of its requests.
    done: VecDeque<(FlowLabel, Step)>,
    /// Whether the last turn left work.
    unfinished: bool,
}

impl Pump {
    /// Creates a pump for this number of flows, with this memory for windows.
    pub(crate) fn new(connections: usize, budget: SendBudget) -> Self {
        Pump {
            to_pump: VecDeque::with_capacity(connections),
            parked: Parked::default(),
            budget,
            stalled: Stalled::default(),
            failures: Waits::new(connections),
            done: VecDeque::new(),
            unfinished: false,
        }
    }

    /// Returns a window for a new flow; `None` if all memory is granted.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        self.budget.reserve()
    }

    /// Releases a window.
    pub(crate) fn release(&mut self, window: u32) {
        self.budget.release(window);
    }

    /// Reduces the window of a flow whose application sends no more to the `waiting` bytes in its send queue.
    pub(crate) fn application_closed(&mut self, flow: &mut Flow, waiting: u32) {
        let keep = waiting.min(flow.from_app_window);
        self.budget.shrink(flow.from_app_window, keep);
        flow.from_app_window = keep;
    }

    /// Returns the bytes of the budget that are granted.
    pub(crate) fn reserved(&self) -> u64 {
        self.budget.reserved()
    }

    /// Returns the memory that windows are granted from.
    pub(crate) fn budget(&self) -> &SendBudget {
        &self.budget
    }

    /// Returns the number of flows that wait for descriptors of their process.
    pub(crate) fn parked_count(&self) -> usize {
        self.parked.len()
    }

    /// After the loss of a lane: removes the flows that are bound to no process.
    pub(crate) fn remove_stale(&mut self, flows: &FlowTable) {
        self.parked.remove_stale(|label| flows.get(label).is_some_and(|f| f.channel().is_some()));
    }

    /// Adds a flow to the list of those to pump, unless it is in it.
    pub(crate) fn enqueue(&mut self, flows: &mut FlowTable, label: FlowLabel) {
        if let Some(flow) = flows.get_mut(label).filter(|f| !f.queued) {
            flow.queued = true;
            self.to_pump.push_back(label);
        }
    }

    /// Serves flows whose lane has room again, then every flow in the list once. Flows that lack room are
    /// parked until their lane has some. Returns whether anything was moved.
    pub(crate) fn pump(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
    ) -> bool {
        let mut moved = false;
        for _ in 0..self.parked.len() {
            let Some(label) = self.parked.next_ready(|lane| cx.out.lane_ready(lane)) else { break };
            moved |= match cx.upstreams.unpark(label) {
                true => self.pump_upstream(cx, local, link, label, true),
                false => self.pump_flow(cx, local, link, label, true),
            };
        }
        for _ in 0..self.to_pump.len() {
            let Some(label) = self.to_pump.pop_front() else { break };
            moved |= self.pump_flow(cx, local, link, label, false);
        }
        // A service may have written to a connection that then waits behind others, which had nothing to
        // send.
        moved || self.parked.any_ready(|lane| cx.out.lane_ready(lane))
    }

    /// Serves one flow. It was at the `front` of its lane's queue, or was just added.
    fn pump_flow(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
        label: FlowLabel,
        front: bool,
    ) -> bool {
        let Some(flow) = cx.flows.get_mut(label) else { return false };
        flow.queued = false;
        if flow.secured {
            return self.pump_session(cx, local, link, label, front);
        }
        self.pump_bytes(cx, local, link, label, front)
    }

    /// Serves a flow whose client's connection is one of TLS.
    fn pump_session(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
        label: FlowLabel,
        front: bool,
    ) -> bool {
        cx.tls.flush_later(label); // an acknowledgement may have made room
        cx.advance_session(label);
        let moved = self.pump_bytes(cx, local, link, label, front);
        if cx.advance_session(label) {
            self.done.push_back((label, Step::Idle)); // it has failed
        }
        moved
    }

    /// Serves one flow, as [`pump_flow`](Self::pump_flow) found it.
    #[inline]
    fn pump_bytes(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
        label: FlowLabel,
        front: bool,
    ) -> bool {
        let Some(flow) = cx.flows.get(label) else { return false };
        if flow.stage == Stage::Local {
            return self.pump_local(cx, local, link, label);
        }
        let Flow { stage, lane, between, bytes_from_app, .. } = *flow;
        if cx.flows.is_inner(label) && cx.upstreams.is_of(label) {
            return self.pump_upstream(cx, local, link, label, false);
        }
        match stage {
            Stage::Open(_) => {}
            Stage::Joined(joint) => return self.pump_joined(cx, label, joint.peer),
            Stage::Behind(upstream) => return self.pump_upstream(cx, local, link, upstream, false),
            Stage::Checking(_) => {
                self.done.push_back((label, Step::Idle)); // its answer is read by then
                return false;
            }
            _ => return false,
        }
        let waits = !front && self.parked.waits(lane);
        let served = match between {
            false => self.serve_ends(cx, label, &mut Relay, waits),
            true => {
                let mut passage = Passage::new(local, label, bytes_from_app);
                let served = self.serve_ends(cx, label, &mut passage, waits);
                if passage.malformed {
                    self.done.push_back((label, Step::Reset));
                }
                served
            }
        };
        let Some(Progress { moved, blocked }) = served else { return false };
        if blocked && let Some(flow) = cx.flows.get_mut(label) {
            flow.queued = true; // it is in one of the lists, and will be served with all that it has by then
            self.parked.park(lane, label);
        }
        moved
    }

    /// Calls the service of a flow for the type of its client's end.
    #[inline]
    fn serve_ends(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        label: FlowLabel,
        service: &mut impl Service,
        waits: bool,
    ) -> Option<Progress> {
        Some(match cx.ends(label)? {
            Ends::Tcp(client, application) => self.serve(service, client, application, waits),
            Ends::Tls(client, application) => self.serve(service, client, application, waits),
            Ends::Loop(client, application) => {
                let progress = self.serve(service, client, application, waits);
                self.looped(cx, label, progress.moved);
                progress
            }
            Ends::Upstream => return None,
        })
    }

    /// Serves a flow of a local service.
    fn pump_local(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
        label: FlowLabel,
    ) -> bool {
        let now = cx.now;
        let mut ends = ServiceEnds { cx, pump: self, served: label, front: false };
        let step = local.serve(now, label, &mut ends, link);
        match cx.ends(label) {
            Some(Ends::Tcp(mut client, application)) => self.widen(&mut client, application.flow),
            Some(Ends::Tls(mut client, application)) => self.widen(&mut client, application.flow),
            Some(Ends::Loop(..)) => self.looped(cx, label, matches!(step, Step::Moved | Step::Finish)),
            Some(Ends::Upstream) | None => {}
        }
        self.end_later(label, step);
        matches!(step, Step::Moved | Step::Finish)
    }

    /// Serves an upstream connection of a local service. It was at the `front` of its lane's queue, or was
    /// just added.
    fn pump_upstream(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        local: &mut impl LocalServices,
        link: &mut OutputLink,
        label: FlowLabel,
        front: bool,
    ) -> bool {
        if !cx.upstreams.is_served(label) {
            return false;
        }
        // The bytes to be read may be in the same region as lent memory.
        while let Some(lent) = local.take_lent() {
            cx.tcp.give_back(lent);
        }
        let now = cx.now;
        let mut ends = ServiceEnds { cx, pump: self, served: label, front };
        let step = local.serve_upstream(now, label, &mut ends, link);
        self.end_later(label, step);
        if cx.is_finishing(label) {
            self.done.push_back((label, Step::Idle)); // it may be over
        }
        matches!(step, Step::Moved | Step::Finish)
    }

    /// Ends a connection of a local service as the service requested, after it was served.
    pub(crate) fn end_later(&mut self, label: FlowLabel, how: Step) {
        if matches!(how, Step::Finish | Step::Close | Step::Reset) {
            self.done.push_back((label, how));
        }
    }

    /// Has what became of a flow noticed after this pass.
    pub(crate) fn settle_later(&mut self, label: FlowLabel) {
        self.done.push_back((label, Step::Idle));
    }

    /// Has the end of a server's stream, which was passed on, noticed after this pass.
    pub(crate) fn end_later_of_server(&mut self, label: FlowLabel) {
        self.done.push_back((label, Step::Idle));
    }

    /// Returns the queues of lanes and the memory for windows.
    pub(crate) fn lanes_and_budget(&mut self) -> (&mut Parked, &mut SendBudget) {
        (&mut self.parked, &mut self.budget)
    }

    /// Reduces a window that was reserved to at most `wanted` bytes.
    pub(crate) fn limit(&mut self, window: u32, wanted: u32) -> u32 {
        let kept = window.min(wanted);
        self.budget.shrink(window, kept);
        kept
    }

    /// Widens the window of a local service's flow if most of it is used.
    pub(crate) fn widen(&mut self, client: &mut impl ClientEnd, flow: &mut Flow) {
        let window = flow.from_app_window;
        if client.unacknowledged() < window - window / 4 || client.is_over() {
            return;
        }
        let wider = self.budget.widen(window, client.useful_window().min(window.saturating_mul(2)));
        if wider > window {
            client.set_window(wider);
            flow.from_app_window = wider;
        }
    }

    /// Processes data from a process whose client's connection has failed with unread bytes. The process
    /// receives those bytes first, for a bounded time. Returns `false` if the failure must be reported at
    /// once.
    pub(crate) fn fail_later<O>(&mut self, cx: &mut Context<'_, O>, label: FlowLabel) -> bool {
        let Context { now, flows, tcp, .. } = cx;
        let Some(flow) = flows.get_mut(label).filter(|flow| !flow.broken) else { return true };
        flow.broken = true;
        let waits = |label| flows.get(label).is_some_and(|flow| flow.broken);
        self.failures.add(*now, (label, tcp.readable(label)), waits)
    }

    /// Returns when [`next_failed`](Self::next_failed) is to be called.
    pub(crate) fn failures_deadline(&self) -> Option<Instant> {
        self.failures.deadline()
    }

    /// Removes and returns a flow whose failure has waited long enough. While a flow has no owner its failure
    /// waits, and the next owner has as much time as the former one.
    pub(crate) fn next_failed(&mut self, now: Instant, flows: &FlowTable, tcp: &Stack) -> Option<FlowLabel> {
        self.failures.next_overdue(now, |label| match flows.get(label).filter(|flow| flow.broken) {
            None => Ahead::Nothing,
            Some(Flow { stage: Stage::Left(_), .. }) => Ahead::NoReader,
            Some(flow) if now < flow.since + RESET_STALL => Ahead::NoReader,
            Some(_) => Ahead::Bytes(tcp.readable(label)),
        })
    }

    /// Records whether more can be moved.
    pub(crate) fn set_unfinished(&mut self, unfinished: bool) {
        self.unfinished = unfinished;
    }

    /// Returns whether the last turn left work.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Removes and returns the first flow that its local service has finished with.
    pub(crate) fn next_done(&mut self) -> Option<(FlowLabel, Step)> {
        self.done.pop_front()
    }

    /// Called after a flow of a hairpin was served: if bytes were moved, the other flow has room, and both
    /// may be complete.
    fn looped<O>(&mut self, cx: &mut Context<'_, O>, label: FlowLabel, moved: bool) {
        if !moved {
            return;
        }
        cx.hairpin.settle_later(label);
        if let Some(peer) = cx.hairpin.peer(label) {
            self.enqueue(cx.flows, peer);
        }
    }

    /// Calls the service of one flow. `waits`: other flows are in front of it at its lane.
    fn serve(
        &mut self,
        service: &mut impl Service,
        mut client: impl ClientEnd,
        mut application: ApplicationEnd<'_, impl ProxyOutput>,
        waits: bool,
    ) -> Progress {
        let progress = match waits {
            true => Progress { moved: false, blocked: true },
            false => service.pass_to_application(&mut client, &mut application),
        };
        if service.return_room(&mut client, &mut application) {
            let (window, _) = application.window();
            let wider = self.budget.widen(window, client.useful_window().min(window.saturating_mul(2)));
            if wider > window {
                client.set_window(wider);
                application.widen(wider);
            }
        }
        progress
    }
}
