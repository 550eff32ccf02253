//! The broker between publishers and subscribers that are written byte by byte: what one sends, the others
//! receive; peers that stop reading, leave, or talk nonsense.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use common::client::null_handshake;
use common::end::Clients;
use common::{End, message, of_channels, ready, subscribe};
use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, QueueLimits};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_quality::OutputLink;
use csp_services::{
    ChannelPath, ChannelPolicy, ChannelSpec, MessageBroker, MessagesConfig, MessagesPolicy, PathStage,
    SpecError,
};
use csp_tcp::{Stack, StackConfig};
use csp_types::{FlowLabel, FourTuple, Instant};

/// What has arrived lies in slices of so many bytes.
const SLICE: usize = 100;

struct World {
    broker: MessageBroker,
    ends: BTreeMap<u32, End>,
    now: Instant,
    steps: BTreeMap<u32, Step>,
    /// Lends memory to the ends that are connected from now on.
    engine: Option<Rc<RefCell<Stack>>>,
}

fn channel(kind: ChannelKind) -> ChannelConfig {
    ChannelConfig {
        name: "ticks".to_owned(),
        kind,
        budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
        message_len_max: 1 << 20,
        queue: QueueLimits { messages: 10, ..QueueLimits::default() },
        sequence: false,
    }
}

fn publish_subscribe() -> ChannelKind {
    ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None }
}

fn push_pull() -> ChannelKind {
    ChannelKind::PushPull { backlog: QueueLimits { messages: 5, ..QueueLimits::default() } }
}

impl World {
    fn new(kind: ChannelKind) -> Self {
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let spec = ChannelSpec::open(7, channel(kind));
        broker.apply(Instant::from_nanos(1), &of_channels([spec])).unwrap();
        World {
            broker,
            ends: BTreeMap::new(),
            now: Instant::from_nanos(1),
            steps: BTreeMap::new(),
            engine: None,
        }
    }

    fn label(n: u32) -> FlowLabel {
        FlowLabel::new(n, 0)
    }

    /// Connects a peer of this socket type, and removes greeting, READY and SUBSCRIBE from what it is sent.
    fn connect(&mut self, n: u32, socket: &str) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(self.now, Self::label(n), 7, tuple));
        let engine = self.engine.clone();
        self.ends.insert(n, End { slice: SLICE, engine, writes: Some(Vec::new()), ..End::new(1 << 20) });
        self.arrive(n, &null_handshake(socket, 1));
        let sent = &mut self.ends.get_mut(&n).unwrap().sent;
        assert_eq!((sent[0], sent[9], &sent[12..16]), (0xff, 0x7f, &b"NULL"[..]));
        assert_eq!((sent[64], &sent[66..72]), (4, &b"\x05READY"[..]));
        let ready = 64 + 2 + usize::from(sent[65]);
        sent.drain(..ready);
        if sent.starts_with(&subscribe(b"")) {
            sent.drain(..subscribe(b"").len());
        }
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) -> Step {
        let step = self.broker.serve(
            self.now,
            Self::label(n),
            &mut Clients(&mut self.ends),
            &mut OutputLink::default(),
        );
        self.steps.insert(n, step);
        step
    }

    /// Serves connections in passes, as a worker does.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let ready: Vec<FlowLabel> = ready(&mut self.broker, self.now);
            if ready.is_empty() {
                return;
            }
            for label in ready {
                let n = label.index() as u32;
                if self.ends.contains_key(&n) {
                    self.serve(n);
                }
            }
            while let Some(lent) = self.broker.take_lent() {
                self.engine.as_ref().unwrap().borrow_mut().give_back(lent);
            }
        }
        panic!("the broker never comes to rest");
    }

    fn give_room(&mut self, n: u32, room: usize) {
        self.ends.get_mut(&n).unwrap().room += room;
        self.serve(n);
        self.settle();
    }

    fn taken(&mut self, n: u32) -> Vec<u8> {
        std::mem::take(&mut self.ends.get_mut(&n).unwrap().sent)
    }

    fn leave(&mut self, n: u32) {
        self.broker.gone(self.now, Self::label(n));
        self.ends.remove(&n);
        self.settle();
    }
}

