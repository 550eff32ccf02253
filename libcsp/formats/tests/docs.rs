//! The examples of docs/formats.md.

mod common;

use common::{printed, written};
use csp_formats::Schema;

/// The first code of a language in docs/formats.md.
fn example(language: &str) -> &'static str {
    let text = include_str!("../../../docs/formats.md");
    let begin = text.split(&format!("```{language}\n")).nth(1).expect("an example");
    begin.split("```").next().expect("closed")
}

#[test]
fn the_example_is_valid() {
    let schema = Schema::parse(example("xml")).unwrap_or_else(|error| panic!("{error}"));
    let message = serde_json::from_str(example("json")).expect("JSON");
    assert_eq!(printed(&schema, &[&written(&schema, &message)]).expect("valid"), message);
}

#[test]
fn the_errors_are_as_shown() {
    for (from, to) in [
        ("id=\"1\" type=\"airport\"", "id=\"1\" type=\"airprot\""),
        ("type=\"minutes\" presence=\"optional\"", "type=\"minutes\" offset=\"2\""),
    ] {
        let error = Schema::parse(&example("xml").replace(from, to)).expect_err("refused").to_string();
        assert!(include_str!("../../../docs/formats.md").contains(&error), "{error}");
    }
}
