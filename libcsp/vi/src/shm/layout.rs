//! Where things lie in the memory that the two ends of a VI share.
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
use crate::{Backing, Memory, ViConfig, ViError};

const PAGE_LEN: usize = 4096;

/// Cache lines are fetched in pairs on x86, so what the two ends write stands two lines apart.
const LINE_LEN: usize = 128;

const CLOSED_AT: usize = LINE_LEN;
const POSTED_AT: usize = 2 * LINE_LEN;

/// Bytes of tag, immediate and length before a slot's payload.
const SLOT_HEADER_LEN: usize = 16;

/// Most memory that one VI may take, both directions together, in bytes.
pub(super) const VI_MEMORY_LEN_MAX: usize = 1 << 28;

/// The sizes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub depth: usize,
    pub message_len: usize,
    stride: usize,
}

impl Geometry {
    /// The direction whose receiver has this configuration. The configuration is within its bounds.
    pub(super) fn new(receiver: &ViConfig) -> Self {
        let message_len = receiver.message_len as usize;
        // Whole pairs of lines, since these are fetched together; an odd number of them, so that the starts of slots
        // spread over the cache's sets.
        let stride = ((SLOT_HEADER_LEN + message_len).div_ceil(LINE_LEN) | 1) * LINE_LEN;
        Geometry { depth: receiver.receive_depth as usize, message_len, stride }
    }

    pub(super) fn ring_len(&self) -> usize {
        self.depth.next_power_of_two()
    }

    fn slots_at(&self) -> usize {
        POSTED_AT + (self.ring_len() * size_of::<u64>()).next_multiple_of(LINE_LEN)
    }

    /// Bytes of the arena.
    pub(super) fn arena_len(&self) -> usize {
        (self.slots_at() + self.depth * self.stride).next_multiple_of(PAGE_LEN)
    }
}

/// The memory shared by the two ends of a VI, mapped here.
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
    to_listener: Geometry,
    to_connector: Geometry,
}

// SAFETY: the mapping is reached only through its one owner, wherever that moves; the memory itself is meant to be
// shared.
unsafe impl Send for Mapping {}
// SAFETY: what is shared of it is where it lies and how long it is.
unsafe impl Sync for Mapping {}

/// A mapping that outlives its VI as long as somebody has it as [`Memory`].
pub(super) struct Lent(pub std::sync::Arc<Mapping>);

// SAFETY: the mapping stays until its last owner is gone, and no reference to its plain bytes is made anywhere.
unsafe impl Backing for Lent {
    fn start(&self) -> *mut u8 {
        self.0.at
    }

    fn len(&self) -> usize {
        self.0.len
    }
}

impl Mapping {
    /// Makes the memory of a VI; the descriptor goes to the connector.
    pub(super) fn create(connector: &ViConfig, listener: &ViConfig) -> Result<(Mapping, sys::Fd), ViError> {
        let (to_listener, to_connector) = (Geometry::new(listener), Geometry::new(connector));
        let len = memory_len(to_listener, to_connector)?;
        let fd = sys::sealed_memory(len).map_err(|e| e.of("memfd_create"))?;
        let at = sys::map(&fd, len).map_err(|e| e.of("mmap"))?;
        Ok((Mapping { at, len, to_listener, to_connector }, fd))
    }

    /// Maps what the listener made, if it is what it has to be.
    pub(super) fn open(fd: &sys::Fd, connector: &ViConfig, listener: &ViConfig) -> Result<Mapping, ViError> {
        let (to_listener, to_connector) = (Geometry::new(listener), Geometry::new(connector));
        let len = memory_len(to_listener, to_connector)?;
        if !sys::is_sealed_memory(fd, len) {
            return Err(ViError::Protocol("the memory is not sealed or has another size"));
        }
        let at = sys::map(fd, len).map_err(|e| e.of("mmap"))?;
        Ok(Mapping { at, len, to_listener, to_connector })
    }

    /// Where the payload of an arena's slot starts, in bytes from the start of this mapping, which the arena is of.
    pub(super) fn payload_offset(&self, arena: &Arena, slot: usize) -> usize {
        arena.slot(slot) as usize + SLOT_HEADER_LEN - self.at as usize
    }

