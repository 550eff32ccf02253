//! Byte streams that share a link with messages, on virtual time: each gets what its flow is promised, and
//! none is forgotten.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_quality::{
    Action, Board, Capacity, Condition, FlowSpec, FlowTable, LinkConfig, OutputLink, Overflow, Plan,
    Predicate, QualityConfig, Scheme, SharedLinkConfig, Threshold, Trigger,
};
use csp_support::Random;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};

/// 50 Mb/s.
const LINK: u64 = 50_000_000;
const QUANTUM: u32 = 4 * 1024;
const WEB: u16 = 80;
const BULK: u16 = 8080;

fn spec(name: &str, port: u16, priority: u8, mbps: u64) -> FlowSpec {
    let predicate = Predicate { destination_port: Some(port..=port), ..Predicate::default() };
    let mut spec = FlowSpec::new(name, predicate);
    spec.priority = priority;
    spec.reservation.bits_per_second = mbps * 1_000_000;
    spec.item.bytes_max = QUANTUM;
    spec
}

/// A client's connection to a port.
fn to(port: u16) -> FourTuple {
    FourTuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 9], 40_000).into() }
}

struct World {
    now: Instant,
    link: OutputLink,
    board: Arc<Board>,
    table: FlowTable,
    /// By tag: the port, bytes that it still has to send, what it has asked for, bytes allowed.
    streams: BTreeMap<u32, (u16, u64, Option<u32>, u64)>,
}

impl World {
    fn new() -> World {
        let (board, table) = (Arc::new(Board::new(1)), FlowTable::new(8));
        World { now: Instant::ZERO, link: OutputLink::default(), board, table, streams: BTreeMap::new() }
    }

    fn set_flows(&mut self, specs: Vec<FlowSpec>, scheme: Scheme) {
        self.set_flows_with(specs, scheme, |_| Vec::new());
    }

    fn set_flows_with(
        &mut self,
        specs: Vec<FlowSpec>,
        scheme: Scheme,
        triggers: impl Fn(&FlowTable) -> Vec<Trigger>,
    ) {
        self.table = self.table.replace(specs).unwrap();
        let link = LinkConfig { bits_per_second: LINK, quantum: QUANTUM };
        let capacity = Capacity { contexts: 0, link, point_every: 16 };
        let plan = Plan::new(Arc::new(self.table.clone()), capacity, |_| None).unwrap();
        let quality = QualityConfig { items_max: 64, link: scheme, ..QualityConfig::default() };
        let (plan, board) = (Arc::new(plan), (Arc::clone(&self.board), 0));
        let triggers = triggers(&self.table);
        let config = SharedLinkConfig { plan, quality, triggers, board, worker_percent: 100 };
        self.link.share(self.now, config).unwrap();
    }

    fn add(&mut self, tag: u32, port: u16, bytes: u64) {
        self.streams.insert(tag, (port, bytes, None, 0));
    }

