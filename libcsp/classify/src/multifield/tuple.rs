//! One hash table of the space: the rules whose masks contain the table's mask, by the bits under it.
//!
//! ```text
//!   bucket:  8 tags of one byte in one word, and the heads of 8 chains
//!   chain:   entries with equal bits under the mask, by rising order, in one arena
//! ```
//!
//! A probe that finds no tag ends after one word: most probes of a look-up are such.

use super::words::{Entry, Key, NONE, ORDER_MAX, Words, and, hash};

const EMPTY: u8 = 0;
/// Tag of a freed slot in a bucket that insertions have overflowed past.
const DELETED: u8 = 1;
const TAGS_MIN: u8 = 2;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Average number of used slots per bucket, of 8, at which the table grows.
const LOAD_MAX: usize = 5;

/// Returns a word whose high bits mark the bytes equal to `tag`. The byte above an equal one may be marked as
/// well; comparing the chain behind it decides.
#[inline(always)]
fn equal_bytes(word: u64, tag: u8) -> u64 {
    let differing = word ^ (LOW_BITS * u64::from(tag));
    differing.wrapping_sub(LOW_BITS) & !differing & HIGH_BITS
}

#[inline(always)]
fn tag_of(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(TAGS_MIN)
}

fn tag_at(word: u64, at: usize) -> u8 {
    (word >> (8 * at)) as u8
}

fn with_tag(word: u64, at: usize, tag: u8) -> u64 {
    word & !(0xff << (8 * at)) | u64::from(tag) << (8 * at)
}

/// The best entry found so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub order: u64,
    pub slot: u32,
    pub instance: u32,
    pub generation: u16,
}

impl Best {
    pub const NOTHING: Best = Best { order: ORDER_MAX, slot: NONE, instance: 0, generation: 0 };
}

/// A hash table for one mask.
#[derive(Clone, Debug)]
pub(super) struct Tuple<const N: usize> {
    mask: Words<N>,
    /// A lower bound of its entries' orders.
    best: u64,
    bucket_mask: usize,
    tags: Vec<u64>,
    heads: Vec<[u32; 8]>,
    /// Lengths of the chains.
    lengths: Vec<[u32; 8]>,
    entries: Vec<Entry<N>>,
    free: u32,
    len: usize,
    /// Number of slots that are not empty, including freed ones.
    slots_used: usize,
    /// Removals since `best` was computed.
    removed: usize,
}

impl<const N: usize> Tuple<N> {
    pub fn new(mask: Words<N>) -> Self {
        Tuple {
            mask,
            best: ORDER_MAX,
            bucket_mask: 0,
            tags: vec![0],
            heads: vec![[NONE; 8]],
            lengths: vec![[0; 8]],
            entries: Vec::new(),
            free: NONE,
            len: 0,
            slots_used: 0,
            removed: 0,
        }
    }

    pub fn mask(&self) -> &Words<N> {
        &self.mask
    }

    pub fn best(&self) -> u64 {
        self.best
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.tags.capacity() * 8
            + self.heads.capacity() * 64
            + self.entries.capacity() * size_of::<Entry<N>>()
    }

    /// Replaces `best` by the first matching entry that precedes it, if there is one.
    #[inline(always)]
    pub fn find(&self, key: &Key<N>, best: &mut Best) {
        let hash = hash(&key.words, &self.mask);
        let tag = tag_of(hash);
        let mut bucket = hash as usize & self.bucket_mask;
        loop {
            let Some(&word) = self.tags.get(bucket) else { return };
            let mut equal = equal_bytes(word, tag);
            while equal != 0 {
                let at = equal.trailing_zeros() as usize / 8;
                self.find_in_chain(self.heads[bucket][at & 7], key, best);
                equal &= equal - 1;
            }
            if equal_bytes(word, EMPTY) != 0 {
                return;
            }
            bucket = (bucket + 1) & self.bucket_mask;
        }
    }

