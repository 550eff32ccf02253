//! Contexts as slots of a worker's time: when each is free again, and the costs of flows.
//!
//! ```text
//!   take ─▶ [slot 0: occupied for cost · slots · 100 / percent]    each slot has its part of the worker's time,
//!           [slot 1]                                               whether others use theirs or not
//! ```
//! A worker is one thread: it processes an item at once and then leaves its slot alone for as long as the
//! item would have taken a context with that part of the worker's time. So a slot that is allotted to a flow
//! without items stays idle, as a context of the paper does (IQ, §3.2).

use csp_types::{Duration, Instant};

use crate::{FlowId, ResourceManager};

/// Largest delay of a worker, for a slot with work, at which the slot loses no time.
const LATE_MAX: Duration = Duration::from_millis(10);
/// Every `MEASURE_EVERY`th item of a flow is timed.
const MEASURE_EVERY: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    free_at: Instant,
    /// The slot had no work when it was last free.
    idle: bool,
}

/// Measured cost of a flow's items.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    measured: u32,
    /// Time of these.
    time: Duration,
    to_measure: u32,
    /// Time of slots that its items have occupied.
    occupied: Duration,
}

/// The slots of a worker.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Part of the worker's time that all slots have together, in percent.
    percent: u32,
    costs: Vec<Cost>,
}

impl Slots {
    pub fn new(slots: usize, percent: u8, flows: usize) -> Self {
        let mut made = Slots { slots: Vec::new(), percent: 100, costs: vec![Cost::default(); flows] };
        made.set(slots, percent);
        made
    }

    /// Changes the number of slots and their part of the worker. Those that stay keep their state.
    pub fn set(&mut self, slots: usize, percent: u8) {
        self.slots.resize(slots, Slot { free_at: Instant::ZERO, idle: true });
        self.percent = u32::from(percent).clamp(1, 100);
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether a slot is free.
    #[inline]
    pub fn is_free(&self, slot: usize, now: Instant) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.free_at <= now)
    }

    /// A free slot has nothing to do.
    pub fn rest(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.idle = true;
        }
    }

    /// Occupies a slot with an item that takes the worker `cost`; `None`: the measured cost of the flow's
    /// items.
    pub fn occupy(&mut self, slot: usize, flow: FlowId, cost: Option<Duration>, now: Instant) {
        let cost = cost.unwrap_or_else(|| self.measured(flow).unwrap_or_default());
        let count = self.slots.len() as u32;
        let Some(slot) = self.slots.get_mut(slot) else { return };
        let occupied = cost * (count * 100) / self.percent;
        let late = Instant::from_nanos(now.as_nanos().saturating_sub(LATE_MAX.as_nanos() as u64));
        let from = if slot.idle { now } else { slot.free_at.max(late) };
        *slot = Slot { free_at: from + occupied, idle: false };
        if let Some(known) = self.costs.get_mut(usize::from(flow.0)) {
            known.occupied += occupied;
        }
    }

    /// Returns whether the next item of a flow must be timed.
    pub fn measures(&mut self, flow: FlowId) -> bool {
        let Some(cost) = self.costs.get_mut(usize::from(flow.0)) else { return false };
        let due = cost.to_measure == 0;
        cost.to_measure = if due { MEASURE_EVERY - 1 } else { cost.to_measure - 1 };
        due
    }

    /// Records the time of an item of a flow. The weight of earlier measurements decays.
    pub fn record(&mut self, flow: FlowId, time: Duration) {
        let Some(cost) = self.costs.get_mut(usize::from(flow.0)) else { return };
        if cost.measured == 1 << 10 {
            (cost.measured, cost.time) = (cost.measured / 2, cost.time / 2);
        }
        (cost.measured, cost.time) = (cost.measured + 1, cost.time + time);
    }

    /// Returns the mean time of the flow's items.
    pub fn measured(&self, flow: FlowId) -> Option<Duration> {
        let cost = self.costs.get(usize::from(flow.0))?;
        cost.time.checked_div(cost.measured)
    }

    /// Returns for how long items of a flow have occupied slots.
    pub fn occupied(&self, flow: FlowId) -> Duration {
        self.costs.get(usize::from(flow.0)).map_or(Duration::ZERO, |cost| cost.occupied)
    }

    /// Returns when a slot that has something to do is free.
    pub fn next(&self, manager: &ResourceManager, now: Instant) -> Option<Instant> {
        let slots = (0u16..).zip(&self.slots).filter(|(context, _)| manager.has_work_for(*context));
        slots.map(|(_, slot)| slot.free_at.max(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowId = FlowId(1);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + micros * 1_000)
    }

    #[test]
    fn a_slot_has_its_part_of_the_worker_whatever_others_do() {
        let mut slots = Slots::new(4, 50, 2);
        // 4 slots in half the time: 10 us of the worker are 80 us of a slot.
        slots.occupy(0, FLOW, Some(Duration::from_micros(10)), at(0));
        assert!(!slots.is_free(0, at(79)) && slots.is_free(0, at(80)) && slots.is_free(1, at(0)));
        // The worker is late: the slot has not lost the time.
        slots.occupy(0, FLOW, Some(Duration::from_micros(10)), at(100));
        assert!(slots.is_free(0, at(160)));
        slots.rest(0);
        slots.occupy(0, FLOW, Some(Duration::from_micros(10)), at(500));
        assert!(!slots.is_free(0, at(579)), "an idle slot gains no credit");
        // Nor does one whose worker was away for long.
        slots.occupy(0, FLOW, Some(Duration::from_micros(10)), at(1_000_000));
        assert!(slots.is_free(0, at(1_000_000)) && slots.is_free(0, at(990_080)));
        assert!(!slots.is_free(0, at(990_079)));
        assert_eq!(slots.occupied(FLOW), Duration::from_micros(320));
    }

    #[test]
    fn a_flow_without_a_stated_cost_costs_what_was_measured() {
        let mut slots = Slots::new(1, 100, 2);
        assert!(slots.measures(FLOW) && !slots.measures(FLOW) && slots.measured(FLOW).is_none());
        (0..5_000).for_each(|_| slots.record(FLOW, Duration::from_micros(10)));
        (0..5_000).for_each(|_| slots.record(FLOW, Duration::from_micros(30)));
        assert!(slots.measured(FLOW).unwrap() > Duration::from_micros(29));
        slots.occupy(0, FLOW, None, at(0));
        assert!(!slots.is_free(0, at(29)) && slots.is_free(0, at(30)));
    }
}
