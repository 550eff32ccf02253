//! Node identities and roles.

use core::fmt;
use core::str::FromStr;

/// Longest node id, in bytes.
pub const NODE_ID_LEN_MAX: usize = 63;

/// A node's name, unique in the cluster: 1 to 63 of `a-z 0-9 - . _`, starting with a letter or digit.
///
/// Kept inline so that it can be copied and compared without allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    len: u8,
    bytes: [u8; NODE_ID_LEN_MAX],
}

/// Why a text is no node id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdError {
    /// Empty, or longer than 63 bytes.
    Length(usize),
    /// A byte outside `a-z 0-9 - . _` (or one of `- . _` in front), at this offset.
    Character(usize),
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdError::Length(n) => write!(f, "an id has 1 to {NODE_ID_LEN_MAX} characters, this one has {n}"),
            IdError::Character(at) => {
                write!(f, "character {} of an id must be a-z or 0-9 (after the first also - . _)", at + 1)
            }
        }
    }
}

impl core::error::Error for IdError {}

impl NodeId {
    /// Parses an id from bytes a peer or a file gave.
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

    /// The id as text.
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

/// What a member of the cluster does (CSP §4: the tiers), or an application process behind an app node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// Takes packets from the LAN.
    NetworkNode = 1,
    /// Ends the clients' TCP.
    ProxyNode = 2,
    /// The agent of a host that runs servers.
    AppNode = 3,
    /// Membership and policy.
    MgmtNode = 4,
    /// An application process, vouched for by its host's agent.
    Process = 5,
}

impl Role {
    /// The role with this wire number.
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

    /// The name used in files, etcd and output.
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
