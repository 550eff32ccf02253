//! How long it takes until a new policy is in force at every worker.

use std::sync::{Arc, Mutex, PoisonError};

use csp_telemetry::{MetricSource, MetricWriter};
use csp_types::{Duration, Instant};

/// What became of a policy at a worker.
#[derive(Debug)]
pub struct Applied {
    /// Everything of it is served, or what is not.
    pub done: Result<(), String>,
    /// When the worker began, and when the policy was in force there.
    pub span: (Instant, Instant),
}

/// Times of the policy in force.
#[derive(Clone, Debug, Default)]
pub struct ApplyTimes(Arc<Mutex<Times>>);

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    translated: Duration,
    all: Duration,
    worker: Duration,
}

impl ApplyTimes {
    /// Records a policy: when the daemon had received it, when it was translated, and what workers took.
    pub fn record(&self, (received, translated): (Instant, Instant), spans: &[(Instant, Instant)]) {
        let last = spans.iter().map(|(_, end)| *end).max().unwrap_or(translated);
        let longest = spans.iter().map(|(begun, end)| end.saturating_since(*begun)).max();
        let times = Times {
            translated: translated.saturating_since(received),
            all: last.saturating_since(received),
            worker: longest.unwrap_or_default(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }
}

impl MetricSource for ApplyTimes {
    fn collect(&self, out: &mut MetricWriter) {
        let times = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "How long the policy in force took: until it was translated and until it was in force at all workers, both from when this daemon had it, and the longest time of a worker";
        for (part, time) in [("translated", times.translated), ("all", times.all), ("worker", times.worker)] {
            out.gauge("csp_policy_apply_seconds", help, &[("part", part)], time.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_worker_counts() {
        let (times, at) = (ApplyTimes::default(), Instant::from_nanos);
        times.record((at(1_000), at(3_000)), &[(at(4_000), at(5_000)), (at(6_000), at(9_500))]);
        let seen = *times.0.lock().unwrap();
        let nanos = [seen.translated, seen.all, seen.worker].map(|time| time.as_nanos());
        assert_eq!(nanos, [2_000, 8_500, 3_500]);
    }
}
