//! Throughput of bulk data in virtual time: it depends on window growth and loss recovery.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::transfer::transfer;
use common::{Net, client_tuple, small_config};

fn net(rtt: Duration, loss: f64, seed: u64) -> Net {
    let mut net = Net::new(seed, small_config(1), small_config(2)).with_rtt(rtt);
    net.faults[0].loss = loss;
    net.faults[1].loss = loss;
    net
}

const MIB: u64 = 1 << 20;

#[test]
fn sixteen_mebibytes_at_1_ms_without_loss() {
    let outcome = transfer(net(Duration::from_millis(1), 0.0, 1), 16 * MIB);
    println!("{outcome:?}");
    // At a window of 1 MiB per round trip the transfer takes 16 ms; slow start adds some round trips.
    assert!(outcome.time < Duration::from_millis(60), "{:?}", outcome.time);
    assert_eq!(outcome.sender.segments_retransmitted, 0);
    // 11586 segments of 1448 bytes; at most one acknowledgement for each.
    assert!(outcome.packets < 2 * 11_600, "{} packets", outcome.packets);
}

#[test]
fn whole_records_need_few_of_them() {
    let mut net = net(Duration::from_millis(1), 0.0, 1);
    net.whole_records = true;
    let outcome = transfer(net, 16 * MIB);
    println!("{outcome:?}");
    assert!(outcome.time < Duration::from_millis(60), "{:?}", outcome.time);
    assert!(outcome.packets < 1_500, "{} records for 16 MiB", outcome.packets);
}

/// The Mathis bound for NewReno, MSS/RTT × √(3/2p), is what a long transfer can reach; at least half of it is
/// required.
fn check_loss(rtt: Duration, loss: f64, bytes: u64) {
    let mut total = Duration::ZERO;
    const RUNS: u64 = 4;
    for seed in 0..RUNS {
        let outcome = transfer(net(rtt, loss, seed), bytes);
        println!("rtt {rtt:?} loss {loss} seed {seed}: {outcome:?}");
        total += outcome.time;
        let retransmitted = outcome.sender.bytes_retransmitted as f64 / bytes as f64;
        assert!(retransmitted < 2.0 * loss + 0.02, "{:.1} % retransmitted", 100.0 * retransmitted);
    }
    let rate = (RUNS * bytes) as f64 / total.as_secs_f64();
    let bound = 1448.0 / rtt.as_secs_f64() * (1.5 / loss).sqrt();
    println!("rtt {rtt:?} loss {loss}: {:.0} kB/s, bound {:.0} kB/s", rate / 1e3, bound / 1e3);
    assert!(rate > bound / 2.0, "{:.0} kB/s of {:.0} kB/s", rate / 1e3, bound / 1e3);
}

#[test]
fn one_percent_loss_at_20_ms() {
    check_loss(Duration::from_millis(20), 0.01, 4 * MIB);
}

#[test]
fn one_per_mille_loss_at_20_ms() {
    check_loss(Duration::from_millis(20), 0.001, 16 * MIB);
}

#[test]
fn five_percent_loss_at_100_ms() {
    check_loss(Duration::from_millis(100), 0.05, 2 * MIB);
}

#[test]
fn one_percent_loss_at_1_ms() {
    // Where the round trip takes 1 ms, timeouts of 200 ms dominate the time: the test shows whether recovery
    // avoids them.
    let outcome = transfer(net(Duration::from_millis(1), 0.01, 5), 16 * MIB);
    println!("{outcome:?}");
    assert!(outcome.time < Duration::from_secs(5), "{:?}", outcome.time);
}

#[test]
fn without_sack_recovery_still_works() {
    let mut net = net(Duration::from_millis(20), 0.01, 1);
    net.strip = (true, false, false);
    let outcome = transfer(net, 2 * MIB);
    println!("{outcome:?}");
    assert!(outcome.time < Duration::from_secs(20), "{:?}", outcome.time);
}

#[test]
fn reordering_is_not_taken_for_loss_for_long() {
    let mut net = net(Duration::from_millis(20), 0.0, 1);
    net.faults[0].reordering = 0.05;
    let outcome = transfer(net, 16 * MIB);
    println!("{outcome:?}");
    assert!(outcome.time < Duration::from_secs(6), "{:?}", outcome.time);
    assert_eq!(outcome.sender.retransmission_timeouts, 0);
}

#[test]
fn a_slow_reader_does_not_cause_silly_segments() {
    let mut net = net(Duration::from_millis(1), 0.0, 1);
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    while net.hosts[1].stack.poll_event().is_none() {
        net.flush();
        net.step(net.now + Duration::from_millis(1));
    }
    let server = net.hosts[1].stack.connections().next().unwrap().label;
    let chunk = [1; 65_536];
    net.log = Some(Vec::new());
    let mut read = 0;
    // First the window fills, then the application reads 500 bytes every millisecond for ten seconds.
    for round in 0..11_000 {
        net.hosts[0].stack.write(net.now, label, &chunk);
        if round > 1_000 {
            read += net.hosts[1].stack.read_with(net.now, server, 500, |slice| slice.len());
        }
        let until = net.now + Duration::from_millis(1);
        loop {
            net.flush();
            if !net.step(until) {
                break;
            }
        }
    }
    let log = net.log.take().unwrap();
    let lens: Vec<usize> =
        log.iter().filter(|(_, from, _, len)| *from == 0 && *len > 0).map(|p| p.3).collect();
    let small = lens.iter().filter(|&&len| len < 1448).count();
    assert_eq!(read, 9_999 * 500);
    // The last segment of a write may be small, because Nagle's algorithm is off; the window must not cause
    // small segments.
    assert!(small * 100 < lens.len(), "{small} of {} segments are small", lens.len());
    let updates = log.iter().filter(|(_, from, ..)| *from == 1).count();
    assert!(
        updates < lens.len(),
        "{updates} window updates and acknowledgements for {} segments",
        lens.len()
    );
}

#[test]
fn a_loss_near_the_end_of_a_flight_is_found_by_time() {
    let mut net = net(Duration::from_millis(20), 0.0, 1);
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    net.flush();
    while net.hosts[1].stack.poll_event().is_none() {
        net.step(net.now + Duration::from_millis(1));
        net.flush();
    }
    let server = net.hosts[1].stack.connections().next().unwrap().label;
    // Three segments are sent; the second is lost, and one SACKed segment after it is too few for fast
    // retransmission.
    for loss in [0.0, 1.0, 0.0] {
        net.faults[0].loss = loss;
        assert_eq!(net.hosts[0].stack.write(net.now, label, &[1; 1448]), 1448);
        net.flush();
    }
    let sent = net.now;
    while net.hosts[1].stack.readable(server) < 3 * 1448 {
        net.step(net.now + Duration::from_millis(100));
        net.flush();
    }
    // One round trip until the SACK, a quarter of one as reordering window, and half of one for the
    // retransmission.
    let took = net.now - sent;
    assert!(took >= Duration::from_millis(35) && took < Duration::from_millis(38), "{took:?}");
}
