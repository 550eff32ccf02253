//! Thousands of swaps under load: publishers of one channel, receivers that stall and change, modules and
//! parameters that change all the time. Nothing is lost, doubled or out of order within a publisher's stream,
//! and the state of the handler goes on.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{compile, declaration, with};
use csp_handlers::{FormatId, Handler};
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, HashKey, MessagePlane, PathId, PathSpec, PeerId,
    PlaneConfig, PoolConfig, PublishError, QueueLimits, Role, StageMaker, SubscriptionsConfig,
};
use csp_sandbox::{Engine, Limits, Module, NoFields, OnStop, Supplied};
use csp_support::Random;
use csp_types::Instant;

const PUBLISHERS: usize = 3;
const QUEUE: QueueLimits = QueueLimits { messages: 5, bytes: 1 << 20, in_flight: 2 };

/// Emits: a letter, its parameter's length, the count of messages so far, and the first 5 bytes: publisher
/// and number. The count is in the block, or with `in_memory` in memory that is handed over. Refuses
/// parameters of 9 bytes.
fn counting(letter: &str, in_memory: bool) -> String {
    let imports = r#"(import "csp" "read" (func $read (param i32 i32 i32) (result i32)))
        (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
        (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
        (import "csp" "state_write" (func $write (param i32 i32 i32)))(;end;)"#;
    let numbers = declaration([40, 1, 100, 0, 0, 0, if in_memory { 2 } else { 1 }, 4, 5, 0]);
    let (get, set) = match in_memory {
        true => (
            "(i32.store (i32.const 104) (i32.load (i32.const 200)))",
            "(i32.store (i32.const 200) (i32.load (i32.const 104)))",
        ),
        false => (
            "(drop (call $state_read (i32.const 0) (i32.const 4) (i32.const 104)))",
            "(call $write (i32.const 0) (i32.const 4) (i32.const 104))",
        ),
    };
    with(&format!(
        r#"{imports} {numbers} (data (i32.const 100) "{letter}")
        (func (export "csp_state_export") (result i64) (i64.const {}))
        (func (export "csp_state_import") (param i32 i32) (result i32) (i32.const 200))
        (func (export "configure") (param i32) (result i32)
            (if (i32.eq (local.get 0) (i32.const 9)) (then (return (i32.const 1))))
            (i32.store8 (i32.const 101) (local.get 0)) (i32.const 0))
        (func (export "on_message") (param i32 i32 i32) (result i32)
            {get}
            (i32.store (i32.const 104) (i32.add (i32.load (i32.const 104)) (i32.const 1)))
            (drop (call $read (i32.const 0) (i32.const 5) (i32.const 108)))
            (if (call $emit (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 13)) (then (return (i32.const 1))))
            {set} (i32.const 0))"#,
        200u64 << 32 | 4
    ))
}

struct World {
    plane: MessagePlane,
    channel: ChannelId,
    publishers: Vec<PeerId>,
    receivers: Vec<PeerId>,
    /// Turns for which nobody receives.
    stalled: u32,
    path: PathId,
    random: Random,
    /// By receiver's place: what it got, in order.
    received: Vec<(usize, Vec<u8>)>,
    sent: [u32; PUBLISHERS],
}

fn spec(channel: ChannelId, handler: Supplied, parameters: &str) -> PathSpec {
    let ready = Mutex::new(Some(handler));
    let make = move || Some(Box::new(ready.lock().unwrap().take()?) as Box<dyn Handler>);
    let mut spec = PathSpec::chain(channel, &[("supplied", 0, parameters)]);
    // Each is another one, as when a policy names another module.
    spec.stages[0].maker = Some(StageMaker::new("", make));
    spec
}

fn start(module: &Arc<Module>, parameters: &str) -> Supplied {
    Supplied::new(module, Arc::new(NoFields), OnStop::default(), parameters).unwrap()
}

impl World {
    fn new(seed: u64, first: &Arc<Module>) -> Self {
        let pool = PoolConfig { block_len: 128, blocks: 2_048 };
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { pool, subscriptions, ..PlaneConfig::new(HashKey([1, seed])) };
        let mut plane = MessagePlane::new(config).unwrap();
        // Memory is short too: a few of the longest messages.
        let budget = Budget { guaranteed: 128 * 60, max: 128 * 60 };
        let config = ChannelConfig {
            name: "jobs".to_owned(),
            kind: ChannelKind::PushPull { backlog: QUEUE },
            budget,
            message_len_max: 1 << 10,
            queue: QUEUE,
            sequence: false,
        };
        let channel = plane.add_channel(config).unwrap();
        let publishers = (0..PUBLISHERS).map(|_| plane.attach(channel, Role::Pusher).unwrap()).collect();
        let receivers = (0..2).map(|_| plane.attach(channel, Role::Puller).unwrap()).collect();
        let path = plane.activate_path(Instant::ZERO, spec(channel, start(first, ""), "")).unwrap();
        let (random, sent) = (Random::new(seed), [0; PUBLISHERS]);
        World { plane, channel, publishers, receivers, stalled: 0, path, random, received: vec![], sent }
    }

    /// Publishes one message, or finds its publisher held back.
    fn publish(&mut self) {
        let at = self.random.below(PUBLISHERS as u64) as usize;
        let mut bytes = vec![at as u8];
        bytes.extend(self.sent[at].to_le_bytes());
        bytes.resize(5 + self.random.below(1_000) as usize, 0xee);
        let lens = [bytes.len() as u32];
        match self.plane.publish_as(Instant::ZERO, self.publishers[at], FormatId(7), &lens, bytes.chunks(100))
        {
            Ok(_) => self.sent[at] += 1,
            Err(error) => assert_eq!(error, PublishError::Held),
        }
    }

    fn turn(&mut self) {
        while self.plane.next_resumed(None).is_some() {}
        for _ in 0..2 {
            let Some(mut turn) = self.plane.next_flow() else { break };
            if self.plane.is_context(&turn) {
                self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            }
            self.plane.end_turn(turn);
        }
        self.stalled = match (self.stalled, self.random.below(50)) {
            (0, 0) => self.random.below(40) as u32,
            (left, _) => left.saturating_sub(1),
        };
        for at in 0..if self.stalled > 0 { 0 } else { self.receivers.len() } {
            for _ in 0..self.random.below(3) {
                let Some(delivery) = self.plane.next_delivery(Instant::ZERO, self.receivers[at]) else {
                    break;
                };
                let bytes = self.plane.slices(delivery.handle).collect::<Vec<_>>().concat();
                self.received.push((at, bytes));
                self.plane.delivered(self.receivers[at], delivery.handle).unwrap();
            }
        }
    }

    /// Changes the module, or parameters alone, or tries what is refused. Returns whether a module or
    /// parameters have changed.
    fn change(&mut self, modules: &[Arc<Module>]) -> bool {
        let parameters = &"12345678"[..self.random.below(8) as usize];
        match self.random.below(10) {
            0 => {
                let refused = self.plane.configure_handler(self.path, 0, "too long.");
                assert!(refused.is_err());
                false
            }
            1 | 2 => self.plane.configure_handler(self.path, 0, parameters).is_ok(),
            _ => {
                let module = &modules[self.random.below(modules.len() as u64) as usize];
                let spec = spec(self.channel, start(module, parameters), parameters);
                // There may be no room while several that were replaced wait to become empty: the former path
                // goes on.
                let path = self.plane.activate_path(Instant::ZERO, spec);
                self.path = *path.as_ref().unwrap_or(&self.path);
                path.is_ok()
            }
        }
    }

    fn check(&self, seed: u64) {
        let total: u32 = self.sent.iter().sum();
        assert_eq!(self.received.len(), total as usize, "seed {seed}: lost or doubled");
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut counts: Vec<u32> = self.received.iter().map(|(_, bytes)| number(bytes, 4)).collect();
        counts.sort_unstable();
        assert!(counts.into_iter().eq(1..=total), "seed {seed}: the handler's count was lost on the way");
        for publisher in 0..PUBLISHERS {
            let of = |(at, bytes): &(usize, Vec<u8>)| {
                (usize::from(bytes[8]) == publisher).then(|| (*at, number(bytes, 4), number(bytes, 9)))
            };
            let mut all: Vec<_> = self.received.iter().filter_map(of).collect();
            for receiver in 0..2 {
                let numbers = all.iter().filter(|(at, ..)| *at == receiver).map(|(.., number)| number);
                assert!(
                    numbers.is_sorted(),
                    "seed {seed}: publisher {publisher}'s messages overtook each other"
                );
            }
            // The handler had them in the publisher's order.
            all.sort_unstable_by_key(|(_, count, _)| *count);
            let numbers = all.iter().map(|(.., number)| *number);
            assert!(numbers.eq(0..self.sent[publisher]), "seed {seed}: publisher {publisher}");
        }
    }
}

fn swapped_under_load(seed: u64, swaps: u32) {
    // As many as there may be paths that wait for those before them.
    let limits = Limits { instances_max: 80, memory_total_max: 80 << 22, ..Limits::default() };
    let engine = Engine::new(limits).unwrap();
    let modules = [("a", false), ("b", false), ("c", true), ("d", true)]
        .map(|(letter, in_memory)| compile(&engine, &counting(letter, in_memory)).unwrap());
    // State goes on between modules that keep it in the same place.
    for modules in modules.chunks(2) {
        let mut world = World::new(seed, &modules[0]);
        let mut done = 0;
        while done < swaps / 2 {
            for _ in 0..1 + world.random.below(6) {
                world.publish();
                world.turn();
            }
            done += u32::from(world.change(modules));
        }
        (0..5_000).for_each(|_| world.turn());
        world.check(seed);
        let letters: std::collections::BTreeSet<u8> =
            world.received.iter().map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(letters.len(), 2, "both modules ran");
        assert!(world.sent.iter().sum::<u32>() > swaps / 2, "{:?}", world.sent);
    }
    assert_eq!(engine.usage().instances, 0);
}

#[test]
fn hundreds_of_swaps_lose_double_and_reorder_nothing() {
    (0..4).for_each(|seed| swapped_under_load(seed, 500));
}

#[test]
fn ten_thousand_swaps_lose_double_and_reorder_nothing() {
    swapped_under_load(10, 10_000);
}
