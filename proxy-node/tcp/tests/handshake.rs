//! The handshake of a client, segment by segment: several segments of the peer arrive before the client
//! sends.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::{Net, Packet, client_tuple, small_config};
use csp_tcp::State;
use csp_types::FlowLabel;
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Options, Repr, Timestamps};

const PEER_ISS: u32 = 5_000;

/// A client that has sent its SYN, and the SYN.
fn connecting() -> (Net, FlowLabel, Repr) {
    let mut net = Net::new(1, small_config(1), small_config(2));
    net.drop = Some(|_, _, _| true); // the test is the peer
    net.log = Some(Vec::new());
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    let syn = sent(&mut net).remove(0);
    (net, label, syn)
}

/// Everything that the client sends now.
fn sent(net: &mut Net) -> Vec<Repr> {
    net.flush();
    net.log.replace(Vec::new()).unwrap().into_iter().map(|(_, _, header, _)| header).collect()
}

/// Delivers a segment of the peer with TSval `value`, in reply to `syn`.
fn deliver(net: &mut Net, syn: &Repr, flags: Flags, value: u32) {
    let echo = syn.options.timestamps.unwrap().value;
    let timestamps = Some(Timestamps { value, echo: if flags.ack() { echo } else { 0 } });
    let options = match flags.syn() {
        true => Options { mss: Some(1_460), timestamps, ..Options::default() },
        false => Options { timestamps, ..Options::default() },
    };
    let tuple = client_tuple(1000);
    let header = Repr {
        source_port: tuple.remote.port(),
        destination_port: tuple.local.port(),
        seq: if flags.syn() { PEER_ISS } else { PEER_ISS + 1 },
        ack: if flags.ack() { syn.seq.wrapping_add(1) } else { 0 },
        flags,
        window: 60_000,
        options,
    };
    let mut bytes = vec![0; HEADER_LEN_MAX];
    let len = header.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    net.deliver(0, &Packet { tuple: tuple_of_peer(), bytes, ecn: 0 });
}

fn tuple_of_peer() -> csp_types::FourTuple {
    let tuple = client_tuple(1000);
    csp_types::FourTuple { local: tuple.remote, remote: tuple.local }
}

/// Delivers the peer's segments, each with its TSval; the client is then established, and sends one
/// acknowledgement that echoes `echoed`.
fn check(segments: &[(Flags, u32)], echoed: u32) {
    let (mut net, label, syn) = connecting();
    for (flags, value) in segments {
        deliver(&mut net, &syn, *flags, *value);
    }
    assert_eq!(net.hosts[0].stack.info(label).unwrap().state, State::Established);
    let sent = sent(&mut net);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].flags, sent[0].ack), (Flags::ACK, PEER_ISS + 1));
    assert_eq!(sent[0].options.timestamps.unwrap().echo, echoed);
}

// RFC 7323 §4.3: the echo belongs to the earliest segment that was not acknowledged before.
#[test]
fn the_acknowledgement_of_a_syn_ack_echoes_it_and_not_a_later_segment() {
    check(&[(Flags::SYN | Flags::ACK, 1_000)], 1_000);
    check(&[(Flags::SYN | Flags::ACK, 1_000), (Flags::ACK, 1_001)], 1_000);
}

// RFC 9293 §3.5, figure 7: the SYN/ACK of the client would have acknowledged the peer's SYN.
#[test]
fn a_syn_whose_syn_ack_follows_before_the_answer_is_acknowledged_at_once() {
    check(&[(Flags::SYN, 1_000), (Flags::SYN | Flags::ACK, 1_001)], 1_001);
    check(&[(Flags::SYN, 1_000), (Flags::ACK, 1_001)], 1_000);
}
