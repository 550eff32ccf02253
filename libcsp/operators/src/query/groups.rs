//! Groups of windows that are open, in a block of bytes.
//!
//! ```text
//!   | free, first, last, count, fresh | buckets | slots: hash, window, rows, links, source, lengths | aggregates | kept rows |
//! ```
//!
//! Groups are found by hash, and stand in one list: windows of time by their begin and then as they came,
//! windows of rows by their last use. A block of zeros has no groups.

use crate::cells::{bytes_at, i64_at, put_i64, put_u32, put_u64, u32_at, u64_at};
use csp_queries::{ACCUMULATOR_LEN, Accumulator};

const FREE: usize = 0;
const FIRST: usize = 4;
const LAST: usize = 8;
const COUNT: usize = 12;
const FRESH: usize = 16;
const HEADER: usize = 24;
const BUCKET: usize = 4;

const HASH: usize = 0;
const WINDOW: usize = 8;
const ROWS: usize = 16;
const IN_BUCKET: usize = 24;
const AFTER: usize = 28;
const BEFORE: usize = 32;
const SOURCE: usize = 36;
const LENS: usize = 40;
const FIXED: usize = LENS + 4 * KEPT_MAX;

/// Most rows that a group keeps.
pub(super) const KEPT_MAX: usize = super::times::SOURCES_MAX + 1;

/// Where groups lie in a block, and how large they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    base: usize,
    buckets: u32,
    groups: u32,
    aggregates: usize,
    /// Most bytes of the rows that a group keeps, and where they lie in its slot.
    kept: [usize; KEPT_MAX],
    kept_at: [usize; KEPT_MAX],
    slot: usize,
    /// Where slots begin.
    slots: usize,
}

impl Groups {
    pub fn new(base: usize, groups: u32, aggregates: usize, kept: [usize; KEPT_MAX]) -> Self {
        let buckets = groups.next_power_of_two();
        let slot = Self::slot_for(aggregates, &kept);
        let mut end = FIXED + aggregates * ACCUMULATOR_LEN;
        let kept_at = kept.map(|len| {
            end += len;
            end - len
        });
        let slots = base + HEADER + buckets as usize * BUCKET;
        Groups { base, buckets, groups, aggregates, kept, kept_at, slot, slots }
    }

    /// Bytes of a group.
    pub fn slot_for(aggregates: usize, kept: &[usize]) -> usize {
        (FIXED + aggregates * ACCUMULATOR_LEN + kept.iter().sum::<usize>()).next_multiple_of(8)
    }

    /// Most groups that a block of so many bytes has room for.
    pub fn fitting(bytes: usize, slot: usize) -> u32 {
        // Fewer than two buckets a group.
        (bytes.saturating_sub(HEADER) / (slot + 2 * BUCKET)) as u32
    }

    /// Bytes of the block that they take.
    pub fn len(&self) -> u64 {
        HEADER as u64 + u64::from(self.buckets) * BUCKET as u64 + u64::from(self.groups) * self.slot as u64
    }

    #[inline]
    pub fn count(&self, block: &[u8]) -> u32 {
        u32_at(block, self.base + COUNT)
    }

    #[inline]
    pub fn slot_len(&self) -> usize {
        self.slot
    }

    /// The first group of the list; 0: there is none.
    #[inline]
    pub fn first(&self, block: &[u8]) -> u32 {
        u32_at(block, self.base + FIRST)
    }

    /// The last group of the list; 0: there is none.
    #[inline]
    pub fn last(&self, block: &[u8]) -> u32 {
        u32_at(block, self.base + LAST)
    }

    #[inline]
    pub fn after(&self, block: &[u8], group: u32) -> u32 {
        u32_at(block, self.at(group) + AFTER)
    }

    /// The first group of a hash's bucket.
    #[inline]
    pub fn of_hash(&self, block: &[u8], hash: u64) -> u32 {
        u32_at(block, self.bucket(hash))
    }

    #[inline]
    pub fn next_of_hash(&self, block: &[u8], group: u32) -> u32 {
        u32_at(block, self.at(group) + IN_BUCKET)
    }

