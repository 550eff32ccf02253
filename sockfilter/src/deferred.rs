//! What a signal handler does to descriptors while it interrupts the filter.
//!
//! The handler's thread may hold the engine's lock, so that nothing behind it can change now. The descriptor table needs no
//! lock: the number means what the handler makes it mean from then on, to all who look it up. Only the description's count of
//! references is put right later, when the lock is given back.
//!
//! Everything here is async-signal-safe: atomic operations, no lock, no allocation.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::c_int;

use crate::description::DESCRIPTIONS_MAX;
use crate::fdtable;

/// Whether any of `CHANGES` is other than 0.
static CHANGED: AtomicBool = AtomicBool::new(false);
// Untouched pages of it cost nothing.
static CHANGES: [AtomicI32; DESCRIPTIONS_MAX] = [const { AtomicI32::new(0) }; DESCRIPTIONS_MAX];

/// The handler closes or replaces `fd`. Before the kernel does: the number may be another thread's right after.
pub fn closed(fd: c_int) {
    if let Some(index) = fdtable::take(fd) {
        change(index, -1);
    }
}

/// The kernel made `new` a duplicate of `old`, for the handler.
pub fn duplicated(old: c_int, new: c_int) {
    let copied = fdtable::copy(old, new);
    copied.before.into_iter().for_each(|index| change(index, -1));
    let Some(index) = copied.now else { return };
    change(index, 1);
    // Another thread may have let go of it meanwhile.
    if fdtable::description(old) != Some(index) {
        closed(new);
    }
}

fn change(index: usize, by: i32) {
    if let Some(change) = CHANGES.get(index) {
        change.fetch_add(by, Ordering::Relaxed);
        CHANGED.store(true, Ordering::Release);
    }
}

/// Whether there is anything to put right.
#[inline]
pub fn any() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// The same, and takes note that it is about to be.
pub fn take_any() -> bool {
    any() && CHANGED.swap(false, Ordering::Acquire)
}

/// By how much a description's references have changed since it was asked last.
pub fn take(index: usize) -> i32 {
    CHANGES.get(index).map_or(0, |change| {
        // A load where there is nothing: most pages were never written.
        if change.load(Ordering::Relaxed) == 0 { 0 } else { change.swap(0, Ordering::Relaxed) }
    })
}
