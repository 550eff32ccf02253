//! Sorted, disjoint ranges of sequence numbers. A connection borrows a set of ranges from a common pool while
//! it needs one.

use csp_wire::tcp::SACK_BLOCKS_MAX;

use crate::RANGES_PER_SET;
use crate::list::NIL;
use crate::seq::{Seq, SeqRange};

#[derive(Clone, Copy, Debug)]
struct Set {
    ranges: [SeqRange; RANGES_PER_SET],
    len: usize,
    /// Start of the latest out-of-order segments, newest first: their ranges come first in the SACK blocks.
    recent: [Seq; SACK_BLOCKS_MAX],
}

/// All range sets of a stack.
#[derive(Debug)]
pub(crate) struct RangePool {
    sets: Vec<Set>,
    free: Vec<u32>,
}

impl RangePool {
    pub fn new(sets: usize) -> Self {
        let recent = [Seq(0); SACK_BLOCKS_MAX];
        let empty = Set { ranges: [SeqRange::default(); RANGES_PER_SET], len: 0, recent };
        RangePool { sets: vec![empty; sets], free: (0..sets as u32).rev().collect() }
    }

    pub fn capacity(&self) -> usize {
        self.sets.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }
}

/// The pool is empty or the set is full: the range was not recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

/// The ranges of one connection. It allocates a set with the first range and releases it with the last.
#[derive(Debug)]
pub(crate) struct Ranges {
    set: u32,
}

impl Ranges {
    pub const EMPTY: Ranges = Ranges { set: NIL };

    pub fn is_empty(&self) -> bool {
        self.set == NIL
    }

    /// The ranges in ascending order.
    pub fn as_slice<'a>(&self, pool: &'a RangePool) -> &'a [SeqRange] {
        match self.set {
            NIL => &[],
            set => {
                let set = &pool.sets[set as usize];
                &set.ranges[..set.len]
            }
        }
    }

    /// Adds `start .. end`, merging it with ranges that it touches, and returns how many numbers were new.
    pub fn insert(&mut self, pool: &mut RangePool, start: Seq, end: Seq) -> Result<u32, NoRoom> {
        if !start.before(end) {
            return Ok(0);
        }
        if self.set == NIL {
            self.set = pool.free.pop().ok_or(NoRoom)?;
            let set = &mut pool.sets[self.set as usize];
            (set.len, set.recent) = (0, [start; SACK_BLOCKS_MAX]);
        }
        let set = &mut pool.sets[self.set as usize];
        set.insert(SeqRange { start, end })
    }

    /// Whether `start .. end` can be inserted.
    pub fn has_room(&self, pool: &RangePool, start: Seq, end: Seq) -> bool {
        let Some(set) = pool.sets.get(self.set as usize) else { return !pool.free.is_empty() };
        let new = SeqRange { start, end };
        set.len < RANGES_PER_SET || set.ranges[..set.len].iter().any(|range| range.touches(&new))
    }

    /// Marks the range that contains `seq` as the newest (RFC 2018 §4). Each range has one entry, so that a
    /// growing range does not displace the others.
    pub fn note_recent(&mut self, pool: &mut RangePool, seq: Seq) {
        let Some(set) = pool.sets.get_mut(self.set as usize) else { return };
        let all = &set.ranges[..set.len];
        let holding = all.get(all.partition_point(|range| !range.end.after(seq)));
        let Some(&SeqRange { start, end }) = holding else { return };
        let known = set.recent.iter().position(|&at| !at.before(start) && at.before(end));
        let last = known.unwrap_or(SACK_BLOCKS_MAX - 1);
        if let Some(moved) = set.recent.get_mut(..=last) {
            moved.rotate_right(1);
        }
        set.recent[0] = seq;
    }

    /// Start of the latest out-of-order segments, newest first. Some may have become part of the stream
    /// since.
    pub fn recent<'a>(&self, pool: &'a RangePool) -> &'a [Seq] {
        pool.sets.get(self.set as usize).map_or(&[], |set| &set.recent)
    }

    /// Removes everything before `seq`.
    pub fn trim_before(&mut self, pool: &mut RangePool, seq: Seq) {
        if self.set == NIL {
            return;
        }
        let set = &mut pool.sets[self.set as usize];
        let gone = set.ranges[..set.len].partition_point(|range| !range.end.after(seq));
        set.ranges.copy_within(gone..set.len, 0);
        set.len -= gone;
        if set.len == 0 {
            return self.clear(pool);
        }
        set.ranges[0].start = set.ranges[0].start.max(seq);
    }

    /// Removes everything.
    pub fn clear(&mut self, pool: &mut RangePool) {
        if self.set != NIL {
            pool.free.push(self.set);
            self.set = NIL;
        }
    }
}

impl Set {
    fn insert(&mut self, new: SeqRange) -> Result<u32, NoRoom> {
        let ranges = &mut self.ranges[..self.len];
        let first = ranges.partition_point(|range| range.end.before(new.start));
        let touched = ranges[first..].partition_point(|range| !range.start.after(new.end));
        if touched == 0 {
            if self.len == RANGES_PER_SET {
                return Err(NoRoom);
            }
            self.ranges.copy_within(first..self.len, first + 1);
            self.ranges[first] = new;
            self.len += 1;
            return Ok(new.len());
        }
        let old: u32 = ranges[first..first + touched].iter().map(SeqRange::len).sum();
        let start = new.start.min(ranges[first].start);
        let merged = SeqRange { start, end: new.end.max(ranges[first + touched - 1].end) };
        ranges[first] = merged;
        self.ranges.copy_within(first + touched..self.len, first + 1);
        self.len -= touched - 1;
        Ok(merged.len() - old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_match_a_plain_bitmap() {
        let base = Seq(u32::MAX - 100);
        let mut pool = RangePool::new(1);
        let mut ranges = Ranges::EMPTY;
        let mut model = [false; 300];
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..5_000 {
            let start = random(300) as usize;
            let end = (start + random(20) as usize).min(300);
            if round % 50 == 49 {
                ranges.trim_before(&mut pool, base.plus(start as u32));
                model[..start].fill(false);
            } else if let Ok(new) = ranges.insert(&mut pool, base.plus(start as u32), base.plus(end as u32)) {
                assert_eq!(new as usize, model[start..end].iter().filter(|&&b| !b).count());
                model[start..end].fill(true);
            } else {
                assert_eq!(ranges.as_slice(&pool).len(), RANGES_PER_SET);
            }
            let covered: Vec<bool> = (0..300u32)
                .map(|i| {
                    ranges
                        .as_slice(&pool)
                        .iter()
                        .any(|range| !base.plus(i).before(range.start) && base.plus(i).before(range.end))
                })
                .collect();
            assert_eq!(covered, model);
            assert_eq!(ranges.is_empty(), pool.free() == 1);
        }
    }
}
