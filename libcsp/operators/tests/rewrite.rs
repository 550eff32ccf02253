//! Translate, anonymise, split and JSON.

mod common;

use std::sync::Arc;

use common::{FLIGHT, Stage, WEATHER, channels, flight, printed, schema, written};
use csp_handlers::{FormatId, State, Stop};
use csp_operators::{FormatSet, JSON, Translate, make};
use serde_json::{Value as Json, json};

const OLD: FormatId = FormatId(3);

/// What a reader of the first version knows: other widths, other numbers of the same names, fewer fields, and
/// one more.
const OLD_FLIGHTS: &str = r#"
<type name="minutes" primitiveType="int32" presence="optional"/>
<type name="gate" primitiveType="char" length="4"/>
<type name="speed" primitiveType="float" presence="optional"/>
<enum name="Carrier" encodingType="uint8"><validValue name="JetBlue">1</validValue><validValue name="United">2</validValue></enum>
<set name="Services" encodingType="uint16"><choice name="wifi">0</choice><choice name="meal">9</choice></set>
<composite name="Price"><type name="mantissa" primitiveType="int64"/></composite>
</types>
<message name="OldFlight" id="1">
<field name="carrier" id="6" type="Carrier"/>
<field name="number" id="3" type="uint16"/>
<field name="speed" id="4" type="speed" presence="optional"/>
<field name="delay" id="5" type="minutes" presence="optional"/>
<field name="services" id="7" type="Services"/>
<field name="price" id="8" type="Price"/>
<field name="gate" id="9" type="gate"/>
<group name="stops" id="19"><field name="at" id="21" type="uint8"/></group>
<group name="passengers" id="20"><field name="row" id="21" type="uint32"/><data name="meal" id="22" type="text"/></group>
<data name="note" id="31" type="text"/>
<data name="remark" id="30" type="text"/>
</message>"#;

fn set() -> Arc<FormatSet> {
    let channels = channels();
    let mut set = FormatSet::new();
    set.add(FLIGHT, channels.flights, "Flight".into()).expect("free");
    set.add(WEATHER, channels.weather, "Weather".into()).expect("free");
    set.add(OLD, schema(3, 0, OLD_FLIGHTS), "OldFlight".into()).expect("free");
    Arc::new(set)
}

fn stage(name: &str, parameters: &str) -> Stage {
    Stage::new(make(name, &set()).expect("known"), parameters)
}

fn refused(name: &str, parameters: &str) -> String {
    let mut handler = make(name, &set()).expect("known");
    handler.configure(parameters, &mut State::default()).expect_err(parameters).0
}

#[test]
fn an_old_reader_meets_a_new_writer() {
    let set = set();
    let mut stage = Stage::new(make("translate", &set).expect("known"), "OldFlight default gate 'A1'");
    assert!(stage.handler.accepts(FLIGHT) && stage.handler.accepts(OLD));
    assert!(!stage.handler.accepts(WEATHER), "it has no carrier, and no number of a price");
    assert_eq!(stage.handler.yields(0, FLIGHT), OLD);
    let message = written(&channels().flights, &flight());
    let (done, emitted) = stage.send(FLIGHT, &[b"topic", &message]);
    assert_eq!((done, emitted[0].format), (Ok(()), OLD));
    assert_eq!(emitted[0].frames[0], b"topic");
    let old = set.get(OLD).expect("added");
    let expected = json!({"$message": "OldFlight", "carrier": "United", "number": 7, "speed": null, "delay": 12, "services": ["wifi"],
        "price": {"mantissa": 12999}, "gate": "A1", "stops": [], "remark": "late", "note": "",
        "passengers": [{"row": 1, "meal": "fish"}, {"row": 2, "meal": "none"}]});
    assert_eq!(printed(&old.schema, &emitted[0].frames[1]), expected);
    let (_, same) = stage.send(OLD, &[&emitted[0].frames[1]]);
    assert!(same[0].shared);
    // What the writer did not know, and null.
    let mut unknown = flight();
    (unknown["delay"], unknown["carrier"]) = (json!(null), json!(null));
    let mut message = written(&channels().flights, &unknown);
    message[6] = 0;
    let (done, emitted) = stage.send(FLIGHT, &[&message]);
    assert_eq!(done, Ok(()));
    let printed = printed(&old.schema, &emitted[0].frames[0]);
    assert_eq!(
        (&printed["delay"], &printed["carrier"], &printed["services"]),
        (&json!(null), &json!(null), &json!([]))
    );
}

