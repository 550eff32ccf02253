//! An allocator that counts, for tests that show that a path allocates nothing, or no more than it may:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: csp_support::allocation::Counting = csp_support::allocation::Counting;
//! ```
//!
//! Counts are of the thread that asks, since the test harness has threads of its own, or of the process, for
//! what has several.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The system's allocator, with counts.
pub struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST_HELD: Cell<i64> = const { Cell::new(0) };
}

static PROCESS_COUNT: AtomicU64 = AtomicU64::new(0);
static PROCESS_HELD: AtomicI64 = AtomicI64::new(0);

/// Allocations by this thread since it began. Moving a block to a new place counts as one.
pub fn count() -> u64 {
    COUNT.get()
}

/// Runs `work`, and returns its result, the number of its allocations, and the most bytes that it held at one
/// time beyond those held before, in this thread.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64, i64) {
    let before = (count(), HELD.get());
    MOST_HELD.set(before.1);
    let result = work();
    (result, count() - before.0, MOST_HELD.get() - before.1)
}

/// What a piece of work took from the allocator, in its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Allocations. Moving a block to a new place counts as one.
    pub count: u64,
    /// Bytes of all allocations together: what the work has copied and built, and so a measure of its steps.
    pub bytes: u64,
    /// The most bytes that it held at one time beyond those held before.
    pub held_max: i64,
}

/// Runs `work`, and returns its result and what it took.
pub fn used_by<T>(work: impl FnOnce() -> T) -> (T, Used) {
    let before = ALLOCATED.get();
    let (result, count, held_max) = peak_of(work);
    (result, Used { count, bytes: ALLOCATED.get() - before, held_max })
}

/// Allocations by all threads since the process began.
pub fn process_count() -> u64 {
    PROCESS_COUNT.load(Ordering::Relaxed)
}

/// Bytes that all threads hold.
pub fn process_held() -> i64 {
    PROCESS_HELD.load(Ordering::Relaxed)
}

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments, so its guarantees hold
// here too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        ALLOCATED.set(ALLOCATED.get() + layout.size() as u64);
        HELD.set(HELD.get() + layout.size() as i64);
        MOST_HELD.set(MOST_HELD.get().max(HELD.get()));
        PROCESS_COUNT.fetch_add(1, Ordering::Relaxed);
        PROCESS_HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        PROCESS_HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
