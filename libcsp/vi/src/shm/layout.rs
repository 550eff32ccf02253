//! The layout of the memory that the two ends of a VI share.
//!
//! ```text
//! mapping  = arena of messages to the listener ‖ arena of messages to the connector, each a multiple of a page
//! arena    = control line 0: u32 armed   (receiver sets, sender takes)
//!            control line 1: u32 closed  (sender sets: 1 this was all, 2 it may not be)
//!            posted ring: u64 × (receive depth, rounded up to a power of two)      written by the receiver
//!            slots: receive depth × stride of { u64 tag, u32 immediate, u32 length, payload }  written by the sender
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{cache, sys};
use crate::{Backing, Memory, Place, ViConfig, ViError};

const PAGE_LEN: usize = 4096;

/// x86 processors fetch cache lines in pairs, so words written by different ends are two lines apart.
const LINE_LEN: usize = 128;

const CLOSED_AT: usize = LINE_LEN;
const POSTED_AT: usize = 2 * LINE_LEN;

/// Length of tag, immediate and length before a slot's payload, in bytes.
const SLOT_HEADER_LEN: usize = 16;

/// Largest memory of one VI, both directions together, in bytes.
pub(super) const VI_MEMORY_LEN_MAX: usize = 1 << 28;

/// The sizes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub depth: usize,
    pub message_len: usize,
    stride: usize,
}

impl Geometry {
    /// The geometry of the direction whose receiver has this configuration, which is within its bounds.
    pub(super) fn new(receiver: &ViConfig) -> Self {
        let message_len = receiver.message_len as usize;
        // Whole pairs of lines, since the processor fetches pairs; an odd number of them, so that the starts
        // of slots spread over the sets of the cache.
        let stride = ((SLOT_HEADER_LEN + message_len).div_ceil(LINE_LEN) | 1) * LINE_LEN;
        Geometry { depth: receiver.receive_depth as usize, message_len, stride }
    }

    pub(super) fn ring_len(&self) -> usize {
        self.depth.next_power_of_two()
    }

    fn slots_at(&self) -> usize {
        POSTED_AT + (self.ring_len() * size_of::<u64>()).next_multiple_of(LINE_LEN)
    }

    /// Returns the length of the arena in bytes.
    pub(super) fn arena_len(&self) -> usize {
        (self.slots_at() + self.depth * self.stride).next_multiple_of(PAGE_LEN)
    }
}

/// The memory shared by the two ends of a VI, mapped into this process.
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
    to_listener: Geometry,
    to_connector: Geometry,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped once, by `Drop`. Its bytes are
// accessed only through atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives access to address, length and geometry only, which do not change after
// creation.
unsafe impl Sync for Mapping {}

/// A mapping that outlives its VI while it is in use as [`Memory`].
pub(super) struct Lent(pub std::sync::Arc<Mapping>);

// SAFETY: the `Arc` keeps all `len` bytes at `at` mapped readable and writable until this value is dropped;
// no reference to the plain bytes is made anywhere.
unsafe impl Backing for Lent {
    fn start(&self) -> *mut u8 {
        self.0.at
    }

    fn len(&self) -> usize {
        self.0.len
    }
}

impl Mapping {
    /// Creates the memory of a VI. The returned descriptor is for the connector.
    pub(super) fn create(connector: &ViConfig, listener: &ViConfig) -> Result<(Mapping, sys::Fd), ViError> {
        let (to_listener, to_connector) = (Geometry::new(listener), Geometry::new(connector));
        let len = memory_len(to_listener, to_connector)?;
        let fd = sys::sealed_memory(len).map_err(|e| e.of("memfd_create"))?;
        let at = sys::map(&fd, len).map_err(|e| e.of("mmap"))?;
        Ok((Mapping { at, len, to_listener, to_connector }, fd))
    }

