//! Selection and construction of the next segment of a connection (RFC 9293 §3.8): retransmissions, new data,
//! probes, acknowledgements.

pub(crate) mod metering;
mod pacing;
mod room;
mod window;

use csp_types::Instant;
use csp_types::limits::SEGMENT_LEN_MAX;
use csp_wire::tcp::{Flags, Options, Repr, Timestamps};

use crate::api::State;
use crate::ecn::{ECT_0, NOT_ECT};
use crate::recovery::TailProbe;
use crate::seq::{Seq, SeqRange};
use crate::tcb::{Announced, Context, Fin, FinalTransmit, Probe, Tcb};
use crate::timeouts::Retransmission;

/// One record to be transmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub header: Option<Repr>,
    /// Offset of the payload in the send queue, and its length.
    pub payload: (u32, u32),
    pub segment_size: u16,
    pub flow_new: bool,
    pub flow_end: bool,
    pub retransmission: bool,
    /// The ECN field for the IP header.
    pub ecn: u8,
}

impl Tcb {
    /// Returns the next record; `None` if there is none until something changes.
    pub fn next_transmit(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        let plan = match self.state {
            State::Done => self.final_plan(cx),
            State::SynSent | State::SynReceived => self.handshake_plan(cx),
            _ => self.synchronised_plan(cx),
        };
        let Some(plan) = plan else {
            self.maybe_transmit = false;
            return None;
        };
        cx.counters.segments_sent += 1;
        cx.counters.bytes_sent += u64::from(plan.payload.1);
        if plan.retransmission {
            cx.counters.segments_retransmitted += 1;
            cx.counters.bytes_retransmitted += u64::from(plan.payload.1);
            self.retransmits += 1;
        }
        Some(plan)
    }

    fn final_plan(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        let final_transmit = core::mem::replace(&mut self.final_transmit, FinalTransmit::None);
        let mut plan = match final_transmit {
            FinalTransmit::None => return None,
            FinalTransmit::Acknowledgement => self.acknowledgement(cx),
            FinalTransmit::Reset => {
                cx.counters.resets_sent += 1;
                let options = self.segment_options(cx);
                // Our best estimate of the peer's RCV.NXT: a RST takes effect only with exactly that number
                // (RFC 5961 §3.2).
                let seq = self.snd_nxt.min(self.snd_una.plus(self.snd_wnd));
                self.plan(cx, seq, 0, Flags::RST | Flags::ACK, options)
            }
            FinalTransmit::Record => Plan {
                header: None,
                payload: (0, 0),
                segment_size: 0,
                flow_new: false,
                flow_end: true,
                retransmission: false,
                ecn: NOT_ECT,
            },
        };
        plan.flow_end = true;
        Some(plan)
    }

    pub(crate) fn handshake_plan(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        if !self.syn_due {
            return (self.ack_now && self.state == State::SynReceived).then(|| self.acknowledgement(cx));
        }
        self.syn_due = false;
        let again = self.snd_nxt != self.iss;
        let passive = self.state == State::SynReceived;
        let ours = self.own_mss(cx.config);
        let timestamps = Timestamps { value: self.timestamp(cx.now), echo: self.ts_recent };
        let options = Options {
            mss: Some(ours),
            window_scale: self.scaling.then_some(self.receive_shift),
            sack_permitted: self.sack,
            timestamps: self.timestamps.then_some(timestamps),
            ..Options::default()
        };
        let ecn = self.ecn_of_syn(passive, again);
        let flags = ecn | if passive { Flags::SYN | Flags::ACK } else { Flags::SYN };
        let mut plan = self.plan(cx, self.iss, 0, flags, options);
        plan.retransmission = again;
        // Until the handshake is complete every record carries the whole IP packet, and with it the
        // addresses.
        plan.flow_new = true;
        self.snd_nxt = self.iss.plus(1);
        if again {
            cx.counters.syn_retransmitted += 1;
            self.syn_sent = Instant::FAR_FUTURE;
        } else {
            self.syn_sent = cx.now;
        }
        if !self.timers.retransmission_runs() {
            self.arm_timeout(cx);
        }
        Some(plan)
    }

