//! Time per message of operators in process, at 600 bytes. `cargo bench -p csp-operators --bench operators`.
//!
//! `cargo bench -p csp-operators --bench operators -- --instructions NAME COUNT` runs one operator, for
//! `perf stat` or callgrind.
#![allow(missing_docs, clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::Criterion;
use csp_formats::{Schema, json};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State};
use csp_operators::{FormatSet, Limits, Query, Time, Unit, make};
use csp_queries::Plan;
use csp_types::{Duration, Instant};
use serde_json::json;

const HEADER: &str = "<composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/><type name=\"templateId\" \
    primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/><type name=\"version\" primitiveType=\"uint16\"/></composite>\
    <composite name=\"text\"><type name=\"length\" primitiveType=\"uint16\"/><type name=\"varData\" primitiveType=\"uint8\" length=\"0\" \
    characterEncoding=\"UTF-8\"/></composite><type name=\"airport\" primitiveType=\"char\" length=\"3\"/>\
    <type name=\"pad\" primitiveType=\"uint8\" length=\"400\"/>";

/// Flights of 600 bytes: as C-CORE's messages, with a passenger list.
fn schema(id: u16) -> Arc<Schema> {
    let xml = format!(
        "<messageSchema id=\"{id}\" version=\"0\" byteOrder=\"littleEndian\"><types>{HEADER}</types><message name=\"Flight{id}\" id=\"1\">\
         <field name=\"source\" id=\"1\" type=\"airport\"/><field name=\"destination\" id=\"2\" type=\"airport\"/>\
         <field name=\"departure\" id=\"3\" type=\"int64\"/><field name=\"number\" id=\"4\" type=\"uint32\"/>\
         <field name=\"delay\" id=\"5\" type=\"int32\"/><field name=\"rest\" id=\"6\" type=\"pad\"/>\
         <data name=\"passengers\" id=\"7\" type=\"text\"/></message></messageSchema>"
    );
    Arc::new(Schema::parse(&xml).unwrap())
}

fn message(schema: &Schema, number: u64, departure: i64) -> Vec<u8> {
    let source = ["ATL", "EWR", "JFK", "LGA"][(number % 4) as usize];
    let text = json!({"$message": format!("Flight{}", schema.id), "source": source, "destination": "PAR", "departure": departure,
        "number": number, "delay": 12, "rest": [], "passengers": "x".repeat(168)});
    let mut out = vec![0; 1000];
    let len = json::parse(schema, text.to_string().as_bytes(), &mut out).unwrap();
    assert_eq!(len, 600);
    out.truncate(len);
    out
}

/// Where the departure lies; the number follows.
const DEPARTURE: usize = 14;

/// A message in blocks of 2 KiB, as the pool has it: one slice.
struct Plain<'a> {
    bytes: &'a [u8],
    emitted: u64,
}

impl Port for Plain<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        (&self.bytes[at..], Place { at: self.bytes.len() as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, _: u8, emit: Emit<'_>) -> Result<(), Full> {
        black_box(emit);
        self.emitted += 1;
        Ok(())
    }
}

struct Bench {
    name: &'static str,
    handler: Box<dyn Handler>,
    state: State,
    inputs: Vec<(FormatId, Vec<u8>)>,
    next: usize,
    count: u64,
    streams: u32,
    now: Instant,
    emitted: u64,
}

