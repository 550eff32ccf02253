//! One direction of a VI: a receiver that posts slots, and a sender that fills them in the order they were posted.
//!
//! Message n (from 0) goes into the slot that the receiver posted n-th. The receiver knows its own order, so it looks at
//! one place only, that slot's tag, which the sender sets to n + 1 last. The sender learns the slot from entry n of the
//! posted ring, (n + 1) << 12 | slot. No index is shared: every word tells by itself which lap it belongs to.
//!
//! ```text
//! receiver            posted ring                        sender
//! post slot s  ──▶ [n]: (n+1)<<12 | s  ──▶  payload, meta, then tag n+1 into slot s
//! looks at tag of slot s  ◀──────────────────────────────────┘
//! ```
//!
//! Waking: the receiver sets `armed`, then looks once more; the sender sets the tag, then looks at `armed`. A
//! sequentially consistent fence between the two steps on either side makes at least one of them see the other's.

use super::layout::Arena;
use super::sync::{Ordering, fence};

/// Bits of a posted entry that name the slot.
const SLOT_BITS: u32 = 12;

/// The peer wrote something that no correct peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

/// What became of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sending {
    /// It is in the ring; the receiver looks by itself.
    Done,
    /// It is in the ring; the receiver sleeps and has to be woken.
    Wake,
    /// The receiver has posted no further slot.
    Full,
}

/// How many posted entries the sender reads at a time. The receiver writes to the same cache lines, so reading each
/// entry when it is needed would fetch a line per message.
const KNOWN_MAX: usize = 16;

/// The sending end.
pub(super) struct Sender {
    arena: Arena,
    sent: u64,
    /// What the other direction had received at the last send.
    received_at_send: u64,
    /// The message whose slot is taken next: beyond `sent` where slots are claimed and filled later.
    next: u64,
    claims: Option<Claims>,
    /// The slots of messages up to, not including, this one are in `known`, by number modulo [`KNOWN_MAX`].
    known_until: u64,
    known: [u16; KNOWN_MAX],
}

/// Slots that somebody else fills, from [`Sender::claim`] to [`Sender::publish`].
struct Claims {
    /// By number of the message, modulo the ring's length.
    order: Box<[u16]>,
    /// By slot.
    taken: Box<[bool]>,
}

impl Sender {
    pub(super) fn new(arena: Arena) -> Self {
        Sender {
            arena,
            sent: 0,
            received_at_send: 0,
            next: 0,
            claims: None,
            known_until: 0,
            known: [0; KNOWN_MAX],
        }
    }

    /// From now on slots are claimed and published, not sent to.
    pub(super) fn lend(&mut self) {
        let geometry = self.arena.geometry;
        let order = vec![0; geometry.ring_len()].into();
        self.claims.get_or_insert(Claims { order, taken: vec![false; geometry.depth].into() });
    }

    pub(super) fn is_lent(&self) -> bool {
        self.claims.is_some()
    }

    /// The slot of the next message, if the receiver has posted it.
    pub(super) fn claim(&mut self) -> Result<Option<u16>, Violation> {
        let Some(slot) = self.next_slot()? else { return Ok(None) };
        let Some(claims) = &mut self.claims else { return Ok(None) };
        if std::mem::replace(&mut claims.taken[usize::from(slot)], true) {
            return Err(Violation);
        }
        let mask = claims.order.len() - 1;
        claims.order[self.next as usize & mask] = slot;
        self.next += 1;
        Ok(Some(slot))
    }

    /// Sends the message that was written into a claimed slot; `None` where `slot` is not the one claimed first. `len` is
    /// at most `message_len` (checked by the caller).
    pub(super) fn publish(&mut self, slot: u16, len: u32, immediate: u32) -> Option<Sending> {
        let claims = self.claims.as_mut().filter(|_| self.sent < self.next)?;
        if claims.order[self.sent as usize & (claims.order.len() - 1)] != slot {
            return None;
        }
        claims.taken[usize::from(slot)] = false;
        Some(self.hand_over(usize::from(slot), len, immediate))
    }

