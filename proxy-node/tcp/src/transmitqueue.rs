//! The queue of connections that may be able to transmit. It holds back the connections of network nodes that
//! have no room.
//!
//! ```text
//!  ready   ─▶ slot ─▶ slot ─▶ …          connections that may transmit, served in turn
//!  held[0] ─▶ slot ─▶ …                  of one network node without room; moved to `ready` when it has room
//!  held[1] ─▶ …
//! ```
//! Each slot is in at most one list. The lists share their links, so that holding back and resuming allocate
//! nothing. A held connection is skipped until its network node is resumed.

use crate::list::NIL;

/// Most network nodes that can be held back at once. If one more is not ready, all transmission waits.
pub const HELD_MAX: usize = 64;
/// Index of the list of connections that may transmit.
const READY: u8 = 0;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    /// Index of the list that the slot is in; [`NOWHERE`] if none.
    list: u8,
}

const NOWHERE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const EMPTY: Ends = Ends { head: NIL, tail: NIL };

/// The queue.
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    links: Vec<Link>,
    lists: [Ends; HELD_MAX + 1],
    /// The network node of each held list, indexed by list minus one.
    held: [Option<u32>; HELD_MAX],
    held_count: usize,
}

impl TransmitQueue {
    /// An empty queue over `slots` slots.
    pub fn new(slots: usize) -> Self {
        let links = vec![Link { previous: NIL, next: NIL, list: NOWHERE }; slots];
        TransmitQueue { links, lists: [EMPTY; HELD_MAX + 1], held: [None; HELD_MAX], held_count: 0 }
    }

    /// The list of the connections of `via`.
    fn list_of(&self, via: u32) -> u8 {
        if self.held_count == 0 {
            return READY;
        }
        self.held.iter().position(|h| *h == Some(via)).map_or(READY, |at| at as u8 + 1)
    }

    /// Appends `slot`, whose network node is `via`. A slot in the held list of another network node moves.
    pub fn push_back(&mut self, slot: u32, via: u32) {
        let list = self.list_of(via);
        match self.links.get(slot as usize) {
            None => {}
            Some(link) if link.list == NOWHERE => self.append(slot, list),
            // In the ready list although its node is held: it is moved when it reaches the front.
            Some(link) if link.list == list || link.list == READY => {}
            Some(_) => {
                self.remove(slot);
                self.append(slot, list);
            }
        }
    }

    fn append(&mut self, slot: u32, list: u8) {
        let tail = self.lists[list as usize].tail;
        self.links[slot as usize] = Link { previous: tail, next: NIL, list };
        match tail {
            NIL => self.lists[list as usize].head = slot,
            tail => self.links[tail as usize].next = slot,
        }
        self.lists[list as usize].tail = slot;
    }

    /// Removes `slot`; does nothing if it is not in the queue.
    pub fn remove(&mut self, slot: u32) {
        let Some(&Link { previous, next, list }) = self.links.get(slot as usize) else { return };
        if list == NOWHERE {
            return;
        }
        match previous {
            NIL => self.lists[list as usize].head = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NIL => self.lists[list as usize].tail = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.links[slot as usize].list = NOWHERE;
    }

    /// Removes and returns the first slot of the ready list.
    pub fn pop_front(&mut self) -> Option<u32> {
        let slot = self.lists[READY as usize].head;
        (slot != NIL).then(|| {
            self.remove(slot);
            slot
        })
    }

    /// Holds back the connections of `via` from now on; `false` if [`HELD_MAX`] network nodes are held
    /// already.
    pub fn hold(&mut self, via: u32) -> bool {
        if self.list_of(via) != READY {
            return true;
        }
        let Some(place) = self.held.iter_mut().find(|h| h.is_none()) else { return false };
        *place = Some(via);
        self.held_count += 1;
        true
    }

    /// Ends [`hold`](Self::hold): appends the connections of `via` to the ready list.
    pub fn resume(&mut self, via: u32) {
        let list = self.list_of(via);
        if list == READY {
            return;
        }
        self.held[list as usize - 1] = None;
        self.held_count -= 1;
        while self.lists[list as usize].head != NIL {
            let slot = self.lists[list as usize].head;
            self.remove(slot);
            self.append(slot, READY);
        }
    }

    /// Network nodes that are held back.
    pub fn held(&self) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().take(if self.held_count == 0 { 0 } else { HELD_MAX }).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut TransmitQueue) -> Vec<u32> {
        core::iter::from_fn(|| queue.pop_front()).collect()
    }

    #[test]
    fn connections_of_a_held_node_wait_in_order_and_the_others_do_not() {
        let mut queue = TransmitQueue::new(8);
        assert!(queue.hold(7));
        for (slot, via) in [(0, 1), (3, 7), (2, 7), (3, 7), (1, 1), (99, 1)] {
            queue.push_back(slot, via);
        }
        assert_eq!(drain(&mut queue), [0, 1]);
        queue.push_back(5, 1);
        queue.resume(7);
        queue.resume(7);
        assert_eq!((drain(&mut queue), queue.held().count()), (vec![5, 3, 2], 0));
    }

    #[test]
    fn a_held_connection_that_changes_over_to_another_node_is_ready_at_once() {
        let mut queue = TransmitQueue::new(4);
        assert!(queue.hold(7));
        queue.push_back(1, 7);
        queue.push_back(2, 7);
        queue.push_back(1, 8);
        assert_eq!(drain(&mut queue), [1]);
        queue.remove(2);
        queue.resume(7);
        assert_eq!(drain(&mut queue), []);
    }

    #[test]
    fn no_more_nodes_are_held_than_there_are_lists() {
        let mut queue = TransmitQueue::new(1);
        assert!((0..HELD_MAX as u32).all(|via| queue.hold(via)));
        assert!(!queue.hold(1000) && queue.hold(3), "one that is held already needs no place");
        queue.resume(5);
        assert!(queue.hold(1000));
    }
}
