//! The proxy's message plane without sockets, and how long it takes for a message.

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use csp_handlers::{FormatId, Handler};
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, MessagePlane, PathSpec, PeerId,
    PlaneConfig, QueueLimits, Role,
};
use csp_operators::FormatSet;
use csp_types::Instant;

use super::flights::Flights;

const QUEUE: QueueLimits = QueueLimits { messages: 16_384, bytes: 12 << 20, in_flight: 64 };
/// Messages of a batch whose time is measured.
const BATCH: usize = 32;

/// A message plane, its channels and what was counted.
pub struct World {
    pub plane: MessagePlane,
    began: Clock,
    /// Messages offered, dropped at the entry, and delivered to subscribers with their bytes.
    pub offered: u64,
    pub dropped: u64,
    pub delivered: u64,
    pub bytes: u64,
}

/// A channel with one publisher and one subscriber.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    pub id: ChannelId,
    publisher: PeerId,
}

impl World {
    pub fn new() -> Self {
        let plane = MessagePlane::new(PlaneConfig::new(HashKey([7, 9]))).expect("the defaults are valid");
        World { plane, began: Clock::now(), offered: 0, dropped: 0, delivered: 0, bytes: 0 }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(1) + self.began.elapsed()
    }

    pub fn channel(&mut self, name: &str) -> Channel {
        let config = ChannelConfig {
            name: name.to_owned(),
            kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
            budget: Budget { guaranteed: 16 << 20, max: 32 << 20 },
            message_len_max: 8_192,
            queue: QUEUE,
            sequence: false,
        };
        let id = self.plane.add_channel(config).expect("there is room for the channels");
        let publisher = self.plane.attach(id, Role::Publisher).expect("there is room for peers");
        let subscriber = self.plane.attach(id, Role::Subscriber).expect("there is room for peers");
        self.plane.subscribe(Instant::ZERO, subscriber, b"").expect("there is room for a subscription");
        Channel { id, publisher }
    }

    /// Stores a handler that paths can name.
    pub fn deploy(&mut self, name: &str, make: impl Fn() -> Box<dyn Handler> + Send + 'static) {
        self.plane.handlers_mut().deploy(name, Box::new(make)).expect("the name is new");
    }

    /// Sets a channel's path: handlers with their parameters.
    pub fn path(&mut self, channel: Channel, stages: &[(&str, &str)]) {
        let stages: Vec<_> = stages.iter().map(|(handler, parameters)| (*handler, 0, *parameters)).collect();
        let spec = PathSpec { queue: QUEUE, ..PathSpec::chain(channel.id, &stages) };
        self.plane.activate_path(Instant::ZERO, spec).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn publish(&mut self, channel: Channel, format: FormatId, message: &[u8]) {
        self.offered += 1;
        let (now, len) = (self.now(), [message.len() as u32]);
        let done = self.plane.publish_as(now, channel.publisher, format, &len, [message].into_iter());
        self.dropped += done.map_or(1, |done| u64::from(done.dropped));
    }

    /// Runs contexts and delivers until nothing is left.
    pub fn serve(&mut self) {
        let now = self.now();
        if self.plane.next_timeout().is_some_and(|due| due <= now) {
            self.plane.on_timeout(now);
        }
        while let Some(mut turn) = self.plane.next_flow() {
            self.plane.run_context(now, &mut turn, None, None);
            while let Some(peer) = self.plane.next_peer(&turn) {
                let Some(delivery) = self.plane.next_delivery(now, peer) else { continue };
                turn.charge(delivery.len);
                self.delivered += 1;
                self.bytes += u64::from(delivery.len);
                self.plane.delivered(peer, delivery.handle).expect("it is in flight");
            }
            self.plane.end_turn(turn);
        }
    }

    /// Has `offer` publish a batch and serves it, for `time`. Returns the nanoseconds of an offered message
    /// in the median of batches.
    pub fn unshaped(&mut self, time: Duration, mut offer: impl FnMut(&mut World)) -> f64 {
        let (begin, mut times) = (Clock::now(), Vec::new());
        while begin.elapsed() < time {
            let (batch, before) = (Clock::now(), self.offered);
            (0..BATCH).for_each(|_| offer(self));
            self.serve();
            times.push(batch.elapsed().as_secs_f64() * 1e9 / (self.offered - before) as f64);
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    /// Has `offer` publish when messages of `len` bytes fall due at `rate` bits a second, for `time`.
    pub fn shaped(&mut self, (rate, len): (f64, f64), time: Duration, mut offer: impl FnMut(&mut World)) {
        let begin = Clock::now();
        while begin.elapsed() < time {
            let due = (begin.elapsed().as_secs_f64() * rate / (len * 8.0)) as u64;
            while self.offered < due {
                offer(self);
            }
            self.serve();
        }
    }
}

/// A set of formats with the ids 1, 2, …
pub fn formats(streams: &[Flights]) -> Arc<FormatSet> {
    let mut set = FormatSet::default();
    for (at, stream) in streams.iter().enumerate() {
        set.add(FormatId(at as u32 + 1), stream.schema.clone(), stream.name.clone())
            .expect("each id is added once");
    }
    Arc::new(set)
}
