//! Windows beside a plain computation over all rows.

mod common;

use std::collections::BTreeMap;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, row, written};
use csp_operators::{Limits, Query, Time, Unit};
use csp_support::Random;
use csp_types::Duration;
use serde_json::{Value as Json, json};

const SELECT: &str = "SELECT destination, carrier, COUNT(*) AS flights, COUNT(delay) AS known, SUM(delay) AS total, AVG(delay) AS mean, \
                      MIN(delay) AS least, MAX(delay) AS most, LAST(delay) AS latest FROM flights WHERE number <> 3 GROUP BY destination, carrier";

/// A silence after which windows close.
const FLUSH: Option<Duration> = Some(Duration::from_secs(30));

fn seconds(lateness: u64) -> Time {
    Time::Field { path: "at".to_owned(), unit: Unit::Seconds, lateness: Duration::from_secs(lateness) }
}

fn stage(sql: &str, time: Time, limits: Limits) -> Stage {
    let query =
        Query::new(plan(sql), &[(FLIGHT, time)], RESULT, limits).unwrap_or_else(|error| panic!("{error}"));
    Stage::new(Box::new(query), "")
}

#[derive(Clone, Debug)]
struct Known {
    destination: &'static str,
    carrier: Option<&'static str>,
    at: Option<i64>,
    number: u64,
    delay: Option<i64>,
}

impl Known {
    fn random(random: &mut Random, clock: i64) -> Known {
        Known {
            destination: ["ORD", "SFO", "MIA"][random.below(3) as usize],
            carrier: [None, Some("United"), Some("JetBlue")][random.below(3) as usize],
            at: (random.below(20) > 0).then(|| clock - random.below(15) as i64),
            number: random.below(8),
            delay: (random.below(4) > 0).then(|| random.below(100) as i64 - 50),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut json = flight();
        (json["destination"], json["carrier"]) = (json!(self.destination), json!(self.carrier));
        (json["at"], json["number"], json["delay"]) = (json!(self.at), json!(self.number), json!(self.delay));
        written(&channels().flights, &json)
    }
}

/// The result of the rows of a group.
fn result(rows: &[&Known]) -> Json {
    let delays: Vec<i64> = rows.iter().filter_map(|row| row.delay).collect();
    let total = (!delays.is_empty()).then(|| delays.iter().sum::<i64>());
    json!({"destination": rows[0].destination, "carrier": rows[0].carrier, "flights": rows.len(), "known": delays.len(), "total": total,
        "mean": total.map(|total| total as f64 / delays.len() as f64), "least": delays.iter().min(), "most": delays.iter().max(),
        "latest": delays.last()})
}

type Groups<'a> = Vec<(&'static str, Option<&'static str>, Vec<&'a Known>)>;

fn add<'a>(groups: &mut Groups<'a>, row: &'a Known) -> usize {
    let known = groups.iter().position(|group| group.0 == row.destination && group.1 == row.carrier);
    let at = known.unwrap_or_else(|| {
        groups.push((row.destination, row.carrier, Vec::new()));
        groups.len() - 1
    });
    groups[at].2.push(row);
    at
}

fn seeds() -> u64 {
    std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20).min(200)
}

