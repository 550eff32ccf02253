//! What happens after a module was stopped: it is restarted with back-off, passed by, or its path ends. A
//! state machine on the caller's time.
//!
//! ```text
//!             stopped, restarts left              time is up            calls again
//!   Running ─────────────────────────▶ Waiting ─────────────▶ Restart ─────────────▶ Running
//!      │                                                        │ stopped again: waits longer
//!      └─ stopped, none left (or the policy has none) ─▶ PassedBy or Ended, until it is replaced
//! ```

use csp_types::options::OnStop;
use csp_types::{Duration, Instant};

/// How long a module waits to be restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After it was stopped once. Each further time doubles it.
    pub first: Duration,
    /// At most.
    pub most: Duration,
    /// A module that has run for so long since it was restarted begins with `first` again, and with all
    /// restarts.
    pub forgiven_after: Duration,
    /// How often it is restarted before the policy's last word.
    pub restarts_max: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(100),
            most: Duration::from_secs(30),
            forgiven_after: Duration::from_secs(60),
            restarts_max: 16,
        }
    }
}

/// What happens to a module that is not restarted (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Finally {
    /// Messages go on as they are (fail open).
    PassBy,
    /// Messages are given up, and the path is to end (fail closed).
    #[default]
    EndPath,
}

/// The action after a module was stopped, with the times of its restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopPolicy {
    /// It is restarted. Messages that come while it waits are given up; a path with `passes_faults` lets them
    /// go on as they are.
    Restart(Backoff, Finally),
    /// It is not.
    Finally(Finally),
}

impl From<OnStop> for StopPolicy {
    fn from(on_stop: OnStop) -> Self {
        match on_stop {
            // A handler that keeps something from leaving must not be bypassed.
            OnStop::Restart => StopPolicy::Restart(Backoff::default(), Finally::EndPath),
            OnStop::Pass => StopPolicy::Finally(Finally::PassBy),
            OnStop::End => StopPolicy::Finally(Finally::EndPath),
        }
    }
}

/// What is to be done with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// The module runs.
    Run,
    /// A new instance is to be started first.
    Restart,
    /// The module waits until then; the message is given up.
    Wait(Instant),
    /// The message goes on as it is.
    PassBy,
    /// The message is given up, and the path is to end.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running { since: Instant },
    Waiting { until: Instant },
    PassedBy,
    Ended,
}

/// Decides what happens after a module was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Supervisor {
    policy: StopPolicy,
    phase: Phase,
    /// Stops since it was last forgiven.
    stops: u32,
}

impl Supervisor {
    /// A module that has been started.
    #[must_use]
    pub fn new(policy: StopPolicy) -> Self {
        Supervisor { policy, phase: Phase::Running { since: Instant::ZERO }, stops: 0 }
    }

    /// Returns what is to be done with a message now.
    #[inline]
    #[must_use]
    pub fn gate(&self, now: Instant) -> Gate {
        match self.phase {
            Phase::Running { .. } => Gate::Run,
            Phase::Waiting { until } if until <= now => Gate::Restart,
            Phase::Waiting { until } => Gate::Wait(until),
            Phase::PassedBy => Gate::PassBy,
            Phase::Ended => Gate::End,
        }
    }

    /// Records that a new instance runs.
    pub fn on_restart(&mut self, now: Instant) {
        self.phase = Phase::Running { since: now };
    }

    /// Lets a new instance be started at the next message: what stopped the last one was not a message.
    pub fn restart_at_once(&mut self) {
        self.phase = Phase::Waiting { until: Instant::ZERO };
    }

    /// Records that the module was stopped, or could not be restarted. Returns what is to be done with later
    /// messages.
    pub fn on_stop(&mut self, now: Instant) -> Gate {
        let finally = match self.policy {
            StopPolicy::Finally(finally) => finally,
            StopPolicy::Restart(backoff, finally) => {
                if let Phase::Running { since } = self.phase
                    && self.stops > 0
                    && now.saturating_since(since) >= backoff.forgiven_after
                {
                    self.stops = 0;
                }
                if self.stops < backoff.restarts_max {
                    let wait = backoff.first.saturating_mul(1 << self.stops.min(31)).min(backoff.most);
                    self.stops += 1;
                    self.phase = Phase::Waiting { until: now + wait };
                    return self.gate(now);
                }
                finally
            }
        };
        self.phase = match finally {
            Finally::PassBy => Phase::PassedBy,
            Finally::EndPath => Phase::Ended,
        };
        self.gate(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        first: Duration::from_millis(10),
        most: Duration::from_millis(35),
        forgiven_after: Duration::from_secs(1),
        restarts_max: 4,
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_module_waits_longer_each_time_and_is_given_up_at_last() {
        for (finally, gate) in [(Finally::PassBy, Gate::PassBy), (Finally::EndPath, Gate::End)] {
            let mut supervisor = Supervisor::new(StopPolicy::Restart(BACKOFF, finally));
            let mut now = 5;
            for wait in [10, 20, 35, 35] {
                assert_eq!(supervisor.on_stop(at(now)), Gate::Wait(at(now + wait)));
                assert_eq!(supervisor.gate(at(now + wait - 1)), Gate::Wait(at(now + wait)));
                now += wait;
                assert_eq!(supervisor.gate(at(now)), Gate::Restart);
                supervisor.on_restart(at(now));
                assert_eq!(supervisor.gate(at(now)), Gate::Run);
            }
            assert_eq!(supervisor.on_stop(at(now)), gate);
            assert_eq!(supervisor.gate(at(now + 1_000_000)), gate);
        }
    }

    #[test]
    fn a_module_that_has_run_for_long_is_forgiven() {
        let mut supervisor = Supervisor::new(StopPolicy::Restart(BACKOFF, Finally::PassBy));
        supervisor.on_stop(at(0));
        supervisor.on_restart(at(10));
        assert_eq!(supervisor.on_stop(at(1_009)), Gate::Wait(at(1_029)));
        supervisor.on_restart(at(1_029));
        assert_eq!(supervisor.on_stop(at(2_029)), Gate::Wait(at(2_039)));
    }

    #[test]
    fn a_restart_that_fails_counts_as_a_stop() {
        let mut supervisor = Supervisor::new(StopPolicy::Restart(BACKOFF, Finally::PassBy));
        supervisor.on_stop(at(0));
        assert_eq!(supervisor.gate(at(10)), Gate::Restart);
        assert_eq!(supervisor.on_stop(at(10)), Gate::Wait(at(30)));
    }

    #[test]
    fn without_restarts_the_policy_has_one_word() {
        assert_eq!(Supervisor::new(StopPolicy::Finally(Finally::PassBy)).on_stop(at(3)), Gate::PassBy);
        assert_eq!(Supervisor::new(StopPolicy::Finally(Finally::EndPath)).on_stop(at(3)), Gate::End);
    }
}
