//! Proportional rate reduction (RFC 9937): how much may be sent for each acknowledgement in fast recovery.

/// The state of one recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// Target window at the end of recovery, in bytes.
    ssthresh: u32,
    /// RecoverFS: bytes in flight when recovery began.
    flight: u32,
    delivered: u32,
    out: u32,
    cwnd: u32,
}

impl Prr {
    /// RFC 9937 §6.1: recovery begins. `flight`: RecoverFS; `in_flight`: bytes still in the network.
    pub fn begin(ssthresh: u32, flight: u32, in_flight: u32, mss: u32) -> Self {
        // One segment is sent in any case.
        Prr { ssthresh, flight: flight.max(1), delivered: 0, out: 0, cwnd: in_flight + mss }
    }

    /// The window while recovery lasts, in bytes.
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// RFC 9937 §6.2: an acknowledgement delivered `delivered` bytes and left `in_flight` in the network.
    /// `safe`: SND.UNA advanced and no further loss was detected.
    pub fn on_ack(&mut self, delivered: u32, in_flight: u32, safe: bool, mss: u32) {
        if delivered == 0 {
            return;
        }
        self.delivered = self.delivered.saturating_add(delivered);
        let count = if in_flight > self.ssthresh {
            let share =
                (u64::from(self.delivered) * u64::from(self.ssthresh)).div_ceil(u64::from(self.flight));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            // Conservative by default (PRR-CRB); one segment more per acknowledgement if it is safe
            // (PRR-SSRB).
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            bound.saturating_add(if safe { mss } else { 0 }).min(self.ssthresh - in_flight)
        };
        // The first retransmission is sent immediately.
        let count = if self.out == 0 { count.max(mss) } else { count };
        self.cwnd = in_flight.saturating_add(count);
    }

    /// Loss was detected between acknowledgements: the bytes it removes from the network must not permit more
    /// than the target.
    pub fn on_loss(&mut self, in_flight: u32, mss: u32) {
        self.cwnd = self.cwnd.min(self.ssthresh.max(in_flight + mss));
    }

    /// `len` bytes were sent.
    pub fn on_transmit(&mut self, len: u32) {
        self.out = self.out.saturating_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// Plays a recovery with one acknowledgement per segment, sending all that is allowed.
    fn play(flight: u32, lost: u32, ssthresh: u32) -> (u32, Vec<u32>) {
        let mut in_flight = flight - lost;
        let mut prr = Prr::begin(ssthresh, flight, in_flight, MSS);
        let mut sent = Vec::new();
        for _ in 0..(flight - lost) / MSS {
            in_flight -= MSS;
            prr.on_ack(MSS, in_flight, false, MSS);
            let now = prr.cwnd().saturating_sub(in_flight) / MSS * MSS;
            prr.on_transmit(now);
            in_flight += now;
            sent.push(now / MSS);
        }
        (in_flight, sent)
    }

    #[test]
    fn one_loss_of_many_halves_the_flight_evenly_over_the_round() {
        let (in_flight, sent) = play(20 * MSS, MSS, 10 * MSS);
        assert_eq!(in_flight, 10 * MSS);
        assert_eq!(sent[0], 1, "the retransmission goes at once");
        assert!(sent.windows(4).all(|w| w.iter().sum::<u32>() <= 3), "no bursts: {sent:?}");
    }

    #[test]
    fn heavy_loss_is_filled_no_faster_than_segments_are_delivered() {
        let (in_flight, sent) = play(20 * MSS, 15 * MSS, 10 * MSS);
        assert_eq!(in_flight, 5 * MSS);
        assert_eq!(sent, [1, 1, 1, 1, 1]);
        let mut prr = Prr::begin(10 * MSS, 20 * MSS, 5 * MSS, MSS);
        prr.on_ack(MSS, 4 * MSS, true, MSS);
        assert_eq!(prr.cwnd(), 6 * MSS, "one more where all goes well");
    }
}
