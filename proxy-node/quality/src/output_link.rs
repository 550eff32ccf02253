//! The output link of a worker, which byte streams and messages share by information flow.
//!
//! ```text
//!   messages ─ offer ─▶ [flow's queue ─ take ─▶ context: the channel's path ─▶ ready] ─┐
//!                                     end of a path without contexts ─▲                ├─ release ─▶ [LinkClient]
//!   byte streams ─ want_bytes ─▶ [flow's queue] ───────────────────────────────────────┘     └─▶ next_allowed
//! ```
//! With contexts, messages of a channel with a path wait in their flow's queue until the scheme gives the
//! flow a context, and again, processed, until it gives it the link. Without contexts a message passes its
//! path first, and is then offered to its flow.
//!
//! The proxy's core owns the link. Byte streams ask it for what they may send. A [`LinkClient`] keeps items
//! of its own in the queues: a data item is a message with all its copies for receivers that the link
//! carries; it has the bytes of all of them. The link knows its length, and a handle by which its client
//! finds it. If receivers that hold back have no room for a flow's next message, that flow waits and no
//! other. A message whose receivers are all processes of the cluster costs the link nothing.

mod client;
mod serve;
mod slots;
mod status;
mod streams;

pub use client::LinkClient;
pub use serve::Work;
pub use status::{FlowStatus, LinkStatus};

use std::sync::Arc;

use csp_types::{Duration, FlowLabel, Instant};

use self::slots::Slots;
use self::streams::Streams;
use crate::manager::{Offered, QualityConfig, ResourceManager, Taken};
use crate::{
    Board, DIVIDE_EVERY, Demand, Fired, FlowId, FlowTable, Item, Overflow, Plan, Resource, Scheme, Trigger,
    TriggerError,
};

/// Bits of an item's handle that its client chooses. The link marks byte streams in the other one.
pub const HANDLE_MASK: u64 = !streams::STREAM;

/// How flows share a worker's link.
#[derive(Clone, Debug)]
pub struct SharedLinkConfig {
    /// The flows and their promises. Its capacity is the node's; workers divide it.
    pub plan: Arc<Plan>,
    /// Bounds, schemes and monitoring. The bounds take effect when the link was not shared before.
    pub quality: QualityConfig,
    /// Triggers.
    pub triggers: Vec<Trigger>,
    /// The board on which the workers of the node state their demand for the link, and the index of this one.
    pub board: (Arc<Board>, usize),
    /// Part of a worker's time that the plan's contexts have together, in percent: 1 to 100.
    pub worker_percent: u8,
}

/// The output link of a worker. It is not shared until the policy has information flows: everything is sent
/// at once then.
#[derive(Debug, Default)]
pub struct OutputLink {
    shared: Option<Box<SharedLink>>,
    clock: Option<fn() -> Instant>,
}

impl OutputLink {
    /// Shares the link by these flows, at once or when items of flows that are gone have left. Allocates the
    /// memory of flows if the link was not shared. The former flows stay in force while items of a removed
    /// flow still use a number that the new flows assign again.
    ///
    /// # Errors
    /// A trigger that is not valid. A link that was not shared is not shared then; otherwise the flows are in
    /// force without triggers.
    pub fn share(&mut self, now: Instant, config: SharedLinkConfig) -> Result<(), TriggerError> {
        match &mut self.shared {
            Some(shared) => shared.apply(config, now),
            none => {
                let shared = SharedLink::new(config, self.clock, now)?;
                *none = Some(Box::new(shared));
                Ok(())
            }
        }
    }

    /// Ends the sharing. What `client` has in the queues is sent at once, in the order of each flow; byte
    /// streams need no permission any more.
    pub fn unshare(&mut self, now: Instant, client: &mut impl LinkClient) {
        let Some(mut shared) = self.shared.take() else { return };
        while let Some(item) = shared.drain(now) {
            if !streams::is_stream(&item) {
                client.transmit(now, item);
            }
        }
        while let Some(item) = shared.drain_waiting(now) {
            client.transmit_unprocessed(now, item);
        }
    }

    /// Sets the clock that measures the costs of handlers for flows.
    pub fn set_clock(&mut self, clock: Option<fn() -> Instant>) {
        self.clock = clock;
        if let Some(shared) = &mut self.shared {
            shared.clock = clock;
        }
    }

