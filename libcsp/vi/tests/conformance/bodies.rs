//! Tests that need one process.

use csp_vi::{Armed, BufferId, Completion, Event, RequestId, ViConfig, ViError, ViId};

use crate::bench::{
    AnyProvider, Bench, CONFIG, Pair, block, connect, established, event, message, request, take, wait,
};

pub fn both_sides_learn_of_the_connection(bench: &Bench) {
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let private: Vec<u8> = (0..csp_vi::PRIVATE_DATA_LEN_MAX as u8).collect();
    let from_a = a.connect(&address, CONFIG, &private).unwrap();
    assert_eq!(a.post_send(from_a, 0, 0, &[b"early"], false), Err(ViError::NotConnected));
    let asked = request(&mut a, &mut b);
    assert_eq!(asked.private_data, private);
    // SAFETY: getuid takes no arguments and always succeeds.
    let uid = unsafe { libc::getuid() };
    assert_eq!(asked.peer_uid, matches!(bench.kind, "shm" | "pair_near").then_some(uid));
    let from_b = b.accept(asked.id, CONFIG, b"welcome").unwrap();
    assert!(b.accept(asked.id, CONFIG, b"").is_err(), "a request is answered once");
    let private_data = established(&mut [(&mut a, from_a), (&mut b, from_b)]);
    assert_eq!(private_data, [b"welcome".to_vec(), Vec::new()]);
    // Both directions work.
    a.post_send(from_a, 0, 1, &[b"to b"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).bytes, b"to b");
    b.post_send(from_b, 0, 2, &[b"to a"], false).unwrap();
    assert_eq!(message(&mut a, &mut b).bytes, b"to a");
}

pub fn rejection_and_absence_are_reported(bench: &Bench) {
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    let vi = a.connect(&address, CONFIG, b"").unwrap();
    match event(&mut a, &mut b) {
        Event::Refused { vi: of, reason: ViError::Unreachable { .. } } if of == vi => {}
        other => panic!("{other:?}"),
    }
    a.disconnect(vi).unwrap();
    b.listen(&address).unwrap();
    let vi = a.connect(&address, CONFIG, b"").unwrap();
    let asked = request(&mut a, &mut b);
    b.reject(asked.id).unwrap();
    assert!(b.reject(asked.id).is_err());
    assert_eq!(event(&mut a, &mut b), Event::Refused { vi, reason: ViError::Rejected });
    assert_eq!(a.post_send(vi, 0, 0, &[], false), Err(ViError::NotConnected));
    a.disconnect(vi).unwrap();
    assert!(matches!(a.disconnect(vi), Err(ViError::Unknown(_))));
}

pub fn differing_message_lengths_are_refused_to_both(bench: &Bench) {
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let vi = a.connect(&address, CONFIG, b"").unwrap();
    let asked = request(&mut a, &mut b);
    let other = ViConfig { message_len: CONFIG.message_len + 1, ..CONFIG };
    assert!(matches!(b.accept(asked.id, other, b""), Err(ViError::Protocol(_))));
    match event(&mut a, &mut b) {
        Event::Refused { vi: of, reason: ViError::Protocol(_) } if of == vi => {}
        other => panic!("{other:?}"),
    }
    // The depths may differ.
    let vi = a.connect(&address, CONFIG, b"").unwrap();
    let asked = request(&mut a, &mut b);
    let deep = ViConfig { receive_depth: 33, send_depth: 3, ..CONFIG };
    let from_b = b.accept(asked.id, deep, b"").unwrap();
    established(&mut [(&mut a, vi), (&mut b, from_b)]);
}

pub fn messages_arrive_whole_and_in_order(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, .. } = bench.pair(CONFIG);
    let pattern = |n: u32| -> Vec<u8> {
        let len = [0, 1, 63, 64, 65, 4095, 4096][n as usize % 7];
        (0..len).map(|i| (i as u32 * 7 + n) as u8).collect()
    };
    let (mut sent, mut got) = (0, 0);
    wait("1000 messages", || {
        let bytes = pattern(sent);
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        if sent < 1000 && a.post_send(from_a, 0, sent ^ 0xffff_0000, &[head, &[], tail], false).is_ok() {
            sent += 1;
        }
        assert_eq!(a.poll(), None);
        while let Some(message) = take(&mut b) {
            assert_eq!((message.vi, message.immediate), (from_b, got ^ 0xffff_0000));
            assert!(message.bytes == pattern(got), "message {got} differs");
            got += 1;
        }
        (got == 1000).then_some(())
    });
}

