//! The resource manager: queues of all flows between contexts and the output link.

mod control;
mod serve;
mod watch;

pub use control::ApplyError;

use std::sync::Arc;

use csp_types::{Duration, Instant};

use crate::admission::Plan;
use crate::contexts::ContextScheduler;
use crate::flow::{FlowId, Overflow, PRE_HANDLERS_MAX, QueueBounds};
use crate::items::{Entry, Item, Items, Queue};
use crate::link::LinkScheduler;
use crate::monitor::{FlowCounters, MonitorConfig};
use crate::places::Places;
use crate::scheme::Scheme;
use crate::table::FlowTable;
use watch::Watch;

/// Bounds and initial state of a resource manager. What there is to give, its [`Capacity`](crate::Capacity),
/// comes with the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QualityConfig {
    /// Data items of all flows. Half of them are divided among flows, so that none can take all places.
    pub items_max: u32,
    /// Bytes of a flow that may be ready for the link before contexts stop working for it. At least the
    /// longest item has room.
    pub ready_bytes_max: u64,
    /// Scheme of contexts.
    pub contexts: Scheme,
    /// Scheme of the link.
    pub link: Scheme,
    /// What is monitored.
    pub monitor: MonitorConfig,
}

impl Default for QualityConfig {
    fn default() -> Self {
        QualityConfig {
            items_max: 65_536,
            ready_bytes_max: 64 * 1024,
            contexts: Scheme::RoundRobin,
            link: Scheme::RoundRobin,
            monitor: MonitorConfig::default(),
        }
    }
}

/// A handler before a queue that the resource manager runs itself. It is named as its text says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// `drop`: nothing passes.
    Drop,
    /// `drop-when-full`: items pass as long as the queue has room, whatever the flow's overflow action is.
    DropWhenFull,
    /// `sample-N`: one in N passes.
    Sample(u16),
}

impl Filter {
    /// Returns the filter of a name; `None` for handlers that are the owner's to run.
    pub fn parse(name: &str) -> Option<Filter> {
        match name {
            "drop" => Some(Filter::Drop),
            "drop-when-full" => Some(Filter::DropWhenFull),
            _ => name.strip_prefix("sample-")?.parse().ok().filter(|n| *n > 0).map(Filter::Sample),
        }
    }
}

/// What has become of an item that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "what was not queued is still the caller's"]
pub enum Offered {
    /// It is queued.
    Queued,
    /// It is not queued, and its sender is to be held back until the flow has room.
    Held,
    /// It is dropped, by a handler before the queue or because the queue is full, and counted.
    Dropped,
}

/// An item that a context processes. [`ResourceManager::finish`] takes it back.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "pass it to ResourceManager::finish"]
pub struct Taken {
    /// Its flow.
    pub flow: FlowId,
    /// The item.
    pub item: Item,
    place: u32,
}

/// An item that enters the transmitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// Its flow.
    pub flow: FlowId,
    /// The item, as long as its handler has left it.
    pub item: Item,
    /// Time since it arrived.
    pub delay: Duration,
}

#[derive(Clone, Debug)]
struct FlowState {
    queue: Queue,
    bounds: QueueBounds,
    overflow: Overflow,
    has_handler: bool,
    /// The plan has the flow; otherwise it empties.
    present: bool,
    /// It has no claim to contexts, but items that they must process.
    leftover: bool,
    /// Its transmitter takes nothing.
    blocked: bool,
    /// Contexts leave it alone: what one has begun is not done.
    paused: bool,
    bytes_max: u32,
    /// Places of the table of items that no other flow can take.
    places: u32,
    filters: [Option<Filter>; PRE_HANDLERS_MAX],
    sampled: u16,
    counters: FlowCounters,
}

