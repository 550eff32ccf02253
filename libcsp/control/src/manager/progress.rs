//! Progress of the nodes with a generation, judged by their acknowledgements.

use std::collections::BTreeMap;

use csp_types::NodeId;

use super::StageFailure;
use crate::policy_store::{AckState, NodeAck};
use crate::registry::NodeRecord;

/// The nodes that apply policies, and all acknowledgements, at one moment.
pub(super) struct NodesAndAcks {
    pub(super) nodes: Vec<NodeRecord>,
    pub(super) acks: BTreeMap<NodeId, NodeAck>,
}

/// Progress of the nodes.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) done: Vec<String>,
    pub(super) refused: BTreeMap<String, String>,
    pub(super) missing: Vec<String>,
}

impl Progress {
    /// Returns whether every node is done.
    pub(super) fn complete(&self) -> bool {
        self.refused.is_empty() && self.missing.is_empty()
    }

    /// Returns the nodes that are not done.
    pub(super) fn failure(&self) -> StageFailure {
        StageFailure { refused: self.refused.clone(), missing: self.missing.clone() }
    }
}

impl NodesAndAcks {
    /// Returns which nodes have acknowledged `generation` as staged.
    pub(super) fn staged(&self, generation: u64) -> Progress {
        self.judge(generation, |ack| ack.generation == generation)
    }

    /// Returns which nodes have acknowledged that they run `generation`.
    pub(super) fn applied(&self, generation: u64) -> Progress {
        self.judge(generation, |ack| ack.active == generation)
    }

    fn judge(&self, generation: u64, done: impl Fn(&NodeAck) -> bool) -> Progress {
        let mut progress = Progress::default();
        for node in &self.nodes {
            // An acknowledgement by an earlier incarnation does not count.
            let ack = self.acks.get(&node.id).filter(|ack| ack.incarnation == node.incarnation);
            let name = node.id.to_string();
            match ack {
                Some(ack) if ack.generation == generation && ack.state == AckState::Refused => {
                    progress.refused.insert(name, ack.error.clone());
                }
                Some(ack) if done(ack) => progress.done.push(name),
                _ => progress.missing.push(name),
            }
        }
        progress
    }
}
