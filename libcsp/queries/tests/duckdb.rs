//! Values of expressions beside those of DuckDB.

mod common;

use common::{channels, flight, plan, printed, written};
use csp_formats::MessageView;
use serde_json::Value as Json;

/// Whether a value is that of a vector: truth values are an enumeration here, and numbers may differ in their
/// last digits.
fn same(own: &Json, other: &Json) -> bool {
    match (own, other) {
        (Json::String(own), Json::Bool(other)) => own == if *other { "True" } else { "False" },
        (Json::Number(_), Json::Number(_)) => {
            let (own, other) = (own.as_f64().unwrap_or(f64::NAN), other.as_f64().unwrap_or(f64::NAN));
            (own - other).abs() <= 1e-12 * own.abs().max(1.0)
        }
        _ => own == other,
    }
}

#[test]
fn expressions_have_the_values_that_duckdb_has() {
    let vectors = include_str!("vectors/duckdb.txt");
    let mut lines = vectors.lines().skip(1);
    let flights = lines.next().and_then(|line| line.strip_prefix("# ")).expect("flights");
    let flights: Vec<Json> = serde_json::from_str(flights).expect("JSON");
    let schema = channels().flights;
    let mut count = 0;
    for line in lines {
        let (expression, expected) = line.split_once('\t').expect("an expression and its values");
        let expected: Vec<Json> = serde_json::from_str(expected).expect("JSON");
        let sql = format!("SELECT {expression} AS value FROM flights");
        let plan = plan(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        for (members, expected) in flights.iter().zip(&expected) {
            let mut message = flight();
            members
                .as_object()
                .expect("an object")
                .iter()
                .for_each(|(name, value)| message[name] = value.clone());
            let bytes = written(&schema, &message);
            let slices: Vec<&[u8]> = bytes.chunks(5).collect();
            let view = MessageView::new(&schema, &slices).expect("valid");
            let mut out = [0; 200];
            let len = plan.emit(&[&view], &[], &mut out).unwrap_or_else(|error| panic!("{sql}: {error}"));
            let value = &printed(&plan.derived.schema, &out[..len])["value"];
            assert!(same(value, expected), "{expression} of {members}: {value}, and in DuckDB {expected}");
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
}
