//! The send buffer adapts to the path: on a slow path it stores little of a bulk writer's data, on a fast
//! path it always has data to send.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, client_tuple, small_config};
use csp_tcp::{Event, StackConfig};

/// Number of runs; each loses other packets, and a single run varies too much.
const RUNS: u64 = 24;

/// Results of a bulk writer on a path.
#[derive(Debug)]
struct Outcome {
    /// Goodput in bytes per second.
    goodput: f64,
    /// Peak length of the send queue in bytes.
    held: usize,
    /// The largest congestion window.
    cwnd: usize,
}

/// A path whose queue holds one round trip's worth of data.
#[derive(Clone, Copy, Debug)]
struct Path {
    rtt: Duration,
    /// Bytes per second.
    bandwidth: u64,
    loss: f64,
    seed: u64,
}

/// The send buffer has at least `least` bytes and at most 16 MiB.
fn write_for(time: Duration, path: Path, least: u32) -> Outcome {
    let Path { rtt, bandwidth, loss, seed } = path;
    let most = 16 << 20;
    let sender =
        StackConfig { blocks: 16_384, send_buffer_max: most, send_buffer_min: least, ..small_config(1) };
    let receiver = StackConfig {
        blocks: 16_384,
        receive_window_max: most,
        receive_window_initial: most,
        ..small_config(2)
    };
    let mut net = Net::new(seed, sender, receiver).with_rtt(rtt);
    net.faults[0].bandwidth = bandwidth;
    net.faults[0].queue = (bandwidth as f64 * rtt.as_secs_f64()).max(30_000.0) as u64;
    net.hold_order = true;
    net.faults[0].loss = loss;
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    let (start, chunk) = (net.now, vec![1; 1 << 16]);
    let mut server = None;
    let mut writes = false;
    let (mut read, mut held, mut cwnd) = (0, 0, 0);
    while net.now - start < time {
        while let Some((_, event)) = net.hosts[0].stack.poll_event() {
            // As an event-driven application does: it writes on `Writable` until a write is cut short.
            writes |= matches!(event, Event::Established { .. } | Event::Writable);
        }
        while writes {
            writes = net.hosts[0].stack.write(net.now, label, &chunk) == chunk.len();
        }
        net.flush();
        while let Some((label, event)) = net.hosts[1].stack.poll_event() {
            server = server.or(matches!(event, Event::Established { .. }).then_some(label));
        }
        if let Some(server) = server {
            read += net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len());
        }
        if let Some(info) = net.hosts[0].stack.info(label) {
            (held, cwnd) = (held.max(info.send_queue), cwnd.max(info.cwnd as usize));
        }
        net.flush();
        net.step(net.now + Duration::from_secs(1));
    }
    Outcome { goodput: read as f64 / time.as_secs_f64(), held, cwnd }
}

#[test]
fn a_slow_path_holds_little() {
    let time = Duration::from_secs(30);
    let path = Path { rtt: Duration::from_millis(40), bandwidth: 250_000, loss: 0.0, seed: 5 };
    let follows = write_for(time, path, 32 << 10);
    println!("{follows:?}");
    assert!(follows.held <= 2 * follows.cwnd && follows.held < 256 << 10, "{follows:?}");
    let unbounded = write_for(time, path, 16 << 20);
    println!("{unbounded:?}");
    assert!(unbounded.held > 8 << 20, "{unbounded:?}: this test would test nothing");
    assert!(follows.goodput >= 0.98 * unbounded.goodput, "{follows:?} {unbounded:?}");
}

#[test]
fn a_long_fat_path_is_kept_full() {
    let time = Duration::from_secs(20);
    let path = Path { rtt: Duration::from_millis(100), bandwidth: 25_000_000, loss: 0.0, seed: 5 };
    let follows = write_for(time, path, 64 << 10);
    let unbounded = write_for(time, path, 16 << 20);
    println!("{follows:?}\n{unbounded:?}");
    assert!(
        unbounded.goodput > 0.85 * 25e6,
        "{unbounded:?}: the path is not full: this test would test nothing"
    );
    assert!(follows.goodput >= 0.98 * unbounded.goodput, "{follows:?} {unbounded:?}");
}

/// While a hole is being repaired, SACKed data after it occupies the buffer. (150 seeds: 0.993; if the buffer
/// shrinks with the congestion window, 0.975. Fewer seeds are less precise.)
#[test]
fn recovery_from_loss_finds_data_to_send() {
    let time = Duration::from_secs(10);
    let sum = |least: u32| -> f64 {
        let path = |seed| Path { rtt: Duration::from_millis(100), bandwidth: 12_500_000, loss: 0.001, seed };
        (0..RUNS).map(|seed| write_for(time, path(seed), least).goodput).sum()
    };
    let ratio = sum(64 << 10) / sum(16 << 20);
    println!("{ratio:.3}");
    assert!(ratio > 0.97, "{ratio:.3} of what an unbounded buffer reaches");
}
