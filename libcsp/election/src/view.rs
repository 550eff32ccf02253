//! What a network node knows of a voter.

use csp_types::{Instant, NodeId};
use csp_wire::election::{Condition, GroupBallot};

/// What a voter said last.
#[derive(Debug)]
pub(crate) struct VoterView {
    pub node: NodeId,
    pub added: Instant,
    pub heard: Option<Instant>,
    pub nodes: Vec<(NodeId, Condition)>,
    pub groups: Vec<GroupBallot>,
}

impl VoterView {
    /// Returns the node at a place of the ballot.
    pub(crate) fn node_at(&self, place: Option<u8>) -> Option<NodeId> {
        self.nodes.get(usize::from(place?)).map(|(node, _)| *node)
    }

    /// Returns the node that has the voter's vote for a group.
    pub(crate) fn holder(&self, said: &GroupBallot) -> Option<NodeId> {
        self.node_at(said.holder)
    }
}
