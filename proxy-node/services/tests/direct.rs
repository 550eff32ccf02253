//! Messages that are delivered from where they arrived, beside the same messages through pool and queues: one
//! broker has ends that lend memory, the other has not.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use common::client::null_handshake;
use common::end::Clients;
use common::{End, broker, config, frames, message, open_channel, ready, subscribe};
use csp_messages::{ChannelKind, ChannelStatus, FullQueue, QueueLimits};
use csp_proxy_core::service::local::LocalServices as _;
use csp_quality::OutputLink;
use csp_services::{ChannelSpec, MessageBroker};
use csp_support::{Random, allocation};
use csp_tcp::{Stack, StackConfig};
use csp_types::{FlowLabel, FourTuple, Instant};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const NOW: Instant = Instant::from_nanos(1);
/// Numbers of the receivers start here; senders have those before.
const RECEIVERS: u32 = 2;

struct World {
    broker: MessageBroker,
    ends: BTreeMap<u32, End>,
    engine: Option<Rc<RefCell<Stack>>>,
    /// All that each peer was sent.
    got: BTreeMap<u32, Vec<u8>>,
}

impl World {
    fn new(spec: ChannelSpec, lends: bool) -> Self {
        let stack = || Stack::new(StackConfig { blocks: 1024, ..StackConfig::default() });
        let engine = lends.then(|| Rc::new(RefCell::new(stack())));
        World { broker: broker(config(), spec), ends: BTreeMap::new(), engine, got: BTreeMap::new() }
    }

    fn connect(&mut self, n: u32, socket: &str, slice: usize) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(NOW, FlowLabel::new(n, 0), common::CHANNEL, tuple));
        let end = End { slice, engine: self.engine.clone(), ..End::new(1 << 20) };
        self.ends.insert(n, end);
        self.arrive(n, &null_handshake(socket, 1));
        self.got.remove(&n);
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) {
        self.broker.serve(
            NOW,
            FlowLabel::new(n, 0),
            &mut Clients(&mut self.ends),
            &mut OutputLink::default(),
        );
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let ready = ready(&mut self.broker, NOW);
            if ready.is_empty() {
                for (n, end) in &mut self.ends {
                    self.got.entry(*n).or_default().append(&mut end.sent);
                }
                return;
            }
            ready.iter().for_each(|label| self.serve(label.index() as u32));
            while let Some(lent) = self.broker.take_lent() {
                self.engine.as_ref().unwrap().borrow_mut().give_back(lent);
            }
        }
        panic!("the broker never comes to rest");
    }

    fn status(&self) -> ChannelStatus {
        self.broker.snapshots().remove(0).status
    }

    fn stored(&self) -> u64 {
        self.broker.plane().unwrap().pool_counters().stored
    }
}

/// A broker that delivers directly, and one that does not.
struct Both([World; 2]);

impl Both {
    fn new(spec: &ChannelSpec) -> Self {
        Both([true, false].map(|lends| World::new(spec.clone(), lends)))
    }

    fn each(&mut self, mut step: impl FnMut(&mut World)) {
        self.0.iter_mut().for_each(&mut step);
    }
}

fn channel(kind: ChannelKind, messages: u32) -> ChannelSpec {
    let mut spec = open_channel();
    (spec.channel.kind, spec.channel.queue.messages) = (kind, messages);
    spec
}

fn publish_subscribe(policy: FullQueue) -> ChannelKind {
    ChannelKind::PublishSubscribe { policy, cache: None }
}

fn push_pull() -> ChannelKind {
    ChannelKind::PushPull { backlog: QueueLimits { messages: 50, ..QueueLimits::default() } }
}

/// A message with its number in the last frame: sometimes long, of several frames, or with a header that the
/// proxy would write shorter.
fn random_message(random: &mut Random, number: u64) -> Vec<u8> {
    let topic = [b'a' + random.below(3) as u8, b'a' + random.below(3) as u8];
    let len = if random.below(40) == 0 { 25_000 } else { random.below(900) } as usize;
    let body = [&number.to_be_bytes()[..], &vec![number as u8; len]].concat();
    match random.below(10) {
        0 => [&[3, 0, 0, 0, 0, 0, 0, 0, 2][..], &topic, &message(&[&body])].concat(),
        1 => message(&[&topic, b"", &body]),
        _ => message(&[&topic, &body]),
    }
}

