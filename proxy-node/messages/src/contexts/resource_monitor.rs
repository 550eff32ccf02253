//! The Resource Monitor: counts the work of a context, and samples the length of its queues at
//! resource-management points.
//!
//! A point lies between two messages, every [`point_every`](super::ContextsConfig::point_every) of them.
//! Between points a context only counts.

use csp_handlers::Timing;
use csp_types::Duration;

use super::ContextsConfig;

/// Load of a context since the worker began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContextReport {
    /// Messages processed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Resource-management points.
    pub points: u64,
    /// Messages in the queue that was being served at the last point.
    pub waiting: u32,
    /// The largest number at any point.
    pub waiting_max: u32,
    /// Time of the calls that were measured.
    pub timing: Timing,
}

impl ContextReport {
    /// Returns the time of all calls, estimated from those that were measured.
    pub fn busy(&self) -> Duration {
        match self.timing.measured {
            0 => Duration::ZERO,
            measured => self.timing.total.mul_f64(self.messages as f64 / measured as f64),
        }
    }
}

#[derive(Debug)]
pub(super) struct ResourceMonitor {
    report: ContextReport,
    point_every: u32,
    to_point: u32,
    measure_every: u32,
    to_measure: u32,
}

impl ResourceMonitor {
    pub fn new(config: &ContextsConfig) -> Self {
        let (point_every, measure_every) = (config.point_every.max(1), config.measure_every.max(1));
        // The first call is measured.
        ResourceMonitor {
            report: ContextReport::default(),
            point_every,
            to_point: point_every,
            measure_every,
            to_measure: 1,
        }
    }

    /// Returns whether the next call must be measured.
    #[inline]
    pub fn measures(&mut self) -> bool {
        self.to_measure -= 1;
        if self.to_measure > 0 {
            return false;
        }
        self.to_measure = self.measure_every;
        true
    }

    pub fn measured(&mut self, time: Duration) {
        self.report.timing.record(time);
    }

    /// Counts a message taken from a queue in which `waiting` messages remain.
    #[inline]
    pub fn processed(&mut self, len: u32, waiting: usize) {
        self.report.messages += 1;
        self.report.bytes += u64::from(len);
        self.to_point -= 1;
        if self.to_point == 0 {
            self.to_point = self.point_every;
            self.report.points += 1;
            self.report.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
            self.report.waiting_max = self.report.waiting_max.max(self.report.waiting);
        }
    }

    pub fn report(&self) -> ContextReport {
        self.report
    }
}
