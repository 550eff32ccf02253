//! Information flows in the broker: which flow a message belongs to, and that it enters a connection only
//! when the flow has released it and less than a quantum is unsent there.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use common::{End, client, of_channels};
use csp_formats::{Cell, Fixed, Load, Schema};
use csp_messages::{Budget, ChannelConfig, ChannelKind, FormatId, FullQueue, HashKey, QueueLimits};
use csp_operators::FormatSet;
use csp_proxy_core::service::local::LocalServices;
use csp_quality::{
    Board, Capacity, FieldValue, FlowSpec, FlowStatus, FlowTable, LinkConfig, OutputLink, Plan, Predicate,
    QualityConfig, Scheme, SharedLinkConfig,
};
use csp_services::{ChannelFormats, ChannelSpec, FieldReader, FlowFields, MessageBroker, MessagesConfig};
use csp_types::{Duration, FlowLabel, FourTuple, Instant};

const CHANNEL: u32 = 7;
const QUANTUM: u32 = 2_000;
/// A message of 1,000 bytes takes 1 ms.
const LINK: u64 = 8_000_000;

struct World {
    broker: MessageBroker,
    link: OutputLink,
    ends: BTreeMap<u32, End>,
    now: Instant,
}

fn flow(name: &str, source: &str, priority: u8) -> FlowSpec {
    let mut flow =
        FlowSpec::new(name, Predicate { source: Some(source.parse().unwrap()), ..Predicate::default() });
    flow.priority = priority;
    flow.item.bytes_max = 1_000;
    flow
}

impl World {
    /// A channel, and flows of the publishers of 10.1.0.0/16 and 10.2.0.0/16.
    fn new() -> World {
        World::of(
            vec![flow("low", "10.1.0.0/16", 0), flow("high", "10.2.0.0/16", 9)],
            None,
            FlowFields::default(),
        )
    }

    fn of(flows: Vec<FlowSpec>, formats: Option<ChannelFormats>, fields: FlowFields) -> World {
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let channel = ChannelConfig {
            name: "ticks".to_owned(),
            kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
            budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
            message_len_max: 1 << 20,
            queue: QueueLimits::default(),
            sequence: false,
        };
        let spec = ChannelSpec { formats, ..ChannelSpec::open(CHANNEL, channel) };
        broker.apply(Instant::from_nanos(1), &of_channels([spec])).unwrap();
        let table = FlowTable::new(8).replace(flows).unwrap();
        let link = LinkConfig { bits_per_second: LINK, quantum: QUANTUM };
        broker.set_flow_fields(None, table.generation(), Arc::new(fields));
        let plan = Plan::new(Arc::new(table), Capacity { contexts: 0, link, point_every: 16 }, |_| None);
        let flows = SharedLinkConfig {
            plan: Arc::new(plan.unwrap()),
            quality: QualityConfig { link: Scheme::PriorityAware, ..QualityConfig::default() },
            triggers: Vec::new(),
            board: (Arc::new(Board::new(1)), 0),
            worker_percent: 100,
        };
        let (now, mut link) = (Instant::from_nanos(1), OutputLink::default());
        link.share(now, flows).unwrap();
        World { broker, link, ends: BTreeMap::new(), now }
    }