    /// Maps the memory that the listener created, after checking its seals and size.
    pub(super) fn open(fd: &sys::Fd, connector: &ViConfig, listener: &ViConfig) -> Result<Mapping, ViError> {
        let (to_listener, to_connector) = (Geometry::new(listener), Geometry::new(connector));
        let len = memory_len(to_listener, to_connector)?;
        if !sys::is_sealed_memory(fd, len) {
            return Err(ViError::Protocol("the shared memory is not sealed or has another size"));
        }
        let at = sys::map(fd, len).map_err(|e| e.of("mmap"))?;
        Ok(Mapping { at, len, to_listener, to_connector })
    }

    /// Returns the offset in this mapping of the payload of a slot. The arena must be of this mapping.
    pub(super) fn payload_offset(&self, arena: &Arena, slot: usize) -> usize {
        arena.slot(slot) as usize + SLOT_HEADER_LEN - self.at as usize
    }

    /// Returns the arena of messages to the listener. It must not outlive the mapping.
    pub(super) fn to_listener(&self) -> Arena {
        Arena { at: self.at, geometry: self.to_listener }
    }

    /// Returns the arena of messages to the connector. It must not outlive the mapping.
    pub(super) fn to_connector(&self) -> Arena {
        // SAFETY: the mapping has the length of both arenas, so the end of the first lies within it.
        let at = unsafe { self.at.add(self.to_listener.arena_len()) };
        Arena { at, geometry: self.to_connector }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` returned `at` with this length, and this is the only unmapping. All arenas of the
        // mapping are owned by `Rings`, which is dropped with its `Arc` of the mapping; `Lent` holds an `Arc`
        // of its own.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

fn memory_len(to_listener: Geometry, to_connector: Geometry) -> Result<usize, ViError> {
    let len = to_listener.arena_len() + to_connector.arena_len();
    if len > VI_MEMORY_LEN_MAX {
        Err(ViError::Exhausted("VI memory: lower the queue depths or message_len"))
    } else {
        Ok(len)
    }
}

/// The memory of one direction. The peer may change all of it at any time: it is accessed through atomics and
/// raw copies only, never through references to plain data.
#[derive(Clone, Copy)]
pub(super) struct Arena {
    at: *mut u8,
    pub geometry: Geometry,
}

// SAFETY: an arena is an address and a geometry; the mapping at the address belongs to the process and is
// owned by the same `Rings`, so both move together.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn armed(&self) -> &AtomicU32 {
        // SAFETY: offset 0 is within the mapped arena and aligned, since arenas start at page boundaries.
        // Both processes access the word as an atomic only.
        unsafe { &*self.at.cast::<AtomicU32>() }
    }

    pub(super) fn closed(&self) -> &AtomicU32 {
        // SAFETY: CLOSED_AT is within the mapped arena and a multiple of 4. Both processes access the word as
        // an atomic only.
        unsafe { &*self.at.add(CLOSED_AT).cast::<AtomicU32>() }
    }

    /// Returns entry `index`, modulo the ring's length, of the posted ring.
    pub(super) fn posted(&self, index: u64) -> &AtomicU64 {
        let index = index as usize & (self.geometry.ring_len() - 1);
        // SAFETY: the index is below ring_len, whose entries are within the mapped arena and 8-aligned; both
        // processes access them as atomics only.
        unsafe { &*self.at.add(POSTED_AT).cast::<AtomicU64>().add(index) }
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.geometry.depth);
        // SAFETY: the slot is below `depth` by the assertion, and slots 0 to `depth` - 1 are within the
        // mapped arena.
        unsafe { self.at.add(self.geometry.slots_at() + slot * self.geometry.stride) }
    }

    /// Returns the tag of a slot: the number of the message that it holds, plus 1.
    pub(super) fn tag(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the tag is the first word of a slot within the mapped arena; slots are 128-aligned. Both
        // processes access it as an atomic only.
        unsafe { &*self.slot(slot).cast::<AtomicU64>() }
    }

    /// Returns the length << 32 | immediate of the message in a slot.
    pub(super) fn meta(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the second word of a slot's header of 16 bytes, within the mapped arena and 8-aligned; both
        // processes access it as an atomic only.
        unsafe { &*self.slot(slot).cast::<AtomicU64>().add(1) }
    }

    /// Gives the cache hints after a message of `len` bytes was written into `slot`. The next message goes
    /// into `next` and probably has the same length.
    pub(super) fn move_lines(&self, slot: usize, next: Option<usize>, len: usize) {
        cache::hand_over(self.slot(slot), SLOT_HEADER_LEN + len);
        if let Some(next) = next {
            cache::claim(self.slot(next), SLOT_HEADER_LEN + len);
        }
    }

    /// Copies `from` into a slot's payload at `offset`. Panics beyond `message_len`, which callers check.
    pub(super) fn write(&self, slot: usize, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.geometry.message_len);
        // SAFETY: the `from.len()` bytes at `to` are within the slot of the mapped arena by the assertion.
        // The peer may access them at the same time; no Rust reference to them exists, and a torn message
        // harms only the peer. `from` is a Rust reference, hence no part of the arena.
        unsafe {
            let to = self.slot(slot).add(SLOT_HEADER_LEN + offset);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }

    /// Returns the first `len` bytes of a slot's payload, to be written before the slot is handed over.
    /// Panics beyond `message_len`, which callers check. The result must not outlive the mapping.
    pub(super) fn place(&self, slot: usize, len: usize) -> Place<'_> {
        assert!(len <= self.geometry.message_len);
        // SAFETY: the bytes are within the slot of the mapped arena by the assertion. The peer may access
        // them at the same time; no Rust reference to them exists.
        unsafe { Place::new(self.slot(slot).add(SLOT_HEADER_LEN), len) }
    }

    /// Copies from registered memory, which other processes may change. A piece outside of it is not copied.
    pub(super) fn write_from(&self, slot: usize, offset: usize, from: &Memory, at: usize, len: usize) {
        assert!(offset + len <= self.geometry.message_len);
        let Some(from) = from.at(at, len) else { return };
        // SAFETY: `from` points to `len` bytes that its `Memory` keeps mapped; the destination is within the
        // slot by the assertion. Both may be parts of one mapping, hence `copy`, which permits overlap. No
        // Rust reference to either exists.
        unsafe {
            let to = self.slot(slot).add(SLOT_HEADER_LEN + offset);
            std::ptr::copy(from, to, len);
        }
    }

    /// Copies from a slot's payload at `offset`. Panics beyond `message_len`, which callers check.
    pub(super) fn read(&self, slot: usize, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.geometry.message_len);
        // SAFETY: the `into.len()` bytes at `from` are within the slot of the mapped arena by the assertion.
        // The peer may change them meanwhile; every byte pattern is a valid `u8`. `into` is a Rust reference,
        // hence no part of the arena.
        unsafe {
            let from = self.slot(slot).add(SLOT_HEADER_LEN + offset);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_every_size_lie_within_their_arena_and_apart() {
        for (depth, message_len) in [(2, 1), (3, 48), (64, 16384), (100, 4095), (4096, 64)] {
            let config = ViConfig { receive_depth: depth, send_depth: 2, message_len };
            let geometry = Geometry::new(&config);
            assert!(geometry.stride >= SLOT_HEADER_LEN + message_len as usize);
            assert!(geometry.slots_at() >= POSTED_AT + 8 * geometry.ring_len());
            assert!(geometry.arena_len() >= geometry.slots_at() + geometry.depth * geometry.stride);
            assert_eq!((geometry.stride % 256, geometry.slots_at() % 128), (128, 0));
        }
    }

    #[test]
    fn too_large_a_vi_is_refused() {
        let config = ViConfig { receive_depth: 4096, send_depth: 2, message_len: 1 << 20 };
        assert!(matches!(Mapping::create(&config, &config), Err(ViError::Exhausted(_))));
    }
}
