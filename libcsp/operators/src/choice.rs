//! Which of two versions of an operator runs: the one that was measured to take less time. A state machine on
//! the caller's measurements.
//!
//! ```text
//!   trial: both in turn, each message timed ─▶ medians ─▶ run the better one ─ so many messages later ─▶ trial
//! ```
//! The generic version runs unless the specialised one is better by [`Rules::gain_percent`]; once that one
//! runs, it stays as long as it is not slower. Between the two nothing changes, so that noise does not make
//! versions alternate. While trials confirm what runs, the time between them doubles.

/// A version of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// The operator as it is built in, with places resolved from the format.
    Generic,
    /// Code made for the format and the parameters.
    Specialised,
}

/// How versions are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// By how much of the generic version's time the specialised one has to be better before it runs, in per
    /// cent.
    pub gain_percent: u32,
    /// Messages between the first two trials.
    pub again: u32,
    /// Most messages between trials.
    pub again_max: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { gain_percent: 10, again: 1 << 16, again_max: 1 << 24 }
    }
}

/// Messages of each version that a trial times.
pub const SAMPLES: usize = 63;
/// Messages of one version in a row during a trial. The first of them is not counted: caches and predictors
/// knew the other version.
const RUN: usize = 8;

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Run a version.
    Run(Version),
    /// Run a version, and report how long it took by [`Choice::timed`].
    Time(Version),
}

/// Medians of a trial, in nanoseconds a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Medians {
    /// Of the generic version.
    pub generic_ns: u32,
    /// Of the specialised version.
    pub specialised_ns: u32,
}

/// Chooses between two versions of an operator.
#[derive(Clone, Debug)]
pub struct Choice {
    rules: Rules,
    current: Version,
    /// Messages until the next trial.
    left: u32,
    again: u32,
    /// Messages that this trial has timed, or `None` between trials.
    trial: Option<usize>,
    times: [[u32; SAMPLES]; 2],
    counts: [usize; 2],
    medians: Option<Medians>,
}

