use super::*;
use crate::cache::{CacheConfig, LastValueKey};
use crate::config::ChannelKind;
use crate::pool::{Budget, PoolConfig};
use crate::queue::{FullQueue, QueueLimits};
use crate::schedule::TurnBudget;
use crate::subscriptions::SubscriptionsConfig;
use crate::table::HashKey;
use csp_handlers::FormatId;
use csp_support::Random;
use csp_types::Duration;

const BLOCK: u64 = 64;
const LIMITS: QueueLimits = QueueLimits { messages: 8, bytes: 1 << 20, in_flight: 4 };

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn plane(blocks: u32) -> MessagePlane {
    let subscriptions =
        SubscriptionsConfig { topic_len_max: 32, entries_max: 100, nodes_max: 100, ..Default::default() };
    let pool = PoolConfig { block_len: BLOCK as u32, blocks };
    let turn = TurnBudget { messages: 4, bytes: 1_000 };
    let config = PlaneConfig::new(HashKey([1, 2]));
    MessagePlane::new(PlaneConfig { pool, subscriptions, channels_max: 3, peers_max: 16, turn, ..config })
        .unwrap()
}

fn channel(name: &str, kind: ChannelKind, guaranteed: u64, max: u64) -> ChannelConfig {
    let budget = Budget { guaranteed: guaranteed * BLOCK, max: max * BLOCK };
    ChannelConfig {
        name: name.into(),
        kind,
        budget,
        message_len_max: BLOCK as u32,
        queue: LIMITS,
        sequence: false,
    }
}

fn drops(policy: FullQueue) -> ChannelKind {
    ChannelKind::PublishSubscribe { policy, cache: None }
}

fn pushes() -> ChannelKind {
    ChannelKind::PushPull { backlog: LIMITS }
}

impl MessagePlane {
    fn send(&mut self, now: Instant, peer: PeerId, text: &str) -> Result<u64, PublishError> {
        let done = self.publish_as(
            now,
            peer,
            FormatId::UNKNOWN,
            &[text.len() as u32],
            [text.as_bytes()].into_iter(),
        );
        done.map(|published| published.sequence)
    }

    fn text(&self, handle: MessageHandle) -> String {
        String::from_utf8(self.slices(handle).collect::<Vec<_>>().concat()).unwrap()
    }

    /// Gives a peer all that waits for it.
    fn drain(&mut self, now: Instant, peer: PeerId) -> Vec<(u64, String)> {
        let mut got = Vec::new();
        while let Some(delivery) = self.next_delivery(now, peer) {
            got.push((delivery.sequence, self.text(delivery.handle)));
            self.delivered(peer, delivery.handle).unwrap();
        }
        got
    }

    fn subscriber(&mut self, channel: ChannelId, prefix: &str) -> PeerId {
        let peer = self.attach(channel, Role::Subscriber).unwrap();
        self.subscribe(at(0), peer, prefix.as_bytes()).unwrap();
        peer
    }
}

#[test]
fn a_message_reaches_each_subscriber_of_its_topic_once() {
    let mut plane = plane(64);
    let id = plane.add_channel(channel("quotes", drops(FullQueue::DropNewest), 0, 64)).unwrap();
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    let [all, some] = ["", "a."].map(|prefix| plane.subscriber(id, prefix));
    plane.subscribe(at(0), some, b"a.b").unwrap();
    assert_eq!(plane.send(at(1), publisher, "a.b=1"), Ok(1));
    assert_eq!(plane.send(at(2), publisher, "b=2"), Ok(2));
    assert_eq!(plane.drain(at(3), some), [(1, "a.b=1".into())]);
    let delivery = plane.next_delivery(at(3), all).unwrap();
    assert_eq!((delivery.arrived, delivery.len, delivery.frames, delivery.cached), (at(1), 5, 1, false));
    assert_eq!(plane.frame_lens(delivery.handle).collect::<Vec<_>>(), [5]);
    plane.delivered(all, delivery.handle).unwrap();
    assert_eq!(plane.drain(at(3), all), [(2, "b=2".into())]);
    assert_eq!(plane.occupancy().messages, 0);
}

