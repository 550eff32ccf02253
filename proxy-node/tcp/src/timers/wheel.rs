//! A hierarchical timer wheel over the slots of a table. Nothing is allocated after start-up.
//!
//! ```text
//!   level 0: 64 slots of 1 tick (2¹⁷ ns ≈ 0.13 ms)    each slot is a list of entries
//!   level 1: 64 slots of 64 ticks (8.4 ms)            an entry moves down a level when its slot comes up
//!   level 2: 64 slots of 4096 ticks (537 ms)
//!   level 3: 64 slots of 262144 ticks (34 s), a ring  later deadlines go round
//! ```

use csp_types::Instant;

use crate::list::NIL;

/// A tick is short enough for pacing.
const TICK_SHIFT: u32 = 17;
const LEVELS: usize = 4;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Index of the list of due entries.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const UNSCHEDULED: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    previous: u32,
    next: u32,
    slot: u16,
    tick: u64,
}

/// Deadlines by table slot, each at most once.
#[derive(Debug)]
pub(crate) struct Wheel {
    entries: Vec<Entry>,
    heads: [u32; LEVELS * SLOTS + 1],
    occupied: [u64; LEVELS],
    /// Entries up to this tick are due or were returned.
    elapsed: u64,
}

impl Wheel {
    /// A wheel for `entries` entries.
    pub fn new(entries: usize) -> Self {
        let entry = Entry { previous: NIL, next: NIL, slot: UNSCHEDULED, tick: 0 };
        Wheel {
            entries: vec![entry; entries],
            heads: [NIL; LEVELS * SLOTS + 1],
            occupied: [0; LEVELS],
            elapsed: 0,
        }
    }

    /// Schedules `index` so that it is returned at `deadline` or up to a tick later. It may be returned
    /// earlier, because an earlier deadline that was set before is kept.
    pub fn schedule(&mut self, index: u32, deadline: Instant) {
        if deadline == Instant::FAR_FUTURE {
            return;
        }
        let tick = deadline.as_nanos().div_ceil(1 << TICK_SHIFT).max(self.elapsed + 1);
        let entry = &self.entries[index as usize];
        if entry.slot != UNSCHEDULED {
            if entry.tick <= tick {
                return;
            }
            self.cancel(index);
        }
        self.entries[index as usize].tick = tick;
        self.place(index);
    }

    /// Removes `index`.
    pub fn cancel(&mut self, index: u32) {
        let Entry { previous, next, slot, .. } = self.entries[index as usize];
        if slot == UNSCHEDULED {
            return;
        }
        match previous {
            NIL => self.heads[slot as usize] = next,
            previous => self.entries[previous as usize].next = next,
        }
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        if slot != DUE && self.heads[slot as usize] == NIL {
            self.occupied[slot as usize / SLOTS] &= !(1 << (slot as usize % SLOTS));
        }
        self.entries[index as usize].slot = UNSCHEDULED;
    }

