//! Values that the plane exchanges with its worker.

use csp_types::Instant;
use thiserror::Error;

use crate::cache::CacheCounters;
use crate::channel::ChannelCounters;
use crate::peers::Role;
use crate::pool::{FRAMES_MAX, MessageHandle, Usage};
use crate::queue::QueueCounters;
use crate::subscriptions::SubscriptionCounts;

/// Names a channel of the worker until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId {
    /// Index of the channel's slot; the flow of its [`Turn`](crate::Turn)s.
    pub index: u16,
    /// How often the slot was used before.
    pub generation: u16,
}

/// A message that was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Number of the message in its channel. The first has 1.
    pub sequence: u64,
    /// Receivers that get the message; on a push/pull channel, and where the message has entered a path, 1.
    pub receivers: u32,
    /// Subscribers for which it was dropped at once.
    pub dropped: u32,
    /// The first queue of the message's path, or of a path that its feeds lead to, is filling, and contexts
    /// of this worker empty it. They should have a turn before more is published.
    pub yields: bool,
}

/// Why a message is not published. It has no sequence number, and no receiver gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PublishError {
    /// The peer is not attached.
    #[error("the peer is not attached")]
    UnknownPeer,
    /// The peer only receives.
    #[error("the peer does not publish")]
    NotAPublisher,
    /// The message has no frame, or more than [`FRAMES_MAX`]; contains the number.
    #[error("a message has 1 to {FRAMES_MAX} frames, not {0}")]
    Frames(usize),
    /// The message is longer than the channel permits; contains its length in bytes.
    #[error("a message of {0} bytes is longer than the channel permits")]
    TooLong(u64),
    /// The first frame of a message of several, its topic, is too long; contains its length in bytes.
    #[error("a topic of {0} bytes is too long")]
    TopicTooLong(u32),
    /// The caller's slices are not as long as its frames.
    #[error("the slices of a message are not as long as its frames")]
    LengthMismatch,
    /// The publisher is held back. The caller publishes the message again once the publisher is
    /// [resumed](crate::MessagePlane::next_resumed).
    #[error("publishers are held back")]
    Held,
}

/// A message for a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Names the message, to read it and to report it as delivered.
    pub handle: MessageHandle,
    /// Length of all frames in bytes.
    pub len: u32,
    /// Number of frames.
    pub frames: u8,
    /// Number of the message in its channel.
    pub sequence: u64,
    /// When the message arrived.
    pub arrived: Instant,
    /// The message is a last value that was published before the receiver subscribed.
    pub cached: bool,
    /// The channel shows receivers its sequence numbers.
    pub numbered: bool,
}

/// Why a peer is not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AttachError {
    /// The channel was removed, or is another worker's.
    #[error("the worker does not have the channel")]
    UnknownChannel,
    /// The channel's kind has no such peers.
    #[error("a channel of this kind has no peers in the role {0:?}")]
    Role(Role),
    /// The worker has no room for another peer.
    #[error("the worker has as many peers as it may have")]
    TooMany,
}

/// The reason for which a message is not recorded as delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeliveredError {
    /// The peer is not attached. Its messages were released when it was detached.
    #[error("the peer is not attached")]
    UnknownPeer,
    /// The message is not the oldest that the peer has not finished with.
    #[error("another message is to be delivered first")]
    NotNext,
}

/// Calls since the plane was made. Numbers of messages are with the channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Peers attached.
    pub attached: u64,
    /// Peers detached.
    pub detached: u64,
    /// Messages refused for the number of their frames.
    pub refused_frames: u64,
    /// Messages refused for their length.
    pub refused_too_long: u64,
    /// Messages refused for the length of their topic.
    pub refused_topic: u64,
    /// Messages refused because the caller's slices were not as long as the frames.
    pub refused_mismatch: u64,
    /// Messages refused because their peer was not attached or does not publish.
    pub refused_peer: u64,
    /// Attempts to publish that were held back.
    pub held: u64,
    /// Subscriptions made, with repeats.
    pub subscribed: u64,
    /// Subscriptions refused.
    pub subscribe_refused: u64,
    /// Cancellations, with repeats.
    pub cancelled: u64,
    /// Cancellations without a subscription.
    pub cancel_unknown: u64,
    /// Deliveries reported for a peer that was detached or for another message.
    pub delivered_refused: u64,
    /// Other calls about a peer or a channel that was removed before: a mistake of the caller.
    pub unknown: u64,
}

impl Counters {
    pub(super) fn count(&mut self, error: PublishError) {
        let counter = match error {
            PublishError::UnknownPeer | PublishError::NotAPublisher => &mut self.refused_peer,
            PublishError::Frames(_) => &mut self.refused_frames,
            PublishError::TooLong(_) => &mut self.refused_too_long,
            PublishError::TopicTooLong(_) => &mut self.refused_topic,
            PublishError::LengthMismatch => &mut self.refused_mismatch,
            PublishError::Held => &mut self.held,
        };
        *counter += 1;
    }
}

/// State of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelStatus {
    /// The last sequence number issued.
    pub sequence: u64,
    /// Memory in blocks.
    pub memory: Usage,
    /// Subscriptions.
    pub subscriptions: SubscriptionCounts,
    /// Messages that wait for a puller.
    pub backlog: usize,
    /// Last values.
    pub cached: usize,
    /// Counters of the channel's last values.
    pub cache: CacheCounters,
    /// Subscribers whose full queues hold back publishers.
    pub blocked: u32,
    /// Counters.
    pub counters: ChannelCounters,
}

/// State of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// The role of the peer.
    pub role: Role,
    /// Messages published or pushed by the peer.
    pub published: u64,
    /// Its channel.
    pub channel: ChannelId,
    /// Messages that wait for it.
    pub waiting: usize,
    /// Bytes of these messages.
    pub bytes_waiting: u64,
    /// Messages in flight: taken and not finished.
    pub in_flight: usize,
    /// Subscriptions, without repeats.
    pub subscriptions: u32,
    /// Counters.
    pub counters: QueueCounters,
}
