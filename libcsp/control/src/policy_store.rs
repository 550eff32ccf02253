//! Policy distribution at a node: follow the active generation, check staged ones, acknowledge both, keep the
//! last good one.

mod activations;
pub(crate) mod packed;
mod store;
mod tasks;

use std::sync::Arc;

use csp_policy::Policy;
use serde::{Deserialize, Serialize};

use crate::registry::unix_now_ms;
use crate::signatures::{Activation, PolicySignature};

pub(crate) use packed::is_hash;
pub(crate) use tasks::{PolicyTasks, start};

/// An immutable generation, as stored in etcd and in the last-known-good file.
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
    /// Signature of the management node that published it; `None` in a cluster without identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<PolicySignature>,
}

/// The last-known-good policy on disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Kept {
    /// The generation.
    #[serde(flatten)]
    pub(crate) record: GenerationRecord,
    /// The activation by which this node follows it; `None` in a cluster without identities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) activation: Option<Activation>,
}

impl GenerationRecord {
    /// Returns an unsigned generation with the present time.
    pub fn new(generation: u64, policy: Policy) -> GenerationRecord {
        GenerationRecord {
            generation,
            created_unix_ms: unix_now_ms(),
            hash: policy.hash(),
            policy,
            signature: None,
        }
    }

    /// Parses a generation, and checks its policy and hash. `origin` names its source in errors.
    pub fn from_json(text: &str, origin: &str) -> Result<GenerationRecord, String> {
        let record: GenerationRecord =
            csp_config::from_json(text, origin).map_err(|error| error.to_string())?;
        record.policy.validate(origin).map_err(|error| error.to_string())?;
        let hash = record.policy.hash();
        if hash != record.hash {
            return Err(format!("{origin}: the hash is {hash}, not {} as it says", record.hash));
        }
        Ok(record)
    }
}

/// The policy that a node has to apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActivePolicy {
    /// Its generation.
    pub generation: u64,
    /// Its hash.
    pub hash: String,
    /// The policy, valid.
    pub policy: Arc<Policy>,
    /// Its source.
    pub source: PolicySource,
}

/// Source of a node's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicySource {
    /// From etcd: the generation in force.
    Etcd,
    /// From the last-known-good file, since etcd has not answered yet.
    LastKnownGood,
}

/// A node's progress with a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckState {
    /// Checked; can be applied.
    Staged,
    /// Applied.
    Active,
    /// Cannot be applied.
    Refused,
}

/// A node's acknowledgement at `/csp/v1/acks/<node>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAck {
    /// The generation that this is about: the newest one that the node has examined.
    pub generation: u64,
    /// The node's progress with it.
    pub state: AckState,
    /// Why it was refused; else empty.
    #[serde(default)]
    pub error: String,
    /// The policy's hash as the node computed it.
    pub hash: String,
    /// The generation that the node runs; 0 for none.
    #[serde(default)]
    pub active: u64,
    /// The node's incarnation.
    #[serde(default)]
    pub incarnation: u64,
}
