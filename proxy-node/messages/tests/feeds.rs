//! Channels that get their messages from another one: who waits for their handlers, and who does not.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, Feed, FormatId, FullQueue, HashKey, MessagePlane,
    PathSpec, PeerId, PlaneConfig, PublishError, Published, QueueLimits, Role, TraceRequest,
};
use csp_types::Instant;

const FORMAT: FormatId = FormatId(1);
/// Messages that wait in a path of a derived channel.
const WAITING: u32 = 8;

struct World {
    plane: MessagePlane,
    source: ChannelId,
    publisher: PeerId,
    derived: ChannelId,
    subscriber: PeerId,
}

fn now() -> Instant {
    Instant::from_nanos(7)
}

fn channel(plane: &mut MessagePlane, name: &str, policy: FullQueue, messages: u32) -> ChannelId {
    let config = ChannelConfig {
        name: name.to_owned(),
        kind: ChannelKind::PublishSubscribe { policy, cache: None },
        budget: Budget { guaranteed: 1 << 20, max: 4 << 20 },
        message_len_max: 1_000,
        queue: QueueLimits { messages, ..QueueLimits::default() },
        sequence: true,
    };
    plane.add_channel(config).unwrap()
}

impl World {
    /// A source and what is derived from it by `forward`; each with a subscriber.
    fn new(source: FullQueue, derived: (FullQueue, u32)) -> World {
        let mut plane = MessagePlane::new(PlaneConfig::new(HashKey([3, 4]))).unwrap();
        let source = channel(&mut plane, "source", source, 1_000);
        let derived = channel(&mut plane, "derived", derived.0, derived.1);
        let mut subscribe = |channel| {
            let peer = plane.attach(channel, Role::Subscriber).unwrap();
            plane.subscribe(now(), peer, b"").unwrap();
            peer
        };
        subscribe(source);
        let subscriber = subscribe(derived);
        let publisher = plane.attach(source, Role::Publisher).unwrap();
        let chain = PathSpec::chain(derived, &[("forward", 0, "")]);
        let queue = QueueLimits { messages: WAITING, ..QueueLimits::default() };
        plane.activate_path(now(), PathSpec { queue, ..chain }).unwrap();
        plane.set_feeds(source, vec![Feed { format: FORMAT, to: derived, becomes: FORMAT }]);
        World { plane, source, publisher, derived, subscriber }
    }

    fn publish(&mut self) -> Result<Published, PublishError> {
        self.plane.publish_as(now(), self.publisher, FORMAT, &[4], std::iter::once(&b"news"[..]))
    }

    fn run_contexts(&mut self) {
        for _ in 0..10_000 {
            let Some(mut turn) = self.plane.next_flow() else { return };
            if self.plane.is_context(&turn) {
                self.plane.run_context(now(), &mut turn, None, None);
            }
            self.plane.end_turn(turn);
        }
    }

    fn dropped(&self) -> u64 {
        self.plane.channel_status(self.derived).unwrap().counters.dropped_path
    }

    /// The numbers of the derived channel's messages that wait.
    fn numbers(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(delivery) = self.plane.next_delivery(now(), self.subscriber) {
            numbers.push(delivery.sequence);
            self.plane.delivered(self.subscriber, delivery.handle).unwrap();
        }
        numbers
    }
}

#[test]
fn publishers_yield_to_what_is_derived_from_their_channel() {
    for policy in [FullQueue::DropNewest, FullQueue::DropOldest, FullQueue::Block] {
        let mut w = World::new(policy, (FullQueue::DropNewest, 1_000));
        let mut yields = 0;
        for _ in 0..100 {
            if w.publish().unwrap().yields {
                yields += 1;
                w.run_contexts();
            }
        }
        w.run_contexts();
        assert_eq!((w.dropped(), w.numbers().len()), (0, 100), "{policy:?}");
        assert!((10..40).contains(&yields), "{policy:?}: {yields} times, each for half a queue");
    }
}

#[test]
fn a_channel_that_drops_does_not_wait_for_turns_that_do_not_come() {
    let mut w = World::new(FullQueue::DropNewest, (FullQueue::DropNewest, 1_000));
    for _ in 0..100 {
        w.publish().unwrap();
    }
    assert_eq!(w.dropped(), u64::from(100 - WAITING));
}

#[test]
fn a_channel_that_holds_back_waits_until_there_is_room() {
    let mut w = World::new(FullQueue::Block, (FullQueue::DropNewest, 1_000));
    let mut sent = 0;
    while sent < 100 {
        match w.publish() {
            Ok(_) => sent += 1,
            Err(PublishError::Held) => {
                assert_eq!(w.plane.next_resumed(None), None, "the queue is full");
                w.run_contexts();
                assert_eq!(w.plane.next_resumed(None), Some(w.publisher));
            }
            Err(error) => panic!("{error}"),
        }
    }
    w.run_contexts();
    assert_eq!((w.dropped(), w.numbers().len()), (0, 100));
}

#[test]
fn nobody_waits_for_a_path_that_waits_for_its_own_receivers() {
    let mut w = World::new(FullQueue::Block, (FullQueue::Block, 1));
    for n in 0..100 {
        let published = w.publish().unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert!(!published.yields || n < u64::from(2 * WAITING), "message {n}");
        w.run_contexts();
    }
    assert_eq!(w.plane.channel_status(w.source).unwrap().counters.published, 100);
    assert!(w.dropped() >= 90 - u64::from(WAITING), "{}", w.dropped());
}

#[test]
fn a_channel_with_a_path_of_its_own_waits_too() {
    let mut w = World::new(FullQueue::DropNewest, (FullQueue::DropNewest, 1_000));
    // In another context, and eight messages for each.
    let chain = PathSpec::chain(w.source, &[("duplicate", 1, "2")]);
    w.plane.activate_path(now(), PathSpec { entry: csp_messages::PathEntry::Known, ..chain }).unwrap();
    w.plane.set_feeds(w.source, vec![Feed { format: FORMAT, to: w.derived, becomes: FORMAT }]);
    for _ in 0..200 {
        w.publish().unwrap();
    }
    w.run_contexts();
    assert_eq!((w.dropped(), w.numbers().len()), (0, 400));
}

#[test]
fn rows_can_have_numbers_of_their_own() {
    let numbers = |own: bool| {
        let mut w = World::new(FullQueue::DropNewest, (FullQueue::DropNewest, 1_000));
        let chain = PathSpec::chain(w.derived, &[("drop-every", 0, "2")]);
        w.plane.activate_path(now(), chain).unwrap();
        if own {
            w.plane.number_rows(w.derived);
        }
        for _ in 0..4 {
            w.publish().unwrap();
        }
        w.run_contexts();
        w.numbers()
    };
    assert_eq!(numbers(false), [1, 3]);
    assert_eq!(numbers(true), [1, 2]);
}

#[test]
fn a_trace_shows_the_handlers_of_derived_channels() {
    let mut w = World::new(FullQueue::DropNewest, (FullQueue::DropNewest, 1_000));
    let request = TraceRequest { messages: 1, topic: b"", until: now() + HOUR, clock: now };
    let trace = w.plane.arm_trace(now(), w.source, request).unwrap();
    w.publish().unwrap();
    w.publish().unwrap();
    w.run_contexts();
    let traced = w.plane.traced(trace).unwrap().next().unwrap();
    let stages: Vec<_> = traced.stages.iter().map(|stage| (&stage.handler[..], stage.emitted)).collect();
    assert_eq!(stages, [("derived/forward", 1)]);
}

const HOUR: csp_types::Duration = csp_types::Duration::from_secs(3_600);
