//! Options of channels, what becomes of their connections, and turns between channels: peers are written byte
//! by byte, and the broker is driven as a worker drives it.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeMap;

use common::client::null_handshake;
use common::{End, message, of_channels, subscribe};
use csp_messages::{
    Budget, CacheConfig, ChannelConfig, ChannelCounters, ChannelKind, FullQueue, HashKey, LastValueKey,
    QueueLimits,
};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_quality::OutputLink;
use csp_services::{ChannelSpec, MessageBroker, MessagesConfig};
use csp_types::{FlowLabel, FourTuple, Instant};

struct World {
    broker: MessageBroker,
    ends: BTreeMap<u32, End>,
    now: Instant,
    steps: BTreeMap<u32, Step>,
}

fn spec(number: u32, kind: ChannelKind) -> ChannelSpec {
    let channel = ChannelConfig {
        name: format!("channel-{number}"),
        kind,
        budget: Budget { guaranteed: 4 << 20, max: 16 << 20 },
        message_len_max: 1 << 20,
        queue: QueueLimits { messages: 10, ..QueueLimits::default() },
        sequence: false,
    };
    ChannelSpec::open(number, channel)
}

fn publish_subscribe(cache: Option<CacheConfig>) -> ChannelKind {
    ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache }
}

impl World {
    fn new(specs: Vec<ChannelSpec>) -> Self {
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        broker.apply(Instant::from_nanos(77), &of_channels(specs)).unwrap();
        World { broker, ends: BTreeMap::new(), now: Instant::from_nanos(77), steps: BTreeMap::new() }
    }

    /// Connects a peer to a channel, with room for so many bytes after the handshake.
    fn connect(&mut self, n: u32, channel: u32, socket: &str, room: usize) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(self.now, FlowLabel::new(n, 0), channel, tuple));
        self.ends.insert(n, End { silent: true, ..End::new(1 << 20) });
        self.arrive(n, &null_handshake(socket, 1));
        let end = self.ends.get_mut(&n).unwrap();
        (end.room, end.unacknowledged) = (room, 0);
        end.sent.clear();
    }

    fn subscriber(&mut self, n: u32, channel: u32, room: usize) {
        self.connect(n, channel, "SUB", room);
        self.arrive(n, &subscribe(b""));
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) {
        let step = self.broker.serve(
            self.now,
            FlowLabel::new(n, 0),
            self.ends.get_mut(&n).unwrap(),
            &mut OutputLink::default(),
        );
        self.steps.insert(n, step);
    }

    /// Serves the connections that are named, at most `most`; returns their numbers.
    fn pass(&mut self, most: usize) -> Vec<u32> {
        let ready: Vec<u32> = std::iter::from_fn(|| self.broker.next_ready(&mut OutputLink::default()))
            .take(most)
            .map(|label| label.index() as u32)
            .collect();
        ready.iter().for_each(|n| self.serve(*n));
        self.broker.take_lent();
        ready
    }

    fn settle(&mut self) {
        while !self.pass(1_000).is_empty() {}
    }

    fn give_room(&mut self, n: u32, room: usize) {
        self.ends.get_mut(&n).unwrap().room += room;
        self.serve(n);
        self.settle();
    }

    fn taken(&mut self, n: u32) -> Vec<u8> {
        std::mem::take(&mut self.ends.get_mut(&n).unwrap().sent)
    }

    fn counters(&self) -> ChannelCounters {
        self.broker.snapshots()[0].status.counters
    }
}

/// A message with its numbers.
fn numbered(frames: &[&[u8]], number: u64, arrived: u64) -> Vec<u8> {
    let numbers = [number.to_be_bytes(), arrived.to_be_bytes()].concat();
    message(&[frames, &[&numbers[..]]].concat())
}

#[test]
fn subscribers_that_join_late_get_the_last_value_of_each_topic_once() {
    let cache = CacheConfig { key: LastValueKey::Topic, entries: 2, bytes: 1 << 20 };
    let mut w = World::new(vec![spec(0, publish_subscribe(Some(cache)))]);
    w.connect(1, 0, "PUB", 0);
    for (topic, value) in [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")] {
        w.arrive(1, &message(&[topic, value]));
    }
    w.connect(2, 0, "SUB", 1 << 20);
    w.arrive(2, &subscribe(b"a"));
    assert_eq!(w.taken(2), message(&[b"a", b"3"]));
    w.arrive(2, &subscribe(b""));
    assert_eq!(w.taken(2), message(&[b"c", b"4"]), "b gave way for c, and a it has");
    w.arrive(1, &message(&[b"c", b"5"]));
    assert_eq!(w.taken(2), message(&[b"c", b"5"]));
}

