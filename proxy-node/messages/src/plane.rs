//! The message plane: channels, their peers and the messages between them.
//!
//! Every call works on one channel and on the parts that channels share. Each part owns its fields; the plane
//! passes one to another ([decision 0092](../../../../docs/decisions/0092-broker-and-plane-by-data.md)).
//!
//! | part | owns |
//! |---|---|
//! | `channels` | the channels by slot, and those whose publishers are held back |
//! | `distribution` | peers with their queues, subscriptions, traces of copies |
//! | `pool` | the bytes of messages, and the budgets of channels |
//! | `contexts` | handlers, and the paths through them |
//! | `schedule` | whose turn it is |

mod api;
mod channels;
mod direct;
mod discard;
mod distribution;
mod feeds;
mod flows;
mod paths;
mod publish;
mod receive;
mod remote;
mod serve;
mod trace;

use csp_types::Instant;

use self::channels::Channels;
use crate::cache::{CacheCounters, LastValues};
use crate::channel::{Channel, ChannelCounters};
use crate::config::{ChannelConfig, ChannelError, PlaneConfig, PlaneConfigError};
use crate::contexts::{Contexts, Fed};
use crate::flows::FieldsInForce;
use crate::peers::{PeerId, Role};
use crate::pool::{MessageHandle, MessagePool, Occupancy, PoolCounters, Slices};
use crate::schedule::Schedule;
use crate::subscriptions::{Change, SubscribeError, SubscriptionCounts};

pub(crate) use distribution::{Distribution, Replay};
pub use feeds::Feed;

pub use api::{
    AttachError, ChannelId, ChannelStatus, Counters, DeliveredError, Delivery, PeerStatus, PublishError,
    Published,
};

/// The message plane of one proxy worker: its channels, peers and messages.
#[derive(Debug)]
pub struct MessagePlane {
    config: PlaneConfig,
    pool: MessagePool,
    channels: Channels,
    distribution: Distribution,
    contexts: Contexts,
    schedule: Schedule,
    /// Messages that have left a path and are copied to other channels.
    fed: Fed,
    fields: FieldsInForce,
    counters: Counters,
}

