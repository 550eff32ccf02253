//! Flows by a point in time: a ring of lists, each for 65.5 µs, with a bitmap of those that are not empty.
//! Every operation takes constant time, whatever the number of flows. What lies beyond the ring's 134 ms is
//! put at its end; its owner looks at the exact time when it comes up and puts it back.

use crate::lists::{Links, List};

/// Nanoseconds of a list, as a power of two.
const SHIFT: u32 = 16;
const LISTS: u64 = 2_048;
const WORDS: usize = LISTS as usize / 64;
/// What a time may be off by because a list has no order.
pub(crate) const GRAIN_NS: u64 = 1 << SHIFT;

#[derive(Debug)]
pub(crate) struct Calendar {
    lists: Vec<List>,
    words: [u64; WORDS],
    /// Which words are not zero.
    summary: u32,
    /// No flow is in a list before this one; lists are numbered from time zero on.
    base: u64,
}

impl Calendar {
    pub fn new() -> Self {
        Calendar { lists: vec![List::EMPTY; LISTS as usize], words: [0; WORDS], summary: 0, base: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// Puts a flow at a time. Returns where it is, for [`Calendar::remove`].
    #[inline]
    pub fn insert(&mut self, links: &mut Links, flow: u16, at_ns: u64, now_ns: u64) -> u16 {
        if self.is_empty() {
            self.base = now_ns >> SHIFT;
        }
        let list = (at_ns >> SHIFT).clamp(self.base, self.base + LISTS - 1) % LISTS;
        self.lists[list as usize].push_back(links, flow);
        self.words[list as usize / 64] |= 1 << (list % 64);
        self.summary |= 1 << (list / 64);
        list as u16
    }

    #[inline]
    pub fn remove(&mut self, links: &mut Links, flow: u16, list: u16) {
        let at = usize::from(list);
        self.lists[at].remove(links, flow);
        if self.lists[at].is_empty() {
            self.words[at / 64] &= !(1 << (list % 64));
            if self.words[at / 64] == 0 {
                self.summary &= !(1 << (at / 64));
            }
        }
    }

    /// Returns the first flow, and the beginning of its list's time.
    #[inline]
    pub fn first(&mut self, now_ns: u64) -> Option<(u16, u64)> {
        let from = (self.base % LISTS) as usize;
        let list = self.next_list(from)?;
        let number = self.base + (list + LISTS as usize - from) as u64 % LISTS;
        // The ring turns with the time, as far as it is empty.
        self.base = number.min((now_ns >> SHIFT).max(self.base));
        self.lists[list].front().map(|flow| (flow, number << SHIFT))
    }

    /// Returns the first list that is not empty from one on, around the ring.
    fn next_list(&self, from: usize) -> Option<usize> {
        let here = self.words[from / 64] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(from / 64 * 64 + here.trailing_zeros() as usize);
        }
        let later = self.summary & (u32::MAX << (from / 64)) << 1;
        let word = match (later, self.summary) {
            (0, 0) => return None,
            (0, all) => all.trailing_zeros(),
            (later, _) => later.trailing_zeros(),
        } as usize;
        // Only lists before `from` are left in its own word.
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_support::Random;

    #[test]
    fn flows_come_in_the_order_of_their_lists() {
        let mut random = Random::new(7);
        let (mut links, mut calendar, mut now) = (Links::new(300), Calendar::new(), 5_000_000_000u64);
        let mut at: Vec<Option<(u64, u16)>> = vec![None; 300];
        for _ in 0..20_000 {
            let flow = random.below(300) as u16;
            let slot = &mut at[usize::from(flow)];
            match slot.take() {
                Some((_, list)) => calendar.remove(&mut links, flow, list),
                None => {
                    let time = now + random.below(100_000_000);
                    *slot = Some((time, calendar.insert(&mut links, flow, time, now)));
                }
            }
            now += random.below(20_000);
            let least = at.iter().flatten().map(|(time, _)| time >> SHIFT).min();
            let found = calendar.first(now).map(|(flow, _)| at[usize::from(flow)].unwrap().0 >> SHIFT);
            assert_eq!(found, least);
            // Flows whose time has come leave.
            while let Some((flow, begins)) =
                calendar.first(now).filter(|(_, begins)| *begins + GRAIN_NS <= now)
            {
                let (time, list) = at[usize::from(flow)].take().unwrap();
                assert_eq!(time >> SHIFT << SHIFT, begins);
                calendar.remove(&mut links, flow, list);
            }
        }
    }
}
