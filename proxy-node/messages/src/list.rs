//! Doubly linked lists over the slots of a table. A slot is in at most one of the lists that share [`Links`].

/// "No slot".
pub(crate) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of all slots. A slot that is in no list points to itself on both sides.
#[derive(Debug)]
pub(crate) struct Links(Vec<Link>);

/// One list; its links are in a [`Links`], which every call receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Links {
    /// Links of `slots` slots, none of which is in a list.
    pub fn new(slots: usize) -> Self {
        Links((0..slots as u32).map(|slot| Link { previous: slot, next: slot }).collect())
    }

    fn set_next(&mut self, slot: u32, next: u32) {
        if let Some(link) = self.0.get_mut(slot as usize) {
            link.next = next;
        }
    }

    fn set_previous(&mut self, slot: u32, previous: u32) {
        if let Some(link) = self.0.get_mut(slot as usize) {
            link.previous = previous;
        }
    }
}

impl List {
    /// A list of no slots.
    pub const EMPTY: List = List { head: NIL, tail: NIL };

    /// Returns whether the list has no slots.
    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Returns the first slot.
    pub fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// Returns the slot after `slot`, which must be in this list.
    pub fn after(&self, links: &Links, slot: u32) -> Option<u32> {
        links.0.get(slot as usize).map(|link| link.next).filter(|next| *next != NIL && *next != slot)
    }

    /// Appends `slot` unless it is in a list.
    pub fn push_back(&mut self, links: &mut Links, slot: u32) {
        let Some(link) = links.0.get_mut(slot as usize) else { return };
        if link.next != slot {
            return;
        }
        *link = Link { previous: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = slot,
            tail => links.set_next(tail, slot),
        }
        self.tail = slot;
    }

    /// Removes `slot` if it is in a list, which must be this one.
    pub fn remove(&mut self, links: &mut Links, slot: u32) {
        let Some(link) = links.0.get_mut(slot as usize) else { return };
        if link.next == slot {
            return;
        }
        let Link { previous, next } = std::mem::replace(link, Link { previous: slot, next: slot });
        match previous {
            NIL => self.head = next,
            previous => links.set_next(previous, next),
        }
        match next {
            NIL => self.tail = previous,
            next => links.set_previous(next, previous),
        }
    }

    /// Moves `slot`, which must be in this list, to the end.
    pub fn rotate(&mut self, links: &mut Links, slot: u32) {
        if self.tail != slot {
            self.remove(links, slot);
            self.push_back(links, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(list: &List, links: &Links) -> Vec<u32> {
        std::iter::successors(list.front(), |slot| list.after(links, *slot)).collect()
    }

    #[test]
    fn slots_keep_their_order_and_are_in_one_list() {
        let (mut links, mut list) = (Links::new(5), List::EMPTY);
        for slot in [3, 1, 4, 1] {
            list.push_back(&mut links, slot);
        }
        assert_eq!(slots(&list, &links), [3, 1, 4]);
        list.rotate(&mut links, 3);
        assert_eq!(slots(&list, &links), [1, 4, 3]);
        list.remove(&mut links, 4);
        list.remove(&mut links, 4);
        assert_eq!(slots(&list, &links), [1, 3]);
        [1, 3].into_iter().for_each(|slot| list.remove(&mut links, slot));
        assert!(list.is_empty() && list.front().is_none());
        list.push_back(&mut links, 99);
        assert!(list.is_empty(), "a slot that the table does not have is ignored");
    }
}
