//! NewReno's window in congestion avoidance (RFC 5681, RFC 6582), with appropriate byte counting (RFC 3465).

use super::Window;

/// State of NewReno.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew by a segment.
    counted: u32,
}

impl NewReno {
    /// Processes `acked` acknowledged bytes while the window is used.
    pub fn on_ack(&mut self, window: &mut Window, acked: u32) {
        // RFC 3465 §2.1: growth by one segment per window of acknowledged bytes.
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

    /// Discards the count of acknowledged bytes.
    pub fn reset(&mut self) {
        self.counted = 0;
    }
}
