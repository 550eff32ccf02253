//! The examples of docs/queries.md.

mod common;

use common::plan;

#[test]
fn the_examples_are_planned_and_the_errors_are_as_shown() {
    let text = include_str!("../../../docs/queries.md");
    let sql = text.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).expect("examples");
    let queries: Vec<&str> = sql.split("\n\n").collect();
    assert_eq!(queries.len(), 3);
    for query in queries {
        plan(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    }
    for query in [
        "SELECT orgin FROM flights",
        "SELECT origin FROM flights WHERE carrier = 'Untied'",
        "SELECT origin FROM flights ORDER BY delay",
    ] {
        let error = plan(query).expect_err(query).to_string();
        assert!(text.contains(&error), "{error}");
    }
}