#[test]
fn what_is_published_reaches_those_who_subscribed_to_it() {
    let mut w = World::new(publish_subscribe());
    for (n, socket) in [(1, "PUB"), (2, "SUB"), (3, "XSUB"), (4, "SUB")] {
        w.connect(n, socket);
    }
    w.arrive(2, &subscribe(b"a"));
    w.arrive(3, &[message(&[b"\x01"]), Vec::new()].concat()); // the form of 3.0: to everything
    let two = message(&[b"apple", b"red"]);
    w.arrive(1, &[two.clone(), message(&[b"pear"])].concat());
    assert_eq!(w.taken(2), two);
    assert_eq!(w.taken(3), [two, message(&[b"pear"])].concat());
    assert!(w.taken(4).is_empty(), "it has not subscribed");
    for n in 1..5 {
        w.leave(n);
    }
    let plane = w.broker.plane().unwrap();
    assert_eq!((w.broker.connection_count(), plane.peers(), plane.occupancy().messages), (0, 0, 0));
}

#[test]
fn a_publisher_is_asked_for_all_messages() {
    let mut w = World::new(publish_subscribe());
    let tuple = FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], 9).into() };
    assert!(w.broker.connected(w.now, World::label(1), 7, tuple));
    w.ends.insert(1, End { slice: SLICE, ..End::new(1 << 20) });
    w.arrive(1, &null_handshake("PUB", 1));
    let sent = w.taken(1);
    assert!(sent.ends_with(&subscribe(b"")), "{sent:?}");
    assert!(!w.broker.connected(w.now, World::label(2), 8, tuple), "there is no channel of this number");
}

#[test]
fn messages_of_any_length_and_cut_arrive_whole() {
    for cut in [1, 7, 99, 1_000, 65_536] {
        let mut w = World::new(publish_subscribe());
        w.connect(1, "PUB");
        w.connect(2, "SUB");
        w.arrive(2, &subscribe(b""));
        let lens: &[usize] =
            if cut < 99 { &[0, 1, 255, 256, 5_000] } else { &[0, 254, 4_000, 200_000, 1 << 20] };
        let mut all = Vec::new();
        for (n, len) in lens.iter().enumerate() {
            all.extend(message(&[&[n as u8], &vec![b'a' + n as u8; len - usize::from(*len == 1 << 20)]]));
        }
        for bytes in all.chunks(cut) {
            w.arrive(1, bytes);
            w.give_room(2, bytes.len() + 20);
        }
        w.give_room(2, 1 << 20);
        assert!(w.taken(2) == all, "cut into {cut} bytes");
        assert!(w.ends[&1].arrived.is_empty());
    }
}

#[test]
fn a_subscriber_that_does_not_read_loses_messages_and_disturbs_nobody() {
    let mut w = World::new(publish_subscribe());
    for (n, socket) in [(1, "PUB"), (2, "SUB"), (3, "SUB")] {
        w.connect(n, socket);
    }
    w.arrive(2, &subscribe(b""));
    w.arrive(3, &subscribe(b""));
    w.ends.get_mut(&2).unwrap().room = 50;
    let mut all = Vec::new();
    for n in 0..100u8 {
        let next = message(&[&[n], &[n; 90]]);
        w.arrive(1, &next);
        all.extend(next);
    }
    assert!(w.taken(3) == all);
    assert_eq!(w.taken(2), all[..50]);
    w.give_room(2, 1 << 20);
    let rest = w.taken(2);
    let len = message(&[&[0], &[0; 90]]).len();
    assert_eq!(rest[..len - 50], all[50..len], "the message that was begun is finished");
    assert_eq!(rest.len() + 50, 11 * len, "and those of a queue's length");
}