#[test]
fn bad_messages_are_refused_and_counted() {
    let mut plane = plane(64);
    let mut config = channel("c", drops(FullQueue::DropNewest), 0, 64);
    config.message_len_max = 64 * 64;
    let id = plane.add_channel(config).unwrap();
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    let subscriber = plane.subscriber(id, "");
    let long = vec![b't'; 1 << 20];
    let mut check = |peer, frames: &[u32], bytes: &[u8], expected| {
        assert_eq!(
            plane.publish_as(at(0), peer, FormatId::UNKNOWN, frames, [bytes].into_iter()),
            Err(expected)
        );
    };
    check(publisher, &[1 << 20], &long, PublishError::TooLong(1 << 20));
    check(publisher, &[u32::MAX, u32::MAX], &long, PublishError::TooLong(2 * u64::from(u32::MAX)));
    check(publisher, &[33, 1], &long[..34], PublishError::TopicTooLong(33));
    check(publisher, &[], b"", PublishError::Frames(0));
    check(publisher, &[0; 17], b"", PublishError::Frames(17));
    check(publisher, &[3], b"ab", PublishError::LengthMismatch);
    check(publisher, &[40], &long[..39], PublishError::LengthMismatch);
    check(subscriber, &[1], b"a", PublishError::NotAPublisher);
    check(PeerId { generation: 1, ..publisher }, &[1], b"a", PublishError::UnknownPeer);
    assert_eq!(plane.subscribe(at(0), subscriber, &long), Err(SubscribeError::TooLong(1 << 20)));
    assert_eq!(plane.subscribe(at(0), publisher, b""), Err(SubscribeError::NotASubscriber));
    let Counters { refused_too_long, refused_topic, refused_frames, refused_mismatch, refused_peer, .. } =
        plane.counters();
    assert_eq!((refused_too_long, refused_topic, refused_frames), (2, 1, 2));
    assert_eq!((refused_mismatch, refused_peer, plane.counters().subscribe_refused), (2, 2, 2));
    assert_eq!((plane.channel_status(id).unwrap().sequence, plane.occupancy().blocks_used), (0, 0));
    assert_eq!(
        plane
            .publish_as(at(0), publisher, FormatId::UNKNOWN, &[100], [&long[..100]].into_iter())
            .map(|p| p.receivers),
        Ok(1)
    );
}

/// Its queue would hold more than the whole budget of the channel.
#[test]
fn a_stopped_subscriber_costs_others_no_message() {
    for policy in [FullQueue::DropNewest, FullQueue::DropOldest] {
        let mut plane = plane(64);
        let mut config = channel("c", drops(policy), 0, 6);
        config.queue.messages = 1_000;
        let id = plane.add_channel(config).unwrap();
        let publisher = plane.attach(id, Role::Publisher).unwrap();
        let [stopped, reader] = ["", ""].map(|prefix| plane.subscriber(id, prefix));
        plane.set_parked(stopped, true);
        let mut got = 0;
        for n in 0..1_000 {
            assert_eq!(plane.send(at(100 * n), publisher, "x"), Ok(n + 1));
            got += plane.drain(at(100 * n), reader).len();
        }
        assert_eq!(got, 1_000);
        let counters = plane.peer_status(stopped).unwrap().counters;
        let waiting = plane.peer_status(stopped).unwrap().waiting as u64;
        assert_eq!(
            (counters.dropped_stalled + waiting, counters.dropped()),
            (1_000, counters.dropped_stalled)
        );
        assert!(plane.next_delivery(at(0), stopped).is_none(), "parked");
        plane.set_parked(stopped, false);
        let numbers = plane.drain(at(0), stopped);
        assert_eq!(numbers.len() as u64, waiting);
        assert_eq!(plane.occupancy().messages, 0);
    }
}

