//! Policies: YAML and JSON, with the formats, queries, handlers, flows and rules in them.

use csp_config::{ConfigError, PROBLEMS_MAX};
use csp_policy::Policy;

use crate::{Bounds, Check, Target};

/// A policy as an administrator writes it, or as a management node has published it.
pub static POLICY: Target = Target {
    name: "policy",
    check: Check::Parser(check),
    examples,
    words: &[
        "apiVersion: csp/v1\n",
        "services:\n",
        "channels:\n",
        "queries:\n",
        "formats:\n",
        "handlers:\n",
        "contexts:\n",
        "information_flows:\n",
        "link:\n",
        "egress:\n",
        "programs:\n",
        "access:\n",
        "plugin_hosts:\n",
        "plugins:\n",
        "rules:\n",
        "- ",
        "  ",
        "\t",
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "? ",
        "| ",
        ">-\n",
        "---\n",
        "...\n",
        "{",
        "}",
        "null",
        "~",
        "0x1",
        ".inf",
        "\"\\u0000\"",
        "name: ",
        "SELECT * FROM ",
    ],
    len_max: 32_768,
    bounds: Bounds { held: (4 << 20, 1_024), allocated: (8 << 20, 4_096) },
};

/// Longest text of an error, in bytes, beside what it quotes.
const ERROR_LEN_MAX: usize = 64 << 10;

const DOCUMENTS: [&str; 6] = [
    include_str!("../../../README.md"),
    include_str!("../../../docs/handlers.md"),
    include_str!("../../../docs/messages.md"),
    include_str!("../../../docs/plugins.md"),
    include_str!("../../../docs/quality.md"),
    include_str!("../../../docs/queries.md"),
];

fn check(bytes: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(bytes) else { return false };
    let from_json = Policy::from_json(text, "policy.json");
    let policy = match Policy::parse_yaml(text, "policy.yaml") {
        Ok(policy) => policy,
        Err(error) => {
            check_error(text, &error);
            return from_json.is_ok();
        }
    };
    // JSON is YAML.
    assert!(from_json.as_ref().is_err() || from_json.as_ref() == Ok(&policy));
    let json = policy.to_json();
    assert_eq!(Policy::from_json(&json, "policy.json").as_ref(), Ok(&policy));
    assert!(policy.diff(&policy).is_empty());
    true
}

fn check_error(text: &str, error: &ConfigError) {
    assert!((1..=PROBLEMS_MAX + 1).contains(&error.problems.len()));
    let lines = text.lines().count() as u64 + 1;
    for problem in &error.problems {
        let is_there = |(line, column)| (1..=lines).contains(&line) && column > 0;
        assert!(
            problem.position.is_none_or(is_there),
            "{:?} of {lines} lines: {}",
            problem.position,
            problem.message
        );
        assert!(!problem.message.is_empty());
    }
    let len = error.to_string().len();
    assert!(len <= ERROR_LEN_MAX + text.len(), "the error has {len} bytes, the text {}", text.len());
}

/// The whole policies of the documents, one with formats and queries, and one as JSON.
fn examples() -> Vec<Vec<u8>> {
    let flights = include_str!("../../cluster/apps/flights/policy.yaml").to_owned();
    let blocks = DOCUMENTS.iter().flat_map(|document| document.split("\n```yaml\n").skip(1));
    let blocks = blocks.filter_map(|block| Some(block.split_once("\n```")?.0.to_owned() + "\n"));
    let is_whole = |text: &String| Policy::parse_yaml(text, "policy.yaml").is_ok();
    let mut all: Vec<String> = blocks.chain([flights]).filter(is_whole).collect();
    let json: Vec<String> =
        all.iter().filter_map(|text| Some(Policy::parse_yaml(text, "").ok()?.to_json())).collect();
    all.extend(json.into_iter().take(2));
    all.into_iter().map(String::into_bytes).collect()
}
