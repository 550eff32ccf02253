//! Node identities and roles.

use core::fmt;
use core::str::FromStr;

/// Length of the longest node id, in bytes.
pub const NODE_ID_LEN_MAX: usize = 63;

/// The name of a node, unique in the cluster: 1 to 63 characters of `a-z 0-9 - . _`, starting with a letter
/// or digit.
///
/// Stored inline, so that it can be copied and compared without allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    len: u8,
    bytes: [u8; NODE_ID_LEN_MAX],
}

/// Why a text is not a valid node id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdError {
    /// Empty or longer than 63 bytes; contains the length.
    Length(usize),
    /// A byte outside `a-z 0-9 - . _`, or one of `- . _` at the start; contains its offset.
    Character(usize),
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdError::Length(n) => write!(f, "an id must have 1 to {NODE_ID_LEN_MAX} characters, not {n}"),
            IdError::Character(at) => {
                write!(f, "character {} of an id must be a-z or 0-9 (after the first also - . _)", at + 1)
            }
        }
    }
}

impl core::error::Error for IdError {}

impl NodeId {
    /// Parses an id received from a peer or read from a file.
    pub fn parse(text: &[u8]) -> Result<Self, IdError> {
        if text.is_empty() || text.len() > NODE_ID_LEN_MAX {
            return Err(IdError::Length(text.len()));
        }
        let legal = |(at, b): (usize, &u8)| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || (at > 0 && matches!(b, b'-' | b'.' | b'_'))
        };
        if let Some(at) = text.iter().enumerate().position(|pair| !legal(pair)) {
            return Err(IdError::Character(at));
        }
        let mut bytes = [0; NODE_ID_LEN_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Ok(NodeId { len: text.len() as u8, bytes })
    }

    /// Returns a 16-bit hash of the id (FNV-1a, folded), never 0: names a proxy in records of fixed size,
    /// where the few proxies of a cluster are to be distinguished.
    pub fn tag(&self) -> u16 {
        let bytes = self.bytes.iter().take(usize::from(self.len));
        let hash =
            bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        ((hash >> 16) as u16 ^ hash as u16).max(1)
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("?")
    }
}

impl FromStr for NodeId {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        NodeId::parse(s.as_bytes())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.as_str())
    }
}

/// The role of a member of the cluster (CSP §4: the tiers), or of an application process behind an app node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// Receives packets from the LAN and transmits them to it.
    NetworkNode = 1,
    /// Terminates the clients' TCP connections.
    ProxyNode = 2,
    /// The agent on a host that runs application processes.
    AppNode = 3,
    /// Manages membership and policy.
    MgmtNode = 4,
    /// An application process, authorised by its host's agent.
    Process = 5,
}

impl Role {
    /// Returns the role with this number on the wire.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Role::NetworkNode,
            2 => Role::ProxyNode,
            3 => Role::AppNode,
            4 => Role::MgmtNode,
            5 => Role::Process,
            _ => return None,
        })
    }

    /// Returns the name used in files, etcd and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::NetworkNode => "network-node",
            Role::ProxyNode => "proxy-node",
            Role::AppNode => "app-node",
            Role::MgmtNode => "mgmt-node",
            Role::Process => "process",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
