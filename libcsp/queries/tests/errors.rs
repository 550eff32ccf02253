//! What is refused: with its position, what would be right, and the nearest name.

mod common;

use common::plan;
use csp_queries::{NESTING_MAX, QUERY_LEN_MAX};
use csp_support::Random;

fn refused(sql: &str, expected: &str) {
    match plan(sql) {
        Ok(plan) => panic!("{sql}: {plan:?}"),
        Err(error) => assert_eq!(error.to_string(), expected, "{sql}"),
    }
}

#[test]
fn names_that_do_not_exist_have_the_nearest() {
    refused(
        "SELECT origin FROM flihts",
        "line 1, column 20: there is no channel \"flihts\"; the nearest is \"flights\"",
    );
    refused(
        "SELECT orgin FROM flights",
        "line 1, column 8: there is no column \"orgin\"; the nearest is \"origin\"",
    );
    refused(
        "SELECT origin,\n  price.mantisa FROM flights",
        "line 2, column 3: there is no column \"price.mantisa\"; the nearest is \"price.mantissa\"",
    );
    refused(
        "SELECT f.orgin FROM flights f",
        "line 1, column 8: there is no column \"orgin\"; the nearest is \"origin\"",
    );
    refused(
        "SELECT origin FROM flights WHERE carrier = 'Untied'",
        "line 1, column 44: there is no value \"Untied\"; the nearest is \"United\"",
    );
    refused(
        "SELECT origin FROM flights WHERE HAS(services, 'wify')",
        "line 1, column 48: there is no choice \"wify\"; the nearest is \"wifi\"",
    );
    refused(
        "SELECT AVGE(delay) FROM flights",
        "line 1, column 8: there is no function \"AVGE\"; the nearest is \"AVG\"",
    );
    refused("SELECT x.* FROM flights", "line 1, column 8: there is no channel \"x\"");
}

#[test]
fn types_are_checked() {
    refused(
        "SELECT origin FROM flights WHERE city = remark",
        "line 1, column 41: = needs text in ISO-8859-1, and this is text",
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON carrier = station WITHIN 1 HOUR",
        "line 1, column 52: = needs values that both channels have alike, and this is Carrier",
    );
    refused("SELECT origin + 1 AS a FROM flights", "line 1, column 8: + needs a number, and this is text");
    refused(
        "SELECT origin FROM flights WHERE delay",
        "line 1, column 34: WHERE needs a truth value, and this is a whole number",
    );
    refused(
        "SELECT origin FROM flights WHERE delay = 'late'",
        "line 1, column 42: = needs a whole number, and this is text",
    );
    refused(
        "SELECT origin FROM flights WHERE origin AND TRUE",
        "line 1, column 34: AND needs a truth value, and this is text",
    );
    refused(
        "SELECT origin FROM flights WHERE carrier > 'United'",
        "line 1, column 34: > needs numbers or text, and this is Carrier",
    );
    refused(
        "SELECT origin FROM flights WHERE price = 1",
        "line 1, column 42: = needs a composite, and this is a whole number",
    );
    refused(
        "SELECT origin FROM flights WHERE HAS(delay, 'wifi')",
        "line 1, column 38: HAS needs a set, and this is a whole number",
    );
    refused(
        "SELECT origin FROM flights WHERE delay LIKE '1%'",
        "line 1, column 34: LIKE needs text, and this is a whole number",
    );
    refused(
        "SELECT SUM(origin) FROM flights WINDOW 5 ROWS",
        "line 1, column 12: SUM needs a number, and this is text",
    );
    refused(
        "SELECT NULL AS a FROM flights",
        "line 1, column 8: SELECT needs a value with a type, and this is null",
    );
    refused(
        "SELECT origin FROM flights WHERE origin = 'é'",
        "line 1, column 43: the comparison needs text in the column's encoding, and this is text",
    );
}

