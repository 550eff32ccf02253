//! Messages in one slice, which are read at fixed places, and the same messages in many slices, which are
//! viewed: operators and queries make the same of both, and of both in turn. `CSP_SEED=n` replays one seed.

mod common;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, written};
use csp_handlers::{FormatId, Stop};
use csp_operators::{Limits, Query, Time, Unit, make};
use csp_support::Random;
use csp_types::Duration;
use serde_json::json;

const QUERIES: [&str; 12] = [
    "SELECT origin, number, delay, carrier, services, price, delay * 2 AS twice FROM flights WHERE delay > 3 AND origin <> 'JFK'",
    "SELECT remark, number, carrier FROM flights WHERE origin = 'EWR' OR HAS(services, 'wifi')",
    "SELECT origin, COUNT(*) AS flights, SUM(delay) AS sum, AVG(number) AS mean, MIN(delay) AS least, MAX(at) AS most, LAST(delay) AS latest \
     FROM flights GROUP BY origin WINDOW 10 SECONDS",
    "SELECT carrier, services, COUNT(delay) AS known FROM flights WHERE number <> 2 GROUP BY carrier, services WINDOW 3 ROWS",
    "SELECT number % 2 AS odd, SUM(delay + number) AS sum FROM flights GROUP BY number % 2 WINDOW 10 SECONDS",
    "SELECT remark, MAX(delay) AS most FROM flights GROUP BY remark WINDOW 2 ROWS",
    "SELECT wind, COUNT(*) AS rows, MIN(wind) AS least FROM weather GROUP BY wind WINDOW 10 SECONDS",
    "SELECT f.number, f.origin, w.wind, w.wind * f.delay AS gust FROM flights f JOIN weather w ON f.origin = w.origin AND f.number = w.number \
     WITHIN 20 SECONDS WHERE f.delay > 0 AND w.wind < 3 AND f.number + w.number > 1",
    "SELECT f.remark, w.wind FROM flights f JOIN weather w ON f.number = w.wind WITHIN 20 SECONDS",
    "SELECT f.origin, COUNT(*) AS pairs, SUM(f.number * w.wind) AS sum FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 5 SECONDS \
     GROUP BY f.origin WINDOW 10 SECONDS",
    "SELECT WINDOW_START AS since, MIN(origin) AS first, LAST(destination) AS latest, COUNT(*) AS n FROM flights GROUP BY carrier HAVING COUNT(*) > 1 \
     WINDOW 9 SECONDS EVERY 3 SECONDS",
    "SELECT number, CASE WHEN delay > 3 THEN ABS(delay) ELSE COALESCE(delay, -1) END AS d, CAST(carrier = 'United' AS BIGINT) AS u, \
     CASE origin WHEN 'EWR' THEN 'Newark' ELSE origin END AS place FROM flights WHERE COALESCE(delay, 5) > 0",
];

const OPERATORS: [(&str, &str); 5] = [
    ("select", "delay > 3 AND carrier = 'United'"),
    ("project", "number, origin, delay, services"),
    ("project", "passengers, number, delay + 1 AS next, remark, carrier"),
    ("split", "whole; number, delay WHERE delay > 3; remark, origin; whole WHERE origin = 'EWR'"),
    (
        "merge",
        "by at seconds late 3 seconds; SELECT origin, COUNT(*) AS rows, SUM(number) AS sum FROM message GROUP BY origin WINDOW 5 SECONDS",
    ),
];

fn query(sql: &str) -> Stage {
    let seconds =
        || Time::Field { path: "at".to_owned(), unit: Unit::Seconds, lateness: Duration::from_secs(3) };
    let flush = Some(Duration::from_secs(30));
    let limits =
        Limits { rows: 40, row_bytes: 3000, groups: 12, group_bytes: 200, flush, ..Limits::default() };
    let plan = plan(sql);
    let format = |source: &csp_queries::Source| if source.channel == "flights" { FLIGHT } else { WEATHER };
    let inputs: Vec<_> = plan.sources.iter().map(|source| (format(source), seconds())).collect();
    let query = Query::new(plan, &inputs, RESULT, limits).unwrap_or_else(|error| panic!("{error}"));
    Stage::new(Box::new(query), "")
}

