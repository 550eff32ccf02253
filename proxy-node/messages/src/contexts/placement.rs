//! Placement: decides from the costs of its calls whether a stage runs in a context of the worker or in one
//! elsewhere. A state machine on the caller's time and measurements.
//!
//! ```text
//!  supplied handlers      begin elsewhere ── p99 <= bound, nothing was stopped, for the hold ──▶ worker
//!                                        ◀── p99 > bound, or stopped, for the hold; then the hold doubles ──
//!  others                 begin in the worker ── mean >= 2 crossings, for the hold ──▶ elsewhere   (computation-centric)
//!                                            ◀── mean <= 1 crossing, for the hold ──               (communication-centric)
//! ```
//! A verdict takes effect when enough calls were measured, and every look during the *hold* has come to the
//! same verdict. A stage that comes back has its hold doubled, up to six times; after eight holds in one
//! place the stage has its first hold again.

use std::fmt;

use csp_types::{Duration, Instant};

/// Largest number of doublings of a hold, for a stage that comes back.
const HOLD_DOUBLED_MAX: u32 = 6;
/// Number of holds after which a stage has settled.
const SETTLED_AFTER: u32 = 8;

/// Where a stage runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A context of the worker.
    Worker,
    /// A context that is another program.
    Elsewhere,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Side::Worker => Side::Elsewhere,
            Side::Elsewhere => Side::Worker,
        }
    }
}

/// Rule of the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The handler was supplied: it must first show that its calls are short.
    Supplied,
    /// The handler is the worker's own: the cost of a call is compared with that of the crossing.
    Cost,
}

/// Bounds of placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacementBounds {
    /// Bound of the 99th percentile of a supplied handler's calls: above it the handler may not run in the
    /// worker.
    pub p99: Duration,
    /// Number of measured calls that a verdict needs.
    pub calls: u64,
    /// How long a verdict stands before the stage is moved.
    pub hold: Duration,
    /// Cost to the worker of having a message processed elsewhere.
    pub crossing: Duration,
    /// The same of each KiB of it.
    pub crossing_kib: Duration,
}

impl Default for PlacementBounds {
    fn default() -> Self {
        PlacementBounds {
            p99: Duration::from_micros(50),
            calls: 200,
            hold: Duration::from_secs(10),
            // What Figure 3 of C-CORE shows here (docs/messages/contexts.md).
            crossing: Duration::from_nanos(700),
            crossing_kib: Duration::from_nanos(400),
        }
    }
}

/// Measurements of a stage since it began in its present place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Calls that were measured.
    pub measured: u64,
    /// Mean of recent ones.
    pub mean: Duration,
    /// The 99th percentile of recent calls.
    pub p99: Duration,
    /// Mean length of messages in bytes.
    pub len: u64,
    /// How often its module was stopped.
    pub stops: u64,
}

/// Why a stage runs where it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Too few calls were measured since it began there: the number, and the number needed.
    Few(u64, u64),
    /// The p99, and its bound.
    P99(Duration, Duration),
    /// Its module was stopped so often there.
    Stopped(u64),
    /// The mean of calls, and what a crossing costs.
    Mean(Duration, Duration),
    /// Its handler, or another handler of its context elsewhere, has state that must be kept.
    KeepsState,
    /// The stage should run elsewhere, and no program is connected there.
    NobodyElsewhere,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::Few(measured, needed) => write!(f, "{measured} of {needed} calls measured"),
            Why::P99(p99, bound) => {
                let sign = if p99 <= bound { "<=" } else { ">" };
                write!(f, "p99 {} {sign} {}", Time(p99), Time(bound))
            }
            Why::Stopped(stops) => write!(f, "stopped {stops} times"),
            Why::Mean(mean, crossing) => write!(f, "mean {}, a crossing {}", Time(mean), Time(crossing)),
            Why::KeepsState => f.write_str("it stays: state is to be kept"),
            Why::NobodyElsewhere => f.write_str("no program is there"),
        }
    }
}

/// A time in the unit that suits it.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_nanos() {
            nanos @ 0..10_000 => write!(f, "{nanos} ns"),
            nanos @ 10_000..10_000_000 => write!(f, "{} us", nanos / 1_000),
            nanos => write!(f, "{} ms", nanos / 1_000_000),
        }
    }
}

/// The place of one stage, and the state of its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    rule: Rule,
    bounds: PlacementBounds,
    side: Side,
    since: Instant,
    /// Since when the verdict is for the other side.
    against: Option<Instant>,
    /// How often the hold is doubled.
    doubled: u32,
    /// Moves so far.
    moves: u64,
    why: Why,
}

impl Placement {
    /// A stage that begins.
    pub fn new(now: Instant, rule: Rule, bounds: PlacementBounds) -> Self {
        let side = match rule {
            Rule::Supplied => Side::Elsewhere,
            Rule::Cost => Side::Worker,
        };
        let why = Why::Few(0, bounds.calls);
        Placement { rule, bounds, side, since: now, against: None, doubled: 0, moves: 0, why }
    }

