//! NewReno's window in congestion avoidance (RFC 5681, RFC 6582), with appropriate byte counting (RFC 3465).

use super::Window;

/// What it remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged towards the next segment.
    counted: u32,
}

impl NewReno {
    /// `acked` bytes were acknowledged and the window was used.
    pub fn on_ack(&mut self, window: &mut Window, acked: u32) {
        // RFC 3465 §2.1: one segment per window of acknowledged bytes.
        self.counted = self.counted.saturating_add(acked);
        while self.counted >= window.cwnd {
            self.counted -= window.cwnd;
            window.grow(window.mss);
        }
    }

    /// RFC 5681 §3.1, equation 4.
    pub fn reduce(&mut self, window: &mut Window) {
        window.ssthresh = (window.flight().min(window.cwnd) / 2).max(2 * window.mss);
        self.reset();
    }

    /// What was counted says nothing any more.
    pub fn reset(&mut self) {
        self.counted = 0;
    }
}
