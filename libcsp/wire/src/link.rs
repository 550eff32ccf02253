//! The header of every message on a Virtual Interface, and the bodies of the link's own messages.
//!
//! ```text
//!  0 version | 1 kind | 2 credits (2) | 4 body length (4) | 8 sequence (8) | 16 body
//! ```
//! Integers are little-endian. The transport defines the meaning of kinds, and when they may be sent.

mod hello;

use crate::WireError;
use crate::bytes::{Writer, array_at};
pub use hello::{
    EXTENSION_LEN_MAX, Hello, HelloAck, NONCE_LEN, PROOF_LEN, Resume, SESSION_LEN, Sender, Versions,
};

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = 16;
/// The version in every header.
pub const VERSION: u8 = 1;
/// Longest process id in a [`Hello`], in bytes.
pub const PROCESS_ID_LEN_MAX: usize = 127;
/// Longest token in a [`Hello`], in bytes.
pub const TOKEN_LEN_MAX: usize = 1024;
/// Longest text of a [`HelloRefused`], in bytes.
pub const REFUSED_TEXT_LEN_MAX: usize = 255;
/// Longest [`Hello`] body there can be, in bytes.
pub const HELLO_LEN_MAX: usize = hello::LEN_MAX;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First message of the connecting side: its identity ([`Hello`]).
    Hello = 1,
    /// Reply of the accepting side: its identity ([`HelloAck`]).
    HelloAck = 2,
    /// The accepting side refuses the link ([`HelloRefused`]).
    HelloRefused = 3,
    /// Requests a `Pong`.
    Ping = 4,
    /// Answer to `Ping`.
    Pong = 5,
    /// Carries only the header's credits.
    Credit = 6,
    /// The sender closes the link.
    Close = 7,
    /// Tunnel records ([`crate::tunnel`]).
    Tunnel = 8,
    /// Channel messages ([`crate::channel`]).
    Channel = 9,
    /// An application's own bytes.
    Message = 10,
    /// Packets for a plug-in host, and its verdicts ([`crate::packets`]).
    Packets = 11,
    /// The connecting side's answer to HELLO_ACK: a proof over both ([`PROOF_LEN`] bytes). Data may follow at
    /// once.
    Confirm = 12,
}

impl Kind {
    /// The kind with this wire number.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Kind::Hello,
            2 => Kind::HelloAck,
            3 => Kind::HelloRefused,
            4 => Kind::Ping,
            5 => Kind::Pong,
            6 => Kind::Credit,
            7 => Kind::Close,
            8 => Kind::Tunnel,
            9 => Kind::Channel,
            10 => Kind::Message,
            11 => Kind::Packets,
            12 => Kind::Confirm,
            _ => return None,
        })
    }
}

/// The header in front of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The kind of the message.
    pub kind: Kind,
    /// Receive descriptors that the sender has reposted since it last advertised credits.
    pub credits: u16,
    /// Bytes that follow the header.
    pub body_len: u32,
    /// Sequence number of this message on its link, from 0. Messages that resume a link are not numbered and
    /// have 0.
    pub sequence: u64,
}

