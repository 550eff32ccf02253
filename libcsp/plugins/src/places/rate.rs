//! Packets per second, from a counter that is read at irregular intervals.

use csp_types::{Duration, Instant};

/// Readings in shorter intervals are ignored.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Weight of a reading in the mean, as a divisor, so that a pause of a second between bursts does not count
/// as idle.
const PARTS: u128 = 4;

/// A mean of recent readings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    last: Option<(Instant, u64)>,
    mean: Option<u64>,
    busy: Duration,
}

impl Rate {
    /// Records a reading of the counter.
    pub(super) fn note(&mut self, now: Instant, packets: u64) {
        let Some((at, before)) = self.last else {
            self.last = Some((now, packets));
            return;
        };
        let elapsed = now.saturating_since(at);
        if elapsed < INTERVAL_MIN {
            return;
        }
        self.last = Some((now, packets));
        // The counter was reset, so that the rate of this interval is unknown.
        let Some(more) = packets.checked_sub(before) else { return };
        let rate = u128::from(more) * 1_000_000_000 / elapsed.as_nanos();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let mean = self.mean.unwrap_or(rate);
        // Rounded towards the reading, so that the mean reaches a constant rate.
        let rounding = if rate > mean { PARTS - 1 } else { 0 };
        let sum = u128::from(mean) * (PARTS - 1) + u128::from(rate) + rounding;
        self.mean = Some((sum / PARTS) as u64);
        if more > 0 {
            self.busy = self.busy.saturating_add(elapsed);
        }
    }

    /// Returns the mean, in packets per second.
    pub(super) fn mean(&self) -> Option<u64> {
        self.mean
    }

    /// Returns how long packets have been arriving.
    pub(super) fn busy(&self) -> Duration {
        self.busy
    }
}
