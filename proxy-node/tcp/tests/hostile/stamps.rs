//! False timestamps: echoes that misrepresent the round trip, and values that poison TS.Recent (RFC 7323
//! §5.3, §7).

use std::time::Duration;

use csp_wire::tcp::{Flags, Options, Repr, Timestamps};

use crate::common::Random;
use crate::peer::{Peer, config};

fn stamped(value: u32, echo: u32) -> Options {
    Options { timestamps: Some(Timestamps { value, echo }), ..Options::default() }
}

fn open() -> Peer {
    Peer::established(config(), Options { mss: Some(1_000), sack_permitted: true, ..stamped(1_000, 0) })
}

/// A peer that acknowledges everything after 20 ms, retransmissions included, and echoes `echo(now)`. Returns
/// the largest amount of data in flight.
fn lie(name: &str, mut echo: impl FnMut(u32) -> u32) {
    let mut peer = open();
    let (first, mut value) = (peer.ack, 1_000);
    let mut acknowledged = 0u32;
    for round in 0..300 {
        while peer.write(1 << 16) > 0 {}
        let mut last = None;
        while let Some((header, len)) = peer.receive() {
            let end = header.seq.wrapping_add(len as u32);
            last = Some(
                last.map_or(end, |last: u32| if (end.wrapping_sub(last) as i32) > 0 { end } else { last }),
            );
        }
        peer.now += Duration::from_millis(20);
        value += 20;
        if round % 3 == 2 {
            // The peer lets segments time out, so that its echo is the only measurement (Karn).
            peer.wait(Duration::from_millis(700));
        }
        let now = peer.info();
        let (config, stack) = (peer.stack.config(), &peer.stack);
        assert!(now.rto >= config.rto_min && now.rto <= config.rto_max, "{name}: {:?}", now.rto);
        // Growth of the window counts acknowledged bytes, whatever the timestamps; the peer's window bounds
        // the rest.
        let grown = config.initial_window_segments * u32::from(now.mss) + acknowledged;
        assert!(now.cwnd <= grown.max(2 * 60_000), "{name}: {} after {acknowledged} acknowledged", now.cwnd);
        assert!(now.in_flight <= 60_000, "{name}: {}", now.in_flight);
        // One window in the shortest round trip that the clock can resolve, and twice that in slow start
        // (output/pacing.rs).
        let fastest = u64::from(now.cwnd) * 2 * 1_000_000;
        assert!(
            now.pacing_rate.is_none_or(|rate| rate > 0 && rate <= fastest),
            "{name}: {:?}",
            now.pacing_rate
        );
        assert_eq!(stack.occupancy().connections.0, 1, "{name}");
        if let Some(last) = last {
            acknowledged = last.wrapping_sub(first);
            peer.ack = last;
        }
        let clock = peer.now.as_millis_u32();
        let echo = echo(clock);
        peer.send_with(Flags::ACK, stamped(value, echo), &[]);
    }
    assert!(acknowledged > 100_000, "{name}: the connection goes on, {acknowledged} bytes");
}

#[test]
fn echoes_that_lie_about_the_round_trip_move_the_timeout_within_its_bounds_only() {
    let mut random = Random(9);
    // The last timestamp received is within 20 ms of the clock, apart from the unknown offset.
    lie("zero", |_| 0);
    lie("the far past", |now| now.wrapping_sub(1 << 30));
    lie("two minutes ago", |now| now.wrapping_sub(119_999));
    lie("the future", |now| now.wrapping_add(60_000));
    lie("the far future", |now| now.wrapping_add(1 << 30));
    lie("anything", |_| random.next() as u32);
}

#[test]
fn echoes_of_now_and_of_long_ago_move_the_timeout_within_its_bounds_only() {
    // As above, by a peer that knows the offset from our segments.
    for late in [0u32, 1, 20, 50_000, 119_999, 120_001, u32::MAX - 5, u32::MAX / 2] {
        let mut peer = open();
        let mut value = 1_000;
        for _ in 0..40 {
            peer.write(1_000);
            peer.wait(Duration::from_millis(900)); // the data is sent several times
            value += 900;
            let info = peer.info();
            let config = peer.stack.config();
            assert!(info.rto >= config.rto_min && info.rto <= config.rto_max, "{late}: {:?}", info.rto);
            assert!(info.srtt_us <= 121_000_000, "{late}: {} µs", info.srtt_us);
            peer.ack = peer.ack.wrapping_add(info.in_flight);
            peer.send_with(Flags::ACK, stamped(value, peer.echo.wrapping_sub(late)), &[]);
        }
        assert_eq!(peer.info().in_flight, 0, "{late}");
    }
}

