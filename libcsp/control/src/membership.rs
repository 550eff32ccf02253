//! Who is in the cluster, as etcd tells it.
//!
//! A registration that vanished is no death: its lease may have lapsed because the control network is cut while the
//! node serves. Such a member stays in the snapshot as [`MemberState::LeaseExpired`], and the data plane decides: a
//! node that is connected stays in use while its link lives, a node that is not connected is not dialled. Only a node
//! that said it leaves is removed at once. While etcd is away nothing changes.

use std::collections::BTreeMap;

use csp_types::{NodeId, Role};

use crate::registry::NodeRecord;

/// All known nodes at one revision of etcd.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Membership {
    /// etcd's revision of this snapshot; 0 before the first contact.
    pub revision: i64,
    /// Whether the watch is up. If not, this is the last that was known.
    pub synced: bool,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, Member>,
}

/// One node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// What it said of itself last.
    pub record: NodeRecord,
    /// Whether its registration stands.
    pub state: MemberState,
}

/// Whether a node's registration stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// Its lease is kept alive.
    Live,
    /// Its registration vanished without a farewell.
    LeaseExpired,
}

/// One difference between two snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A node came (or came back after it had left).
    Joined(NodeRecord),
    /// A node started anew: another incarnation.
    Restarted(NodeRecord),
    /// A node's record changed, or its lease is alive again.
    Updated(NodeRecord),
    /// A node's lease lapsed.
    LeaseExpired(NodeRecord),
    /// A node left on purpose, or was away for so long that it was forgotten.
    Left(NodeRecord),
}

impl Membership {
    /// The members of `role`, in the order of their ids.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.nodes.values().filter(move |member| member.record.role == role)
    }

    /// What happened between `old` and this snapshot.
    pub fn changes_since(&self, old: &Membership) -> Vec<Change> {
        let mut changes = Vec::new();
        for (id, member) in &old.nodes {
            if !self.nodes.contains_key(id) {
                changes.push(Change::Left(member.record.clone()));
            }
        }
        for (id, member) in &self.nodes {
            let record = member.record.clone();
            match old.nodes.get(id) {
                Some(known) if known == member => {}
                Some(known) if known.record.incarnation != record.incarnation => {
                    changes.push(Change::Restarted(record))
                }
                Some(_) if member.state == MemberState::LeaseExpired => {
                    changes.push(Change::LeaseExpired(record))
                }
                Some(_) => changes.push(Change::Updated(record)),
                None => changes.push(Change::Joined(record)),
            }
        }
        changes
    }
}