#[test]
fn what_the_target_cannot_say_is_refused() {
    let mut stage = stage("translate", "OldFlight default gate 'A1'");
    let mut wide = flight();
    wide["number"] = json!(70_000);
    let (done, emitted) = stage.send(FLIGHT, &[&written(&channels().flights, &wide)]);
    assert!(matches!(done, Err(Stop::Fault(_))) && emitted.is_empty());
    assert_eq!(stage.counters().invalid, 1);
    for (parameters, expected) in [
        ("OldFlight", "from messages \"Flight\": \"gate\" is required, and the message has none"),
        ("OldFlihgt", "the channel has no format \"OldFlihgt\"; the nearest is \"OldFlight\""),
        ("OldFlight version 7", "has the versions 0"),
        ("OldFlight default gtae 'A'", "the target has no field \"gtae\"; the nearest is \"gate\""),
        ("OldFlight default gate 'A12345'", "'A12345' is no value of \"gate\""),
        ("OldFlight default gate 7", "7 is no value of \"gate\""),
    ] {
        let error = refused("translate", parameters);
        assert!(error.contains(expected), "{parameters}: {error}");
    }
}

#[test]
fn anonymised_messages_keep_their_format() {
    let key = "key 000102030405060708090a0b0c0d0e0f";
    let parameters = format!(
        "{key}, hash origin, hash number, mask remark 2, drop price, drop delay, hash passengers.meal"
    );
    let mut first = stage("anonymise", &parameters);
    assert_eq!(first.handler.yields(0, FLIGHT), FLIGHT);
    let flights = channels().flights;
    let send = |stage: &mut Stage, message: &Json| {
        let (done, emitted) = stage.send(FLIGHT, &[b"topic", &written(&flights, message)]);
        assert_eq!((done, emitted[0].format), (Ok(()), FLIGHT));
        printed(&flights, &emitted[0].frames[1])
    };
    let hidden = send(&mut first, &flight());
    for (name, value) in [
        ("remark", json!("la**")),
        ("delay", json!(null)),
        ("destination", json!("ORD")),
        ("price", json!({"mantissa": 0, "exponent": -2})),
    ] {
        assert_eq!(hidden[name], value, "{name}");
    }
    let text = |json: &Json| json.as_str().expect("text").to_owned();
    assert!(text(&hidden["origin"]).len() == 3 && hidden["origin"] != json!("EWR"));
    assert!(hidden["number"] != json!(7) && hidden["passengers"][0]["row"] == json!(1));
    let meals = [text(&hidden["passengers"][0]["meal"]), text(&hidden["passengers"][1]["meal"])];
    assert!(meals.iter().all(|meal| meal.len() == 32) && meals[0] != meals[1]);
    assert_eq!(send(&mut first, &flight()), hidden, "equal values have equal hashes");
    let mut other = stage("anonymise", &parameters.replace("0001", "0002"));
    assert_ne!(send(&mut other, &flight())["number"], hidden["number"], "another key gives others");
    let mut dropped = stage("anonymise", "drop passengers, drop remark, drop carrier");
    let hidden = send(&mut dropped, &flight());
    assert_eq!(
        (&hidden["passengers"], &hidden["remark"], &hidden["carrier"]),
        (&json!([]), &json!(""), &json!(null))
    );
}

#[test]
fn what_cannot_be_hidden_is_refused() {
    for (parameters, expected) in [
        ("hash number", "hash needs a key"),
        ("key 12, hash number", "32 hexadecimal digits"),
        ("key 000102030405060708090a0b0c0d0e0f", "nothing is hidden"),
        ("mask number 3", "only text can be masked"),
        ("drop numbre", "there is no column \"numbre\"; the nearest is \"number\""),
        ("drop passengers.meel", "the nearest is \"meal\""),
        ("mask passengers 3", "is a group: it can be dropped"),
        ("hide number", "is none of"),
    ] {
        let error = refused("anonymise", parameters);
        assert!(error.contains(expected), "{parameters}: {error}");
    }
    let mut stage = stage("anonymise", "");
    let message = written(&channels().flights, &flight());
    assert!(
        matches!(stage.send(FLIGHT, &[&message]).0, Err(Stop::Fault(_))),
        "nothing passes before it is configured"
    );
}

