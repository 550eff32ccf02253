//! Time per message of the join and the windows that `docs/messages/evaluation.md` compares with stream
//! processors, and of a selection with projection: the operator alone, on flights of 600 bytes in memory.
//!
//! `cargo run --release -p csp-operators --example stream-queries [-- NAME COUNT]`: with a name, that query
//! runs `COUNT` times, for `perf stat` and `perf record`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "measures on the real clock"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Clock;

use csp_formats::{Name, Schema, json};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State};
use csp_operators::{Limits, Query, Time, Unit};
use csp_queries::{Catalog, Plan};
use csp_types::{Duration, Instant};
use serde_json::json;

const QUERIES: [(&str, usize, &str); 4] = [
    (
        "windows",
        1,
        "SELECT source, COUNT(*) AS flights, AVG(delay) AS delay, MAX(distance) AS distance FROM a GROUP BY source WINDOW INTERVAL '1' HOUR",
    ),
    (
        "join",
        2,
        "SELECT a.number, a.source, a.departure, b.delay, b.tail FROM a JOIN b ON a.number = b.number WITHIN INTERVAL '1' MINUTE",
    ),
    (
        "select",
        1,
        "SELECT passengers, tail FROM a WHERE a.source = 'ATLX' AND a.destination = 'PARX' AND a.delay < 200",
    ),
    ("project", 1, "SELECT number, tail, delay * 2 AS twice FROM a WHERE a.delay < 200"),
];

const TYPES: &str = "<composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/>\
    <type name=\"templateId\" primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/>\
    <type name=\"version\" primitiveType=\"uint16\"/></composite>\
    <composite name=\"text\"><type name=\"length\" primitiveType=\"uint16\"/>\
    <type name=\"varData\" primitiveType=\"uint8\" length=\"0\" characterEncoding=\"UTF-8\"/></composite>\
    <type name=\"airport\" primitiveType=\"char\" length=\"4\"/><type name=\"carrier\" primitiveType=\"char\" length=\"4\"/>\
    <type name=\"tail\" primitiveType=\"char\" length=\"8\"/>";

const FIELDS: [(&str, &str); 16] = [
    ("number", "uint32"),
    ("departure", "int64"),
    ("delay", "int32"),
    ("source", "airport"),
    ("destination", "airport"),
    ("carrier", "carrier"),
    ("tail", "tail"),
    ("distance", "int32"),
    ("airTime", "int32"),
    ("fuel", "int32"),
    ("altitude", "int32"),
    ("speed", "int32"),
    ("heading", "int32"),
    ("crew", "int32"),
    ("bags", "int32"),
    ("seats", "int32"),
];

/// Where the number lies in a message; the time follows.
const NUMBER: usize = 8;
const DISTINCT: usize = 256;

fn schema(id: u16) -> Arc<Schema> {
    let fields: String = FIELDS
        .iter()
        .enumerate()
        .map(|(at, (name, kind))| format!("<field name=\"{name}\" id=\"{}\" type=\"{kind}\"/>", at + 1))
        .collect();
    let xml = format!(
        "<messageSchema id=\"{id}\" version=\"0\" byteOrder=\"littleEndian\"><types>{TYPES}</types><message name=\"Flight\" id=\"1\">{fields}\
         <data name=\"passengers\" id=\"30\" type=\"text\"/><data name=\"blocked\" id=\"31\" type=\"text\"/></message></messageSchema>"
    );
    Arc::new(Schema::parse(&xml).unwrap())
}

fn message(schema: &Schema, n: usize) -> Vec<u8> {
    let source = ["ATLX", "EWRX", "JFKX", "LGAX"][n % 4];
    let mut value = json!({"$message": "Flight", "source": source, "destination": "PARX", "carrier": "UA", "tail": format!("N{n:05}"),
        "blocked": "s".repeat(60), "passengers": "p".repeat(600 - 80 - 60 - 8 - 4)});
    for (name, kind) in FIELDS.iter().filter(|(_, kind)| kind.contains("int")) {
        value[name] = json!(if *kind == "int64" { 0 } else { n });
    }
    let mut out = vec![0; 700];
    let len = json::parse(schema, value.to_string().as_bytes(), &mut out).unwrap();
    out.truncate(len);
    out
}

struct Channels([Arc<Schema>; 2]);

impl Catalog for Channels {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        let at = ["a", "b"].iter().position(|name| *name == channel)?;
        Some((self.0[at].clone(), "Flight".into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }
}

/// A message in one slice, and how many were emitted.
struct Bytes<'a> {
    bytes: &'a [u8],
    emitted: u64,
}

impl Port for Bytes<'_> {
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

struct Run {
    handler: Query,
    state: State,
    streams: Vec<Vec<Vec<u8>>>,
    sent: u64,
    emitted: u64,
}

impl Run {
    fn new(sources: usize, sql: &str) -> Self {
        let schemas = [schema(1), schema(2)];
        let streams = schemas.iter().take(sources);
        let streams = streams.map(|schema| (0..DISTINCT).map(|n| message(schema, n)).collect()).collect();
        let plan = Arc::new(Plan::new(sql, &Channels(schemas), 90).unwrap_or_else(|error| panic!("{error}")));
        let time = || Time::Field {
            path: "departure".to_owned(),
            unit: Unit::Seconds,
            lateness: Duration::from_secs(5),
        };
        let inputs: Vec<_> = (1..=sources as u32).map(|id| (FormatId(id), time())).collect();
        let handler = Query::new(plan, &inputs, FormatId(9), Limits::default()).unwrap();
        let state = State::new(&handler.needs());
        Run { handler, state, streams, sent: 0, emitted: 0 }
    }

    fn message(&mut self) {
        self.sent += 1;
        let sources = self.streams.len() as u64;
        let (stream, number) = (self.sent % sources, self.sent / sources);
        let bytes = &mut self.streams[stream as usize][number as usize % DISTINCT];
        // Numbers and times go on: each flight of a stream meets one of the other.
        bytes[NUMBER..NUMBER + 4].copy_from_slice(&(number as u32).to_le_bytes());
        bytes[NUMBER + 4..NUMBER + 12].copy_from_slice(&number.to_le_bytes());
        let now = Instant::from_nanos(self.sent * 1_000);
        let message = Message {
            format: FormatId(stream as u32 + 1),
            sequence: self.sent,
            arrived: now,
            len: bytes.len() as u32,
            frames: 1,
        };
        let mut port = Bytes { bytes: black_box(bytes), emitted: 0 };
        self.handler.on_message(&mut Call::new(message, now, &mut self.state, &mut port)).unwrap();
        self.emitted += port.emitted;
    }

    /// Nanoseconds of a message in the median of batches.
    fn measure(&mut self, count: u64) -> f64 {
        let mut times: Vec<f64> = (0..count.div_ceil(32))
            .map(|_| {
                let batch = Clock::now();
                (0..32).for_each(|_| self.message());
                batch.elapsed().as_secs_f64() * 1e9 / 32.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.get(1).map_or(1_000_000, |count| count.parse().unwrap());
    for (name, sources, sql) in QUERIES {
        if arguments.first().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let mut run = Run::new(sources, sql);
        let nanos = run.measure(count);
        println!("{name}: {nanos:.0} ns a message, {} messages, {} rows", run.sent, run.emitted);
    }
}
