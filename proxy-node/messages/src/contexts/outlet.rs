//! The end of a path: a message that is in the pool goes to the channel's receivers.

use std::collections::VecDeque;

use csp_quality::{Descriptor, FlowId, Offered, SharedLink};
use csp_types::Instant;

use crate::channel::Channel;
use crate::flows::{self, FieldsInForce};
use crate::plane::{ChannelId, Distribution};
use crate::pool::{MessageHandle, MessagePool};
use crate::queue::{FullQueue, Item};

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
    pub id: ChannelId,
    /// The policy's number of the channel.
    pub number: u32,
    pub ch: &'a mut Channel,
    pub pool: &'a mut MessagePool,
    pub distribution: &'a mut Distribution,
    pub fed: &'a mut Fed,
    /// Where messages wait for the output link, and the fields that flows use; absent if no flows share it.
    pub link: Option<(&'a mut SharedLink, &'a FieldsInForce)>,
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
        self.ch.policy() == FullQueue::Block
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
        let first = self.pool.frame_lens(item.handle).next().unwrap_or(0);
        let (slot, parts) = (self.id.index, self.pool.slices(item.handle));
        let (found, copies) = self.distribution.copies((slot, self.ch), first, parts).unwrap_or_default();
        let Some((link, fields)) = &mut self.link else { return };
        let flow = self.flow.unwrap_or_else(|| {
            let format = self.pool.format(item.handle);
            let mut descriptor = Descriptor::default().channel(self.number).format(format.0.into());
            let (start, len) = body(self.pool, item.handle);
            let record = || self.pool.range(item.handle, start, len);
            if let Some(fields) = fields.of(link) {
                fields.read((self.number, format), record, len as usize, &mut descriptor);
            }
            link.table().classify(&descriptor)
        });
        let bytes = item.len.saturating_mul(copies);
        if (found == 0 && self.ch.cache.is_none()) || (copies == 0 && link.is_empty(flow)) {
            return self.give(item);
        }
        let place = crate::pool::MessagePool::place(item.handle);
        let arrived = self.pool.info(item.handle).map_or(self.now, |info| info.arrived);
        let queued = flows::queued(place, self.id.generation, bytes, arrived);
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

    /// Gives a message to the receivers' queues. Takes over one reference.
    fn give(&mut self, item: Item) {
        self.distribution.give((self.id.index, self.ch), self.pool, self.now, item);
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
                self.fed.0.push_back((self.id.index, None, item.handle));
            }
            false => self.ch.counters.dropped_path += 1,
        }
    }

    /// Records a message for a channel behind an outlet, which is not accessible here. Takes over one
    /// reference.
    #[inline(never)]
    pub fn branch(&mut self, to: ChannelId, item: Item) {
        match self.fed.0.len() < FED_MAX {
            true => self.fed.0.push_back((self.id.index, Some(to), item.handle)),
            false => {
                self.ch.counters.dropped_path += 1;
                self.pool.release(item.handle);
            }
        }
    }
}
