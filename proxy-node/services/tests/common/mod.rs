//! A broker and clients' ends in memory, for peers that are played by bytes or by programs.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../zmtp/tests/common/client.rs"]
pub mod client;
pub mod end;
pub mod tcp;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use client::{CurveClient, frame, property};
use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, QueueLimits};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_quality::OutputLink;
use csp_services::{
    ChannelKeys, ChannelPolicy, ChannelSpec, MessageBroker, MessagesConfig, MessagesPolicy, Rights, SpecError,
};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_zmtp::CurveKeys;
pub use end::End;

/// Number of the channel.
pub const CHANNEL: u32 = 7;
/// Longest message of the channel.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Secret keys: of the channel, of a client that may do both, of one that may only subscribe, of one that may
/// only publish.
pub const SERVER: [u8; 32] = [0x5a; 32];
pub const BOTH: [u8; 32] = [0xc1; 32];
pub const READER: [u8; 32] = [0xc2; 32];
pub const WRITER: [u8; 32] = [0xc3; 32];
/// A key that nobody lists.
pub const STRANGER: [u8; 32] = [0xc4; 32];

pub const PUBLISH: Rights =
    Rights { publish: true, subscribe: false, control: false, query: false, supply: false };
pub const SUBSCRIBE: Rights =
    Rights { publish: false, subscribe: true, control: false, query: false, supply: false };

pub fn public(secret: [u8; 32]) -> [u8; 32] {
    CurveKeys::new(secret).public()
}

/// The channel `ticks`, for everybody.
pub fn open_channel() -> ChannelSpec {
    let channel = ChannelConfig {
        name: "ticks".to_owned(),
        kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
        budget: Budget { guaranteed: 4 << 20, max: 32 << 20 },
        message_len_max: MESSAGE_LEN_MAX as u32,
        queue: QueueLimits { messages: 1_000, ..QueueLimits::default() },
        sequence: false,
    };
    ChannelSpec::open(CHANNEL, channel)
}

/// The same with the keys above.
pub fn keyed_channel() -> ChannelSpec {
    let both = Rights { publish: true, subscribe: true, control: true, query: true, supply: false };
    let clients = [(BOTH, both), (READER, SUBSCRIBE), (WRITER, PUBLISH)];
    let keys = ChannelKeys {
        server: Arc::new(CurveKeys::new(SERVER)),
        require: true,
        clients: clients
            .map(|(secret, rights)| (public(secret), rights))
            .into_iter()
            .collect::<HashMap<_, _>>(),
        any: Rights::default(),
    };
    ChannelSpec { keys: Some(Arc::new(keys)), ..open_channel() }
}

/// The channel with other keys.
pub fn with_keys(mut spec: ChannelSpec, change: impl FnOnce(&mut ChannelKeys)) -> ChannelSpec {
    let mut keys = (**spec.keys.as_ref().unwrap()).clone();
    change(&mut keys);
    spec.keys = Some(Arc::new(keys));
    spec
}

/// What a policy with these channels says of messages.
pub fn of_channels<C: Into<ChannelPolicy>>(channels: impl IntoIterator<Item = C>) -> MessagesPolicy {
    MessagesPolicy { channels: channels.into_iter().map(Into::into).collect(), ..MessagesPolicy::default() }
}

/// A broker with one channel.
pub fn broker(config: MessagesConfig, spec: ChannelSpec) -> MessageBroker {
    let mut broker = MessageBroker::new(config);
    broker.seed([0x77; 32]);
    broker.apply(Instant::from_nanos(1), &of_channels([spec])).unwrap();
    broker
}

pub fn config() -> MessagesConfig {
    MessagesConfig::new(HashKey([1, 2]))
}

/// A broker and the ends of its connections.
pub struct World {
    pub broker: MessageBroker,
    pub ends: BTreeMap<u32, End>,
    pub now: Instant,
    pub steps: BTreeMap<u32, Step>,
}

impl World {
    pub fn new(spec: ChannelSpec) -> Self {
        World::with(config(), spec)
    }

    pub fn with(config: MessagesConfig, spec: ChannelSpec) -> Self {
        let (ends, steps) = (BTreeMap::new(), BTreeMap::new());
        World { broker: broker(config, spec), ends, now: Instant::from_nanos(1), steps }
    }

    /// Puts a policy with these channels into force.
    pub fn apply<C: Into<ChannelPolicy>>(
        &mut self,
        channels: impl IntoIterator<Item = C>,
    ) -> Result<(), SpecError> {
        self.broker.apply(self.now, &of_channels(channels))
    }

    pub fn label(n: u32) -> FlowLabel {
        FlowLabel::new(n, 0)
    }

    /// Connects peer `n`, which says nothing yet.
    pub fn connect(&mut self, n: u32) {
        assert!(self.connect_from(n, CHANNEL, 2));
    }

    /// Connects peer `n` of the host 10.0.0.`host` to a channel. Returns whether it is admitted.
    pub fn connect_from(&mut self, n: u32, channel: u32, host: u8) -> bool {
        let tuple = FourTuple { local: ([10, 0, 0, 1], 5556).into(), remote: ([10, 0, 0, host], 9).into() };
        let is_admitted = self.broker.connected(self.now, Self::label(n), channel, tuple);
        if is_admitted {
            self.ends.insert(n, End { slice: 1448, ..End::new(1 << 24) });
            self.serve(n);
        }
        is_admitted
    }

