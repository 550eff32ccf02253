//! Messages that wait for the output link, by information flow: the connection to the resource manager.
//!
//! ```text
//!   publish ─▶ [flow's queue ─ take ─▶ context: the channel's path ─▶ ready] ─ release ─▶ receivers' queues ─▶ connections
//!                                       end of a path without contexts ─▲
//! ```
//! With contexts, messages of a channel with a path wait in their flow's queue until the scheme gives the
//! flow a context, and again, processed, until it gives it the link. Without contexts a message passes its
//! path first, and is then offered to its flow.
//!
//! A data item is a message with all its copies for receivers that the link carries; it has the bytes of all
//! of them. The manager knows its length and its place in the pool. If receivers that hold back have no room
//! for a flow's next message, that flow waits and no other. A message whose receivers are all processes of
//! the cluster costs the link nothing.

mod fields;
mod serve;
mod slots;
mod streams;

pub use fields::{FieldReader, FlowFields};
pub(crate) use serve::Work;
pub(crate) use streams::is_stream;

use std::sync::Arc;

use csp_quality::{
    Board, DIVIDE_EVERY, Demand, Fired, FlowCounters, FlowId, FlowSpec, FlowTable, Item as Queued,
    Observation, Offered, Overflow, Plan, QualityConfig, Resource, ResourceManager, Scheme, Taken, Trigger,
    TriggerError,
};
use csp_types::{Duration, Instant};
use slots::Slots;

use self::streams::Streams;
use crate::pool::MessageHandle;
use crate::queue::Item;

/// Configuration of a worker's flows.
#[derive(Clone, Debug)]
pub struct FlowsConfig {
    /// The flows and their promises. Its capacity is the node's; workers divide it.
    pub plan: Arc<Plan>,
    /// Bounds, schemes and monitoring. The bounds take effect when the worker had no flows before.
    pub quality: QualityConfig,
    /// Triggers.
    pub triggers: Vec<Trigger>,
    /// The board on which the workers of the node state their demand for the link, and the index of this one.
    pub board: (Arc<Board>, usize),
    /// Part of a worker's time that the plan's contexts have together, in percent: 1 to 100.
    pub worker_percent: u8,
    /// Readers of the message fields that the plan's predicates name.
    pub fields: Arc<FlowFields>,
}

/// State of a flow at a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStatus {
    /// Its name.
    pub name: String,
    /// Its priority in the policy.
    pub priority: u8,
    /// Bits a second that it is promised: messages count with their longest length.
    pub promised: u64,
    /// Messages a second that it is promised.
    pub promised_messages: u32,
    /// Messages that wait, and their bytes in all copies.
    pub queued: (u32, u64),
    /// Outcomes of its messages.
    pub counters: FlowCounters,
    /// Time from arrival to release of all that were released.
    pub delay_sum: Duration,
    /// Observation of its meter; zero unless each flow is metered.
    pub seen: Observation,
    /// Its messages wait for receivers that hold back.
    pub blocked: bool,
    /// Contexts that it is promised.
    pub contexts: u16,
    /// Time of contexts used by its messages.
    pub context_time: Duration,
    /// Measured time that the worker needs for a message; zero: not measured.
    pub cost: Duration,
}

/// State of the link at a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The scheme in force.
    pub scheme: Scheme,
    /// The node's capacity in bits a second, and this worker's part.
    pub capacity: (u64, u64),
    /// Triggers, each with the number of its changes.
    pub triggers: Vec<(String, u64)>,
    /// A generation waits until items of a former flow have left.
    pub waits: bool,
    /// Number of contexts that flows share, and their part of the worker's time in percent.
    pub contexts: (u16, u8),
}

#[derive(Debug)]
pub(crate) struct Flows {
    manager: ResourceManager,
    triggers: Vec<Trigger>,
    quality: QualityConfig,
    board: (Arc<Board>, usize),
    /// A plan that cannot be put into force yet.
    next: Option<FlowsConfig>,
    /// The delay of each flow.
    delays: Vec<Duration>,
    /// Flows whose next message waits for receivers: the flow, and the message with its channel slot.
    stuck: Vec<(FlowId, Queued)>,
    /// For each peer: the flow and length of the message for which it is held back.
    wanted: Vec<Option<(FlowId, u32)>>,
    /// Items that gave way to others; emptied after each offer.
    pub evicted: Vec<Queued>,
    /// When [`begin`](Self::begin) must be called.
    due: Option<Instant>,
    divide_at: Instant,
    /// Bytes released when the link was divided last.
    sent: u64,
    released: u64,
    part: u64,
    /// This worker has reported that it wants something.
    wants: bool,
    slots: Slots,
    percent: u8,
    /// The slot that is asked first for its next item.
    first_slot: usize,
    /// The item that is being processed, until its handlers have emitted something.
    current: Option<Taken>,
    /// Flows with a message that waits in a path, and the path: contexts take no further message of the flow
    /// until the path has continued.
    paused: Vec<(FlowId, u16)>,
    /// There are no contexts any more, but messages that waited for one.
    leftovers: bool,
    clock: Option<fn() -> Instant>,
    streams: Streams,
    fields: Arc<FlowFields>,
}

