//! The bytes an application wrote, from the first unacknowledged one on.

use crate::blocks::{BlockPool, Chain, Slices};

/// ```text
///   start              start + n (n = snd_nxt − snd_una)      end
///     |--- sent, not acknowledged ---|---- not yet sent ------|
/// ```
#[derive(Debug)]
pub(crate) struct SendQueue {
    chain: Chain,
    start: u64,
    end: u64,
}

impl SendQueue {
    pub const EMPTY: SendQueue = SendQueue { chain: Chain::EMPTY, start: 0, end: 0 };

    /// Bytes held.
    pub fn len(&self) -> u32 {
        (self.end - self.start) as u32
    }

    /// Copies the start of `data` in, at most up to `capacity` bytes held altogether; says how many bytes. A quarter of
    /// the pool is left to receiving: two ends full of unsent data could otherwise wait for each other for ever.
    pub fn push(&mut self, pool: &mut BlockPool, data: &[u8], capacity: u32) -> usize {
        let room = capacity.saturating_sub(self.len()) as usize;
        let wanted = data.len().min(room);
        if wanted == 0 {
            return 0;
        }
        let reached = self.chain.extend(pool, self.end, self.end + wanted as u64, pool.capacity() / 4);
        let taken = reached.saturating_sub(self.end) as usize;
        self.chain.store(pool, self.end, &data[..taken]);
        self.end += taken as u64;
        taken
    }

    /// Drops the first `n` bytes: they were acknowledged.
    pub fn release(&mut self, pool: &mut BlockPool, n: u32) {
        self.start = (self.start + u64::from(n)).min(self.end);
        if self.start == self.end {
            self.chain.clear(pool);
        } else {
            self.chain.release_before(pool, self.start);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        self.start = self.end;
        self.chain.clear(pool);
    }

    /// `len` bytes from `offset` bytes behind the first one.
    pub fn slices<'a>(&mut self, pool: &'a BlockPool, offset: u32, len: usize) -> Slices<'a> {
        self.chain.slices(pool, self.start + u64::from(offset), len)
    }
}
