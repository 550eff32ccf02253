//! What people see of the broker: its peers with what they subscribe to, and a message on its way to them.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;

use common::client::null_handshake;
use common::{End, of_channels, subscribe};
use csp_messages::{
    Budget, ChannelConfig, ChannelKind, CopyState, FullQueue, HashKey, QueueLimits, Role, TraceError,
    TraceRequest,
};
use csp_proxy_core::service::local::LocalServices;
use csp_quality::OutputLink;
use csp_services::{ChannelSpec, MessageBroker, MessagesConfig, PeersPage, PeersQuery};
use csp_types::{Duration, FlowLabel, FourTuple, Instant};

struct World {
    broker: MessageBroker,
    ends: BTreeMap<u32, End>,
}

const NOW: Instant = Instant::from_nanos(1_000);

fn label(n: u32) -> FlowLabel {
    FlowLabel::new(n, 0)
}

/// A message of two frames of fewer than 256 bytes.
fn message(topic: &[u8], body: &[u8]) -> Vec<u8> {
    [&[1, topic.len() as u8], topic, &[0, body.len() as u8], body].concat()
}

impl World {
    fn new() -> Self {
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let channel = ChannelConfig {
            name: "ticks".to_owned(),
            kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
            budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
            message_len_max: 1 << 20,
            queue: QueueLimits { messages: 1, ..QueueLimits::default() },
            sequence: false,
        };
        broker.apply(NOW, &of_channels([ChannelSpec::open(7, channel)])).unwrap();
        World { broker, ends: BTreeMap::new() }
    }

    /// Connects a peer from port `n`.
    fn connect(&mut self, n: u32, socket: &str, topics: &[&[u8]]) {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, 2], n as u16).into() };
        assert!(self.broker.connected(NOW, label(n), 7, tuple));
        self.ends.insert(n, End::new(1 << 20));
        self.arrive(n, &null_handshake(socket, 1));
        topics.iter().for_each(|topic| self.arrive(n, &subscribe(topic)));
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(label(n));
        while let Some(label) = self.broker.next_ready(&mut OutputLink::default()) {
            self.serve(label);
        }
        assert!(self.broker.take_lent().is_none());
    }

    fn serve(&mut self, label: FlowLabel) {
        if let Some(end) = self.ends.get_mut(&(label.index() as u32)) {
            self.broker.serve(NOW, label, end, &mut OutputLink::default());
        }
    }

    fn peers(&self, query: PeersQuery<'_>) -> PeersPage {
        self.broker.peers(query)
    }
}

const ALL: PeersQuery<'_> = PeersQuery {
    channel: None,
    cursor: 0,
    slots_max: 1_000,
    peers_max: 100,
    prefixes_max: 2,
    prefix_bytes_max: 1_000,
};

thread_local! {
    static MICROS: Cell<u64> = const { Cell::new(0) };
}

/// A clock that goes on by a microsecond whenever it is read.
fn clock() -> Instant {
    MICROS.set(MICROS.get() + 1);
    NOW + Duration::from_micros(MICROS.get())
}

#[test]
fn peers_show_who_they_are_and_what_they_subscribe_to_within_bounds() {
    let mut w = World::new();
    w.connect(1, "PUB", &[]);
    w.connect(2, "SUB", &[b"", b"\xff\x00", b"third"]);
    w.connect(3, "XSUB", &[&[b't'; 200]]);
    (0..3).for_each(|_| w.arrive(1, &message(b"a", b"1")));
    let page = w.peers(ALL);
    assert_eq!((page.peers.len(), page.more, page.cursor), (3, 0, None));
    let [publisher, subscriber, other] = &page.peers[..] else { panic!("{page:?}") };
    assert_eq!((publisher.channel.as_str(), publisher.name.socket), ("ticks", "PUB"));
    assert_eq!((publisher.name.client, publisher.since), (([10, 0, 0, 2], 1).into(), NOW));
    assert_eq!((publisher.status.role, publisher.status.published), (Role::Publisher, 3));
    assert_eq!((subscriber.status.counters.taken, subscriber.status.subscriptions), (3, 3));
    assert_eq!(subscriber.prefixes, [b"third".to_vec(), b"\xff\x00".to_vec()]);
    assert_eq!((other.name.socket, other.prefixes[0].len()), ("XSUB", 200));

    let page = w.peers(PeersQuery { channel: Some("ticks"), peers_max: 1, ..ALL });
    assert_eq!((page.peers.len(), page.more, page.cursor), (1, 2, None));
    let page = w.peers(PeersQuery { slots_max: 2, ..ALL });
    assert_eq!((page.peers.len(), page.cursor), (2, Some(2)));
    let page = w.peers(PeersQuery { cursor: 2, prefix_bytes_max: 199, ..ALL });
    assert_eq!(
        (page.peers.len(), page.peers[0].prefixes.len(), page.peers[0].status.subscriptions),
        (1, 0, 1)
    );
    assert_eq!(w.peers(PeersQuery { channel: Some("jobs"), ..ALL }), PeersPage::default());
}

#[test]
fn a_traced_message_shows_its_way_from_a_publisher_that_has_left_to_each_subscriber() {
    let mut w = World::new();
    w.connect(1, "PUB", &[]);
    w.connect(2, "SUB", &[b"a"]);
    w.connect(3, "SUB", &[b""]);
    w.connect(4, "SUB", &[b"b"]);
    w.ends.get_mut(&3).unwrap().room = 5;
    w.arrive(1, &message(b"a", b"stuck")); // in part with the connection of 3
    w.arrive(1, &message(b"a", b"waits"));
    let request = || TraceRequest { messages: 1, topic: b"a", until: NOW + Duration::from_secs(1), clock };
    assert_eq!(w.broker.arm_trace(NOW, "jobs", request()), Err(TraceError::UnknownChannel));
    let id = w.broker.arm_trace(NOW, "ticks", request()).unwrap();
    assert_eq!(w.broker.trace_progress(id), Some((0, true)));
    let (topic, body) = (b"apple", [7; 100]);
    w.arrive(1, &message(topic, &body));
    w.broker.gone(NOW, label(1));
    assert_eq!(w.broker.trace_progress(id), Some((1, true)));
    let traced = w.broker.traced(id).unwrap();
    let [one] = &traced[..] else { panic!("{traced:?}") };
    assert_eq!((one.message.sequence, &one.message.topic[..]), (3, &topic[..]));
    assert_eq!((one.message.frames(), one.message.receivers, one.message.matched), (&[5, 100][..], 3, 2));
    let publisher = one.publisher.unwrap();
    assert_eq!((publisher.client, publisher.socket), (([10, 0, 0, 2], 1).into(), "PUB"));
    let mut copies: Vec<_> = one.message.copies.iter().zip(&one.receivers).collect();
    copies.sort_by_key(|(_, name)| name.unwrap().client);
    let [(written, first), (dropped, second)] = copies[..] else { panic!("{copies:?}") };
    assert_eq!((first.unwrap().client.port(), second.unwrap().client.port()), (2, 3));
    assert_eq!(written.state, CopyState::Written(message(topic, &body).len() as u32));
    assert_eq!(dropped.state, CopyState::DroppedNewest);
    assert!(one.message.looked_up < dropped.at && dropped.at < written.at);
    w.broker.end_trace(id);
    assert_eq!((w.broker.trace_progress(id), w.broker.traced(id)), (None, None));
}
