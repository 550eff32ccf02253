//! Finds rules that no packet reaches.
//!
//! **Sound, not complete:** a rule is reported if a single other rule that precedes it matches every packet
//! that it matches. A rule that only several others together cover is not found.

use std::sync::Arc;

use super::fields::Rule;
use super::table::{RuleHandle, Table, order_of};

/// A rule that never matches, and the rule that covers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Covered {
    /// Name of the rule that no packet reaches.
    pub rule: Arc<str>,
    /// Name of a preceding rule that matches every packet that it matches.
    pub by: Arc<str>,
}

/// Returns the rules that another single rule covers, in the given order. Takes about as long as building a
/// table.
pub fn covered_rules(rules: &[Rule]) -> Vec<Covered> {
    let order = |at: usize| order_of(rules[at].priority, at as u64);
    let mut indices: Vec<usize> = (0..rules.len()).collect();
    indices.sort_unstable_by_key(|&at| core::cmp::Reverse(order(at)));
    let mut table = Table::new();
    for at in indices {
        table.insert(&rules[at], RuleHandle { slot: at as u32, generation: 0 }, order(at));
    }
    let mut covered = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let mut by = None;
        table.for_candidates(rule, |candidate| {
            let candidate = candidate as usize;
            if order(candidate) < order(at) && rules[candidate].fields.covers(&rule.fields) {
                by = Some(candidate);
            }
            by.is_none()
        });
        if let Some(by) = by {
            covered.push(Covered { rule: rule.name.clone(), by: rules[by].name.clone() });
        }
    }
    covered
}
