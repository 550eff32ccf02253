//! Which receive slot a message goes to: the receiver posts slots and grants them, the sender uses them in that order.
//!
//! Message n (from 0) goes into the slot that the receiver posted n-th. The first `depth` slots are posted in their natural
//! order when the VI is made, which needs no word. From then on the receiver writes entry n, (n + 1) << 12 | slot, into a
//! ring in the sender's memory by RDMA WRITE; each entry tells by itself which lap it belongs to.
//!
//! ```text
//! receiver                     ring in the sender's memory            sender
//! post slot s ─▶ owed ─▶ WRITE [n]: (n+1)<<12 | s, a run at a time ─▶ message n ─▶ slot s
//! ```
//!
//! Grants are paid in runs, since each costs a packet: when half the slots are owed, or the sender has none left.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of the ring in the sender's memory; no receiver has more slots.
pub(super) const RING_LEN: usize = 4096;

/// Bits of an entry that name the slot.
const SLOT_BITS: u32 = 12;

const _: () = assert!(RING_LEN.is_power_of_two() && RING_LEN <= 1 << SLOT_BITS);

/// The peer wrote something that no correct peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

fn entry(number: u64, slot: u32) -> u64 {
    (number + 1) << SLOT_BITS | u64::from(slot)
}

/// The sender's side: what it was granted and has used.
#[derive(Debug)]
pub(super) struct Granted {
    depth: u32,
    sent: u64,
}

impl Granted {
    /// For a peer that has `depth` slots.
    pub(super) fn new(depth: u32) -> Self {
        Granted { depth, sent: 0 }
    }

    /// The slot of the next message; `None` where the peer has posted no further one. `ring` has [`RING_LEN`] entries,
    /// which the peer may write at any time: an entry is read once.
    pub(super) fn next(&self, ring: &[AtomicU64]) -> Result<Option<u32>, Violation> {
        if self.sent < u64::from(self.depth) {
            return Ok(Some(self.sent as u32));
        }
        let place = ring.get(self.sent as usize & (RING_LEN - 1)).ok_or(Violation)?;
        let found = u64::from_le(place.load(Ordering::Acquire));
        if found >> SLOT_BITS != self.sent + 1 {
            return Ok(None);
        }
        let slot = (found & ((1 << SLOT_BITS) - 1)) as u32;
        if slot < self.depth { Ok(Some(slot)) } else { Err(Violation) }
    }

    /// The next message was sent.
    pub(super) fn advance(&mut self) {
        self.sent += 1;
    }
}

const POSTED: u32 = u32::MAX;

/// A run of entries to be written to the sender, without a wrap on either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// Index of the first in this end's ring.
    pub here: usize,
    /// Index of the first in the sender's ring.
    pub there: usize,
    /// How many entries, at least one.
    pub count: usize,
}

/// The receiver's side: what it has posted, told and received.
#[derive(Debug)]
pub(super) struct Posted {
    depth: u32,
    received: u64,
    posted: u64,
    advertised: u64,
    /// Slots in the order posted, by number modulo its length, a power of two.
    order: Box<[u16]>,
    /// The length of the message in each slot while the caller holds it, else [`POSTED`].
    held: Box<[u32]>,
}

impl Posted {
    /// All of `depth` slots (1 to [`RING_LEN`]) posted in their natural order.
    pub(super) fn new(depth: u32) -> Self {
        let depth_u64 = u64::from(depth);
        Posted {
            depth,
            received: 0,
            posted: depth_u64,
            advertised: depth_u64,
            order: (0..Self::ring_len(depth) as u16).collect(),
            held: vec![POSTED; depth as usize].into(),
        }
    }

    /// Entries of this end's ring, from which runs are written.
    pub(super) fn ring_len(depth: u32) -> usize {
        (depth as usize).next_power_of_two()
    }

    /// The slot of the next message to arrive; `None` where the peer was told of no further one.
    pub(super) fn next(&self) -> Option<u32> {
        let slot = self.order.get(self.received as usize & (self.order.len() - 1))?;
        (self.received < self.advertised).then_some(u32::from(*slot))
    }

    /// A message of `len` bytes lies in the slot that [`next`](Self::next) gave; the caller holds it.
    pub(super) fn arrive(&mut self, slot: u32, len: u32) {
        self.received += 1;
        if let Some(held) = self.held.get_mut(slot as usize) {
            *held = len;
        }
    }

    /// The length of the message in a held slot.
    pub(super) fn held(&self, slot: u32) -> Option<u32> {
        self.held.get(slot as usize).copied().filter(|&len| len != POSTED)
    }

