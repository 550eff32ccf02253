//! C-CORE, Table 1: two streams are pushed in, three queries make streams of them, at a part of the rate that
//! the streams have without queries.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use csp_cluster::{Process, Tier, VIP};

use super::bench::{Bench, compile, number, result};
use super::median;

/// Bytes of a message.
pub const LEN: usize = 600;
/// Parts of the rate without queries at which they are measured.
const PARTS: [f64; 3] = [0.4, 0.6, 0.8];
const STREAMS: [(&str, u16, u16); 2] = [("flights", 5751, 41), ("bookings", 5752, 42)];
const QUERIES: [(&str, u16); 3] = [("paris", 5761), ("meals", 5762), ("seated", 5763)];
/// Where phase, sequence number and time lie: behind the header of a message or row.
const HEADER_AT: (&str, &str) = ("HEADER_AT", "8");
const PATIENCE: Duration = Duration::from_secs(120);

/// What was measured at a part of the rate without queries.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The part.
    pub part: f64,
    /// Messages of both streams a second.
    pub rate: f64,
    /// Messages that the streams' own pullers did not get.
    pub lost: f64,
    /// Rows that subscribers of each query did not get.
    pub lost_rows: [f64; 3],
    /// Messages that queries dropped, and rows that they dropped for subscribers, as the proxy counts them.
    pub dropped: f64,
    /// Processor time of network node and proxy node, in nanoseconds a message.
    pub cluster_ns: f64,
    /// Median of the time from send to the join's subscriber, in microseconds.
    pub p50_us: f64,
}

/// What was measured of continual queries.
#[derive(Clone, Debug)]
pub struct Queries {
    /// Messages of both streams a second without queries, as fast as it goes.
    pub rate: f64,
    /// Processor time then, in nanoseconds a message.
    pub cluster_ns: f64,
    /// With queries, at parts of that rate.
    pub parts: Vec<Part>,
}

fn schema(id: u16) -> String {
    format!(
        "<messageSchema id=\"{id}\" version=\"0\" byteOrder=\"littleEndian\"><types><composite name=\"messageHeader\">\
         <type name=\"blockLength\" primitiveType=\"uint16\"/><type name=\"templateId\" primitiveType=\"uint16\"/>\
         <type name=\"schemaId\" primitiveType=\"uint16\"/><type name=\"version\" primitiveType=\"uint16\"/></composite>\
         <type name=\"airport\" primitiveType=\"char\" length=\"4\"/><type name=\"list\" primitiveType=\"char\" length=\"{}\"/></types>\
         <message name=\"Event\" id=\"1\"><field name=\"phase\" id=\"1\" type=\"uint64\"/><field name=\"sequence\" id=\"2\" type=\"uint64\"/>\
         <field name=\"sent\" id=\"3\" type=\"uint64\"/><field name=\"source\" id=\"4\" type=\"airport\"/>\
         <field name=\"destination\" id=\"5\" type=\"airport\"/><field name=\"departure\" id=\"6\" type=\"int32\"/>\
         <field name=\"meal\" id=\"7\" type=\"airport\"/><field name=\"passengers\" id=\"8\" type=\"list\"/></message></messageSchema>",
        LEN - 48
    )
}

/// A message with the schema `id`, without phase, sequence number and time.
fn template(id: u16) -> Vec<u8> {
    let header = [LEN as u16 - 8, 1, id, 0].map(u16::to_le_bytes).concat();
    let mut message = [&header[..], &[0; 24], b"ATLXPARX", &1240i32.to_le_bytes(), b"FISH"].concat();
    message.resize(LEN, b'p');
    message
}

fn policy(with_queries: bool) -> String {
    let formats = STREAMS
        .map(|(name, _, id)| format!("  - name: {name}\n    schema: '{}'\n    message: Event\n", schema(id)));
    let channels = STREAMS.map(|(name, port, _)| {
        format!("  - {{name: {name}, vip: {VIP}, port: {port}, pattern: push, formats: [{name}]}}\n")
    });
    let selection = |from: &str| {
        format!(
            "SELECT phase, sequence, sent, meal FROM {from} WHERE source = 'ATLX' AND destination = 'PARX' AND sequence % 4 = 0"
        )
    };
    let sql = [
        selection("flights"),
        selection("bookings"),
        "SELECT f.phase, f.sequence, f.sent, b.meal FROM flights AS f JOIN bookings AS b ON f.sequence = b.sequence AND f.phase = b.phase \
         WITHIN 1 SECOND"
            .to_owned(),
    ];
    let query = |((name, port), sql): ((&str, u16), &String)| {
        format!(
            "  - {{name: {name}, vip: {VIP}, port: {port}, limits: {{rows: 40000, kib: 5000}}, queue: {{messages: 10000}}, sql: \"{sql}\"}}\n"
        )
    };
    let queries: String = QUERIES.into_iter().zip(&sql).map(query).collect();
    let queries = if with_queries { format!("queries:\n{queries}") } else { String::new() };
    format!("formats:\n{}channels:\n{}{queries}", formats.concat(), channels.concat())
}

