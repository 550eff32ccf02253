//! Peers that keep to the protocol and ask for more than their share: of memory, of time, of what others wait
//! for.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use client::{command, frame};
use common::*;
use csp_messages::{ChannelKind, QueueLimits};
use csp_proxy_core::service::local::LocalServices as _;
use csp_quality::OutputLink;
use csp_services::{ChannelPath, ChannelPolicy, ChannelSpec, PathStage};

const BAD: u32 = 9;

/// The channel, on which each message goes to one puller.
fn push_channel() -> ChannelSpec {
    let mut spec = open_channel();
    spec.channel.kind =
        ChannelKind::PushPull { backlog: QueueLimits { messages: 1, ..QueueLimits::default() } };
    spec
}

#[test]
fn commands_between_the_frames_of_a_message_that_never_ends() {
    for socket in ["PUB", "SUB"] {
        let mut w = World::new(open_channel());
        w.connect_null(BAD, socket);
        w.arrive(BAD, &frame(1, b""));
        let pongs = command("PONG", b"").repeat(4_000);
        let mut sent = 0;
        while !w.has_ended(BAD) {
            w.arrive(BAD, &pongs);
            sent += pongs.len();
            assert!(sent < 2 * MESSAGE_LEN_MAX, "{socket}: {sent} bytes are kept");
        }
        assert_eq!(w.broker.zmtp().failed_message_too_long, 1);
        assert!(sent > MESSAGE_LEN_MAX, "a message of the largest size may have as many");
    }
}

#[test]
fn a_visit_of_commands_alone_ends_and_goes_on() {
    let mut w = World::new(open_channel());
    w.connect_null(BAD, "PUB");
    w.connect_null(2, "SUB");
    w.arrive(2, &subscribe(b""));
    let news = message(&[b"news"]);
    w.ends.get_mut(&BAD).unwrap().arrived = [command("PONG", b"").repeat(1_000), news.clone()].concat();
    w.serve(BAD);
    assert!(w.broker.zmtp().pongs_received < 1_000, "others are served in between");
    w.settle();
    assert_eq!((w.broker.zmtp().pongs_received, w.taken(2)), (1_000, news));
}

#[test]
fn flooders_do_not_keep_others_from_their_messages() {
    let mut w = World::new(open_channel());
    let flooders = 100..200;
    for n in flooders.clone() {
        w.connect_null(n, "SUB");
    }
    w.connect_null(1, "PUB");
    w.connect_null(2, "SUB");
    w.arrive(2, &subscribe(b""));
    for n in flooders {
        w.ends.get_mut(&n).unwrap().arrived = subscribe(b"x").repeat(100_000);
        w.serve(n);
    }
    let news = message(&[b"news"]);
    w.ends.get_mut(&1).unwrap().arrived = news.clone();
    w.serve(1);
    // One pass of a worker, in which each flooder is also served for segments that it has sent.
    for n in 100..200 {
        w.serve(n);
    }
    let pass: Vec<_> =
        std::iter::from_fn(|| w.broker.next_ready(&mut OutputLink::default())).take(64).collect();
    assert!(pass.contains(&World::label(2)), "the subscriber has its turn in it");
    // The list has each flooder at most once.
    let listed = std::iter::from_fn(|| w.broker.next_ready(&mut OutputLink::default())).take(1_000).count();
    assert!(listed <= 100, "{listed}");
}

