//! Morphing, Figure 4: streams whose rows with equal keys are merged into one.

use std::time::Duration;

use csp_handlers::FormatId;
use csp_operators::make;

use super::figure::{Bar, Figure};
use super::flights::{Flights, Lengths};
use super::world::{World, formats};

const LENGTHS: Lengths = Lengths { least: 600, most: 600 };
/// Rows of one key in all streams are united.
const UNION: &str = "by departure seconds; UNION number, departure WINDOW 1 hour";

fn measure(fan_in: usize, time: Duration) -> (f64, f64) {
    let mut streams: Vec<Flights> = (1..=fan_in as u16).map(|id| Flights::new(id, LENGTHS)).collect();
    let mut world = World::new();
    let channel = world.channel("flights");
    let set = formats(&streams);
    world.deploy("merge", move || make("merge", &set).expect("merge is known"));
    world.path(channel, &[("merge", UNION)]);
    let nanos = world.unshaped(time, |world| {
        for (at, stream) in streams.iter_mut().enumerate() {
            world.publish(channel, FormatId(at as u32 + 1), stream.next());
        }
    });
    assert_eq!(world.dropped, 0, "batches fit the queues");
    (nanos, world.delivered as f64 / world.offered as f64)
}

pub fn figure(time: Duration) -> Figure {
    let mut bars = Vec::new();
    let mut rates = Vec::new();
    for fan_in in 2..=4 {
        let (nanos, rows) = measure(fan_in, time);
        rates.push(1e9 / nanos);
        bars.push(Bar {
            name: format!("{fan_in} streams"),
            value: 600.0 * 8.0 / nanos * 1e3,
            cells: vec![format!("{nanos:.0}"), format!("{rows:.2}")],
        });
    }
    let findings = vec![format!(
        "The paper: three streams cost 5 % more than two, and four collapse, since the fast memory of its network processor is full. Here, of the \
         messages a second with two streams, {:.0} % are left with three and {:.0} % with four.",
        rates[1] / rates[0] * 100.0,
        rates[2] / rates[0] * 100.0
    )];
    Figure {
        file: "morphing-merges",
        title: "Morphing, Figure 4: merges of two, three and four streams",
        unit: "Mb/s in",
        columns: &["ns a message", "rows out a message"],
        bars,
        method: "Flights of 600 B in streams of equal rate, merged by number and departure: one row with the fields of all streams for each key \
                 (operator `merge`, `UNION`). Every message finds its partners.",
        findings,
    }
}