    /// Returns the side on which stages begin under a rule.
    pub fn begins(rule: Rule) -> Side {
        Placement::new(Instant::ZERO, rule, PlacementBounds::default()).side
    }

    /// Returns where the stage runs.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns since when.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns why.
    pub fn why(&self) -> Why {
        self.why
    }

    /// Returns how often the stage was moved.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Returns the present hold.
    pub fn hold(&self) -> Duration {
        self.bounds.hold.saturating_mul(1 << self.doubled)
    }

    /// Records a reason other than its calls for which the stage stays.
    pub fn stays(&mut self, why: Why) {
        (self.against, self.why) = (None, why);
    }

    /// Records that the stage cannot be moved now. [`look`](Self::look) will return the move again.
    pub fn waits(&mut self, why: Why) {
        self.why = why;
    }

    /// Examines a stage. Returns the side to which the caller must move it now; the caller reports the move
    /// by [`moved`](Self::moved).
    pub fn look(&mut self, now: Instant, sample: &Sample) -> Option<Side> {
        if sample.measured < self.bounds.calls && sample.stops == 0 {
            self.stays(Why::Few(sample.measured, self.bounds.calls));
            return None;
        }
        let (wanted, why) = match self.rule {
            Rule::Supplied => self.supplied(sample),
            Rule::Cost => self.cost(sample),
        };
        self.why = why;
        if wanted == self.side {
            self.against = None;
            return None;
        }
        let against = *self.against.get_or_insert(now);
        let hold = self.hold();
        let stood = now.saturating_since(against) >= hold && now.saturating_since(self.since) >= hold;
        stood.then_some(wanted)
    }

    fn supplied(&self, sample: &Sample) -> (Side, Why) {
        if sample.stops > 0 {
            return (Side::Elsewhere, Why::Stopped(sample.stops));
        }
        let side = if sample.p99 <= self.bounds.p99 { Side::Worker } else { Side::Elsewhere };
        (side, Why::P99(sample.p99, self.bounds.p99))
    }

    fn cost(&self, sample: &Sample) -> (Side, Why) {
        let kib = u32::try_from(sample.len / 1024).unwrap_or(u32::MAX);
        let crossing = self.bounds.crossing.saturating_add(self.bounds.crossing_kib.saturating_mul(kib));
        let side = match self.side {
            Side::Worker if sample.mean >= crossing.saturating_mul(2) => Side::Elsewhere,
            Side::Elsewhere if sample.mean <= crossing => Side::Worker,
            stays => stays,
        };
        (side, Why::Mean(sample.mean, crossing))
    }

    /// Records that the stage was moved to the other side.
    pub fn moved(&mut self, now: Instant) {
        let settled = now.saturating_since(self.since) >= self.hold().saturating_mul(SETTLED_AFTER);
        self.side = self.side.other();
        // It has come back to where it began.
        if self.side == Placement::begins(self.rule) {
            self.doubled = if settled { 0 } else { (self.doubled + 1).min(HOLD_DOUBLED_MAX) };
        }
        (self.since, self.against, self.moves) = (now, None, self.moves + 1);
    }
}

#[cfg(test)]
mod tests {
    use csp_support::Random;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn micros(mean: u64, p99: u64) -> Sample {
        let (mean, p99) = (Duration::from_micros(mean), Duration::from_micros(p99));
        Sample { measured: 1_000, mean, p99, len: 600, stops: 0 }
    }

    /// Gives the placement a sample each second, from second `from` on, for `seconds`, and executes each move
    /// that it decides. Returns the seconds of the moves.
    fn run(
        placement: &mut Placement,
        (from, seconds): (u64, u64),
        mut sample: impl FnMut(u64) -> Sample,
    ) -> Vec<u64> {
        let mut moves = Vec::new();
        for second in from..from + seconds {
            if let Some(side) = placement.look(at(1_000 * second), &sample(second)) {
                assert_ne!(side, placement.side());
                placement.moved(at(1_000 * second));
                moves.push(second);
            }
        }
        moves
    }

