//! The payload pool: blocks of one size, chained per connection and direction.
//!
//! A [`Chain`] holds a byte stream at fixed places: position `p` lies in block number `p / block_len`. Bytes may thus
//! be stored at any position of the chain, in any order; who knows which of them count is the chain's owner.

use crate::list::NIL;

/// All payload memory of a stack.
#[derive(Debug)]
pub(crate) struct BlockPool {
    bytes: Vec<u8>,
    next: Vec<u32>,
    free_head: u32,
    free: usize,
    shift: u32,
}

impl BlockPool {
    /// `blocks` blocks of `block_len` bytes, a power of two.
    pub fn new(blocks: usize, block_len: usize) -> Self {
        let next = (1..=blocks as u32).map(|n| if n as usize == blocks { NIL } else { n }).collect();
        let shift = block_len.trailing_zeros();
        BlockPool {
            bytes: vec![0; blocks << shift],
            next,
            free_head: if blocks == 0 { NIL } else { 0 },
            free: blocks,
            shift,
        }
    }

    /// How many blocks there are.
    pub fn capacity(&self) -> usize {
        self.next.len()
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Bytes in free blocks.
    pub fn free_bytes(&self) -> usize {
        self.free << self.shift
    }

    fn block_len(&self) -> usize {
        1 << self.shift
    }

    fn take(&mut self) -> Option<u32> {
        let block = self.free_head;
        if block == NIL {
            return None;
        }
        self.free_head = self.next[block as usize];
        self.next[block as usize] = NIL;
        self.free -= 1;
        Some(block)
    }

    fn give_back(&mut self, block: u32) {
        self.next[block as usize] = self.free_head;
        self.free_head = block;
        self.free += 1;
    }

    fn block(&self, block: u32) -> &[u8] {
        let start = (block as usize) << self.shift;
        &self.bytes[start..start + self.block_len()]
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let start = (block as usize) << self.shift;
        let len = self.block_len();
        &mut self.bytes[start..start + len]
    }
}

/// Blocks `first .. first + count` of one byte stream.
#[derive(Debug)]
pub(crate) struct Chain {
    head: u32,
    tail: u32,
    first: u64,
    count: u32,
    /// A block visited lately and its number, so that streaming does not walk the chain.
    cursor: (u32, u64),
}

impl Chain {
    /// No blocks.
    pub const EMPTY: Chain = Chain { head: NIL, tail: NIL, first: 0, count: 0, cursor: (NIL, 0) };

    /// Makes the chain reach from position `from` (kept where blocks exist) up to `end`; says up to where it reaches,
    /// which is less than `end` when that would leave fewer than `reserve` blocks free.
    pub fn extend(&mut self, pool: &mut BlockPool, from: u64, end: u64, reserve: usize) -> u64 {
        if self.count == 0 {
            self.first = from >> pool.shift;
        }
        while self.end(pool) < end {
            if pool.free <= reserve {
                break;
            }
            let Some(block) = pool.take() else { break };
            match self.tail {
                NIL => {
                    self.head = block;
                    self.cursor = (block, self.first);
                }
                tail => pool.next[tail as usize] = block,
            }
            self.tail = block;
            self.count += 1;
        }
        self.end(pool).min(end)
    }

    /// The position behind the last block.
    fn end(&self, pool: &BlockPool) -> u64 {
        (self.first + u64::from(self.count)) << pool.shift
    }

    /// Stores `data` at `position`; the chain must reach over it (see [`Chain::extend`]).
    pub fn store(&mut self, pool: &mut BlockPool, mut position: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let Some(block) = self.seek(pool, position) else {
                debug_assert!(false, "stored outside of the chain");
                return;
            };
            let offset = (position & (pool.block_len() as u64 - 1)) as usize;
            let n = data.len().min(pool.block_len() - offset);
            let (now, rest) = data.split_at(n);
            pool.block_mut(block)[offset..offset + n].copy_from_slice(now);
            position += n as u64;
            data = rest;
        }
    }

