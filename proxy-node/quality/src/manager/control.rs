//! Changes between two items: plans, schemes, priorities, filters.

use std::sync::Arc;

use csp_types::Instant;

use super::watch::Watch;
use super::{Filter, FlowState, QualityConfig, ResourceManager};
use crate::admission::Plan;
use crate::contexts::ContextScheduler;
use crate::flow::{FlowId, PRE_HANDLERS_MAX};
use crate::items::Items;
use crate::link::LinkScheduler;
use crate::places::Places;
use crate::scheme::{Claim, Scheme};
use crate::trigger::Resource;

/// Why a plan cannot be put into force yet, or at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    /// An id has another flow in the new plan, and items of the former flow remain. Try again later.
    #[error("flow {} of the plan in force still has items, and the new plan uses its id for another flow", .0.0)]
    Draining(FlowId),
    /// The plan is for another number of flows: a manager's memory for them is allocated when it is made.
    #[error("the plan is for another number of flows than the resource manager")]
    Size,
}

impl ResourceManager {
    /// A resource manager in which a plan is in force.
    pub fn new(config: QualityConfig, plan: Arc<Plan>, now: Instant) -> Self {
        let (flows, capacity) = (plan.table().capacity(), plan.capacity());
        let contexts = usize::from(capacity.contexts);
        let mut manager = ResourceManager {
            config,
            flows: vec![FlowState::EMPTY; flows],
            items: Items::new(config.items_max as usize),
            places: Places::default(),
            contexts: ContextScheduler::new(contexts, flows),
            link: LinkScheduler::new(capacity.link, flows),
            to_point: vec![capacity.point_every.max(1); contexts + 1],
            has_leftovers: false,
            points: 0,
            watch: Watch::new(config.monitor, flows),
            plan,
        };
        manager.put_into_force(now);
        manager.switch(now, Resource::Contexts, config.contexts);
        manager.switch(now, Resource::Link, config.link);
        manager
    }

    /// Puts another plan into force, as a whole. Items keep their flow; a flow that is gone empties as
    /// before, without promises. Allocates if the number of contexts changes; one without contexts leaves
    /// items that wait for one to [`take_any`](Self::take_any).
    pub fn apply(&mut self, now: Instant, plan: Arc<Plan>) -> Result<(), ApplyError> {
        let (new, old) = (plan.table(), self.plan.table());
        if new.capacity() != self.flows.len() {
            return Err(ApplyError::Size);
        }
        for (id, spec) in new.flows() {
            let other = old.flow(id).is_none_or(|known| known.name != spec.name);
            if other && self.flows[id.index()].queue.items() > 0 {
                return Err(ApplyError::Draining(id));
            }
        }
        if plan.capacity().contexts != self.plan.capacity().contexts {
            let contexts = usize::from(plan.capacity().contexts);
            self.contexts.resize(contexts);
            self.to_point = vec![plan.capacity().point_every.max(1); contexts + 1];
        }
        self.plan = plan;
        self.put_into_force(now);
        Ok(())
    }

    fn put_into_force(&mut self, now: Instant) {
        let plan = Arc::clone(&self.plan);
        self.link.set_capacity(plan.capacity().link.bits_per_second, now);
        self.link.set_quantum(plan.capacity().link.quantum);
        let own = self.places.divide(self.config.items_max, plan.table().flows().count() as u32);
        for at in 0..self.flows.len() as u16 {
            let id = FlowId(at);
            let (held, state) = (plan.held_of(id), &mut self.flows[id.index()]);
            (state.present, state.places) = (false, 0);
            if let Some(spec) = plan.table().flow(id) {
                (state.bounds, state.overflow) = (spec.bounds, spec.overflow);
                (state.has_handler, state.bytes_max) = (spec.post.is_some(), spec.item.bytes_max);
                (state.present, state.places) = (true, own);
                let filters = spec.pre.iter().filter_map(|name| Filter::parse(name)).map(Some);
                state.filters = [None; PRE_HANDLERS_MAX];
                state.filters.iter_mut().zip(filters).for_each(|(to, filter)| *to = filter);
                self.watch.set_priority(id, spec.priority);
                self.contexts.set_priority(at, spec.priority);
                self.link.set_priority(at, spec.priority);
            }
            (0..state.queue.items()).for_each(|items| self.places.add(state.places, items));
            self.contexts.set_rate(at, held.clock, now);
            self.link.set_promise(at, held.clock, now);
            if state.present {
                self.link.set_share(at, held.equal_or_allotted(self.link.scheme()), now);
            }
        }
        self.assign(self.contexts.scheme(), now);
        self.reinstall();
    }

