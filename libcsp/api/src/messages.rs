//! Bodies of the proxy node about single peers of channels and single messages.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Peers that one answer describes, by default and at most.
pub const PEERS_DEFAULT: usize = 100;
/// See [`PEERS_DEFAULT`].
pub const PEERS_MAX: usize = 1_000;
/// Prefixes of a peer that one answer has, by default and at most.
pub const PREFIXES_DEFAULT: u32 = 8;
/// See [`PREFIXES_DEFAULT`].
pub const PREFIXES_MAX: u32 = 1_000;
/// Messages that one trace follows at most.
pub const TRACE_COUNT_MAX: usize = 32;
/// Seconds that one trace waits at most.
pub const TRACE_TIMEOUT_S_MAX: u64 = 30;

/// Who a peer of a channel is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerName {
    /// Its address; of a program of the cluster, the egress address that the proxy chose for it. Absent if it
    /// has left and is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// App node of a program of the cluster; otherwise empty.
    #[serde(default)]
    pub node: Text,
    /// Process of a program of the cluster; otherwise empty.
    #[serde(default)]
    pub process: Text,
    /// Socket type that it has shown, such as `PUB`; `TCP` where messages have a header with their length.
    pub socket: Text,
}

/// A peer of a channel: an element of [`Subscriptions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its channel.
    pub channel: Text,
    /// Worker of the proxy that serves it.
    pub worker: u32,
    /// Who it is.
    #[serde(flatten)]
    pub name: PeerName,
    /// `publisher`, `subscriber`, `both`, `pusher` or `puller`.
    pub role: Text,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Messages that it has published or pushed.
    pub messages_in: u64,
    /// Messages given to it.
    pub messages_out: u64,
    /// Messages that wait for it.
    pub waiting: u64,
    /// Bytes of these messages.
    pub waiting_bytes: u64,
    /// Messages not delivered to it because its queue was full or memory was short.
    pub dropped: u64,
    /// Topic prefixes that it subscribes to.
    pub subscriptions: u64,
    /// The latest of them, as [`topic::escape`](crate::topic::escape) writes them; fewer than `subscriptions`
    /// where there are more than were asked for. The empty one means every topic.
    pub prefixes: Vec<Text>,
}

/// The body of `/v1/subscriptions?channel=&peers=&prefixes=`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscriptions {
    /// Peers, at most as many as were asked for.
    pub peers: Vec<Peer>,
    /// Peers that there are beyond these.
    pub more: u64,
}

/// A message on its way through the proxy: an element of [`MessageTrace`]. Times are nanoseconds since it
/// arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedMessage {
    /// Its channel.
    pub channel: Text,
    /// Worker of the proxy that owns the channel, or serves the publisher.
    pub worker: u32,
    /// Number of the message in its channel at that worker.
    pub sequence: u64,
    /// The beginning of its topic, as [`topic::escape`](crate::topic::escape) writes it.
    pub topic: Text,
    /// Lengths of its frames in bytes.
    pub frames: Vec<u32>,
    /// When it arrived, in nanoseconds of the host's CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// The peer that sent it.
    pub publisher: PeerName,
    /// When its receivers were found.
    pub looked_up_ns: u64,
    /// Receivers of the channel.
    pub receivers: u64,
    /// Of them, those that subscribe to its topic; on a push/pull channel 1.
    pub matched: u64,
    /// Contexts that it has passed, in order.
    #[serde(default)]
    pub contexts: Vec<Stage>,
    /// Copies for receivers, each with what has become of it.
    pub copies: Vec<TracedCopy>,
    /// Copies that the trace did not follow.
    pub more: u64,
}

/// A handler of a context that has processed a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Context.
    pub context: Text,
    /// Handler.
    pub handler: Text,
    /// When the handler got the message.
    pub at_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// Bytes that it has emitted.
    pub bytes: u64,
}

/// A receiver's copy of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCopy {
    /// The receiver.
    #[serde(flatten)]
    pub receiver: PeerName,
    /// What has become of it.
    pub state: CopyState,
    /// When that was; of a copy that waits, when it was queued.
    pub at_ns: u64,
    /// Bytes written to the receiver's connection, with the framing.
    pub bytes: u64,
}

