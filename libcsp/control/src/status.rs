//! How the control plane of this node stands, kept by its tasks together.

use tokio::sync::watch;
use tokio::time::Instant;

/// State of the control plane, for `/readyz` and metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlStatus {
    /// Whether the node's registration stands in etcd under a live lease.
    pub registered: bool,
    /// Why not, for people; empty when registered.
    pub registration_problem: String,
    /// Whether the membership follows etcd.
    pub membership_synced: bool,
    /// Whether the policy follows etcd.
    pub policy_synced: bool,
    /// Why one of them does not, for people; empty when both do.
    pub sync_problem: String,
    /// Since when one of them does not; `None` while both do.
    pub stale_since: Option<Instant>,
    /// How often etcd turned out to be restored, begun anew or replaced by another one, since the daemon started.
    pub history_losses: u64,
    /// Why the policy in use is not the one that etcd holds, for people; empty when it is, or while etcd is away.
    pub policy_problem: String,
    /// Why files of the state directory are not up to date, for people; empty when they are.
    pub state_problem: String,
    /// The generation that was checked and acknowledged last; 0 for none.
    pub staged_generation: u64,
    /// The generation in force at this node; 0 for none.
    pub active_generation: u64,
}

impl ControlStatus {
    /// Whether everything follows etcd.
    pub fn synced(&self) -> bool {
        self.membership_synced && self.policy_synced
    }

    /// Forgets the problem once everything follows etcd again.
    pub(crate) fn clear_sync_problem(&mut self) {
        if self.synced() {
            self.sync_problem.clear();
        }
    }
}

/// The tasks' handle on the status.
#[derive(Clone, Debug)]
pub(crate) struct StatusCell(std::sync::Arc<watch::Sender<ControlStatus>>);

impl StatusCell {
    pub(crate) fn new() -> (StatusCell, watch::Receiver<ControlStatus>) {
        let (sender, receiver) = watch::channel(ControlStatus::default());
        (StatusCell(std::sync::Arc::new(sender)), receiver)
    }

    /// Changes the status; waiting tasks are woken only when it is different.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ControlStatus)) {
        self.0.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            match status.synced() {
                true => status.stale_since = None,
                false => _ = status.stale_since.get_or_insert_with(Instant::now),
            }
            *status != before
        });
    }
}
