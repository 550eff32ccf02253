//! Channels: where publishers and subscribers of messages connect, how messages are distributed, and the
//! bounds on what is kept for them.

use std::net::IpAddr;

use csp_config::{ip_address, number, port};
use csp_types::PlacementKey;
use csp_types::options::FullQueue;
use serde::{Deserialize, Deserializer, Serialize};

use super::branches::FormatPath;
use super::framing::{ChannelPort, Clients, Framing, Headers, is_default, some_encoding};
use super::paths::{GivenUp, PathStage};
use super::{ChannelTime, Curve, LastValue, PoolMember, Requests, TcpOptions};

/// Most channels of a policy.
pub const CHANNELS_MAX: usize = 256;
/// Longest message that a channel may allow, in KiB.
pub const MESSAGE_KIB_MAX: u32 = 64 * 1024;
/// Most messages in a queue.
pub const QUEUE_MESSAGES_MAX: u32 = 1 << 20;
/// Most memory of a channel at one proxy worker, in MiB.
pub const CHANNEL_MIB_MAX: u32 = 64 * 1024;
/// Longest time between two heartbeats, in seconds.
pub const HEARTBEAT_S_MAX: u32 = 3_600;

/// A channel of messages: peers connect to its address, and the proxies distribute their messages, or pass
/// them to servers of its pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// 1 to 63 of `a-z 0-9 -`, unique among services and channels.
    pub name: String,
    /// The address that publishers and subscribers connect to.
    #[serde(deserialize_with = "ip_address")]
    pub vip: IpAddr,
    /// The port that they connect to.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// How peers at this port separate messages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub framing: Framing,
    /// What they do, if they are no ZeroMQ peers; see [`ChannelPort::clients`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Clients>,
    /// What becomes of their messages' headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header: Headers,
    /// Encoding type of new Simple Open Framing Headers.
    #[serde(default, deserialize_with = "some_encoding", skip_serializing_if = "Option::is_none")]
    pub encoding: Option<u16>,
    /// Further ports of the channel, which may have other framings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<ChannelPort>,
    /// Unmodified servers: each client's messages go to one of them, and its answers come back. Empty: the
    /// proxy distributes the messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<PoolMember>,
    /// Which peers may connect, and who gets a message.
    #[serde(default)]
    pub pattern: Pattern,
    /// Longest message in KiB, all frames together.
    #[serde(default = "message_kib", deserialize_with = "read_message_kib")]
    pub message_kib: u32,
    /// The queue of each receiver.
    #[serde(default, skip_serializing_if = "ReceiverQueue::is_default")]
    pub queue: ReceiverQueue,
    /// Memory for its messages at the proxy worker that owns it.
    #[serde(default, skip_serializing_if = "ChannelMemory::is_default")]
    pub memory: ChannelMemory,
    /// Handlers that messages pass on their way to receivers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<PathStage>,
    /// Paths for messages of single formats; those of all other formats go straight to receivers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<FormatPath>,
    /// What becomes of messages that a handler of the path gives up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub given_up: GivenUp,
    /// What subscribers get that join later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_value: Option<LastValue>,
    /// A last frame with the sequence number and the time of arrival is added to each message.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sequence: bool,
    /// Seconds between two PINGs to peers of ZMTP 3.1; a peer that sends nothing for as long after one is
    /// disconnected. 0: none are sent.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "heartbeat_s")]
    pub heartbeat_s: u32,
    /// Encryption, and who may publish and subscribe. Absent: everybody, in clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<Curve>,
    /// How connections behave.
    #[serde(default)]
    pub tcp: TcpOptions,
    /// Names of the formats of its messages, with the ids 1, 2, … in this order. The record is a message's
    /// only frame, or the one behind the topic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<String>,
    /// What becomes of messages of none of its formats.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown: UnknownFormat,
    /// Which time of its messages counts in joins and windows; absent: when they arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<ChannelTime>,
    /// Queries that programs may ask for here; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
}

impl Channel {
    /// Returns what decides which proxy worker the channel lives at, if no query joins it with others
    /// ([`Policy::placements`](super::Policy::placements)). Channels that share an address have one owner.
    pub fn placement(&self) -> PlacementKey {
        PlacementKey::of_address((self.vip, self.port).into())
    }

    /// Returns whether full queues of receivers hold publishers back.
    pub fn holds_back(&self) -> bool {
        self.pattern == Pattern::Push || self.queue.full == FullQueue::Block
    }
}

/// How messages are distributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// PUB and XPUB peers publish; SUB and XSUB peers get what they subscribe to (29/PUBSUB).
    #[default]
    Publish,
    /// PUSH peers send; each message goes to one PULL peer (30/PIPELINE). Nothing is dropped.
    Push,
}

/// What becomes of messages of none of a channel's formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFormat {
    /// They pass to receivers as they are, past handlers that work on formats.
    #[default]
    Pass,
    /// They are dropped and counted.
    Drop,
}

/// What waits for one receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiverQueue {
    /// Messages.
    #[serde(deserialize_with = "queue_messages")]
    pub messages: u32,
    /// Their bytes, in KiB.
    #[serde(deserialize_with = "queue_kib")]
    pub kib: u32,
    /// What happens to a message for a receiver whose queue is full. Pushers are always held back.
    pub full: FullQueue,
}

impl Default for ReceiverQueue {
    fn default() -> Self {
        ReceiverQueue { messages: 1_000, kib: 4_096, full: FullQueue::default() }
    }
}

impl ReceiverQueue {
    fn is_default(&self) -> bool {
        *self == ReceiverQueue::default()
    }
}

/// A channel's share of a proxy worker's memory for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelMemory {
    /// MiB that no other channel takes.
    #[serde(deserialize_with = "mib")]
    pub guaranteed_mib: u32,
    /// Most MiB.
    #[serde(deserialize_with = "mib")]
    pub max_mib: u32,
}

impl Default for ChannelMemory {
    fn default() -> Self {
        ChannelMemory { guaranteed_mib: 4, max_mib: 64 }
    }
}

impl ChannelMemory {
    fn is_default(&self) -> bool {
        *self == ChannelMemory::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

const fn message_kib() -> u32 {
    1_024
}

fn read_message_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, MESSAGE_KIB_MAX.into(), "a length in KiB")? as u32)
}

fn heartbeat_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, HEARTBEAT_S_MAX.into(), "a number of seconds (0: off)")? as u32)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn queue_messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, QUEUE_MESSAGES_MAX.into(), "a number of messages")? as u32)
}

fn queue_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, u64::from(CHANNEL_MIB_MAX) << 10, "a size in KiB")? as u32)
}

fn mib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, CHANNEL_MIB_MAX.into(), "a size in MiB")? as u32)
}
