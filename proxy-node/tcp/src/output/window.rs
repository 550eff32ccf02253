//! The receive window: how much is offered, and when a change is worth telling (RFC 9293 §3.8.6.2.2).
//!
//! ```text
//!   last_ack_sent   rcv_nxt                     rcv_edge          what memory allows
//!        |--- not acknowledged ---|---- told window ----|---- not told yet ----|
//! ```

use core::time::Duration;

use csp_types::Instant;

use crate::seq::Seq;
use crate::tcb::{Context, Tcb};

/// A round trip, where none was measured.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(100);

impl Tcb {
    /// The right edge that memory allows: the connection's share less what waits to be read, and no more than a quarter
    /// of what is free for all, though two segments where the reader has read everything.
    fn allowed_edge(&self, cx: &Context<'_>) -> Seq {
        let readable = self.receive.readable();
        let own = self.receive_limit(cx).saturating_sub(readable);
        let free = u32::try_from(cx.blocks.free_bytes()).unwrap_or(u32::MAX);
        let least = if readable == 0 { 2 * u32::from(self.receive_mss) } else { 0 };
        let window = own.min(least.max(free / 4)).min(free).min(self.largest_window(cx));
        // Rounded down to what the field can say (RFC 7323 §2.3).
        self.rcv_nxt.plus(window >> self.receive_shift << self.receive_shift)
    }

    /// How many bytes the connection may have received ahead of its reader. What was told already stays told.
    pub fn receive_limit(&self, cx: &Context<'_>) -> u32 {
        cx.blocks.pressure().limit(self.receive.grown, cx.config.receive_window_initial)
    }

    /// The reader took `n` bytes. A window of what it reads per round trip keeps it busy, twice that lets the peer's
    /// congestion window double, and two segments are on their way to be acknowledged.
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

    /// The largest window that can be told: without window scaling the field's 65,535 bytes, whatever is configured.
    fn largest_window(&self, cx: &Context<'_>) -> u32 {
        self.receive_limit(cx).min(u32::from(u16::MAX) << self.receive_shift)
    }

    /// The window field of the next segment. An edge once told is not taken back (RFC 9293 §3.8.6, RFC 7323 §2.4), and
    /// moves on in steps of a segment at least.
    pub fn window_field(&mut self, cx: &Context<'_>, syn: bool) -> u16 {
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        let shift = if syn { 0 } else { self.receive_shift };
        let allowed = self.allowed_edge(cx);
        let step = (self.largest_window(cx) / 2).min(u32::from(self.receive_mss));
        let edge = if allowed.since(self.rcv_edge) >= step { allowed } else { self.rcv_edge };
        // Rounded up, lest an edge that was told moves back. Each time promises up to a unit more than may be held: a
        // peer that sends crumbs only to have us say so gets a quarter of the window that way, no more.
        let left = edge.since(self.rcv_nxt);
        let unit = 1 << shift;
        let whole = self.receive_limit(cx);
        let most = whole + whole / 4 - self.receive.readable().min(whole);
        let field = if left.next_multiple_of(unit) > most { left / unit } else { left.div_ceil(unit) };
        let field = field.min(u32::from(u16::MAX));
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt.plus(field << shift));
        field as u16
    }

    /// The reader took bytes: tells the peer where that opens the window significantly.
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

    /// A segment with the current acknowledgement was sent.
    pub fn on_ack_sent(&mut self) {
        self.last_ack_sent = self.rcv_nxt;
        self.ack_now = false;
        self.duplicate = None;
        self.delayed_ack = Instant::FAR_FUTURE;
    }
}