    /// Returns whether flows share the link.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns what flows share, if they do.
    #[inline]
    pub fn shared(&self) -> Option<&SharedLink> {
        self.shared.as_deref()
    }

    /// Returns what flows share for changes, if they do.
    #[inline]
    pub fn shared_mut(&mut self) -> Option<&mut SharedLink> {
        self.shared.as_deref_mut()
    }

    /// Returns when to call [`release`](Self::release).
    pub fn due(&self) -> Option<Instant> {
        self.shared.as_ref()?.due
    }

    /// Releases what the link takes now: items to `client`, and byte streams to
    /// [`next_allowed`](Self::next_allowed).
    #[inline]
    pub fn release(&mut self, now: Instant, client: &mut impl LinkClient) {
        if let Some(shared) = self.shared.as_deref_mut().filter(|shared| shared.is_due(now)) {
            shared.release_due(now, client);
        }
    }

    /// Removes and returns a byte stream that may send, and how many bytes.
    pub fn next_allowed(&mut self) -> Option<(FlowLabel, u32)> {
        self.shared.as_mut()?.next_allowed()
    }

    /// Returns the next change of a trigger, with its name.
    pub fn next_fired(&mut self) -> Option<(String, Fired)> {
        self.shared.as_mut()?.next_fired()
    }

    /// Returns the state of link and flows; `None` if the link is not shared.
    pub fn status(&mut self, now: Instant) -> Option<(LinkStatus, Vec<FlowStatus>)> {
        self.shared.as_mut().map(|shared| shared.status(now))
    }
}

/// What flows share of the link: their queues and the resource manager.
#[derive(Debug)]
pub struct SharedLink {
    manager: ResourceManager,
    triggers: Vec<Trigger>,
    quality: QualityConfig,
    board: (Arc<Board>, usize),
    /// A plan that cannot be put into force yet.
    next: Option<SharedLinkConfig>,
    /// The delay of each flow.
    delays: Vec<Duration>,
    /// Flows whose next item waits for receivers, and the item.
    stuck: Vec<(FlowId, Item)>,
    /// Items that gave way to others; emptied after each offer.
    evicted: Vec<Item>,
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
}

impl SharedLink {
    fn new(
        config: SharedLinkConfig,
        clock: Option<fn() -> Instant>,
        now: Instant,
    ) -> Result<Self, TriggerError> {
        let SharedLinkConfig { plan, mut quality, triggers, board, worker_percent } = config;
        quality.contexts = quality.link; // one scheme for both
        let contexts = usize::from(plan.capacity().contexts);
        let flows = plan.table().capacity();
        let part = plan.capacity().link.bits_per_second / board.0.workers() as u64;
        let mut manager = ResourceManager::new(quality, plan, now);
        manager.set_triggers(triggers.clone())?;
        manager.set_capacity(part, now);
        Ok(SharedLink {
            manager,
            triggers,
            quality,
            board,
            next: None,
            delays: vec![Duration::ZERO; flows],
            stuck: Vec::with_capacity(flows),
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
            clock,
            streams: Streams::default(),
        })
    }

    /// Puts another configuration into force, at once or when items of flows that are gone have left.
    fn apply(&mut self, config: SharedLinkConfig, now: Instant) -> Result<(), TriggerError> {
        let is_same = Arc::ptr_eq(&config.plan, self.manager.plan());
        if !is_same && self.manager.apply(now, Arc::clone(&config.plan)).is_err() {
            self.next = Some(config);
            self.due = Some(now);
            return Ok(());
        }
        self.next = None;
        let SharedLinkConfig { mut quality, triggers, board, plan, worker_percent } = config;
        quality.contexts = quality.link;
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
        (self.quality, self.board) = (quality, board);
        self.part = self.part.min(plan.capacity().link.bits_per_second);
        self.manager.set_capacity(self.part, now);
        (self.divide_at, self.due) = (now, Some(now));
        done
    }

    fn switch(&mut self, scheme: Scheme, now: Instant) {
        self.manager.switch(now, Resource::Contexts, scheme);
        self.manager.switch(now, Resource::Link, scheme);
    }

    /// Returns the table by which items are classified.
    #[inline]
    pub fn table(&self) -> &FlowTable {
        self.manager.table()
    }

    /// Returns how many bytes may be unsent on a connection when it is given a further message.
    #[inline]
    pub fn quantum(&self) -> u32 {
        self.manager.plan().capacity().link.quantum
    }

