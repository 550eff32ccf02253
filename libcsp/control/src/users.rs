//! etcd's users and roles: what each certificate of the cluster may read and write in etcd.
//!
//! etcd identifies a client by its certificate's common name ([`Identity::common_name`]). Nodes may read
//! everything and write their own registration and acknowledgement; management nodes may write everything of
//! CSP; other certificates have no rights. Only `root` changes users.

use std::collections::BTreeSet;
use std::fmt;

use csp_identity::{Identity, IdentityRole};
use csp_types::{NodeId, Role};
use etcd_client::{AuthClient, Permission, UserAddOptions};

use crate::client::{EtcdClient, within};
use crate::error::ControlError;
use crate::keys;

/// Role of management nodes.
const MANAGERS: &str = "csp-managers";
/// Role of all other nodes, beside the role with their own rights.
const READERS: &str = "csp-readers";
/// Prefix of the roles that are granted to a single node.
const OWN: &str = "csp-own/";
/// Prefix of all keys of CSP in etcd.
const ALL: &str = "/csp/";
/// etcd's user, and its role, with all rights.
const ROOT: &str = "root";

/// A change of etcd's users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserChange(String);

impl fmt::Display for UserChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first release of etcd in which users are known to be unable to bypass their permissions. Earlier ones
/// do not check nested transactions and some cluster requests (GHSA-rfx7-8w68-q57q, GHSA-q8m4-xhhv-38mg,
/// GHSA-x35m-3gp4-4fh5).
pub const CHECKED_SINCE: (u32, u32, u32) = (3, 6, 14);

/// Returns the member's release, such as `3.4.23`, if its users can bypass their permissions.
pub async fn unchecked_release(client: &EtcdClient) -> Result<Option<String>, ControlError> {
    let version = within(client.raw().maintenance_client().status()).await?.version().to_owned();
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let release = (part(), part(), part());
    Ok((release < CHECKED_SINCE).then_some(version))
}

/// Returns whether etcd denies access to a key outside of CSP's, which is granted to no user. `false` means
/// that authentication is off, and any certificate of the cluster may write everything.
pub async fn is_enforced(client: &EtcdClient) -> Result<bool, ControlError> {
    match client.get("/not-csp", None).await {
        Ok(_) => Ok(false),
        Err(ControlError::Etcd(text)) if text.contains("permission denied") => Ok(true),
        Err(error) => Err(error),
    }
}

/// Creates users and roles in etcd for exactly these nodes, and enables authentication, so that all others
/// are denied. Returns the changes made. Users of nodes that are no longer listed are removed together with
/// the rights of their certificates. Permissions granted by hand are kept. The client must be `root`, unless
/// authentication is still off.
pub async fn set_up(
    client: &EtcdClient,
    nodes: &BTreeSet<(Role, NodeId)>,
) -> Result<Vec<UserChange>, ControlError> {
    let mut auth = client.raw().auth_client();
    let roles = within(auth.role_list()).await?.roles().iter().cloned().collect();
    let users = within(auth.user_list()).await?.users().iter().cloned().collect();
    let mut users = Users { auth, roles, users, changes: Vec::new() };
    users.role(MANAGERS, &[Permission::read_write(ALL).with_prefix()]).await?;
    users.role(READERS, &[Permission::read(ALL).with_prefix()]).await?;
    for (role, id) in nodes {
        users.node(*role, id).await?;
    }
    users.remove_others(nodes).await?;
    users.user(ROOT, &[ROOT]).await?;
    // Has no effect if it is enabled.
    within(users.auth.auth_enable()).await?;
    Ok(users.changes)
}

/// etcd's users and roles during a change.
struct Users {
    auth: AuthClient,
    roles: BTreeSet<String>,
    users: BTreeSet<String>,
    changes: Vec<UserChange>,
}

impl Users {
    async fn node(&mut self, role: Role, id: &NodeId) -> Result<(), ControlError> {
        let Some(name) = user_of(role, id) else { return Ok(()) };
        if role == Role::MgmtNode {
            return self.user(&name, &[MANAGERS]).await;
        }
        let own = format!("{OWN}{name}");
        let keys = [keys::node(role, id), keys::ack(id)];
        self.role(&own, &keys.map(Permission::read_write)).await?;
        self.user(&name, &[READERS, &own]).await
    }

    /// Creates the role if it is missing, and grants it these permissions.
    async fn role(&mut self, name: &str, permissions: &[Permission]) -> Result<(), ControlError> {
        let known = self.roles.contains(name);
        if !known {
            within(self.auth.role_add(name)).await?;
            self.roles.insert(name.to_owned());
        }
        let granted = within(self.auth.role_get(name)).await?.permissions();
        for permission in permissions.iter().filter(|permission| !granted.contains(permission)) {
            within(self.auth.role_grant_permission(name, permission.clone())).await?;
            let key = String::from_utf8_lossy(permission.key()).into_owned();
            self.changes.push(UserChange(format!("role {name} is granted {key}")));
        }
        Ok(())
    }

    /// Creates the user if it is missing, and grants it these roles. It has no password: etcd derives the
    /// user from the client's certificate.
    async fn user(&mut self, name: &str, roles: &[&str]) -> Result<(), ControlError> {
        if self.users.insert(name.to_owned()) {
            let options = UserAddOptions::new().with_no_pwd();
            within(self.auth.user_add(name, "", Some(options))).await?;
            self.changes.push(UserChange(format!("user {name} is added")));
        }
        let granted: Vec<String> = within(self.auth.user_get(name)).await?.roles().to_vec();
        for role in roles.iter().filter(|role| !granted.iter().any(|known| known == **role)) {
            within(self.auth.user_grant_role(name, *role)).await?;
            self.changes.push(UserChange(format!("user {name} is granted {role}")));
        }
        Ok(())
    }

    /// Removes the users and roles of nodes that are not among `nodes`.
    async fn remove_others(&mut self, nodes: &BTreeSet<(Role, NodeId)>) -> Result<(), ControlError> {
        let wanted: BTreeSet<String> = nodes.iter().filter_map(|(role, id)| user_of(*role, id)).collect();
        let of_node = |name: &&String| keys::ROLES.iter().any(|role| name.starts_with(&format!("{role}/")));
        let gone: Vec<String> =
            self.users.iter().filter(of_node).filter(|name| !wanted.contains(*name)).cloned().collect();
        for name in gone {
            within(self.auth.user_delete(name.as_str())).await?;
            self.users.remove(&name);
            self.changes.push(UserChange(format!("user {name} is removed")));
        }
        let gone = |name: &&String| name.strip_prefix(OWN).is_some_and(|user| !wanted.contains(user));
        for name in self.roles.iter().filter(gone).cloned().collect::<Vec<_>>() {
            within(self.auth.role_delete(name.as_str())).await?;
            self.roles.remove(&name);
        }
        Ok(())
    }
}

/// Returns the name of a node's user.
fn user_of(role: Role, id: &NodeId) -> Option<String> {
    // The name does not contain the cluster.
    let role = IdentityRole::of_node(role)?;
    Some(Identity { cluster: *id, role, id: *id }.common_name())
}
