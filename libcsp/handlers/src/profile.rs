//! What handlers cost, as their context measures it.

use csp_types::Duration;

use crate::quantiles::Quantiles;

/// Time of the calls that were measured: a context measures some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// Calls that were measured.
    pub measured: u64,
    /// Their time.
    pub total: Duration,
    /// The longest.
    pub max: Duration,
    /// Exponentially weighted mean, in 1/16 ns.
    mean_16ths: u64,
    /// How long recent ones took.
    recent: Quantiles,
}

impl Timing {
    /// Records the time of a call.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 256);
        self.mean_16ths = match self.measured {
            0 => nanos * 16,
            // A weight of 1/16 for the newest.
            _ => self.mean_16ths - self.mean_16ths / 16 + nanos,
        };
        self.measured += 1;
        self.recent.record(nanos);
        self.total = self.total.saturating_add(time);
        self.max = self.max.max(time);
    }

    /// Has the calls of before count half as much in quantiles, if so many count: what is measured from now
    /// on shows sooner.
    pub fn age(&mut self, at_least: u32) {
        self.recent.age_from(at_least);
    }

    /// Returns the exponentially weighted mean, in which the newest call has a weight of 1/16.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean_16ths / 16)
    }

    /// Returns the time within which so many of 1,000 calls ended, recent ones counting more; 0 if none was
    /// measured.
    pub fn quantile(&self, permille: u32) -> Duration {
        self.recent.quantile(permille).min(self.max)
    }
}

/// Calls of a handler at one stage, or at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Messages processed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages emitted.
    pub emitted: u64,
    /// Bytes of those that the handler has made.
    pub bytes_made: u64,
    /// Calls that ended because an output had no room.
    pub full: u64,
    /// Calls that the handler has given up.
    pub faults: u64,
    /// Calls because of a timer.
    pub ticks: u64,
    /// Time.
    pub timing: Timing,
}

impl Profile {
    /// Adds the calls of another stage. The mean is that of the profile with more calls.
    pub fn add(&mut self, other: &Profile) {
        let timing = if other.timing.measured > self.timing.measured { other.timing } else { self.timing };
        let mut recent = self.timing.recent;
        recent.add(&other.timing.recent);
        self.timing = Timing {
            recent,
            measured: self.timing.measured + other.timing.measured,
            total: self.timing.total.saturating_add(other.timing.total),
            max: self.timing.max.max(other.timing.max),
            mean_16ths: timing.mean_16ths,
        };
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.emitted += other.emitted;
        self.bytes_made += other.bytes_made;
        self.full += other.full;
        self.faults += other.faults;
        self.ticks += other.ticks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_and_the_maximum_stays() {
        let mut timing = Timing::default();
        timing.record(Duration::from_nanos(1_000));
        assert_eq!(timing.mean(), Duration::from_nanos(1_000));
        (0..200).for_each(|_| timing.record(Duration::from_nanos(100)));
        assert!((100..110).contains(&timing.mean().as_nanos()), "{timing:?}");
        assert_eq!(timing.max, Duration::from_nanos(1_000));
        assert!((100..125).contains(&timing.quantile(500).as_nanos()), "{timing:?}");
        assert_eq!(timing.quantile(1_000), timing.max);
        timing.record(Duration::MAX);
        assert_eq!(timing.max, Duration::MAX);
    }
}