#[test]
fn joins_are_of_two_channels_on_equal_columns() {
    refused(
        "SELECT wind FROM flights JOIN weather ON flights.origin = weather.origin",
        "line 1, column 73: expected WITHIN, found the end of the query",
    );
    refused(
        "SELECT origin FROM flights JOIN weather ON flights.origin = weather.origin WITHIN 1 HOUR",
        "line 1, column 8: \"origin\" is a column of flights and of weather; write flights.origin or weather.origin",
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON distance > hour WITHIN 1 HOUR",
        "line 1, column 42: a join is ON equalities between columns of both channels, joined by AND",
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON distance = delay WITHIN 1 HOUR",
        "line 1, column 42: a join is ON equalities between columns of both channels, joined by AND",
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON destination = hour WITHIN 1 HOUR",
        "line 1, column 56: = needs text, and this is a whole number",
    );
    refused(
        "SELECT a.origin FROM flights JOIN flights ON delay = delay WITHIN 1 HOUR",
        "line 1, column 35: two channels are called \"flights\"; name one of them with AS",
    );
    refused(
        "SELECT wind FROM flights LEFT JOIN weather ON origin = origin",
        "line 1, column 26: a join other than the inner one is not supported",
    );
    refused(
        "SELECT wind FROM flights, weather",
        "line 1, column 25: more than one channel without JOIN is not supported",
    );
    let time = "expected a time such as INTERVAL '5' MINUTE: a whole number above 0 and MICROSECOND, MILLISECOND, SECOND, MINUTE, HOUR or DAY, at most \
                36525 days";
    refused(
        "SELECT wind FROM flights JOIN weather ON distance = hour WITHIN 0 HOURS",
        &format!("line 1, column 65: {time}"),
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON distance = hour WITHIN 5 YEARS",
        &format!("line 1, column 65: {time}"),
    );
    refused(
        "SELECT wind FROM flights JOIN weather ON distance = hour WITHIN 18446744073709551615 DAYS",
        &format!("line 1, column 65: {time}"),
    );
}

#[test]
fn aggregates_stand_in_the_select_list_of_a_window() {
    refused(
        "SELECT COUNT(*) FROM flights",
        "line 1, column 8: COUNT needs a window: add WINDOW INTERVAL '1' HOUR or WINDOW 100 ROWS",
    );
    refused(
        "SELECT origin FROM flights WHERE COUNT(*) > 1",
        "line 1, column 34: COUNT stands in the SELECT list and in HAVING only",
    );
    refused(
        "SELECT SUM(MAX(delay)) FROM flights WINDOW 5 ROWS",
        "line 1, column 12: MAX stands within another aggregate",
    );
    refused(
        "SELECT origin, COUNT(*) FROM flights WINDOW 5 ROWS",
        "line 1, column 8: \"origin\" is neither grouped by nor within an aggregate",
    );
    refused(
        "SELECT delay + 1 AS a FROM flights GROUP BY origin WINDOW 5 ROWS",
        "line 1, column 8: \"delay\" is neither grouped by nor within an aggregate",
    );
    refused(
        "SELECT origin FROM flights GROUP BY origin",
        "line 1, column 37: GROUP BY without WINDOW (a window says when a group is complete) is not supported",
    );
    refused(
        "SELECT COUNT(*) FROM flights GROUP BY passengers WINDOW 5 ROWS",
        "line 1, column 39: GROUP BY needs a number, text or an enumeration, and this is a group",
    );
    refused(
        "SELECT COUNT(DISTINCT delay) FROM flights WINDOW 5 ROWS",
        "line 1, column 14: COUNT(DISTINCT …) is not supported",
    );
    refused(
        "SELECT COUNT(*) FROM flights WINDOW 0 ROWS",
        "line 1, column 37: expected a number of rows from 1 to 1000000000",
    );
}

#[test]
fn the_rest_of_sql_is_refused_by_name() {
    refused(
        "SELECT origin FROM flights HAVING delay > 1",
        "line 1, column 35: HAVING without WINDOW (WHERE is a condition on rows) is not supported",
    );
    refused("SELECT origin FROM flights ORDER BY delay", "line 1, column 28: ORDER here is not supported");
    refused("SELECT DISTINCT origin FROM flights", "line 1, column 8: DISTINCT is not supported");
    refused(
        "SELECT passengers.row FROM flights",
        "line 1, column 8: a field within the group of \"passengers.row\" (the group as a whole can be selected) is not supported",
    );
    refused("INSERT INTO flights VALUES (1)", "line 1, column 1: expected SELECT, found INSERT");
    refused(
        "SELECT origin FROM flights\nWHERE",
        "line 2, column 6: expected an expression, found the end of the query",
    );
    refused("SELECT origin FROM flights x y", "line 1, column 30: expected the end of the query, found y");
    refused(
        "SELECT origin, origin FROM flights",
        "line 1, column 16: two columns of the result are called \"origin\"; name one of them with AS",
    );
    refused(
        "SELECT origin AS \"1st\" FROM flights",
        "line 1, column 1: the result has no format: \"1st\" is no name of a column: at most 64 letters, digits and underscores, no digit first",
    );
    for sql in [
        "",
        "SELECT",
        "SELECT FROM flights",
        "SELECT origin FROM",
        "SELECT 'a",
        "SELECT origin FROM flights WHERE",
        "SELECT (origin FROM flights",
        "\u{0}",
    ] {
        plan(sql).expect_err(sql);
    }
}

