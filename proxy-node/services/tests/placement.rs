//! A channel whose owner becomes another worker: its connections are ended, and nothing that was sent before
//! is lost.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeMap;

use common::client::null_handshake;
use common::{End, of_channels, ready};
use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, QueueLimits, Role, Targets};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_quality::OutputLink;
use csp_services::{
    ChannelPath, ChannelPolicy, ChannelSpec, GATHER_TIME, Header, MessageBroker, MessagesConfig,
    MessagesPolicy, MoveNotice, PathStage, PrefixedPort, RECEIVERS_TIME, SENDERS_TIME, STABLE, STRANGER_TIME,
    View,
};
use csp_types::{Duration, FlowLabel, FourTuple, Instant, Owner, PlacementKey};
use csp_zmtp::Prefix;

const NUMBER: u32 = 7;

struct World {
    broker: MessageBroker,
    ends: BTreeMap<u32, End>,
    now: Instant,
}

fn owner(name: &str) -> Owner {
    Owner { proxy: name.parse().unwrap(), worker: 0 }
}

fn publish() -> ChannelKind {
    ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None }
}

/// A port of length-prefixed peers that send and receive.
fn both() -> PrefixedPort {
    PrefixedPort {
        port: 5557,
        prefix: Prefix::sofh(1 << 20).unwrap(),
        header: Header::Kept,
        role: Role::Both,
    }
}

fn push() -> ChannelKind {
    ChannelKind::PushPull { backlog: QueueLimits { messages: 5, ..QueueLimits::default() } }
}

fn message(n: u8) -> Vec<u8> {
    [&[0, 20][..], &[n; 20]].concat()
}

fn subscribe_to_all() -> Vec<u8> {
    b"\x04\x0a\x09SUBSCRIBE".to_vec()
}

impl World {
    /// A worker of `pn-1` that has had the channel for long.
    fn new(kind: ChannelKind) -> Self {
        let mut w = Self::without_view(kind);
        w.view(&["pn-1"]);
        w.pass(Duration::from_secs(100));
        w
    }

    fn without_view(kind: ChannelKind) -> Self {
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let channel = ChannelConfig {
            name: "ticks".to_owned(),
            kind,
            budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
            message_len_max: 1 << 20,
            queue: QueueLimits { messages: 10, ..QueueLimits::default() },
            sequence: false,
        };
        let prefixed = match kind {
            ChannelKind::PublishSubscribe { .. } => vec![both()],
            ChannelKind::PushPull { .. } => Vec::new(),
        };
        let spec = ChannelSpec { prefixed, ..ChannelSpec::open(NUMBER, channel) };
        let place = Some(PlacementKey::of_address(([10, 0, 0, 1], 5556).into()));
        let now = Instant::from_nanos(1);
        broker.apply(now, &of_channels([ChannelPolicy { place, ..spec.into() }])).unwrap();
        World { broker, ends: BTreeMap::new(), now }
    }

    /// New connections go to workers of these proxies.
    fn view(&mut self, proxies: &[&str]) {
        let workers = proxies.iter().map(|name| owner(name)).collect();
        self.broker.set_view(self.now, View { here: owner("pn-1"), workers });
        self.settle();
    }

    fn label(n: u32) -> FlowLabel {
        FlowLabel::new(n, 0)
    }

    fn connect(&mut self, n: u32, socket: &str) {
        self.connect_to(NUMBER, n, socket);
    }

