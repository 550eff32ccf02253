//! The header of every message on a Virtual Interface, and the bodies of the link's own messages.
//!
//! ```text
//!  0 version | 1 kind | 2 credits (2) | 4 body length (4) | 8 sequence (8) | 16 body
//! ```
//! Integers are little-endian. What kinds mean, and when they may be sent, is the transport's affair.

use csp_types::limits::VI_POOL_MAX;
use csp_types::{NodeId, Role};

use crate::WireError;
use crate::bytes::{Writer, array_at, slice_at};

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = 16;
/// The version in every header.
pub const VERSION: u8 = 1;
/// The protocol version a [`Hello`] offers.
pub const PROTOCOL_VERSION: u16 = 1;
/// Longest process id in a [`Hello`], in bytes.
pub const PROCESS_ID_LEN_MAX: usize = 127;
/// Longest token in a [`Hello`], in bytes.
pub const TOKEN_LEN_MAX: usize = 1024;
/// Longest text of a [`HelloRefused`], in bytes.
pub const REFUSED_TEXT_LEN_MAX: usize = 255;
/// Longest [`Hello`] body there can be, in bytes.
pub const HELLO_LEN_MAX: usize =
    HELLO_FIXED_LEN + 1 + NODE_ID_LEN_MAX + 1 + PROCESS_ID_LEN_MAX + 2 + TOKEN_LEN_MAX;

const HELLO_FIXED_LEN: usize = 20;
/// Longest text of a [`NodeId`], in bytes.
const NODE_ID_LEN_MAX: usize = 63;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First message of the connecting side: who it is ([`Hello`]).
    Hello = 1,
    /// The accepting side's answer: who it is ([`HelloAck`]).
    HelloAck = 2,
    /// The accepting side wants no link ([`HelloRefused`]).
    HelloRefused = 3,
    /// Are you there?
    Ping = 4,
    /// Answer to `Ping`.
    Pong = 5,
    /// Carries nothing but the header's credits.
    Credit = 6,
    /// The sender is done with this link.
    Close = 7,
    /// Tunnel records ([`crate::tunnel`]).
    Tunnel = 8,
    /// Channel messages ([`crate::channel`]).
    Channel = 9,
    /// An application's own bytes.
    Message = 10,
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
            _ => return None,
        })
    }
}

/// The header in front of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Receive descriptors the sender has reposted since it last told.
    pub credits: u16,
    /// Bytes that follow the header.
    pub body_len: u32,
    /// Number of this message on its VI, from 0.
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

    /// Splits a whole received message into header and body. The body length must be exactly what follows the header,
    /// and 0 in a CREDIT message.
    pub fn parse(message: &[u8]) -> Result<(Header, &[u8]), WireError> {
        let raw = array_at::<HEADER_LEN>(message, 0, "link header")?;
        let header = Header::parse_prefix(raw, message.len())?;
        Ok((header, &message[HEADER_LEN..]))
    }

    /// As [`parse`](Self::parse), of the first bytes of a message of `message_len` bytes, for a receiver that copies
    /// header and body out of shared memory one after the other.
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

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// Between network node and proxy node.
    Tunnel = 1,
    /// Between proxy node and application process (or the agent that carries it).
    Channel = 2,
    /// Between application processes of one host.
    Message = 3,
}

/// Body of HELLO: who connects, and what for.
///
/// ```text
///  0 protocol version (2) | 2 role | 3 purpose | 4 worker | 5 pool index | 6 pool size | 7 reserved 0
///  8 receive depth (4) | 12 incarnation (8) | 20 node id (1 + n) | process id (1 + n) | token (2 + n)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// The sender's role.
    pub role: Role,
    /// What the link is for.
    pub purpose: Purpose,
    /// The sender's worker that owns this end.
    pub worker: u8,
    /// Which VI of the pool this is, below `pool_size`.
    pub pool_index: u8,
    /// VIs in the pool, 1 to [`VI_POOL_MAX`].
    pub pool_size: u8,
    /// Receive descriptors the sender keeps posted, at least 1.
    pub receive_depth: u32,
    /// Which start of the node (or process) this is.
    pub incarnation: u64,
    /// The sender's node.
    pub node_id: NodeId,
    /// The sender's process, printable ASCII; empty for daemons.
    pub process_id: &'a str,
    /// Proof of role and identity, opaque here.
    pub token: &'a [u8],
}

