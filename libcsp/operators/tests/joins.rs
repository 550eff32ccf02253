//! Joins beside a plain computation over all rows.

mod common;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, row, written};
use csp_handlers::Stop;
use csp_operators::{Limits, Query, QuerySetupError, Time, Unit};
use csp_support::Random;
use csp_types::Duration;
use serde_json::{Value as Json, json};

const SQL: &str = "SELECT f.number AS flight, w.number AS report, wind, delay FROM flights f JOIN weather w ON f.origin = w.origin WITHIN \
                   INTERVAL '10' SECONDS WHERE delay > 0 AND wind > 5 AND f.number + w.number <> 13";

fn seconds(lateness: u64) -> Time {
    Time::Field { path: "at".to_owned(), unit: Unit::Seconds, lateness: Duration::from_secs(lateness) }
}

fn stage(sql: &str, limits: Limits, lateness: u64) -> Stage {
    let inputs = [(FLIGHT, seconds(lateness)), (WEATHER, seconds(lateness))];
    let query = Query::new(plan(sql), &inputs, RESULT, limits).unwrap_or_else(|error| panic!("{error}"));
    Stage::new(Box::new(query), "")
}

/// A row as the test knows it.
#[derive(Clone, Debug)]
struct Known {
    origin: &'static str,
    at: Option<i64>,
    number: u64,
    /// The delay or the wind.
    value: Option<i64>,
}

impl Known {
    fn random(random: &mut Random, clock: i64, number: u64) -> Known {
        let origin = ["EWR", "JFK", "LGA"][random.below(3) as usize];
        let at = (random.below(20) > 0).then(|| clock - random.below(9) as i64);
        let value = (random.below(6) > 0).then(|| random.below(12) as i64 - 3);
        Known { origin, at, number, value }
    }

    fn flight(&self) -> Vec<u8> {
        let mut json = flight();
        (json["origin"], json["at"], json["number"]) =
            (json!(self.origin), json!(self.at), json!(self.number));
        json["delay"] = json!(self.value);
        written(&channels().flights, &json)
    }

    fn weather(&self) -> Vec<u8> {
        let wind = self.value.map(|value| value as f64);
        let json = json!({"$message": "Weather", "origin": self.origin, "at": self.at, "wind": wind, "number": self.number});
        written(&channels().weather, &json)
    }
}

/// The rows that a plain computation has, in the order of the later row of each pair and then of the earlier.
fn expected(rows: &[(bool, Known)], lateness: i64) -> (Vec<Json>, u64) {
    let (mut out, mut late) = (Vec::new(), 0);
    let mut seen: [Vec<&Known>; 2] = Default::default();
    let mut latest = [i64::MIN; 2];
    for (is_weather, known) in rows {
        let side = usize::from(*is_weather);
        let Some(at) = known.at else { continue };
        let accepted = known.value.is_some_and(|value| value > if *is_weather { 5 } else { 0 });
        let is_late = at < latest[side].saturating_sub(lateness);
        latest[side] = latest[side].max(at);
        if !accepted || is_late {
            late += u64::from(accepted && is_late);
            continue;
        }
        for other in &seen[1 - side] {
            let (flight, report) = if *is_weather { (*other, known) } else { (known, *other) };
            let close = at.abs_diff(other.at.unwrap_or(0)) <= 10;
            if close && flight.origin == report.origin && flight.number + report.number != 13 {
                out.push(json!({"flight": flight.number, "report": report.number, "wind": report.value.unwrap_or(0) as f64,
                    "delay": flight.value}));
            }
        }
        seen[side].push(known);
    }
    (out, late)
}

#[test]
fn a_join_has_the_rows_of_a_plain_computation() {
    let plan = plan(SQL);
    for seed in 0..csp_support_seeds() {
        let mut random = Random::new(seed);
        let lateness = random.below(9);
        let mut stage = stage(SQL, Limits { rows: 500, row_bytes: 1 << 16, ..Limits::default() }, lateness);
        stage.room = [1, 2, usize::MAX][random.below(3) as usize];
        let (mut clock, mut rows, mut results) = (1000, Vec::new(), Vec::new());
        for number in 0..400 {
            clock += random.below(3) as i64;
            let known = Known::random(&mut random, clock, number % 40);
            let is_weather = random.below(2) == 0;
            let (format, bytes) =
                if is_weather { (WEATHER, known.weather()) } else { (FLIGHT, known.flight()) };
            let (done, emitted) = stage.send(format, &[&bytes]);
            assert_eq!(done, Ok(()), "seed {seed}");
            results.extend(emitted.iter().map(|emitted| row(&plan, &emitted.frames[0])));
            rows.push((is_weather, known));
        }
        let (expected, late) = expected(&rows, lateness as i64);
        assert_eq!(results, expected, "seed {seed}");
        let counters = stage.counters();
        assert_eq!((counters.late, counters.evicted, counters.invalid), (late, 0, 0), "seed {seed}");
        assert_eq!((counters.read, counters.emitted), (400, expected.len() as u64), "seed {seed}");
        assert!(counters.held < 200, "rows that can meet no other have left: {counters:?}");
    }
}

fn csp_support_seeds() -> u64 {
    std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20).min(200)
}