#[test]
fn split_shares_the_message_and_projects_for_each_output() {
    let set = set();
    let parameters =
        "whole; number, delay WHERE delay > 10; whole WHERE origin = 'JFK'; remark, 'where' = remark AS is";
    for name in ["split", "customise"] {
        let mut stage = Stage::new(make(name, &set).expect("known"), parameters);
        stage.room = 1;
        let message = written(&channels().flights, &flight());
        let (done, emitted) = stage.send(FLIGHT, &[b"topic", &message]);
        assert_eq!(done, Ok(()));
        let outputs: Vec<(u8, bool)> =
            emitted.iter().map(|emitted| (emitted.output, emitted.shared)).collect();
        assert_eq!(outputs, [(0, true), (1, false), (3, false)]);
        for emitted in &emitted {
            assert_eq!(stage.handler.yields(emitted.output, FLIGHT), emitted.format);
        }
        let row = |at: usize| {
            let format = set.get(emitted[at].format).expect("derived");
            printed(&format.schema, &emitted[at].frames[1])
        };
        assert_eq!(row(1), json!({"$message": "Row", "number": 7, "delay": 12}));
        assert_eq!(row(2), json!({"$message": "Row", "remark": "late", "is": "False"}));
        let counters = stage.counters();
        assert_eq!((counters.read, counters.emitted, counters.refused), (1, 3, 1));
    }
    for (parameters, expected) in [
        ("whole; numbre", "output 1: line 1, column 1: there is no column \"numbre\""),
        ("whole WHEN delay > 1", "stands where only WHERE can"),
        ("whole;whole;whole;whole;whole;whole;whole;whole;whole", "more than the 8 outputs"),
    ] {
        let error = refused("split", parameters);
        assert!(error.contains(expected), "{parameters}: {error}");
    }
}

#[test]
fn json_and_back_is_the_same_message() {
    let set = set();
    let mut print = Stage::new(make("to-json", &set).expect("known"), "");
    let mut parse = Stage::new(make("from-json", &set).expect("known"), "Flight");
    assert_eq!((print.handler.yields(0, FLIGHT), parse.handler.yields(0, JSON)), (JSON, FLIGHT));
    let message = written(&channels().flights, &flight());
    let (done, printed) = print.send(FLIGHT, &[b"topic", &message, b"more"]);
    assert_eq!((done, printed[0].format), (Ok(()), JSON));
    let text: Json = serde_json::from_slice(&printed[0].frames[1]).expect("JSON");
    assert_eq!(text["remark"], json!("late"));
    let frames: Vec<&[u8]> = printed[0].frames.iter().map(Vec::as_slice).collect();
    let (done, parsed) = parse.send(JSON, &frames);
    assert_eq!(done, Ok(()));
    assert_eq!(parsed[0].frames, [&b"topic"[..], &message, b"more"]);
    for text in [&b"{"[..], b"{}", b"{\"$message\": \"Notice\", \"text\": \"a\"}", b"\xff"] {
        assert!(matches!(parse.send(JSON, &[text]).0, Err(Stop::Fault(_))));
    }
    assert_eq!(parse.counters().invalid, 4);
}

#[test]
fn a_target_given_by_its_id_needs_no_parameters() {
    const BOARD: FormatId = FormatId(9);
    let fields = r#"<type name="number" primitiveType="uint32" presence="optional"/></types>
        <message name="Board" id="9"><field name="number" id="1" type="number"/><field name="stand" id="2" type="number"/></message>"#;
    let (mut set, channels) = (FormatSet::new(), channels());
    set.add(FLIGHT, channels.flights.clone(), "Flight".into()).expect("free");
    set.add(BOARD, schema(4, 0, fields), "Board".into()).expect("free");
    let set = Arc::new(set);
    let mut stage = Stage::new(Box::new(Translate::into_format(&set, BOARD).expect("by name")), "");
    let (done, emitted) = stage.send(FLIGHT, &[b"topic", &written(&channels.flights, &flight())]);
    assert_eq!((done, emitted[0].format), (Ok(()), BOARD));
    let board = set.get(BOARD).expect("added");
    let expected = json!({"$message": "Board", "number": 7, "stand": null});
    assert_eq!(printed(&board.schema, &emitted[0].frames[1]), expected);
    let unknown = Translate::into_format(&set, FormatId(77)).map(|_| ());
    assert_eq!(unknown.expect_err("none").0, "there is no format 77");
}
