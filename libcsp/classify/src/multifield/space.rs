//! The tuples of one address family: into which one an entry is put, when a tuple is divided, and in which
//! order tuples are probed.
//!
//! An entry fits every tuple whose mask is contained in its own mask. It is put into the one with the most
//! bits. A chain that grows beyond [`CHAIN_MAX`] shows that the tuple's mask is too coarse for some entries.
//! A mask that divides the chain is then searched for among those that the chain's entries permit, and all
//! entries of the tuple that permit it move to a new tuple. Hence the number of tuples follows the rules, and
//! not the combinations of prefix lengths (TupleMerge, section 4).

use super::tuple::{Best, Tuple};
use super::words::{Entry, Key, REST_FIELDS, Words, address_fields, address_prefix, and, bits, within};

/// Number of entries with equal bits under a tuple's mask beyond which a finer mask is searched for.
const CHAIN_MAX: usize = 16;
/// Largest number of tuples in one family, which bounds the time of a look-up. Beyond it chains grow.
const TUPLES_MAX: usize = 128;
/// Approximate number of a chain's entries that are examined to find a finer mask.
const EXAMINED_MAX: usize = 32;
/// Prefix lengths in masks are multiples of this where that also divides a chain, since tuples with fewer
/// bits hold more kinds of rules.
const LENGTH_STEP: u32 = 8;

/// All entries of one family.
#[derive(Clone, Debug, Default)]
pub(super) struct Space<const N: usize> {
    /// Ordered by `best`, ascending.
    tuples: Vec<Tuple<N>>,
}

impl<const N: usize> Space<N> {
    /// Returns the first entry by order that matches, if it precedes `best`.
    #[inline]
    pub fn find(&self, key: &Key<N>) -> Best {
        let mut best = Best::NOTHING;
        for tuple in &self.tuples {
            if tuple.best() >= best.order {
                break;
            }
            tuple.find(key, &mut best);
        }
        best
    }

    /// Adds an entry.
    pub fn insert(&mut self, entry: Entry<N>) {
        let compatible =
            self.tuples.iter().enumerate().filter(|(_, tuple)| within(tuple.mask(), &entry.mask));
        let finest = compatible.max_by_key(|(_, tuple)| bits(tuple.mask()));
        let at = match finest.map(|(at, _)| at) {
            Some(at) => at,
            None => {
                self.tuples.push(Tuple::new(coarse_mask(&entry.mask)));
                self.tuples.len() - 1
            }
        };
        let chain = self.tuples[at].insert(entry);
        if is_examined(chain) && self.tuples.len() < TUPLES_MAX {
            self.divide(at, &entry, chain);
        }
        self.sort();
    }

    /// Removes the entry with this value, mask and owner's slot. Returns whether it was present.
    pub fn remove(&mut self, entry: &Entry<N>) -> bool {
        let mut compatible = self.tuples.iter_mut().filter(|tuple| within(tuple.mask(), &entry.mask));
        let found = compatible.any(|tuple| tuple.remove(&entry.value, entry.slot));
        self.tuples.retain(|tuple| !tuple.is_empty());
        self.sort();
        found
    }

    /// Calls `each` for entries that may cover one with this value and mask, until `each` returns false.
    pub fn for_candidates(&self, entry: &Entry<N>, mut each: impl FnMut(&Entry<N>) -> bool) {
        let mut going = true;
        for tuple in self.tuples.iter().filter(|tuple| within(tuple.mask(), &entry.mask)) {
            tuple.for_bits(&entry.value, |candidate| {
                going = each(candidate);
                going
            });
            if !going {
                return;
            }
        }
    }

    /// Returns the tuples in probing order.
    pub fn tuples(&self) -> &[Tuple<N>] {
        &self.tuples
    }

    fn sort(&mut self) {
        if !self.tuples.is_sorted_by_key(Tuple::best) {
            self.tuples.sort_by_key(Tuple::best);
        }
    }

    /// If a mask divides the chain of `entry`, moves all entries that permit it to a tuple with that mask.
    fn divide(&mut self, at: usize, entry: &Entry<N>, chain: usize) {
        let Some(mask) = self.finer_mask(at, entry, chain) else { return };
        let target = match self.tuples.iter().position(|tuple| *tuple.mask() == mask) {
            Some(existing) => existing,
            None => {
                self.tuples.push(Tuple::new(mask));
                self.tuples.len() - 1
            }
        };
        let moving: Vec<Entry<N>> =
            self.tuples[at].entries().filter(|entry| within(&mask, &entry.mask)).copied().collect();
        for entry in &moving {
            self.tuples[at].remove(&entry.value, entry.slot);
        }
        for entry in moving {
            self.tuples[target].insert(entry);
        }
        self.tuples.retain(|tuple| !tuple.is_empty());
    }

