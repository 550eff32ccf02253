//! From a descriptor to the id of its flow: tuple-space search.
//!
//! Predicates that constrain the same bits form a *tuple*; a tuple is a hash table over these bits. A look-up
//! asks each tuple once, in order of the first flow that each holds, and stops when none of those left can
//! come before what has been found. So the cost grows with the kinds of predicates and not with their number.
//! Ranges are checked for the entries that a hash table yields. Keys come from the policy alone: what peers
//! send can lengthen no chain.

use crate::descriptor::{Compiled, PRESENT, Range, WORDS, Words};

/// Most tuples: each that a look-up must ask costs about as much as the first.
pub const TUPLES_MAX: usize = 128;

const NIL: u32 = u32::MAX;
const BUCKETS_MIN: usize = 16;

/// More kinds of predicates than a look-up may cost: the operator's mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the flows constrain more than {TUPLES_MAX} different sets of fields and prefix lengths")]
pub struct TooManyTuples;

/// Odd multiples of the golden ratio's fraction.
const FACTORS: [u64; WORDS] = {
    let (mut factors, mut at) = ([0; WORDS], 0);
    while at < WORDS {
        factors[at] = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(at as u64 * 0x1_0001 + 1) | 1;
        at += 1;
    }
    factors
};

#[derive(Clone, Debug)]
struct Entry {
    hash: u32,
    next: u32,
    /// Position among all flows: the first that matches wins.
    order: u32,
    flow: u16,
    ranges: u8,
    /// Values of the tuple's words, in their order.
    key: Words,
}

#[derive(Clone, Debug)]
struct Tuple {
    mask: Words,
    /// The words that the mask constrains.
    words: [(u8, u64); WORDS],
    count: usize,
    /// How many of them are hashed: what is present is compared only.
    hashed: usize,
    /// Least order of its entries, or less.
    order_min: u32,
    entries: usize,
    buckets: Vec<u32>,
}

impl Tuple {
    fn new(mask: &Words) -> Self {
        let (mut words, mut count) = ([(0, 0); WORDS], 0);
        for (word, mask) in mask.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            words[count] = (word as u8, *mask);
            count += 1;
        }
        let hashed = if count > 1 && usize::from(words[count - 1].0) == PRESENT { count - 1 } else { count };
        let buckets = vec![NIL; BUCKETS_MIN];
        Tuple { mask: *mask, words, count, hashed, order_min: u32::MAX, entries: 0, buckets }
    }

    #[inline]
    fn hash(&self, words: &Words) -> u32 {
        // A sum of products, which the processor computes side by side.
        let mut sum = 0u64;
        for ((word, mask), factor) in self.words[..self.hashed].iter().zip(&FACTORS) {
            let value = words[usize::from(*word)] & mask;
            sum = sum.wrapping_add((value ^ value >> 32).wrapping_mul(*factor));
        }
        ((sum ^ sum >> 32).wrapping_mul(FACTORS[0]) >> 32) as u32
    }

    #[inline]
    fn holds(&self, entry: &Entry, words: &Words) -> bool {
        let constrained = self.words[..self.count].iter();
        constrained.zip(&entry.key).all(|((word, mask), key)| words[usize::from(*word)] & mask == *key)
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn key(&self, words: &Words) -> Words {
        let mut key = [0; WORDS];
        for ((word, mask), key) in self.words[..self.count].iter().zip(&mut key) {
            *key = words[usize::from(*word)] & mask;
        }
        key
    }
}

/// Maps descriptors to flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classifier {
    tuples: Vec<Tuple>,
    entries: Vec<Entry>,
    /// Ranges of entries, by entry.
    ranges: Vec<[Option<Range>; crate::descriptor::RANGES_MAX]>,
}

