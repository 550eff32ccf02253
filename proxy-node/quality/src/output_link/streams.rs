//! Byte streams that share the link with messages: each waits in its flow's queue with the number of bytes
//! that it could send, at most a quantum.
//!
//! ```text
//!   wants ─▶ [flow's queue: resource manager] ─ release ─▶ allowed, in bytes
//!      ▲ no room: it waits in front of the queue
//! ```
//! Nothing of a stream is dropped here; its bytes are where they were. A stream waits with one item at a
//! time.

use std::collections::VecDeque;

use csp_types::{FlowLabel, FourTuple, Instant};

use super::SharedLink;
use crate::{Descriptor, FlowId, Item, Offered};

/// Marks handles of byte streams.
pub(super) const STREAM: u64 = 1 << 63;

/// Number of streams in front of a queue from which ended ones are removed.
const SWEEP_FROM: usize = 64;

/// Streams beside those in the queues.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By the index in their label: the tag of the stream that waits, or 0. An item with another tag belongs
    /// to a stream that has ended.
    asking: Vec<u32>,
    /// How many wait.
    living: usize,
    /// Streams for which the queue of their flow has no room, by flow.
    waiting: Vec<VecDeque<Item>>,
    /// Flows that have any.
    flows: Vec<FlowId>,
    /// Streams that may send, and how many bytes.
    allowed: VecDeque<(FlowLabel, u32)>,
}

/// Returns whether an item is a byte stream's.
#[inline]
pub(super) fn is_stream(item: &Item) -> bool {
    item.handle & STREAM != 0
}

fn index_of(tag: u32) -> usize {
    FlowLabel::from_wire(tag).map_or(0, FlowLabel::index)
}

impl Streams {
    /// Whether an item is a message's, or that of a stream that still waits.
    #[inline]
    pub fn lives(&self, item: &Item) -> bool {
        let tag = item.handle as u32;
        !is_stream(item) || self.asking.get(index_of(tag)) == Some(&tag)
    }

    /// Records that a stream waits. An item of a former stream with the same index becomes void.
    fn ask(&mut self, tag: u32) {
        let at = index_of(tag);
        if self.asking.len() <= at {
            self.asking.resize((at + 1).next_power_of_two(), 0);
        }
        self.living += usize::from(std::mem::replace(&mut self.asking[at], tag) == 0);
    }

    /// Records that a stream no longer waits.
    fn forget(&mut self, tag: u32) {
        if let Some(asking) = self.asking.get_mut(index_of(tag)).filter(|asking| **asking == tag) {
            *asking = 0;
            self.living -= 1;
        }
    }
}

impl SharedLink {
    /// Asks for the link: a byte stream has this many bytes to send to its client.
    /// [`OutputLink::next_allowed`](super::OutputLink::next_allowed) returns it when the link takes all or a
    /// part of them; the stream does not ask again before.
    pub fn want_bytes(&mut self, now: Instant, label: FlowLabel, tuple: FourTuple, bytes: u32) {
        let end = |address: std::net::SocketAddr| (address.ip(), address.port());
        let descriptor = Descriptor::default().network(end(tuple.remote), end(tuple.local));
        let flow = self.table().classify(&descriptor);
        let tag = label.to_wire();
        self.streams.ask(tag);
        let bytes = bytes.min(self.quantum()).max(1);
        self.enter(now, flow, Item { handle: STREAM | u64::from(tag), bytes, messages: 1, arrived: now });
    }

    /// Withdraws a byte stream that may wait and has ended. Its item costs the link nothing.
    pub fn end_stream(&mut self, label: FlowLabel) {
        self.streams.forget(label.to_wire());
    }

    fn enter(&mut self, now: Instant, flow: FlowId, item: Item) {
        // A stream does not overtake others of its flow.
        let first = !self.streams.flows.contains(&flow);
        if !first || !self.offer_stream(now, flow, item) {
            self.put_back(flow, item);
        }
    }

    /// Offers a stream's item; returns whether it is queued. Filters drop no stream and take no sample of it:
    /// `drop` keeps it waiting, and nothing is counted.
    fn offer_stream(&mut self, now: Instant, flow: FlowId, item: Item) -> bool {
        if self.manager.is_shut(flow) {
            // Streams may be all that there is: the trigger must see that it is to be released.
            self.manager.notice(now);
            return false;
        }
        if !self.has_room(flow, item.bytes) {
            return false;
        }
        let (before, evicted) = (self.evicted.len(), &mut self.evicted);
        let offered = self.manager.offer_ready(now, flow, item, |item| evicted.push(item));
        self.settle_offer(now, flow, before);
        offered == Offered::Queued
    }

    /// Lets streams into queues that have room again.
    pub(super) fn enter_waiting(&mut self, now: Instant) {
        for at in (0..self.streams.flows.len()).rev() {
            let flow = self.streams.flows[at];
            let place = usize::from(flow.0);
            if self.table().flow(flow).is_none() {
                // The policy has the flow no more.
                let items = core::mem::take(&mut self.streams.waiting[place]);
                self.streams.flows.swap_remove(at);
                items.into_iter().for_each(|item| self.put_back(FlowId::DEFAULT, item));
                continue;
            }
            while let Some(item) = self.streams.waiting[place].front().copied() {
                if !self.streams.lives(&item) {
                    self.streams.waiting[place].pop_front();
                    continue;
                }
                if !self.offer_stream(now, flow, item) {
                    break;
                }
                self.streams.waiting[place].pop_front();
            }
            if self.streams.waiting[place].is_empty() {
                self.streams.flows.swap_remove(at);
            }
        }
    }

    /// Puts a stream into the list in front of its flow's queue, which has no room for it, or no longer has.
    pub(super) fn put_back(&mut self, flow: FlowId, item: Item) {
        let place = usize::from(flow.0);
        if self.streams.waiting.len() <= place {
            self.streams.waiting.resize_with(place + 1, VecDeque::new);
        }
        let waiting = &mut self.streams.waiting[place];
        waiting.push_back(item);
        // Streams that have ended are not kept for as long as the queue is full.
        if waiting.len() >= SWEEP_FROM.max(2 * self.streams.living) {
            let mut waiting = core::mem::take(waiting);
            waiting.retain(|item| self.streams.lives(item));
            self.streams.waiting[place] = waiting;
        }
        if !self.streams.flows.contains(&flow) {
            self.streams.flows.push(flow);
        }
    }

    /// The link takes a stream's item.
    pub(super) fn allow_bytes(&mut self, item: &Item) {
        self.streams.forget(item.handle as u32);
        if let Some(label) = FlowLabel::from_wire(item.handle as u32) {
            self.streams.allowed.push_back((label, item.bytes));
        }
    }

    /// Removes and returns a byte stream that may send, and how many bytes.
    pub(super) fn next_allowed(&mut self) -> Option<(FlowLabel, u32)> {
        self.streams.allowed.pop_front()
    }

    /// Returns whether streams wait in front of queues.
    pub(super) fn streams_wait(&self) -> bool {
        !self.streams.flows.is_empty()
    }
}
