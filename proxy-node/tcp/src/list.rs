//! A first-in first-out list of table slots. Each slot is in it at most once, and nothing is allocated.

/// "No slot".
pub(crate) const NIL: u32 = u32::MAX;

/// `links[slot]` is (previous, next); a slot that is not in the list points to itself on both sides.
#[derive(Debug)]
pub(crate) struct IndexList {
    links: Vec<(u32, u32)>,
    head: u32,
    tail: u32,
    len: usize,
}

impl IndexList {
    /// An empty list over `slots` slots.
    pub fn new(slots: usize) -> Self {
        let links = (0..slots as u32).map(|slot| (slot, slot)).collect();
        IndexList { links, head: NIL, tail: NIL, len: 0 }
    }

    /// Number of slots in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first slot.
    pub fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// The last slot.
    pub fn back(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    /// Whether `slot` is in the list.
    pub fn contains(&self, slot: u32) -> bool {
        self.links.get(slot as usize).is_some_and(|&(_, next)| next != slot)
    }

    /// Appends `slot` unless it is in the list.
    pub fn push_back(&mut self, slot: u32) {
        if slot as usize >= self.links.len() || self.contains(slot) {
            return;
        }
        self.links[slot as usize] = (self.tail, NIL);
        match self.tail {
            NIL => self.head = slot,
            tail => self.links[tail as usize].1 = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    /// Prepends `slot` unless it is in the list.
    pub fn push_front(&mut self, slot: u32) {
        if slot as usize >= self.links.len() || self.contains(slot) {
            return;
        }
        self.links[slot as usize] = (NIL, self.head);
        match self.head {
            NIL => self.tail = slot,
            head => self.links[head as usize].0 = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    /// Removes `slot`; does nothing if it is not in the list.
    pub fn remove(&mut self, slot: u32) {
        if !self.contains(slot) {
            return;
        }
        let (previous, next) = self.links[slot as usize];
        match previous {
            NIL => self.head = next,
            previous => self.links[previous as usize].1 = next,
        }
        match next {
            NIL => self.tail = previous,
            next => self.links[next as usize].0 = previous,
        }
        self.links[slot as usize] = (slot, slot);
        self.len -= 1;
    }

    /// Removes and returns the first slot.
    pub fn pop_front(&mut self) -> Option<u32> {
        let slot = self.front()?;
        self.remove(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_out_in_order_and_can_be_taken_from_the_middle() {
        let mut list = IndexList::new(5);
        for slot in [3, 1, 3, 4, 0, 99] {
            list.push_back(slot);
        }
        assert_eq!(list.len(), 4);
        list.remove(4);
        list.remove(4);
        list.remove(2);
        assert!(list.contains(1) && !list.contains(4));
        assert_eq!(
            [list.pop_front(), list.pop_front(), list.pop_front(), list.pop_front()],
            [Some(3), Some(1), Some(0), None]
        );
        assert_eq!(list.len(), 0);
        list.push_back(2);
        assert_eq!(list.front(), Some(2));
        list.push_front(3);
        list.push_front(2);
        assert_eq!([list.pop_front(), list.pop_front(), list.pop_front()], [Some(3), Some(2), None]);
        list.push_front(1);
        list.push_back(4);
        assert_eq!([list.pop_front(), list.pop_front()], [Some(1), Some(4)]);
    }
}
