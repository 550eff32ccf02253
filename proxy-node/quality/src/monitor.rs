//! Monitoring: counters that always run, and meters that can be switched on.
//!
//! A meter counts through one window after the other and shows the last whole one, so that it costs a
//! comparison and a few additions an item whatever the number of flows, and nothing at a resource-management
//! point.

use csp_types::{Duration, Instant};

pub use csp_types::options::MonitorMode;

/// Where triggers look at what is metered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MonitorFrequency {
    /// At the resource-management points of every context.
    Frequent,
    /// In the control context, once in this time.
    Infrequent(Duration),
}

/// How a resource manager watches itself. Can be changed at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MonitorConfig {
    /// What is metered.
    pub mode: MonitorMode,
    /// Where triggers look at it.
    pub frequency: MonitorFrequency,
    /// The window of rates and delays.
    pub window: Duration,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        MonitorConfig {
            mode: MonitorMode::Queues,
            frequency: MonitorFrequency::Frequent,
            window: Duration::from_millis(10),
        }
    }
}

/// What has become of a flow's items since the worker began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCounters {
    /// Items that arrived, those that were held back not counted.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Items that entered the transmitter.
    pub released: u64,
    /// Their bytes.
    pub released_bytes: u64,
    /// Items that a handler before the queue let not pass.
    pub filtered: u64,
    /// Items that the handler after the queue let not pass.
    pub absorbed: u64,
    /// Items that contexts have taken.
    pub taken: u64,
    /// Items that handlers have made beside those that they took.
    pub made: u64,
    /// Items dropped on arrival because the queue was full.
    pub dropped_newest: u64,
    /// Items dropped because the queue was full when others arrived.
    pub dropped_oldest: u64,
    /// Offers that were held back because the queue was full.
    pub held: u64,
    /// Offers among those dropped or held back for which the queue had room and the table of all items had
    /// not.
    pub table_full: u64,
    /// Items longer than the flow says.
    pub oversized: u64,
}

impl FlowCounters {
    /// Returns the items that arrived and have not left in any way.
    pub fn outstanding(&self) -> u64 {
        self.offered + self.made
            - self.released
            - self.filtered
            - self.absorbed
            - self.dropped_newest
            - self.dropped_oldest
    }
}

/// What a meter saw in its last whole window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    /// Bits a second that arrived.
    pub arriving: u64,
    /// Bits a second that left.
    pub leaving: u64,
    /// Mean time from arrival to release.
    pub delay_mean: Duration,
    /// The longest.
    pub delay_max: Duration,
    /// Whether items waited during the whole window.
    pub always_waiting: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    began: u64,
    arrived: u64,
    left: u64,
    items: u64,
    delay_sum: u64,
    delay_max: u64,
    emptied: bool,
    last: Observation,
}

impl Meter {
    #[inline]
    pub fn arrived(&mut self, bytes: u32, now: Instant, window: Duration) {
        self.roll(now, window);
        self.arrived += u64::from(bytes);
    }

    #[inline]
    pub fn left(&mut self, bytes: u32, delay: Duration, emptied: bool, now: Instant, window: Duration) {
        self.roll(now, window);
        let delay = delay.as_nanos() as u64;
        self.left += u64::from(bytes);
        self.items += 1;
        self.delay_sum += delay;
        self.delay_max = self.delay_max.max(delay);
        self.emptied |= emptied;
    }

    /// Returns what was seen in the last whole window.
    pub fn observe(&mut self, now: Instant, window: Duration) -> Observation {
        self.roll(now, window);
        self.last
    }

    #[inline]
    fn roll(&mut self, now: Instant, window: Duration) {
        let elapsed = now.as_nanos().saturating_sub(self.began);
        if u128::from(elapsed) >= window.as_nanos() {
            self.close(now.as_nanos(), elapsed);
        }
    }

    #[cold]
    fn close(&mut self, now: u64, elapsed: u64) {
        let rate = |bytes: u64| (u128::from(bytes) * 8_000_000_000 / u128::from(elapsed.max(1))) as u64;
        let mean = self.delay_sum.checked_div(self.items).unwrap_or(0);
        let last = Observation {
            arriving: rate(self.arrived),
            leaving: rate(self.left),
            delay_mean: Duration::from_nanos(mean),
            delay_max: Duration::from_nanos(self.delay_max),
            always_waiting: !self.emptied && self.left > 0,
        };
        *self = Meter { began: now, last, ..Meter::default() };
    }
}
