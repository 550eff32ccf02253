//! Last values for subscribers that join: all of them, each once, beside messages that arrive meanwhile.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::{BTreeMap, BTreeSet};

use csp_handlers::FormatId;
use csp_messages::{
    Budget, CacheConfig, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, LastValueKey,
    MessagePlane, PeerId, PlaneConfig, PoolConfig, QueueLimits, Role, SubscriptionsConfig,
};
use csp_support::Random;
use csp_types::Instant;

const KEYS: u64 = 300;
const QUEUE: u32 = 64;

/// A channel with queues of so many messages, and memory for so many blocks.
fn plane(policy: FullQueue, queue: u32, blocks: u64) -> (MessagePlane, ChannelId) {
    let pool = PoolConfig { block_len: 64, blocks: 4_096 };
    let subscriptions = SubscriptionsConfig {
        topic_len_max: 32,
        entries_max: 1_000,
        nodes_max: 1_000,
        ..SubscriptionsConfig::default()
    };
    let config = PlaneConfig::new(HashKey([3, 5]));
    let config = PlaneConfig { pool, subscriptions, channels_max: 1, peers_max: 8, ..config };
    let mut plane = MessagePlane::new(config).unwrap();
    let cache = Some(CacheConfig { key: LastValueKey::Topic, entries: KEYS as u32, bytes: 64 * KEYS });
    let id = plane.add_channel(ChannelConfig {
        name: "c".into(),
        kind: ChannelKind::PublishSubscribe { policy, cache },
        budget: Budget { guaranteed: 64 * blocks, max: 64 * blocks },
        message_len_max: 64,
        queue: QueueLimits { messages: queue, bytes: 1 << 20, in_flight: 4 },
        sequence: false,
    });
    let id = id.unwrap();
    (plane, id)
}

fn publish(plane: &mut MessagePlane, publisher: PeerId, topic: &str) -> u64 {
    let frames = [topic.len() as u32, 1];
    plane
        .publish_as(
            Instant::ZERO,
            publisher,
            FormatId::UNKNOWN,
            &frames,
            [topic.as_bytes(), b"v"].into_iter(),
        )
        .unwrap()
        .sequence
}

/// Takes up to `max` messages: topic and number of each.
fn take(plane: &mut MessagePlane, peer: PeerId, max: usize) -> Vec<(String, u64)> {
    let mut got = Vec::new();
    while got.len() < max
        && let Some(delivery) = plane.next_delivery(Instant::ZERO, peer)
    {
        let text = plane.slices(delivery.handle).collect::<Vec<_>>().concat();
        got.push((String::from_utf8(text[..text.len() - 1].to_vec()).unwrap(), delivery.sequence));
        plane.delivered(peer, delivery.handle).unwrap();
    }
    got
}

#[test]
fn a_joiner_gets_more_last_values_than_its_queue_holds() {
    for policy in [FullQueue::DropNewest, FullQueue::DropOldest, FullQueue::Block] {
        let (mut plane, id) = plane(policy, QUEUE, 4_096);
        let publisher = plane.attach(id, Role::Publisher).unwrap();
        let sent: Vec<(String, u64)> = (0..KEYS)
            .map(|n| (format!("T{n:03}"), publish(&mut plane, publisher, &format!("T{n:03}"))))
            .collect();
        let joiner = plane.attach(id, Role::Subscriber).unwrap();
        plane.subscribe(Instant::ZERO, joiner, b"T").unwrap();
        let status = plane.peer_status(joiner).unwrap();
        assert!(status.waiting <= QUEUE as usize, "{policy:?}: {status:?}");
        assert_eq!(plane.channel_status(id).unwrap().blocked, 0, "a joiner holds back no publisher");
        // What overlaps, and what is repeated, brings none again.
        plane.subscribe(Instant::ZERO, joiner, b"T0").unwrap();
        plane.subscribe(Instant::ZERO, joiner, b"T").unwrap();
        assert_eq!(take(&mut plane, joiner, usize::MAX), sent, "{policy:?}");
        let counters = plane.channel_status(id).unwrap().counters;
        assert_eq!((counters.replayed, counters.dropped_newest + counters.dropped_oldest), (KEYS, 0));
    }
}

