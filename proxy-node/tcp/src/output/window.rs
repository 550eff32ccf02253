//! The receive window: its size, and when a change is advertised (RFC 9293 §3.8.6.2.2).
//!
//! ```text
//!   last_ack_sent            rcv_nxt                  rcv_edge                allowed_edge
//!        |--- not acknowledged ---|-- advertised window --|-- not advertised yet --|
//! ```

use core::time::Duration;

use csp_types::Instant;

use crate::api::State;
use crate::seq::Seq;
use crate::tcb::{Context, Tcb};

/// Assumed round-trip time before the first measurement.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(100);

impl Tcb {
    /// The right edge that memory permits: the connection's limit less unread data, and at most a quarter of
    /// the free memory, but at least two segments if the application has read everything.
    fn allowed_edge(&self, cx: &Context<'_>) -> Seq {
        let readable = self.receive.readable();
        let own = self.receive_limit(cx).saturating_sub(readable);
        let free = u32::try_from(cx.blocks.free_bytes()).unwrap_or(u32::MAX);
        let least = if readable == 0 { 2 * u32::from(self.receive_mss) } else { 0 };
        let window = own.min(least.max(free / 4)).min(free).min(self.largest_window(cx));
        // Rounded down to a multiple of the scaled unit (RFC 7323 §2.3).
        self.rcv_nxt.plus(window >> self.receive_shift << self.receive_shift)
    }

    /// Most bytes that the connection may have received and not yet delivered to its reader. A window that
    /// was already advertised stays valid.
    pub fn receive_limit(&self, cx: &Context<'_>) -> u32 {
        cx.blocks.pressure().limit(self.receive.grown, cx.config.receive_window_initial)
    }

    /// Adapts the window after the application read `n` bytes. The target is twice what it reads per round
    /// trip, so that the peer's congestion window can double, plus two segments that are still to be
    /// acknowledged.
    pub fn tune_receive_window(&mut self, cx: &Context<'_>, n: u32) {
        self.read_bytes = self.read_bytes.saturating_add(n);
        let round_trip = self.rtt.srtt().unwrap_or(ROUND_TRIP_UNKNOWN);
        if cx.now.saturating_since(self.read_since) < round_trip {
            return;
        }
        let wanted = self.read_bytes.saturating_mul(2).saturating_add(2 * u32::from(self.receive_mss));
        let allowed = wanted.min(cx.config.receive_window_max);
        (self.read_bytes, self.read_since) = (0, cx.now);
        cx.blocks.pressure().tune(&mut self.receive.grown, allowed);
    }

    /// The largest window that can be advertised: without window scaling it is the field's maximum of 65,535
    /// bytes, whatever is configured.
    fn largest_window(&self, cx: &Context<'_>) -> u32 {
        self.receive_limit(cx).min(u32::from(u16::MAX) << self.receive_shift)
    }

    /// Computes the window field of the next segment and records the advertised edge. The edge never moves
    /// back (RFC 9293 §3.8.6, RFC 7323 §2.4) and advances in steps of at least a segment.
    pub fn window_field(&mut self, cx: &Context<'_>, syn: bool) -> u16 {
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        let shift = if syn { 0 } else { self.receive_shift };
        let allowed = self.allowed_edge(cx);
        let step = (self.largest_window(cx) / 2).min(u32::from(self.receive_mss));
        // The data has no reader while a reset waits.
        let opens = allowed.since(self.rcv_edge) >= step && self.state != State::Resetting;
        let edge = if opens { allowed } else { self.rcv_edge };
        // Rounded up, so that the advertised edge does not move back. Each rounding may promise up to one
        // unit more than memory permits; a peer that sends tiny segments to provoke it gains at most a
        // quarter of the window.
        let left = edge.since(self.rcv_nxt);
        let unit = 1 << shift;
        let whole = self.receive_limit(cx);
        let most = whole + whole / 4 - self.receive.readable().min(whole);
        let field = if left.next_multiple_of(unit) > most { left / unit } else { left.div_ceil(unit) };
        let field = field.min(u32::from(u16::MAX));
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt.plus(field << shift));
        field as u16
    }

    /// After a read: requests a window update if the window opened significantly.
    pub fn after_read(&mut self, cx: &Context<'_>) {
        if !self.receives() {
            return;
        }
        let gain = self.allowed_edge(cx).since(self.rcv_edge);
        let left = self.rcv_edge.since(self.rcv_nxt);
        let whole = self.largest_window(cx);
        let nearly_closed = left < whole / 8 && gain >= (2 * u32::from(self.receive_mss)).min(whole / 2);
        if gain >= whole / 4 || nearly_closed {
            self.ack_now = true;
            self.maybe_transmit = true;
        }
    }

    /// Records that a segment with the current acknowledgement was sent.
    pub fn on_ack_sent(&mut self) {
        self.last_ack_sent = self.rcv_nxt;
        self.ack_now = false;
        self.duplicate = None;
        self.delayed_ack = Instant::FAR_FUTURE;
    }
}
