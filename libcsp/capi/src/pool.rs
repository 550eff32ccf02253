//! The pool of buffers: one contiguous memory area, and the holder of each buffer.
//!
//! ```text
//!            take            send                   done
//!   Free ──────────▶ Program ──────▶ queued to leave ──────▶ Program (or Free)
//!    ▲                │  ▲
//!    └──── release ───┘  └── data received
//! ```
//! Each step changes the buffer's generation, so that earlier ids are invalid. The first part of the pool is
//! for sending, the rest for received data, so that neither starves the other. The memory is one page-aligned
//! mapping, as registration with a device requires.

use crate::error::{Error, Result};
use crate::handle::{GENERATION_MASK, Key};

/// No buffer: the end of a queue.
pub const NONE: u32 = u32::MAX;

/// The holder of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Free,
    Program,
    Queue,
}

/// The part of a buffer that is to be sent, and the next buffer in its connection's queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Offset of the bytes in the buffer.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
    /// Number of bytes sent.
    pub sent: u32,
    /// Immediate data of a message.
    pub immediate: u32,
    /// The program's flags.
    pub flags: u32,
    /// The program's tag.
    pub tag: u64,
    /// The next buffer of the queue, or [`NONE`].
    pub next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    holder: Holder,
    work: Work,
    /// The connection whose data was received into it.
    lender: Option<Key>,
}

/// The pool.
pub struct Pool {
    start: *mut u8,
    buffer_len: usize,
    entries: Vec<Entry>,
    /// Number of buffers for sending, which come first.
    outgoing: usize,
    free_outgoing: Vec<u32>,
    free_incoming: Vec<u32>,
}

// SAFETY: the memory is accessed through the pool, which belongs to a context that one thread at a time is
// in, and by the program.
unsafe impl Send for Pool {}

const PAGE_LEN: usize = 4096;

impl Pool {
    /// A pool of `outgoing` and `incoming` buffers of `buffer_len` bytes each.
    pub fn new(buffer_len: usize, outgoing: usize, incoming: usize) -> Result<Pool> {
        let count = outgoing + incoming;
        let len = memory_len(buffer_len, count);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::NO_MEMORY);
        }
        let entry = Entry { generation: 1, holder: Holder::Free, work: Work::default(), lender: None };
        Ok(Pool {
            start: start.cast(),
            buffer_len,
            entries: vec![entry; count],
            outgoing,
            free_outgoing: (0..outgoing as u32).rev().collect(),
            free_incoming: (outgoing as u32..count as u32).rev().collect(),
        })
    }

    /// Bytes of each buffer.
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// The address of a buffer.
    pub fn address(&self, index: u32) -> *mut u8 {
        // SAFETY: the mapping holds a buffer for each entry; indices come from the entries.
        unsafe { self.start.add((index as usize).min(self.entries.len()) * self.buffer_len) }
    }

    fn step(&mut self, index: u32, holder: Holder) -> Key {
        let Some(entry) = self.entries.get_mut(index as usize) else { return Key { index, generation: 0 } };
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        entry.holder = holder;
        Key { index, generation: entry.generation }
    }

    /// Takes a free buffer for the program to fill.
    pub fn take(&mut self) -> Result<Key> {
        let index = self.free_outgoing.pop().ok_or(Error::NO_BUFFERS)?;
        Ok(self.step(index, Holder::Program))
    }

    /// A free buffer for received data; it stays free until it is [lent](Self::lend).
    pub fn incoming(&self) -> Option<u32> {
        self.free_incoming.last().copied()
    }

    /// The memory of the buffer that [`incoming`](Self::incoming) returned.
    pub fn incoming_bytes(&mut self) -> &mut [u8] {
        match self.free_incoming.last() {
            // SAFETY: a free receive buffer belongs to the pool alone and lies within the mapping.
            Some(&index) => unsafe { std::slice::from_raw_parts_mut(self.address(index), self.buffer_len) },
            None => &mut [],
        }
    }

    /// Lends the buffer that [`incoming`](Self::incoming) returned to the program, with data of the
    /// connection `lender`.
    pub fn lend(&mut self, lender: Key) -> Option<Key> {
        let index = self.free_incoming.pop()?;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.lender = Some(lender);
        }
        Some(self.step(index, Holder::Program))
    }

    fn held(&self, key: Key) -> Result<()> {
        let entry = self.entries.get(key.index as usize).ok_or(Error::BUFFER)?;
        let good = entry.generation == key.generation && entry.holder == Holder::Program;
        if good { Ok(()) } else { Err(Error::BUFFER) }
    }

    /// Takes a buffer back from the program. Returns the connection with whose data it was lent, if any.
    pub fn release(&mut self, key: Key) -> Result<Option<Key>> {
        self.held(key)?;
        Ok(self.recycle(key.index))
    }

    /// Frees a buffer without returning it to the program first. Returns the same as
    /// [`release`](Self::release).
    pub fn recycle(&mut self, index: u32) -> Option<Key> {
        self.step(index, Holder::Free);
        let incoming = index as usize >= self.outgoing;
        if incoming {
            self.free_incoming.push(index)
        } else {
            self.free_outgoing.push(index)
        }
        self.entries.get_mut(index as usize)?.lender.take()
    }

    /// Moves a buffer from the program to a queue, to send `length` bytes from `data` on, which must lie
    /// within it.
    pub fn enqueue(&mut self, key: Key, data: usize, work: Work) -> Result<u32> {
        self.held(key)?;
        let offset = data.wrapping_sub(self.address(key.index) as usize);
        if offset > self.buffer_len || work.length as usize > self.buffer_len - offset {
            return Err(Error::INVALID);
        }
        self.step(key.index, Holder::Queue);
        if let Some(entry) = self.entries.get_mut(key.index as usize) {
            entry.work = Work { offset: offset as u32, next: NONE, sent: 0, ..work };
        }
        Ok(key.index)
    }

    /// The work of a queued buffer.
    pub fn work(&mut self, index: u32) -> Option<&mut Work> {
        self.entries.get_mut(index as usize).map(|e| &mut e.work)
    }

    /// The bytes of a queued buffer that are not sent yet.
    pub fn outgoing_bytes(&self, index: u32) -> &[u8] {
        let Some(entry) = self.entries.get(index as usize) else { return &[] };
        let Work { offset, length, sent, .. } = entry.work;
        // SAFETY: `enqueue` checked offset and length against the buffer, and `sent` is at most the length.
        // While the buffer is queued the program must not access it (csp.h, csp_send).
        unsafe {
            let from = self.address(index).add((offset + sent) as usize);
            std::slice::from_raw_parts(from, (length - sent) as usize)
        }
    }

    /// Returns a queued buffer to the program.
    pub fn return_to_program(&mut self, index: u32) -> Key {
        self.step(index, Holder::Program)
    }
}

