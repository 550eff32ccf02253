//! A node's side of policy distribution: take the active generation, check staged ones, say so, survive on disk.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::policy::Policy;

/// One immutable generation as etcd and the last-known-good file hold it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GenerationRecord {
    /// Its number, from 1, never reused.
    pub generation: u64,
    /// When it was published, in milliseconds of the Unix epoch.
    pub created_unix_ms: u64,
    /// SHA-256 of the policy's canonical JSON, in hex.
    pub hash: String,
    /// The policy.
    pub policy: Policy,
}

/// The policy a node has to apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActivePolicy {
    /// Its generation.
    pub generation: u64,
    /// Its hash.
    pub hash: String,
    /// The policy, valid.
    pub policy: Arc<Policy>,
    /// Where it comes from.
    pub source: PolicySource,
}

/// Where a node got its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicySource {
    /// From etcd: the generation in force.
    Etcd,
    /// From the last-known-good file, because etcd does not answer yet.
    LastKnownGood,
}

/// How far a node is with a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckState {
    /// Checked; could be applied.
    Staged,
    /// Applied.
    Active,
    /// Cannot be applied.
    Refused,
}

/// What a node says at `/csp/v1/acks/<node>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAck {
    /// The generation this is about: the newest the node looked at.
    pub generation: u64,
    /// How far the node is with it.
    pub state: AckState,
    /// Why it was refused; else empty.
    #[serde(default)]
    pub error: String,
    /// The policy's hash as the node computed it.
    pub hash: String,
    /// The generation the node works by; 0 for none.
    #[serde(default)]
    pub active: u64,
    /// The node's incarnation.
    #[serde(default)]
    pub incarnation: u64,
}
