//! The message pool of a worker: memory for messages that outlive the turn in which they arrived.
//!
//! ```text
//!   blocks       |##|##|..|##|..|##|     a message is a chain of blocks; the last may be partly used
//!   descriptors  |m1|  |  |m2|  |  |     at the index of the message's first block
//! ```
//!
//! The pool owns the blocks, the descriptors and the budgets of channels. A handle contains the index of a
//! descriptor and its generation, so that the handle of a released message is refused. It neither orders
//! messages nor selects receivers.

mod budget;
pub(crate) mod derive;

use csp_handlers::{MESSAGE_BLOCK_LEN, MESSAGE_POOL_LEN};
use csp_types::Instant;
use thiserror::Error;

use crate::list::NIL;
use budget::Budgets;
pub use budget::{Budget, BudgetError, Usage};

/// Most frames of a message.
pub const FRAMES_MAX: usize = 16;

/// Size of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Bytes of a block.
    pub block_len: u32,
    /// Number of blocks, thus also the largest number of messages.
    pub blocks: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let blocks = (MESSAGE_POOL_LEN / MESSAGE_BLOCK_LEN as u64) as u32;
        PoolConfig { block_len: MESSAGE_BLOCK_LEN, blocks }
    }
}

/// Names a message in the pool, as long as a reference to it is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageHandle {
    index: u32,
    generation: u32,
}

/// Properties of a stored message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageInfo {
    /// Length of all frames in bytes.
    pub len: u32,
    /// Number of frames.
    pub frames: u8,
    /// Index of the channel whose budget the message uses.
    pub channel: u16,
    /// Sequence number in the channel.
    pub sequence: u64,
    /// When the message arrived.
    pub arrived: Instant,
}

/// Why the pool stored nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PoolError {
    /// The channel has no budget.
    #[error("channel {0} has no memory budget")]
    UnknownChannel(u16),
    /// The message exceeds what is left of the channel's largest budget.
    #[error("the channel's budget is used up")]
    Budget,
    /// Too few blocks are free that are guaranteed to no other channel.
    #[error("the pool's memory is used up")]
    Exhausted,
    /// The message has no frames.
    #[error("a message has at least one frame")]
    NoFrames,
    /// The message has more than [`FRAMES_MAX`] frames; contains how many.
    #[error("a message has at most {FRAMES_MAX} frames, not {0}")]
    TooManyFrames(usize),
    /// The slices are not as long as the frames together.
    #[error("the slices of a message are not as long as its frames")]
    LengthMismatch,
}

/// How full the pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Number of blocks.
    pub blocks: u32,
    /// Blocks in use.
    pub blocks_used: u32,
    /// Messages in the pool.
    pub messages: u32,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Free blocks that are guaranteed to channels.
    pub blocks_reserved: u32,
}

/// Events in the pool since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounters {
    /// Messages stored.
    pub stored: u64,
    /// Bytes copied into blocks.
    pub bytes_copied: u64,
    /// Messages refused because their channel's budget was used up.
    pub refused_budget: u64,
    /// Messages refused because the pool's memory was used up.
    pub refused_exhausted: u64,
    /// Uses of a handle whose message was released.
    pub stale_handles: u64,
}

/// `references` is 0 while the block of this index is free or is a later block of a message.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    arrived: Instant,
    sequence: u64,
    generation: u32,
    references: u32,
    len: u32,
    channel: u16,
    frames: u8,
    /// The bytes are those of another message; see [`derive`].
    derived: bool,
}

const UNUSED: Descriptor = Descriptor {
    arrived: Instant::ZERO,
    sequence: 0,
    generation: 0,
    references: 0,
    len: 0,
    channel: 0,
    frames: 0,
    derived: false,
};

