//! Length-prefixed peers of the broker, byte by byte: what one sends, the others receive; with ZeroMQ peers
//! on the same channel; and those that send nonsense, stop reading or leave within a message.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeMap;

use common::client::null_handshake;
use common::{End, of_channels, ready};
use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, QueueLimits, Role};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_quality::OutputLink;
use csp_services::{ChannelSpec, Header, MessageBroker, MessagesConfig, PrefixedPort};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_zmtp::{ByteOrder, Description, Prefix, Width};

const ZMTP: u16 = 5556;
/// Both directions; headers are kept.
const SOFH: u16 = 5557;
/// Both directions; headers are stripped.
const STRIPPED: u16 = 5558;
/// Publishers only; a header of 5 bytes with a length of 1 byte at offset 3 that counts what follows it.
const SHORT: u16 = 5559;
/// Subscribers only; as [`SOFH`].
const FEED: u16 = 5560;
const MESSAGE_LEN_MAX: usize = 100_000;

struct World {
    broker: MessageBroker,
    spec: ChannelSpec,
    ends: BTreeMap<u32, End>,
    steps: BTreeMap<u32, Step>,
}

const NOW: Instant = Instant::from_nanos(1);

fn ports(kind: &ChannelKind) -> Vec<PrefixedPort> {
    let push = matches!(kind, ChannelKind::PushPull { .. });
    let sofh = Prefix::sofh(MESSAGE_LEN_MAX).unwrap();
    let short = Description {
        header_len: 5,
        length_offset: 3,
        width: Width::One,
        order: ByteOrder::Big,
        counted_from: 4,
        message_len_max: MESSAGE_LEN_MAX,
    };
    let port = |port, prefix, header, role| PrefixedPort { port, prefix, header, role };
    let (sends, receives) =
        if push { (Role::Pusher, Role::Puller) } else { (Role::Publisher, Role::Subscriber) };
    let both = if push { Role::Pusher } else { Role::Both };
    vec![
        port(SOFH, sofh, Header::Kept, both),
        port(
            STRIPPED,
            Prefix::sofh(MESSAGE_LEN_MAX + 6).unwrap(),
            Header::Stripped { encoding: Some(0xeb50) },
            both,
        ),
        port(SHORT, Prefix::new(short).unwrap(), Header::Kept, sends),
        port(FEED, sofh, Header::Kept, receives),
    ]
}

fn publish(policy: FullQueue) -> ChannelKind {
    ChannelKind::PublishSubscribe { policy, cache: None }
}

/// A message with the Simple Open Framing Header.
fn sofh(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 6).to_be_bytes()[..], &[0xeb, 0x50], body].concat()
}

impl World {
    fn new(kind: ChannelKind) -> Self {
        let prefixed = ports(&kind);
        let channel = ChannelConfig {
            name: "ticks".to_owned(),
            kind,
            budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
            message_len_max: MESSAGE_LEN_MAX as u32,
            queue: QueueLimits { messages: 10, ..QueueLimits::default() },
            sequence: false,
        };
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let spec = ChannelSpec { prefixed, ..ChannelSpec::open(7, channel) };
        broker.apply(NOW, &of_channels([spec.clone()])).unwrap();
        World { broker, spec, ends: BTreeMap::new(), steps: BTreeMap::new() }
    }

    fn connect(&mut self, n: u32, port: u16) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(NOW, FlowLabel::new(n, 0), 7, tuple));
        self.ends.insert(n, End { slice: 7, ..End::new(1 << 24) });
        self.serve(n);
    }

    fn connect_zmtp(&mut self, n: u32, socket: &str) {
        self.connect(n, ZMTP);
        self.arrive(n, &null_handshake(socket, 1));
        if socket == "SUB" {
            self.arrive(n, b"\x04\x0a\x09SUBSCRIBE");
        }
        self.taken(n);
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn finish(&mut self, n: u32) {
        self.ends.get_mut(&n).unwrap().finished = true;
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) {
        let step = self.broker.serve(
            NOW,
            FlowLabel::new(n, 0),
            self.ends.get_mut(&n).unwrap(),
            &mut OutputLink::default(),
        );
        self.steps.insert(n, step);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let ready: Vec<FlowLabel> = ready(&mut self.broker, NOW);
            if ready.is_empty() {
                return;
            }
            for label in ready {
                if self.ends.contains_key(&(label.index() as u32)) {
                    self.serve(label.index() as u32);
                }
            }
            self.broker.take_lent();
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
        self.broker.gone(NOW, FlowLabel::new(n, 0));
        self.ends.remove(&n);
        self.settle();
    }

    fn malformed(&self) -> u64 {
        self.broker.snapshots()[0].malformed
    }
}

