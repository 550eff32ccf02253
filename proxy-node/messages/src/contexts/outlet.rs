//! The end of a path: a message that is in the pool goes to the channel's receivers.

use csp_types::Instant;

use crate::channel::Channel;
use crate::peers::Peers;
use crate::plane::{gather, keep};
use crate::pool::MessagePool;
use crate::queue::{Item, Policy};
use crate::subscriptions::Subscriptions;

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
}

impl Outlet<'_> {
    /// Returns whether the channel holds back instead of dropping.
    pub fn holds_back(&self) -> bool {
        self.ch.policy() == Policy::Block
    }

    /// Gives a message to the receivers. Takes over one reference.
    pub fn deliver(&mut self, item: Item) {
        match self.ch.backlog_limits() {
            Some(limits) => {
                self.ch.backlog.push(item, &limits, Policy::Block);
                self.peers.distribute(self.ch);
            }
            None => self.fan_out(item),
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