    /// Posts a held slot again, noted in `ring` (of [`ring_len`](Self::ring_len) entries); `None` where it is not held.
    pub(super) fn post(&mut self, ring: &[AtomicU64], slot: u32) -> Option<()> {
        let held = self.held.get_mut(slot as usize).filter(|held| **held != POSTED)?;
        let at = self.posted as usize & (self.order.len() - 1);
        ring.get(at)?.store(entry(self.posted, slot).to_le(), Ordering::Release);
        *held = POSTED;
        self.order[at] = slot as u16;
        self.posted += 1;
        Some(())
    }

    /// Whether the peer has to be told now.
    pub(super) fn advertisement_due(&self) -> bool {
        let unadvertised = self.posted - self.advertised;
        unadvertised > 0 && (self.advertised == self.received || unadvertised * 2 >= u64::from(self.depth))
    }

    /// The next run to be told; `None` where all is told.
    pub(super) fn run(&self) -> Option<Run> {
        let (here, there) =
            (self.advertised as usize & (self.order.len() - 1), self.advertised as usize & (RING_LEN - 1));
        let count =
            ((self.posted - self.advertised) as usize).min(self.order.len() - here).min(RING_LEN - there);
        (count > 0).then_some(Run { here, there, count })
    }

    /// A run is on its way.
    pub(super) fn mark_advertised(&mut self, run: Run) {
        self.advertised += run.count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(len: usize) -> Vec<AtomicU64> {
        (0..len).map(|_| AtomicU64::new(0)).collect()
    }

    /// Both sides of one direction, with the WRITE between them.
    struct Pair {
        granted: Granted,
        there: Vec<AtomicU64>,
        posted: Posted,
        here: Vec<AtomicU64>,
    }

    impl Pair {
        fn new(depth: u32) -> Self {
            Pair {
                granted: Granted::new(depth),
                there: ring(RING_LEN),
                posted: Posted::new(depth),
                here: ring(Posted::ring_len(depth)),
            }
        }

        fn advertise(&mut self) {
            while self.posted.advertisement_due() {
                let run = self.posted.run().unwrap();
                for n in 0..run.count {
                    let word = self.here[run.here + n].load(Ordering::Relaxed);
                    self.there[run.there + n].store(word, Ordering::Relaxed);
                }
                self.posted.mark_advertised(run);
            }
        }

        /// One message; the slot it went to. `None` where the sender has no grant.
        fn send(&mut self) -> Option<u32> {
            let slot = self.granted.next(&self.there).unwrap()?;
            self.granted.advance();
            assert_eq!(self.posted.next(), Some(slot), "both sides mean the same slot");
            self.posted.arrive(slot, 7);
            Some(slot)
        }
    }

    #[test]
    fn slots_come_back_in_any_order_over_many_laps() {
        for depth in [2, 3, 64, 4095, 4096] {
            let mut pair = Pair::new(depth);
            let (mut held, mut random) = (Vec::new(), 1u32);
            for _ in 0..3 * RING_LEN {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match pair.send() {
                    Some(slot) => held.push(slot),
                    None => assert!(!held.is_empty(), "the sender starves"),
                }
                if held.len() > 1 || pair.granted.next(&pair.there) == Ok(None) {
                    let slot = held.swap_remove((random >> 8) as usize % held.len());
                    pair.posted.post(&pair.here, slot).unwrap();
                    assert_eq!(pair.posted.post(&pair.here, slot), None, "given back already");
                }
                pair.advertise();
            }
        }
    }

    #[test]
    fn exactly_the_posted_slots_may_be_used() {
        let mut pair = Pair::new(5);
        let slots: Vec<_> = std::iter::from_fn(|| pair.send()).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4]);
        assert_eq!(pair.posted.next(), None, "one more would be a violation");
        pair.posted.post(&pair.here, 3).unwrap();
        assert_eq!(pair.posted.next(), None, "it was not told yet");
        pair.advertise();
        assert_eq!(pair.send(), Some(3));
    }

    #[test]
    fn grants_are_paid_in_runs() {
        let mut pair = Pair::new(64);
        (0..40).for_each(|_| assert!(pair.send().is_some()));
        (0..31).for_each(|slot| pair.posted.post(&pair.here, slot).unwrap());
        assert!(!pair.posted.advertisement_due(), "the sender has some left");
        pair.posted.post(&pair.here, 31).unwrap();
        assert_eq!(pair.posted.run(), Some(Run { here: 0, there: 64, count: 32 }));
    }

    #[test]
    fn an_invalid_grant_is_distinguished_from_a_missing_one() {
        let granted = Granted { depth: 5, sent: 5 };
        let there = ring(RING_LEN);
        for (word, expected) in [
            (0, Ok(None)),
            (entry(5, 4), Ok(Some(4))),
            (entry(5, 5), Err(Violation)),
            (entry(6, 4), Ok(None)),
            (entry(5 + RING_LEN as u64, 4), Ok(None)),
            (u64::MAX, Ok(None)),
        ] {
            there[5].store(word.to_le(), Ordering::Relaxed);
            assert_eq!(granted.next(&there), expected, "{word:x}");
        }
    }
}
