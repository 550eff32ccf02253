//! The bytes an application wrote, from the first unacknowledged one on.

use crate::blocks::{BlockPool, Place};
use crate::chain::{Allowance, Chain, Slices};

/// ```text
///   start              start + n (n = snd_nxt − snd_una)      end
///     |--- sent, not acknowledged ---|---- not yet sent ------|
/// ```
#[derive(Debug)]
pub(crate) struct SendQueue {
    chain: Chain,
    start: u32,
    len: u32,
    /// The connection's own capacity in bytes; 0: it has none.
    capacity: u32,
    /// What the capacity has grown to where it has none; 0 before it has.
    pub grown: u32,
}

/// Memory in bytes that what was written holds at most where the connection's capacity is `capacity` bytes
/// ([`crate::Stack::set_send_capacity`]): a quarter more, because payload that stays where it arrived overlaps blocks that
/// it does not fill, and three blocks.
pub fn send_memory(capacity: u32, block_len: usize) -> u64 {
    u64::from(capacity) * 5 / 4 + 3 * block_len as u64
}

impl SendQueue {
    pub const EMPTY: SendQueue = SendQueue { chain: Chain::EMPTY, start: 0, len: 0, capacity: 0, grown: 0 };

    /// Bytes held.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The connection's own capacity in bytes, where it has one.
    pub fn capacity(&self) -> Option<u32> {
        (self.capacity != 0).then_some(self.capacity)
    }

    /// Gives the connection a capacity of its own.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Takes the start of `data` in, at most up to `capacity` bytes held altogether; says how many bytes. Where it lies
    /// at `place` in the pool it may stay there.
    pub fn push(&mut self, pool: &mut BlockPool, data: &[u8], place: Option<Place>, capacity: u32) -> usize {
        let room = capacity.saturating_sub(self.len) as usize;
        let data = data.get(..room).unwrap_or(data);
        if data.is_empty() {
            return 0;
        }
        // In place only as long as the rest of the capacity could still be copied within the memory that it has:
        // nothing that was promised room is refused because others waste theirs.
        let rest = u64::from(capacity.saturating_sub(self.len)).saturating_sub(data.len() as u64);
        let spare =
            send_memory(capacity, pool.block_len()).saturating_sub(rest + 3 * pool.block_len() as u64);
        let in_place = (spare / pool.block_len() as u64) as u32;
        let allowance = Allowance { reserve: 0, in_place, blocks: u32::MAX };
        let taken = self.chain.insert(pool, self.end(), data, place, allowance);
        self.len += taken as u32;
        taken
    }

    fn end(&self) -> u32 {
        self.start.wrapping_add(self.len)
    }

    /// Drops the first `n` bytes: they were acknowledged.
    pub fn release(&mut self, pool: &mut BlockPool, n: u32) {
        let n = n.min(self.len);
        (self.start, self.len) = (self.start.wrapping_add(n), self.len - n);
        self.chain.release_before(pool, self.start);
    }

    /// Drops everything.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        (self.start, self.len) = (self.end(), 0);
        self.chain.clear(pool);
    }

    /// `len` bytes from `offset` bytes behind the first one.
    pub fn slices<'a>(&mut self, pool: &'a BlockPool, offset: u32, len: usize) -> Slices<'a> {
        self.chain.slices(pool, self.start.wrapping_add(offset), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Direction;

    /// Whatever a writer does, its queue holds no more memory than its capacity is worth: slices that waste, single
    /// bytes between them, acknowledgements that leave only the wasteful ones.
    #[test]
    fn a_queue_holds_no_more_than_its_capacity_is_worth() {
        const CAPACITY: u32 = 64 * 1024;
        for seed in 0..100u64 {
            let mut state = seed;
            let mut below = |n: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32 % n
            };
            let mut pool = BlockPool::new(512, 512, 16_384);
            let mut queue = SendQueue::EMPTY;
            let worth = send_memory(CAPACITY, 512) / 512;
            for _ in 0..2_000 {
                let Some(buffer) = pool.lend(Direction::Send) else { panic!("seed {seed}: no buffer") };
                let (start, len) = (below(600) as usize, [1, 2, 257, 513, 1100, 15_000][below(6) as usize]);
                let data = &buffer.bytes()[start..start + len];
                let room = CAPACITY - queue.len();
                let taken = queue.push(&mut pool, data, buffer.place_of(data), CAPACITY);
                assert_eq!(taken, len.min(room as usize), "seed {seed}: what has room is taken");
                pool.give_back(buffer);
                if below(4) == 0 {
                    queue.release(&mut pool, below(20_000));
                }
                assert!(u64::from(queue.chain.held()) <= worth, "seed {seed}: {} blocks", queue.chain.held());
            }
            queue.clear(&mut pool);
            assert_eq!(pool.free(), 512, "seed {seed}");
        }
    }
}