    /// Has a message written, at most `message_len` bytes long (checked by the caller), into the next posted slot.
    /// `received`: messages received in the other direction so far.
    pub(super) fn send(
        &mut self,
        immediate: u32,
        len: usize,
        received: u64,
        write: impl FnOnce(&Arena, usize),
    ) -> Result<Sending, Violation> {
        let Some(slot) = self.next_slot()? else { return Ok(Sending::Full) };
        write(&self.arena, usize::from(slot));
        self.next += 1;
        let sending = self.hand_over(usize::from(slot), len as u32, immediate);
        // Of an answer the peer waits for the lines; in a burst it has others to read, and moving them costs us more
        // than it gains.
        if received != self.received_at_send {
            self.received_at_send = received;
            let next =
                self.known.get(self.next as usize % KNOWN_MAX).filter(|_| self.next < self.known_until);
            self.arena.move_lines(usize::from(slot), next.copied().map(usize::from), len);
        }
        Ok(sending)
    }

    /// The next posted slot.
    fn next_slot(&mut self) -> Result<Option<u16>, Violation> {
        if self.next == self.known_until {
            self.read_posted()?;
        }
        Ok((self.next != self.known_until).then(|| self.known[self.next as usize % KNOWN_MAX]))
    }

    fn hand_over(&mut self, slot: usize, len: u32, immediate: u32) -> Sending {
        self.arena.meta(slot).store(u64::from(len) << 32 | u64::from(immediate), Ordering::Relaxed);
        self.sent += 1;
        self.arena.tag(slot).store(self.sent, Ordering::Release);
        fence(Ordering::SeqCst);
        let armed = self.arena.armed();
        let sleeps = armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::Relaxed) != 0;
        if sleeps { Sending::Wake } else { Sending::Done }
    }

    /// Reads the entries that the receiver has posted since.
    fn read_posted(&mut self) -> Result<(), Violation> {
        for number in self.next..self.next + KNOWN_MAX as u64 {
            let entry = self.arena.posted(number).load(Ordering::Acquire);
            if entry >> SLOT_BITS != number + 1 {
                break;
            }
            let slot = entry & ((1 << SLOT_BITS) - 1);
            if slot >= self.arena.geometry.depth as u64 {
                return Err(Violation);
            }
            self.known[number as usize % KNOWN_MAX] = slot as u16;
            self.known_until = number + 1;
        }
        Ok(())
    }

    /// The messages sent last whose slots have not been used again, oldest first: immediate data and bytes. The peer may
    /// have changed any of it.
    pub(super) fn recent(&self, visit: &mut dyn FnMut(u32, &[u8])) {
        let number_in = |slot| self.arena.tag(slot).load(Ordering::Acquire);
        let numbers = (0..self.arena.geometry.depth).map(|slot| (number_in(slot), slot));
        let mut sent: Vec<_> = numbers.filter(|(number, _)| (1..=self.sent).contains(number)).collect();
        sent.sort_unstable();
        let mut bytes = Vec::new();
        for (_, slot) in sent {
            let meta = self.arena.meta(slot).load(Ordering::Relaxed);
            let len = (meta >> 32) as usize;
            if len <= self.arena.geometry.message_len {
                bytes.resize(len, 0);
                self.arena.read(slot, 0, &mut bytes);
                visit(meta as u32, &bytes);
            }
        }
    }

    pub(super) fn arena(&self) -> Arena {
        self.arena
    }

    #[cfg(test)]
    pub(super) fn progress(&self) -> u64 {
        self.sent
    }

    /// Says that nothing more comes, on purpose; that this is all, or not.
    pub(super) fn close(&self, clean: bool) {
        self.arena.closed().store(if clean { CLEAN } else { ABORTED }, Ordering::Release);
    }
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub slot: u32,
    pub len: u32,
    pub immediate: u32,
}

const POSTED: u32 = u32::MAX;

/// How the sender ended, if it said so.
const CLEAN: u32 = 1;
const ABORTED: u32 = 2;

/// The receiving end.
pub(super) struct Receiver {
    arena: Arena,
    received: u64,
    posted: u64,
    /// Slots in the order posted, by number modulo the ring's length.
    order: Box<[u16]>,
    /// The length of the message in each slot while the caller holds it, else [`POSTED`].
    held: Box<[u32]>,
}