/// All messages of a worker.
#[derive(Debug)]
pub struct MessagePool {
    memory: Box<[u8]>,
    block_len: usize,
    blocks: u32,
    /// Descriptors of the blocks used so far: memory of others is not touched.
    descriptors: Vec<Descriptor>,
    /// By descriptor: the end of each frame, in bytes from the start of the message.
    ends: Vec<[u32; FRAMES_MAX]>,
    /// By descriptor: the notes of paths.
    notes: Vec<derive::Note>,
    /// By block: the next block of the message, or the next free one.
    next: Vec<u32>,
    free_head: u32,
    budgets: Budgets,
    messages: u32,
    bytes: u64,
    counters: PoolCounters,
}

impl MessagePool {
    /// A pool for the messages of `channels` channels. Reserves all of its memory.
    pub fn new(config: PoolConfig, channels: usize) -> Self {
        let (block_len, blocks) = (config.block_len.max(1) as usize, config.blocks);
        MessagePool {
            memory: vec![0; block_len * blocks as usize].into_boxed_slice(),
            block_len,
            blocks,
            descriptors: Vec::with_capacity(blocks as usize),
            ends: Vec::with_capacity(blocks as usize),
            notes: Vec::with_capacity(blocks as usize),
            next: Vec::with_capacity(blocks as usize),
            free_head: NIL,
            budgets: Budgets::new(blocks, channels),
            messages: 0,
            bytes: 0,
            counters: PoolCounters::default(),
        }
    }

    /// Sets a channel's budget; `None` for a channel that is removed, whose messages stay until they are
    /// released.
    ///
    /// # Errors
    /// When the guarantees of all channels exceed the pool, the guarantee exceeds the largest budget, or the
    /// pool has no place for that channel.
    pub fn set_budget(&mut self, channel: u16, budget: Option<Budget>) -> Result<(), BudgetError> {
        let block_len = self.block_len as u64;
        self.budgets.set(channel, budget, block_len)
    }

    /// Returns the number of blocks of a message of `len` bytes: at least one.
    pub fn blocks_for(&self, len: u32) -> u32 {
        (len as usize).div_ceil(self.block_len).max(1) as u32
    }

    /// Checks whether a message of `len` bytes has room now.
    ///
    /// # Errors
    /// It has none; the error is the reason.
    pub fn admit(&self, channel: u16, len: u32) -> Result<(), PoolError> {
        self.budgets.admit(channel, self.blocks_for(len))
    }

    /// Stores a message: copies `parts`, the bytes of all frames in order, cut in any way. `frames` has the
    /// length of each frame in bytes. The handle holds one reference.
    ///
    /// # Errors
    /// Nothing is stored when the message has no room, no frame or too many, or when `parts` and the frames
    /// differ in length.
    pub fn store<'a>(
        &mut self,
        channel: u16,
        (arrived, sequence): (Instant, u64),
        frames: &[u32],
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<MessageHandle, PoolError> {
        let (handle, len) = self.reserve(channel, (arrived, sequence), frames)?;
        if self.fill(handle.index, parts, len as usize) {
            self.counters.stored += 1;
            self.counters.bytes_copied += u64::from(len);
            return Ok(handle);
        }
        self.release(handle);
        Err(PoolError::LengthMismatch)
    }

    /// Reserves the blocks of a message whose bytes are copied next. Returns its length and its handle.
    #[inline]
    fn reserve(
        &mut self,
        channel: u16,
        (arrived, sequence): (Instant, u64),
        frames: &[u32],
    ) -> Result<(MessageHandle, u32), PoolError> {
        let (ends, len) = frame_ends(frames)?;
        let blocks = self.blocks_for(len);
        self.take(channel, blocks)?;
        let index = self.take_chain(blocks);
        let frames = frames.len() as u8;
        let made = Descriptor { arrived, sequence, len, channel, frames, ..UNUSED };
        Ok((self.describe(index, made, &ends), len))
    }

    /// Takes blocks of a channel's budget.
    #[inline]
    fn take(&mut self, channel: u16, blocks: u32) -> Result<(), PoolError> {
        self.budgets.admit(channel, blocks).inspect_err(|error| match error {
            PoolError::Budget => self.counters.refused_budget += 1,
            _ => self.counters.refused_exhausted += 1,
        })?;
        self.budgets.take(channel, blocks);
        Ok(())
    }

