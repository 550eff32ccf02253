//! Linear search through all rules: the baseline for measurements of the tables.

use super::fields::{Fields, Rule};
use super::table::order_of;
use super::words::{AnyKey, Entry, V4, V6, entry_v4, entry_v6, key_of};

/// Rules in match order, in the same form as in a table.
#[derive(Clone, Debug)]
pub struct Linear {
    v4: Vec<Entry<V4>>,
    v6: Vec<Entry<V6>>,
}

impl Linear {
    /// Creates the list.
    pub fn new(rules: &[Rule]) -> Self {
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_unstable_by_key(|&at| order_of(rules[at].priority, at as u64));
        let v4 = order
            .iter()
            .filter_map(|&at| entry_v4(&rules[at].fields).map(|entry| Entry { slot: at as u32, ..entry }));
        let v6 = order
            .iter()
            .filter_map(|&at| entry_v6(&rules[at].fields).map(|entry| Entry { slot: at as u32, ..entry }));
        Linear { v4: v4.collect(), v6: v6.collect() }
    }

    /// Returns the index of the first matching rule in the list that was passed to [`new`](Self::new).
    pub fn find(&self, packet: &Fields) -> Option<usize> {
        let slot = match key_of(packet) {
            AnyKey::V4(key) => self.v4.iter().find(|entry| entry.matches(&key)).map(|entry| entry.slot),
            AnyKey::V6(key) => self.v6.iter().find(|entry| entry.matches(&key)).map(|entry| entry.slot),
            AnyKey::Neither => None,
        };
        slot.map(|slot| slot as usize)
    }
}
