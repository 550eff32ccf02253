//! How ends go, and what ends may hold of each other.

use super::*;

/// Blocks until `fd` is readable.
fn readable(fd: RawFd) {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as told.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 20_000) }, 1, "nothing came");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn what_arrived_before_an_unclean_end_is_polled_before_it() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_030);
    for n in 0..3 {
        // The longer ones are written into their slots.
        let bytes = vec![n; 400 * usize::from(n)];
        a.post_send(from_a, n.into(), n.into(), &[&bytes], true).unwrap();
        assert_eq!(wait("completion", || a.poll()), Completion::Sent { vi: from_a, wr_id: n.into() });
    }
    drop(a);
    readable(b.channel.fd());
    // The end is heard of while the messages lie in the completion queue.
    b.look();
    for n in 0..3 {
        let got = wait("message", || b.poll());
        assert!(matches!(got, Completion::Received { immediate, .. } if immediate == n), "{got:?}");
    }
    assert_eq!(wait("end", || b.poll_event()), Event::Disconnected { vi: from_b, clean: false });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_vanished_peer_is_found_out_after_a_message_without_completion() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_031);
    a.post_send(from_a, 0, 1, &[b"nobody asks what became of it"], false).unwrap();
    wait("message", || {
        idle(&mut a);
        b.poll()
    });
    // Its acknowledgement is told to nobody.
    pass(&mut a, &mut b, Duration::from_millis(500));
    b.ends.get_mut(from_b.0).unwrap().queue.as_mut().unwrap().stop();
    let start = Instant::now();
    let ended = wait("end", || {
        assert_eq!(a.poll(), None);
        a.poll_event()
    });
    assert_eq!(ended, Event::Disconnected { vi: from_a, clean: false });
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn what_only_an_end_itself_uses_cannot_be_written() {
    let mut pair = pair(20_035);
    let peer = pair.peer();
    let body = pair.b.ends.get(pair.from_b.0).unwrap().body.as_ref().unwrap();
    let buffer = body.buffer_segment(0, 8).unwrap().addr;
    let (opcode, remote) = (ibv::WR_RDMA_WRITE, (buffer, peer.grants_key));
    pair.strike(&Strike { opcode, len: 8, bytes: vec![1; 8], remote });
    let ended = wait("end", || {
        let _ = (pair.a.poll(), pair.a.poll_event());
        pair.b.poll_event()
    });
    assert_eq!(ended, Event::Disconnected { vi: pair.from_b, clean: false });
}
