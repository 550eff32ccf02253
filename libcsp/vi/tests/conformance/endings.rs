//! Tests of VIs that end uncleanly.

use csp_vi::{Completion, Event, ViConfig, ViError};

use crate::bench::{Bench, CONFIG, Pair, connect, message, request, wait};

/// The peer can poll what it received before the end; it must assume the rest to be lost.
pub fn an_aborted_vi_ends_uncleanly(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, address } = bench.pair(CONFIG);
    let (other_a, other_b) = connect(&mut a, &mut b, &address, CONFIG);
    a.post_send(from_a, 0, 0, &[b"seen"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 0);
    a.abort(from_a).unwrap();
    assert!(matches!(a.abort(from_a), Err(ViError::Unknown(_))));
    assert!(matches!(a.post_send(from_a, 0, 0, &[], false), Err(ViError::Unknown(_))));
    let end = wait("end", || {
        assert_eq!((a.poll(), a.poll_event(), b.poll()), (None, None, None));
        b.poll_event()
    });
    assert_eq!(end, Event::Disconnected { vi: from_b, clean: false });
    b.disconnect(from_b).unwrap();
    // Other VIs are not affected.
    for n in 0..100 {
        a.post_send(other_a, 0, n, &[b"on"], false).unwrap();
        let got = message(&mut b, &mut a);
        assert_eq!((got.vi, got.immediate), (other_b, n));
    }
}

/// A VI is aborted during set-up, with messages in flight, and after the peer has aborted it.
pub fn a_vi_can_be_aborted_at_any_time(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, address } = bench.pair(CONFIG);
    let vi = a.connect(&address, CONFIG, b"").unwrap();
    let asked = request(&mut a, &mut b);
    a.abort(vi).unwrap();
    let _ = b.reject(asked.id);
    for n in 0..CONFIG.receive_depth {
        a.post_send(from_a, u64::from(n), n, &[&[0; 4096]], true).unwrap();
        b.post_send(from_b, 0, n, &[&[0; 4096]], false).unwrap();
    }
    b.abort(from_b).unwrap();
    let mut clean = None;
    wait("end", || {
        assert_eq!((b.poll(), b.poll_event()), (None, None));
        let _ = a.poll();
        if let Some(Event::Disconnected { vi, clean: how }) = a.poll_event() {
            assert_eq!(vi, from_a);
            clean = Some(how);
        }
        clean
    });
    assert_eq!(clean, Some(false));
    a.abort(from_a).unwrap();
    connect(&mut a, &mut b, &address, CONFIG);
}

/// More messages are sent than the network to an idle peer can hold; then the peer dies.
pub fn lost_messages_are_not_reported_as_sent(bench: &Bench) {
    const COUNT: u32 = 48;
    let config = ViConfig { receive_depth: COUNT, send_depth: COUNT, message_len: 1 << 20 };
    let Pair { mut a, b, from_a, .. } = bench.pair(config);
    let bytes = vec![1; 1 << 20];
    for n in 0..COUNT {
        a.post_send(from_a, n.into(), n, &[&bytes], true).unwrap();
    }
    drop(b);
    let mut left = 0;
    wait("end", || {
        while let Some(completion) = a.poll() {
            assert_eq!(completion, Completion::Sent { vi: from_a, wr_id: left });
            left += 1;
        }
        a.poll_event()
    });
    assert!(left < u64::from(COUNT), "all sends were reported as complete");
}
