//! The end of a path: a message that is in the pool goes to the channel's receivers.

use std::collections::VecDeque;

use csp_quality::{Descriptor, FlowId, Offered, SharedLink};
use csp_types::Instant;

use crate::channel::Channel;
use crate::flows::{self, FieldsInForce};
use crate::peers::Peers;
use crate::plane::{ChannelId, Distributor, gather};
use crate::pool::{MessageHandle, MessagePool};
use crate::queue::{Item, Policy};
use crate::subscriptions::Subscriptions;
use crate::trace::Traces;

/// Largest number of messages at the ends of paths that wait to be copied to other channels: one call of a
/// handler may emit this many.
const FED_MAX: usize = 4096;

/// Messages that have left a path and are copied to other channels: the source channel of each, the channel
/// behind an outlet (`None`: those that the source channel feeds), and the message with a reference.
#[derive(Debug)]
pub(crate) struct Fed(VecDeque<(u16, Option<ChannelId>, MessageHandle)>);

impl Fed {
    pub fn new() -> Self {
        Fed(VecDeque::with_capacity(FED_MAX))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn pop(&mut self) -> Option<(u16, Option<ChannelId>, MessageHandle)> {
        self.0.pop_front()
    }
}

/// The parts of the plane that distribute a channel's messages.
pub(crate) struct Outlet<'a> {
    pub now: Instant,
    pub slot: u16,
    pub ch: &'a mut Channel,
    pub pool: &'a mut MessagePool,
    pub peers: &'a mut Peers,
    pub subscriptions: &'a mut Subscriptions,
    pub matched: &'a mut Vec<u32>,
    pub space: &'a mut Vec<u8>,
    pub traces: &'a mut Traces,
    pub fed: &'a mut Fed,
    /// Where messages wait for the output link, and the fields that flows use; absent if no flows share it, or
    /// the message has waited.
    pub link: Option<(&'a mut SharedLink, &'a FieldsInForce)>,
    /// Policy's number of the channel, and the generation of its slot.
    pub number: (u32, u16),
    /// The flow of the message that a context of flows processes.
    pub flow: Option<FlowId>,
}

/// Returns the offset and the length of the frame that has the message's format.
fn body(pool: &MessagePool, handle: MessageHandle) -> (u32, u32) {
    let mut lens = pool.frame_lens(handle);
    let first = lens.next().unwrap_or(0);
    lens.next().map_or((0, first), |second| (first, second))
}

impl Outlet<'_> {
    /// Returns whether the channel holds back instead of dropping.
    pub fn holds_back(&self) -> bool {
        self.ch.policy() == Policy::Block
    }

    /// Gives a message to the receivers. Takes over one reference.
    pub fn deliver(&mut self, item: Item) {
        if !self.ch.feeds.is_empty() {
            self.note_feed(item);
        }
        if let Some(rows) = &mut self.ch.rows {
            *rows += 1;
            self.pool.set_sequence(item.handle, *rows);
        }
        match self.link.is_some() {
            true => self.wait(item),
            false => self.give(item),
        }
    }

    /// Puts a message into the queue of its flow: the flow of its channel and format, unless a context of
    /// flows has processed the message. Takes over one reference.
    #[inline(never)]
    pub fn wait(&mut self, item: Item) {
        let (found, copies) = self.copies(item);
        let Some((link, fields)) = &mut self.link else { return };
        let flow = self.flow.unwrap_or_else(|| {
            let format = self.pool.format(item.handle);
            let mut descriptor = Descriptor::default().channel(self.number.0).format(format.0.into());
            let (start, len) = body(self.pool, item.handle);
            let record = || self.pool.range(item.handle, start, len);
            if let Some(fields) = fields.of(link) {
                fields.read((self.number.0, format), record, len as usize, &mut descriptor);
            }
            link.table().classify(&descriptor)
        });
        let bytes = item.len.saturating_mul(copies);
        if (found == 0 && self.ch.cache.is_none()) || (copies == 0 && link.is_empty(flow)) {
            return self.give(item);
        }
        let place = crate::pool::MessagePool::place(item.handle);
        let arrived = self.pool.info(item.handle).map_or(self.now, |info| info.arrived);
        let queued = flows::queued(place, self.number.1, bytes, arrived);
        let done = match link.serves() {
            true => link.put_ready(self.now, flow, queued, self.flow.is_some()),
            false => link.offer(self.now, flow, queued, true) == Offered::Queued,
        };
        match done {
            true => self.ch.in_flows += 1,
            // What contexts have processed holds nobody back.
            false => {
                self.ch.counters.dropped_flow += 1;
                self.pool.release(item.handle);
            }
        }
    }

    /// Returns how many receivers a message has, and for how many of them a copy will take the output link.
    fn copies(&mut self, item: Item) -> (u32, u32) {
        let Outlet { slot, ch, pool, peers, subscriptions, space, .. } = self;
        if ch.backlog_limits().is_some() {
            return (1, 1);
        }
        let first = pool.frame_lens(item.handle).next().unwrap_or(0) as usize;
        let topic_len = first.min(subscriptions.topic_len_max());
        let (mut found, mut copies) = (0, 0);
        if let Some(topic) = gather(space, pool.slices(item.handle), topic_len) {
            subscriptions.matches(*slot, topic, |subscriber| {
                found += 1;
                copies += u32::from(peers.takes_link(ch, subscriber));
            });
        }
        (found, copies)
    }

    /// Gives a message to the receivers' queues. Takes over one reference.
    pub fn give(&mut self, item: Item) {
        match self.ch.backlog_limits() {
            Some(limits) => {
                self.ch.backlog.push(item, &limits, Policy::Block);
                self.peers.distribute(self.ch);
            }
            None => self.fan_out(item),
        }
    }

    /// Records a message for the channels that this channel feeds, which are not accessible here.
    #[inline(never)]
    fn note_feed(&mut self, item: Item) {
        let format = self.pool.format(item.handle);
        if !self.ch.feeds.iter().any(|feed| feed.takes(format)) {
            return;
        }
        match self.fed.0.len() < FED_MAX {
            true => {
                self.pool.refer(item.handle, 1);
                self.fed.0.push_back((self.slot, None, item.handle));
            }
            false => self.ch.counters.dropped_path += 1,
        }
    }

    /// Records a message for a channel behind an outlet, which is not accessible here. Takes over one reference.
    #[inline(never)]
    pub fn branch(&mut self, to: ChannelId, item: Item) {
        match self.fed.0.len() < FED_MAX {
            true => self.fed.0.push_back((self.slot, Some(to), item.handle)),
            false => {
                self.ch.counters.dropped_path += 1;
                self.pool.release(item.handle);
            }
        }
    }

    fn fan_out(&mut self, item: Item) {
        let Outlet { now, slot, ch, pool, peers, subscriptions, matched, space, traces, .. } = self;
        let first = pool.frame_lens(item.handle).next().unwrap_or(0) as usize;
        let topic_len = first.min(subscriptions.topic_len_max());
        let traced = if traces.is_armed() { pool.info(item.handle).map(|info| info.sequence) } else { None };
        let topic = gather(space, pool.slices(item.handle), topic_len);
        let mut to = Distributor { slot: *slot, ch, peers, subscriptions, matched, traces };
        // The message is as long as its frames.
        to.find(topic.unwrap_or_default(), traced);
        to.give(pool, *now, item, topic_len);
    }
}