/// A message; often of an older or a newer writer, with something behind a text's end, or damaged.
fn message(random: &mut Random, clock: i64) -> (FormatId, Vec<u8>) {
    let channels = channels();
    let at = (random.below(20) > 0).then(|| clock - random.below(6) as i64);
    let origin = ["EWR", "JFK", "A"][random.below(3) as usize];
    let number = random.below(4);
    // The header has 8 bytes; both formats begin with the origin.
    const ORIGIN: usize = 8;
    let (format, mut bytes) = if random.below(2) == 0 {
        let wind =
            [json!(null), json!(0.0), json!(-0.0), json!(2.0), json!(2.5)][random.below(5) as usize].clone();
        let json = json!({"$message": "Weather", "origin": origin, "at": at, "wind": wind, "number": number});
        (WEATHER, written(&channels.weather, &json))
    } else {
        let mut json = flight();
        (json["origin"], json["at"], json["number"]) = (json!(origin), json!(at), json!(number));
        json["delay"] = if random.below(4) > 0 { json!(random.below(9)) } else { json!(null) };
        json["carrier"] = [json!(null), json!("United"), json!("JetBlue")][random.below(3) as usize].clone();
        json["services"] = [json!([]), json!(["meal"])][random.below(2) as usize].clone();
        json["remark"] = json!("r".repeat([0, 1, 300][random.below(3) as usize]));
        (FLIGHT, written(&channels.flights, &json))
    };
    match random.below(12) {
        0 => bytes[6] = 0,
        1 => bytes[6] = 3,
        2 | 3 if origin == "A" => bytes[ORIGIN + 2] = b'X',
        4 => bytes.truncate(random.below(bytes.len() as u64) as usize),
        5 => {
            // A newer writer's block is longer by two bytes.
            let length = u16::from_le_bytes([bytes[0], bytes[1]]);
            bytes[..2].copy_from_slice(&(length + 2).to_le_bytes());
            let behind = ORIGIN + usize::from(length);
            bytes.splice(behind..behind, [7, 7]);
        }
        _ => (),
    }
    (format, bytes)
}

/// What a stage has made of a message: how it ended, and what was emitted.
fn send(stage: &mut Stage, format: FormatId, frames: &[&[u8]]) -> (Result<(), Stop>, Vec<Vec<Vec<u8>>>) {
    let (done, emitted) = stage.send(format, frames);
    (done, emitted.into_iter().map(|emitted| emitted.frames).collect())
}

fn check(make: impl Fn() -> Stage, both: bool, seed: u64) {
    let mut random = Random::new(seed);
    // In one slice, in slices of a byte, and in either.
    let mut stages = [make(), make(), make()];
    (stages[0].slice, stages[1].slice) = (1 << 20, 1);
    let (mut clock, mut rows) = (1000, 0);
    for step in 0..300 {
        clock += random.below(2) as i64;
        let (mut format, bytes) = message(&mut random, clock);
        if !both && format == WEATHER {
            format = FLIGHT;
        }
        stages[2].slice = [1, 40, 1 << 20][random.below(3) as usize];
        let frames: &[&[u8]] = if random.below(4) == 0 { &[b"topic", &bytes] } else { &[&bytes] };
        let expected = send(&mut stages[1], format, frames);
        rows += expected.1.len();
        for at in [0, 2] {
            let made = send(&mut stages[at], format, frames);
            assert_eq!(made, expected, "seed {seed}, step {step}, stage {at}: {bytes:?}");
        }
    }
    let [first, second, third] = stages.each_mut().map(|stage| {
        stage.pass(Duration::from_secs(60));
        let rows: Vec<_> = stage.tick().into_iter().map(|emitted| emitted.frames).collect();
        (rows, stage.counters())
    });
    assert!(rows + second.0.len() > 3, "{rows} rows, {:?}", second.1);
    assert_eq!(first, second, "seed {seed}");
    assert_eq!(third, second, "seed {seed}");
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("CSP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CSP_SEEDS").unwrap_or(10).min(500),
    }
}

#[test]
fn queries_make_the_same_of_messages_however_they_lie() {
    for sql in QUERIES {
        for seed in seeds() {
            println!("CSP_SEED={seed} {sql}");
            check(|| query(sql), sql.contains("weather"), seed);
        }
    }
}

#[test]
fn operators_make_the_same_of_messages_however_they_lie() {
    let set = channels().set();
    for (name, parameters) in OPERATORS {
        for seed in seeds() {
            println!("CSP_SEED={seed} {name} {parameters}");
            let stage = || Stage::new(make(name, &set).expect("known"), parameters);
            check(stage, name == "merge", seed);
        }
    }
}
