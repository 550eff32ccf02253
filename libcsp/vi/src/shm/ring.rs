//! One direction of a VI: a receiver that posts slots, and a sender that fills them in the order posted.
//!
//! Message n (from 0) goes into the slot that the receiver posted n-th. The receiver knows this order, so it
//! polls one word only: the tag of that slot, which the sender writes last, as n + 1. The sender reads the
//! slot from entry n of the posted ring, (n + 1) << 12 | slot. No index is shared: each word contains its own
//! lap count.
//!
//! ```text
//! receiver            posted ring                        sender
//! post slot s  ──▶ [n]: (n+1)<<12 | s  ──▶  payload, meta, then tag n+1 into slot s
//! polls tag of slot s     ◀──────────────────────────────────┘
//! ```
//!
//! Waking: the receiver sets `armed` and then checks the tag again; the sender writes the tag and then checks
//! `armed`. A sequentially consistent fence between the two steps of each side ensures that at least one side
//! sees the other's write.

use super::layout::Arena;
use super::sync::{Ordering, fence};

/// Bits of a posted entry that hold the slot.
const SLOT_BITS: u32 = 12;

/// The peer wrote a value that no correct peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

/// The outcome of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sending {
    /// The message is in the ring; the receiver polls.
    Done,
    /// The message is in the ring; the receiver sleeps and must be woken.
    Wake,
    /// The receiver has posted no further slot.
    Full,
}

/// Posted entries that the sender reads at a time. The receiver writes to the same cache lines, so reading
/// entries one by one would transfer a line per message.
const KNOWN_MAX: usize = 16;

/// The sending end.
pub(super) struct Sender {
    arena: Arena,
    sent: u64,
    /// Messages received in the other direction up to the last send.
    received_at_send: u64,
    /// Number of the message whose slot is taken next. It is ahead of `sent` while slots are claimed and not
    /// published.
    next: u64,
    claims: Option<Claims>,
    /// End (exclusive) of the messages whose slots are in `known`, at the message number modulo
    /// [`KNOWN_MAX`].
    known_until: u64,
    known: [u16; KNOWN_MAX],
}

/// Slots that a third party fills, from [`Sender::claim`] to [`Sender::publish`].
struct Claims {
    /// The claimed slot, by message number modulo the ring's length.
    order: Box<[u16]>,
    /// Whether the slot is claimed, by slot.
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

    /// Changes from `send` to `claim` and `publish`.
    pub(super) fn lend(&mut self) {
        let geometry = self.arena.geometry;
        let order = vec![0; geometry.ring_len()].into();
        self.claims.get_or_insert(Claims { order, taken: vec![false; geometry.depth].into() });
    }

    pub(super) fn is_lent(&self) -> bool {
        self.claims.is_some()
    }

    /// Claims the slot of the next message, if the receiver has posted it.
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

    /// Sends the message written into a claimed slot. `None` if `slot` is not the first claimed. `len` is at
    /// most `message_len` (checked by the caller).
    pub(super) fn publish(&mut self, slot: u16, len: u32, immediate: u32) -> Option<Sending> {
        let claims = self.claims.as_mut().filter(|_| self.sent < self.next)?;
        if claims.order[self.sent as usize & (claims.order.len() - 1)] != slot {
            return None;
        }
        claims.taken[usize::from(slot)] = false;
        Some(self.hand_over(usize::from(slot), len, immediate))
    }

    /// Calls `write` for the next posted slot and sends the message of `len` bytes, at most `message_len`
    /// (checked by the caller). `received` is the number of messages received so far in the other direction.
    pub(super) fn send(
        &mut self,
        immediate: u32,
        len: usize,
        received: u64,
        write: impl FnOnce(&Arena, usize),
    ) -> Result<Sending, Violation> {
        let write = |arena: &Arena, slot| {
            write(arena, slot);
            Some(len)
        };
        self.send_made(immediate, received, write).map(|sending| sending.unwrap_or(Sending::Full))
    }