#[test]
fn rows_that_give_way_are_counted() {
    let mut stage = stage(SQL, Limits { rows: 10, row_bytes: 1 << 16, ..Limits::default() }, 0);
    let known = |number| Known { origin: "EWR", at: Some(1000), number, value: Some(7) };
    for number in 0..25 {
        assert!(stage.send(FLIGHT, &[&known(number).flight()]).1.is_empty());
    }
    let counters = stage.counters();
    assert_eq!((counters.evicted, counters.held), (15, 10));
    let plan = plan(SQL);
    let (_, emitted) = stage.send(WEATHER, &[&known(100).weather()]);
    let flights: Vec<Json> =
        emitted.iter().map(|emitted| row(&plan, &emitted.frames[0])["flight"].clone()).collect();
    assert_eq!(flights, (15..25).map(|number| json!(number)).collect::<Vec<_>>());
}

#[test]
fn bytes_are_bounded_as_rows_are() {
    let mut stage = stage(SQL, Limits { rows: 1000, row_bytes: 300, ..Limits::default() }, 0);
    for number in 0..50 {
        let known = Known { origin: "EWR", at: Some(1000), number, value: Some(7) };
        stage.send(FLIGHT, &[&known.flight()]).0.expect("valid");
        assert!(stage.counters().held_bytes <= 300);
    }
    let counters = stage.counters();
    assert!(counters.held >= 5 && counters.evicted == 50 - counters.held, "{counters:?}");
}

#[test]
fn rows_without_a_key_or_a_time_meet_none() {
    let sql = "SELECT f.number AS flight FROM flights f JOIN weather w ON f.delay = w.wind WITHIN 10 SECONDS";
    let mut stage = stage(sql, Limits::default(), 0);
    for value in [None, Some(3)] {
        for at in [None, Some(1000)] {
            let known = Known { origin: "EWR", at, number: 1, value };
            let flights = stage.send(FLIGHT, &[&known.flight()]).1.len();
            let reports = stage.send(WEATHER, &[&known.weather()]).1.len();
            // A whole number meets the same floating-point number.
            assert_eq!((flights, reports), (0, usize::from(value.is_some() && at.is_some())));
        }
    }
    assert_eq!(stage.counters().unmatched, 6);
}

#[test]
fn a_join_by_arrival_needs_no_field() {
    let inputs = [(FLIGHT, Time::Arrival), (WEATHER, Time::Arrival)];
    let query = Query::new(plan(SQL), &inputs, RESULT, Limits::default()).expect("runs");
    let mut stage = Stage::new(Box::new(query), "");
    let known = Known { origin: "EWR", at: None, number: 1, value: Some(7) };
    for (wait, met) in [(9, 1), (11, 0)] {
        stage.pass(Duration::from_secs(100));
        stage.send(FLIGHT, &[&known.flight()]).0.expect("valid");
        stage.pass(Duration::from_secs(wait));
        assert_eq!(stage.send(WEATHER, &[&known.weather()]).1.len(), met);
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let new = |sql: &str, inputs: &[Time], limits: Limits| {
        let formats = [FLIGHT, WEATHER];
        let inputs: Vec<_> = formats.into_iter().zip(inputs.iter().cloned()).collect();
        Query::new(plan(sql), &inputs, RESULT, limits).expect_err("refused").to_string()
    };
    let field =
        |path: &str| Time::Field { path: path.to_owned(), unit: Unit::Seconds, lateness: Duration::ZERO };
    let limits = Limits::default();
    for (error, expected) in [
        (new(SQL, &[Time::Arrival], limits), "2 sources, and 1 inputs"),
        (new(SQL, &[Time::Arrival, seconds(0)], limits), "w has the time of a field and f that of arrival"),
        (new(SQL, &[field("att"), seconds(0)], limits), "the nearest is \"at\""),
        (new(SQL, &[field("origin"), seconds(0)], limits), "no whole number"),
        (new(SQL, &[field("passengers.row"), seconds(0)], limits), "no one value"),
        (new(SQL, &[seconds(0), seconds(0)], Limits { rows: 0, ..limits }), "rows cannot be 0"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let sql =
        "SELECT COUNT(*) FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 1 HOUR WINDOW 5 ROWS";
    let inputs = [(FLIGHT, seconds(0)), (WEATHER, seconds(0))];
    let error = Query::new(plan(sql), &inputs, RESULT, limits).expect_err("refused");
    assert!(matches!(error, QuerySetupError::Unsupported(_)));
}

#[test]
fn state_outlives_the_handler_and_not_another_meaning() {
    let limits = Limits { rows: 100, row_bytes: 10_000, ..Limits::default() };
    let known = Known { origin: "EWR", at: Some(1000), number: 1, value: Some(7) };
    let mut first = stage(SQL, limits, 0);
    first.send(FLIGHT, &[&known.flight()]).0.expect("valid");
    let mut second = stage(SQL, limits, 0);
    std::mem::swap(&mut first.state, &mut second.state);
    assert_eq!(second.send(WEATHER, &[&known.weather()]).1.len(), 1);
    let mut other = stage(&SQL.replace("'10'", "'11'"), limits, 0);
    std::mem::swap(&mut second.state, &mut other.state);
    assert_eq!(other.send(WEATHER, &[&known.weather()]), (Ok(()), vec![]));
    assert_eq!(other.counters().held, 1);
    assert!(matches!(other.send(FLIGHT, &[b"x"]).0, Err(Stop::Fault(_))));
}
