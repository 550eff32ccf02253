//! The members of the cluster, as registered in etcd.
//!
//! A registration that disappears does not prove that the node is dead: its lease may have expired because
//! the control network is partitioned while the node serves. Such a member stays in the snapshot as
//! [`MemberState::LeaseExpired`], and the data plane decides: a connected node stays in use while its link
//! lives, and no new connections to it are made. Only a node that announced its departure is removed at once.
//! While etcd is unreachable nothing changes.

mod last_known;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csp_types::{NodeId, Role};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::follow::{Entry, Follower, KeyChange};
use crate::keys;
use crate::registry::NodeRecord;
use crate::status::StatusCell;

pub(crate) use last_known::{keep, recall};

/// All known nodes at one revision of etcd.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Membership {
    /// etcd's revision of this snapshot; 0 before the first contact.
    pub revision: i64,
    /// Whether the watch is up. If not, this is the last known state.
    pub synced: bool,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, Member>,
}

/// One node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its latest registration.
    pub record: NodeRecord,
    /// State of its registration.
    pub state: MemberState,
}

/// State of a node's registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Its lease is kept alive.
    Live,
    /// Its registration disappeared without an announcement.
    LeaseExpired,
}

impl Membership {
    /// Returns the members of `role`, ordered by id.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.nodes.values().filter(move |member| member.record.role == role)
    }
}

/// Largest number of nodes. More are ignored with a warning.
const NODES_MAX: usize = 4096;
/// Longest registration, in bytes.
pub(crate) const RECORD_LEN_MAX: usize = 16 << 10;
/// How long a node is remembered after its lease expired.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Keeps the snapshot in a watch channel up to date.
pub(crate) struct MembershipFollower {
    sender: watch::Sender<Membership>,
    status: StatusCell,
    lapsed_at: BTreeMap<NodeId, Instant>,
}

impl MembershipFollower {
    pub(crate) fn new(status: StatusCell) -> (Self, watch::Receiver<Membership>) {
        let (sender, receiver) = watch::channel(Membership::default());
        (MembershipFollower { sender, status, lapsed_at: BTreeMap::new() }, receiver)
    }

    /// Returns the sending half, for [`recall`].
    pub(crate) fn sender(&self) -> watch::Sender<Membership> {
        self.sender.clone()
    }

    fn put(&mut self, nodes: &mut BTreeMap<NodeId, Member>, key: &str, value: &[u8]) {
        if value.len() > RECORD_LEN_MAX {
            let (len, limit) = (value.len(), RECORD_LEN_MAX);
            return tracing::warn!(key, len, limit, "ignoring a registration, it is too long");
        }
        let record: NodeRecord = match serde_json::from_slice(value) {
            Ok(record) => record,
            Err(error) => return tracing::warn!(key, %error, "ignoring a registration that cannot be read"),
        };
        if key != keys::node(record.role, &record.id) {
            return tracing::warn!(key, id = %record.id, "ignoring a registration under another node's key");
        }
        let holder = nodes.get(&record.id).filter(|known| known.record.role != record.role);
        if holder.is_some_and(|holder| holder.state != MemberState::LeaseExpired) {
            return tracing::warn!(key, "ignoring a registration, a node of another role has its id");
        }
        if nodes.len() >= NODES_MAX && !nodes.contains_key(&record.id) {
            return tracing::warn!(key, limit = NODES_MAX, "ignoring a node, there are too many");
        }
        self.lapsed_at.remove(&record.id);
        nodes.insert(record.id, Member { record, state: MemberState::Live });
    }

    fn delete(&mut self, nodes: &mut BTreeMap<NodeId, Member>, id: NodeId) {
        let Some(member) = nodes.get_mut(&id) else { return };
        if member.record.leaving {
            nodes.remove(&id);
            self.lapsed_at.remove(&id);
        } else {
            member.state = MemberState::LeaseExpired;
            self.lapsed_at.entry(id).or_insert_with(Instant::now);
        }
    }
}

impl Follower for MembershipFollower {
    fn reset(&mut self, revision: i64, entries: Vec<Entry>) {
        let mut nodes = self.sender.borrow().nodes.clone();
        let there: BTreeSet<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        let is_gone = |member: &&Member| {
            let NodeRecord { role, id, .. } = &member.record;
            !there.contains(keys::node(*role, id).as_str())
        };
        let gone: Vec<NodeId> = nodes.values().filter(is_gone).map(|member| member.record.id).collect();
        for id in gone {
            self.delete(&mut nodes, id);
        }
        for (key, value) in &entries {
            self.put(&mut nodes, key, value);
        }
        self.sender.send_replace(Membership { revision, synced: true, nodes });
        self.status.update(|status| {
            status.membership_synced = true;
            status.clear_sync_problem();
        });
    }

    fn change(&mut self, revision: i64, changes: Vec<KeyChange>) {
        let mut nodes = self.sender.borrow().nodes.clone();
        for change in changes {
            match change {
                KeyChange::Put((key, value)) => self.put(&mut nodes, &key, &value),
                KeyChange::Delete(key) => {
                    let known = keys::node_of(&key)
                        .filter(|(role, id)| nodes.get(id).is_some_and(|known| known.record.role == *role));
                    if let Some((_, id)) = known {
                        self.delete(&mut nodes, id);
                    }
                }
            }
        }
        self.sender.send_replace(Membership { revision, synced: true, nodes });
    }

    fn lost(&mut self, reason: &str) {
        self.sender.send_if_modified(|membership| std::mem::replace(&mut membership.synced, false));
        self.status.update(|status| {
            status.membership_synced = false;
            status.sync_problem = reason.to_owned();
        });
    }

    fn tick(&mut self) {
        let old = |at: &Instant| at.elapsed() >= FORGET_AFTER;
        let forgotten: Vec<NodeId> =
            self.lapsed_at.iter().filter(|(_, at)| old(at)).map(|(id, _)| *id).collect();
        // Without etcd no node can register again, so none expires.
        if forgotten.is_empty() || !self.sender.borrow().synced {
            return;
        }
        self.sender.send_modify(|membership| {
            for id in &forgotten {
                membership.nodes.remove(id);
                self.lapsed_at.remove(id);
            }
        });
    }
}

#[cfg(test)]
mod tests;
