//! What is known of a supplied handler while a path owns it: numbers that its thread writes and others read.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use csp_handlers::{Reported, Standing, Usage};

use crate::stopped::{Reason, Stopped};
use crate::supervisor::Gate;

/// Counters of a supplied handler. The thread that runs the handler writes them; any thread reads them.
#[derive(Debug, Default)]
pub struct Report {
    calls: AtomicU64,
    fuel: AtomicU64,
    fuel_max: AtomicU64,
    given_up: AtomicU64,
    waited: AtomicU64,
    passed: AtomicU64,
    restarts: AtomicU64,
    stops: [AtomicU64; Reason::ALL.len()],
    state: AtomicU8,
}

/// Counters at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportStatus {
    /// Calls of the module that it ended itself.
    pub calls: u64,
    /// Their fuel.
    pub fuel: u64,
    /// The fuel of the most expensive one.
    pub fuel_max: u64,
    /// Messages that the module gave up.
    pub given_up: u64,
    /// Messages given up because it waited to be restarted, or its path is to end.
    pub waited: u64,
    /// Messages passed by.
    pub passed: u64,
    /// Restarts.
    pub restarts: u64,
    /// How often it was stopped, by reason; reasons that never were are left out.
    pub stops: Vec<(Reason, u64)>,
    /// `running`, `waiting`, `passed-by` or `ended`; `refused` by another program, which does not run it.
    pub state: &'static str,
}

/// Only one thread writes, so that no addition needs the bus.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Report {
    #[inline]
    pub(crate) fn called(&self, fuel: u64) {
        add(&self.calls, 1);
        add(&self.fuel, fuel);
        if fuel > self.fuel_max.load(Ordering::Relaxed) {
            self.fuel_max.store(fuel, Ordering::Relaxed);
        }
    }

    pub(crate) fn given_up(&self) {
        add(&self.given_up, 1);
    }

    pub(crate) fn waited(&self) {
        add(&self.waited, 1);
    }

    pub(crate) fn passed(&self) {
        add(&self.passed, 1);
    }

    pub(crate) fn restarted(&self) {
        add(&self.restarts, 1);
        self.state.store(0, Ordering::Relaxed);
    }

    pub(crate) fn stopped(&self, stopped: Stopped, gate: Gate) {
        if let Some(at) = Reason::ALL.iter().position(|reason| *reason == stopped.reason) {
            add(&self.stops[at], 1);
        }
        self.gated(gate);
    }

    pub(crate) fn gated(&self, gate: Gate) {
        let state = match gate {
            Gate::Run => 0,
            Gate::Wait(_) | Gate::Restart => 1,
            Gate::PassBy => 2,
            Gate::End => 3,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// Returns whether the path of the handler is to end, which the Control Manager asks after a message was
    /// given up.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 3
    }

    /// Returns the fuel and the stops so far.
    pub(crate) fn usage(&self) -> Usage {
        let stops = self.stops.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        Usage { fuel: self.fuel.load(Ordering::Relaxed), memory: 0, stops }
    }

    /// Records what another program has counted, in which the module runs.
    pub(crate) fn set(&self, reported: &Reported) {
        let Reported { calls, fuel, fuel_max, given_up, waited, passed, restarts, .. } = *reported;
        let counters = [
            (&self.calls, calls),
            (&self.fuel, fuel),
            (&self.fuel_max, fuel_max),
            (&self.given_up, given_up),
            (&self.waited, waited),
            (&self.passed, passed),
            (&self.restarts, restarts),
        ];
        let stops = self.stops.iter().zip(reported.stops);
        counters.into_iter().chain(stops).for_each(|(to, count)| to.store(count, Ordering::Relaxed));
        self.state.store(reported.standing as u8, Ordering::Relaxed);
    }

    /// Returns what is reported of the module to the program that it runs for, without times.
    #[must_use]
    pub fn reported(&self) -> Reported {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stops = [0; Reason::ALL.len()];
        stops.iter_mut().zip(&self.stops).for_each(|(to, count)| *to = load(count));
        Reported {
            standing: Standing::from_u8(self.state.load(Ordering::Relaxed)).unwrap_or(Standing::Ended),
            calls: load(&self.calls),
            fuel: load(&self.fuel),
            fuel_max: load(&self.fuel_max),
            given_up: load(&self.given_up),
            waited: load(&self.waited),
            passed: load(&self.passed),
            restarts: load(&self.restarts),
            stops,
            ..Reported::default()
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn status(&self) -> ReportStatus {
        let Reported { calls, fuel, fuel_max, given_up, waited, passed, restarts, stops, .. } =
            self.reported();
        ReportStatus {
            calls,
            fuel,
            fuel_max,
            given_up,
            waited,
            passed,
            restarts,
            stops: Reason::ALL.into_iter().zip(stops).filter(|(_, count)| *count > 0).collect(),
            state: match self.state.load(Ordering::Relaxed) {
                0 => "running",
                1 => "waiting",
                2 => "passed-by",
                3 => "ended",
                _ => "refused",
            },
        }
    }
}
