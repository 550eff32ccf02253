//! What one peer does, and the messages that it sends: a function of the peer's number and the message's.

use csp_proxy_node::core::ServiceSpec;
use csp_services::ChannelSpec;
use csp_types::Duration;
use std::net::SocketAddr;

use crate::pattern;

/// Bytes in front of a message's filling: publisher, number, and length of the filling.
const HEAD_LEN: usize = 12;
/// Ends the topic in a message of one frame.
const TOPIC_END: u8 = b':';

/// A channel of messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelPlan {
    /// The channel, by the number of its service.
    pub spec: ChannelSpec,
    /// Its address.
    pub address: SocketAddr,
}

impl ChannelPlan {
    /// Returns the service at the channel's address.
    pub(super) fn service(&self) -> ServiceSpec {
        ServiceSpec {
            local: Some(self.spec.number),
            ..ServiceSpec::new(self.spec.channel.name.clone(), self.address)
        }
    }
}

/// Where a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a host of the LAN.
    Outside,
    /// In the program of this number.
    Inside(usize),
}

/// What a peer does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Publishes or pushes.
    Sends {
        /// Number of messages.
        messages: u32,
        /// Most bytes of a message's filling; most messages are far shorter.
        len_max: u32,
        /// Time between two messages; 0: as fast as the connection accepts them.
        every: Duration,
        /// The topics of its messages.
        topics: Vec<&'static [u8]>,
        /// It closes its connection after the last message.
        closes: bool,
    },
    /// Subscribes or pulls.
    Receives {
        /// The topics that it subscribes to; none if it pulls.
        topics: Vec<&'static [u8]>,
        /// When it does not read, from and until.
        deaf: Option<(Duration, Duration)>,
    },
}

/// How a peer leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// When all is over.
    Last,
    /// It closes its connection at this time.
    Closes(Duration),
    /// It resets its connection at this time.
    Resets(Duration),
}

/// A peer; times are relative to the start of the senders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerPlan {
    /// Index of its channel.
    pub channel: usize,
    /// Where it is.
    pub place: Place,
    /// Minor version of its ZMTP.
    pub minor: u8,
    /// When it connects; `None`: before any sender.
    pub start: Option<Duration>,
    /// What it does.
    pub role: Role,
    /// How it leaves.
    pub leaves: Leaves,
    /// It connects after the incident is over.
    pub late: bool,
}

impl PeerPlan {
    /// Returns whether it publishes or pushes.
    pub fn sends(&self) -> bool {
        matches!(self.role, Role::Sends { .. })
    }

    /// Returns the number of topics that it subscribes to.
    pub(super) fn subscriptions(&self) -> usize {
        match &self.role {
            Role::Sends { .. } => 0,
            Role::Receives { topics, .. } => topics.len(),
        }
    }
}

/// A multiplicative hash of two numbers.
fn mixed(a: u32, b: u32) -> u64 {
    let mut z = (u64::from(a) << 32 | u64::from(b)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// Returns the topic of message `number` of a sender.
pub(super) fn topic(sender: u32, number: u32, topics: &[&'static [u8]]) -> &'static [u8] {
    topics[mixed(sender, number) as usize % topics.len()]
}

/// Returns message `number` of a sender, by frames.
pub(super) fn message(sender: u32, number: u32, len_max: u32, topics: &[&'static [u8]]) -> Vec<Vec<u8>> {
    let z = mixed(number, sender.wrapping_add(77));
    let most = match z % 32 {
        0 => len_max,
        1..8 => len_max.min(4_000),
        _ => len_max.min(600),
    };
    let len = (z >> 8) as u32 % (most + 1);
    let mut filling = vec![0; len as usize];
    pattern::fill(sender ^ number.rotate_left(16), 0, &mut filling);
    let topic = topic(sender, number, topics);
    let head = [sender, number, len].map(u32::to_be_bytes).concat();
    let rest = [&head[..], &filling].concat();
    let frames = (z >> 40) as usize % 4;
    if frames == 0 {
        return vec![[topic, &[TOPIC_END], &rest].concat()];
    }
    // The head stands in the second frame.
    let mut parts = vec![topic.to_vec()];
    let cut = HEAD_LEN + len as usize / frames;
    let (first, rest) = rest.split_at(cut);
    parts.push(first.to_vec());
    let each = rest.len().div_ceil(frames.max(2) - 1).max(1);
    parts.extend(rest.chunks(each).map(<[u8]>::to_vec));
    parts
}

/// Returns the sender and the number that a message has.
pub(super) fn identify(frames: &[Vec<u8>]) -> Option<(u32, u32)> {
    let head = match frames {
        [one] => &one[one.iter().position(|byte| *byte == TOPIC_END)? + 1..],
        [_, second, ..] => second,
        [] => return None,
    };
    let field = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    Some((field(0)?, field(4)?))
}
