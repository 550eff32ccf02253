//! A channel: its sequence numbers, its backlog or cache, and the lists of peers that its messages go to.
//!
//! ```text
//!   publish/subscribe   publish ─▶ subscriptions ─▶ queue of each subscriber ─▶ pending
//!   push/pull           push ─▶ [backlog] ─▶ queue of the next puller with room ─▶ pending
//! ```
//! The peers themselves are in [`Peers`](crate::peers::Peers). A full or stopped receiver is in none of the
//! lists that are searched for other receivers.

use crate::cache::LastValues;
use crate::config::{ChannelConfig, ChannelKind};
use crate::contexts::ChannelPaths;
use crate::list::List;
use crate::plane::Feed;
use crate::queue::{FullQueue, Queue, QueueLimits};
use crate::table::HashKey;

/// Messages of a channel since it was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChannelCounters {
    /// Messages with a sequence number.
    pub published: u64,
    /// Bytes of these messages.
    pub bytes_published: u64,
    /// Messages to which nobody subscribed.
    pub unmatched: u64,
    /// Messages put into queues of receivers.
    pub queued: u64,
    /// Messages taken by receivers.
    pub taken: u64,
    /// Messages not put into the queue of a subscriber that was full.
    pub dropped_newest: u64,
    /// Messages removed from the queue of a subscriber that was full.
    pub dropped_oldest: u64,
    /// Messages removed from queues of subscribers that took nothing, to make room in the pool.
    pub dropped_stalled: u64,
    /// Messages not put into the queue of a subscriber because the pool had no room.
    pub dropped_memory: u64,
    /// Messages lost with a puller: not finished, or perhaps not received, when it was detached. Also the
    /// messages of a removed channel.
    pub lost: u64,
    /// Attempts to publish that were held back.
    pub held: u64,
    /// Messages not kept as last values because the pool had no room; late joiners receive older ones.
    pub keep_failed: u64,
    /// Last values put into queues of subscribers that joined.
    pub replayed: u64,
    /// Messages not put into the full queue of a path, or removed from it, or for which the pool had no room
    /// there.
    pub dropped_path: u64,
    /// Messages dropped by their information flow, before its queue or from it.
    pub dropped_flow: u64,
}

/// State of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub config: ChannelConfig,
    /// The last sequence number issued.
    pub sequence: u64,
    /// Receivers whose full queues hold back publishers.
    pub blocked: u32,
    /// Messages that wait for a puller.
    pub backlog: Queue,
    pub cache: Option<LastValues>,
    /// Receivers that can be given a message.
    pub pending: List,
    /// Pullers with room, the one that got a message longest ago first.
    pub roomy: List,
    /// Subscribers whose queues drop and have messages, the one that took a message longest ago first.
    pub lagging: List,
    /// Publishers that are held back.
    pub held: List,
    /// Length in bytes of the message for which the pool had no room.
    pub wanted_len: Option<u32>,
    pub pullers: u32,
    pub paths: ChannelPaths,
    /// The number of the last row, if the channel's rows have numbers of their own.
    pub rows: Option<u64>,
    /// Channels that get its messages.
    pub feeds: Vec<Feed>,
    /// Peers that receive.
    pub receivers: u32,
    /// Messages in queues of information flows.
    pub in_flows: usize,
    /// Of these, messages that contexts of flows have not processed yet.
    pub unprocessed: usize,
    pub counters: ChannelCounters,
}

impl Channel {
    pub fn new(config: ChannelConfig, block_len: u32, key: HashKey) -> Self {
        let (backlog, cache) = match &config.kind {
            ChannelKind::PublishSubscribe { cache, .. } => {
                (Queue::none(), cache.map(|cache| LastValues::new(cache, block_len, key)))
            }
            ChannelKind::PushPull { backlog } => {
                (Queue::new(&QueueLimits { in_flight: 0, ..*backlog }), None)
            }
        };
        Channel {
            config,
            sequence: 0,
            blocked: 0,
            backlog,
            cache,
            pending: List::EMPTY,
            roomy: List::EMPTY,
            lagging: List::EMPTY,
            held: List::EMPTY,
            wanted_len: None,
            pullers: 0,
            paths: ChannelPaths::default(),
            rows: None,
            feeds: Vec::new(),
            receivers: 0,
            in_flows: 0,
            unprocessed: 0,
            counters: ChannelCounters::default(),
        }
    }

    /// Policy of the receivers' queues.
    pub fn policy(&self) -> FullQueue {
        match self.config.kind {
            ChannelKind::PublishSubscribe { policy, .. } => policy,
            ChannelKind::PushPull { .. } => FullQueue::Block,
        }
    }

    /// Returns the limits of the backlog; `None` on a publish/subscribe channel.
    pub fn backlog_limits(&self) -> Option<QueueLimits> {
        match self.config.kind {
            ChannelKind::PublishSubscribe { .. } => None,
            ChannelKind::PushPull { backlog } => Some(backlog),
        }
    }

    /// Returns whether queues have room for the next message: neither a receiver nor the backlog holds
    /// publishers back.
    pub fn has_room(&self) -> bool {
        match self.backlog_limits() {
            Some(_) => !self.backlog.was_full(),
            None => self.blocked == 0,
        }
    }

    /// Gives the next sequence number to a message of `len` bytes.
    pub fn number(&mut self, len: u32) -> u64 {
        self.sequence += 1;
        self.counters.published += 1;
        self.counters.bytes_published += u64::from(len);
        self.sequence
    }
}
