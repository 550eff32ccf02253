//! Operators in the paths of a channel: with its pool, queues that fill up, receivers that hold back, and
//! paths that are replaced under traffic by equal ones, which go on with the state.

mod common;

use std::sync::Arc;

use common::{FLIGHT, RESULT, Stage, WEATHER, channels, flight, plan, written};
use csp_handlers::{FormatId, Handler};
use csp_messages::{
    Budget, ChannelConfig, ChannelKind, HashKey, MessagePlane, PathSpec, PeerId, PlaneConfig, PoolConfig,
    PublishError, QueueLimits, Role, SubscriptionsConfig, Targets,
};
use csp_operators::{Limits, Query, Time, Unit, make};
use csp_support::Random;
use csp_types::{Duration, Instant};
use serde_json::json;

struct World {
    plane: MessagePlane,
    publisher: PeerId,
    receiver: PeerId,
    received: Vec<Vec<u8>>,
    spec: PathSpec,
    replaced: u32,
}

type Maker = Arc<dyn Fn() -> Box<dyn Handler> + Send + Sync>;

impl World {
    /// A channel that holds publishers back, with one stage, whose outputs all go to the receiver.
    fn new(maker: Maker, parameters: &str) -> World {
        let pool = PoolConfig { block_len: 128, blocks: 4096 };
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { pool, subscriptions, ..PlaneConfig::new(HashKey([1, 2])) };
        let mut plane = MessagePlane::new(config).expect("valid");
        let made = maker.clone();
        plane.handlers_mut().deploy("operator", Box::new(move || made())).expect("free");
        let queue = QueueLimits { messages: 3, bytes: 1 << 20, in_flight: 2 };
        let budget = Budget { guaranteed: 128 * 4000, max: 128 * 4000 };
        let kind = ChannelKind::PushPull { backlog: queue };
        let config = ChannelConfig {
            name: "c".into(),
            kind,
            budget,
            message_len_max: 1 << 17,
            queue,
            sequence: false,
        };
        let channel = plane.add_channel(config).expect("room");
        let publisher = plane.attach(channel, Role::Pusher).expect("room");
        let receiver = plane.attach(channel, Role::Puller).expect("room");
        let mut spec = PathSpec::chain(channel, &[("operator", 0, parameters)]);
        spec.stages[0].outputs = vec![Targets::RECEIVERS; usize::from(maker().needs().outputs)];
        plane.activate_path(Instant::ZERO, spec.clone()).unwrap_or_else(|error| panic!("{error}"));
        World { plane, publisher, receiver, received: Vec::new(), spec, replaced: 0 }
    }

    /// Puts a new path of new handlers in the place of the present one.
    fn replace(&mut self) {
        // While several that were replaced wait to become empty, there may be no room for another.
        self.replaced += u32::from(self.plane.activate_path(Instant::ZERO, self.spec.clone()).is_ok());
    }

    fn publish(&mut self, random: &mut Random, format: FormatId, frames: &[&[u8]]) {
        let lens: Vec<u32> = frames.iter().map(|frame| frame.len() as u32).collect();
        let bytes = frames.concat();
        loop {
            let parts = bytes.chunks(100);
            match self.plane.publish_as(Instant::ZERO, self.publisher, format, &lens, parts) {
                Ok(_) => break,
                Err(PublishError::Held) => self.turn(random),
                Err(error) => panic!("{error}"),
            }
        }
        if random.below(3) == 0 {
            self.turn(random);
        }
        if random.below(15) == 0 {
            self.replace();
        }
    }

    fn turn(&mut self, random: &mut Random) {
        while self.plane.next_resumed(None).is_some() {}
        for _ in 0..4 {
            let Some(mut turn) = self.plane.next_flow() else { break };
            if self.plane.is_context(&turn) {
                self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            }
            self.plane.end_turn(turn);
        }
        for _ in 0..random.below(5) {
            let Some(delivery) = self.plane.next_delivery(Instant::ZERO, self.receiver) else { return };
            self.received.push(self.plane.slices(delivery.handle).collect::<Vec<_>>().concat());
            self.plane.delivered(self.receiver, delivery.handle).expect("delivered");
        }
    }
}

