//! Contexts: items are taken, processed by their owner, and come back as what handlers have left of them.

use csp_types::Instant;

use super::{ResourceManager, Taken};
use crate::flow::FlowId;
use crate::items::{Entry, Item};

impl ResourceManager {
    /// Returns the next item for a context; `None` if there is none for it.
    pub fn take(&mut self, now: Instant, context: u16) -> Option<Taken> {
        let Some(choice) = self.contexts.next(context, now) else {
            // A context that has nothing to do is between two items.
            self.contexts.point(context);
            return None;
        };
        let state = &mut self.flows[usize::from(choice.flow)];
        let (place, item) = self.items.take(&mut state.queue)?;
        state.counters.taken += 1;
        self.contexts.charge(context, choice, item.bytes, now);
        let flow = FlowId(choice.flow);
        self.refresh(flow, now);
        if self.is_point(usize::from(context)) {
            self.contexts.point(context);
            self.look(now);
        } else {
            self.look_if_due(now);
        }
        Some(Taken { flow, item, place })
    }

    /// Returns the next item that any context could process, whatever the scheme gives to whom: for an owner
    /// without contexts.
    pub fn take_any(&mut self, now: Instant) -> Option<Taken> {
        let flow = FlowId(self.contexts.any()?);
        let state = &mut self.flows[flow.index()];
        let (place, item) = self.items.take(&mut state.queue)?;
        state.counters.taken += 1;
        self.refresh(flow, now);
        Some(Taken { flow, item, place })
    }

    /// Ends the processing of an item, of which `bytes` are left, or nothing if the handler let nothing pass.
    pub fn finish(&mut self, now: Instant, taken: Taken, bytes: Option<u32>) {
        let state = &mut self.flows[taken.flow.index()];
        state.counters.absorbed += u64::from(bytes.is_none());
        let before = state.queue.items();
        self.items.finish(&mut state.queue, taken.place, bytes);
        self.places.remove(state.places, before, state.queue.items());
        self.refresh(taken.flow, now);
        self.end_if_empty(taken.flow, now);
    }

    /// Ends the processing of an item, for which the handler has left `bytes` under another handle.
    pub fn finish_as(&mut self, now: Instant, taken: Taken, handle: u64, bytes: u32) {
        self.items.rename(taken.place, handle);
        self.finish(now, taken, Some(bytes));
    }

    /// Adds an item that handlers have made beside what they took: it goes to the link, behind what is ready
    /// of its flow. Returns false if the table of items has no place for it; it is then counted as dropped.
    #[must_use = "what was not added is still the caller's"]
    pub fn add_ready(&mut self, now: Instant, flow: FlowId, item: Item) -> bool {
        let flow = self.charge_of(flow);
        let state = &mut self.flows[flow.index()];
        state.counters.made += 1;
        if !self.places.has(state.places, state.queue.items()) || self.items.is_full() {
            state.counters.table_full += 1;
            state.counters.dropped_newest += 1;
            return false;
        }
        state.counters.oversized += u64::from(item.bytes > state.bytes_max);
        self.places.add(state.places, state.queue.items());
        self.items.push(&mut state.queue, Entry::Ready, item);
        self.refresh(flow, now);
        true
    }

    /// Records whether contexts leave a flow alone, because what one of them has begun is not done. What is
    /// ready of it goes on.
    pub fn set_paused(&mut self, now: Instant, flow: FlowId, paused: bool) {
        if let Some(state) = self.flows.get_mut(flow.index()) {
            state.paused = paused;
            self.refresh(flow, now);
        }
    }

    /// Returns whether a context has an item to process, by its duty.
    pub fn has_work_for(&self, context: u16) -> bool {
        self.contexts.has_work_for(context)
    }

    /// Returns whether items of any flow wait for a context.
    pub fn contexts_have_work(&self) -> bool {
        self.contexts.has_work()
    }

    /// Returns whether contexts have items of a flow to process, or are processing some.
    pub fn is_unfinished(&self, flow: FlowId) -> bool {
        self.flows.get(flow.index()).is_some_and(|state| state.queue.is_unfinished())
    }

    /// Returns the bytes of a flow that are ready for the link.
    pub fn ready_bytes(&self, flow: FlowId) -> u64 {
        self.flows.get(flow.index()).map_or(0, |state| state.queue.ready_bytes())
    }
}
