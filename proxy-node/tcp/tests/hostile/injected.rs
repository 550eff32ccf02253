//! Blind data injection: an attacker off the path guesses sequence and acknowledgement numbers (RFC 5961 §5).

use std::time::Duration;

use csp_wire::tcp::{Flags, Options, Repr};

use crate::common::Random;
use crate::peer::{Peer, config};

/// Number of guesses, all within one challenge interval.
const GUESSES: u32 = 20_000;

/// A connection on which both sides have sent data.
fn talking() -> Peer {
    let mut peer = Peer::established(config(), Options { mss: Some(1_000), ..Options::default() });
    peer.send(Flags::ACK, b"GET");
    peer.seq = peer.seq.wrapping_add(3);
    peer.stack.read_with(peer.now, peer.label, usize::MAX, <[u8]>::len);
    peer.write(30_000);
    while peer.info().send_queue > 0 {
        let (_, sent) = peer.wait(Duration::from_millis(20));
        peer.ack = peer.ack.wrapping_add(sent as u32);
        peer.send(Flags::ACK, &[]);
    }
    peer.now += Duration::from_secs(1);
    peer
}

/// Bytes that the application received, and challenges sent, since `talking`.
fn harm(peer: &mut Peer) -> (usize, usize, u64) {
    let info = peer.info();
    peer.receive_all();
    (info.receive_queue, info.out_of_order, peer.stack.counters().challenge_acks_sent)
}

#[test]
fn guessed_bytes_in_the_window_need_a_good_acknowledgement_too() {
    let mut peer = talking();
    let honest = peer.repr(Flags::ACK | Flags::PSH, Options::default());
    let receive_window = 60_000;
    let mut random = Random(5);
    for guess in 0..GUESSES {
        // The sequence number is acceptable each time, exact or anywhere in the window; the acknowledgement
        // number is any, except those within the largest window below SND.NXT.
        let seq =
            honest.seq.wrapping_add(if guess % 2 == 0 { 0 } else { random.next() as u32 % receive_window });
        let wrong = 60_001 + random.next() as u32 % (u32::MAX - 2 * 60_000);
        peer.arrive(Repr { seq, ack: honest.ack.wrapping_sub(wrong), ..honest }, b"poison");
    }
    let dropped = peer.stack.counters().dropped_bad_ack;
    assert_eq!((harm(&mut peer), dropped), ((0, 0, 1), GUESSES.into()), "one challenge for all of them");
    assert_eq!(peer.stack.occupancy().blocks.0, 0, "none of the data is stored");
    peer.send(Flags::ACK, b"honest");
    let mut read = Vec::new();
    peer.stack.read_with(peer.now, peer.label, usize::MAX, |bytes| {
        read.extend_from_slice(bytes);
        bytes.len()
    });
    assert_eq!(read, b"honest");
}

#[test]
fn guessed_bytes_outside_the_window_are_dropped_whatever_they_acknowledge() {
    let mut peer = talking();
    let honest = peer.repr(Flags::ACK | Flags::PSH, Options::default());
    let mut random = Random(6);
    for _ in 0..GUESSES {
        // All numbers outside the window, which is never larger than this.
        let behind = peer.stack.config().receive_window_max + 1;
        let off = behind + random.next() as u32 % (u32::MAX - 2 * behind);
        peer.arrive(Repr { seq: honest.seq.wrapping_add(off), ..honest }, b"poison");
    }
    let (readable, behind, _) = harm(&mut peer);
    assert_eq!((readable, behind, peer.stack.occupancy().blocks.0), (0, 0, 0));
    assert_eq!(peer.stack.counters().dropped_outside_window, u64::from(GUESSES));
}

#[test]
fn of_all_acknowledgement_numbers_few_let_guessed_bytes_in() {
    // One guess in every 16,384 numbers, with a correct sequence number: a guess is accepted only if it lies
    // within the largest window that the peer advertised (60,000 bytes) below SND.NXT.
    let mut peer = talking();
    let honest = peer.repr(Flags::ACK | Flags::PSH, Options::default());
    let mut taken = 0;
    for step in 0..1 << 18 {
        let before = peer.info().receive_queue;
        let seq = honest.seq.wrapping_add(taken);
        peer.arrive(Repr { seq, ack: honest.ack.wrapping_add(step << 14), ..honest }, b"x");
        taken += (peer.info().receive_queue - before) as u32;
        peer.receive_all();
    }
    assert!((1..=1 + 60_000 / (1 << 14)).contains(&taken), "{taken} of {} guesses were accepted", 1 << 18);
}