    /// Lets streams ask, and takes what they are allowed, for so long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for (tag, (port, left, wanted, _)) in &mut self.streams {
                if *left > 0 && wanted.is_none() {
                    let bytes = u32::try_from(*left).unwrap_or(u32::MAX);
                    let label = FlowLabel::from_wire(*tag).unwrap();
                    self.link.shared_mut().unwrap().want_bytes(self.now, label, to(*port), bytes);
                    *wanted = Some(bytes);
                }
            }
            self.link.release(self.now, &mut ());
            while let Some((label, bytes)) = self.link.next_allowed() {
                let (_, left, wanted, allowed) = self.streams.get_mut(&label.to_wire()).unwrap();
                assert!(bytes <= QUANTUM && wanted.take().is_some_and(|wanted| bytes <= wanted));
                *left -= u64::from(bytes);
                *allowed += u64::from(bytes);
            }
            let due = self.link.due().unwrap_or(end);
            self.now = due.max(self.now + Duration::from_micros(1)).min(end);
        }
    }

    /// Mb/s of all streams to a port over so much time.
    fn mbps(&self, port: u16, time: Duration) -> f64 {
        let bytes: u64 = self.streams.values().filter(|s| s.0 == port).map(|s| s.3).sum();
        bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_promise_holds_beside_more_streams_than_the_queue_has_places() {
    let mut world = World::new();
    let hold = |mut spec: FlowSpec| {
        spec.overflow = Overflow::DropOldest;
        spec
    };
    world.set_flows(
        vec![hold(spec("web", WEB, 1, 20)), hold(spec("bulk", BULK, 1, 0))],
        Scheme::PriorityAwareReserved,
    );
    world.add(1, WEB, u64::MAX / 2);
    (2..202).for_each(|tag| world.add(tag, BULK, u64::MAX / 2));
    world.run(SECOND);
    let (web, bulk) = (world.mbps(WEB, SECOND), world.mbps(BULK, SECOND));
    assert!(web >= 20.0 && (49.0..51.0).contains(&(web + bulk)), "web {web}, bulk {bulk}");
    // A flow's streams take turns.
    let of_bulk = world.streams.values().filter(|stream| stream.0 == BULK).map(|stream| stream.3);
    let (least, most) = (of_bulk.clone().min().unwrap(), of_bulk.max().unwrap());
    assert!(least > 0 && most - least <= 4 * u64::from(QUANTUM), "{least} to {most} bytes");
}

#[test]
fn an_idle_link_keeps_nobody_waiting() {
    let mut world = World::new();
    world.set_flows(vec![spec("web", WEB, 9, 20)], Scheme::PriorityAwareReserved);
    world.add(1, WEB, 100);
    world.run(Duration::from_micros(2));
    assert_eq!(world.streams[&1].3, 100);
}

#[test]
fn every_stream_ends_while_schemes_and_flows_change() {
    for seed in 0..200 {
        let (mut random, mut world) = (Random::new(seed), World::new());
        world.set_flows(
            vec![spec("web", WEB, 9, 20), spec("bulk", BULK, 1, 0)],
            Scheme::PriorityAwareReserved,
        );
        for tag in 1..100 {
            let port = if random.below(3) == 0 { WEB } else { BULK };
            world.add(tag, port, 1 + random.below(30_000));
            world.run(Duration::from_micros(random.below(2_000)));
            if random.below(8) == 0 {
                let scheme = [Scheme::RoundRobin, Scheme::PriorityAware, Scheme::PriorityAwareReserved]
                    [random.below(3) as usize];
                let mut specs = vec![spec("web", WEB, random.below(9) as u8, 20), spec("bulk", BULK, 1, 0)];
                specs.truncate(1 + random.below(2) as usize);
                world.set_flows(specs, scheme);
            }
        }
        world.run(2 * SECOND);
        let left: Vec<u32> = world.streams.iter().filter(|(_, s)| s.1 > 0).map(|(tag, _)| *tag).collect();
        assert_eq!(left, [] as [u32; 0], "seed {seed}");
    }
}

#[test]
fn streams_that_have_ended_cost_the_link_nothing() {
    let mut world = World::new();
    world.set_flows(vec![spec("web", WEB, 9, 20)], Scheme::PriorityAwareReserved);
    // 80 MB, 13 s of the link, by connections that are reset while they wait; some indices are used again.
    for tag in 1..20_000 {
        let label = FlowLabel::new(1 + tag % 5_000, (tag / 5_000) as u8);
        let link = world.link.shared_mut().unwrap();
        link.want_bytes(world.now, label, to(WEB), QUANTUM);
        if tag % 2 == 0 {
            link.end_stream(label);
        }
    }
    for tag in 1..20_000 {
        let label = FlowLabel::new(1 + tag % 5_000, (tag / 5_000) as u8);
        world.link.shared_mut().unwrap().end_stream(label);
    }
    let begin = world.now;
    world.add(FlowLabel::new(7, 9).to_wire(), WEB, 100);
    while world.streams.values().any(|stream| stream.3 == 0) {
        world.run(Duration::from_micros(100));
        assert!(world.now < begin + Duration::from_millis(50), "it waits behind those that have ended");
    }
}

#[test]
fn filters_drop_no_stream_and_count_none() {
    let mut world = World::new();
    let bulk = |filters: &[&str]| {
        let pre = filters.iter().map(|filter| (*filter).to_owned()).collect();
        vec![FlowSpec { pre, ..spec("bulk", BULK, 1, 0) }]
    };
    let counters = |world: &mut World| {
        let (link, flows) = world.link.status(world.now).unwrap();
        (link.triggers, flows.into_iter().find(|flow| flow.name == "bulk").unwrap().counters)
    };
    world.set_flows(bulk(&["drop"]), Scheme::RoundRobin);
    (1..101).for_each(|tag| world.add(tag, BULK, u64::MAX / 2));
    world.run(SECOND);
    let (_, shut) = counters(&mut world);
    assert_eq!((world.mbps(BULK, SECOND), shut.filtered, shut.offered), (0.0, 0, 0));
    // A sample of a stream would be no stream.
    world.set_flows(bulk(&["sample-3", "drop-when-full"]), Scheme::RoundRobin);
    world.run(SECOND);
    assert!(world.mbps(BULK, SECOND) > 49.0 && counters(&mut world).1.filtered == 0);
    // What a trigger has shut out goes on when the trigger is released, though nothing else arrives.
    world.set_flows_with(bulk(&[]), Scheme::RoundRobin, |table| {
        let flow = table.id("bulk").unwrap();
        vec![Trigger {
            name: "full".to_owned(),
            condition: Condition::QueueAbove(flow, Threshold { fire: 20, release: 5 }),
            hold: Duration::ZERO,
            release_hold: Duration::from_millis(20),
            fire: vec![Action::Install(flow, "drop".to_owned())],
            release: vec![Action::Remove(flow, "drop".to_owned())],
        }]
    });
    let before: Vec<u64> = world.streams.values().map(|stream| stream.3).collect();
    world.run(SECOND);
    let (triggers, counted) = counters(&mut world);
    assert!(triggers[0].1 >= 10 && counted.filtered == 0, "{triggers:?}, {counted:?}");
    assert!(world.streams.values().zip(before).all(|(stream, before)| stream.3 > before));
}
