//! The broker's configuration of a channel.

use std::sync::Arc;

use csp_messages::{ChannelConfig, ChannelKind};
use csp_types::Duration;
use csp_zmtp::{Config as ZmtpConfig, Heartbeat, LocalType};

use super::formats::ChannelFormats;
use super::framing::PrefixedPort;
use super::keys::ChannelKeys;

/// A channel, with the number by which the policy's service names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelSpec {
    /// [`ServiceSpec::local`](csp_proxy_core::ServiceSpec::local) of the service at the channel's address.
    pub number: u32,
    /// The channel.
    pub channel: ChannelConfig,
    /// Ports whose peers send and receive messages behind a header with their length. Peers at all other
    /// ports speak ZMTP.
    pub prefixed: Vec<PrefixedPort>,
    /// Time between two PINGs to a peer, and the time within which it must send something after a PING.
    pub heartbeat: Option<Duration>,
    /// Encryption, and the rights of its peers. `None`: every peer may connect, in clear text.
    pub keys: Option<Arc<ChannelKeys>>,
    /// The formats of its messages, if the policy names any.
    pub formats: Option<ChannelFormats>,
    /// Messages that match none of its formats are dropped.
    pub drops_unknown: bool,
    /// Its messages are made from those of other channels: no peer publishes.
    pub derived: bool,
}

impl ChannelSpec {
    /// A channel that admits every peer, without heartbeats.
    pub fn open(number: u32, channel: ChannelConfig) -> Self {
        ChannelSpec {
            number,
            channel,
            prefixed: Vec::new(),
            heartbeat: None,
            keys: None,
            formats: None,
            drops_unknown: false,
            derived: false,
        }
    }

    /// Returns whether the channel can change to `other` and keep its connections, except those whose rights
    /// `other` does not grant.
    pub(super) fn can_become(&self, other: &ChannelSpec) -> bool {
        let keys = match (&self.keys, &other.keys) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.admits_as(theirs),
            _ => false,
        };
        keys && self.channel == other.channel
            && self.prefixed == other.prefixed
            && self.heartbeat == other.heartbeat
            && self.derived == other.derived
    }

    pub(super) fn zmtp(&self, topic_len_max: usize) -> ZmtpConfig {
        let local = match self.channel.kind {
            ChannelKind::PublishSubscribe { .. } => LocalType::Forwarder,
            ChannelKind::PushPull { .. } => LocalType::Streamer,
        };
        // A peer that is not served within three intervals has lost the broker.
        let beat = |interval| Heartbeat { interval, timeout: interval, ttl: interval * 3 };
        ZmtpConfig {
            message_len_max: self.channel.message_len_max as usize,
            topic_len_max,
            frames_max: csp_messages::FRAMES_MAX,
            heartbeat: self.heartbeat.map(beat),
            ..ZmtpConfig::new(local)
        }
    }
}