    fn synchronised_plan(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        let options = self.segment_options(cx);
        let size = u32::from(self.mss_limit).saturating_sub(options.len() as u32).max(1);
        if self.recovery.frto.wants_new_data() {
            let plan = self.new_data(cx, options, size, true);
            self.recovery.frto.on_new_data(plan.is_some());
            if plan.is_some() {
                return plan;
            }
        }
        if let Some(plan) = self.retransmission(cx, options, size) {
            return Some(plan);
        }
        let room = self.send_window().saturating_sub(self.pipe());
        let allowed = room.min(self.allowance(cx));
        if let Some(plan) = self.path_probe(cx, options, allowed) {
            self.use_allowance(cx, plan.payload.1);
            return Some(plan);
        }
        if let Some(plan) = self.new_data(cx, options, size, false) {
            return Some(plan);
        }
        if let Some(probe) = self.probe.take()
            && let Some(plan) = self.probe_plan(cx, probe, options, size)
        {
            return Some(plan);
        }
        if self.ack_now {
            return Some(self.acknowledgement(cx));
        }
        if self.pipe() < self.send_window() && self.data_end() == self.snd_nxt {
            self.recovery.on_idle();
        }
        self.note_wanted(cx);
        self.keep_timer_running(cx);
        None
    }

    /// Retransmits the next lost range, as far as the congestion window and the peer's window permit (RFC
    /// 6675 §5, NextSeg rule 1).
    fn retransmission(&mut self, cx: &mut Context<'_>, options: Options, size: u32) -> Option<Plan> {
        let SeqRange { start, end } = self.recovery.next_lost(cx.records)?;
        let pipe = self.pipe();
        let mut room = self.send_window().saturating_sub(pipe);
        if self.recovery.is_forced() || pipe == 0 {
            room = room.max(size);
        } else if room > 0 {
            room = room.min(self.paced_room(cx, size));
        }
        let window = self.snd_una.plus(self.snd_wnd).since(start);
        let hole = end.since(start);
        let mut len = hole.min(room).min(window).min(SEGMENT_LEN_MAX as u32);
        if len == 0 || (room < size && room < hole) {
            return None;
        }
        if len > size {
            len -= len % size;
        }
        self.note_paced(cx, len);
        let range = SeqRange::new(start, start.plus(len));
        let again = self.send_stretch(cx, range, options);
        let timestamp = options.timestamps.map(|t| t.value);
        self.recovery.on_retransmit(cx.records, cx.now, range, timestamp);
        // RFC 6298 §5.1. A retransmission at SND.UNA, for which the receiver waits, gets a whole timeout.
        if start == self.snd_una || !self.timers.retransmission_runs() {
            self.arm_timeout(cx);
        }
        Some(again)
    }

    /// Sends data for the first time, as far as both windows permit and the silly window rules allow (RFC
    /// 9293 §3.8.6.2.1). With `probe` one segment is sent regardless of the congestion window.
    fn new_data(&mut self, cx: &mut Context<'_>, options: Options, size: u32, probe: bool) -> Option<Plan> {
        let unsent = self.data_end().since(self.snd_nxt);
        let fin_unsent = self.fin_unsent();
        if unsent == 0 && !fin_unsent {
            return None;
        }
        self.restart_after_idle(cx);
        let window = self.snd_una.plus(self.snd_wnd).since(self.snd_nxt);
        let pipe = self.pipe();
        let room = if probe { size } else { self.send_window().saturating_sub(pipe) };
        let records = self.recovery.room(cx.records);
        let mut len =
            unsent.min(window).min(room).min(records).min(self.allowance(cx)).min(SEGMENT_LEN_MAX as u32);
        if len > 0 && !probe {
            len = len.min(self.paced_room(cx, size));
        }
        // RFC 9293 §3.7.4: with Nagle's algorithm, a last partial segment waits until the data before it is
        // acknowledged.
        if len > size && (len < unsent || (self.options.nagle && !self.fin.is_queued())) {
            len -= len % size;
        }
        if unsent > 0 && !self.is_worth_sending(len, unsent, size, window, pipe) {
            return None;
        }
        let fin = fin_unsent && len == unsent && window > len;
        if len == 0 && !fin {
            return None;
        }
        let (start, end) = (self.snd_nxt, self.snd_nxt.plus(len + u32::from(fin)));
        if !self.recovery.on_transmit(cx.records, cx.now, start, end) {
            return None;
        }
        if self.outstanding() == 0 {
            self.progress_at = cx.now;
        }
        self.note_paced(cx, len);
        self.use_allowance(cx, len);
        self.snd_nxt = end;
        self.congestion.on_transmit(pipe + end.since(start));
        self.last_sent = cx.now;
        if self.rcv_nxt != self.irs.plus(1) {
            self.quick_acks = 0; // data flows both ways: data segments carry the acknowledgements
        }
        let plan = self.send_stretch(cx, SeqRange::new(start, end), options);
        // RFC 6298 §5.1. A scheduled tail loss probe is postponed by each transmission, because it must
        // follow the last one.
        if !self.timers.retransmission_runs() || self.timers.retransmission.1 != Retransmission::Timeout {
            self.arm_probe_or_timeout(cx);
        }
        Some(self.as_new(plan))
    }

