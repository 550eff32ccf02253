//! A blind attacker knows the addresses, but not the sequence numbers (RFC 5961).

use std::time::Duration;

use csp_tcp::{Event, State};
use csp_types::{FlowLabel, FourTuple};
use csp_wire::tcp::{Flags, Options, Repr};

use crate::common::{Net, Packet, client_tuple, small_config};

/// An established connection, and segments that a blind attacker may send to it.
fn established() -> (Net, FlowLabel, FourTuple) {
    let mut net = Net::new(1, small_config(1), small_config(2));
    let tuple = client_tuple(1000);
    let label = net.hosts[0].stack.connect(net.now, tuple, 7, 1).unwrap();
    for _ in 0..20 {
        net.flush();
        net.step(net.now + Duration::from_millis(10));
    }
    assert_eq!(net.hosts[0].stack.info(label).unwrap().state, State::Established);
    (net, label, tuple)
}

fn inject(net: &mut Net, tuple: FourTuple, flags: Flags, seq: u32, ack: u32) {
    let (source_port, destination_port) = (tuple.remote.port(), tuple.local.port());
    let repr =
        Repr { source_port, destination_port, seq, ack, flags, window: 1000, options: Options::default() };
    let mut bytes = vec![0; 20];
    repr.emit(&mut bytes).unwrap();
    net.deliver(0, &Packet { tuple: FourTuple { local: tuple.remote, remote: tuple.local }, bytes, ecn: 0 });
}

#[test]
fn a_blind_reset_or_syn_only_provokes_few_challenges() {
    let (mut net, label, tuple) = established();
    net.log = Some(Vec::new());
    // The position of the window is taken from the client's own segments.
    net.hosts[0].stack.write(net.now, label, b"x");
    net.flush();
    let header = net.log.take().unwrap()[0].2;
    let before = *net.hosts[0].stack.counters();
    for n in 1..1_000u32 {
        inject(&mut net, tuple, Flags::RST, header.ack.wrapping_add(n * 7), 0);
        inject(&mut net, tuple, Flags::SYN, header.ack.wrapping_add(n * 1_000_003), 0);
        inject(&mut net, tuple, Flags::ACK, header.ack, header.seq.wrapping_add(1_000 + n));
    }
    let after = net.hosts[0].stack.counters();
    assert_eq!(net.hosts[0].stack.info(label).unwrap().state, State::Established);
    assert_eq!(after.challenge_acks_sent - before.challenge_acks_sent, 1, "one per interval");
    assert!(after.dropped_bad_reset >= 900 && after.dropped_bad_ack >= 900);
    inject(&mut net, tuple, Flags::RST, header.ack, 0);
    assert!(matches!(net.hosts[0].stack.poll_event(), Some((_, Event::Established { .. }))));
    assert!(
        matches!(net.hosts[0].stack.poll_event(), Some((_, Event::Failed(_)))),
        "the exact number counts"
    );
}

#[test]
fn answers_to_strays_are_limited_in_number_and_rate() {
    let (mut net, _, _) = established();
    let tuple = client_tuple(4242);
    for n in 0..10_000u32 {
        inject(&mut net, tuple, Flags::ACK, n, n);
    }
    let stack = &mut net.hosts[0].stack;
    assert_eq!(stack.occupancy().replies.0, stack.config().replies);
    let mut sent = 0;
    while stack.poll_transmit(net.now).is_some_and(|transmit| transmit.header.is_some()) {
        sent += 1;
    }
    assert_eq!(sent, stack.config().replies);
    assert_eq!(stack.counters().replies_suppressed, 10_000 - sent as u64);
}
