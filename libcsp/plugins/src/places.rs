//! Places: whether an instance without a level of its own runs in the driver or in the workers, from the
//! packets that it gets. A state machine for each, on the caller's time and counters.
//!
//! ```text
//!  workers ── rate >= driver_pps, for the hold; or at once, if that is expected ──▶ driver
//!          ◀── rate < driver_pps / 2, for the hold; then the hold doubles ──
//!          ◀── it cannot run in the driver: at once ──
//! ```
//! A rule is decided on in the driver only if all instances that its packets can reach run there, so that an
//! instance takes those behind it along. Level 3 is never chosen: state does not move to a host.

use std::collections::BTreeMap;

use csp_types::{Duration, Instant};

use crate::command::Level;
use crate::desired::Desired;

mod rate;
mod why;

use rate::Rate;
pub use why::LevelReason;

/// An instance leaves the driver when its rate falls below this fraction of the rate at which it enters.
const LEAVE_DIVISOR: u64 = 2;
/// Largest number of times that the hold of an instance is doubled when it returns to the workers.
const HOLD_DOUBLED_MAX: u32 = 6;
/// An instance that has stayed in the driver for this many holds has settled.
const SETTLED_AFTER: u32 = 8;

/// How an instance without a configured level is placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auto {
    /// Expected packets per second. Decides until the rate was measured for the hold time.
    pub expects: Option<u64>,
    /// Rate, in packets per second, at or above which the instance runs in the driver.
    pub driver_pps: u64,
    /// How long a rate must last before the instance moves.
    pub hold: Duration,
}

impl Default for Auto {
    fn default() -> Self {
        // A packet costs a worker 1.7 to 4 us before its plug-in (docs/plugins.md): at this rate, a sixth to
        // two fifths of its time.
        Auto { expects: None, driver_pps: 100_000, hold: Duration::from_secs(10) }
    }
}

/// Observation of an instance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    /// Its name.
    pub name: String,
    /// Packets processed so far on both levels; `None` if they were not read.
    pub packets: Option<u64>,
    /// Why it cannot run in the driver at any rate.
    pub obstacle: Option<String>,
    /// The instances that its outputs lead to, among those that are placed.
    pub next: Vec<String>,
}

/// Observation of the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Why nothing can run in the driver.
    pub no_driver: Option<String>,
    /// Number of placed instances that the driver has room for.
    pub room: usize,
    /// Whether LAN ports have lost frames since the last observation because a worker was too slow.
    pub overrun: bool,
}

/// A request to move an instance now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Its name.
    pub name: String,
    /// The target level.
    pub to: Level,
}

/// The level of one instance, and the state of its hysteresis.
#[derive(Clone, Debug)]
struct Place {
    module: String,
    auto: Auto,
    level: Level,
    /// Since when it has had this level or expectation.
    since: Instant,
    /// Since when the verdict has been the other level.
    against: Option<Instant>,
    /// Whether its expectation is new: it then decides without a hold.
    fresh: bool,
    /// Whether the verdict is independent of the rate.
    forced: bool,
    /// Number of times that the hold was doubled.
    doubled: u32,
    moves: u64,
    rate: Rate,
    why: LevelReason,
}

impl Place {
    fn new(now: Instant, module: &str, auto: Auto, level: Level) -> Self {
        Place {
            module: module.to_owned(),
            auto,
            level,
            since: now,
            against: None,
            fresh: true,
            forced: false,
            doubled: 0,
            moves: 0,
            rate: Rate::default(),
            why: LevelReason::Unknown,
        }
    }

    fn hold(&self) -> Duration {
        self.auto.hold.saturating_mul(1 << self.doubled)
    }

