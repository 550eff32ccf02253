//! A channel with a pool: a TCP client's messages pass to a server process and its answers come back,
//! whatever the cut of both streams and however slow either end; and what ends both.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod world;

use std::time::Duration;

use csp_proxy_core::ChannelId;
use csp_services::MessagesPolicy;
use csp_wire::channel::{CLOSE_UNREAD, MessageHeader, MessageKind};
use csp_wire::tcp::Flags as TcpFlags;

use world::{Random, SERVER, Server, World, sofh};

/// Both directions at once, cut and delayed at random; returns the number of times that a direction was
/// blocked.
fn exchange(seed: u64) -> usize {
    let mut random = Random(seed);
    let (mut w, mut blocked) = (World::new(5_000), 0);
    let ((there, to_server), (back, to_client)) = (random.messages(), random.messages());
    let (mut sent, mut answered, mut read) = (0, 0, 5_000);
    for round in 0.. {
        assert!(round < 200_000, "seed {seed} comes to no end: {sent} and {answered} bytes were sent");
        match random.below(7) {
            0 | 1 => {
                let most = 1 + random.below(1_400);
                let more = &to_server[sent..to_server.len().min(sent + most)];
                let len = w.client_sends(more);
                blocked += usize::from(len == 0 && !more.is_empty());
                sent += len;
            }
            2 | 3 => {
                let most = 1 + random.below(9_000);
                let more = &to_client[answered..to_client.len().min(answered + most)];
                let len = w.server_sends(more);
                blocked += usize::from(len == 0 && !more.is_empty());
                answered += len;
            }
            4 => {
                let most = 1 + random.below(1_200);
                w.server_reads(most as u32);
                read += most;
            }
            5 => w.out.descriptors = random.below(3),
            _ => {
                w.client.stalled = random.below(8) > 0;
                if !w.client.stalled {
                    w.segment(TcpFlags::ACK, &[]);
                }
            }
        }
        w.pass(Duration::from_millis(1));
        assert!(w.server.received.len() <= read, "seed {seed}: beyond the room of the server");
        assert!(to_server.starts_with(&w.server.received) && to_client.starts_with(&w.client.received));
        if w.server.received.len() == to_server.len() && w.client.received.len() == to_client.len() {
            break;
        }
    }
    let channel = w.channel();
    assert_eq!(channel.status.counters.published, (there + back) as u64, "seed {seed}");
    let bytes = (to_server.len() + to_client.len()) as u64;
    assert_eq!((channel.status.counters.bytes_published, channel.malformed), (bytes, 0), "seed {seed}");
    // The client ends its stream, and still receives.
    (w.out.descriptors, w.client.stalled) = (usize::MAX, false);
    w.client_finishes();
    assert!(w.server.finished && !w.client.fin, "seed {seed}");
    let last = sofh(b"last");
    w.server_sends(&last);
    w.server_says(MessageKind::Close);
    w.pass(Duration::from_secs(1));
    assert!(w.client.fin && !w.client.rst && w.client.received.ends_with(&last), "seed {seed}");
    w.assert_nothing_is_left();
    blocked
}

#[test]
fn messages_pass_both_ways_whole_and_in_order_whatever_the_cut() {
    let seeds = std::env::var("CSP_SEED").ok().map(|seed| seed.parse().unwrap());
    let blocked: usize = match seeds {
        Some(seed) => exchange(seed),
        None => (1..=30).map(exchange).sum(),
    };
    assert!(blocked > 100, "backpressure was at work {blocked} times");
}

#[test]
fn a_server_that_does_not_read_closes_the_client_s_window_and_nothing_is_lost() {
    let mut w = World::new(100);
    let all: Vec<u8> = (0..3_000u32).flat_map(|n| sofh(&[n as u8; 500])).collect();
    let mut sent = 0;
    loop {
        let len = w.client_sends(&all[sent..]);
        w.pass(Duration::from_millis(50));
        if len == 0 {
            break;
        }
        sent += len;
    }
    assert!(sent < all.len() && w.server.received == all[..100], "{sent} bytes wait at the proxy");
    while sent < all.len() {
        w.server_reads(50_000);
        w.pass(Duration::from_millis(50));
        while sent < all.len() {
            let len = w.client_sends(&all[sent..]);
            if len == 0 {
                break;
            }
            sent += len;
        }
    }
    w.server_reads(2_000_000);
    assert!(w.server.received == all);
    assert_eq!(w.channel().status.counters.published, 3_000);
}

#[test]
fn bytes_that_a_client_sends_before_a_server_accepts_wait_for_it() {
    let mut w = World::without_client();
    w.connect(1000);
    let two = [sofh(b"one"), sofh(b"two")].concat();
    w.client_sends_all(&two);
    assert!(w.server.received.is_empty());
    w.accept(1 << 16);
    assert_eq!(w.server.received, two);
}

