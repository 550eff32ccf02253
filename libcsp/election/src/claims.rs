//! What a proxy worker knows of the holders of groups.

use csp_types::{Instant, NodeId};
use csp_wire::election::{Beat, GroupBeat, Stage};

use crate::{GRANTED_FOR, GROUPS_MAX, GroupId};

/// The last known holder of each group. It stays when its node is lost or silent, until another one says that
/// it holds the group: in a higher epoch, or after the first has been silent. (Epochs begin anew when all
/// voters do.)
#[derive(Debug, Default)]
pub struct Claims(Vec<Claim>);

#[derive(Debug)]
struct Claim {
    group: GroupId,
    epoch: u64,
    node: NodeId,
    heard: Instant,
}

impl Claims {
    /// Takes what a network node says that it holds, of groups that the proxy knows. Returns whether a group
    /// has another holder now.
    pub fn on_beat(
        &mut self,
        now: Instant,
        node: NodeId,
        beat: &Beat<'_>,
        knows: impl Fn(GroupId) -> bool,
    ) -> bool {
        let mut changed = false;
        let counts = |said: &GroupBeat| said.stage == Stage::Holds && knows(GroupId(said.group));
        for said in beat.groups().filter(counts) {
            let (group, full) = (GroupId(said.group), self.0.len() == GROUPS_MAX);
            match self.0.iter_mut().find(|known| known.group == group) {
                Some(known) if known.node == node => (known.epoch, known.heard) = (said.epoch, now),
                Some(known) if said.epoch > known.epoch || known.heard + GRANTED_FOR <= now => {
                    *known = Claim { group, epoch: said.epoch, node, heard: now };
                    changed = true;
                }
                Some(_) => {}
                None if full => {}
                None => {
                    self.0.push(Claim { group, epoch: said.epoch, node, heard: now });
                    changed = true;
                }
            }
        }
        changed
    }

    /// Records that all links to a node are lost: any other's claim counts from now on.
    pub fn lost(&mut self, node: NodeId) {
        self.0.iter_mut().filter(|known| known.node == node).for_each(|known| known.epoch = 0);
    }

    /// Returns who held a group last.
    pub fn holder(&self, group: GroupId) -> Option<NodeId> {
        self.0.iter().find(|known| known.group == group).map(|known| known.node)
    }

    /// Forgets groups for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(GroupId) -> bool) {
        self.0.retain(|known| keep(known.group));
    }
}
