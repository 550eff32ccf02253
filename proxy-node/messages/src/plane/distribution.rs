//! Who receives the messages of which channel, and the way of a message into the queues of its subscribers:
//! of one that arrives, that leaves a path, or that the link releases.
//!
//! ```text
//!   arrives ─ find ─ store ─┐
//!                           ├─ give ─▶ the queue of each subscriber that was found
//!   is stored ─ find ───────┘
//! ```
//! A message that arrives is stored only if it has a receiver, or is kept as a last value. What becomes of a
//! copy on either way is settled with the traces.

mod replay;
mod trace;

use csp_types::{Duration, Instant};

use super::api::{PeerStatus, PublishError, Published};
use super::publish::{Arrival, gather, refused};
use super::{ChannelId, PlaneConfig};
use crate::channel::Channel;
use crate::peers::{PeerId, Peers, Role};
use crate::pool::{MessagePool, PoolError};
use crate::queue::{FullQueue, Item};
use crate::subscriptions::{Change, SubscribeError, Subscriptions};
use crate::trace::{CopyState, Traces};

pub(crate) use replay::Replay;
pub(super) use trace::Drops;

/// Who receives the messages of which channel.
#[derive(Debug)]
pub(crate) struct Distribution {
    receivers: Receivers,
    /// The topic of a message whose bytes lie in several slices.
    topic: Vec<u8>,
}

/// The parts of the distribution that work on a topic, which may lie in the buffer for topics.
#[derive(Debug)]
struct Receivers {
    peers: Peers,
    subscriptions: Subscriptions,
    traces: Traces,
    /// Subscribers of the message that was distributed last, without those for which it was dropped at once.
    matched: Vec<u32>,
}

impl Receivers {
    /// Finds the subscribers of a topic. Returns their number, including those for which the message is
    /// dropped at once. `traced`: the number of the message, if a trace may have recorded it before.
    #[inline]
    fn find(&mut self, (slot, ch): (u16, &mut Channel), topic: &[u8], traced: Option<u64>) -> u32 {
        let Receivers { peers, subscriptions, traces, matched } = self;
        let mut found = 0;
        matched.clear();
        subscriptions.matches(slot, topic, |subscriber| {
            found += 1;
            if !peers.drops_newest(ch, subscriber) {
                matched.push(subscriber);
            } else if let Some(sequence) = traced {
                traces.settle(slot, sequence, peers.id(subscriber), CopyState::DroppedNewest);
            }
        });
        ch.counters.unmatched += u64::from(found == 0);
        found
    }

    /// Queues a stored message for the subscribers that were found, and keeps it as the last of its key.
    /// Takes over one reference.
    #[inline]
    fn give(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        now: Instant,
        item: Item,
        topic_len: usize,
    ) {
        let Receivers { peers, traces, matched, .. } = self;
        if let Some(cache) = &mut ch.cache {
            cache.store(pool, item.handle, topic_len);
        }
        pool.refer(item.handle, matched.len() as u32);
        for subscriber in matched.iter() {
            if let Some(dropped) = peers.push(ch, *subscriber, item, now) {
                if traces.is_armed()
                    && let Some(info) = pool.info(dropped)
                {
                    traces.settle(slot, info.sequence, peers.id(*subscriber), CopyState::DroppedOldest);
                }
                pool.release(dropped);
            }
        }
        pool.release(item.handle);
    }
}

impl Distribution {
    /// A distribution without peers. Allocates what is sized by `config`.
    pub fn new(config: &PlaneConfig) -> Self {
        let (channels, peers) = (usize::from(config.channels_max), config.peers_max as usize);
        let receivers = Receivers {
            peers: Peers::new(config.peers_max),
            subscriptions: Subscriptions::new(config.subscriptions, channels, peers, config.hash_key),
            traces: Traces::default(),
            matched: Vec::with_capacity(peers),
        };
        Distribution { receivers, topic: Vec::with_capacity(config.subscriptions.topic_len_max as usize) }
    }

    #[inline]
    pub fn peers(&self) -> &Peers {
        &self.receivers.peers
    }

    #[inline]
    pub fn peers_mut(&mut self) -> &mut Peers {
        &mut self.receivers.peers
    }

