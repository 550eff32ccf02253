//! The identity in a certificate: the URI `csp://CLUSTER/ROLE/ID` among its subject alternative names (RFC
//! 5280 §4.2.1.6).

use std::fmt;
use std::str::FromStr;

use csp_types::{IdError, NodeId, Role};

/// The URI scheme of identities.
const SCHEME: &str = "csp://";

/// The identity of a certificate's holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's name. The rules of node ids apply to it.
    pub cluster: NodeId,
    /// The holder's role.
    pub role: IdentityRole,
    /// The holder's id: that of a node, or the name of a person or program.
    pub id: NodeId,
}

/// The role of a certificate's holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IdentityRole {
    /// The daemon of a network node.
    NetworkNode,
    /// The daemon of a proxy node.
    ProxyNode,
    /// The agent of an application node.
    AppNode,
    /// The daemon of a management node.
    MgmtNode,
    /// A member of etcd.
    Etcd,
    /// The root user of etcd, which creates the other users.
    EtcdRoot,
    /// A person, or a program such as Prometheus, that may read state.
    Viewer,
    /// A person or program that may also change the policy and drain nodes.
    Operator,
    /// A person or program that may do everything.
    Admin,
}

/// Why a text is not an identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// It does not have the form `csp://CLUSTER/ROLE/ID`.
    #[error("is no identity; one looks like csp://CLUSTER/ROLE/ID")]
    Form,
    /// The role is unknown.
    #[error("has the role {0:?}; allowed is {roles}", roles = IdentityRole::names())]
    Role(String),
    /// The cluster's name or the id violates the rules of ids.
    #[error("{0}")]
    Id(IdError),
}

impl IdentityRole {
    /// All roles.
    pub const ALL: [IdentityRole; 9] = [
        IdentityRole::NetworkNode,
        IdentityRole::ProxyNode,
        IdentityRole::AppNode,
        IdentityRole::MgmtNode,
        IdentityRole::Etcd,
        IdentityRole::EtcdRoot,
        IdentityRole::Viewer,
        IdentityRole::Operator,
        IdentityRole::Admin,
    ];

    /// Returns the role's name in certificates, files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            IdentityRole::NetworkNode => "network-node",
            IdentityRole::ProxyNode => "proxy-node",
            IdentityRole::AppNode => "app-node",
            IdentityRole::MgmtNode => "mgmt-node",
            IdentityRole::Etcd => "etcd",
            IdentityRole::EtcdRoot => "etcd-root",
            IdentityRole::Viewer => "viewer",
            IdentityRole::Operator => "operator",
            IdentityRole::Admin => "admin",
        }
    }

    /// Returns the role of a daemon of this tier; `None` for application processes, which have no
    /// certificates.
    pub const fn of_node(role: Role) -> Option<Self> {
        Some(match role {
            Role::NetworkNode => IdentityRole::NetworkNode,
            Role::ProxyNode => IdentityRole::ProxyNode,
            Role::AppNode => IdentityRole::AppNode,
            Role::MgmtNode => IdentityRole::MgmtNode,
            Role::Process => return None,
        })
    }

    /// Returns the tier of a daemon; `None` for etcd and for people.
    pub const fn node(self) -> Option<Role> {
        Some(match self {
            IdentityRole::NetworkNode => Role::NetworkNode,
            IdentityRole::ProxyNode => Role::ProxyNode,
            IdentityRole::AppNode => Role::AppNode,
            IdentityRole::MgmtNode => Role::MgmtNode,
            _ => return None,
        })
    }

    /// Returns whether other nodes connect to the holder, so that its certificate must contain its addresses.
    pub const fn serves(self) -> bool {
        self.node().is_some() || matches!(self, IdentityRole::Etcd)
    }

    fn names() -> String {
        IdentityRole::ALL.map(IdentityRole::as_str).join(", ")
    }
}

impl fmt::Display for IdentityRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for IdentityRole {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let role = IdentityRole::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| IdentityError::Role(text.chars().take(32).collect()))
    }
}

impl Identity {
    /// Returns the common name in the holder's certificate, by which etcd identifies the user: `ROLE/ID`. It
    /// is `etcd` for every member of etcd, so that members can require it of each other, and `root` for
    /// etcd's root user.
    pub fn common_name(&self) -> String {
        match self.role {
            IdentityRole::Etcd => "etcd".to_owned(),
            IdentityRole::EtcdRoot => "root".to_owned(),
            role => format!("{role}/{}", self.id),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role, self.id)
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let mut parts = text.strip_prefix(SCHEME).ok_or(IdentityError::Form)?.split('/');
        let mut part = || parts.next().ok_or(IdentityError::Form);
        let (cluster, role, id) = (part()?, part()?, part()?);
        if parts.next().is_some() {
            return Err(IdentityError::Form);
        }
        let name = |text: &str| NodeId::parse(text.as_bytes()).map_err(IdentityError::Id);
        Ok(Identity { cluster: name(cluster)?, role: role.parse()?, id: name(id)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_written() {
        for role in IdentityRole::ALL {
            let text = format!("csp://east/{role}/pn-1");
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, problem) in [
            ("https://east/viewer/alice", "is no identity"),
            ("csp://east/viewer", "is no identity"),
            ("csp://east/viewer/alice/x", "is no identity"),
            ("csp://east/root/alice", "has the role \"root\""),
            ("csp://East/viewer/alice", "character 1"),
            ("csp://east/viewer/", "1 to 63"),
        ] {
            let error = text.parse::<Identity>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn common_names_name_the_user_of_etcd() {
        let name = |text: &str| text.parse::<Identity>().unwrap().common_name();
        assert_eq!(name("csp://east/proxy-node/pn-1"), "proxy-node/pn-1");
        assert_eq!(name("csp://east/etcd/mn-1"), "etcd");
        assert_eq!(name("csp://east/etcd-root/root"), "root");
    }
}