    fn connect_to(&mut self, channel: u32, n: u32, socket: &str) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(self.now, Self::label(n), channel, tuple));
        self.ends.insert(n, End::new(1 << 20));
        self.arrive(n, &null_handshake(socket, 1));
        if socket == "SUB" {
            self.arrive(n, &subscribe_to_all());
        }
        self.end(n).sent.clear();
    }

    fn end(&mut self, n: u32) -> &mut End {
        self.ends.get_mut(&n).unwrap()
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.end(n).arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn finish(&mut self, n: u32) {
        self.end(n).finished = true;
        self.serve(n);
        self.settle();
    }

    fn give_room(&mut self, n: u32, room: usize) {
        self.end(n).room += room;
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) {
        let Some(end) = self.ends.get_mut(&n) else { return };
        match self.broker.serve(self.now, Self::label(n), end, &mut OutputLink::default()) {
            Step::Finish => assert!(!std::mem::replace(&mut end.fin, true), "once"),
            Step::Close | Step::Reset => {
                self.broker.gone(self.now, Self::label(n));
                self.ends.remove(&n);
            }
            Step::Idle | Step::Moved => {}
        }
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.broker.next_timeout().is_some_and(|due| due <= self.now) {
                self.broker.on_timeout(self.now);
            }
            let ready: Vec<FlowLabel> = ready(&mut self.broker, self.now);
            if ready.is_empty() && self.broker.next_timeout().is_none_or(|due| due > self.now) {
                return;
            }
            ready.into_iter().for_each(|label| self.serve(label.index() as u32));
        }
        panic!("the broker never comes to rest");
    }

    /// Lets time pass, from one timer to the next.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.broker.next_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// The peers to which FIN was sent, and those that are gone, of peers 1 to `count`.
    fn ended(&self, count: u32) -> (Vec<u32>, Vec<u32>) {
        let all = 1..=count;
        let fin = all.clone().filter(|n| self.ends.get(n).is_some_and(|end| end.fin)).collect();
        (fin, all.filter(|n| !self.ends.contains_key(n)).collect())
    }

    fn notices(&mut self) -> Vec<MoveNotice> {
        std::iter::from_fn(|| self.broker.poll_notice()).collect()
    }

    /// What the last move that is over has cost: connections and messages.
    fn done(&mut self) -> Option<(u64, u64)> {
        self.notices().into_iter().rev().find_map(|notice| match notice {
            MoveNotice::Done { channel, from, to, connections, lost } => {
                assert_eq!((channel.as_str(), from, to), ("ticks", owner("pn-1"), owner("pn-2")));
                Some((connections, lost))
            }
            MoveNotice::Began { .. } => None,
        })
    }
}

const MOMENT: Duration = Duration::from_millis(1);

#[test]
fn senders_are_ended_first_and_receivers_when_they_have_everything() {
    for kind in [publish(), push()] {
        let mut w = World::new(kind);
        let pushes = matches!(kind, ChannelKind::PushPull { .. });
        let [sends, receives] = if pushes { ["PUSH", "PULL"] } else { ["PUB", "SUB"] };
        w.connect(1, sends);
        w.connect(2, sends);
        w.connect(3, receives);
        w.end(3).room = 30;
        w.view(&["pn-2"]);
        w.pass(STABLE - MOMENT);
        assert_eq!(w.ended(3), (vec![], vec![]), "the view may change back");
        w.pass(MOMENT);
        assert_eq!(w.ended(3), (vec![1, 2], vec![]));
        // What was under way when the senders noticed: more than the receiver has room for.
        w.arrive(1, &message(1));
        w.arrive(2, &message(2));
        w.arrive(1, &[message(3), message(4)].concat());
        w.finish(1);
        w.arrive(2, &message(5));
        assert_eq!(w.ended(3), (vec![2], vec![1]));
        w.finish(2);
        assert_eq!(w.ended(3), (vec![], vec![1, 2]), "the receiver does not have everything");
        w.give_room(3, 1 << 20);
        assert_eq!(w.ended(3), (vec![3], vec![1, 2]));
        assert_eq!(w.end(3).sent, [1, 2, 3, 4, 5].map(message).concat());
        assert_eq!(w.done(), None);
        w.finish(3);
        assert_eq!(w.done(), Some((3, 0)));
        let snapshot = &w.broker.snapshots()[0];
        assert_eq!((snapshot.owner, snapshot.moved.connections), (Some(owner("pn-2")), 3));
        assert_eq!(w.broker.plane().unwrap().occupancy().messages, 0);
    }
}

/// Receivers of a channel that gets its messages from another one stay until the senders of that one have
/// left: they move together.
#[test]
fn receivers_of_a_derived_channel_wait_for_the_senders_of_its_source() {
    const DERIVED: u32 = 8;
    let mut w = World::new(publish());
    let channel = |name: &str| ChannelConfig {
        name: name.to_owned(),
        kind: publish(),
        budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
        message_len_max: 1 << 20,
        queue: QueueLimits { messages: 10, ..QueueLimits::default() },
        sequence: false,
    };
    let stage = |handler: &str, outputs| PathStage {
        handler: handler.to_owned(),
        context: 0,
        parameters: String::new(),
        maker: None,
        auto: None,
        outputs,
    };
    let divides = stage("forward", vec![Targets::outlet(0)]);
    let source = ChannelPath { outlets: vec![DERIVED], ..ChannelPath::new(NUMBER, vec![divides]) };
    let derived = ChannelPath::new(DERIVED, vec![stage("forward", Vec::new())]);
    let place = Some(PlacementKey::of_address(([10, 0, 0, 1], 5556).into()));
    let channels = [("ticks", source), ("derived", derived)].map(|(name, path)| {
        let spec = ChannelSpec::open(path.number, channel(name));
        ChannelPolicy { paths: vec![path], place, ..spec.into() }
    });
    w.broker.apply(w.now, &of_channels(channels)).unwrap();
    w.pass(Duration::from_secs(100));
    w.connect(1, "PUB");
    w.connect_to(DERIVED, 2, "SUB");
    w.view(&["pn-2"]);
    w.pass(STABLE);
    assert_eq!(w.ended(2), (vec![1], vec![]));
    w.pass(SENDERS_TIME - MOMENT);
    w.arrive(1, &message(1));
    assert_eq!(w.ended(2), (vec![1], vec![]), "the sender has not left");
    w.arrive(1, &message(2));
    w.finish(1);
    w.pass(Duration::from_millis(20));
    assert_eq!(w.ended(2), (vec![2], vec![1]));
    assert_eq!(w.end(2).sent, [1, 2].map(message).concat());
    w.finish(2);
    assert_eq!(w.broker.plane().unwrap().occupancy().messages, 0);
}

