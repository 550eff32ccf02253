//! The end of a path: a message that is in the pool goes to the channel's receivers.

use std::collections::VecDeque;

use csp_types::Instant;

use crate::channel::Channel;
use crate::peers::Peers;
use crate::plane::{gather, keep};
use crate::pool::{MessageHandle, MessagePool};
use crate::queue::{Item, Policy};
use crate::subscriptions::Subscriptions;

/// Most messages at the end of paths that wait to be given to other channels: as many as one call of a handler may emit there.
const FED_MAX: usize = 4096;

/// Messages at the end of paths that other channels get: the channel of each, and the message with a reference.
#[derive(Debug)]
pub(crate) struct Fed(VecDeque<(u16, MessageHandle)>);

impl Fed {
    pub fn new() -> Self {
        Fed(VecDeque::with_capacity(FED_MAX))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn pop(&mut self) -> Option<(u16, MessageHandle)> {
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
    pub fed: &'a mut Fed,
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
        match self.ch.backlog_limits() {
            Some(limits) => {
                self.ch.backlog.push(item, &limits, Policy::Block);
                self.peers.distribute(self.ch);
            }
            None => self.fan_out(item),
        }
    }

    /// Notes a message for the channels that get it from this one, which are not at hand here.
    #[inline(never)]
    fn note_feed(&mut self, item: Item) {
        let format = self.pool.format(item.handle);
        if !self.ch.feeds.iter().any(|feed| feed.format == format) {
            return;
        }
        match self.fed.0.len() < FED_MAX {
            true => {
                self.pool.refer(item.handle, 1);
                self.fed.0.push_back((self.slot, item.handle));
            }
            false => self.ch.counters.dropped_path += 1,
        }
    }

    fn fan_out(&mut self, item: Item) {
        let Outlet { ch, pool, peers, subscriptions, matched, space, .. } = self;
        let first = pool.frame_lens(item.handle).next().unwrap_or(0) as usize;
        let topic_len = first.min(subscriptions.topic_len_max());
        let mut found = 0u32;
        matched.clear();
        if let Some(topic) = gather(space, pool.slices(item.handle), topic_len) {
            subscriptions.matches(self.slot, topic, |subscriber| {
                found += 1;
                if !peers.drops_newest(ch, subscriber) {
                    matched.push(subscriber);
                }
            });
        }
        ch.counters.unmatched += u64::from(found == 0);
        keep(ch, pool, item.handle, topic_len);
        pool.refer(item.handle, matched.len() as u32);
        for subscriber in matched.iter() {
            if let Some(dropped) = peers.push(ch, *subscriber, item, self.now) {
                pool.release(dropped);
            }
        }
        pool.release(item.handle);
    }
}
