//! Which network node answers for a group of addresses, as the proxy knows it: connections of the group's
//! addresses go through that one.

use std::net::IpAddr;

use csp_election::{Claims, GroupId};
use csp_types::{Instant, NodeId, Prefix};
use csp_wire::election::Beat;

/// A group of addresses of the policy.
pub type AddressGroup = (GroupId, Vec<Prefix>);

/// The groups of the policy in force, and who holds them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    groups: Vec<AddressGroup>,
    claims: Claims,
}

impl Holders {
    pub(crate) fn set_groups(&mut self, groups: Vec<AddressGroup>) {
        self.claims.retain(|group| groups.iter().any(|(known, _)| *known == group));
        self.groups = groups;
    }

    /// Takes what a network node says that it holds. Returns whether a group has another holder now.
    pub(crate) fn on_beat(&mut self, now: Instant, node: NodeId, beat: &Beat<'_>) -> bool {
        self.claims.on_beat(now, node, beat)
    }

    /// Records that no link to a network node is left.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.claims.lost(node);
    }

    /// Returns the node that holds the group of an address, or held it last; `None` if the address is in no
    /// group, or nobody has held it yet.
    pub(crate) fn of(&self, address: IpAddr) -> Option<NodeId> {
        let contains = |networks: &[Prefix]| networks.iter().any(|network| network.contains(address));
        let (group, _) = self.groups.iter().find(|(_, networks)| contains(networks))?;
        self.claims.holder(*group)
    }
}
