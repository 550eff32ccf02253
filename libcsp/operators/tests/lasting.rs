//! Windows that overlap, conditions on groups, texts in aggregates, silence, and sums that are no numbers.

mod common;

use std::collections::BTreeMap;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, row, written};
use csp_operators::{Limits, Query, Time, Unit};
use csp_support::Random;
use csp_types::Duration;
use serde_json::{Value as Json, json};

fn timed(unit: Unit, lateness: u64) -> Time {
    Time::Field { path: "at".to_owned(), unit, lateness: Duration::from_secs(lateness) }
}

fn stage(sql: &str, time: Time, limits: Limits) -> Stage {
    let plan = plan(sql);
    let format = if plan.sources[0].channel == "weather" { WEATHER } else { FLIGHT };
    let query = Query::new(plan, &[(format, time)], RESULT, limits).unwrap_or_else(|error| panic!("{error}"));
    Stage::new(Box::new(query), "")
}

fn bytes(members: Json) -> Vec<u8> {
    let mut json = flight();
    members.as_object().expect("an object").iter().for_each(|(name, value)| json[name] = value.clone());
    written(&channels().flights, &json)
}

/// The rows that a stage emits of a flight.
fn send(stage: &mut Stage, sql: &str, members: Json) -> Vec<Json> {
    let (done, emitted) = stage.send(FLIGHT, &[&bytes(members)]);
    assert_eq!(done, Ok(()));
    emitted.iter().map(|emitted| row(&plan(sql), &emitted.frames[0])).collect()
}

#[test]
fn a_row_is_in_all_windows_of_its_time() {
    let sql = "SELECT WINDOW_START AS since, WINDOW_END AS until, destination, COUNT(*) AS flights, MAX(origin) AS last_origin FROM flights \
               GROUP BY destination HAVING COUNT(*) <> 2 WINDOW 12 SECONDS EVERY 3 SECONDS";
    let origins = ["EWR", "JFK", "LGA"];
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let lateness = random.below(6) as i64;
        let mut stage = stage(sql, timed(Unit::Seconds, lateness as u64), Limits::default());
        stage.room = [1, 2, usize::MAX][random.below(3) as usize];
        let (mut clock, mut latest, mut results, mut late) = (-20i64, i64::MIN, Vec::new(), 0);
        let mut open: BTreeMap<i64, Vec<(&str, Vec<&str>)>> = BTreeMap::new();
        let mut expected = Vec::new();
        for _ in 0..300 {
            clock += random.below(3) as i64;
            let at = clock - random.below(15) as i64;
            let destination = ["ORD", "SFO"][random.below(2) as usize];
            let origin = origins[random.below(3) as usize];
            results.extend(send(
                &mut stage,
                sql,
                json!({"at": at, "destination": destination, "origin": origin}),
            ));
            latest = latest.max(at);
            let reached = latest - lateness;
            while let Some(first) = open.first_entry().filter(|first| first.key() + 12 <= reached) {
                let begin = *first.key();
                for (destination, rows) in first.remove() {
                    if rows.len() != 2 {
                        expected.push(json!({"since": begin, "until": begin + 12, "destination": destination, "flights": rows.len(),
                            "last_origin": rows.iter().max()}));
                    }
                }
            }
            let begins: Vec<i64> =
                (at - 11..=at).filter(|begin| begin.rem_euclid(3) == 0 && begin + 12 > reached).collect();
            late += u64::from(begins.is_empty());
            for begin in begins {
                let groups = open.entry(begin).or_default();
                match groups.iter_mut().find(|group| group.0 == destination) {
                    Some(group) => group.1.push(origin),
                    None => groups.push((destination, vec![origin])),
                }
            }
        }
        assert_eq!(results, expected, "seed {seed}");
        assert_eq!(stage.counters().late, late, "seed {seed}");
        assert!(results.len() > 20 && stage.counters().refused > 0, "{} rows", results.len());
    }
}

#[test]
fn the_begin_of_a_window_is_in_the_unit_of_the_time() {
    for (unit, at, next, expected) in [
        (
            Unit::Nanoseconds,
            7_000_000_001i64,
            70_000_000_000i64,
            json!({"since": 0, "until": 10_000_000_000i64}),
        ),
        (Unit::Milliseconds, 7_001, 70_000, json!({"since": 0, "until": 10_000})),
        (Unit::Seconds, -7, 70, json!({"since": -10, "until": 0})),
        (Unit::Days, 1, 3, json!({"since": 1, "until": 1})),
    ] {
        let sql = "SELECT WINDOW_START AS since, WINDOW_END AS until FROM flights WINDOW 10 SECONDS";
        let mut stage = stage(sql, timed(unit, 0), Limits::default());
        assert!(send(&mut stage, sql, json!({"at": at})).is_empty());
        assert_eq!(send(&mut stage, sql, json!({"at": next})), [expected]);
    }
}