#[test]
fn a_client_s_malformed_length_resets_both_ends_after_what_was_right() {
    for nonsense in [&[0, 0, 0, 5, 1, 1, 9, 9][..], &[0xff, 0, 0, 0, 1, 1]] {
        let mut w = World::new(1 << 16);
        w.client_sends_all(&sofh(b"right"));
        w.client_sends_all(&[&sofh(b"right too")[..], nonsense].concat());
        assert!(w.client.rst && w.server.reset, "{nonsense:?}");
        assert_eq!(w.server.received, [sofh(b"right"), sofh(b"right too")].concat(), "{nonsense:?}");
        assert_eq!((w.channel().malformed, w.channel().status.counters.published), (1, 2));
        w.assert_nothing_is_left();
        // The process serves the next client.
        w.server = Server::default();
        w.connect(1001);
        w.accept(1 << 16);
        w.client_sends_all(&sofh(b"next"));
        assert_eq!(w.server.received, sofh(b"next"));
    }
}

#[test]
fn a_server_s_malformed_length_resets_both_ends() {
    let mut w = World::new(1 << 16);
    w.server_sends(&sofh(b"right"));
    assert_eq!(w.client.received, sofh(b"right"));
    w.server_sends(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 1, 2, 3]);
    assert!(w.client.rst && w.server.reset);
    assert_eq!((w.client.received.len(), w.channel().malformed), (sofh(b"right").len(), 1));
    w.assert_nothing_is_left();
}

#[test]
fn a_stream_that_ends_within_a_message_resets_both_ends() {
    let part = &sofh(b"whole")[..8];
    let mut w = World::new(1 << 16);
    w.client_sends_all(part);
    w.client_finishes();
    assert!(w.client.rst && w.server.reset && !w.server.finished);
    assert_eq!(w.channel().malformed, 1);
    w.assert_nothing_is_left();
    // Also one whose other direction has ended before.
    let mut w = World::new(1 << 16);
    w.server_says(MessageKind::Shutdown);
    w.client_sends_all(part);
    w.client_finishes();
    assert!(w.client.fin && w.server.reset && !w.server.finished && w.channel().malformed == 1);
    w.pass(Duration::from_secs(1));
    w.assert_nothing_is_left();
    // A server that shuts its stream down is notified; one that has closed it is not.
    for (kind, notified) in [(MessageKind::Shutdown, true), (MessageKind::Close, false)] {
        let mut w = World::new(1 << 16);
        w.server_sends(part);
        w.server_says(kind);
        assert!(w.client.rst && !w.client.fin, "{kind:?}");
        assert_eq!((w.server.reset, w.channel().malformed), (notified, 1), "{kind:?}");
        w.assert_nothing_is_left();
    }
}

#[test]
fn a_server_that_ends_between_messages_ends_the_stream_and_still_receives() {
    let mut w = World::new(1 << 16);
    w.server_sends(&sofh(b"goodbye"));
    w.server_says(MessageKind::Shutdown);
    assert!(w.client.fin && !w.client.rst && w.client.received == sofh(b"goodbye"));
    w.client_sends_all(&sofh(b"thanks"));
    w.client_finishes();
    assert!(w.server.finished && w.server.received == sofh(b"thanks"));
    w.pass(Duration::from_secs(1));
    w.assert_nothing_is_left();
    assert_eq!(w.channel().malformed, 0);
}

#[test]
fn a_reset_of_either_end_reaches_the_other() {
    let mut w = World::new(1 << 16);
    w.client_sends_all(&sofh(b"one"));
    w.segment(TcpFlags::RST, &[]);
    assert!(w.server.reset);
    w.assert_nothing_is_left();
    let mut w = World::new(1 << 16);
    w.client_sends_all(&sofh(b"unread"));
    let header = MessageHeader { flags: CLOSE_UNREAD, ..w.of_flow(MessageKind::Close, 0) };
    w.send(header, &[]);
    assert!(w.client.rst);
    w.assert_nothing_is_left();
    let mut w = World::new(1 << 16);
    w.core.channel_down(w.now, ChannelId(SERVER), false, &mut w.out);
    w.settle();
    assert!(w.client.rst, "the link to the process was lost");
    w.assert_nothing_is_left();
}

#[test]
fn a_channel_that_the_policy_removes_goes_with_its_last_connection() {
    let mut w = World::new(1 << 16);
    let now = w.now;
    w.core.local_mut().apply(now, &MessagesPolicy::default()).unwrap();
    assert!(w.core.local().snapshots().is_empty());
    w.client_sends_all(&sofh(b"still served"));
    assert_eq!(w.server.received, sofh(b"still served"));
    w.server_says(MessageKind::Close);
    w.connect(1001);
    assert!(w.client.rst, "a new connection is refused: the worker does not know the channel");
}
