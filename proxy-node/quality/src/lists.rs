//! Doubly linked lists over the slots of a table, and such lists by priority. A slot is in at most one of the
//! lists that share [`Links`]. Every operation takes constant time.

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of all slots. A slot that is in no list points to itself.
#[derive(Debug)]
pub(crate) struct Links(Vec<Link>);

/// One list; its links are in a [`Links`], which every call receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Links {
    /// Links of `slots` slots, all of which are in no list.
    pub fn new(slots: usize) -> Self {
        Links((0..slots as u32).map(|slot| Link { previous: slot, next: slot }).collect())
    }

    /// Returns whether a slot is in a list.
    pub fn is_linked(&self, slot: u16) -> bool {
        self.0.get(usize::from(slot)).is_some_and(|link| link.next != u32::from(slot))
    }

    fn at(&mut self, slot: u32) -> &mut Link {
        &mut self.0[slot as usize]
    }
}

impl List {
    /// A list of no slots.
    pub const EMPTY: List = List { head: NIL, tail: NIL };

    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub fn front(&self) -> Option<u16> {
        (self.head != NIL).then_some(self.head as u16)
    }

    /// Returns the slot after `slot`, which must be in this list.
    pub fn after(&self, links: &Links, slot: u16) -> Option<u16> {
        let next = links.0.get(usize::from(slot))?.next;
        (next != NIL && next != u32::from(slot)).then_some(next as u16)
    }

    /// Appends `slot` unless it is in a list.
    pub fn push_back(&mut self, links: &mut Links, slot: u16) {
        let slot = u32::from(slot);
        if slot as usize >= links.0.len() || links.at(slot).next != slot {
            return;
        }
        *links.at(slot) = Link { previous: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = slot,
            tail => links.at(tail).next = slot,
        }
        self.tail = slot;
    }

    /// Removes `slot` if it is in a list, which must be this one.
    pub fn remove(&mut self, links: &mut Links, slot: u16) {
        let slot = u32::from(slot);
        if slot as usize >= links.0.len() || links.at(slot).next == slot {
            return;
        }
        let Link { previous, next } = std::mem::replace(links.at(slot), Link { previous: slot, next: slot });
        match previous {
            NIL => self.head = next,
            previous => links.at(previous).next = next,
        }
        match next {
            NIL => self.tail = previous,
            next => links.at(next).previous = previous,
        }
    }

    /// Moves `slot`, which must be in this list, to the end.
    pub fn rotate(&mut self, links: &mut Links, slot: u16) {
        if self.tail != u32::from(slot) {
            self.remove(links, slot);
            self.push_back(links, slot);
        }
    }
}

/// Active flows by priority: one list for each of 256 levels and a bitmap of those that are not empty.
#[derive(Debug)]
pub(crate) struct Levels {
    lists: Vec<List>,
    links: Links,
    level: Vec<u8>,
    bits: [u64; 4],
}

impl Levels {
    pub fn new(flows: usize) -> Self {
        Levels {
            lists: vec![List::EMPTY; 256],
            links: Links::new(flows),
            level: vec![0; flows],
            bits: [0; 4],
        }
    }

    /// Moves a flow to a level, to its end if it is active.
    pub fn set_level(&mut self, flow: u16, level: u8) {
        if self.level[usize::from(flow)] == level {
            return;
        }
        let active = self.links.is_linked(flow);
        self.remove(flow);
        self.level[usize::from(flow)] = level;
        if active {
            self.insert(flow);
        }
    }

    pub fn level(&self, flow: u16) -> u8 {
        self.level[usize::from(flow)]
    }

    pub fn insert(&mut self, flow: u16) {
        let level = self.level(flow);
        self.lists[usize::from(level)].push_back(&mut self.links, flow);
        self.bits[usize::from(level / 64)] |= 1 << (level % 64);
    }

    pub fn remove(&mut self, flow: u16) {
        let level = self.level(flow);
        let list = &mut self.lists[usize::from(level)];
        list.remove(&mut self.links, flow);
        if list.is_empty() {
            self.bits[usize::from(level / 64)] &= !(1 << (level % 64));
        }
    }

    /// Returns the first flow of the highest level that has one.
    #[inline]
    pub fn first(&self) -> Option<u16> {
        let word = (0..4).rev().find(|word| self.bits[*word] != 0)?;
        let level = word * 64 + 63 - self.bits[word].leading_zeros() as usize;
        self.lists[level].front()
    }

    /// Moves an active flow behind the others of its level.
    #[inline]
    pub fn rotate(&mut self, flow: u16) {
        let level = usize::from(self.level(flow));
        self.lists[level].rotate(&mut self.links, flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_order_and_are_in_one_list() {
        let (mut links, mut list) = (Links::new(5), List::EMPTY);
        [3, 1, 4, 1].into_iter().for_each(|slot| list.push_back(&mut links, slot));
        let slots = |list: &List, links: &Links| -> Vec<u16> {
            std::iter::successors(list.front(), |slot| list.after(links, *slot)).collect()
        };
        assert_eq!(slots(&list, &links), [3, 1, 4]);
        list.rotate(&mut links, 3);
        assert_eq!(slots(&list, &links), [1, 4, 3]);
        [4, 4, 3, 1].into_iter().for_each(|slot| list.remove(&mut links, slot));
        assert!(list.is_empty());
        list.push_back(&mut links, 99);
        assert!(list.is_empty(), "a slot that the table does not have is ignored");
    }

    #[test]
    fn the_highest_level_comes_first_and_levels_change() {
        let mut levels = Levels::new(4);
        [(0, 3), (1, 200), (2, 200), (3, 64)].into_iter().for_each(|(flow, level)| {
            levels.set_level(flow, level);
            levels.insert(flow);
        });
        assert_eq!(levels.first(), Some(1));
        levels.rotate(1);
        assert_eq!(levels.first(), Some(2));
        levels.set_level(2, 1);
        levels.remove(1);
        assert_eq!(levels.first(), Some(3));
        levels.remove(3);
        assert_eq!(levels.first(), Some(0));
        levels.set_level(2, 255);
        assert_eq!(levels.first(), Some(2));
    }
}
