//! Which network node answers for a group of addresses, as the proxy knows it: connections of the group's
//! addresses go through that one.

use std::collections::HashMap;
use std::net::IpAddr;

use csp_election::{Claims, GroupId};
use csp_types::{Instant, NodeId};
use csp_wire::election::Beat;

/// The groups of the policy in force, and who holds them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// The group of each address that is in one.
    groups: HashMap<IpAddr, GroupId>,
    claims: Claims,
}

impl Holders {
    pub(crate) fn set_groups(&mut self, groups: HashMap<IpAddr, GroupId>) {
        self.claims.retain(|group| groups.values().any(|known| *known == group));
        self.groups = groups;
    }

    /// Returns whether no address is in a group.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Takes what a network node says that it holds. Returns whether a group has another holder now.
    pub(crate) fn on_beat(&mut self, now: Instant, node: NodeId, beat: &Beat<'_>) -> bool {
        let Holders { groups, claims } = self;
        claims.on_beat(now, node, beat, |group| groups.values().any(|known| *known == group))
    }

    /// Records that no link to a network node is left.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.claims.lost(node);
    }

    /// Returns the node that holds the group of an address, or held it last; `None` if the address is in no
    /// group, or nobody has held it yet.
    pub(crate) fn of(&self, address: IpAddr) -> Option<NodeId> {
        self.claims.holder(*self.groups.get(&address)?)
    }
}
