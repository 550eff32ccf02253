//! Addresses that cannot be an end of a connection (RFC 9293 §3.9.2.3, MUST-46, MUST-63).

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use csp_tcp::{Arrival, ConnectError, DropReason, Stack, StackConfig};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MIN, Repr, Segment};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Returns a listening stack, and address pairs whose remote end is not valid.
fn set_up() -> (Stack, Vec<FourTuple>) {
    let config = StackConfig { connections: 4, half_open: 4, time_wait_entries: 4, ..StackConfig::default() };
    let mut stack = Stack::new(config);
    stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
    stack.listen("[::]:80".parse().unwrap(), 1).unwrap();
    let v4 = ["224.0.0.1:5000", "239.1.2.3:5000", "0.0.0.0:5000", "192.0.2.9:0"];
    let v6 = ["[ff02::1]:5000", "[::]:5000", "[2001:db8::9]:0"];
    let tuple = |local: &str, remote: &str| FourTuple {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    };
    let tuples = v4.map(|remote| tuple("192.0.2.1:80", remote)).into_iter();
    (stack, tuples.chain(v6.map(|remote| tuple("[2001:db8::1]:80", remote))).collect())
}

#[test]
fn no_connection_is_opened_to_a_multicast_or_unspecified_address() {
    let (mut stack, tuples) = set_up();
    for tuple in tuples {
        assert_eq!(stack.connect(NOW, tuple, 1, 1), Err(ConnectError::BadAddress), "{tuple}");
    }
    assert!(stack.poll_transmit(NOW).is_none());
}

#[test]
fn a_syn_from_a_multicast_or_unspecified_address_is_dropped() {
    let (mut stack, tuples) = set_up();
    for tuple in tuples {
        let (source_port, destination_port) = (tuple.remote.port(), tuple.local.port());
        let syn = Repr { source_port, destination_port, flags: Flags::SYN, ..Repr::default() };
        let mut bytes = [0; HEADER_LEN_MIN];
        syn.emit(&mut bytes).unwrap();
        let segment = Segment::parse(&bytes).unwrap();
        let arrival = Arrival {
            label: FlowLabel::NONE,
            tuple: Some(tuple),
            ingress: NOW,
            via: 1,
            ecn: 0,
            segment_size: 0,
        };
        let result = stack.on_segment(NOW, arrival, &segment, &[]);
        assert_eq!(result, Err(DropReason::NoAddresses), "{tuple}");
    }
    assert!(stack.poll_transmit(NOW).is_none(), "in silence");
}
