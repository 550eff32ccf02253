//! How far the nodes are with a generation, judged from their acknowledgements.

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

/// How far the nodes are.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) done: Vec<String>,
    pub(super) refused: BTreeMap<String, String>,
    pub(super) missing: Vec<String>,
}

impl Progress {
    /// Whether every node is done.
    pub(super) fn complete(&self) -> bool {
        self.refused.is_empty() && self.missing.is_empty()
    }

    /// The nodes that keep it from being complete.
    pub(super) fn failure(&self) -> StageFailure {
        StageFailure { refused: self.refused.clone(), missing: self.missing.clone() }
    }
}

impl NodesAndAcks {
    /// Nodes that have acknowledged `generation` as staged.
    pub(super) fn staged(&self, generation: u64) -> Progress {
        self.judge(generation, |ack| ack.generation == generation)
    }

    /// Nodes that have acknowledged that they run `generation`.
    pub(super) fn applied(&self, generation: u64) -> Progress {
        self.judge(generation, |ack| ack.active == generation)
    }

    fn judge(&self, generation: u64, done: impl Fn(&NodeAck) -> bool) -> Progress {
        let mut progress = Progress::default();
        for node in &self.nodes {
            // An acknowledgement of an earlier incarnation does not count for this one.
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
