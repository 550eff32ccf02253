//! Select, project and sample.

mod common;
mod ranges;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, printed, row, written};
use csp_handlers::{State, Stop};
use csp_operators::{Limits, NAMES, Query, SLICES_MAX, Time, make};
use serde_json::json;

#[test]
fn every_name_makes_an_operator() {
    let set = channels().set();
    assert!(NAMES.iter().all(|name| make(name, &set).is_some()));
    assert!(make("slect", &set).is_none());
    let builtin = csp_handlers::builtin::NAMES;
    assert!(NAMES.iter().all(|name| !builtin.contains(name)), "names are of one space");
}

#[test]
fn select_emits_the_message_itself() {
    let channels = channels();
    let mut stage =
        Stage::new(make("select", &channels.set()).expect("known"), "delay > 10 AND origin = 'EWR'");
    assert!(stage.handler.accepts(FLIGHT) && !stage.handler.accepts(WEATHER));
    assert_eq!(stage.handler.yields(0, FLIGHT), FLIGHT);
    let late = written(&channels.flights, &flight());
    let (done, emitted) = stage.send(FLIGHT, &[b"topic", &late, b"more"]);
    assert_eq!((done, emitted.len()), (Ok(()), 1));
    assert!(emitted[0].shared && emitted[0].frames.len() == 3);
    let mut early = flight();
    early["delay"] = json!(null);
    let (done, emitted) = stage.send(FLIGHT, &[&written(&channels.flights, &early)]);
    assert_eq!((done, emitted.len()), (Ok(()), 0));
    let counters = stage.counters();
    assert_eq!((counters.read, counters.emitted, counters.refused), (2, 1, 1));
}

#[test]
fn project_derives_a_format_and_keeps_the_other_frames() {
    let channels = channels();
    let set = channels.set();
    let mut stage = Stage::new(make("project", &set).expect("known"), "number, delay * 2 AS twice, remark");
    let output = stage.handler.yields(0, FLIGHT);
    let format = set.get(output).expect("derived");
    assert!(format.xml.as_ref().is_some_and(|xml| xml.contains("twice")));
    let message = written(&channels.flights, &flight());
    for frames in [&[&message[..]][..], &[b"topic", &message[..]], &[b"topic", &message[..], b"", b"more"]] {
        let (done, emitted) = stage.send(FLIGHT, frames);
        assert_eq!(done, Ok(()));
        let at = usize::from(frames.len() > 1);
        for (frame, bytes) in emitted[0].frames.iter().enumerate().filter(|(frame, _)| *frame != at) {
            assert_eq!(bytes, frames[frame]);
        }
        assert_eq!(emitted[0].format, output);
        assert_eq!(
            printed(&format.schema, &emitted[0].frames[at]),
            json!({"$message": "Row", "number": 7, "twice": 24, "remark": "late"})
        );
    }
    let again = Stage::new(make("project", &set).expect("known"), "number, delay * 2 AS twice, remark");
    assert_eq!(again.handler.yields(0, FLIGHT), output, "the same result has the same format");
    let other = Stage::new(make("project", &set).expect("known"), "number");
    let number = other.handler.yields(0, FLIGHT);
    assert_ne!(number, output);
    assert_eq!(
        other.handler.yields(0, WEATHER),
        number,
        "equal results have one format, of whatever they are"
    );
    let third = Stage::new(make("project", &set).expect("known"), "number");
    assert_eq!(third.handler.yields(0, number), number, "results of results add no formats");
    assert_eq!(set.derived().len(), 2);
}

#[test]
fn wrong_parameters_say_where_and_leave_the_former_ones() {
    let set = channels().set();
    for (name, parameters, expected) in [
        (
            "select",
            "dealy > 1",
            "for messages \"Flight\": line 1, column 1: there is no column \"dealy\"; the nearest is \"delay\"",
        ),
        ("select", "delay >\n'x'", "line 2, column 1"),
        (
            "project",
            "number,\n  remrak",
            "line 2, column 3: there is no column \"remrak\"; the nearest is \"remark\"",
        ),
        ("sample", "0", "is not the number"),
    ] {
        let mut handler = make(name, &set).expect("known");
        let error = handler.configure(parameters, &mut State::default()).expect_err("wrong").to_string();
        assert!(error.contains(expected), "{name} {parameters}: {error}");
    }
}

