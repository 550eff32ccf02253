//! Rows that wait on one side of a join, in a block of bytes.
//!
//! ```text
//!   | head, count, tail of bytes | buckets: first, last | slots: a ring in order of arrival | bytes: a ring of rows |
//!
//!   bucket ─▶ slot ─▶ slot ─▶ slot      of one hash modulo buckets, the oldest first
//! ```
//!
//! Rows leave in the order in which they came. The row that leaves is therefore the first of its bucket.

use crate::cells::{bytes_at, i64_at, put, put_i64, put_u32, put_u64, u32_at, u64_at};

const HEAD: usize = 0;
const COUNT: usize = 4;
const TAIL: usize = 8;
const USED: usize = 12;
const HEADER: usize = 16;
const BUCKET: usize = 8;
const SLOT: usize = 32;

/// Where a side lies in a block, and how much it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    base: usize,
    buckets: u32,
    rows: u32,
    bytes: u32,
}

/// A row that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub hash: u64,
    pub time: i64,
    offset: u32,
    len: u32,
    next: u32,
}

impl Side {
    pub fn new(base: usize, rows: u32, bytes: u32) -> Self {
        Side { base, buckets: rows.next_power_of_two(), rows, bytes }
    }

    /// Bytes of the block that it takes.
    pub fn len(&self) -> u64 {
        HEADER as u64
            + u64::from(self.buckets) * BUCKET as u64
            + u64::from(self.rows) * SLOT as u64
            + u64::from(self.bytes)
    }

    #[inline]
    pub fn count(&self, block: &[u8]) -> u32 {
        u32_at(block, self.base + COUNT).min(self.rows)
    }

    #[inline]
    pub fn used(&self, block: &[u8]) -> u32 {
        u32_at(block, self.base + USED)
    }

    /// The number of the first row of a hash's bucket, from 1 on; 0: there is none.
    #[inline]
    pub fn first(&self, block: &[u8], hash: u64) -> u32 {
        u32_at(block, self.bucket(hash))
    }

    /// A row by its number, and the number of the next in its bucket.
    #[inline]
    pub fn row(&self, block: &[u8], number: u32) -> (Waiting, u32) {
        let at = self.slot(number.wrapping_sub(1));
        let row = Waiting {
            hash: u64_at(block, at),
            time: i64_at(block, at + 8),
            offset: u32_at(block, at + 16),
            len: u32_at(block, at + 20),
            next: u32_at(block, at + 24),
        };
        (row, row.next)
    }