impl Flows {
    pub fn new(config: FlowsConfig, peers_max: usize, now: Instant) -> Result<Self, TriggerError> {
        let FlowsConfig { plan, mut quality, triggers, board, worker_percent, fields } = config;
        quality.contexts = quality.link; // one scheme for both
        let contexts = usize::from(plan.capacity().contexts);
        let flows = plan.table().capacity();
        let part = plan.capacity().link.bits_per_second / board.0.workers() as u64;
        let mut manager = ResourceManager::new(quality, plan, now);
        manager.set_triggers(triggers.clone())?;
        manager.set_capacity(part, now);
        Ok(Flows {
            manager,
            triggers,
            quality,
            board,
            next: None,
            delays: vec![Duration::ZERO; flows],
            stuck: Vec::with_capacity(flows),
            wanted: vec![None; peers_max],
            evicted: Vec::with_capacity(64),
            due: None,
            divide_at: now,
            sent: 0,
            released: 0,
            part,
            wants: false,
            slots: Slots::new(contexts, worker_percent, flows),
            percent: worker_percent,
            first_slot: 0,
            current: None,
            paused: Vec::with_capacity(flows),
            leftovers: false,
            clock: None,
            streams: Streams::default(),
            fields,
        })
    }

    /// Puts another configuration into force, at once or when items of flows that are gone have left.
    pub fn apply(&mut self, config: FlowsConfig, now: Instant) -> Result<(), TriggerError> {
        let is_same = Arc::ptr_eq(&config.plan, self.manager.plan());
        if !is_same && self.manager.apply(now, Arc::clone(&config.plan)).is_err() {
            self.next = Some(config);
            self.due = Some(now);
            return Ok(());
        }
        self.next = None;
        let FlowsConfig { mut quality, triggers, board, plan, worker_percent, fields } = config;
        quality.contexts = quality.link;
        if !is_same {
            // Ids may be those of other flows now; who waits asks again.
            self.wanted.fill(None);
        }
        self.set_contexts(plan.capacity().contexts, worker_percent);
        // What triggers have changed stays, unless the policy says something else.
        if quality.link != self.quality.link {
            self.switch(quality.link, now);
        }
        if quality.monitor != self.quality.monitor {
            self.manager.set_monitor(quality.monitor);
        }
        let done = if triggers == self.triggers {
            Ok(())
        } else {
            let done = self.manager.set_triggers(triggers.clone());
            if done.is_ok() && quality.link == self.quality.link {
                // The scheme that former triggers had switched to is nobody's any more.
                self.switch(quality.link, now);
            }
            self.triggers = triggers;
            done
        };
        (self.quality, self.board, self.fields) = (quality, board, fields);
        self.part = self.part.min(plan.capacity().link.bits_per_second);
        self.manager.set_capacity(self.part, now);
        (self.divide_at, self.due) = (now, Some(now));
        done
    }

    fn switch(&mut self, scheme: Scheme, now: Instant) {
        self.manager.switch(now, Resource::Contexts, scheme);
        self.manager.switch(now, Resource::Link, scheme);
    }

    pub fn table(&self) -> &FlowTable {
        self.manager.table()
    }

    pub fn fields(&self) -> &FlowFields {
        &self.fields
    }

    pub fn quantum(&self) -> u32 {
        self.manager.plan().capacity().link.quantum
    }

    #[inline]
    pub fn has_room(&self, flow: FlowId, bytes: u32) -> bool {
        self.manager.has_room(flow, bytes)
    }

    pub fn overflow(&self, flow: FlowId) -> Overflow {
        self.manager.overflow(flow)
    }

    /// Returns whether publishers of a flow that has no room are held back.
    pub fn holds(&self, flow: FlowId) -> bool {
        self.overflow(flow) == Overflow::Hold
    }