#[test]
fn windows_of_time_have_the_rows_of_a_plain_computation() {
    let sql = format!("{SELECT} WINDOW INTERVAL '10' SECONDS");
    let plan = plan(&sql);
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let lateness = random.below(16) as i64;
        let mut stage =
            stage(&sql, seconds(lateness as u64), Limits { groups: 100, flush: FLUSH, ..Limits::default() });
        stage.room = [1, 2, usize::MAX][random.below(3) as usize];
        let (mut clock, mut results) = (1000, Vec::new());
        let rows: Vec<Known> = (0..400)
            .map(|_| {
                clock += random.below(3) as i64;
                Known::random(&mut random, clock)
            })
            .collect();
        for known in &rows {
            let (done, emitted) = stage.send(FLIGHT, &[&known.bytes()]);
            assert_eq!(done, Ok(()), "seed {seed}");
            results.extend(emitted.iter().map(|emitted| row(&plan, &emitted.frames[0])));
        }
        // The plain computation.
        let (mut open, mut latest, mut late): (BTreeMap<i64, Groups<'_>>, _, _) =
            (BTreeMap::new(), i64::MIN, 0);
        let mut expected = Vec::new();
        for known in &rows {
            let Some(at) = known.at else { continue };
            latest = latest.max(at);
            while let Some(first) = open.first_entry()
                && first.key() + 10 <= latest - lateness
            {
                expected.extend(first.remove().iter().map(|group| result(&group.2)));
            }
            let begin = at.div_euclid(10) * 10;
            if known.number != 3 && begin + 10 <= latest - lateness {
                late += 1;
            } else if known.number != 3 {
                add(open.entry(begin).or_default(), known);
            }
        }
        assert_eq!(results, expected, "seed {seed}");
        assert!(stage.tick().is_empty(), "no time has passed");
        stage.pass(Duration::from_secs(31));
        let rest = stage.tick();
        let rest: Vec<Json> = rest.iter().map(|emitted| row(&plan, &emitted.frames[0])).collect();
        let open: Vec<Json> = open.values().flatten().map(|group| result(&group.2)).collect();
        assert_eq!(rest, open, "seed {seed}: a long silence closes what is open");
        let counters = stage.counters();
        assert_eq!((counters.late, counters.evicted, counters.held), (late, 0, 0), "seed {seed}");
        assert_eq!(counters.unmatched, rows.iter().filter(|row| row.at.is_none()).count() as u64);
    }
}

#[test]
fn windows_of_rows_have_the_rows_of_a_plain_computation() {
    let sql = format!("{SELECT} WINDOW 4 ROWS");
    let plan = plan(&sql);
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut stage = stage(&sql, Time::Arrival, Limits { groups: 9, ..Limits::default() });
        stage.room = 1;
        let rows: Vec<Known> = (0..400).map(|_| Known::random(&mut random, 0)).collect();
        let (mut groups, mut expected, mut results): (Groups<'_>, Vec<Json>, Vec<Json>) = Default::default();
        for known in &rows {
            let (done, emitted) = stage.send(FLIGHT, &[&known.bytes()]);
            assert_eq!(done, Ok(()), "seed {seed}");
            results.extend(emitted.iter().map(|emitted| row(&plan, &emitted.frames[0])));
            if known.number != 3 {
                let at = add(&mut groups, known);
                if groups[at].2.len() == 4 {
                    expected.push(result(&groups.remove(at).2));
                }
            }
        }
        assert_eq!(results, expected, "seed {seed}");
        assert_eq!(stage.counters().held as usize, groups.len());
    }
}

#[test]
fn windows_of_arrival_close_by_the_timer() {
    let sql = "SELECT COUNT(*) AS flights FROM flights WINDOW 1 SECOND";
    let (plan, mut stage) = (plan(sql), stage(sql, Time::Arrival, Limits::default()));
    let send = |stage: &mut Stage| {
        let bytes = written(&channels().flights, &flight());
        stage.send(FLIGHT, &[&bytes]).1
    };
    for _ in 0..3 {
        stage.pass(Duration::from_millis(300));
        assert!(send(&mut stage).is_empty());
        assert!(stage.tick().is_empty());
    }
    // 1.9 s: the window ends at 2 s, and messages may be in queues until 2.1 s.
    stage.pass(Duration::from_millis(190));
    assert!(stage.tick().is_empty());
    stage.pass(Duration::from_millis(20));
    let emitted = stage.tick();
    assert_eq!(row(&plan, &emitted[0].frames[0]), json!({"flights": 3}));
    assert!(stage.tick().is_empty());
    assert!(send(&mut stage).is_empty());
    stage.pass(Duration::from_secs(1));
    let emitted = send(&mut stage);
    assert_eq!(
        row(&plan, &emitted[0].frames[0]),
        json!({"flights": 1}),
        "a message closes windows before the timer does"
    );
}

