//! The order among the nodes that would take a group; the same on every node.

use core::cmp::Reverse;

use csp_types::NodeId;
use csp_wire::election::Condition;

use crate::{Group, hash};

/// Sorts nodes: the least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rank {
    unable: bool,
    draining: bool,
    preferred: usize,
    spread: Reverse<u64>,
    node: NodeId,
}

impl Rank {
    pub(crate) fn of(group: &Group, node: NodeId, condition: Condition) -> Self {
        let preferred = group.prefer.iter().position(|id| *id == node).unwrap_or(group.prefer.len());
        // Mixed at the end (the finaliser of MurmurHash3): FNV's high bits hardly depend on the last bytes.
        let mut spread = hash(node.as_str().as_bytes(), group.id.0);
        spread = (spread ^ spread >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        spread ^= spread >> 33;
        Rank {
            unable: !condition.able,
            draining: condition.draining,
            preferred,
            spread: Reverse(spread),
            node,
        }
    }

    /// Whether this node serves the group better for a reason that does not go away when its better returns:
    /// the other cannot transmit, or drains.
    pub(crate) fn is_urgently_better_than(&self, other: &Rank) -> bool {
        (self.unable, self.draining) < (other.unable, other.draining)
    }
}
