//! Which segments are believed: timestamps, windows, RST, SYN (RFC 7323 §5, RFC 9293 §3.10.7.4, RFC 5961).

use crate::api::{DropReason, FailReason, State};
use crate::input::{Incoming, Reject};
use crate::seq::Seq;
use crate::tcb::{Context, FinalTransmit, Tcb, seconds};

/// After so many seconds TS.Recent says nothing any more (RFC 7323 §5.5).
const RECENT_VALID_S: u32 = 24 * 24 * 3600;

impl Tcb {
    /// Checks a segment without RST in a state that has exchanged SYNs.
    pub(super) fn validate(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) -> Result<(), Reject> {
        if self.is_old_by_timestamp(cx, segment) {
            if !self.is_reordered_ack(cx, segment) {
                self.acknowledge_unacceptable(cx, segment);
            }
            return Err(DropReason::Paws.into());
        }
        // RFC 9293 §3.10.7.4, first check. A segment right behind the window counts as acceptable, so that its
        // acknowledgement is seen; its bytes are cut off.
        if segment.end().before(self.rcv_nxt) || segment.seq.after(self.rcv_edge.max(self.rcv_nxt)) {
            self.acknowledge_unacceptable(cx, segment);
            // Nothing of it counts but that somebody is there who knows what we sent.
            if segment.flags.ack() && !segment.ack.before(self.snd_una) && !segment.ack.after(self.snd_nxt) {
                self.last_received = cx.now;
                self.keepalive_probes = 0;
            }
            return Err(DropReason::OutsideWindow.into());
        }
        if segment.flags.syn() {
            // RFC 5961 §4.2
            self.challenge(cx);
            return Err(DropReason::UnexpectedSyn.into());
        }
        if !segment.flags.ack() {
            return Err(DropReason::BadFlags.into());
        }
        Ok(())
    }

    /// RFC 5961 §3.2: only an exact RST counts; one that is merely within the window is asked for again.
    pub(super) fn process_rst(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) -> Result<(), Reject> {
        if segment.seq == self.rcv_nxt {
            let reason = match self.state {
                State::SynReceived if !self.passive => FailReason::Refused,
                _ => FailReason::Reset,
            };
            self.fail(cx, FinalTransmit::Record, reason);
            return Ok(());
        }
        if segment.seq.after(self.rcv_nxt) && segment.seq.before(self.rcv_edge) {
            self.challenge(cx);
        }
        Err(DropReason::BadReset.into())
    }

    /// Protection against wrapped sequence numbers (RFC 7323 §5.3 R1).
    fn is_old_by_timestamp(&self, cx: &Context<'_>, segment: &Incoming<'_>) -> bool {
        let Some(timestamps) = segment.options.timestamps.filter(|_| self.timestamps) else { return false };
        let older = (timestamps.value.wrapping_sub(self.ts_recent) as i32) < 0;
        older && seconds(cx.now).wrapping_sub(self.ts_recent_at_s) < RECENT_VALID_S
    }

    /// Whether a segment that is old by its timestamp is an acknowledgement that others overtook on their way, up to a
    /// retransmission timeout ago. RFC 7323 §5.3 has old segments answered, so that half-open connections are found out;
    /// to the sender of this one the answer would be no news.
    fn is_reordered_ack(&self, cx: &Context<'_>, segment: &Incoming<'_>) -> bool {
        let Some(timestamps) = segment.options.timestamps else { return false };
        let age = self.ts_recent.wrapping_sub(timestamps.value); // in ticks of a millisecond at least (RFC 7323 §5.4)
        segment.flags.ack()
            && segment.len() == 0
            && !segment.ack.after(self.snd_una)
            && !segment.ack.before(self.snd_una.minus(self.snd_wnd_max))
            && !segment.seq.after(self.rcv_nxt)
            && u128::from(age) <= self.rtt.rto(cx.config).as_millis()
    }

    /// Takes TS.Recent from the segment that the next acknowledgement answers (RFC 7323 §4.3 (2)).
    pub(super) fn update_ts_recent(&mut self, cx: &Context<'_>, segment: &Incoming<'_>) {
        if let Some(timestamps) = segment.options.timestamps.filter(|_| self.timestamps)
            && !segment.seq.after(self.last_ack_sent)
        {
            (self.ts_recent, self.ts_recent_at_s) = (timestamps.value, seconds(cx.now));
        }
    }

    /// Acknowledges an unacceptable segment: at once where it carries something, throttled otherwise, so that two ends
    /// with different views do not acknowledge each other for ever.
    fn acknowledge_unacceptable(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) {
        if segment.len() == 0 {
            return self.challenge(cx);
        }
        // Not what comes from before this connection's first byte: the peer cannot know what is meant.
        let back = |seq: Seq| self.rcv_nxt.0.wrapping_sub(seq.0);
        let ours = back(segment.seq) < back(self.irs);
        if segment.seq.before(self.rcv_nxt) && ours && !segment.payload.is_empty() && self.sack {
            let end = segment.end().min(self.rcv_nxt);
            self.duplicate = Some((segment.seq, end));
            cx.counters.duplicate_bytes_received += segment.payload.len() as u64;
            // What was acknowledged is sent again: the acknowledgement was lost, or came too late.
            self.quick_acks = self.quick_acks.max(cx.config.quick_acks);
        }
        self.ack_now = true;
        self.maybe_transmit = true;
    }

    /// Sends a challenge ACK, unless one was sent just now (RFC 5961 §7).
    pub(super) fn challenge(&mut self, cx: &mut Context<'_>) {
        if cx.now < self.challenge_after {
            cx.counters.challenge_acks_suppressed += 1;
            return;
        }
        cx.counters.challenge_acks_sent += 1;
        self.challenge_after = cx.now + cx.config.challenge_interval;
        self.ack_now = true;
        self.maybe_transmit = true;
    }
}
