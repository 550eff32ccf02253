//! From the policy's text to rows: publishers and subscribers are written byte by byte.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod brought;
#[path = "../../../../services/tests/common/end.rs"]
#[allow(dead_code, reason = "not every part of it is of use here")]
mod end;
mod from_json;
mod handlers;
mod planned;
mod requests;
mod supplied_paths;

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_messages::HashKey;
use csp_planner::Planned;
use csp_quality::OutputLink;
use csp_services::{MessageBroker, MessagesConfig, SpecError};
use csp_types::{FlowLabel, FourTuple, Instant};

use super::super::{Certificates, KeyRing, Modules, Names, Numbers, translate};
use crate::core::service::local::{LocalServices, Step};
use end::End;

const POLICY: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    schema: &schema |
      <sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="airport" id="40" version="1">
        <types>
          <composite name="messageHeader">
            <type name="blockLength" primitiveType="uint16"/>
            <type name="templateId" primitiveType="uint16"/>
            <type name="schemaId" primitiveType="uint16"/>
            <type name="version" primitiveType="uint16"/>
          </composite>
          <type name="airport" primitiveType="char" length="3"/>
        </types>
        <sbe:message name="Flight" id="1">
          <field name="origin" id="1" type="airport"/>
          <field name="delay" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>
        <sbe:message name="Weather" id="2">
          <field name="origin" id="1" type="airport"/>
          <field name="wind" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>
      </sbe:messageSchema>
    message: Flight
  - {name: weather, schema: *schema, message: Weather}
channels:
  - {name: flights, vip: 10.76.0.100, port: 5601, formats: [flight], time: {field: at, unit: s}}
  - {name: winds, vip: 10.76.0.100, port: 5602, formats: [weather], time: {field: at, unit: s}}
queries:
"#;

struct World {
    broker: MessageBroker,
    numbers: Numbers,
    ends: BTreeMap<u32, End>,
    steps: BTreeMap<u32, Step>,
    now: Instant,
}

impl World {
    fn new(queries: &str) -> World {
        let mut world = World {
            broker: MessageBroker::new(MessagesConfig::new(HashKey([1, 2]))),
            numbers: Numbers::new(5),
            ends: BTreeMap::new(),
            steps: BTreeMap::new(),
            now: Instant::from_nanos(1_000_000),
        };
        world.apply(POLICY, queries);
        world
    }

    /// Puts the policy with these queries into force.
    fn apply(&mut self, policy: &str, queries: &str) {
        let planned = Planned::parse_yaml(&format!("{policy}{queries}"), "p.yaml");
        let planned = planned.unwrap_or_else(|error| panic!("{error}"));
        self.apply_with(&planned, &Modules::new("none".into())).unwrap();
    }

    /// Puts a policy into force whose handlers are among these modules.
    fn apply_with(&mut self, planned: &Planned, modules: &Arc<Modules>) -> Result<(), SpecError> {
        let wanted = translate(
            planned,
            &mut self.numbers,
            (&KeyRing::default(), modules),
            (&Names::default(), &Certificates::default()),
        );
        self.broker.apply(self.now, &wanted.messages)
    }

    fn connect(&mut self, n: u32, channel: &str, socket: &str) {
        self.connect_from(n, channel, socket, [10, 0, 0, 2]);
    }

    fn connect_from(&mut self, n: u32, channel: &str, socket: &str, host: [u8; 4]) {
        let tuple = FourTuple { local: ([10, 76, 0, 100], 1).into(), remote: (host, 9).into() };
        let number = self.numbers.of(channel);
        assert!(self.broker.connected(self.now, FlowLabel::new(n, 0), number, tuple));
        self.ends.insert(n, End { slice: 11, ..End::new(1 << 24) }); // records lie in several slices
        let mut hello = vec![0; 64];
        (hello[0], hello[9], hello[10], hello[11]) = (0xff, 0x7f, 3, 1);
        hello[12..16].copy_from_slice(b"NULL");
        let ready =
            [b"\x05READY\x0bSocket-Type\0\0\0", &[socket.len() as u8][..], socket.as_bytes()].concat();
        hello.extend([4, ready.len() as u8]);
        hello.extend(ready);
        if socket == "SUB" {
            hello.extend(b"\x04\x0a\x09SUBSCRIBE");
        }
        self.arrive(n, &hello);
        self.ends.get_mut(&n).unwrap().sent.clear();
    }

