//! The subscriptions of all channels, by topic prefix.
//!
//! A subscription matches the topics that begin with its prefix; the empty prefix matches all. A subscriber
//! subscribes to a prefix or does not: the same subscription made twice ends with its first cancellation, as
//! at an XPUB of libzmq. A SUB of libzmq counts for itself, and sends SUBSCRIBE each time but CANCEL for the
//! last one only.
//!
//! ```text
//!   prefixes        a trie per channel ([`Trie`])          entries of a node, entries of a subscriber
//!   "", "a.b",      (root) ─"a."─▶ ( ) ─"b"─▶ (1)          node (1):  ▶ {s1} ▶ {s2}
//!   "a.c"                            └──"c"─▶ (2)          s1: ▶ {root} ▶ {(1)}
//! ```
//!
//! An entry is one subscriber's subscription to one prefix. It is in the list of its node, for matching, and
//! in the list of its subscriber, for removal. A topic of L bytes is matched in O(L + entries on its path):
//! one step per node, none of which searches. Nothing is recursive, and nothing allocates after construction.

mod trie;

use thiserror::Error;

use crate::list::NIL;
use crate::table::{HashKey, Table};
use trie::Trie;

/// Largest length of a topic or prefix in bytes that can be configured.
pub const TOPIC_LEN_LIMIT: usize = 1024;

/// Bounds of subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubscriptionsConfig {
    /// Longest topic and prefix in bytes, at most [`TOPIC_LEN_LIMIT`].
    pub topic_len_max: u32,
    /// Entries of all channels. One takes 48 bytes.
    pub entries_max: u32,
    /// Trie nodes of all channels. One takes 48 bytes and stores up to 15 bytes of prefixes.
    pub nodes_max: u32,
    /// Entries of one channel.
    pub channel_entries_max: u32,
    /// Trie nodes of one channel.
    pub channel_nodes_max: u32,
    /// Entries of one subscriber.
    pub subscriber_entries_max: u32,
}

impl Default for SubscriptionsConfig {
    /// A quarter of all for one channel, so that no channel's clients take the whole; and as many for one
    /// subscriber as are removed within some 20 ms when it leaves.
    fn default() -> Self {
        SubscriptionsConfig {
            topic_len_max: 255,
            entries_max: 1 << 20,
            nodes_max: 1 << 21,
            channel_entries_max: 1 << 18,
            channel_nodes_max: 1 << 19,
            subscriber_entries_max: 1 << 16,
        }
    }
}

/// Why a prefix is not subscribed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SubscribeError {
    /// The prefix is longer than topics may be; contains its length in bytes.
    #[error("a topic has fewer bytes than {0}")]
    TooLong(usize),
    /// The subscriber has as many subscriptions as it may have.
    #[error("the subscriber has as many subscriptions as one may have")]
    SubscriberFull,
    /// The channel has as many subscriptions, or as long ones, as it may have.
    #[error("the channel has as many subscriptions as one may have")]
    ChannelFull,
    /// The worker has no memory for more subscriptions.
    #[error("the worker has as many subscriptions as it may have")]
    Full,
    /// The peer is not attached, or does not subscribe.
    #[error("the peer is no subscriber")]
    NotASubscriber,
}

/// How many subscriptions there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubscriptionCounts {
    /// Subscriptions, without repeats.
    pub entries: u32,
    /// Trie nodes.
    pub nodes: u32,
}

/// One subscriber's subscription to one prefix. Of a free entry `at_node.1` is the next free one; nothing
/// refers to it otherwise.
#[derive(Clone, Copy, Debug)]
struct Entry {
    node: u32,
    subscriber: u32,
    /// The caller's stamp of the subscription.
    stamp: u64,
    /// (previous, next) of the node.
    at_node: (u32, u32),
    /// (previous, next) of the subscriber.
    of_subscriber: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct Subscriber {
    first: u32,
    entries: u32,
    /// The matching that has found the subscriber last.
    found_by: u64,
}

/// The subscriptions of all channels of a worker.
#[derive(Debug)]
pub struct Subscriptions {
    config: SubscriptionsConfig,
    trie: Trie,
    entries: Vec<Entry>,
    free_entry: u32,
    entries_used: u32,
    /// Entries by (node, subscriber).
    table: Table,
    key: HashKey,
    subscribers: Vec<Subscriber>,
    /// By channel.
    channel_entries: Vec<u32>,
    matchings: u64,
}

impl Subscriptions {
    /// No subscriptions, of up to `subscribers` subscribers to `channels` channels. Both are named by their
    /// indices.
    pub fn new(config: SubscriptionsConfig, channels: usize, subscribers: usize, key: HashKey) -> Self {
        let topic_len_max = config.topic_len_max.min(TOPIC_LEN_LIMIT as u32);
        let entries = config.entries_max as usize;
        Subscriptions {
            config: SubscriptionsConfig { topic_len_max, ..config },
            trie: Trie::new(config.nodes_max, config.channel_nodes_max, channels, key),
            entries: Vec::with_capacity(entries),
            free_entry: NIL,
            entries_used: 0,
            table: Table::new(entries),
            key,
            subscribers: vec![Subscriber { first: NIL, entries: 0, found_by: 0 }; subscribers],
            channel_entries: vec![0; channels],
            matchings: 0,
        }
    }