impl MessagePlane {
    /// A plane without channels. Allocates what is sized by `config`.
    ///
    /// # Errors
    /// When the values of `config` do not fit each other.
    pub fn new(config: PlaneConfig) -> Result<Self, PlaneConfigError> {
        config.check()?;
        let channels = config.channels_max;
        Ok(MessagePlane {
            pool: MessagePool::new(config.pool, usize::from(channels)),
            channels: Channels::new(channels),
            distribution: Distribution::new(&config),
            contexts: Contexts::new(config.contexts, config.turn),
            schedule: Schedule::new(config.turn, channels, config.contexts.contexts_max),
            fed: Fed::new(),
            fields: FieldsInForce::default(),
            counters: Counters::default(),
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
        let slot = self.channels.free().ok_or(ChannelError::TooMany)?;
        self.pool.set_budget(slot, Some(config.budget))?;
        if !self.distribution.add_channel(slot) {
            self.pool.set_budget(slot, None)?;
            return Err(ChannelError::TooMany);
        }
        let channel = Channel::new(config, self.config.pool.block_len, self.config.hash_key);
        Ok(self.channels.add(slot, channel))
    }

    /// Removes a channel, detaches its peers and releases its messages. Returns its counters, with the
    /// messages in its backlog as lost; `None` if there is no such channel.
    pub fn remove_channel(&mut self, id: ChannelId) -> Option<ChannelCounters> {
        if self.channel(id).is_none() {
            self.counters.unknown += 1;
            return None;
        }
        let peers: Vec<PeerId> = self.distribution.peers().of_channel(id.index).collect();
        for peer in peers {
            self.detach(peer, |_| {});
        }
        let mut ch = self.channels.remove(id)?;
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
        self.distribution.remove_channel(id.index);
        // A budget of nothing cannot be refused.
        let _ = self.pool.set_budget(id.index, None);
        Some(ch.counters)
    }

    /// Returns the channel of a name.
    pub fn channel_named(&self, name: &str) -> Option<ChannelId> {
        self.channels.named(name)
    }

    fn channel(&self, id: ChannelId) -> Option<&Channel> {
        self.channels.get(id)
    }

    /// Attaches a peer: a connection's part in one channel. Allocates its queue if it receives.
    ///
    /// # Errors
    /// When there is no such channel, its kind has no such peers, or the worker has too many.
    pub fn attach(&mut self, channel: ChannelId, role: Role) -> Result<PeerId, AttachError> {
        let ch = self.channels.get_mut(channel).ok_or(AttachError::UnknownChannel)?;
        if !role.fits(&ch.config.kind) {
            return Err(AttachError::Role(role));
        }
        let id = self.distribution.attach((channel.index, ch), role).ok_or(AttachError::TooMany)?;
        self.schedule.set_channel(channel.index, ch);
        self.counters.attached += 1;
        Ok(id)
    }

    /// Detaches a peer. Calls `gone` with each prefix that has no subscriber any more. Messages that wait for
    /// a puller go to other pullers; messages in flight to it count as lost. Returns whether the peer was
    /// attached.
    pub fn detach(&mut self, peer: PeerId, gone: impl FnMut(&[u8])) -> bool {
        let known = self.distribution.peers().get(peer).map(|known| (known.channel, known.role));
        let known = known.and_then(|(slot, role)| Some((slot, role, self.channels.at_mut(slot)?)));
        let Some((slot, role, ch)) = known else {
            self.counters.unknown += 1;
            return false;
        };
        self.distribution.detach((slot, ch), &mut self.pool, (peer, role), gone);
        self.schedule.set_channel(slot, ch);
        if ch.held.is_empty() {
            self.channels.unhold(slot);
        }
        self.counters.detached += 1;
        true
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
        let slot = self.distribution.channel_of_subscriber(peer).ok_or(SubscribeError::NotASubscriber)?;
        let ch = self.channels.at_mut(slot).ok_or(SubscribeError::NotASubscriber)?;
        let stamp = ch.cache.as_mut().map_or(0, LastValues::next_stamp);
        let change = self.distribution.subscribe((slot, peer.index), prefix, stamp)?;
        if change.entry && stamp > 0 {
            self.distribution.begin_replay(now, (slot, ch), &mut self.pool, (peer.index, prefix, stamp));
            self.schedule.set_channel(slot, ch);
        }
        Ok(change)
    }

    /// Cancels a subscription, however often it was made; `None` if the peer has no such subscription.
    pub fn cancel(&mut self, peer: PeerId, prefix: &[u8]) -> Option<Change> {
        let slot = self.distribution.channel_of_subscriber(peer);
        let change = slot.and_then(|slot| self.distribution.cancel((slot, peer.index), prefix));
        match change {
            Some(_) => self.counters.cancelled += 1,
            None => self.counters.cancel_unknown += 1,
        }
        change
    }

    /// Calls `each` with prefixes that the channel's subscribers subscribe to: a new publisher must be sent
    /// them. See `Subscriptions::prefixes`.
    pub fn prefixes(
        &self,
        channel: ChannelId,
        cursor: u32,
        nodes_max: u32,
        each: impl FnMut(&[u8]),
    ) -> Option<u32> {
        self.channel(channel)?;
        self.distribution.subscriptions().prefixes(channel.index, cursor, nodes_max, each)
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
            subscriptions: self.distribution.subscriptions().counts(id.index),
            backlog: ch.backlog.len(),
            cached: ch.cache.as_ref().map_or(0, |cache| cache.len()),
            cache: ch.cache.as_ref().map_or_else(CacheCounters::default, |cache| cache.counters),
            blocked: ch.blocked,
            counters: ch.counters,
        })
    }

    /// Returns the policy's number of a channel; `None` once it was removed.
    pub fn number_of(&self, id: ChannelId) -> Option<u32> {
        self.channel(id).map(|_| self.channels.number(id.index))
    }

    /// Returns how many subscriptions of a channel are of prefixes of `topic`.
    pub fn subscriptions_to(&self, id: ChannelId, topic: &[u8]) -> usize {
        self.channel(id).map_or(0, |_| self.distribution.subscriptions().count(id.index, topic))
    }

    /// Returns the state of a peer.
    pub fn peer_status(&self, id: PeerId) -> Option<PeerStatus> {
        self.distribution.peer_status(id, |slot| self.channels.id(slot))
    }

    /// Returns the number of attached peers.
    pub fn peers(&self) -> usize {
        self.distribution.peers().len()
    }

    /// Returns the counts of all channels' subscriptions.
    pub fn subscription_counts(&self) -> SubscriptionCounts {
        self.distribution.subscriptions().totals()
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
