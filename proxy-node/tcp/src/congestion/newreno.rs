//! NewReno's window (RFC 5681, RFC 6582), with appropriate byte counting (RFC 3465).

use super::{AckSample, Window};
use crate::scoreboard::Phase;

/// What it remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged towards the next segment of congestion avoidance.
    counted: u32,
}

impl NewReno {
    pub fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        if window.in_slow_start() {
            // RFC 3465 §2.3: after a timeout at most one segment per acknowledgement; otherwise every byte counts, so
            // that acknowledgements of 64 KB segments do not slow the start down.
            let growth =
                if sample.phase == Phase::Timeout { sample.acked.min(window.mss) } else { sample.acked };
            return window.grow(growth);
        }
        // RFC 3465 §2.1: one segment per window of acknowledged bytes.
        self.counted = self.counted.saturating_add(sample.acked);
        while self.counted >= window.cwnd {
            self.counted -= window.cwnd;
            window.grow(window.mss);
        }
    }

    /// RFC 5681 §3.1, equation 4.
    pub fn reduce(&mut self, window: &mut Window) {
        window.ssthresh = (window.flight().min(window.cwnd) / 2).max(2 * window.mss);
        self.forget();
    }

    /// What was counted says nothing any more.
    pub fn forget(&mut self) {
        self.counted = 0;
    }
}
