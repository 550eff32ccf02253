//! HELLO and HELLO_ACK.

use core::fmt;

use csp_types::limits::VI_POOL_MAX;
use csp_types::{NodeId, Role};

use super::{PROCESS_ID_LEN_MAX, Purpose, TOKEN_LEN_MAX};
use crate::WireError;
use crate::bytes::{Writer, array_at, slice_at};

/// Bytes of a session secret.
pub const SESSION_LEN: usize = 16;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 16;
/// Bytes of a proof, an HMAC-SHA256.
pub const PROOF_LEN: usize = 32;
/// Longest extension, in bytes.
pub const EXTENSION_LEN_MAX: usize = 64;

/// Longest body there can be, in bytes.
pub(super) const LEN_MAX: usize = HELLO_FIXED_LEN
    + (1 + NODE_ID_LEN_MAX)
    + (1 + PROCESS_ID_LEN_MAX)
    + RESUME_LEN
    + (2 + TOKEN_LEN_MAX)
    + (1 + EXTENSION_LEN_MAX)
    + (1 + PROOF_LEN);

const HELLO_FIXED_LEN: usize = 38;
/// Bytes of a [`Resume`].
const RESUME_LEN: usize = SESSION_LEN + 8 + 4;
/// The flag that says that a [`Resume`] follows.
const FLAG_RESUME: u8 = 1;
/// Longest text of a [`NodeId`], in bytes.
const NODE_ID_LEN_MAX: usize = 63;
/// First version whose HELLO has this form.
const FIRST_VERSION: u16 = 5;

/// The protocol versions that one end of a link speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub lowest: u16,
    /// The newest, not below `lowest`.
    pub highest: u16,
}

impl Versions {
    /// The versions that this build speaks. Since 6, tunnels carry the election of addresses' owners.
    pub const SPOKEN: Versions = Versions { lowest: 5, highest: 6 };

    /// The highest version that both ends speak.
    pub fn common(self, other: Versions) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lowest == self.highest {
            true => write!(f, "{}", self.highest),
            false => write!(f, "{} to {}", self.lowest, self.highest),
        }
    }
}

/// A link that is resumed over another VI, as both sides identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The secret that the accepting side has assigned to the link.
    pub session: [u8; SESSION_LEN],
    /// Number of messages of the link that the sender has received so far, which is the sequence number of
    /// the next.
    pub received: u64,
    /// Number of the attempt to resume this link, from 1; 0 in the HELLO_ACK of a new link.
    pub attempt: u32,
}

/// Body of HELLO: identity of the connecting side, and purpose of the link.
///
/// ```text
///  0 highest version (2) | 2 lowest version (2) | 4 role | 5 purpose | 6 worker | 7 pool index | 8 pool size
///  9 flags (1: resume) | 10 receive depth (4) | 14 incarnation (8) | 22 nonce (16) | 38 node id (1 + n)
///    process id (1 + n)
///    with flag 1: session (16) | received (8) | attempt (4)
///    token (2 + n) | extension (1 + n) | proof (1 + 0 or 32)
/// ```
/// All versions from 5 on have this form. A later version puts its own fields into the extension, which
/// earlier ones ignore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// The connecting side. `resume` is the link to resume, whose VI was lost; `None`: a new link.
    pub sender: Sender<'a>,
    /// Names role and identity, signed; not interpreted here.
    pub token: &'a [u8],
    /// Fields of later versions, at most [`EXTENSION_LEN_MAX`] bytes.
    pub extension: &'a [u8],
    /// Proof that the sender holds the token's secret, over all bytes before it; not interpreted here. `None`
    /// on links within a host, whose peers the kernel identifies.
    pub proof: Option<[u8; PROOF_LEN]>,
}

/// Body of HELLO_ACK: identity of the accepting side. As [`Hello`], without the token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloAck<'a> {
    /// The accepting side. `resume` says how to resume the link after its VI is lost; `None`: it cannot be
    /// resumed.
    pub sender: Sender<'a>,
    /// Fields of later versions, at most [`EXTENSION_LEN_MAX`] bytes.
    pub extension: &'a [u8],
    /// Proof that the sender can derive the secret of HELLO's token, over HELLO and all bytes before it.
    pub proof: Option<[u8; PROOF_LEN]>,
}

/// The leading fields of HELLO and HELLO_ACK, by which a side of the link describes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender<'a> {
    /// The versions that the sender speaks.
    pub versions: Versions,
    /// The sender's role.
    pub role: Role,
    /// Purpose of the link.
    pub purpose: Purpose,
    /// The sender's worker that owns this end.
    pub worker: u8,
    /// Which VI of the pool this is, below `pool_size`.
    pub pool_index: u8,
    /// VIs in the pool, 1 to [`VI_POOL_MAX`].
    pub pool_size: u8,
    /// Receive descriptors the sender keeps posted, at least 1.
    pub receive_depth: u32,
    /// Incarnation: different at every start of the node or process.
    pub incarnation: u64,
    /// A number that the sender uses in no other handshake with the same token.
    pub nonce: [u8; NONCE_LEN],
    /// The sender's node.
    pub node_id: NodeId,
    /// The sender's process, printable ASCII; empty for daemons.
    pub process_id: &'a str,
    /// The link's session.
    pub resume: Option<Resume>,
}

