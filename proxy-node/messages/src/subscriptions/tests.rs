use std::collections::BTreeSet;

use super::*;
use proptest::prelude::*;

const KEY: HashKey = HashKey([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211]);

fn index(config: SubscriptionsConfig) -> Subscriptions {
    let mut index = Subscriptions::new(config, 2, 8, KEY);
    assert!(index.add_channel(0) && index.add_channel(1) && !index.add_channel(1) && !index.add_channel(2));
    index
}

fn small() -> Subscriptions {
    index(SubscriptionsConfig { entries_max: 4_096, nodes_max: 16_384, ..Default::default() })
}

fn found(index: &mut Subscriptions, channel: u16, topic: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    index.matches(channel, topic, |subscriber| found.push(subscriber));
    found.sort_unstable();
    found
}

#[test]
fn a_prefix_matches_topics_that_begin_with_it_in_its_channel() {
    let mut index = small();
    for (subscriber, prefix) in [(0, ""), (1, "a"), (2, "ab"), (3, "abc"), (4, "b"), (1, "ab")] {
        let is_new = (subscriber, prefix) != (1, "ab");
        let change = index.subscribe(0, subscriber, prefix.as_bytes(), 0).unwrap();
        assert_eq!(change, Change { entry: true, prefix: is_new });
    }
    for (topic, expected) in [
        ("", &[0][..]),
        ("a", &[0, 1]),
        ("ab", &[0, 1, 2]),
        ("abcd", &[0, 1, 2, 3]),
        ("ba", &[0, 4]),
        ("c", &[0]),
    ] {
        assert_eq!(found(&mut index, 0, topic.as_bytes()), expected, "{topic}");
        assert!(found(&mut index, 1, topic.as_bytes()).is_empty());
    }
    assert_eq!((index.earliest_of(0, b"abcd", 1), index.earliest_of(0, b"abcd", 4)), (Some(0), None));
}

#[test]
fn a_subscription_made_twice_ends_with_the_first_cancellation() {
    let mut index = small();
    let (repeat, change) = (Change { entry: false, prefix: false }, Change { entry: true, prefix: true });
    assert_eq!(index.subscribe(0, 1, b"x", 0), Ok(change));
    assert_eq!(index.subscribe(0, 1, b"x", 0), Ok(repeat));
    assert_eq!(found(&mut index, 0, b"xyz"), [1]);
    assert_eq!(index.cancel(0, 1, b"x"), Some(change));
    assert_eq!((found(&mut index, 0, b"xyz"), index.cancel(0, 1, b"x")), (vec![], None));
    assert_eq!(index.totals(), SubscriptionCounts { entries: 0, nodes: 2 }, "the roots remain");
}

#[test]
fn bounds_refuse_and_change_nothing() {
    let config = SubscriptionsConfig {
        topic_len_max: 100,
        entries_max: 5,
        nodes_max: 20,
        channel_entries_max: 4,
        channel_nodes_max: 10,
        subscriber_entries_max: 3,
    };
    let mut index = index(config);
    assert_eq!(index.subscribe(0, 0, &[b'x'; 1 << 20], 0), Err(SubscribeError::TooLong(1 << 20)));
    assert_eq!(index.subscribe(0, 8, b"x", 0), Err(SubscribeError::NotASubscriber));
    assert_eq!(index.subscribe(2, 0, b"x", 0), Err(SubscribeError::ChannelFull));
    (0..3u8).for_each(|n| assert!(index.subscribe(0, 0, &[n], 0).is_ok()));
    assert_eq!(index.subscribe(0, 0, b"x", 0), Err(SubscribeError::SubscriberFull));
    assert!(index.subscribe(0, 1, b"x", 0).is_ok());
    assert_eq!(index.subscribe(0, 1, b"y", 0), Err(SubscribeError::ChannelFull));
    assert!(index.subscribe(1, 2, b"y", 0).is_ok());
    assert_eq!(index.subscribe(1, 2, b"z", 0), Err(SubscribeError::Full));
    assert!(index.subscribe(1, 2, b"y", 0).is_ok(), "a repeat needs no memory");
    index.remove_subscriber(0, 0, |_| {});
    assert_eq!(index.subscribe(0, 3, &[b'l'; 100], 0).unwrap(), Change { entry: true, prefix: true });
    let before = index.counts(0);
    assert_eq!(index.subscribe(0, 4, &[b'm'; 100], 0), Err(SubscribeError::ChannelFull), "too many nodes");
    assert_eq!(index.counts(0), before);
}