    /// Bytes arrive, and are read; what they cause waits.
    fn read(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        let step = self.broker.serve(
            self.now,
            FlowLabel::new(n, 0),
            self.ends.get_mut(&n).unwrap(),
            &mut OutputLink::default(),
        );
        self.steps.insert(n, step);
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.read(n, bytes);
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let next = || {
                let named = self.broker.next_ready(&mut OutputLink::default());
                // What contexts have processed may be for others.
                named.or_else(|| match self.broker.run_contexts(self.now, &mut OutputLink::default()) {
                    true => self.broker.next_ready(&mut OutputLink::default()),
                    false => None,
                })
            };
            let ready: Vec<FlowLabel> = std::iter::from_fn(next).collect();
            if ready.is_empty() {
                return;
            }
            for label in ready {
                self.read(label.index() as u32, &[]);
            }
        }
        panic!("the broker never comes to rest");
    }

    /// The messages that a subscriber has been sent, as frames.
    fn taken(&mut self, n: u32) -> Vec<Vec<Vec<u8>>> {
        let sent = std::mem::take(&mut self.ends.get_mut(&n).unwrap().sent);
        let (mut rest, mut messages, mut frames) = (&sent[..], Vec::new(), Vec::new());
        while let [flags, tail @ ..] = rest {
            let width = if flags & 2 == 0 { 1 } else { 8 };
            let (len, tail) = tail.split_at(width);
            let len = len.iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte));
            let (body, after) = tail.split_at(len);
            frames.push(body.to_vec());
            rest = after;
            if flags & 1 == 0 {
                messages.push(std::mem::take(&mut frames));
            }
        }
        messages
    }

    /// The last frames of these messages as text.
    fn texts(&mut self, n: u32) -> Vec<String> {
        self.taken(n)
            .iter()
            .map(|frames| String::from_utf8_lossy(frames.last().unwrap()).into_owned())
            .collect()
    }
}

/// A record of template 1 (Flight) or 2 (Weather).
fn record(template: u16, origin: &str, value: i16, at: i64) -> Vec<u8> {
    let header = [13u16, template, 40, 1].map(u16::to_le_bytes).concat();
    [&header[..], origin.as_bytes(), &value.to_le_bytes(), &at.to_le_bytes()].concat()
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let frame = |(at, frame): (usize, &&[u8])| {
        let more = u8::from(at + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(len) => [&[more, len], *frame].concat(),
            Err(_) => [&[more | 2][..], &(frame.len() as u64).to_be_bytes(), frame].concat(),
        }
    };
    frames.iter().enumerate().flat_map(frame).collect()
}

fn query(name: &str, port: u16, more: &str, sql: &str) -> String {
    format!("  - {{name: {name}, vip: 10.76.0.100, port: {port}, {more}sql: \"{sql}\"}}\n")
}

fn late() -> String {
    query("late", 5611, "output: json, ", "SELECT origin, delay FROM flights WHERE delay > 10")
}