impl<'a> Hello<'a> {
    /// Parses a HELLO body; bytes after the proof are an error.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (sender, at) = Sender::parse(body)?;
        let token_len = usize::from(u16::from_le_bytes(*array_at(body, at, "hello token length")?));
        if token_len > TOKEN_LEN_MAX {
            return Err(WireError::Length { what: "hello token length", offset: at, found: token_len });
        }
        let token = slice_at(body, at + 2, token_len, "hello token")?;
        let (extension, proof) = parse_end(body, at + 2 + token_len)?;
        Ok(Hello { sender, token, extension, proof })
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        self.sender.len() + 2 + self.token.len() + end_len(self.extension, &self.proof)
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
        self.sender.emit_to(&mut writer)?;
        writer.put(&(self.token.len() as u16).to_le_bytes(), "hello token length")?;
        writer.put(self.token, "hello token")?;
        emit_end(&mut writer, self.extension, &self.proof)?;
        Ok(writer.len())
    }
}

impl<'a> HelloAck<'a> {
    /// Parses a HELLO_ACK body; bytes after it are an error.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (sender, at) = Sender::parse(body)?;
        let (extension, proof) = parse_end(body, at)?;
        Ok(HelloAck { sender, extension, proof })
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        self.sender.len() + end_len(self.extension, &self.proof)
    }

    /// Always false: the encoding is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the body; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        self.sender.emit_to(&mut writer)?;
        emit_end(&mut writer, self.extension, &self.proof)?;
        Ok(writer.len())
    }
}

impl<'a> Sender<'a> {
    fn len(&self) -> usize {
        let resume = if self.resume.is_some() { RESUME_LEN } else { 0 };
        HELLO_FIXED_LEN + 1 + self.node_id.as_str().len() + 1 + self.process_id.len() + resume
    }

    fn emit_to(&self, writer: &mut Writer<'_>) -> Result<(), WireError> {
        if self.process_id.len() > PROCESS_ID_LEN_MAX {
            return Err(WireError::TooLarge { what: "hello process id" });
        }
        let mut fixed = [0; HELLO_FIXED_LEN];
        fixed[0..2].copy_from_slice(&self.versions.highest.to_le_bytes());
        fixed[2..4].copy_from_slice(&self.versions.lowest.to_le_bytes());
        fixed[4] = self.role as u8;
        fixed[5] = self.purpose as u8;
        fixed[6] = self.worker;
        fixed[7] = self.pool_index;
        fixed[8] = self.pool_size;
        fixed[9] = if self.resume.is_some() { FLAG_RESUME } else { 0 };
        fixed[10..14].copy_from_slice(&self.receive_depth.to_le_bytes());
        fixed[14..22].copy_from_slice(&self.incarnation.to_le_bytes());
        fixed[22..38].copy_from_slice(&self.nonce);
        writer.put(&fixed, "hello")?;
        let node_id = self.node_id.as_str().as_bytes();
        writer.put(&[node_id.len() as u8], "hello node id")?;
        writer.put(node_id, "hello node id")?;
        writer.put(&[self.process_id.len() as u8], "hello process id")?;
        writer.put(self.process_id.as_bytes(), "hello process id")?;
        match &self.resume {
            Some(resume) => {
                writer.put(&resume.session, "hello session")?;
                writer.put(&resume.received.to_le_bytes(), "hello received")?;
                writer.put(&resume.attempt.to_le_bytes(), "hello attempt")
            }
            None => Ok(()),
        }
    }

    /// Parses the fields up to [`Resume`]; returns also the offset of their end.
    fn parse(body: &'a [u8]) -> Result<(Self, usize), WireError> {
        let versions = parse_versions(body)?;
        let fixed = array_at::<HELLO_FIXED_LEN>(body, 0, "hello")?;
        let (role, purpose) = parse_role_and_purpose(fixed)?;
        let (pool_index, pool_size) = (fixed[7], fixed[8]);
        if pool_size == 0 || usize::from(pool_size) > VI_POOL_MAX {
            return Err(WireError::Value { what: "hello pool size", offset: 8 });
        }
        if pool_index >= pool_size {
            return Err(WireError::Value { what: "hello pool index", offset: 7 });
        }
        if fixed[9] & !FLAG_RESUME != 0 {
            return Err(WireError::Reserved { what: "hello flags", offset: 9 });
        }
        let receive_depth = u32::from_le_bytes(*array_at(fixed, 10, "hello receive depth")?);
        if receive_depth == 0 {
            return Err(WireError::Value { what: "hello receive depth", offset: 10 });
        }
        let incarnation = u64::from_le_bytes(*array_at(fixed, 14, "hello incarnation")?);
        let nonce = *array_at(fixed, 22, "hello nonce")?;
        let at = HELLO_FIXED_LEN;
        let node_id = short_bytes(body, at, "hello node id")?;
        let process_at = at + 1 + node_id.len();
        let node_id =
            NodeId::parse(node_id).map_err(|_| WireError::Value { what: "hello node id", offset: at + 1 })?;
        let process_id = parse_process_id(body, process_at)?;
        let (resume, end) =
            parse_resume(body, process_at + 1 + process_id.len(), fixed[9] & FLAG_RESUME != 0)?;
        let worker = fixed[6];
        let sender = Sender {
            versions,
            role,
            purpose,
            worker,
            pool_index,
            pool_size,
            receive_depth,
            incarnation,
            nonce,
            node_id,
            process_id,
            resume,
        };
        Ok((sender, end))
    }
}

