//! The rings between kernel and user level: one side produces, the other consumes; each publishes its index
//! after what it has done.
//!
//! ```text
//!                 consumer            producer
//!   ──────────────────┬───────────────────┬──────────────── indices count up and wrap at 2^32; entries at index modulo length
//!      free           │  filled           │  free
//! ```

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use super::umem::Mapping;

/// This side of a ring with entries of type `T`.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    len: u32,
    /// The other side's index, as last read.
    other: u32,
    /// This side's index, published or not.
    own: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `len` entries (a power of two) that the kernel has created.
    fn map(
        fd: libc::c_int,
        page_offset: libc::off_t,
        offsets: libc::xdp_ring_offset,
        len: u32,
    ) -> io::Result<Self> {
        assert!(len.is_power_of_two(), "a length that the kernel accepts");
        let bytes = offsets.desc as usize + len as usize * size_of::<T>();
        let mapping = Mapping::of_socket(bytes, fd, page_offset)?;
        let aligned = |at: u64| at.is_multiple_of(4) && at + 4 <= mapping.len() as u64;
        let entries = offsets.desc.is_multiple_of(align_of::<T>() as u64);
        if ![offsets.producer, offsets.consumer, offsets.flags].into_iter().all(aligned) || !entries {
            return Err(io::Error::other("the kernel's offsets of a ring are not aligned"));
        }
        Ok(Ring { mapping, offsets, len, other: 0, own: 0, entries: PhantomData })
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `map` has checked that four aligned bytes lie there in the mapping, which lives as long as
        // `self`; the kernel accesses them atomically, too.
        unsafe { AtomicU32::from_ptr(self.mapping.at().as_ptr().add(at as usize).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.offsets.desc as usize + (index & (self.len - 1)) as usize * size_of::<T>();
        // SAFETY: `map` has mapped `len` entries from `desc` on, and the index is taken modulo `len`.
        unsafe { self.mapping.at().as_ptr().add(at).cast() }
    }

    fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel consumes.
#[derive(Debug)]
pub(super) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    pub(super) fn map(
        fd: libc::c_int,
        page_offset: libc::off_t,
        offsets: libc::xdp_ring_offset,
        len: u32,
    ) -> io::Result<Self> {
        Ring::map(fd, page_offset, offsets, len).map(Producer)
    }

    /// Writes an entry, which the kernel sees after [`publish`](Self::publish); false if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        let ring = &mut self.0;
        if ring.own.wrapping_sub(ring.other) == ring.len {
            ring.other = ring.consumer().load(Ordering::Acquire);
            if ring.own.wrapping_sub(ring.other) >= ring.len {
                return false;
            }
        }
        // SAFETY: the entry is free: the kernel has consumed it, which the acquiring load has ordered before
        // this write.
        unsafe { ring.entry(ring.own).write(value) };
        ring.own = ring.own.wrapping_add(1);
        true
    }

    pub(super) fn publish(&self) {
        self.0.producer().store(self.0.own, Ordering::Release);
    }

    /// Returns how many published entries the kernel has not consumed.
    pub(super) fn waiting(&self) -> u32 {
        self.0.own.wrapping_sub(self.0.consumer().load(Ordering::Acquire))
    }

    /// Returns whether the kernel consumes entries only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(super) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    pub(super) fn map(
        fd: libc::c_int,
        page_offset: libc::off_t,
        offsets: libc::xdp_ring_offset,
        len: u32,
    ) -> io::Result<Self> {
        Ring::map(fd, page_offset, offsets, len).map(Consumer)
    }

    /// Returns the next entry. The kernel may overwrite it after [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.own == ring.other {
            ring.other = ring.producer().load(Ordering::Acquire);
            if ring.own == ring.other {
                return None;
            }
        }
        // SAFETY: the kernel has filled the entry, which the acquiring load has ordered before this read, and
        // leaves it until it is released.
        let value = unsafe { ring.entry(ring.own).read() };
        ring.own = ring.own.wrapping_add(1);
        Some(value)
    }

    pub(super) fn release(&self) {
        self.0.consumer().store(self.0.own, Ordering::Release);
    }
}
