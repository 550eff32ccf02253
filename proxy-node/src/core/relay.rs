//! Bytes between TCB and channel, both ways, under both flow controls.

use csp_types::limits::CHANNEL_MESSAGE_LEN_MAX;
use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{CREDIT_WIDER, MESSAGE_HEADER_LEN, MessageHeader, MessageKind};

use super::flow::Stage;
use super::output::Blocked;
use super::{Lane, ProxyCore, ProxyOutput};

/// Largest DATA payload: one channel message with its headers fits a VI message.
const DATA_MAX: usize = CHANNEL_MESSAGE_LEN_MAX - csp_wire::link::HEADER_LEN - MESSAGE_HEADER_LEN - 8;

/// Most slices of one DATA message; a message of more is cut there.
const PARTS_MAX: usize = 12;

impl ProxyCore {
    /// Puts a flow into the list of those to pump, once.
    pub(super) fn enqueue(&mut self, label: FlowLabel) {
        if let Some(flow) = self.flows.get_mut(label).filter(|f| !f.queued) {
            flow.queued = true;
            self.to_pump.push_back(label);
        }
    }

    /// Serves flows that waited for a lane which has room now, then every flow in the list once. Those that lack room
    /// are parked until their lane has some. Returns whether anything moved.
    pub(super) fn pump(&mut self, now: Instant, out: &mut impl ProxyOutput) -> bool {
        let mut moved = false;
        for _ in 0..self.parked.len() {
            let Some(label) = self.parked.next_ready(|lane| out.lane_ready(lane)) else { break };
            moved |= self.pump_flow(now, label, true, out);
        }
        for _ in 0..self.to_pump.len() {
            let Some(label) = self.to_pump.pop_front() else { break };
            moved |= self.pump_flow(now, label, false, out);
        }
        moved
    }

    /// Serves one flow, which waited at the `front` of its lane or came just now.
    fn pump_flow(&mut self, now: Instant, label: FlowLabel, front: bool, out: &mut impl ProxyOutput) -> bool {
        let Some(flow) = self.flows.get_mut(label) else { return false };
        flow.queued = false;
        let (Stage::Open(_), lane) = (flow.stage, flow.lane) else { return false };
        let (moved, blocked) = match !front && self.parked.waits(lane) {
            true => (false, true),
            false => self.pump_to_app(now, label, lane, out),
        };
        self.return_credit(label, lane, out);
        if blocked && let Some(flow) = self.flows.get_mut(label) {
            flow.queued = true; // it is in one of the lists, and comes up with all that it has by then
            self.parked.park(lane, label);
        }
        moved
    }

    /// In-order bytes of the client to the application, as far as its window and the channel allow. Returns whether
    /// anything moved, and whether more could once the channel has room.
    fn pump_to_app(
        &mut self,
        now: Instant,
        label: FlowLabel,
        lane: Lane,
        out: &mut impl ProxyOutput,
    ) -> (bool, bool) {
        let (mut moved, mut stop) = (false, None);
        while let Some(flow) = self.flows.get_mut(label) {
            let want = DATA_MAX.min(flow.to_app_credit as usize);
            if want == 0 || self.tcp.readable(label) == 0 {
                break;
            }
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let (mut count, mut len) = (0, 0);
            for (part, slice) in parts.iter_mut().zip(self.tcp.peek(label, want)) {
                *part = slice;
                (count, len) = (count + 1, len + slice.len());
            }
            if len == 0 {
                break;
            }
            let header = MessageHeader::of_flow(MessageKind::Data, label, 0, len as u32);
            stop = out.channel(lane, header, &parts[..count]).err();
            let taken = if stop.is_none() { self.tcp.consume(now, label, len) } else { 0 };
            flow.to_app_credit -= taken as u32;
            flow.bytes_to_app += taken as u64;
            self.counters.app_bytes_out += taken as u64;
            if taken > 0 {
                moved = true;
                self.record(now, label, TraceKind::DataSent, taken as u32);
            }
            if stop.is_some() || taken == 0 {
                break;
            }
        }
        if stop.is_none() {
            moved |= self.pass_end_of_stream(now, label, lane, out);
        }
        // Nothing waits for a lane that is gone: its end ends the flow.
        (moved, stop == Some(Blocked::NoCredit))
    }

    fn pass_end_of_stream(
        &mut self,
        now: Instant,
        label: FlowLabel,
        lane: Lane,
        out: &mut impl ProxyOutput,
    ) -> bool {
        let drained = self.tcp.readable(label) == 0;
        let Some(flow) = self.flows.get_mut(label) else { return false };
        if !drained || !flow.client_finished || flow.shutdown_sent {
            return false;
        }
        flow.shutdown_sent = true;
        let _ = out.channel(lane, MessageHeader::of_flow(MessageKind::Shutdown, label, 0, 0), &[]);
        self.record(now, label, TraceKind::ShutdownSent, 0);
        true
    }

    /// Tells the application how much of what it sent the client has acknowledged, in steps worth a message.
    fn return_credit(&mut self, label: FlowLabel, lane: Lane, out: &mut impl ProxyOutput) {
        let (queued, cwnd) = self.tcp.info(label).map_or((0, 0), |i| (i.send_queue as u32, i.cwnd));
        let Some(flow) = self.flows.get_mut(label) else { return };
        let owed = flow.from_app_outstanding.saturating_sub(queued);
        if owed < flow.from_app_window / 4 || flow.app_finished {
            return;
        }
        flow.from_app_outstanding -= owed;
        let _ = out.channel(lane, MessageHeader::of_flow(MessageKind::Credit, label, owed, 0), &[]);
        self.widen_window(label, cwnd, lane, out);
    }

    /// The application used its window, and the client has taken it. Twice the congestion window is what the path can
    /// make use of: one in flight, and one that is there when acknowledgements ask for it.
    fn widen_window(&mut self, label: FlowLabel, cwnd: u32, lane: Lane, out: &mut impl ProxyOutput) {
        let most = self.tcp.config().send_buffer_max;
        let Some(flow) = self.flows.get_mut(label) else { return };
        let window = flow.from_app_window;
        let wanted = cwnd.saturating_mul(2).min(window.saturating_mul(2)).min(most);
        let wider = self.budget.widen(window, wanted);
        if wider > window {
            flow.from_app_window = wider;
            self.tcp.set_send_capacity(label, wider);
            let told = MessageHeader::of_flow(MessageKind::Credit, label, wider - window, 0);
            let _ = out.channel(lane, MessageHeader { flags: CREDIT_WIDER, ..told }, &[]);
        }
    }
}
