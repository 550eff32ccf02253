//! SYN-SENT and SYN-RECEIVED (RFC 9293 §3.10.7.3, §3.10.7.4).

use csp_types::Instant;
use csp_wire::tcp::{Options, Repr};

use crate::api::{DropReason, FailReason, State};
use crate::input::{Incoming, Reject};
use crate::seq::Seq;
use crate::tcb::{Context, FinalTransmit, Tcb};

impl Tcb {
    /// A passive connection begins with a SYN that has this sequence number, window and options. Its data and FIN, if
    /// any, are left to be retransmitted.
    pub fn accept(&mut self, cx: &mut Context<'_>, seq: Seq, window: u16, options: &Options) {
        self.passive = true;
        self.state = State::SynReceived;
        self.negotiate(cx, seq, options);
        (self.snd_wnd, self.snd_wnd_max) = (u32::from(window), u32::from(window));
    }

    /// The header of the SYN/ACK, for a block that is not kept.
    pub fn syn_ack(&mut self, cx: &mut Context<'_>) -> Option<Repr> {
        self.handshake_plan(cx).and_then(|plan| plan.header)
    }

    /// The SYN/ACK was a cookie: it counts as sent, with the window it told. The acknowledgement that follows, unlike
    /// that of other handshakes, is answered: the network node learns the label, the peer the whole window.
    pub fn resume_after_cookie(&mut self, cx: &mut Context<'_>) {
        self.snd_nxt = self.iss.plus(1);
        self.syn_due = false;
        self.window_field(cx, true);
        self.ack_now = true;
    }

    pub(super) fn on_segment_syn_sent(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Incoming<'_>,
    ) -> Result<(), Reject> {
        let flags = segment.flags;
        if flags.ack() && (!segment.ack.after(self.iss) || segment.ack.after(self.snd_nxt)) {
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
            self.ack_now = true;
        } else {
            // Simultaneous open: our SYN goes out again, now with an acknowledgement.
            self.state = State::SynReceived;
            (self.snd_wnd, self.snd_wnd_max) = (u32::from(segment.window), u32::from(segment.window));
            self.syn_due = true;
            self.maybe_transmit = true;
        }
        Ok(())
    }

    /// The acknowledgement of our SYN/ACK, in SYN-RECEIVED.
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
