//! Operators process messages without allocation, but for JSON.

mod common;

use common::{FLIGHT, RESULT, WEATHER, channels, flight, plan, written};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State, Tick};
use csp_operators::{Counters, Limits, Query, Time, Unit, make};
use csp_support::allocation;
use csp_types::{Duration, Instant};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// A message in slices of 50 bytes, and the number of emits.
struct Plain<'a> {
    bytes: &'a [u8],
    emitted: u64,
}

impl Port for Plain<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        let end = (at + 50).min(self.bytes.len());
        (&self.bytes[at..end], Place { at: end as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, _: u8, _: Emit<'_>) -> Result<(), Full> {
        self.emitted += 1;
        Ok(())
    }
}

/// Gives messages of both formats to a handler, with times that close windows, and ticks. Returns emits and
/// allocations.
fn run(handler: &mut dyn Handler, state: &mut State, inputs: &[(FormatId, Vec<u8>)]) -> (u64, u64) {
    let (mut emitted, mut now) = (0, Instant::from_nanos(1));
    let before = allocation::count();
    for sequence in 0..200 {
        for (format, bytes) in inputs {
            now += Duration::from_millis(100);
            let mut port = Plain { bytes, emitted: 0 };
            let len = bytes.len() as u32;
            let message = Message { format: *format, sequence, arrived: now, len, frames: 1 };
            handler.on_message(&mut Call::new(message, now, state, &mut port)).expect("valid");
            handler.on_timer(&mut Tick::new(now, state, &mut port)).expect("valid");
            emitted += port.emitted;
        }
    }
    (emitted, allocation::count() - before)
}

fn inputs() -> Vec<(FormatId, Vec<u8>)> {
    let channels = channels();
    (0..20)
        .flat_map(|step| {
            let mut json = flight();
            (json["at"], json["number"]) = (json!(step * 3), json!(step));
            let weather =
                json!({"$message": "Weather", "origin": "EWR", "at": step * 3, "wind": 7.5, "number": step});
            [(FLIGHT, written(&channels.flights, &json)), (WEATHER, written(&channels.weather, &weather))]
        })
        .collect()
}

#[test]
fn operators_allocate_nothing_for_a_message() {
    let (channels, inputs) = (channels(), inputs());
    for (name, parameters) in [
        ("select", "number > 3"),
        ("project", "origin, number * 2 AS twice"),
        ("sample", "3"),
        (
            "merge",
            "by at seconds; SELECT origin, COUNT(*) AS rows FROM message GROUP BY origin WINDOW 5 SECONDS",
        ),
        (
            "merge",
            "SELECT origin, SUM(number) AS sum, COUNT(*) AS rows FROM message GROUP BY origin WINDOW 3 ROWS",
        ),
        ("merge", "UNION origin, number WINDOW 5 seconds"),
        ("translate", "Weather"),
        ("split", "whole; number WHERE number > 3; origin"),
        ("anonymise", "key 000102030405060708090a0b0c0d0e0f, hash origin, drop number"),
    ] {
        let mut handler = make(name, &channels.set()).expect("known");
        let mut state = State::new(&handler.needs());
        if !parameters.is_empty() {
            handler.configure(parameters, &mut state).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let (emitted, allocations) = run(&mut *handler, &mut state, &inputs);
        assert!(emitted > 10, "{name} {parameters}: {emitted}, {:?}", Counters::of(&state));
        assert_eq!(allocations, 0, "{name} {parameters}");
    }
}

#[test]
fn queries_allocate_nothing_for_a_message() {
    let inputs = inputs();
    let seconds =
        || Time::Field { path: "at".to_owned(), unit: Unit::Seconds, lateness: Duration::from_secs(60) };
    for sql in [
        "SELECT origin, number + 1 AS next FROM flights WHERE number > 3",
        "SELECT remark, COUNT(*) AS flights, AVG(delay) AS mean FROM flights GROUP BY remark WINDOW 1 SECOND",
        "SELECT number, MAX(delay) AS most FROM flights GROUP BY number WINDOW 2 ROWS",
        "SELECT f.number, remark, wind FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 6 SECONDS WHERE wind > 1",
        "SELECT COUNT(*) AS pairs FROM flights f JOIN weather w ON f.number = w.number WITHIN 6 SECONDS WINDOW 10 SECONDS",
    ] {
        let plan = plan(sql);
        let mut formats = [(FLIGHT, seconds()), (WEATHER, seconds())].to_vec();
        formats.truncate(plan.sources.len());
        if plan.window.is_some() {
            formats.iter_mut().for_each(|format| format.1 = Time::Arrival);
        }
        let inputs: Vec<_> =
            inputs.iter().filter(|(id, _)| formats.iter().any(|(known, _)| known == id)).cloned().collect();
        let limits = Limits { rows: 50, row_bytes: 5000, groups: 30, ..Limits::default() };
        let mut query = Query::new(plan, &formats, RESULT, limits).unwrap_or_else(|error| panic!("{error}"));
        let mut state = State::new(&query.needs());
        let (emitted, allocations) = run(&mut query, &mut state, &inputs);
        assert!(emitted > 0, "{sql}: {:?}", Counters::of(&state));
        assert_eq!(allocations, 0, "{sql}");
    }
}