#[test]
fn sample_emits_the_first_of_every_n() {
    let set = channels().set();
    let mut stage = Stage::new(make("sample", &set).expect("known"), "3");
    let emitted: Vec<usize> = (0..7).map(|_| stage.send(FLIGHT, &[b"any"]).1.len()).collect();
    assert_eq!(emitted, [1, 0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_query_selects_and_projects() {
    let plan = plan("SELECT number, price FROM flights WHERE carrier = 'United'");
    let query =
        Query::new(plan.clone(), &[(FLIGHT, Time::Arrival)], RESULT, Limits::default()).expect("runs");
    let mut stage = Stage::new(Box::new(query), "");
    let message = written(&channels().flights, &flight());
    let (done, emitted) = stage.send(FLIGHT, &[&message]);
    assert_eq!((done, emitted[0].format), (Ok(()), RESULT));
    assert_eq!(
        row(&plan, &emitted[0].frames[0]),
        json!({"number": 7, "price": {"mantissa": 12999, "exponent": -2}})
    );
    assert!(matches!(stage.send(WEATHER, &[&message]).0, Err(Stop::Fault(_))));
    assert!(matches!(stage.send(FLIGHT, &[&message[..20]]).0, Err(Stop::Fault(_))));
    let counters = stage.counters();
    assert_eq!((counters.read, counters.emitted, counters.invalid), (1, 1, 2));
}

#[test]
fn later_stages_follow_when_the_parameters_of_an_earlier_one_change() {
    let channels = channels();
    let set = channels.set();
    let mut project = Stage::new(make("project", &set).expect("known"), "number, delay");
    let later = [
        ("select", "delay > 10"),
        ("project", "delay"),
        ("split", "whole; delay"),
        ("to-json", ""),
        ("anonymise", "drop delay"),
    ];
    let mut later = later.map(|(name, parameters)| Stage::new(make(name, &set).expect("known"), parameters));
    let message = written(&channels.flights, &flight());
    for (list, fits) in
        [("number, delay", true), ("delay, remark", true), ("number, remark", false), ("number, delay", true)]
    {
        project.handler.configure(list, &mut project.state).expect("columns");
        let row = project.send(FLIGHT, &[&message]).1.remove(0);
        for (at, stage) in later.iter_mut().enumerate() {
            let (done, _) = stage.send(row.format, &[&row.frames[0]]);
            assert_eq!(done.is_ok(), fits || at == 3, "{list}: {:?}", stage.handler);
        }
    }
}

#[test]
fn a_message_in_too_many_pieces_is_given_up() {
    let channels = channels();
    let mut stage = Stage::new(make("select", &channels.set()).expect("known"), "number = 7");
    let mut long = flight();
    long["remark"] = json!("x".repeat(5000));
    let message = written(&channels.flights, &long);
    for (slice, passes) in
        [(1, false), (message.len().div_ceil(SLICES_MAX), true), (300, true), (10_000, true)]
    {
        stage.slice = slice;
        assert_eq!(stage.send(FLIGHT, &[&message]).0.is_ok(), passes, "slices of {slice}");
    }
}

#[test]
fn long_data_is_a_part_of_the_message() {
    let channels = channels();
    let set = channels.set();
    let mut stage = Stage::new(make("project", &set).expect("known"), "remark, number, remark AS again");
    stage.slice = 2048;
    let format = set.get(stage.handler.yields(0, FLIGHT)).expect("derived");
    let mut long = flight();
    for (len, shared) in [(255, 0), (256, 512), (20_000, 40_000), (32_760, 0)] {
        long["remark"] = json!("x".repeat(len));
        let (done, emitted) = stage.send(FLIGHT, &[b"topic", &written(&channels.flights, &long), b"more"]);
        if len > 32_000 {
            assert!(matches!(done, Err(Stop::Fault(_))), "with topic and frames it is longer than 64 KiB");
            assert_eq!(stage.counters().too_long, 1);
            continue;
        }
        assert_eq!(done, Ok(()), "{len} {:?}", stage.counters());
        assert_eq!(emitted[0].of, shared + "topicmore".len());
        let remark = "x".repeat(len);
        let expected = json!({"$message": "Row", "number": 7, "remark": remark, "again": remark});
        assert_eq!(printed(&format.schema, &emitted[0].frames[1]), expected);
    }
}
