//! The body of `/readyz`.

use serde::{Deserialize, Serialize};

use crate::Text;

/// Whether a daemon can do its work. The status is 200 when it is ready and 503 when it is not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Readiness {
    /// By name.
    pub conditions: Vec<Condition>,
    /// Whether no condition is [`ConditionState::Failed`].
    pub ready: bool,
}

/// One named condition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Condition {
    /// What the condition is about, such as `policy`.
    pub name: Text,
    /// Why it is not [`ConditionState::Ok`], in a sentence for an operator; empty otherwise.
    pub reason: Text,
    /// State of the condition.
    pub state: ConditionState,
}

/// State of one condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionState {
    /// Nothing is missing.
    Ok,
    /// Something is missing, but the daemon serves: for instance on its last-known-good policy.
    Degraded,
    /// The daemon cannot serve.
    Failed,
}
