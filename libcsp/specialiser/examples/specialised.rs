//! What specialised operators take beside generic ones, by the number of fields (C-CORE, table 3): the
//! operator alone, on messages of 600 bytes in memory. `cargo run --release -p csp-specialiser --example
//! specialised [-- KIND FIELDS VERSION COUNT]`: with arguments, one of them runs `COUNT` times, for `perf
//! stat`.
#![allow(clippy::unwrap_used, reason = "a bench")]

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State};
use csp_operators::{Limits, Query, Rules, Time};
use csp_queries::{Catalog, Plan};
use csp_specialiser::{Work, Workshop};
use csp_types::Instant;

/// Fields of each type, in turn: a number of 32 bits, a text, a number of 64 bits that can be null, a
/// floating-point number.
const FIELDS: usize = 32;
const LEN: usize = 600;
const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
const KINDS: [&str; 4] = ["predicates", "columns", "expressions", "both"];
const VERSIONS: [&str; 3] = ["viewed", "generic", "specialised"];
/// Rounds of each version, which take turns, and messages of a round.
const ROUNDS: usize = 31;
const BATCH: u64 = 20_000;

fn schema() -> Arc<Schema> {
    let fields: String = (0..FIELDS)
        .map(|at| {
            let kind = ["int32", "airport", "known", "double"][at % 4];
            format!("<field name=\"f{at}\" id=\"{}\" type=\"{kind}\"/>", at + 1)
        })
        .collect();
    let xml = format!(
        "<messageSchema id=\"1\" version=\"0\" byteOrder=\"littleEndian\"><types><composite name=\"messageHeader\">\
         <type name=\"blockLength\" primitiveType=\"uint16\"/><type name=\"templateId\" primitiveType=\"uint16\"/>\
         <type name=\"schemaId\" primitiveType=\"uint16\"/><type name=\"version\" primitiveType=\"uint16\"/></composite>\
         <composite name=\"text\"><type name=\"length\" primitiveType=\"uint16\"/><type name=\"varData\" primitiveType=\"uint8\" length=\"0\"/></composite>\
         <type name=\"airport\" primitiveType=\"char\" length=\"4\"/><type name=\"known\" primitiveType=\"int64\" presence=\"optional\"/></types>\
         <message name=\"M\" id=\"1\">{fields}<data name=\"rest\" id=\"99\" type=\"text\"/></message></messageSchema>"
    );
    Arc::new(Schema::parse(&xml).unwrap())
}

fn message(schema: &Schema) -> Vec<u8> {
    let block = schema.messages[0].block.length as u16;
    let mut bytes = Vec::new();
    [block, 1, 1, 0].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    for at in 0..FIELDS {
        match at % 4 {
            0 => bytes.extend((at as i32).to_le_bytes()),
            1 => bytes.extend(b"ATLX"),
            2 => bytes.extend((at as i64).to_le_bytes()),
            _ => bytes.extend((at as f64).to_le_bytes()),
        }
    }
    let rest = LEN - bytes.len() - 2;
    bytes.extend((rest as u16).to_le_bytes());
    bytes.resize(LEN, 7);
    bytes
}

/// A query of so many fields, every second of the message, so that no two columns lie side by side.
fn sql(kind: &str, count: usize) -> String {
    let field = |nth: usize| 2 * nth + (nth / 2) % 2;
    let predicate = |nth: usize| match field(nth) % 4 {
        0 => format!("f{} < 1000", field(nth)),
        1 => format!("f{} = 'ATLX'", field(nth)),
        2 => format!("f{} <> 1000", field(nth)),
        _ => format!("f{} >= 0.5", field(nth)),
    };
    let column = |nth: usize| format!("f{} AS o{nth}", field(nth));
    let expression = |nth: usize| match field(nth) % 4 {
        1 => format!("f{} = 'ATLX' AS o{nth}", field(nth)),
        _ => format!("f{} * 2 + 1 AS o{nth}", field(nth)),
    };
    let all = |of: &dyn Fn(usize) -> String, by: &str| (0..count).map(of).collect::<Vec<_>>().join(by);
    let predicates = all(&predicate, " AND ");
    match kind {
        "predicates" => format!("SELECT f0 FROM a WHERE {predicates}"),
        "columns" => format!("SELECT {} FROM a", all(&column, ", ")),
        "expressions" => format!("SELECT {} FROM a", all(&expression, ", ")),
        _ => format!("SELECT {} FROM a WHERE {predicates}", all(&column, ", ")),
    }
}

struct Channel(Arc<Schema>);

