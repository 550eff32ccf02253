//! Pacing: data leaves at the rate that congestion control says, in bursts of about a millisecond.
//!
//! ```text
//!   bytes
//!    ▲        ╱ rate             a window as one burst overflows queues that carry the same window spread over the
//!    │     ┌─┘                   round trip; a millisecond's worth at once costs the queue little and lets segments
//!    │  ┌─┘                      leave by 64 KB. Where the round trip is shorter than that, the whole window is one
//!    │┌┘                         burst, and pacing costs nothing.
//!    └──┴──┴──┴──▶ time (1 ms)
//! ```
//!
//! New data and retransmissions pass the gate. Acknowledgements, probes, a bare FIN, and what loss recovery must send at
//! once do not wait; what they carry is accounted for.

use core::time::Duration;

use csp_types::Instant;

use crate::tcb::{Context, Tcb};

/// What may leave at once: as much as the rate carries in this time.
const BURST: Duration = Duration::from_millis(1);
/// And at least so many segments.
const BURST_SEGMENTS: u32 = 2;

impl Tcb {
    /// Bytes per second that may leave; `None`: not paced.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.congestion.pacing_rate(self.rtt.srtt()).filter(|&rate| self.options.pacing && rate > 0)
    }

    /// How many bytes may leave at once now; 0: none yet, and the pacing timer runs. `size` is a segment's.
    pub fn paced_room(&mut self, cx: &Context<'_>, size: u32) -> u32 {
        let Some(rate) = self.pacing_rate() else { return u32::MAX };
        // With nothing in flight there is no burst to be broken up, and no acknowledgement to wait for.
        if self.timers.paced_until > cx.now && self.outstanding() > 0 {
            self.timers.pacing = true;
            return 0;
        }
        let burst = u32::try_from(rate / (1_000_000_000 / BURST.as_nanos() as u64)).unwrap_or(u32::MAX);
        burst.max(BURST_SEGMENTS * size).max(self.first_burst(cx))
    }

    /// `len` bytes leave now.
    pub fn note_paced(&mut self, cx: &Context<'_>, len: u32) {
        let Some(rate) = self.pacing_rate() else { return };
        let time_of = |bytes: u32| u64::from(bytes).saturating_mul(1_000_000_000) / rate;
        // What was not used lately may be made up for: timers are late, applications hesitate.
        let credit = time_of(self.first_burst(cx)).max(BURST.as_nanos() as u64);
        let least = cx.now.as_nanos().saturating_sub(credit);
        let from = match self.outstanding() {
            0 => least,
            _ => self.timers.paced_until.as_nanos().max(least),
        };
        self.timers.paced_until = Instant::from_nanos(from.saturating_add(time_of(len)));
        self.timers.pacing = false;
    }

    /// The first flight after a pause is an initial window at once (RFC 6928 §2).
    fn first_burst(&self, cx: &Context<'_>) -> u32 {
        match self.outstanding() {
            0 => cx.config.initial_window_segments.saturating_mul(u32::from(self.mss())),
            _ => 0,
        }
    }
}
