//! The queue of events: a binary heap in the order of time, and of scheduling among events of the same
//! time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::Picoseconds;

/// Events that are due at a time. Refuses to schedule into the past.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    scheduled: u64,
    now: Picoseconds,
}

#[derive(Debug)]
struct Entry<E> {
    at: Picoseconds,
    number: u64,
    event: E,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), scheduled: 0, now: 0 }
    }
}

impl<E> Queue<E> {
    /// Time of the event that was taken last.
    pub fn now(&self) -> Picoseconds {
        self.now
    }

    /// Schedules an event. A time in the past counts as now.
    pub fn schedule(&mut self, at: Picoseconds, event: E) {
        debug_assert!(at >= self.now, "scheduled {} ps into the past", self.now - at);
        self.heap.push(Entry { at: at.max(self.now), number: self.scheduled, event });
        self.scheduled += 1;
    }

    /// Takes the next event and advances the time to it.
    pub fn take(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Number of events that are due later.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no event is due.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Picoseconds, u64) {
        (self.at, self.number)
    }
}

// Reversed: the heap's greatest entry is the earliest one.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b'), (5, 'e')] {
            queue.schedule(at, event);
        }
        let mut order = Vec::new();
        while let Some(event) = queue.take() {
            order.push((queue.now(), event));
        }
        assert_eq!(order, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd'), (5, 'e')]);
    }
}