    /// As [`send`](Self::send), with a message whose length, at most `message_len`, is what `make` returns.
    /// `None` from there sends nothing, and is returned.
    pub(super) fn send_made(
        &mut self,
        immediate: u32,
        received: u64,
        make: impl FnOnce(&Arena, usize) -> Option<usize>,
    ) -> Result<Option<Sending>, Violation> {
        let Some(slot) = self.next_slot()? else { return Ok(Some(Sending::Full)) };
        let made = make(&self.arena, usize::from(slot));
        let Some(len) = made.filter(|len| *len <= self.arena.geometry.message_len) else { return Ok(None) };
        self.next += 1;
        let sending = self.hand_over(usize::from(slot), len as u32, immediate);
        // If a message of the peer was received since the last send, this one is probably an answer that the
        // peer waits for, and moving the lines early shortens its wait. In a burst the peer still has other
        // messages to read, and the hints cost the sender more than they save.
        if received != self.received_at_send {
            self.received_at_send = received;
            let next =
                self.known.get(self.next as usize % KNOWN_MAX).filter(|_| self.next < self.known_until);
            self.arena.move_lines(usize::from(slot), next.copied().map(usize::from), len);
        }
        Ok(Some(sending))
    }

    /// Returns the next posted slot.
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

    /// Reads the entries that the receiver has posted since the last read.
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

    /// Calls `visit` with immediate data and bytes of the last messages sent, whose slots have not been
    /// reused, oldest first. The peer may have changed any of it.
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

    /// Marks the direction as ended: cleanly (all messages were sent) or aborted (messages may be missing).
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

/// Values of the word `closed`, which the sender sets at its end.
const CLEAN: u32 = 1;
const ABORTED: u32 = 2;

/// The receiving end.
pub(super) struct Receiver {
    arena: Arena,
    received: u64,
    posted: u64,
    /// Slots in the order posted, by message number modulo the ring's length.
    order: Box<[u16]>,
    /// Length of the message in each slot while the caller holds the slot, else [`POSTED`].
    held: Box<[u32]>,
}

impl Receiver {
    /// Creates a receiver whose slots are all posted in ascending order.
    pub(super) fn new(arena: Arena) -> Self {
        let geometry = arena.geometry;
        let order = (0..geometry.ring_len() as u16).collect();
        let posted = geometry.depth as u64;
        Receiver { arena, received: 0, posted, order, held: vec![POSTED; geometry.depth].into() }
    }

    /// Writes the posted entries that [`Receiver::new`] assumes. The end that creates the memory calls it for
    /// both directions, before the other end maps the memory.
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

    /// Returns whether a message is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.next_slot().is_some()
    }

    /// Returns the next message. The caller holds its slot from now on.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, Violation> {
        let Some(slot) = self.next_slot() else { return Ok(None) };
        // Read once: the peer can change the word at any time.
        let meta = self.arena.meta(slot).load(Ordering::Relaxed);
        let (len, immediate) = ((meta >> 32) as u32, meta as u32);
        if len as usize > self.arena.geometry.message_len {
            return Err(Violation);
        }
        self.received += 1;
        self.held[slot] = len;
        Ok(Some(Message { slot: slot as u32, len, immediate }))
    }

    /// Copies from a held slot. `None` if the slot is not held.
    pub(super) fn read(&self, slot: u32, offset: usize, into: &mut [u8]) -> Option<usize> {
        let len = self.held_len(slot)?;
        let count = (len as usize).saturating_sub(offset).min(into.len());
        if count > 0 {
            self.arena.read(slot as usize, offset, &mut into[..count]);
        }
        Some(count)
    }

    /// Returns the length in bytes of the message in a held slot. `None` if the slot is not held.
    pub(super) fn held_len(&self, slot: u32) -> Option<u32> {
        self.held.get(slot as usize).copied().filter(|&len| len != POSTED)
    }

    /// Posts a held slot again. `None` if the slot is not held. Without `publish` the slot is released, but
    /// not posted to the sender.
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

    /// Requests a wake from the sender. The caller follows with a fence and [`is_ready`](Receiver::is_ready).
    pub(super) fn arm(&self) {
        self.arena.armed().store(1, Ordering::Relaxed);
    }

    /// Withdraws the request of [`arm`](Receiver::arm), if the sender has not answered it.
    pub(super) fn disarm(&self) {
        // Reading first leaves the cache line shared when there is nothing to withdraw.
        if self.arena.armed().load(Ordering::Relaxed) != 0 {
            self.arena.armed().store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn arena(&self) -> Arena {
        self.arena
    }

    /// Returns the number of messages received so far.
    pub(super) fn progress(&self) -> u64 {
        self.received
    }

    /// Returns whether the sender ended cleanly, with all messages sent.
    pub(super) fn is_closed(&self) -> bool {
        self.arena.closed().load(Ordering::Acquire) == CLEAN
    }

    /// Returns whether the sender aborted, so that messages may be missing.
    pub(super) fn is_aborted(&self) -> bool {
        self.arena.closed().load(Ordering::Acquire) == ABORTED
    }
}
