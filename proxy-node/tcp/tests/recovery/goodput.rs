//! Goodput of transfers over imperfect links, compared with a perfect link or with theory.

use std::time::Duration;

use crate::common::transfer::transfer;
use crate::common::{LinkFaults, Net, small_config};
use csp_tcp::StackConfig;

const MIB: u64 = 1 << 20;

/// A link of 100 Mbit/s with a queue of one round trip, at least 5 ms.
fn net(rtt: Duration, seed: u64) -> Net {
    let config = |seed| StackConfig {
        blocks: 4_096,
        receive_window_max: 4 << 20,
        send_buffer_max: 4 << 20,
        ..small_config(seed)
    };
    let mut net = Net::new(seed, config(1), config(2));
    let bandwidth = 12_500_000;
    let queue = rtt.max(Duration::from_millis(5)).as_micros() as u64 * bandwidth / 1_000_000;
    net.faults = [LinkFaults { delay: rtt / 2, bandwidth, queue, ..LinkFaults::default() }; 2];
    net
}

/// Results of several runs.
struct Measured {
    /// Goodput in bytes per second.
    rate: f64,
    /// Bytes retransmitted, and lost (or dropped by a receiver without room for more holes), per byte of the
    /// stream.
    again: f64,
    lost: f64,
}

fn measure(bytes: u64, seeds: u64, make: impl Fn(u64) -> Net) -> Measured {
    let (mut seconds, mut again, mut lost) = (0.0, 0, 0);
    for seed in 0..seeds {
        let outcome = transfer(make(seed), bytes);
        seconds += outcome.time.as_secs_f64();
        let c = &outcome.sender;
        again += c.bytes_retransmitted;
        lost += outcome.lost + outcome.receiver.out_of_order_bytes_dropped;
        println!(
            "  seed {seed}: {:.0} kB/s, timeouts {}, recoveries {} ({} taken back), probes {}, again {} kB ({} times), \
             lost {} kB, given up by the receiver {} kB, refused as old {} times, again lost {} times",
            bytes as f64 / outcome.time.as_secs_f64() / 1e3,
            c.retransmission_timeouts,
            c.fast_recoveries,
            c.spurious_recoveries,
            c.tail_loss_probes,
            c.bytes_retransmitted / 1000,
            c.segments_retransmitted,
            outcome.lost / 1000,
            outcome.receiver.out_of_order_bytes_dropped / 1000,
            outcome.receiver.dropped_paws,
            c.retransmissions_lost
        );
    }
    let sent = (bytes * seeds) as f64;
    Measured { rate: sent / seconds, again: again as f64 / sent, lost: lost as f64 / sent }
}

/// Reordering must cost little: once it is observed, the reordering window (RFC 8985 §6.2), or undoing the
/// response (RFC 3522, RFC 3708), preserves the congestion window.
fn check_reordering(timestamps: bool, rtt_ms: u64, held_back_ms: u64, least: f64) {
    let rtt = Duration::from_millis(rtt_ms);
    let bytes = 8 * MIB;
    let net = |seed| {
        let mut net = net(rtt, seed);
        net.strip.1 = !timestamps;
        net
    };
    let plain = measure(bytes, 1, net);
    let reordered = measure(bytes, 3, |seed| {
        let mut net = net(seed);
        net.faults[0].reordering = 0.05;
        net.faults[0].held_back = Duration::from_millis(held_back_ms);
        net
    });
    let share = reordered.rate / plain.rate;
    println!("rtt {rtt_ms} ms: {share:.3} of {:.0} kB/s", plain.rate / 1e3);
    assert!(share >= least, "{share:.3} of what it is without reordering");
}

#[test]
fn reordering_by_3_ms_at_20_ms() {
    // Slow start overflows the queue. Retransmissions may then arrive before delayed segments, whose
    // timestamps are older; if RCV.NXT has advanced, these are refused (RFC 7323 §5.3 R1), and each is a loss
    // of its own.
    check_reordering(true, 20, 3, 0.75);
}

#[test]
fn reordering_by_3_ms_at_20_ms_without_timestamps() {
    check_reordering(false, 20, 3, 0.95);
}

#[test]
fn reordering_by_3_ms_at_100_ms() {
    check_reordering(true, 100, 3, 0.95);
}

#[test]
fn reordering_by_3_ms_at_1_ms() {
    check_reordering(true, 1, 3, 0.95);
}

#[test]
fn reordering_by_half_a_millisecond_at_1_ms() {
    check_reordering(true, 1, 0, 0.95);
}

