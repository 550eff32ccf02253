//! Views and writers allocate nothing.

mod common;

use csp_formats::{Found, MessageView, Value, Writer};
use csp_support::allocation;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

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

    let before = allocation::count();
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
    assert_eq!(allocation::count() - before, 0);
    assert!(notes == 2 && len.is_ok());
}
