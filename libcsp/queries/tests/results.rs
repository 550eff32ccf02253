//! Results of queries over messages.

mod common;

use common::{channels, flight, plan, printed, written};
use csp_formats::MessageView;
use csp_queries::{Accumulator, Datum, Plan, Window};
use serde_json::{Value as Json, json};

/// The result of a query over one flight; `None` if the filter does not accept it.
fn result(sql: &str, flight: &Json) -> Option<Json> {
    let plan = plan(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    over(&plan, flight)
}

fn over(plan: &Plan, flight: &Json) -> Option<Json> {
    let bytes = written(&channels().flights, flight);
    let slices: Vec<&[u8]> = bytes.chunks(7).collect();
    let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
    let mut out = [0; 4096];
    plan.accepts(&[&view]).expect("valid").then(|| {
        let len = plan.emit(&[&view], &[], &mut out).unwrap_or_else(|error| panic!("{error}"));
        printed(&plan.derived.schema, &out[..len])
    })
}

fn row(members: Json) -> Option<Json> {
    let mut row = members;
    row["$message"] = json!("Row");
    Some(row)
}

#[test]
fn columns_keep_their_types_and_expressions_are_numbers() {
    let sql = "SELECT remark, passengers, origin, delay, carrier, services, price, seats, aircraft, distance * 2 AS twice, \
               distance / 2 AS half, price.mantissa AS cents, delay > 10 AS late, speed FROM flights";
    let mut expected = json!({"remark": "späte Ankunft", "passengers": [{"row": 1, "meal": "fish"}, {"row": 2, "meal": "none"}],
        "origin": "EWR", "delay": 12, "carrier": "United", "services": ["wifi"], "price": {"mantissa": 12999, "exponent": -2}, "seats": 180,
        "aircraft": "A320", "twice": 1438, "half": 359.5, "cents": 12999, "late": "True", "speed": 0.5});
    assert_eq!(result(sql, &flight()), row(expected.clone()));
    let mut unknown = flight();
    unknown["delay"] = Json::Null;
    unknown["carrier"] = Json::Null;
    for name in ["delay", "carrier", "late"] {
        expected[name] = Json::Null;
    }
    assert_eq!(result(sql, &unknown), row(expected));
}

#[test]
fn everything_is_all_that_a_message_has() {
    let mut all = flight();
    all["$message"] = json!("Row");
    all["seats"] = json!(180);
    all["aircraft"] = json!("A320");
    all["price"]["exponent"] = json!(-2);
    assert_eq!(result("SELECT * FROM flights", &flight()), Some(all.clone()));
    assert_eq!(result("SELECT f.* FROM flights AS f", &flight()), Some(all));
}

#[test]
fn what_an_older_writer_does_not_know_is_null() {
    let plan =
        plan("SELECT origin, services FROM flights WHERE NOT HAS(services, 'wifi') OR services IS NULL")
            .expect("valid");
    let mut bytes = written(&channels().flights, &flight());
    // The version in the header.
    bytes[7] = 0;
    let slices = [&bytes[..]];
    let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
    assert!(plan.accepts(&[&view]).expect("valid"));
    let mut out = [0; 100];
    let len = plan.emit(&[&view], &[], &mut out).expect("fits");
    assert_eq!(printed(&plan.derived.schema, &out[..len])["services"], json!([]));
}

#[test]
fn conditions_are_true_false_or_null() {
    for (condition, expected) in [
        ("origin = 'EWR' AND destination = 'ORD'", true),
        ("origin = 'EW'", false),
        ("origin < 'EWS' AND 'EWQ' < origin", true),
        ("origin IN ('JFK', 'EWR')", true),
        ("origin NOT IN ('JFK', 'LGA')", true),
        ("origin LIKE 'E%' AND origin LIKE '_W_' AND NOT origin LIKE '%W'", true),
        ("remark LIKE '%Ankunft' AND remark LIKE 'sp%te%t'", true),
        ("aircraft = 'A320' AND seats = 180", true),
        ("carrier = 'United'", true),
        ("carrier <> 'United'", false),
        ("carrier IN ('United', 'JetBlue')", true),
        ("HAS(services, 'wifi') AND NOT HAS(services, 'meal')", true),
        ("delay BETWEEN 12 AND 12", true),
        ("delay NOT BETWEEN 10 AND 20", false),
        ("delay + 1.5 = 13.5", true),
        ("-delay = -12 AND delay % 5 = 2 AND (delay - 2) * 3 = 30", true),
        ("delay / 0 = 1 OR TRUE", true),
        ("delay / 0 IS NULL", true),
        ("delay = NULL", false),
        ("NOT (delay = NULL)", false),
        ("NULL AND FALSE", false),
        ("NOT (NULL AND FALSE)", true),
        ("price.mantissa / 100 > 129.98", true),
        ("flights.distance >= 719", true),
        ("remark = 'späte Ankunft'", true),
        ("speed <= 0.5", true),
        ("city = 'Zürich'", true),
        ("city LIKE 'Z_rich'", true),
    ] {
        let sql = format!("SELECT origin FROM flights WHERE {condition}");
        assert_eq!(result(&sql, &flight()).is_some(), expected, "{condition}");
    }
    let mut unknown = flight();
    unknown["delay"] = Json::Null;
    for (condition, expected) in [
        ("delay > 0", false),
        ("NOT delay > 0", false),
        ("delay IS NULL", true),
        ("delay IS NOT NULL", false),
    ] {
        let sql = format!("SELECT origin FROM flights WHERE {condition}");
        assert_eq!(result(&sql, &unknown).is_some(), expected, "{condition}");
    }
}

#[test]
fn a_join_reads_both_sides() {
    let sql = "SELECT f.origin, destination, wind, wind * distance AS effort FROM flights f JOIN weather w ON f.origin = w.origin WITHIN \
               INTERVAL '1' HOUR WHERE wind > 10";
    let plan = plan(sql).unwrap_or_else(|error| panic!("{error}"));
    let join = plan.join.as_ref().expect("joined");
    assert_eq!(join.within_us, 3_600_000_000);
    let [(left, right)] = join.keys[..] else { panic!("one pair") };
    assert_eq!((plan.columns[left].source, plan.columns[right].source), (0, 1));
    let channels = channels();
    let flight = written(&channels.flights, &flight());
    let weather = written(
        &channels.weather,
        &json!({"$message": "Weather", "origin": "EWR", "wind": 12.5, "hour": 5, "station": null}),
    );
    let (flight, weather) = ([&flight[..]], [&weather[..]]);
    let flight = MessageView::new(&channels.flights, &flight).expect("valid");
    let weather = MessageView::new(&channels.weather, &weather).expect("valid");
    let rows = [&*flight, &*weather];
    assert!(plan.accepts(&rows).expect("valid"));
    let mut out = [0; 200];
    let len = plan.emit(&rows, &[], &mut out).expect("fits");
    let expected = json!({"origin": "EWR", "destination": "ORD", "wind": 12.5, "effort": 8987.5});
    assert_eq!(Some(printed(&plan.derived.schema, &out[..len])), row(expected));
}

#[test]
fn aggregates_are_computed_over_a_window() {
    let sql = "SELECT origin, COUNT(*) AS flights, COUNT(delay) AS known, AVG(delay) AS mean, SUM(delay), MIN(delay), MAX(delay + 1) AS most, \
               SUM(delay) / COUNT(*) AS share FROM flights WHERE distance > 0 GROUP BY origin WINDOW INTERVAL '30 minutes'";
    let plan = plan(sql).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plan.window, Some(Window::Time { length_us: 1_800_000_000, every_us: 1_800_000_000 }));
    assert_eq!(plan.aggregates.len(), 6, "those that are named twice are computed once");
    let schema = channels().flights;
    let mut accumulators = vec![Accumulator::default(); plan.aggregates.len()];
    let mut last = Vec::new();
    for delay in [json!(10), json!(null), json!(-4), json!(3)] {
        let mut flight = flight();
        flight["delay"] = delay;
        last = written(&schema, &flight);
        let slices = [&last[..]];
        let view = MessageView::new(&schema, &slices).expect("valid");
        for (accumulator, aggregate) in accumulators.iter_mut().zip(&plan.aggregates) {
            let datum = match &aggregate.argument {
                Some(argument) => plan.evaluate(argument, &[&view], &[]).expect("valid"),
                None => Datum::Boolean(true),
            };
            aggregate.function.add(accumulator, &datum.into());
        }
    }
    let both = plan.aggregates.iter().zip(&accumulators);
    let results: Vec<Datum<'_>> = both.map(|(aggregate, sum)| aggregate.function.result_of(sum)).collect();
    let slices = [&last[..]];
    let view = MessageView::new(&schema, &slices).expect("valid");
    let mut out = [0; 200];
    let len = plan.emit(&[&view], &results, &mut out).expect("fits");
    let expected = json!({"origin": "EWR", "flights": 4, "known": 3, "mean": 3.0, "sum_delay": 9, "min_delay": -4, "most": 11, "share": 2.25});
    assert_eq!(Some(printed(&plan.derived.schema, &out[..len])), row(expected));
    let none = Accumulator::default();
    let empty = plan.aggregates[2].function.result_of(&none);
    assert!(matches!(empty, Datum::Null));
}

#[test]
fn a_row_that_does_not_fit_is_an_error() {
    let plan = plan("SELECT * FROM flights").expect("valid");
    let bytes = written(&channels().flights, &flight());
    let slices = [&bytes[..]];
    let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
    let mut out = [0; 4096];
    let len = plan.emit(&[&view], &[], &mut out).expect("fits");
    for size in 0..len {
        plan.emit(&[&view], &[], &mut out[..size]).expect_err("too small");
    }
}