#[test]
fn without_memory_and_stalled_subscribers_the_new_message_is_dropped_and_counted() {
    let mut plane = plane(64);
    let id = plane.add_channel(channel("c", drops(FullQueue::DropOldest), 0, 4)).unwrap();
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    let reader = plane.subscriber(id, "");
    let sent: Vec<_> = (0..6).map(|_| plane.send(at(0), publisher, "x").unwrap()).collect();
    assert_eq!(sent, [1, 2, 3, 4, 5, 6]);
    let numbers: Vec<u64> = plane.drain(at(0), reader).into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!((numbers, plane.peer_status(reader).unwrap().counters.dropped_memory), (vec![1, 2, 3, 4], 2));
}

#[test]
fn a_flood_of_one_channel_leaves_the_other_its_guarantee() {
    let mut plane = plane(32);
    let mut flood = channel("flood", drops(FullQueue::DropNewest), 0, 32);
    flood.queue.messages = 1_000;
    let [flood, calm] =
        [flood, channel("calm", pushes(), 8, 8)].map(|config| plane.add_channel(config).unwrap());
    let [noisy, pusher] =
        [(flood, Role::Publisher), (calm, Role::Pusher)].map(|(id, role)| plane.attach(id, role).unwrap());
    plane.subscriber(flood, "");
    (0..1_000).for_each(|_| assert!(plane.send(at(0), noisy, "x").is_ok()));
    assert_eq!(plane.channel_status(flood).unwrap().memory.used, 24);
    let sent = (0..9).filter_map(|_| plane.send(at(0), pusher, "y").ok()).count();
    assert_eq!((sent, plane.channel_status(flood).unwrap().counters.dropped_memory), (8, 976));
}

#[test]
fn a_full_subscriber_that_blocks_holds_back_publishers_until_half_is_taken() {
    let mut plane = plane(64);
    let id = plane.add_channel(channel("c", drops(FullQueue::Block), 64, 64)).unwrap();
    let publishers = [(); 2].map(|()| plane.attach(id, Role::Publisher).unwrap());
    let [slow, fast] = ["", ""].map(|prefix| plane.subscriber(id, prefix));
    (0..8).for_each(|_| assert!(plane.send(at(0), publishers[0], "x").is_ok()));
    for publisher in publishers {
        assert_eq!(plane.send(at(0), publisher, "y"), Err(PublishError::Held));
        assert_eq!(plane.send(at(0), publisher, "y"), Err(PublishError::Held));
    }
    plane.drain(at(0), fast);
    assert_eq!((plane.next_resumed(None), plane.channel_status(id).unwrap().blocked), (None, 1));
    for _ in 0..4 {
        let delivery = plane.next_delivery(at(0), slow).unwrap();
        plane.delivered(slow, delivery.handle).unwrap();
    }
    assert_eq!(plane.next_resumed(None), Some(publishers[0]));
    assert_eq!(plane.send(at(0), publishers[0], "y"), Ok(9));
    assert_eq!(plane.next_resumed(None), Some(publishers[1]));
    assert_eq!((plane.next_resumed(None), plane.counters().held), (None, 4));
    (0..3).for_each(|_| assert!(plane.send(at(0), publishers[0], "z").is_ok()));
    assert_eq!(plane.send(at(0), publishers[1], "z"), Err(PublishError::Held));
    assert!(plane.detach(slow, |_| {}));
    plane.drain(at(0), fast);
    assert_eq!(plane.next_resumed(None), Some(publishers[1]), "the subscriber that blocked is gone");
}

