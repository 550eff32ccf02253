//! Writers: values and their ranges, the order of groups and data, and buffers of every size.

mod common;

use common::{printed, schema, wrap, written};
use csp_formats::{Field, Location, Message, MessageView, Scalar, Schema, WriteError, WriteProblem, Writer};
use serde_json::json;

fn everything() -> Schema {
    schema("everything-le")
}

/// Sets one field of a message by `set` and returns the outcome.
fn with(
    path: &str,
    set: impl FnOnce(&mut Writer<'_, '_>, &Field) -> Result<(), WriteError>,
) -> Result<(), WriteProblem> {
    let schema = everything();
    let message = schema.message("Everything").expect("declared");
    let mut out = [0; 1024];
    let mut writer = Writer::new(&schema, message, &mut out).expect("room");
    set(&mut writer, field(&locate(message, path))).map_err(|error| error.problem)
}

fn locate(message: &Message, path: &str) -> Location {
    message.locate(path).expect("declared")
}

fn field(location: &Location) -> &Field {
    location.root_field().expect("a field of the root block")
}

#[test]
fn numbers_are_checked_against_type_range_and_null() {
    let scalar = |path: &str, number: Scalar| with(path, |writer, field| writer.scalar(field, number));
    assert_eq!(scalar("years", Scalar::UInt(120)), Ok(()));
    for (path, number) in [
        ("years", Scalar::UInt(121)),
        ("years", Scalar::UInt(0)),
        ("years", Scalar::Int(-1)),
        ("requiredInt8", Scalar::Int(128)),
        ("requiredUInt8", Scalar::UInt(256)),
        ("requiredFloat", Scalar::Float(1e300)),
        ("flags8", Scalar::UInt(256)),
        ("requiredInt8", Scalar::Float(1.0)),
    ] {
        assert_eq!(scalar(path, number), Err(WriteProblem::OutOfRange { value: number }), "{path}");
    }
    for (path, number) in
        [("optInt16", Scalar::Int(-1)), ("level", Scalar::UInt(0)), ("optUInt8", Scalar::UInt(255))]
    {
        assert_eq!(scalar(path, number), Err(WriteProblem::StandsForNull { value: number }), "{path}");
    }
    assert_eq!(scalar("engine", Scalar::UInt(1)), Err(WriteProblem::WrongType { expected: "composite" }));
    assert_eq!(scalar("fixedNumber", Scalar::UInt(9000)), Ok(()));
    assert_eq!(scalar("fixedNumber", Scalar::UInt(9001)), Err(WriteProblem::Constant));
    assert_eq!(with("years", |writer, field| writer.null(field)), Err(WriteProblem::Required));
    assert_eq!(with("optInt64", |writer, field| writer.null(field)), Ok(()));
    assert_eq!(with("model", |writer, field| writer.null(field)), Ok(()));
}

#[test]
fn texts_and_arrays_fit_or_are_refused() {
    assert_eq!(with("text", |writer, field| writer.text(field, b"abcdef")), Ok(()));
    let long = with("text", |writer, field| writer.text(field, b"abcdefg"));
    assert_eq!(long, Err(WriteProblem::TooLong { len: 7, max: 6 }));
    let numbers = |count: usize| {
        move |writer: &mut Writer<'_, '_>, field: &Field| {
            writer.numbers(field, std::iter::repeat_n(Scalar::Int(-1), count))
        }
    };
    assert_eq!(with("shorts", numbers(3)), Ok(()));
    assert_eq!(with("shorts", numbers(4)), Err(WriteProblem::TooLong { len: 4, max: 3 }));
    assert_eq!(with("octets", numbers(1)), Err(WriteProblem::OutOfRange { value: Scalar::Int(-1) }));
    let text = with("shorts", |writer, field| writer.text(field, b"a"));
    assert_eq!(text, Err(WriteProblem::WrongType { expected: "char array" }));
}

