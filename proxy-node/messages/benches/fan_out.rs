//! Time per message from a publisher to all of its subscribers, in process. `cargo bench -p csp-messages`.
//!
//! Before criterion's figures it prints the least of many short runs, which other programs on the machine
//! disturb least.
#![allow(missing_docs, clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, MessagePlane, PeerId, PlaneConfig,
    QueueLimits, Role, SubscriptionsConfig,
};
use csp_types::Instant;

const LEN: usize = 600;
const HASH_KEY: HashKey = HashKey([0x0123_4567_89ab_cdef, 0x0fed_cba9_8765_4321]);

struct Bench {
    plane: MessagePlane,
    channel: ChannelId,
    publisher: PeerId,
    payload: Vec<u8>,
}

impl Bench {
    fn new(kind: ChannelKind, sender: Role) -> Self {
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { subscriptions, ..PlaneConfig::new(HASH_KEY) };
        let mut plane = MessagePlane::new(config).unwrap();
        let budget = Budget { guaranteed: 16 << 20, max: 32 << 20 };
        let queue = QueueLimits::default();
        let config = ChannelConfig {
            name: "bench".into(),
            kind,
            budget,
            message_len_max: 1 << 20,
            queue,
            sequence: false,
        };
        let channel = plane.add_channel(config).unwrap();
        let publisher = plane.attach(channel, sender).unwrap();
        let mut payload = vec![0x11; LEN];
        payload[..10].copy_from_slice(b"topic/0042");
        Bench { plane, channel, publisher, payload }
    }

    fn publish_subscribe(subscribers: usize) -> Self {
        let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropOldest, cache: None };
        let mut bench = Bench::new(kind, Role::Publisher);
        for _ in 0..subscribers {
            let peer = bench.plane.attach(bench.channel, Role::Subscriber).unwrap();
            bench.plane.subscribe(Instant::ZERO, peer, b"topic/").unwrap();
        }
        bench
    }

    fn push_pull(pullers: usize) -> Self {
        let mut bench = Bench::new(ChannelKind::PushPull { backlog: QueueLimits::default() }, Role::Pusher);
        (0..pullers).for_each(|_| _ = bench.plane.attach(bench.channel, Role::Puller).unwrap());
        bench
    }

    fn publish(&mut self) {
        let parts = [black_box(&self.payload[..])];
        self.plane
            .publish_as(Instant::ZERO, self.publisher, FormatId::UNKNOWN, &[LEN as u32], parts.into_iter())
            .unwrap();
    }

    /// Delivers everything; returns the bytes, each slice of which is looked at once.
    fn deliver(&mut self) -> usize {
        let mut bytes = 0;
        while let Some(mut turn) = self.plane.next_flow() {
            while let Some(peer) = self.plane.next_peer(&turn) {
                let Some(delivery) = self.plane.next_delivery(Instant::ZERO, peer) else { continue };
                bytes +=
                    self.plane.slices(delivery.handle).map(|slice| black_box(slice).len()).sum::<usize>();
                turn.charge(delivery.len);
                self.plane.delivered(peer, delivery.handle).unwrap();
            }
            self.plane.end_turn(turn);
        }
        bytes
    }
}

fn fan_out(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fan_out");
    group.throughput(Throughput::Elements(1));
    for subscribers in [1, 5, 1_000] {
        let mut bench = Bench::publish_subscribe(subscribers);
        group.bench_function(BenchmarkId::new("each_delivered", subscribers), |b| {
            b.iter(|| {
                bench.publish();
                assert_eq!(bench.deliver(), subscribers * LEN);
            });
        });
    }
    // Full queues: the publisher's part alone, with a drop for each subscriber.
    for subscribers in [1, 5, 1_000] {
        let mut bench = Bench::publish_subscribe(subscribers);
        (0..1_000).for_each(|_| bench.publish());
        group.bench_function(BenchmarkId::new("stopped", subscribers), |b| b.iter(|| bench.publish()));
    }
    let mut bench = Bench::publish_subscribe(5);
    group.throughput(Throughput::Elements(32));
    group.bench_function("batches_of_32/5", |b| {
        b.iter(|| {
            (0..32).for_each(|_| bench.publish());
            assert_eq!(bench.deliver(), 5 * 32 * LEN);
        });
    });
    group.finish();
}

fn push_pull(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("push_pull");
    group.throughput(Throughput::Elements(1));
    let mut bench = Bench::push_pull(4);
    group.bench_function("4_pullers", |b| {
        b.iter(|| {
            bench.publish();
            assert_eq!(bench.deliver(), LEN);
        });
    });
    group.finish();
}

/// A million prefixes of one subscriber: topics of which one, and none, is matched.
fn million(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("million_topics");
    group.throughput(Throughput::Elements(1));
    let mut bench = Bench::publish_subscribe(0);
    let peer = bench.plane.attach(bench.channel, Role::Subscriber).unwrap();
    for n in 0..1_000_000u32 {
        bench
            .plane
            .subscribe(Instant::ZERO, peer, format!("m/{:08}/t", n.wrapping_mul(97)).as_bytes())
            .unwrap();
    }
    for (name, misses) in [("matched", false), ("unmatched", true)] {
        let mut n = 0u32;
        group.bench_function(name, |b| {
            b.iter(|| {
                n = (n + 7_919) % 1_000_000;
                let topic = format!("m/{:08}/{}", n * 97, if misses { "x" } else { "t" });
                bench.payload[..topic.len()].copy_from_slice(topic.as_bytes());
                bench.publish();
                assert_eq!(bench.deliver(), if misses { 0 } else { LEN });
            });
        });
    }
    group.finish();
}

/// Returns the nanoseconds of one act in the fastest of 3,000 runs of `count` acts.
fn least(count: u32, mut act: impl FnMut()) -> f64 {
    let run = |_| {
        let begin = std::time::Instant::now();
        (0..count).for_each(|_| act());
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    (0..3_000).map(run).fold(f64::INFINITY, f64::min)
}

fn print_least() {
    for subscribers in [1, 5, 1_000] {
        let count = (500 / subscribers as u32).max(1);
        let mut bench = Bench::publish_subscribe(subscribers);
        let each = least(count, || {
            bench.publish();
            bench.deliver();
        });
        let mut bench = Bench::publish_subscribe(subscribers);
        (0..1_000).for_each(|_| bench.publish());
        let stopped = least(count, || bench.publish());
        println!(
            "{subscribers} subscribers: {each:.0} ns a message of {LEN} B delivered, {stopped:.0} ns if all are full"
        );
    }
    let mut bench = Bench::publish_subscribe(5);
    let batch = least(4, || {
        (0..32).for_each(|_| bench.publish());
        bench.deliver();
    });
    println!("5 subscribers, batches of 32: {:.0} ns a message", batch / 32.0);
    let mut bench = Bench::push_pull(4);
    let each = least(100, || {
        bench.publish();
        bench.deliver();
    });
    println!("4 pullers: {each:.0} ns a message");
}

fn main() {
    print_least();
    let mut criterion = Criterion::default().configure_from_args();
    fan_out(&mut criterion);
    push_pull(&mut criterion);
    million(&mut criterion);
    criterion.final_summary();
}
