//! Views and writers allocate nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use csp_formats::{Found, MessageView, Value, Writer};

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
fn reading_and_writing_a_message_allocates_nothing() {
    let schema = common::schema("everything-le");
    let message = schema.message("Everything").expect("declared");
    let line = include_str!("vectors/vectors.jsonl").lines().next().expect("a vector");
    let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let bytes = common::written(&schema, &json["json"]);
    let slices: Vec<&[u8]> = bytes.chunks(50).collect();
    let note = message.locate("legs.stops.notes.note").expect("declared");
    let mut out = [0; 1024];

    let before = ALLOCATIONS.get();
    let view = MessageView::new(&schema, &slices).expect("valid");
    view.check().expect("valid");
    let mut notes = 0;
    note.visit(&view, &mut |found| {
        notes += usize::from(matches!(found, Found::Data(Some(_))));
        true
    })
    .expect("valid");
    let mut writer = Writer::new(&schema, message, &mut out).expect("room");
    for field in &message.block.fields {
        match view.fixed().value(field).expect("valid") {
            Value::Composite(_) => (),
            value => writer.put(field, value).expect("the same type"),
        }
    }
    writer.begin_group(1).expect("in order");
    writer.entry().expect("room");
    writer.data(0, [&b"text"[..]]).expect_err("of the message, not of the entry");
    let len = writer.finish();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(notes == 2 && len.is_ok());
}
