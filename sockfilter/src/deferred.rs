//! Changes that a signal handler makes to descriptors while it interrupts the filter.
//!
//! The handler's thread may hold the engine's lock, so the state under the lock cannot be changed now. The
//! descriptor table needs no lock: from then on all look-ups return the handler's change. Only the
//! description's reference count is corrected later, when the lock is released.
//!
//! Everything here is async-signal-safe: atomic operations, no lock, no allocation.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::c_int;

use crate::description::DESCRIPTIONS_MAX;
use crate::fdtable;

/// Whether any entry of `CHANGES` is not 0.
static CHANGED: AtomicBool = AtomicBool::new(false);
// Pages that are never written take no memory.
static CHANGES: [AtomicI32; DESCRIPTIONS_MAX] = [const { AtomicI32::new(0) }; DESCRIPTIONS_MAX];

/// Records that the handler closes or replaces `fd`. To be called before the kernel does so, since another
/// thread may get the number right after.
pub fn closed(fd: c_int) {
    if let Some(index) = fdtable::take(fd) {
        change(index, -1);
    }
}

/// Records that the kernel made `new` a duplicate of `old`, for the handler.
pub fn duplicated(old: c_int, new: c_int) {
    let copied = fdtable::copy(old, new);
    copied.before.into_iter().for_each(|index| change(index, -1));
    let Some(index) = copied.now else { return };
    change(index, 1);
    // Another thread may have closed `old` meanwhile.
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

/// Whether any correction is pending.
#[inline]
pub fn any() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// Like [`any`], and resets the flag, since the caller applies the corrections next.
pub fn take_any() -> bool {
    any() && CHANGED.swap(false, Ordering::Acquire)
}

/// Returns and resets the change of a description's reference count since the last call.
pub fn take(index: usize) -> i32 {
    CHANGES.get(index).map_or(0, |change| {
        // A plain load first: most pages were never written.
        if change.load(Ordering::Relaxed) == 0 { 0 } else { change.swap(0, Ordering::Relaxed) }
    })
}