    /// Connects a NULL peer of a host to a channel; returns after its handshake.
    pub fn connect_null_from(&mut self, n: u32, socket: &str, channel: u32, host: u8) {
        assert!(self.connect_from(n, channel, host));
        self.arrive(n, &client::null_handshake(socket, 1));
        self.taken(n);
    }

    /// Ends a connection.
    pub fn hang_up(&mut self, n: u32) {
        self.broker.gone(self.now, Self::label(n));
        self.ends.remove(&n);
        self.settle();
    }

    /// Connects a NULL peer; returns after its handshake.
    pub fn connect_null(&mut self, n: u32, socket: &str) {
        self.connect_null_from(n, socket, CHANNEL, 2);
    }

    /// Begins a CURVE handshake with the owner of `secret`; returns what the broker answers to INITIATE, and
    /// the client.
    pub fn initiate(&mut self, n: u32, secret: [u8; 32], socket: &str) -> (Vec<u8>, CurveClient) {
        self.connect(n);
        let transient: [u8; 32] = std::array::from_fn(|at| at as u8 ^ n as u8 ^ 0xa5);
        let mut client = CurveClient::new(public(SERVER), secret, transient);
        self.arrive(n, &[client::greeting(1, "CURVE"), client.hello()].concat());
        let welcome = self.taken(n).split_off(64);
        self.arrive(n, &client.initiate(&welcome, &property("Socket-Type", socket.as_bytes())));
        (self.taken(n), client)
    }

    /// Connects a CURVE peer; returns after its handshake.
    pub fn connect_curve(&mut self, n: u32, secret: [u8; 32], socket: &str) -> CurveClient {
        let (answer, mut client) = self.initiate(n, secret, socket);
        let ready = 2 + usize::from(answer[1]);
        assert!(client.open_ready(&answer[..ready]).is_some());
        if answer.len() > ready {
            // A publisher is asked for everything.
            assert_eq!(client.open(&answer[ready..]), Some((2, b"\x09SUBSCRIBE".to_vec())));
        }
        client
    }

    pub fn arrive(&mut self, n: u32, bytes: &[u8]) {
        self.ends.get_mut(&n).unwrap().arrived.extend_from_slice(bytes);
        self.serve(n);
        self.settle();
    }

    pub fn serve(&mut self, n: u32) {
        let (label, end) = (Self::label(n), self.ends.get_mut(&n).unwrap());
        let link = &mut OutputLink::default();
        let step = match end.upstream {
            false => self.broker.serve(self.now, label, end, link),
            true => self.broker.serve_upstream(self.now, label, end, link),
        };
        self.steps.insert(n, step);
    }

    /// Serves connections in passes, as a worker does.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let ready: Vec<FlowLabel> = ready(&mut self.broker, self.now);
            if ready.is_empty() {
                return;
            }
            for label in ready {
                if self.ends.contains_key(&(label.index() as u32)) {
                    self.serve(label.index() as u32);
                }
            }
            assert!(self.broker.take_lent().is_none());
        }
        panic!("the broker never comes to rest");
    }

    /// Lets time pass up to the next deadline of a connection, which is returned.
    pub fn pass_to_deadline(&mut self) -> Instant {
        self.now = self.broker.next_timeout().unwrap();
        self.broker.on_timeout(self.now);
        self.settle();
        self.now
    }

    pub fn give_room(&mut self, n: u32, room: usize) {
        self.ends.get_mut(&n).unwrap().room += room;
        self.serve(n);
        self.settle();
    }

    pub fn taken(&mut self, n: u32) -> Vec<u8> {
        std::mem::take(&mut self.ends.get_mut(&n).unwrap().sent)
    }

    pub fn has_ended(&self, n: u32) -> bool {
        matches!(self.steps[&n], Step::Close | Step::Reset)
    }
}

/// Opens all sealed frames in `bytes`: flags and body of each.
pub fn open_all(client: &mut CurveClient, mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = match bytes[0] & 2 {
            0 => 2 + usize::from(bytes[1]),
            _ => 9 + u64::from_be_bytes(bytes[1..9].try_into().unwrap()) as usize,
        };
        frames.push(client.open(&bytes[..len]).expect("a box that opens"));
        bytes = &bytes[len..];
    }
    frames
}

/// A message of a NULL peer.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    client::message(frames)
}

/// SUBSCRIBE of a NULL peer.
pub fn subscribe(topic: &[u8]) -> Vec<u8> {
    client::command("SUBSCRIBE", topic)
}

/// The form of ZMTP 3.0.
pub fn subscribe_old(topic: &[u8]) -> Vec<u8> {
    frame(0, &[&[1], topic].concat())
}

/// The bodies of the frames of a message in clear text.
pub fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let [flags, rest @ ..] = bytes {
        let (len, from) = match flags & 2 {
            0 => (usize::from(rest[0]), 1),
            _ => (u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize, 8),
        };
        all.push(rest[from..from + len].to_vec());
        bytes = &rest[from + len..];
    }
    all
}

/// Removes and returns the connections to serve in a pass, and runs contexts as the core does.
pub fn ready(broker: &mut MessageBroker, now: Instant) -> Vec<FlowLabel> {
    let mut ready = Vec::new();
    broker.run_contexts(now, &mut OutputLink::default());
    for _ in 0..100_000 {
        match broker.next_ready(&mut OutputLink::default()) {
            Some(label) => ready.push(label),
            None if broker.run_contexts(now, &mut OutputLink::default()) => {}
            None => break,
        }
    }
    ready
}
