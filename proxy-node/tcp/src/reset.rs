//! Resets that follow the written data (RFC 9293 §3.6.1, §3.10.5).
//!
//! ```text
//!   reset, close with unread data, data after close
//!     │ everything is acknowledged: RST at once
//!     ▼
//!   resetting ── all data, and FIN if it was queued, are acknowledged ──▶ RST, Done
//!     ├────────── no progress for `reset_stall`, or `reset_wait` is over ─▶ RST, Done
//!     └────────── RST of the peer, retries exhausted ─────────────────────▶ Done
//! ```
//! A kernel transmits data when the application writes it, so that the RST of a later `close` follows the
//! data in the sequence space. Here data may still wait for the congestion window, the peer's window or a
//! retransmission. RST is sent after the acknowledgement: it then has exactly the number that the peer
//! expects (RFC 5961 §3.2), and no data can be lost on the way.

use crate::api::{FailReason, State};
use crate::tcb::{Context, Ending, Fin, FinalTransmit, Tcb};

impl Tcb {
    /// See [`crate::Stack::reset`].
    pub(crate) fn reset(&mut self, cx: &mut Context<'_>) -> bool {
        if self.state == State::Resetting {
            return true;
        }
        if !self.is_synchronised() || self.is_delivered() {
            self.abort(cx);
            return false;
        }
        self.begin_reset(cx);
        true
    }

    /// Whether the peer has acknowledged all written data, and FIN if it was queued.
    fn is_delivered(&self) -> bool {
        self.send.len() == 0 && self.fin != Fin::Unacknowledged
    }

    /// Whether the caller may write.
    pub(crate) fn accepts_data(&self) -> bool {
        !matches!(self.state, State::Resetting | State::Done) && !self.fin.is_queued()
    }

    /// Begins the wait of a reset, or sends RST if there is nothing to wait for.
    pub(crate) fn begin_reset(&mut self, cx: &mut Context<'_>) {
        if self.is_delivered() {
            return self.send_reset(cx);
        }
        cx.counters.resets_delayed += 1;
        self.state = State::Resetting;
        self.write_blocked = false;
        self.discard_readable(cx);
        self.read_since = cx.now;
        self.extend_reset(cx);
        (self.maybe_transmit, self.rearm) = (true, true);
    }

    /// Restarts the time without progress.
    pub(crate) fn extend_reset(&mut self, cx: &Context<'_>) {
        let latest = self.read_since + cx.config.reset_wait;
        self.timers.linger = latest.min(cx.now + cx.config.reset_stall);
    }

    /// Discards the bytes that could be read. The window does not reopen for them ([`Tcb::window_field`]), so
    /// that at most the advertised number of bytes is discarded.
    fn discard_readable(&mut self, cx: &mut Context<'_>) {
        self.receive.consume(cx.blocks, self.receive.readable());
        (self.pending.readable, self.pending.peer_finished) = (false, false);
    }

    /// After a segment: discards its data, and sends RST if nothing is left to wait for.
    pub(crate) fn continue_reset(&mut self, cx: &mut Context<'_>) {
        self.discard_readable(cx);
        if self.is_delivered() {
            self.send_reset(cx);
        }
    }

    /// Ends the connection with RST.
    pub(crate) fn send_reset(&mut self, cx: &mut Context<'_>) {
        self.receive.clear(cx.blocks, cx.ranges);
        if self.closed {
            return self.fail(cx, FinalTransmit::Reset, FailReason::DataAfterClose);
        }
        cx.counters.aborted += 1;
        self.end(cx, FinalTransmit::Reset, Ending::Reset);
    }
}
