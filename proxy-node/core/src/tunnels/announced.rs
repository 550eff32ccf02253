//! The network node that each label was announced to last, so that FLOW_END can be sent to the previous one.

use csp_types::FlowLabel;

/// One entry for each label index of this worker's share.
#[derive(Debug)]
pub(crate) struct Announced {
    first_index: usize,
    slots: Box<[(FlowLabel, u32)]>,
}

impl Announced {
    /// Creates a table for `capacity` label indices from `first_index` on.
    pub(crate) fn new(first_index: u32, capacity: usize) -> Self {
        let slots = vec![(FlowLabel::NONE, 0); capacity].into_boxed_slice();
        Announced { first_index: first_index as usize, slots }
    }

    /// Records that `label` is announced to node `via`. Returns the node that this label was announced to
    /// before, if it is another one.
    pub(crate) fn record(&mut self, label: FlowLabel, via: u32) -> Option<u32> {
        let at = label.index().checked_sub(self.first_index)?;
        let (known, before) = std::mem::replace(self.slots.get_mut(at)?, (label, via));
        (known == label && before != via).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_node_is_returned_once_and_only_for_the_same_connection() {
        let mut announced = Announced::new(1, 4);
        let (old, new) = (FlowLabel::new(2, 0), FlowLabel::new(2, 1));
        assert_eq!(announced.record(old, 1), None);
        assert_eq!(announced.record(old, 1), None);
        assert_eq!(announced.record(old, 2), Some(1));
        assert_eq!(announced.record(new, 3), None, "another generation is another connection");
    }
}