/// What has become of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyState {
    /// It waits in the receiver's queue, or has been written in part.
    Waiting,
    /// The message waits in the queue of its information flow.
    InFlow,
    /// Its bytes are with the receiver's connection.
    Written,
    /// Dropped: the receiver's queue was full.
    DroppedNewest,
    /// Dropped: it made room for a later message in the receiver's queue.
    DroppedOldest,
    /// Dropped: the receiver took nothing, and memory was short.
    DroppedStalled,
    /// Dropped: memory was short.
    DroppedMemory,
    /// Dropped: the queue of the message's information flow was full.
    DroppedFlow,
    /// Dropped: the first queue of the channel's path was full, or the path has ended.
    DroppedPath,
    /// Not delivered: the framing of the receiver's connection cannot carry it.
    Unwritable,
    /// The receiver has left.
    Left,
    /// A handler of the channel's path emitted nothing for the message.
    Consumed,
}

impl CopyState {
    /// What it means, in words.
    pub const fn words(self) -> &'static str {
        match self {
            CopyState::Waiting => "waits in its queue",
            CopyState::InFlow => "waits in its flow's queue",
            CopyState::Written => "written",
            CopyState::DroppedNewest => "dropped: its queue was full",
            CopyState::DroppedOldest => "dropped for a later message: its queue was full",
            CopyState::DroppedStalled => "dropped: it takes nothing, and memory was short",
            CopyState::DroppedMemory => "dropped: memory was short",
            CopyState::DroppedFlow => "dropped: its flow's queue was full (`cspctl information-flows top`)",
            CopyState::DroppedPath => {
                "dropped: the channel's path was full, or has ended (`cspctl contexts`)"
            }
            CopyState::Unwritable => "not delivered: its framing cannot carry the message",
            CopyState::Left => "has left",
            CopyState::Consumed => "not delivered: a handler emitted nothing for it",
        }
    }
}

/// The body of `/v1/messages/trace?channel=&count=&topic=&timeout_s=`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageTrace {
    /// Messages in the order of their arrival; fewer than were asked for if no more came in time.
    pub messages: Vec<TracedMessage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> PeerName {
        PeerName {
            address: Some(([10, 76, 0, 1], 40_312).into()),
            node: "".into(),
            process: "".into(),
            socket: "PUB".into(),
        }
    }

    #[test]
    fn a_peer_comes_back_from_json_with_its_name_beside_its_figures() {
        let peer = Peer {
            channel: "ticks".into(),
            worker: 1,
            name: PeerName { node: "an-1".into(), process: "python3.7.1".into(), ..name() },
            role: "subscriber".into(),
            age_ms: 1200,
            messages_in: 0,
            messages_out: 5,
            waiting: 2,
            waiting_bytes: 100,
            dropped: 1,
            subscriptions: 9,
            prefixes: vec!["ACME".into(), "\\xff".into()],
        };
        let body = Subscriptions { peers: vec![peer], more: 3 };
        let json = serde_json::to_value(&body).unwrap();
        assert_eq!(json["peers"][0]["address"], "10.76.0.1:40312");
        assert_eq!(json["peers"][0]["process"], "python3.7.1");
        assert_eq!(json["peers"][0]["prefixes"][1], "\\xff");
        assert_eq!(serde_json::from_value::<Subscriptions>(json).unwrap(), body);
    }

    #[test]
    fn a_traced_message_comes_back_from_json_and_needs_no_contexts() {
        let copy = |state| TracedCopy { receiver: name(), state, at_ns: 9_000, bytes: 640 };
        let stage =
            Stage { context: "c-0".into(), handler: "select".into(), at_ns: 2_000, took_ns: 130, bytes: 600 };
        let message = TracedMessage {
            channel: "ticks".into(),
            worker: 0,
            sequence: 4711,
            topic: "ACME".into(),
            frames: vec![4, 12, 608],
            t_ns: 5,
            publisher: name(),
            looked_up_ns: 1_000,
            receivers: 5,
            matched: 2,
            contexts: vec![stage],
            copies: vec![copy(CopyState::Written), copy(CopyState::DroppedOldest)],
            more: 0,
        };
        let mut json = serde_json::to_value(&message).unwrap();
        assert_eq!(json["copies"][1]["state"], "dropped-oldest");
        assert_eq!(json["copies"][0]["socket"], "PUB");
        assert_eq!(serde_json::from_value::<TracedMessage>(json.clone()).unwrap(), message);
        json.as_object_mut().unwrap().remove("contexts");
        assert!(serde_json::from_value::<TracedMessage>(json).unwrap().contexts.is_empty());
    }
}
