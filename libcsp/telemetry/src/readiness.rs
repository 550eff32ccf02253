//! Whether a daemon can do its work, and if not, why: the named conditions behind `/readyz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// How one condition stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionState {
    /// As it should be.
    Ok,
    /// Something is missing, but the daemon serves: for instance on its last-known-good policy.
    Degraded,
    /// The daemon cannot serve.
    Failed,
}

/// One named condition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Condition {
    /// What it is about, such as `policy`.
    pub name: String,
    /// How it stands.
    pub state: ConditionState,
    /// Why, in a sentence for an operator; empty when all is well.
    pub reason: String,
}

/// The conditions of one daemon; cheap to clone, all clones are the same set.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<String, (ConditionState, String)>>>,
}

impl Readiness {
    /// No conditions: ready.
    pub fn new() -> Self {
        Readiness::default()
    }

    /// Sets condition `name`, replacing what it was.
    pub fn set(&self, name: &str, state: ConditionState, reason: impl Into<String>) {
        let mut conditions = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        conditions.insert(name.to_owned(), (state, reason.into()));
    }

    /// All conditions in the order of their names.
    pub fn conditions(&self) -> Vec<Condition> {
        let conditions = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        conditions
            .iter()
            .map(|(name, (state, reason))| Condition {
                name: name.clone(),
                state: *state,
                reason: reason.clone(),
            })
            .collect()
    }

    /// Whether no condition is [`ConditionState::Failed`].
    pub fn ready(&self) -> bool {
        self.conditions().iter().all(|condition| condition.state != ConditionState::Failed)
    }
}