#[test]
fn what_several_receive_is_encoded_once() {
    let mut w = World::new(publish_subscribe());
    w.engine = Some(Rc::new(RefCell::new(Stack::new(StackConfig { blocks: 256, ..StackConfig::default() }))));
    for (n, socket) in [(1, "PUB"), (2, "SUB"), (3, "SUB"), (4, "SUB"), (5, "SUB")] {
        w.connect(n, socket);
    }
    w.engine = None;
    w.connect(6, "SUB"); // as a program of the cluster: its end lends nothing
    for (n, topic) in [(2, &b""[..]), (3, b""), (4, b"b"), (5, b""), (6, b"")] {
        w.arrive(n, &subscribe(topic));
    }
    w.engine = w.ends[&2].engine.clone();
    w.ends.get_mut(&5).unwrap().room = 5_000;
    w.ends.values_mut().for_each(|end| end.writes = Some(Vec::new()));
    let all: Vec<Vec<u8>> =
        (0..8).map(|n| message(&[if n % 2 == 0 { b"a" } else { b"b" }, &[n; 3_000]])).collect();
    w.arrive(1, &all.concat());
    let writes = |w: &World, n: u32| w.ends[&n].writes.clone().unwrap();
    assert!(writes(&w, 2).len() <= 4, "several messages at once");
    assert_eq!(writes(&w, 2), writes(&w, 3), "the same memory");
    assert_eq!(writes(&w, 2), writes(&w, 6));
    let odd = all.iter().skip(1).step_by(2).flatten().copied().collect::<Vec<u8>>();
    w.give_room(5, 100_000);
    for (n, expected) in
        [(2, all.concat()), (3, all.concat()), (4, odd), (5, all.concat()), (6, all.concat())]
    {
        assert!(w.taken(n) == expected, "receiver {n}");
    }
}

#[test]
fn more_than_the_memory_holds_goes_to_each_in_order() {
    for lends in [true, false] {
        let mut w = World::new(ChannelKind::PublishSubscribe { policy: FullQueue::Block, cache: None });
        let stack = Stack::new(StackConfig { blocks: 1024, ..StackConfig::default() });
        w.engine = lends.then(|| Rc::new(RefCell::new(stack)));
        (1..=4).for_each(|n| w.connect(n, if n == 1 { "PUB" } else { "SUB" }));
        w.arrive(2, &subscribe(b""));
        w.arrive(3, &subscribe(b"\x01"));
        w.arrive(4, &subscribe(b""));
        let all: Vec<Vec<u8>> =
            (0..40).map(|n| message(&[&[n % 2], &vec![n; 9_000 + usize::from(n)]])).collect();
        w.arrive(1, &all.concat());
        let odd = all.iter().skip(1).step_by(2).flatten().copied().collect::<Vec<u8>>();
        for (n, expected) in [(2, all.concat()), (3, odd), (4, all.concat())] {
            let (taken, expected_len) = (w.taken(n), expected.len());
            assert!(taken == expected, "receiver {n}: {} of {expected_len} bytes", taken.len());
        }
    }
}

#[test]
fn pushers_are_held_back_and_nothing_is_lost() {
    let mut w = World::new(push_pull());
    w.connect(1, "PUSH");
    let all: Vec<Vec<u8>> = (0..200u8).map(|n| message(&[&[n; 90]])).collect();
    w.arrive(1, &all[..100].concat());
    assert!(!w.ends[&1].arrived.is_empty(), "there is no puller, and the backlog is full");
    w.connect(2, "PULL");
    w.connect(3, "PULL");
    w.arrive(1, &all[100..].concat());
    let parts =
        [w.taken(2), w.taken(3)].map(|bytes| bytes.chunks(92).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert!(parts.iter().all(|part| part.is_sorted()), "in the order in which they were pushed");
    assert!((40..=60).contains(&parts[1].len()), "{} of the last 100 went to the second", parts[1].len());
    let mut both = parts.concat();
    both.sort();
    assert!(both == all && w.ends[&1].arrived.is_empty());
}

#[test]
fn a_peer_that_talks_nonsense_or_says_nothing_is_ended() {
    let mut w = World::new(publish_subscribe());
    let tuple = FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], 9).into() };
    for n in [1, 2, 3] {
        assert!(w.broker.connected(w.now, World::label(n), 7, tuple));
        w.ends.insert(n, End { slice: SLICE, ..End::new(1 << 20) });
    }
    w.arrive(1, b"GET / HTTP/1.1\r\n\r\n");
    w.arrive(2, &null_handshake("PUSH", 1));
    assert_eq!((w.steps[&1], w.steps[&2]), (Step::Close, Step::Close));
    let due = w.broker.next_timeout().unwrap();
    assert_eq!(due, w.now + Duration::from_secs(30));
    w.now = due;
    w.broker.on_timeout(due);
    w.settle();
    assert_eq!((w.steps.get(&3), w.broker.next_timeout()), (Some(&Step::Close), None));
}