/// Divides contexts and an output link among flows.
#[derive(Debug)]
pub struct ResourceManager {
    config: QualityConfig,
    plan: Arc<Plan>,
    flows: Vec<FlowState>,
    items: Items,
    places: Places,
    contexts: ContextScheduler,
    link: LinkScheduler,
    /// Items until the next resource-management point, by context; the last is the link's.
    to_point: Vec<u32>,
    /// Flows without claim to contexts have items that contexts must process.
    has_leftovers: bool,
    points: u64,
    watch: Watch,
}

impl ResourceManager {
    /// Puts a flow's items in the charge of the flow if the plan has it, else of the default flow.
    fn charge_of(&self, flow: FlowId) -> FlowId {
        let known = self.flows.get(flow.index()).is_some_and(|state| state.present);
        if known { flow } else { FlowId::DEFAULT }
    }

    /// Offers an item of a flow. With [`Overflow::DropOldest`], `evicted` receives the items that make room.
    pub fn offer(&mut self, now: Instant, flow: FlowId, item: Item, evicted: impl FnMut(Item)) -> Offered {
        let processed = !self.flows[self.charge_of(flow).index()].has_handler;
        self.offer_item(now, flow, item, processed, evicted)
    }

    /// The same for an owner that knows of each item whether a context is to process it. One that is
    /// `processed` goes to the link, behind what contexts still have of its flow.
    pub fn offer_item(
        &mut self,
        now: Instant,
        flow: FlowId,
        item: Item,
        processed: bool,
        evicted: impl FnMut(Item),
    ) -> Offered {
        let flow = self.charge_of(flow);
        let state = &mut self.flows[flow.index()];
        let full = !state.has_room(item.bytes) || !has_place(state, &self.places, &self.items);
        if !state.passes(full) {
            state.count(&item);
            state.counters.filtered += 1;
            self.watch.arrived(flow, &item, now);
            // What a trigger's filter drops may be all that there is: the trigger must see that it is to be
            // released.
            self.look_if_due(now);
            return Offered::Dropped;
        }
        // What follows items that contexts still have, stays behind them.
        let entry = match !processed || state.queue.is_unfinished() {
            true => Entry::Waiting,
            false => Entry::Ready,
        };
        self.offer_to(now, flow, (item, entry), processed, evicted)
    }

    /// The same past the filters before the queue, for items that stay with their owner when they are not
    /// queued. No context ever processes them, and they have no order with items of their flow that contexts
    /// still have. [`is_shut`](Self::is_shut) is false.
    pub fn offer_ready(
        &mut self,
        now: Instant,
        flow: FlowId,
        item: Item,
        evicted: impl FnMut(Item),
    ) -> Offered {
        self.offer_to(now, self.charge_of(flow), (item, Entry::Ready), true, evicted)
    }

    #[inline]
    fn offer_to(
        &mut self,
        now: Instant,
        flow: FlowId,
        (item, entry): (Item, Entry),
        processed: bool,
        mut evicted: impl FnMut(Item),
    ) -> Offered {
        let state = &mut self.flows[flow.index()];
        while !state.has_room(item.bytes) || !has_place(state, &self.places, &self.items) {
            state.counters.table_full += u64::from(state.has_room(item.bytes));
            match state.overflow {
                Overflow::Hold => {
                    state.counters.held += 1;
                    return Offered::Held;
                }
                Overflow::DropOldest => {
                    let before = state.queue.items();
                    if let Some(oldest) = self.items.evict(&mut state.queue) {
                        self.places.remove(state.places, before, before - 1);
                        state.counters.dropped_oldest += 1;
                        evicted(oldest);
                        continue;
                    }
                }
                Overflow::DropNewest => {}
            }
            state.count(&item);
            state.counters.dropped_newest += 1;
            self.watch.arrived(flow, &item, now);
            self.refresh(flow, now);
            return Offered::Dropped;
        }
        state.count(&item);
        state.counters.oversized += u64::from(item.bytes > state.bytes_max);
        self.places.add(state.places, state.queue.items());
        self.items.push(&mut state.queue, entry, item);
        self.watch.arrived(flow, &item, now);
        self.refresh(flow, now);
        if !processed {
            self.assign_if_unclaimed(flow, now);
        }
        self.look_if_due(now);
        Offered::Queued
    }

