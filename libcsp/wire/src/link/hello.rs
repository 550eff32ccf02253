//! HELLO and HELLO_ACK.

use csp_types::limits::VI_POOL_MAX;
use csp_types::{NodeId, Role};

use super::{PROCESS_ID_LEN_MAX, PROTOCOL_VERSION, Purpose, TOKEN_LEN_MAX};
use crate::WireError;
use crate::bytes::{Writer, array_at, slice_at};

/// Bytes of a session secret.
pub const SESSION_LEN: usize = 16;

/// Longest body there can be, in bytes.
pub(super) const LEN_MAX: usize =
    HELLO_FIXED_LEN + 1 + NODE_ID_LEN_MAX + 1 + PROCESS_ID_LEN_MAX + RESUME_LEN + 2 + TOKEN_LEN_MAX;

const HELLO_FIXED_LEN: usize = 20;
/// Bytes of a [`Resume`].
const RESUME_LEN: usize = SESSION_LEN + 8;
/// The flag that says that a [`Resume`] follows.
const FLAG_RESUME: u8 = 1;
/// Longest text of a [`NodeId`], in bytes.
const NODE_ID_LEN_MAX: usize = 63;

/// A link that is resumed over another VI, as both sides identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The secret that the accepting side has assigned to the link.
    pub session: [u8; SESSION_LEN],
    /// Number of messages of the link that the sender has received so far, which is the sequence number of the next.
    pub received: u64,
}

/// Body of HELLO: identity of the connecting side, and purpose of the link.
///
/// ```text
///  0 protocol version (2) | 2 role | 3 purpose | 4 worker | 5 pool index | 6 pool size | 7 flags (1: resume)
///  8 receive depth (4) | 12 incarnation (8) | 20 node id (1 + n) | process id (1 + n)
///    with flag 1: session (16) | received (8)
///    token (2 + n)
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
    /// The link to resume, whose VI was lost; `None`: a new link.
    pub resume: Option<Resume>,
    /// Proof of role and identity; not interpreted here.
    pub token: &'a [u8],
}

/// Body of HELLO_ACK: identity of the accepting side. As [`Hello`], without the token.
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
    /// How to resume the link after its VI is lost; `None`: it cannot be resumed.
    pub resume: Option<Resume>,
}

impl<'a> Hello<'a> {
    /// Parses a HELLO body; bytes after the token are an error.
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

    /// Always false: the encoding is never empty.
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
            resume: self.resume,
        }
    }
}

impl<'a> HelloAck<'a> {
    /// Parses a HELLO_ACK body; bytes after it are an error.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (ack, end) = Self::parse_prefix(body)?;
        check_end(body, end, "hello-ack")?;
        Ok(ack)
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        let resume = if self.resume.is_some() { RESUME_LEN } else { 0 };
        HELLO_FIXED_LEN + 1 + self.node_id.as_str().len() + 1 + self.process_id.len() + resume
    }

    /// Always false: the encoding is never empty.
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
            resume: self.resume,
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
        fixed[7] = if self.resume.is_some() { FLAG_RESUME } else { 0 };
        fixed[8..12].copy_from_slice(&self.receive_depth.to_le_bytes());
        fixed[12..20].copy_from_slice(&self.incarnation.to_le_bytes());
        writer.put(&fixed, "hello")?;
        let node_id = self.node_id.as_str().as_bytes();
        writer.put(&[node_id.len() as u8], "hello node id")?;
        writer.put(node_id, "hello node id")?;
        writer.put(&[self.process_id.len() as u8], "hello process id")?;
        writer.put(self.process_id.as_bytes(), "hello process id")?;
        match &self.resume {
            Some(resume) => {
                writer.put(&resume.session, "hello session")?;
                writer.put(&resume.received.to_le_bytes(), "hello received")
            }
            None => Ok(()),
        }
    }

    /// Parses the fields up to [`Resume`]; returns also the offset of their end.
    fn parse_prefix(body: &'a [u8]) -> Result<(Self, usize), WireError> {
        // The version is checked first and alone, so that a newer peer's HELLO is refused for its version only.
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
        if fixed[7] & !FLAG_RESUME != 0 {
            return Err(WireError::Reserved { what: "hello flags", offset: 7 });
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
        let (resume, end) =
            parse_resume(body, process_at + 1 + process_id.len(), fixed[7] & FLAG_RESUME != 0)?;
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
            resume,
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
        4 => Purpose::Packets,
        _ => return Err(undefined("hello purpose", 3)),
    };
    Ok((role, purpose))
}

fn parse_resume(body: &[u8], at: usize, present: bool) -> Result<(Option<Resume>, usize), WireError> {
    if !present {
        return Ok((None, at));
    }
    let session = *array_at::<SESSION_LEN>(body, at, "hello session")?;
    let received = u64::from_le_bytes(*array_at(body, at + SESSION_LEN, "hello received")?);
    Ok((Some(Resume { session, received }), at + RESUME_LEN))
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

/// The bytes after a length byte at `at`.
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
