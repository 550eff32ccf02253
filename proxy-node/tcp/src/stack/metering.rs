//! Metered connections, which share an output link with others: new data is sent only as far as the caller
//! allows.

use csp_types::{FlowLabel, FourTuple, Instant};

use crate::list::IndexList;
use crate::output::metering::{Meter, Metering};
use crate::stack::Stack;

impl Stack {
    /// Starts or stops metering a connection. A metered connection sends new data only as far as it was
    /// [allowed](Self::allow); one that could send more is returned by [`next_wanting`](Self::next_wanting).
    /// Returns `false` if the label is stale. The first metered connection causes the meters of all
    /// connections to be allocated.
    pub fn set_metered(&mut self, now: Instant, label: FlowLabel, metered: bool) -> bool {
        if metered && self.meters.is_empty() {
            self.meters = vec![Meter::NONE; self.tcbs.len()];
            self.wanting = IndexList::new(self.tcbs.len());
            self.withdrawn = Vec::with_capacity(self.tcbs.len());
        }
        self.with(now, label, |tcb, cx| tcb.set_metered(cx, metered)).is_some()
    }

    /// Removes and returns a metered connection that could send more than its allowance, with the number of
    /// bytes by which it could exceed it. The connection is not returned again until its allowance is
    /// increased.
    pub fn next_wanting(&mut self) -> Option<(FlowLabel, FourTuple, u32)> {
        while let Some(slot) = self.wanting.pop_front() {
            let (Some(tcb), Some(meter)) =
                (self.tcbs[slot as usize].as_ref(), self.meters.get_mut(slot as usize))
            else {
                continue;
            };
            if meter.state == Metering::Wants {
                meter.state = Metering::Waits;
                // A window that has closed meanwhile will reopen, and a segment can then be sent.
                let unsent = tcb.data_end().since(tcb.snd_nxt).clamp(1, tcb.mss().into());
                return Some((tcb.label, tcb.tuple, tcb.wanted(meter.allowance).max(unsent)));
            }
        }
        None
    }

    /// Increases the allowance of a metered connection by `bytes`. Returns `false` if the label is stale.
    pub fn allow(&mut self, now: Instant, label: FlowLabel, bytes: u32) -> bool {
        self.with(now, label, |tcb, cx| tcb.allow(cx, bytes)).is_some()
    }

    /// Adds a connection to the list of those that could send more than their allowance.
    pub(super) fn note_wanting(&mut self, slot: u32) {
        if self.meters.get(slot as usize).is_some_and(|meter| meter.state == Metering::Wants) {
            self.wanting.push_back(slot);
        }
    }

    /// Removes and returns a connection that ended after [`next_wanting`](Self::next_wanting) had returned it
    /// and before it was allowed more.
    pub fn next_withdrawn(&mut self) -> Option<FlowLabel> {
        self.withdrawn.pop()
    }

    /// Resets the meter of a connection that has ended.
    pub(super) fn forget_meter(&mut self, slot: u32, label: FlowLabel) {
        if let Some(meter) = self.meters.get_mut(slot as usize) {
            if meter.state == Metering::Waits {
                self.withdrawn.push(label);
            }
            *meter = Meter::NONE;
            self.wanting.remove(slot);
        }
    }
}
