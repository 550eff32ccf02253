//! State of this node's control plane, which its tasks update.

use tokio::sync::watch;
use tokio::time::Instant;

/// State of the control plane, for `/readyz` and metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlStatus {
    /// Whether the node's registration is in etcd under a live lease.
    pub registered: bool,
    /// Why it is not, for people; empty when it is.
    pub registration_problem: String,
    /// Whether the membership follows etcd.
    pub membership_synced: bool,
    /// Whether the policy follows etcd.
    pub policy_synced: bool,
    /// Why one of them does not follow, for people; empty when both do.
    pub sync_problem: String,
    /// When one of them stopped following; `None` while both do.
    pub stale_since: Option<Instant>,
    /// Number of times that etcd was found restored, recreated or replaced since the daemon started.
    pub history_losses: u64,
    /// Why the policy in use is not the one in etcd, for people; empty when it is, or while etcd is
    /// unreachable.
    pub policy_problem: String,
    /// Why files of the state directory are not up to date, for people; empty when they are.
    pub state_problem: String,
    /// The generation that was last checked and acknowledged; 0 for none.
    pub staged_generation: u64,
    /// The generation that this node runs; 0 for none.
    pub active_generation: u64,
}

impl ControlStatus {
    /// Returns whether membership and policy follow etcd.
    pub fn synced(&self) -> bool {
        self.membership_synced && self.policy_synced
    }

    /// Clears the problem once everything follows etcd again.
    pub(crate) fn clear_sync_problem(&mut self) {
        if self.synced() {
            self.sync_problem.clear();
        }
    }
}

/// A handle by which tasks update the status.
#[derive(Clone, Debug)]
pub(crate) struct StatusCell(std::sync::Arc<watch::Sender<ControlStatus>>);

impl StatusCell {
    pub(crate) fn new() -> (StatusCell, watch::Receiver<ControlStatus>) {
        let (sender, receiver) = watch::channel(ControlStatus::default());
        (StatusCell(std::sync::Arc::new(sender)), receiver)
    }

    /// Updates the status. Waiting tasks are notified only if it differs.
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