    fn connect(&mut self, n: u32, source: &str, socket: &str, local: bool) {
        let remote = (source.parse::<IpAddr>().unwrap(), 4_000).into();
        let tuple = FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote };
        assert!(self.broker.connected(self.now, FlowLabel::new(n, 0), CHANNEL, tuple));
        self.ends.insert(n, End { local, ..End::new(1 << 20) });
        self.arrive(n, &client::null_handshake(socket, 1));
        if socket == "SUB" {
            self.arrive(n, &client::command("SUBSCRIBE", b""));
        }
        self.ends.get_mut(&n).unwrap().sent.clear();
    }

    fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    fn serve(&mut self, n: u32) {
        let (end, label) = (self.ends.get_mut(&n).unwrap(), FlowLabel::new(n, 0));
        let _ = self.broker.serve(self.now, label, end, &mut self.link);
    }

    fn settle(&mut self) {
        while let Some(label) = self.broker.next_ready(&mut self.link) {
            self.serve(label.index() as u32);
            assert!(self.broker.take_lent().is_none());
        }
    }

    /// Publishes messages of 1,000 bytes, each of one character.
    fn publish(&mut self, n: u32, text: &str) {
        for character in text.bytes() {
            self.arrive(n, &client::message(&[&[character; 1_000]]));
        }
    }

    /// The messages that a receiver was sent so far, by their characters.
    fn received(&self, n: u32) -> String {
        let messages = self.ends[&n].sent.chunks_exact(1_009); // with the long form of a frame's header
        messages.map(|message| char::from(message[9])).collect()
    }

    /// Lets time pass with all timers of the broker.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.broker.next_timeout().into_iter().chain(self.link.due()).min()
            && at <= until
        {
            self.now = self.now.max(at);
            self.broker.on_timeout(self.now);
            self.broker.release(self.now, &mut self.link);
            self.settle();
            self.now += Duration::from_micros(1);
        }
        self.now = until;
    }

    fn status(&mut self, name: &str) -> FlowStatus {
        let (_, flows) = self.link.status(self.now).unwrap();
        flows.into_iter().find(|flow| flow.name == name).unwrap()
    }
}

#[test]
fn publishers_of_another_network_are_another_flow_and_overtake() {
    let mut w = World::new();
    w.connect(1, "192.168.0.1", "SUB", false);
    w.connect(2, "10.1.0.2", "PUB", false);
    w.connect(3, "10.2.0.2", "PUB", false);
    w.publish(2, "abcdefgh");
    assert_eq!(w.received(1), "ab", "a quantum's worth leaves at once");
    w.publish(3, "XYZ");
    w.pass(Duration::from_millis(20));
    assert_eq!(w.received(1), "abXYZcdefgh");
    let (low, high) = (w.status("low"), w.status("high"));
    assert_eq!((low.counters.released, high.counters.released), (8, 3));
    assert!(high.delay_sum / 3 < low.delay_sum / 8);
    assert_eq!(w.status("default").counters.offered, 0);
}

#[test]
fn the_link_takes_what_it_carries() {
    let mut w = World::new();
    w.connect(1, "192.168.0.1", "SUB", false);
    w.connect(2, "10.1.0.2", "PUB", false);
    w.publish(2, &"a".repeat(200));
    for millis in 1..=100 {
        w.pass(Duration::from_millis(1));
        let received = w.received(1).len();
        assert!((millis..=millis + 2).contains(&received), "{received} messages after {millis} ms");
    }
}

#[test]
fn a_connection_with_a_quantum_unsent_is_given_nothing_until_it_is_called_again() {
    let mut w = World::new();
    w.connect(1, "192.168.0.1", "SUB", false);
    w.connect(2, "10.1.0.2", "PUB", false);
    w.ends.get_mut(&1).unwrap().unsent = QUANTUM as usize;
    w.publish(2, "abcd");
    w.pass(Duration::from_millis(20));
    assert_eq!(w.received(1), "", "the flow has released them, and they wait for the receiver");
    assert_eq!(w.status("low").counters.released, 4);
    assert!(w.ends[&1].called_again > 0);
    w.ends.get_mut(&1).unwrap().unsent = QUANTUM as usize - 1_500;
    w.serve(1);
    w.settle();
    assert_eq!(w.received(1), "ab", "as many as leave less than a quantum, and the one that exceeds it");
    w.ends.get_mut(&1).unwrap().unsent = 0;
    w.serve(1);
    w.settle();
    assert_eq!(w.received(1), "abcd");
}

