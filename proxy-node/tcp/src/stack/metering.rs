//! Connections that share an output link with others: what they send for the first time is let through piece by piece.

use csp_types::{FlowLabel, FourTuple, Instant};

use crate::list::IndexList;
use crate::output::metering::{Meter, Metering};
use crate::stack::Stack;

impl Stack {
    /// Begins or ends metering of a connection. While it is metered, data is sent for the first time only as far as it was
    /// [allowed](Self::allow); a connection that could send more is reported by [`next_wanting`](Self::next_wanting). Returns
    /// `false` if the label is stale. The first one that is metered allocates the meters of all.
    pub fn set_metered(&mut self, now: Instant, label: FlowLabel, metered: bool) -> bool {
        if metered && self.meters.is_empty() {
            self.meters = vec![Meter::NONE; self.tcbs.len()];
            self.wanting = IndexList::new(self.tcbs.len());
            self.unwanting = Vec::with_capacity(self.tcbs.len());
        }
        self.with(now, label, |tcb, cx| tcb.set_metered(cx, metered)).is_some()
    }

    /// Removes and returns a metered connection that could send more than it is allowed to, and the number of bytes beyond that. It is not
    /// returned again before it was allowed something.
    pub fn next_wanting(&mut self) -> Option<(FlowLabel, FourTuple, u32)> {
        while let Some(slot) = self.wanting.pop_front() {
            let (Some(tcb), Some(meter)) =
                (self.tcbs[slot as usize].as_ref(), self.meters.get_mut(slot as usize))
            else {
                continue;
            };
            if meter.state == Metering::Wants {
                meter.state = Metering::Waits;
                // A window that has closed meanwhile will open again: then a segment can be sent.
                let unsent = tcb.data_end().since(tcb.snd_nxt).clamp(1, tcb.mss().into());
                return Some((tcb.label, tcb.tuple, tcb.wanted(meter.allowance).max(unsent)));
            }
        }
        None
    }

    /// Allows a metered connection to send so many bytes more. Returns `false` if the label is stale.
    pub fn allow(&mut self, now: Instant, label: FlowLabel, bytes: u32) -> bool {
        self.with(now, label, |tcb, cx| tcb.allow(cx, bytes)).is_some()
    }

    /// Lists a connection that wants something.
    pub(super) fn note_wanting(&mut self, slot: u32) {
        if self.meters.get(slot as usize).is_some_and(|meter| meter.state == Metering::Wants) {
            self.wanting.push_back(slot);
        }
    }

    /// Removes and returns a connection that has ended while it waited for what [`next_wanting`](Self::next_wanting) had reported.
    pub fn next_unwanting(&mut self) -> Option<FlowLabel> {
        self.unwanting.pop()
    }

    /// The connection has ended.
    pub(super) fn forget_meter(&mut self, slot: u32, label: FlowLabel) {
        if let Some(meter) = self.meters.get_mut(slot as usize) {
            if meter.state == Metering::Waits {
                self.unwanting.push(label);
            }
            *meter = Meter::NONE;
            self.wanting.remove(slot);
        }
    }
}
