//! The send queue: written bytes, from the first unacknowledged one on.

use crate::blocks::{BlockPool, Place};
use crate::chain::{Allowance, Chain, Slices};

/// Number of bytes that are copied at once from one queue to another.
const COPY_LEN: usize = 512;

/// ```text
///   start              start + n (n = snd_nxt − snd_una)      end
///     |--- sent, not acknowledged ---|---- not yet sent ------|
/// ```
#[derive(Debug)]
pub(crate) struct SendQueue {
    chain: Chain,
    start: u32,
    len: u32,
    /// Capacity set by the caller in bytes; 0: automatic.
    capacity: u32,
    /// Automatic capacity in bytes; 0 before it has grown.
    pub grown: u32,
}

/// Largest amount of memory in bytes that the written data of a connection occupies if its capacity is
/// `capacity` bytes ([`crate::Stack::set_send_capacity`]). It exceeds the capacity by a quarter, because
/// payload left in place overlaps blocks that it does not fill, and by three blocks.
pub fn send_memory(capacity: u32, block_len: usize) -> u64 {
    u64::from(capacity) * 5 / 4 + 3 * block_len as u64
}

impl SendQueue {
    pub const EMPTY: SendQueue = SendQueue { chain: Chain::EMPTY, start: 0, len: 0, capacity: 0, grown: 0 };

    /// Bytes in the queue.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The capacity set by the caller in bytes; `None` if it is automatic.
    pub fn capacity(&self) -> Option<u32> {
        (self.capacity != 0).then_some(self.capacity)
    }

    /// Sets the capacity in bytes; 0 makes it automatic.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Appends the start of `data`, up to a total of `capacity` bytes in the queue, and returns how many
    /// bytes were appended. `place` is the location of `data` in the pool, if it lies there; it may remain
    /// there.
    pub fn push(&mut self, pool: &mut BlockPool, data: &[u8], place: Option<Place>, capacity: u32) -> usize {
        let room = capacity.saturating_sub(self.len) as usize;
        let data = data.get(..room).unwrap_or(data);
        if data.is_empty() {
            return 0;
        }
        let allowance = self.allowance(pool, data.len(), capacity);
        let taken = self.chain.insert(pool, self.end(), data, place, allowance);
        self.len += taken as u32;
        taken
    }

    /// Moves at most `max` bytes of the first slice of `from` to the end of this queue, up to a total of
    /// `capacity` bytes in this queue, and returns how many were moved. The bytes stay where they are or are
    /// copied, as in [`push`](Self::push).
    pub fn take(&mut self, pool: &mut BlockPool, from: &mut SendQueue, max: usize, capacity: u32) -> usize {
        let Some((place, len)) = from.chain.first(pool) else { return 0 };
        let len = len.min(max).min(capacity.saturating_sub(self.len) as usize);
        let allowance = self.allowance(pool, len, capacity);
        let taken = if len > 0 && self.chain.append_in_place(pool, self.end(), len, place, allowance) {
            self.len += len as u32;
            len
        } else {
            let mut copy = [0; COPY_LEN];
            let piece = pool.bytes(place, len.min(COPY_LEN));
            let copied = piece.len();
            copy[..copied].copy_from_slice(piece);
            self.push(pool, &copy[..copied], None, capacity)
        };
        from.release(pool, taken as u32);
        taken
    }

    /// Payload of `len` bytes remains in place only if the rest of the capacity could still be copied within
    /// the memory set aside for it. Otherwise wasteful writes could exhaust memory that others were granted.
    fn allowance(&self, pool: &BlockPool, len: usize, capacity: u32) -> Allowance {
        let rest = u64::from(capacity.saturating_sub(self.len)).saturating_sub(len as u64);
        let spare =
            send_memory(capacity, pool.block_len()).saturating_sub(rest + 3 * pool.block_len() as u64);
        let in_place = (spare / pool.block_len() as u64) as u32;
        Allowance { reserve: 0, in_place, blocks: u32::MAX }
    }

    fn end(&self) -> u32 {
        self.start.wrapping_add(self.len)
    }

    /// Removes the first `n` bytes, which were acknowledged.
    pub fn release(&mut self, pool: &mut BlockPool, n: u32) {
        let n = n.min(self.len);
        (self.start, self.len) = (self.start.wrapping_add(n), self.len - n);
        self.chain.release_before(pool, self.start);
    }

    /// Removes everything.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        (self.start, self.len) = (self.end(), 0);
        self.chain.clear(pool);
    }

    /// The `len` bytes at `offset` from the start of the queue.
    pub fn slices<'a>(&mut self, pool: &'a BlockPool, offset: u32, len: usize) -> Slices<'a> {
        self.chain.slices(pool, self.start.wrapping_add(offset), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Direction;

    /// Whatever a writer does, its queue occupies at most `send_memory` of its capacity: with wasteful
    /// slices, single bytes between them, and acknowledgements that leave only the wasteful slices.
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

    /// Bytes that move between queues arrive in order and within the memory of both; long slices stay where
    /// they are.
    #[test]
    fn what_one_queue_takes_from_another_is_the_same_stream() {
        const CAPACITY: u32 = 32 * 1024;
        for seed in 0..50u64 {
            let mut state = seed;
            let mut below = |n: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32 % n
            };
            let mut pool = BlockPool::new(512, 512, 16_384);
            let (mut from, mut to) = (SendQueue::EMPTY, SendQueue::EMPTY);
            let (mut written, mut read, mut in_place) = (0u8, 0u8, 0);
            let worth = send_memory(CAPACITY, 512) / 512;
            for _ in 0..2_000 {
                let Some(mut buffer) = pool.lend(Direction::Send) else { panic!("seed {seed}: no buffer") };
                let (start, len) = (below(600) as usize, [1, 2, 257, 513, 1100, 15_000][below(6) as usize]);
                for byte in &mut buffer.bytes_mut()[start..start + len] {
                    *byte = written;
                    written = written.wrapping_add(1);
                }
                let data = &buffer.bytes()[start..start + len];
                let taken = from.push(&mut pool, data, buffer.place_of(data), CAPACITY);
                written = written.wrapping_sub((len - taken) as u8);
                pool.give_back(buffer);
                let most = below(20_000) as usize;
                let (mut moved, free) = (0, pool.free());
                while moved < most {
                    let n = to.take(&mut pool, &mut from, most - moved, CAPACITY);
                    moved += n;
                    if n == 0 {
                        break;
                    }
                }
                in_place += usize::from(moved > 4_096 && pool.free() >= free);
                assert!(u64::from(to.chain.held()) <= worth, "seed {seed}: {} blocks", to.chain.held());
                let len = below(20_000).min(to.len());
                for byte in to.slices(&pool, 0, len as usize).flatten() {
                    assert_eq!(*byte, read, "seed {seed}");
                    read = read.wrapping_add(1);
                }
                to.release(&mut pool, len);
            }
            assert!(in_place > 0, "seed {seed}");
            from.clear(&mut pool);
            to.clear(&mut pool);
            assert_eq!(pool.free(), 512, "seed {seed}");
        }
    }
}