/// The queue of a subscriber is more than half full when it subscribes to more.
#[test]
fn a_subscriber_with_a_full_queue_gets_last_values_when_it_has_room() {
    let (mut plane, id) = plane(FullQueue::DropNewest, QUEUE, 4_096);
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    let mut expected: Vec<_> =
        (0..3).map(|n| (format!("B{n}"), publish(&mut plane, publisher, &format!("B{n}")))).collect();
    let joiner = plane.attach(id, Role::Subscriber).unwrap();
    plane.subscribe(Instant::ZERO, joiner, b"A").unwrap();
    (0..QUEUE).for_each(|_| _ = publish(&mut plane, publisher, "A"));
    plane.subscribe(Instant::ZERO, joiner, b"B").unwrap();
    expected.push(("B3".into(), publish(&mut plane, publisher, "B3")));
    assert_eq!(plane.peer_status(joiner).unwrap().waiting, QUEUE as usize, "B3 was dropped");
    let got = take(&mut plane, joiner, usize::MAX);
    assert_eq!(
        got[QUEUE as usize..],
        expected[..3],
        "B3 was published to the subscription, and is no last value for it"
    );
}

/// A joiner whose messages were dropped because it took none goes on with the rest.
#[test]
fn a_joiner_that_stalled_gets_the_rest() {
    let (mut plane, id) = plane(FullQueue::DropNewest, 400, 2 * KEYS + 2);
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    (0..KEYS).for_each(|n| _ = publish(&mut plane, publisher, &format!("T{n:03}")));
    let [joiner, slow] = [(); 2].map(|()| plane.attach(id, Role::Subscriber).unwrap());
    plane.subscribe(Instant::ZERO, joiner, b"").unwrap();
    plane.set_parked(joiner, true);
    plane.subscribe(Instant::ZERO, slow, b"T000").unwrap();
    // Memory is short, and what waits for the joiner is dropped.
    let later = Instant::from_nanos(1_000_000_000);
    for n in 0.. {
        plane
            .publish_as(later, publisher, FormatId::UNKNOWN, &[4, 1], [&b"T000"[..], b"v"].into_iter())
            .unwrap();
        if plane.peer_status(joiner).unwrap().counters.dropped_stalled > 0 {
            break;
        }
        assert!(n < 1_000, "memory is never short");
    }
    plane.set_parked(joiner, false);
    plane.refill(later, joiner);
    let got = take(&mut plane, joiner, usize::MAX);
    let rest: BTreeSet<&str> = got.iter().map(|(topic, _)| topic.as_str()).collect();
    assert!((1..KEYS / 2).contains(&(rest.len() as u64)), "{}", rest.len());
    assert_eq!(rest.last(), Some(&"T299"));
}

/// Subscriptions, updates and reading in any order: no message comes twice, none is overtaken by an older one
/// of its key, what is published to a subscriber comes, and the last that it has of each key is the last.
#[test]
fn each_last_value_comes_once_beside_what_arrives_meanwhile() {
    let seeds = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seeds.map_or(0..100, |seed: u64| seed..seed + 1) {
        let mut random = Random::new(seed);
        let (mut plane, id) = plane(FullQueue::DropNewest, QUEUE, 4_096);
        let publisher = plane.attach(id, Role::Publisher).unwrap();
        let joiner = plane.attach(id, Role::Subscriber).unwrap();
        let topic = |n: u64| format!("{}{n}", ["A", "AB", "B"][n as usize % 3]);
        let (mut last, mut live) = (BTreeMap::new(), BTreeSet::new());
        let (mut prefixes, mut got): (Vec<String>, Vec<(String, u64)>) = (Vec::new(), Vec::new());
        for _ in 0..2_000 {
            match random.below(40) {
                0 => {
                    let of = topic(random.below(KEYS));
                    prefixes.push(of[..random.below(of.len() as u64 + 1) as usize].to_owned());
                    plane.subscribe(Instant::ZERO, joiner, prefixes[prefixes.len() - 1].as_bytes()).unwrap();
                }
                1..20 => {
                    let of = topic(random.below(KEYS));
                    let number = publish(&mut plane, publisher, &of);
                    if prefixes.iter().any(|prefix| of.starts_with(prefix.as_str())) {
                        live.insert(number);
                    }
                    last.insert(of, number);
                }
                _ => got.extend(take(&mut plane, joiner, random.below(4) as usize)),
            }
        }
        got.extend(take(&mut plane, joiner, usize::MAX));
        assert_eq!(plane.peer_status(joiner).unwrap().counters.dropped(), 0, "seed {seed}");
        let mut latest: BTreeMap<&str, u64> = BTreeMap::new();
        for (of, number) in &got {
            let before = latest.insert(of, *number);
            assert!(before < Some(*number), "seed {seed}: {of} {number} after {before:?}");
        }
        let numbers: BTreeSet<u64> = got.iter().map(|(_, number)| *number).collect();
        assert!(numbers.is_superset(&live), "seed {seed}");
        last.retain(|of: &String, _| prefixes.iter().any(|prefix| of.starts_with(prefix.as_str())));
        let latest = latest.into_iter().map(|(of, number)| (of.to_owned(), number));
        assert_eq!(latest.collect::<BTreeMap<_, _>>(), last, "seed {seed}");
    }
}