    /// Returns the mask with the fewest bits that leaves at most half of the chain together, or else the one
    /// that leaves the fewest entries together. Of a long chain a sample is examined: entries at equal
    /// distances, and the newest.
    fn finer_mask(&self, at: usize, newest: &Entry<N>, length: usize) -> Option<Words<N>> {
        let tuple = &self.tuples[at];
        let mut chain: Vec<Entry<N>> = vec![*newest];
        let (step, mut place) = (length.div_ceil(EXAMINED_MAX), 0);
        tuple.for_bits(&newest.value, |entry| {
            if place % step == 0 && entry.slot != newest.slot {
                chain.push(*entry);
            }
            place += 1;
            true
        });
        let good = chain.len() / 2;
        let mut best: Option<(usize, u32, Words<N>)> = None;
        for entry in &chain {
            for mask in refinements(tuple.mask(), &entry.mask) {
                let together = left_together(&chain, &mask).max(good);
                let candidate = (together, bits(&mask), mask);
                if best.as_ref().is_none_or(|best| (candidate.0, candidate.1) < (best.0, best.1)) {
                    best = Some(candidate);
                }
            }
        }
        best.filter(|(together, ..)| *together < chain.len()).map(|(.., mask)| mask)
    }
}

/// Returns whether a chain that has just reached this length is examined. This happens about eight times
/// while its length doubles, so that an indivisible chain costs little and later entries are not missed.
fn is_examined(length: usize) -> bool {
    let step = (length.next_power_of_two() / 8).max(CHAIN_MAX);
    length > CHAIN_MAX && (length - 1).is_multiple_of(step)
}

/// Returns how many entries of a chain remain in one chain if those that permit the mask move.
fn left_together<const N: usize>(chain: &[Entry<N>], mask: &Words<N>) -> usize {
    let moves = |entry: &&Entry<N>| within(mask, &entry.mask);
    let staying = chain.iter().filter(|entry| !moves(entry)).count();
    let mut moving: Vec<Words<N>> = chain.iter().filter(moves).map(|entry| and(&entry.value, mask)).collect();
    moving.sort_unstable();
    let largest = moving.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0);
    staying.max(largest)
}

fn or<const N: usize>(a: &Words<N>, b: &Words<N>) -> Words<N> {
    core::array::from_fn(|at| a[at] | b[at])
}

/// Returns masks between that of a tuple and that of an entry: with more bits of one field or of all fields,
/// with coarse or exact lengths.
fn refinements<const N: usize>(coarse: &Words<N>, entry: &Words<N>) -> Vec<Words<N>> {
    let mut masks = Vec::with_capacity(20);
    let stepped = or(coarse, &stepped(entry));
    for field in address_fields::<N>() {
        masks.push(or(coarse, &and(&stepped, &field)));
        masks.push(or(coarse, &and(entry, &field)));
    }
    for field in REST_FIELDS {
        let mut words = [0; N];
        words[N - 1] = field;
        masks.push(or(coarse, &and(entry, &words)));
    }
    masks.push(stepped);
    masks.push(*entry);
    masks.retain(|mask| mask != coarse);
    masks
}

/// Returns the mask with its address prefixes cut to multiples of [`LENGTH_STEP`], and only whole other
/// fields.
fn stepped<const N: usize>(mask: &Words<N>) -> Words<N> {
    let mut out = [0; N];
    for (field, words) in address_fields::<N>().iter().enumerate() {
        let length = bits(&and(mask, words)) / LENGTH_STEP * LENGTH_STEP;
        out = or(&out, &address_prefix(field, length));
    }
    for field in REST_FIELDS.iter().filter(|&&field| mask[N - 1] & field == field) {
        out[N - 1] |= field;
    }
    out
}

/// Returns the mask of the first tuple for an entry: the longer of its two prefixes, or without prefixes the
/// whole fields.
fn coarse_mask<const N: usize>(mask: &Words<N>) -> Words<N> {
    let stepped = stepped(mask);
    let [source, destination] = address_fields::<N>().map(|field| and(&stepped, &field));
    match bits(&source).max(bits(&destination)) {
        0 => stepped,
        longest if longest == bits(&destination) => destination,
        _ => source,
    }
}
