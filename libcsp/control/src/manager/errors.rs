//! Results and errors of the management node's operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::error::ControlError;

/// Why a policy was not activated. The former one stays in force.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// etcd reported an error or did not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The policy is not valid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// Another writer changed the policy meanwhile.
    #[error(
        "the policy was changed meanwhile: expected generation {expected}, found {found}; look at it and apply again"
    )]
    Conflict {
        /// The generation on which this change was based; 0 for none.
        expected: u64,
        /// The generation in force.
        found: u64,
    },
    /// Another management node is the leader now.
    #[error("this management node does not lead any more; nothing was changed, apply again")]
    FenceLost,
    /// There is no such generation.
    #[error("there is no generation {0}")]
    NoGeneration(u64),
    /// No management node that this cluster trusts has published the generation.
    #[error(
        "generation {generation} is not put in force: {reason}; look at it (cspctl policy show --generation {generation}) and publish it anew (cspctl policy apply)"
    )]
    NotSigned {
        /// The generation.
        generation: u64,
        /// What is wrong with its signature.
        reason: String,
    },
    /// The change was based on a generation that nodes do not follow.
    #[error(
        "{0}; a change of it would be a change of what somebody else wrote. Look at it (cspctl policy show), then publish a whole policy (cspctl policy apply)"
    )]
    Doubtful(String),
    /// This node's key cannot sign.
    #[error("the policy cannot be signed: {0}")]
    Sign(String),
    /// The generation numbers are used up.
    #[error(
        "etcd holds a generation with the highest number there is: delete its key below /csp/v1/policy/generations/"
    )]
    NoNumber,
    /// Nodes refused the policy, or did not answer in time.
    #[error("generation {generation} was not activated: {failure}")]
    NotStaged {
        /// The generation.
        generation: u64,
        /// Nodes and their reasons.
        failure: StageFailure,
    },
    /// Nodes could not apply the policy that they had staged. The former generation was activated again.
    #[error("generation {generation} was taken back: {failure}")]
    RolledBack {
        /// The generation.
        generation: u64,
        /// Nodes and their reasons.
        failure: StageFailure,
    },
}

/// The nodes because of which a generation was not put in force.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StageFailure {
    /// Nodes that refused, with their reason.
    pub refused: BTreeMap<String, String>,
    /// Live nodes that did not answer in time.
    pub missing: Vec<String>,
}

impl std::fmt::Display for StageFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> =
            self.refused.iter().map(|(node, why)| format!("{node} refused: {why}")).collect();
        if !self.missing.is_empty() {
            parts.push(format!("no answer from {}", self.missing.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The result of a successful apply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplyOutcome {
    /// The generation now in force.
    pub generation: u64,
    /// The former generation; 0 for none.
    pub previous: u64,
    /// The policy's hash.
    pub hash: String,
    /// The nodes that run it.
    pub nodes: Vec<String>,
    /// Nodes that staged the policy but did not acknowledge in time that they run it. They follow later.
    pub pending: Vec<String>,
}

/// One entry of the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GenerationSummary {
    /// The generation.
    pub generation: u64,
    /// When it was published, in milliseconds of the Unix epoch.
    pub created_unix_ms: u64,
    /// When it was first in force; `None` if never.
    pub activated_unix_ms: Option<u64>,
    /// The generation that it replaced then.
    pub previous: Option<u64>,
    /// Whether it is in force.
    pub active: bool,
    /// Its hash.
    pub hash: String,
    /// Number of its services.
    pub services: usize,
}