#[test]
fn a_pusher_that_is_held_back_goes_on_while_pullers_take_what_it_has_sent() {
    let mut w = World::new(push());
    w.connect(1, "PUSH");
    w.connect(2, "PULL");
    w.end(2).room = 0;
    let all: Vec<Vec<u8>> = (0..100).map(message).collect();
    w.arrive(1, &all.concat());
    assert!(!w.end(1).arrived.is_empty(), "it is held back");
    w.view(&["pn-2"]);
    w.pass(STABLE);
    w.finish(1);
    assert_eq!(w.ended(2), (vec![1], vec![]), "its bytes are still here");
    for _ in 0..200 {
        w.give_room(2, 22);
    }
    assert_eq!(w.ended(2), (vec![2], vec![1]));
    assert!(w.end(2).sent == all.concat());
    w.finish(2);
    assert_eq!(w.done(), Some((2, 0)));
}

#[test]
fn peers_that_do_not_end_are_closed_and_what_is_lost_with_them_is_counted() {
    let mut w = World::new(push());
    w.connect(1, "PUSH");
    w.connect(2, "PULL");
    w.end(2).room = 10;
    w.arrive(1, &(0..4).map(message).collect::<Vec<_>>().concat());
    w.view(&["pn-2"]);
    w.pass(STABLE + SENDERS_TIME - MOMENT);
    assert_eq!(w.ended(2), (vec![1], vec![]));
    w.pass(MOMENT);
    assert_eq!(w.ended(2), (vec![], vec![1]));
    w.pass(RECEIVERS_TIME - MOMENT);
    assert_eq!(w.ended(2).1, [1]);
    w.pass(MOMENT);
    assert_eq!(w.ended(2).1, [1, 2]);
    assert_eq!(w.done(), Some((2, 4)), "the first was not delivered whole");
    assert_eq!(w.broker.snapshots()[0].moved.lost, 4);
    assert_eq!(w.broker.plane().unwrap().occupancy().messages, 0);
}

#[test]
fn a_view_that_flaps_ends_nothing_and_a_channel_that_comes_back_keeps_its_receivers() {
    let mut w = World::new(publish());
    w.connect(1, "PUB");
    w.connect(2, "SUB");
    for _ in 0..20 {
        w.view(&["pn-2"]);
        w.pass(STABLE - MOMENT);
        w.view(&["pn-1"]);
        w.pass(MOMENT);
    }
    assert_eq!((w.ended(2), w.notices()), ((vec![], vec![]), vec![]));
    w.view(&["pn-2"]);
    w.pass(STABLE);
    assert_eq!(w.ended(2), (vec![1], vec![]));
    w.view(&["pn-1"]);
    w.finish(1);
    w.pass(Duration::from_secs(100));
    assert_eq!(w.ended(2), (vec![], vec![1]));
    w.connect(3, "PUB");
    w.arrive(3, &message(9));
    assert_eq!(w.end(2).sent, message(9));
    // Without any worker that takes connections, nothing changes either.
    w.view(&[]);
    w.pass(Duration::from_secs(100));
    assert_eq!(w.ended(3), (vec![], vec![1]));
}

