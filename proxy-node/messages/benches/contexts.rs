//! Time per message through chains of handlers, in process. `cargo bench -p csp-messages --bench contexts`.
//!
//! Prints, before criterion's figures, the least of many short runs of each length of chain, interleaved, and
//! of publishing without any path. Handlers do nothing: what is measured is a stage's look-ups, hand-over and
//! accounting (Morphing, Table 1).
#![allow(missing_docs, clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, MessagePlane, PathSpec, PeerId,
    PlaneConfig, QueueLimits, Role, StageSpec, SubscriptionsConfig, Targets,
};
use csp_types::Instant;

const LEN: usize = 600;
const CHAIN_MAX: usize = 5;
/// Messages published before contexts and receivers are served.
const BATCH: u32 = 32;

struct Bench {
    plane: MessagePlane,
    channel: ChannelId,
    publisher: PeerId,
    payload: Vec<u8>,
}

impl Bench {
    fn new(subscribers: usize) -> Self {
        let subscriptions = SubscriptionsConfig { topic_len_max: 64, ..Default::default() };
        let config = PlaneConfig { subscriptions, ..PlaneConfig::new(HashKey([7, 9])) };
        let mut plane = MessagePlane::new(config).unwrap();
        let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None };
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
        let publisher = plane.attach(channel, Role::Publisher).unwrap();
        for _ in 0..subscribers {
            let peer = plane.attach(channel, Role::Subscriber).unwrap();
            plane.subscribe(Instant::ZERO, peer, b"topic/").unwrap();
        }
        let mut payload = vec![0x11; LEN];
        payload[..10].copy_from_slice(b"topic/0042");
        Bench { plane, channel, publisher, payload }
    }

    /// A chain of no-op handlers, each in a context of its own.
    fn chain(len: usize) -> Self {
        let mut bench = Bench::new(1);
        let stages: Vec<_> = (0..len as u16).map(|context| ("forward", context, "")).collect();
        if len > 0 {
            bench.plane.activate_path(Instant::ZERO, PathSpec::chain(bench.channel, &stages)).unwrap();
        }
        bench
    }

    /// One handler that emits each message to five outputs, each of which goes to the receivers.
    fn multicast() -> Self {
        let mut bench = Bench::new(1);
        let mut spec = PathSpec::chain(bench.channel, &[]);
        spec.stages.push(StageSpec {
            handler: "multicast".into(),
            context: 0,
            parameters: "5".into(),
            outputs: [[Targets::RECEIVERS; 5].as_slice(), &[Targets::NONE; 3]].concat(),
            maker: None,
        });
        bench.plane.activate_path(Instant::ZERO, spec).unwrap();
        bench
    }

    fn publish(&mut self) {
        let parts = [black_box(&self.payload[..])];
        let done = self
            .plane
            .publish_as(Instant::ZERO, self.publisher, FormatId::UNKNOWN, &[LEN as u32], parts.into_iter())
            .unwrap();
        assert_eq!(done.dropped, 0);
    }

    /// Runs contexts and delivers everything; returns the bytes.
    fn serve(&mut self) -> usize {
        let mut bytes = 0;
        while let Some(mut turn) = self.plane.next_flow() {
            if self.plane.is_context(&turn) {
                self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            }
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

    fn batch(&mut self) {
        (0..BATCH).for_each(|_| self.publish());
        black_box(self.serve());
    }
}

/// Returns the nanoseconds of one message in each bench: the median and the least of `rounds` interleaved
/// runs.
fn measure(benches: &mut [Bench], rounds: usize) -> Vec<(f64, f64)> {
    let mut all = vec![Vec::new(); benches.len()];
    for _ in 0..rounds {
        for (bench, times) in benches.iter_mut().zip(&mut all) {
            let begin = std::time::Instant::now();
            (0..8).for_each(|_| bench.batch());
            times.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(8 * BATCH));
        }
    }
    let summary = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0])
    };
    all.into_iter().map(summary).collect()
}

fn print_chains() {
    let mut benches: Vec<Bench> = (0..=CHAIN_MAX).map(Bench::chain).collect();
    benches.push(Bench::multicast());
    let times = measure(&mut benches, 2_000);
    println!(
        "{LEN} B, batches of {BATCH}: ns a message from publisher to subscriber (median, least), and a stage"
    );
    let (none, none_least) = times[0];
    for (len, (median, least)) in times.iter().take(CHAIN_MAX + 1).enumerate() {
        let stages = len.max(1) as f64;
        let (a, b) = ((median - none) / stages, (least - none_least) / stages);
        let gigabits = LEN as f64 * 8.0 / median;
        println!("  chain {len}: {median:6.0} {least:6.0}   a stage {a:4.0} {b:4.0}   {gigabits:5.1} Gb/s");
    }
    let (median, least) = times[CHAIN_MAX + 1];
    println!(
        "  multicast handler to 5: {median:.0} {least:.0}   out {:.1} Gb/s",
        5.0 * LEN as f64 * 8.0 / median
    );
}

fn chains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("contexts");
    group.throughput(Throughput::Elements(BATCH.into()));
    for len in 0..=CHAIN_MAX {
        let mut bench = Bench::chain(len);
        group.bench_function(BenchmarkId::new("chain", len), |b| b.iter(|| bench.batch()));
    }
    let mut bench = Bench::multicast();
    group.bench_function("multicast/5", |b| b.iter(|| bench.batch()));
    group.finish();
}

fn main() {
    print_chains();
    let mut criterion = Criterion::default().configure_from_args();
    chains(&mut criterion);
    criterion.final_summary();
}
