//! Handlers of paths, and queries on their channels.

use std::sync::Arc;

use crate::Planned;

use super::*;

const PATHS: &str = include_str!("../../../policy/fixtures/paths.yaml");

#[test]
fn a_wrong_handler_is_refused() {
    let unknown = |name: &str| {
        let message = crate::paths::unknown(name, &[]);
        format!("7:19: channels[0].path[0].handler: {message}")
    };
    let begins = "7:19: channels[0].path[0].handler: `frward` is not known; allowed are forward, drop-every, duplicate, multicast, select";
    assert!(unknown("frward").starts_with(begins));
    let wrong = unknown("frward");
    let cases = [
        ("{handler: forward}", "{handler: frward}", &wrong[..]),
        (
            "{handler: forward}",
            "{handler: multicast}",
            "7:19: channels[0].path[0].handler: `multicast` has several outputs: say in `outputs` where each leads",
        ),
        (
            "\"10\"",
            "\"0\"",
            "8:56: channels[0].path[1].parameters: `0` is not the number of messages of which one is dropped",
        ),
    ];
    for (from, to, expected) in cases {
        let error = checked(&PATHS.replacen(from, to, 1), "p.yaml").unwrap_err();
        assert_eq!(error.to_string(), format!("p.yaml:{expected}"));
    }
}

#[test]
fn mistakes_of_form_and_of_plans_are_reported_together() {
    let text = PATHS.replace("forward", "frward").replace("port: 5556", "port: 0").replace("c3", "c9");
    let error = checked(&text, "p.yaml").unwrap_err();
    let fields: Vec<_> = error.problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["channels[0].port", "channels[0].path[0].handler", "channels[0].path[1].context"]);
    // The policy alone is valid in itself whatever its handlers are called.
    let policy = Policy::parse_yaml(&PATHS.replace("forward", "frward"), "p.yaml").unwrap();
    let error = Planned::new(Arc::new(policy), "p.yaml").unwrap_err().to_string();
    assert!(error.starts_with("p.yaml: channels[0].path[0].handler: `frward` is not known"), "{error}");
}

#[test]
fn a_redacted_key_is_refused() {
    let path = "{handler: anonymise, parameters: \"hash origin, key (redacted)\"}";
    let text = airport().replacen("port: 5603,", &format!("port: 5603, path: [{path}],"), 1);
    let error = checked(&text, "p.yaml").unwrap_err().to_string();
    assert!(error.contains("a key has 32 hexadecimal digits"), "{error}");
}

const TICKS: &str = include_str!("../../../policy/fixtures/ticks.yaml");