#[test]
fn peers_that_a_network_node_sends_here_are_left_alone_for_longer_and_longer() {
    let mut w = World::new(publish());
    w.view(&["pn-2"]);
    w.pass(Duration::from_secs(100));
    let mut stayed = Vec::new();
    for n in 1..=9 {
        let begun = w.now;
        w.connect(n, "SUB");
        while !w.end(n).fin {
            w.pass(Duration::from_secs(1));
        }
        stayed.push((w.now - begun).as_secs());
        w.finish(n);
    }
    let close = |(stays, expected): (&u64, u64)| (expected..expected + 3).contains(stays);
    let expected = [30, 60, 120, 240, 480, 960, 1_920, 1_920, 1_920];
    assert_eq!(STRANGER_TIME.as_secs(), expected[0]);
    assert!(stayed.iter().zip(expected).all(close), "{stayed:?}");
    // A new owner is a new matter.
    w.view(&["pn-3"]);
    w.connect(10, "SUB");
    w.pass(STRANGER_TIME + Duration::from_secs(2));
    assert!(w.end(10).fin);
}

#[test]
fn programs_of_the_cluster_are_sent_to_the_owner() {
    let mut w = World::without_view(publish());
    assert_eq!(w.broker.elsewhere(NUMBER), None, "not known yet");
    w.view(&["pn-2"]);
    assert_eq!((w.broker.elsewhere(NUMBER), w.broker.elsewhere(8)), (Some(owner("pn-2")), None));
    w.view(&["pn-1"]);
    assert_eq!(w.broker.elsewhere(NUMBER), None);
    // A channel that this proxy cannot serve has an owner, too.
    w.view(&["pn-2"]);
    let place = PlacementKey::of_address(([10, 0, 0, 1], 5556).into());
    let policy = MessagesPolicy { unserved: vec![(NUMBER, place)], ..MessagesPolicy::default() };
    w.broker.apply(w.now, &policy).unwrap();
    assert_eq!((w.broker.snapshots().len(), w.broker.elsewhere(NUMBER)), (0, Some(owner("pn-2"))));
}

#[test]
fn at_a_new_owner_publishers_wait_a_moment_for_subscribers() {
    let mut w = World::new(publish());
    w.view(&["pn-2"]);
    w.pass(Duration::from_secs(100));
    w.view(&["pn-1"]);
    w.pass(STABLE);
    w.connect(1, "PUB");
    w.arrive(1, &[message(1), message(2)].concat());
    w.pass(GATHER_TIME / 2);
    w.connect(2, "SUB");
    assert_eq!(w.end(2).sent, b"");
    w.pass(GATHER_TIME / 2);
    assert_eq!(w.end(2).sent, [message(1), message(2)].concat());
    w.arrive(1, &message(3));
    assert_eq!(w.end(2).sent, [1, 2, 3].map(message).concat());
    // Later publishers do not wait.
    w.pass(Duration::from_secs(100));
    w.connect(3, "PUB");
    w.arrive(3, &message(4));
    assert_eq!(w.end(2).sent.len(), 4 * 22);
}

#[test]
fn a_peer_in_its_handshake_is_ended_too() {
    let mut w = World::new(publish());
    let tuple = FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], 1).into() };
    assert!(w.broker.connected(w.now, World::label(1), NUMBER, tuple));
    w.ends.insert(1, End::new(1 << 20));
    w.serve(1);
    w.view(&["pn-2"]);
    w.pass(STABLE);
    assert_eq!(w.ended(1), (vec![1], vec![]));
    w.finish(1);
    assert_eq!(w.done(), Some((1, 0)));
}

#[test]
fn a_peer_that_sends_and_receives_gets_what_waits_for_it_before_its_end() {
    let mut w = World::new(publish());
    w.connect(1, "PUB");
    w.connect(3, "SUB");
    let tuple = FourTuple { local: ([10, 0, 0, 1], 5557).into(), remote: ([10, 0, 0, 2], 2).into() };
    assert!(w.broker.connected(w.now, World::label(2), NUMBER, tuple));
    w.ends.insert(2, End::default());
    w.serve(2);
    w.settle();
    let sofh = |n: u8| [&[0, 0, 0, 26, 0xeb, 0x50][..], &[n; 20]].concat();
    w.arrive(1, &[&[0, 26][..], &sofh(1)].concat());
    w.view(&["pn-2"]);
    w.pass(STABLE);
    assert_eq!(w.ended(3), (vec![1], vec![]), "a message waits for the second");
    w.give_room(2, 1 << 20);
    assert_eq!((w.ended(3).0, w.end(2).sent.clone()), (vec![1, 2], sofh(1)));
    w.arrive(2, &sofh(2));
    w.finish(1);
    w.finish(2);
    assert_eq!(w.ended(3), (vec![3], vec![1, 2]));
    assert_eq!(w.end(3).sent, [&[0, 26][..], &sofh(1), &[0, 26][..], &sofh(2)].concat());
    w.finish(3);
    assert_eq!(w.done(), Some((3, 0)));
}
