//! Select, project and sample.

mod common;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, printed, row, written};
use csp_handlers::{State, Stop};
use csp_operators::{Limits, NAMES, Query, Time, make};
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
