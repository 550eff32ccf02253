//! From a message to the queues of its subscribers: used for messages that arrive, that leave a path, and
//! that the link releases.

use csp_types::Instant;

use super::publish::keep;
use crate::channel::Channel;
use crate::peers::Peers;
use crate::pool::MessagePool;
use crate::queue::Item;
use crate::subscriptions::Subscriptions;
use crate::trace::{CopyState, Traces};

/// The parts of the plane that distribute a channel's messages to its subscribers, except the pool: a topic
/// may lie in it.
pub(crate) struct Distributor<'a> {
    pub slot: u16,
    pub ch: &'a mut Channel,
    pub peers: &'a mut Peers,
    pub subscriptions: &'a mut Subscriptions,
    /// Subscribers of the message that is distributed, without those for which it is dropped at once.
    pub matched: &'a mut Vec<u32>,
    pub traces: &'a mut Traces,
}

impl Distributor<'_> {
    /// Finds the subscribers of a topic. Returns their number, including those for which the message is
    /// dropped at once. `traced`: the number of the message, if a trace may have recorded it before.
    #[inline]
    pub fn find(&mut self, topic: &[u8], traced: Option<u64>) -> u32 {
        let Distributor { slot, ch, peers, subscriptions, matched, traces, .. } = self;
        let mut found = 0;
        matched.clear();
        subscriptions.matches(*slot, topic, |subscriber| {
            found += 1;
            if !peers.drops_newest(ch, subscriber) {
                matched.push(subscriber);
            } else if let Some(sequence) = traced {
                traces.settle(*slot, sequence, peers.id(subscriber), CopyState::DroppedNewest);
            }
        });
        ch.counters.unmatched += u64::from(found == 0);
        found
    }

    /// Queues a stored message for the subscribers that were found, and keeps it as the last of its key.
    /// Takes over one reference.
    #[inline]
    pub fn give(&mut self, pool: &mut MessagePool, now: Instant, item: Item, topic_len: usize) {
        let Distributor { slot, ch, peers, matched, traces, .. } = self;
        keep(ch, pool, item.handle, topic_len);
        pool.refer(item.handle, matched.len() as u32);
        for subscriber in matched.iter() {
            if let Some(dropped) = peers.push(ch, *subscriber, item, now) {
                if traces.is_armed()
                    && let Some(info) = pool.info(dropped)
                {
                    traces.settle(*slot, info.sequence, peers.id(*subscriber), CopyState::DroppedOldest);
                }
                pool.release(dropped);
            }
        }
        pool.release(item.handle);
    }
}
