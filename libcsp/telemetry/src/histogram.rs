//! A latency histogram for data workers: fixed buckets, plain numbers, no allocation.

use std::time::Duration;

/// Upper bounds of the buckets in nanoseconds: 1 µs to 1 s in steps of 1, 2, 5. Longer durations count in the
/// +Inf bucket.
pub const LATENCY_BUCKETS_NS: [u64; 19] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

/// A histogram of durations over the buckets of [`LATENCY_BUCKETS_NS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u64; LATENCY_BUCKETS_NS.len() + 1],
    sum_ns: u64,
}

impl LatencyHistogram {
    /// Counts one observation.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BUCKETS_NS.partition_point(|&bound| bound < nanos);
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos);
    }

    /// Adds the counts of `other`, for instance to sum up workers.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all observations in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Observations per bucket (not cumulative) with the bucket's upper bound in seconds; the last bound is
    /// infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = LATENCY_BUCKETS_NS.iter().map(|&ns| ns as f64 / 1e9).chain([f64::INFINITY]);
        bounds.zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_lands_in_the_first_bucket_that_holds_it() {
        let mut histogram = LatencyHistogram::default();
        for nanos in [1_000, 1_001, 2_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let filled: Vec<(f64, u64)> = histogram.buckets().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled, [(1e-6, 1), (2e-6, 1), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 3);
    }
}
