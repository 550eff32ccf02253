//! Configuration of the message plane of a worker, and of one channel.

use csp_types::Duration;
use thiserror::Error;

use crate::cache::{CacheConfig, LastValueKey};
use crate::contexts::ContextsConfig;
use crate::pool::{Budget, BudgetError, PoolConfig};
use crate::queue::{FullQueue, QueueLimits};
use crate::schedule::TurnBudget;
use crate::subscriptions::{SubscriptionsConfig, TOPIC_LEN_LIMIT};
use crate::table::HashKey;

/// Longest name of a channel in bytes.
pub const CHANNEL_NAME_LEN_MAX: usize = 255;

/// Bounds of a worker's message plane. All memory except that of channels and peers is reserved at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlaneConfig {
    /// Memory for messages.
    pub pool: PoolConfig,
    /// Memory for subscriptions.
    pub subscriptions: SubscriptionsConfig,
    /// Channels of the worker.
    pub channels_max: u16,
    /// Peers of all channels.
    pub peers_max: u32,
    /// Work for one channel before the next.
    pub turn: TurnBudget,
    /// A subscriber that has messages and has taken none for this long loses them when the pool has no room
    /// for the channel's messages. Only then are messages dropped for all subscribers.
    pub stalled_after: Duration,
    /// Contexts and paths.
    pub contexts: ContextsConfig,
    /// Random numbers that no peer knows.
    pub hash_key: HashKey,
}

impl PlaneConfig {
    /// The defaults, with a hash key.
    pub fn new(hash_key: HashKey) -> Self {
        PlaneConfig {
            pool: PoolConfig::default(),
            subscriptions: SubscriptionsConfig::default(),
            channels_max: 256,
            peers_max: 16 * 1024,
            turn: TurnBudget::default(),
            stalled_after: Duration::from_millis(100),
            contexts: ContextsConfig::default(),
            hash_key,
        }
    }

    /// Checks the values that do not depend on channels.
    pub(crate) fn check(&self) -> Result<(), PlaneConfigError> {
        let topic_len_max = self.subscriptions.topic_len_max;
        if topic_len_max > TOPIC_LEN_LIMIT as u32 || topic_len_max > self.pool.block_len {
            return Err(PlaneConfigError::TopicLength);
        }
        if self.pool.block_len == 0 || self.pool.blocks == 0 || self.pool.blocks == u32::MAX {
            return Err(PlaneConfigError::Pool);
        }
        match u32::from(self.channels_max) <= self.subscriptions.nodes_max {
            true => Ok(()),
            false => Err(PlaneConfigError::Nodes),
        }
    }
}

/// An error in a [`PlaneConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PlaneConfigError {
    /// Topics may be longer than a block of the pool, or than the limit.
    #[error("topics have at most {TOPIC_LEN_LIMIT} bytes, and as many as a block of the pool")]
    TopicLength,
    /// The pool has no memory, or too many blocks to number.
    #[error("the pool needs blocks, fewer than 2^32 - 1")]
    Pool,
    /// Fewer trie nodes than channels.
    #[error("every channel needs a trie node")]
    Nodes,
}

/// How messages of a channel are distributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelKind {
    /// Each message to all subscribers of its topic.
    PublishSubscribe {
        /// Action when a subscriber's queue is full.
        policy: FullQueue,
        /// Last values for late joiners.
        cache: Option<CacheConfig>,
    },
    /// Each message to one puller, in turn. Pushers are held back; nothing is dropped.
    PushPull {
        /// Messages that wait while no puller has room, and their bytes (`in_flight` is not used).
        backlog: QueueLimits,
    },
}

/// A channel, as the policy describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelConfig {
    /// Unique in the cluster.
    pub name: String,
    /// Distribution.
    pub kind: ChannelKind,
    /// Memory in the worker's pool.
    pub budget: Budget,
    /// Longest message in bytes, all frames together.
    pub message_len_max: u32,
    /// Queue of each subscriber or puller.
    pub queue: QueueLimits,
    /// Receivers are shown the messages' sequence numbers
    /// ([`Delivery::numbered`](crate::Delivery::numbered)).
    pub sequence: bool,
}

impl ChannelConfig {
    pub(crate) fn check(&self, block_len: u32) -> Result<(), ChannelError> {
        if self.name.is_empty() || self.name.len() > CHANNEL_NAME_LEN_MAX {
            return Err(ChannelError::Name(self.name.len()));
        }
        let mut limits = vec![self.queue];
        // What the longest message needs beside what the cache keeps.
        let mut len_max = u64::from(self.message_len_max);
        let holds_back = match &self.kind {
            ChannelKind::PublishSubscribe { policy, cache } => {
                self.check_cache(cache.as_ref(), block_len)?;
                len_max += cache.map_or(0, |cache| cache.bytes);
                *policy == FullQueue::Block
            }
            ChannelKind::PushPull { backlog } => {
                limits.push(QueueLimits { in_flight: 1, ..*backlog });
                true
            }
        };
        if limits.iter().any(|limits| limits.messages == 0 || limits.bytes == 0 || limits.in_flight == 0) {
            return Err(ChannelError::QueueLimits);
        }
        // A publisher that waits for memory must be able to go on whatever other channels do.
        let needed = if holds_back { self.budget.guaranteed } else { self.budget.max };
        match len_max <= needed && self.budget.max > 0 {
            true => Ok(()),
            false => Err(ChannelError::MessageLength { needed: len_max, has: needed }),
        }
    }

    fn check_cache(&self, cache: Option<&CacheConfig>, block_len: u32) -> Result<(), ChannelError> {
        let Some(cache) = cache else { return Ok(()) };
        let key_fits = !matches!(cache.key, LastValueKey::Bytes(len) if u32::from(len) > block_len);
        match cache.entries > 0 && key_fits && cache.bytes <= self.budget.max / 2 {
            true => Ok(()),
            false => Err(ChannelError::Cache),
        }
    }
}

/// Why a channel is not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ChannelError {
    /// The name is empty or too long; contains its length in bytes.
    #[error("a channel's name has 1 to {CHANNEL_NAME_LEN_MAX} bytes, not {0}")]
    Name(usize),
    /// The worker has a channel of this name.
    #[error("the worker has a channel of this name")]
    Exists,
    /// The worker has no room for another channel.
    #[error("the worker has as many channels as it may have")]
    TooMany,
    /// A limit of a queue is 0.
    #[error("a queue needs room for a message")]
    QueueLimits,
    /// The longest message does not fit the budget beside the cache: the guarantee if publishers are held
    /// back, else the largest.
    #[error("the longest message and the cache need {needed} bytes, and the budget has {has}")]
    MessageLength {
        /// Bytes of the longest message and the cache.
        needed: u64,
        /// Bytes of the budget.
        has: u64,
    },
    /// The cache has no entries, a key longer than a block, or more than half of the budget.
    #[error("a cache needs entries, a key within a block and at most half of the channel's memory")]
    Cache,
    /// The budget does not fit the pool.
    #[error(transparent)]
    Budget(#[from] BudgetError),
}