    #[test]
    fn a_supplied_handler_enters_the_worker_once_its_p99_has_stood_and_leaves_as_well() {
        let mut placement = Placement::new(at(0), Rule::Supplied, PlacementBounds::default());
        assert_eq!(placement.side(), Side::Elsewhere);
        // Too few calls say nothing, however short.
        let few = Sample { measured: 199, ..micros(1, 2) };
        assert_eq!(run(&mut placement, (0, 100), |_| few), [0u64; 0]);
        assert_eq!(placement.why().to_string(), "199 of 200 calls measured");
        assert_eq!(run(&mut placement, (100, 60), |_| micros(10, 50)), [110]);
        assert_eq!(
            (placement.side(), placement.why().to_string()),
            (Side::Worker, "p99 50 us <= 50 us".into())
        );
        // Above the bound now and then: it stays. For good: it leaves.
        assert_eq!(
            run(&mut placement, (160, 200), |n| micros(10, if n % 10 == 0 { 40 } else { 60 })),
            [0u64; 0]
        );
        assert_eq!(run(&mut placement, (360, 60), |_| micros(10, 51)), [361], "it has been above since 351");
        assert_eq!(
            (placement.side(), placement.why().to_string()),
            (Side::Elsewhere, "p99 51 us > 50 us".into())
        );
    }

    #[test]
    fn a_module_that_was_stopped_does_not_enter_and_one_that_is_stopped_leaves() {
        let mut placement = Placement::new(at(0), Rule::Supplied, PlacementBounds::default());
        let stopped = Sample { stops: 1, ..micros(1, 2) };
        assert_eq!(run(&mut placement, (0, 100), |_| stopped), [0u64; 0]);
        assert_eq!(run(&mut placement, (100, 50), |_| micros(1, 2)), [110]);
        let few = Sample { stops: 1, measured: 0, ..micros(1, 2) };
        assert_eq!(run(&mut placement, (150, 50), |_| few), [160], "however few calls there were");
    }

    #[test]
    fn others_go_where_a_call_is_worth_the_crossing() {
        let mut placement = Placement::new(at(0), Rule::Cost, PlacementBounds::default());
        assert_eq!(placement.side(), Side::Worker);
        let sample = |nanos, len| Sample { mean: Duration::from_nanos(nanos), len, ..micros(0, 900) };
        // A crossing of 600 B costs 700 ns; of 64 KiB 26,300.
        assert_eq!(run(&mut placement, (0, 100), |_| sample(1_399, 600)), [0u64; 0]);
        assert_eq!(run(&mut placement, (100, 100), |_| sample(1_400, 600)), [110]);
        assert_eq!(
            run(&mut placement, (200, 100), |_| sample(701, 600)),
            [0u64; 0],
            "between the two it stays"
        );
        assert_eq!(run(&mut placement, (300, 100), |_| sample(16_000, 64 << 10)), [310]);
        assert_eq!(placement.why().to_string(), "mean 16 us, a crossing 26 us");
        assert_eq!(run(&mut placement, (400, 100), |_| sample(52_599, 64 << 10)), [0u64; 0]);
    }

    #[test]
    fn what_stays_for_another_reason_begins_its_hold_anew() {
        let mut placement = Placement::new(at(0), Rule::Supplied, PlacementBounds::default());
        assert_eq!(run(&mut placement, (0, 10), |_| micros(1, 2)), [0u64; 0]);
        placement.stays(Why::KeepsState);
        assert_eq!(run(&mut placement, (10, 30), |_| micros(1, 2)), [20]);
    }

    /// Whatever is measured, a stage moves at most twice in each hold that it has had, and holds double while
    /// it comes back soon.
    #[test]
    fn no_measurement_makes_a_stage_flap() {
        for seed in 0..2_000 {
            let mut random = Random::new(seed);
            let rule = if seed % 2 == 0 { Rule::Supplied } else { Rule::Cost };
            let mut placement = Placement::new(at(0), rule, PlacementBounds::default());
            let (mut level, mut last) = (1, None::<(u64, Duration)>);
            for second in 0..20_000u64 {
                // Changes of behaviour, some short, some long, and noise.
                let often = 1 + random.below(60);
                if random.below(often) == 0 {
                    level = [1, 30, 49, 51, 200][random.below(5) as usize];
                }
                let sample = micros(level, level + random.below(3));
                if placement.look(at(1_000 * second), &sample).is_some() {
                    let hold = placement.hold();
                    if let Some((before, _)) = last {
                        let stayed = Duration::from_secs(second - before);
                        assert!(stayed >= hold, "seed {seed}: it moved after {stayed:?} of {hold:?}");
                    }
                    placement.moved(at(1_000 * second));
                    last = Some((second, hold));
                }
            }
            // 20,000 s, of which each stay takes 10 s at least; those that follow quickly on each other take
            // longer and longer.
            assert!(placement.moves() <= 400, "seed {seed}: {} moves", placement.moves());
        }
        // The worst case: it is short elsewhere and long in the worker, always.
        let mut placement = Placement::new(at(0), Rule::Supplied, PlacementBounds::default());
        for second in 0..20_000 {
            let p99 = if placement.side() == Side::Worker { 100 } else { 10 };
            if placement.look(at(1_000 * second), &micros(p99, p99)).is_some() {
                placement.moved(at(1_000 * second));
            }
        }
        assert!(placement.moves() <= 2 * (20_000 / 640 + 7), "{}", placement.moves());
    }
}