    /// Marks a plan as a first transmission; only those carry ECT and CWR (RFC 3168 §6.1.2).
    fn as_new(&mut self, mut plan: Plan) -> Plan {
        plan.retransmission = false;
        if self.ecn.capable && plan.payload.1 > 0 {
            plan.ecn = ECT_0;
            if let Some(header) = plan.header.as_mut().filter(|_| self.congestion.take_cwr()) {
                header.flags |= Flags::CWR;
            }
        }
        plan
    }

    /// Sender-side silly window syndrome avoidance, and Nagle's algorithm if it is enabled.
    fn is_worth_sending(&self, len: u32, unsent: u32, size: u32, window: u32, pipe: u32) -> bool {
        if len == 0 {
            return false;
        }
        if len == unsent {
            // RFC 9293 §3.7.4
            return len >= size || !self.options.nagle || pipe == 0 || self.fin.is_queued();
        }
        len >= size || (len == window && len >= self.snd_wnd_max / 2)
    }

    /// RFC 5681 §4.1
    fn restart_after_idle(&mut self, cx: &Context<'_>) {
        let idle = cx.now.saturating_since(self.last_sent) > self.rtt.rto(cx.config);
        if self.outstanding() == 0 && idle {
            self.congestion.restart_after_idle(cx.config.initial_window_segments);
            self.last_sent = cx.now;
        }
    }

    fn probe_plan(
        &mut self,
        cx: &mut Context<'_>,
        probe: Probe,
        options: Options,
        size: u32,
    ) -> Option<Plan> {
        match probe {
            Probe::Keepalive => Some(self.plan(cx, self.snd_nxt.minus(1), 0, Flags::ACK, options)),
            Probe::Window => {
                // One byte beyond a closed window; as much as fits into a window that is merely small.
                let fits = self.snd_wnd.clamp(1, size).min(self.send.len());
                let fin = fits == 0 && self.fin == Fin::Unacknowledged;
                let mut end = self.snd_una.plus(fits + u32::from(fin));
                self.recovery.on_window_probe(cx.records, cx.now, fits.max(1));
                if end.after(self.snd_nxt)
                    && !self.recovery.on_transmit(cx.records, cx.now, self.snd_nxt, end)
                {
                    end = self.snd_nxt; // no record is free: only data that has one is sent
                }
                if end == self.snd_una {
                    return None;
                }
                self.snd_nxt = self.snd_nxt.max(end);
                if self.snd_wnd > 0 {
                    self.arm_timeout(cx);
                }
                Some(self.send_stretch(cx, SeqRange::new(self.snd_una, end), options))
            }
            Probe::Tail => {
                let new = self.new_data(cx, options, size, true);
                let is_retrans = new.is_none();
                let plan = new.or_else(|| self.last_segment(cx, options, size));
                if plan.is_some() {
                    self.recovery.tail_probe = Some(TailProbe { end: self.snd_nxt, is_retrans });
                }
                self.arm_timeout(cx);
                plan
            }
        }
    }

