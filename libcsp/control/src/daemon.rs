//! The control plane of one daemon: registration, membership, policy.
//!
//! The control thread of a daemon starts a [`ControlPlane`], waits on its watch channels, applies each policy
//! to its workers and acknowledges it with [`ControlPlane::ack_applied`]. Background tasks continue while
//! etcd is unreachable.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csp_policy::Policy;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{EtcdAccess, EtcdClient};
use crate::drain::DrainFollower;
use crate::error::ControlError;
use crate::follow::{History, follow};
use crate::keys;
use crate::membership::{self, Membership, MembershipFollower};
use crate::policy_store::{self, ActivePolicy, PolicyTasks};
use crate::predecessor::Predecessor;
use crate::registration::{First, Registration, taken};
use crate::registry::NodeRecord;
use crate::signatures::Verifier;
use crate::state_files::StateFiles;
use crate::status::{ControlStatus, StatusCell};

/// Timeout for deleting the registration at shutdown.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);
/// Timeout for deciding whether another node's registration is alive: two checks of a lease of 5 s, and its
/// expiry.
const CONTEST_WAIT: Duration = Duration::from_secs(12);

/// A node's own check of a policy, beyond the schema. `Err` has the reason why this node cannot apply it.
pub type PolicyCheck = Arc<dyn Fn(&Policy) -> Result<(), String> + Send + Sync>;

