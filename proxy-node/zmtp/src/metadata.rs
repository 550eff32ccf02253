//! Metadata of READY and INITIATE (37/ZMTP, "Connection Metadata"): what a peer says about itself.
//!
//! ```text
//!  | name length | name | value length, 4 bytes, big-endian | value |   ...
//! ```

use crate::error::ZmtpError;
use crate::socket::{LocalType, SocketType};

const SOCKET_TYPE: &[u8] = b"Socket-Type";
const IDENTITY: &[u8] = b"Identity";
const IDENTITY_LEN_MAX: usize = 255;

/// What a peer has said about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Minor version of ZMTP 3.
    pub minor: u8,
    /// Its socket type, which the local type accepts.
    pub socket_type: SocketType,
    /// The routing id that it asks for; up to 255 bytes, empty if none.
    pub identity: Vec<u8>,
    /// Its long-term public key under CURVE.
    pub key: Option<[u8; 32]>,
}

/// Parses metadata that ends at position `at` of the stream.
pub(crate) fn parse(
    bytes: &[u8],
    at: u64,
    local: LocalType,
    minor: u8,
    key: Option<[u8; 32]>,
) -> Result<Peer, ZmtpError> {
    let malformed = |what| ZmtpError::Malformed { what, at };
    let (mut socket, mut identity) = (None, None);
    let mut rest = bytes;
    while !rest.is_empty() {
        let (name, value, next) = property(rest).ok_or(malformed("metadata"))?;
        rest = next;
        let (kept, what) = if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            (&mut socket, "Socket-Type")
        } else if name.eq_ignore_ascii_case(IDENTITY) {
            (&mut identity, "Identity")
        } else {
            continue;
        };
        if kept.replace(value).is_some() {
            return Err(malformed(what));
        }
    }
    let peer = socket.and_then(SocketType::from_name).ok_or(malformed("Socket-Type"))?;
    let identity = identity.unwrap_or_default();
    if identity.len() > IDENTITY_LEN_MAX {
        return Err(malformed("Identity"));
    }
    if !local.accepts(peer) {
        return Err(ZmtpError::SocketType { at, peer, local: local.socket_type() });
    }
    Ok(Peer { minor, socket_type: peer, identity: identity.to_vec(), key })
}

/// Splits the first property from `bytes`: name, value, rest.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&name_len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(name_len.into())?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let value_len = usize::try_from(u32::from_be_bytes(*value_len)).ok()?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(byte);
    (!name.is_empty() && name.iter().all(allowed)).then_some((name, value, rest))
}

/// The proxy's own metadata: its socket type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    bytes: [u8; OWN_LEN_MAX],
    len: usize,
}

/// Name, value and their lengths, for the longest name of a socket type (six letters).
pub(crate) const OWN_LEN_MAX: usize = 1 + SOCKET_TYPE.len() + 4 + 6;

impl Own {
    pub fn new(local: LocalType) -> Self {
        let value = local.socket_type().name().as_bytes();
        let mut bytes = [0; OWN_LEN_MAX];
        let value_at = 1 + SOCKET_TYPE.len() + 4;
        bytes[0] = SOCKET_TYPE.len() as u8;
        bytes[1..=SOCKET_TYPE.len()].copy_from_slice(SOCKET_TYPE);
        bytes[value_at - 1] = value.len() as u8;
        bytes[value_at..value_at + value.len()].copy_from_slice(value);
        Own { bytes, len: value_at + value.len() }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
