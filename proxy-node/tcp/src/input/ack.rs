//! Acknowledgements: what they free, what they tell of loss, of the path and of the peer's window.

use core::time::Duration;

use crate::api::{DropReason, State};
use crate::congestion::AckSample;
use crate::input::{Incoming, Reject};
use crate::scoreboard::Phase;
use crate::tcb::{Context, Farewell, Tcb};

impl Tcb {
    /// The fifth check of RFC 9293 §3.10.7.4.
    pub(super) fn take_acknowledgement(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Incoming<'_>,
    ) -> Result<(), Reject> {
        let ack = segment.ack;
        // RFC 5961 §5.2: neither of what was never sent, nor older than the largest window.
        if ack.after(self.snd_nxt) || ack.before(self.snd_una.minus(self.snd_wnd_max)) {
            self.challenge(cx);
            return Err(DropReason::BadAck.into());
        }
        if ack.before(self.snd_una) {
            return Ok(()); // an old one; its data still counts
        }
        let window_changed = self.take_window(segment);
        let flight = self.outstanding();
        let new_sacked = match self.sack {
            true => self.board.on_sack(cx.ranges, ack, self.snd_nxt, segment.options.sack.as_slice()),
            false => 0,
        };
        let persisted = self.timers.persists();
        if ack.after(self.snd_una) {
            self.advance(cx, segment);
        } else if !self.sack && flight > 0 && segment.len() == 0 && !window_changed && self.snd_wnd > 0 {
            let found = self.board.on_duplicate(self.snd_una, self.snd_nxt, u32::from(self.mss));
            self.respond_to_loss(cx, found);
        }
        if self.state == State::Done {
            return Ok(());
        }
        if new_sacked > 0 || (self.sack && self.board.has_sacked()) {
            self.find_losses(cx);
        }
        if self.sack {
            self.watch_reordering(cx);
        }
        if self.snd_wnd == 0 {
            if !self.closed {
                self.timers.retries = 0; // the peer lives, only its reader does not read
            }
        } else if persisted {
            self.leave_persist(cx);
        }
        self.maybe_transmit = true;
        Ok(())
    }

    /// Takes the peer's window from a segment that is not older than the one it was last taken from; says whether the
    /// window changed.
    fn take_window(&mut self, segment: &Incoming<'_>) -> bool {
        let newer = self.snd_wl1.before(segment.seq)
            || (self.snd_wl1 == segment.seq && !segment.ack.before(self.snd_wl2));
        if !newer {
            return false;
        }
        let window = segment.window_bytes(self.send_shift);
        let changed = window != self.snd_wnd;
        (self.snd_wnd, self.snd_wl1, self.snd_wl2) = (window, segment.seq, segment.ack);
        self.snd_wnd_max = self.snd_wnd_max.max(window);
        changed
    }

    /// snd_una moves on.
    fn advance(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) {
        let ack = segment.ack;
        let fin_acked = self.fin_queued && !self.fin_acked && ack == self.data_end().plus(1);
        let acked = ack.since(self.snd_una);
        let acked_bytes = ack.since(self.send_base()) - u32::from(fin_acked);
        let in_flight = self.pipe(cx.ranges);
        let rtt = self.sample_rtt(cx, segment);
        self.send.release(cx.blocks, acked_bytes);
        self.snd_una = ack;
        self.fin_acked |= fin_acked;
        self.progress_at = cx.now;
        self.timers.retries = 0;
        self.rtt.progress();
        let echo = segment.options.timestamps.filter(|_| self.timestamps).map(|t| t.echo);
        if self.board.is_spurious(echo) {
            cx.counters.spurious_recoveries += 1;
            self.congestion.undo(cx.now);
            self.board.undo(ack);
        }
        let phase = self.board.phase();
        self.board.on_advance(cx.ranges, ack, self.snd_nxt, acked, u32::from(self.mss), self.sack);
        self.congestion.on_ack(&AckSample {
            now: cx.now,
            una: ack,
            nxt: self.snd_nxt,
            acked: acked_bytes,
            delivered: acked_bytes,
            in_flight,
            rtt,
            srtt: self.rtt.srtt(),
            phase,
            rate: None,
        });
        if self.tail_probe.is_some_and(|end| !ack.before(end)) {
            self.tail_probe = None;
        }
        // RFC 6298 §5.2, §5.3
        if self.outstanding() == 0 {
            self.timers.stop_retransmission();
        } else {
            self.arm_probe_or_timeout(cx);
        }
        self.offer_room(cx.config.send_buffer_max);
        if fin_acked {
            self.on_fin_acknowledged(cx);
        }
    }

