//! The JSON mapping: what no value of a vector has, and what is refused.

mod common;

use common::{printed, schema, unhex, written};
use csp_formats::json::{parse, print};
use csp_formats::{MessageView, Schema};
use serde_json::{Value as Json, json};

/// A valid message as JSON, changed.
fn changed(change: impl FnOnce(&mut Json)) -> Json {
    let line = include_str!("vectors/vectors.jsonl").lines().next().expect("a vector");
    let mut message = serde_json::from_str::<Json>(line).expect("JSON")["json"].take();
    change(&mut message);
    message
}

fn refused(schema: &Schema, message: &Json, expected: &str) {
    let error = parse(schema, message.to_string().as_bytes(), &mut [0; 4096]).expect_err("refused");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn errors_have_the_way_to_the_member() {
    let schema = schema("everything-le");
    for (change, expected) in [
        (
            (|json| json["years"] = json!(121)) as fn(&mut Json),
            "years: 121 is outside the range of the field",
        ),
        (
            |json| json["engine"]["inner"]["gear"] = json!("Frist"),
            "engine.inner.gear: expected a value of Gear; the nearest is \"First\"",
        ),
        (
            |json| json["legs"][0]["stops"][1]["place"] = json!("too long"),
            "legs[0].stops[1].place: 8 bytes or elements are more than 6",
        ),
        (|json| json["legs"][1]["blob"] = json!("?"), "legs[1].blob: expected Base64 text"),
        (|json| json["legs"][1] = json!(7), "legs[1]: expected an object"),
        (|json| json["legs"] = json!(7), "legs: expected a list of objects"),
        (|json| json["shorts"][2] = json!(40_000), "shorts[2]: expected a whole number that int16 holds"),
        (|json| json["requiredInt8"] = json!(1.5), "requiredInt8: expected a whole number that int8 holds"),
        (|json| json["requiredInt8"] = json!(null), "requiredInt8: the field is required and cannot be null"),
        (|json| json["requiredChar"] = json!("ab"), "requiredChar: expected text of one character"),
        (
            |json| json["requiredDouble"] = json!("much"),
            "requiredDouble: expected a number, \"NaN\" or \"Infinity\"",
        ),
        (|json| json["fixedNumber"] = json!(1), "fixedNumber: the field is constant and has another value"),
        (|json| json["text"] = json!("é"), "text: expected text in US-ASCII"),
        (|json| json["text"] = json!("a\u{0}b"), "text: expected text without NUL, which would end it"),
        (|json| json["latin"] = json!("€"), "latin: expected text in ISO-8859-1"),
        (|json| json["flags8"] = json!(["bit1"]), "flags8: expected choices of Flags8: bit0, bit7"),
        (|json| json["flags8"] = json!([8]), "flags8: expected choices of Flags8: bit0, bit7"),
        (|json| json["yaers"] = json!(1), "there is no member \"yaers\"; the nearest is \"years\""),
        (
            |json| drop(json.as_object_mut().and_then(|object| object.remove("years"))),
            "the required member \"years\" is missing",
        ),
        (
            |json| json["$message"] = json!("Everythin"),
            "$message: expected the name of a message; the nearest to \"Everythin\" is \"Everything\"",
        ),
        (
            |json| drop(json.as_object_mut().and_then(|object| object.remove("$message"))),
            "the required member \"$message\" is missing",
        ),
        (|json| *json = json!([]), "expected an object"),
    ] {
        refused(&schema, &changed(change), expected);
    }
    let error = parse(&schema, b"{\"a\":", &mut []).expect_err("refused").to_string();
    assert!(error.starts_with("not JSON") && error.contains("line 1"), "{error}");
    assert!(parse(&schema, "[".repeat(100_000).as_bytes(), &mut []).is_err());
}

#[test]
fn what_can_be_missing_is_null_or_empty() {
    let schema = schema("everything-le");
    let missing = changed(|json| {
        let object = json.as_object_mut().expect("an object");
        for name in ["optInt8", "optText", "gear", "legs", "ascii", "fixedNumber"] {
            object.remove(name);
        }
        object.insert("flat".to_owned(), Json::Null);
        object.insert("binary".to_owned(), Json::Null);
    });
    let read = printed(&schema, &[&written(&schema, &missing)]).expect("valid");
    assert_eq!((&read["optInt8"], &read["optText"], &read["gear"]), (&Json::Null, &Json::Null, &Json::Null));
    assert_eq!((&read["legs"], &read["flat"]), (&json!([]), &json!([])));
    assert_eq!(
        (&read["ascii"], &read["binary"], &read["fixedNumber"]),
        (&json!(""), &json!(""), &json!(9000))
    );
}

#[test]
fn values_that_the_schema_has_no_name_for_are_numbers() {
    let schema = schema("everything-le");
    let message = changed(|json| {
        json["gear"] = json!(77);
        json["model"] = json!(90);
        json["flags64"] = json!(["first", 1, 62]);
    });
    let bytes = written(&schema, &message);
    assert_eq!(printed(&schema, &[&bytes]).expect("valid"), message);
}

#[test]
fn bytes_that_are_no_text_are_base64() {
    let schema = schema("everything-le");
    let message = changed(|json| {
        json["text"] = json!({"base64": "/wA="});
        json["unicode"] = json!({"base64": "gIE="});
        json["requiredChar"] = json!({"base64": "/w=="});
    });
    // NUL would end a fixed text; what precedes it is kept.
    refused(&schema, &message, "text: expected text without NUL, which would end it");
    let message = {
        let mut message = message;
        message["text"] = json!({"base64": "/w=="});
        message
    };
    let bytes = written(&schema, &message);
    assert_eq!(printed(&schema, &[&bytes]).expect("valid"), message);
}

#[test]
fn a_float_has_its_shortest_digits_and_reads_as_itself() {
    let schema = schema("everything-le");
    for number in [0.1f32, 1e-45, f32::MAX, 16_777_216.0, -3.4e-5] {
        let message = changed(|json| json["requiredFloat"] = json!(number));
        let read = printed(&schema, &[&written(&schema, &message)]).expect("valid");
        assert_eq!(read["requiredFloat"].as_f64().map(|read| read as f32), Some(number));
    }
    let message = changed(|json| json["requiredFloat"] = json!(0.1));
    let bytes = written(&schema, &message);
    let mut text = Vec::new();
    let slices = [&bytes[..]];
    print(&MessageView::new(&schema, &slices).expect("valid"), &mut text, 4096).expect("valid");
    assert!(String::from_utf8_lossy(&text).contains("\"requiredFloat\":0.1,"));
}

#[test]
fn a_text_is_at_most_as_long_as_the_caller_permits() {
    let schema = schema("everything-le");
    let bytes = written(&schema, &changed(|_| ()));
    let slices = [&bytes[..]];
    let view = MessageView::new(&schema, &slices).expect("valid");
    let mut whole = Vec::new();
    print(&view, &mut whole, 1 << 20).expect("valid");
    for len in 0..whole.len() {
        print(&view, &mut Vec::new(), len).expect_err("too long");
    }
    // The bound is on what is appended.
    let mut text = b"before ".to_vec();
    print(&view, &mut text, whole.len()).expect("fits");
    assert_eq!(text[7..], whole);
}

#[test]
fn an_error_in_a_message_is_named() {
    let schema = schema("evolution-2-le");
    // A block of 4 bytes by a writer of version 2, which has more fields.
    let mut bytes = unhex("04000100120002000100000000000000");
    let slices = [&bytes[..]];
    let view = MessageView::new(&schema, &slices).expect("a header");
    let error = print(&view, &mut Vec::new(), 1000).expect_err("too short").to_string();
    assert_eq!(error, "ticks: the field ends at byte 8 of a block of 4");
    // The same of version 0 lacks a group and data at its end.
    bytes[6] = 0;
    let slices = [&bytes[..]];
    let view = MessageView::new(&schema, &slices).expect("a header");
    assert_eq!(
        view.check().map(|_| ()).expect_err("cut").to_string(),
        "note: 2 bytes do not fit in the 0 that are left of the message"
    );
}
