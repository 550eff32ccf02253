//! The message plane: channels, their peers and the messages between them.
//!
//! Every call works on one channel and on the parts that channels share: pool, subscriptions, peers,
//! schedule. Each part owns its fields; the plane passes one to another.

mod api;
mod discard;
mod distribute;
mod feeds;
mod flows;
mod paths;
mod publish;
mod receive;
mod remote;
mod replay;
mod serve;
mod trace;

use csp_types::Instant;

use crate::cache::{CacheCounters, LastValues};
use crate::channel::{Channel, ChannelCounters};
use crate::config::{ChannelConfig, ChannelError, PlaneConfig, PlaneConfigError};
use crate::contexts::{Contexts, Fed};
use crate::flows::FieldsInForce;
use crate::list::{Links, List};
use crate::peers::{PeerId, Peers, Role};
use crate::pool::{MessageHandle, MessagePool, Occupancy, PoolCounters, Slices};
use crate::schedule::RoundRobin;
use crate::subscriptions::{Change, SubscribeError, SubscriptionCounts, Subscriptions};
use crate::trace::{CopyState, Traces};

pub(crate) use distribute::Distributor;
pub use feeds::Feed;
pub(crate) use publish::gather;
pub(crate) use replay::Replay;

pub use api::{
    AttachError, ChannelId, ChannelStatus, Counters, DeliveredError, Delivery, PeerStatus, PublishError,
    Published, UnknownChannel, UnknownPeer,
};

#[derive(Debug)]
struct ChannelSlot {
    generation: u16,
    channel: Option<Channel>,
}

/// The message plane of one proxy worker: its channels, peers and messages.
#[derive(Debug)]
pub struct MessagePlane {
    config: PlaneConfig,
    pool: MessagePool,
    subscriptions: Subscriptions,
    peers: Peers,
    channels: Vec<ChannelSlot>,
    schedule: RoundRobin,
    /// Channels with publishers that are held back.
    held: List,
    held_links: Links,
    /// Subscribers of the message that is being published, without those for which it was dropped at once.
    matched: Vec<u32>,
    /// The topic of that message, if its bytes arrived in several slices.
    topic: Vec<u8>,
    traces: Traces,
    counters: Counters,
    contexts: Contexts,
    fed: Fed,
    fields: FieldsInForce,
    /// The policy's number of each channel, by channel slot; flows know the channel by it.
    numbers: Vec<u32>,
}

impl MessagePlane {
    /// A plane without channels. Allocates what is sized by `config`.
    ///
    /// # Errors
    /// When the values of `config` do not fit each other.
    pub fn new(config: PlaneConfig) -> Result<Self, PlaneConfigError> {
        config.check()?;
        let channels = usize::from(config.channels_max);
        let (subscriptions, peers) = (config.subscriptions, config.peers_max as usize);
        let slot = |_| ChannelSlot { generation: 0, channel: None };
        Ok(MessagePlane {
            pool: MessagePool::new(config.pool, channels),
            subscriptions: Subscriptions::new(subscriptions, channels, peers, config.hash_key),
            peers: Peers::new(config.peers_max),
            channels: (0..channels).map(slot).collect(),
            // Contexts follow the channels.
            schedule: RoundRobin::new(config.turn, channels + usize::from(config.contexts.contexts_max)),
            contexts: Contexts::new(config.contexts, config.turn),
            held: List::EMPTY,
            held_links: Links::new(channels),
            matched: Vec::with_capacity(peers),
            topic: Vec::with_capacity(config.subscriptions.topic_len_max as usize),
            traces: Traces::default(),
            counters: Counters::default(),
            fed: Fed::new(),
            fields: FieldsInForce::default(),
            numbers: vec![u32::MAX; channels],
            config,
        })
    }

    /// Adds a channel. Allocates its backlog or cache.
    ///
    /// # Errors
    /// When the configuration is not valid, the name exists, or the worker has no room for the channel.
    pub fn add_channel(&mut self, config: ChannelConfig) -> Result<ChannelId, ChannelError> {
        config.check(self.config.pool.block_len)?;
        if self.channel_named(&config.name).is_some() {
            return Err(ChannelError::Exists);
        }
        let at = self.channels.iter().position(|slot| slot.channel.is_none()).ok_or(ChannelError::TooMany)?;
        let index = at as u16;
        self.pool.set_budget(index, Some(config.budget))?;
        if !self.subscriptions.add_channel(index) {
            self.pool.set_budget(index, None)?;
            return Err(ChannelError::TooMany);
        }
        let slot = &mut self.channels[at];
        slot.channel = Some(Channel::new(config, self.config.pool.block_len, self.config.hash_key));
        Ok(ChannelId { index, generation: slot.generation })
    }

