//! The policies in the documents are right.
//!
//! A block that begins with ```yaml is a whole policy; one that begins with ```yaml part is a part of one, of
//! which fields and values are right. Other words stand for configuration of other things.

use csp_config::{ConfigError, parse_checked};
use csp_policy::Policy;

const DOCUMENTS: [(&str, &str); 7] = [
    ("README.md", include_str!("../../../README.md")),
    ("docs/handlers.md", include_str!("../../../docs/handlers.md")),
    ("docs/http-filters.md", include_str!("../../../docs/http-filters.md")),
    ("docs/messages.md", include_str!("../../../docs/messages.md")),
    ("docs/plugins.md", include_str!("../../../docs/plugins.md")),
    ("docs/quality.md", include_str!("../../../docs/quality.md")),
    ("docs/queries.md", include_str!("../../../docs/queries.md")),
];

/// The blocks of a document whose fence has these words, each with the line before its first.
fn blocks(document: &str, fence: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut open): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    for (number, line) in (1..).zip(document.lines()) {
        match line.strip_prefix("```") {
            Some(words) if !open && words == fence => {
                open = true;
                blocks.push((number, String::new()));
            }
            Some(_) => open = false,
            None if open => {
                let (_, block) = blocks.last_mut().unwrap();
                block.push_str(&filled_in(line));
                block.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// A line with a digest, and with keys of which no two are the same, where it leaves them out.
fn filled_in(line: &str) -> String {
    let mut line = line.replace("9f86d081…", &"9f86d081".repeat(8));
    let mut last = b'D';
    while let Some(at) = line.find("\"…\"") {
        let key = format!("\"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{{hI{}\"", char::from(last));
        line.replace_range(at..at + "\"…\"".len(), &key);
        last += 1;
    }
    line
}

fn check(fence: &str, least: usize, parse: impl Fn(&str, &str) -> Result<Policy, ConfigError>) {
    let mut count = 0;
    for (name, document) in DOCUMENTS {
        for (line, block) in blocks(document, fence) {
            if let Err(error) = parse(&block, &format!("the policy after {name}:{line}")) {
                panic!("{error}\n{block}");
            }
            count += 1;
        }
    }
    assert!(count >= least, "only {count} blocks were found");
}

#[test]
fn whole_policies_are_right() {
    check("yaml", 15, crate::checked);
}

#[test]
fn parts_of_policies_have_right_fields_and_values() {
    check("yaml part", 5, |block, file| {
        // A list of a channel's own is put into one.
        let channel = "channels:\n  - name: ticks\n    vip: 10.76.0.100\n    port: 5556\n";
        let around = if block.starts_with(' ') { channel } else { "" };
        parse_checked(&format!("apiVersion: csp/v1\n{around}{block}"), file, |_: &Policy, _| {})
    });
}