    /// Retransmits the last segment in flight.
    fn last_segment(&mut self, cx: &mut Context<'_>, options: Options, size: u32) -> Option<Plan> {
        if self.snd_nxt.after(self.snd_una.plus(self.snd_wnd)) {
            return None; // the window shrank and does not cover the segment
        }
        let range = self.recovery.on_probe_again(cx.records, cx.now, size)?;
        Some(self.send_stretch(cx, range, options))
    }

    /// The congestion window in force, in bytes.
    fn send_window(&self) -> u32 {
        self.recovery.window(self.congestion.cwnd())
    }

    /// Builds a segment with these sequence numbers, FIN included if they extend beyond the data.
    fn send_stretch(&mut self, cx: &mut Context<'_>, range: SeqRange, options: Options) -> Plan {
        let SeqRange { start, end } = range;
        let data_end = self.data_end();
        let len = end.min(data_end).since(start);
        let mut flags = Flags::ACK;
        if end.after(data_end) {
            flags |= Flags::FIN;
        }
        if len > 0 && start.plus(len) == data_end {
            flags |= Flags::PSH;
        }
        Plan { retransmission: true, ..self.plan(cx, start, len, flags, options) }
    }

    fn acknowledgement(&mut self, cx: &mut Context<'_>) -> Plan {
        let options = self.segment_options(cx);
        // After SND.UNA + SND.WND lie window probes, or data sent before the window shrank. A segment with a
        // number from there is not acceptable to the peer: it would neither process the acknowledgement nor
        // accept the reply to its keepalive.
        let seq = match self.is_synchronised() {
            true => self.snd_nxt.min(self.snd_una.plus(self.snd_wnd)),
            false => self.snd_nxt,
        };
        self.plan(cx, seq, 0, Flags::ACK, options)
    }

    /// Builds a record with a header. If it has ACK set, pending acknowledgements are no longer due.
    pub(crate) fn plan(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        len: u32,
        flags: Flags,
        options: Options,
    ) -> Plan {
        let window = self.window_field(cx, flags.syn());
        let echoes = self.ecn.echo && !flags.intersects(Flags::SYN | Flags::RST);
        let flags = if echoes { flags | Flags::ECE } else { flags };
        let header = Repr {
            source_port: self.ports.0,
            destination_port: self.ports.1,
            seq: seq.0,
            ack: if flags.ack() { self.rcv_nxt.0 } else { 0 },
            flags,
            window,
            options,
        };
        if flags.ack() {
            self.on_ack_sent();
        }
        let flow_new = self.announced != Announced::ToCurrent;
        self.announced = Announced::ToCurrent;
        let offset = seq.since(self.send_base());
        let segment_size = if len == 0 { 0 } else { self.mss_limit.saturating_sub(options.len() as u16) };
        Plan {
            header: Some(header),
            payload: (offset, len),
            segment_size,
            flow_new,
            flow_end: false,
            retransmission: false,
            ecn: NOT_ECT,
        }
    }

    /// The options of every segment except SYNs.
    fn segment_options(&self, cx: &Context<'_>) -> Options {
        let mut options = Options::default();
        if self.timestamps {
            options.timestamps = Some(Timestamps { value: self.timestamp(cx.now), echo: self.ts_recent });
        }
        if self.sack && (self.duplicate.is_some() || self.receive.has_holes()) {
            options.sack = self.receive.sack_blocks(cx.ranges, self.duplicate);
        }
        options
    }

    /// If data waits and nothing can be sent, makes sure that a timer runs.
    fn keep_timer_running(&mut self, cx: &mut Context<'_>) {
        if self.timers.retransmission_runs() || self.timers.pacing || self.is_kept_waiting(cx) {
            return;
        }
        if self.outstanding() > 0 {
            self.arm_timeout(cx);
        } else if self.data_end().after(self.snd_nxt) || self.fin_unsent() {
            self.arm_persist(cx);
        }
    }
}
