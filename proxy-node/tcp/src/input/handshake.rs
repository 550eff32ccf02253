//! The handshake: segments in SYN-SENT and SYN-RECEIVED (RFC 9293 §3.10.7.3, §3.10.7.4).

use core::time::Duration;

use csp_types::Instant;
use csp_wire::tcp::{Options, Repr};

use crate::api::{DropReason, FailReason, State};
use crate::input::{Incoming, Reject};
use crate::seq::Seq;
use crate::tcb::{Context, FinalTransmit, Tcb};
use crate::timeouts::Retransmission;

/// Time from the RST that ends an older connection at the peer to the next SYN: the RST arrives first.
const OLDER_ENDS: Duration = Duration::from_millis(5);

impl Tcb {
    /// Begins a passive connection for a SYN with this sequence number, window and options. Data and FIN of
    /// the SYN are ignored; the peer retransmits them.
    pub fn accept(&mut self, cx: &mut Context<'_>, seq: Seq, window: u16, options: &Options) {
        self.passive = true;
        self.state = State::SynReceived;
        self.negotiate(cx, seq, options);
        (self.snd_wnd, self.snd_wnd_max) = (u32::from(window), u32::from(window));
    }

    /// Returns the header of the SYN/ACK, for a connection block that is discarded afterwards (SYN cookies).
    pub fn syn_ack(&mut self, cx: &mut Context<'_>) -> Option<Repr> {
        self.handshake_plan(cx).and_then(|plan| plan.header)
    }

    /// Restores the state after a SYN/ACK that was sent as a cookie, including the window that it advertised.
    /// Unlike in other handshakes, the acknowledgement that completes this one is acknowledged in turn: with
    /// that segment the network node receives the label, and the peer the scaled window.
    pub fn resume_after_cookie(&mut self, cx: &mut Context<'_>) {
        self.snd_nxt = self.iss.plus(1);
        self.syn_due = false;
        self.window_field(cx, true);
        self.on_ack_sent();
        self.ack_now = true;
    }

    pub(super) fn on_segment_syn_sent(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Incoming<'_>,
    ) -> Result<(), Reject> {
        let flags = segment.flags;
        if flags.ack() && (!segment.ack.after(self.iss) || segment.ack.after(self.snd_nxt)) {
            if !flags.rst() {
                self.retry_soon(cx.now);
            }
            return Err(Reject { reason: DropReason::BadAck, reset: true });
        }
        if flags.rst() {
            if !flags.ack() {
                return Err(DropReason::BadReset.into());
            }
            self.fail(cx, FinalTransmit::Record, FailReason::Refused);
            return Ok(());
        }
        if !flags.syn() {
            return Err(DropReason::BadFlags.into());
        }
        self.last_received = cx.now;
        self.negotiate(cx, segment.seq, &segment.options);
        self.negotiate_ecn(segment);
        if flags.ack() {
            self.sample_handshake(segment);
            self.establish(cx, segment.ack, segment.seq, u32::from(segment.window));
        } else {
            // Simultaneous open: our SYN is sent again, now with an acknowledgement.
            self.state = State::SynReceived;
            (self.snd_wnd, self.snd_wnd_max) = (u32::from(segment.window), u32::from(segment.window));
            self.syn_due = true;
            self.maybe_transmit = true;
        }
        Ok(())
    }

    /// Schedules an early retransmission of the first SYN. The peer has acknowledged an older connection of
    /// these addresses, for example one in TIME-WAIT, which the RST ends. RFC 9293 §3.5 (figure 8) leaves the
    /// next SYN to the timeout of 1 s. Further such acknowledgements have no effect.
    fn retry_soon(&mut self, now: Instant) {
        if self.timers.retries == 0 {
            let deadline = self.timers.retransmission.0.min(now + OLDER_ENDS);
            self.timers.retransmission = (deadline, Retransmission::Timeout);
        }
    }

    /// Processes the acknowledgement of our SYN/ACK in SYN-RECEIVED.
    pub(super) fn complete_handshake(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Incoming<'_>,
    ) -> Result<(), Reject> {
        if !segment.ack.after(self.snd_una) || segment.ack.after(self.snd_nxt) {
            return Err(Reject { reason: DropReason::BadAck, reset: true });
        }
        self.sample_handshake(segment);
        let window = segment.window_bytes(self.send_shift);
        self.establish(cx, segment.ack, segment.seq, window);
        Ok(())
    }

    fn sample_handshake(&mut self, segment: &Incoming<'_>) {
        if self.syn_sent != Instant::FAR_FUTURE {
            let rtt = segment.ingress.saturating_since(self.syn_sent);
            self.syn_sent = Instant::FAR_FUTURE;
            self.rtt.sample(rtt, segment.ack, segment.ack);
            self.rtt.sample_min(rtt, segment.ingress);
        }
    }
}
