//! A node's processors: one queue in the order of arrival, any number of servers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Picoseconds;

/// Processors of a node. Jobs are admitted in the order of time, so that start and end of each are
/// known when it arrives: no event is needed for the queue itself.
#[derive(Clone, Debug)]
pub struct Station {
    /// When each processor is free.
    free: BinaryHeap<Reverse<Picoseconds>>,
    speed: f64,
    counters: StationCounters,
}

/// What a station has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct StationCounters {
    /// Jobs admitted.
    pub jobs: u64,
    /// Processor time of all jobs, picoseconds.
    pub busy: u64,
    /// Time that all jobs waited, picoseconds.
    pub waited: u64,
}

impl Station {
    /// `speed`: a job of 100 ns takes 50 at speed 2.
    pub fn new(processors: u32, speed: f64) -> Self {
        Station {
            free: (0..processors.max(1)).map(|_| Reverse(0)).collect(),
            speed,
            counters: StationCounters::default(),
        }
    }

    /// Admits a job of `work` picoseconds at speed 1; returns when it starts and when it ends.
    pub fn admit(&mut self, now: Picoseconds, work: f64) -> (Picoseconds, Picoseconds) {
        let time = self.scaled(work);
        let Some(mut first) = self.free.peek_mut() else { return (now, now + time) };
        let start = first.0.max(now);
        let end = start + time;
        *first = Reverse(end);
        drop(first);
        self.counters.jobs += 1;
        self.counters.busy += time;
        self.counters.waited += start - now;
        (start, end)
    }

    /// Returns how long work takes on a processor of this station.
    pub fn scaled(&self, work: f64) -> Picoseconds {
        (work / self.speed).round() as Picoseconds
    }

    /// Returns what the station has done.
    pub fn counters(&self) -> StationCounters {
        self.counters
    }

    /// Share of the processors' time up to `now` that admitted jobs take; work queued beyond `now`
    /// counts, so a station that cannot keep up has more than 1.
    pub fn utilisation(&self, now: Picoseconds) -> f64 {
        self.counters.busy as f64 / (now.max(1) as f64 * self.free.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Station;

    #[test]
    fn jobs_wait_for_the_processor_that_is_free_first() {
        let mut station = Station::new(2, 2.0);
        assert_eq!(station.admit(0, 200.0), (0, 100));
        assert_eq!(station.admit(10, 20.0), (10, 20));
        assert_eq!(station.admit(10, 20.0), (20, 30));
        assert_eq!(station.admit(25, 20.0), (30, 40));
        let counters = station.counters();
        assert_eq!((counters.jobs, counters.busy, counters.waited), (4, 130, 15));
        assert!((station.utilisation(100) - 0.65).abs() < 1e-9);
    }
}