pub fn the_longest_messages_arrive_whole(bench: &Bench) {
    let longest = csp_vi::MESSAGE_LEN_MAX as usize;
    let config = ViConfig { receive_depth: 4, send_depth: 4, message_len: csp_vi::MESSAGE_LEN_MAX };
    let Pair { mut a, mut b, from_a, .. } = bench.pair(config);
    let pattern = |n: u32| -> Vec<u8> {
        // Every second message is short and must not overtake the long one before it.
        let len = if n.is_multiple_of(2) { longest } else { 10 };
        (0..len).map(|i| (i * 31 + i / 4096 + n as usize) as u8).collect()
    };
    let (mut sent, mut got) = (0, 0);
    wait("12 messages", || {
        if sent < 12 && a.post_send(from_a, 0, sent, &[&pattern(sent)], false).is_ok() {
            sent += 1;
        }
        assert_eq!(a.poll(), None);
        if let Some(message) = take(&mut b) {
            assert_eq!(message.immediate, got);
            assert!(message.bytes == pattern(got), "message {got} differs");
            got += 1;
        }
        (got == 12).then_some(())
    });
}

pub fn both_directions_flow_at_once(bench: &Bench) {
    let config = ViConfig { receive_depth: 16, send_depth: 16, message_len: 16384 };
    let Pair { mut a, mut b, from_a, from_b, .. } = bench.pair(config);
    let bytes = vec![7; 16384];
    let mut ends = [(&mut a, from_a, 0u32, 0u32), (&mut b, from_b, 0, 0)];
    wait("2000 messages each way", || {
        for (provider, vi, sent, got) in &mut ends {
            while *sent < 2000 && provider.post_send(*vi, 0, *sent, &[&bytes], false).is_ok() {
                *sent += 1;
            }
            while let Some(message) = take(provider) {
                assert_eq!((message.immediate, message.bytes.len()), (*got, 16384));
                *got += 1;
            }
            assert_eq!(provider.poll_event(), None);
        }
        ends.iter().all(|&(_, _, _, got)| got == 2000).then_some(())
    });
}

pub fn vis_are_independent(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, address } = bench.pair(CONFIG);
    let (second_a, second_b) = connect(&mut a, &mut b, &address, CONFIG);
    // All receives of the first VI are used and held.
    for n in 0..CONFIG.receive_depth {
        a.post_send(from_a, 0, n, &[b"held"], false).unwrap();
        wait("message", || {
            assert_eq!(a.poll(), None);
            b.poll()
        });
    }
    for n in 0..100 {
        a.post_send(second_a, 0, n, &[b"flows"], false).unwrap();
        let got = message(&mut b, &mut a);
        assert_eq!((got.vi, got.immediate), (second_b, n));
    }
    b.disconnect(from_b).unwrap();
    assert_eq!(event(&mut a, &mut b), Event::Disconnected { vi: from_a, clean: true });
    a.post_send(second_a, 0, 7, &[b"still"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 7);
}

pub fn too_long_a_message_is_refused_before_it_is_sent(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    let max = CONFIG.message_len as usize;
    let long = vec![1; max];
    let refused = a.post_send(from_a, 0, 0, &[&long, &[2]], false);
    assert_eq!(refused, Err(ViError::TooLong { len: max + 1, max }));
    a.post_send(from_a, 0, 9, &[&long], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 9);
    let private = [0; csp_vi::PRIVATE_DATA_LEN_MAX + 1];
    assert!(matches!(a.connect(&bench.address(), CONFIG, &private), Err(ViError::TooLong { .. })));
}

fn fill(a: &mut AnyProvider, vi: ViId) -> u32 {
    let mut sent = 0;
    loop {
        match a.post_send(vi, 0, sent, &[b"x"], false) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, ViError::Full);
                return sent;
            }
        }
    }
}

