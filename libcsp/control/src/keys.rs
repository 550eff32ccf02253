//! Where CSP keeps what in etcd.

use csp_types::NodeId;

/// Registrations, one per node, each under its node's lease.
pub const NODES: &str = "/csp/v1/nodes/";
/// Everything about policy.
pub const POLICY: &str = "/csp/v1/policy/";
/// Immutable policy generations, by number.
pub const GENERATIONS: &str = "/csp/v1/policy/generations/";
/// The number of the generation in force.
pub const ACTIVE: &str = "/csp/v1/policy/active";
/// The policies of large generations, packed, by hash: apart from what every node follows.
pub const CHUNKS: &str = "/csp/v1/policy-chunks/";
/// For each generation that was ever in force: when that began and which one it replaced.
pub const ACTIVATIONS: &str = "/csp/v1/policy/activations/";
/// Each node's acknowledgement of the policy.
pub const ACKS: &str = "/csp/v1/acks/";
/// Nodes that are to drain: one key for each.
pub const DRAIN: &str = "/csp/v1/drain/";
/// The management node in charge.
pub const LEADER: &str = "/csp/v1/leader";

/// Key of a node's registration.
pub fn node(id: &NodeId) -> String {
    format!("{NODES}{id}")
}

/// Key of a node's desired state of draining.
pub fn drain(id: &NodeId) -> String {
    format!("{DRAIN}{id}")
}

/// Key of a generation.
pub fn generation(number: u64) -> String {
    format!("{GENERATIONS}{number}")
}

/// Key of one chunk of the policy with this hash.
pub fn chunk(hash: &str, number: u32) -> String {
    format!("{CHUNKS}{hash}/{number}")
}

/// Key of a generation's first activation.
pub fn activation(number: u64) -> String {
    format!("{ACTIVATIONS}{number}")
}

/// Key of a node's acknowledgement.
pub fn ack(id: &NodeId) -> String {
    format!("{ACKS}{id}")
}
