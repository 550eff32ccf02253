//! Random schemas, messages and bytes.

mod common;

use common::random::{message, schema};
use common::{printed, split, written};
use csp_formats::{EMPTY_ENTRIES_MAX, MessageView, Schema, json};
use csp_support::Random;

fn seeds() -> Vec<u64> {
    match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => (0..300).collect(),
    }
}

#[test]
fn a_message_that_is_written_read_and_written_again_is_the_same() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let xml = schema(&mut random);
        let schema = Schema::parse(&xml).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{xml}"));
        for _ in 0..10 {
            let sent = message(&schema.messages[0], &mut random);
            let bytes = written(&schema, &sent);
            let parts = 1 + random.below(8) as usize;
            let read = printed(&schema, &split(&bytes, parts, &mut random))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{sent}\n{xml}"));
            assert_eq!(read, sent, "seed {seed}\n{xml}");
            assert_eq!(written(&schema, &read), bytes, "seed {seed}\n{xml}");
        }
    }
}

#[test]
fn messages_with_bytes_changed_are_read_or_refused() {
    let mut read = 0;
    for seed in seeds() {
        let mut random = Random::new(seed);
        let schema = Schema::parse(&schema(&mut random)).expect("valid");
        let bytes = written(&schema, &message(&schema.messages[0], &mut random));
        for _ in 0..100 {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = [0, 1, 0xff, random.number() as u8][random.below(4) as usize];
            }
            changed.truncate(random.below(2 * changed.len() as u64 + 1) as usize);
            let slices = split(&changed, 3, &mut random);
            let Ok(view) = MessageView::new(&schema, &slices) else { continue };
            let (checked, mut text) = (view.check(), Vec::new());
            match json::print(&view, &mut text, 1 << 20) {
                // What could be printed is valid, and the other way round, but for the length of the text.
                Ok(()) => {
                    assert!(checked.is_ok(), "seed {seed}: {checked:?}");
                    serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
                    read += 1;
                }
                Err(error) => {
                    assert!(checked.is_err() || text.len() > 1 << 20, "seed {seed}: {error}");
                }
            }
        }
    }
    assert!(read > 100 || seeds().len() == 1, "only {read} of the messages could be read");
}

#[test]
fn schemas_with_bytes_changed_are_parsed_or_refused_with_a_position() {
    let plain = include_bytes!("vectors/everything-le.xml");
    for seed in seeds() {
        let mut random = Random::new(seed);
        let mut xml = plain.to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(xml.len() as u64) as usize;
            match random.below(3) {
                0 => xml[at] = b"<>\"=/ 09-x"[random.below(10) as usize],
                1 => drop(xml.drain(at..(at + random.below(40) as usize).min(xml.len()))),
                // What is here stands elsewhere, too.
                _ => {
                    let piece: Vec<u8> = xml[at..(at + 60).min(xml.len())].to_vec();
                    let to = random.below(xml.len() as u64) as usize;
                    xml.splice(to..to, piece);
                }
            }
        }
        let xml = String::from_utf8(xml).expect("ASCII");
        if let Err(error) = Schema::parse(&xml) {
            let lines = xml.lines().count() as u32;
            assert!((1..=lines + 1).contains(&error.line) && error.column > 0, "seed {seed}: {error}");
        }
    }
}

#[test]
fn billions_of_entries_without_bytes_are_not_believed() {
    let xml = common::wrap(
        0,
        "<composite name=\"big\"><type name=\"blockLength\" primitiveType=\"uint16\"/><type name=\"numInGroup\" \
         primitiveType=\"uint32\"/></composite>",
        "<message name=\"M\" id=\"1\"><group name=\"many\" id=\"1\" dimensionType=\"big\"/></message>",
    );
    let schema = Schema::parse(&xml).expect("valid");
    let message = |count: u32| {
        let mut bytes = vec![0, 0, 1, 0, 7, 0, 0, 0, 0, 0];
        bytes.extend(count.to_le_bytes());
        bytes
    };
    assert!(printed(&schema, &[&message(EMPTY_ENTRIES_MAX as u32)]).is_ok());
    let error = printed(&schema, &[&message(u32::MAX)]).expect_err("too many");
    assert_eq!(error.to_string(), "many: 4294967295 entries that take no bytes are more than 4096");
}
