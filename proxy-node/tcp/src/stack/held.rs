//! Bytes in the memory for sending that belong to no connection yet.

use csp_types::{FlowLabel, Instant};

use crate::blocks::{Buffer, Direction};
use crate::chain::Slices;
use crate::sendqueue::SendQueue;
use crate::stack::Stack;

/// Bytes in the memory for sending that wait until they are read or [moved](Stack::write_held) to a
/// connection. They must be [discarded](Stack::discard_held) before it is dropped, otherwise their memory is
/// lost to the pool.
#[derive(Debug)]
pub struct HeldBytes(SendQueue);

impl Default for HeldBytes {
    fn default() -> Self {
        HeldBytes(SendQueue::EMPTY)
    }
}

impl HeldBytes {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len() as usize
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

impl Stack {
    /// Appends the start of `data`, up to a total of `capacity` bytes, and returns how many were appended.
    /// Bytes in `buffer` remain there as those of [`Stack::write_in`]. They need at most
    /// [`send_memory`](crate::send_memory) of the capacity.
    pub fn hold(
        &mut self,
        held: &mut HeldBytes,
        data: &[u8],
        buffer: Option<&Buffer>,
        capacity: u32,
    ) -> usize {
        let place = buffer
            .filter(|buffer| buffer.direction == Direction::Send)
            .and_then(|buffer| buffer.place_of(data));
        held.0.push(&mut self.send_blocks, data, place, capacity)
    }

    /// Returns up to `max` bytes as slices of the memory that holds them, in order. Bytes in a lent buffer
    /// are not returned.
    pub fn held(&self, held: &mut HeldBytes, max: usize) -> Slices<'_> {
        held.0.slices(&self.send_blocks, 0, max)
    }

    /// Removes the first `len` bytes, or all if there are fewer.
    pub fn discard_held(&mut self, held: &mut HeldBytes, len: usize) {
        held.0.release(&mut self.send_blocks, u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Moves up to `max` of the bytes to the send queue of a connection, and returns how many the queue
    /// accepted. Long slices stay where they are. If fewer than `max` were accepted, an
    /// [`Event::Writable`](crate::Event::Writable) follows once there is room, as after [`Stack::write`].
    pub fn write_held(&mut self, now: Instant, label: FlowLabel, held: &mut HeldBytes, max: usize) -> usize {
        let wanted = held.len().min(max);
        let room = self.writable(label);
        let Some(slot) = self.slot(label) else { return 0 };
        let Some((tcb, cx)) = self.split(slot, now) else { return 0 };
        if wanted == 0 || !tcb.accepts_data() {
            return 0;
        }
        let capacity = tcb.send_capacity(cx.config, cx.send_blocks);
        tcb.note_queued(now);
        let mut moved = 0;
        while moved < wanted {
            match tcb.send.take(cx.send_blocks, &mut held.0, wanted - moved, capacity) {
                0 => break,
                taken => moved += taken,
            }
        }
        tcb.maybe_transmit |= moved > 0;
        if moved < wanted {
            tcb.write_blocked = true;
            if moved < room {
                self.block_waiters.push_back(slot);
            }
        }
        self.settle(slot, now);
        moved
    }
}
