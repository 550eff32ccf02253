//! Supplied handlers in the paths of channels: replaced under traffic with their state, and stopped beside
//! others.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{compile, declaration, engine, with};
use csp_handlers::{FormatId, Handler};
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, HashKey, MessagePlane, PathId, PathSpec, PathState,
    PeerId, PlaneConfig, PoolConfig, PublishError, QueueLimits, Role, StageMaker, SubscriptionsConfig,
};
use csp_sandbox::{Engine, Finally, Limits, Module, NoFields, OnStop, Reason, Report, StopPolicy, Supplied};
use csp_support::Random;
use csp_types::Instant;

const QUEUE: QueueLimits = QueueLimits { messages: 3, bytes: 1 << 20, in_flight: 2 };

struct Channel {
    id: ChannelId,
    publisher: PeerId,
    receiver: PeerId,
    received: Vec<Vec<u8>>,
    path: Option<PathId>,
}

struct World {
    plane: MessagePlane,
    channels: Vec<Channel>,
}

impl World {
    /// Channels that hold publishers back.
    fn new(count: u16) -> Self {
        let pool = PoolConfig { block_len: 128, blocks: 8192 };
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { pool, subscriptions, ..PlaneConfig::new(HashKey([1, 2])) };
        let mut plane = MessagePlane::new(config).unwrap();
        let budget = Budget { guaranteed: 128 * 2000, max: 128 * 2000 };
        let add = |number: u16| {
            let config = ChannelConfig {
                name: format!("c{number}"),
                kind: ChannelKind::PushPull { backlog: QUEUE },
                budget,
                message_len_max: 1 << 14,
                queue: QUEUE,
                sequence: false,
            };
            let id = plane.add_channel(config).unwrap();
            let publisher = plane.attach(id, Role::Pusher).unwrap();
            let receiver = plane.attach(id, Role::Puller).unwrap();
            Channel { id, publisher, receiver, received: vec![], path: None }
        };
        let channels = (0..count).map(add).collect();
        World { plane, channels }
    }

    /// Does what the Control Manager does: the handler was made before, on another thread; the path takes it.
    fn place(&mut self, channel: usize, handler: Supplied) -> bool {
        let key = handler.sha256().to_string();
        let ready = Mutex::new(Some(handler));
        let make = move || Some(Box::new(ready.lock().unwrap().take()?) as Box<dyn Handler>);
        let channel = &mut self.channels[channel];
        let mut spec = PathSpec::chain(channel.id, &[("supplied", 0, "")]);
        spec.stages[0].maker = Some(StageMaker::new(&key, make));
        // While several that were replaced wait to become empty, there may be no room for another.
        let path = self.plane.activate_path(Instant::ZERO, spec);
        channel.path = path.clone().ok().or(channel.path);
        path.is_ok()
    }

    fn publish(&mut self, random: &mut Random, channel: usize, bytes: &[u8]) {
        let publisher = self.channels[channel].publisher;
        let lens = [bytes.len() as u32];
        while let Err(error) =
            self.plane.publish_as(Instant::ZERO, publisher, FormatId(7), &lens, bytes.chunks(100))
        {
            assert_eq!(error, PublishError::Held);
            self.turn(random);
        }
        if random.below(3) == 0 {
            self.turn(random);
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
        for channel in &mut self.channels {
            for _ in 0..random.below(5) {
                let Some(delivery) = self.plane.next_delivery(Instant::ZERO, channel.receiver) else { break };
                channel.received.push(self.plane.slices(delivery.handle).collect::<Vec<_>>().concat());
                self.plane.delivered(channel.receiver, delivery.handle).unwrap();
            }
        }
    }

    fn finish(&mut self, random: &mut Random) {
        (0..2_000).for_each(|_| self.turn(random));
    }
}

/// Emits a letter, the count of messages so far, and the message's first 2 bytes; the count is in the block.
fn in_block(letter: &str) -> String {
    let imports = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))
        (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
        (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
        (import "csp" "state_write" (func $write (param i32 i32 i32)))(;end;)"#;
    let numbers = declaration([40, 1, 100, 0, 0, 0, 1, 4, 5, 0]);
    with(&format!(
        r#"{imports} {numbers} (data (i32.const 100) "{letter}")
        (func (export "on_message") (param i32 i32 i32) (result i32)
            (drop (call $state_read (i32.const 0) (i32.const 4) (i32.const 104)))
            (i32.store (i32.const 104) (i32.add (i32.load (i32.const 104)) (i32.const 1)))
            (call $write (i32.const 0) (i32.const 4) (i32.const 104))
            (drop (call $read (i32.const 0) (i32.const 2) (i32.const 108)))
            (call $emit (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 10)))"#
    ))
}

/// The same with the count in memory, which is handed over. It changes when the message has been emitted.
fn in_memory(letter: &str) -> String {
    let imports = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))
        (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))(;end;)"#;
    let numbers = declaration([40, 1, 100, 0, 0, 0, 2, 0, 5, 0]);
    with(&format!(
        r#"{imports} {numbers} (data (i32.const 100) "{letter}")
        (func (export "csp_state_export") (result i64) (i64.const {}))
        (func (export "csp_state_import") (param i32 i32) (result i32) (i32.const 200))
        (func (export "on_message") (param i32 i32 i32) (result i32)
            (i32.store (i32.const 104) (i32.add (i32.load (i32.const 200)) (i32.const 1)))
            (drop (call $read (i32.const 0) (i32.const 2) (i32.const 108)))
            (if (call $emit (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 10)) (then (return (i32.const 1))))
            (i32.store (i32.const 200) (i32.load (i32.const 104)))
            i32.const 0)"#,
        200u64 << 32 | 4
    ))
}

