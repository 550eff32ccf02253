//! Last values for subscribers that join, as fast as they take them.
//!
//! ```text
//!   subscribe ─▶ pass: each message of the cache ─▶ queue, up to its half ─ taken ─▶ the pass goes on
//! ```
//! A pass goes through the cache once, for the subscriptions that the subscriber had when it began. It stops
//! while the queue is more than half full, so that messages that arrive meanwhile have room, and so that a
//! joiner costs no memory beyond its queue. What is stored in the meantime reaches the subscriber as it
//! arrives; the pass does not repeat it. Subscriptions that are made during a pass have the next one.

use csp_types::Instant;

use super::{Distribution, Receivers};
use crate::cache::Place;
use crate::channel::Channel;
use crate::pool::MessagePool;
use crate::queue::Item;

/// Progress of a subscriber's last values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replay {
    /// Stamp of its latest subscription.
    latest: u64,
    /// Subscriptions up to this stamp have received theirs.
    complete: u64,
    pass: Option<Pass>,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Later subscriptions, and messages stored later, are not part of it.
    until: u64,
    at: Place,
}

impl Replay {
    /// Returns whether last values wait for room in the queue.
    #[inline]
    pub fn waits(&self) -> bool {
        self.pass.is_some()
    }

    /// Returns the pass that is not complete; begins one if there are subscriptions for it.
    fn pass(&mut self) -> Option<Pass> {
        if self.pass.is_none() && self.latest > self.complete {
            self.pass = Some(Pass { until: self.latest, at: Place::START });
        }
        self.pass
    }
}

impl Distribution {
    /// Returns whether last values wait for a subscriber whose queue has room for them.
    #[inline]
    pub fn wants_replay(&self, ch: &Channel, subscriber: u32) -> bool {
        self.receivers.peers.wants_replay(ch, subscriber)
    }

    /// A subscriber has a new subscription with this stamp: queues the last values that only this one
    /// matches.
    pub fn begin_replay(
        &mut self,
        now: Instant,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        (subscriber, prefix, stamp): (u32, &[u8], u64),
    ) {
        let Some(replay) = self.receivers.peers.replay(subscriber) else { return };
        replay.latest = stamp;
        // A pass that waits is for other prefixes, too.
        let only: &[u8] = if replay.waits() { &[] } else { prefix };
        self.replay(now, (slot, ch), pool, (subscriber, only));
    }

    /// Continues with the last values of a subscriber whose queue has room.
    #[cold]
    pub fn resume_replay(
        &mut self,
        now: Instant,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        subscriber: u32,
    ) {
        self.replay(now, (slot, ch), pool, (subscriber, &[]));
    }

    /// Queues last values until there is no room or all were examined. `only`: the prefix of the
    /// subscription, if the pass is for a single one; empty: all prefixes.
    fn replay(
        &mut self,
        now: Instant,
        (slot, ch): (u16, &mut Channel),
        pool: &mut MessagePool,
        (subscriber, only): (u32, &[u8]),
    ) {
        let Receivers { peers, subscriptions, .. } = &mut self.receivers;
        let Some(cache) = ch.cache.take() else { return };
        while let Some(known) = peers.replay(subscriber)
            && let Some(pass) = known.pass()
        {
            let complete = known.complete;
            if peers.is_half(ch, subscriber) {
                break;
            }
            let next = cache.after(pass.at).filter(|kept| kept.stamp <= pass.until);
            if let Some(known) = peers.replay(subscriber) {
                match next {
                    Some(kept) => known.pass = Some(Pass { at: kept.place, ..pass }),
                    None => (known.pass, known.complete) = (None, pass.until),
                }
            }
            let Some(kept) = next else { continue };
            let first = pool.frame_lens(kept.handle).next().unwrap_or(0) as usize;
            let topic = pool.prefix(kept.handle, first.min(subscriptions.topic_len_max()));
            let begun = |stamp: u64| stamp <= pass.until && stamp > complete.max(kept.stamp);
            // An earlier subscription to the topic has been given the message, by a pass or when it arrived.
            let is_owed = topic.starts_with(only)
                && subscriptions.earliest_of(slot, topic, subscriber).is_some_and(begun);
            if is_owed && pool.refer(kept.handle, 1) {
                let len = pool.info(kept.handle).map_or(0, |info| info.len);
                match peers.push(ch, subscriber, Item { handle: kept.handle, len, cached: true }, now) {
                    Some(dropped) => _ = pool.release(dropped),
                    None => ch.counters.replayed += 1,
                }
            }
        }
        ch.cache = Some(cache);
    }
}
