//! Tests of the list of unconfirmed messages.

use csp_vi::{Event, ViError, ViId};

use crate::bench::{AnyProvider, Bench, CONFIG, Pair, message, wait};

/// Returns message `n`. The lengths vary, so that providers use all their ways of sending.
fn body(n: u32) -> Vec<u8> {
    let len = [0, 8, 63, 300, 513, 4096][n as usize % 6];
    (0..len).map(|i| (i as u32 * 5 + n) as u8).collect()
}

fn post(a: &mut AnyProvider, vi: ViId, n: u32) {
    wait("room", || {
        let _ = a.poll();
        let bytes = body(n);
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        a.post_send(vi, n.into(), n, &[head, tail], false).ok()
    });
}

/// Checks that the listed messages are the last of `posted`, and returns their number.
fn unconfirmed(a: &AnyProvider, vi: ViId, posted: u32) -> u32 {
    let mut listed = Vec::new();
    a.unconfirmed(vi, &mut |n, bytes| {
        assert_eq!(bytes, body(n), "message {n}");
        listed.push(n);
    })
    .unwrap();
    let count = listed.len() as u32;
    assert_eq!(listed, (posted - count..posted).collect::<Vec<_>>());
    count
}

pub fn unconfirmed_messages_are_listed_oldest_first(bench: &Bench) {
    for received in [0, 2, 31] {
        let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
        assert_eq!(unconfirmed(&a, from_a, 0), 0);
        for n in 0..received {
            post(&mut a, from_a, n);
            assert_eq!(message(&mut b, &mut a).bytes, body(n));
        }
        // Few enough that a provider which advertises receives late has room for them.
        let posted = received + 4;
        (received..posted).for_each(|n| post(&mut a, from_a, n));
        // A device acknowledges what arrived in the peer's memory, though the peer has not polled it.
        let least = if bench.kind == "verbs" { 0 } else { 4 };
        assert!(unconfirmed(&a, from_a, posted) >= least, "while the VI is up");
        drop(b);
        wait("end", || {
            let _ = a.poll();
            let _ = a.arm();
            a.poll_event().filter(|event| matches!(event, Event::Disconnected { clean: false, .. }))
        });
        assert!(unconfirmed(&a, from_a, posted) >= least, "when it ended");
        a.disconnect(from_a).unwrap();
        assert!(matches!(a.unconfirmed(from_a, &mut |_, _| {}), Err(ViError::Unknown(_))));
    }
}

pub fn the_list_of_unconfirmed_messages_is_bounded(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    for n in 0..1_000 {
        post(&mut a, from_a, n);
        assert_eq!(message(&mut b, &mut a).bytes, body(n));
    }
    assert!(unconfirmed(&a, from_a, 1_000) <= 2 * CONFIG.send_depth, "the list is bounded");
}