    /// Records the message for which a publisher is held back.
    pub fn want(&mut self, peer: u32, wanted: Option<(FlowId, u32)>) {
        if let Some(place) = self.wanted.get_mut(peer as usize) {
            *place = wanted;
        }
    }

    /// Returns whether the flow has room for the message for which a publisher is held back.
    pub fn may_go_on(&self, peer: u32) -> bool {
        let wanted = self.wanted.get(peer as usize).copied().flatten();
        wanted.is_none_or(|(flow, bytes)| self.has_room(flow, bytes))
    }

    /// Returns whether nothing of a flow waits.
    #[inline]
    pub fn is_empty(&self, flow: FlowId) -> bool {
        self.manager.queued(flow).0 == 0 && !self.stuck.iter().any(|(known, _)| *known == flow)
    }

    /// Offers a message. A context processes it first unless it is `processed`. A released message is found
    /// by `handle` and the generation of its channel's slot. Messages that give way to it are in `evicted`
    /// afterwards.
    #[inline]
    pub fn offer(&mut self, now: Instant, flow: FlowId, item: Queued, processed: bool) -> Offered {
        let (before, evicted) = (self.evicted.len(), &mut self.evicted);
        let offered = self.manager.offer_item(now, flow, item, processed, |item| evicted.push(item));
        self.settle_offer(now, flow, before);
        offered
    }

    /// Puts streams that gave way into the lists in front of their flows' queues. `before`: number of items
    /// that had given way before the offer.
    #[inline]
    fn settle_offer(&mut self, now: Instant, flow: FlowId, before: usize) {
        for at in (before..self.evicted.len()).rev() {
            if is_stream(&self.evicted[at]) {
                let item = self.evicted.swap_remove(at);
                self.put_back(flow, item);
            }
        }
        if self.due.is_none_or(|due| due > now) {
            self.due = Some(now);
        }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether a message may be released, or other work is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        !self.stuck.is_empty() || self.due.is_some_and(|due| due <= now)
    }

    /// Work before messages are released.
    pub fn begin(&mut self, now: Instant) {
        if let Some(next) = self.next.take() {
            let _ = self.apply(next, now); // its triggers were checked with the policy
        }
        if now >= self.divide_at {
            self.divide(now);
        }
        if self.manager.next_control().is_some_and(|at| at <= now) {
            self.manager.control(now);
        }
        self.enter_waiting(now);
    }

    /// Returns the next message that waits for receivers, after `at` others.
    pub fn stuck_at(&self, at: usize) -> Option<(FlowId, Queued)> {
        self.stuck.get(at).copied()
    }

    /// Removes a message that waited for receivers and was delivered.
    pub fn unstick(&mut self, at: usize, now: Instant) {
        let (flow, _) = self.stuck.remove(at);
        self.manager.set_blocked(now, flow, false);
    }

    /// A message was released, and its receivers hold back.
    pub fn stick(&mut self, flow: FlowId, item: Queued, now: Instant) {
        self.stuck.push((flow, item));
        self.manager.set_blocked(now, flow, true);
    }

    /// Returns the next message for receivers, if the link takes one.
    #[inline]
    pub fn release(&mut self, now: Instant) -> Option<(FlowId, Queued)> {
        let Flows { manager, streams, .. } = self;
        let released = manager.release_live(now, |item| streams.lives(item))?;
        self.released += u64::from(released.item.bytes);
        if let Some(delays) = self.delays.get_mut(usize::from(released.flow.0)) {
            *delays += released.delay;
        }
        Some((released.flow, released.item))
    }

    /// Returns the next message, regardless of the link.
    pub fn drain(&mut self, now: Instant) -> Option<Queued> {
        if let Some((flow, item)) = (!self.stuck.is_empty()).then(|| self.stuck.remove(0)) {
            self.manager.set_blocked(now, flow, false);
            return Some(item);
        }
        self.manager.drain(now).map(|released| released.item)
    }

    /// Work after the last release of a turn.
    pub fn end(&mut self, now: Instant) {
        let release = self.manager.next_release(now);
        let control = self.manager.next_control();
        // The worker goes on reporting until it has reported that it wants nothing.
        let divide = (self.wants || release.is_some()).then_some(self.divide_at);
        let contexts = self.next_context(now);
        self.due = release.into_iter().chain(control).chain(divide).chain(contexts).min();
        if (self.next.is_some() || self.streams_wait()) && self.due.is_none() {
            self.due = Some(now + DIVIDE_EVERY);
        }
    }

