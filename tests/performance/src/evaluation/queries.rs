//! C-CORE, Table 1: two streams in, three out: a selection with projection of each, and the join of both.

use std::sync::Arc;
use std::time::Duration;

use csp_formats::{Name, Schema};
use csp_handlers::{FormatId, Handler};
use csp_operators::{Limits, Query, Time, Unit};
use csp_queries::{Catalog, Plan};

use super::figure::{Bar, Figure};
use super::flights::{Flights, Lengths};
use super::world::{Channel, World};

const LENGTHS: Lengths = Lengths { least: 600, most: 600 };
const LEN: f64 = 600.0;
const SELECT: &str =
    "SELECT passengers, tail FROM a WHERE a.source = 'ATLX' AND a.destination = 'PARX' AND a.delay < 200";
pub const JOIN: &str = "SELECT a.number, a.source, a.departure, b.delay, b.tail FROM a JOIN b ON a.number = b.number WITHIN INTERVAL '1' MINUTE";

pub struct Streams([Arc<Schema>; 2]);

impl Streams {
    pub fn of(streams: &[Flights; 2]) -> Self {
        Streams([streams[0].schema.clone(), streams[1].schema.clone()])
    }
}

/// Two streams of flights.
pub fn streams() -> [Flights; 2] {
    [1, 2].map(|id| Flights::new(id, LENGTHS))
}

/// The time of flights.
pub fn by_departure() -> Time {
    let lateness = csp_types::Duration::from_secs(5);
    Time::Field { path: "departure".to_owned(), unit: Unit::Seconds, lateness }
}

impl Catalog for Streams {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        let at = ["a", "b"].iter().position(|name| *name == channel)?;
        Some((self.0[at].clone(), ["Flight1", "Flight2"][at].into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }
}

/// Which of the queries run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queries {
    None,
    Selects,
    Join,
    All,
}

/// Two streams and their three results.
struct Broker {
    world: World,
    streams: [Flights; 2],
    own: [Channel; 2],
    joined: Option<Channel>,
    next: usize,
}

impl Broker {
    fn new(queries: Queries) -> Self {
        let streams = streams();
        let catalog = Streams::of(&streams);
        let mut world = World::new();
        let own = [world.channel("a"), world.channel("b")];
        if matches!(queries, Queries::Selects | Queries::All) {
            for (at, name) in ["a", "b"].iter().enumerate() {
                let sql =
                    SELECT.replace("FROM a", &format!("FROM {name}")).replace("a.", &format!("{name}."));
                let handler = format!("select-{name}");
                deploy(&mut world, &handler, &sql, &catalog, &[(FormatId(at as u32 + 1), Time::Arrival)]);
                world.path(own[at], &[(&handler, "")]);
            }
        }
        let joined = matches!(queries, Queries::Join | Queries::All).then(|| {
            let channel = world.channel("joined");
            let inputs = [(FormatId(1), by_departure()), (FormatId(2), by_departure())];
            deploy(&mut world, "join", JOIN, &catalog, &inputs);
            world.path(channel, &[("join", "")]);
            channel
        });
        Broker { world, streams, own, joined, next: 0 }
    }

    /// Publishes the next message of the two streams in turn; the joined channel gets a copy.
    fn offer(
        world: &mut World,
        streams: &mut [Flights; 2],
        own: &[Channel; 2],
        joined: Option<Channel>,
        at: usize,
    ) {
        let message = streams[at].next();
        let format = FormatId(at as u32 + 1);
        world.publish(own[at], format, message);
        if let Some(joined) = joined {
            world.publish(joined, format, message);
            world.offered -= 1; // it is the same message
        }
    }

    fn unshaped(&mut self, time: Duration) -> f64 {
        let Broker { world, streams, own, joined, next } = self;
        world.unshaped(time, |world| {
            *next = 1 - *next;
            Self::offer(world, streams, own, *joined, *next);
        })
    }

    fn shaped(&mut self, rate: f64, time: Duration) {
        let Broker { world, streams, own, joined, next } = self;
        world.shaped((rate, LEN), time, |world| {
            *next = 1 - *next;
            Self::offer(world, streams, own, *joined, *next);
        });
    }
}

/// Stores a query as a handler.
pub fn deploy(world: &mut World, name: &str, sql: &str, catalog: &Streams, inputs: &[(FormatId, Time)]) {
    let (plan, inputs) = (plan(sql, catalog), inputs.to_vec());
    world.deploy(name, move || query(&plan, &inputs));
}

/// Makes a handler of a query.
pub fn make(sql: &str, catalog: &Streams, inputs: &[(FormatId, Time)]) -> Box<dyn Handler> {
    query(&plan(sql, catalog), inputs)
}

fn plan(sql: &str, catalog: &Streams) -> Arc<Plan> {
    Arc::new(Plan::new(sql, catalog, 90).unwrap_or_else(|error| panic!("{error}")))
}

fn query(plan: &Arc<Plan>, inputs: &[(FormatId, Time)]) -> Box<dyn Handler> {
    let query = Query::new(plan.clone(), inputs, FormatId(9), Limits::default());
    Box::new(query.unwrap_or_else(|error| panic!("{error}")))
}

pub fn figure(time: Duration) -> Figure {
    let mut bars = Vec::new();
    let mut none = 0.0;
    for (name, queries) in [
        ("no query", Queries::None),
        ("select and project of each stream", Queries::Selects),
        ("join of both streams", Queries::Join),
        ("all three", Queries::All),
    ] {
        let mut broker = Broker::new(queries);
        let nanos = broker.unshaped(time);
        assert_eq!(broker.world.dropped, 0, "batches fit the queues");
        if queries == Queries::None {
            none = nanos;
        }
        let overhead = format!("{:.0}", nanos - none);
        let rows = format!("{:.2}", broker.world.delivered as f64 / broker.world.offered as f64);
        bars.push(Bar { name: name.to_owned(), value: LEN * 8.0 / nanos * 1e3, cells: vec![overhead, rows] });
    }
    let mut broker = Broker::new(Queries::All);
    broker.shaped(830e6, time * 2);
    let World { offered, dropped, .. } = broker.world;
    let findings = vec![format!(
        "Offered at 830 Mb/s with all three queries: {offered} messages, {dropped} lost. The paper: 200 Mb/s without loss, 350 Mb/s with some, and 31 to \
             50 µs of overhead a message."
    )];
    Figure {
        file: "c-core-queries",
        title: "C-CORE, Table 1: continual queries, two streams in, three out",
        unit: "Mb/s in",
        columns: &["ns beside no query", "rows out a message"],
        bars,
        method: "Two streams of 600 B in turn. A fourth of the messages of each is selected by three conditions and projected to two columns; the join meets each \
                 message with the one of the same number in the other stream. The join's channel gets its messages by a copy. “Beside no query” is the \
                 difference to the first row, in which every message is delivered; where queries run, the rows of the last column are.",
        findings,
    }
}