#[test]
fn rows_of_a_query_reach_its_subscribers() {
    let mut w = World::new(&late());
    w.connect(1, "flights", "PUB");
    w.connect(2, "flights", "PUB");
    w.connect(3, "flights", "SUB");
    w.connect(4, "late", "SUB");
    let first = message(&[b"United", &record(1, "EWR", 11, 1)]);
    let second = message(&[&record(1, "JFK", 10, 2)]);
    let third = message(&[&record(1, "LGA", 300, 3)]);
    w.arrive(1, &first);
    w.arrive(2, &[second, third].concat());
    assert_eq!(w.taken(3).len(), 3, "the channel's own subscribers get all");
    let rows = w.taken(4);
    assert_eq!(rows[0][0], b"United", "rows keep the topic");
    let row = |frames: &[Vec<u8>]| String::from_utf8_lossy(frames.last().unwrap()).into_owned();
    assert_eq!(row(&rows[0]), r#"{"$message":"Row","origin":"EWR","delay":11}"#);
    assert_eq!(row(&rows[1]), r#"{"$message":"Row","origin":"LGA","delay":300}"#);
    assert_eq!(rows.len(), 2);
}

#[test]
fn records_of_no_format_pass_and_are_counted() {
    let mut w = World::new(&late());
    w.connect(1, "flights", "PUB");
    w.connect(3, "flights", "SUB");
    w.connect(4, "late", "SUB");
    let whole = record(1, "EWR", 99, 1);
    let hostile: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"no record".to_vec(),
        whole[..20].to_vec(),                      // the block is longer
        record(2, "EWR", 99, 1),                   // another message of the schema
        [&whole[..4], &[9], &whole[5..]].concat(), // another schema
        [&[0xff, 0xff], &whole[2..]].concat(),     // a block of 64 KiB
    ];
    for (n, bytes) in hostile.iter().enumerate() {
        w.arrive(1, &message(&[bytes]));
        assert_eq!(w.taken(3), [[bytes.clone()]], "record {n} passes as it is");
    }
    w.arrive(1, &message(&[&whole]));
    assert_eq!(w.texts(4), [r#"{"$message":"Row","origin":"EWR","delay":99}"#]);
    let flights = w.broker.snapshots().into_iter().find(|channel| channel.name == "flights").unwrap();
    assert_eq!((flights.unknown_format, flights.status.counters.published), (6, 7));
}

#[test]
fn two_channels_are_joined() {
    let sql = "SELECT f.origin, delay, wind FROM flights AS f JOIN winds AS w ON f.origin = w.origin WITHIN 60 SECONDS";
    let mut w = World::new(&query("windy", 5612, "output: json, ", sql));
    w.connect(1, "flights", "PUB");
    w.connect(2, "winds", "PUB");
    w.connect(4, "windy", "SUB");
    w.arrive(1, &message(&[&record(1, "EWR", 7, 100)]));
    w.arrive(2, &message(&[&record(2, "JFK", 1, 100)]));
    assert!(w.texts(4).is_empty());
    w.arrive(2, &message(&[&record(2, "EWR", 30, 130)]));
    w.arrive(2, &message(&[&record(2, "EWR", 40, 161)]));
    w.arrive(1, &message(&[&record(1, "JFK", 8, 159)]));
    let row = |origin: &str, delay: i16, wind: i16| {
        format!(r#"{{"$message":"Row","origin":"{origin}","delay":{delay},"wind":{wind}}}"#)
    };
    assert_eq!(w.texts(4), [row("EWR", 7, 30), row("JFK", 8, 1)]);
}

#[test]
fn a_query_reads_what_a_path_and_another_query_make() {
    let policy = POLICY.replace(
        "formats: [flight],",
        "formats: [flight], path: [{handler: project, parameters: \"origin, delay * 2 AS twice\"}],",
    );
    let policy = policy.replacen(", time: {field: at, unit: s}}", "}", 1);
    let queries = query("twice", 5611, "", "SELECT origin, twice + 1 AS more FROM flights")
        + &query("again", 5612, "output: json, context: c1, ", "SELECT more FROM twice WHERE more > 20");
    let mut w = World::new(&late());
    w.apply(&policy, &queries);
    w.connect(1, "flights", "PUB");
    w.connect(3, "twice", "SUB");
    w.connect(4, "again", "SUB");
    for delay in [3, 10, 12] {
        w.arrive(1, &message(&[&record(1, "EWR", delay, 0)]));
    }
    assert_eq!(w.texts(4), [r#"{"$message":"Row","more":21}"#, r#"{"$message":"Row","more":25}"#]);
    let twice = w.taken(3);
    assert_eq!((twice.len(), &twice[0][0][8..11]), (3, &b"EWR"[..]));
}

#[test]
fn a_query_changes_between_two_messages() {
    let version =
        |n: u32| query("rows", 5611, "output: json, ", &format!("SELECT delay, {n} AS version FROM flights"));
    let mut w = World::new(&version(0));
    w.connect(1, "flights", "PUB");
    w.connect(4, "rows", "SUB");
    let (mut sent, mut expected, mut rows) = (0i16, Vec::new(), Vec::new());
    for change in 0..20u32 {
        // Some messages wait in the query's queue when it changes, and leave by the query that they came to.
        for _ in 0..=change % 5 {
            w.read(1, &message(&[&record(1, "EWR", sent, 0)]));
            expected.push(format!(r#"{{"$message":"Row","delay":{sent},"version":{change}}}"#));
            sent += 1;
        }
        if change % 3 == 0 {
            w.settle();
            rows.extend(w.texts(4));
        }
        w.apply(POLICY, &version(change + 1));
    }
    w.settle();
    rows.extend(w.texts(4));
    assert_eq!(rows, expected, "nothing is lost, doubled or overtaken");
    assert!(sent > 40 && w.broker.contexts().paths.len() == 1);
}

fn slow() -> String {
    query("slow", 5611, "limits: {waiting: 4}, ", "SELECT delay FROM flights")
}

fn counters(w: &World, name: &str) -> csp_messages::ChannelCounters {
    let snapshot = w.broker.snapshots().into_iter().find(|channel| channel.name == name);
    snapshot.unwrap().status.counters
}

#[test]
fn a_burst_waits_for_queries() {
    let path = "formats: [flight], path: [{handler: project, parameters: \"origin, delay, at\"}],";
    for (behind, policy) in [(false, POLICY.to_owned()), (true, POLICY.replace("formats: [flight],", path))] {
        let mut w = World::new("");
        let again = query("again", 5612, "limits: {waiting: 2}, ", "SELECT delay + 1 AS more FROM slow");
        w.apply(&policy, &(slow() + &again));
        w.connect(1, "flights", "PUB");
        w.connect(3, "flights", "SUB");
        w.connect(4, "slow", "SUB");
        w.connect(5, "again", "SUB");
        let all: Vec<u8> = (0..200).flat_map(|n| message(&[&record(1, "EWR", n, 0)])).collect();
        w.arrive(1, &all);
        assert_eq!([3, 4, 5].map(|n| w.taken(n).len()), [200; 3], "behind a path: {behind}");
        assert_eq!(["flights", "slow", "again"].map(|name| counters(&w, name).dropped_path), [0; 3]);
    }
}

#[test]
fn a_query_that_has_no_turns_drops_and_holds_back_nobody() {
    let mut w = World::new(&slow());
    w.connect(1, "flights", "PUB");
    w.connect(3, "flights", "SUB");
    w.connect(4, "slow", "SUB");
    for n in 0..10 {
        w.read(1, &message(&[&record(1, "EWR", n, 0)]));
    }
    w.settle();
    assert_eq!((w.taken(3).len(), w.taken(4).len()), (10, 4));
    let slow = counters(&w, "slow");
    assert_eq!((slow.published, slow.dropped_path), (10, 6));
}

#[test]
fn publishers_of_a_channel_that_holds_back_wait_for_its_queries() {
    let mut w = World::new("");
    w.apply(&POLICY.replacen("formats: [flight],", "formats: [flight], queue: {full: block},", 1), &slow());
    w.connect(1, "flights", "PUB");
    w.connect(3, "flights", "SUB");
    w.connect(4, "slow", "SUB");
    for n in 0..10 {
        w.read(1, &message(&[&record(1, "EWR", n, 0)]));
    }
    assert!(counters(&w, "flights").published < 10, "the publisher is held back");
    w.settle();
    assert_eq!((w.taken(3).len(), w.taken(4).len()), (10, 10));
    assert_eq!(counters(&w, "slow").dropped_path, 0);
}

#[test]
fn a_channel_drops_what_is_of_no_format_if_it_is_to() {
    let mut w = World::new("");
    w.apply(&POLICY.replacen("formats: [flight],", "formats: [flight], unknown: drop,", 1), &late());
    w.connect(1, "flights", "PUB");
    w.connect(3, "flights", "SUB");
    let known = message(&[&record(1, "EWR", 99, 1)]);
    w.arrive(1, &[message(&[b"no record"]), known.clone(), message(&[&record(2, "EWR", 9, 1)])].concat());
    assert_eq!(w.taken(3), [[record(1, "EWR", 99, 1)]]);
    let flights = w.broker.snapshots().into_iter().find(|channel| channel.name == "flights").unwrap();
    assert_eq!(
        (flights.unknown_format, flights.unknown_dropped, flights.status.counters.published),
        (2, 2, 1)
    );
    // A policy that lets them pass again keeps the connections.
    w.apply(POLICY, &late());
    w.arrive(1, &message(&[b"no record"]));
    assert_eq!(w.taken(3), [[b"no record"]]);
}

#[test]
fn rows_have_numbers_if_they_are_to() {
    let sql = "SELECT delay FROM flights WHERE delay > 10";
    let mut w = World::new(&query("late", 5611, "sequence: true, ", sql));
    w.connect(1, "flights", "PUB");
    w.connect(4, "late", "SUB");
    for delay in [11, 1, 12, 2, 13] {
        w.arrive(1, &message(&[&record(1, "EWR", delay, 0)]));
    }
    let numbers: Vec<u8> = w.taken(4).iter().map(|frames| frames[1][7]).collect();
    assert_eq!(numbers, [1, 2, 3], "rows that a subscriber does not get leave gaps, and nothing else does");
}

#[test]
fn nobody_publishes_to_a_query() {
    let mut w = World::new(&late());
    w.connect(1, "late", "PUB");
    assert_eq!((w.steps[&1], w.broker.refusals().may_not_publish), (Step::Close, 1));
}

#[test]
fn keys_of_operators_are_hashed_with_the_random_seed_of_queries() {
    let planned = Planned::parse_yaml(&POLICY.replace("queries:\n", ""), "p.yaml").unwrap();
    let modules = Modules::new("none".into());
    for seed in [5, 6] {
        let wanted = translate(
            &planned,
            &mut Numbers::new(seed),
            (&KeyRing::default(), &modules),
            (&Names::default(), &Certificates::default()),
        );
        let seeds: Vec<_> =
            wanted.messages.channels.iter().map(|c| c.spec.formats.as_ref().unwrap().set().seed()).collect();
        assert_eq!(seeds, [Some(seed); 2]);
    }
}

/// A row behind the watermark is not used, and is seen where an operator looks: with the channel, with the
/// stage and as a metric.
#[test]
fn rows_that_a_query_loses_are_shown_by_reason() {
    let sql = "SELECT origin, COUNT(*) AS n FROM flights GROUP BY origin WINDOW INTERVAL '10' SECONDS";
    let mut w = World::new(&query("counts", 5611, "output: json, limits: {groups: 1}, ", sql));
    w.connect(1, "flights", "PUB");
    let rows = [("EWR", 100), ("EWR", 120), ("EWR", 95), ("JFK", 121), ("LGA", 122)];
    rows.iter().for_each(|(origin, at)| w.arrive(1, &message(&[&record(1, origin, 1, *at)])));
    let channels = crate::daemon::channels::of_worker(&w.broker, w.now);
    let lost = |name: &str| channels.iter().find(|(known, _)| known == name).unwrap().1.figures.lost_rows;
    assert_eq!((lost("counts").words(), lost("flights").words()), ("1 late, 2 evicted".into(), "0".into()));
    let contexts = crate::daemon::contexts::of_worker(&w.broker);
    let stage = contexts.stages.iter().find(|stage| &*stage.channel == "counts" && stage.stage == 0).unwrap();
    assert_eq!(stage.lost_rows, lost("counts"));
    let mut out = csp_telemetry::MetricWriter::default();
    crate::daemon::contexts::collect(&mut out, &contexts, "0");
    let text = out.render();
    let line = "csp_stage_lost_rows_total{channel=\"counts\",handler=\"query\",reason=\"evicted\",stage=\"0\",worker=\"0\"} 2";
    assert!(text.contains(line), "{text}");
}