    /// Returns the level that the instance's own rate calls for.
    fn verdict(&mut self) -> Level {
        let expected = self.auto.expects.filter(|_| self.rate.busy() < self.auto.hold);
        let (why, rate) = match (expected, self.rate.mean()) {
            (Some(expected), Some(measured)) if measured > expected => {
                (LevelReason::Measured(measured), measured)
            }
            (Some(expected), _) => (LevelReason::Expected(expected), expected),
            (None, Some(measured)) => (LevelReason::Measured(measured), measured),
            // Neither a measurement nor an expectation: it stays where it is.
            (None, None) => {
                self.why = LevelReason::Unknown;
                return self.level;
            }
        };
        self.why = why;
        // An expectation alone must reach the full rate: half of it is no reason to start in the driver.
        let enough = match self.level {
            Level::Driver if !self.fresh => self.auto.driver_pps / LEAVE_DIVISOR,
            _ => self.auto.driver_pps,
        };
        if rate >= enough { Level::Driver } else { Level::Worker }
    }

    /// Returns whether the instance moves to the level of the verdict now.
    fn settle(&mut self, now: Instant, verdict: Level) -> bool {
        if verdict == self.level {
            (self.against, self.fresh) = (None, false);
            return false;
        }
        // Without an expectation a new instance waits for its hold, too.
        if self.forced || (self.fresh && self.auto.expects.is_some()) {
            return true;
        }
        self.fresh = false;
        let against = *self.against.get_or_insert(now);
        let hold = self.hold();
        now.saturating_since(against) >= hold && now.saturating_since(self.since) >= hold
    }

    fn moved(&mut self, now: Instant) {
        let settled = now.saturating_since(self.since) >= self.hold().saturating_mul(SETTLED_AFTER);
        self.level = if self.level == Level::Driver { Level::Worker } else { Level::Driver };
        if self.level == Level::Worker && !self.forced {
            self.doubled = if settled { 0 } else { (self.doubled + 1).min(HOLD_DOUBLED_MAX) };
        }
        (self.since, self.against, self.fresh, self.moves) = (now, None, false, self.moves + 1);
    }
}

/// The levels of all instances of a node that have no configured level.
#[derive(Clone, Debug, Default)]
pub struct Places {
    known: BTreeMap<String, Place>,
}

impl Places {
    /// Adopts the instances of a desired state that are to be placed, and sets their levels in it.
    /// Measurements of instances that are kept remain; a changed expectation starts afresh. `level_of`
    /// returns the present level of an instance.
    pub fn declare(&mut self, now: Instant, desired: &mut Desired, level_of: impl Fn(&str) -> Option<Level>) {
        let mut before = core::mem::take(&mut self.known);
        for instance in &mut desired.instances {
            let Some(auto) = instance.auto else { continue };
            let place = match before.remove(&instance.name).filter(|known| known.module == instance.module) {
                Some(known) if known.auto.expects == auto.expects => Place { auto, ..known },
                Some(known) => {
                    Place { moves: known.moves, ..Place::new(now, &instance.module, auto, known.level) }
                }
                None => {
                    let level = level_of(&instance.name).filter(|level| *level == Level::Driver);
                    Place::new(now, &instance.module, auto, level.unwrap_or_default())
                }
            };
            instance.level = place.level;
            self.known.insert(instance.name.clone(), place);
        }
    }

    /// Returns whether no instance is placed.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns why an instance has its level; `None` if the level is configured.
    pub fn why(&self, name: &str) -> Option<&LevelReason> {
        self.known.get(name).map(|place| &place.why)
    }

    /// Returns the rate of an instance in packets per second, averaged over the last few observations.
    pub fn rate(&self, name: &str) -> Option<u64> {
        self.known.get(name)?.rate.mean()
    }

    /// Returns for each instance its module and how often it was moved.
    pub fn moves(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.known.iter().map(|(name, place)| (name.as_str(), place.module.as_str(), place.moves))
    }

    /// Evaluates all instances. Returns those that are to move now. The caller reports each completed move by
    /// [`moved`](Self::moved).
    pub fn evaluate(&mut self, now: Instant, node: &Node, observations: &[Observation]) -> Vec<Move> {
        let mut verdicts = BTreeMap::new();
        for one in observations {
            let Some(place) = self.known.get_mut(&one.name) else { continue };
            if let Some(packets) = one.packets {
                place.rate.note(now, packets);
            }
            let verdict = place.verdict();
            let obstacle = one.obstacle.as_ref().or(node.no_driver.as_ref());
            place.forced = obstacle.is_some();
            if let Some(reason) = obstacle {
                let wanted = verdict == Level::Driver;
                place.why = place.why.clone().stays(wanted, node.overrun, reason);
            }
            verdicts.insert(one.name.as_str(), if obstacle.is_some() { Level::Worker } else { verdict });
        }
        self.take_along(observations, &mut verdicts);
        self.fit(node.room, &mut verdicts);
        let mut moves = Vec::new();
        for (name, to) in &verdicts {
            if self.known.get_mut(*name).is_some_and(|place| place.settle(now, *to)) {
                moves.push(Move { name: (*name).to_owned(), to: *to });
            }
        }
        self.bring_along(observations, &verdicts, moves)
    }