    /// The arena of messages to the listener. It must not outlive the mapping.
    pub(super) fn to_listener(&self) -> Arena {
        Arena { at: self.at, geometry: self.to_listener }
    }

    /// The arena of messages to the connector. It must not outlive the mapping.
    pub(super) fn to_connector(&self) -> Arena {
        // SAFETY: the mapping is both arenas long.
        let at = unsafe { self.at.add(self.to_listener.arena_len()) };
        Arena { at, geometry: self.to_connector }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the arenas live next to the mapping in one struct and go with it.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

fn memory_len(to_listener: Geometry, to_connector: Geometry) -> Result<usize, ViError> {
    let len = to_listener.arena_len() + to_connector.arena_len();
    if len > VI_MEMORY_LEN_MAX {
        Err(ViError::Exhausted("VI memory: lower its depths or length"))
    } else {
        Ok(len)
    }
}

/// One direction's memory. All of it may change under our hands at any time: it is read and written through atomics
/// and raw copies only, never through references to plain data.
#[derive(Clone, Copy)]
pub(super) struct Arena {
    at: *mut u8,
    pub geometry: Geometry,
}

// SAFETY: as for Mapping, next to which it lives.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn armed(&self) -> &AtomicU32 {
        // SAFETY: in bounds, aligned (arenas start at pages), and accessed as an atomic only.
        unsafe { &*self.at.cast::<AtomicU32>() }
    }

    pub(super) fn closed(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.at.add(CLOSED_AT).cast::<AtomicU32>() }
    }

    /// Entry `index`, modulo its length, of the posted ring.
    pub(super) fn posted(&self, index: u64) -> &AtomicU64 {
        let index = index as usize & (self.geometry.ring_len() - 1);
        // SAFETY: the index is below ring_len, whose entries lie within the arena, 8-aligned.
        unsafe { &*self.at.add(POSTED_AT).cast::<AtomicU64>().add(index) }
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.geometry.depth);
        // SAFETY: slots 0..depth lie within the arena.
        unsafe { self.at.add(self.geometry.slots_at() + slot * self.geometry.stride) }
    }

    /// The number + 1 of the message that a slot holds.
    pub(super) fn tag(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: a slot starts with its tag, and slots are 64-aligned.
        unsafe { &*self.slot(slot).cast::<AtomicU64>() }
    }

    /// A slot's length << 32 | immediate.
    pub(super) fn meta(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the second word of a slot.
        unsafe { &*self.slot(slot).cast::<AtomicU64>().add(1) }
    }

    /// A message of `len` bytes is in `slot`, and the next one, probably as long, goes into `next`.
    pub(super) fn move_lines(&self, slot: usize, next: Option<usize>, len: usize) {
        cache::hand_over(self.slot(slot), SLOT_HEADER_LEN + len);
        if let Some(next) = next {
            cache::claim(self.slot(next), SLOT_HEADER_LEN + len);
        }
    }

    /// Copies `from` into a slot's payload at `offset`; the caller keeps within `message_len`.
    pub(super) fn write(&self, slot: usize, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.geometry.message_len);
        // SAFETY: in bounds by the assertion. The peer may read or write the same bytes meanwhile; nobody here holds a
        // reference to them, and whatever mixture results is the peer's own loss.
        unsafe {
            let to = self.slot(slot).add(SLOT_HEADER_LEN + offset);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }

    /// The same, from registered memory, which may be anybody's; a piece outside of it is not copied.
    pub(super) fn write_from(&self, slot: usize, offset: usize, from: &Memory, at: usize, len: usize) {
        assert!(offset + len <= self.geometry.message_len);
        let Some(from) = from.at(at, len) else { return };
        // SAFETY: as for `write`; `from` has `len` mapped bytes. Both may be of one mapping.
        unsafe {
            let to = self.slot(slot).add(SLOT_HEADER_LEN + offset);
            std::ptr::copy(from, to, len);
        }
    }

    /// Copies from a slot's payload at `offset`; the caller keeps within `message_len`.
    pub(super) fn read(&self, slot: usize, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.geometry.message_len);
        // SAFETY: as for `write`; every byte pattern is a valid `u8`.
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