impl Catalog for Channel {
    fn format(&self, _: &str) -> Option<(Arc<Schema>, Name)> {
        Some((self.0.clone(), "M".into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["a".to_owned()]
    }
}

/// A message in one slice, or in two, which the operator views; and how many were emitted.
struct Bytes<'a> {
    bytes: &'a [u8],
    cut: usize,
    emitted: u64,
}

impl Port for Bytes<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        let end = if at < self.cut { self.cut } else { self.bytes.len() };
        (&self.bytes[at..end], Place { at: end as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, _: u8, emit: Emit<'_>) -> Result<(), Full> {
        black_box(&emit);
        self.emitted += 1;
        Ok(())
    }
}

thread_local!(static READS: Cell<u64> = const { Cell::new(0) });

/// A clock of trials on which the specialised version is the better one: a trial has 8 messages of the one,
/// then 8 of the other.
fn clock() -> u64 {
    let read = READS.replace(READS.get() + 1);
    if read % 2 == 1 && (read / 16).is_multiple_of(2) { 100 } else { 0 }
}

/// Processor time of the thread: that of others on a busy machine is not in it.
fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

struct Run {
    query: Query,
    state: State,
    cut: usize,
}

impl Run {
    fn new(plan: &Arc<Plan>, version: &str, workshop: &Arc<Workshop>, work: &Work, bytes: &[u8]) -> Self {
        let query = Query::new(plan.clone(), &[(FormatId(1), Time::Arrival)], FormatId(2), Limits::default());
        let mut query = query.unwrap();
        if version == "specialised" {
            query =
                query.specialised(&workshop.named("bench"), Rules { again: u32::MAX, ..Rules::default() });
            work.run_pending();
        }
        let state = State::new(&query.needs());
        let cut = if version == "viewed" { 12 } else { 0 };
        let mut run = Run { query, state, cut };
        READS.set(0);
        run.messages(bytes, 1000);
        if version == "specialised" {
            let standings = workshop.standings();
            assert!(
                standings.iter().all(|standing| standing.text.starts_with("specialised")),
                "{standings:?}"
            );
        }
        run
    }

    fn messages(&mut self, bytes: &[u8], count: u64) {
        let mut port = Bytes { bytes, cut: self.cut, emitted: 0 };
        for sequence in 0..count {
            let message =
                Message { format: FormatId(1), sequence, arrived: Instant::ZERO, len: LEN as u32, frames: 1 };
            let mut call = Call::new(message, Instant::ZERO, &mut self.state, &mut port);
            black_box(&mut self.query).on_message(&mut call).unwrap();
        }
        assert_eq!(port.emitted, count);
    }
}

fn main() {
    let schema = schema();
    let bytes = message(&schema);
    let (workshop, work) = Workshop::new(clock).unwrap();
    let plan = |kind: &str, count| {
        let sql = sql(kind, count);
        let plan = Plan::new(&sql, &Channel(schema.clone()), 90);
        Arc::new(plan.unwrap_or_else(|error| panic!("{sql}: {error}")))
    };
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let [kind, fields, version, count] = &arguments[..] {
        let plan = plan(kind, fields.parse().unwrap());
        return Run::new(&plan, version, &workshop, &work, &bytes).messages(&bytes, count.parse().unwrap());
    }
    println!(
        "ns of processor time a message of {LEN} bytes, medians of {ROUNDS} rounds; viewed: the format is looked up for each message"
    );
    println!(
        "{:12} {:>6} {:>8} {:>8} {:>12} {:>15} {:>14}",
        "kind", "fields", "viewed", "generic", "specialised", "generic/special", "viewed/special"
    );
    for kind in KINDS {
        for count in COUNTS {
            let plan = plan(kind, count);
            let mut runs = VERSIONS.map(|version| Run::new(&plan, version, &workshop, &work, &bytes));
            let mut times = [[0; ROUNDS]; VERSIONS.len()];
            for round in 0..ROUNDS {
                for (run, times) in runs.iter_mut().zip(&mut times) {
                    let begin = processor_time();
                    run.messages(&bytes, BATCH);
                    times[round] = processor_time() - begin;
                }
            }
            let [viewed, generic, specialised] = times.map(|mut times| {
                times.sort_unstable();
                times[ROUNDS / 2] as f64 / BATCH as f64
            });
            println!(
                "{kind:12} {count:6} {viewed:8.1} {generic:8.1} {specialised:12.1} {:15.2} {:14.2}",
                generic / specialised,
                viewed / specialised
            );
        }
    }
}