    /// Longest topic in bytes.
    pub fn topic_len_max(&self) -> usize {
        self.config.topic_len_max as usize
    }

    /// Returns the counts of a channel.
    pub fn counts(&self, channel: u16) -> SubscriptionCounts {
        let entries = self.channel_entries.get(usize::from(channel)).copied().unwrap_or(0);
        SubscriptionCounts { entries, nodes: self.trie.nodes_of(channel) }
    }

    /// Returns the counts of all channels.
    pub fn totals(&self) -> SubscriptionCounts {
        SubscriptionCounts { entries: self.entries_used, nodes: self.trie.len() }
    }

    /// Returns the number of a subscriber's subscriptions, without repeats.
    pub fn entries_of(&self, subscriber: u32) -> u32 {
        self.subscribers.get(subscriber as usize).map_or(0, |subscriber| subscriber.entries)
    }

    /// Subscribes to `prefix`; a new subscription has the caller's `stamp`. Returns what has changed.
    ///
    /// # Errors
    /// When a bound is reached, or the subscriber or channel is not one of those that the index was made for.
    pub fn subscribe(
        &mut self,
        channel: u16,
        subscriber: u32,
        prefix: &[u8],
        stamp: u64,
    ) -> Result<Change, SubscribeError> {
        if prefix.len() > self.topic_len_max() {
            return Err(SubscribeError::TooLong(prefix.len()));
        }
        if let Some(node) = self.trie.find(channel, prefix)
            && self.find(node, subscriber).is_some()
        {
            return Ok(Change { entry: false, prefix: false });
        }
        let known = self.subscribers.get(subscriber as usize).ok_or(SubscribeError::NotASubscriber)?;
        if known.entries >= self.config.subscriber_entries_max {
            return Err(SubscribeError::SubscriberFull);
        }
        let of_channel = self.channel_entries.get(usize::from(channel)).copied();
        if of_channel.is_none_or(|entries| entries >= self.config.channel_entries_max) {
            return Err(SubscribeError::ChannelFull);
        }
        if self.entries_used >= self.config.entries_max {
            return Err(SubscribeError::Full);
        }
        let node = self.trie.insert(channel, prefix)?;
        let is_new = self.trie.first_entry(node) == NIL;
        self.link(channel, node, subscriber, stamp);
        Ok(Change { entry: true, prefix: is_new })
    }

    fn link(&mut self, channel: u16, node: u32, subscriber: u32, stamp: u64) {
        let (first_at_node, first_of) =
            (self.trie.first_entry(node), self.subscribers[subscriber as usize].first);
        let (at_node, of_subscriber) = ((NIL, first_at_node), (NIL, first_of));
        let made = Entry { node, subscriber, stamp, at_node, of_subscriber };
        let entry = match self.free_entry {
            NIL => {
                self.entries.push(made);
                self.entries.len() as u32 - 1
            }
            entry => {
                self.free_entry = std::mem::replace(&mut self.entries[entry as usize], made).at_node.1;
                entry
            }
        };
        if let Some(next) = self.entries.get_mut(first_at_node as usize) {
            next.at_node.0 = entry;
        }
        if let Some(next) = self.entries.get_mut(first_of as usize) {
            next.of_subscriber.0 = entry;
        }
        self.trie.set_first_entry(node, entry);
        let known = &mut self.subscribers[subscriber as usize];
        (known.first, known.entries) = (entry, known.entries + 1);
        self.entries_used += 1;
        self.channel_entries[usize::from(channel)] += 1;
        self.table.insert(self.key.pair(node, subscriber), entry);
    }

    fn find(&self, node: u32, subscriber: u32) -> Option<u32> {
        let is_it = |entry: u32| {
            let entry = &self.entries[entry as usize];
            entry.node == node && entry.subscriber == subscriber
        };
        self.table.find(self.key.pair(node, subscriber), is_it)
    }

    /// Cancels the subscription to `prefix`, however often it was made; `None` if there is none.
    pub fn cancel(&mut self, channel: u16, subscriber: u32, prefix: &[u8]) -> Option<Change> {
        let node = self.trie.find(channel, prefix)?;
        let entry = self.find(node, subscriber)?;
        self.unlink(channel, entry);
        let is_gone = self.trie.first_entry(node) == NIL;
        if is_gone {
            self.trie.prune(node);
        }
        Some(Change { entry: true, prefix: is_gone })
    }