    /// Removes a channel, detaches its peers and releases its messages. Returns its counters, with the
    /// messages in its backlog as lost.
    ///
    /// # Errors
    /// When there is no such channel.
    pub fn remove_channel(&mut self, id: ChannelId) -> Result<ChannelCounters, UnknownChannel> {
        self.channel(id).ok_or(UnknownChannel)?;
        let peers: Vec<PeerId> = self.peers.of_channel(id.index).collect();
        peers.into_iter().for_each(|peer| _ = self.detach(peer, |_| {}));
        let slot = &mut self.channels[usize::from(id.index)];
        let Some(mut ch) = slot.channel.take() else { return Err(UnknownChannel) };
        slot.generation = slot.generation.wrapping_add(1);
        // What waits for the link is released when its turn comes.
        ch.counters.lost += ch.in_flows as u64;
        ch.counters.lost += self.contexts.remove_channel(&mut ch, &mut self.pool);
        while let Some(item) = ch.backlog.pop_back() {
            self.pool.release(item.handle);
            ch.counters.lost += 1;
        }
        if let Some(mut cache) = ch.cache.take() {
            cache.clear(&mut self.pool);
        }
        self.subscriptions.remove_channel(id.index);
        self.held.remove(&mut self.held_links, u32::from(id.index));
        // A budget of nothing cannot be refused.
        let _ = self.pool.set_budget(id.index, None);
        Ok(ch.counters)
    }

    /// Returns the channel of a name.
    pub fn channel_named(&self, name: &str) -> Option<ChannelId> {
        let has_name = |slot: &ChannelSlot| slot.channel.as_ref().is_some_and(|ch| ch.config.name == name);
        let at = self.channels.iter().position(has_name)?;
        Some(ChannelId { index: at as u16, generation: self.channels[at].generation })
    }

    fn channel(&self, id: ChannelId) -> Option<&Channel> {
        let slot = self.channels.get(usize::from(id.index))?;
        slot.channel.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// Attaches a peer: a connection's part in one channel. Allocates its queue if it receives.
    ///
    /// # Errors
    /// When there is no such channel, its kind has no such peers, or the worker has too many.
    pub fn attach(&mut self, channel: ChannelId, role: Role) -> Result<PeerId, AttachError> {
        self.channel(channel).ok_or(AttachError::UnknownChannel)?;
        let slot = &mut self.channels[usize::from(channel.index)];
        let ch = slot.channel.as_mut().ok_or(AttachError::UnknownChannel)?;
        if !role.fits(&ch.config.kind) {
            return Err(AttachError::Role(role));
        }
        let id = self.peers.attach(ch, channel.index, role).ok_or(AttachError::TooMany)?;
        ch.receivers += u32::from(role.receives());
        self.schedule.set_active(channel.index, !ch.pending.is_empty());
        self.counters.attached += 1;
        Ok(id)
    }

    /// Detaches a peer. Calls `gone` with each prefix that has no subscriber any more. Messages that wait for
    /// a puller go to other pullers; messages in flight to it count as lost.
    ///
    /// # Errors
    /// When the peer is not attached.
    pub fn detach(&mut self, peer: PeerId, gone: impl FnMut(&[u8])) -> Result<(), UnknownPeer> {
        let known = self.peers.get(peer).ok_or(UnknownPeer)?;
        let (slot, subscribes) = (known.channel, known.role.is_some_and(Role::subscribes));
        let ch = self.channels[usize::from(slot)].channel.as_mut().ok_or(UnknownPeer)?;
        if subscribes {
            self.subscriptions.remove_subscriber(slot, peer.index, gone);
        }
        ch.receivers -= u32::from(known.role.is_some_and(Role::receives));
        if self.traces.is_armed() {
            self.traces.check(slot, |waiting, _, _| (waiting == peer).then_some(CopyState::Left));
            self.traces.flushed(peer);
        }
        let left = self.peers.detach(ch, &mut self.pool, peer.index);
        ch.counters.lost += if ch.backlog_limits().is_some() { left.in_flight } else { 0 };
        if ch.held.is_empty() {
            self.held.remove(&mut self.held_links, u32::from(slot));
        }
        self.schedule.set_active(slot, !ch.pending.is_empty());
        self.counters.detached += 1;
        Ok(())
    }

    /// Subscribes a peer to the topics that begin with `prefix`. If the subscription is new, the channel's
    /// last values that only it matches are queued. Those for which the queue has no room follow as the queue
    /// is emptied.
    ///
    /// # Errors
    /// When the peer does not subscribe, or a bound is reached.
    pub fn subscribe(&mut self, now: Instant, peer: PeerId, prefix: &[u8]) -> Result<Change, SubscribeError> {
        let done = self.try_subscribe(now, peer, prefix);
        match done {
            Ok(_) => self.counters.subscribed += 1,
            Err(_) => self.counters.subscribe_refused += 1,
        }
        done
    }

    fn try_subscribe(&mut self, now: Instant, peer: PeerId, prefix: &[u8]) -> Result<Change, SubscribeError> {
        let slot = self.channel_of_subscriber(peer).ok_or(SubscribeError::NotASubscriber)?;
        let ch = self.channels[usize::from(slot)].channel.as_mut();
        let stamp = ch.and_then(|ch| ch.cache.as_mut()).map_or(0, LastValues::next_stamp);
        let change = self.subscriptions.subscribe(slot, peer.index, prefix, stamp)?;
        if change.entry && stamp > 0 {
            self.begin_replay(now, (slot, peer.index), prefix, stamp);
        }
        Ok(change)
    }

    /// Cancels a subscription, however often it was made; `None` if the peer has no such subscription.
    pub fn cancel(&mut self, peer: PeerId, prefix: &[u8]) -> Option<Change> {
        let change = self
            .channel_of_subscriber(peer)
            .and_then(|slot| self.subscriptions.cancel(slot, peer.index, prefix));
        match change {
            Some(_) => self.counters.cancelled += 1,
            None => self.counters.cancel_unknown += 1,
        }
        change
    }

    /// Returns the channel of a peer that subscribes.
    fn channel_of_subscriber(&self, peer: PeerId) -> Option<u16> {
        let known = self.peers.get(peer)?;
        known.role.filter(|role| role.subscribes()).map(|_| known.channel)
    }

    /// Calls `each` with prefixes that the channel's subscribers subscribe to: a new publisher must be sent
    /// them. See [`Subscriptions::prefixes`].
    pub fn prefixes(
        &self,
        channel: ChannelId,
        cursor: u32,
        nodes_max: u32,
        each: impl FnMut(&[u8]),
    ) -> Option<u32> {
        self.channel(channel)?;
        self.subscriptions.prefixes(channel.index, cursor, nodes_max, each)
    }

    /// Returns the bytes of all frames of a message, slice by slice; nothing for a stale handle.
    pub fn slices(&self, handle: MessageHandle) -> Slices<'_> {
        self.pool.slices(handle)
    }

