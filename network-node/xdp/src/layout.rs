//! The table of rules and instances as the program reads it: one immutable block of memory
//! (`program/level1.h`).
//!
//! ```text
//!   │ first tuples │ instances │ tuples of IPv4 │ tuples of IPv6 │ buckets and entries of each tuple ...
//! ```
//! The rules lie in the hash tables that `csp-classify` has made. A look-up takes at most one step for each
//! entry of the longest chain of each hash table; a table for which that exceeds [`STEPS_MAX`] is refused,
//! and so is one that does not fit.

use std::collections::HashMap;

use csp_classify::multifield::{EncodedRule, EncodedTuple, Table};
use csp_plugins::OUTPUTS_MAX;

use crate::{INSTANCES_MAX, RULES_MAX};

/// Bytes of a table.
pub const TABLE_LEN: usize = 4 << 20;
/// Size of the largest structure that may begin at the last offset.
pub(crate) const TABLE_TAIL: usize = 128;
/// Largest number of hash tables of one address family.
pub const TUPLES_MAX: usize = 64;
/// Largest number of steps of a look-up.
pub const STEPS_MAX: usize = 256;

const NONE: u32 = u32::MAX;
/// Marks an output that is not connected.
pub(crate) const OUT: u8 = 0xff;

const FIRST_LEN: usize = 64;
const INSTANCE_LEN: usize = 64;
const TUPLE_LEN: usize = 64;
const ENTRY_V4_LEN: usize = 64;
const ENTRY_V6_LEN: usize = 128;
const TUPLES_AT: usize = FIRST_LEN + INSTANCES_MAX * INSTANCE_LEN;
const VARIABLE_AT: usize = TUPLES_AT + 2 * TUPLES_MAX * TUPLE_LEN;

/// Why rules cannot be compiled into a table of level 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// There are too many combinations of rule masks.
    #[error("the rules need {0} hash tables; {TUPLES_MAX} are the most")]
    Tuples(usize),
    /// A look-up could take too many steps.
    #[error("a look-up could take {0} steps; {STEPS_MAX} are the most")]
    Steps(usize),
    /// They exceed the table's size.
    #[error("the rules need more than {TABLE_LEN} bytes")]
    Full,
    /// There are too many rules.
    #[error("{0} rules; {RULES_MAX} are the most")]
    Rules(usize),
}

/// The operation of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    NoOp,
    Drop,
    Redirect(u32),
    Counter { by_destination: bool, length_v4: u8, length_v6: u8 },
    Policer { rate: u64, burst: u64, exceed_next: bool },
    Dscp(u8),
    BlockList { by_destination: bool },
    Supplied,
}

/// An instance in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub operation: Operation,
    /// For each output, the slot of the connected instance, or [`OUT`].
    pub next: [u8; OUTPUTS_MAX],
}

/// Token units per byte. At r bits per second, r units are added per nanosecond.
const BYTE: u64 = 8 * 1_000_000_000;

/// A block of memory under construction.
struct Block(Vec<u8>);

impl Block {
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, value.to_ne_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, value.to_ne_bytes());
    }

    fn instance(&mut self, at: usize, placed: &Placed) {
        let (mut by_destination, mut value) = (0, 0);
        let number = match placed.operation {
            Operation::NoOp => 0,
            Operation::Drop => 1,
            Operation::Redirect(port) => {
                value = port;
                2
            }
            Operation::Counter { by_destination: destination, length_v4, length_v6 } => {
                by_destination = u8::from(destination);
                self.put(at + 33, [length_v4, length_v6]);
                3
            }
            Operation::Policer { rate, burst, exceed_next } => {
                let burst = burst.saturating_mul(BYTE);
                self.u64(at + 8, rate);
                self.u64(at + 16, burst);
                self.u64(at + 24, burst / rate.max(1) + 1);
                self.put(at + 32, [u8::from(exceed_next)]);
                4
            }
            Operation::Dscp(dscp) => {
                value = dscp.into();
                5
            }
            Operation::BlockList { by_destination: destination } => {
                by_destination = u8::from(destination);
                6
            }
            Operation::Supplied => {
                self.put(at + 40, placed.next);
                7
            }
        };
        self.put(at, [number, placed.next[0], placed.next[1], by_destination]);
        self.u32(at + 4, value);
    }

    fn entry(&mut self, at: usize, words: usize, rule: &EncodedRule, rank: u16, start: u8, next: u32) {
        for word in 0..words {
            self.u64(at + 8 * word, rule.value[word]);
            self.u64(at + 8 * (words + word), rule.mask[word]);
        }
        let at = at + 16 * words;
        let (source, destination) = (rule.source_ports, rule.destination_ports);
        for (place, port) in
            [source.low(), source.high(), destination.low(), destination.high()].into_iter().enumerate()
        {
            self.put(at + 2 * place, port.to_ne_bytes());
        }
        self.put(at + 8, rank.to_ne_bytes());
        self.put(at + 10, (rule.rule.slot as u16).to_ne_bytes());
        let any = u8::from(source.is_any()) | u8::from(destination.is_any()) << 1;
        self.put(at + 12, [start, any, rule.tcp_flags.0, rule.tcp_flags.1]);
        self.u32(at + 16, next);
    }

    /// Appends `len` bytes at a multiple of 64. Returns their offset.
    fn allocate(&mut self, len: usize) -> Result<usize, TableError> {
        let at = self.0.len().next_multiple_of(64);
        if at + len > TABLE_LEN {
            return Err(TableError::Full);
        }
        self.0.resize(at + len, 0);
        Ok(at)
    }
}

