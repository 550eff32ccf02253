//! The arena of one direction, made of loom's atomics. It has the names that the ring uses of the real one.

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
    /// The payload: not atomic, so that loom tells when both ends touch it at once.
    payload: Cell<u8>,
}

struct Shared {
    armed: AtomicU32,
    closed: AtomicU32,
    posted: Vec<AtomicU64>,
    slots: Vec<Slot>,
}

/// One direction's memory, lent for as long as one run of the model.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    shared: &'static Shared,
    pub geometry: Geometry,
}

impl Arena {
    /// Memory of zeros, as the kernel gives it. It is never freed: a run of the model has a few hundred bytes.
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

    /// Hints to the processor's cache mean nothing here.
    pub(crate) fn move_lines(&self, _slot: usize, _next: Option<usize>, _len: usize) {}
}
