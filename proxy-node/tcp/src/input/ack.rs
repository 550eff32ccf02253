//! Processing of acknowledgements: releases acknowledged data, updates the send window, and feeds loss
//! recovery and path MTU discovery.

use crate::api::{DropReason, State};
use crate::input::{Incoming, Reject};
use crate::recovery::ack_summary::AckSummary;
use crate::seq::SeqRange;
use crate::tcb::{Context, Fin, FinalTransmit, Tcb};
use crate::timeouts::Retransmission;

impl Tcb {
    /// RFC 9293 §3.10.7.4, fifth check.
    pub(super) fn process_ack(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) -> Result<(), Reject> {
        let ack = segment.ack;
        let old = ack.before(self.snd_una);
        // RFC 5961 §5.2: the acknowledgement must not cover data never sent, nor be older than the largest
        // window that the peer has advertised.
        if ack.after(self.sent_end()) || (old && ack.before(self.snd_una.minus(self.snd_wnd_max))) {
            self.challenge(cx);
            return Err(DropReason::BadAck.into());
        }
        let window_changed = !old && self.update_send_window(segment);
        let repeated =
            ack == self.snd_una && ack == self.snd_nxt && segment.options.sack.as_slice().is_empty();
        if self.quiet && repeated && self.snd_wnd > 0 {
            self.rearm = false;
            self.maybe_transmit |= window_changed;
            return Ok(());
        }
        let echo = segment.options.timestamps.map(|t| t.echo);
        let mut summary = self.begin_ack_summary(segment.ingress, ack, echo);
        let persisted = self.timers.persists();
        let duplicate = ack == self.snd_una && segment.len() == 0 && !window_changed && self.snd_wnd > 0;
        summary.duplicate = duplicate && !self.sack && self.outstanding() > 0;
        if ack.after(self.snd_una) {
            self.advance(cx, segment, &mut summary);
            if self.state == State::Done {
                return Ok(());
            }
        }
        if self.sack {
            // The SACK blocks of a reordered (older) acknowledgement are still valid. A block may extend
            // beyond SND.NXT if a path MTU probe arrived; the part in flight counts.
            let range = SeqRange::new(self.snd_una, self.sent_end());
            let blocks = segment.options.sack.as_slice();
            self.recovery.on_sack(cx.records, &mut summary, range, blocks, u32::from(self.mss()));
        }
        self.respond(cx, &mut summary);
        if summary.acked > 0 {
            self.tune_send_buffer(cx);
        }
        self.restart_timer(cx, &summary);
        if old {
            return Ok(()); // the segment's data is still processed
        }
        if self.snd_wnd == 0 {
            if !self.closed {
                self.timers.retries = 0; // the peer responds; only its application does not read
            }
        } else if persisted {
            self.leave_persist(cx);
        }
        self.maybe_transmit = true;
        self.quiet = self.outstanding() == 0 && self.recovery.is_quiet();
        Ok(())
    }

    /// RFC 6298 §5.2, §5.3, RFC 8985 §7.2
    fn restart_timer(&mut self, cx: &Context<'_>, summary: &AckSummary) {
        if summary.acked > 0 {
            if self.outstanding() == 0 {
                self.timers.stop_retransmission();
            } else {
                self.arm_probe_or_timeout(cx);
            }
        } else if summary.sacked > 0 && self.timers.retransmission.1 == Retransmission::TailProbe {
            self.arm_timeout(cx); // RACK can detect the loss without a probe
        }
    }

    /// Updates the send window from a segment that is not older than the one it was last taken from (RFC 9293
    /// §3.10.7.4). Returns whether the window changed.
    fn update_send_window(&mut self, segment: &Incoming<'_>) -> bool {
        let newer = self.snd_wl1.before(segment.seq)
            || (self.snd_wl1 == segment.seq && !segment.ack.before(self.snd_wl2));
        if !newer {
            return false;
        }
        let window = segment.window_bytes(self.send_shift);
        let changed = window != self.snd_wnd;
        (self.snd_wnd, self.snd_wl1, self.snd_wl2) = (window, segment.seq, segment.ack);
        if changed {
            self.snd_wnd_max = self.snd_wnd_max.max(window);
        }
        changed
    }

    /// Advances SND.UNA to the segment's acknowledgement number.
    fn advance(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>, summary: &mut AckSummary) {
        let ack = segment.ack;
        let fin_acked = self.fin == Fin::Unacknowledged && ack == self.data_end().plus(1);
        let acked_bytes = ack.since(self.send_base()) - u32::from(fin_acked);
        self.send.release(cx.send_blocks, acked_bytes);
        if ack.after(self.snd_nxt) {
            self.advance_into_probe(summary, ack);
        }
        self.recovery.on_advance(cx.records, summary, ack);
        self.snd_una = ack;
        self.on_path_progress(cx, ack, segment.options.sack.as_slice());
        self.progress_at = cx.now;
        self.timers.retries = 0;
        if self.state == State::Resetting {
            self.extend_reset(cx);
        }
        if fin_acked {
            self.fin = Fin::Acknowledged;
            self.on_fin_acknowledged(cx);
        }
    }

    /// The peer opened its window: window probes, and data sent beyond a window that shrank later, are sent
    /// again.
    fn leave_persist(&mut self, cx: &mut Context<'_>) {
        self.timers.stop_retransmission();
        self.rtt.reset_backoff();
        self.resend(cx);
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
                let final_transmit =
                    if self.ack_now { FinalTransmit::Acknowledgement } else { FinalTransmit::Record };
                self.finish(cx, final_transmit);
            }
            State::LastAck => self.finish(cx, FinalTransmit::Record),
            _ => {}
        }
    }
}
