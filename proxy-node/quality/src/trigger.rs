//! Triggers: conditions of what is monitored, bound to actions (IQ §2.3, "Event Triggers").
//!
//! A trigger fires when its condition has held for a time, and is released when its opposite has. The two
//! thresholds differ, so that a value between them changes nothing, and each state lasts for a time at least:
//! a trigger changes at most twice in the sum of both times.

use csp_types::{Duration, Instant};

use crate::flow::FlowId;
use crate::scheme::Scheme;

/// Most triggers of a resource manager: each is looked at at every resource-management point of the frequent
/// mode.
pub const TRIGGERS_MAX: usize = 64;

/// A value and where it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// The trigger fires at this value.
    pub fire: u64,
    /// It is released at this value.
    pub release: u64,
}

/// What a trigger watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Items of a flow that wait or are processed: at least `fire`; released at `release` or fewer.
    QueueAbove(FlowId, Threshold),
    /// Bits a second that arrive for a flow: at least `fire`; released at `release` or fewer.
    RateAbove(FlowId, Threshold),
    /// Bits a second that arrive for a flow: at most `fire`; released at `release` or more.
    RateBelow(FlowId, Threshold),
    /// Mean delay of a flow in nanoseconds: at least `fire`; released at `release` or less.
    DelayAbove(FlowId, Threshold),
    /// A flow always had items and less than it is promised has left. Needs a window of
    /// [`WINDOW`](crate::WINDOW).
    PromiseMissed(FlowId),
    /// Thousandths of the link's capacity in use: at least `fire`; released at `release` or fewer.
    LinkFull(Threshold),
}

/// What a scheme is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Contexts.
    Contexts,
    /// The output link.
    Link,
}

/// What a trigger does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Puts a handler before a flow's queue. Those that the resource manager knows itself
    /// ([`Filter`](crate::Filter)) take effect with the next item; others are the owner's to install.
    Install(FlowId, String),
    /// Removes a handler that a trigger has put there.
    Remove(FlowId, String),
    /// Switches the scheme.
    Switch(Resource, Scheme),
    /// Changes a flow's priority until the next plan.
    SetPriority(FlowId, u8),
    /// Raises an event of this name.
    Raise(String),
}

/// A condition and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trigger {
    /// Its name.
    pub name: String,
    /// What it watches.
    pub condition: Condition,
    /// How long the condition must hold before it fires.
    pub hold: Duration,
    /// How long the opposite must hold before it is released. Not zero.
    pub release_hold: Duration,
    /// What it does when it fires.
    pub fire: Vec<Action>,
    /// What it does when it is released.
    pub release: Vec<Action>,
}

/// A trigger that cannot be: the operator's mistake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TriggerError {
    /// Too many.
    #[error("{0} triggers; at most {TRIGGERS_MAX} are looked at")]
    TooMany(usize),
    /// The thresholds leave nothing between them.
    #[error(
        "trigger {name:?} fires at {fire} and is released at {release}: the latter must lie on the other side"
    )]
    NoHysteresis {
        /// The trigger.
        name: String,
        /// Where it fires.
        fire: u64,
        /// Where it is released.
        release: u64,
    },
    /// No time before it is released.
    #[error("trigger {0:?} has no time for which its release must hold, and could change with every item")]
    NoHold(String),
    /// A flow that there is not.
    #[error("trigger {0:?} names a flow that there is not")]
    Flow(String),
}

impl Trigger {
    pub(crate) fn check(&self, knows: impl Fn(FlowId) -> bool) -> Result<(), TriggerError> {
        let (flow, pair) = match self.condition {
            Condition::QueueAbove(flow, at)
            | Condition::RateAbove(flow, at)
            | Condition::DelayAbove(flow, at) => (Some(flow), Some((at.fire, at.release))),
            // Reversed: it fires below.
            Condition::RateBelow(flow, at) => (Some(flow), Some((at.release, at.fire))),
            Condition::LinkFull(at) => (None, Some((at.fire, at.release))),
            Condition::PromiseMissed(flow) => (Some(flow), None),
        };
        if let Some((upper, lower)) = pair
            && upper <= lower
        {
            let (fire, release) = match self.condition {
                Condition::RateBelow(..) => (lower, upper),
                _ => (upper, lower),
            };
            return Err(TriggerError::NoHysteresis { name: self.name.clone(), fire, release });
        }
        if self.release_hold.is_zero() {
            return Err(TriggerError::NoHold(self.name.clone()));
        }
        let acted = self.fire.iter().chain(&self.release).filter_map(|action| match action {
            Action::Install(flow, _) | Action::Remove(flow, _) | Action::SetPriority(flow, _) => Some(*flow),
            _ => None,
        });
        match flow.into_iter().chain(acted).all(knows) {
            true => Ok(()),
            false => Err(TriggerError::Flow(self.name.clone())),
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Fires,
    Between,
    Releases,
}

impl Side {
    /// Of a value that fires above.
    pub fn above(value: u64, at: Threshold) -> Side {
        match value {
            value if value >= at.fire => Side::Fires,
            value if value <= at.release => Side::Releases,
            _ => Side::Between,
        }
    }

    /// Of a value that fires below.
    pub fn below(value: u64, at: Threshold) -> Side {
        match value {
            value if value <= at.fire => Side::Fires,
            value if value >= at.release => Side::Releases,
            _ => Side::Between,
        }
    }
}

/// State of a trigger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Armed {
    pub fired: bool,
    /// Since when what would change the state has been true.
    since: Option<Instant>,
    /// Changes so far.
    pub changes: u64,
}

impl Armed {
    /// Returns whether time alone may change the state: it has fired, or is about to.
    pub fn is_open(&self) -> bool {
        self.fired || self.since.is_some()
    }

    /// Looks at the value; returns whether the state has changed.
    pub fn look(&mut self, trigger: &Trigger, side: Side, now: Instant) -> bool {
        let (wanted, hold) = match self.fired {
            false => (Side::Fires, trigger.hold),
            true => (Side::Releases, trigger.release_hold),
        };
        if side != wanted {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_since(since) < hold {
            return false;
        }
        (self.fired, self.since) = (!self.fired, None);
        self.changes += 1;
        true
    }
}

/// A trigger has fired or was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fired {
    /// Its index among the triggers that were set.
    pub trigger: u16,
    /// It fired; otherwise it was released.
    pub fired: bool,
    /// When.
    pub at: Instant,
}

/// Returns the trigger of dynamic adaptation (IQ, Fig. 11): equal shares as long as all flows fit; PAR at
/// contexts and link while the critical flow surges, from `surge` bits a second on; back when it has ebbed to
/// `ebb`.
///
/// The resource manager must begin with RR at both, and meter each flow
/// ([`MonitorMode::Flows`](crate::MonitorMode::Flows)).
pub fn dynamic_adaptation(critical: FlowId, surge: u64, ebb: u64, release_hold: Duration) -> Trigger {
    let both =
        |scheme| vec![Action::Switch(Resource::Contexts, scheme), Action::Switch(Resource::Link, scheme)];
    Trigger {
        name: "dynamic-adaptation".to_owned(),
        condition: Condition::RateAbove(critical, Threshold { fire: surge, release: ebb }),
        hold: Duration::ZERO,
        release_hold,
        fire: both(Scheme::PriorityAwareReserved),
        release: both(Scheme::RoundRobin),
    }
}