#[test]
fn pullers_share_messages_in_turn_and_one_that_leaves_leaves_its_own_to_others() {
    let mut plane = plane(64);
    let id = plane.add_channel(channel("work", pushes(), 64, 64)).unwrap();
    assert_eq!(plane.attach(id, Role::Subscriber), Err(AttachError::Role(Role::Subscriber)));
    let pusher = plane.attach(id, Role::Pusher).unwrap();
    (0..8).for_each(|_| assert!(plane.send(at(0), pusher, "early").is_ok()));
    assert_eq!(plane.send(at(0), pusher, "late"), Err(PublishError::Held), "nobody pulls");
    let pullers = [(); 2].map(|()| plane.attach(id, Role::Puller).unwrap());
    assert_eq!(plane.next_resumed(None), Some(pusher));
    (0..4).for_each(|_| assert!(plane.send(at(0), pusher, "late").is_ok()));
    let waiting = pullers.map(|puller| plane.peer_status(puller).unwrap().waiting);
    assert_eq!(waiting, [8, 4], "the second one gets what the first one has no room for");
    let lost = plane.next_delivery(at(0), pullers[0]).unwrap();
    assert_eq!(lost.sequence, 1);
    assert!(plane.detach(pullers[0], |_| {}));
    let mut numbers: Vec<u64> = plane.drain(at(0), pullers[1]).into_iter().map(|(n, _)| n).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=12).collect::<Vec<_>>());
    assert_eq!((plane.channel_status(id).unwrap().counters.lost, plane.occupancy().messages), (1, 0));
}

#[test]
fn a_pusher_that_waits_for_memory_goes_on_when_some_is_released() {
    let mut plane = plane(16);
    let mut config = channel("work", pushes(), 2, 3);
    config.message_len_max = 2 * BLOCK as u32;
    let id = plane.add_channel(config).unwrap();
    let [pusher, puller] = [Role::Pusher, Role::Puller].map(|role| plane.attach(id, role).unwrap());
    let long = "x".repeat(100);
    assert_eq!(plane.send(at(0), pusher, &long), Ok(1));
    assert_eq!(plane.send(at(0), pusher, &long), Err(PublishError::Held));
    assert_eq!(plane.next_resumed(None), None);
    let delivery = plane.next_delivery(at(0), puller).unwrap();
    assert_eq!(plane.next_resumed(None), None, "it is in flight");
    plane.delivered(puller, delivery.handle).unwrap();
    assert_eq!((plane.next_resumed(None), plane.next_resumed(None)), (Some(pusher), None));
    assert_eq!(plane.send(at(0), pusher, &long), Ok(2));
}

#[test]
fn a_late_subscriber_gets_last_values_that_no_earlier_subscription_gave() {
    let mut plane = plane(64);
    let cache = Some(CacheConfig { key: LastValueKey::Topic, entries: 3, bytes: 16 * BLOCK });
    let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropOldest, cache };
    let id = plane.add_channel(channel("c", kind, 0, 64)).unwrap();
    let publisher = plane.attach(id, Role::Publisher).unwrap();
    for (topic, value) in [("old", "0"), ("a", "1"), ("ab", "2"), ("a", "3"), ("b", "4")] {
        let frames = [topic.len() as u32, 1];
        plane
            .publish_as(
                at(0),
                publisher,
                FormatId::UNKNOWN,
                &frames,
                [topic.as_bytes(), value.as_bytes()].into_iter(),
            )
            .unwrap();
    }
    let peer = plane.subscriber(id, "ab");
    let delivery = plane.next_delivery(at(0), peer).unwrap();
    assert_eq!((delivery.sequence, delivery.cached), (3, true));
    plane.delivered(peer, delivery.handle).unwrap();
    plane.subscribe(at(0), peer, b"a").unwrap();
    assert_eq!(plane.drain(at(0), peer), [(4, "a3".into())]);
    plane.subscribe(at(0), peer, b"").unwrap();
    assert_eq!(plane.drain(at(0), peer), [(5, "b4".into())], "the oldest key was evicted");
    plane.subscribe(at(0), peer, b"").unwrap();
    assert_eq!(plane.drain(at(0), peer), []);
    assert_eq!((plane.channel_status(id).unwrap().cached, plane.occupancy().messages), (3, 3));
    assert_eq!(plane.remove_channel(id).unwrap().replayed, 3);
    assert_eq!(plane.occupancy().messages, 0);
}

