//! False acknowledgements and windows: what a peer gains by reporting data that it did not receive (RFC 5681,
//! RFC 9293).

use std::time::Duration;

use csp_tcp::{ConnectionOptions, StackConfig, State};
use csp_wire::tcp::{Flags, Options, Repr, SackBlock, SackBlocks};

use crate::peer::{Peer, config};

fn sack_options() -> Options {
    Options { mss: Some(1_000), sack_permitted: true, ..Options::default() }
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_counts_for_nothing() {
    let mut peer = Peer::established(config(), Options { mss: Some(1_000), ..Options::default() });
    peer.write(100_000);
    let (_, sent) = peer.receive_all();
    let before = peer.info();
    for ahead in [1, 1_000, 1 << 20, 1 << 30] {
        let repr = peer.repr(Flags::ACK, Options::default());
        peer.arrive(Repr { ack: peer.ack.wrapping_add(sent as u32 + ahead), ..repr }, &[]);
    }
    let after = peer.info();
    assert_eq!(
        (after.in_flight, after.cwnd, after.send_queue),
        (before.in_flight, before.cwnd, before.send_queue)
    );
    let (records, bytes) = peer.receive_all();
    assert!(records <= 1 && bytes == 0, "one challenge: {records} records, {bytes} bytes");
}

#[test]
fn one_byte_acknowledgements_open_the_window_by_bytes() {
    // ACK division: a thousand acknowledgements of parts of one segment count as one of the segment (RFC
    // 3465).
    let mut peer = Peer::established(config(), Options { mss: Some(1_000), ..Options::default() });
    peer.write(200_000);
    peer.receive_all();
    let before = peer.info().cwnd;
    for _ in 0..1_000 {
        peer.ack = peer.ack.wrapping_add(1);
        peer.send(Flags::ACK, &[]);
    }
    let gained = peer.info().cwnd - before;
    assert!(gained <= 1_000, "{gained} bytes for 1000 acknowledged");
    let (_, bytes) = peer.receive_all();
    assert!(bytes <= 2_000, "{bytes} bytes for 1000 acknowledged");
}

#[test]
fn optimistic_acknowledgements_are_bounded_by_window_and_buffer() {
    // The peer acknowledges everything at once without having received it: its gain is limited by the window
    // that it advertises itself.
    let mut peer = Peer::established(config(), sack_options());
    for _ in 0..200 {
        peer.write(1 << 20);
        let mut last = None;
        while let Some((header, len)) = peer.receive() {
            last = Some(header.seq.wrapping_add(len as u32));
        }
        let info = peer.info();
        assert!(info.in_flight <= 60_000 && info.send_queue <= peer.stack.config().send_buffer_max as usize);
        peer.ack = last.unwrap_or(peer.ack);
        peer.send(Flags::ACK, &[]);
    }
}

#[test]
fn a_tiny_mss_does_not_make_us_send_headers_only() {
    for mss in [0, 1, 40] {
        let peer = Peer::established(config(), Options { mss: Some(mss), ..Options::default() });
        assert_eq!(peer.info().mss, csp_tcp::MSS_MIN);
    }
}

#[test]
fn a_window_of_a_few_bytes_gets_few_segments() {
    let mut peer = Peer::established(config(), Options { mss: Some(1_000), ..Options::default() });
    peer.window = 10;
    peer.send(Flags::ACK, &[]);
    peer.write(100_000);
    // RFC 9293 §3.8.6.2.1: a small window is probed, not filled.
    let (records, _) = peer.wait(Duration::from_secs(10));
    assert!(records <= 10, "{records} records in 10 s");
}

#[test]
fn a_window_that_shrinks_and_grows_loses_nothing() {
    let mut peer = Peer::established(config(), sack_options());
    let first = peer.ack;
    peer.write(50_000);
    let mut received = vec![false; 50_000];
    let mut flip = false;
    for _ in 0..2_000 {
        while let Some((header, len)) = peer.receive() {
            let at = header.seq.wrapping_sub(first) as usize;
            received[at..at + len].fill(true);
        }
        let contiguous = received.iter().position(|received| !received).unwrap_or(received.len());
        peer.ack = first.wrapping_add(contiguous as u32);
        flip = !flip;
        peer.window = if flip { 0 } else { 2_000 };
        peer.send(Flags::ACK, &[]);
        peer.now += Duration::from_millis(20);
        peer.stack.on_timeout(peer.now);
    }
    assert!(received.iter().all(|received| *received));
    assert_eq!(peer.info().send_queue, 0);
}

#[test]
fn an_endless_zero_window_holds_no_more_than_its_share_and_ends_with_the_application() {
    let mut peer = Peer::established(config(), sack_options());
    peer.window = 0;
    peer.send(Flags::ACK, &[]);
    while peer.write(1 << 16) > 0 {}
    let held = peer.info().send_queue;
    assert!(held <= peer.stack.config().send_buffer_max as usize);
    let mut probes = 0;
    for _ in 0..60 {
        probes += peer.wait(Duration::from_secs(60)).0;
        peer.send(Flags::ACK, &[]); // the peer responds and never reads
    }
    assert!((1..=200).contains(&probes), "{probes} probes in an hour");
    assert_eq!(peer.state(), Some(State::Established), "RFC 9293 §3.8.6.1: as long as the peer responds");
    // After `close`, responses to probes do not keep the connection.
    peer.stack.close(peer.now, peer.label);
    for _ in 0..60 {
        peer.wait(Duration::from_secs(60));
        peer.send(Flags::ACK, &[]);
    }
    assert_eq!((peer.state(), peer.stack.occupancy().blocks.0), (None, 0));
}

/// The user timeout starts when data begins to wait for the window, not with the last acknowledgement.
#[test]
fn a_window_that_was_closed_while_nothing_waited_does_not_count() {
    for fin_only in [false, true] {
        let mut peer = Peer::established(config(), sack_options());
        let timeout = Duration::from_secs(30);
        let options = ConnectionOptions { user_timeout: Some(timeout), ..config().connection_options() };
        assert!(peer.stack.set_options(peer.now, peer.label, options));
        peer.window = 0;
        peer.send(Flags::ACK, &[]);
        peer.wait(Duration::from_secs(3_600));
        match fin_only {
            true => peer.stack.shutdown(peer.now, peer.label),
            false => assert_eq!(peer.write(100), 100),
        }
        peer.wait(timeout / 2);
        assert!(peer.state().is_some(), "fin only {fin_only}: failed at once");
        peer.wait(2 * timeout);
        assert_eq!(peer.state(), None, "fin only {fin_only}");
    }
}

#[test]
fn an_endless_zero_window_ends_soon_when_memory_is_short() {
    let config = StackConfig { blocks: 64, send_buffer_min: 1 << 20, ..config() };
    let mut peer = Peer::established(config, sack_options());
    peer.window = 0;
    peer.send(Flags::ACK, &[]);
    while peer.write(1 << 16) > 0 {}
    let o = peer.stack.occupancy();
    assert!(o.send_blocks.0 * 4 >= o.send_blocks.1 * 3, "{o:?}");
    for _ in 0..30 {
        peer.wait(Duration::from_secs(5));
        peer.send(Flags::ACK, &[]);
    }
    assert_eq!((peer.state(), peer.stack.occupancy().send_blocks.0), (None, 0));
}

#[test]
fn urgent_data_is_data() {
    let mut peer = Peer::established(config(), sack_options());
    peer.send(Flags::ACK | Flags::URG, b"urgent");
    assert_eq!(peer.stack.readable(peer.label), 6);
}

#[test]
fn sack_of_everything_and_of_nothing_sent_is_bounded() {
    let mut peer = Peer::established(config(), sack_options());
    peer.write(50_000);
    let (_, sent) = peer.receive_all();
    let first = peer.ack;
    let mut records = 0;
    for n in 0..5_000u32 {
        let mut sack = SackBlocks::EMPTY;
        for k in 0..4 {
            let start = first.wrapping_add((n * 7_919 + k * 104_729) % (2 * sent as u32));
            sack.push(SackBlock { start, end: start.wrapping_add(1 + n % 3) });
        }
        peer.send_with(Flags::ACK, Options { sack, ..Options::default() }, &[]);
        records += peer.receive_all().0;
    }
    let o = peer.stack.occupancy();
    assert!(o.range_sets.0 <= 2 && peer.info().in_flight <= 60_000, "{o:?}");
    assert!(records <= 500, "{records} records for 5000 acknowledgements of nothing");
}

#[test]
fn a_peer_that_discards_sacked_data_gets_it_again() {
    let mut peer = Peer::established(config(), sack_options());
    peer.write(10_000);
    let first = peer.ack;
    let (_, sent) = peer.receive_all();
    let mut sack = SackBlocks::EMPTY;
    sack.push(SackBlock { start: first.wrapping_add(1_000), end: first.wrapping_add(sent as u32) });
    peer.send_with(Flags::ACK, Options { sack, ..Options::default() }, &[]);
    // It discards all of that data, and then acknowledges what arrives in order.
    let mut received = vec![false; 10_000];
    for _ in 0..100 {
        while let Some((header, len)) = peer.receive() {
            let at = header.seq.wrapping_sub(first) as usize;
            received[at..at + len].fill(true);
        }
        let contiguous = received.iter().position(|received| !received).unwrap_or(received.len());
        peer.ack = first.wrapping_add(contiguous as u32);
        peer.send(Flags::ACK, &[]);
        let next = peer.stack.next_timeout().unwrap_or(peer.now);
        peer.now = peer.now.max(next);
        peer.stack.on_timeout(peer.now);
    }
    assert!(received.iter().all(|received| *received));
}
