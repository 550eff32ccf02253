//! Who makes a request, and what it may ask for.

use std::sync::Arc;

use crate::peer::Peer;
use crate::uri::{Identity, IdentityRole};

/// What somebody may do; each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Look.
    Viewer,
    /// Change policy, drain nodes.
    Operator,
    /// Everything.
    Admin,
}

impl Access {
    /// Returns what the holder of a certificate may do; `None` for nothing.
    pub const fn of(role: IdentityRole) -> Option<Access> {
        match role {
            // A management node shows what it has read of others.
            IdentityRole::Viewer | IdentityRole::MgmtNode => Some(Access::Viewer),
            IdentityRole::Operator => Some(Access::Operator),
            IdentityRole::Admin => Some(Access::Admin),
            _ => None,
        }
    }

    /// Returns the name, as in certificates.
    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Viewer => "viewer",
            Access::Operator => "operator",
            Access::Admin => "admin",
        }
    }
}

/// Who makes a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Somebody on this host, at a daemon that has no identity and so serves this host alone.
    Local,
    /// Somebody without a certificate.
    Anonymous,
    /// The holder of a certificate.
    Peer(Arc<Peer>),
    /// A browser whose session the holder of a certificate has asked for.
    Session {
        /// Who asked for it.
        issuer: Arc<Peer>,
        /// What the session may do.
        access: Access,
    },
}

impl Caller {
    /// Returns what the caller may do.
    pub fn access(&self) -> Option<Access> {
        match self {
            Caller::Local => Some(Access::Admin),
            Caller::Anonymous => None,
            Caller::Peer(peer) => Access::of(peer.identity.role),
            Caller::Session { access, .. } => Some(*access),
        }
    }

    /// Whether the caller may do this.
    pub fn may(&self, access: Access) -> bool {
        self.access() >= Some(access)
    }

    /// Returns the identity of the caller's certificate, or of the certificate that a session was opened with; `None` for a
    /// caller without either.
    pub fn identity(&self) -> Option<Identity> {
        match self {
            Caller::Local | Caller::Anonymous => None,
            Caller::Peer(peer) | Caller::Session { issuer: peer, .. } => Some(peer.identity),
        }
    }
}