impl Classifier {
    /// Returns the first flow in order whose predicate holds.
    #[inline]
    pub fn find(&self, words: &Words) -> Option<u16> {
        let (mut found, mut order) = (None, u32::MAX);
        for tuple in &self.tuples {
            if tuple.order_min >= order {
                break;
            }
            let hash = tuple.hash(words);
            let mut at = tuple.buckets[tuple.bucket(hash)];
            while at != NIL {
                let entry = &self.entries[at as usize];
                // A chain is sorted by order.
                if entry.order >= order {
                    break;
                }
                if entry.hash == hash && tuple.holds(entry, words) && self.ranges_hold(at, entry, words) {
                    (found, order) = (Some(entry.flow), entry.order);
                    break;
                }
                at = entry.next;
            }
        }
        found
    }

    #[inline]
    fn ranges_hold(&self, at: u32, entry: &Entry, words: &Words) -> bool {
        let ranges = &self.ranges[at as usize][..usize::from(entry.ranges)];
        ranges.iter().flatten().all(|range| range.holds(words))
    }

    /// Adds a predicate. Equal order means the same flow.
    pub fn insert(&mut self, compiled: &Compiled, order: u32, flow: u16) -> Result<(), TooManyTuples> {
        let at = match self.tuples.iter().position(|tuple| tuple.mask == compiled.mask) {
            Some(at) => at,
            None if self.tuples.len() == TUPLES_MAX => return Err(TooManyTuples),
            None => {
                self.tuples.push(Tuple::new(&compiled.mask));
                self.tuples.len() - 1
            }
        };
        // Most look-ups ask a tuple in vain: three buckets of four are empty, and cost no look at an entry.
        if self.tuples[at].entries * 4 >= self.tuples[at].buckets.len() {
            self.grow(at);
        }
        let tuple = &mut self.tuples[at];
        let hash = tuple.hash(&compiled.key);
        let mut ranges = [None; crate::descriptor::RANGES_MAX];
        ranges.iter_mut().zip(&compiled.ranges).for_each(|(to, range)| *to = Some(*range));
        let count = compiled.ranges.len().min(ranges.len()) as u8;
        let entry = Entry { hash, next: NIL, order, flow, ranges: count, key: tuple.key(&compiled.key) };
        tuple.entries += 1;
        let moved = order < tuple.order_min;
        tuple.order_min = tuple.order_min.min(order);
        let index = self.entries.len() as u32;
        self.entries.push(entry);
        self.ranges.push(ranges);
        self.link(at, index);
        if moved {
            self.tuples.sort_by_key(|tuple| tuple.order_min);
        }
        Ok(())
    }

    /// Puts an entry into its chain, which is sorted by order.
    fn link(&mut self, tuple: usize, index: u32) {
        let (hash, order) = (self.entries[index as usize].hash, self.entries[index as usize].order);
        let tuple = &mut self.tuples[tuple];
        let bucket = tuple.bucket(hash);
        let (mut at, mut before) = (tuple.buckets[bucket], NIL);
        while at != NIL && self.entries[at as usize].order < order {
            (before, at) = (at, self.entries[at as usize].next);
        }
        self.entries[index as usize].next = at;
        match before {
            NIL => tuple.buckets[bucket] = index,
            before => self.entries[before as usize].next = index,
        }
    }

    fn grow(&mut self, at: usize) {
        let tuple = &mut self.tuples[at];
        let len = tuple.buckets.len() * 2;
        let chains = std::mem::replace(&mut tuple.buckets, vec![NIL; len]);
        for mut index in chains {
            while index != NIL {
                let next = self.entries[index as usize].next;
                self.link(at, index);
                index = next;
            }
        }
    }

    /// Returns which bits any predicate reads.
    pub fn reads(&self, compiled: impl Iterator<Item = Compiled>) -> Words {
        let mut mask = [0; WORDS];
        for compiled in compiled {
            mask.iter_mut().zip(&compiled.mask).for_each(|(all, bits)| *all |= bits);
            compiled.ranges.iter().for_each(|range| mask[usize::from(range.word)] |= range.mask);
        }
        mask
    }
}
