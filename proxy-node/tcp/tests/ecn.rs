//! Explicit congestion notification (RFC 3168): negotiation, marking, and the response to marks.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{LinkFaults, Net, client_tuple, small_config};
use csp_tcp::{EcnMode, StackConfig};
use csp_types::FlowLabel;
use csp_wire::tcp::Flags;

const MILLISECOND: Duration = Duration::from_millis(1);

fn net(client: EcnMode, server: EcnMode) -> Net {
    let config = |seed, ecn| StackConfig { ecn, ..small_config(seed) };
    Net::new(1, config(1, client), config(2, server)).with_rtt(Duration::from_millis(20))
}

/// Runs the network; the server's application reads everything, the client's writes as much as is accepted.
fn run(net: &mut Net, client: FlowLabel, time: Duration, writes: bool) -> u64 {
    static CHUNK: [u8; 65_536] = [7; 65_536];
    let end = net.now + time;
    let mut read = 0;
    while net.now < end {
        while writes && net.hosts[0].stack.write(net.now, client, &CHUNK) == CHUNK.len() {}
        net.hosts.iter_mut().for_each(|host| while host.stack.poll_event().is_some() {});
        let server = net.hosts[1].stack.connections().next().map(|c| c.label);
        if let Some(server) = server {
            read += net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len()) as u64;
        }
        net.flush();
        net.step((net.now + MILLISECOND).min(end));
    }
    read
}

fn connect(net: &mut Net) -> FlowLabel {
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    run(net, label, Duration::from_secs(3), false);
    label
}

/// Whether both ends use ECN; checks that they agree.
fn agreed(net: &Net) -> bool {
    let ecn = [0, 1].map(|host: usize| net.hosts[host].stack.connections().next().unwrap().ecn);
    assert_eq!(ecn[0], ecn[1]);
    ecn[0]
}

#[test]
fn ecn_is_used_where_the_opener_proposes_it_and_the_listener_allows_it() {
    use EcnMode::{Active, Off, Passive};
    for client in [Off, Passive, Active] {
        for server in [Off, Passive, Active] {
            let mut net = net(client, server);
            connect(&mut net);
            assert_eq!(agreed(&net), client == Active && server != Off, "{client:?} {server:?}");
        }
    }
}

#[test]
fn a_proposal_that_goes_unanswered_is_not_repeated() {
    let mut net = net(EcnMode::Active, EcnMode::Passive);
    net.faults[0].ecn_syns_lost = true;
    let label = connect(&mut net);
    assert!(!agreed(&net));
    assert!(run(&mut net, label, Duration::from_secs(1), true) > 1 << 20);
    assert_eq!(net.hosts[0].stack.counters().syn_retransmitted, 1);
}

#[test]
fn a_proposal_whose_answer_is_lost_is_given_up_by_both() {
    let mut net = net(EcnMode::Active, EcnMode::Passive);
    net.faults[1].ecn_syns_lost = true; // loses the SYN/ACK; the SYN is repeated without ECN
    connect(&mut net);
    assert!(!agreed(&net));
}

#[test]
fn only_new_data_is_sent_as_ecn_capable() {
    let mut net = net(EcnMode::Active, EcnMode::Passive);
    net.log = Some(Vec::new());
    let label = connect(&mut net);
    net.faults[0].loss = 0.02;
    run(&mut net, label, Duration::from_secs(2), true);
    let log = net.log.take().unwrap();
    let mut next = log[0].2.seq.wrapping_add(1);
    let mut again = 0;
    for ((_, from, header, len), ecn) in log.iter().zip(&net.ecn_log) {
        let end = header.seq.wrapping_add(*len as u32);
        let new = *from == 0 && *len > 0 && (end.wrapping_sub(next) as i32) > 0;
        assert_eq!(*ecn, if new { 2 } else { 0 }, "{from} {header:?} {len}");
        again += usize::from(*from == 0 && *len > 0 && !new);
        next = if new { end } else { next };
    }
    assert!(again > 5, "{again} retransmissions");
}

#[test]
fn marks_hold_the_window_down_without_loss() {
    // 40 Mbit/s, 20 ms; packets are marked when the queue is a third full.
    let mut net = net(EcnMode::Active, EcnMode::Passive);
    net.faults[0] = LinkFaults { bandwidth: 5_000_000, queue: 300_000, mark_above: 50_000, ..net.faults[0] };
    let label = connect(&mut net);
    net.log = Some(Vec::new());
    let time = Duration::from_secs(20);
    let read = run(&mut net, label, time, true);
    let (sender, receiver) = (*net.hosts[0].stack.counters(), *net.hosts[1].stack.counters());
    println!("{read} bytes, {} reductions, {} lost", sender.ecn_reductions, net.overflows[0]);
    assert_eq!((net.overflows[0], sender.segments_retransmitted), (0, 0));
    assert!(sender.ecn_reductions >= 3 && receiver.ecn_marks_received >= sender.ecn_reductions);
    assert!(read as f64 > 0.85 * 5_000_000.0 * time.as_secs_f64(), "{read}");
    // RFC 3168 §6.1.2, §6.1.3: each reduction is announced once by CWR, which ends the echo.
    let log = net.log.take().unwrap();
    let announced =
        log.iter().filter(|(_, from, h, _)| *from == 0 && h.flags.contains(Flags::CWR)).count() as u64;
    assert!(announced == sender.ecn_reductions || announced + 1 == sender.ecn_reductions, "{announced}");
    let mut echoing = log.iter().filter(|(_, from, ..)| *from == 1).map(|p| p.2.flags.contains(Flags::ECE));
    assert!(echoing.any(|echo| echo) && echoing.any(|echo| !echo), "echoes begin and end");
}

#[test]
fn the_window_is_reduced_once_a_round_trip_however_many_marks_there_are() {
    let mut net = net(EcnMode::Active, EcnMode::Passive);
    // Everything is marked.
    net.faults[0] = LinkFaults { bandwidth: 125_000_000, queue: 1 << 30, mark_above: 1, ..net.faults[0] };
    let label = connect(&mut net);
    run(&mut net, label, Duration::from_secs(1), true);
    let sender = net.hosts[0].stack.counters();
    // A second has fifty round trips, and the window is soon two segments.
    assert!((10..=51).contains(&sender.ecn_reductions), "{}", sender.ecn_reductions);
    assert_eq!(sender.segments_retransmitted, 0);
    assert!(net.hosts[0].stack.info(label).unwrap().cwnd >= 2 * 1448);
}

#[test]
fn without_an_agreement_marks_mean_nothing() {
    let mut net = net(EcnMode::Passive, EcnMode::Passive);
    let label = connect(&mut net);
    net.log = Some(Vec::new());
    run(&mut net, label, Duration::from_secs(1), true);
    assert!(net.ecn_log.iter().all(|&ecn| ecn == 0));
    assert!(net.log.unwrap().iter().all(|p| !p.2.flags.intersects(Flags::ECE | Flags::CWR)));
    assert_eq!(net.hosts[0].stack.counters().ecn_reductions, 0);
}
