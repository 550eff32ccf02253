//! The keys under which CSP stores its data in etcd.

use csp_types::{NodeId, Role};

/// Registrations, one per node, under the node's lease and role. A node's etcd user may write its own only.
pub const NODES: &str = "/csp/v1/nodes/";
/// Everything about policy.
pub const POLICY: &str = "/csp/v1/policy/";
/// Immutable policy generations, by number.
pub const GENERATIONS: &str = "/csp/v1/policy/generations/";
/// The number of the generation in force.
pub const ACTIVE: &str = "/csp/v1/policy/active";
/// The same, signed by a management node: what nodes with an identity follow.
pub const ACTIVE_SIGNED: &str = "/csp/v1/policy/active-signed";
/// The policies of large generations, packed, by hash. They are outside the prefix that every node follows.
pub const CHUNKS: &str = "/csp/v1/policy-chunks/";
/// For each generation that was ever in force: when it was first activated, and which generation it replaced.
pub const ACTIVATIONS: &str = "/csp/v1/policy/activations/";
/// Each node's acknowledgement of the policy.
pub const ACKS: &str = "/csp/v1/acks/";
/// Nodes that are to drain, one key for each.
pub const DRAIN: &str = "/csp/v1/drain/";
/// The management node that is the leader.
pub const LEADER: &str = "/csp/v1/leader";
/// Up to where outlets of events (webhooks, syslog) have sent them, by name; the leader writes it.
pub const EVENT_OUTLETS: &str = "/csp/v1/event-outlets/";

/// The roles that register.
pub const ROLES: [Role; 4] = [Role::NetworkNode, Role::ProxyNode, Role::AppNode, Role::MgmtNode];

/// Returns the key of a node's registration.
pub fn node(role: Role, id: &NodeId) -> String {
    format!("{NODES}{role}/{id}")
}

/// Returns the node whose registration has this key.
pub fn node_of(key: &str) -> Option<(Role, NodeId)> {
    let (role, id) = key.strip_prefix(NODES)?.split_once('/')?;
    let role = ROLES.into_iter().find(|known| known.as_str() == role)?;
    Some((role, id.parse().ok()?))
}

/// Returns the key that requests the draining of a node.
pub fn drain(id: &NodeId) -> String {
    format!("{DRAIN}{id}")
}

/// Returns the key of a generation.
pub fn generation(number: u64) -> String {
    format!("{GENERATIONS}{number}")
}

/// Returns the key of one chunk of the policy with this hash.
pub fn chunk(hash: &str, number: u32) -> String {
    format!("{CHUNKS}{hash}/{number}")
}

/// Returns the key of a generation's first activation.
pub fn activation(number: u64) -> String {
    format!("{ACTIVATIONS}{number}")
}

/// Returns the key of a node's acknowledgement.
pub fn ack(id: &NodeId) -> String {
    format!("{ACKS}{id}")
}

/// Returns the key of the place up to which an outlet of events has sent them.
pub fn event_outlet(name: &str) -> String {
    format!("{EVENT_OUTLETS}{name}")
}