#[test]
fn a_process_of_the_cluster_costs_the_link_nothing() {
    let mut w = World::new();
    w.connect(1, "192.168.0.1", "SUB", true);
    w.connect(2, "10.1.0.2", "PUB", false);
    w.publish(2, &"a".repeat(50));
    assert_eq!(w.received(1).len(), 50, "all at once");
    assert_eq!(w.status("low").counters.released_bytes, 0);
    // Beside one that is reached over the link, it gets each message when the other does.
    w.connect(3, "192.168.0.3", "SUB", false);
    w.publish(2, &"b".repeat(50));
    assert!(w.received(1).len() < 55);
    w.pass(Duration::from_millis(60));
    assert_eq!((w.received(1).len(), w.received(3).len()), (100, 50));
    assert_eq!(w.status("low").counters.released_bytes, 50_000);
}

#[test]
fn without_flows_connections_are_given_all() {
    let mut w = World::new();
    w.connect(1, "192.168.0.1", "SUB", false);
    w.connect(2, "10.1.0.2", "PUB", false);
    w.publish(2, "abcdef");
    w.broker.unshare(w.now, &mut w.link);
    w.settle();
    assert_eq!(w.received(1), "abcdef", "what waited is delivered");
    w.ends.get_mut(&1).unwrap().unsent = 1 << 20;
    w.publish(2, "gh");
    assert_eq!(w.received(1), "abcdefgh");
    assert!(w.link.status(w.now).is_none() && w.ends[&1].called_again == 0);
}

const SCHEMA: &str = r#"<messageSchema id="40" version="1"><types><composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
    <type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
    </types><message name="Flight" id="1"><field name="delay" id="1" type="int16"/></message></messageSchema>"#;

/// Flights that are late by an hour or more are a flow of their own.
fn late() -> World {
    let (schema, mut set) = (Arc::new(Schema::parse(SCHEMA).unwrap()), FormatSet::new());
    set.add(FormatId(1), Arc::clone(&schema), "Flight".into()).unwrap();
    let field = schema.messages[0].block.fields[0].clone();
    let fixed = Fixed::new(&schema, &schema.messages[0], [&field]);
    let load = Load::new(&field, fixed.header(), schema.byte_order).unwrap();
    let mut fields = FlowFields::default();
    fields.add(CHANNEL, FormatId(1), FieldReader::new(fixed.clone(), vec![(0, fixed, load)]));
    let word = |number| FieldValue::unsigned(Cell::Int(number).order().unwrap());
    let mut late = flow("late", "0.0.0.0/0", 9);
    late.predicate =
        Predicate { channel: Some(CHANNEL), fields: vec![(0, word(60)..=word(999))], ..Predicate::default() };
    World::of(
        vec![late, flow("rest", "0.0.0.0/0", 0)],
        Some(ChannelFormats::new("one", Arc::new(set))),
        fields,
    )
}

/// A flight of so many bytes.
fn flight(delay: i16, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 1, 0, 40, 0, 1, 0];
    bytes.extend_from_slice(&delay.to_le_bytes());
    bytes.resize(len, 0);
    bytes
}

#[test]
fn messages_whose_fields_are_critical_overtake_those_of_the_same_publisher() {
    let mut w = late();
    w.connect(1, "192.168.0.1", "SUB", false);
    w.connect(2, "10.1.0.2", "PUB", false);
    for delay in [1, 2, 3, 59, 90, 4, 60, 5, -70] {
        w.arrive(2, &client::message(&[&flight(delay, 1_000)]));
    }
    w.pass(Duration::from_millis(20));
    let delays =
        w.ends[&1].sent.chunks_exact(1_009).map(|message| i16::from_le_bytes([message[17], message[18]]));
    assert_eq!(delays.collect::<Vec<_>>(), [1, 2, 90, 60, 3, 59, 4, 5, -70]);
    // Behind a topic, in several pieces, and what is no flight or too short.
    w.arrive(2, &client::message(&[b"topic", &flight(61, 1_000)]));
    for piece in client::message(&[&flight(62, 900)]).chunks(9) {
        w.arrive(2, piece);
    }
    for other in [flight(63, 9), flight(64, 8), b"no flight".to_vec(), vec![0; 1_000], Vec::new()] {
        w.arrive(2, &client::message(&[&other]));
    }
    w.pass(Duration::from_millis(20));
    assert_eq!(w.status("late").counters.released, 4);
    assert_eq!(w.status("rest").counters.released, 7 + 5);
}
