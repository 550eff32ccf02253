//! Pacing: data is sent at the rate that congestion control computes, in bursts of about a millisecond.
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
//! New data and retransmissions are delayed by pacing. Acknowledgements, probes, a bare FIN and
//! retransmissions that loss recovery forces are not; their bytes are accounted for.

use core::time::Duration;

use csp_types::Instant;

use crate::tcb::{Context, Tcb};

/// Duration of a burst: as much data as the rate carries in this time is sent at once.
const BURST: Duration = Duration::from_millis(1);
/// Smallest burst in segments.
const BURST_SEGMENTS: u32 = 2;

impl Tcb {
    /// The pacing rate in bytes per second; `None` if the connection is not paced.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.congestion.pacing_rate(self.rtt.srtt()).filter(|&rate| self.options.pacing && rate > 0)
    }

    /// How many bytes may be sent at once now. If it is 0, the pacing timer is started. `size` is the payload
    /// of a segment.
    pub fn paced_room(&mut self, cx: &Context<'_>, size: u32) -> u32 {
        let Some(rate) = self.pacing_rate() else { return u32::MAX };
        // With nothing in flight there is no earlier burst to be spaced from, and no acknowledgement to wait
        // for.
        if self.timers.paced_until > cx.now && self.outstanding() > 0 {
            self.timers.pacing = true;
            return 0;
        }
        let burst = u32::try_from(rate / (1_000_000_000 / BURST.as_nanos() as u64)).unwrap_or(u32::MAX);
        burst.max(BURST_SEGMENTS * size).max(self.first_burst(cx))
    }

    /// Accounts for `len` bytes that are sent now.
    pub fn note_paced(&mut self, cx: &Context<'_>, len: u32) {
        let Some(rate) = self.pacing_rate() else { return };
        let time_of = |bytes: u32| u64::from(bytes).saturating_mul(1_000_000_000) / rate;
        // Unused sending time is credited up to a bound, because timers fire late and applications pause.
        let credit = time_of(self.first_burst(cx)).max(BURST.as_nanos() as u64);
        let least = cx.now.as_nanos().saturating_sub(credit);
        let from = match self.outstanding() {
            0 => least,
            _ => self.timers.paced_until.as_nanos().max(least),
        };
        self.timers.paced_until = Instant::from_nanos(from.saturating_add(time_of(len)));
        self.timers.pacing = false;
    }

    /// The first flight after an idle period may be an initial window at once (RFC 6928 §2).
    fn first_burst(&self, cx: &Context<'_>) -> u32 {
        match self.outstanding() {
            0 => cx.config.initial_window_segments.saturating_mul(u32::from(self.mss())),
            _ => 0,
        }
    }
}