/// Chains of prefixes a, aa, aaa … of the greatest length, from all subscribers: the trie is as deep as
/// topics are long.
#[test]
fn chains_of_prefixes_are_matched_once_and_leave_nothing() {
    let mut index = index(SubscriptionsConfig { topic_len_max: 1024, ..Default::default() });
    let chain = [b'a'; 1024];
    for subscriber in 0..8 {
        for len in 0..=1024 {
            assert!(index.subscribe(0, subscriber, &chain[..len], 0).is_ok());
        }
    }
    assert_eq!(found(&mut index, 0, &chain), (0..8).collect::<Vec<_>>());
    assert_eq!(found(&mut index, 0, &[b'a'; 5_000]), (0..8).collect::<Vec<_>>(), "a topic can be longer");
    let mut gone = 0;
    for subscriber in 0..8 {
        assert_eq!(gone, 0, "others subscribe to the same");
        index
            .remove_subscriber(0, subscriber, |prefix| gone += usize::from(prefix == &chain[..prefix.len()]));
    }
    assert_eq!((gone, index.counts(0)), (1025, SubscriptionCounts { entries: 0, nodes: 1 }));
}

#[test]
fn prefixes_are_enumerated_in_steps() {
    let mut index = small();
    let names: BTreeSet<Vec<u8>> = (0..500).map(|n| format!("topic/{}/{n}", n % 7).into_bytes()).collect();
    names.iter().for_each(|name| assert!(index.subscribe(1, 0, name, 0).is_ok()));
    assert!(index.subscribe(0, 0, b"of another channel", 0).is_ok());
    let (mut seen, mut cursor, mut steps) = (BTreeSet::new(), Some(0), 0);
    while let Some(at) = cursor {
        cursor = index.prefixes(1, at, 64, |prefix| assert!(seen.insert(prefix.to_vec())));
        steps += 1;
    }
    assert_eq!(seen, names);
    assert!(steps > 8, "{steps}");
}

/// What the index is to do, in the plainest form.
#[derive(Default)]
struct Model(BTreeSet<(u16, u32, Vec<u8>)>);

impl Model {
    fn has_prefix(&self, channel: u16, prefix: &[u8]) -> bool {
        self.0.iter().any(|(c, _, p)| *c == channel && p == prefix)
    }

    fn found(&self, channel: u16, topic: &[u8]) -> Vec<u32> {
        let keys = self.0.iter().filter(|(c, _, p)| *c == channel && topic.starts_with(p));
        keys.map(|(_, subscriber, _)| *subscriber).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Distinct prefixes and their bytes.
    fn size(&self, channel: u16) -> (usize, usize) {
        let prefixes: BTreeSet<_> = self.0.iter().filter(|key| key.0 == channel).map(|key| &key.2).collect();
        (prefixes.len(), prefixes.iter().map(|prefix| prefix.len()).sum())
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// To the channel of the subscriber's number.
    Subscribe(u32, Vec<u8>),
    Cancel(u16, u32, Vec<u8>),
    Remove(u32),
    Match(u16, Vec<u8>),
}

/// Few letters, so that prefixes share much; long ones need several nodes.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(prop::sample::select(vec![b'a', b'b']), 0..6),
        1 => prop::collection::vec(prop::sample::select(vec![b'a', b'b', 0, 255]), 0..60),
        1 => (0..60usize).prop_map(|len| vec![b'a'; len]),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..8u32, text()).prop_map(|(s, p)| Act::Subscribe(s, p)),
        4 => (0..2u16, 0..8u32, text()).prop_map(|(c, s, p)| Act::Cancel(c, s, p)),
        1 => (0..8u32).prop_map(Act::Remove),
        4 => (0..2u16, text()).prop_map(|(c, t)| Act::Match(c, t)),
    ]
}

