//! Nanoseconds a field: view and locate, read, write, JSON.
#![allow(missing_docs, reason = "the macros make functions without them")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use csp_formats::{Field, Found, Location, MessageView, Schema, Type, Writer, json};
use csp_support::Random;

fn message(schema: &Schema) -> Vec<u8> {
    let mut random = Random::new(1);
    let message = schema.message("Everything").expect("in the schema");
    // One that has entries in its groups.
    std::iter::repeat_with(|| common::written(schema, &common::random::message(message, &mut random)))
        .find(|bytes| bytes.len() > 600)
        .expect("endless")
}

fn field(location: &Location) -> &Field {
    location.root_field().expect("a field of the root block")
}

fn read(criterion: &mut Criterion) {
    let schema = common::schema("everything-le");
    let format = schema.message("Everything").expect("in the schema");
    let bytes = message(&schema);
    let whole = [&bytes[..]];
    let pieces: Vec<&[u8]> = bytes.chunks(100).collect();
    let located = format.locate("engine.inner.deep").expect("a field");
    criterion.bench_function("locate a member of a composite", |bench| {
        bench.iter(|| format.locate(black_box("engine.inner.deep")));
    });
    for (name, slices) in [("one slice", &whole[..]), ("slices of 100 bytes", &pieces[..])] {
        criterion.bench_function(&format!("view, {name}"), |bench| {
            bench.iter(|| MessageView::new(&schema, black_box(slices)).expect("valid"));
        });
        criterion.bench_function(&format!("view and a located field, {name}"), |bench| {
            bench.iter(|| {
                let view = MessageView::new(&schema, black_box(slices)).expect("valid");
                view.fixed().value(field(&located)).expect("valid").number()
            });
        });
        let numbers: Vec<&Field> = format
            .block
            .fields
            .iter()
            .filter(|field| !matches!(field.kind, Type::Composite(_)))
            .take(20)
            .collect();
        criterion.bench_function(&format!("20 fields, {name}"), |bench| {
            let view = MessageView::new(&schema, slices).expect("valid");
            bench
                .iter(|| numbers.iter().filter(|field| black_box(view.fixed().value(field)).is_ok()).count());
        });
        let minutes = format.locate("legs.stops.minutes").expect("a field");
        criterion.bench_function(&format!("a field of all entries of a nested group, {name}"), |bench| {
            let view = MessageView::new(&schema, slices).expect("valid");
            bench.iter(|| {
                let mut count = 0;
                let visited = minutes.visit(&view, &mut |found| {
                    count += u32::from(matches!(found, Found::Value(_)));
                    true
                });
                (count, visited.is_ok())
            });
        });
        criterion.bench_function(&format!("check {} bytes, {name}", bytes.len()), |bench| {
            bench.iter(|| MessageView::new(&schema, slices).is_ok_and(|view| view.check().is_ok()));
        });
    }
}

fn write(criterion: &mut Criterion) {
    let schema = common::schema("everything-le");
    let format = schema.message("Everything").expect("in the schema");
    let bytes = message(&schema);
    let slices = [&bytes[..]];
    let view = MessageView::new(&schema, &slices).expect("valid");
    let numbers: Vec<&Field> = format
        .block
        .fields
        .iter()
        .filter(|field| field.size() > 0 && field.kind.size() <= 8)
        .take(20)
        .collect();
    let mut out = [0; 4096];
    criterion.bench_function("begin and finish a message", |bench| {
        bench.iter(|| Writer::new(&schema, format, &mut out).and_then(Writer::finish));
    });
    criterion.bench_function("copy 20 fields to a new message", |bench| {
        bench.iter(|| {
            let mut writer = Writer::new(&schema, format, &mut out)?;
            for field in &numbers {
                writer.put(field, view.fixed().value(field).expect("valid"))?;
            }
            writer.finish()
        });
    });
    let mut text = Vec::new();
    json::print(&view, &mut text, 1 << 20).expect("valid");
    criterion.bench_function(&format!("print {} bytes as JSON", bytes.len()), |bench| {
        let mut text = Vec::new();
        bench.iter(|| {
            text.clear();
            json::print(&view, &mut text, 1 << 20)
        });
    });
    criterion.bench_function(&format!("parse {} bytes of JSON", text.len()), |bench| {
        bench.iter(|| json::parse(&schema, &text, &mut out).expect("valid"));
    });
}

criterion_group!(benches, read, write);
criterion_main!(benches);
