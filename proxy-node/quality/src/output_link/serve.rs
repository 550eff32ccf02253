//! Contexts of flows: they take items of flows, and report the outcomes.

use csp_types::{Duration, Instant};

use super::SharedLink;
use crate::{FlowId, Item};

/// Interval between looks at a path in which a message waits.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// An item that a context has taken.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its flow.
    pub flow: FlowId,
    /// The item.
    pub item: Item,
    /// Whether its processing must be timed.
    pub measures: bool,
}

impl SharedLink {
    pub(super) fn set_contexts(&mut self, contexts: u16, percent: u8) {
        self.slots.set(usize::from(contexts), percent);
        self.percent = percent;
        self.leftovers = contexts == 0 && self.manager.contexts_have_work();
    }

    /// Returns the clock that measures the costs of handlers.
    pub fn clock(&self) -> Option<fn() -> Instant> {
        self.clock
    }

    /// Returns whether messages of paths wait in flows' queues for contexts.
    #[inline]
    pub fn serves(&self) -> bool {
        self.slots.len() > 0 || self.leftovers
    }

    /// Returns the next item that a context is to process now. [`finished`](Self::finished) follows.
    pub fn take(&mut self, now: Instant) -> Option<Work> {
        let count = self.slots.len();
        if count == 0 {
            return self.take_leftover(now);
        }
        for at in 0..count {
            let slot = (self.first_slot + at) % count;
            if !self.slots.is_free(slot, now) {
                continue;
            }
            let Some(taken) = self.manager.take(now, slot as u16) else {
                self.slots.rest(slot);
                continue;
            };
            self.first_slot = (slot + 1) % count;
            let (flow, item) = (taken.flow, taken.item);
            let stated = self.plan_cost(flow, item.bytes);
            self.slots.occupy(slot, flow, stated, now);
            self.current = Some(taken);
            let measures = self.clock.is_some() && self.slots.measures(flow);
            return Some(Work { flow, item, measures });
        }
        None
    }

    /// Returns the worker's time for an item according to the plan, which states time of contexts.
    fn plan_cost(&self, flow: FlowId, bytes: u32) -> Option<Duration> {
        let cost = self.manager.plan().cost(flow)?.of(bytes);
        Some(cost * u32::from(self.percent) / (self.slots.len() as u32 * 100).max(1))
    }

    /// Without contexts: what waited for one when there were some.
    fn take_leftover(&mut self, now: Instant) -> Option<Work> {
        let taken = self.manager.take_any(now)?;
        let (flow, item) = (taken.flow, taken.item);
        self.current = Some(taken);
        Some(Work { flow, item, measures: false })
    }

    /// Puts a message emitted by a path behind the ready messages of its flow. `processed`: by a context of
    /// the flow; if it is the first message of the item, it replaces the item. Returns `false` if there was
    /// no room; the caller then keeps the message.
    pub fn put_ready(&mut self, now: Instant, flow: FlowId, item: Item, processed: bool) -> bool {
        let done = match self.current.take_if(|_| processed) {
            Some(taken) => {
                self.manager.finish_as(now, taken, item.handle, item.bytes);
                true
            }
            // What handlers make of one item has room if the item had.
            None if processed || self.manager.has_room(flow, item.bytes) => {
                self.manager.add_ready(now, flow, item)
            }
            None => false,
        };
        if self.due.is_none_or(|due| due > now) {
            self.due = Some(now);
        }
        done
    }

    /// Records that an item was processed. `time`: its duration, if it was measured. `waits`: the path in
    /// which its message waits.
    pub fn finished(&mut self, now: Instant, work: Work, waits: Option<u16>, time: Option<Duration>) {
        if let Some(taken) = self.current.take() {
            self.manager.finish(now, taken, None);
        }
        if let Some(time) = time {
            self.slots.record(work.flow, time);
        }
        if let Some(path) = waits {
            self.paused.push((work.flow, path));
            self.manager.set_paused(now, work.flow, true);
        }
    }

    /// Resumes flows whose paths have continued. `waits` returns whether a path still waits.
    pub fn resume(&mut self, now: Instant, waits: impl Fn(u16) -> bool) {
        let mut at = 0;
        while let Some((flow, path)) = self.paused.get(at).copied() {
            if waits(path) {
                at += 1;
                continue;
            }
            self.paused.swap_remove(at);
            if !self.paused.iter().any(|(known, _)| *known == flow) {
                self.manager.set_paused(now, flow, false);
            }
        }
        self.leftovers &= self.manager.contexts_have_work() || !self.paused.is_empty();
    }

    /// Returns the next item that no context has processed, for a caller that ends the flows.
    pub(super) fn drain_waiting(&mut self, now: Instant) -> Option<Item> {
        while let Some((flow, _)) = self.paused.pop() {
            self.manager.set_paused(now, flow, false);
        }
        let taken = self.manager.take_any(now)?;
        let item = taken.item;
        self.manager.finish(now, taken, None);
        Some(item)
    }

    /// Returns when a context has something to do.
    pub(super) fn next_context(&self, now: Instant) -> Option<Instant> {
        let work = match self.slots.len() {
            0 => self.manager.contexts_have_work().then_some(now),
            _ => self.slots.next(&self.manager, now),
        };
        let again = (!self.paused.is_empty()).then(|| now + LOOK_AGAIN);
        work.into_iter().chain(again).min()
    }

    /// Publishes the measured costs of handlers on the board. The control thread reads them there and admits
    /// promises accordingly.
    pub(super) fn report_costs(&self) {
        if self.slots.len() == 0 {
            return;
        }
        for (flow, _) in self.manager.table().flows() {
            if let Some(cost) = self.slots.measured(flow) {
                self.board.0.record_cost(flow, cost);
            }
        }
    }
}
