//! Chains: formats that fit, and orders that do less and give the same.

mod common;

use std::sync::Arc;

use common::{Emitted, FLIGHT, Stage, WEATHER, channels, flight, written};
use csp_handlers::builtin;
use csp_operators::{ChainStage, FormatSet, check, make, optimise};
use csp_support::Random;
use serde_json::json;

/// What comes out of a chain for some messages.
fn run(set: &Arc<FormatSet>, stages: &[ChainStage], messages: &[Vec<u8>]) -> Vec<Emitted> {
    let mut chain: Vec<Stage> = Vec::new();
    for stage in stages {
        let handler = make(&stage.handler, set).or_else(|| builtin::make(&stage.handler)).expect("known");
        chain.push(Stage::new(handler, &stage.parameters));
    }
    let mut out = Vec::new();
    for message in messages {
        let mut now = vec![(FLIGHT, vec![b"topic".to_vec(), message.clone()])];
        let mut last = Vec::new();
        for stage in &mut chain {
            last.clear();
            for (format, frames) in now.drain(..) {
                let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                last.extend(stage.send(format, &frames).1);
            }
            now = last.iter().map(|emitted: &Emitted| (emitted.format, emitted.frames.clone())).collect();
        }
        out.extend(last);
    }
    // What is shared depends on the order.
    out.iter_mut().for_each(|emitted| (emitted.shared, emitted.of) = (false, 0));
    out
}

fn messages() -> Vec<Vec<u8>> {
    let mut random = Random::new(4);
    (0..60)
        .map(|number| {
            let mut json = flight();
            let delay = (random.below(4) > 0).then(|| random.below(40));
            let origin = ["EWR", "JFK", "LGA"][random.below(3) as usize];
            (json["number"], json["delay"], json["origin"]) = (json!(number), json!(delay), json!(origin));
            written(&channels().flights, &json)
        })
        .collect()
}

const KEY: &str = "key 000102030405060708090a0b0c0d0e0f";

#[test]
fn reductions_move_forward_and_nothing_else_changes() {
    let hide = format!("{KEY}, hash number, mask remark 1");
    for (given, expected, note) in [
        // Strong reductions behind weak ones, as in Morphing's chains.
        (
            vec![("project", "number, delay, origin, remark"), ("select", "delay > 30")],
            vec!["select", "project"],
            "select (2) moves before project (1)",
        ),
        (vec![("project", "*"), ("project", "number")], vec!["project"], "project (1) is left out"),
        (
            vec![
                ("project", "number, delay * 2 AS delay, origin, 'a, b' = origin AS same"),
                ("project", "same, delay"),
            ],
            vec!["project"],
            "project (1) makes only what project (2) leaves",
        ),
        (
            vec![("project", "number, delay * 2 AS delay"), ("select", "delay > 30")],
            vec!["project", "select"],
            "\"delay\" is no column of the message under that name",
        ),
        (
            vec![("anonymise", &hide), ("select", "origin = 'EWR'")],
            vec!["select", "anonymise"],
            "reads nothing that is hidden",
        ),
        (
            vec![("anonymise", &hide), ("select", "number > 30")],
            vec!["anonymise", "select"],
            "it compares what was made of \"number\"",
        ),
        (
            vec![("anonymise", &hide), ("project", "number, delay")],
            vec!["project", "anonymise"],
            "need not be hidden",
        ),
        (
            vec![("anonymise", &hide), ("project", "origin, delay")],
            vec!["project"],
            "has no column that it hides",
        ),
        (
            vec![("anonymise", &hide), ("project", "number, number AS same")],
            vec!["anonymise", "project"],
            "makes something else of it",
        ),
        (
            vec![("anonymise", &hide), ("project", "number + 1 AS next, number")],
            vec!["anonymise", "project"],
            "makes something else of it",
        ),
        (vec![("to-json", ""), ("sample", "3")], vec!["sample", "to-json"], "need not be printed"),
        (vec![("sample", "3"), ("select", "delay > 3")], vec!["sample", "select"], "stays before"),
        (vec![("sample", "3"), ("sample", "4")], vec!["sample"], "every 12"),
        (
            vec![("select", "delay > 3"), ("select", "delay < 20 OR number = 2")],
            vec!["select"],
            "become one select",
        ),
        (vec![("duplicate", "3"), ("project", "number")], vec!["project", "duplicate"], "copies are alike"),
        (
            vec![
                ("forward", ""),
                ("anonymise", &hide),
                ("project", "number, delay, origin"),
                ("sample", "2"),
                ("select", "delay > 3"),
            ],
            vec!["sample", "select", "project", "forward", "anonymise"],
            "",
        ),
        (
            vec![("translate", "Weather"), ("select", "origin = 'EWR'"), ("to-json", "")],
            vec!["select", "translate", "to-json"],
            "fields of the same name",
        ),
    ] {
        let set = channels().set();
        let stages = ChainStage::list(&given);
        let optimised = optimise(&stages, &set, FLIGHT);
        let names: Vec<&str> = optimised.stages.iter().map(|stage| stage.handler.as_str()).collect();
        assert_eq!(names, expected, "{given:?}: {:?}", optimised.notes);
        assert!(optimised.notes.iter().any(|line| line.contains(note)), "{note}: {:?}", optimised.notes);
        let messages = messages();
        let (plain, better) = (run(&set, &stages, &messages), run(&set, &optimised.stages, &messages));
        assert!(!plain.is_empty(), "{given:?}");
        assert!(plain == better, "{given:?}: {:?}", optimised.notes);
    }
}

#[test]
fn a_chain_whose_formats_do_not_fit_says_where() {
    let set = channels().set();
    for (given, expected) in [
        (vec![("selct", "a")], "stage 1: there is no handler \"selct\"; the nearest is \"select\""),
        (
            vec![("select", "dealy > 1")],
            "stage 1, select: for messages \"Flight\": line 1, column 1: there is no column \"dealy\"",
        ),
        (
            vec![("project", "number, origin"), ("select", "delay > 1")],
            "stage 2, select, cannot process rows of number, origin, which stage 1 emits: line 1, column 1: there is no column \"delay\"",
        ),
        (
            vec![("to-json", ""), ("select", "delay > 1")],
            "stage 2, select, cannot process JSON, which stage 1 emits",
        ),
        (vec![("project", "")], "stage 1, project, cannot process messages \"Flight\": "),
    ] {
        let stages = ChainStage::list(&given);
        let error = check(&stages, &set, FLIGHT).expect_err("does not fit").to_string();
        assert!(error.contains(expected), "{error}");
        let optimised = optimise(&stages, &set, FLIGHT);
        assert_eq!((optimised.stages, optimised.notes), (stages, vec![error]));
    }
    let formats =
        check(&ChainStage::list(&[("translate", "Weather"), ("to-json", "")]), &set, FLIGHT).expect("fits");
    assert_eq!(formats, [FLIGHT, WEATHER, csp_operators::JSON]);
}