/// Has the engine send 100 bytes, and the peer answer nothing for a time. Returns the timestamp of their
/// first transmission.
fn waits(peer: &mut Peer, time: Duration) -> u32 {
    peer.write(100);
    let (header, _) = peer.receive().unwrap();
    peer.ack = peer.ack.wrapping_add(100);
    peer.wait(time);
    header.options.timestamps.unwrap().value
}

/// The acknowledgement of the original is lost, and the peer discards the retransmissions as duplicates: its
/// reply to the last of them echoes the original (RFC 7323 §5.3 R2). Such a reply is no measurement (RFC 6298
/// §3); the next exchange is one.
#[test]
fn an_echo_of_the_original_after_timeouts_does_not_count_them_as_round_trip() {
    let mut peer = open();
    for round in 1..10u32 {
        let lost = round == 5;
        let original =
            waits(&mut peer, if lost { Duration::from_secs(20) } else { Duration::from_millis(20) });
        assert_eq!(peer.stack.counters().retransmission_timeouts >= 4, round >= 5);
        peer.send_with(Flags::ACK, stamped(1_000 + round, original), &[]);
        let info = peer.info();
        assert_eq!(info.in_flight, 0);
        assert!(info.srtt_us < 21_000, "round {round}: {} µs", info.srtt_us);
        let least = Duration::from_secs(if lost { 3 } else { 0 });
        assert!(info.rto >= least, "round {round}: the back-off stays until a measurement: {:?}", info.rto);
        assert!(lost || info.rto < Duration::from_millis(300), "round {round}: {:?}", info.rto);
    }
}

/// The round trip becomes longer than the timeout: the first echo of an original without a timeout measures
/// it.
#[test]
fn a_round_trip_that_has_become_longer_is_measured_when_no_timeout_is_spurious_any_more() {
    let mut peer = open();
    for round in 1..10u32 {
        let time = if round < 5 { Duration::from_millis(20) } else { Duration::from_secs(3) };
        let original = waits(&mut peer, time);
        peer.send_with(Flags::ACK, stamped(1_000 + round, original), &[]);
    }
    let (info, timeouts) = (peer.info(), peer.stack.counters().retransmission_timeouts);
    assert!(info.rto > Duration::from_secs(3) && info.srtt_us > 500_000, "{info:?}");
    assert!(timeouts <= 4, "{timeouts} timeouts: only the first long round trip may cause any");
}

#[test]
fn forged_timestamps_poison_paws_only_with_exact_numbers() {
    let mut peer = open();
    peer.send_with(Flags::ACK, stamped(1_010, peer.echo), b"GET");
    peer.seq = peer.seq.wrapping_add(3);
    peer.receive_all();
    let honest = peer.repr(Flags::ACK, stamped(1_010 + (1 << 30), 0));
    let mut random = Random(11);
    for n in 0..10_000u32 {
        let off = 1 + random.next() as u32 % 50_000;
        let forged = match n % 4 {
            // Within the window, and not the segment that the next acknowledgement responds to (RFC 7323 §5.3
            // R3).
            0 => Repr { seq: honest.seq.wrapping_add(off), ..honest },
            // Data acknowledged before.
            1 => Repr { seq: honest.seq.wrapping_sub(off), ..honest },
            // The right sequence number, with an acknowledgement of data never sent.
            2 => Repr { ack: honest.ack.wrapping_add(off), ..honest },
            _ => Repr { ack: honest.ack.wrapping_sub(60_000 + off), ..honest },
        };
        peer.arrive(forged, &[]);
    }
    peer.receive_all();
    let before = peer.stack.counters().dropped_paws;
    peer.send_with(Flags::ACK, stamped(1_020, peer.echo), b"POST");
    assert_eq!((peer.stack.readable(peer.label), peer.stack.counters().dropped_paws), (7, before));
    // With all numbers right the segment is indistinguishable from the peer's: segments with the old clock
    // are then refused, and a RST still ends the connection (§5.2).
    peer.seq = peer.seq.wrapping_add(4);
    peer.wait(Duration::from_millis(50));
    let exact = peer.repr(Flags::ACK, stamped(1_020 + (1 << 30), 0));
    peer.arrive(exact, &[]);
    peer.send_with(Flags::ACK, stamped(1_030, peer.echo), b"more");
    assert_eq!((peer.stack.readable(peer.label), peer.stack.counters().dropped_paws), (7, before + 1));
    peer.send(Flags::RST, &[]);
    assert_eq!(peer.state(), None);
}
