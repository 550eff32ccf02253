//! A table of the rules of both address families, in which workers look packets up.

use super::fields::{Fields, InstanceId, Rule};
use super::space::Space;
use super::tuple::{Best, Tuple};
use super::words::{AnyKey, Entry, NONE, V4, V6, entry_v4, entry_v6, key_of};

/// Identifies a rule on the data path by its slot in the owner's table. The generation counts how often the
/// slot was reused (modulo 2¹⁶), so that counts of a former rule are not attributed to a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleHandle {
    /// The slot, below the owner's capacity.
    pub slot: u32,
    /// Number of times that the slot was reused.
    pub generation: u16,
}

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hit {
    /// The matching rule.
    pub rule: RuleHandle,
    /// The instance that it is bound to.
    pub instance: InstanceId,
}

/// Returns the order of a rule among all: by priority, then by insertion.
pub(super) fn order_of(priority: u32, sequence: u64) -> u64 {
    u64::from(priority) << SEQUENCE_BITS | sequence & ((1 << SEQUENCE_BITS) - 1)
}

/// Bits of the sequence: 2⁴⁰ insertions.
const SEQUENCE_BITS: u32 = 40;

/// Size of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// Rules that IPv4 packets can match.
    pub rules_v4: usize,
    /// Rules that IPv6 packets can match.
    pub rules_v6: usize,
    /// Number of hash tables for IPv4 packets, all probed in the worst case.
    pub tuples_v4: usize,
    /// Number of hash tables for IPv6 packets, all probed in the worst case.
    pub tuples_v6: usize,
    /// Largest number of rules with equal bits under their hash table's mask.
    pub longest_chain: usize,
    /// Bytes of memory.
    pub bytes: usize,
}

/// A table of rules. Clones share nothing.
#[derive(Clone, Debug, Default)]
pub struct Table {
    v4: Space<V4>,
    v6: Space<V6>,
    /// TCP flags that any rule has compared. Other flags do not affect a look-up.
    flags_compared: u8,
}

impl Table {
    /// Creates an empty table.
    pub fn new() -> Self {
        Table::default()
    }

    /// Returns the rule that matches the packet: the first by priority and insertion.
    #[inline]
    pub fn find(&self, packet: &Fields) -> Option<Hit> {
        self.find_key(&key_of(packet))
    }

    #[inline]
    pub(super) fn find_key(&self, key: &AnyKey) -> Option<Hit> {
        let best = match key {
            AnyKey::V4(key) => self.v4.find(key),
            AnyKey::V6(key) => self.v6.find(key),
            AnyKey::Neither => Best::NOTHING,
        };
        let rule = RuleHandle { slot: best.slot, generation: best.generation };
        (best.slot != NONE).then_some(Hit { rule, instance: InstanceId(best.instance) })
    }

    pub(super) fn v4(&self) -> &Space<V4> {
        &self.v4
    }

    pub(super) fn v6(&self) -> &Space<V6> {
        &self.v6
    }

    /// Returns the TCP flags that rules compare. Other flags do not affect a look-up.
    pub(super) fn flags_compared(&self) -> u8 {
        self.flags_compared
    }

    /// Adds a rule in an unused slot.
    pub(super) fn insert(&mut self, rule: &Rule, handle: RuleHandle, order: u64) {
        let RuleHandle { slot, generation } = handle;
        let instance = rule.instance.0;
        self.flags_compared |= rule.fields.tcp_flags.map_or(0, |flags| flags.mask);
        if let Some(entry) = entry_v4(&rule.fields) {
            self.v4.insert(Entry { order, slot, generation, instance, ..entry });
        }
        if let Some(entry) = entry_v6(&rule.fields) {
            self.v6.insert(Entry { order, slot, generation, instance, ..entry });
        }
    }

    /// Removes the rule of a slot. Returns whether it was present.
    pub(super) fn remove(&mut self, rule: &Rule, slot: u32) -> bool {
        let v4 = entry_v4(&rule.fields).map(|entry| Entry { slot, ..entry });
        let v6 = entry_v6(&rule.fields).map(|entry| Entry { slot, ..entry });
        // Both are removed, whatever the first call returns.
        let v4 = v4.is_some_and(|entry| self.v4.remove(&entry));
        let v6 = v6.is_some_and(|entry| self.v6.remove(&entry));
        v4 || v6
    }

    /// Calls `each` with the slots of rules that may cover `rule`, until it returns false. Every rule that
    /// covers it is among them.
    pub(super) fn for_candidates(&self, rule: &Rule, mut each: impl FnMut(u32) -> bool) {
        if let Some(entry) = entry_v4(&rule.fields) {
            return self.v4.for_candidates(&entry, |candidate| each(candidate.slot));
        }
        if let Some(entry) = entry_v6(&rule.fields) {
            self.v6.for_candidates(&entry, |candidate| each(candidate.slot));
        }
    }

    /// Returns the size of the table, in time proportional to it.
    pub fn stats(&self) -> TableStats {
        fn sum<const N: usize>(tuples: &[Tuple<N>]) -> (usize, usize, usize, usize) {
            let longest = tuples.iter().map(Tuple::longest_chain).max().unwrap_or(0);
            let rules = tuples.iter().map(Tuple::len).sum();
            (rules, tuples.len(), longest, tuples.iter().map(Tuple::bytes).sum())
        }
        let (rules_v4, tuples_v4, longest_v4, bytes_v4) = sum(self.v4.tuples());
        let (rules_v6, tuples_v6, longest_v6, bytes_v6) = sum(self.v6.tuples());
        TableStats {
            rules_v4,
            rules_v6,
            tuples_v4,
            tuples_v6,
            longest_chain: longest_v4.max(longest_v6),
            bytes: bytes_v4 + bytes_v6,
        }
    }

    /// Returns the mask, the number of rules and the longest chain of each hash table of IPv4, in probing
    /// order. For measurements.
    pub fn tuples_v4(&self) -> Vec<([u64; V4], usize, usize)> {
        self.v4.tuples().iter().map(|tuple| (*tuple.mask(), tuple.len(), tuple.longest_chain())).collect()
    }
}
