//! The same join and the same windows in stream processors, in process against in process.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use csp_handlers::FormatId;

use super::alone::Alone;
use super::figure::{Bar, Figure};
use super::queries::{self, JOIN};
use super::world::World;

/// Rounds; in each, everything is measured once.
const ROUNDS: usize = 3;
const WINDOWS: &str = "SELECT source, COUNT(*) AS flights, AVG(delay) AS delay, MAX(distance) AS distance FROM a GROUP BY source WINDOW INTERVAL '1' HOUR";

/// A program that prints `join NANOS` and `windows NANOS`, and what people call it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The program with its arguments, parted by spaces.
    pub command: String,
}

impl std::str::FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, command) = text.split_once('=').ok_or("NAME=COMMAND is expected")?;
        Ok(Peer { name: name.to_owned(), command: command.to_owned() })
    }
}

/// Nanoseconds of an event.
#[derive(Clone, Copy)]
struct Times {
    join: f64,
    windows: f64,
}

fn ours(time: Duration) -> Times {
    let run = |sql: &str, sources: usize| {
        let mut streams = queries::streams();
        let mut world = World::new();
        let channel = world.channel("rows");
        let inputs: Vec<_> = (1..=sources as u32).map(|id| (FormatId(id), queries::by_departure())).collect();
        queries::deploy(&mut world, "query", sql, &queries::Streams::of(&streams), &inputs);
        world.path(channel, &[("query", "")]);
        let mut next = 0;
        let nanos = world.unshaped(time, |world| {
            next = (next + 1) % sources;
            world.publish(channel, FormatId(next as u32 + 1), streams[next].next());
        });
        assert!(world.dropped == 0 && world.delivered > 0, "batches fit the queues, and there are results");
        nanos
    };
    Times { join: run(JOIN, 2), windows: run(WINDOWS, 1) }
}

/// The operators without the message plane.
fn alone(time: Duration) -> Times {
    let run = |sql: &str, sources: usize| {
        let mut streams = queries::streams();
        let inputs: Vec<_> = (1..=sources as u32).map(|id| (FormatId(id), queries::by_departure())).collect();
        let mut alone = Alone::new(queries::make(sql, &queries::Streams::of(&streams), &inputs));
        let mut next = 0;
        let nanos = alone.measure(time, |call| {
            next = (next + 1) % sources;
            call(FormatId(next as u32 + 1), streams[next].next());
        });
        assert!(alone.emitted > 0, "there are results");
        nanos
    };
    Times { join: run(JOIN, 2), windows: run(WINDOWS, 1) }
}

impl Peer {
    fn measure(&self) -> Result<Times> {
        let mut words = self.command.split_whitespace();
        let program = words.next().with_context(|| format!("{} has no program", self.name))?;
        let output =
            Command::new(program).args(words).output().with_context(|| format!("cannot start {program}"))?;
        if !output.status.success() {
            bail!("{}: {}\n{}", self.name, output.status, String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let find = |what: &str| -> Result<f64> {
            let value = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
            let value =
                value.with_context(|| format!("{} printed no line `{what} NANOS`:\n{text}", self.name))?;
            value.trim().parse().with_context(|| format!("{}: {value}", self.name))
        };
        Ok(Times { join: find("join")?, windows: find("windows")? })
    }
}

fn median(times: &[Times], of: fn(&Times) -> f64) -> f64 {
    let mut values: Vec<f64> = times.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn findings(rows: &[(String, f64, f64)]) -> Vec<String> {
    let (own_join, own_windows) = (rows[0].1, rows[0].2);
    let peers = rows.iter().skip(2);
    peers
        .map(|(name, join, windows)| {
            let (join, windows) = (join / own_join, windows / own_windows);
            format!("The operator is {join:.2} times as fast as {name} at the join, and {windows:.2} times at the windows; the goal is 2.")
        })
        .collect()
}

/// Measures the peers beside the message plane, in interleaved rounds.
///
/// # Errors
/// A program cannot be run, or does not print what is expected.
pub fn figure(time: Duration, peers: &[Peer], progress: &dyn Fn(&str)) -> Result<Figure> {
    let own = ["CSP, the operator", "CSP, from publishing to delivery"];
    let mut all: Vec<(String, Vec<Times>)> =
        own.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
    all.extend(peers.iter().map(|peer| (peer.name.clone(), Vec::new())));
    for round in 1..=ROUNDS {
        progress(&format!("stream processors, round {round} of {ROUNDS}"));
        all[0].1.push(alone(time));
        all[1].1.push(ours(time));
        for (peer, (_, times)) in peers.iter().zip(&mut all[own.len()..]) {
            times.push(peer.measure()?);
        }
    }
    let rows: Vec<(String, f64, f64)> = all
        .into_iter()
        .map(|(name, times)| (name, median(&times, |t| t.join), median(&times, |t| t.windows)))
        .collect();
    let (own_join, own_windows) = (rows[0].1, rows[0].2);
    let bar = |(name, join, windows): &(String, f64, f64)| Bar {
        name: name.clone(),
        value: 1e6 / join,
        cells: vec![
            format!("{join:.0}"),
            format!("{:.2}", join / own_join),
            format!("{windows:.0}"),
            format!("{:.2}", windows / own_windows),
        ],
    };
    Ok(Figure {
        file: "stream-processors",
        title: "Joins and windows beside stream processors",
        unit: "thousand events/s, join",
        columns: &["ns, join", "× operator", "ns, windows", "× operator"],
        bars: rows.iter().map(bar).collect(),
        method: "The same join of two streams (rows of one number within a minute, five columns) and the same windows (count, mean and maximum by source, an hour), in one \
                 process and one thread each, medians of three interleaved rounds. The peers get objects that are in memory already and hand rows to a listener or a \
                 list; the message plane copies each message of 600 B into its pool, finds its fields in the bytes, encodes rows and delivers them. The operator alone does neither \
                 copy nor deliver.",
        findings: findings(&rows),
    })
}
