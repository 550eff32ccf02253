//! Acceptability checks: timestamps, windows, RST and SYN (RFC 7323 §5, RFC 9293 §3.10.7.4, RFC 5961).

use csp_wire::tcp::Options;

use crate::api::{DropReason, FailReason, State};
use crate::input::{Incoming, Reject};
use crate::seq::{Seq, SeqRange};
use crate::tcb::{Context, FinalTransmit, Tcb, seconds};

/// Age in seconds from which TS.Recent is invalid (RFC 7323 §5.5).
const RECENT_VALID_S: u32 = 24 * 24 * 3600;

impl Tcb {
    /// Checks a segment without RST after SYNs were exchanged.
    pub(super) fn validate(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) -> Result<(), Reject> {
        if self.is_old_by_timestamp(cx, segment) {
            if !self.is_reordered_ack(cx, segment) {
                self.acknowledge_unacceptable(cx, segment);
            }
            return Err(DropReason::Paws.into());
        }
        // RFC 9293 §3.10.7.4, first check. A segment that starts right at the end of the window counts as
        // acceptable, so that its acknowledgement is processed; its data is cut off.
        if segment.end().before(self.rcv_nxt) || segment.seq.after(self.rcv_edge.max(self.rcv_nxt)) {
            self.acknowledge_unacceptable(cx, segment);
            // The segment has no effect, except that a plausible acknowledgement number shows that the peer
            // is alive.
            if segment.flags.ack() && !segment.ack.before(self.snd_una) && !segment.ack.after(self.sent_end())
            {
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

    /// RFC 5961 §3.2: only a RST with exactly the expected sequence number resets the connection; one that is
    /// merely within the window is answered with a challenge ACK.
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

    /// Whether a segment with an old timestamp is a reordered acknowledgement, at most a retransmission
    /// timeout older than the newest segment. RFC 7323 §5.3 requires a reply to old segments, so that
    /// half-open connections are detected; to the sender of a reordered acknowledgement the reply would carry
    /// nothing new.
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

    /// Updates TS.Recent from the segment that the next acknowledgement responds to (RFC 7323 §4.3 (2)).
    pub(super) fn update_ts_recent(&mut self, cx: &Context<'_>, seq: Seq, options: &Options) {
        if let Some(timestamps) = options.timestamps.filter(|_| self.timestamps)
            && !seq.after(self.last_ack_sent)
        {
            (self.ts_recent, self.ts_recent_at_s) = (timestamps.value, seconds(cx.now));
        }
    }

    /// Acknowledges an unacceptable segment: immediately if it occupies sequence numbers, rate-limited
    /// otherwise, so that two ends whose states differ do not acknowledge each other endlessly.
    fn acknowledge_unacceptable(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) {
        if segment.len() == 0 {
            return self.challenge(cx);
        }
        // A range before this connection's first byte is not reported: the peer could not interpret it.
        let back = |seq: Seq| self.rcv_nxt.0.wrapping_sub(seq.0);
        let ours = back(segment.seq) < back(self.irs);
        if segment.seq.before(self.rcv_nxt) && ours && !segment.payload.is_empty() && self.sack {
            let end = segment.end().min(self.rcv_nxt);
            self.duplicate = Some(SeqRange::new(segment.seq, end));
            cx.counters.duplicate_bytes_received += segment.payload.len() as u64;
            // The peer retransmitted acknowledged data: our acknowledgement was lost or late.
            self.quick_acks = self.quick_acks.max(cx.config.quick_acks);
        }
        self.ack_now = true;
        self.maybe_transmit = true;
    }

    /// Sends a challenge ACK, unless the last one was sent less than `challenge_interval` ago (RFC 5961 §7).
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