/// What is said beyond what is bound would be obeyed by nobody.
#[test]
fn what_is_not_bound_is_refused_by_name() {
    for (select, expected) in [
        ("* ILIKE 'a%'", "column 10: ILIKE behind * is not supported"),
        ("* FOO", "column 10: FOO behind * is not supported"),
        ("* EXCEPT (orgin)", "column 18: there is no column \"orgin\"; the nearest is \"origin\""),
        (
            "* EXCEPT (price.mantissa)",
            "column 18: there is no column \"price.mantissa\"; the nearest is \"price\"",
        ),
        (
            "* EXCEPT (origin) RENAME (origin AS o)",
            "column 34: \"origin\", which is named twice behind *, is not supported",
        ),
        ("LAST(delay) RESPECT NULLS AS a", "column 20: RESPECT behind LAST is not supported"),
        ("LAST(delay) IGNORE NULLS AS a", "column 20: IGNORE behind LAST is not supported"),
        ("COUNT(*) OVER w", "column 17: OVER behind COUNT is not supported"),
        ("SUM(delay) FILTER (WHERE TRUE)", "column 19: FILTER behind SUM is not supported"),
        ("MAX(delay) WITHIN GROUP (ORDER BY delay)", "column 19: WITHIN GROUP is not supported"),
        ("SUM(delay ORDER BY delay)", "column 18: ORDER BY within brackets is not supported"),
        ("SUM(DISTINCT delay)", "column 12: SUM(DISTINCT …) is not supported"),
        ("COUNT(ALL delay)", "column 14: COUNT(ALL …) is not supported"),
        ("pg_catalog.sum(delay)", "column 22: the function pg_catalog.sum is not supported"),
        ("{fn COUNT(delay)}", "column 8: the sign { is not supported"),
        ("delay::text", "column 13: the sign : is not supported"),
        ("origin[1]", "column 14: the sign [ is not supported"),
        ("$1", "column 8: the sign $ is not supported"),
        ("CAST(delay AS VARCHAR)", "column 22: CAST to VARCHAR (BIGINT and DOUBLE are) is not supported"),
        ("delay IS DISTINCT FROM 1", "column 17: IS DISTINCT is not supported"),
        ("origin ILIKE 'a'", "column 15: ILIKE is not supported"),
        ("(SELECT 1)", "column 9: expected an expression, found SELECT"),
        ("DATE '2024-01-01'", "column 13: expected FROM, found '2024-01-01'"),
    ] {
        refused(&format!("SELECT {select} FROM flights WINDOW 2 ROWS"), &format!("line 1, {expected}"));
    }
    for (rest, expected) in [
        ("WHERE origin LIKE 'a' ESCAPE 'b'", "column 50: ESCAPE is not supported"),
        ("WHERE origin COLLATE de = 'a'", "column 41: COLLATE is not supported"),
        ("LIMIT 5", "column 28: LIMIT here is not supported"),
        ("FETCH FIRST ROW ONLY", "column 28: FETCH here is not supported"),
        ("WINDOW 5 ROWS ORDER BY origin", "column 42: ORDER here is not supported"),
        ("FOR UPDATE", "column 28: FOR here is not supported"),
    ] {
        refused(&format!("SELECT origin FROM flights {rest}"), &format!("line 1, {expected}"));
    }
}

