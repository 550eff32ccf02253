//! Metadata of data items between their arrival and the output link: per flow three first-in-first-out lists
//! over one table.
//!
//! ```text
//!   offer ─▶ waiting ─ take ─▶ in service ─ finish ─▶ ready ─ release ─▶ transmitter
//!     └────────── without a handler ───────────────────▲
//! ```
//! Several contexts may serve one flow at a time. What one has finished leaves *in service* only when all
//! that came before it have, so that a flow keeps its order. The data themselves lie elsewhere; an item names
//! them by a handle.

use csp_types::Instant;

const NIL: u32 = u32::MAX;

/// A data item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// What the owner of the data knows it by.
    pub handle: u64,
    /// Its length in bytes.
    pub bytes: u32,
    /// Its messages.
    pub messages: u16,
    /// When it arrived.
    pub arrived: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Running,
    Done,
    /// The handler has let nothing of it pass.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    item: Item,
    next: u32,
    service: Service,
}

#[derive(Clone, Copy, Debug)]
struct Fifo {
    head: u32,
    tail: u32,
    items: u32,
    bytes: u64,
}

const EMPTY: Fifo = Fifo { head: NIL, tail: NIL, items: 0, bytes: 0 };

/// The lists of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    waiting: Fifo,
    serving: Fifo,
    ready: Fifo,
}

impl Queue {
    pub const EMPTY: Queue = Queue { waiting: EMPTY, serving: EMPTY, ready: EMPTY };

    pub fn items(&self) -> u32 {
        self.waiting.items + self.serving.items + self.ready.items
    }

    pub fn bytes(&self) -> u64 {
        self.waiting.bytes + self.serving.bytes + self.ready.bytes
    }

    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting.items > 0
    }

    /// Returns whether contexts still have items to process.
    #[inline]
    pub fn is_unfinished(&self) -> bool {
        self.waiting.items + self.serving.items > 0
    }

    #[inline]
    pub fn has_ready(&self) -> bool {
        self.ready.items > 0
    }

    pub fn ready_bytes(&self) -> u64 {
        self.ready.bytes
    }
}

/// Which of the lists an item enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Waiting,
    Ready,
}

/// The items of all flows.
#[derive(Debug)]
pub(crate) struct Items {
    nodes: Vec<Node>,
    free: u32,
    used: usize,
}

impl Items {
    pub fn new(items_max: usize) -> Self {
        let item = Item { handle: 0, bytes: 0, messages: 0, arrived: Instant::ZERO };
        let next = |at: usize| if at + 1 == items_max { NIL } else { at as u32 + 1 };
        Items {
            nodes: (0..items_max)
                .map(|at| Node { item, next: next(at), service: Service::Running })
                .collect(),
            free: if items_max == 0 { NIL } else { 0 },
            used: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.free == NIL
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Appends an item to a flow; returns whether there was a place.
    pub fn push(&mut self, queue: &mut Queue, entry: Entry, item: Item) -> bool {
        let at = self.free;
        let Some(node) = self.nodes.get_mut(at as usize) else { return false };
        self.free = node.next;
        self.used += 1;
        *node = Node { item, next: NIL, service: Service::Running };
        match entry {
            Entry::Waiting => self.append(&mut queue.waiting, at),
            Entry::Ready => self.append(&mut queue.ready, at),
        }
        true
    }

    /// Moves the first waiting item into service. Returns its place, by which it is finished.
    pub fn take(&mut self, queue: &mut Queue) -> Option<(u32, Item)> {
        let at = self.pop(&mut queue.waiting)?;
        self.append(&mut queue.serving, at);
        Some((at, self.nodes[at as usize].item))
    }

    /// Ends the service of an item, of which `bytes` are left, or nothing.
    pub fn finish(&mut self, queue: &mut Queue, at: u32, bytes: Option<u32>) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        queue.serving.bytes -= u64::from(node.item.bytes);
        match bytes {
            Some(bytes) => (node.item.bytes, node.service) = (bytes, Service::Done),
            None => (node.item.bytes, node.service) = (0, Service::Gone),
        }
        queue.serving.bytes += u64::from(node.item.bytes);
        while let Some(node) = self.nodes.get(queue.serving.head as usize) {
            let service = node.service;
            if service == Service::Running {
                break;
            }
            let Some(at) = self.pop(&mut queue.serving) else { break };
            match service {
                Service::Gone => self.release(at),
                _ => self.append(&mut queue.ready, at),
            }
        }
    }

    /// Gives the data of an item in service another handle: the handler has made something else of them.
    pub fn rename(&mut self, at: u32, handle: u64) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.item.handle = handle;
        }
    }

    /// Removes the first item that is ready.
    pub fn pop_ready(&mut self, queue: &mut Queue) -> Option<Item> {
        let at = self.pop(&mut queue.ready)?;
        self.release(at);
        Some(self.nodes[at as usize].item)
    }

    /// Removes the item that has waited longest: of those that no context has processed yet, if there are
    /// any, so that no work is thrown away while contexts give a flow just what it is promised.
    pub fn evict(&mut self, queue: &mut Queue) -> Option<Item> {
        let at = self.pop(&mut queue.waiting).or_else(|| self.pop(&mut queue.ready))?;
        self.release(at);
        Some(self.nodes[at as usize].item)
    }

    fn append(&mut self, fifo: &mut Fifo, at: u32) {
        let node = &mut self.nodes[at as usize];
        node.next = NIL;
        fifo.bytes += u64::from(node.item.bytes);
        match fifo.tail {
            NIL => fifo.head = at,
            tail => self.nodes[tail as usize].next = at,
        }
        fifo.tail = at;
        fifo.items += 1;
    }

    fn pop(&mut self, fifo: &mut Fifo) -> Option<u32> {
        let at = fifo.head;
        let node = self.nodes.get(at as usize)?;
        fifo.head = node.next;
        if fifo.head == NIL {
            fifo.tail = NIL;
        }
        fifo.items -= 1;
        fifo.bytes -= u64::from(node.item.bytes);
        Some(at)
    }

    fn release(&mut self, at: u32) {
        self.nodes[at as usize].next = self.free;
        self.free = at;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(handle: u64) -> Item {
        Item { handle, bytes: 10, messages: 1, arrived: Instant::ZERO }
    }

    #[test]
    fn items_that_are_finished_out_of_order_leave_in_order() {
        let (mut items, mut queue) = (Items::new(4), Queue::EMPTY);
        (0..4).for_each(|n| assert!(items.push(&mut queue, Entry::Waiting, item(n))));
        assert!(!items.push(&mut queue, Entry::Waiting, item(9)), "the table is full");
        let taken: Vec<u32> = (0..3).map(|_| items.take(&mut queue).unwrap().0).collect();
        items.finish(&mut queue, taken[2], Some(3));
        items.finish(&mut queue, taken[1], None);
        assert!(!queue.has_ready());
        items.finish(&mut queue, taken[0], Some(10));
        assert_eq!(queue.bytes(), 10 + 3 + 10);
        let left: Vec<u64> =
            std::iter::from_fn(|| items.pop_ready(&mut queue)).map(|item| item.handle).collect();
        assert_eq!((left, queue.items(), items.used()), (vec![0, 2], 1, 1));
        assert_eq!(items.evict(&mut queue), Some(item(3)));
        assert_eq!((queue.bytes(), items.used()), (0, 0));
    }
}