#[test]
fn a_channel_that_is_removed_leaves_nothing_and_its_names_are_stale() {
    let mut plane = plane(64);
    let configs = [channel("a", drops(FullQueue::Block), 64, 64), channel("b", pushes(), 1, 1)];
    let id = plane.add_channel(configs[0].clone()).unwrap();
    assert_eq!(plane.add_channel(configs[0].clone()), Err(ChannelError::Exists));
    assert!(
        matches!(plane.add_channel(configs[1].clone()), Err(ChannelError::Budget(_))),
        "all is guaranteed to a"
    );
    let publisher = plane.attach(id, Role::Both).unwrap();
    plane.subscribe(at(0), publisher, b"prefix").unwrap();
    (0..9).for_each(|_| _ = plane.send(at(0), publisher, "prefix"));
    let delivery = plane.next_delivery(at(0), publisher).unwrap();
    assert_eq!(plane.remove_channel(id).map(|counters| (counters.published, counters.held)), Some((8, 1)));
    assert_eq!((plane.remove_channel(id), plane.counters().unknown), (None, 1));
    assert_eq!((plane.occupancy().blocks_used, plane.peers(), plane.subscription_counts().nodes), (0, 0, 0));
    assert_eq!((plane.next_resumed(None), plane.next_flow()), (None, None));
    assert_eq!(plane.delivered(publisher, delivery.handle), Err(DeliveredError::UnknownPeer));
    assert_eq!(plane.attach(id, Role::Both), Err(AttachError::UnknownChannel));
    let again = plane.add_channel(configs[0].clone()).unwrap();
    assert_eq!((again.index, plane.channel_status(id)), (id.index, None));
    let pusher =
        plane.add_channel(ChannelConfig { budget: Budget { guaranteed: 0, max: 64 }, ..configs[1].clone() });
    assert!(
        matches!(pusher, Err(ChannelError::MessageLength { .. })),
        "publishers that wait need a guarantee"
    );
}

#[test]
fn a_saturated_channel_does_not_keep_the_worker_from_others() {
    let mut plane = plane(64);
    let [busy, calm] = ["busy", "calm"]
        .map(|name| plane.add_channel(channel(name, drops(FullQueue::DropOldest), 0, 64)).unwrap());
    let publishers = [busy, calm].map(|id| plane.attach(id, Role::Publisher).unwrap());
    let [first, second, _] = [busy, busy, calm].map(|id| plane.subscriber(id, ""));
    (0..8).for_each(|_| _ = plane.send(at(0), publishers[0], "x"));
    plane.send(at(0), publishers[1], "y").unwrap();
    let mut served = Vec::new();
    for _ in 0..3 {
        let mut turn = plane.next_flow().unwrap();
        while let Some(peer) = plane.next_peer(&turn) {
            let delivery = plane.next_delivery(at(0), peer).unwrap();
            plane.delivered(peer, delivery.handle).unwrap();
            turn.charge(delivery.len);
            served.push(peer);
        }
        plane.end_turn(turn);
    }
    let third = served[4];
    assert_eq!(plane.peer_status(third).unwrap().channel, calm);
    let mut peers = served.clone();
    peers.retain(|peer| *peer != third);
    assert_eq!(peers, [second, first].repeat(4), "{served:?}");
}

/// The seeds of a test; `CSP_SEED=n` replays one.
fn seeds() -> std::ops::Range<u64> {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.map_or(0..100, |seed| seed..seed + 1)
}

