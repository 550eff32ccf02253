//! Detects a data thread that no longer takes turns, and counts what keeps it from its packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_types::{Duration, Instant};

/// Marks a sleeping thread. No turn begins at this time: a process would have to run for 584 years.
const SLEEPS: u64 = u64::MAX;

/// Work for the control thread that takes longer than this is counted: receive queues fill meanwhile.
const PAUSE_MAX: Duration = Duration::from_micros(500);

/// The progress of a worker in its data thread, readable by other threads.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The start of the current turn, in nanoseconds.
    turn: AtomicU64,
    /// The longest piece of work for the control thread, in nanoseconds.
    longest: AtomicU64,
    /// Pieces longer than `PAUSE_MAX`.
    pauses: AtomicU64,
}

impl Progress {
    pub(super) fn new() -> Self {
        let shared =
            Shared { turn: AtomicU64::new(SLEEPS), longest: AtomicU64::new(0), pauses: AtomicU64::new(0) };
        Progress(Arc::new(shared))
    }

    pub(super) fn turn(&self, now: Instant) {
        self.0.turn.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn sleeps(&self) {
        self.0.turn.store(SLEEPS, Ordering::Relaxed);
    }

    /// Records a piece of work for the control thread, during which the worker did not receive.
    pub(super) fn paused(&self, lasted: Duration) {
        let nanos = u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX);
        self.0.longest.fetch_max(nanos, Ordering::Relaxed);
        self.0.pauses.fetch_add(u64::from(lasted > PAUSE_MAX), Ordering::Relaxed);
    }

    /// Returns the duration of the current turn; zero while the thread sleeps.
    pub fn turn_lasts(&self, now: Instant) -> Duration {
        match self.0.turn.load(Ordering::Relaxed) {
            SLEEPS => Duration::ZERO,
            began => now.saturating_since(Instant::from_nanos(began)),
        }
    }

    /// Returns the longest piece of work for the control thread since the start, and how many pieces were
    /// longer than 500 µs.
    pub fn pauses(&self) -> (Duration, u64) {
        let longest = Duration::from_nanos(self.0.longest.load(Ordering::Relaxed));
        (longest, self.0.pauses.load(Ordering::Relaxed))
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

    #[test]
    fn only_long_pauses_count() {
        let progress = Progress::new();
        for micros in [20, 500, 700, 30] {
            progress.paused(Duration::from_micros(micros));
        }
        assert_eq!(progress.pauses(), (Duration::from_micros(700), 1));
    }
}
