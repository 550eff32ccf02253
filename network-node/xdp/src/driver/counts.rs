//! The program's counters by rule and by instance, summed over processors.

use std::path::Path;

use csp_classify::multifield::HitCount;
use csp_plugins::{Answer, InstanceCount};

use super::{Counts, Driver, DriverError, folder_error};
use crate::RULES_MAX;
use crate::lists::List;
use crate::maps::{Count, State};

impl Driver {
    /// Returns the counters.
    pub fn counts(&self) -> Result<Counts, DriverError> {
        let mut counts = self.carried.clone();
        for (rule, base) in &self.rules {
            let hits = since(self.rule_count(rule.slot)?, *base);
            let sum = counts.rules.entry(*rule).or_default();
            *sum = *sum + hits;
        }
        for (at, wanted) in self.slots.0.iter().enumerate() {
            let Some(wanted) = wanted else { continue };
            let (count, _) = self.state(at)?;
            let sum = counts.instances.entry(wanted.name.clone()).or_default();
            sum.packets += count.packets;
            sum.bytes += count.bytes;
            sum.dropped += count.dropped;
        }
        for of_cpu in self.totals.get(&0, 0)?.iter() {
            let totals = &mut counts.totals;
            totals.seen += of_cpu.seen;
            totals.unclassified += of_cpu.unclassified;
            totals.unmatched += of_cpu.unmatched;
            totals.level2 += of_cpu.level2;
            totals.passed += of_cpu.passed;
            totals.dropped += of_cpu.dropped;
            totals.redirected += of_cpu.redirected;
            totals.broken += of_cpu.broken;
        }
        Ok(counts)
    }

    pub(super) fn rule_count(&self, slot: u32) -> Result<Count, DriverError> {
        if slot as usize >= RULES_MAX {
            return Ok(Count::default());
        }
        let mut sum = Count::default();
        for of_cpu in self.rule_counts.get(&slot, 0)?.iter() {
            sum.packets += of_cpu.packets;
            sum.bytes += of_cpu.bytes;
        }
        Ok(sum)
    }

    /// Returns the sum over processors.
    pub(super) fn state(&self, at: usize) -> Result<(InstanceCount, State), DriverError> {
        let (mut count, mut sum) = (InstanceCount::default(), State::default());
        for of_cpu in self.states.get(&(at as u32), 0)?.iter() {
            count.packets += of_cpu.processed.packets;
            count.bytes += of_cpu.processed.bytes;
            count.dropped += of_cpu.dropped;
            for (sum, more) in [(&mut sum.first, of_cpu.first), (&mut sum.second, of_cpu.second)] {
                sum.packets += more.packets;
                sum.bytes += more.bytes;
            }
        }
        Ok((count, sum))
    }

    pub(super) fn carry_instance(&mut self, at: usize, name: &str) -> Result<(), DriverError> {
        let (count, state) = self.state(at)?;
        let carried = self.carried.instances.entry(name.to_owned()).or_default();
        carried.packets += count.packets;
        carried.bytes += count.bytes;
        carried.dropped += count.dropped;
        if let List::Networks(list) = &self.lists[at] {
            let rows = Answer::Rows(list.read(&state)?);
            let before = Answer::Rows(self.carried_rows.remove(name).unwrap_or_default());
            if let Answer::Rows(rows) = crate::merge(before, rows) {
                self.carried_rows.insert(name.to_owned(), rows);
            }
        }
        Ok(())
    }

    /// Resets the total of a counter instance to zero.
    pub(super) fn reset_state(&mut self, at: usize) -> Result<(), DriverError> {
        let of_cpus = self.states.get(&(at as u32), 0)?;
        let reset: Vec<State> =
            of_cpus.iter().map(|state| State { first: Count::default(), ..*state }).collect();
        let reset = reset.try_into().map_err(folder_error(Path::new("states")))?;
        Ok(self.states.set(at as u32, reset, 0)?)
    }
}

pub(super) fn since(count: Count, base: Count) -> HitCount {
    HitCount {
        packets: count.packets.saturating_sub(base.packets),
        bytes: count.bytes.saturating_sub(base.bytes),
    }
}
