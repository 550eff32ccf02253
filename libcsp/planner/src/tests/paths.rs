//! Handlers of paths, and queries on their channels.

use std::sync::Arc;

use crate::Planned;

use super::*;

const PATHS: &str = include_str!("../../../policy/fixtures/paths.yaml");

#[test]
fn a_wrong_handler_is_refused() {
    let unknown = |name: &str| {
        let message = crate::paths::unknown(name, &Arc::default(), &[]);
        format!("7:19: channels[0].path[0].handler: {message}")
    };
    let begins = "7:19: channels[0].path[0].handler: `frward` is not known; allowed are forward, drop-every, duplicate, select";
    assert!(unknown("frward").starts_with(begins) && !unknown("frward").contains("multicast"));
    let wrong = ["frward", "multicast"].map(unknown);
    assert!(wrong[1].contains("`multicast` has several outputs, and a path of the policy has one; allowed"));
    assert!(unknown("split").contains("`split` has several outputs"));
    let cases = [
        ("{handler: forward}", "{handler: frward}", &wrong[0][..]),
        ("{handler: forward}", "{handler: multicast}", &wrong[1][..]),
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