fn check(acts: Vec<Act>) -> Result<(), TestCaseError> {
    let (mut index, mut model) = (small(), Model::default());
    for act in acts {
        match act {
            Act::Subscribe(s, prefix) => {
                let (c, is_new) = ((s % 2) as u16, !model.has_prefix((s % 2) as u16, &prefix));
                let change =
                    index.subscribe(c, s, &prefix, 0).map_err(|e| TestCaseError::fail(e.to_string()))?;
                let entry = model.0.insert((c, s, prefix));
                prop_assert_eq!(change, Change { entry, prefix: is_new });
            }
            Act::Cancel(c, s, prefix) => {
                let change = index.cancel(c, s, &prefix);
                let key = (c, s, prefix);
                let expected = model.0.remove(&key).then(|| !model.has_prefix(c, &key.2));
                prop_assert_eq!(change, expected.map(|prefix| Change { entry: true, prefix }));
            }
            Act::Remove(s) => {
                let before = model.0.clone();
                model.0.retain(|key| key.1 != s);
                let mut gone = BTreeSet::new();
                index.remove_subscriber((s % 2) as u16, s, |prefix| assert!(gone.insert(prefix.to_vec())));
                let own = before.iter().filter(|key| key.1 == s && !model.has_prefix(key.0, &key.2));
                prop_assert_eq!(gone, own.map(|key| key.2.clone()).collect::<BTreeSet<_>>());
            }
            Act::Match(c, topic) => prop_assert_eq!(found(&mut index, c, &topic), model.found(c, &topic)),
        }
        for channel in 0..2 {
            let ((prefixes, bytes), counts) = (model.size(channel), index.counts(channel));
            let nodes_max = 1 + 2 * prefixes + 2 * bytes / 15 + prefixes;
            prop_assert!(counts.nodes as usize <= nodes_max, "{} nodes, {}", counts.nodes, nodes_max);
            prop_assert_eq!(counts.entries as usize, model.0.iter().filter(|key| key.0 == channel).count());
        }
    }
    (0..8).for_each(|s| index.remove_subscriber((s % 2) as u16, s, |_| {}));
    prop_assert_eq!(index.totals(), SubscriptionCounts { entries: 0, nodes: 2 });
    Ok(())
}

proptest! {
    #[test]
    fn the_index_agrees_with_a_list(acts in prop::collection::vec(act(), 1..300)) {
        check(acts)?;
    }
}

/// As many as all of a worker's channels may have, of ten subscribers; then one leaves, and then all.
#[test]
fn a_million_topics_are_matched_and_removed() {
    const TOPICS: u32 = 1_000_000;
    let all = SubscriptionsConfig::default();
    let config = SubscriptionsConfig {
        channel_entries_max: all.entries_max,
        channel_nodes_max: all.nodes_max,
        subscriber_entries_max: all.entries_max,
        ..all
    };
    let mut index = Subscriptions::new(config, 1, 10, KEY);
    assert!(index.add_channel(0));
    let topic = |n: u32| format!("site/{}/sensor/{:07}/value", n % 10, n.wrapping_mul(7_919) % 10_000_000);
    for n in 0..TOPICS {
        assert!(index.subscribe(0, n % 10, topic(n).as_bytes(), 0).unwrap().prefix);
    }
    assert_eq!(index.totals().entries, TOPICS);
    for n in (0..TOPICS).step_by(97) {
        assert_eq!(found(&mut index, 0, topic(n).as_bytes()), [n % 10]);
    }
    let mut gone = 0;
    index.remove_subscriber(0, 3, |_| gone += 1);
    assert_eq!((gone, index.totals().entries), (TOPICS / 10, TOPICS / 10 * 9));
    assert_eq!(found(&mut index, 0, topic(3).as_bytes()), [0u32; 0]);
    (0..10).for_each(|subscriber| index.remove_subscriber(0, subscriber, |_| {}));
    assert_eq!(index.totals(), SubscriptionCounts { entries: 0, nodes: 1 });
}