#[test]
fn what_a_client_sends_all_clients_receive_byte_for_byte() {
    let mut w = World::new(publish(FullQueue::DropNewest));
    [1, 2].iter().for_each(|n| w.connect(*n, SOFH));
    w.connect(3, FEED);
    w.connect(4, SHORT);
    let custom = [0, 0, 0, 8, 0x12, 0x34, 7, 8]; // another encoding type: it is the publisher's
    w.arrive(1, &custom);
    for n in [1, 2, 3] {
        assert_eq!(w.taken(n), custom, "client {n}; its own messages come back to it");
    }
    assert!(w.taken(4).is_empty(), "it only publishes");
    w.arrive(3, &sofh(b"unwanted"));
    assert!(
        w.taken(2).is_empty() && w.steps[&3] != Step::Reset,
        "it only receives: what it sends goes nowhere"
    );
    (1..=4).for_each(|n| w.leave(n));
    let plane = w.broker.plane().unwrap();
    assert_eq!((w.broker.connection_count(), plane.peers(), plane.occupancy().messages), (0, 0, 0));
}

#[test]
fn any_cut_of_the_stream_gives_the_same_messages() {
    let bodies: Vec<Vec<u8>> =
        [0, 1, 5, 250, 9_000, 0, 40_000, MESSAGE_LEN_MAX - 6].map(|len| vec![len as u8; len]).to_vec();
    let all: Vec<u8> = bodies.iter().flat_map(|body| sofh(body)).collect();
    for seed in 1..=20u64 {
        let mut w = World::new(publish(FullQueue::DropNewest));
        w.connect(1, SOFH);
        w.connect(2, FEED);
        let (mut rest, mut state, mut got) = (&all[..], seed, Vec::new());
        w.ends.get_mut(&2).unwrap().room = 0;
        while !rest.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let most = [3, 700, 20_000][(state >> 61) as usize % 3];
            let (next, later) = rest.split_at(rest.len().min(1 + (state >> 33) as usize % most));
            w.arrive(1, next);
            w.give_room(2, next.len());
            got.extend(w.taken(2));
            rest = later;
        }
        w.give_room(2, 1 << 20);
        got.extend(w.taken(2));
        assert!(got == all, "seed {seed}: {} of {} bytes", got.len(), all.len());
        assert!(w.ends[&1].arrived.is_empty(), "seed {seed}");
    }
}

/// Nobody publishes to a derived channel, whatever framing its ports have.
#[test]
fn peers_of_a_derived_channel_receive_and_do_not_publish() {
    let mut w = World::new(publish(FullQueue::DropNewest));
    let spec = ChannelSpec { derived: true, ..w.spec.clone() };
    w.broker.apply(NOW, &of_channels([spec])).unwrap();
    for (n, port) in [(1, SOFH), (2, STRIPPED), (3, SHORT)] {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(!w.broker.connected(NOW, FlowLabel::new(n, 0), 7, tuple), "{port}");
    }
    assert_eq!(w.broker.refusals().may_not_publish, 3);
    w.connect(4, FEED);
}

