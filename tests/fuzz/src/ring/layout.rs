//! The arena of one direction in ordinary memory, with the interface that the ring uses.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The sizes of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    pub depth: usize,
    pub message_len: usize,
}

pub(crate) const GEOMETRY: Geometry = Geometry { depth: 6, message_len: 40 };

thread_local! {
    static SHARED: &'static Shared = {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Box::leak(Box::new(Shared {
            armed: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            posted: words(GEOMETRY.ring_len()),
            tags: words(GEOMETRY.depth),
            metas: words(GEOMETRY.depth),
            payloads: RefCell::new(vec![vec![0; GEOMETRY.message_len]; GEOMETRY.depth]),
        }))
    };
}

impl Geometry {
    pub(crate) fn ring_len(&self) -> usize {
        self.depth.next_power_of_two()
    }
}

struct Shared {
    armed: AtomicU32,
    closed: AtomicU32,
    posted: Vec<AtomicU64>,
    tags: Vec<AtomicU64>,
    metas: Vec<AtomicU64>,
    payloads: RefCell<Vec<Vec<u8>>>,
}

/// The memory of one direction. Each thread has one and reuses it in every run.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    shared: &'static Shared,
    pub geometry: Geometry,
}

impl Arena {
    /// Returns zeroed memory.
    pub(crate) fn new() -> Self {
        let shared = SHARED.with(|shared| *shared);
        for word in shared.posted.iter().chain(&shared.tags).chain(&shared.metas) {
            word.store(0, Ordering::Relaxed);
        }
        shared.armed.store(0, Ordering::Relaxed);
        shared.closed.store(0, Ordering::Relaxed);
        Arena { shared, geometry: GEOMETRY }
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
        &self.shared.tags[slot]
    }

    pub(crate) fn meta(&self, slot: usize) -> &AtomicU64 {
        &self.shared.metas[slot]
    }

    pub(crate) fn write(&self, slot: usize, offset: usize, from: &[u8]) {
        self.shared.payloads.borrow_mut()[slot][offset..offset + from.len()].copy_from_slice(from);
    }

    pub(crate) fn read(&self, slot: usize, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.shared.payloads.borrow()[slot][offset..offset + into.len()]);
    }

    pub(crate) fn move_lines(&self, slot: usize, next: Option<usize>, len: usize) {
        assert!(slot < self.geometry.depth && next.is_none_or(|next| next < self.geometry.depth));
        assert!(len <= self.geometry.message_len);
    }
}