    #[inline]
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.receivers.subscriptions
    }

    #[inline]
    pub fn traces(&self) -> &Traces {
        &self.receivers.traces
    }

    #[inline]
    pub fn traces_mut(&mut self) -> &mut Traces {
        &mut self.receivers.traces
    }

    /// Prepares a slot for a channel. Returns false if there is no memory for its subscriptions.
    pub fn add_channel(&mut self, slot: u16) -> bool {
        self.receivers.subscriptions.add_channel(slot)
    }

    /// Removes the subscriptions of a channel whose peers are detached.
    pub fn remove_channel(&mut self, slot: u16) {
        self.receivers.subscriptions.remove_channel(slot);
    }

    /// Attaches a peer to a channel; `None`: the worker has too many.
    pub fn attach(&mut self, (slot, ch): (u16, &mut Channel), role: Role) -> Option<PeerId> {
        let id = self.receivers.peers.attach(ch, slot, role)?;
        ch.receivers += u32::from(role.receives());
        Some(id)
    }

    /// Detaches a peer of a channel. Calls `gone` with each prefix that has no subscriber any more.
    pub fn detach(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        (peer, role): (PeerId, Option<Role>),
        gone: impl FnMut(&[u8]),
    ) {
        let Receivers { peers, subscriptions, traces, .. } = &mut self.receivers;
        if role.is_some_and(Role::subscribes) {
            subscriptions.remove_subscriber(slot, peer.index, gone);
        }
        ch.receivers -= u32::from(role.is_some_and(Role::receives));
        if traces.is_armed() {
            traces.check(slot, |waiting, _, _| (waiting == peer).then_some(CopyState::Left));
            traces.flushed(peer);
        }
        let left = peers.detach(ch, pool, peer.index);
        ch.counters.lost += if ch.backlog_limits().is_some() { left.in_flight } else { 0 };
    }

    /// Returns the channel of a peer that subscribes.
    pub fn channel_of_subscriber(&self, peer: PeerId) -> Option<u16> {
        let known = self.receivers.peers.get(peer)?;
        known.role.filter(|role| role.subscribes()).map(|_| known.channel)
    }

    /// Adds a subscription; `stamp`: the time at which last values are counted from.
    pub fn subscribe(
        &mut self,
        (slot, subscriber): (u16, u32),
        prefix: &[u8],
        stamp: u64,
    ) -> Result<Change, SubscribeError> {
        self.receivers.subscriptions.subscribe(slot, subscriber, prefix, stamp)
    }

    /// Cancels a subscription; `None` if there is no such subscription.
    pub fn cancel(&mut self, (slot, subscriber): (u16, u32), prefix: &[u8]) -> Option<Change> {
        self.receivers.subscriptions.cancel(slot, subscriber, prefix)
    }

    /// Returns the state of a peer; `id`: the channel in the slot of the peer's channel.
    pub fn peer_status(&self, peer: PeerId, id: impl FnOnce(u16) -> ChannelId) -> Option<PeerStatus> {
        let known = self.receivers.peers.get(peer)?;
        Some(PeerStatus {
            role: known.role?,
            published: known.published,
            channel: id(known.channel),
            waiting: known.queue.len(),
            bytes_waiting: known.queue.bytes(),
            in_flight: known.queue.in_flight(),
            subscriptions: self.receivers.subscriptions.entries_of(peer.index),
            counters: known.queue.counters,
        })
    }

    /// Checks the length of the topic of a message with frames of these lengths.
    #[inline]
    pub fn check_topic(&self, frames: &[u32]) -> Result<(), PublishError> {
        match *frames {
            [first, _, ..] if first as usize > self.receivers.subscriptions.topic_len_max() => {
                Err(PublishError::TopicTooLong(first))
            }
            _ => Ok(()),
        }
    }

    /// Returns how many receivers a message has, and for how many of them a copy will take the output link.
    /// `first`: the length of its first frame; `None` if `parts` are shorter.
    pub fn copies<'a>(
        &mut self,
        (slot, ch): (u16, &Channel),
        first: u32,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<(u32, u32)> {
        if ch.backlog_limits().is_some() {
            return Some((1, 1));
        }
        let Receivers { peers, subscriptions, .. } = &mut self.receivers;
        let topic_len = subscriptions.topic_len_max().min(first as usize);
        let topic = gather(&mut self.topic, parts, topic_len)?;
        let (mut found, mut copies) = (0, 0);
        subscriptions.matches(slot, topic, |subscriber| {
            found += 1;
            copies += u32::from(peers.takes_link(ch, subscriber));
        });
        Some((found, copies))
    }

    /// Stores a message that has arrived, and queues it for all subscribers of its topic. A message without
    /// receivers is stored only if it is kept as a last value.
    #[inline]
    pub(super) fn fan_out<'a>(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
        stalled_after: Duration,
    ) -> Result<Published, PublishError> {
        self.check_topic(message.frames)?;
        let Arrival { now, frames, len, .. } = message;
        let to = &mut self.receivers;
        let topic_len = to.subscriptions.topic_len_max().min(frames[0] as usize);
        let topic =
            gather(&mut self.topic, message.parts.clone(), topic_len).ok_or(PublishError::LengthMismatch)?;
        let found = to.find((slot, ch), topic, None);
        let receivers = to.matched.len() as u32;
        if to.matched.is_empty() && ch.cache.is_none() {
            return Ok(Published { sequence: ch.number(len), receivers, dropped: found, yields: false });
        }
        let handle = loop {
            match pool.store(slot, (now, ch.sequence + 1), frames, message.parts.clone()) {
                Ok(handle) => break handle,
                Err(PoolError::Budget | PoolError::Exhausted) if ch.policy() != FullQueue::Block => {
                    if !to.peers.shed(ch, pool, now, stalled_after) {
                        ch.counters.keep_failed += u64::from(ch.cache.is_some());
                        let Receivers { peers, matched, .. } = to;
                        matched.iter().for_each(|subscriber| peers.count_dropped_memory(ch, *subscriber));
                        let sequence = ch.number(len);
                        return Ok(Published { sequence, receivers: 0, dropped: found, yields: false });
                    }
                    if to.traces.is_armed() {
                        to.trace_shed(slot, pool);
                    }
                }
                Err(error) => return Err(refused(ch, error, len)),
            }
        };
        let sequence = ch.number(len);
        to.give((slot, ch), pool, now, Item { handle, len, cached: false }, topic_len);
        Ok(Published { sequence, receivers, dropped: found - receivers, yields: false })
    }

    /// Passes a message that has arrived on to its receivers without storing it: `take` is called with their
    /// indices, if there are any. Returns their number; `None` if `take` refuses, or the message has to be
    /// examined by [`fan_out`](Self::fan_out).
    #[inline]
    pub(super) fn pass_on<'a>(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        (frames, parts): (&[u32], impl Iterator<Item = &'a [u8]>),
        take: impl FnOnce(&[u32]) -> bool,
    ) -> Option<u32> {
        if ch.backlog_limits().is_some() {
            let puller = ch.roomy.front()?;
            if !take(&[puller]) {
                return None;
            }
            self.receivers.peers.passed_on(ch, puller);
            return Some(1);
        }
        self.check_topic(frames).ok()?;
        let Receivers { peers, subscriptions, matched, .. } = &mut self.receivers;
        let topic_len = subscriptions.topic_len_max().min(*frames.first()? as usize);
        let topic = gather(&mut self.topic, parts, topic_len)?;
        matched.clear();
        subscriptions.matches(slot, topic, |subscriber| matched.push(subscriber));
        if !matched.is_empty() && !take(matched) {
            return None;
        }
        ch.counters.unmatched += u64::from(matched.is_empty());
        matched.iter().for_each(|subscriber| peers.passed_on(ch, *subscriber));
        Some(matched.len() as u32)
    }

    /// Queues a stored message for all subscribers of its topic. Takes over one reference.
    pub fn fan_out_stored(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        now: Instant,
        item: Item,
    ) {
        let to = &mut self.receivers;
        let first = pool.frame_lens(item.handle).next().unwrap_or(0) as usize;
        let topic_len = first.min(to.subscriptions.topic_len_max());
        let traced =
            if to.traces.is_armed() { pool.info(item.handle).map(|info| info.sequence) } else { None };
        // The message is as long as its frames.
        let topic = gather(&mut self.topic, pool.slices(item.handle), topic_len).unwrap_or_default();
        to.find((slot, ch), topic, traced);
        to.give((slot, ch), pool, now, item, topic_len);
    }

    /// Queues a stored message for one puller, or in the backlog. Takes over one reference.
    pub fn give_one(&mut self, ch: &mut Channel, item: Item) {
        if let Some(limits) = ch.backlog_limits() {
            ch.backlog.push(item, &limits, FullQueue::Block);
            self.receivers.peers.distribute(ch);
        }
    }

    /// Gives a stored message to the queues of a channel's receivers. Takes over one reference.
    pub fn give(
        &mut self,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        now: Instant,
        item: Item,
    ) {
        match ch.backlog_limits() {
            Some(_) => self.give_one(ch, item),
            None => self.fan_out_stored((slot, ch), pool, now, item),
        }
    }
}