pub fn full_comes_exactly_at_the_posted_receives_and_goes(bench: &Bench) {
    for depth in [2, 5, 64] {
        let config = ViConfig { receive_depth: depth, send_depth: 4096, ..CONFIG };
        let Pair { mut a, mut b, from_a, .. } = bench.pair(config);
        assert_eq!(fill(&mut a, from_a), depth);
        let mut held = Vec::new();
        while held.len() < depth as usize {
            held.push(wait("message", || {
                assert_eq!(a.poll(), None);
                b.poll()
            }));
        }
        // The messages are received and held: the queue is still full.
        assert_eq!(fill(&mut a, from_a), 0);
        for completion in held {
            let Completion::Received { vi, buffer, .. } = completion else { panic!("{completion:?}") };
            b.post_recv(vi, buffer).unwrap();
        }
        // A provider that advertises receives in messages may withhold some until the next one, but never
        // all.
        let (mut sent, mut got) = (0, 0);
        wait("room", || {
            assert_eq!((a.poll(), b.poll_event()), (None, None));
            sent += fill(&mut a, from_a);
            (2 * sent >= depth).then_some(())
        });
        assert!(sent == depth || matches!(bench.kind, "tcp" | "ucx" | "verbs"));
        wait("the rest", || {
            sent += fill(&mut a, from_a);
            assert_eq!(a.poll(), None);
            got += u32::from(take(&mut b).is_some());
            (got > 4 * depth).then_some(())
        });
    }
}

pub fn buffers_come_back_in_any_order(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, .. } = bench.pair(CONFIG);
    // The first buffer is held throughout; the others are posted again.
    let mut kept: Option<BufferId> = None;
    let mut held: Vec<(BufferId, u32)> = Vec::new();
    let (mut sent, mut got) = (0u32, 0);
    wait("500 messages", || {
        if sent < 500 && a.post_send(from_a, 0, sent, &[&sent.to_le_bytes()], false).is_ok() {
            sent += 1;
        }
        assert_eq!(a.poll(), None);
        if let Some(Completion::Received { buffer, immediate, .. }) = b.poll() {
            assert_eq!(immediate, got);
            got += 1;
            match kept {
                None => kept = Some(buffer),
                Some(_) => held.push((buffer, immediate)),
            }
        }
        if held.len() >= 3 {
            let (buffer, number) = held.remove(got as usize % 3);
            let mut bytes = [0; 9];
            assert_eq!(b.read(from_b, buffer, 0, &mut bytes), Ok(4));
            assert_eq!(bytes[..4], number.to_le_bytes());
            assert_eq!(
                (b.read(from_b, buffer, 2, &mut bytes), b.read(from_b, buffer, 9, &mut bytes)),
                (Ok(2), Ok(0))
            );
            b.post_recv(from_b, buffer).unwrap();
            assert!(b.post_recv(from_b, buffer).is_err(), "posted already");
            assert!(b.read(from_b, buffer, 0, &mut bytes).is_err());
        }
        (got == 500).then_some(())
    });
    let mut bytes = [1; 4];
    b.read(from_b, kept.unwrap(), 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4], "the first message is unchanged");
}

pub fn signalled_sends_complete_in_order(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    let (mut sent, mut done) = (0u64, 0);
    wait("100 completions", || {
        if sent < 100 && a.post_send(from_a, sent, 0, &[b"x"], sent % 2 == 0).is_ok() {
            sent += 1;
        }
        while let Some(completion) = a.poll() {
            assert_eq!(completion, Completion::Sent { vi: from_a, wr_id: done * 2 });
            done += 1;
        }
        take(&mut b);
        (done == 50).then_some(())
    });
}

pub fn unknown_ids_are_refused(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    let none = ViId(from_a.0.wrapping_add(1 << 20));
    assert!(matches!(a.post_send(none, 0, 0, &[], false), Err(ViError::Unknown(_))));
    assert!(matches!(a.post_recv(none, BufferId(0)), Err(ViError::Unknown(_))));
    assert!(matches!(a.post_recv(from_a, BufferId(0)), Err(ViError::Unknown(_))));
    assert!(matches!(a.post_recv(from_a, BufferId(u32::MAX)), Err(ViError::Unknown(_))));
    assert!(matches!(a.read(from_a, BufferId(0), 0, &mut [0]), Err(ViError::Unknown(_))));
    assert!(matches!(a.disconnect(none), Err(ViError::Unknown(_))));
    assert!(matches!(a.accept(RequestId(9), CONFIG, b""), Err(ViError::Unknown(_))));
    assert!(matches!(b.reject(RequestId(9)), Err(ViError::Unknown(_))));
}