/// As `slow_idle`: rows each 35 s of their own time come each 35 s, and a source counts as silent after 30.
#[test]
fn a_stream_slower_than_idle_keeps_its_rows() {
    let sql =
        "SELECT COUNT(*) AS flights, MIN(at) AS first, MAX(at) AS last FROM flights WINDOW INTERVAL '1' HOUR";
    let mut stage = stage(sql, timed(Unit::Seconds, 0), Limits::default());
    let mut rows = Vec::new();
    for at in [0, 35, 70, 105, 3700, 3735, 7300] {
        rows.extend(send(&mut stage, sql, json!({"at": at})));
        for _ in 0..7 {
            stage.pass(Duration::from_secs(5));
            assert!(stage.tick().is_empty(), "time stands still in silence");
        }
    }
    let expected =
        [json!({"flights": 4, "first": 0, "last": 105}), json!({"flights": 2, "first": 3700, "last": 3735})];
    assert_eq!(rows, expected);
    assert_eq!((stage.counters().late, stage.counters().lost()), (0, 0));
}

#[test]
fn a_long_silence_closes_windows_where_that_is_asked_for() {
    let sql = "SELECT COUNT(*) AS flights FROM flights WINDOW 1 HOUR";
    let flush = Some(Duration::from_secs(100));
    for idle in [None, Some(Duration::from_secs(2))] {
        let mut stage = stage(sql, timed(Unit::Seconds, 0), Limits { flush, idle, ..Limits::default() });
        send(&mut stage, sql, json!({"at": 10}));
        stage.tick();
        stage.pass(Duration::from_secs(100));
        assert!(stage.tick().is_empty());
        stage.pass(Duration::from_millis(1));
        assert_eq!(stage.tick().len(), 1);
        assert!(send(&mut stage, sql, json!({"at": 20})).is_empty());
        assert_eq!(
            (stage.counters().late, stage.counters().lost()),
            (1, 1),
            "it was said that nothing more comes"
        );
    }
}

#[test]
fn a_sum_that_is_no_number_is_null_and_its_row_stays() {
    let sql = "SELECT COUNT(*) AS rows, SUM(wind) AS sum, AVG(wind) AS mean, SUM(wind) + 1 AS more, MIN(wind) AS least FROM weather WINDOW 2 ROWS";
    let mut stage = stage(sql, Time::Arrival, Limits::default());
    let mut rows = Vec::new();
    for wind in [json!("Infinity"), json!("-Infinity"), json!(1.0), json!("Infinity")] {
        let json = json!({"$message": "Weather", "origin": "EWR", "at": 1, "wind": wind, "number": 1});
        let emitted = stage.send(WEATHER, &[&written(&channels().weather, &json)]).1;
        rows.extend(emitted.iter().map(|emitted| row(&plan(sql), &emitted.frames[0])));
    }
    let expected = [
        json!({"rows": 2, "sum": null, "mean": null, "more": null, "least": "-Infinity"}),
        json!({"rows": 2, "sum": "Infinity", "mean": "Infinity", "more": "Infinity", "least": 1.0}),
    ];
    assert_eq!(rows, expected);
    assert_eq!(stage.counters().invalid, 0);
}

#[test]
fn texts_of_a_group_have_a_least_a_greatest_and_a_last() {
    let sql = "SELECT MIN(destination) AS least, MAX(destination) AS most, LAST(CASE WHEN delay > 0 THEN origin END) AS latest, \
               COUNT(destination) AS known FROM flights HAVING MIN(destination) <> 'XXX' WINDOW 3 ROWS";
    let mut stage = stage(sql, Time::Arrival, Limits::default());
    let mut rows = Vec::new();
    for (destination, origin, delay) in [("SFO", "EWR", 5), ("MIA", "JFK", 1), ("ORD", "LGA", -1)] {
        rows.extend(send(
            &mut stage,
            sql,
            json!({"destination": destination, "origin": origin, "delay": delay}),
        ));
    }
    assert_eq!(rows, [json!({"least": "MIA", "most": "SFO", "latest": "JFK", "known": 3})]);
    for _ in 0..3 {
        assert!(send(&mut stage, sql, json!({"destination": "XXX"})).is_empty());
    }
    assert_eq!(stage.counters().refused, 1, "HAVING does not accept the group");
}

/// Plans can be made without a text; a time beyond 63 bits must not reach a division.
#[test]
fn no_length_of_a_window_ends_the_program() {
    let mut random = Random::new(5);
    for length_us in [1, 2, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX] {
        let mut plan =
            csp_queries::Plan::new("SELECT COUNT(*) AS n FROM flights WINDOW 1 HOUR", &channels(), 99)
                .expect("valid");
        plan.window = Some(csp_queries::Window::Time { length_us, every_us: length_us });
        let query =
            Query::new(plan.into(), &[(FLIGHT, timed(Unit::Microseconds, 0))], RESULT, Limits::default());
        let mut stage = Stage::new(Box::new(query.expect("runs")), "");
        for at in [0, i64::MIN + 1, i64::MAX, -1, random.number() as i64 >> 1] {
            stage.send(FLIGHT, &[&bytes(json!({"at": at.to_string()}))]).0.expect("valid");
            stage.tick();
        }
    }
}
