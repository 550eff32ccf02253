//! Costs of a stage, by the formats of its messages.

use csp_handlers::{FormatId, Profile};

/// Number of formats of a stage that have a profile each: the first ones that arrive.
const FORMATS_MAX: usize = 8;

/// The profiles of a stage. All memory is allocated when it is made.
#[derive(Debug)]
pub(super) struct Profiles {
    /// The first entry is for timers, and for messages of formats that have no entry.
    known: Vec<(Option<FormatId>, Profile)>,
    /// The one that was used last.
    last: usize,
}

impl Default for Profiles {
    fn default() -> Self {
        let mut known = Vec::with_capacity(1 + FORMATS_MAX);
        known.push((None, Profile::default()));
        Profiles { known, last: 0 }
    }
}

impl Profiles {
    /// Returns the profile of messages of a format; `None`: of timers.
    #[inline]
    pub fn of(&mut self, format: Option<FormatId>) -> &mut Profile {
        if self.known[self.last].0 != format {
            self.last = self.find(format);
        }
        &mut self.known[self.last].1
    }

    #[cold]
    fn find(&mut self, format: Option<FormatId>) -> usize {
        match self.known.iter().position(|(known, _)| *known == format) {
            Some(at) => at,
            None if self.known.len() > FORMATS_MAX => 0,
            None => {
                self.known.push((format, Profile::default()));
                self.known.len() - 1
            }
        }
    }

    /// Decays the weight of earlier calls in the quantiles of formats with at least `at_least` measured
    /// calls.
    pub fn age(&mut self, at_least: u32) {
        self.known.iter_mut().for_each(|(_, profile)| profile.timing.age(at_least));
    }

    /// Returns what all calls together have cost.
    pub fn total(&self) -> Profile {
        let mut total = Profile::default();
        self.known.iter().for_each(|(_, profile)| total.add(profile));
        total
    }

    /// Returns the profiles of formats that there were messages of.
    pub fn by_format(&self) -> Vec<(Option<FormatId>, Profile)> {
        let is_used = |profile: &Profile| profile.messages + profile.full + profile.ticks > 0;
        self.known.iter().filter(|(_, profile)| is_used(profile)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_as_far_as_there_are_places() {
        let mut profiles = Profiles::default();
        for round in 1..=2 {
            for format in 1..=FORMATS_MAX as u32 + 3 {
                profiles.of(Some(FormatId(format))).messages += 1;
            }
            assert_eq!(profiles.total().messages, round * (FORMATS_MAX as u64 + 3));
        }
        profiles.of(None).ticks += 5;
        let shown = profiles.by_format();
        assert_eq!(shown.len(), 1 + FORMATS_MAX);
        assert_eq!((shown[0].0, shown[0].1.messages, shown[0].1.ticks), (None, 6, 5));
        assert!(shown[1..].iter().all(|(format, profile)| format.is_some() && profile.messages == 2));
    }
}
