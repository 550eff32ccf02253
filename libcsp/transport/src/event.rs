//! What an [`Endpoint`](crate::Endpoint) tells its owner.

use core::fmt;

use crate::identity::{PeerIdentity, Purpose, RefusalCode};

/// Names a link of one endpoint. Never equal for two links, as the generation moves on with each use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl LinkId {
    /// The link's slot, below `links_max`: tables kept beside the endpoint may be indexed by it.
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// What a data message carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessageKind {
    /// Tunnel records.
    Tunnel,
    /// Flow messages.
    Channel,
    /// An application's own bytes, with its immediate data.
    Message,
}

/// What happened to a link. Each link that [`connect`](crate::Endpoint::connect) gave, and each accepted one that came
/// up, gets exactly one `Down`, after its last message was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The handshake is over: messages may be sent.
    Up {
        /// The link.
        link: LinkId,
        /// What it carries.
        purpose: Purpose,
        /// The other end.
        peer: PeerIdentity,
    },
    /// The link is gone; its id names nothing any more.
    Down {
        /// The link.
        link: LinkId,
        /// Why.
        reason: DownReason,
    },
}

/// Why a link is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// Either side closed it cleanly.
    Closed,
    /// The peer died or broke the rules.
    Died(DeathCause),
    /// The acceptor did not want us.
    Refused {
        /// What it objects to.
        code: RefusalCode,
        /// In its words, without control characters.
        text: String,
    },
    /// Nobody there, or no answer in time.
    Unreachable {
        /// In the provider's words.
        why: String,
    },
}

/// How a peer's death, or what is treated so, was noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// Its VI disconnected without CLOSE.
    HangUp,
    /// It said nothing for the heartbeat deadline (daemons only).
    Silent,
    /// It sent what the protocol does not allow.
    Protocol(ProtocolError),
    /// It sent more messages than it had descriptors for, or returned more than it had taken.
    CreditViolation,
    /// The owner found a violation in a message's body and called [`Endpoint::fail`](crate::Endpoint::fail).
    Owner,
}

/// What in a peer's message is against the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// Shorter than a link header, or lengths disagree.
    #[error("a message's length disagrees with its header")]
    Length,
    /// Unknown version or kind, or an ill-formed body.
    #[error("a message is ill-formed")]
    Malformed,
    /// A message is missing, doubled or out of order.
    #[error("a message has the wrong sequence number")]
    Sequence,
    /// A kind that is not allowed now: before HELLO, a second HELLO, the other purpose's data.
    #[error("a message of a kind that is not allowed in this state")]
    Unexpected,
    /// The acceptor's HELLO_ACK is of the wrong role or purpose.
    #[error("the acceptor is not what the link is for")]
    Identity,
}

/// A data message whose body was copied to the caller's scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Where it came from.
    pub link: LinkId,
    /// What its body is.
    pub kind: MessageKind,
    /// The sender's immediate data: a flow label or 0. Hostile, like the body.
    pub immediate: u32,
    /// Bytes of body that were copied.
    pub len: usize,
}

/// Why a message was not sent. Nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The peer has no free descriptor for data, or our send queue is full. Try again after `progress`.
    #[error("no descriptor credit")]
    NoCredit,
    /// The link is not up (yet, or any more).
    #[error("the link is down")]
    Down,
    /// Longer than a message, or more gather parts than [`GATHER_MAX`](crate::GATHER_MAX).
    #[error("too long for one message")]
    TooLong,
}