    /// Switches a scheme between two items. Nothing is lost or reordered: queues stay as they are.
    pub fn switch(&mut self, now: Instant, resource: Resource, scheme: Scheme) {
        match resource {
            Resource::Contexts => self.assign(scheme, now),
            Resource::Link => {
                let before = self.link.scheme();
                if scheme != before && (scheme.is_static() || before.is_static()) {
                    for at in 0..self.flows.len() as u16 {
                        let share = self.plan.held_of(FlowId(at)).equal_or_allotted(scheme);
                        if !share.is_none() {
                            self.link.set_share(at, share, now);
                        }
                    }
                }
                self.link.set_scheme(scheme, now);
            }
        }
    }

    /// Gives contexts their duties. Under EAS and SA what remains of flows without claim needs one until it
    /// is empty.
    fn assign(&mut self, scheme: Scheme, now: Instant) {
        let mut leftovers = Vec::new();
        let looks = scheme.is_static() || self.has_leftovers;
        for (flow, state) in (0u16..).zip(&mut self.flows).filter(|_| looks) {
            let unfinished = state.queue.is_unfinished() && !(state.present && state.has_handler);
            state.leftover = unfinished && scheme.is_static();
            if state.leftover {
                leftovers.push(Claim { flow, priority: 0, contexts: 0 });
            }
        }
        self.has_leftovers = !leftovers.is_empty();
        self.contexts.set_scheme(scheme, &self.plan.duties(scheme, &leftovers), now);
    }

    /// Under EAS and SA a flow that the plan gives no context needs one while it has something for it.
    #[inline]
    pub(super) fn assign_if_unclaimed(&mut self, flow: FlowId, now: Instant) {
        let state = &self.flows[flow.index()];
        let scheme = self.contexts.scheme();
        if !state.has_handler && !state.leftover && scheme.is_static() {
            self.assign(scheme, now);
        }
    }

    /// What the plan gives no context to any more needs none once it is empty.
    pub(super) fn end_if_empty(&mut self, flow: FlowId, now: Instant) {
        let state = &self.flows[flow.index()];
        if state.leftover && !state.queue.is_unfinished() {
            self.assign(self.contexts.scheme(), now);
        }
    }

    /// Changes a flow's priority until the next plan.
    pub fn set_priority(&mut self, flow: FlowId, priority: u8) {
        if flow.index() < self.flows.len() {
            self.contexts.set_priority(flow.0, priority);
            self.link.set_priority(flow.0, priority);
            self.watch.set_priority(flow, priority);
        }
    }

    /// Changes the link's capacity, as workers divide it anew. Promises were checked against the plan's.
    pub fn set_capacity(&mut self, bits_per_second: u64, now: Instant) {
        self.link.set_capacity(bits_per_second, now);
    }

    pub(super) fn has_filter(&self, flow: FlowId, filter: Filter) -> bool {
        self.flows.get(flow.index()).is_some_and(|state| state.filters.contains(&Some(filter)))
    }

    /// Puts a filter before a flow's queue; returns whether there was a place.
    pub fn install(&mut self, flow: FlowId, filter: Filter) -> bool {
        let Some(state) = self.flows.get_mut(flow.index()) else { return false };
        if state.filters.contains(&Some(filter)) {
            return true;
        }
        state.filters.iter_mut().find(|place| place.is_none()).map(|place| *place = Some(filter)).is_some()
    }

    /// Removes a filter before a flow's queue.
    pub fn remove(&mut self, flow: FlowId, filter: Filter) {
        if let Some(state) = self.flows.get_mut(flow.index()) {
            state.filters.iter_mut().filter(|place| **place == Some(filter)).for_each(|place| *place = None);
        }
    }
}
