//! Random, truncated and damaged bytes: no operator panics, and each message is emitted, refused or given up.

mod common;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, written};
use csp_handlers::{FormatId, Stop};
use csp_operators::{JSON, Limits, Query, Time, Unit, make};
use csp_support::Random;
use csp_types::Duration;
use serde_json::json;

const OPERATORS: [(&str, &str); 13] = [
    ("select", "delay > 10 AND remark LIKE '%a%' AND HAS(services, 'wifi')"),
    ("project", "*, delay * 2 AS twice"),
    ("project", "number, passengers, remark"),
    ("sample", "2"),
    (
        "merge",
        "by at seconds late 3 seconds; SELECT origin, COUNT(*) AS rows FROM message GROUP BY origin WINDOW 5 SECONDS",
    ),
    (
        "merge",
        "SELECT remark, carrier, SUM(delay) AS sum, LAST(number) AS latest FROM message GROUP BY remark, carrier WINDOW 3 ROWS",
    ),
    ("merge", "by at seconds; UNION origin, number WINDOW 5 seconds"),
    ("translate", "Weather"),
    ("split", "whole; number WHERE delay > 3; *; whole WHERE origin = 'EWR'"),
    ("to-json", ""),
    ("from-json", "Flight"),
    (
        "anonymise",
        "key 000102030405060708090a0b0c0d0e0f, hash origin, hash number, mask remark 2, drop price, hash passengers.meal",
    ),
    ("anonymise", "drop passengers, mask destination 1"),
];

fn queries() -> Vec<Stage> {
    let seconds =
        || Time::Field { path: "at".to_owned(), unit: Unit::Days, lateness: Duration::from_secs(2) };
    let limits =
        Limits { rows: 7, row_bytes: 500, groups: 4, group_bytes: 60, result_len: 200, ..Limits::default() };
    [
        "SELECT *, delay + number AS sum FROM flights WHERE remark LIKE '%e%'",
        "SELECT remark, MAX(number) AS most FROM flights GROUP BY remark WINDOW 1 DAY",
        "SELECT MIN(delay / number) AS least FROM flights GROUP BY services, origin WINDOW 2 ROWS",
        "SELECT f.remark, passengers, wind FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 2 DAYS",
        "SELECT f.number, f.origin, AVG(wind * delay) AS mean FROM flights f JOIN weather w ON f.number = w.number WITHIN 9 DAYS GROUP BY f.number, \
         f.origin WINDOW 1 DAY",
    ]
    .iter()
    .map(|sql| {
        let plan = plan(sql);
        let inputs: Vec<_> = [FLIGHT, WEATHER].into_iter().take(plan.sources.len()).map(|id| (id, seconds())).collect();
        Stage::new(Box::new(Query::new(plan, &inputs, RESULT, limits).unwrap_or_else(|error| panic!("{error}"))), "")
    })
    .collect()
}

fn message(random: &mut Random) -> (FormatId, Vec<u8>) {
    let channels = channels();
    let at = [json!(null), json!(random.below(12)), json!(random.number() as i64)][random.below(3) as usize]
        .clone();
    let number = random.below(3);
    if random.below(2) == 0 {
        let origin = ["EWR", "JFK"][random.below(2) as usize];
        let json = json!({"$message": "Weather", "origin": origin, "at": at, "wind": 2.5, "number": number});
        return (WEATHER, written(&channels.weather, &json));
    }
    let mut json = flight();
    (json["at"], json["number"]) = (at, json!(number));
    (FLIGHT, written(&channels.flights, &json))
}

/// A message that is random, cut, or has some bytes changed.
fn damaged(random: &mut Random) -> (FormatId, Vec<u8>) {
    let (format, mut bytes) = message(random);
    match random.below(6) {
        0 => bytes = (0..random.below(200)).map(|_| random.number() as u8).collect(),
        1 | 2 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
        3 => {
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.number() as u8][random.below(6) as usize];
            }
        }
        4 => bytes.extend((0..random.below(50)).map(|_| random.number() as u8)),
        _ => (),
    }
    (format, bytes)
}

fn check(stage: &mut Stage, random: &mut Random, rounds: u32) {
    for _ in 0..rounds {
        let (format, bytes) = damaged(random);
        let format =
            [format, format, format, FLIGHT, WEATHER, FormatId::UNKNOWN, JSON][random.below(7) as usize];
        stage.slice = 1 + random.below(40) as usize;
        stage.room = [1, 3, usize::MAX][random.below(3) as usize];
        let mut frames: Vec<&[u8]> = vec![b"topic", &bytes, b""];
        match random.below(3) {
            0 => frames = vec![&bytes],
            1 => frames.truncate(2),
            _ => (),
        }
        let (done, _) = stage.send(format, &frames);
        assert!(matches!(done, Ok(()) | Err(Stop::Fault(_))));
        if random.below(10) == 0 {
            stage.pass(Duration::from_millis(random.below(20_000)));
            stage.tick();
        }
    }
}

fn seeds() -> u64 {
    std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(5).min(50)
}

#[test]
fn no_bytes_make_an_operator_panic() {
    let set = channels().set();
    for seed in 0..seeds() {
        for (name, parameters) in OPERATORS {
            eprintln!("seed {seed}: {name} {parameters}");
            let mut random = Random::new(seed);
            let mut stage = Stage::new(make(name, &set).expect("known"), parameters);
            check(&mut stage, &mut random, 300);
            let counters = stage.counters();
            assert!(counters.invalid > 0 || name == "sample", "{name}: {counters:?}");
        }
    }
}

#[test]
fn no_bytes_make_a_query_panic() {
    for seed in 0..seeds() {
        for (at, mut stage) in queries().into_iter().enumerate() {
            eprintln!("seed {seed}: query {at}");
            check(&mut stage, &mut Random::new(seed), 600);
            assert!(stage.counters().invalid > 0);
        }
    }
}

#[test]
fn unconfigured_operators_give_messages_up_or_pass_them() {
    let set = channels().set();
    for name in csp_operators::NAMES {
        let mut stage = Stage::new(make(name, &set).expect("known"), "");
        check(&mut stage, &mut Random::new(1), 50);
    }
}

#[test]
fn no_parameters_make_an_operator_panic() {
    let set = channels().set();
    let mut random = Random::new(8);
    for (name, parameters) in OPERATORS {
        for _ in 0..300 {
            let mut text: Vec<char> = parameters.chars().collect();
            for _ in 0..1 + random.below(4) {
                let at = random.below(text.len() as u64 + 1) as usize;
                match random.below(3) {
                    0 => text.truncate(at),
                    1 => text.insert(
                        at,
                        ['\'', '"', '(', ';', ',', ' ', 'é', '.', '0', '%'][random.below(10) as usize],
                    ),
                    _ if at < text.len() => _ = text.remove(at),
                    _ => (),
                }
            }
            let text: String = text.into_iter().collect();
            let mut handler = make(name, &set).expect("known");
            let mut state = csp_handlers::State::new(&handler.needs());
            let _ = handler.configure(&text, &mut state);
        }
    }
}
