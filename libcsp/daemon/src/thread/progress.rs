//! Detects a data thread that no longer takes turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_types::{Duration, Instant};

/// Marks a sleeping thread. No turn begins at this time: a process would have to run for 584 years.
const SLEEPS: u64 = u64::MAX;

/// The start of a data thread's current turn, readable by other threads.
#[derive(Clone, Debug)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(super) fn new() -> Self {
        Progress(Arc::new(AtomicU64::new(SLEEPS)))
    }

    pub(super) fn turn(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn sleeps(&self) {
        self.0.store(SLEEPS, Ordering::Relaxed);
    }

    /// Returns the duration of the current turn; zero while the thread sleeps.
    pub fn turn_lasts(&self, now: Instant) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            SLEEPS => Duration::ZERO,
            began => now.saturating_since(Instant::from_nanos(began)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_turn_that_does_not_end_grows() {
        let (progress, at) = (Progress::new(), |s: u64| Instant::from_nanos(s * 1_000_000_000));
        assert_eq!(progress.turn_lasts(at(100)), Duration::ZERO, "not started");
        progress.turn(at(100));
        assert_eq!(progress.turn_lasts(at(107)), Duration::from_secs(7));
        progress.turn(at(107));
        assert_eq!(progress.turn_lasts(at(107)), Duration::ZERO, "the next turn");
        progress.sleeps();
        assert_eq!(progress.turn_lasts(at(200)), Duration::ZERO, "a sleeping thread is not stuck");
    }
}