    fn unlink(&mut self, channel: u16, entry: u32) {
        let Entry { node, subscriber, at_node, of_subscriber, .. } = self.entries[entry as usize];
        match self.entries.get_mut(at_node.0 as usize) {
            Some(previous) => previous.at_node.1 = at_node.1,
            None => self.trie.set_first_entry(node, at_node.1),
        }
        if let Some(next) = self.entries.get_mut(at_node.1 as usize) {
            next.at_node.0 = at_node.0;
        }
        let known = &mut self.subscribers[subscriber as usize];
        known.entries -= 1;
        match self.entries.get_mut(of_subscriber.0 as usize) {
            Some(previous) => previous.of_subscriber.1 = of_subscriber.1,
            None => known.first = of_subscriber.1,
        }
        if let Some(next) = self.entries.get_mut(of_subscriber.1 as usize) {
            next.of_subscriber.0 = of_subscriber.0;
        }
        self.table.remove(self.key.pair(node, subscriber), entry);
        self.entries[entry as usize].at_node.1 = self.free_entry;
        self.free_entry = entry;
        self.entries_used -= 1;
        self.channel_entries[usize::from(channel)] -= 1;
    }

    /// Cancels all subscriptions of a subscriber to its channel. Calls `gone` with each prefix that has no
    /// subscriber any more. The time depends on the subscriber's own subscriptions alone.
    pub fn remove_subscriber(&mut self, channel: u16, subscriber: u32, mut gone: impl FnMut(&[u8])) {
        let mut prefix = [0; TOPIC_LEN_LIMIT];
        while let Some(entry) = self.subscribers.get(subscriber as usize).map(|known| known.first) {
            let Some(node) = self.entries.get(entry as usize).map(|entry| entry.node) else { break };
            self.unlink(channel, entry);
            if self.trie.first_entry(node) == NIL {
                gone(self.trie.prefix(node, &mut prefix));
                self.trie.prune(node);
            }
        }
        if let Some(known) = self.subscribers.get_mut(subscriber as usize) {
            known.found_by = 0;
        }
    }

    /// Calls `found` once with each subscriber of the topic. A topic longer than the longest prefix is
    /// permitted.
    pub fn matches(&mut self, channel: u16, topic: &[u8], mut found: impl FnMut(u32)) {
        self.matchings += 1;
        let Subscriptions { trie, entries, subscribers, matchings, .. } = self;
        trie.walk(channel, topic, |first_entry, _| {
            let mut at = first_entry;
            while let Some(entry) = entries.get(at as usize) {
                at = entry.at_node.1;
                let Some(known) = subscribers.get_mut(entry.subscriber as usize) else { continue };
                if known.found_by != *matchings {
                    known.found_by = *matchings;
                    found(entry.subscriber);
                }
            }
        });
    }

    /// Returns how many of the channel's subscriptions are of prefixes of `topic`.
    pub fn count(&self, channel: u16, topic: &[u8]) -> usize {
        let mut count = 0;
        self.trie.walk(channel, topic, |first_entry, _| {
            let mut at = first_entry;
            while let Some(entry) = self.entries.get(at as usize) {
                (at, count) = (entry.at_node.1, count + 1);
            }
        });
        count
    }

    /// Returns the stamp of the subscriber's earliest subscription to prefixes of `topic`; `None` if there is
    /// none.
    pub fn earliest_of(&self, channel: u16, topic: &[u8], subscriber: u32) -> Option<u64> {
        let mut earliest = None;
        self.trie.walk(channel, topic, |_, node| {
            let found = self.find(node, subscriber).map(|entry| self.entries[entry as usize].stamp);
            earliest = earliest.into_iter().chain(found).min();
        });
        earliest
    }

    /// Calls `each` with prefixes that the channel's subscribers subscribe to, in no particular order. Looks
    /// at up to `nodes_max` trie nodes from `cursor` on, and returns the cursor for the next call; `None`
    /// after the last.
    ///
    /// Start with 0. A prefix that exists during all calls is passed exactly once; one that appears or
    /// disappears meanwhile may be, and is reported by [`subscribe`](Self::subscribe) and
    /// [`cancel`](Self::cancel) in any case.
    pub fn prefixes(
        &self,
        channel: u16,
        cursor: u32,
        nodes_max: u32,
        each: impl FnMut(&[u8]),
    ) -> Option<u32> {
        self.trie.prefixes(channel, cursor, nodes_max, each)
    }

    /// Calls `each` with up to `max` prefixes that a subscriber subscribes to, the latest first. Returns how
    /// many it has.
    pub fn prefixes_of(&self, subscriber: u32, max: u32, mut each: impl FnMut(&[u8])) -> u32 {
        let Some(known) = self.subscribers.get(subscriber as usize) else { return 0 };
        let (mut space, mut at) = ([0; TOPIC_LEN_LIMIT], known.first);
        for _ in 0..max {
            let Some(entry) = self.entries.get(at as usize) else { break };
            each(self.trie.prefix(entry.node, &mut space));
            at = entry.of_subscriber.1;
        }
        known.entries
    }

    /// Adds the root of a channel. Returns `false` if no node is free.
    pub(crate) fn add_channel(&mut self, channel: u16) -> bool {
        self.trie.add_root(channel)
    }

    /// Removes the root of a channel, whose subscriptions are removed.
    pub(crate) fn remove_channel(&mut self, channel: u16) {
        self.trie.remove_root(channel);
    }
}

/// What a subscription or cancellation changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The subscriber has one subscription more or less: the call was not a repeat.
    pub entry: bool,
    /// The channel has one prefix more or less, which its publishers are to know.
    pub prefix: bool,
}

#[cfg(test)]
mod tests;
