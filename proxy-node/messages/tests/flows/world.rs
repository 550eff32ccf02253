//! A plane with publishers, subscribers and flows on virtual time.

use std::sync::Arc;

use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FlowId, FormatId, FullQueue, HashKey, MessagePlane,
    PeerId, PlaneConfig, PublishError, QueueLimits, Role,
};
use csp_quality::{
    Board, Capacity, Cost, Descriptor, FlowSpec, FlowStatus, FlowTable, LinkConfig, MonitorConfig,
    MonitorMode, OutputLink, Plan, Predicate, QualityConfig, Scheme, SharedLinkConfig, Trigger,
};
use csp_types::{Duration, Instant};

pub const LEN: usize = 1_500;
/// The link of all tests: 50 Mb/s, a tenth of the paper's.
pub const LINK: u64 = 50_000_000;
pub const TICK: Duration = Duration::from_micros(100);
pub const FLOWS_MAX: usize = 16;

pub fn spec(name: &str, number: u32, priority: u8, mbps: u64) -> FlowSpec {
    let mut spec = FlowSpec::new(name, Predicate { channel: Some(number), ..Predicate::default() });
    spec.priority = priority;
    spec.reservation.bits_per_second = mbps * 1_000_000;
    spec.item.bytes_max = LEN as u32;
    spec
}

/// The default flow, whose messages are no longer than the others'.
pub fn rest() -> FlowSpec {
    FlowSpec { name: "default".to_owned(), predicate: Predicate::default(), ..spec("default", 0, 0, 0) }
}

/// A channel with a publisher and a subscriber.
pub struct Pair {
    pub number: u32,
    pub channel: ChannelId,
    pub publisher: PeerId,
    pub subscriber: PeerId,
    /// Messages sent so far; the number of a message is its content.
    pub sent: u64,
    /// The flow of each.
    pub flows: Vec<FlowId>,
    /// Numbers that were received, at which time.
    pub received: Vec<(u64, Instant)>,
    /// Bits a second that it sends, and bits that it owes.
    pub rate: u64,
    pub due: f64,
    pub held: bool,
}

pub struct World {
    pub now: Instant,
    pub plane: MessagePlane,
    pub link: OutputLink,
    pub pairs: Vec<Pair>,
    pub table: FlowTable,
    pub board: Arc<Board>,
    pub last: Option<SharedLinkConfig>,
    /// Contexts of flows.
    pub contexts: u16,
    /// What an item takes the worker.
    pub cost: Duration,
}

impl World {
    pub fn new(rates: &[u64], policy: FullQueue) -> World {
        let config = PlaneConfig::new(HashKey([1, 2]));
        let mut plane = MessagePlane::new(PlaneConfig { channels_max: 8, peers_max: 32, ..config }).unwrap();
        let pairs = (0..).zip(rates).map(|(number, rate)| {
            let channel = plane.add_channel(ChannelConfig {
                name: format!("channel-{number}"),
                kind: ChannelKind::PublishSubscribe { policy, cache: None },
                budget: Budget { guaranteed: 1 << 20, max: 16 << 20 },
                message_len_max: 4_096,
                queue: QueueLimits::default(),
                sequence: false,
            });
            let channel = channel.unwrap();
            plane.set_number(channel, number);
            let publisher = plane.attach(channel, Role::Publisher).unwrap();
            let subscriber = plane.attach(channel, Role::Subscriber).unwrap();
            plane.subscribe(Instant::ZERO, subscriber, b"").unwrap();
            let (sent, flows, received, due, held) = (0, Vec::new(), Vec::new(), 0.0, false);
            Pair { number, channel, publisher, subscriber, sent, flows, received, rate: *rate, due, held }
        });
        let pairs = pairs.collect();
        let (table, board) = (FlowTable::new(FLOWS_MAX), Arc::new(Board::new(1)));
        World {
            now: Instant::ZERO,
            plane,
            link: OutputLink::default(),
            pairs,
            table,
            board,
            last: None,
            contexts: 0,
            cost: Duration::ZERO,
        }
    }