    /// Returns up to `len` bytes of a message from byte `start` on, slice by slice; nothing for a stale
    /// handle.
    pub fn range(&self, handle: MessageHandle, start: u32, len: u32) -> Slices<'_> {
        self.pool.range(handle, start, len)
    }

    /// Returns the lengths of a message's frames in bytes; nothing for a stale handle.
    pub fn frame_lens(&self, handle: MessageHandle) -> impl Iterator<Item = u32> + '_ {
        self.pool.frame_lens(handle)
    }

    /// Returns the state of a channel.
    pub fn channel_status(&self, id: ChannelId) -> Option<ChannelStatus> {
        let ch = self.channel(id)?;
        Some(ChannelStatus {
            sequence: ch.sequence,
            memory: self.pool.usage(id.index),
            subscriptions: self.subscriptions.counts(id.index),
            backlog: ch.backlog.len(),
            cached: ch.cache.as_ref().map_or(0, |cache| cache.len()),
            cache: ch.cache.as_ref().map_or_else(CacheCounters::default, |cache| cache.counters),
            blocked: ch.blocked,
            counters: ch.counters,
        })
    }

    /// Returns how many subscriptions of a channel are of prefixes of `topic`.
    pub fn subscriptions_to(&self, id: ChannelId, topic: &[u8]) -> usize {
        self.channel(id).map_or(0, |_| self.subscriptions.count(id.index, topic))
    }

    /// Returns the state of a peer.
    pub fn peer_status(&self, id: PeerId) -> Option<PeerStatus> {
        let peer = self.peers.get(id)?;
        let generation = self.channels[usize::from(peer.channel)].generation;
        Some(PeerStatus {
            role: peer.role?,
            published: peer.published,
            channel: ChannelId { index: peer.channel, generation },
            waiting: peer.queue.len(),
            bytes_waiting: peer.queue.bytes(),
            in_flight: peer.queue.in_flight(),
            subscriptions: self.subscriptions.entries_of(id.index),
            counters: peer.queue.counters,
        })
    }

    /// Returns the number of attached peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Returns the counts of all channels' subscriptions.
    pub fn subscription_counts(&self) -> SubscriptionCounts {
        self.subscriptions.totals()
    }

    /// Returns how full the pool is.
    pub fn occupancy(&self) -> Occupancy {
        self.pool.occupancy()
    }

    /// Returns the pool's counters.
    pub fn pool_counters(&self) -> PoolCounters {
        self.pool.counters()
    }

    /// Returns the counters of calls.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