#[test]
fn zeromq_and_length_prefixed_peers_meet_on_one_channel() {
    let mut w = World::new(publish(FullQueue::DropNewest));
    w.connect_zmtp(1, "PUB");
    w.connect_zmtp(2, "SUB");
    w.connect(3, SOFH);
    w.connect(4, STRIPPED);
    w.taken(1);
    // Stripped: the channel has the body alone, and new headers are written.
    w.arrive(4, &sofh(b"apple"));
    assert_eq!(w.taken(2), b"\x00\x05apple");
    assert_eq!(w.taken(4), sofh(b"apple"));
    assert!(w.taken(3).is_empty(), "5 bytes do not begin with a header of 6");
    assert_eq!(w.broker.zmtp().prefixed_unwritable, 1);
    // Kept: the header is a part of the message, also for ZeroMQ peers.
    w.arrive(3, &sofh(b"pear"));
    assert_eq!(w.taken(2), [&b"\x00\x0a"[..], &sofh(b"pear")].concat());
    assert_eq!((w.taken(3), w.taken(4)), (sofh(b"pear"), sofh(&sofh(b"pear"))));
    // The frames of a ZeroMQ peer's message are one after the other. Its header's length is written.
    w.arrive(1, b"\x01\x04abcd\x00\x03efg");
    assert_eq!(w.taken(4), sofh(b"abcdefg"));
    assert_eq!(w.taken(3), b"\x00\x00\x00\x07efg");
    assert_eq!(w.taken(2), b"\x01\x04abcd\x00\x03efg");
}

#[test]
fn a_described_header_is_filled_and_a_length_that_it_cannot_say_is_left_out() {
    let kind = publish(FullQueue::DropNewest);
    let mut w = World::new(kind);
    let mut prefixed = ports(&kind);
    prefixed[2].role = Role::Both;
    let channel = ChannelConfig {
        name: "other".to_owned(),
        kind,
        budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
        message_len_max: MESSAGE_LEN_MAX as u32,
        queue: QueueLimits::default(),
        sequence: false,
    };
    w.broker.apply(NOW, &of_channels([ChannelSpec { prefixed, ..ChannelSpec::open(7, channel) }])).unwrap();
    w.connect(1, SHORT);
    w.connect_zmtp(2, "PUB");
    // One byte behind the length belongs to the header, and is counted.
    w.arrive(1, &[9, 8, 7, 3, 6, b'a', b'b']);
    assert_eq!(w.taken(1), [9, 8, 7, 3, 6, b'a', b'b']);
    w.arrive(2, b"\x00\x08\x01\x02\x03\x04\x05xyz");
    assert_eq!(w.taken(1), b"\x01\x02\x03\x04\x05xyz");
    let long = [&[2, 0, 0, 0, 0, 0, 0, 1, 4][..], &[1; 260]].concat();
    w.arrive(2, &long);
    assert!(w.taken(1).is_empty(), "one byte cannot say 256");
    assert_eq!(w.broker.zmtp().prefixed_unwritable, 1);
}

#[test]
fn a_client_that_sends_nonsense_is_reset_after_what_was_right_and_no_other_is_disturbed() {
    for (nonsense, name) in [
        (&[0, 0, 0, 5, 0, 0][..], "a length without the header"),
        (&[0xff, 0xff, 0xff, 0xff, 0, 0], "a message that is too long"),
        (b"GET / HTTP/1.1\r\n\r\n", "another protocol"),
    ] {
        let mut w = World::new(publish(FullQueue::DropNewest));
        [1, 2].iter().for_each(|n| w.connect(*n, SOFH));
        w.arrive(1, &[&sofh(b"right")[..], nonsense].concat());
        assert_eq!((w.steps[&1], w.malformed()), (Step::Reset, 1), "{name}");
        assert_eq!(w.taken(2), sofh(b"right"), "{name}");
        w.leave(1);
        w.connect(3, SOFH);
        w.arrive(3, &sofh(b"next"));
        assert_eq!(w.taken(2), sofh(b"next"), "{name}");
    }
}

