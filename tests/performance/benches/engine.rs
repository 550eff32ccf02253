//! Time per segment, acknowledgement and connection. `make bench-tcp` runs this and then `instructions`.
#![allow(missing_docs, clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

mod fixture;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use csp_wire::tcp::Flags;
use fixture::{Bench, LARGE, MSS};

/// Operations timed together, so that reading the clock has no effect.
const BATCH: u64 = 64;

fn timed(iterations: u64, mut batch: impl FnMut(u64) -> Duration) -> Duration {
    let mut total = Duration::ZERO;
    for start in (0..iterations).step_by(BATCH as usize) {
        total += batch(BATCH.min(iterations - start));
    }
    total
}

fn data(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("data");
    for len in [MSS, LARGE] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("in", len), |b| {
            let mut bench = Bench::new(16);
            let mut client = bench.open();
            b.iter_custom(|iterations| {
                timed(iterations, |count| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..count {
                        bench.tick();
                        let segment = bench.segment(&client, Flags::ACK, len);
                        let begin = Instant::now();
                        bench.take_data(&mut client, black_box(&segment), len);
                        spent += begin.elapsed();
                    }
                    spent
                })
            });
        });
        for (what, acks) in [("out", false), ("ack", true)] {
            group.bench_function(BenchmarkId::new(what, len), |b| {
                let mut bench = Bench::new(16);
                let mut client = bench.open();
                bench.widen(&mut client, len);
                let bytes = vec![0x11; len];
                b.iter_custom(|iterations| {
                    let mut spent = [Duration::ZERO; 2];
                    for _ in 0..iterations {
                        bench.now += Duration::from_millis(1);
                        bench.tick();
                        let begin = Instant::now();
                        bench.give_data(&mut client, black_box(&bytes));
                        spent[0] += begin.elapsed();
                        let ack = bench.segment(&client, Flags::ACK, 0);
                        let begin = Instant::now();
                        bench.take_ack(&client, black_box(&ack));
                        spent[1] += begin.elapsed();
                    }
                    spent[usize::from(acks)]
                });
            });
        }
    }
}

fn connections(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("connection");
    for (what, down) in [("set up", false), ("tear down", true)] {
        group.bench_function(what, |b| {
            b.iter_custom(|iterations| {
                let mut bench = Bench::new(2 * BATCH as usize);
                timed(iterations, |count| {
                    let (up, torn) = batch(&mut bench, count as usize);
                    if down { torn } else { up }
                })
            });
        });
    }
}

/// Sets up `count` connections and tears them down; returns the time of either.
fn batch(bench: &mut Bench, count: usize) -> (Duration, Duration) {
    let mut clients: Vec<_> = (0..count).map(|_| bench.client()).collect();
    let mut spent = [Duration::ZERO; 2];
    for client in &mut clients {
        bench.tick();
        let syn = bench.segment(client, Flags::SYN, 0);
        let begin = Instant::now();
        bench.take_syn(client, &syn);
        spent[0] += begin.elapsed();
        let ack = bench.segment(client, Flags::ACK, 0);
        let begin = Instant::now();
        bench.take_handshake_ack(client, &ack);
        spent[0] += begin.elapsed();
    }
    for client in &mut clients {
        bench.tick();
        let fin = bench.segment(client, Flags::FIN | Flags::ACK, 0);
        let begin = Instant::now();
        bench.take_fin(client, &fin);
        spent[1] += begin.elapsed();
        let ack = bench.segment(client, Flags::ACK, 0);
        let begin = Instant::now();
        bench.take_ack(client, &ack);
        spent[1] += begin.elapsed();
    }
    (spent[0], spent[1])
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    data(&mut criterion);
    connections(&mut criterion);
    criterion.final_summary();
}
