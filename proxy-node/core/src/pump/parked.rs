//! Flows whose DATA found no descriptor on their lane: they wait in a queue and are not served until the lane
//! has room.

use std::collections::{BTreeMap, VecDeque};

use csp_types::FlowLabel;

use crate::Lane;

/// The queues, ordered by lane, so that equal runs behave equally.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    lanes: BTreeMap<Lane, VecDeque<FlowLabel>>,
}

impl Parked {
    /// Appends a flow to its lane's queue.
    pub(crate) fn park(&mut self, lane: Lane, label: FlowLabel) {
        self.lanes.entry(lane).or_default().push_back(label);
    }

    /// Returns whether flows wait for a lane; others must not overtake them.
    pub(crate) fn waits(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Returns the number of waiting flows.
    pub(super) fn len(&self) -> usize {
        self.lanes.values().map(VecDeque::len).sum()
    }

    /// Returns whether flows wait for a lane that is `ready`.
    pub(super) fn any_ready(&self, ready: impl Fn(Lane) -> bool) -> bool {
        self.lanes.keys().any(|lane| ready(*lane))
    }

    /// Removes and returns the next flow of a lane that is `ready`.
    pub(super) fn next_ready(&mut self, ready: impl Fn(Lane) -> bool) -> Option<FlowLabel> {
        if self.lanes.is_empty() {
            return None;
        }
        let lane = *self.lanes.keys().find(|lane| ready(**lane))?;
        let line = self.lanes.get_mut(&lane)?;
        let label = line.pop_front();
        if line.is_empty() {
            self.lanes.remove(&lane);
        }
        label
    }

    /// Removes flows for which `waits` is false; called after the loss of a lane.
    pub(super) fn remove_stale(&mut self, waits: impl Fn(FlowLabel) -> bool) {
        self.lanes.retain(|_, line| {
            line.retain(|label| waits(*label));
            !line.is_empty()
        });
    }
}
