//! Flows whose DATA found no descriptor on their lane: they wait in line and are not looked at until the lane has room.

use std::collections::{BTreeMap, VecDeque};

use csp_types::FlowLabel;

use crate::Lane;

/// The lines, by lane. In order of the lanes, so that equal runs do equal things.
#[derive(Debug, Default)]
pub(super) struct Parked {
    lanes: BTreeMap<Lane, VecDeque<FlowLabel>>,
}

impl Parked {
    /// Puts a flow at the end of its lane's line.
    pub(super) fn park(&mut self, lane: Lane, label: FlowLabel) {
        self.lanes.entry(lane).or_default().push_back(label);
    }

    /// Whether flows wait for a lane; others must not overtake them.
    pub(super) fn waits(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Flows that wait.
    pub(super) fn len(&self) -> usize {
        self.lanes.values().map(VecDeque::len).sum()
    }

    /// The next flow of a lane that is `ready`.
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

    /// Takes out flows that do not `wait` any more; for when a lane is gone.
    pub(super) fn remove_stale(&mut self, waits: impl Fn(FlowLabel) -> bool) {
        self.lanes.retain(|_, line| {
            line.retain(|label| waits(*label));
            !line.is_empty()
        });
    }
}
