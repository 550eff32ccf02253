//! Quantiles of recent times, from a histogram of fixed size.

use csp_types::Duration;

/// Classes: four to a power of two, from 4 ns to 117 ms and more.
const CLASSES: usize = 96;
/// Times in all classes at which each class is halved, so that recent ones count more.
const AGED: u32 = 1 << 15;

/// How many times of recent calls lie in each class. A quantile is the upper end of its class: at most a
/// quarter too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quantiles {
    classes: [u16; CLASSES],
    total: u32,
}

impl Default for Quantiles {
    fn default() -> Self {
        Quantiles { classes: [0; CLASSES], total: 0 }
    }
}

impl Quantiles {
    /// Records a time.
    pub fn record(&mut self, nanos: u64) {
        let class = &mut self.classes[class_of(nanos)];
        *class = class.saturating_add(1);
        self.total += 1;
        if self.total >= AGED {
            self.age();
        }
    }

    /// Halves all classes, if they have so many times.
    pub fn age_from(&mut self, at_least: u32) {
        if self.total >= at_least {
            self.age();
        }
    }

    fn age(&mut self) {
        self.classes.iter_mut().for_each(|class| *class /= 2);
        self.total = self.classes.iter().copied().map(u32::from).sum();
    }

    /// Adds the times of others.
    pub fn add(&mut self, other: &Quantiles) {
        // Below half of what a class holds, so that no sum is cut.
        let mut other = *other;
        for times in [&mut *self, &mut other] {
            if times.total >= AGED / 2 {
                times.age();
            }
        }
        self.classes
            .iter_mut()
            .zip(other.classes)
            .for_each(|(class, more)| *class = class.saturating_add(more));
        self.total = self.classes.iter().copied().map(u32::from).sum();
    }

    /// Returns the time within which so many of 1,000 calls ended; 0 if none was recorded.
    pub fn quantile(&self, permille: u32) -> Duration {
        let rank = (u64::from(self.total) * u64::from(permille)).div_ceil(1_000).max(1);
        let mut below = 0;
        for (class, count) in self.classes.iter().enumerate() {
            below += u64::from(*count);
            if below >= rank {
                return Duration::from_nanos(upper_end(class));
            }
        }
        Duration::ZERO
    }
}

/// Returns the class of a time: the power of two and the two bits below it.
fn class_of(nanos: u64) -> usize {
    let power = nanos.checked_ilog2().unwrap_or(0);
    let class = match power {
        0..=3 => (nanos / 4) as usize,
        _ => 4 * (power as usize - 3) + (nanos >> (power - 2) & 3) as usize,
    };
    class.min(CLASSES - 1)
}

/// Returns the longest time of a class.
fn upper_end(class: usize) -> u64 {
    match class {
        0..=3 => 4 * class as u64 + 3,
        _ => ((4 + class as u64 % 4 + 1) << (class / 4 + 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_are_a_quarter_wide_at_most() {
        for class in 0..CLASSES - 1 {
            let end = upper_end(class);
            assert_eq!((class_of(end), class_of(end + 1)), (class, class + 1), "{end}");
        }
        for nanos in [16, 99, 1_000, 123_456, 99_999_999] {
            let end = upper_end(class_of(nanos));
            assert!(nanos <= end && end < nanos + nanos / 4 + 1, "{nanos} {end}");
        }
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded_and_recent_times_count_more() {
        let mut times = Quantiles::default();
        assert_eq!(times.quantile(500), Duration::ZERO);
        (1..=1_000).for_each(|nanos| times.record(nanos));
        let (half, most) = (times.quantile(500).as_nanos(), times.quantile(990).as_nanos());
        assert!((500..625).contains(&half) && (990..1_250).contains(&most), "{half} {most}");
        let mut both = times;
        both.add(&times);
        assert_eq!(both.quantile(500), times.quantile(500));
        (0..4 * AGED).for_each(|_| times.record(5_000));
        assert!(times.quantile(10) >= Duration::from_micros(5), "{times:?}");
        let mut short = times;
        (0..8).for_each(|_| {
            short.age_from(400);
            (0..200).for_each(|_| short.record(10));
        });
        assert!(short.quantile(990) >= Duration::from_micros(5));
        (0..20).for_each(|_| {
            short.age_from(400);
            (0..200).for_each(|_| short.record(10));
        });
        assert!(short.quantile(990) < Duration::from_nanos(16), "{short:?}");
        (0..100).for_each(|_| both.add(&times));
        assert!(both.quantile(500) >= Duration::from_micros(5) && both.total < 2 * AGED, "{both:?}");
    }
}