    /// The block that holds `position`.
    fn seek(&mut self, pool: &BlockPool, position: u64) -> Option<u32> {
        let number = position >> pool.shift;
        if number < self.first || number >= self.first + u64::from(self.count) {
            return None;
        }
        let (mut block, mut at) = if self.cursor.1 <= number { self.cursor } else { (self.head, self.first) };
        if number == self.first + u64::from(self.count) - 1 {
            (block, at) = (self.tail, number);
        }
        while at < number {
            block = pool.next[block as usize];
            at += 1;
        }
        self.cursor = (block, at);
        Some(block)
    }

    /// The `len` bytes from `position` on; none where the chain does not reach over them.
    pub fn slices<'a>(&mut self, pool: &'a BlockPool, position: u64, len: usize) -> Slices<'a> {
        if len == 0 || position + len as u64 > self.end(pool) {
            return Slices::EMPTY;
        }
        let Some(block) = self.seek(pool, position) else { return Slices::EMPTY };
        let offset = (position & (pool.block_len() as u64 - 1)) as usize;
        Slices { pool: Some(pool), block, offset, remaining: len }
    }

    /// Gives back every block that ends at or before `position`.
    pub fn release_before(&mut self, pool: &mut BlockPool, position: u64) {
        let keep = position >> pool.shift;
        while self.count > 0 && self.first < keep {
            let block = self.head;
            self.head = pool.next[block as usize];
            pool.give_back(block);
            self.first += 1;
            self.count -= 1;
        }
        if self.count == 0 {
            *self = Chain::EMPTY;
        } else if self.cursor.1 < self.first {
            self.cursor = (self.head, self.first);
        }
    }

    /// Gives back every block.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        self.release_before(pool, u64::MAX);
    }
}

/// Bytes of a chain, slice by slice.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    pool: Option<&'a BlockPool>,
    block: u32,
    offset: usize,
    remaining: usize,
}

impl Slices<'_> {
    pub(crate) const EMPTY: Slices<'static> = Slices { pool: None, block: NIL, offset: 0, remaining: 0 };
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let pool = self.pool?;
        if self.remaining == 0 || self.block == NIL {
            return None;
        }
        let rest = &pool.block(self.block)[self.offset..];
        let slice = &rest[..rest.len().min(self.remaining)];
        self.remaining -= slice.len();
        self.offset = 0;
        self.block = pool.next[self.block as usize];
        Some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chain: &mut Chain, pool: &BlockPool, position: u64, len: usize) -> Vec<u8> {
        chain.slices(pool, position, len).flatten().copied().collect()
    }

    #[test]
    fn bytes_stored_in_any_order_are_read_in_place() {
        let mut pool = BlockPool::new(4, 512);
        let mut chain = Chain::EMPTY;
        let data: Vec<u8> = (0..1500u32).map(|n| (n * 7) as u8).collect();
        assert_eq!(chain.extend(&mut pool, 700, 2200, 0), 2200);
        assert_eq!(pool.free(), 0, "positions 512..2560");
        chain.store(&mut pool, 1600, &data[900..]);
        chain.store(&mut pool, 700, &data[..900]);
        assert_eq!(read(&mut chain, &pool, 700, 1500), data);
        assert_eq!(read(&mut chain, &pool, 1000, 10), data[300..310]);
        chain.release_before(&mut pool, 1535);
        assert_eq!(pool.free(), 1, "only whole blocks before the position are given back");
        assert_eq!(read(&mut chain, &pool, 1535, 665), data[835..]);
        assert_eq!(read(&mut chain, &pool, 700, 3), [0u8; 0], "released bytes are gone");
        chain.clear(&mut pool);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn an_empty_pool_ends_the_chain_early() {
        let mut pool = BlockPool::new(2, 512);
        let mut chain = Chain::EMPTY;
        assert_eq!(chain.extend(&mut pool, 0, 5000, 0), 1024);
        let mut other = Chain::EMPTY;
        assert_eq!(other.extend(&mut pool, 0, 1, 0), 0);
        chain.release_before(&mut pool, 512);
        assert_eq!(other.extend(&mut pool, 10, 11, 1), 0, "the last block is reserved");
        assert_eq!(other.extend(&mut pool, 10, 11, 0), 11);
        other.clear(&mut pool);
        chain.clear(&mut pool);
        assert_eq!(pool.free(), 2);
    }
}
