//! A plan is evaluated over messages, and rows are written, without allocation.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{channels, flight, plan, written};
use csp_formats::MessageView;

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has others.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments, so its guarantees hold here too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn selecting_and_projecting_a_message_allocates_nothing() {
    let sql = "SELECT *, delay + 1 AS later, distance / 2 AS half FROM flights WHERE origin = 'EWR' AND remark LIKE '%A%' AND \
               carrier IN ('United', 'JetBlue') AND HAS(services, 'wifi') AND NOT delay IS NULL";
    let plan = plan(sql).unwrap_or_else(|error| panic!("{error}"));
    let bytes = written(&channels().flights, &flight());
    let slices: Vec<&[u8]> = bytes.chunks(10).collect();
    let mut out = [0; 1024];
    let before = ALLOCATIONS.get();
    let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
    let accepted = plan.accepts(&[&view]).expect("valid");
    let len = plan.emit(&[&view], &[], &mut out);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(accepted && len.is_ok());
}
