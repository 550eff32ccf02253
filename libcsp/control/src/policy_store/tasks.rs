//! The tasks around the policy store: they follow etcd, update the daemon's channel and write this node's
//! acknowledgement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::packed::Header;
use super::store::Store;
use super::{ActivePolicy, Kept, NodeAck};
use crate::client::{Backoff, ChunksError, EtcdClient};
use crate::daemon::PolicyCheck;
use crate::follow::{Entry, Follower, History, KeyChange, follow};
use crate::keys;
use crate::lkg;
use crate::registry::NodeRecord;
use crate::signatures::Verifier;
use crate::state_files::StateFiles;
use crate::status::StatusCell;

/// The daemon's handle on its policy tasks.
#[derive(Clone)]
pub(crate) struct PolicyTasks {
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    /// The policy on disk at start-up, until it is used.
    on_disk: Mutex<Option<Box<Kept>>>,
    files: StateFiles,
    policy: watch::Sender<Option<ActivePolicy>>,
    ack: watch::Sender<Option<NodeAck>>,
    /// The packed generations to read.
    wanted: watch::Sender<Vec<Header>>,
    status: StatusCell,
}

/// Starts the tasks that follow the policy, and adds them to `tasks`.
pub(crate) fn start(
    client: &EtcdClient,
    record: &NodeRecord,
    files: StateFiles,
    (check, verifier): (PolicyCheck, Verifier),
    (history, status): (History, StatusCell),
    tasks: &mut JoinSet<()>,
) -> (PolicyTasks, watch::Receiver<Option<ActivePolicy>>) {
    let (policy, policy_receiver) = watch::channel(None);
    let (ack, ack_receiver) = watch::channel(None);
    let on_disk = lkg::load(files.directory(), &verifier);
    let followed = on_disk.as_ref().and_then(|kept| kept.activation.clone());
    if !verifier.is_needed() {
        tracing::warn!(
            "this node has no identity (node.identity): it takes policy from etcd without a signature"
        );
    }
    let store = Mutex::new(Store::new(check, (verifier.clone(), followed), record.incarnation));
    let on_disk = Mutex::new(on_disk.map(Box::new));
    let (wanted, wanted_receiver) = watch::channel(Vec::new());
    let shared = Arc::new(Shared { store, on_disk, files, policy, ack, wanted, status });
    tasks.spawn(follow(
        client.clone(),
        keys::POLICY,
        PolicyFollower { shared: Arc::clone(&shared) },
        history,
    ));
    if let Some(credentials) = verifier.credentials() {
        let mut changes = credentials.changes();
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            while changes.changed().await.is_ok() {
                shared.verify_again();
            }
        });
    }
    tasks.spawn(read_packed(client.clone(), wanted_receiver, Arc::clone(&shared)));
    tasks.spawn(acknowledge(client.clone(), keys::ack(&record.id), ack_receiver));
    (PolicyTasks { shared }, policy_receiver)
}

impl PolicyTasks {
    /// Puts the policy on disk into the channel, unless one from etcd is there.
    pub(crate) fn use_last_known_good(&self) {
        let on_disk = self.shared.on_disk.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(kept) = on_disk else { return };
        let mut store = self.shared.store();
        store.use_last_known_good(kept.record);
        self.shared.publish(&mut store);
    }

    /// Checks policies again that the daemon's check has refused.
    pub(crate) fn recheck(&self) {
        let mut store = self.shared.store();
        store.recheck();
        self.shared.publish(&mut store);
    }

