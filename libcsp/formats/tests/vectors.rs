//! Messages that the codecs of the official sbe-tool encode, and what they decode from them: over every
//! feature, both byte orders, and versions of a schema read by each other. `make test-formats` makes the
//! vectors anew.

mod common;

use std::collections::HashMap;

use common::{hex, printed, schema, split, unhex, written};
use csp_formats::{MessageView, Schema};
use csp_support::Random;
use serde_json::Value as Json;

struct Vector {
    writer: String,
    reader: String,
    bytes: Vec<u8>,
    json: Json,
}

fn vectors() -> (HashMap<String, Schema>, Vec<Vector>) {
    let mut schemas = HashMap::new();
    let lines = include_str!("vectors/vectors.jsonl").lines();
    let vectors: Vec<Vector> = lines
        .map(|line| {
            let line: Json = serde_json::from_str(line).expect("a vector");
            let text = |name: &str| line[name].as_str().expect("text").to_owned();
            Vector {
                writer: text("writer"),
                reader: text("reader"),
                bytes: unhex(&text("hex")),
                json: line["json"].clone(),
            }
        })
        .collect();
    for vector in &vectors {
        schemas.entry(vector.reader.clone()).or_insert_with(|| schema(&vector.reader));
    }
    assert!(vectors.len() >= 30, "only {} vectors", vectors.len());
    (schemas, vectors)
}

#[test]
fn messages_of_sbe_tool_read_as_its_codecs_read_them() {
    let (schemas, vectors) = vectors();
    let mut random = Random::new(1);
    for vector in &vectors {
        for parts in 1..20 {
            let slices = split(&vector.bytes, parts, &mut random);
            let json = printed(&schemas[&vector.reader], &slices)
                .unwrap_or_else(|error| panic!("{} read by {}: {error}", vector.writer, vector.reader));
            assert_eq!(json, vector.json, "{} read by {} in {parts} slices", vector.writer, vector.reader);
        }
    }
}

#[test]
fn messages_are_written_as_sbe_tool_writes_them() {
    let (schemas, vectors) = vectors();
    for vector in vectors.iter().filter(|vector| vector.writer == vector.reader) {
        let bytes = written(&schemas[&vector.reader], &vector.json);
        assert_eq!(hex(&bytes), hex(&vector.bytes), "{}: {}", vector.writer, vector.json);
    }
}

#[test]
fn a_message_that_is_cut_short_is_refused_wherever_it_is_cut() {
    let (schemas, vectors) = vectors();
    for vector in vectors.iter().filter(|vector| vector.writer == vector.reader) {
        for len in 0..vector.bytes.len() {
            let error = printed(&schemas[&vector.reader], &[&vector.bytes[..len]]).expect_err("cut short");
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn what_follows_a_message_is_returned() {
    let (schemas, vectors) = vectors();
    let vector = &vectors[0];
    let slices = [&vector.bytes[..], b"next"];
    let view = MessageView::new(&schemas[&vector.reader], &slices).expect("valid");
    assert!(view.check().expect("valid") == b"next"[..]);
}
