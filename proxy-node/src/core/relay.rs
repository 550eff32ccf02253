//! Bytes between TCB and channel, both ways, under both flow controls.
//!
//! The relay owns the list of flows that may have something to move, the lines of those that wait for their lane
//! ([`parked`]), the memory for windows ([`budget`]) and what is known of clients that take nothing ([`stalled`]).

pub(crate) mod budget;
mod parked;
mod stalled;

use std::collections::VecDeque;

use csp_types::limits::CHANNEL_MESSAGE_LEN_MAX;
use csp_types::{FlowLabel, TraceKind};
use csp_wire::channel::{CREDIT_WIDER, MESSAGE_HEADER_LEN, MessageHeader, MessageKind};

use self::budget::SendBudget;
use self::parked::Parked;
use self::stalled::Stalled;
use super::context::Context;
use super::flow::{Flow, FlowTable, Stage};
use super::output::Blocked;
use super::{Lane, ProxyOutput};

/// Largest DATA payload: one channel message with its headers fits a VI message.
const DATA_MAX: usize = CHANNEL_MESSAGE_LEN_MAX - csp_wire::link::HEADER_LEN - MESSAGE_HEADER_LEN - 8;

/// Most slices of one DATA message; a message of more is cut there.
const PARTS_MAX: usize = 12;

/// The relay of one worker.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Flows with bytes, an end of stream or credits to pass on.
    to_pump: VecDeque<FlowLabel>,
    /// Flows that wait for their lane.
    parked: Parked,
    budget: SendBudget,
    stalled: Stalled,
}

impl Relay {
    /// A relay for so many flows, with this memory for windows.
    pub(crate) fn new(connections: usize, budget: SendBudget) -> Self {
        Relay {
            to_pump: VecDeque::with_capacity(connections),
            parked: Parked::default(),
            budget,
            stalled: Stalled::default(),
        }
    }

    /// A window for one more flow; `None` while all memory is granted.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        self.budget.reserve()
    }

    /// Releases a window.
    pub(crate) fn release(&mut self, window: u32) {
        self.budget.release(window);
    }

    /// The application of a flow sends no more: it keeps only the window for the `waiting` bytes in its send queue.
    pub(crate) fn application_closed(&mut self, flow: &mut Flow, waiting: u32) {
        let keep = waiting.min(flow.from_app_window);
        self.budget.shrink(flow.from_app_window, keep);
        flow.from_app_window = keep;
    }

    /// Bytes of the budget that are granted.
    pub(crate) fn reserved(&self) -> u64 {
        self.budget.reserved()
    }

    /// Flows that wait for descriptors of their process.
    pub(crate) fn parked_count(&self) -> usize {
        self.parked.len()
    }

    /// A lane is gone: flows that are at no process wait for none.
    pub(crate) fn forget_stale(&mut self, flows: &FlowTable) {
        self.parked.forget_stale(|label| flows.get(label).is_some_and(|f| f.channel().is_some()));
    }

    /// Puts a flow into the list of those to pump, once.
    pub(crate) fn enqueue(&mut self, flows: &mut FlowTable, label: FlowLabel) {
        if let Some(flow) = flows.get_mut(label).filter(|f| !f.queued) {
            flow.queued = true;
            self.to_pump.push_back(label);
        }
    }

    /// Serves flows that waited for a lane which has room now, then every flow in the list once. Those that lack room
    /// are parked until their lane has some. Returns whether anything moved.
    pub(crate) fn pump(&mut self, cx: &mut Context<'_, impl ProxyOutput>) -> bool {
        let mut moved = false;
        for _ in 0..self.parked.len() {
            let Some(label) = self.parked.next_ready(|lane| cx.out.lane_ready(lane)) else { break };
            moved |= self.pump_flow(cx, label, true);
        }
        for _ in 0..self.to_pump.len() {
            let Some(label) = self.to_pump.pop_front() else { break };
            moved |= self.pump_flow(cx, label, false);
        }
        moved
    }

    /// Serves one flow, which waited at the `front` of its lane or came just now.
    fn pump_flow(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel, front: bool) -> bool {
        let Some(flow) = cx.flows.get_mut(label) else { return false };
        flow.queued = false;
        let (Stage::Open(_), lane) = (flow.stage, flow.lane) else { return false };
        let (moved, blocked) = match !front && self.parked.waits(lane) {
            true => (false, true),
            false => pump_to_app(cx, label, lane),
        };
        self.return_credit(cx, label, lane);
        if blocked && let Some(flow) = cx.flows.get_mut(label) {
            flow.queued = true; // it is in one of the lists, and comes up with all that it has by then
            self.parked.park(lane, label);
        }
        moved
    }

    /// Returns credit to the application for what the client has acknowledged, in steps worth a message.
    fn return_credit(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel, lane: Lane) {
        let (queued, cwnd) = cx.tcp.info(label).map_or((0, 0), |i| (i.send_queue as u32, i.cwnd));
        let Some(flow) = cx.flows.get_mut(label) else { return };
        let owed = flow.from_app_outstanding.saturating_sub(queued);
        if owed < flow.from_app_window / 4 || flow.app_finished {
            return;
        }
        flow.from_app_outstanding -= owed;
        cx.send(lane, MessageHeader::of_flow(MessageKind::Credit, label, owed, 0), &[]);
        self.widen_window(cx, label, cwnd, lane);
    }

    /// The application used its window, and the client has taken it. Twice the congestion window is what the path can
    /// make use of: one in flight, and one that is there when acknowledgements ask for it.
    fn widen_window(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        label: FlowLabel,
        cwnd: u32,
        lane: Lane,
    ) {
        let most = cx.tcp.config().send_buffer_max;
        let Some(flow) = cx.flows.get_mut(label) else { return };
        let window = flow.from_app_window;
        let wanted = cwnd.saturating_mul(2).min(window.saturating_mul(2)).min(most);
        let wider = self.budget.widen(window, wanted);
        if wider > window {
            flow.from_app_window = wider;
            cx.tcp.set_send_capacity(label, wider);
            let more = MessageHeader::of_flow(MessageKind::Credit, label, wider - window, 0);
            cx.send(lane, MessageHeader { flags: CREDIT_WIDER, ..more }, &[]);
        }
    }
}