    /// Returns whether nothing of a flow passes the filters before its queue.
    pub fn is_shut(&self, flow: FlowId) -> bool {
        self.flows[self.charge_of(flow).index()].filters.contains(&Some(Filter::Drop))
    }

    /// Looks at triggers if that is due: for an owner whose items wait and are not offered.
    pub fn notice(&mut self, now: Instant) {
        self.look_if_due(now);
    }

    /// Returns the next item that enters the transmitter; `None` if enough is unsent or nothing is ready.
    pub fn release(&mut self, now: Instant) -> Option<Released> {
        self.release_live(now, |_| true)
    }

    /// The same for an owner whose items may have ended while they waited: those that do not live cost the
    /// link nothing, and count as absorbed.
    pub fn release_live(&mut self, now: Instant, live: impl Fn(&Item) -> bool) -> Option<Released> {
        let (choice, item) = loop {
            let choice = self.link.next(now)?;
            let state = &mut self.flows[usize::from(choice.flow)];
            let item = self.items.pop_ready(&mut state.queue)?;
            self.places.remove(state.places, state.queue.items() + 1, state.queue.items());
            if live(&item) {
                break (choice, item);
            }
            state.counters.absorbed += 1;
            self.refresh(FlowId(choice.flow), now);
        };
        let flow = FlowId(choice.flow);
        let state = &mut self.flows[flow.index()];
        state.counters.released += 1;
        state.counters.released_bytes += u64::from(item.bytes);
        let emptied = state.queue.items() == 0;
        self.link.charge(choice, item.bytes, now);
        let delay = now.saturating_since(item.arrived);
        self.watch.left(flow, &item, delay, emptied, now);
        self.refresh(flow, now);
        if self.is_point(self.to_point.len() - 1) {
            self.look(now);
        } else {
            self.look_if_due(now);
        }
        Some(Released { flow, item, delay })
    }

    /// Removes an item that is ready, of a flow that is not blocked, whatever the link has: for an owner that
    /// ends the resource manager. A flow's items keep their order.
    pub fn drain(&mut self, now: Instant) -> Option<Released> {
        let flow = FlowId(self.link.any()?);
        let state = &mut self.flows[flow.index()];
        let item = self.items.pop_ready(&mut state.queue)?;
        self.places.remove(state.places, state.queue.items() + 1, state.queue.items());
        state.counters.released += 1;
        state.counters.released_bytes += u64::from(item.bytes);
        self.refresh(flow, now);
        Some(Released { flow, item, delay: now.saturating_since(item.arrived) })
    }

    /// Returns what becomes of items of a flow that has no room.
    pub fn overflow(&self, flow: FlowId) -> Overflow {
        self.flows[self.charge_of(flow).index()].overflow
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns when [`release`](Self::release) may return an item; `None` if nothing is ready. Not before
    /// `now`.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        self.link.next_release(now)
    }

    /// Records whether a flow's transmitter takes anything: its items wait while it does not, and its promise
    /// does not run.
    pub fn set_blocked(&mut self, now: Instant, flow: FlowId, blocked: bool) {
        if let Some(state) = self.flows.get_mut(flow.index()) {
            state.blocked = blocked;
            self.refresh(flow, now);
        }
    }

    /// Reports to the schedulers what a flow has.
    #[inline]
    fn refresh(&mut self, flow: FlowId, now: Instant) {
        let state = &self.flows[flow.index()];
        let open = !state.blocked;
        let ready_max = self.config.ready_bytes_max;
        let work =
            open && !state.paused && state.queue.has_waiting() && state.queue.ready_bytes() < ready_max;
        let ready = open && state.queue.has_ready();
        self.contexts.set_active(flow.0, work, now);
        self.link.set_active(flow.0, ready, now);
    }