impl Receiver {
    /// A receiver whose slots are all posted in their natural order.
    pub(super) fn new(arena: Arena) -> Self {
        let geometry = arena.geometry;
        let order = (0..geometry.ring_len() as u16).collect();
        let posted = geometry.depth as u64;
        Receiver { arena, received: 0, posted, order, held: vec![POSTED; geometry.depth].into() }
    }

    /// Writes the posted entries of [`Receiver::new`]; done for both directions by whoever made the memory, before
    /// the other end sees it.
    pub(super) fn publish_all(arena: &Arena) {
        for slot in 0..arena.geometry.depth as u64 {
            arena.posted(slot).store((slot + 1) << SLOT_BITS | slot, Ordering::Release);
        }
    }

    fn next_slot(&self) -> Option<usize> {
        if self.received == self.posted {
            return None;
        }
        let slot = usize::from(self.order[self.received as usize & (self.order.len() - 1)]);
        let arrived = self.arena.tag(slot).load(Ordering::Acquire) == self.received + 1;
        arrived.then_some(slot)
    }

    /// Whether a message waits.
    pub(super) fn is_ready(&self) -> bool {
        self.next_slot().is_some()
    }

    /// The next message, whose slot the caller holds from now on.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, Violation> {
        let Some(slot) = self.next_slot() else { return Ok(None) };
        // Read once: the peer can change it at any time.
        let meta = self.arena.meta(slot).load(Ordering::Relaxed);
        let (len, immediate) = ((meta >> 32) as u32, meta as u32);
        if len as usize > self.arena.geometry.message_len {
            return Err(Violation);
        }
        self.received += 1;
        self.held[slot] = len;
        Ok(Some(Message { slot: slot as u32, len, immediate }))
    }

    /// Copies from a held slot; `None` where it is not held.
    pub(super) fn read(&self, slot: u32, offset: usize, into: &mut [u8]) -> Option<usize> {
        let len = self.held_len(slot)?;
        let count = (len as usize).saturating_sub(offset).min(into.len());
        if count > 0 {
            self.arena.read(slot as usize, offset, &mut into[..count]);
        }
        Some(count)
    }

    /// Bytes of the message in a held slot; `None` where it is not held.
    pub(super) fn held_len(&self, slot: u32) -> Option<u32> {
        self.held.get(slot as usize).copied().filter(|&len| len != POSTED)
    }

    /// Posts a held slot again; `None` where it is not held. Without `publish` the sender does not learn of it.
    pub(super) fn post(&mut self, slot: u32, publish: bool) -> Option<()> {
        let held = self.held.get_mut(slot as usize).filter(|held| **held != POSTED)?;
        *held = POSTED;
        if publish {
            let mask = self.order.len() - 1;
            self.order[self.posted as usize & mask] = slot as u16;
            let entry = (self.posted + 1) << SLOT_BITS | u64::from(slot);
            self.arena.posted(self.posted).store(entry, Ordering::Release);
            self.posted += 1;
        }
        Some(())
    }

    /// Asks the sender to wake us. Followed by a fence and [`is_ready`](Receiver::is_ready).
    pub(super) fn arm(&self) {
        self.arena.armed().store(1, Ordering::Relaxed);
    }

    /// Takes the request back, if the sender has not.
    pub(super) fn disarm(&self) {
        // Looking first leaves the line shared where there is nothing to do.
        if self.arena.armed().load(Ordering::Relaxed) != 0 {
            self.arena.armed().store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn arena(&self) -> Arena {
        self.arena
    }

    /// Messages received so far.
    pub(super) fn progress(&self) -> u64 {
        self.received
    }

    /// Whether the sender said that it ends and this is all.
    pub(super) fn is_closed(&self) -> bool {
        self.arena.closed().load(Ordering::Acquire) == CLEAN
    }

    /// Whether the sender said that it ends and this may not be all.
    pub(super) fn is_aborted(&self) -> bool {
        self.arena.closed().load(Ordering::Acquire) == ABORTED
    }
}