impl Choice {
    /// The generic version runs, and a trial begins with the first message.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Choice {
            rules,
            current: Version::Generic,
            left: 0,
            again: rules.again,
            trial: Some(0),
            times: [[0; SAMPLES]; 2],
            counts: [0; 2],
            medians: None,
        }
    }

    /// One version without trials, as tests and measurements need it.
    #[must_use]
    pub fn always(version: Version) -> Self {
        Choice {
            current: version,
            left: u32::MAX,
            again: u32::MAX,
            trial: None,
            ..Self::new(Rules::default())
        }
    }

    /// Returns what to do with the next message.
    #[inline]
    pub fn turn(&mut self) -> Turn {
        if self.left > 0 {
            // What never has a trial need not count.
            if self.left != u32::MAX {
                self.left -= 1;
            }
            return Turn::Run(self.current);
        }
        let step = *self.trial.get_or_insert(0);
        let version = if (step / RUN).is_multiple_of(2) { Version::Generic } else { Version::Specialised };
        Turn::Time(version)
    }

    /// Records how long a message of a trial took. Returns whether another version runs from now on.
    pub fn timed(&mut self, version: Version, nanos: u64) -> bool {
        let Some(step) = self.trial else { return false };
        self.trial = Some(step + 1);
        let count = &mut self.counts[version as usize];
        if !step.is_multiple_of(RUN) && *count < SAMPLES {
            self.times[version as usize][*count] = u32::try_from(nanos).unwrap_or(u32::MAX);
            *count += 1;
        }
        self.counts.iter().all(|count| *count == SAMPLES) && self.decide()
    }

    /// Returns the version that runs between trials.
    #[must_use]
    pub fn current(&self) -> Version {
        self.current
    }

    /// Returns what the last trial measured; `None` before its end.
    #[must_use]
    pub fn medians(&self) -> Option<Medians> {
        self.medians
    }

    fn decide(&mut self) -> bool {
        let [generic_ns, specialised_ns] = self.times.each_mut().map(|times| {
            let (_, median, _) = times.select_nth_unstable(SAMPLES / 2);
            *median
        });
        self.medians = Some(Medians { generic_ns, specialised_ns });
        let better = match self.current {
            Version::Generic => {
                let most = u64::from(generic_ns) * u64::from(100 - self.rules.gain_percent.min(100));
                match u64::from(specialised_ns) * 100 < most {
                    true => Version::Specialised,
                    false => Version::Generic,
                }
            }
            Version::Specialised if specialised_ns > generic_ns => Version::Generic,
            Version::Specialised => Version::Specialised,
        };
        let changed = better != self.current;
        self.current = better;
        (self.trial, self.counts) = (None, [0; 2]);
        self.left = self.again;
        self.again = match changed {
            true => self.rules.again,
            false => self.again.saturating_mul(2).min(self.rules.again_max),
        };
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { gain_percent: 10, again: 1000, again_max: 4000 };

    /// Runs until a trial is over; each version takes what `cost` says of its n-th message. Returns the
    /// messages that were timed.
    fn trial(choice: &mut Choice, cost: impl Fn(Version, u64) -> u64) -> u64 {
        for timed in 0..10_000 {
            let Turn::Time(version) = choice.turn() else { return timed };
            choice.timed(version, cost(version, timed));
            if choice.trial.is_none() {
                return timed + 1;
            }
        }
        panic!("a trial ends");
    }

    fn fixed(generic: u64, specialised: u64) -> impl Fn(Version, u64) -> u64 {
        move |version, _| if version == Version::Generic { generic } else { specialised }
    }

    /// Messages that run without being timed.
    fn quiet(choice: &mut Choice) -> u32 {
        let mut count = 0;
        while let Turn::Run(version) = choice.turn() {
            assert_eq!(version, choice.current());
            count += 1;
        }
        count
    }

    #[test]
    fn the_specialised_version_runs_if_it_is_better_by_the_gain() {
        for (generic, specialised, runs) in [
            (100, 89, Version::Specialised),
            (100, 90, Version::Generic),
            (100, 100, Version::Generic),
            (100, 300, Version::Generic),
            (0, 0, Version::Generic),
            (u64::MAX, 1, Version::Specialised),
        ] {
            let mut choice = Choice::new(RULES);
            let timed = trial(&mut choice, fixed(generic, specialised));
            assert!((2 * SAMPLES as u64..3 * SAMPLES as u64).contains(&timed), "{timed}");
            assert_eq!(choice.current(), runs, "{generic} beside {specialised}");
        }
    }

    #[test]
    fn once_it_runs_it_stays_until_it_is_slower() {
        let mut choice = Choice::new(RULES);
        trial(&mut choice, fixed(100, 50));
        for (generic, specialised, runs) in [
            (100, 95, Version::Specialised),
            (100, 100, Version::Specialised),
            (100, 101, Version::Generic),
            (100, 95, Version::Generic),
            (100, 80, Version::Specialised),
        ] {
            quiet(&mut choice);
            trial(&mut choice, fixed(generic, specialised));
            assert_eq!(choice.current(), runs, "{generic} beside {specialised}");
            assert_eq!(choice.medians().unwrap().specialised_ns as u64, specialised);
        }
    }

    #[test]
    fn trials_become_rarer_while_they_confirm_what_runs() {
        let mut choice = Choice::new(RULES);
        trial(&mut choice, fixed(100, 200));
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(quiet(&mut choice));
            trial(&mut choice, fixed(100, 200));
        }
        assert_eq!(waits, [1000, 2000, 4000, 4000]);
        quiet(&mut choice);
        trial(&mut choice, fixed(100, 10));
        quiet(&mut choice);
        trial(&mut choice, fixed(100, 10));
        assert_eq!(quiet(&mut choice), 1000, "a change begins anew");
    }

    #[test]
    fn single_messages_that_take_long_decide_nothing() {
        // Every fifth message of the faster version is interrupted.
        let mut choice = Choice::new(RULES);
        trial(&mut choice, |version, nth| match version {
            Version::Specialised if nth % 5 == 0 => 50_000,
            Version::Specialised => 40,
            Version::Generic => 80,
        });
        assert_eq!(choice.current(), Version::Specialised);
        // Costs that vary by 8 per cent around each other change nothing in a hundred trials.
        let mut choice = Choice::new(RULES);
        let mut random = csp_support::Random::new(7);
        for _ in 0..100 {
            let shift = random.below(9);
            trial(&mut choice, fixed(100, 96 + shift));
            assert_eq!(choice.current(), Version::Generic);
            quiet(&mut choice);
        }
    }
}