/// What arrives is what the operator emits when it always has room.
fn check(maker: Maker, parameters: &str) {
    let (mut random, channels) = (Random::new(7), channels());
    let mut world = World::new(maker.clone(), parameters);
    let mut alone = Stage::new(maker(), parameters);
    // The plane's clock stands still here.
    alone.now = Instant::ZERO;
    let mut expected = Vec::new();
    for step in 0..400u64 {
        let (at, number) = (step / 2, random.below(6));
        let origin = ["EWR", "JFK"][random.below(2) as usize];
        let (format, bytes) = if random.below(3) == 0 {
            let json =
                json!({"$message": "Weather", "origin": origin, "at": at, "wind": 2.5, "number": number});
            (WEATHER, written(&channels.weather, &json))
        } else {
            let mut json = flight();
            (json["at"], json["number"], json["origin"]) = (json!(at), json!(number), json!(origin));
            json["remark"] = json!("x".repeat(random.below(3) as usize * 400));
            (FLIGHT, written(&channels.flights, &json))
        };
        if !alone.handler.accepts(format) {
            continue;
        }
        let frames: [&[u8]; 3] = [b"topic", &bytes, b"more"];
        let frames = &frames[..1 + random.below(3) as usize];
        let frames = if frames.len() == 1 { &[&bytes[..]][..] } else { frames };
        world.publish(&mut random, format, frames);
        let (done, emitted) = alone.send(format, frames);
        done.expect("valid");
        expected.extend(emitted.iter().map(|emitted| emitted.frames.concat()));
    }
    for _ in 0..10_000 {
        world.turn(&mut random);
        if world.received.len() >= expected.len() {
            break;
        }
    }
    assert!(
        expected.len() > 10 && world.replaced > 0,
        "{parameters}: {} rows, {} paths",
        expected.len(),
        world.replaced
    );
    assert_eq!(world.received.len(), expected.len(), "{parameters}");
    assert!(world.received == expected, "{parameters}");
}

#[test]
fn operators_give_in_paths_what_they_give_alone() {
    let set = channels().set();
    for (name, parameters) in [
        ("select", "origin = 'EWR'"),
        ("project", "number, remark, origin"),
        ("sample", "3"),
        ("split", "whole; number, remark WHERE number > 2; origin; whole WHERE number = 1"),
        ("to-json", ""),
        ("anonymise", "key 000102030405060708090a0b0c0d0e0f, hash number, mask origin 1"),
        ("translate", "Weather"),
        (
            "merge",
            "by at seconds; SELECT origin, COUNT(*) AS rows FROM message GROUP BY origin WINDOW 5 SECONDS",
        ),
        ("merge", "by at seconds; UNION origin, number WINDOW 20 seconds"),
    ] {
        let set = set.clone();
        check(Arc::new(move || make(name, &set).expect("known")), parameters);
    }
}

#[test]
fn queries_give_in_paths_what_they_give_alone() {
    for sql in [
        "SELECT number, remark FROM flights WHERE origin = 'EWR'",
        "SELECT origin, number, COUNT(*) AS flights FROM flights GROUP BY origin, number WINDOW 10 SECONDS",
        "SELECT f.number, remark, wind FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 6 SECONDS",
        "SELECT f.number, COUNT(*) AS pairs FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 6 SECONDS GROUP BY f.number WINDOW 5 SECONDS",
    ] {
        let maker = move || -> Box<dyn Handler> {
            let plan = plan(sql);
            let seconds =
                Time::Field { path: "at".to_owned(), unit: Unit::Seconds, lateness: Duration::from_secs(1) };
            let mut inputs = vec![(FLIGHT, seconds.clone()), (WEATHER, seconds)];
            inputs.truncate(plan.sources.len());
            let limits = Limits { rows: 100, row_bytes: 1 << 17, groups: 50, ..Limits::default() };
            Box::new(Query::new(plan, &inputs, RESULT, limits).expect("runs"))
        };
        check(Arc::new(maker), "");
    }
}
