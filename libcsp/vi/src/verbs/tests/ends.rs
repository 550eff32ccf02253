//! How ends go, and what ends may hold of each other.

use super::*;

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
