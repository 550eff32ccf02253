//! Events and errors that an [`Endpoint`](crate::Endpoint) reports to its owner.

use core::fmt;

use crate::identity::{PeerIdentity, Purpose, RefusalCode};

/// Identifies a link of one endpoint. Distinct for any two links, since the generation of a slot changes with
/// each use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl LinkId {
    /// The link's slot, below `links_max`: an index for tables that the owner keeps beside the endpoint.
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// The content of a data message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessageKind {
    /// Tunnel records.
    Tunnel,
    /// Flow messages.
    Channel,
    /// An application's own bytes, with its immediate data.
    Message,
    /// Packets for a plug-in host, and its verdicts.
    Packets,
}

/// A change of a link's state. Each link that [`connect`](crate::Endpoint::connect) returned, and each
/// accepted link that came up, gets exactly one `Down`, after its last message was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The handshake is complete: messages may be sent.
    Up {
        /// The link.
        link: LinkId,
        /// The link's purpose.
        purpose: Purpose,
        /// Identity of the peer.
        peer: PeerIdentity,
    },
    /// The link has ended; its id is no longer valid.
    Down {
        /// The link.
        link: LinkId,
        /// Why.
        reason: DownReason,
    },
}

/// Why a link ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// Either side closed the link cleanly.
    Closed,
    /// The peer died or violated the protocol.
    Died(DeathCause),
    /// The acceptor refused the link.
    Refused {
        /// The reason.
        code: RefusalCode,
        /// The acceptor's text, without control characters.
        text: String,
    },
    /// The address has no listener, or no answer arrived in time.
    Unreachable {
        /// The provider's description.
        why: String,
    },
}

/// How a peer's death, or a violation treated as such, was detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// Its VI disconnected without CLOSE.
    HangUp,
    /// A daemon sent nothing for the heartbeat deadline.
    Silent,
    /// It violated the protocol.
    Protocol(ProtocolError),
    /// It sent more messages than it had descriptors for, or returned more descriptors than it had received
    /// messages.
    CreditViolation,
    /// The owner found a violation in a message's body and called [`Endpoint::fail`](crate::Endpoint::fail).
    Owner,
}

/// How a peer's message violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The message is shorter than a link header, or its lengths disagree.
    #[error("a message's length disagrees with its header")]
    Length,
    /// The version or kind is unknown, or the body is ill-formed.
    #[error("a message is ill-formed")]
    Malformed,
    /// A message is missing, duplicated or out of order.
    #[error("a message has the wrong sequence number")]
    Sequence,
    /// The kind is not allowed in this state: a message before HELLO, a second HELLO, data of the other
    /// purpose.
    #[error("a message of a kind that is not allowed in this state")]
    Unexpected,
    /// The acceptor's HELLO_ACK names a role or purpose that does not match the link.
    #[error("the acceptor is not what the link is for")]
    Identity,
    /// The peer did not prove that it has the secret of the link's token: its identity is false, or its keys
    /// differ.
    #[error("the peer does not prove that it has the token's secret: it is another, or holds another key")]
    Proof,
}

/// A data message whose body was copied to the caller's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The link on which it arrived.
    pub link: LinkId,
    /// The kind of its body.
    pub kind: MessageKind,
    /// The sender's immediate data: a flow label or 0. Untrusted, like the body.
    pub immediate: u32,
    /// Length of the copied body, in bytes.
    pub len: usize,
}

/// Why a message was not sent. No part of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The peer has no free descriptor for data, or the local send queue is full. Retry after `progress`.
    #[error("no descriptor credit")]
    NoCredit,
    /// The link is not, or no longer, up.
    #[error("the link is down")]
    Down,
    /// The body exceeds a message, or has more gather parts than [`GATHER_MAX`](crate::GATHER_MAX).
    #[error("too long for one message")]
    TooLong,
}
