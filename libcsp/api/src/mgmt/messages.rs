//! Peers of channels and messages on their way, over all proxies.

use serde::{Deserialize, Serialize};

use super::cluster::Unreachable;
use crate::Text;
use crate::messages::{Peer, TracedMessage};

/// A peer of a channel with the proxy that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Proxy.
    pub proxy: Text,
    /// The peer as that proxy reports it.
    #[serde(flatten)]
    pub peer: Peer,
}

/// `GET /api/v1/subscriptions?channel=&limit=&prefixes=`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionsView {
    /// Peers by channel; those that send come first.
    pub peers: Vec<PeerView>,
    /// Peers that there are beyond these.
    pub more: u64,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// A message with the proxy that it went through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedMessageView {
    /// Proxy.
    pub proxy: Text,
    /// The message as that proxy reports it.
    #[serde(flatten)]
    pub message: TracedMessage,
}

/// `GET /api/v1/messages/trace?channel=&count=&topic=&timeout_s=`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageTraceView {
    /// Messages, in the order of their arrival at each proxy; fewer than were asked for if no more came in
    /// time.
    pub messages: Vec<TracedMessageView>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}
