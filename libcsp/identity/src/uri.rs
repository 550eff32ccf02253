//! Who a certificate is for: the URI `csp://CLUSTER/ROLE/ID` among its subject alternative names (RFC 5280 4.2.1.6).

use std::fmt;
use std::str::FromStr;

use csp_types::{IdError, NodeId, Role};

/// The scheme of identities.
const SCHEME: &str = "csp://";

/// Who a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster. Its name follows the rules of ids.
    pub cluster: NodeId,
    /// What the holder is.
    pub role: IdentityRole,
    /// The holder: a node's id, or the name of a person or program.
    pub id: NodeId,
}

/// What the holder of a certificate is.
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
    /// etcd's root user, which makes the others.
    EtcdRoot,
    /// Somebody who may look: a person, or a program such as Prometheus.
    Viewer,
    /// Somebody who may change policy and drain nodes, too.
    Operator,
    /// Somebody who may do everything.
    Admin,
}

/// Why a text is no identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// It has another form.
    #[error("is no identity; one looks like csp://CLUSTER/ROLE/ID")]
    Form,
    /// The role is not known.
    #[error("has the role {0:?}; allowed is {roles}", roles = IdentityRole::names())]
    Role(String),
    /// The cluster's name or the id breaks the rules of ids.
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

    /// Returns the name in certificates, files and output.
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

    /// Returns the role of a daemon of this tier; application processes have no certificates.
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

    /// Whether the holder is connected to by others, and so needs its addresses in the certificate.
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
    /// Returns the common name of the holder's certificate, by which etcd knows its user: `ROLE/ID`; `etcd` for each of
    /// etcd's members, so that members can require it of each other; `root` for etcd's root user.
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
