//! Segments of a network node that looks for the proxy of their connection.

use csp_wire::tcp::{Flags as TcpFlags, Segment};
use csp_wire::tunnel::{Flags, RecordKind};

use crate::world::{World, web};

/// Delivers a segment that is to be given back if its connection is not here; returns whether it was.
fn is_given_back(w: &mut World, port: u16, (seq, ack): (u32, u32), flags: TcpFlags) -> bool {
    w.record_flags = Flags::RETURN_UNKNOWN;
    w.out.last = None;
    w.client(1, port, seq, ack, flags, b"data");
    w.record_flags = Flags::NONE;
    let Some((RecordKind::Unknown, packet)) = &w.out.last else { return false };
    let segment = Segment::parse(&packet[20..]).unwrap();
    assert_eq!((segment.source_port(), segment.seq(), segment.payload()), (port, seq, &b"data"[..]));
    true
}

#[test]
fn a_segment_of_an_unknown_connection_is_given_back_if_the_network_node_asks() {
    let mut w = World::new(&[8001]);
    for flags in [TcpFlags::ACK, TcpFlags::ACK | TcpFlags::FIN, TcpFlags::RST] {
        assert!(is_given_back(&mut w, 1000, (7, 9), flags), "{flags:?}");
    }
    assert_eq!(w.core.counters().unknown_returned, 3);
    w.client(1, 1000, 7, 9, TcpFlags::ACK, b"data");
    assert!(w.out.flags.rst(), "the network node has asked all");
}

#[test]
fn a_segment_of_a_connection_is_taken_and_answered_with_its_label() {
    let mut w = World::new(&[8001]);
    let ack = w.connect(1, 1000);
    assert!(!is_given_back(&mut w, 1000, (101, ack), TcpFlags::ACK));
    // Another client's, whose SYN went to the same network node.
    assert!(is_given_back(&mut w, 1001, (101, ack), TcpFlags::ACK));
}

/// A proxy that joins has a tunnel before its worker has the policy: it must not refuse clients of the
/// services that it is about to serve.
#[test]
fn before_the_first_policy_a_new_connection_is_left_unanswered() {
    let mut w = World::without_policy(&[8001]);
    w.client(1, 1000, 100, 0, TcpFlags::SYN, &[]);
    assert_eq!((w.out.records.len(), w.core.counters().drop_no_policy), (0, 1));
    assert!(is_given_back(&mut w, 1000, (7, 9), TcpFlags::ACK), "a network node that searches is answered");
    w.policy(vec![web(&[8001])]);
    w.connect(1, 1000);
}
