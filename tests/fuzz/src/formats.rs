//! SBE: schemas, and messages of one that has every feature.

use std::sync::OnceLock;

use csp_formats::{MessageView, Schema, Writer, json};

use crate::{Bounds, Check, Target};

const EVERYTHING: &str = include_str!("../../../libcsp/formats/tests/vectors/everything-le.xml");

/// A schema, and messages of it.
pub static FORMATS_SCHEMA: Target = Target {
    name: "formats_schema",
    check: Check::Parser(formats_schema),
    examples: || {
        let evolution = include_str!("../../../libcsp/formats/tests/vectors/evolution-2-be.xml");
        vec![EVERYTHING.as_bytes().to_vec(), evolution.as_bytes().to_vec()]
    },
    words: &[
        "<type name=\"a\" primitiveType=\"uint8\"/>",
        "<composite name=\"a\">",
        "</composite>",
        "<ref name=\"a\" type=\"Engine\"/>",
        "<group name=\"g\" id=\"9\">",
        "</group>",
        "<!--",
        "-->",
        "<![CDATA[",
        "&lt;",
        "&#0;",
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        " presence=\"constant\"",
        " presence=\"optional\"",
        " length=\"9\"",
        " offset=\"7\"",
        " sinceVersion=\"2\"",
        " blockLength=\"1\"",
        " dimensionType=\"smallGroup\"",
    ],
    len_max: 32_768,
    bounds: Bounds { held: (2 << 20, 128), allocated: (4 << 20, 512) },
};

/// A message in slices.
pub static FORMATS_MESSAGE: Target = Target {
    name: "formats_message",
    check: Check::Parser(formats_message),
    examples: message_examples,
    words: &[],
    len_max: 4_096,
    bounds: Bounds { held: (1 << 20, 128), allocated: (2 << 20, 256) },
};

/// A message as JSON.
pub static FORMATS_JSON: Target = Target {
    name: "formats_json",
    check: Check::Parser(formats_json),
    examples: json_examples,
    words: &[
        "null",
        "true",
        "[]",
        "{}",
        "\"$message\":\"Everything\"",
        "\"legs\":",
        "\"stops\":[",
        "\"notes\":[{}]",
        "\"engine\":{",
        "\"\\ud800\"",
        "\"\\u0000\"",
        ":",
        ",",
        "1e400",
        "-0.0",
        "\"=\"",
        "\"flags64\":[\"last\"]",
        "\"octets\":[1,2,3,4,5]",
    ],
    len_max: 16_384,
    bounds: Bounds { held: (1 << 20, 128), allocated: (2 << 20, 256) },
};

fn everything() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| Schema::parse(EVERYTHING).expect("valid"))
}

/// The messages of this schema among the vectors of the crate's own tests, the longest first.
fn vectors() -> Vec<Vec<u8>> {
    let vectors = include_str!("../../../libcsp/formats/tests/vectors/vectors.jsonl");
    let vectors = vectors.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_schema = |end: &serde_json::Value| end == "everything-le";
    let vectors = vectors.filter(|vector| of_schema(&vector["writer"]) && of_schema(&vector["reader"]));
    let bytes = |vector: serde_json::Value| {
        let (pairs, _) = vector["hex"].as_str().unwrap_or_default().as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
        pairs.iter().filter_map(byte).collect::<Vec<u8>>()
    };
    let mut vectors: Vec<Vec<u8>> = vectors.map(bytes).collect();
    vectors.sort_by_key(|bytes| core::cmp::Reverse(bytes.len()));
    vectors.truncate(4);
    vectors
}

fn message_examples() -> Vec<Vec<u8>> {
    vectors().iter().map(|bytes| [&[7], &bytes[..]].concat()).collect()
}

fn json_examples() -> Vec<Vec<u8>> {
    let printed = |bytes: &Vec<u8>| {
        let (slices, mut text) = ([&bytes[..]], Vec::new());
        let view = MessageView::new(everything(), &slices).expect("the vectors are valid");
        json::print(&view, &mut text, 1 << 20).expect("the vectors are valid");
        text
    };
    vectors().iter().map(printed).collect()
}

/// JSON is refused, or becomes a message that is printed as JSON of the same message.
fn formats_json(text: &[u8]) -> bool {
    let mut out = vec![0; 1 << 17];
    let len = match json::parse(everything(), text, &mut out) {
        Ok(len) => len,
        Err(error) => {
            assert!(error.to_string().len() <= 2 * text.len() + 1_024, "{error}");
            return false;
        }
    };
    let slices = [&out[..len]];
    let view = MessageView::new(everything(), &slices).expect("what was written is valid");
    view.check().expect("what was written is valid");
    let mut printed = Vec::new();
    json::print(&view, &mut printed, 1 << 20).expect("what is valid can be printed");
    let mut again = vec![0; 1 << 17];
    let again_len = json::parse(everything(), &printed, &mut again);
    assert_eq!(again_len, Ok(len), "{}", printed.escape_ascii());
    assert_eq!(again[..len], out[..len], "{}", printed.escape_ascii());
    true
}

/// Messages of a schema that parses are written, read and printed; an error has a position within the text.
fn formats_schema(bytes: &[u8]) -> bool {
    let Ok(xml) = core::str::from_utf8(bytes) else { return false };
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
            true
        }
        Err(error) => {
            assert!(error.line as usize <= xml.lines().count() + 1 && error.column > 0, "{error}");
            false
        }
    }
}

/// A message in any slices: it is refused, or printed as JSON that is parsed to a message that is printed
/// alike.
fn formats_message(bytes: &[u8]) -> bool {
    let schema = everything();
    let Some((&step, bytes)) = bytes.split_first() else { return false };
    let slices: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let whole = [bytes];
    let (Ok(view), Ok(plain)) = (MessageView::new(schema, &slices), MessageView::new(schema, &whole)) else {
        assert!(MessageView::new(schema, &slices).is_err() && MessageView::new(schema, &whole).is_err());
        return false;
    };
    assert_eq!(view.check().is_ok(), plain.check().is_ok());
    let (mut text, mut same) = (Vec::new(), Vec::new());
    let printed = json::print(&view, &mut text, 1 << 20);
    assert_eq!(printed, json::print(&plain, &mut same, 1 << 20));
    let mut out = vec![0; 1 << 17];
    if printed.is_err() {
        return false;
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
    true
}