impl Header {
    /// The header as bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2..4].copy_from_slice(&self.credits.to_le_bytes());
        out[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// Splits a received message into header and body. The body length must equal the number of bytes after
    /// the header, and be 0 in a CREDIT message.
    pub fn parse(message: &[u8]) -> Result<(Header, &[u8]), WireError> {
        let raw = array_at::<HEADER_LEN>(message, 0, "link header")?;
        let header = Header::parse_prefix(raw, message.len())?;
        Ok((header, &message[HEADER_LEN..]))
    }

    /// As [`parse`](Self::parse), from the first bytes of a message of `message_len` bytes, for a receiver
    /// that copies header and body out of shared memory one after the other.
    pub fn parse_prefix(raw: &[u8; HEADER_LEN], message_len: usize) -> Result<Header, WireError> {
        if raw[0] != VERSION {
            return Err(WireError::Version { what: "link version", offset: 0, found: raw[0].into() });
        }
        let kind = Kind::from_u8(raw[1]).ok_or(WireError::Kind {
            what: "link message kind",
            offset: 1,
            found: raw[1].into(),
        })?;
        let body_len = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        let whole = HEADER_LEN as u64 + u64::from(body_len);
        if message_len as u64 != whole || (kind == Kind::Credit && body_len != 0) {
            return Err(WireError::Length { what: "link body length", offset: 4, found: body_len as usize });
        }
        Ok(Header {
            kind,
            credits: u16::from_le_bytes([raw[2], raw[3]]),
            body_len,
            sequence: u64::from_le_bytes([
                raw[8], raw[9], raw[10], raw[11], raw[12], raw[13], raw[14], raw[15],
            ]),
        })
    }
}

/// The purpose of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// Between network node and proxy node.
    Tunnel = 1,
    /// Between proxy node and application process (or the agent that relays it).
    Channel = 2,
    /// Between application processes of one host.
    Message = 3,
    /// Between network node and plug-in host (`csp-context packets`).
    Packets = 4,
}

/// Why a HELLO was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum RefusalCode {
    /// A reason that this version does not know (any number not listed here is parsed as this one).
    Unspecified = 0,
    /// The ends have no protocol version in common.
    Version = 1,
    /// The HELLO is malformed, or another message came first.
    Malformed = 2,
    /// The token is not signed with a key of its node, its holder does not prove that it has the token's
    /// secret, or it names another identity.
    BadToken = 3,
    /// The token is not valid at this time.
    ExpiredToken = 4,
    /// The role may not open a link of this purpose.
    WrongRole = 5,
    /// The table of links is full.
    Full = 6,
    /// The link exists already.
    Duplicate = 7,
    /// The node is going out of service.
    Draining = 8,
    /// The link to be resumed is unknown or has expired, or messages that the peer lacks are no longer
    /// stored.
    NoSession = 9,
}

impl RefusalCode {
    /// The code with this wire number.
    pub const fn from_u16(value: u16) -> Self {
        match value {
            1 => RefusalCode::Version,
            2 => RefusalCode::Malformed,
            3 => RefusalCode::BadToken,
            4 => RefusalCode::ExpiredToken,
            5 => RefusalCode::WrongRole,
            6 => RefusalCode::Full,
            7 => RefusalCode::Duplicate,
            8 => RefusalCode::Draining,
            9 => RefusalCode::NoSession,
            _ => RefusalCode::Unspecified,
        }
    }
}

/// Body of HELLO_REFUSED: a code and a text for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloRefused<'a> {
    /// The reason.
    pub code: RefusalCode,
    /// The reason as text: UTF-8 without control characters, at most [`REFUSED_TEXT_LEN_MAX`] bytes.
    pub text: &'a str,
}

impl<'a> HelloRefused<'a> {
    /// Parses a HELLO_REFUSED body.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let code = RefusalCode::from_u16(u16::from_le_bytes(*array_at(body, 0, "hello-refused code")?));
        let text = &body[2..];
        if text.len() > REFUSED_TEXT_LEN_MAX {
            return Err(WireError::Length { what: "hello-refused text", offset: 2, found: text.len() });
        }
        let not_allowed = |at: usize| WireError::Value { what: "hello-refused text", offset: 2 + at };
        let text = core::str::from_utf8(text).map_err(|error| not_allowed(error.valid_up_to()))?;
        // The text is written to the operator's log, so a peer must not be able to forge lines in it.
        match text.find(char::is_control) {
            Some(at) => Err(not_allowed(at)),
            None => Ok(HelloRefused { code, text }),
        }
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        2 + self.text.len()
    }

    /// Always false: the encoding is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the body; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.text.len() > REFUSED_TEXT_LEN_MAX {
            return Err(WireError::TooLarge { what: "hello-refused text" });
        }
        let mut writer = Writer::new(out);
        writer.put(&(self.code as u16).to_le_bytes(), "hello-refused code")?;
        writer.put(self.text.as_bytes(), "hello-refused text")?;
        Ok(writer.len())
    }
}
