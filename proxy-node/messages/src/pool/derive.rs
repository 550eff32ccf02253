//! Messages made from other messages: a part that refers to the bytes of its base, or a copy put together
//! from pieces.
//!
//! ```text
//!   base     |#####|#####|#####|###..|        the base stays until its parts are released
//!   part       └───────────┘                  a block of its own for the descriptor only
//! ```
//! A part refers to its base if it is longer than a block, so that it saves memory and not only a copy, and
//! if its first slice has as many bytes as a topic may have. A part of a part refers to the first base.

use csp_handlers::{FormatId, Piece, Place};
use csp_types::Instant;

use super::{Descriptor, MessageHandle, MessagePool, PoolError, UNUSED, frame_ends};
use crate::list::NIL;
use crate::subscriptions::TOPIC_LEN_LIMIT;

/// Notes of paths on a message. The default path neither reads nor writes them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Note {
    format: FormatId,
    /// Index of the message that owns the bytes, and the offset of the first of them.
    base: u32,
    start: u32,
}

/// A position in blocks.
#[derive(Clone, Copy)]
struct Cursor {
    block: u32,
    offset: usize,
}

/// Properties that a new message inherits from its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub channel: u16,
    pub arrived: Instant,
    pub sequence: u64,
    /// The message that pieces refer to.
    pub of: Option<MessageHandle>,
}

impl MessagePool {
    /// Records the format of a message that takes a path.
    pub(crate) fn set_format(&mut self, handle: MessageHandle, format: FormatId) {
        if let Some(note) = self.notes.get_mut(handle.index as usize) {
            note.format = format;
        }
    }

    /// Gives a message another number in its channel.
    pub(crate) fn set_sequence(&mut self, handle: MessageHandle, sequence: u64) {
        if self.find(handle).is_some() {
            self.descriptors[handle.index as usize].sequence = sequence;
        }
    }

    /// Returns the format recorded last for a message that takes a path.
    pub(crate) fn format(&self, handle: MessageHandle) -> FormatId {
        self.notes.get(handle.index as usize).map_or(FormatId::UNKNOWN, |note| note.format)
    }

    /// Returns the block at which a derived message's base begins, and how many bytes are before the
    /// message's first.
    #[inline(never)]
    pub(super) fn base(&self, index: u32) -> (u32, u32) {
        self.notes.get(index as usize).map_or((NIL, 0), |note| (note.base, note.start))
    }

    /// Removes the reference of a derived message to its base.
    #[cold]
    pub(super) fn release_base(&mut self, index: u32) {
        let (base, _) = self.base(index);
        let generation = self.descriptors.get(base as usize).map_or(0, |base| base.generation);
        self.release(MessageHandle { index: base, generation });
    }

    /// Returns whether `blocks` more blocks are within the channel's budget.
    pub(crate) fn admits(&self, channel: u16, blocks: u32) -> bool {
        self.budgets.admit(channel, blocks).is_ok()
    }

    /// Returns the bytes from a position to the end of their block, and the position after them.
    pub(crate) fn chunk(&self, handle: MessageHandle, place: Place) -> (&[u8], Place) {
        let Some(found) = self.find(handle).filter(|found| place.at < found.len) else { return (&[], place) };
        let (mut block, before) = if found.derived { self.base(handle.index) } else { (handle.index, 0) };
        let at = (place.at + before) as usize;
        match place.note {
            0 => (0..at / self.block_len).for_each(|_| block = self.after(block)),
            note => block = note - 1,
        }
        let offset = at % self.block_len;
        let len = (self.block_len - offset).min((found.len - place.at) as usize);
        let start = block as usize * self.block_len + offset;
        let slice = self.memory.get(start..start + len).unwrap_or(&[]);
        let next = self.after(block);
        (slice, Place { at: place.at + len as u32, note: next.wrapping_add(1) })
    }

    fn after(&self, block: u32) -> u32 {
        self.next.get(block as usize).copied().unwrap_or(NIL)
    }

