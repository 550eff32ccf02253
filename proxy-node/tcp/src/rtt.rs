//! Round-trip time and retransmission timeout (RFC 6298), without its floor of one second.

use core::time::Duration;

use crate::config::StackConfig;

/// The estimator of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Smoothed round-trip time; `None` before the first sample.
    srtt: Option<Duration>,
    variation: Duration,
    /// The timeout without backing off.
    base: Duration,
    backoff: u32,
}

impl Rtt {
    pub fn new(config: &StackConfig) -> Self {
        Rtt { srtt: None, variation: Duration::ZERO, base: config.rto_initial, backoff: 0 }
    }

    /// Takes in a sample.
    pub fn sample(&mut self, config: &StackConfig, rtt: Duration) {
        // RFC 6298 §2.2, §2.3
        let srtt = match self.srtt {
            None => {
                self.variation = rtt / 2;
                rtt
            }
            Some(srtt) => {
                self.variation = self.variation * 3 / 4 + srtt.abs_diff(rtt) / 4;
                srtt * 7 / 8 + rtt / 8
            }
        };
        self.srtt = Some(srtt);
        self.base = (srtt + self.variation * 4).clamp(config.rto_min, config.rto_max);
    }

    /// Smoothed round-trip time.
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt
    }

    /// The retransmission timeout.
    pub fn rto(&self, config: &StackConfig) -> Duration {
        self.base.saturating_mul(1 << self.backoff.min(20)).min(config.rto_max)
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// New data was acknowledged: the timeout is no longer backed off.
    pub fn progress(&mut self) {
        self.backoff = 0;
    }

    /// The SYN was retransmitted and nothing is known of the path (RFC 6298 §5.7).
    pub fn assume_slow(&mut self, config: &StackConfig) {
        if self.srtt.is_none() {
            self.base = (config.rto_initial * 3).min(config.rto_max);
        }
    }

    /// When a tail loss probe is due after the last transmission (RFC 8985 §7.2); `None` before the first sample.
    pub fn probe_timeout(&self, config: &StackConfig, single_segment: bool) -> Option<Duration> {
        // A single segment's acknowledgement may be delayed by the other side.
        let delayed = if single_segment { config.delayed_ack } else { Duration::ZERO };
        self.srtt.map(|srtt| (srtt * 2 + delayed).max(Duration::from_millis(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_samples_within_its_bounds() {
        let config = StackConfig::default();
        let mut rtt = Rtt::new(&config);
        assert_eq!(rtt.rto(&config), config.rto_initial);
        rtt.sample(&config, Duration::from_millis(100));
        assert_eq!(rtt.rto(&config), Duration::from_millis(300), "SRTT + 4 × SRTT/2");
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto(&config), Duration::from_millis(1200));
        rtt.progress();
        for _ in 0..100 {
            rtt.sample(&config, Duration::from_micros(100));
        }
        assert_eq!(rtt.rto(&config), config.rto_min);
        for _ in 0..60 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(&config), config.rto_max);
    }
}