/// Parses the range of versions. It comes first and is checked alone, so that a HELLO of another form is
/// refused for its version only. Forms before version 5 have one version there.
fn parse_versions(body: &[u8]) -> Result<Versions, WireError> {
    let what = "hello protocol version";
    let highest = u16::from_le_bytes(*array_at(body, 0, what)?);
    if highest < FIRST_VERSION {
        return Err(WireError::Version { what, offset: 0, found: highest.into() });
    }
    let lowest = u16::from_le_bytes(*array_at(body, 2, what)?);
    if lowest > highest {
        return Err(WireError::Value { what, offset: 2 });
    }
    Ok(Versions { lowest, highest })
}

fn parse_role_and_purpose(fixed: &[u8; HELLO_FIXED_LEN]) -> Result<(Role, Purpose), WireError> {
    let undefined = |what, offset: usize| WireError::Kind { what, offset, found: fixed[offset].into() };
    let role = Role::from_u8(fixed[4]).ok_or(undefined("hello role", 4))?;
    let purpose = match fixed[5] {
        1 => Purpose::Tunnel,
        2 => Purpose::Channel,
        3 => Purpose::Message,
        4 => Purpose::Packets,
        _ => return Err(undefined("hello purpose", 5)),
    };
    Ok((role, purpose))
}

fn parse_resume(body: &[u8], at: usize, present: bool) -> Result<(Option<Resume>, usize), WireError> {
    if !present {
        return Ok((None, at));
    }
    let session = *array_at::<SESSION_LEN>(body, at, "hello session")?;
    let received = u64::from_le_bytes(*array_at(body, at + SESSION_LEN, "hello received")?);
    let attempt = u32::from_le_bytes(*array_at(body, at + SESSION_LEN + 8, "hello attempt")?);
    Ok((Some(Resume { session, received, attempt }), at + RESUME_LEN))
}

/// The final parts of either body: extension and proof.
type End<'a> = (&'a [u8], Option<[u8; PROOF_LEN]>);

fn parse_end(body: &[u8], at: usize) -> Result<End<'_>, WireError> {
    let extension = short_bytes(body, at, "hello extension")?;
    if extension.len() > EXTENSION_LEN_MAX {
        return Err(WireError::Length { what: "hello extension", offset: at, found: extension.len() });
    }
    let at = at + 1 + extension.len();
    let proof = match array_at::<1>(body, at, "hello proof")? {
        [0] => None,
        [len] if usize::from(*len) == PROOF_LEN => Some(*array_at(body, at + 1, "hello proof")?),
        [len] => {
            return Err(WireError::Length { what: "hello proof", offset: at, found: usize::from(*len) });
        }
    };
    let end = at + 1 + proof.map_or(0, |_| PROOF_LEN);
    if body.len() != end {
        return Err(WireError::Length { what: "hello", offset: end, found: body.len() });
    }
    Ok((extension, proof))
}

fn end_len(extension: &[u8], proof: &Option<[u8; PROOF_LEN]>) -> usize {
    1 + extension.len() + 1 + proof.map_or(0, |_| PROOF_LEN)
}

fn emit_end(
    writer: &mut Writer<'_>,
    extension: &[u8],
    proof: &Option<[u8; PROOF_LEN]>,
) -> Result<(), WireError> {
    if extension.len() > EXTENSION_LEN_MAX {
        return Err(WireError::TooLarge { what: "hello extension" });
    }
    writer.put(&[extension.len() as u8], "hello extension")?;
    writer.put(extension, "hello extension")?;
    let proof = proof.as_ref().map_or(&[][..], |proof| proof);
    writer.put(&[proof.len() as u8], "hello proof")?;
    writer.put(proof, "hello proof")
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

/// Returns the bytes that follow a length byte at `at`.
fn short_bytes<'a>(body: &'a [u8], at: usize, what: &'static str) -> Result<&'a [u8], WireError> {
    let [len] = *array_at::<1>(body, at, what)?;
    slice_at(body, at + 1, usize::from(len), what)
}
