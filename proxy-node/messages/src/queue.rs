//! Messages that wait for one receiver, and messages in flight to it: taken and not finished.
//!
//! ```text
//!   push ─▶ |waiting: at most the mark| ─ take ─▶ |in flight: at most as many as configured| ─ finish ─▶
//! ```
//! The queue refers to messages of the pool; its owner holds and releases the references. Its memory is
//! allocated when it is made. Messages in flight belong to the transport and are never dropped.

use std::collections::VecDeque;

use crate::pool::MessageHandle;

pub use csp_types::options::FullQueue;

/// Marks of a queue. It is full when it has reached either of the first two, so that its last message may
/// exceed the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Waiting messages, at least 1.
    pub messages: u32,
    /// Bytes of waiting messages, at least 1.
    pub bytes: u64,
    /// Messages in flight, at least 1.
    pub in_flight: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits { messages: 1_000, bytes: 4 << 20, in_flight: 64 }
    }
}

/// Messages of one receiver since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounters {
    /// Put into the queue.
    pub queued: u64,
    /// Given to the receiver.
    pub taken: u64,
    /// Dropped because the queue was full: the newest.
    pub dropped_newest: u64,
    /// Dropped because the queue was full: the oldest.
    pub dropped_oldest: u64,
    /// Dropped from the queue of a receiver that took nothing, to make room in the pool.
    pub dropped_stalled: u64,
    /// Dropped because the pool had no room for the message.
    pub dropped_memory: u64,
}

impl QueueCounters {
    /// Messages dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_newest + self.dropped_oldest + self.dropped_stalled + self.dropped_memory
    }
}

/// A message in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub handle: MessageHandle,
    pub len: u32,
    /// The message is a last value that was published before the receiver subscribed.
    pub cached: bool,
}

/// The result of a push. The caller releases the reference of a dropped message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    Queued,
    /// Queued; contains the oldest, which was dropped.
    DroppedOldest(Item),
    /// Not queued.
    DroppedNewest,
}

#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<Item>,
    in_flight: VecDeque<Item>,
    bytes: u64,
    /// The queue has been full and is more than half full since: publishers are held back if the policy is to
    /// block.
    was_full: bool,
    pub counters: QueueCounters,
}

impl Queue {
    pub fn new(limits: &QueueLimits) -> Self {
        Queue {
            waiting: VecDeque::with_capacity(limits.messages as usize),
            in_flight: VecDeque::with_capacity(limits.in_flight as usize),
            bytes: 0,
            was_full: false,
            counters: QueueCounters::default(),
        }
    }

    /// A queue without memory, for a peer that receives nothing.
    pub fn none() -> Self {
        Queue::new(&QueueLimits { messages: 0, bytes: 0, in_flight: 0 })
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of waiting messages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the messages in flight.
    pub fn handles_in_flight(&self) -> impl Iterator<Item = MessageHandle> + '_ {
        self.in_flight.iter().map(|item| item.handle)
    }

    pub fn is_full(&self, limits: &QueueLimits) -> bool {
        self.waiting.len() >= limits.messages as usize || self.bytes >= limits.bytes
    }

    /// Returns whether the queue is more than half full.
    pub fn is_half(&self, limits: &QueueLimits) -> bool {
        self.waiting.len() > limits.messages as usize / 2 || self.bytes > limits.bytes / 2
    }

    /// Returns whether the queue has been full and is more than half full since.
    pub fn was_full(&self) -> bool {
        self.was_full
    }

    /// Returns whether a message could be taken.
    pub fn is_ready(&self, limits: &QueueLimits) -> bool {
        !self.waiting.is_empty() && self.in_flight.len() < limits.in_flight as usize
    }

    /// Queues a message, or drops one and counts it. A full queue that blocks is not pushed to, except for
    /// last values.
    pub fn push(&mut self, item: Item, limits: &QueueLimits, policy: FullQueue) -> Pushed {
        let mut dropped = None;
        if self.is_full(limits) {
            if policy != FullQueue::DropOldest {
                self.counters.dropped_newest += 1;
                return Pushed::DroppedNewest;
            }
            dropped = self.pop(limits);
            self.counters.dropped_oldest += u64::from(dropped.is_some());
        }
        self.bytes += u64::from(item.len);
        self.waiting.push_back(item);
        self.was_full |= self.is_full(limits);
        self.counters.queued += 1;
        dropped.map_or(Pushed::Queued, Pushed::DroppedOldest)
    }

    /// Queues a message whatever the marks say. May allocate beyond them.
    pub fn append(&mut self, item: Item, limits: &QueueLimits) {
        self.bytes += u64::from(item.len);
        self.waiting.push_back(item);
        self.was_full |= self.is_full(limits);
        self.counters.queued += 1;
    }

    /// Puts back a message in front of all. The caller has reserved room.
    pub fn push_front(&mut self, item: Item, limits: &QueueLimits) {
        self.bytes += u64::from(item.len);
        self.waiting.push_front(item);
        self.was_full |= self.is_full(limits);
    }

    /// Reserves room for `messages` beyond those that wait.
    pub fn reserve(&mut self, messages: usize) {
        self.waiting.reserve(messages);
    }

    /// Returns the oldest waiting message.
    pub fn front(&self) -> Option<Item> {
        self.waiting.front().copied()
    }

    /// Returns the waiting message after `skip` older ones.
    pub fn get(&self, skip: usize) -> Option<Item> {
        self.waiting.get(skip).copied()
    }