/// Pullers that come, go, stop and read, with little memory: each message reaches one puller once, or is
/// counted as lost.
#[test]
fn pushed_messages_are_neither_lost_nor_doubled() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let mut plane = plane(24);
        let id = plane.add_channel(channel("work", pushes(), 20, 20)).unwrap();
        let pushers = [(); 2].map(|()| plane.attach(id, Role::Pusher).unwrap());
        // Each with what it was given and has not finished with.
        let mut pullers: Vec<(PeerId, Vec<Delivery>)> = Vec::new();
        let (mut got, mut lost) = (Vec::new(), 0);
        for _ in 0..2_000 {
            let text = "x".repeat(random.below(64) as usize);
            let (act, at_puller) = (random.below(20), random.below(pullers.len() as u64) as usize);
            let few = pullers.len() < 5;
            match (act, pullers.get_mut(at_puller)) {
                (0, _) if few => pullers.push((plane.attach(id, Role::Puller).unwrap(), Vec::new())),
                (1, Some(_)) => {
                    let (puller, in_flight) = pullers.swap_remove(at_puller);
                    lost += in_flight.len() as u64;
                    assert!(plane.detach(puller, |_| {}));
                }
                (2, Some((puller, _))) => plane.set_parked(*puller, random.below(4) == 0),
                (3..8, Some((puller, in_flight))) => in_flight.extend(plane.next_delivery(at(0), *puller)),
                (8..12, Some((puller, in_flight))) if !in_flight.is_empty() => {
                    let delivery = in_flight.remove(0);
                    plane.delivered(*puller, delivery.handle).unwrap();
                    got.push(delivery.sequence);
                }
                (12, _) => _ = plane.next_resumed(None),
                _ => _ = plane.send(at(0), pushers[random.below(2) as usize], &text),
            }
        }
        for (puller, in_flight) in pullers.drain(..) {
            lost += in_flight.len() as u64;
            assert!(plane.detach(puller, |_| {}));
        }
        let last = plane.attach(id, Role::Puller).unwrap();
        got.extend(plane.drain(at(0), last).into_iter().map(|(n, _)| n));
        let status = plane.channel_status(id).unwrap();
        let (count, before) = (got.len() as u64, status.counters.lost);
        got.sort_unstable();
        got.dedup();
        assert_eq!((got.len() as u64, before), (count, lost), "seed {seed}: a message came twice");
        assert_eq!((count + lost, plane.occupancy().messages), (status.sequence, 0), "seed {seed}");
        assert!(count > 100, "seed {seed}: {count}");
    }
}

/// Readers, stopped readers and lack of memory in any order: every number that a subscriber misses was
/// counted as dropped.
#[test]
fn numbers_are_missing_only_where_a_drop_was_counted() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let mut plane = plane(24);
        let policies = [FullQueue::DropNewest, FullQueue::DropOldest];
        let ids = policies.map(|policy| {
            let name = format!("{policy:?}");
            plane.add_channel(channel(&name, drops(policy), 4, 20)).unwrap()
        });
        let publishers = ids.map(|id| plane.attach(id, Role::Publisher).unwrap());
        let readers: Vec<(usize, PeerId)> =
            (0..8).map(|n| (n % 2, plane.subscriber(ids[n % 2], ""))).collect();
        let (mut last, mut got) = ([0u64; 8], [0u64; 8]);
        for now in 0..2_000 {
            let n = random.below(2) as usize;
            let _ = plane.send(at(10 * now), publishers[n], &"x".repeat(random.below(64) as usize));
            // The first readers read more often than the last.
            let readers_now = 1 + random.below(8);
            let reader = random.below(readers_now) as usize;
            while random.below(3) > 0
                && let Some(delivery) = plane.next_delivery(at(10 * now), readers[reader].1)
            {
                assert!(delivery.sequence > last[reader], "seed {seed}");
                (last[reader], got[reader]) = (delivery.sequence, got[reader] + 1);
                plane.delivered(readers[reader].1, delivery.handle).unwrap();
            }
        }
        for (at, (channel, reader)) in readers.iter().enumerate() {
            let (status, published) =
                (plane.peer_status(*reader).unwrap(), plane.channel_status(ids[*channel]).unwrap().sequence);
            let known = got[at] + status.waiting as u64 + status.counters.dropped();
            assert_eq!(known, published, "seed {seed}: {status:?}");
        }
        ids.iter().for_each(|id| _ = plane.remove_channel(*id).unwrap());
        assert_eq!(plane.occupancy().blocks_used, 0, "seed {seed}");
    }
}