#[test]
fn groups_and_data_are_written_in_order_and_those_passed_over_are_empty() {
    let schema = everything();
    let message = schema.message("Everything").expect("declared");
    let mut out = [0xee; 1024];
    let mut writer = Writer::new(&schema, message, &mut out).expect("room");
    writer.begin_group(1).expect("flat");
    let number = locate(message, "flat.number");
    let csp_formats::Target::Field(number) = &number.target else { panic!("a field") };
    assert_eq!(writer.scalar(number, 1u64).map_err(|error| error.problem), Err(WriteProblem::NoEntry));
    writer.entry().expect("room");
    writer.scalar(number, 5i64).expect("fits");
    writer.entry().expect("room");
    writer.scalar(number, -5i64).expect("fits");
    assert_eq!(writer.data(0, []).map_err(|error| error.problem), Err(WriteProblem::NoMember));
    writer.end_group().expect("begun");
    assert_eq!(writer.end_group().map_err(|error| error.problem), Err(WriteProblem::NoGroup));
    assert_eq!(writer.entry().map_err(|error| error.problem), Err(WriteProblem::NoGroup));
    assert_eq!(writer.begin_group(0).map_err(|error| error.problem), Err(WriteProblem::Passed));
    writer.data(1, [&b"un"[..], b"i"]).expect("room");
    assert_eq!(writer.data(0, []).map_err(|error| error.problem), Err(WriteProblem::Passed));
    let len = writer.finish().expect("room");
    let read = printed(&schema, &[&out[..len]]).expect("valid");
    assert_eq!(
        (&read["legs"], &read["ascii"], &read["unicode"], &read["binary"]),
        (&json!([]), &json!(""), &json!("uni"), &json!(""))
    );
    assert_eq!(read["flat"], json!([{"number": 5, "set": []}, {"number": -5, "set": []}]));
    // What was not set: null where it can be, zero elsewhere.
    assert_eq!(
        (&read["optInt16"], &read["level"], &read["engine"]["inner"]["deep"]),
        (&json!(null), &json!(null), &json!(null))
    );
    assert_eq!((&read["requiredInt64"], &read["text"]), (&json!(0), &json!("")));
}

#[test]
fn entries_and_data_are_as_many_as_their_headers_can_say() {
    let schema = everything();
    let message = schema.message("Everything").expect("declared");
    let mut out = vec![0; 1 << 16];
    let mut writer = Writer::new(&schema, message, &mut out).expect("room");
    writer.begin_group(1).expect("flat");
    for _ in 0..254 {
        writer.entry().expect("at most 254");
    }
    assert_eq!(
        writer.entry().map_err(|error| error.to_string()),
        Err("flat: more than 254 entries".to_owned())
    );
    writer.end_group().expect("begun");
    let long = writer.data(0, [&[b'a'; 201][..]]);
    assert_eq!(long.map_err(|error| error.problem), Err(WriteProblem::TooLong { len: 201, max: 200 }));
}

#[test]
fn a_buffer_that_is_too_small_is_an_error_whatever_its_size() {
    let schema = everything();
    let line = include_str!("vectors/vectors.jsonl").lines().next().expect("a vector");
    let vector: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let bytes = written(&schema, &vector["json"]);
    let text = vector["json"].to_string();
    for size in 0..bytes.len() {
        let mut out = vec![0xee; size];
        let error =
            csp_formats::json::parse(&schema, text.as_bytes(), &mut out).expect_err("too small").to_string();
        assert!(error.contains("left of the buffer"), "{size}: {error}");
    }
}

#[test]
fn values_read_from_one_message_are_put_into_another_of_the_other_byte_order() {
    let (from, to) = (everything(), schema("everything-be"));
    let line = include_str!("vectors/vectors.jsonl").lines().next().expect("a vector");
    let vector: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let bytes = written(&from, &vector["json"]);
    let slices: Vec<&[u8]> = bytes.chunks(7).collect();
    let view = MessageView::new(&from, &slices).expect("valid");
    let message = to.message("Everything").expect("declared");
    let mut out = [0; 1024];
    let mut writer = Writer::new(&to, message, &mut out).expect("room");
    let mut paths: Vec<&str> = message.block.fields.iter().map(|field| &*field.name).collect();
    paths.retain(|path| !["price", "engine"].contains(path));
    paths.extend([
        "price.mantissa",
        "engine.code",
        "engine.booster.kind",
        "engine.fuel",
        "engine.inner.deep",
    ]);
    for path in &paths {
        let source = locate(view.message, path);
        writer
            .put(field(&locate(message, path)), view.fixed().value(field(&source)).expect("valid"))
            .expect(path);
    }
    let len = writer.finish().expect("room");
    let read = printed(&to, &[&out[..len]]).expect("valid");
    for name in message.block.fields.iter().map(|field| &*field.name).filter(|name| *name != "engine") {
        assert_eq!(read[name], vector["json"][name], "{name}");
    }
    assert_eq!(read["engine"]["booster"]["kind"], "Nitrous");
}

#[test]
fn counts_of_groups_and_data_are_written_where_headers_have_them() {
    let counts = "<type name=\"numGroups\" primitiveType=\"uint16\"/><type name=\"numVarDataFields\" primitiveType=\"uint16\"/></composite>";
    let xml = wrap(0, "", "<message name=\"M\" id=\"1\"><group name=\"g\" id=\"1\"><data name=\"d\" id=\"2\" type=\"text\"/></group></message>")
        .replace("name=\"version\" primitiveType=\"uint16\"/></composite>", &format!("name=\"version\" primitiveType=\"uint16\"/>{counts}"))
        .replace("name=\"numInGroup\" primitiveType=\"uint16\"/></composite>", &format!("name=\"numInGroup\" primitiveType=\"uint16\"/>{counts}"));
    let schema = Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}"));
    let bytes = written(&schema, &json!({"$message": "M", "g": []}));
    assert_eq!(common::hex(&bytes), "0000010007000000010000000000000000000100");
}
