//! Peers that occupy memory or table entries as long as they can.

use std::time::Duration;

use csp_tcp::{StackConfig, State};
use csp_wire::tcp::{Flags, Options, Repr};

use crate::peer::{Peer, config};

/// Forty peers leave five hundred holes each; every byte but one is missing.
fn perforate() -> Peer {
    let small = StackConfig { connections: 64, half_open: 64, range_sets: 8, ..config() };
    let mut peer = Peer::established(small, Options { sack_permitted: true, ..Options::default() });
    for port in 2_000..2_040u16 {
        peer.remote.set_port(port);
        peer.open(Options { sack_permitted: true, ..Options::default() });
        let repr = peer.repr(Flags::ACK, Options::default());
        for n in 0..500u32 {
            peer.arrive(Repr { seq: repr.seq.wrapping_add(2 * n + 1), ..repr }, &[1]);
        }
        peer.receive_all();
    }
    peer
}

#[test]
fn one_byte_holes_take_bounded_memory() {
    let o = perforate().stack.occupancy();
    assert!(o.blocks.0 <= o.blocks.1 / 2 && o.range_sets.0 <= 8, "{o:?}");
}

#[test]
fn others_are_served_beside_one_byte_holes() {
    let mut peer = perforate();
    peer.remote.set_port(3_000);
    peer.open(Options::default());
    peer.send(Flags::ACK, b"GET");
    assert_eq!(peer.stack.readable(peer.label), 3);
}

#[test]
fn a_slow_reader_holds_no_more_than_its_share() {
    let mut peer = Peer::established(config(), Options { mss: Some(1_000), ..Options::default() });
    peer.window = 1_000;
    peer.send(Flags::ACK, &[]);
    for _ in 0..500 {
        peer.write(1 << 20);
        let info = peer.info();
        assert!(info.send_queue <= peer.stack.config().send_buffer_max as usize && info.in_flight <= 1_000);
        peer.wait(Duration::from_secs(1));
        // One byte per second.
        peer.ack = peer.ack.wrapping_add(1);
        peer.send(Flags::ACK, &[]);
    }
}

#[test]
fn time_wait_is_bounded_and_keeps_the_newest() {
    let small = StackConfig { time_wait_entries: 8, ..config() };
    let mut peer = Peer::new(small);
    for port in 1_000..1_100u16 {
        peer.remote.set_port(port);
        peer.open(Options::default());
        peer.stack.shutdown(peer.now, peer.label);
        let (fin, _) = peer.receive().unwrap();
        assert!(fin.flags.fin());
        peer.ack = fin.seq.wrapping_add(1);
        peer.send(Flags::ACK | Flags::FIN, &[]);
        peer.receive_all();
        while peer.stack.poll_event().is_some() {}
    }
    let o = peer.stack.occupancy();
    assert_eq!((o.time_wait, o.connections.0), ((8, 8), 0));
    assert_eq!(peer.stack.counters().time_wait_evicted, 92);
    // A RST does not end TIME-WAIT (RFC 1337), and data does not revive the connection.
    peer.seq = peer.seq.wrapping_add(1);
    peer.send(Flags::RST, &[]);
    peer.send(Flags::ACK, b"late");
    assert_eq!((peer.stack.occupancy().time_wait.0, peer.state()), (8, None));
    assert_eq!(peer.stack.poll_event(), None);
    peer.wait(Duration::from_secs(61));
    assert_eq!(peer.stack.occupancy().time_wait.0, 0);
}

#[test]
fn a_fin_outside_the_sequence_does_not_prolong_time_wait() {
    let mut peer = Peer::established(config(), Options::default());
    peer.stack.shutdown(peer.now, peer.label);
    let (fin, _) = peer.receive().unwrap();
    peer.ack = fin.seq.wrapping_add(1);
    peer.send(Flags::ACK | Flags::FIN, &[]);
    peer.receive_all();
    for _ in 0..7 {
        peer.wait(Duration::from_secs(9));
        let repr = peer.repr(Flags::ACK | Flags::FIN, Options::default());
        peer.arrive(Repr { seq: peer.seq.wrapping_add(5_000), ..repr }, &[]);
    }
    assert_eq!(peer.stack.occupancy().time_wait.0, 0, "60 s are over");
}

#[test]
fn states_after_close_end_by_themselves() {
    // The peer acknowledges our FIN and never sends its own; never acknowledges it; or sends its own first.
    let check = |name: &str, fin_first: bool, acknowledges: bool, state: State| {
        let mut peer = Peer::established(config(), Options::default());
        if fin_first {
            peer.send(Flags::ACK | Flags::FIN, &[]);
            peer.seq = peer.seq.wrapping_add(1);
        }
        peer.stack.close(peer.now, peer.label);
        peer.receive_all();
        if acknowledges {
            peer.ack = peer.ack.wrapping_add(1);
            peer.send(Flags::ACK, &[]);
        }
        assert_eq!(peer.state(), Some(state), "{name}");
        let (records, _) = peer.wait(Duration::from_secs(1_200));
        assert_eq!(
            (peer.state(), peer.stack.occupancy().connections.0),
            (None, 1),
            "{name}: its event waits"
        );
        while peer.stack.poll_event().is_some() {}
        assert_eq!(peer.stack.occupancy().connections.0, 0, "{name}");
        assert!(records <= 20, "{name}: {records} records");
    };
    check("FIN-WAIT-2", false, true, State::FinWait2);
    check("FIN-WAIT-1", false, false, State::FinWait1);
    check("LAST-ACK", true, false, State::LastAck);
}