#[test]
fn times_and_counts_have_a_bound() {
    let refused = |sql: &str, expected: &str| {
        let error = plan(sql).expect_err(sql).to_string();
        assert!(error.contains(expected), "{sql}: {error}");
    };
    for time in [
        "18446744073709551615 MICROSECOND",
        "9223372036854775808 MICROSECOND",
        "9223372036854775807 MICROSECONDS",
        "36526 DAYS",
        "99999999999999999999 DAYS",
        "INTERVAL '9223372036854775808' MICROSECOND",
        "INTERVAL '18446744073709551615 days'",
        "-1 SECOND",
        "1.5 SECONDS",
        "1e3 SECONDS",
    ] {
        refused(&format!("SELECT COUNT(*) FROM flights WINDOW {time}"), "expected a time");
        refused(&format!("SELECT COUNT(*) FROM flights WINDOW 1 HOUR EVERY {time}"), "expected");
        refused(
            &format!("SELECT wind FROM flights f JOIN weather w ON f.origin = w.origin WITHIN {time}"),
            "expected a time",
        );
    }
    plan("SELECT COUNT(*) FROM flights WINDOW 36525 DAYS").expect("a hundred years");
    for count in ["0", "1000000001", "18446744073709551615", "99999999999999999999", "1.5"] {
        refused(
            &format!("SELECT COUNT(*) FROM flights WINDOW {count} ROWS"),
            "expected a number of rows from 1 to",
        );
    }
    for every in ["2 HOURS", "7 MINUTES", "1 SECOND", "1 MICROSECOND"] {
        refused(
            &format!("SELECT COUNT(*) FROM flights WINDOW 1 HOUR EVERY {every}"),
            "a part of the window's length",
        );
    }
    plan("SELECT COUNT(*) FROM flights WINDOW 64 MINUTES EVERY 1 MINUTE").expect("64 windows");
}

#[test]
fn hostile_queries_are_bounded() {
    plan(&" ".repeat(QUERY_LEN_MAX + 1)).expect_err("too long");
    let nested =
        |depth: usize| format!("SELECT {}1{} AS a FROM flights", "(".repeat(depth), ")".repeat(depth));
    assert!(plan(&nested(5)).is_ok());
    for depth in [NESTING_MAX * 2, 400] {
        plan(&nested(depth)).expect_err("too deep");
    }
    plan(&format!("SELECT {} delay AS a FROM flights", "- ".repeat(900))).expect_err("too deep");
    plan(&format!("SELECT origin FROM flights WHERE {} TRUE", "NOT ".repeat(900))).expect_err("too deep");
    let long = |count: usize| format!("SELECT 1{} AS a FROM flights", " + 1".repeat(count));
    assert!(plan(&long(500)).is_ok());
    plan(&long(1000)).expect_err("too many");
    // Operands that are used twice a level.
    let levels = |depth: usize| {
        format!(
            "SELECT origin FROM flights WHERE delay BETWEEN 1 AND 2{}",
            " BETWEEN TRUE AND TRUE".repeat(depth)
        )
    };
    assert!(plan(&levels(5)).is_ok());
    for depth in [12, 40, 200] {
        let error = plan(&levels(depth)).expect_err("too large").to_string();
        assert!(error.contains("more than 4096 operations"), "{error}");
    }
    let inside =
        |depth: usize| format!("SELECT {}1{} AS a FROM flights", "a.FLOOR(".repeat(depth), ")".repeat(depth));
    for depth in [20, 39, 200] {
        plan(&inside(depth)).expect_err("no function");
    }
    plan(&format!("SELECT origin FROM flights WHERE {} TRUE", "origin LIKE '%a' AND ".repeat(17)))
        .expect_err("too many");
    // The passengers have meals: they are passed one by one to find the remark.
    let many = |count: usize| {
        format!("SELECT origin FROM flights WHERE remark IN ('a'{})", ", 'b'".repeat(count - 1))
    };
    assert!(plan(&many(64)).is_ok());
    let error = plan(&many(65)).expect_err("too many").to_string();
    assert!(error.contains("more than 64 places where variable data"), "{error}");
}

#[test]
fn random_changes_of_queries_are_planned_or_refused() {
    let queries = [
        "SELECT f.origin, wind * 2 AS w FROM flights f JOIN weather w ON f.origin = w.origin WITHIN INTERVAL '1' HOUR WHERE delay > 0.5 AND remark LIKE 'a%'",
        "SELECT origin, COUNT(*), AVG(delay) AS mean FROM flights WHERE HAS(services, 'wifi') GROUP BY origin WINDOW 5 ROWS",
    ];
    let seeds = match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => (0..3000).collect(),
    };
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut words: Vec<&str> =
            queries[random.below(2) as usize].split_inclusive([' ', '(', ',', '.']).collect();
        for _ in 0..=random.below(3) {
            let (at, to) =
                (random.below(words.len() as u64) as usize, random.below(words.len() as u64) as usize);
            match random.below(3) {
                0 => words.swap(at, to),
                1 if words.len() > 1 => drop(words.remove(at)),
                _ => words.insert(to, words[at]),
            }
        }
        if let Err(error) = plan(&words.concat()) {
            assert!(error.position.line > 0 && error.position.column > 0, "seed {seed}: {error}");
        }
    }
}