/// Options of a daemon's control plane.
#[derive(Clone)]
pub struct ControlOptions {
    /// Whether to follow the policy: stage it, apply it, keep the last-known-good one. The management node
    /// does not.
    pub follow_policy: bool,
    /// The daemon's own check of a policy before it is acknowledged as staged.
    pub check: PolicyCheck,
    /// How long [`ControlPlane::start`] waits for the first registration before it returns and continues in
    /// the background.
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

/// A running control plane. Dropping it stops the background tasks and leaves the registration to expire.
pub struct ControlPlane {
    /// The members of the cluster.
    pub membership: watch::Receiver<Membership>,
    /// The policy to apply; `None` until one is known, and always where the policy is not followed.
    pub policy: watch::Receiver<Option<ActivePolicy>>,
    /// State of the control plane.
    pub status: watch::Receiver<ControlStatus>,
    client: EtcdClient,
    policy_tasks: Option<PolicyTasks>,
    registration: AbortOnDrop,
    first: watch::Receiver<First>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    _predecessor: Predecessor,
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane").field("status", &*self.status.borrow()).finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Registers `record`, and watches membership and policy. `state_dir` holds the last-known-good policy
    /// and is created if missing. Requires a tokio runtime.
    ///
    /// Returns once registered, or after [`ControlOptions::start_wait`] if etcd does not answer. In the
    /// latter case everything continues in the background, and the channels hold the last-known-good policy
    /// and the last-known members. Fails with [`ControlError::IdTaken`] if another live process holds this
    /// node's id, which takes up to 7 s to find out. A daemon that was killed and restarts on the same host
    /// with the same `state_dir` takes over its former registration at once.
    pub fn start<'a>(
        record: NodeRecord,
        etcd: &'a EtcdAccess,
        state_dir: &'a Path,
        options: ControlOptions,
    ) -> BoxFuture<'a, Result<ControlPlane, ControlError>> {
        Self::begin(record, etcd, state_dir, options).boxed()
    }

    async fn begin(
        record: NodeRecord,
        etcd: &EtcdAccess,
        state_dir: &Path,
        options: ControlOptions,
    ) -> Result<ControlPlane, ControlError> {
        let predecessor = Predecessor::succeed(state_dir, &record);
        let client = EtcdClient::connect(etcd).await?;
        let (status, status_receiver) = StatusCell::new();
        let unusable = |source| ControlError::State { path: state_dir.display().to_string(), source };
        let files = StateFiles::open(state_dir, status.clone()).map_err(unusable)?;
        let (stop, stop_receiver) = watch::channel(false);
        let (first, mut first_receiver) = watch::channel(First::Pending);
        let mut tasks = JoinSet::new();
        let drain_key = keys::drain(&record.id);
        let (follower, draining) = DrainFollower::new(drain_key.clone());
        let history = History::new(status.clone());
        tasks.spawn(follow(client.clone(), drain_key, follower, history.clone()));
        let registration = Registration {
            client: client.clone(),
            record: record.clone(),
            predecessor: predecessor.incarnation,
            draining,
            status: status.clone(),
            first,
            stop: stop_receiver,
        };
        let registration = AbortOnDrop(tokio::spawn(registration.run()));
        await_registration(&client, &mut first_receiver, options.start_wait).await?;

        let (follower, members_receiver) = MembershipFollower::new(status.clone());
        let members = follower.sender();
        tasks.spawn(follow(client.clone(), keys::NODES, follower, history.clone()));
        tasks.spawn(membership::keep(members_receiver.clone(), files.clone()));
        let (policy_tasks, policy) = if options.follow_policy {
            let reports = (history, status.clone());
            let checks = (options.check, Verifier::new(etcd.credentials.clone()));
            let started = policy_store::start(&client, &record, files, checks, reports, &mut tasks);
            (Some(started.0), started.1)
        } else {
            status.update(|status| status.policy_synced = true);
            (None, watch::channel(None).1)
        };
        let mut status_receiver = status_receiver;
        let wait =
            if *first_receiver.borrow() == First::Registered { options.start_wait } else { Duration::ZERO };
        let _ = tokio::time::timeout(wait, status_receiver.wait_for(ControlStatus::synced)).await;
        membership::recall(&members, state_dir);
        if let Some(tasks) = &policy_tasks {
            tasks.use_last_known_good();
        }
        let (status, first) = (status_receiver, first_receiver);
        Ok(ControlPlane {
            membership: members_receiver,
            policy,
            status,
            client,
            policy_tasks,
            registration,
            first,
            stop,
            tasks,
            _predecessor: predecessor,
        })
    }

    /// Returns the connection to etcd, for other data that the daemon keeps there.
    pub fn client(&self) -> EtcdClient {
        self.client.clone()
    }

    /// Acknowledges that the daemon's workers run `generation`, or reports why they cannot. On success the
    /// policy becomes the last-known-good one. Ignored if `generation` is no longer the one to apply.
    pub async fn ack_applied(&self, generation: u64, result: Result<(), String>) {
        if let Some(tasks) = &self.policy_tasks {
            tasks.applied(generation, result).await;
        }
    }

    /// Repeats the check of policies that [`ControlOptions::check`] has refused, since what they lacked may
    /// be available by now. A policy that passes is acknowledged, and is sent through the channel if it is in
    /// force.
    pub fn recheck_policy(&self) {
        if let Some(tasks) = &self.policy_tasks {
            tasks.recheck();
        }
    }

    /// Waits for an error that ends the daemon: after a start without etcd, the id turns out to be taken once
    /// etcd is reachable.
    pub async fn failed(&self) -> ControlError {
        let mut first = self.first.clone();
        let taken_by =
            |first: &First| if let First::Taken(other) = first { Some(taken(other)) } else { None };
        if let Ok(first) = first.wait_for(|first| taken_by(first).is_some()).await
            && let Some(error) = taken_by(&first)
        {
            return error;
        }
        std::future::pending().await
    }

    /// Deletes the registration, as the node leaves on purpose, and stops all background tasks. Takes at most
    /// two seconds.
    pub async fn shutdown(mut self) {
        let _ = self.stop.send(true);
        if tokio::time::timeout(SHUTDOWN_WAIT, &mut self.registration.0).await.is_err() {
            tracing::warn!("etcd does not answer, the registration lapses by itself");
        }
        self.tasks.shutdown().await;
    }
}

/// Waits for the first registration: at most `wait` while etcd does not answer, but as long as needed to
/// decide whether a registration of another process is alive.
async fn await_registration(
    client: &EtcdClient,
    first: &mut watch::Receiver<First>,
    wait: Duration,
) -> Result<(), ControlError> {
    let pending = |first: &First| *first == First::Pending;
    let known = tokio::time::timeout(wait, first.wait_for(|first| !pending(first))).await.is_ok();
    if !known && client.health().await.is_ok() {
        let _ = tokio::time::timeout(CONTEST_WAIT, first.wait_for(|first| !pending(first))).await;
    }
    match &*first.borrow() {
        First::Taken(other) => Err(taken(other)),
        First::Registered => Ok(()),
        First::Pending => {
            tracing::warn!("etcd does not answer; starting without it");
            Ok(())
        }
    }
}

/// A task that is aborted when this value is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