fn memory_len(buffer_len: usize, count: usize) -> usize {
    (buffer_len * count).next_multiple_of(PAGE_LEN)
}

impl Drop for Pool {
    fn drop(&mut self) {
        let len = memory_len(self.buffer_len, self.entries.len());
        // SAFETY: `new` created exactly this mapping; by csp.h (csp_close) the program must not use its
        // buffers after the context has ended.
        unsafe { libc::munmap(self.start.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_one_holder_at_a_time() {
        let mut pool = Pool::new(4096, 1, 1).unwrap();
        let key = pool.take().unwrap();
        assert_eq!(pool.take(), Err(Error::NO_BUFFERS), "receive buffers are not used for sending");
        let at = pool.address(key.index) as usize;
        let work = Work { length: 10, ..Work::default() };
        assert_eq!(pool.enqueue(key, at + 4090, work), Err(Error::INVALID), "beyond the end");
        assert_eq!(pool.enqueue(key, at - 1, work), Err(Error::INVALID), "before the start");
        assert_eq!(pool.enqueue(key, at + 4086, work), Ok(key.index));
        assert_eq!(pool.enqueue(key, at, work), Err(Error::BUFFER), "no longer held");
        assert_eq!(pool.release(key), Err(Error::BUFFER), "no longer held");
        assert_eq!(pool.outgoing_bytes(key.index).len(), 10);
        let back = pool.return_to_program(key.index);
        assert_eq!((pool.release(back), pool.release(back)), (Ok(None), Err(Error::BUFFER)));
    }

    #[test]
    fn received_data_has_buffers_of_its_own() {
        let mut pool = Pool::new(4096, 1, 1).unwrap();
        pool.incoming_bytes()[0] = 7;
        let lender = Key { index: 3, generation: 9 };
        let lent = pool.lend(lender).unwrap();
        assert_eq!((pool.incoming(), pool.lend(lender), pool.incoming_bytes().len()), (None, None, 0));
        // Received data may be sent from the same buffer.
        let work = Work { length: 1, ..Work::default() };
        let at = pool.address(lent.index) as usize;
        let index = pool.enqueue(lent, at, work).unwrap();
        assert_eq!(pool.outgoing_bytes(index), [7]);
        assert_eq!(pool.recycle(index), Some(lender));
        assert_eq!(pool.incoming(), Some(index), "it returns to its own part of the pool");
    }
}