#[test]
fn what_one_channel_subscribes_to_leaves_room_for_others() {
    let mut config = config();
    let subscriptions = &mut config.subscriptions;
    (subscriptions.entries_max, subscriptions.nodes_max) = (4_000, 8_000);
    (subscriptions.channel_entries_max, subscriptions.channel_nodes_max) = (1_000, 2_000);
    subscriptions.subscriber_entries_max = 500;
    let mut w = World::with(config, open_channel());
    for n in 10..20 {
        w.connect_null(n, "SUB");
        for topic in 0..1_000u32 {
            w.arrive(n, &subscribe(format!("{n}-{topic}").as_bytes()));
        }
        assert!(!w.has_ended(n));
    }
    assert_eq!(w.broker.snapshots()[0].status.subscriptions.entries, 1_000);
    let mut other = open_channel();
    (other.number, other.channel.name) = (CHANNEL + 1, "other".to_owned());
    w.apply([open_channel(), other]).unwrap();
    assert_eq!(w.broker.channels().count(), 2, "a new channel has its root");
}

#[test]
fn a_pusher_that_is_held_back_is_alive() {
    let mut spec = push_channel();
    spec.heartbeat = Some(Duration::from_secs(10));
    let mut w = World::new(spec);
    w.connect_null(1, "PUSH");
    let all: Vec<Vec<u8>> = (0..20u8).map(|n| message(&[&[n; 10]])).collect();
    w.arrive(1, &all.concat());
    for _ in 0..10 {
        // It answers each PING behind messages that are not examined.
        w.pass_to_deadline();
        if !w.taken(1).is_empty() {
            w.arrive(1, &command("PONG", &[]));
        }
        assert!(!w.has_ended(1), "{:?}", w.broker.zmtp());
    }
    w.connect(2);
    w.arrive(2, &client::null_handshake("PULL", 1));
    assert!(w.taken(2).ends_with(&all.concat()), "nothing is lost");
}

#[test]
fn a_frame_that_arrives_slowly_is_a_sign_of_life() {
    let mut spec = open_channel();
    spec.heartbeat = Some(Duration::from_secs(10));
    let mut w = World::new(spec);
    w.connect_null(1, "PUB");
    w.connect_null(2, "SUB");
    let long = message(&[&[1; 8_000]]);
    for part in long.chunks(500) {
        w.arrive(1, part);
        w.pass_to_deadline();
        w.arrive(2, &command("PONG", &[]));
    }
    assert!(!w.has_ended(1) && w.broker.zmtp().failed_heartbeat_timeout == 0);
}

#[test]
fn memory_of_a_long_message_is_given_back() {
    let mut w = World::new(open_channel());
    w.connect_null(1, "PUB");
    w.connect_null(2, "SUB");
    w.arrive(2, &subscribe(b""));
    let long = message(&[&vec![7; MESSAGE_LEN_MAX - 1]]);
    for part in long.chunks(50_000) {
        w.arrive(1, part);
    }
    assert_eq!(w.taken(2).len(), long.len());
    assert_eq!(w.broker.incomplete_bytes(), 0);
    w.arrive(1, &long[..200_000]);
    assert!(w.broker.incomplete_bytes() >= 100_000);
    w.broker.gone(w.now, World::label(1));
    assert_eq!(w.broker.incomplete_bytes(), 0, "nor does a connection that ends keep any");
}

#[test]
fn a_burst_waits_for_the_handlers_of_a_path_instead_of_being_dropped() {
    let mut w = World::new(open_channel());
    let stage = |handler: &str, parameters: &str| PathStage {
        handler: handler.to_owned(),
        context: 0,
        parameters: parameters.to_owned(),
        maker: None,
        auto: None,
        outputs: Vec::new(),
    };
    // More work for each message than contexts do in a pass for all that a visit brings.
    let stages = vec![stage("duplicate", "8"), stage("duplicate", "8"), stage("drop-every", "1")];
    let paths = vec![ChannelPath::new(CHANNEL, stages)];
    w.apply([ChannelPolicy { paths, ..open_channel().into() }]).unwrap();
    w.connect_null(1, "PUB");
    // More than a path's queue holds, at once.
    w.arrive(1, &message(&[b"news"]).repeat(1_000));
    let counters = w.broker.snapshots()[0].status.counters;
    assert_eq!((counters.published, counters.dropped_path), (1_000, 0));
}