fn start(module: &Arc<Module>, on_stop: impl Into<StopPolicy>) -> (Supplied, Arc<Report>) {
    let handler = Supplied::new(module, Arc::new(NoFields), on_stop, "").unwrap();
    let report = handler.report();
    (handler, report)
}

fn replaced_under_traffic(engine: &Engine, modules: [String; 2], seed: u64) {
    let modules = modules.map(|text| compile(engine, &text).unwrap());
    let (mut world, mut random) = (World::new(1), Random::new(seed));
    assert!(world.place(0, start(&modules[0], OnStop::default()).0));
    let mut replaced = 0;
    for number in 0..2_000u16 {
        world.publish(&mut random, 0, &number.to_le_bytes());
        if random.below(10) == 0 {
            let next = &modules[usize::from(random.below(2) == 0)];
            replaced += u32::from(world.place(0, start(next, OnStop::default()).0));
        }
    }
    world.finish(&mut random);
    let received = &world.channels[0].received;
    assert_eq!(received.len(), 2_000, "seed {seed}");
    for (at, bytes) in received.iter().enumerate() {
        // The count goes on over all replacements, and messages are in order.
        let count = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        let number = u16::from_le_bytes(bytes[8..].try_into().unwrap());
        assert_eq!((count, usize::from(number)), (at as u32 + 1, at), "seed {seed}");
    }
    let letters = |letter| received.iter().filter(|bytes| bytes[0] == letter).count();
    assert!(replaced > 100 && letters(b'a') > 200 && letters(b'b') > 200, "{replaced} {}", letters(b'a'));
}

#[test]
fn paths_are_replaced_under_traffic_with_state_kept_or_handed_over() {
    // As many as there may be paths that wait for those before them.
    let engine =
        Engine::new(Limits { instances_max: 144, memory_total_max: 144 << 22, ..Limits::default() }).unwrap();
    for seed in 0..5 {
        replaced_under_traffic(&engine, [in_block("a"), in_block("b")], seed);
        replaced_under_traffic(&engine, [in_memory("a"), in_memory("b")], seed);
    }
    assert_eq!(engine.usage().instances, 0);
}

#[test]
fn a_hostile_module_costs_its_own_channel_its_messages_and_no_other() {
    let engine = engine();
    let hostile = with(
        r#"(func (export "on_message") (param i32 i32 i32) (result i32) (loop $again br $again) unreachable)"#,
    );
    let (good, hostile) = (compile(&engine, &in_block("a")).unwrap(), compile(&engine, &hostile).unwrap());
    for (finally, arrive) in [(Finally::EndPath, 0), (Finally::PassBy, 499)] {
        let (mut world, mut random) = (World::new(2), Random::new(3));
        assert!(world.place(0, start(&good, OnStop::default()).0));
        let (handler, report) = start(&hostile, StopPolicy::Finally(finally));
        assert!(world.place(1, handler));
        for number in 0..500u16 {
            world.publish(&mut random, 0, &number.to_le_bytes());
            world.publish(&mut random, 1, &number.to_le_bytes());
        }
        world.finish(&mut random);
        let [good, bad] = &world.channels[..] else { panic!("two channels") };
        assert_eq!((good.received.len(), bad.received.len()), (500, arrive));
        assert_eq!(report.status().stops, [(Reason::Fuel, 1)]);
        assert_eq!(report.is_ended(), finally == Finally::EndPath);
        if report.is_ended() {
            let path = world.plane.path_status(world.channels[1].path.unwrap()).unwrap();
            assert_eq!((path.state, path.counters.dropped_faults), (PathState::Ended, 500));
            assert!(path.counters.entered < 500, "later messages do not enter it: {:?}", path.counters);
            assert_eq!(path.stages[0].usage.stops, 1);
            // Once an operator has removed it, messages go straight to the receivers.
            world.plane.replace_paths(Instant::ZERO, world.channels[1].id, Vec::new()).unwrap();
            world.publish(&mut random, 1, b"free");
            world.finish(&mut random);
            assert_eq!(world.channels[1].received, [b"free".to_vec()]);
        }
    }
}