    /// Makes a message of the chain at `index`, with one reference.
    #[inline]
    fn describe(&mut self, index: u32, made: Descriptor, ends: &[u32; FRAMES_MAX]) -> MessageHandle {
        let i = index as usize;
        let generation = self.descriptors[i].generation;
        self.descriptors[i] = Descriptor { generation, references: 1, ..made };
        self.ends[i] = *ends;
        self.messages += 1;
        self.bytes += u64::from(made.len);
        MessageHandle { index, generation }
    }

    /// Copies `parts` into the chain that starts at block `at`. Returns whether they have exactly `len`
    /// bytes.
    fn fill<'a>(&mut self, mut at: u32, parts: impl IntoIterator<Item = &'a [u8]>, len: usize) -> bool {
        let (mut done, mut offset) = (0, 0);
        for mut part in parts {
            if part.len() > len - done {
                return false;
            }
            done += part.len();
            while !part.is_empty() {
                if offset == self.block_len {
                    (at, offset) = (self.next[at as usize], 0);
                }
                let (now, later) = part.split_at(part.len().min(self.block_len - offset));
                let start = at as usize * self.block_len + offset;
                self.memory[start..start + now.len()].copy_from_slice(now);
                (part, offset) = (later, offset + now.len());
            }
        }
        done == len
    }

    /// Takes `count` free blocks, which the budget permits, and returns the first of the chain.
    fn take_chain(&mut self, count: u32) -> u32 {
        let mut chain = NIL;
        for _ in 0..count {
            let block = match self.free_head {
                NIL => self.touch_block(),
                block => {
                    self.free_head = self.next[block as usize];
                    block
                }
            };
            self.next[block as usize] = chain;
            chain = block;
        }
        chain
    }

    /// Returns a block that was never used. There is one, because the budgets admit no more blocks than the
    /// pool has.
    fn touch_block(&mut self) -> u32 {
        debug_assert!(self.next.len() < self.blocks as usize, "budgets exceed the pool");
        self.descriptors.push(UNUSED);
        self.ends.push([0; FRAMES_MAX]);
        self.notes.push(derive::Note::default());
        self.next.push(NIL);
        self.next.len() as u32 - 1
    }

    fn find(&self, handle: MessageHandle) -> Option<&Descriptor> {
        let found = self.descriptors.get(handle.index as usize)?;
        (found.generation == handle.generation && found.references > 0).then_some(found)
    }

    /// Adds `count` references. Returns `false` for a stale handle.
    pub fn refer(&mut self, handle: MessageHandle, count: u32) -> bool {
        if self.find(handle).is_none() {
            self.counters.stale_handles += 1;
            return false;
        }
        self.descriptors[handle.index as usize].references += count;
        true
    }

    /// Removes a reference; the message's blocks are free after the last. Returns `false` for a stale handle.
    pub fn release(&mut self, handle: MessageHandle) -> bool {
        let Some(&Descriptor { references, .. }) = self.find(handle) else {
            self.counters.stale_handles += 1;
            return false;
        };
        self.descriptors[handle.index as usize].references = references - 1;
        if references == 1 {
            self.free(handle.index);
        }
        true
    }

    /// Frees the blocks of a message without references.
    fn free(&mut self, index: u32) {
        let descriptor = &mut self.descriptors[index as usize];
        descriptor.generation = descriptor.generation.wrapping_add(1);
        let Descriptor { channel, len, derived, .. } = *descriptor;
        let blocks = if derived { 1 } else { self.blocks_for(len) };
        let mut last = index;
        for _ in 1..blocks {
            last = self.next[last as usize];
        }
        self.next[last as usize] = self.free_head;
        self.free_head = index;
        self.budgets.give_back(channel, blocks);
        self.messages -= 1;
        self.bytes -= u64::from(len);
        if derived {
            self.release_base(index);
        }
    }

    /// Returns the place of a message to which its owner holds a reference, for [`at`](Self::at).
    pub(crate) fn place(handle: MessageHandle) -> u32 {
        handle.index
    }

    /// Returns the message at a place.
    pub(crate) fn at(&self, index: u32) -> MessageHandle {
        let generation = self.descriptors.get(index as usize).map_or(0, |found| found.generation);
        MessageHandle { index, generation }
    }

    /// Returns the properties of a message; `None` for a stale handle.
    pub fn info(&self, handle: MessageHandle) -> Option<MessageInfo> {
        let &Descriptor { len, frames, channel, sequence, arrived, .. } = self.find(handle)?;
        Some(MessageInfo { len, frames, channel, sequence, arrived })
    }

    /// Returns the lengths of a message's frames in bytes; nothing for a stale handle.
    pub fn frame_lens(&self, handle: MessageHandle) -> impl Iterator<Item = u32> + '_ {
        let frames = self.find(handle).map_or(0, |found| usize::from(found.frames));
        let ends = self.ends.get(handle.index as usize).map_or(&[][..], |ends| &ends[..frames]);
        ends.iter().scan(0, |start, end| Some(end - std::mem::replace(start, *end)))
    }

    /// Returns the bytes of all frames, slice by slice; nothing for a stale handle.
    pub fn slices(&self, handle: MessageHandle) -> Slices<'_> {
        self.range(handle, 0, u32::MAX)
    }

    /// Returns up to `len` bytes of a message from byte `start` on, slice by slice; nothing for a stale
    /// handle.
    pub fn range(&self, handle: MessageHandle, start: u32, len: u32) -> Slices<'_> {
        let (total, derived) = self.find(handle).map_or((0, false), |found| (found.len, found.derived));
        let remaining = len.min(total.saturating_sub(start)) as usize;
        let (block, before) = if derived { self.base(handle.index) } else { (handle.index, 0) };
        let mut slices = Slices { pool: self, block, offset: (before + start) as usize, remaining };
        while remaining > 0 && slices.offset >= self.block_len {
            slices.offset -= self.block_len;
            slices.block = self.next.get(slices.block as usize).copied().unwrap_or(NIL);
        }
        slices
    }

    /// Returns the first `len` bytes of a message, as far as its first block has them.
    pub fn prefix(&self, handle: MessageHandle, len: usize) -> &[u8] {
        let first = self.slices(handle).next().unwrap_or(&[]);
        first.get(..len).unwrap_or(first)
    }

    /// Returns how full the pool is.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            blocks: self.blocks,
            blocks_used: self.blocks - self.budgets.free(),
            messages: self.messages,
            bytes: self.bytes,
            blocks_reserved: self.budgets.reserved(),
        }
    }

    /// Returns the use of a channel's budget.
    pub fn usage(&self, channel: u16) -> Usage {
        self.budgets.usage(channel)
    }

    /// Returns the counters.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }
}

/// Returns where each frame ends, and the length of all in bytes.
fn frame_ends(frames: &[u32]) -> Result<([u32; FRAMES_MAX], u32), PoolError> {
    if frames.is_empty() {
        return Err(PoolError::NoFrames);
    }
    let (mut ends, mut len) = ([0; FRAMES_MAX], 0u32);
    for (at, frame) in frames.iter().enumerate() {
        len = len.checked_add(*frame).ok_or(PoolError::Budget)?;
        *ends.get_mut(at).ok_or(PoolError::TooManyFrames(frames.len()))? = len;
    }
    Ok((ends, len))
}

/// Bytes of a message, slice by slice; every slice but the first and last is a whole block.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    pool: &'a MessagePool,
    block: u32,
    offset: usize,
    remaining: usize,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.remaining == 0 {
            return None;
        }
        let len = self.remaining.min(self.pool.block_len - self.offset);
        let start = self.block as usize * self.pool.block_len + self.offset;
        self.remaining -= len;
        self.offset = 0;
        self.block = self.pool.next.get(self.block as usize).copied().unwrap_or(NIL);
        self.pool.memory.get(start..start + len)
    }
}

#[cfg(test)]
mod tests;
