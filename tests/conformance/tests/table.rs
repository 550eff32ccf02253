//! Checks docs/tcp-conformance.md: every requirement has a row, and all code and tests that it names exist.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = "docs/tcp-conformance.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the rows of the tables, as cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| rule |"));
    let lines = lines.filter(|line| !line.starts_with("| section |") && !line.starts_with("| RFC |"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Checks that a name in backticks exists: a script, a file, or a function in a file.
fn exists(name: &str) -> Result<(), String> {
    let (file, function) = name.split_once(':').map_or((name, None), |(file, name)| (file, Some(name)));
    let roots = ["tests/conformance/tcp", "proxy-node/tcp/src", "."];
    let path = roots.iter().map(|base| root().join(base).join(file)).find(|path| path.is_file());
    let path = path.ok_or_else(|| format!("`{file}` does not exist"))?;
    let Some(function) = function else { return Ok(()) };
    let text = fs::read_to_string(path).unwrap();
    let found = ["(", "<"].iter().any(|behind| text.contains(&format!("fn {function}{behind}")));
    if found { Ok(()) } else { Err(format!("`{name}`: no such function")) }
}

#[test]
fn what_the_table_names_exists() {
    let text = fs::read_to_string(root().join(TABLE)).unwrap();
    let mut problems = Vec::new();
    for row in rows(&text) {
        let &[rule, _, code, tests, state] = row.as_slice() else {
            problems.push(format!("not five cells: {row:?}"));
            continue;
        };
        let known = ["yes", "deviates", "n/a: ", "gap: "];
        if !known.iter().any(|word| state.starts_with(word)) {
            problems.push(format!("{rule}: the state begins with none of {known:?}"));
        }
        for cell in [code, tests] {
            let names = cell.split('`').skip(1).step_by(2);
            problems
                .extend(names.filter_map(|name| exists(name).err()).map(|text| format!("{rule}: {text}")));
        }
    }
    assert!(problems.is_empty(), "{TABLE}:\n{}", problems.join("\n"));
}

#[test]
fn every_requirement_of_rfc_9293_has_a_row() {
    let text = fs::read_to_string(root().join(TABLE)).unwrap();
    let rows = rows(&text);
    // As numbered in the RFC's Appendix B.
    let numbered = [("MUST", 69), ("SHLD", 31), ("REC", 1), ("MAY", 18)];
    let wanted = numbered.iter().flat_map(|(kind, last)| (1..=*last).map(move |n| format!("{kind}-{n}")));
    let missing: Vec<String> = wanted.filter(|rule| !rows.iter().any(|row| row[0] == rule)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

#[test]
fn every_rfc_that_the_engine_follows_has_a_row() {
    let text = fs::read_to_string(root().join(TABLE)).unwrap();
    let rows = rows(&text);
    let wanted = [
        1191, 1337, 2018, 2883, 3042, 3168, 3465, 3522, 4015, 4821, 4987, 5482, 5681, 5682, 5927, 5961, 6191,
        6298, 6528, 6582, 6675, 6928, 7323, 8201, 8899, 8985, 9406, 9438, 9937,
    ];
    let named = |rfc: u32| {
        let rfc = rfc.to_string();
        let numbers = |cell: &str| cell.split([' ', ',']).any(|word| word == rfc);
        rows.iter().any(|row| numbers(row[0]))
    };
    let missing: Vec<u32> = wanted.into_iter().filter(|&rfc| !named(rfc)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