    /// Publishes this worker's demand for the link, and adopts its part.
    fn divide(&mut self, now: Instant) {
        let plan = Arc::clone(self.manager.plan());
        let total = plan.capacity().link.bits_per_second;
        let (mut held, mut bytes) = (0.0, self.released - self.sent);
        for (flow, _) in plan.table().flows() {
            // What contexts have not processed, or receivers hold back, could not be sent.
            let blocked = self.stuck.iter().any(|(known, _)| *known == flow);
            let ready = if blocked { 0 } else { self.manager.ready_bytes(flow) };
            bytes += ready;
            if ready > 0 {
                held += plan.held(flow).0;
            }
        }
        // What arrives after a pause has not arrived in all of it.
        let late = if self.wants { now.saturating_since(self.divide_at) } else { Duration::ZERO };
        let elapsed = late + DIVIDE_EVERY;
        let wanted = (u128::from(bytes) * 8_000_000_000 / elapsed.as_nanos().max(1)) as u64;
        let demand = Demand { held: held as u64, wanted };
        self.part = self.board.0.part(self.board.1, demand, total);
        self.manager.set_capacity(self.part, now);
        self.report_costs();
        (self.sent, self.wants) = (self.released, wanted > 0);
        self.divide_at = now + DIVIDE_EVERY;
    }

    pub fn next_fired(&mut self) -> Option<(String, Fired)> {
        let fired = self.manager.next_fired()?;
        let name = self.triggers.get(usize::from(fired.trigger)).map(|trigger| trigger.name.clone());
        Some((name.unwrap_or_default(), fired))
    }

    pub fn status(&mut self, now: Instant) -> (LinkStatus, Vec<FlowStatus>) {
        let plan = Arc::clone(self.manager.plan());
        let triggers = (0..).zip(&self.triggers);
        let link = LinkStatus {
            scheme: self.manager.schemes().1,
            capacity: (plan.capacity().link.bits_per_second, self.part),
            triggers: triggers
                .map(|(at, trigger)| (trigger.name.clone(), self.manager.changes(at)))
                .collect(),
            waits: self.next.is_some(),
            contexts: (plan.capacity().contexts, self.percent),
        };
        let flows = plan.table().flows().map(|(id, spec)| FlowStatus {
            name: spec.name.clone(),
            priority: spec.priority,
            promised: promised(spec),
            promised_messages: spec.reservation.items_per_second,
            queued: self.manager.queued(id),
            counters: self.manager.counters(id),
            delay_sum: self.delays.get(usize::from(id.0)).copied().unwrap_or_default(),
            seen: self.manager.observe(now, id),
            blocked: self.stuck.iter().any(|(flow, _)| *flow == id),
            contexts: spec.reservation.contexts,
            context_time: self.slots.occupied(id),
            cost: self.slots.measured(id).unwrap_or_default(),
        });
        (link, flows.collect())
    }
}

/// Returns the rate promised to a flow, in bits per second: items count with their longest length.
fn promised(spec: &FlowSpec) -> u64 {
    let by_items = u64::from(spec.reservation.items_per_second) * u64::from(spec.item.bytes_max) * 8;
    by_items.max(spec.reservation.bits_per_second)
}

/// Marks messages that a context must process first.
const UNPROCESSED: u64 = 1 << 62;

/// Packs the identification of a released message: its slot in the pool, and the generation of its channel's
/// slot.
pub(crate) fn pack(index: u32, generation: u16) -> u64 {
    u64::from(index) | u64::from(generation) << 32
}

/// Returns place and generation.
pub(crate) fn unpack(handle: u64) -> (u32, u16) {
    (handle as u32, (handle >> 32) as u16)
}

/// A message of the pool with the bytes of all its copies.
pub(crate) fn queued(index: u32, generation: u16, bytes: u32, arrived: Instant) -> Queued {
    Queued { handle: pack(index, generation), bytes, messages: 1, arrived }
}

/// The same for a message that a context is to process first.
pub(crate) fn unprocessed(queued: Queued) -> Queued {
    Queued { handle: queued.handle | UNPROCESSED, ..queued }
}

/// Returns whether a context is to process a message first.
pub(crate) fn is_unprocessed(item: &Queued) -> bool {
    item.handle & UNPROCESSED != 0
}

/// What a queue of receivers refers to.
pub(crate) fn item(handle: MessageHandle, len: u32) -> Item {
    Item { handle, len, cached: false }
}