/// The numbers of the messages in a stream, the rest of one at its end left out.
fn numbers(mut stream: &[u8]) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let (header, len) = match stream {
            [flags, len, ..] if flags & 2 == 0 => (2, usize::from(*len)),
            [_, rest @ ..] if rest.len() >= 8 => {
                (9, u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize)
            }
            _ => return all,
        };
        let Some(body) = stream.get(header..header + len) else { return all };
        if stream[0] & 1 == 0 {
            all.push(u64::from_be_bytes(body[..8].try_into().unwrap()));
        }
        stream = &stream[header + len..];
    }
}

/// Returns the numbers of the messages that all receivers were sent: to each in the order of their senders,
/// and once.
fn in_order(w: &World) -> Vec<u64> {
    let mut all = Vec::new();
    for (n, got) in w.got.range(RECEIVERS..) {
        let received = numbers(got);
        for sender in 0..2 {
            let of_sender = received.iter().filter(|number| *number % 2 == sender);
            assert!(of_sender.is_sorted_by(|a, b| a < b), "peer {n}, sender {sender}: {received:?}");
        }
        all.extend(received);
    }
    all
}

/// Runs both brokers with the same peers; returns them when everybody has room again. The messages of sender
/// n of `senders` have the numbers n, n + 2, n + 4 and so on.
fn run(seed: u64, spec: &ChannelSpec, senders: u32, sockets: [&str; 2]) -> Both {
    let mut random = Random::new(seed);
    let mut both = Both::new(spec);
    let receivers = 1 + random.below(4) as u32;
    let all = RECEIVERS..RECEIVERS + receivers;
    for n in (0..senders).chain(all.clone()) {
        let slice = [5, 70, 700, 1448, 0][random.below(5) as usize];
        both.each(|w| w.connect(n, sockets[usize::from(n >= RECEIVERS)], slice));
        if sockets[1] == "SUB" && n >= RECEIVERS {
            both.each(|w| w.arrive(n, &subscribe(b"a")));
        }
    }
    let (mut numbers, mut rests) = ([0, 1], vec![Vec::new(); senders as usize]);
    for _ in 0..60 {
        let receiver = RECEIVERS + random.below(receivers.into()) as u32;
        match random.below(12) {
            0 if sockets[1] == "SUB" => {
                let prefix = [b'a' + random.below(3) as u8, b'b'];
                let prefix = &prefix[..random.below(3) as usize];
                both.each(|w| w.arrive(receiver, &subscribe(prefix)));
            }
            1 => both.each(|w| w.ends.get_mut(&receiver).unwrap().room = seed as usize % 3 * 700),
            2 | 3 => both.each(|w| {
                w.ends.get_mut(&receiver).unwrap().room += 20_000;
                w.serve(receiver);
                w.settle();
            }),
            _ => {
                let sender = random.below(senders.into()) as u32;
                let rest: &mut Vec<u8> = &mut rests[sender as usize];
                for _ in 0..random.below(12) {
                    rest.extend(random_message(&mut random, numbers[sender as usize]));
                    numbers[sender as usize] += 2;
                }
                let now = random.below(rest.len() as u64 + 1) as usize;
                let arrives: Vec<u8> = rest.drain(..now).collect();
                both.each(|w| w.arrive(sender, &arrives));
            }
        }
    }
    for (sender, rest) in (0..).zip(rests) {
        both.each(|w| w.arrive(sender, &rest));
    }
    for n in all {
        both.each(|w| {
            w.ends.get_mut(&n).unwrap().room = 1 << 24;
            w.serve(n);
            w.settle();
        });
    }
    both
}

#[test]
fn each_receiver_is_sent_the_same_bytes_and_everything_is_counted_alike() {
    let mut directly = 0;
    for seed in 0..30 {
        let spec = channel(publish_subscribe(FullQueue::Block), 40);
        let Both([direct, pooled]) = run(seed, &spec, 1, ["PUB", "SUB"]);
        for (n, got) in &pooled.got {
            assert!(direct.got[n] == *got, "seed {seed}, peer {n}");
        }
        let counted = |w: &World| {
            let mut counters = w.status().counters;
            counters.held = 0; // the pooled one fills queues within a visit
            (counters, w.status().sequence, w.status().memory.used)
        };
        assert_eq!(counted(&direct), counted(&pooled), "seed {seed}");
        directly += pooled.stored() - direct.stored();
    }
    assert!(directly > 500, "only {directly} messages were not stored");
}