    /// Removes the oldest waiting message.
    pub fn pop(&mut self, limits: &QueueLimits) -> Option<Item> {
        let item = self.waiting.pop_front()?;
        self.bytes -= u64::from(item.len);
        self.was_full &= self.waiting.len() > limits.messages as usize / 2 || self.bytes > limits.bytes / 2;
        if self.waiting.is_empty() {
            // The ring starts again at its beginning, whose memory is warm.
            self.waiting.clear();
        }
        Some(item)
    }

    /// Removes the newest waiting message.
    pub fn pop_back(&mut self) -> Option<Item> {
        let item = self.waiting.pop_back()?;
        self.bytes -= u64::from(item.len);
        Some(item)
    }

    /// Removes the newest waiting message, unless it is one of the `kept` oldest.
    pub fn pop_newer(&mut self, kept: usize) -> Option<Item> {
        if self.waiting.len() > kept { self.pop_back() } else { None }
    }

    /// Removes the oldest waiting message, which is in flight from now on.
    pub fn take(&mut self, limits: &QueueLimits) -> Option<Item> {
        if !self.is_ready(limits) {
            return None;
        }
        let item = self.pop(limits)?;
        self.in_flight.push_back(item);
        self.counters.taken += 1;
        Some(item)
    }

    /// Removes the oldest message in flight if it is `handle`.
    pub fn finish(&mut self, handle: MessageHandle) -> bool {
        let is_next = self.in_flight.front().is_some_and(|item| item.handle == handle);
        if is_next {
            self.in_flight.pop_front();
        }
        is_next
    }

    /// Removes the oldest message in flight.
    pub fn pop_in_flight(&mut self) -> Option<Item> {
        self.in_flight.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Budget, MessagePool, PoolConfig};
    use csp_types::Instant;

    const LIMITS: QueueLimits = QueueLimits { messages: 4, bytes: 100, in_flight: 2 };

    fn items(lens: &[u32]) -> Vec<Item> {
        let mut pool = MessagePool::new(PoolConfig { block_len: 8, blocks: 64 }, 1);
        pool.set_budget(0, Some(Budget { guaranteed: 0, max: 512 })).unwrap();
        let mut item = |len: &u32| {
            let handle = pool.store(0, (Instant::ZERO, 0), &[0], []).unwrap();
            Item { handle, len: *len, cached: false }
        };
        lens.iter().map(&mut item).collect()
    }

    #[test]
    fn a_full_queue_drops_what_its_policy_names() {
        let all = items(&[1; 6]);
        for policy in [FullQueue::DropNewest, FullQueue::DropOldest] {
            let mut queue = Queue::new(&LIMITS);
            let dropped: Vec<Pushed> = all.iter().map(|item| queue.push(*item, &LIMITS, policy)).collect();
            let (kept, counters) = match policy {
                FullQueue::DropNewest => (&all[..4], (2, 0)),
                _ => (&all[2..], (0, 2)),
            };
            let expected = match policy {
                FullQueue::DropNewest => [Pushed::DroppedNewest; 2],
                _ => [Pushed::DroppedOldest(all[0]), Pushed::DroppedOldest(all[1])],
            };
            assert_eq!(dropped[4..], expected);
            assert_eq!((queue.counters.dropped_newest, queue.counters.dropped_oldest), counters);
            assert_eq!(std::iter::from_fn(|| queue.pop(&LIMITS)).collect::<Vec<_>>(), kept);
        }
    }

    #[test]
    fn bytes_fill_a_queue_and_a_long_message_goes_through_an_empty_one() {
        let all = items(&[5_000, 1, 99, 1]);
        let mut queue = Queue::new(&LIMITS);
        assert_eq!(queue.push(all[0], &LIMITS, FullQueue::DropNewest), Pushed::Queued);
        assert_eq!(queue.push(all[1], &LIMITS, FullQueue::DropNewest), Pushed::DroppedNewest);
        assert_eq!(queue.pop(&LIMITS), Some(all[0]));
        assert!(!queue.was_full() && !queue.is_full(&LIMITS));
        all[2..]
            .iter()
            .for_each(|item| assert_eq!(queue.push(*item, &LIMITS, FullQueue::Block), Pushed::Queued));
        assert!(queue.is_full(&LIMITS) && queue.was_full());
    }

    #[test]
    fn a_queue_that_was_full_counts_as_full_until_half_is_gone() {
        let all = items(&[1; 4]);
        let mut queue = Queue::new(&LIMITS);
        all.iter().for_each(|item| _ = queue.push(*item, &LIMITS, FullQueue::Block));
        queue.pop(&LIMITS);
        assert!(queue.was_full());
        queue.pop(&LIMITS);
        assert!(!queue.was_full());
    }

    #[test]
    fn what_is_in_flight_is_bounded_and_finishes_in_order() {
        let all = items(&[1; 4]);
        let mut queue = Queue::new(&LIMITS);
        all.iter().for_each(|item| _ = queue.push(*item, &LIMITS, FullQueue::DropOldest));
        assert_eq!([queue.take(&LIMITS), queue.take(&LIMITS)], [Some(all[0]), Some(all[1])]);
        assert_eq!((queue.take(&LIMITS), queue.is_ready(&LIMITS)), (None, false));
        assert!(!queue.finish(all[1].handle) && queue.finish(all[0].handle));
        assert_eq!(queue.take(&LIMITS), Some(all[2]));
        assert_eq!((queue.len(), queue.in_flight(), queue.counters.taken), (1, 2, 3));
    }
}