    #[inline(always)]
    fn find_in_chain(&self, mut at: u32, key: &Key<N>, best: &mut Best) {
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.order >= best.order {
                return;
            }
            if entry.matches(key) {
                let Entry { order, slot, instance, generation, .. } = *entry;
                *best = Best { order, slot, instance, generation };
                return;
            }
            at = entry.next;
        }
    }

    /// Calls `each` with the entries that have these bits under the mask, in ascending order, until `each`
    /// returns false.
    pub fn for_bits(&self, words: &Words<N>, mut each: impl FnMut(&Entry<N>) -> bool) {
        let Some((bucket, slot)) = self.slot_of(words) else { return };
        let mut at = self.heads[bucket][slot];
        while let Some(entry) = self.entries.get(at as usize) {
            if !each(entry) {
                return;
            }
            at = entry.next;
        }
    }

    /// Returns all entries, chain by chain.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<N>> {
        let heads = self.heads.iter().flatten().copied().filter(|&head| head != NONE);
        heads.flat_map(|head| {
            core::iter::successors(self.entries.get(head as usize), |entry| {
                self.entries.get(entry.next as usize)
            })
        })
    }

    /// Returns the slot of the chain with these bits under the mask.
    fn slot_of(&self, words: &Words<N>) -> Option<(usize, usize)> {
        let bits = and(words, &self.mask);
        let hash = hash(words, &self.mask);
        let mut bucket = hash as usize & self.bucket_mask;
        // A bucket with an empty slot ends the search, and a table below its load limit has one.
        for _ in 0..self.tags.len() {
            let word = self.tags[bucket];
            for at in 0..8 {
                if tag_at(word, at) == tag_of(hash)
                    && let Some(head) = self.entries.get(self.heads[bucket][at] as usize)
                    && and(&head.value, &self.mask) == bits
                {
                    return Some((bucket, at));
                }
            }
            if equal_bytes(word, EMPTY) != 0 {
                return None;
            }
            bucket = (bucket + 1) & self.bucket_mask;
        }
        None
    }

    /// Adds an entry whose mask contains the table's. Returns the length of its chain.
    pub fn insert(&mut self, entry: Entry<N>) -> usize {
        self.best = self.best.min(entry.order);
        let place = self.allocate(entry);
        self.len += 1;
        match self.slot_of(&entry.value) {
            Some((bucket, at)) => self.link(bucket, at, place),
            None => {
                self.add_chain(&entry.value, place);
                1
            }
        }
    }

    fn allocate(&mut self, entry: Entry<N>) -> u32 {
        let entry = Entry { next: NONE, ..entry };
        match self.entries.get_mut(self.free as usize) {
            Some(slot) => {
                let place = self.free;
                self.free = slot.next;
                *slot = entry;
                place
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Inserts the entry with index `place` into the chain by its order. Returns the chain's length.
    fn link(&mut self, bucket: usize, slot: usize, place: u32) -> usize {
        let order = self.entries[place as usize].order;
        let (mut previous, mut at) = (NONE, self.heads[bucket][slot]);
        while let Some(entry) = self.entries.get(at as usize).filter(|entry| entry.order < order) {
            (previous, at) = (at, entry.next);
        }
        self.entries[place as usize].next = at;
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = place,
            None => self.heads[bucket][slot] = place,
        }
        self.lengths[bucket][slot] += 1;
        self.lengths[bucket][slot] as usize
    }

    fn add_chain(&mut self, words: &Words<N>, head: u32) {
        if self.slots_used >= self.tags.len() * LOAD_MAX {
            self.grow();
        }
        self.place(words, head, 1);
    }

    /// Puts a chain into the first free slot, starting with its own bucket.
    fn place(&mut self, words: &Words<N>, head: u32, length: u32) {
        let hash = hash(words, &self.mask);
        let mut bucket = hash as usize & self.bucket_mask;
        loop {
            let word = self.tags[bucket];
            if let Some(at) = (0..8).find(|&at| tag_at(word, at) < TAGS_MIN) {
                self.slots_used += usize::from(tag_at(word, at) == EMPTY);
                self.tags[bucket] = with_tag(word, at, tag_of(hash));
                self.heads[bucket][at] = head;
                self.lengths[bucket][at] = length;
                return;
            }
            bucket = (bucket + 1) & self.bucket_mask;
        }
    }

    /// Rehashes all chains, into twice as many buckets unless freed slots fill the table.
    fn grow(&mut self) {
        let heads = self.heads.iter().flatten().copied().zip(self.lengths.iter().flatten().copied());
        let heads: Vec<(u32, u32)> = heads.filter(|(head, _)| *head != NONE).collect();
        let crowded = heads.len() * 2 >= self.tags.len() * LOAD_MAX;
        let buckets = if crowded { self.tags.len() * 2 } else { self.tags.len() };
        self.tags = vec![0; buckets];
        self.heads = vec![[NONE; 8]; buckets];
        self.lengths = vec![[0; 8]; buckets];
        self.bucket_mask = buckets - 1;
        self.slots_used = 0;
        for (head, length) in heads {
            let words = self.entries[head as usize].value;
            self.place(&words, head, length);
        }
    }

    /// Removes the entry with these bits and this owner's slot. Returns whether it was present.
    pub fn remove(&mut self, words: &Words<N>, owner_slot: u32) -> bool {
        let Some((bucket, slot)) = self.slot_of(words) else { return false };
        let (mut previous, mut at) = (NONE, self.heads[bucket][slot]);
        while let Some(entry) = self.entries.get(at as usize).filter(|entry| entry.slot != owner_slot) {
            (previous, at) = (at, entry.next);
        }
        let Some(&Entry { next, .. }) = self.entries.get(at as usize) else { return false };
        self.lengths[bucket][slot] -= 1;
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None if next == NONE => self.remove_chain(bucket, slot),
            None => self.heads[bucket][slot] = next,
        }
        self.entries[at as usize].next = self.free;
        self.free = at;
        self.len -= 1;
        self.note_removed();
        true
    }

    fn remove_chain(&mut self, bucket: usize, slot: usize) {
        let word = self.tags[bucket];
        // Insertions never overflowed past a bucket with an empty slot.
        let tag = if equal_bytes(word, EMPTY) != 0 { EMPTY } else { DELETED };
        self.slots_used -= usize::from(tag == EMPTY);
        self.tags[bucket] = with_tag(word, slot, tag);
        self.heads[bucket][slot] = NONE;
    }

    /// Keeps `best` a lower bound of all orders. It is recomputed after enough removals to amortise the cost.
    fn note_removed(&mut self) {
        self.removed += 1;
        if self.removed * 64 >= self.len {
            self.best = self.entries().map(|entry| entry.order).min().unwrap_or(ORDER_MAX);
            self.removed = 0;
        }
    }

    /// Returns the length of the longest chain.
    pub fn longest_chain(&self) -> usize {
        self.lengths.iter().flatten().max().map_or(0, |&length| length as usize)
    }
}