    /// Makes a message of the bytes of another from byte `start` on, as long as `frames` together.
    ///
    /// # Errors
    /// When the other has fewer bytes or was released, there are no frames or too many, or the channel's
    /// memory is used up.
    pub(crate) fn part(
        &mut self,
        of: MessageHandle,
        start: u32,
        frames: &[u32],
    ) -> Result<MessageHandle, PoolError> {
        let (ends, len) = frame_ends(frames)?;
        let Some(&whole) = self.find(of) else { return Err(PoolError::LengthMismatch) };
        if start.checked_add(len).is_none_or(|end| end > whole.len) {
            return Err(PoolError::LengthMismatch);
        }
        let (base, before) = if whole.derived { self.base(of.index) } else { (of.index, 0) };
        let in_first = self.block_len - (before + start) as usize % self.block_len;
        if len as usize <= self.block_len || in_first < TOPIC_LEN_LIMIT.min(self.block_len) {
            let Descriptor { channel, arrived, sequence, .. } = whole;
            let origin = Origin { channel, arrived, sequence, of: Some(of) };
            return self.compose(origin, frames, &[Piece::Of { start, len }]);
        }
        self.take(whole.channel, 1)?;
        let index = self.take_chain(1);
        self.descriptors[base as usize].references += 1;
        let format = self.format(of);
        self.notes[index as usize] = Note { format, base, start: before + start };
        let Descriptor { channel, arrived, sequence, .. } = whole;
        let frames = frames.len() as u8;
        let made = Descriptor { arrived, sequence, len, channel, frames, derived: true, ..UNUSED };
        Ok(self.describe(index, made, &ends))
    }