#[test]
fn groups_without_room_are_counted() {
    let sql = "SELECT number, COUNT(*) AS flights FROM flights GROUP BY number WINDOW 10 SECONDS";
    let mut timed = stage(sql, seconds(0), Limits { groups: 5, flush: FLUSH, ..Limits::default() });
    let sql = sql.replace("SECONDS", "ROWS");
    let mut counted = stage(&sql, Time::Arrival, Limits { groups: 5, ..Limits::default() });
    for number in 0..8 {
        let known = Known { destination: "ORD", carrier: None, at: Some(1000), number, delay: None };
        for stage in [&mut timed, &mut counted] {
            stage.send(FLIGHT, &[&known.bytes()]).0.expect("valid");
            stage.send(FLIGHT, &[&known.bytes()]).0.expect("valid");
        }
    }
    // Later groups find no room in a window; of windows of rows the oldest gives way.
    assert_eq!((timed.counters().evicted, timed.counters().held), (6, 5));
    assert_eq!((counted.counters().evicted, counted.counters().held), (6, 5));
    timed.pass(Duration::from_secs(60));
    assert_eq!(timed.tick().len(), 5);
}

#[test]
fn pairs_of_a_join_go_into_windows() {
    let sql = "SELECT f.origin, COUNT(*) AS pairs, SUM(f.number * w.number) AS sum FROM flights f JOIN weather w ON f.origin = w.origin WITHIN \
               5 SECONDS GROUP BY f.origin WINDOW 10 SECONDS";
    let plan = plan(sql);
    let inputs = [(FLIGHT, seconds(3)), (WEATHER, seconds(3))];
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let limits = Limits { rows: 500, row_bytes: 1 << 16, groups: 50, flush: FLUSH, ..Limits::default() };
        let query = Query::new(plan.clone(), &inputs, RESULT, limits).expect("runs");
        let mut stage = Stage::new(Box::new(query), "");
        stage.room = 1;
        let (mut clock, mut results) = (1000, Vec::new());
        let mut seen: [Vec<(&str, i64, u64)>; 2] = Default::default();
        let mut windows: BTreeMap<i64, Vec<(&str, u64, u64)>> = BTreeMap::new();
        for _ in 0..300 {
            clock += random.below(2) as i64;
            let (at, number) = (clock - random.below(3) as i64, random.below(100));
            let (origin, side) = (["EWR", "JFK"][random.below(2) as usize], random.below(2) as usize);
            let (format, bytes) = if side == 0 {
                let mut json = flight();
                (json["origin"], json["at"], json["number"]) = (json!(origin), json!(at), json!(number));
                (FLIGHT, written(&channels().flights, &json))
            } else {
                let json =
                    json!({"$message": "Weather", "origin": origin, "at": at, "wind": 1.0, "number": number});
                (WEATHER, written(&channels().weather, &json))
            };
            let (done, emitted) = stage.send(format, &[&bytes]);
            assert_eq!(done, Ok(()), "seed {seed}");
            results.extend(emitted.iter().map(|emitted| row(&plan, &emitted.frames[0])));
            for (other, other_at, other_number) in &seen[1 - side] {
                if *other == origin && at.abs_diff(*other_at) <= 5 {
                    let groups = windows.entry(at.max(*other_at).div_euclid(10) * 10).or_default();
                    let known = groups.iter().position(|group| group.0 == origin).unwrap_or_else(|| {
                        groups.push((origin, 0, 0));
                        groups.len() - 1
                    });
                    groups[known].1 += 1;
                    groups[known].2 += number * other_number;
                }
            }
            seen[side].push((origin, at, number));
        }
        stage.pass(Duration::from_secs(31));
        results.extend(stage.tick().iter().map(|emitted| row(&plan, &emitted.frames[0])));
        let expected: Vec<Json> = windows
            .values()
            .flatten()
            .map(|(origin, pairs, sum)| json!({"origin": origin, "pairs": pairs, "sum": sum}))
            .collect();
        assert_eq!(results, expected, "seed {seed}");
        assert_eq!((stage.counters().late, stage.counters().evicted), (0, 0));
    }
}
