//! Grants: the receiver posts slots and advertises them to the sender, which uses them in that order.
//!
//! Message n (from 0) goes into the slot that the receiver posted n-th. The first `depth` slots are posted in
//! ascending order when the VI is created, without being advertised. After that the receiver writes entry n,
//! `(n + 1) << 12 | slot`, into a ring in the sender's memory by RDMA WRITE; each entry contains its own lap
//! count.
//!
//! ```text
//! receiver             ring in the sender's memory            sender
//! post slot s ─▶ WRITE [n]: (n+1)<<12 | s, a run at a time ─▶ message n ─▶ slot s
//! ```
//!
//! Grants are advertised in runs, since each run costs a packet: when half of the slots are posted and not
//! advertised, or the sender has no grant left.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of the ring in the sender's memory; no receiver has more slots.
pub(super) const RING_LEN: usize = 4096;

/// Bits of an entry that hold the slot.
const SLOT_BITS: u32 = 12;

const _: () = assert!(RING_LEN.is_power_of_two() && RING_LEN <= 1 << SLOT_BITS);

/// The peer wrote a value that no correct peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

fn entry(number: u64, slot: u32) -> u64 {
    (number + 1) << SLOT_BITS | u64::from(slot)
}

/// The sender's side: the grants received and used.
#[derive(Debug)]
pub(super) struct Granted {
    depth: u32,
    sent: u64,
}

impl Granted {
    /// Creates the state for a peer with `depth` slots.
    pub(super) fn new(depth: u32) -> Self {
        Granted { depth, sent: 0 }
    }

    /// Returns the slot of the next message, or `None` if the peer has granted no further one. `ring` has
    /// [`RING_LEN`] entries, which the peer may change at any time: an entry is read once.
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

    /// Records that the next message was sent.
    pub(super) fn advance(&mut self) {
        self.sent += 1;
    }
}

const POSTED: u32 = u32::MAX;

/// A run of entries to be written to the sender; it wraps around neither ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// Index of the first entry in this end's ring.
    pub here: usize,
    /// Index of the first entry in the sender's ring.
    pub there: usize,
    /// Number of entries, at least one.
    pub count: usize,
}

/// The receiver's side: slots posted, advertised and used.
#[derive(Debug)]
pub(super) struct Posted {
    depth: u32,
    received: u64,
    posted: u64,
    advertised: u64,
    /// Slots in the order posted, by message number modulo the length, a power of two.
    order: Box<[u16]>,
    /// Length of the message in each slot while the caller holds the slot, else [`POSTED`].
    held: Box<[u32]>,
}

impl Posted {
    /// Creates the state with all of `depth` slots (1 to [`RING_LEN`]) posted in ascending order.
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

    /// Returns the number of entries of this end's ring, from which runs are written.
    pub(super) fn ring_len(depth: u32) -> usize {
        (depth as usize).next_power_of_two()
    }

    /// Returns the slot of the next message to arrive, or `None` if no further one was granted.
    pub(super) fn next(&self) -> Option<u32> {
        let slot = self.order.get(self.received as usize & (self.order.len() - 1))?;
        (self.received < self.advertised).then_some(u32::from(*slot))
    }

    /// Records that a message of `len` bytes arrived in the slot that [`next`](Self::next) returned. The
    /// caller holds the slot.
    pub(super) fn arrive(&mut self, slot: u32, len: u32) {
        self.received += 1;
        if let Some(held) = self.held.get_mut(slot as usize) {
            *held = len;
        }
    }

    /// Returns the length of the message in a held slot.
    pub(super) fn held(&self, slot: u32) -> Option<u32> {
        self.held.get(slot as usize).copied().filter(|&len| len != POSTED)
    }

    /// Posts a held slot again and writes its entry to `ring` (of [`ring_len`](Self::ring_len) entries).
    /// `None` if the slot is not held.
    pub(super) fn post(&mut self, ring: &[AtomicU64], slot: u32) -> Option<()> {
        let held = self.held.get_mut(slot as usize).filter(|held| **held != POSTED)?;
        let at = self.posted as usize & (self.order.len() - 1);
        ring.get(at)?.store(entry(self.posted, slot).to_le(), Ordering::Release);
        *held = POSTED;
        self.order[at] = slot as u16;
        self.posted += 1;
        Some(())
    }

    /// Returns whether posted slots should be advertised now.
    pub(super) fn advertisement_due(&self) -> bool {
        let unadvertised = self.posted - self.advertised;
        unadvertised > 0 && (self.advertised == self.received || unadvertised * 2 >= u64::from(self.depth))
    }

    /// Returns the next run to advertise, or `None` if all posted slots are advertised.
    pub(super) fn run(&self) -> Option<Run> {
        let (here, there) =
            (self.advertised as usize & (self.order.len() - 1), self.advertised as usize & (RING_LEN - 1));
        let count =
            ((self.posted - self.advertised) as usize).min(self.order.len() - here).min(RING_LEN - there);
        (count > 0).then_some(Run { here, there, count })
    }

    /// Records a run as advertised.
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

        /// Sends one message and returns its slot, or `None` without a grant.
        fn send(&mut self) -> Option<u32> {
            let slot = self.granted.next(&self.there).unwrap()?;
            self.granted.advance();
            assert_eq!(self.posted.next(), Some(slot), "both sides use the same slot");
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
                    None => assert!(!held.is_empty(), "the sender has no grant though all slots are posted"),
                }
                if held.len() > 1 || pair.granted.next(&pair.there) == Ok(None) {
                    let slot = held.swap_remove((random >> 8) as usize % held.len());
                    pair.posted.post(&pair.here, slot).unwrap();
                    assert_eq!(pair.posted.post(&pair.here, slot), None, "posted already");
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
        assert_eq!(pair.posted.next(), None, "it was not advertised yet");
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
