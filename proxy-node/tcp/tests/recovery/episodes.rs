//! Single losses and delays, and the time that each may cost.

use std::time::Duration;

use crate::common::transfer::transfer;
use crate::common::{Net, Packet, client_tuple, small_config};
use csp_tcp::StackConfig;
use csp_types::FlowLabel;
use csp_wire::tcp::Segment;

const RTT: Duration = Duration::from_millis(20);

/// An established connection; the server's label, and the net.
fn establish(seed: u64) -> (Net, FlowLabel, FlowLabel) {
    let client = StackConfig { send_buffer_min: 1 << 20, ..small_config(1) };
    let mut net = Net::new(seed, client, small_config(2)).with_rtt(RTT);
    let client = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    net.flush();
    while net.hosts[1].stack.poll_event().is_none() {
        net.step(net.now + Duration::from_millis(1));
        net.flush();
    }
    let server = net.hosts[1].stack.connections().next().unwrap().label;
    (net, client, server)
}

fn payload_len(packet: &Packet) -> usize {
    Segment::parse(&packet.bytes).unwrap().payload().len()
}

/// Writes `len` bytes and returns how long it takes until the server has all of them.
fn deliver(net: &mut Net, client: FlowLabel, server: FlowLabel, len: usize) -> Duration {
    let start = net.now;
    assert_eq!(net.hosts[0].stack.write(net.now, client, &vec![1; len]), len);
    net.flush();
    while net.hosts[1].stack.readable(server) < len {
        net.step(net.now + Duration::from_secs(10));
        net.flush();
        assert!(net.now - start < Duration::from_secs(60), "the transfer does not end");
    }
    net.now - start
}

fn check_tail(drop: fn(usize, u64, &Packet) -> bool, most: Duration) {
    let (mut net, client, server) = establish(1);
    net.drop = Some(drop);
    let took = deliver(&mut net, client, server, 10 * 1448);
    let counters = net.hosts[0].stack.counters();
    assert_eq!((counters.tail_loss_probes, counters.retransmission_timeouts), (1, 0), "{took:?}");
    assert!(took > 2 * RTT && took < most, "{took:?}");
}

#[test]
fn a_lost_tail_costs_two_round_trips() {
    // One round trip for the data that arrived, two until the probe (plus a timer tick), the probe and its
    // acknowledgement, and the retransmission of what that shows to be lost.
    check_tail(|from, count, p| from == 0 && (10..12).contains(&count) && payload_len(p) > 0, 5 * RTT);
    // The acknowledgement of a single segment may be delayed; the probe allows for that.
    check_tail(|from, count, p| from == 0 && count == 11 && payload_len(p) > 0, 7 * RTT);
}

#[test]
fn a_lost_retransmission_is_found_without_a_timeout() {
    let (mut net, client, server) = establish(1);
    // Loses the third segment and its first retransmission, the only packets of this kind at this time.
    net.drop = Some(|from, count, _| from == 0 && (count == 4 || count == 12));
    let took = deliver(&mut net, client, server, 40 * 1448);
    let counters = net.hosts[0].stack.counters();
    println!("{took:?} {counters:?}");
    assert_eq!(counters.retransmission_timeouts, 0);
    assert!(counters.retransmissions_lost >= 1, "this test would test nothing");
    assert!(took < 6 * RTT, "{took:?}");
}

#[test]
fn a_burst_of_losses_costs_round_trips_and_no_timeout() {
    let mut net = Net::new(1, small_config(1), small_config(2)).with_rtt(RTT);
    net.drop = Some(|from, count, _| from == 0 && (1000..1050).contains(&count));
    let outcome = transfer(net, 4 << 20);
    assert_eq!(outcome.sender.retransmission_timeouts, 0, "{:?}", outcome.sender);
    assert_eq!(outcome.sender.segments_retransmitted, outcome.sender.segments_retransmitted.min(60));
}

/// All packets are delayed for a while, then delivered: what the timeout marked as lost was not (RFC 5682).
fn check_delay_spike(timestamps: bool, sack: bool) {
    let (mut net, client, server) = {
        let client = StackConfig { send_buffer_min: 1 << 20, ..small_config(1) };
        let mut net = Net::new(1, client, small_config(2)).with_rtt(RTT);
        net.strip = (!sack, !timestamps, false);
        let client = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
        net.flush();
        while net.hosts[1].stack.poll_event().is_none() {
            net.step(net.now + Duration::from_millis(1));
            net.flush();
        }
        let server = net.hosts[1].stack.connections().next().unwrap().label;
        (net, client, server)
    };
    net.faults[0].bandwidth = 12_500_000;
    net.faults[0].queue = 12_500_000;
    // First the window grows.
    deliver(&mut net, client, server, 200_000);
    let mut received = 200_000;
    net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len());
    net.faults[0].delay = Duration::from_millis(700);
    let before = *net.hosts[0].stack.counters();
    net.hosts[0].stack.write(net.now, client, &vec![1; 900_000]);
    net.flush();
    net.faults[0].delay = RTT / 2;
    net.hold_order = true;
    received += 900_000;
    let start = net.now;
    let mut read = 200_000;
    while read < received {
        net.step(net.now + Duration::from_secs(1));
        read += net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len());
        net.flush();
        assert!(net.now - start < Duration::from_secs(30), "{read} bytes");
    }
    let limit = net.now + 4 * RTT;
    while net.step(limit) {
        net.flush();
    }
    let after = *net.hosts[0].stack.counters();
    assert!(after.retransmission_timeouts > before.retransmission_timeouts, "this test would test nothing");
    let again = after.bytes_retransmitted - before.bytes_retransmitted;
    println!("timestamps {timestamps} sack {sack}: {again} bytes sent again");
    assert!(after.spurious_recoveries > before.spurious_recoveries, "timestamps {timestamps}, SACK {sack}");
    assert!(again < 20_000, "{again} bytes were retransmitted");
}

#[test]
fn a_delay_spike_is_found_out() {
    check_delay_spike(true, true);
}

#[test]
fn a_delay_spike_is_found_out_without_timestamps() {
    check_delay_spike(false, true);
}

#[test]
fn a_delay_spike_is_found_out_without_timestamps_and_sack() {
    check_delay_spike(false, false);
}