    #[inline]
    pub fn bytes<'b>(&self, block: &'b [u8], row: &Waiting) -> &'b [u8] {
        bytes_at(block, self.arena() + row.offset as usize, row.len as usize)
    }

    /// The time of the oldest row.
    #[inline]
    pub fn oldest(&self, block: &[u8]) -> Option<i64> {
        (self.count(block) > 0).then(|| self.row(block, u32_at(block, self.base + HEAD) + 1).0.time)
    }

    /// Releases the oldest row.
    #[inline]
    pub fn release(&self, block: &mut [u8]) {
        let (head, count) = (u32_at(block, self.base + HEAD), self.count(block));
        if count == 0 {
            return;
        }
        let (row, next) = self.row(block, head + 1);
        let bucket = self.bucket(row.hash);
        put_u32(block, bucket, next);
        if next == 0 {
            put_u32(block, bucket + 4, 0);
        }
        let used = self.used(block).saturating_sub(row.len);
        put_u32(block, self.base + HEAD, if head + 1 >= self.rows { 0 } else { head + 1 });
        put_u32(block, self.base + COUNT, count - 1);
        put_u32(block, self.base + USED, used);
    }

    /// Where a row of that length can be put; `None`: older rows have to leave first.
    #[inline]
    pub fn room(&self, block: &[u8], len: u32) -> Option<u32> {
        if self.count(block) >= self.rows {
            return None;
        }
        let tail = u32_at(block, self.base + TAIL).min(self.bytes);
        if self.count(block) == 0 {
            return (len <= self.bytes).then_some(0);
        }
        let oldest = self.row(block, u32_at(block, self.base + HEAD) + 1).0.offset;
        // The tail never meets the oldest row from behind: then all would look free.
        if tail > oldest {
            if len <= self.bytes - tail {
                return Some(tail);
            }
            return (len < oldest).then_some(0);
        }
        (len < oldest.saturating_sub(tail)).then_some(tail)
    }

    /// Whether a row of that length can be put at all.
    #[inline]
    pub fn fits(&self, len: u32) -> bool {
        self.rows > 0 && len <= self.bytes
    }

    /// Puts a row where there is room.
    #[inline]
    pub fn put(&self, block: &mut [u8], offset: u32, (hash, time): (u64, i64), bytes: &[u8]) {
        let (head, count) = (u32_at(block, self.base + HEAD), self.count(block));
        let index = (u64::from(head) + u64::from(count)) % u64::from(self.rows.max(1));
        let (index, len) = (index as u32, bytes.len() as u32);
        let at = self.slot(index);
        put_u64(block, at, hash);
        put_i64(block, at + 8, time);
        put_u32(block, at + 16, offset);
        put_u32(block, at + 20, len);
        put_u32(block, at + 24, 0);
        put(block, self.arena() + offset as usize, bytes);
        let bucket = self.bucket(hash);
        match u32_at(block, bucket + 4) {
            0 => put_u32(block, bucket, index + 1),
            last => put_u32(block, self.slot(last - 1) + 24, index + 1),
        }
        put_u32(block, bucket + 4, index + 1);
        put_u32(block, self.base + COUNT, count + 1);
        put_u32(block, self.base + TAIL, offset + len);
        let used = self.used(block);
        put_u32(block, self.base + USED, used.saturating_add(len));
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        self.base + HEADER + (hash as u32 & (self.buckets - 1)) as usize * BUCKET
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        let index = index.min(self.rows.saturating_sub(1));
        self.base + HEADER + self.buckets as usize * BUCKET + index as usize * SLOT
    }

    #[inline]
    fn arena(&self) -> usize {
        self.base + HEADER + self.buckets as usize * BUCKET + self.rows as usize * SLOT
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Rows of random lengths come and go: those that are in are as they were put, and lie apart.
    #[test]
    fn a_side_is_a_bounded_queue_that_is_found_by_hash() {
        let mut random = csp_support::Random::new(5);
        for (rows, bytes) in [(1, 10), (5, 100), (16, 64), (100, 300)] {
            let side = Side::new(24, rows, bytes);
            let mut block = vec![0; 24 + side.len() as usize + 8];
            let mut model: VecDeque<(u64, i64, Vec<u8>)> = VecDeque::new();
            for step in 0..5000i64 {
                let len = random.below(12).min(u64::from(bytes)) as usize;
                let row: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
                let hash = random.below(7) * 0x1_0000_0001;
                let offset = loop {
                    match side.room(&block, len as u32) {
                        Some(offset) => break offset,
                        None => {
                            assert!(model.pop_front().is_some(), "an empty side has room");
                            side.release(&mut block);
                        }
                    }
                };
                side.put(&mut block, offset, (hash, step), &row);
                model.push_back((hash, step, row));
                assert!(model.len() <= rows as usize);
                assert_eq!(side.count(&block) as usize, model.len());
                assert_eq!(side.used(&block) as usize, model.iter().map(|row| row.2.len()).sum::<usize>());
                assert_eq!(side.oldest(&block), model.front().map(|row| row.1));
                for hash in (0..7).map(|hash| hash * 0x1_0000_0001) {
                    let mut found = Vec::new();
                    let mut next = side.first(&block, hash);
                    while next != 0 {
                        let row;
                        (row, next) = side.row(&block, next);
                        if row.hash == hash {
                            found.push((row.hash, row.time, side.bytes(&block, &row).to_vec()));
                        }
                    }
                    let expected: Vec<_> = model.iter().filter(|row| row.0 == hash).cloned().collect();
                    assert_eq!(found, expected);
                }
            }
            assert!(block[..24].iter().chain(&block[24 + side.len() as usize..]).all(|&byte| byte == 0));
        }
    }
}
