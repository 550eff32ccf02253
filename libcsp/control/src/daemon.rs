//! The control plane of one daemon in one value: registration, membership, policy.
//!
//! A daemon's control thread starts a [`ControlPlane`], waits on its two watch channels, applies what comes to its
//! workers and says so with [`ControlPlane::ack_applied`]. All of it goes on by itself while etcd is away.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::EtcdSection;
use crate::error::ControlError;
use crate::membership::Membership;
use crate::policy::Policy;
use crate::policy_store::ActivePolicy;
use crate::registry::NodeRecord;

/// A check of a policy by a node, beyond the schema: `Err` says why this node cannot apply it.
pub type PolicyCheck = Arc<dyn Fn(&Policy) -> Result<(), String> + Send + Sync>;

/// What a daemon can choose about its control plane.
#[derive(Clone)]
pub struct ControlOptions {
    /// Follow the policy: stage, apply, keep the last-known-good. The management node does not.
    pub follow_policy: bool,
    /// The daemon's own check of a policy before it is acknowledged as staged.
    pub check: PolicyCheck,
    /// How long [`ControlPlane::start`] waits for the first registration before it goes on in the background.
    pub start_wait: Duration,
}

impl fmt::Debug for ControlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ControlOptions { follow_policy, start_wait, .. } = self;
        f.debug_struct("ControlOptions")
            .field("follow_policy", follow_policy)
            .field("start_wait", start_wait)
            .finish_non_exhaustive()
    }
}

impl Default for ControlOptions {
    fn default() -> Self {
        ControlOptions {
            follow_policy: true,
            check: Arc::new(|_| Ok(())),
            start_wait: Duration::from_secs(3),
        }
    }
}

/// How the control plane stands; what `/readyz` and metrics tell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlStatus {
    /// Whether the node's registration stands in etcd under a live lease.
    pub registered: bool,
    /// Why not, for people; empty when registered.
    pub registration_problem: String,
    /// Whether membership and policy are up to date with etcd.
    pub synced: bool,
    /// Why not, for people; empty when synced.
    pub sync_problem: String,
    /// The generation that was checked and acknowledged last; 0 for none.
    pub staged_generation: u64,
    /// The generation in force at this node; 0 for none.
    pub active_generation: u64,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    /// Who is there.
    pub membership: watch::Receiver<Membership>,
    /// What to apply; `None` until a policy is known.
    pub policy: watch::Receiver<Option<ActivePolicy>>,
    /// How it stands.
    pub status: watch::Receiver<ControlStatus>,
}

impl ControlPlane {
    /// Registers `record`, watches membership and policy. `state_dir` keeps the last-known-good policy and is created
    /// when missing. Must run inside tokio.
    ///
    /// Returns once registered, or after [`ControlOptions::start_wait`] without etcd: then everything goes on in the
    /// background, and the policy channel holds the last-known-good policy. Fails with [`ControlError::IdTaken`] when
    /// another live process has this node's id.
    pub async fn start(
        record: NodeRecord,
        etcd: &EtcdSection,
        state_dir: impl Into<PathBuf>,
        options: ControlOptions,
    ) -> Result<ControlPlane, ControlError> {
        let _ = (record, etcd, state_dir.into(), options);
        Err(ControlError::Etcd("not available yet".to_owned()))
    }

    /// Says that the daemon's workers run `generation` now, or why they cannot. On success the policy becomes the
    /// last-known-good one.
    pub async fn ack_applied(&self, generation: u64, result: Result<(), String>) {
        let _ = (generation, result);
    }

    /// Waits for an error the daemon must end with.
    pub async fn failed(&self) -> ControlError {
        std::future::pending().await
    }

    /// Takes the registration back (the node leaves on purpose) and ends all background work, within two seconds.
    pub async fn shutdown(self) {}
}
