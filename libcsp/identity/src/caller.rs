//! Identifies the client of a request, and decides what it is authorised to do.

use std::sync::Arc;

use crate::peer::Peer;
use crate::uri::{Identity, IdentityRole};

/// An access level. Each level includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Read state and metrics.
    Viewer,
    /// Change the policy and drain nodes, too.
    Operator,
    /// Everything, without restriction.
    Admin,
}

impl Access {
    /// Returns the access level that a certificate with this role grants; `None` if it grants none.
    pub const fn of(role: IdentityRole) -> Option<Access> {
        match role {
            // A management node reads from other nodes what it displays.
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

/// The client of a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A client on this host. The daemon has no identity, and so listens on loopback only.
    Local,
    /// A client that presented no certificate.
    Anonymous,
    /// A client that presented a certificate of this cluster.
    Peer(Arc<Peer>),
    /// A browser with a session. The holder of a certificate requested that session.
    Session {
        /// The holder who requested the session.
        issuer: Arc<Peer>,
        /// The access level of the session.
        access: Access,
    },
}

impl Caller {
    /// Returns the caller's access level; `None` if it has none.
    pub fn access(&self) -> Option<Access> {
        match self {
            Caller::Local => Some(Access::Admin),
            Caller::Anonymous => None,
            Caller::Peer(peer) => Access::of(peer.identity.role),
            Caller::Session { access, .. } => Some(*access),
        }
    }

    /// Returns whether the caller has at least the access level `access`.
    pub fn may(&self, access: Access) -> bool {
        self.access() >= Some(access)
    }

    /// Returns the identity of the caller's certificate, or of the certificate that a session was opened
    /// with; `None` for a caller without either.
    pub fn identity(&self) -> Option<Identity> {
        match self {
            Caller::Local | Caller::Anonymous => None,
            Caller::Peer(peer) | Caller::Session { issuer: peer, .. } => Some(peer.identity),
        }
    }
}