    /// Makes a message from pieces: bytes of the caller and of another message.
    ///
    /// # Errors
    /// When the message has no room, no frame or too many, or when pieces and frames differ in length.
    pub(crate) fn compose(
        &mut self,
        origin: Origin,
        frames: &[u32],
        pieces: &[Piece<'_>],
    ) -> Result<MessageHandle, PoolError> {
        let of_len = origin.of.and_then(|of| self.find(of)).map_or(0, |found| found.len);
        let mut len = 0u64;
        for piece in pieces {
            len += match piece {
                Piece::Bytes(bytes) => bytes.len() as u64,
                Piece::Of { start, len } if start.checked_add(*len).is_some_and(|end| end <= of_len) => {
                    u64::from(*len)
                }
                Piece::Of { .. } => return Err(PoolError::LengthMismatch),
            };
        }
        if len != frames.iter().map(|frame| u64::from(*frame)).sum::<u64>() {
            return Err(PoolError::LengthMismatch);
        }
        let (handle, len) = self.reserve(origin.channel, (origin.arrived, origin.sequence), frames)?;
        let mut to = Cursor { block: handle.index, offset: 0 };
        for piece in pieces {
            match *piece {
                Piece::Bytes(bytes) => self.put(&mut to, bytes),
                Piece::Of { start, len } => self.put_of(&mut to, origin.of, start, len as usize),
            }
        }
        self.counters.stored += 1;
        self.counters.bytes_copied += u64::from(len);
        Ok(handle)
    }

    /// Moves a position at the end of its block to the next block. Returns how many bytes its block has left.
    fn left(&self, at: &mut Cursor) -> usize {
        if at.offset == self.block_len {
            *at = Cursor { block: self.after(at.block), offset: 0 };
        }
        self.block_len - at.offset
    }

    fn put(&mut self, to: &mut Cursor, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.left(to)));
            let start = to.block as usize * self.block_len + to.offset;
            self.memory[start..start + now.len()].copy_from_slice(now);
            to.offset += now.len();
            bytes = later;
        }
    }

    /// Copies `len` bytes of another message. The caller has checked that it has them.
    fn put_of(&mut self, to: &mut Cursor, of: Option<MessageHandle>, start: u32, mut len: usize) {
        let Some((of, found)) = of.and_then(|of| Some((of, *self.find(of)?))) else { return };
        let (block, before) = if found.derived { self.base(of.index) } else { (of.index, 0) };
        let at = (before + start) as usize;
        let mut from = Cursor { block, offset: at % self.block_len };
        (0..at / self.block_len).for_each(|_| from.block = self.after(from.block));
        while len > 0 {
            let now = len.min(self.left(&mut from)).min(self.left(to));
            let source = from.block as usize * self.block_len + from.offset;
            let target = to.block as usize * self.block_len + to.offset;
            self.memory.copy_within(source..source + now, target);
            from.offset += now;
            to.offset += now;
            len -= now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Budget, PoolConfig};

    fn bytes(pool: &MessagePool, handle: MessageHandle) -> Vec<u8> {
        let mut place = Place::default();
        let mut all = Vec::new();
        loop {
            let (slice, next) = pool.chunk(handle, place);
            if slice.is_empty() {
                break;
            }
            all.extend_from_slice(slice);
            place = next;
        }
        assert_eq!(all, pool.slices(handle).collect::<Vec<_>>().concat());
        all
    }

    fn pool() -> (MessagePool, MessageHandle, Vec<u8>) {
        let mut pool = MessagePool::new(PoolConfig { block_len: 512, blocks: 64 }, 1);
        pool.set_budget(0, Some(Budget { guaranteed: 0, max: 64 * 512 })).unwrap();
        let all: Vec<u8> = (0..3_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let handle = pool.store(0, (Instant::ZERO, 9), &[1_000, 2_000], all.chunks(77)).unwrap();
        (pool, handle, all)
    }

    #[test]
    fn a_long_part_is_not_copied_and_keeps_its_base() {
        let (mut pool, handle, all) = pool();
        let copied = pool.counters().bytes_copied;
        let part = pool.part(handle, 512, &[100, 1_500]).unwrap();
        let inner = pool.part(part, 512, &[1_000]).unwrap();
        assert_eq!(pool.counters().bytes_copied, copied);
        assert!(pool.release(handle) && pool.info(handle).is_some(), "the parts refer to it");
        assert_eq!(pool.frame_lens(part).collect::<Vec<_>>(), [100, 1_500]);
        assert_eq!(bytes(&pool, part), all[512..2_112]);
        assert!(pool.release(part));
        assert_eq!(bytes(&pool, inner), all[1_024..2_024]);
        assert_eq!(pool.info(inner).map(|info| info.sequence), Some(9));
        assert!(pool.release(inner));
        assert_eq!((pool.occupancy().blocks_used, pool.info(handle)), (0, None));
    }

    #[test]
    fn short_parts_are_copied_and_do_not_keep_their_base() {
        let (mut pool, handle, all) = pool();
        let short = pool.part(handle, 500, &[200]).unwrap();
        let late = pool.part(handle, 500, &[1_000]).unwrap();
        assert!(pool.release(handle) && pool.info(handle).is_none());
        assert_eq!(
            (bytes(&pool, short), bytes(&pool, late)),
            (all[500..700].to_vec(), all[500..1_500].to_vec())
        );
        [short, late].into_iter().for_each(|part| assert!(pool.release(part)));
        assert_eq!((pool.occupancy().blocks_used, pool.counters().stale_handles), (0, 0));
    }

    #[test]
    fn pieces_are_put_together_and_wrong_ones_leave_nothing() {
        let (mut pool, handle, all) = pool();
        let origin = Origin { channel: 0, arrived: Instant::ZERO, sequence: 9, of: Some(handle) };
        let own = vec![9; 700];
        let pieces =
            [Piece::Of { start: 2_900, len: 100 }, Piece::Bytes(&own), Piece::Of { start: 0, len: 1_000 }];
        let made = pool.compose(origin, &[800, 1_000], &pieces).unwrap();
        assert_eq!(bytes(&pool, made), [&all[2_900..], &own[..], &all[..1_000]].concat());
        let used = pool.occupancy().blocks_used;
        for (frames, piece) in [(&[4][..], Piece::Bytes(b"abc")), (&[1], Piece::Of { start: 3_000, len: 1 })]
        {
            assert_eq!(pool.compose(origin, frames, &[piece]), Err(PoolError::LengthMismatch));
        }
        let overflow = Piece::Of { start: u32::MAX, len: 2 };
        assert_eq!(pool.compose(origin, &[2], &[overflow]), Err(PoolError::LengthMismatch));
        assert_eq!(pool.part(handle, 2_000, &[1_001]), Err(PoolError::LengthMismatch));
        assert_eq!(pool.occupancy().blocks_used, used);
    }
}