    #[inline]
    pub fn hash(&self, block: &[u8], group: u32) -> u64 {
        u64_at(block, self.at(group) + HASH)
    }

    #[inline]
    pub fn window(&self, block: &[u8], group: u32) -> i64 {
        i64_at(block, self.at(group) + WINDOW)
    }

    #[inline]
    pub fn rows(&self, block: &[u8], group: u32) -> u64 {
        u64_at(block, self.at(group) + ROWS)
    }

    #[inline]
    pub fn set_rows(&self, block: &mut [u8], group: u32, rows: u64) {
        put_u64(block, self.at(group) + ROWS, rows);
    }

    #[inline]
    pub fn source(&self, block: &[u8], group: u32) -> usize {
        u32_at(block, self.at(group) + SOURCE) as usize
    }

    /// The row that a group keeps of a source.
    #[inline]
    pub fn kept<'b>(&self, block: &'b [u8], group: u32, source: usize) -> &'b [u8] {
        let at = self.at(group);
        let len = (u32_at(block, at + LENS + 4 * source) as usize).min(self.kept[source]);
        bytes_at(block, at + self.kept_at[source], len)
    }

    /// Where the row that a group keeps of a source is put.
    #[inline]
    pub fn kept_mut<'b>(&self, block: &'b mut [u8], group: u32, source: usize) -> &'b mut [u8] {
        let at = self.at(group) + self.kept_at[source];
        block.get_mut(at..at + self.kept[source]).unwrap_or_default()
    }

    /// Whether a group keeps a row of a source.
    #[inline]
    pub fn has_kept(&self, block: &[u8], group: u32, source: usize) -> bool {
        u32_at(block, self.at(group) + LENS + 4 * source) > 0
    }

    #[inline]
    pub fn set_kept_len(&self, block: &mut [u8], group: u32, source: usize, len: usize) {
        put_u32(block, self.at(group) + LENS + 4 * source, len as u32);
    }

    /// The aggregates of a group.
    #[inline]
    pub fn aggregates<'b>(&self, block: &'b [u8], group: u32) -> &'b [Accumulator] {
        let at = self.at(group) + FIXED;
        bytes_at(block, at, self.aggregates * ACCUMULATOR_LEN).as_chunks().0
    }

    #[inline]
    pub fn aggregates_mut<'b>(&self, block: &'b mut [u8], group: u32) -> &'b mut [Accumulator] {
        let at = self.at(group) + FIXED;
        let bytes = block.get_mut(at..at + self.aggregates * ACCUMULATOR_LEN);
        bytes.unwrap_or_default().as_chunks_mut().0
    }

    /// Takes a free group and puts it behind all whose window does not begin later. `None`: all are in use.
    pub fn add(&self, block: &mut [u8], hash: u64, window: i64, source: usize) -> Option<u32> {
        let free = u32_at(block, self.base + FREE);
        let fresh = u32_at(block, self.base + FRESH);
        let group = if free != 0 {
            let next = self.next_of_hash(block, free);
            put_u32(block, self.base + FREE, next);
            free
        } else if fresh < self.groups {
            put_u32(block, self.base + FRESH, fresh + 1);
            fresh + 1
        } else {
            return None;
        };
        let (at, bucket) = (self.at(group), self.bucket(hash));
        if let Some(slot) = block.get_mut(at..at + FIXED + self.aggregates * ACCUMULATOR_LEN) {
            slot.fill(0);
        }
        put_u64(block, at + HASH, hash);
        put_i64(block, at + WINDOW, window);
        put_u32(block, at + SOURCE, source as u32);
        put_u32(block, at + IN_BUCKET, u32_at(block, bucket));
        put_u32(block, bucket, group);
        let mut before = u32_at(block, self.base + LAST);
        while before != 0 && self.window(block, before) > window {
            before = u32_at(block, self.at(before) + BEFORE);
        }
        self.link(block, group, before);
        let count = self.count(block);
        put_u32(block, self.base + COUNT, count + 1);
        Some(group)
    }

    /// Moves a group to the end of the list.
    pub fn touch(&self, block: &mut [u8], group: u32) {
        self.unlink(block, group);
        let last = u32_at(block, self.base + LAST);
        self.link(block, group, last);
    }

    /// Releases a group.
    pub fn remove(&self, block: &mut [u8], group: u32) {
        let (at, bucket) = (self.at(group), self.bucket(self.hash(block, group)));
        let next = u32_at(block, at + IN_BUCKET);
        let (mut link, mut steps) = (bucket, 0);
        while u32_at(block, link) != group && u32_at(block, link) != 0 && steps <= self.groups {
            link = self.at(u32_at(block, link)) + IN_BUCKET;
            steps += 1;
        }
        put_u32(block, link, next);
        self.unlink(block, group);
        let free = u32_at(block, self.base + FREE);
        put_u32(block, at + IN_BUCKET, free);
        put_u32(block, self.base + FREE, group);
        let count = self.count(block);
        put_u32(block, self.base + COUNT, count.saturating_sub(1));
    }

    fn link(&self, block: &mut [u8], group: u32, before: u32) {
        let place = if before == 0 { self.base + FIRST } else { self.at(before) + AFTER };
        let after = u32_at(block, place);
        put_u32(block, place, group);
        put_u32(block, self.at(group) + BEFORE, before);
        put_u32(block, self.at(group) + AFTER, after);
        let back = if after == 0 { self.base + LAST } else { self.at(after) + BEFORE };
        put_u32(block, back, group);
    }

    fn unlink(&self, block: &mut [u8], group: u32) {
        let at = self.at(group);
        let (before, after) = (u32_at(block, at + BEFORE), u32_at(block, at + AFTER));
        put_u32(block, if before == 0 { self.base + FIRST } else { self.at(before) + AFTER }, after);
        put_u32(block, if after == 0 { self.base + LAST } else { self.at(after) + BEFORE }, before);
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        self.base + HEADER + (hash as u32 & (self.buckets - 1)) as usize * BUCKET
    }

    #[inline]
    fn at(&self, group: u32) -> usize {
        let index = group.wrapping_sub(1).min(self.groups.saturating_sub(1));
        self.slots + index as usize * self.slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups that come and go at random are those of a plain list.
    #[test]
    fn groups_are_listed_by_window_and_found_by_hash() {
        let mut random = csp_support::Random::new(3);
        let groups = Groups::new(8, 20, 2, [10, 3, 0, 0, 0, 0, 0, 0]);
        let mut block = vec![0; 8 + groups.len() as usize];
        // Window and hash.
        let mut model: Vec<(i64, u64)> = Vec::new();
        for _ in 0..20_000 {
            if random.below(3) > 0 {
                let (window, hash) = (random.below(4) as i64, random.below(40));
                match groups.add(&mut block, hash, window, 0) {
                    None => assert_eq!(model.len(), 20),
                    Some(group) => {
                        assert_eq!(groups.rows(&block, group), 0);
                        groups.set_rows(&mut block, group, 7);
                        groups.aggregates_mut(&mut block, group)[1] = [1; ACCUMULATOR_LEN];
                        groups.kept_mut(&mut block, group, 1).fill(3);
                        let at = model.iter().position(|known| known.0 > window).unwrap_or(model.len());
                        model.insert(at, (window, hash));
                    }
                }
            } else if !model.is_empty() {
                let at = random.below(model.len() as u64) as usize;
                let mut group = groups.first(&block);
                (0..at).for_each(|_| group = groups.after(&block, group));
                if random.below(2) == 0 && model.iter().all(|known| known.0 <= model[at].0) {
                    groups.touch(&mut block, group);
                    let moved = model.remove(at);
                    model.push(moved);
                } else {
                    groups.remove(&mut block, group);
                    model.remove(at);
                }
            }
            assert_eq!(groups.count(&block) as usize, model.len());
            let mut group = groups.first(&block);
            for &(window, hash) in &model {
                assert_eq!((groups.window(&block, group), groups.hash(&block, group)), (window, hash));
                let mut found = groups.of_hash(&block, hash);
                while found != group {
                    assert_ne!(found, 0, "in its bucket");
                    found = groups.next_of_hash(&block, found);
                }
                group = groups.after(&block, group);
            }
            assert_eq!(group, 0);
        }
    }
}