impl Bench {
    fn new(
        name: &'static str,
        mut handler: Box<dyn Handler>,
        parameters: &str,
        inputs: Vec<(FormatId, Vec<u8>)>,
    ) -> Self {
        let mut state = State::new(&handler.needs());
        if !parameters.is_empty() {
            handler.configure(parameters, &mut state).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let streams = inputs.iter().map(|(format, _)| format.0).max().unwrap();
        Bench {
            name,
            handler,
            state,
            inputs,
            streams,
            count: u64::from(streams) - 1,
            next: 0,
            now: Instant::from_nanos(1),
            emitted: 0,
        }
    }

    #[inline(never)]
    fn message(&mut self) {
        let at = self.next;
        self.next = (at + 1) % self.inputs.len();
        let (format, bytes) = &mut self.inputs[at];
        // Times and numbers go on: each flight of a stream meets one of the other.
        self.count += 1;
        bytes[DEPARTURE..DEPARTURE + 8].copy_from_slice(&self.count.to_le_bytes());
        let number = (self.count / u64::from(self.streams)) as u32;
        bytes[DEPARTURE + 8..DEPARTURE + 12].copy_from_slice(&number.to_le_bytes());
        self.now += Duration::from_micros(10);
        let mut port = Plain { bytes: black_box(bytes), emitted: 0 };
        let message =
            Message { format: *format, sequence: 1, arrived: self.now, len: bytes.len() as u32, frames: 1 };
        self.handler.on_message(&mut Call::new(message, self.now, &mut self.state, &mut port)).unwrap();
        self.emitted += port.emitted;
    }
}

fn set(count: u16) -> Arc<FormatSet> {
    let mut set = FormatSet::new();
    for id in 1..=count {
        set.add(FormatId(id.into()), schema(id), format!("Flight{id}").as_str().into()).unwrap();
    }
    Arc::new(set)
}

struct Channels(Vec<Arc<Schema>>);

impl csp_queries::Catalog for Channels {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, csp_formats::Name)> {
        let at = ["a", "b"].iter().position(|name| *name == channel)?;
        Some((self.0[at].clone(), self.0[at].messages[0].name.clone()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }
}

/// Messages of streams in turn.
fn inputs(streams: u16, count: u64) -> Vec<(FormatId, Vec<u8>)> {
    let schemas: Vec<_> = (1..=streams).map(schema).collect();
    (0..count)
        .map(|number| {
            let stream = (number % u64::from(streams)) as usize;
            (
                FormatId(stream as u32 + 1),
                message(&schemas[stream], number / u64::from(streams), number as i64),
            )
        })
        .collect()
}

fn query(sql: &str, by_field: bool) -> Box<dyn Handler> {
    let channels = Channels(vec![schema(1), schema(2)]);
    let plan = Arc::new(Plan::new(sql, &channels, 99).unwrap_or_else(|error| panic!("{error}")));
    let time = || match by_field {
        true => {
            Time::Field { path: "departure".to_owned(), unit: Unit::Milliseconds, lateness: Duration::ZERO }
        }
        false => Time::Arrival,
    };
    let inputs: Vec<_> = (1..=plan.sources.len() as u32).map(|id| (FormatId(id), time())).collect();
    Box::new(Query::new(plan, &inputs, FormatId(9), Limits::default()).unwrap())
}

fn merge(name: &'static str, streams: u16) -> Bench {
    let parameters = "SELECT source, COUNT(*) AS flights, AVG(delay) AS mean, MAX(delay) AS most FROM message GROUP BY source WINDOW 5 MILLISECONDS";
    Bench::new(name, make("merge", &set(streams)).unwrap(), parameters, inputs(streams, 504))
}

fn benches() -> Vec<Bench> {
    let one = || inputs(1, 512);
    let operator = |name| make(name, &set(1)).unwrap();
    let ccore = "source = 'ATL' AND destination = 'PAR' AND number >= 0";
    vec![
        Bench::new("select", operator("select"), ccore, one()),
        Bench::new("project", operator("project"), "number, delay, source", one()),
        Bench::new("project with data", operator("project"), "number, passengers", one()),
        Bench::new(
            "select and project",
            query(
                "SELECT passengers, number FROM a WHERE source = 'ATL' AND destination = 'PAR' AND number >= 0",
                false,
            ),
            "",
            one(),
        ),
        Bench::new(
            "join",
            query(
                "SELECT a.number, b.delay, a.source FROM a JOIN b ON a.number = b.number WITHIN 10 MILLISECONDS",
                false,
            ),
            "",
            inputs(2, 512),
        ),
        Bench::new(
            "join by event time with data",
            query(
                "SELECT a.number, b.delay, a.passengers FROM a JOIN b ON a.number = b.number WITHIN 1 SECOND",
                true,
            ),
            "",
            inputs(2, 512),
        ),
        Bench::new(
            "window",
            query(
                "SELECT source, AVG(delay) AS mean, COUNT(*) AS n FROM a GROUP BY source WINDOW 5 MILLISECONDS",
                false,
            ),
            "",
            one(),
        ),
        merge("merge of 2", 2),
        merge("merge of 3", 3),
        merge("merge of 4", 4),
        Bench::new("split in 3", operator("split"), "whole; number, delay; source WHERE delay > 20", one()),
        Bench::new("translate", make("translate", &set(2)).unwrap(), "Flight2", one()),
        Bench::new(
            "anonymise",
            operator("anonymise"),
            "key 000102030405060708090a0b0c0d0e0f, hash number, mask passengers 4",
            one(),
        ),
        Bench::new("to-json", operator("to-json"), "", one()),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--instructions") {
        let name = arguments.get(at + 1).map_or("", String::as_str);
        let mut benches = benches();
        let bench = benches.iter_mut().find(|bench| bench.name == name).expect("a name of a benchmark");
        let count: u64 = arguments.get(at + 2).and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
        let begin = std::time::Instant::now();
        (0..count).for_each(|_| bench.message());
        let each = begin.elapsed().as_nanos() / u128::from(count);
        println!("{name}: {each} ns, {} emitted", bench.emitted);
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for mut bench in benches() {
        criterion.bench_function(bench.name, |bencher| bencher.iter(|| bench.message()));
    }
    criterion.final_summary();
}