#[test]
fn full_queues_drop_what_they_count_and_nothing_overtakes() {
    for seed in 0..20 {
        let policy = if seed % 2 == 0 { FullQueue::DropNewest } else { FullQueue::DropOldest };
        let both = run(seed, &channel(publish_subscribe(policy), 10), 2, ["PUB", "SUB"]);
        let published = both.0.each_ref().map(|w| {
            let counters = w.status().counters;
            let dropped = counters.dropped_oldest;
            assert_eq!(counters.taken, in_order(w).len() as u64, "seed {seed}");
            assert_eq!(counters.queued, counters.taken + dropped, "seed {seed}");
            counters.published
        });
        assert_eq!(published[0], published[1], "seed {seed}");
    }
}

#[test]
fn a_pushed_message_goes_to_one_puller_once() {
    for seed in 0..20 {
        let both = run(seed, &channel(push_pull(), 10), 2, ["PUSH", "PULL"]);
        for w in &both.0 {
            let all = in_order(w);
            let unique: BTreeSet<u64> = all.iter().copied().collect();
            let counters = w.status().counters;
            assert_eq!((unique.len(), all.len() as u64), (all.len(), counters.published), "seed {seed}");
            assert_eq!((counters.taken, counters.lost), (counters.published, 0));
        }
    }
}

#[test]
fn pullers_have_their_turns() {
    let mut w = World::new(channel(push_pull(), 10), true);
    w.connect(0, "PUSH", 0);
    (1..=3).for_each(|n| w.connect(n, "PULL", 0));
    for number in 0..90u64 {
        w.arrive(0, &message(&[&number.to_be_bytes()]));
    }
    assert!((1..=3).all(|n| numbers(&w.got[&n]).len() == 30), "{:?}", w.got.keys());
    assert!(w.stored() <= 6, "{} were stored", w.stored());
}

#[test]
fn a_visit_ends_when_its_memory_is_used_up_and_the_next_one_goes_on() {
    let mut w = World::new(channel(publish_subscribe(FullQueue::DropNewest), 10), true);
    w.connect(0, "PUB", 1448);
    w.connect(1, "SUB", 0);
    w.arrive(1, &subscribe(b""));
    w.arrive(0, &message(&[b"first"]));
    let all: Vec<u8> = (0..1_000u64).flat_map(|n| message(&[&n.to_be_bytes(), &[n as u8; 590]])).collect();
    w.ends.get_mut(&1).unwrap().writes = Some(Vec::new());
    w.arrive(0, &all);
    assert_eq!(frames(&w.got[&1]).len(), 2_001);
    assert_eq!(w.stored(), 1, "all but the one by which the receiver was found went past the pool");
    let writes = w.ends[&1].writes.as_ref().unwrap().len();
    assert!(writes < 60, "{writes} writes for 600 kB");
}

#[test]
fn nothing_is_allocated_for_a_message() {
    let mut w = World::new(channel(publish_subscribe(FullQueue::DropNewest), 10), true);
    w.connect(0, "PUB", 1448);
    w.connect(1, "SUB", 0);
    w.connect(2, "SUB", 0);
    w.arrive(1, &subscribe(b""));
    w.arrive(2, &subscribe(b""));
    for end in w.ends.values_mut() {
        (end.sent, end.arrived) = (Vec::with_capacity(8 << 20), Vec::with_capacity(1 << 20));
    }
    let burst: Vec<u8> = (0..40u64).flat_map(|n| message(&[&n.to_be_bytes(), &[n as u8; 590]])).collect();
    for round in 0..50 {
        w.ends.get_mut(&0).unwrap().arrived.extend_from_slice(&burst);
        let before = allocation::count();
        w.serve(0);
        let allocated = allocation::count() - before;
        assert!(round < 10 || allocated == 0, "round {round}: {allocated}");
        w.ends.values_mut().for_each(|end| end.room = 1 << 20);
        let queued = ready(&mut w.broker, NOW);
        queued.iter().for_each(|label| w.serve(label.index() as u32));
    }
}