    /// Records whether the daemon applied a generation. Returns after the first attempt to store it on disk.
    pub(crate) async fn applied(&self, generation: u64, result: Result<(), String>) {
        if let Err(reason) = &result {
            tracing::error!(generation, reason, "the policy could not be applied");
        }
        let keep = {
            let mut store = self.shared.store();
            let keep = store.applied(generation, result);
            self.shared.publish(&mut store);
            keep
        };
        let Some(kept) = keep else { return };
        self.shared.files.submit(lkg::FILE, move || serde_json::to_string(&kept)).await;
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Verifies signatures again.
    fn verify_again(&self) {
        let mut store = self.store();
        if store.verify_again() {
            self.publish(&mut store);
        }
    }

    /// Publishes the store's state to the daemon and to etcd, and to the disk if only the activation changed.
    fn publish(&self, store: &mut Store) {
        if let Some(kept) = store.signed_anew() {
            self.files.put(lkg::FILE, move || serde_json::to_string(&kept));
        }
        self.policy.send_if_modified(|published| {
            let same = |published: &ActivePolicy, now: &ActivePolicy| {
                published.generation == now.generation && published.hash == now.hash
            };
            // The same policy from another source needs no new apply, but readers see the source.
            let differs = match (published.as_ref(), store.current()) {
                (Some(published), Some(now)) => !same(published, now),
                (None, None) => false,
                _ => true,
            };
            *published = store.current().cloned();
            differs
        });
        let changed = |published: &mut Option<NodeAck>| {
            let differs = published.as_ref() != store.ack();
            *published = store.ack().cloned();
            differs
        };
        self.ack.send_if_modified(changed);
        self.wanted.send_if_modified(|wanted| {
            let now = store.wanted();
            let differs = *wanted != now;
            *wanted = now;
            differs
        });
        let (staged, active) = store.generations();
        self.status.update(|status| {
            status.staged_generation = staged;
            status.active_generation = active;
            status.policy_problem = store.problem();
        });
    }
}

struct PolicyFollower {
    shared: Arc<Shared>,
}

impl Follower for PolicyFollower {
    fn reset(&mut self, _revision: i64, entries: Vec<Entry>) {
        let mut store = self.shared.store();
        store.reset(entries);
        self.shared.publish(&mut store);
        // etcd may have lost the former acknowledgement.
        self.shared.ack.send_modify(|_| {});
        self.shared.status.update(|status| {
            status.policy_synced = true;
            status.clear_sync_problem();
        });
    }

    fn change(&mut self, _revision: i64, changes: Vec<KeyChange>) {
        let mut store = self.shared.store();
        store.change(changes);
        self.shared.publish(&mut store);
    }

    fn tick(&mut self) {
        // A certificate may become valid later, if its signer's clock is ahead of this host's.
        if self.shared.store().doubts() {
            self.shared.verify_again();
        }
    }

    fn lost(&mut self, reason: &str) {
        self.shared.status.update(|status| {
            status.policy_synced = false;
            status.sync_problem = reason.to_owned();
        });
    }
}

/// Reads the packed generations that are needed. Repeats each read until it succeeds or is no longer needed.
async fn read_packed(client: EtcdClient, mut wanted: watch::Receiver<Vec<Header>>, shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    while wanted.changed().await.is_ok() {
        // The list changes with each generation that was read.
        loop {
            let first = wanted.borrow_and_update().first().cloned();
            let Some(header) = first else { break };
            let record = match client.chunks(&header).await {
                Ok(chunks) => header.unpack(&chunks),
                // An invalid header is not read again.
                Err(ChunksError::Wrong(reason)) => Err(reason),
                Err(ChunksError::Etcd(error)) => {
                    tracing::warn!(%error, generation = header.generation, "cannot read the policy, trying again");
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
            };
            backoff.reset();
            let mut store = shared.store();
            store.unpacked(&header, record.map(Box::new));
            shared.publish(&mut store);
        }
    }
}

/// Writes this node's acknowledgement to etcd whenever it changes. Repeats the write until it succeeds.
async fn acknowledge(client: EtcdClient, key: String, mut ack: watch::Receiver<Option<NodeAck>>) {
    let mut backoff = Backoff::default();
    while ack.changed().await.is_ok() {
        loop {
            let Some(latest) = ack.borrow_and_update().clone() else { break };
            let value = serde_json::to_string(&latest).unwrap_or_default();
            let Err(error) = client.put(&key, value).await else { break };
            tracing::warn!(%error, generation = latest.generation, "cannot acknowledge the policy, trying again");
            tokio::time::sleep(backoff.next().max(Duration::from_millis(50))).await;
        }
        backoff.reset();
    }
}