    /// Extends the verdict "driver" to the instances behind one that runs or is to run there. Whether they
    /// can run there is included in the obstacle of that instance.
    fn take_along<'a>(&mut self, observations: &'a [Observation], verdicts: &mut BTreeMap<&'a str, Level>) {
        let by_name: BTreeMap<&str, &Observation> =
            observations.iter().map(|one| (one.name.as_str(), one)).collect();
        let is_there = |name: &str| {
            self.known.get(name).is_some_and(|place| place.level == Level::Driver && !place.forced)
        };
        let wanted = |(name, verdict): (&&'a str, &Level)| {
            (*verdict == Level::Driver || is_there(name)).then_some(*name)
        };
        let mut left: Vec<&str> = verdicts.iter().filter_map(wanted).collect();
        while let Some(name) = left.pop() {
            for next in by_name.get(name).into_iter().flat_map(|one| &one.next) {
                let Some(verdict) = verdicts.get_mut(next.as_str()).filter(|v| **v == Level::Worker) else {
                    continue;
                };
                let Some(place) = self.known.get_mut(next).filter(|place| !place.forced) else { continue };
                *verdict = Level::Driver;
                place.why = LevelReason::With(name.to_owned(), place.rate.mean().unwrap_or_default());
                left.push(next);
            }
        }
    }

    /// Adds to the moves the instances behind those that will run in the driver. Otherwise the rules of these
    /// would stay on level 2.
    fn bring_along(
        &self,
        observations: &[Observation],
        verdicts: &BTreeMap<&str, Level>,
        mut moves: Vec<Move>,
    ) -> Vec<Move> {
        let mut after: BTreeMap<String, Level> =
            self.known.iter().map(|(name, place)| (name.clone(), place.level)).collect();
        after.extend(moves.iter().map(|one| (one.name.clone(), one.to)));
        loop {
            let there = observations.iter().filter(|one| after.get(&one.name) == Some(&Level::Driver));
            let behind = there.flat_map(|one| &one.next).find(|next| {
                after.get(*next) == Some(&Level::Worker)
                    && verdicts.get(next.as_str()) == Some(&Level::Driver)
            });
            let Some(behind) = behind.cloned() else { return moves };
            after.insert(behind.clone(), Level::Driver);
            moves.push(Move { name: behind, to: Level::Driver });
        }
    }

    /// Limits the driver to the instances that it has room for; instances that run there already have
    /// precedence.
    fn fit(&mut self, room: usize, verdicts: &mut BTreeMap<&str, Level>) {
        let mut wanted: Vec<(&str, &mut Level)> =
            verdicts.iter_mut().filter(|(_, v)| **v == Level::Driver).map(|(name, v)| (*name, v)).collect();
        wanted.sort_by_key(|(name, _)| self.known.get(*name).map(|place| place.level));
        for (name, verdict) in wanted.into_iter().skip(room) {
            *verdict = Level::Worker;
            if let Some(place) = self.known.get_mut(name) {
                place.forced = true;
                place.why =
                    place.why.clone().stays(true, false, "the driver has no room for further plug-ins");
            }
        }
    }

    /// Records that an instance was moved to the other level.
    pub fn moved(&mut self, now: Instant, name: &str) {
        if let Some(place) = self.known.get_mut(name) {
            place.moved(now);
        }
    }

    /// Returns the level of an instance.
    pub fn level(&self, name: &str) -> Option<Level> {
        self.known.get(name).map(|place| place.level)
    }
}

#[cfg(test)]
mod tests;
