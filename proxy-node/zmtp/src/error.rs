//! Why a connection ends: what was wrong, and at which byte of the stream.

use thiserror::Error;

use crate::socket::SocketType;

/// Why a connection cannot go on. Except for [`Gap`](ZmtpError::Gap), the peer is at fault or silent.
///
/// `what` names the field or command in the terms of 37/ZMTP or 26/CURVEZMQ. `at` counts bytes from the start
/// of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ZmtpError {
    /// The first bytes are not a signature: the peer speaks ZMTP 1.0, or something else.
    #[error("greeting at byte {at}: {found:#04x} is no signature of ZMTP 2.0 or later")]
    Signature {
        /// Where it differs.
        at: u64,
        /// The byte found.
        found: u8,
    },
    /// The peer speaks a version before 3.0.
    #[error("greeting at byte {at}: major version {found}, at least 3 is required")]
    Version {
        /// Where the version stands.
        at: u64,
        /// The major version; 1 stands for ZMTP 2.0.
        found: u8,
    },
    /// The peer's security mechanism is not the listener's.
    #[error("greeting at byte {at}: another security mechanism than the listener's")]
    Mechanism {
        /// Where the mechanism stands.
        at: u64,
    },
    /// The peer wants to be the server of a CURVE handshake.
    #[error("greeting at byte {at}: the peer must be the client of the handshake")]
    AsServer {
        /// Where the field stands.
        at: u64,
    },
    /// A flags octet with reserved bits, or MORE with COMMAND.
    #[error("frame at byte {at}: flags {found:#04x} are not allowed")]
    Flags {
        /// Start of the frame.
        at: u64,
        /// The octet.
        found: u8,
    },
    /// A body of 2⁶³ bytes or more.
    #[error("frame at byte {at}: the length {found} exceeds 63 bits")]
    Length {
        /// Start of the frame.
        at: u64,
        /// The length field.
        found: u64,
    },
    /// Something longer than the configuration allows.
    #[error("{what} at byte {at}: {found} bytes, at most {most} are allowed")]
    TooLong {
        /// Message, command or topic.
        what: Excess,
        /// Start of the frame; of a command that has arrived, start of its body.
        at: u64,
        /// Its length in bytes; of a message as far as its frames are known.
        found: u64,
        /// The bound.
        most: usize,
    },
    /// A message of too many frames.
    #[error("frame at byte {at}: more than {most} frames in a message")]
    TooManyFrames {
        /// Start of the frame that is one too many.
        at: u64,
        /// The bound.
        most: usize,
    },
    /// A command or its metadata that does not follow its grammar.
    #[error("{what} before byte {at}: malformed")]
    Malformed {
        /// The field or command.
        what: &'static str,
        /// End of the command.
        at: u64,
    },
    /// A command or message that is not allowed now.
    #[error("{what} before byte {at}: not allowed in this state")]
    Unexpected {
        /// The command or message.
        what: &'static str,
        /// End of the command, or start of the message's frame.
        at: u64,
    },
    /// A peer of a type that the local type does not talk to.
    #[error("handshake before byte {at}: a {} does not connect to a {}", peer.name(), local.name())]
    SocketType {
        /// End of the command with the metadata.
        at: u64,
        /// The peer's type.
        peer: SocketType,
        /// The listener's type.
        local: SocketType,
    },
    /// An encrypted box that does not open: damaged, or made with other keys.
    #[error("{what} before byte {at}: cannot be decrypted, wrong key or damaged")]
    Sealed {
        /// The box.
        what: &'static str,
        /// End of the command.
        at: u64,
    },
    /// A short nonce that is not larger than the one before.
    #[error("command before byte {at}: short nonce {found} after {last}")]
    Nonce {
        /// End of the command, or of its nonce.
        at: u64,
        /// The nonce found.
        found: u64,
        /// The largest one so far.
        last: u64,
    },
    /// A public key of small order: every peer could compute its shared secrets.
    #[error("{what} before byte {at}: a key of small order")]
    WeakKey {
        /// The key.
        what: &'static str,
        /// End of the command.
        at: u64,
    },
    /// The caller denied the peer's key.
    #[error("the peer's key is denied")]
    Denied,
    /// The peer sent ERROR.
    #[error("ERROR before byte {at}: the peer refuses the connection")]
    PeerError {
        /// End of the command.
        at: u64,
    },
    /// The peer did not finish the handshake in time.
    #[error("the handshake did not end in time")]
    HandshakeTimeout,
    /// The peer sent nothing after a PING.
    #[error("no traffic after PING")]
    HeartbeatTimeout,
    /// The peer sent nothing within the time-to-live of its own PING.
    #[error("no traffic within the time-to-live that the peer announced")]
    TtlTimeout,
    /// The caller consumed bytes that the connection has not examined.
    #[error("the caller passed the stream from byte {found} on, but byte {at} is next")]
    Gap {
        /// The position from which bytes are needed.
        at: u64,
        /// The position of the first byte passed.
        found: u64,
    },
}

/// What can be longer than the configuration allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excess {
    /// A message: the bodies of its frames.
    Message,
    /// A command's body.
    Command,
    /// A subscription's topic.
    Topic,
}

impl core::fmt::Display for Excess {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Excess::Message => "message",
            Excess::Command => "command",
            Excess::Topic => "topic",
        })
    }
}

/// Why the connection cannot encode something for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EncodeError {
    /// The handshake is not complete, or the connection has failed.
    #[error("the connection carries no messages now")]
    NotReady,
    /// The caller's buffer is too small.
    #[error("the buffer is too small, {needed} bytes are required")]
    NoSpace {
        /// Bytes that the buffer must have.
        needed: usize,
    },
    /// Messages of a CURVE connection must be encrypted, those of a NULL connection cannot be.
    #[error("the connection's mechanism is another one")]
    Mechanism,
    /// The nonces of the connection are used up.
    #[error("the connection has used all its nonces")]
    Exhausted,
}
