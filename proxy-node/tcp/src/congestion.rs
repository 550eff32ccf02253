//! NewReno's congestion window (RFC 5681, RFC 6582), in bytes, with appropriate byte counting (RFC 3465).

/// The window of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    /// Bytes acknowledged towards the next segment of congestion avoidance.
    counted: u32,
    /// Most bytes in flight in this round trip and in the one before. What is in flight when an acknowledgement arrives
    /// is less, and the less the more acknowledgements arrive at once.
    flight: (u32, u32),
    /// What to go back to when a loss response turns out spurious: (cwnd, ssthresh).
    before: (u32, u32),
}

/// Larger windows than any receive window (RFC 7323 §2.3) serve nobody.
const CWND_MAX: u32 = 1 << 30;

impl Congestion {
    /// The window before the handshake.
    pub fn new() -> Self {
        Congestion { cwnd: 1, ssthresh: CWND_MAX, mss: 1, counted: 0, flight: (0, 0), before: (0, 0) }
    }

    /// Starts with `segments` segments of `mss` bytes; `lost_syn`: with one (RFC 6928 §2, RFC 5681 §3.1).
    pub fn start(&mut self, mss: u32, segments: u32, lost_syn: bool) {
        self.mss = mss.max(1);
        // RFC 6928 §2: min (10*MSS, max (2*MSS, 14600)), for another number of segments alike.
        let initial = (segments * self.mss).min((2 * self.mss).max(segments * 1460));
        self.cwnd = if lost_syn { self.mss } else { initial };
    }

    /// Segments are smaller from now on.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
    }

    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Something was sent; now `flight` bytes are in flight.
    pub fn on_transmit(&mut self, flight: u32) {
        self.flight.0 = self.flight.0.max(flight);
    }

    /// A round trip is over.
    pub fn on_round(&mut self) {
        self.flight = (0, self.flight.0);
    }

    fn flight(&self) -> u32 {
        self.flight.0.max(self.flight.1)
    }

    /// `acked` bytes were acknowledged; `after_timeout`: in the slow start that follows a timeout.
    pub fn on_ack(&mut self, acked: u32, after_timeout: bool) {
        let slow_start = self.cwnd < self.ssthresh;
        let flight = self.flight();
        // A window that was not used proves nothing about the path (RFC 7661 §4.1).
        let used = if slow_start { flight.saturating_mul(2) } else { flight + self.mss };
        if used < self.cwnd {
            return;
        }
        if slow_start {
            // RFC 3465 §2.3: after a timeout at most one segment per acknowledgement; otherwise every byte counts, so
            // that acknowledgements of 64 KB segments do not slow the start down.
            let growth = if after_timeout { acked.min(self.mss) } else { acked };
            self.cwnd = self.cwnd.saturating_add(growth).min(CWND_MAX);
            return;
        }
        // RFC 3465 §2.1: one segment per window of acknowledged bytes.
        self.counted = self.counted.saturating_add(acked);
        while self.counted >= self.cwnd {
            self.counted -= self.cwnd;
            self.cwnd = (self.cwnd + self.mss).min(CWND_MAX);
        }
    }

    /// Loss was found by acknowledgements (RFC 6675 §5 step 4.2).
    pub fn on_loss(&mut self) {
        self.reduce();
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer fired; `first`: for the first time since progress (RFC 5681 §3.1).
    pub fn on_timeout(&mut self, first: bool) {
        if first {
            self.reduce();
        }
        self.cwnd = self.mss;
    }

    fn reduce(&mut self) {
        self.before = (self.cwnd, self.ssthresh);
        self.ssthresh = (self.flight().min(self.cwnd) / 2).max(2 * self.mss);
        self.counted = 0;
    }

    /// The loss was none: back to where we were (RFC 4015 §3.2).
    pub fn undo(&mut self) {
        self.cwnd = self.cwnd.max(self.before.0);
        self.ssthresh = self.ssthresh.max(self.before.1);
        self.nothing_to_undo();
    }

    /// A retransmission begins that took nothing from the window.
    pub fn nothing_to_undo(&mut self) {
        self.before = (0, 0);
    }

    /// Nothing was sent for longer than a timeout (RFC 5681 §4.1).
    pub fn restart_after_idle(&mut self, segments: u32) {
        self.cwnd = self.cwnd.min(segments * self.mss).max(self.mss);
        self.counted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_a_segment_per_window() {
        let mut cc = Congestion::new();
        cc.start(1000, 10, false);
        assert_eq!(cc.cwnd(), 10_000);
        cc.on_transmit(10_000);
        for _ in 0..10 {
            cc.on_ack(1_000, false); // all at once, nothing is sent between them
        }
        assert_eq!(cc.cwnd(), 20_000);
        cc.on_round();
        cc.on_round();
        cc.on_transmit(2_000);
        cc.on_ack(1_000, false);
        assert_eq!(cc.cwnd(), 20_000, "not used, not grown");
        cc.on_transmit(20_000);
        cc.on_loss();
        assert_eq!((cc.cwnd(), cc.ssthresh()), (10_000, 10_000));
        for _ in 0..10 {
            cc.on_ack(1_000, false);
        }
        assert_eq!(cc.cwnd(), 11_000);
        cc.undo();
        assert_eq!(cc.cwnd(), 20_000);
        cc.on_timeout(true);
        cc.on_timeout(false);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (1_000, 10_000));
        cc.on_ack(8_000, true);
        assert_eq!(cc.cwnd(), 2_000);
    }
}
