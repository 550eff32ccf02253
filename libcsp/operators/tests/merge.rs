//! Streams that become one.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Stage, printed, schema, written};
use csp_handlers::{FormatId, State};
use csp_operators::{FormatSet, make};
use csp_support::Random;
use csp_types::Duration;
use serde_json::{Value as Json, json};

/// Sensors that each have a field of their own.
fn sensors(count: u32) -> Arc<FormatSet> {
    let mut set = FormatSet::new();
    for stream in 1..=count {
        let body = format!(
            "<type name=\"time\" primitiveType=\"int64\" presence=\"optional\"/></types><message name=\"Sensor{stream}\" id=\"1\">\
             <field name=\"place\" id=\"1\" type=\"airport\"/><field name=\"at\" id=\"2\" type=\"time\" presence=\"optional\"/>\
             <field name=\"value\" id=\"3\" type=\"int32\"/><field name=\"own{stream}\" id=\"4\" type=\"uint8\"/></message>"
        );
        let schema = schema(stream as u16, 0, &body);
        set.add(FormatId(stream), schema, format!("Sensor{stream}").as_str().into()).expect("free");
    }
    Arc::new(set)
}

fn row(set: &FormatSet, stream: u32, place: &str, at: Option<i64>, value: i64) -> Vec<u8> {
    let name = format!("Sensor{stream}");
    let json =
        json!({"$message": name, "place": place, "at": at, "value": value, format!("own{stream}"): stream});
    written(&set.get(FormatId(stream)).expect("added").schema, &json)
}

type Streams = BTreeMap<u32, (i64, i64)>;

fn seeds() -> u64 {
    std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20).min(100)
}

#[test]
fn the_rows_of_all_streams_go_into_the_same_windows() {
    const SQL: &str = "by at seconds late 5 seconds; SELECT place, COUNT(*) AS rows, SUM(value) AS sum, AVG(value) AS mean, LAST(value) AS latest FROM \
                       message WHERE value <> 3 GROUP BY place WINDOW INTERVAL '10' SECONDS";
    for seed in 0..seeds() {
        let (set, mut random) = (sensors(4), Random::new(seed));
        let mut stage = Stage::new(make("merge", &set).expect("known"), SQL);
        stage.room = 1 + random.below(3) as usize;
        let output = set.get(stage.handler.yields(0, FormatId(2))).expect("derived");
        let (mut clock, mut results) = (1000, Vec::new());
        let mut windows: BTreeMap<i64, Vec<(&str, Vec<i64>)>> = BTreeMap::new();
        for _ in 0..200 {
            clock += random.below(2) as i64;
            let (stream, at) = (1 + random.below(4) as u32, clock - random.below(5) as i64);
            let (place, value) = (["EWR", "JFK"][random.below(2) as usize], random.below(10) as i64);
            let (done, emitted) =
                stage.send(FormatId(stream), &[b"topic", &row(&set, stream, place, Some(at), value)]);
            assert_eq!(done, Ok(()));
            results.extend(emitted.iter().map(|emitted| printed(&output.schema, &emitted.frames[0])));
            if value != 3 {
                let groups = windows.entry(at.div_euclid(10) * 10).or_default();
                match groups.iter_mut().find(|group| group.0 == place) {
                    Some(group) => group.1.push(value),
                    None => groups.push((place, vec![value])),
                }
            }
        }
        // The other streams are silent: they are not waited for.
        stage.pass(Duration::from_secs(31));
        assert!(stage.tick().is_empty(), "time stands still");
        let last = stage.send(FormatId(1), &[&row(&set, 1, "EWR", Some(clock + 1000), 3)]).1;
        results.extend(last.iter().map(|emitted| printed(&output.schema, &emitted.frames[0])));
        let result = |(place, values): &(&str, Vec<i64>)| {
            let sum: i64 = values.iter().sum();
            json!({"$message": "Row", "place": place, "rows": values.len(), "sum": sum, "mean": sum as f64 / values.len() as f64,
                "latest": values.last()})
        };
        let expected: Vec<Json> = windows.values().flatten().map(result).collect();
        assert_eq!(results, expected, "seed {seed}");
        assert_eq!(stage.counters().late, 0, "seed {seed}");
    }
}

#[test]
fn rows_with_equal_keys_are_laid_side_by_side() {
    for seed in 0..seeds() {
        let (set, mut random) = (sensors(3), Random::new(seed));
        let mut stage =
            Stage::new(make("merge", &set).expect("known"), "by at seconds; UNION place WINDOW 10 seconds");
        stage.room = 1;
        let output = set.get(stage.handler.yields(0, FormatId(2))).expect("derived");
        let (mut clock, mut results, mut expected) = (1000, Vec::new(), Vec::new());
        // Of each window and place, the time and value of each stream.
        let mut waiting: BTreeMap<(i64, &str), Streams> = BTreeMap::new();
        for _ in 0..200 {
            clock += random.below(3) as i64;
            let stream = 1 + random.below(3) as u32;
            let (place, value) = (["EWR", "JFK"][random.below(2) as usize], random.below(10) as i64);
            let (done, emitted) =
                stage.send(FormatId(stream), &[&row(&set, stream, place, Some(clock), value)]);
            assert_eq!(done, Ok(()), "seed {seed}");
            results.extend(emitted.iter().map(|emitted| printed(&output.schema, &emitted.frames[0])));
            let key = (clock.div_euclid(10), place);
            let group = waiting.entry(key).or_default();
            group.insert(stream, (clock, value));
            if group.len() == 3 {
                let [one, two, three] = [1, 2, 3].map(|stream| group[&stream]);
                expected.push(json!({"$message": "Row", "place": place, "at": one.0, "value": one.1, "own1": 1, "Sensor2_at": two.0,
                    "Sensor2_value": two.1, "own2": 2, "Sensor3_at": three.0, "Sensor3_value": three.1, "own3": 3}));
                waiting.remove(&key);
            }
        }
        assert_eq!(results, expected, "seed {seed}");
        assert!(!expected.is_empty() && stage.counters().unmatched > 0);
    }
}

#[test]
fn wrong_merges_say_why() {
    let set = sensors(2);
    for (parameters, expected) in [
        ("SELECT place FROM message", "a merge needs a window"),
        (
            "SELECT plaec FROM message WINDOW 5 ROWS",
            "for messages \"Sensor1\": line 1, column 8: there is no column \"plaec\"",
        ),
        ("by at seconds SELECT place", "a semicolon is missing"),
        ("by at secnds; SELECT COUNT(*) FROM message WINDOW 1 SECOND", "the nearest is seconds"),
        ("by att seconds; SELECT COUNT(*) FROM message WINDOW 1 SECOND", "the nearest is \"at\""),
        ("UNION place", "a union needs a window"),
        ("UNION plaec WINDOW 5 seconds", "0 of the channel's formats have all of plaec"),
        ("UNION own1 WINDOW 5 seconds", "1 of the channel's formats have all of own1"),
        ("UNION place WINDOW 5", "is no time such as"),
    ] {
        let mut handler = make("merge", &set).expect("known");
        let error = handler.configure(parameters, &mut State::default()).expect_err(parameters).0;
        assert!(error.contains(expected), "{parameters}: {error}");
    }
    let stage =
        Stage::new(make("merge", &set).expect("known"), "SELECT SUM(own1) AS sum FROM message WINDOW 5 ROWS");
    assert!(stage.handler.accepts(FormatId(1)) && !stage.handler.accepts(FormatId(2)));
}
