//! The clock of a node: hours away from any other's, drifting and stepping, as determined by a seed.

use csp_types::{Duration, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Largest deviation of a clock's rate, in parts per million: more than that of a quartz.
const DRIFT_PPM_MAX: i64 = 300;
/// Largest number of hours that a clock is ahead of the simulation's time.
const HOURS_MAX: u64 = 100;
/// Interval at which a clock steps forward. CLOCK_MONOTONIC never steps back.
const STEP_EVERY: Duration = Duration::from_secs(1);
/// Longest step: less than a link may be silent.
const STEP_MAX_US: u64 = 30_000;
const MILLION: i128 = 1_000_000;

/// One node's CLOCK_MONOTONIC as a function of the simulation's time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    ahead: u64,
    drift_ppm: i64,
    step: u64,
}

impl Clock {
    /// Returns the clock of a node of this name under a seed.
    pub(crate) fn of(seed: u64, name: &str) -> Self {
        let salt = name.bytes().fold(0_u64, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ salt.rotate_left(32) ^ 0x0063_6c6f_636b);
        Clock {
            ahead: random.random_range(0..HOURS_MAX * 3_600_000_000_000),
            drift_ppm: random.random_range(-DRIFT_PPM_MAX..=DRIFT_PPM_MAX),
            step: random.random_range(0..=STEP_MAX_US) * 1000 * u64::from(random.random_range(0..3) == 0),
        }
    }

    /// Returns what the clock shows at `now`.
    pub(crate) fn at(&self, now: Instant) -> Instant {
        let now = now.as_nanos();
        let drift = i128::from(now) * i128::from(self.drift_ppm) / MILLION;
        let steps = now / STEP_EVERY.as_nanos() as u64 * self.step;
        Instant::from_nanos((i128::from(now) + drift) as u64 + self.ahead + steps)
    }

    /// Returns when the clock shows `shown` or later, given the present time `now`: `now` if it does already.
    /// A step of the clock may bring that time forward; the caller advances in short intervals and calls
    /// again.
    pub(crate) fn when(&self, now: Instant, shown: Instant) -> Instant {
        let left = shown.saturating_since(self.at(now)).as_nanos() as i128;
        // Rounded up: a node woken too early would request the same time again.
        let real = left * MILLION / (MILLION + i128::from(self.drift_ppm)) + i128::from(left > 0);
        now + Duration::from_nanos(u64::try_from(real).unwrap_or(u64::MAX))
    }
}