/// Body of HELLO_ACK: who accepted. As [`Hello`], without the token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloAck<'a> {
    /// The sender's role.
    pub role: Role,
    /// What the link is for.
    pub purpose: Purpose,
    /// The sender's worker that owns this end.
    pub worker: u8,
    /// Which VI of the pool this is, below `pool_size`.
    pub pool_index: u8,
    /// VIs in the pool, 1 to [`VI_POOL_MAX`].
    pub pool_size: u8,
    /// Receive descriptors the sender keeps posted, at least 1.
    pub receive_depth: u32,
    /// Which start of the node (or process) this is.
    pub incarnation: u64,
    /// The sender's node.
    pub node_id: NodeId,
    /// The sender's process, printable ASCII; empty for daemons.
    pub process_id: &'a str,
}

impl<'a> Hello<'a> {
    /// Parses a HELLO body; bytes behind the token are refused.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (ack, at) = HelloAck::parse_prefix(body)?;
        let token_len = usize::from(u16::from_le_bytes(*array_at(body, at, "hello token length")?));
        if token_len > TOKEN_LEN_MAX {
            return Err(WireError::Length { what: "hello token length", offset: at, found: token_len });
        }
        let token = slice_at(body, at + 2, token_len, "hello token")?;
        check_end(body, at + 2 + token_len, "hello")?;
        Ok(ack.with_token(token))
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        self.without_token().len() + 2 + self.token.len()
    }

    /// Whether nothing would be written: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the body; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.token.len() > TOKEN_LEN_MAX {
            return Err(WireError::TooLarge { what: "hello token" });
        }
        let mut writer = Writer::new(out);
        self.without_token().emit_to(&mut writer)?;
        writer.put(&(self.token.len() as u16).to_le_bytes(), "hello token length")?;
        writer.put(self.token, "hello token")?;
        Ok(writer.len())
    }

    fn without_token(&self) -> HelloAck<'a> {
        HelloAck {
            role: self.role,
            purpose: self.purpose,
            worker: self.worker,
            pool_index: self.pool_index,
            pool_size: self.pool_size,
            receive_depth: self.receive_depth,
            incarnation: self.incarnation,
            node_id: self.node_id,
            process_id: self.process_id,
        }
    }
}

impl<'a> HelloAck<'a> {
    /// Parses a HELLO_ACK body; bytes behind it are refused.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (ack, end) = Self::parse_prefix(body)?;
        check_end(body, end, "hello-ack")?;
        Ok(ack)
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        HELLO_FIXED_LEN + 1 + self.node_id.as_str().len() + 1 + self.process_id.len()
    }

    /// Whether nothing would be written: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the body; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        self.emit_to(&mut writer)?;
        Ok(writer.len())
    }

    fn with_token(self, token: &'a [u8]) -> Hello<'a> {
        Hello {
            role: self.role,
            purpose: self.purpose,
            worker: self.worker,
            pool_index: self.pool_index,
            pool_size: self.pool_size,
            receive_depth: self.receive_depth,
            incarnation: self.incarnation,
            node_id: self.node_id,
            process_id: self.process_id,
            token,
        }
    }

    fn emit_to(&self, writer: &mut Writer<'_>) -> Result<(), WireError> {
        if self.process_id.len() > PROCESS_ID_LEN_MAX {
            return Err(WireError::TooLarge { what: "hello process id" });
        }
        let mut fixed = [0; HELLO_FIXED_LEN];
        fixed[0..2].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        fixed[2] = self.role as u8;
        fixed[3] = self.purpose as u8;
        fixed[4] = self.worker;
        fixed[5] = self.pool_index;
        fixed[6] = self.pool_size;
        fixed[8..12].copy_from_slice(&self.receive_depth.to_le_bytes());
        fixed[12..20].copy_from_slice(&self.incarnation.to_le_bytes());
        writer.put(&fixed, "hello")?;
        let node_id = self.node_id.as_str().as_bytes();
        writer.put(&[node_id.len() as u8], "hello node id")?;
        writer.put(node_id, "hello node id")?;
        writer.put(&[self.process_id.len() as u8], "hello process id")?;
        writer.put(self.process_id.as_bytes(), "hello process id")
    }

    /// Parses up to the process id; also says where that ends.
    fn parse_prefix(body: &'a [u8]) -> Result<(Self, usize), WireError> {
        // The version stands first and alone, so that a newer peer's HELLO is refused for its version and no more.
        let version = u16::from_le_bytes(*array_at(body, 0, "hello protocol version")?);
        if version != PROTOCOL_VERSION {
            let what = "hello protocol version";
            return Err(WireError::Version { what, offset: 0, found: version.into() });
        }
        let fixed = array_at::<HELLO_FIXED_LEN>(body, 0, "hello")?;
        let (role, purpose) = parse_role_and_purpose(fixed)?;
        let (pool_index, pool_size) = (fixed[5], fixed[6]);
        if pool_size == 0 || usize::from(pool_size) > VI_POOL_MAX {
            return Err(WireError::Value { what: "hello pool size", offset: 6 });
        }
        if pool_index >= pool_size {
            return Err(WireError::Value { what: "hello pool index", offset: 5 });
        }
        if fixed[7] != 0 {
            return Err(WireError::Reserved { what: "hello reserved byte", offset: 7 });
        }
        let receive_depth = u32::from_le_bytes(*array_at(fixed, 8, "hello receive depth")?);
        if receive_depth == 0 {
            return Err(WireError::Value { what: "hello receive depth", offset: 8 });
        }
        let incarnation = u64::from_le_bytes(*array_at(fixed, 12, "hello incarnation")?);
        let at = HELLO_FIXED_LEN;
        let node_id = short_bytes(body, at, "hello node id")?;
        let process_at = at + 1 + node_id.len();
        let node_id =
            NodeId::parse(node_id).map_err(|_| WireError::Value { what: "hello node id", offset: at + 1 })?;
        let process_id = parse_process_id(body, process_at)?;
        let end = process_at + 1 + process_id.len();
        let worker = fixed[4];
        let ack = HelloAck {
            role,
            purpose,
            worker,
            pool_index,
            pool_size,
            receive_depth,
            incarnation,
            node_id,
            process_id,
        };
        Ok((ack, end))
    }
}