impl Bench<'_> {
    /// Measures the streams alone, then with queries.
    pub fn queries(&mut self, progress: &dyn Fn(&str)) -> Result<Queries> {
        let source = include_str!("../../../cluster/apps/zmq_load.c");
        compile(self.cluster.scratch(), "zmq_load", source)?;
        for (name, _, id) in STREAMS {
            fs::write(self.cluster.scratch().join(name), template(id))?;
        }
        self.apply(&policy(false))?;
        let mut alone = Vec::new();
        for round in 1..=self.plan.rounds {
            progress(&format!("round {round} of {}: two streams without queries", self.plan.rounds));
            alone.push(self.streams(0.0, false)?);
        }
        let rate = median(alone.iter().map(|part| part.rate).collect());
        let cluster_ns = median(alone.iter().map(|part| part.cluster_ns).collect());
        self.apply(&policy(true))?;
        let mut parts = Vec::new();
        for part in PARTS {
            let mut runs = Vec::new();
            for round in 1..=self.plan.rounds {
                progress(&format!(
                    "round {round} of {}: with queries at {:.0} %",
                    self.plan.rounds,
                    part * 100.0
                ));
                runs.push(self.streams(rate * part / 2.0, true)?);
            }
            // What was lost is that of the worst round.
            let worst = |figure: &dyn Fn(&Part) -> f64| runs.iter().map(figure).fold(0.0, f64::max);
            let middle = |figure: fn(&Part) -> f64| median(runs.iter().map(figure).collect());
            parts.push(Part {
                part,
                rate: middle(|run| run.rate),
                lost: worst(&|run| run.lost),
                lost_rows: [0, 1, 2].map(|at| worst(&|run| run.lost_rows[at])),
                dropped: worst(&|run| run.dropped),
                cluster_ns: middle(|run| run.cluster_ns),
                p50_us: middle(|run| run.p50_us),
            });
        }
        Ok(Queries { rate, cluster_ns, parts })
    }

    /// Pushes two streams, each `rate` messages a second or as fast as it goes (0).
    fn streams(&mut self, rate: f64, with_queries: bool) -> Result<Part> {
        self.go_on()?;
        let load = self.cluster.scratch().join("zmq_load");
        let at = |port: u16| format!("tcp://{VIP}:{port}");
        let receive = |bench: &Self, name: &str, pattern: &str, port: u16| {
            bench.outside(&format!("of-{name}"), &load, &["receive", pattern, &at(port), "1"], &[HEADER_AT])
        };
        let mut pullers: Vec<Process> = Vec::new();
        for (name, port, _) in STREAMS {
            pullers.push(receive(self, name, "push", port)?);
        }
        let mut subscribers = Vec::new();
        for (name, port) in QUERIES.iter().filter(|_| with_queries) {
            subscribers.push(receive(self, name, "publish", *port)?);
        }
        let names: Vec<&str> = STREAMS.iter().map(|(name, ..)| *name).collect();
        let derived: Vec<&str> = QUERIES.iter().filter(|_| with_queries).map(|(name, _)| *name).collect();
        names.iter().chain(&derived).try_for_each(|name| self.wait_receivers(name, 1))?;
        let dropped = |bench: &Self| {
            derived.iter().map(|name| bench.channel(name, "dropped_total")).sum::<Result<u64>>()
        };
        let before = dropped(self)?;
        let nodes = [Tier::NetworkNode, Tier::ProxyNode];
        let cpu = self.cpu_ns(&nodes)?;
        let (size, rate, seconds) = (LEN.to_string(), rate.to_string(), self.plan.seconds.to_string());
        let mut senders = Vec::new();
        for (name, port, _) in STREAMS {
            let template = self.cluster.scratch().join(name).to_string_lossy().into_owned();
            let arguments = ["send", "push", &at(port), &size, &rate, &seconds];
            senders.push(self.outside(
                &format!("to-{name}"),
                &load,
                &arguments,
                &[HEADER_AT, ("TEMPLATE", &template)],
            )?);
        }
        let mut sent = Vec::new();
        let mut rate = 0.0;
        for sender in &mut senders {
            let value = result(sender, PATIENCE)?;
            sent.push(number(&value, "sent")?);
            rate += number(&value, "sent")? / number(&value, "seconds")?;
        }
        let all: Vec<_> = pullers
            .iter_mut()
            .chain(&mut subscribers)
            .map(|process| result(process, PATIENCE))
            .collect::<Result<_>>()?;
        let cpu = self.cpu_ns(&nodes)? - cpu;
        let received = all.iter().map(|value| number(value, "received")).collect::<Result<Vec<f64>>>()?;
        let expected = [(sent[0] / 4.0).ceil(), (sent[1] / 4.0).ceil(), sent[0].min(sent[1])];
        let mut lost_rows = [0.0; 3];
        for ((lost, expected), received) in lost_rows.iter_mut().zip(expected).zip(received.iter().skip(2)) {
            *lost = expected - received;
        }
        Ok(Part {
            part: 1.0,
            rate,
            lost: sent.iter().zip(&received).map(|(sent, received)| sent - received).sum(),
            lost_rows,
            dropped: (dropped(self)? - before) as f64,
            cluster_ns: cpu as f64 / sent.iter().sum::<f64>(),
            p50_us: number(all.last().context("there are pullers")?, "p50_us")?,
        })
    }
}