    /// Takes in the round trip that an acknowledgement measures, if it measures one.
    fn sample_rtt(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) -> Option<Duration> {
        match self.timed {
            Some((end, sent)) if !segment.ack.before(end) => {
                let rtt = segment.ingress.saturating_since(sent);
                self.rtt.sample(cx.config, rtt);
                self.timed = None;
                Some(rtt)
            }
            // What was retransmitted is timed by timestamps, which tell which transmission was answered, though only
            // in milliseconds.
            None if self.board.phase() != Phase::Open => {
                let timestamps = segment.options.timestamps.filter(|t| self.timestamps && t.echo != 0)?;
                let elapsed = self.timestamp(segment.ingress).wrapping_sub(timestamps.echo);
                let rtt = Duration::from_millis(u64::from(elapsed.max(1)));
                (elapsed < 120_000).then(|| {
                    self.rtt.sample(cx.config, rtt);
                    rtt
                })
            }
            _ => None,
        }
    }

    /// Asks the scoreboard what SACKs show, and acts on it.
    fn find_losses(&mut self, cx: &mut Context<'_>) {
        let probed = self.tail_probe.is_some();
        let found = self.board.find_losses(cx.ranges, self.snd_una, u32::from(self.mss), probed);
        self.respond_to_loss(cx, found);
    }

    pub fn respond_to_loss(&mut self, cx: &mut Context<'_>, found: bool) {
        if !found || self.board.phase() != Phase::Open {
            return;
        }
        cx.counters.fast_recoveries += 1;
        self.congestion.on_loss(self.pipe(cx.ranges));
        self.board.begin(Phase::Recovery, self.snd_una, self.snd_nxt);
        self.tail_probe = None;
        self.arm_timeout(cx);
        self.maybe_transmit = true;
    }

    /// The window opened: what was sent as probes, or beyond a window that had shrunk, is sent again.
    fn leave_persist(&mut self, cx: &Context<'_>) {
        self.timers.stop_retransmission();
        self.rtt.progress();
        self.resend(cx);
    }

    /// Sends again what is in flight, for a reason that is not congestion.
    pub fn resend(&mut self, cx: &Context<'_>) {
        if self.outstanding() == 0 {
            return;
        }
        self.board.begin(Phase::Timeout, self.snd_una, self.snd_nxt);
        self.congestion.nothing_to_undo();
        self.timed = None;
        self.arm_timeout(cx);
        self.maybe_transmit = true;
    }

    /// Tells a writer that had to wait once there is room worth waking up for.
    pub fn offer_room(&mut self, capacity: u32) {
        let room = capacity.saturating_sub(self.send.len());
        if self.write_blocked && room >= capacity / 4 && !self.fin_queued {
            self.write_blocked = false;
            self.pending.writable = true;
        }
    }

    fn on_fin_acknowledged(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.closed {
                    self.timers.linger = cx.now + cx.config.fin_wait_2;
                }
            }
            State::Closing => {
                self.time_wait = true;
                let farewell = if self.ack_now { Farewell::Acknowledgement } else { Farewell::Record };
                self.finish(cx, farewell);
            }
            State::LastAck => self.finish(cx, Farewell::Record),
            _ => {}
        }
    }
}
