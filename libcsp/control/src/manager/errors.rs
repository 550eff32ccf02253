//! What the management node's operations answer, and why they fail.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::error::ControlError;

/// Why a policy was not put in force; the one before stays.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// etcd refused or did not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The policy is not valid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// Someone else changed the policy meanwhile.
    #[error(
        "the policy was changed meanwhile: expected generation {expected}, found {found}; look at it and apply again"
    )]
    Conflict {
        /// What this change was based on; 0 for no policy.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Another management node leads now.
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
    /// A change was based on a generation that nodes do not follow.
    #[error(
        "{0}; a change of it would be a change of what somebody else wrote. Look at it (cspctl policy show), then publish a whole policy (cspctl policy apply)"
    )]
    Doubtful(String),
    /// This node's key does not sign.
    #[error("the policy cannot be signed: {0}")]
    Sign(String),
    /// Somebody has used up the numbers.
    #[error(
        "etcd holds a generation with the highest number there is: delete its key below /csp/v1/policy/generations/"
    )]
    NoNumber,
    /// Nodes refused, or did not answer in time.
    #[error("generation {generation} was not activated: {failure}")]
    NotStaged {
        /// The generation.
        generation: u64,
        /// Nodes and their reasons.
        failure: StageFailure,
    },
    /// Nodes could not apply what they had staged; the generation before was put back in force.
    #[error("generation {generation} was taken back: {failure}")]
    RolledBack {
        /// The generation.
        generation: u64,
        /// Nodes and their reasons.
        failure: StageFailure,
    },
}

/// Which nodes kept a generation from going on.
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

/// How an apply ended well.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplyOutcome {
    /// The generation now in force.
    pub generation: u64,
    /// The one before; 0 for none.
    pub previous: u64,
    /// The policy's hash.
    pub hash: String,
    /// The nodes that run it.
    pub nodes: Vec<String>,
    /// Nodes that staged it but had not acknowledged in time that they run it; they follow by themselves.
    pub pending: Vec<String>,
}

/// One line of the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GenerationSummary {
    /// The generation.
    pub generation: u64,
    /// When it was published, in milliseconds of the Unix epoch.
    pub created_unix_ms: u64,
    /// When it was in force first; `None` if it never was.
    pub activated_unix_ms: Option<u64>,
    /// The generation it replaced then.
    pub previous: Option<u64>,
    /// Whether it is in force.
    pub active: bool,
    /// Its hash.
    pub hash: String,
    /// Number of its services.
    pub services: usize,
}