    pub fn set_flows(
        &mut self,
        mut specs: Vec<FlowSpec>,
        scheme: Scheme,
        triggers: impl Fn(&FlowTable) -> Vec<Trigger>,
    ) {
        specs.push(rest());
        self.table = self.table.replace(specs).unwrap();
        let link = LinkConfig { bits_per_second: LINK, quantum: 4 * 1024 };
        // Contexts have the whole worker together.
        let cost = Cost { item: self.cost * u32::from(self.contexts), ..Cost::default() };
        let capacity = Capacity { contexts: self.contexts, link, point_every: 16 };
        let plan =
            Plan::new(Arc::new(self.table.clone()), capacity, |name| (name != "unknown").then_some(cost))
                .unwrap();
        let monitor = MonitorConfig { mode: MonitorMode::Flows, ..MonitorConfig::default() };
        let config = SharedLinkConfig {
            plan: Arc::new(plan),
            quality: QualityConfig { items_max: 4_096, link: scheme, monitor, ..QualityConfig::default() },
            triggers: triggers(&self.table),
            board: (Arc::clone(&self.board), 0),
            worker_percent: 100,
        };
        self.last = Some(config.clone());
        self.link.share(self.now, config).unwrap();
    }

    /// What waits goes on without flows.
    pub fn end_flows(&mut self) {
        self.link.unshare(self.now, &mut self.plane);
    }

    pub fn publish(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        let descriptor = Descriptor::default().channel(pair.number);
        let flow = self.link.shared().map_or(FlowId::DEFAULT, |link| link.table().classify(&descriptor));
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&pair.sent.to_be_bytes());
        let done = self.plane.publish_in(
            self.now,
            pair.publisher,
            (FormatId::UNKNOWN, flow),
            (&[LEN as u32], [&bytes[..]].into_iter()),
            self.link.shared_mut(),
        );
        match done {
            Ok(_) => {
                pair.sent += 1;
                pair.flows.push(flow);
            }
            Err(PublishError::Held) => pair.held = true,
            Err(error) => panic!("{error}"),
        }
    }

    /// One turn of the worker; what publishers owe is sent first.
    pub fn turn(&mut self) {
        self.now += TICK;
        for at in 0..self.pairs.len() {
            let pair = &mut self.pairs[at];
            pair.due += pair.rate as f64 * TICK.as_secs_f64();
            while self.pairs[at].due >= LEN as f64 * 8.0 && !self.pairs[at].held {
                self.pairs[at].due -= LEN as f64 * 8.0;
                self.publish(at);
            }
        }
        self.link.release(self.now, &mut self.plane);
        self.deliver();
        while let Some(publisher) = self.plane.next_resumed(self.link.shared()) {
            let at = self.pairs.iter().position(|pair| pair.publisher == publisher).unwrap();
            self.pairs[at].held = false;
            self.publish(at);
        }
    }

    pub fn deliver(&mut self) {
        while let Some(mut turn) = self.plane.next_flow() {
            if self.plane.is_context(&turn) {
                self.plane.run_context(self.now, &mut turn, None, self.link.shared_mut());
            }
            while let Some(peer) = self.plane.next_peer(&turn) {
                let Some(delivery) = self.plane.next_delivery(self.now, peer) else { continue };
                let bytes = self.plane.slices(delivery.handle).collect::<Vec<_>>().concat();
                let number = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                self.plane.trace_written(peer, &delivery, |_| Some(delivery.len as usize));
                self.plane.delivered(peer, delivery.handle).unwrap();
                self.plane.trace_flushed(peer);
                let pair = self.pairs.iter_mut().find(|pair| pair.subscriber == peer).unwrap();
                pair.received.push((number, self.now));
            }
            self.plane.end_turn(turn);
        }
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.turn();
        }
    }

    pub fn status(&mut self, name: &str) -> FlowStatus {
        let (_, flows) = self.link.status(self.now).unwrap();
        flows.into_iter().find(|flow| flow.name == name).unwrap()
    }

    /// Mb/s that a channel's subscriber received between two times.
    pub fn mbps(&self, at: usize, from: Instant, to: Instant) -> f64 {
        let within = |(_, when): &&(u64, Instant)| (from..to).contains(when);
        let messages = self.pairs[at].received.iter().filter(within).count();
        messages as f64 * LEN as f64 * 8.0 / 1e6 / to.saturating_since(from).as_secs_f64()
    }

    pub fn assert_in_order(&self) {
        for pair in &self.pairs {
            let mut last = [None; FLOWS_MAX + 1];
            for (number, _) in &pair.received {
                let flow = pair.flows[*number as usize];
                let before = last[usize::from(flow.0)].replace(*number);
                assert!(before < Some(*number), "channel {}: {number} after {before:?}", pair.number);
            }
        }
    }
}

pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub fn at(time: f64) -> Instant {
    Instant::ZERO + seconds(time)
}

/// `CSP_SEED=n` replays one world.
pub fn seeds() -> Vec<u64> {
    match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => (0..20).collect(),
    }
}
