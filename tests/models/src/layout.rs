//! The arena of one direction, made of loom's atomics, with the interface that the ring uses.

use loom::cell::Cell;
use loom::sync::atomic::{AtomicU32, AtomicU64};

/// The sizes of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    pub depth: usize,
    pub message_len: usize,
}

impl Geometry {
    pub(crate) fn ring_len(&self) -> usize {
        self.depth.next_power_of_two()
    }
}

struct Slot {
    tag: AtomicU64,
    meta: AtomicU64,
    /// The payload. It is not atomic, so that loom reports simultaneous access by both ends.
    payload: Cell<u8>,
}

struct Shared {
    armed: AtomicU32,
    closed: AtomicU32,
    posted: Vec<AtomicU64>,
    slots: Vec<Slot>,
}

/// The memory of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    shared: &'static Shared,
    pub geometry: Geometry,
}

impl Arena {
    /// Creates zeroed memory, as the kernel does. It is never freed: a run of the model needs a few hundred
    /// bytes.
    pub(crate) fn new(depth: usize) -> Self {
        let geometry = Geometry { depth, message_len: 1 };
        let slot = |_| Slot { tag: AtomicU64::new(0), meta: AtomicU64::new(0), payload: Cell::new(0) };
        let shared = Shared {
            armed: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            posted: (0..geometry.ring_len()).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..depth).map(slot).collect(),
        };
        Arena { shared: Box::leak(Box::new(shared)), geometry }
    }

    pub(crate) fn armed(&self) -> &AtomicU32 {
        &self.shared.armed
    }

    pub(crate) fn closed(&self) -> &AtomicU32 {
        &self.shared.closed
    }

    pub(crate) fn posted(&self, index: u64) -> &AtomicU64 {
        &self.shared.posted[index as usize & (self.geometry.ring_len() - 1)]
    }

    pub(crate) fn tag(&self, slot: usize) -> &AtomicU64 {
        &self.shared.slots[slot].tag
    }

    pub(crate) fn meta(&self, slot: usize) -> &AtomicU64 {
        &self.shared.slots[slot].meta
    }

    pub(crate) fn write(&self, slot: usize, _offset: usize, from: &[u8]) {
        self.shared.slots[slot].payload.set(from[0]);
    }

    pub(crate) fn read(&self, slot: usize, _offset: usize, into: &mut [u8]) {
        into[0] = self.shared.slots[slot].payload.get();
    }

    /// Cache hints have no effect in the model.
    pub(crate) fn move_lines(&self, _slot: usize, _next: Option<usize>, _len: usize) {}
}
