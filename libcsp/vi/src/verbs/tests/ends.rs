//! The end of VIs, and the limits of what one end can reserve or change at the other.

use super::*;
use crate::verbs::queue::OWN_WORK;

/// Blocks until `fd` is readable.
fn readable(fd: RawFd) {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is one local entry, as the count says, and outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 20_000) }, 1, "nothing came");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn what_arrived_before_an_unclean_end_is_polled_before_it() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_030);
    for n in 0..3 {
        // The longer messages are written into their slots.
        let bytes = vec![n; 400 * usize::from(n)];
        a.post_send(from_a, n.into(), n.into(), &[&bytes], true).unwrap();
        assert_eq!(wait("completion", || a.poll()), Completion::Sent { vi: from_a, wr_id: n.into() });
    }
    drop(a);
    readable(b.channel.fd());
    // The disconnect is processed while the messages are still in the completion queue.
    b.poll_descriptors();
    for n in 0..3 {
        let got = wait("message", || b.poll());
        assert!(matches!(got, Completion::Received { immediate, .. } if immediate == n), "{got:?}");
    }
    assert_eq!(wait("end", || b.poll_event()), Event::Disconnected { vi: from_b, clean: false });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_vanished_peer_is_detected_after_an_unsignalled_message() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_031);
    a.post_send(from_a, 0, 1, &[b"nobody asks what became of it"], false).unwrap();
    wait("message", || {
        idle(&mut a);
        b.poll()
    });
    // The message is unsignalled, so its acknowledgement produces no completion.
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

/// Returns the room in completion queues that `b` reserved for each of its connectors.
fn reserved(b: &VerbsProvider) -> Vec<u32> {
    b.ends.iter().filter_map(|(_, end)| Some(end.queue.as_ref()?.completions.1)).collect()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn connectors_reserve_little_before_they_are_accepted() {
    let config = ViConfig { receive_depth: 4096, send_depth: 2, message_len: 64 };
    let to = address(20_032);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    let mut asked = VecDeque::new();
    let mut ask = |b: &mut VerbsProvider| {
        let vi = a.connect(&to, config, b"").unwrap();
        wait("request or refusal", || match (a.poll_event(), b.poll_event()) {
            (_, Some(Event::Request(request))) => Some(Ok(request.id)),
            (Some(Event::Refused { vi: of, .. }), _) if of == vi => Some(Err(())),
            _ => None,
        })
    };
    while let Ok(request) = ask(&mut b) {
        asked.push_back(request);
        assert!(asked.len() < 64, "{:?}", reserved(&b));
    }
    assert!(reserved(&b).iter().all(|&work| work <= 512 + OWN_WORK), "{:?}", reserved(&b));
    assert!(reserved(&b).iter().sum::<u32>() <= 32_768);
    assert!(asked.len() > 50, "{}", asked.len());
    // An accepted connector makes room for the next.
    b.accept(asked.pop_front().unwrap(), config, b"").unwrap();
    asked.push_back(ask(&mut b).unwrap());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn an_end_lingers_for_two_seconds_and_is_clean_all_the_same() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_033);
    a.post_send(from_a, 0, 7, &[b"the last"], false).unwrap();
    a.disconnect(from_a).unwrap();
    let start = Instant::now();
    wait("end of lingering", || {
        idle(&mut a);
        (a.ends.iter().count() == 0).then_some(())
    });
    let lingered = start.elapsed();
    assert!((2..4).contains(&lingered.as_secs()), "{lingered:?}");
    // The peer was not polled meanwhile.
    readable(b.channel.fd());
    b.poll_descriptors();
    assert!(matches!(wait("message", || b.poll()), Completion::Received { immediate: 7, .. }));
    assert_eq!(wait("end", || b.poll_event()), Event::Disconnected { vi: from_b, clean: true });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_full_table_takes_new_vis_for_lingering_ones() {
    let Pair { mut a, from_a, to, .. } = pair(20_034);
    a.disconnect(from_a).unwrap();
    while !a.ends.is_full() {
        let end = End::new(Stage::Closed, CONFIG, 0);
        a.ends.insert(end).unwrap();
    }
    assert!(a.connect(&to, CONFIG, b"").is_ok());
    assert_eq!(a.connect(&to, CONFIG, b""), Err(ViError::Exhausted("VI")));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn an_ends_private_memory_cannot_be_written() {
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

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn the_shared_queue_keeps_its_buffers_however_vis_end() {
    const RECEIVES: u64 = 1024;
    let config = ViConfig { receive_depth: 32, send_depth: 32, message_len: 2048 };
    let to = address(20_036);
    let mut b = VerbsProvider::new().unwrap();
    b.listen(&to).unwrap();
    for round in 0..12 {
        let mut a = VerbsProvider::new().unwrap();
        let (from_a, from_b) = connect_with(&mut a, &mut b, &to, config);
        for n in 0..32 {
            a.post_send(from_a, 0, n, &[&vec![1; 64 * n as usize]], false).unwrap();
        }
        // In each case there are messages in the completion queue.
        match round % 3 {
            0 => drop(a),
            1 => {
                b.fail(from_b.0, "as if a work request had failed");
                b.disconnect(from_b).unwrap();
            }
            _ => b.disconnect(from_b).unwrap(),
        }
        wait("end", || {
            while let Some(Completion::Received { vi, buffer, .. }) = b.poll() {
                b.post_recv(vi, buffer).unwrap();
            }
            if let Some(Event::Disconnected { vi, .. }) = b.poll_event() {
                b.disconnect(vi).unwrap();
            }
            (b.ends.iter().count() == 0).then_some(())
        });
    }
    // As many messages as the queue has buffers arrive while `b` is not polled.
    let mut a = VerbsProvider::new().unwrap();
    let config = ViConfig { receive_depth: 2048, send_depth: 2048, message_len: 64 };
    let (from_a, _) = connect_with(&mut a, &mut b, &to, config);
    for n in 0..RECEIVES {
        a.post_send(from_a, n, 0, &[b"one buffer"], true).unwrap();
    }
    for n in 0..RECEIVES {
        assert_eq!(wait("completion", || a.poll()), Completion::Sent { vi: from_a, wr_id: n });
    }
}