/// Drains `b` until its VI ends. Returns the number of messages received before that.
fn drain(b: &mut AnyProvider, from_b: ViId, expected_clean: bool) -> u32 {
    let mut got = 0;
    wait("end", || {
        while let Some(message) = take(b) {
            assert_eq!(message.immediate, got);
            got += 1;
        }
        match b.poll_event() {
            Some(Event::Disconnected { vi, clean }) => {
                assert_eq!((vi, clean), (from_b, expected_clean));
                Some(())
            }
            None => None,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(b.poll(), None, "nothing comes after the end");
    assert_eq!(b.post_send(from_b, 0, 0, &[], false), Err(ViError::NotConnected));
    b.disconnect(from_b).unwrap();
    got
}

pub fn a_clean_end_follows_the_last_message(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, .. } = bench.pair(CONFIG);
    for n in 0..CONFIG.receive_depth {
        a.post_send(from_a, 0, n, &[&[0; 4096]], false).unwrap();
        // Messages that the closing side has not read must not cost the peer the messages sent to it.
        b.post_send(from_b, 0, n, &[&[0; 4096]], false).unwrap();
    }
    a.disconnect(from_a).unwrap();
    assert!(matches!(a.post_send(from_a, 0, 0, &[], false), Err(ViError::Unknown(_))));
    let progress = std::thread::spawn(move || {
        // Messages already sent need no action of the caller, but some providers send while they are polled.
        for _ in 0..2000 {
            assert_eq!((a.poll(), a.poll_event()), (None, None));
            std::thread::yield_now();
        }
        a
    });
    assert_eq!(drain(&mut b, from_b, true), CONFIG.receive_depth);
    drop(progress.join().unwrap());
}

/// Hundreds of VIs end at once, as when a daemon stops, while the peer is slow; all ends are clean.
pub fn many_ends_at_once_are_clean(bench: &Bench) {
    // UCX sometimes refuses one of hundreds of connections between two workers ("Element already exists").
    let vis_max = if bench.kind == "ucx" { 64 } else { 260 };
    let config = ViConfig { receive_depth: 2, send_depth: 2, message_len: 64 };
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let vis: Vec<(ViId, ViId)> = (0..vis_max).map(|_| connect(&mut a, &mut b, &address, config)).collect();
    for (from_a, from_b) in vis {
        b.post_send(from_b, 0, 0, &[b"not read any more"], false).unwrap();
        a.post_send(from_a, 0, 1, &[b"the last"], false).unwrap();
        a.disconnect(from_a).unwrap();
        assert_eq!((a.poll(), a.poll_event()), (None, None));
    }
    let (mut messages, mut ends) = (0, 0);
    wait("end of each", || {
        assert_eq!((a.poll(), a.poll_event()), (None, None));
        messages += usize::from(take(&mut b).is_some());
        match b.poll_event() {
            Some(Event::Disconnected { vi, clean }) => {
                assert!(clean, "after {ends} ends");
                b.disconnect(vi).unwrap();
                ends += 1;
            }
            None => {}
            other => panic!("{other:?}"),
        }
        (ends == vis_max).then_some(())
    });
    assert_eq!(messages, vis_max);
}

pub fn both_sides_may_end_at_once(bench: &Bench) {
    let Pair { mut a, mut b, mut from_a, mut from_b, address } = bench.pair(CONFIG);
    for _ in 0..20 {
        a.post_send(from_a, 0, 0, &[b"crossing"], false).unwrap();
        b.post_send(from_b, 0, 0, &[b"crossing"], false).unwrap();
        a.disconnect(from_a).unwrap();
        b.disconnect(from_b).unwrap();
        for _ in 0..50 {
            assert_eq!((a.poll(), a.poll_event()), (None, None));
            assert_eq!((b.poll(), b.poll_event()), (None, None));
        }
        (from_a, from_b) = connect(&mut a, &mut b, &address, CONFIG);
    }
}

pub fn a_dropped_provider_is_an_unclean_end(bench: &Bench) {
    let Pair { mut a, mut b, from_a, from_b, .. } = bench.pair(CONFIG);
    b.post_send(from_b, 0, 1, &[b"both ways"], false).unwrap();
    assert_eq!(message(&mut a, &mut b).immediate, 1);
    a.post_send(from_a, 0, 0, &[b"seen"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 0);
    drop(a);
    assert_eq!(drain(&mut b, from_b, false), 0);
}

pub fn a_connector_that_gives_up_leaves_no_vi_behind(bench: &Bench) {
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let vi = a.connect(&address, CONFIG, b"gives up").unwrap();
    let asked = request(&mut a, &mut b);
    a.disconnect(vi).unwrap();
    // Either accepting fails, or the VI ends.
    if let Ok(from_b) = b.accept(asked.id, CONFIG, b"") {
        wait("end", || {
            assert_eq!((a.poll(), a.poll_event(), b.poll()), (None, None, None));
            match b.poll_event() {
                Some(Event::Established { vi, .. }) if vi == from_b => None,
                Some(Event::Disconnected { vi, .. }) if vi == from_b => Some(()),
                None => None,
                other => panic!("{other:?}"),
            }
        });
    }
    connect(&mut a, &mut b, &address, CONFIG);
}

/// Polls once. Echoes a message and returns `Some(false)`, or returns `Some(true)` at the end of the VI.
fn echo_step(b: &mut AnyProvider) -> Option<bool> {
    if let Some(got) = take(b) {
        b.post_send(got.vi, 0, got.immediate, &[&got.bytes], false).unwrap();
        return Some(false);
    }
    match b.poll_event() {
        Some(Event::Disconnected { clean, .. }) => {
            assert!(clean);
            Some(true)
        }
        None => None,
        other => panic!("{other:?}"),
    }
}

pub fn no_wake_is_lost(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    let rounds = match bench.kind {
        "ucx" => 2_000,
        // In a guest with an emulated processor.
        "verbs" => 500,
        _ => 10_000,
    };
    let echo = std::thread::spawn(move || {
        let mut blocked = 0u32;
        loop {
            match echo_step(&mut b) {
                Some(true) => return (b, blocked),
                Some(false) => {}
                None if b.arm() == Ok(Armed::Armed) => {
                    block(&mut b);
                    blocked += 1;
                }
                None => {}
            }
        }
    });
    let mut random = 1u32;
    for n in 0..rounds {
        // A pause of varying length, so that messages arrive at all points of arming.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for _ in 0..random >> 22 {
            std::hint::spin_loop();
        }
        a.post_send(from_a, 0, n, &[b"wake up"], false).unwrap();
        loop {
            if let Some(got) = take(&mut a) {
                assert_eq!(got.immediate, n);
                break;
            }
            assert_eq!(a.poll_event(), None);
            if a.arm() == Ok(Armed::Armed) {
                block(&mut a);
            }
        }
    }
    a.disconnect(from_a).unwrap();
    wait("end of the echo", || {
        assert_eq!((a.poll(), a.poll_event()), (None, None));
        echo.is_finished().then_some(())
    });
    let (_b, blocked) = echo.join().unwrap();
    assert!(blocked > rounds / 100, "the echo blocked too rarely: {blocked}");
}

pub fn out_of_bounds_configurations_are_refused(bench: &Bench) {
    let mut a = bench.provider();
    for wrong in [
        ViConfig { receive_depth: 1, ..CONFIG },
        ViConfig { receive_depth: 4097, ..CONFIG },
        ViConfig { send_depth: 0, ..CONFIG },
        ViConfig { message_len: 0, ..CONFIG },
        ViConfig { message_len: csp_vi::MESSAGE_LEN_MAX + 1, ..CONFIG },
    ] {
        assert!(matches!(a.connect(&bench.address(), wrong, b""), Err(ViError::Config(_))));
    }
    assert_eq!((a.poll(), a.poll_event()), (None, None));
}
