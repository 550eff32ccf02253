//! What conformance suites and programs of others say of the HTTP of a running cluster: `make test-http`.
//!
//! Each part prints rows of a table. A row that fails does not end the others.
//! `HTTP="h2spec clients"` chooses parts.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

#[allow(dead_code, reason = "the page of operations uses the rest")]
#[path = "../operations/browser.rs"]
mod browser;
mod clients;
mod h2spec;
mod page;
mod smuggling;
mod stage;
mod testssl;
mod websocket;

use std::time::Instant;

use stage::{Row, Stage};

type Part = (&'static str, fn(&mut Stage));

const PARTS: [Part; 6] = [
    ("smuggling", smuggling::run),
    ("h2spec", h2spec::run),
    ("testssl", testssl::run),
    ("clients", clients::run),
    ("websocket", websocket::run),
    ("browser", page::run),
];

#[test]
#[ignore = "installs programs of others, and takes minutes: make test-http"]
fn programs_of_others_are_served() {
    let chosen = std::env::var("HTTP").unwrap_or_default();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.split_whitespace().any(|part| part == name);
    let unknown = chosen.split_whitespace().find(|part| PARTS.iter().all(|(name, _)| name != part));
    assert_eq!(unknown, None, "HTTP= names parts of {:?}", PARTS.map(|(name, _)| name));
    let Some(mut stage) = Stage::build() else { return };
    for (name, run) in PARTS.into_iter().filter(|(name, _)| is_chosen(name)) {
        let began = Instant::now();
        run(&mut stage);
        println!("--- {name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    let rows = stage.end();
    println!("\n| what | result |\n|---|---|");
    for row in &rows {
        println!("{row}");
    }
    let failed: Vec<&Row> = rows.iter().filter(|row| !row.is_well()).collect();
    println!("{} passed, {} failed", rows.len() - failed.len(), failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
}
