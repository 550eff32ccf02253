//! The named conditions behind `/readyz`: whether a daemon can do its work, and if not, why.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use csp_api::{Condition, ConditionState};

/// The conditions of one daemon. Clones share the set and are cheap.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<String, (ConditionState, String)>>>,
    draining: Arc<AtomicBool>,
}

impl Readiness {
    /// Returns a set without conditions, which is ready.
    pub fn new() -> Self {
        Readiness::default()
    }

    /// Sets condition `name`, replacing its former state.
    pub fn set(&self, name: &str, state: ConditionState, reason: impl Into<String>) {
        let mut conditions = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        conditions.insert(name.to_owned(), (state, reason.into()));
    }

    /// Sets whether the node drains. It is ready nevertheless, but not in service.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// Returns whether the node is ready and does not drain.
    pub fn in_service(&self) -> bool {
        self.ready() && !self.draining.load(Ordering::Relaxed)
    }

    /// Returns all conditions, ordered by name.
    pub fn conditions(&self) -> Vec<Condition> {
        let conditions = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        conditions
            .iter()
            .map(|(name, (state, reason))| Condition {
                name: name.into(),
                state: *state,
                reason: reason.into(),
            })
            .collect()
    }

    /// Returns the body of `/readyz`.
    pub fn body(&self) -> csp_api::Readiness {
        csp_api::Readiness { conditions: self.conditions(), ready: self.ready() }
    }

    /// Returns whether no condition is [`ConditionState::Failed`].
    pub fn ready(&self) -> bool {
        self.conditions().iter().all(|condition| condition.state != ConditionState::Failed)
    }
}