    /// Returns whether a flow has room for an item of `bytes`.
    #[inline]
    pub fn has_room(&self, flow: FlowId, bytes: u32) -> bool {
        self.manager.has_room(flow, bytes)
    }

    /// Returns what becomes of items of a flow that has no room.
    pub fn overflow(&self, flow: FlowId) -> Overflow {
        self.manager.overflow(flow)
    }

    /// Returns whether publishers of a flow that has no room are held back.
    pub fn holds(&self, flow: FlowId) -> bool {
        self.overflow(flow) == Overflow::Hold
    }

    /// Returns whether nothing of a flow waits.
    #[inline]
    pub fn is_empty(&self, flow: FlowId) -> bool {
        self.manager.queued(flow).0 == 0 && !self.stuck.iter().any(|(known, _)| *known == flow)
    }

    /// Offers an item. A context processes it first unless it is `processed`. Items that give way to it are
    /// returned by [`next_evicted`](Self::next_evicted) afterwards.
    #[inline]
    pub fn offer(&mut self, now: Instant, flow: FlowId, item: Item, processed: bool) -> Offered {
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
            if streams::is_stream(&self.evicted[at]) {
                let item = self.evicted.swap_remove(at);
                self.put_back(flow, item);
            }
        }
        if self.due.is_none_or(|due| due > now) {
            self.due = Some(now);
        }
    }

    /// Removes and returns an item that gave way to another.
    #[inline]
    pub fn next_evicted(&mut self) -> Option<Item> {
        self.evicted.pop()
    }

    /// Returns whether a message may be released, or other work is due.
    #[inline]
    fn is_due(&self, now: Instant) -> bool {
        !self.stuck.is_empty() || self.due.is_some_and(|due| due <= now)
    }

    #[inline(never)]
    fn release_due(&mut self, now: Instant, client: &mut impl LinkClient) {
        self.begin(now);
        while let Some(item) = self.next_evicted() {
            client.evicted(item);
        }
        let mut at = 0;
        while let Some((_, item)) = self.stuck.get(at).copied() {
            match client.takes(&item) {
                true => {
                    self.unstick(at, now);
                    client.transmit(now, item);
                }
                false => at += 1,
            }
        }
        if self.serves() {
            client.process(now, self);
        }
        while let Some((flow, item)) = self.next_released(now) {
            if streams::is_stream(&item) {
                self.allow_bytes(&item);
            } else if client.takes(&item) {
                client.transmit(now, item);
            } else {
                self.stick(flow, item, now);
            }
        }
        self.end(now);
    }

    /// Work before messages are released.
    fn begin(&mut self, now: Instant) {
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

    /// Removes a message that waited for receivers and was delivered.
    fn unstick(&mut self, at: usize, now: Instant) {
        let (flow, _) = self.stuck.remove(at);
        self.manager.set_blocked(now, flow, false);
    }

    /// A message was released, and its receivers hold back.
    fn stick(&mut self, flow: FlowId, item: Item, now: Instant) {
        self.stuck.push((flow, item));
        self.manager.set_blocked(now, flow, true);
    }

    /// Returns the next message for receivers, if the link takes one.
    #[inline]
    fn next_released(&mut self, now: Instant) -> Option<(FlowId, Item)> {
        let SharedLink { manager, streams, .. } = self;
        let released = manager.release_live(now, |item| streams.lives(item))?;
        self.released += u64::from(released.item.bytes);
        if let Some(delays) = self.delays.get_mut(usize::from(released.flow.0)) {
            *delays += released.delay;
        }
        Some((released.flow, released.item))
    }

    /// Returns the next message, regardless of the link.
    fn drain(&mut self, now: Instant) -> Option<Item> {
        if let Some((flow, item)) = (!self.stuck.is_empty()).then(|| self.stuck.remove(0)) {
            self.manager.set_blocked(now, flow, false);
            return Some(item);
        }
        self.manager.drain(now).map(|released| released.item)
    }

    /// Work after the last release of a turn.
    fn end(&mut self, now: Instant) {
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

    fn next_fired(&mut self) -> Option<(String, Fired)> {
        let fired = self.manager.next_fired()?;
        let name = self.triggers.get(usize::from(fired.trigger)).map(|trigger| trigger.name.clone());
        Some((name.unwrap_or_default(), fired))
    }
}
