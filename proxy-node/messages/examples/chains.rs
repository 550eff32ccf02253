//! Morphing's Table 1 and C-CORE's Table 2 in process: messages of 600 B offered at a fixed rate, through
//! chains of 0 to 5 handlers that do nothing, and through a multicast to 5. `cargo run --release -p
//! csp-messages --example chains [seconds]`.
//!
//! Messages fall due by the clock. What the machine withholds is made up for in a burst, within the queues,
//! as a link's buffer does.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

use std::time::{Duration, Instant as Clock};

use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, MessagePlane, PathSpec, PeerId, PlaneConfig,
    QueueLimits, Role,
};
use csp_types::Instant;

const LEN: usize = 600;
const QUEUE: QueueLimits = QueueLimits { messages: 16_384, bytes: 32 << 20, in_flight: 64 };

struct Run {
    plane: MessagePlane,
    publisher: PeerId,
    payload: Vec<u8>,
    offered: u64,
    dropped: u64,
    delivered: u64,
}

impl Run {
    fn new(handlers: usize, subscribers: usize) -> Self {
        let mut plane = MessagePlane::new(PlaneConfig::new(HashKey([7, 9]))).unwrap();
        let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None };
        let budget = Budget { guaranteed: 60 << 20, max: 64 << 20 };
        let config = ChannelConfig {
            name: "flights".into(),
            kind,
            budget,
            message_len_max: 4_096,
            queue: QUEUE,
            sequence: false,
        };
        let channel = plane.add_channel(config).unwrap();
        let publisher = plane.attach(channel, Role::Publisher).unwrap();
        for _ in 0..subscribers {
            let peer = plane.attach(channel, Role::Subscriber).unwrap();
            plane.subscribe(Instant::ZERO, peer, b"").unwrap();
        }
        let stages: Vec<_> = (0..handlers as u16).map(|context| ("forward", context, "")).collect();
        if handlers > 0 {
            let spec = PathSpec { queue: QUEUE, ..PathSpec::chain(channel, &stages) };
            plane.activate_path(Instant::ZERO, spec).unwrap();
        }
        Run { plane, publisher, payload: vec![0x11; LEN], offered: 0, dropped: 0, delivered: 0 }
    }

    fn publish(&mut self) {
        self.offered += 1;
        let parts = [&self.payload[..]].into_iter();
        let done = self
            .plane
            .publish_as(Instant::ZERO, self.publisher, FormatId::UNKNOWN, &[LEN as u32], parts)
            .unwrap();
        self.dropped += u64::from(done.dropped);
    }

    fn serve(&mut self) {
        while let Some(mut turn) = self.plane.next_flow() {
            self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            while let Some(peer) = self.plane.next_peer(&turn) {
                let delivery = self.plane.next_delivery(Instant::ZERO, peer).unwrap();
                turn.charge(delivery.len);
                self.plane.delivered(peer, delivery.handle).unwrap();
                self.delivered += 1;
            }
            self.plane.end_turn(turn);
        }
    }

    /// Offers messages at `rate` bits a second for `time`. Returns what was delivered in the median of
    /// windows of 20 ms, in Mb/s: the machine takes some windows from the program.
    fn shaped(&mut self, rate: f64, time: Duration) -> f64 {
        let (begin, mut windows) = (Clock::now(), Vec::new());
        let due = |time: Duration| (time.as_secs_f64() * rate / (LEN * 8) as f64) as u64;
        let (mut from, mut before) = (begin, 0);
        while begin.elapsed() < time {
            for _ in self.offered..due(begin.elapsed()) {
                self.publish();
            }
            self.serve();
            let window = from.elapsed();
            if window >= Duration::from_millis(20) {
                let bits = (self.delivered - before) as f64 * (LEN * 8) as f64;
                windows.push(bits / window.as_secs_f64() / 1e6);
                (from, before) = (from + window, self.delivered);
            }
        }
        windows.sort_by(f64::total_cmp);
        windows[windows.len() / 2]
    }

    /// Offers messages in batches of 32 as fast as they are delivered. Returns the nanoseconds of one in the
    /// median of batches.
    fn unshaped(&mut self, time: Duration) -> f64 {
        let (begin, mut times) = (Clock::now(), Vec::new());
        while begin.elapsed() < time {
            let batch = Clock::now();
            (0..32).for_each(|_| self.publish());
            self.serve();
            times.push(batch.elapsed().as_secs_f64() * 1e9 / 32.0);
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    println!("{LEN} B; shaped: offered at 980 Mb/s; unshaped: the median of batches of 32\n");
    println!("chain  shaped Mb/s  dropped  unshaped ns  Mb/s   a stage ns");
    let mut none = 0.0;
    for handlers in 0..=5usize {
        let mut run = Run::new(handlers, 1);
        let rate = run.shaped(980e6, time);
        let dropped = run.dropped;
        let nanos = Run::new(handlers, 1).unshaped(time / 4);
        none = if handlers == 0 { nanos } else { none };
        let stage = (nanos - none) / handlers.max(1) as f64;
        let unshaped = (LEN * 8) as f64 / nanos * 1e3;
        println!("{handlers:5}  {rate:11.1}  {dropped:7}  {nanos:11.0}  {unshaped:5.0}  {stage:10.0}");
    }
    println!("\nmulticast to 5 subscribers\nin Mb/s  out Mb/s  offered  delivered  dropped");
    for rate in [50.0, 100.0, 150.0, 200.0, 400.0] {
        let mut run = Run::new(0, 5);
        let out = run.shaped(rate * 1e6, time / 2);
        println!("{rate:7.0}  {out:8.1}  {:7}  {:9}  {:7}", run.offered, run.delivered, run.dropped);
    }
}