/// In-order bytes of the client to the application, as far as its window and the channel allow. Returns whether anything
/// moved, and whether more could once the channel has room.
fn pump_to_app(cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel, lane: Lane) -> (bool, bool) {
    let (mut moved, mut stop) = (false, None);
    while let Some(flow) = cx.flows.get_mut(label) {
        let want = DATA_MAX.min(flow.to_app_credit as usize);
        if want == 0 || cx.tcp.readable(label) == 0 {
            break;
        }
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let (mut count, mut len) = (0, 0);
        for (part, slice) in parts.iter_mut().zip(cx.tcp.peek(label, want)) {
            *part = slice;
            (count, len) = (count + 1, len + slice.len());
        }
        if len == 0 {
            break;
        }
        let header = MessageHeader::of_flow(MessageKind::Data, label, 0, len as u32);
        stop = cx.out.channel(cx.now, lane, header, &parts[..count]).err();
        let taken = if stop.is_none() { cx.tcp.consume(cx.now, label, len) } else { 0 };
        flow.to_app_credit -= taken as u32;
        flow.bytes_to_app += taken as u64;
        cx.recorder.counters.app_bytes_out += taken as u64;
        if taken > 0 {
            moved = true;
            cx.record(label, TraceKind::DataSent, taken as u32);
        }
        if stop.is_some() || taken == 0 {
            break;
        }
    }
    if stop.is_none() {
        moved |= pass_end_of_stream(cx, label, lane);
    }
    // Nothing waits for a lane that is gone: its end ends the flow.
    (moved, stop == Some(Blocked::NoCredit))
}

fn pass_end_of_stream(cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel, lane: Lane) -> bool {
    let drained = cx.tcp.readable(label) == 0;
    let Some(flow) = cx.flows.get_mut(label) else { return false };
    if !drained || !flow.client_finished || flow.shutdown_sent {
        return false;
    }
    flow.shutdown_sent = true;
    cx.send(lane, MessageHeader::of_flow(MessageKind::Shutdown, label, 0, 0), &[]);
    cx.record(label, TraceKind::ShutdownSent, 0);
    true
}