fn parse_role_and_purpose(fixed: &[u8; HELLO_FIXED_LEN]) -> Result<(Role, Purpose), WireError> {
    let undefined = |what, offset: usize| WireError::Kind { what, offset, found: fixed[offset].into() };
    let role = Role::from_u8(fixed[2]).ok_or(undefined("hello role", 2))?;
    let purpose = match fixed[3] {
        1 => Purpose::Tunnel,
        2 => Purpose::Channel,
        3 => Purpose::Message,
        _ => return Err(undefined("hello purpose", 3)),
    };
    Ok((role, purpose))
}

fn parse_process_id(body: &[u8], at: usize) -> Result<&str, WireError> {
    let bytes = short_bytes(body, at, "hello process id")?;
    if bytes.len() > PROCESS_ID_LEN_MAX {
        return Err(WireError::Length { what: "hello process id", offset: at, found: bytes.len() });
    }
    let not_allowed = |offset| WireError::Value { what: "hello process id", offset };
    if let Some(i) = bytes.iter().position(|b| !b.is_ascii_graphic()) {
        return Err(not_allowed(at + 1 + i));
    }
    core::str::from_utf8(bytes).map_err(|_| not_allowed(at + 1))
}

/// Bytes behind a length byte at `at`.
fn short_bytes<'a>(body: &'a [u8], at: usize, what: &'static str) -> Result<&'a [u8], WireError> {
    let [len] = *array_at::<1>(body, at, what)?;
    slice_at(body, at + 1, usize::from(len), what)
}

fn check_end(body: &[u8], end: usize, what: &'static str) -> Result<(), WireError> {
    if body.len() != end {
        return Err(WireError::Length { what, offset: end, found: body.len() });
    }
    Ok(())
}

/// Why a HELLO was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum RefusalCode {
    /// A reason this version does not know (any number not listed here reads as this one).
    Unspecified = 0,
    /// The protocol version is not spoken.
    Version = 1,
    /// The HELLO could not be parsed, or another message came first.
    Malformed = 2,
    /// The token is not signed with the cluster key, or names another identity.
    BadToken = 3,
    /// The token is not valid at this time.
    ExpiredToken = 4,
    /// The role may not open a link of this purpose.
    WrongRole = 5,
    /// No room for another link.
    Full = 6,
    /// Such a link exists already.
    Duplicate = 7,
    /// The node is going out of service.
    Draining = 8,
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
            _ => RefusalCode::Unspecified,
        }
    }
}

/// Body of HELLO_REFUSED: a code and a text for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloRefused<'a> {
    /// The reason.
    pub code: RefusalCode,
    /// The reason in words: UTF-8 without control characters, at most [`REFUSED_TEXT_LEN_MAX`] bytes.
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
        // The text ends in the operator's log: a peer must not be able to forge lines there.
        match text.find(char::is_control) {
            Some(at) => Err(not_allowed(at)),
            None => Ok(HelloRefused { code, text }),
        }
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        2 + self.text.len()
    }

    /// Whether nothing would be written: never.
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
