//! The tree has what another parser of YAML reads; hostile text costs little; every mistake has its place.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    Plain,
    Round(u8),
    Long { length: u8 },
}

/// One field of each kind.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Everything {
    text: String,
    number: u64,
    small: Option<u8>,
    signed: i64,
    ratio: f64,
    flag: bool,
    shape: Option<Shape>,
    list: Vec<Everything>,
    pair: Option<(u8, String)>,
    names: BTreeMap<String, String>,
}

/// What values of each kind look like in files, right and wrong.
const VALUES: [&str; 56] = [
    "a",
    "'a'",
    "\"a\\n\"",
    "10",
    "-10",
    "+10",
    "'10'",
    "010",
    "0x1F",
    "0o17",
    "0b11",
    "1_000",
    "_1",
    "1__0",
    "255",
    "256",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1.5",
    "1.10",
    "-.5",
    "5.",
    "1e3",
    "1e",
    ".",
    "1.2.3",
    "true",
    "True",
    "'true'",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "null",
    "~",
    "''",
    "",
    "Null",
    "[]",
    "{}",
    "[1, a]",
    "[256, a]",
    "plain",
    "{round: 7}",
    "{long: {length: 1}}",
    "{plain: 1}",
    "{a: 1, b: yes}",
    "{a: {}}",
    "[{text: x}, {number: 7}]",
    "!!str 10",
    "!!int '10'",
    "|\n  two\n  lines",
    ">-\n  folded\n  text",
];

/// Fields and values that are read otherwise on purpose: a tag that contradicts the field's type is no
/// mistake here.
const OTHERWISE: [(&str, &str); 6] = [
    ("text", "!!int '10'"),
    ("number", "!!str 10"),
    ("small", "!!str 10"),
    ("signed", "!!str 10"),
    ("ratio", "!!str 10"),
    ("ratio", "!!int '10'"),
];

#[test]
fn values_of_every_kind_are_read_as_by_another_parser() {
    let fields = ["text", "number", "small", "signed", "ratio", "flag", "shape", "list", "pair", "names"];
    let (mut read, mut refused, mut different) = (0, 0, Vec::new());
    for field in fields {
        for value in VALUES {
            let text = format!("{field}: {value}\n");
            let ours = parse::<Everything>(&text, "t").ok();
            let theirs = serde_saphyr::from_str::<Everything>(&text).ok();
            if ours.is_some() {
                read += 1
            } else {
                refused += 1
            }
            if ours != theirs {
                different.push((field, value));
            }
        }
    }
    assert_eq!(different, OTHERWISE);
    assert!(read > 100 && refused > 100, "{read} {refused}");
}

#[test]
fn anchors_and_merged_mappings_are_read_as_by_another_parser() {
    for text in [
        "names: &a {x: 1}\nlist:\n  - names: *a\n",
        "list:\n  - &a {text: x, number: 3}\n  - {<<: *a, text: y}\n",
        "list:\n  - &a {text: x}\n  - &b {number: 2}\n  - {<<: [*a, *b], flag: true}\n",
        "# nothing\n",
        "",
        "---\ntext: x\n...\n",
        "text: &t hello\nnames: {a: *t, b: *t}\n",
    ] {
        let ours = parse::<Everything>(text, "t").unwrap();
        assert_eq!(ours, serde_saphyr::from_str(text).unwrap(), "{text}");
    }
}

#[test]
fn json_is_read_as_yaml_is() {
    let text = r#"{"text": "x", "number": 7, "signed": -3, "ratio": 1.5, "flag": true, "shape": {"round": 3}, "list": [{}], "small": null}"#;
    let whole: Everything = from_json(text, "t").unwrap();
    assert_eq!(whole, parse(text, "t").unwrap());
    assert_eq!(whole.shape, Some(Shape::Round(3)));
    for (wrong, expected) in [
        (
            r#"{"list": [{"number": -1}]}"#,
            "t: list[0].number: this is no whole number in range; allowed is 0 to 18446744073709551615",
        ),
        (r#"{"txt": 1}"#, "t: txt: unknown field `txt` (is `text` meant?); allowed are text, number,"),
        (r#"{"text": "a", "text": "b"}"#, "t: duplicate field `text` at line 1 column 26"),
        ("{", "t: EOF while parsing an object"),
    ] {
        let error = from_json::<Everything>(wrong, "t").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_mistake_of_form_names_the_value_in_which_it_is() {
    for (text, expected) in [
        ("list:\n  - text: a\n  - {text: [}\n", "t:3:12: list[1]: mismatched bracket"),
        ("text: a\ntext: b\n", "t:2:1: duplicate mapping key: text"),
        ("list: [{text: a, text: b}]\n", "t:1:18: list[0]: duplicate mapping key: text"),
        ("? [a]\n: b\n", "t:1:3: a list or mapping is no key; allowed are names"),
        ("text: !other x\n", "t:1:14: text: the tag !other is not known; leave it out"),
        ("text: a\n---\ntext: b\n", "t:2:1: a second document begins; allowed is one"),
    ] {
        let error = parse::<Everything>(text, "t").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
}

#[test]
fn text_that_grows_or_nests_without_end_is_refused() {
    let nested = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    let error = parse::<Everything>(&format!("list: {nested}"), "t").unwrap_err().to_string();
    assert!(error.contains("is nested too deeply; allowed are 64"), "{error}");
    // Many aliases of a long text: the text, its copy and 125 aliases are 127 times 512 KiB. 64 aliases are
    // allowed.
    let long = |aliases: usize| format!("a: &a {}\nb:{}\n", "x".repeat(512 << 10), "\n- *a".repeat(aliases));
    let error = parse::<Everything>(&long(127), "t").unwrap_err().to_string();
    assert!(error.contains("t:128:3: b[125]: the document is too long; allowed are 64 MiB"), "{error}");
    let error = parse::<Everything>(&long(64), "t").unwrap_err().to_string();
    assert!(error.contains("unknown field `a`"), "{error}");
    // Each anchor nests the one before: short text, deep value.
    let deep: String = (1..40).fold("a0: &a0 [[]]\n".to_owned(), |text, n| {
        let before = n - 1;
        text + &format!("a{n}: &a{n} [[*a{before}]]\n")
    });
    let error = parse::<Everything>(&deep, "t").unwrap_err().to_string();
    assert!(error.contains("is nested too deeply"), "{error}");
    // Each anchor doubles the one before.
    let wide: String = (1..40).fold("a0: &a0 [1, 1]\n".to_owned(), |text, n| {
        let before = n - 1;
        text + &format!("a{n}: &a{n} [*a{before}, *a{before}]\n")
    });
    let error = parse::<Everything>(&wide, "t").unwrap_err().to_string();
    assert!(error.contains("has too many values; allowed are 250000"), "{error}");
}
