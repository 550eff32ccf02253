//! Round-trip time and retransmission timeout (RFC 6298). Instead of a minimum of one second for the timeout
//! there is a minimum for its variation term.

use core::time::Duration;

use csp_types::Instant;

use crate::config::StackConfig;
use crate::seq::Seq;

/// Granularity of the peer's delayed acknowledgement timer in the coarsest case.
const PEER_TICK: Duration = Duration::from_millis(10);

/// Period of the minimum: it is taken over the current period and the previous one.
const MINIMUM_PERIOD: Duration = Duration::from_secs(150);

/// The estimator of one connection, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Smoothed round-trip time; 0 before the first sample.
    srtt: u32,
    /// Smoothed deviation of samples from `srtt`; its maximum in the current round trip; and the RTTVAR used
    /// for the timeout.
    deviation: u32,
    peak: u32,
    variation: u32,
    /// The current round trip ends when this sequence number is acknowledged.
    round_end: Seq,
    /// The shortest round trip of the current period and of the previous one, and when the current one began.
    minimum: (u32, u32),
    minimum_since: Instant,
    backoff: u8,
    /// The SYN was retransmitted (RFC 6298 §5.7).
    syn_retransmitted: bool,
}

impl Rtt {
    pub fn new() -> Self {
        Rtt {
            srtt: 0,
            deviation: 0,
            peak: 0,
            variation: 0,
            round_end: Seq(0),
            minimum: (u32::MAX, u32::MAX),
            minimum_since: Instant::ZERO,
            backoff: 0,
            syn_retransmitted: false,
        }
    }

    /// Processes a sample and resets the back-off; `una` and `nxt` delimit round trips.
    pub fn sample(&mut self, rtt: Duration, una: Seq, nxt: Seq) {
        let rtt = micros(rtt);
        self.backoff = 0;
        if self.srtt == 0 {
            // RFC 6298 §2.2
            (self.srtt, self.deviation, self.variation) = (rtt, rtt / 2, rtt / 2);
            (self.peak, self.round_end) = (0, nxt);
            return;
        }
        // RFC 6298 §2.3. Every acknowledgement is a sample, so within a round trip the deviation no longer
        // reflects the samples at its beginning (RFC 7323 appendix G). The timeout therefore uses the
        // maximum, which decreases once per round trip.
        self.deviation = (self.deviation * 3 + self.srtt.abs_diff(rtt) + 2) / 4;
        self.srtt = ((self.srtt * 7 + rtt + 4) / 8).max(1);
        self.peak = self.peak.max(self.deviation);
        self.variation = self.variation.max(self.peak);
        if una.after(self.round_end) {
            self.variation -= (self.variation - self.peak) / 4;
            (self.peak, self.round_end) = (0, nxt);
        }
    }

    /// Processes a sample of the shortest round trip.
    pub fn sample_min(&mut self, rtt: Duration, now: Instant) {
        if now.saturating_since(self.minimum_since) > MINIMUM_PERIOD {
            self.minimum = (u32::MAX, self.minimum.0);
            self.minimum_since = now;
        }
        self.minimum.0 = self.minimum.0.min(micros(rtt));
    }

    /// Smoothed round-trip time; `None` before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt > 0).then(|| Duration::from_micros(u64::from(self.srtt)))
    }

    /// The shortest round trip of the last minutes.
    pub fn min(&self) -> Option<Duration> {
        let least = self.minimum.0.min(self.minimum.1);
        (least != u32::MAX).then(|| Duration::from_micros(u64::from(least)))
    }

    /// The timeout without back-off.
    fn base(&self, config: &StackConfig) -> Duration {
        let Some(srtt) = self.srtt() else {
            // RFC 6298 §5.7
            return if self.syn_retransmitted { config.rto_initial * 3 } else { config.rto_initial };
        };
        // RFC 6298 §2.3, with the minimum applied to max (G, 4 * RTTVAR), because acknowledgements may be
        // delayed whatever the round trip.
        srtt + Duration::from_micros(u64::from(self.variation) * 4).max(config.rto_min)
    }

    /// The retransmission timeout.
    pub fn rto(&self, config: &StackConfig) -> Duration {
        self.base(config).saturating_mul(1 << self.backoff.min(20)).min(config.rto_max)
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Resets the back-off.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Records that the SYN was retransmitted: until the first sample nothing is known about the path.
    pub fn note_syn_retransmitted(&mut self) {
        self.syn_retransmitted = true;
    }

    /// Delay of a tail loss probe after the last transmission (RFC 8985 §7.2); `None` before the first
    /// sample. `delayed`: the peer may delay its acknowledgement; the delay is assumed to be our own
    /// (TLP.max_ack_delay).
    pub fn probe_timeout(&self, config: &StackConfig, delayed: bool) -> Option<Duration> {
        let delay = if delayed { config.delayed_ack + PEER_TICK } else { Duration::ZERO };
        self.srtt().map(|srtt| (srtt * 2 + delay).max(Duration::from_millis(2)))
    }
}

/// Whole microseconds, 1 at least.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX / 16).clamp(1, u32::MAX / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_samples_within_its_bounds() {
        let config = StackConfig::default();
        let mut rtt = Rtt::new();
        assert_eq!(rtt.rto(&config), config.rto_initial);
        rtt.sample(Duration::from_millis(200), Seq(1), Seq(2));
        assert_eq!(rtt.rto(&config), Duration::from_millis(600), "SRTT + 4 × SRTT/2");
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto(&config), Duration::from_millis(2400));
        rtt.reset_backoff();
        for n in 0..300 {
            rtt.sample(Duration::from_millis(10), Seq(n), Seq(n + 1));
        }
        let rto = rtt.rto(&config);
        assert!(
            rto >= config.rto_min + Duration::from_millis(10) && rto < Duration::from_millis(215),
            "{rto:?}"
        );
        for _ in 0..60 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(&config), config.rto_max);
    }

    #[test]
    fn samples_of_one_round_trip_do_not_drown_its_outlier() {
        let config = StackConfig { rto_min: Duration::from_millis(1), ..StackConfig::default() };
        let mut rtt = Rtt::new();
        for n in 0..100 {
            rtt.sample(Duration::from_millis(100), Seq(n), Seq(n + 1));
        }
        let quiet = rtt.rto(&config);
        rtt.sample(Duration::from_millis(300), Seq(100), Seq(200));
        for n in 101..200 {
            rtt.sample(Duration::from_millis(100), Seq(n), Seq(n + 100));
        }
        assert!(quiet < Duration::from_millis(105) && rtt.rto(&config) > Duration::from_millis(290));
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_some_minutes() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.min(), None);
        let mut now = Instant::from_nanos(1);
        rtt.sample_min(Duration::from_millis(5), now);
        for _ in 0..400 {
            now += Duration::from_secs(1);
            rtt.sample_min(Duration::from_millis(9), now);
            assert!(
                now > Instant::from_nanos(1) + MINIMUM_PERIOD || rtt.min() == Some(Duration::from_millis(5))
            );
        }
        assert_eq!(rtt.min(), Some(Duration::from_millis(9)));
    }
}