#[test]
fn sequence_numbers_follow_messages_and_show_what_was_dropped() {
    let mut plan = spec(0, publish_subscribe(None));
    plan.channel.sequence = true;
    let mut w = World::new(vec![plan]);
    w.connect(1, 0, "PUB", 0);
    w.subscriber(2, 0, 1 << 20);
    w.subscriber(3, 0, 30);
    let body = [b'x'; 300];
    let all: Vec<Vec<u8>> = (1..=100).map(|n| numbered(&[b"t", &body], n, 77)).collect();
    for _ in 0..100 {
        w.arrive(1, &message(&[b"t", &body]));
    }
    assert!(w.taken(2) == all.concat(), "of one frame and of several, all are numbered");
    // A cut at every byte of a message, its numbers included.
    for _ in 0..all[0].len() {
        w.give_room(3, 1);
    }
    w.give_room(3, 1 << 20);
    w.arrive(1, &message(&[b"last"]));
    let last = numbered(&[b"last"], 101, 77);
    let expected = [all[..11].concat(), last].concat();
    assert!(w.taken(3) == expected, "its queue was full from 12 to 100: the next has the number 101");
    assert_eq!(w.counters().dropped_newest, 89);
}

#[test]
fn what_a_puller_has_not_acknowledged_counts_as_lost_with_it() {
    let backlog = QueueLimits::default();
    let mut w = World::new(vec![spec(0, ChannelKind::PushPull { backlog })]);
    w.connect(1, 0, "PUSH", 0);
    w.connect(2, 0, "PULL", 1 << 20);
    for _ in 0..5 {
        w.arrive(1, &message(&[&[7; 98]]));
    }
    w.ends.get_mut(&2).unwrap().unacknowledged = 250; // of 500: half of the third message, and two more
    w.serve(2);
    w.broker.gone(w.now, FlowLabel::new(2, 0));
    assert_eq!((w.counters().taken, w.counters().lost), (5, 3));
    w.connect(3, 0, "PULL", 1 << 20);
    w.arrive(1, &message(&[b"next"]));
    w.ends.get_mut(&3).unwrap().unacknowledged = 0;
    w.serve(3);
    w.broker.gone(w.now, FlowLabel::new(3, 0));
    assert_eq!(w.counters().lost, 3, "all of it was acknowledged");
}

#[test]
fn a_stream_that_ends_within_a_message_is_over() {
    for (bytes, step) in
        [(&message(&[&[1; 200]])[..150], Step::Close), (&null_handshake("PUB", 1)[..30], Step::Close)]
    {
        let mut w = World::new(vec![spec(0, publish_subscribe(None))]);
        match bytes.len() {
            30 => {
                let tuple =
                    FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], 9).into() };
                assert!(w.broker.connected(w.now, FlowLabel::new(1, 0), 0, tuple));
                w.ends.insert(1, End { silent: true, ..End::new(1 << 20) });
            }
            _ => w.connect(1, 0, "PUB", 0),
        }
        w.arrive(1, bytes);
        assert_ne!(w.steps[&1], step);
        w.ends.get_mut(&1).unwrap().finished = true;
        w.serve(1);
        assert_eq!(w.steps[&1], step, "after {} bytes", bytes.len());
    }
}

#[test]
fn connections_of_a_channel_that_the_policy_changes_are_closed() {
    let mut w = World::new(vec![spec(0, publish_subscribe(None)), spec(1, publish_subscribe(None))]);
    w.subscriber(1, 0, 1 << 20);
    w.subscriber(2, 1, 1 << 20);
    let mut changed = spec(0, publish_subscribe(None));
    changed.channel.queue.messages = 11;
    let specs = [changed, spec(1, publish_subscribe(None))];
    w.broker.apply(w.now, &of_channels(specs)).unwrap();
    w.settle();
    w.serve(2);
    assert_eq!(w.steps[&1], Step::Close, "it would never receive anything of the new channel");
    assert_ne!(w.steps[&2], Step::Close, "the other channel stays as it is");
}

/// Many receivers of one channel with long messages leave the turns to another channel, whatever is charged
/// to whom.
#[test]
fn a_flood_of_one_channel_leaves_another_its_turns() {
    let mut w = World::new(vec![spec(0, publish_subscribe(None)), spec(1, publish_subscribe(None))]);
    w.connect(1, 0, "PUB", 0);
    w.connect(2, 1, "PUB", 0);
    let crowd = 10..210;
    crowd.clone().for_each(|n| w.subscriber(n, 0, 0));
    w.subscriber(3, 1, 1 << 20);
    let long = message(&[&[9; 9_000]]);
    for round in 0..20 {
        // Each receiver of the flood has a message begun and ten more waiting, then room.
        while w.counters_of("channel-0").dropped_newest < 200 * (round + 1) {
            w.ends.get_mut(&1).unwrap().arrived.extend_from_slice(&long);
            w.serve(1);
            w.settle();
        }
        w.ends.get_mut(&2).unwrap().arrived.extend(message(&[b"short"]));
        w.serve(2);
        for n in crowd.clone() {
            w.ends.get_mut(&n).unwrap().room = 90_000;
            w.serve(n);
        }
        let mut passes = 0;
        while w.ends[&3].sent.is_empty() {
            let served = w.pass(64);
            passes += 1;
            assert!(
                !served.is_empty() && passes <= 2,
                "round {round}: pass {passes} served {}",
                served.len()
            );
        }
        w.taken(3);
        w.settle();
        for n in crowd.clone() {
            let end = w.ends.get_mut(&n).unwrap();
            (end.room, end.unacknowledged) = (0, 0);
            end.sent.clear();
        }
    }
}

impl World {
    fn counters_of(&self, name: &str) -> ChannelCounters {
        self.broker.snapshots().iter().find(|snapshot| snapshot.name == name).unwrap().status.counters
    }
}
