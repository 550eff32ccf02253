//! SBE: schemas, and messages of one that has every feature.

use std::sync::OnceLock;

use csp_formats::{MessageView, Schema, Writer, json};

/// Messages of a schema that parses are written, read and printed; an error has a position within the text.
pub fn formats_schema(bytes: &[u8]) {
    let Ok(xml) = core::str::from_utf8(bytes) else { return };
    match Schema::parse(xml) {
        Ok(schema) => {
            for message in &schema.messages {
                let mut out = vec![0; 1 << 17];
                let written = Writer::new(&schema, message, &mut out).and_then(Writer::finish);
                let Ok(len) = written else { continue };
                let slices = [&out[..len]];
                let view = MessageView::new(&schema, &slices).expect("what was written is valid");
                view.check().expect("what was written is valid");
                let printed = json::print(&view, &mut Vec::new(), 1 << 24);
                printed.expect("what is valid can be printed");
            }
        }
        Err(error) => assert!(error.line as usize <= xml.lines().count() + 1 && error.column > 0, "{error}"),
    }
}

/// A message in any slices: it is refused, or printed as JSON that is parsed to a message that is printed alike.
pub fn formats_message(bytes: &[u8]) {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    let xml = include_str!("../../../libcsp/formats/tests/vectors/everything-le.xml");
    let schema = SCHEMA.get_or_init(|| Schema::parse(xml).expect("valid"));
    let Some((&step, bytes)) = bytes.split_first() else { return };
    let slices: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let whole = [bytes];
    let (Ok(view), Ok(plain)) = (MessageView::new(schema, &slices), MessageView::new(schema, &whole)) else {
        assert!(MessageView::new(schema, &slices).is_err() && MessageView::new(schema, &whole).is_err());
        return;
    };
    assert_eq!(view.check().is_ok(), plain.check().is_ok());
    let (mut text, mut same) = (Vec::new(), Vec::new());
    let printed = json::print(&view, &mut text, 1 << 20);
    assert_eq!(printed, json::print(&plain, &mut same, 1 << 20));
    let mut out = vec![0; 1 << 17];
    if printed.is_err() {
        return;
    }
    assert_eq!(text, same);
    // Values outside the schema's range are read and not written.
    if let Ok(len) = json::parse(schema, &text, &mut out) {
        let slices = [&out[..len]];
        let again = MessageView::new(schema, &slices).expect("what was written is valid");
        let mut twice = Vec::new();
        json::print(&again, &mut twice, 1 << 20).expect("what was written is valid");
        if view.version() >= schema.version {
            assert_eq!(text, twice);
        }
    }
}