#[test]
fn a_stream_may_end_between_messages_only() {
    for (left, step, malformed) in [(0, Step::Close, 0), (1, Step::Reset, 1), (8, Step::Reset, 1)] {
        let mut w = World::new(publish(FullQueue::DropNewest));
        w.connect(1, SOFH);
        w.connect(2, FEED);
        w.arrive(1, &[&sofh(b"one")[..], &sofh(b"two two")[..left]].concat());
        w.finish(1);
        assert_eq!((w.steps[&1], w.malformed()), (step, malformed), "{left} bytes of the next one");
        assert_eq!(w.taken(2), sofh(b"one"));
    }
    // Also if the part was moved out of the window.
    let mut w = World::new(publish(FullQueue::DropNewest));
    w.connect(1, SOFH);
    w.arrive(1, &sofh(&[7; 30_000])[..20_000]);
    assert!(w.ends[&1].arrived.is_empty());
    w.finish(1);
    assert_eq!((w.steps[&1], w.malformed()), (Step::Reset, 1));
}

#[test]
fn a_client_that_does_not_read_loses_messages_of_its_own_queue() {
    let mut w = World::new(publish(FullQueue::DropNewest));
    w.connect(1, SHORT);
    [2, 3].iter().for_each(|n| w.connect(*n, FEED));
    w.ends.get_mut(&2).unwrap().room = 50;
    // Of the ports' headers, one fits the other: 4 bytes in which the length is the last one.
    let messages: Vec<Vec<u8>> = (0..100u8).map(|n| [&[0, 0, 0, 96, n][..], &[n; 95]].concat()).collect();
    for message in &messages {
        w.arrive(1, message);
    }
    // SOFH counts its header: what the proxy writes to the feed says 100.
    let as_sofh = |message: &Vec<u8>| [&[0, 0, 0, 100][..], &message[4..]].concat();
    let all: Vec<u8> = messages.iter().flat_map(as_sofh).collect();
    assert!(w.taken(3) == all);
    assert_eq!(w.taken(2), all[..50]);
    w.give_room(2, 1 << 20);
    assert_eq!(w.taken(2), all[50..11 * 100], "the one that was begun, and those of a queue's length");
}

#[test]
fn pushers_are_held_back_and_nothing_is_lost() {
    let mut w =
        World::new(ChannelKind::PushPull { backlog: QueueLimits { messages: 5, ..QueueLimits::default() } });
    w.connect(1, SOFH);
    let all: Vec<Vec<u8>> = (0..200u8).map(|n| sofh(&[n; 90])).collect();
    w.arrive(1, &all.concat());
    assert!(!w.ends[&1].arrived.is_empty(), "there is no puller, and the backlog is full");
    w.finish(1);
    assert_ne!(w.steps[&1], Step::Close, "its messages have not been taken yet");
    [2, 3].iter().for_each(|n| w.connect(*n, FEED));
    w.settle();
    let parts =
        [w.taken(2), w.taken(3)].map(|bytes| bytes.chunks(96).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert!(parts.iter().all(|part| part.is_sorted() && !part.is_empty()), "in order, and each has some");
    let mut both = parts.concat();
    both.sort();
    assert!(both == all && w.ends[&1].arrived.is_empty());
    assert_eq!(w.steps[&1], Step::Close);
}

#[test]
fn a_full_channel_refuses_a_connection_and_keeps_nothing_of_it() {
    let mut config = MessagesConfig::new(HashKey([1, 2]));
    config.peers_max = 2;
    let mut w = World::new(publish(FullQueue::DropNewest));
    let mut broker = MessageBroker::new(config);
    let kind = publish(FullQueue::DropNewest);
    let channel = ChannelConfig {
        name: "ticks".to_owned(),
        budget: Budget { guaranteed: 1 << 20, max: 2 << 20 },
        message_len_max: 1_000,
        queue: QueueLimits::default(),
        kind,
        sequence: false,
    };
    let spec = ChannelSpec { prefixed: ports(&kind), ..ChannelSpec::open(7, channel) };
    broker.apply(NOW, &of_channels([spec])).unwrap();
    w.broker = broker;
    [1, 2].iter().for_each(|n| w.connect(*n, SOFH));
    let tuple = FourTuple { local: ([10, 0, 0, 1], SOFH).into(), remote: ([10, 0, 0, 2], 3).into() };
    assert!(!w.broker.connected(NOW, FlowLabel::new(3, 0), 7, tuple));
    assert_eq!(w.broker.connection_count(), 2);
    w.leave(1);
    w.connect(3, SOFH);
}