#[test]
fn a_channel_that_the_policy_removes_takes_its_connections_along() {
    let mut w = World::new(publish_subscribe());
    w.connect(1, "PUB");
    w.connect(2, "SUB");
    w.arrive(2, &subscribe(b""));
    w.broker.apply(w.now, &MessagesPolicy::default()).unwrap();
    w.settle();
    assert_eq!((w.steps[&1], w.steps[&2]), (Step::Close, Step::Close));
    w.leave(1);
    w.leave(2);
    assert_eq!(w.broker.plane().unwrap().peers(), 0);
}

impl World {
    /// Puts the channel with a path of these stages into force.
    fn set_path(&mut self, kind: ChannelKind, stages: &[(&str, u16, &str)]) -> Result<(), SpecError> {
        let spec = ChannelSpec::open(7, channel(kind));
        let channel = ChannelPolicy { paths: path(stages), ..spec.into() };
        self.broker.apply(self.now, &of_channels([channel]))
    }
}

fn path(stages: &[(&str, u16, &str)]) -> Vec<ChannelPath> {
    let stage = |(handler, context, parameters): &(&str, u16, &str)| PathStage {
        handler: (*handler).into(),
        context: *context,
        parameters: (*parameters).into(),
        maker: None,
        auto: None,
        outputs: Vec::new(),
    };
    vec![ChannelPath::new(7, stages.iter().map(stage).collect())]
}

#[test]
fn messages_pass_the_path_that_the_policy_names_at_that_time() {
    for (kind, sender, receiver) in [(publish_subscribe(), "PUB", "SUB"), (push_pull(), "PUSH", "PULL")] {
        let mut w = World::new(kind);
        w.connect(1, sender);
        w.connect(2, receiver);
        if receiver == "SUB" {
            w.arrive(2, &subscribe(b""));
        }
        let all: Vec<Vec<u8>> = (0..6u8).map(|n| message(&[&[n]])).collect();
        w.set_path(kind, &[("forward", 0, ""), ("drop-every", 1, "3")]).unwrap();
        w.arrive(1, &all.concat());
        let kept = [&all[..2], &all[3..5]].concat().concat();
        assert_eq!(w.taken(2), kept);
        w.set_path(kind, &[("forward", 0, ""), ("drop-every", 1, "2")]).unwrap();
        let id = w.broker.contexts().paths[0].1.id;
        w.arrive(1, &all.concat());
        assert_eq!(w.taken(2), [&all[..1], &all[2..3], &all[4..5]].concat().concat(), "parameters only");
        let refused = w.set_path(kind, &[("duplicate", 0, "0")]).unwrap_err();
        assert!(
            refused.to_string().starts_with("the path of channel ticks: handler `duplicate`"),
            "{refused}"
        );
        assert_eq!(w.broker.contexts().paths[0].1.id, id, "the former path stays");
        w.set_path(kind, &[]).unwrap();
        w.arrive(1, &all.concat());
        assert_eq!((w.taken(2), w.broker.contexts().paths.len()), (all.concat(), 0));
    }
}

#[test]
fn a_path_holds_back_and_goes_on_with_its_receiver() {
    let mut w = World::new(push_pull());
    w.connect(1, "PUSH");
    w.connect(2, "PULL");
    w.set_path(push_pull(), &[("forward", 0, ""), ("forward", 1, "")]).unwrap();
    w.ends.get_mut(&2).unwrap().room = 0;
    let body = vec![7; 1_000];
    let one = message(&[&body]);
    w.arrive(1, &one.repeat(2_000));
    assert!(w.ends[&1].arrived.len() > 100_000, "the sender is held back");
    let mut received = Vec::new();
    while received.len() < 2_000 * one.len() {
        w.give_room(2, 50_000);
        let taken = w.taken(2);
        assert!(!taken.is_empty(), "{} bytes", received.len());
        received.extend(taken);
    }
    assert!(received == one.repeat(2_000));
    assert_eq!(w.broker.plane().unwrap().occupancy().messages, 0);
}