/// The mean window of CUBIC in segments under random loss (RFC 9438 §5.2, equation 6, and the Reno-friendly
/// region, §5.1), as goodput in bytes per second, at most the link's capacity.
fn cubic(rtt: Duration, loss: f64) -> f64 {
    let rtt = rtt.as_secs_f64();
    let cubic = 1.054 * rtt.powf(0.75) / loss.powf(0.75);
    let friendly = (1.5 / loss).sqrt();
    (cubic.max(friendly) * 1448.0 / rtt).min(12_500_000.0 * 0.95) * (1.0 - loss)
}

fn check_loss(rtt_ms: u64, loss: f64, bytes: u64, least: f64) {
    let rtt = Duration::from_millis(rtt_ms);
    let Measured { rate, again, lost } = measure(bytes, 2, |seed| {
        let mut net = net(rtt, seed);
        net.faults[0].loss = loss;
        net
    });
    let share = rate / cubic(rtt, loss);
    println!(
        "rtt {rtt_ms} ms loss {loss}: {:.0} kB/s, {share:.2} of the formula; {:.2} % lost, {:.2} % sent again",
        rate / 1e3,
        100.0 * lost,
        100.0 * again
    );
    assert!(share >= least, "{share:.2} of the formula's value");
    assert!(again < 1.1 * lost + 0.005, "{:.2} % retransmitted, {:.2} % lost", 100.0 * again, 100.0 * lost);
}

#[test]
fn loss_of_one_percent_at_20_ms() {
    check_loss(20, 0.01, 4 * MIB, 0.8);
}

#[test]
fn loss_of_one_per_mille_at_20_ms() {
    check_loss(20, 0.001, 8 * MIB, 0.8);
}

#[test]
fn loss_of_one_per_mille_at_100_ms() {
    check_loss(100, 0.001, 8 * MIB, 0.8);
}

#[test]
fn loss_of_one_percent_at_100_ms() {
    check_loss(100, 0.01, 2 * MIB, 0.8);
}

#[test]
fn loss_of_five_percent_at_20_ms() {
    // The formula does not model timeouts, which are unavoidable with small windows and much loss.
    check_loss(20, 0.05, MIB, 0.5);
}

#[test]
fn loss_of_five_percent_at_100_ms() {
    check_loss(100, 0.05, MIB / 2, 0.5);
}

#[test]
fn loss_of_one_percent_at_1_ms() {
    check_loss(1, 0.01, 4 * MIB, 0.6);
}

#[test]
fn loss_of_five_percent_at_1_ms() {
    check_loss(1, 0.05, 4 * MIB, 0.4);
}

#[test]
fn loss_and_reordering_together() {
    let reached = measure(2 * MIB, 3, |seed| {
        let mut net = net(Duration::from_millis(20), seed);
        net.faults[0].loss = 0.01;
        net.faults[0].reordering = 0.05;
        net
    });
    let share = reached.rate / cubic(Duration::from_millis(20), 0.01);
    println!("{share:.2} of the formula");
    assert!(share >= 0.7, "{share:.2}");
}

#[test]
fn acknowledgements_may_be_lost() {
    let rtt = Duration::from_millis(20);
    let plain = measure(4 * MIB, 1, |seed| net(rtt, seed));
    let reached = measure(4 * MIB, 1, |seed| {
        let mut net = net(rtt, seed);
        net.faults[1].loss = 0.3;
        net
    });
    assert!(reached.rate > 0.8 * plain.rate, "{:.2}", reached.rate / plain.rate);
}

/// Reordered acknowledgements have old timestamps (RFC 7323 §5.3); they must not cause further
/// acknowledgements.
#[test]
fn acknowledgements_may_be_late() {
    let mut net = net(Duration::from_millis(20), 1);
    net.faults[1].reordering = 0.1;
    net.faults[1].held_back = Duration::from_millis(5);
    let outcome = transfer(net, 4 * MIB);
    let sender = &outcome.sender;
    assert!(sender.dropped_paws > 10, "this test would test nothing: {sender:?}");
    let challenges = sender.challenge_acks_sent + sender.challenge_acks_suppressed;
    assert_eq!(challenges, 0, "{sender:?}");
}

#[test]
fn few_records_cost_speed_only() {
    let reached = measure(MIB, 2, |seed| {
        let mut net = net(Duration::from_millis(20), seed);
        let few = StackConfig { records: 8, records_per_connection: 8, ..small_config(seed) };
        net.hosts[0].stack = csp_tcp::Stack::new(few);
        net.faults[0].loss = 0.01;
        net.faults[0].reordering = 0.05;
        net
    });
    assert!(reached.rate > 50_000.0, "{:.0} bytes per second", reached.rate);
}
