//! Morphing, Figure 3: six chains of two handlers, which differ in how much data is left between the two.

use std::sync::Arc;
use std::time::Duration;

use csp_formats::{Name, Schema};
use csp_handlers::FormatId;
use csp_operators::{ChainStage, FormatSet, Limits, Optimised, Query, Time, make, optimise};
use csp_queries::{Catalog, Plan};

use super::figure::{Bar, Figure};
use super::flights::{Flights, Lengths};
use super::world::{Channel, World};

/// The paper's events.
const LENGTHS: Lengths = Lengths { least: 350, most: 1_150 };
/// The format of flights, and of what the reformatting query makes.
const FLIGHT: FormatId = FormatId(1);
const REFORMATTED: FormatId = FormatId(2);

const NUMBERS: [&str; 12] = [
    "number",
    "departure",
    "delay",
    "distance",
    "airTime",
    "fuel",
    "altitude",
    "speed",
    "heading",
    "crew",
    "bags",
    "seats",
];
const TEXTS: [&str; 4] = ["source", "destination", "carrier", "tail"];
/// Numbers that a strong reduction leaves: with the texts and the header 72 bytes.
const STRONG: usize = 10;

/// Columns as a SELECT list; numbers are computed where they are to be written in another type.
pub fn columns(numbers: usize, reformat: bool, data: &[&str]) -> String {
    let number = |name: &&str| if reformat { format!("{name} + 0 AS {name}") } else { (*name).to_owned() };
    let numbers = NUMBERS[..numbers].iter().map(number);
    let texts = TEXTS.iter().chain(data).map(|name| (*name).to_owned());
    numbers.chain(texts).collect::<Vec<_>>().join(", ")
}

struct One(Arc<Schema>);