    /// Removes and returns an entry that is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_nanos() >> TICK_SHIFT;
        loop {
            let head = self.heads[DUE as usize];
            if head != NIL {
                self.cancel(head);
                return Some(head);
            }
            match self.next_slot() {
                Some((tick, slot)) if tick <= now_tick => {
                    self.elapsed = tick;
                    self.cascade(slot);
                }
                _ => {
                    self.elapsed = self.elapsed.max(now_tick);
                    return None;
                }
            }
        }
    }

    /// When to call [`Wheel::pop_due`] next; it may find no entry.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.heads[DUE as usize] != NIL {
            return Some(Instant::from_nanos(self.elapsed << TICK_SHIFT));
        }
        self.next_slot().map(|(tick, _)| Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// The occupied slot whose time comes first, and its first tick.
    fn next_slot(&self) -> Option<(u64, usize)> {
        (0..LEVELS).filter_map(|level| self.next_slot_of(level)).min()
    }

    fn next_slot_of(&self, level: usize) -> Option<(u64, usize)> {
        let shift = SLOT_BITS * level as u32;
        let here = self.elapsed >> shift;
        // Slots from the current one on, cyclically; only the highest level has occupied slots after the
        // wrap.
        let turned = self.occupied[level].rotate_right((here % SLOTS as u64) as u32);
        if turned == 0 {
            return None;
        }
        let number = here + u64::from(turned.trailing_zeros());
        Some((number << shift, level * SLOTS + (number % SLOTS as u64) as usize))
    }

    /// Moves every entry of a slot whose time has come to a lower level or to the list of due entries.
    fn cascade(&mut self, slot: usize) {
        while self.heads[slot] != NIL {
            let index = self.heads[slot];
            self.cancel(index);
            self.place(index);
        }
    }

    fn place(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick;
        let slot = if tick <= self.elapsed {
            DUE
        } else {
            // The level is that of the highest bit in which the tick differs from the current one.
            let differing = (tick ^ self.elapsed) | (SLOTS as u64 - 1);
            let level = (((63 - differing.leading_zeros()) / SLOT_BITS) as usize).min(LEVELS - 1);
            let shift = SLOT_BITS * level as u32;
            let number = (tick >> shift).min((self.elapsed >> shift) + SLOTS as u64 - 1);
            let position = (number % SLOTS as u64) as usize;
            self.occupied[level] |= 1 << position;
            (level * SLOTS + position) as u16
        };
        let head = self.heads[slot as usize];
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next, entry.slot) = (NIL, head, slot);
        if head != NIL {
            self.entries[head as usize].previous = index;
        }
        self.heads[slot as usize] = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 1 << TICK_SHIFT;

    #[test]
    fn every_deadline_fires_once_within_a_tick() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 20) % below
        };
        let mut wheel = Wheel::new(64);
        let mut deadlines = [None; 64];
        let mut now = 0u64;
        for _ in 0..40_000 {
            let index = random(64) as u32;
            let reach = [3, 200, 20_000, 2_000_000, 60_000_000][random(5) as usize];
            if deadlines[index as usize].is_none() {
                let deadline = now + random(reach * TICK);
                wheel.schedule(index, Instant::from_nanos(deadline));
                deadlines[index as usize] = Some(deadline);
            }
            if random(20) == 0 {
                wheel.cancel(index);
                deadlines[index as usize] = None;
            }
            let next = wheel.next_deadline();
            assert_eq!(next.is_some(), deadlines.iter().flatten().count() > 0);
            let earliest = deadlines.iter().flatten().min().copied();
            let Some(next) = next else { continue };
            assert!(
                next.as_nanos() <= earliest.unwrap().max(now) + 2 * TICK,
                "never reported later than due"
            );
            now = if random(3) == 0 { next.as_nanos().max(now) } else { now + random(reach * TICK / 4) };
            while let Some(index) = wheel.pop_due(Instant::from_nanos(now)) {
                let deadline = deadlines[index as usize].take().expect("fires once");
                assert!(deadline <= now);
            }
            assert!(deadlines.iter().flatten().all(|&d| d + 2 * TICK > now), "none is late");
        }
    }

    #[test]
    fn waiting_for_the_reported_deadline_makes_progress() {
        let mut wheel = Wheel::new(1);
        let deadline = 7_200 * 1_000_000_000 * 4;
        wheel.schedule(0, Instant::from_nanos(deadline));
        let mut steps = 0;
        loop {
            let now = wheel.next_deadline().unwrap();
            steps += 1;
            if wheel.pop_due(now).is_some() {
                assert!(now.as_nanos() >= deadline && now.as_nanos() < deadline + TICK);
                break;
            }
        }
        assert!(steps < 20, "{steps} steps for eight hours");
    }

    #[test]
    fn an_earlier_deadline_replaces_a_later_one() {
        let mut wheel = Wheel::new(2);
        wheel.schedule(1, Instant::from_nanos(500 * TICK));
        wheel.schedule(1, Instant::from_nanos(5 * TICK));
        wheel.schedule(1, Instant::from_nanos(700 * TICK));
        assert_eq!(wheel.pop_due(Instant::from_nanos(5 * TICK)), Some(1));
        assert_eq!(wheel.next_deadline(), None);
    }
}
