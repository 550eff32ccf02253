//! Retry times: exponential back-off with seeded jitter.

use csp_types::{Duration, Instant};

/// Bounds of a back-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackoffConfig {
    /// The first delay.
    pub first: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for BackoffConfig {
    /// 50 ms up to 2 s.
    fn default() -> Self {
        BackoffConfig { first: Duration::from_millis(50), max: Duration::from_secs(2) }
    }
}

/// The back-off of one peer. Delays double up to the maximum. Each delay is drawn from the upper half of its
/// range, so that peers that failed at the same time do not retry at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    config: BackoffConfig,
    failures: u32,
    state: u64,
    not_before: Instant,
}

impl Backoff {
    /// A back-off whose first attempt is allowed at once. Equal seeds give equal delays.
    pub const fn new(config: BackoffConfig, seed: u64) -> Self {
        Backoff { config, failures: 0, state: seed, not_before: Instant::ZERO }
    }

    /// The earliest time of the next attempt.
    pub const fn next_try(&self) -> Instant {
        self.not_before
    }

    /// Whether an attempt is allowed at `now`.
    pub fn ready(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// Records a failed attempt (or a lost link). Sets and returns the time of the next attempt.
    pub fn failed(&mut self, now: Instant) -> Instant {
        let first = u64::try_from(self.config.first.as_nanos()).unwrap_or(u64::MAX);
        let max = u64::try_from(self.config.max.as_nanos()).unwrap_or(u64::MAX);
        let full = first.saturating_mul(1u64 << self.failures.min(32)).min(max);
        self.failures = self.failures.saturating_add(1);
        let half = full / 2;
        let jitter = self.random() % (full - half + 1).max(1);
        self.not_before = now + Duration::from_nanos(half + jitter);
        self.not_before
    }

    /// Records a success: the delay after the next failure is the first delay again.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): spreads retries, needs no secrecy.
    const fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_start_over_after_success() {
        let config = BackoffConfig::default();
        let mut backoff = Backoff::new(config, 7);
        assert!(backoff.ready(Instant::ZERO));
        let mut now = Instant::ZERO;
        for full_ms in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.failed(now) - now;
            assert!(
                delay >= Duration::from_millis(full_ms / 2) && delay <= Duration::from_millis(full_ms),
                "{delay:?}"
            );
            assert!(!backoff.ready(now));
            now = backoff.next_try();
            assert!(backoff.ready(now));
        }
        backoff.succeeded();
        assert!(backoff.failed(now) - now <= config.first);
    }

    #[test]
    fn other_seeds_give_other_delays() {
        let delay = |seed| Backoff::new(BackoffConfig::default(), seed).failed(Instant::ZERO);
        assert_eq!(delay(1), delay(1));
        assert_ne!(delay(1), delay(2));
    }
}