impl Catalog for One {
    fn format(&self, _: &str) -> Option<(Arc<Schema>, Name)> {
        Some((self.0.clone(), "Flight1".into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["flights".to_owned()]
    }
}

/// A chain: its name, and what each handler does.
#[derive(Clone)]
struct Chain {
    name: &'static str,
    first: First,
    second: String,
}

#[derive(Clone)]
enum First {
    Project(String),
    /// A whole query, which reformats and discards.
    Query(String),
}

fn chains() -> [Chain; 6] {
    let all = columns(12, true, &["passengers", "blocked"]);
    let (strong, weak) = (columns(STRONG, false, &[]), columns(12, false, &["passengers"]));
    let query = |condition: &str| First::Query(format!("SELECT {all} FROM flights WHERE {condition}"));
    let chain = |name, first, second: &str| Chain { name, first, second: second.to_owned() };
    [
        chain("1 reduce to 72 B, then reformat", First::Project(strong.clone()), &columns(STRONG, true, &[])),
        chain(
            "2 drop blocked seats, then reformat",
            First::Project(weak.clone()),
            &columns(12, true, &["passengers"]),
        ),
        chain("3 reformat, then reduce to 72 B", First::Project(all.clone()), &strong),
        chain("4 reformat, then drop blocked seats", First::Project(all.clone()), &weak),
        chain("5 as 3, and 90 % are discarded first", query("number % 10 = 0"), &strong),
        chain("6 as 4, and 10 % are discarded first", query("number % 10 <> 0"), &weak),
    ]
}

/// Returns a chain of two projections as the optimiser orders it, with the first line of what it says.
fn optimised(chain: &Chain, name: &'static str) -> (Vec<ChainStage>, &'static str, String) {
    let First::Project(first) = &chain.first else { unreachable!("a query is no stage of a chain") };
    let stages = ChainStage::list(&[("project", first), ("project", &chain.second)]);
    let mut set = FormatSet::default();
    set.add(FLIGHT, Flights::new(1, LENGTHS).schema, "Flight1".into()).expect("the id is new");
    let Optimised { stages, notes } = optimise(&stages, &Arc::new(set), FLIGHT);
    (stages, name, notes.into_iter().next().unwrap_or_default())
}

/// Measures a chain of operators.
fn measure_stages(name: &'static str, stages: &[ChainStage], time: Duration) -> Measured {
    let flights = Flights::new(1, LENGTHS);
    let mut world = World::new();
    let channel = world.channel("flights");
    let mut set = FormatSet::default();
    set.add(FLIGHT, flights.schema.clone(), "Flight1".into()).expect("the id is new");
    let set = Arc::new(set);
    let names: Vec<String> = (0..stages.len()).map(|at| format!("stage-{at}")).collect();
    for (deployed, stage) in names.iter().zip(stages) {
        let (set, handler) = (set.clone(), stage.handler.clone());
        world.deploy(deployed, move || make(&handler, &set).expect("the optimiser names operators"));
    }
    let path: Vec<(&str, &str)> =
        names.iter().zip(stages).map(|(name, stage)| (name.as_str(), stage.parameters.as_str())).collect();
    world.path(channel, &path);
    Measured::of(name, (world, channel), flights, time)
}

struct Measured {
    name: &'static str,
    nanos: f64,
    mbps: f64,
    out: f64,
}

impl Measured {
    /// Publishes flights for `time` in a channel whose path is set.
    fn of(
        name: &'static str,
        (mut world, channel): (World, Channel),
        mut flights: Flights,
        time: Duration,
    ) -> Measured {
        let nanos = world.unshaped(time, |world| world.publish(channel, FLIGHT, flights.next()));
        assert_eq!(world.dropped, 0, "batches fit the queues");
        let mbps = flights.mean_len() * 8.0 / nanos * 1e3;
        Measured { name, nanos, mbps, out: world.bytes as f64 / world.offered as f64 }
    }
}

fn measure(chain: Chain, time: Duration) -> Measured {
    let flights = Flights::new(1, LENGTHS);
    let mut world = World::new();
    let channel = world.channel("flights");
    let mut set = FormatSet::default();
    set.add(FLIGHT, flights.schema.clone(), "Flight1".into()).expect("the id is new");
    let (first, parameters) = match chain.first {
        First::Project(list) => ("first", list),
        First::Query(sql) => {
            let plan =
                Plan::new(&sql, &One(flights.schema.clone()), 90).unwrap_or_else(|error| panic!("{error}"));
            let plan = Arc::new(plan);
            set.add(REFORMATTED, plan.derived.schema.clone(), csp_queries::ROW.into())
                .expect("the id is new");
            let make = move || -> Box<dyn csp_handlers::Handler> {
                let inputs = [(FLIGHT, Time::Arrival)];
                let query = Query::new(plan.clone(), &inputs, REFORMATTED, Limits::default());
                Box::new(query.unwrap_or_else(|error| panic!("{error}")))
            };
            world.deploy("query", make);
            ("query", String::new())
        }
    };
    let set = Arc::new(set);
    for name in ["first", "second"] {
        let set = set.clone();
        world.deploy(name, move || make("project", &set).expect("project is known"));
    }
    world.path(channel, &[(first, &parameters), ("second", &chain.second)]);
    Measured::of(chain.name, (world, channel), flights, time)
}

fn sentence(note: &str) -> String {
    format!("“{}”;", note.trim_end_matches('.'))
}

pub fn figure(time: Duration) -> Figure {
    let all = chains();
    let ordered = [
        optimised(&all[2], "3 as the optimiser orders it"),
        optimised(&all[3], "4 as the optimiser orders it"),
    ];
    let mut measured: Vec<Measured> = all.into_iter().map(|chain| measure(chain, time)).collect();
    let again = ordered.iter().map(|(stages, name, _)| measure_stages(name, stages, time));
    measured.extend(again);
    let of = |at: usize| measured[at].mbps;
    let findings = vec![
        format!(
            "The paper: to reduce first clearly wins, and what counts is how much state the second handler gets. Here: reducing first is {:.2} times \
             as fast as reducing last where 72 B are left, and {:.2} times where blocked seats are dropped.",
            of(0) / of(2),
            of(1) / of(3)
        ),
        format!(
            "Discarding 90 % before the second handler makes the chain {:.2} times as fast, discarding 10 % {:.2} times.",
            of(4) / of(2),
            of(5) / of(3)
        ),
        format!(
            "The optimiser finds the order by itself. Of 3: {} {:.2} times as fast as given, with the same result. Of 4: {} {:.2} times.",
            sentence(&ordered[0].2),
            of(6) / of(2),
            sentence(&ordered[1].2),
            of(7) / of(3)
        ),
    ];
    let bar = |m: &Measured| Bar {
        name: m.name.to_owned(),
        value: m.mbps,
        cells: vec![format!("{:.0}", m.nanos), format!("{:.0}", m.out)],
    };
    Figure {
        file: "morphing-chains",
        title: "Morphing, Figure 3: six chains of two handlers",
        unit: "Mb/s in",
        columns: &["ns a message", "bytes out a message"],
        bars: measured.iter().map(bar).collect(),
        method: "Flights of 350 to 1,150 B with passenger lists and blocked seats (2 to 20 %; synthetic, as the paper's data is not public), through two \
                 handlers in one context. The handlers are the built-in operators `project` and a query with a condition; to reformat is to write every \
                 number in another type.",
        findings,
    }
}