    /// Counts an item of a context; returns whether its resource-management point is due.
    #[inline]
    fn is_point(&mut self, at: usize) -> bool {
        let Some(left) = self.to_point.get_mut(at) else { return false };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        *left = self.plan.capacity().point_every.max(1);
        self.points += 1;
        true
    }

    /// Returns the table of flows in force.
    pub fn table(&self) -> &FlowTable {
        self.plan.table()
    }

    /// Returns whether a flow has room for an item of `bytes`.
    pub fn has_room(&self, flow: FlowId, bytes: u32) -> bool {
        let state = &self.flows[self.charge_of(flow).index()];
        !self.items.is_full() && self.places.has(state.places, state.queue.items()) && state.has_room(bytes)
    }

    /// Returns the items of a flow that wait, are processed or are ready, and their bytes.
    pub fn queued(&self, flow: FlowId) -> (u32, u64) {
        self.flows.get(flow.index()).map_or((0, 0), |state| (state.queue.items(), state.queue.bytes()))
    }

    /// Returns the items of all flows.
    pub fn items(&self) -> usize {
        self.items.used()
    }

    /// Returns what has become of a flow's items.
    pub fn counters(&self, flow: FlowId) -> FlowCounters {
        self.flows.get(flow.index()).map(|state| state.counters).unwrap_or_default()
    }

    /// Returns whether a context or the link has work.
    pub fn has_work(&self) -> bool {
        self.contexts.has_work() || self.link.has_work()
    }

    /// Returns the number of resource-management points so far.
    pub fn points(&self) -> u64 {
        self.points
    }

    /// Returns how many released bytes are unsent.
    pub fn unsent(&self, now: Instant) -> u64 {
        self.link.unsent(now)
    }

    /// Returns when everything released will have been sent.
    pub fn sent_at(&self) -> Instant {
        self.link.sent_at()
    }

    /// Returns the schemes of contexts and link.
    pub fn schemes(&self) -> (Scheme, Scheme) {
        (self.contexts.scheme(), self.link.scheme())
    }
}

/// Returns whether the table of items has a place for a flow.
#[inline]
fn has_place(state: &FlowState, places: &Places, items: &Items) -> bool {
    places.has(state.places, state.queue.items()) && !items.is_full()
}

impl FlowState {
    const EMPTY: FlowState = FlowState {
        queue: Queue::EMPTY,
        bounds: QueueBounds { items: 1, bytes: 1 },
        overflow: Overflow::DropNewest,
        has_handler: false,
        present: false,
        leftover: false,
        blocked: false,
        paused: false,
        bytes_max: 0,
        places: 0,
        filters: [None; PRE_HANDLERS_MAX],
        sampled: 0,
        counters: FlowCounters {
            offered: 0,
            offered_bytes: 0,
            released: 0,
            released_bytes: 0,
            filtered: 0,
            absorbed: 0,
            taken: 0,
            made: 0,
            dropped_newest: 0,
            dropped_oldest: 0,
            held: 0,
            table_full: 0,
            oversized: 0,
        },
    };

    #[inline]
    fn count(&mut self, item: &Item) {
        self.counters.offered += 1;
        self.counters.offered_bytes += u64::from(item.bytes);
    }

    #[inline]
    fn has_room(&self, bytes: u32) -> bool {
        let (items, queued) = (self.queue.items(), self.queue.bytes());
        items == 0 || (items < self.bounds.items && queued + u64::from(bytes) <= self.bounds.bytes)
    }

    /// Returns whether an item passes the filters before the queue.
    #[inline]
    fn passes(&mut self, full: bool) -> bool {
        let sampled = &mut self.sampled;
        self.filters.iter().flatten().all(|filter| match filter {
            Filter::Drop => false,
            Filter::DropWhenFull => !full,
            Filter::Sample(n) => {
                *sampled = (*sampled + 1) % n;
                *sampled == 1 % n
            }
        })
    }
}