#[test]
fn what_a_path_makes_fits_the_memory_of_a_channel_that_holds_back() {
    let blocks = "formats: [tick], queue: {full: block}, memory: {guaranteed_mib: 1}, path: [{handler: project, parameters: v}]";
    let error = checked(&TICKS.replacen("formats: [tick]", blocks, 1), "p.yaml").unwrap_err().to_string();
    let expected = "channels[0].path: the longest message and what the path makes of it need ";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_query_that_reads_no_long_messages_is_a_warning() {
    let text = TICKS.replacen("formats: [tick]", "formats: [tick], message_kib: 2048", 1);
    let warnings = Planned::parse_yaml(&text, "p.yaml").unwrap().warnings();
    let expected = "query big does not read messages of more than 1024 KiB";
    assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
}

const BRANCHES: &str = include_str!("../../../policy/fixtures/branches.yaml");

#[test]
fn a_path_that_divides_is_planned_with_the_formats_at_each_output() {
    let planned = Planned::parse_yaml(BRANCHES, "p.yaml").unwrap();
    let (channel, formats) = (&planned.policy().channels[0], &planned.catalogue().channels[0]);
    let set = Arc::new(crate::format_set(formats));
    let plans = crate::plan_paths(channel, formats, &set);
    assert_eq!(plans.iter().map(|plan| plan.format).collect::<Vec<_>>(), [Some(0), Some(1)]);
    let stages = &plans[0].stages;
    let handlers: Vec<_> =
        stages.iter().map(|known| (&known.stage.handler[..], &known.stage.parameters[..])).collect();
    let parts = "whole WHERE delay > 60; number, delay; whole";
    assert_eq!(handlers, [("select", "number > 0"), ("split", parts), ("to-json", "")]);
    let to: Vec<Vec<_>> =
        stages.iter().map(|known| known.outputs.iter().map(|output| output.to).collect()).collect();
    use crate::Destination::{Channel, Receivers, Stage};
    assert_eq!(to, [vec![Stage(1)], vec![Channel(0), Stage(2), Receivers], vec![Channel(1)]]);
    let yields: Vec<_> =
        stages[1].outputs.iter().map(|output| output.yields[0].layout().block.fields.len()).collect();
    assert_eq!(yields, [2, 2, 2]);
    assert!(stages[2].outputs[0].yields.is_empty(), "JSON has no format");
    assert!(plans[1].stages[0].outputs[0].to == Receivers && plans[1].stages.len() == 1);
}

#[test]
fn queries_read_what_outputs_lead_to() {
    let query = |sql: &str| {
        format!("{BRANCHES}queries:\n  - {{name: q, sql: \"{sql}\", vip: 10.76.0.100, port: 5700}}\n")
    };
    let planned = Planned::parse_yaml(&query("SELECT delay FROM late"), "p.yaml").unwrap();
    assert_eq!(planned.catalogue().queries[0].sources[0].format_id, 1, "the id that it has at its source");
    let error = checked(&query("SELECT delay FROM board"), "p.yaml").unwrap_err().to_string();
    assert!(error.contains("board"), "rows of JSON: {error}");
    let rows = BRANCHES.replacen("whole WHERE delay > 60", "delay WHERE delay > 60", 1);
    let text = query("SELECT delay FROM late").replacen(BRANCHES, &rows, 1);
    let planned = Planned::parse_yaml(&text, "p.yaml").unwrap();
    assert!(planned.catalogue().queries[0].sources[0].format_id >= csp_operators::DERIVED_FIRST);
}

/// The keys of a derived channel are those of its own, whatever its source has.
#[test]
fn a_query_of_a_derived_channel_with_keys_needs_keys() {
    let keys =
        "port: 5602, curve: {server_key: \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\", any: [subscribe]}";
    let keyed = BRANCHES.replacen("port: 5602", keys, 1);
    let query = "queries:\n  - {name: q, sql: SELECT delay FROM late, vip: 10.76.0.100, port: 5700}\n";
    let error = checked(&format!("{keyed}{query}"), "p.yaml").unwrap_err().to_string();
    assert!(error.contains("reads late, which has keys, and needs `curve` itself"), "{error}");
}

#[test]
fn what_is_wrong_with_outputs_is_named() {
    for (from, to, expected) in [
        (
            "handler: split",
            "handler: select",
            "path[1].outputs: `select` has one output; `outputs` are for multicast, split, customise",
        ),
        ("handler: split", "handler: multicast", "outputs[0].emit: `multicast` emits the message itself"),
        (
            "delay > 60",
            "wind > 60",
            "path[1].outputs: for messages \"Flight\": output 0: line 1, column 1: there is no column \"wind\"",
        ),
        ("delay > 60", "delay > 60; number", "outputs[0].emit: a semicolon ends what an output gets"),
        ("delay > 60", "delay > 'x", "channels[0].paths[0].path[1].outputs"),
        (
            "handler: to-json",
            "handler: select, parameters: wind > 1",
            "path[1].outputs[1].path[0]: `select` does not fit format flight",
        ),
        (
            "handler: sample, parameters: \"2\"",
            "handler: from-json",
            "`from-json` reads messages of none of the channel's formats, which take no path of a format",
        ),
        (
            "handler: sample, parameters: \"2\"",
            "handler: split",
            "paths[1].path[0].handler: `split` has several outputs: say in `outputs`",
        ),
    ] {
        let error = checked(&BRANCHES.replacen(from, to, 1), "p.yaml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}