/// The program's hash function.
fn hash(words: &[u64], mask: &[u64]) -> u32 {
    let mut hash = 0u64;
    for (word, mask) in words.iter().zip(mask) {
        hash = (hash ^ (word & mask)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    (hash >> 32) as u32
}

/// Compiles a table. `starts` maps the rules of level 1, by slot, to the slot of their first instance.
pub(crate) fn compile(
    table: &Table,
    starts: &HashMap<u32, u8>,
    instances: &[Option<Placed>],
) -> Result<Vec<u8>, TableError> {
    let families = [ingress(table.layout_v4(), 2), ingress(table.layout_v6(), 5)];
    let ranks = ranks(&families)?;
    let mut block = Block(vec![0; VARIABLE_AT]);
    for (at, placed) in instances.iter().enumerate() {
        if let Some(placed) = placed {
            block.instance(FIRST_LEN + at * INSTANCE_LEN, placed);
        }
    }
    for (family, tuples) in families.iter().enumerate() {
        if tuples.len() > TUPLES_MAX {
            return Err(TableError::Tuples(tuples.len()));
        }
        let words = if family == 0 { 2 } else { 5 };
        let first = if tuples.is_empty() { TUPLES_MAX as u32 } else { 0 };
        block.u32(4 * family, first);
        let mut steps = 0;
        for (at, tuple) in tuples.iter().enumerate() {
            let following = if at + 1 == tuples.len() { TUPLES_MAX } else { at + 1 };
            let place = TUPLES_AT + (family * TUPLES_MAX + at) * TUPLE_LEN;
            steps += tuple_at(&mut block, place, words, tuple, &ranks, starts, following as u32)?;
        }
        if steps > STEPS_MAX {
            return Err(TableError::Steps(steps));
        }
    }
    block.0.resize(TABLE_LEN + TABLE_TAIL, 0);
    Ok(block.0)
}

/// Removes the rules for transmitted packets.
fn ingress(tuples: Vec<EncodedTuple>, words: usize) -> Vec<EncodedTuple> {
    let left = tuples.into_iter().map(|tuple| {
        let rules = tuple.rules.into_iter().filter(|rule| rule.is_ingress(words)).collect();
        EncodedTuple { rules, ..tuple }
    });
    let mut left: Vec<EncodedTuple> = left.filter(|tuple| !tuple.rules.is_empty()).collect();
    left.sort_by_key(|tuple| tuple.rules.iter().map(|rule| rule.order).min());
    left
}

/// Returns the rank of each rule in match order.
fn ranks(families: &[Vec<EncodedTuple>; 2]) -> Result<HashMap<u64, u16>, TableError> {
    let rules = families.iter().flatten().flat_map(|tuple| &tuple.rules);
    let mut orders: Vec<u64> = rules.map(|rule| rule.order).collect();
    orders.sort_unstable();
    orders.dedup();
    if orders.len() > RULES_MAX {
        return Err(TableError::Rules(orders.len()));
    }
    Ok(orders.into_iter().zip(0u16..).collect())
}

/// Writes a hash table. Returns the largest number of steps of a look-up in it.
fn tuple_at(
    block: &mut Block,
    place: usize,
    words: usize,
    tuple: &EncodedTuple,
    ranks: &HashMap<u64, u16>,
    starts: &HashMap<u32, u8>,
    following: u32,
) -> Result<usize, TableError> {
    let buckets = (2 * tuple.rules.len()).next_power_of_two();
    let entry_len = if words == 2 { ENTRY_V4_LEN } else { ENTRY_V6_LEN };
    let buckets_at = block.allocate(4 * buckets)?;
    let entries_at = block.allocate(entry_len * tuple.rules.len())?;
    let mut rules: Vec<&EncodedRule> = tuple.rules.iter().collect();
    // In reverse order: each entry becomes the head of its chain, so that ranks rise along the chain.
    rules.sort_unstable_by_key(|rule| core::cmp::Reverse(rule.order));
    let (mut heads, mut lengths) = (vec![NONE; buckets], vec![0usize; buckets]);
    for (at, rule) in rules.iter().enumerate() {
        let bucket = hash(&rule.value[..words], &tuple.mask[..words]) as usize & (buckets - 1);
        let offset = entries_at + at * entry_len;
        let start = starts.get(&rule.rule.slot).copied().unwrap_or(OUT);
        block.entry(offset, words, rule, ranks[&rule.order], start, heads[bucket]);
        heads[bucket] = offset as u32;
        lengths[bucket] += 1;
    }
    for (bucket, head) in heads.into_iter().enumerate() {
        block.u32(buckets_at + 4 * bucket, head);
    }
    for (word, mask) in tuple.mask.iter().enumerate() {
        block.u64(place + 8 * word, *mask);
    }
    let best = rules.last().map_or(NONE, |rule| ranks[&rule.order].into());
    block.u32(place + 40, best);
    block.u32(place + 44, buckets_at as u32);
    block.u32(place + 48, buckets as u32 - 1);
    block.u32(place + 52, following);
    Ok(lengths.into_iter().max().unwrap_or(0).max(1))
}
