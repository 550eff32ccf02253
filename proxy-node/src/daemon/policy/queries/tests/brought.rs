//! Formats that publishers bring, and translations that readers ask for, from the policy's text to rows.

use csp_services::RequestNotice;
use csp_types::FlowLabel;
use serde_json::{Value, json};

use super::requests::{policy, world};
use super::*;

/// A schema with one message; `id` is the schema's, `fields` are those of the message.
fn schema(id: u16, message: &str, fields: &str) -> String {
    let header = ["blockLength", "templateId", "schemaId", "version"];
    let header = header.map(|field| format!(r#"<type name="{field}" primitiveType="uint16"/>"#)).concat();
    format!(
        r#"<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="gates" id="{id}" version="0">
        <types><composite name="messageHeader">{header}</composite>
          <type name="airport" primitiveType="char" length="3"/>
          <type name="gateName" primitiveType="char" length="2"/>
          <type name="known" primitiveType="int32" presence="optional"/></types>
        <sbe:message name="{message}" id="9">{fields}</sbe:message></sbe:messageSchema>"#
    )
}

fn field(name: &str, id: u16, kind: &str) -> String {
    format!(r#"<field name="{name}" id="{id}" type="{kind}"/>"#)
}

fn gate() -> String {
    schema(41, "Gate", &[field("gate", 1, "gateName"), field("at", 2, "int64")].concat())
}

fn gate_record(name: &str) -> Vec<u8> {
    let header = [10u16, 9, 41, 0].map(u16::to_le_bytes).concat();
    [&header[..], name.as_bytes(), &7i64.to_le_bytes()].concat()
}

fn bring(w: &mut World, n: u32, name: &str, schema: &str) -> Value {
    w.ask(n, &json!({"format": {"name": name, "schema": schema}}))
}

fn names(w: &mut World) -> Vec<String> {
    let formats = w.ask(2, &json!({"get": "formats"}));
    let name = |format: &Value| format["format"].as_str().unwrap().to_owned();
    formats["formats"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn a_reader_gets_messages_in_a_format_of_its_own() {
    let mut w = world("");
    let kinds = [field("delay", 1, "int32"), field("origin", 2, "airport"), field("stand", 3, "known")];
    let wanted = json!({"schema": schema(77, "Board", &kinds.concat()), "message": "Board"});
    let answer = w.ask(2, &json!({"translate": wanted, "output": "json"}));
    assert_eq!((&answer["query"], &answer["schema"]), (&json!("flights.1"), &wanted["schema"]), "{answer}");
    let again = w.ask(2, &json!({"translate": wanted, "output": "json"}));
    assert_eq!((&again["topic"], &again["shared"]), (&answer["topic"], &json!(true)));
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[b"topic", &record(1, "EWR", -5, 1)]));
    w.arrive(1, &message(&[b"no record"]));
    let rows = w.taken(3);
    assert_eq!((rows.len(), &rows[0][0][..]), (1, answer["topic"].as_str().unwrap().as_bytes()));
    assert_eq!(rows[0][1], br#"{"$message":"Board","delay":-5,"origin":"EWR","stand":null}"#);
    // As records: the header is that of the reader's schema.
    let answer = w.ask(2, &json!({"translate": {"schema": wanted["schema"]}}));
    assert_eq!(answer["query"], "flights.2", "{answer}");
    w.connect(4, "flights.2", "SUB");
    w.arrive(1, &message(&[&record(1, "JFK", 300, 1)]));
    let row = w.taken(4).remove(0).remove(1);
    let header = [11u16, 9, 77, 0].map(u16::to_le_bytes).concat();
    let null = i32::MIN.to_le_bytes();
    assert_eq!(row, [&header[..], &300i32.to_le_bytes(), b"JFK", &null].concat());
    let Some(RequestNotice::Granted { sql, .. }) = w.broker.poll_request_notice() else { panic!("it began") };
    assert_eq!(sql, "translation to Board");
}

#[test]
fn what_cannot_be_translated_is_refused() {
    let mut w = world("");
    let none = schema(77, "Board", &field("runway", 1, "int32"));
    for (wanted, expected) in [
        (json!({"schema": none}), "runway"),
        (json!({"schema": "<sbe"}), "not well-formed XML"),
        (json!({"schema": none, "message": "Bord"}), "the schema has no \"Bord\"; the nearest is \"Board\""),
        (json!({"message": "Board"}), "`translate` is an object"),
        (json!({"schema": none, "default": 3}), "`translate` is an object"),
        (json!("Board"), "`translate` is an object"),
    ] {
        let answer = w.ask(2, &json!({"translate": wanted}));
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(
        w.ask(2, &json!({"translate": {}, "query": ""}))["error"],
        "a request has `query` or `translate`"
    );
    assert_eq!((w.counters().refused, w.running().len()), (7, 0));
}

#[test]
fn a_publisher_brings_a_format_and_queries_read_it() {
    let mut w = world(", formats: 2");
    w.connect(5, "flights", "SUB");
    assert!(
        w.query(2, "SELECT gate FROM \"flights/gate\"")["error"].as_str().unwrap().contains("flights/gate")
    );
    let answer = bring(&mut w, 2, "gate", &gate());
    assert_eq!(answer, json!({"format": "gate", "lease_s": 20, "shared": false}));
    assert_eq!(bring(&mut w, 2, "gate", &gate())["shared"], true);
    assert_eq!(names(&mut w), ["flight", "gate"]);
    assert_eq!(w.query(2, "SELECT gate FROM \"flights/gate\"")["query"], "flights.1");
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[&gate_record("A7")]));
    w.arrive(1, &message(&[&record(1, "EWR", 1, 1)]));
    assert_eq!(w.texts(3), [r#"{"$message":"Row","gate":"A7"}"#]);
    assert_eq!(w.taken(5).len(), 2, "the channel's own subscribers get both");
    // It stays while a connection from its publisher's host is there, or a query that reads it.
    for n in [1, 2, 5] {
        w.broker.gone(w.now, FlowLabel::new(n, 0));
        w.ends.remove(&n);
    }
    w.pass(60);
    w.connect_from(2, "flights", "REQ", [10, 0, 0, 9]);
    assert_eq!(names(&mut w), ["flight", "gate"]);
    w.broker.gone(w.now, FlowLabel::new(3, 0));
    w.pass(20);
    assert_eq!(w.running().len(), 0, "without subscribers");
    w.pass(20);
    assert_eq!(names(&mut w), ["flight"]);
}

#[test]
fn messages_of_brought_formats_pass_the_path_and_can_be_translated() {
    let path = "formats: [flight], path: [{handler: select, parameters: \"delay > 10\"}],";
    let mut w = World::new("");
    w.apply(&policy(", formats: 2").replace("formats: [flight],", path), "");
    w.connect(1, "flights", "PUB");
    w.connect(2, "flights", "REQ");
    bring(&mut w, 2, "gate", &gate());
    let wanted = json!({"schema": schema(77, "Board", &field("gate", 1, "gateName"))});
    assert!(w.ask(2, &json!({"translate": wanted, "output": "json"}))["error"].is_null());
    w.connect(3, "flights.1", "SUB");
    w.connect(5, "flights", "SUB");
    w.arrive(1, &message(&[&gate_record("A7")]));
    w.arrive(1, &message(&[&record(1, "EWR", 1, 1)]));
    assert_eq!(w.texts(3), [r#"{"$message":"Board","gate":"A7"}"#]);
    assert_eq!(w.taken(5), [[gate_record("A7")]], "the path drops the other, and does not see this one");
}

#[test]
fn a_translation_that_runs_reads_formats_that_are_brought_later() {
    let mut w = world(", formats: 2");
    let board = schema(77, "Board", &[field("delay", 1, "int32"), field("stand", 2, "known")].concat());
    let wanted = json!({"translate": {"schema": board}, "output": "json"});
    let first = w.ask(2, &wanted);
    assert_eq!((&first["query"], &first["shared"]), (&json!("flights.1"), &json!(false)), "{first}");
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[&record(1, "EWR", 5, 1)]));
    let late = schema(42, "Late", &[field("delay", 1, "int32"), field("at", 2, "int64")].concat());
    assert!(bring(&mut w, 2, "late", &late)["error"].is_null());
    let header = [12u16, 9, 42, 0].map(u16::to_le_bytes).concat();
    let late = |delay: i32| [&header[..], &delay.to_le_bytes(), &7i64.to_le_bytes()].concat();
    w.arrive(1, &message(&[&late(6)]));
    w.arrive(1, &message(&[&record(1, "EWR", 7, 1)]));
    assert_eq!(w.ask(2, &wanted)["shared"], true);
    w.arrive(1, &message(&[&late(8)]));
    let delays = w
        .texts(3)
        .iter()
        .map(|row| row.split("delay\":").nth(1).unwrap()[..1].to_owned())
        .collect::<Vec<_>>();
    assert_eq!(delays, ["5", "6", "7", "8"]);
}

/// However many publishers share a format, each of them holds it.
#[test]
fn the_last_of_many_publishers_keeps_the_format() {
    let mut w = world(", formats: 2");
    for n in 0..70u8 {
        w.connect_from(100, "flights", "REQ", [10, 0, 1, n]);
        assert_eq!(bring(&mut w, 100, "gate", &gate())["shared"], n > 0);
        w.broker.gone(w.now, FlowLabel::new(100, 0));
        w.ends.remove(&100);
    }
    w.connect_from(100, "flights", "PUB", [10, 0, 1, 69]);
    w.pass(60);
    assert_eq!(names(&mut w), ["flight", "gate"]);
    let formats = w.ask(2, &json!({"get": "formats"}));
    let gate = &formats["formats"][1];
    assert_eq!((gate["by"].as_array().unwrap().len(), &gate["publishers"]), (64, &json!(70)), "{gate}");
    w.broker.gone(w.now, FlowLabel::new(100, 0));
    w.ends.remove(&100);
    w.pass(60);
    assert_eq!(names(&mut w), ["flight"]);
}

#[test]
fn wrong_formats_and_too_many_are_refused() {
    let mut w = world(", formats: 3");
    let twin = schema(40, "Flight", &field("at", 1, "int64")).replace("id=\"9\"", "id=\"1\"");
    let timeless = schema(42, "Gate", &field("gate", 1, "gateName"));
    for (name, schema, expected) in [
        ("flight", gate(), "the channel has a format \"flight\" already"),
        ("gate", twin, "has the schema id and template id of \"flight\""),
        ("gate", timeless, "format gate: "),
        ("Gate 1", gate(), "\"Gate 1\" is no format name"),
        ("gate", "<sbe".to_owned(), "not well-formed XML"),
    ] {
        let answer = bring(&mut w, 2, name, &schema);
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expected), "{expected}: {answer}");
    }
    let numbered = |id: u16| schema(id, "Gate", &field("at", 1, "int64"));
    assert!(bring(&mut w, 2, "a", &numbered(50))["error"].is_null());
    assert!(bring(&mut w, 2, "b", &numbered(51))["error"].is_null());
    let answer = bring(&mut w, 2, "c", &numbered(52));
    assert_eq!(answer["error"], "the publisher has 2 formats here, and may have 2");
    w.connect_from(6, "flights", "REQ", [10, 0, 0, 3]);
    w.connect_from(7, "flights", "REQ", [10, 0, 0, 4]);
    assert!(bring(&mut w, 6, "c", &numbered(52))["error"].is_null());
    let answer = bring(&mut w, 7, "d", &numbered(53));
    assert_eq!(answer["error"], "publishers may bring 3 formats to the channel, and have");
    assert_eq!(w.ask(7, &json!({"release": "a"}))["error"], "format a was brought by others");
    let released = w.ask(2, &json!({"release": "a"}));
    // Its publisher has connections still, but does not want it.
    assert_eq!(released, json!({"released": "a", "publishers": 0, "in_use": false}));
    assert_eq!(names(&mut w), ["flight", "b", "c"]);
    // A policy that has room for one keeps the first; one without requests keeps none.
    w.apply(&policy(", formats: 1"), "");
    assert_eq!(names(&mut w), ["flight", "b"]);
    w.apply(&policy(""), "");
    assert_eq!(names(&mut w), ["flight"]);
    let answer = bring(&mut w, 2, "a", &numbered(50));
    assert!(answer["error"].as_str().unwrap().starts_with("publishers bring no formats"), "{answer}");
}

#[test]
fn a_channel_without_formats_of_the_policy_gets_them_from_publishers() {
    let mut w = World::new("");
    let text =
        policy(", formats: 2").replace("formats: [flight], time: {field: at, unit: s}", "message_kib: 64");
    w.apply(&text, "");
    w.connect(1, "flights", "PUB");
    w.connect(2, "flights", "REQ");
    let answer = w.query(2, "SELECT gate FROM flights");
    let expected = "line 1, column 18: channel \"flights\" has no formats, which queries read it by: its `formats` in the policy name none, and no publisher has brought one";
    assert_eq!(answer["error"], expected);
    bring(&mut w, 2, "gate", &gate());
    assert_eq!(w.query(2, "SELECT gate FROM flights")["query"], "flights.1");
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[&gate_record("A7")]));
    assert_eq!(w.texts(3), [r#"{"$message":"Row","gate":"A7"}"#]);
}
