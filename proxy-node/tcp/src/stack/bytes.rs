//! Reading, writing, and buffers that messages are received into.

use csp_types::{FlowLabel, Instant};

use crate::api::{FailReason, State};
use crate::blocks::{Buffer, Direction, Place};
use crate::chain::Slices;
use crate::stack::Stack;
use crate::tcb::Ending;

impl Stack {
    /// Lends a buffer for the next message: a segment for [`Stack::on_segment_in`], or bytes for
    /// [`Stack::write_in`]. Returns `None` if no memory region has room for the longest message; the caller
    /// then uses memory of its own, and the payload is copied.
    ///
    /// ```text
    ///   lend ─▶ fill ─▶ on_segment_in / write_in … ─▶ give_back ─▶ poll_transmit, read_with …
    /// ```
    pub fn lend(&mut self, direction: Direction) -> Option<Buffer> {
        match direction {
            Direction::Receive => self.blocks.lend(direction),
            Direction::Send => self.send_blocks.lend(direction),
        }
    }

    /// Returns a lent buffer. From then on payload that remains in it can be read and sent.
    pub fn give_back(&mut self, buffer: Buffer) {
        match buffer.direction {
            Direction::Receive => self.blocks.give_back(buffer),
            Direction::Send => self.send_blocks.give_back(buffer),
        }
    }

    /// Passes up to `max` readable bytes to `f`, slice by slice in order. `f` returns how many bytes of the
    /// slice it has consumed; fewer than all ends the reading. Returns how many bytes were consumed; they
    /// open the window.
    pub fn read_with(
        &mut self,
        now: Instant,
        label: FlowLabel,
        max: usize,
        mut f: impl FnMut(&[u8]) -> usize,
    ) -> usize {
        let mut taken = 0;
        for slice in self.peek(label, max) {
            let n = f(slice).min(slice.len());
            taken += n;
            if n < slice.len() {
                break;
            }
        }
        self.consume(now, label, taken)
    }

    /// Up to `max` readable bytes as slices of the memory they lie in, in order. They remain readable.
    pub fn peek(&mut self, label: FlowLabel, max: usize) -> Slices<'_> {
        let Some(slot) = self.slot(label) else { return Slices::EMPTY };
        match self.tcbs[slot as usize].as_mut() {
            Some(tcb) => tcb.receive.slices(&self.blocks, max),
            None => Slices::EMPTY,
        }
    }

    /// Consumes the first `n` readable bytes, or all if there are fewer, and returns how many. They open the
    /// window.
    pub fn consume(&mut self, now: Instant, label: FlowLabel, n: usize) -> usize {
        let Some(slot) = self.slot(label) else { return 0 };
        let Some((tcb, cx)) = self.split(slot, now) else { return 0 };
        let taken = n.min(tcb.receive.readable() as usize);
        if taken > 0 {
            tcb.receive.consume(cx.blocks, taken as u32);
            tcb.tune_receive_window(&cx, taken as u32);
            tcb.after_read(&cx);
            self.settle(slot, now);
        }
        taken
    }

    /// Bytes that can be read now.
    pub fn readable(&self, label: FlowLabel) -> usize {
        self.tcb(label).map_or(0, |tcb| tcb.receive.readable() as usize)
    }

    /// Bytes that `write` would accept now if the pool had enough free blocks.
    pub fn writable(&self, label: FlowLabel) -> usize {
        match self.tcb(label) {
            Some(tcb) if tcb.accepts_data() => {
                tcb.send_capacity(&self.config, &self.send_blocks).saturating_sub(tcb.send.len()) as usize
            }
            _ => 0,
        }
    }

    /// Bytes that were written and never sent.
    pub fn unsent(&self, label: FlowLabel) -> usize {
        self.tcb(label).map_or(0, |tcb| tcb.send.len().saturating_sub(tcb.outstanding()) as usize)
    }

    /// Requests an event [`Writable`](crate::Event::Writable) after the next acknowledgement that leaves a
    /// quarter of the send buffer free, even though no write had to wait.
    pub fn report_writable(&mut self, label: FlowLabel) {
        if let Some(tcb) = self.slot(label).and_then(|slot| self.tcbs[slot as usize].as_mut()) {
            tcb.write_blocked = true;
        }
    }

    /// Sets the connection's send buffer in bytes, sent and unacknowledged bytes included, up to
    /// [`crate::StackConfig::send_buffer_max`]; 0 returns to automatic sizing. As long as the
    /// [`crate::send_memory`] of all connections' capacities fits into the memory for sending, writes within
    /// the capacity are always accepted whole. Returns `false` if the label is stale.
    pub fn set_send_capacity(&mut self, label: FlowLabel, bytes: u32) -> bool {
        let tcb = self.slot(label).and_then(|slot| self.tcbs[slot as usize].as_mut());
        tcb.map(|tcb| tcb.send.set_capacity(bytes)).is_some()
    }

    /// Whether the peer has sent data or FIN, read or unread. `false` if the label is stale.
    pub fn has_received(&self, label: FlowLabel) -> bool {
        self.tcb(label).is_some_and(|tcb| tcb.state != State::SynSent && tcb.rcv_nxt != tcb.irs.plus(1))
    }

    /// Why the connection has failed, until [`Event::Failed`](crate::Event::Failed) is reported, which
    /// follows the last unread byte. `None` if the connection has not failed, or the label is stale.
    pub fn failure(&self, label: FlowLabel) -> Option<FailReason> {
        match self.tcb(label)?.pending.last {
            Some(Ending::Failed(reason)) => Some(reason),
            _ => None,
        }
    }

    /// When the last acceptable segment of the peer arrived. `None` if the label is stale.
    pub fn last_received(&self, label: FlowLabel) -> Option<Instant> {
        self.tcb(label).map(|tcb| tcb.last_received)
    }

    /// The time since when the peer has acknowledged none of the written data. `None` if all of it is
    /// acknowledged, or the label is stale.
    pub fn unacknowledged_since(&self, label: FlowLabel) -> Option<Instant> {
        self.tcb(label).filter(|tcb| tcb.send.len() > 0).map(|tcb| tcb.progress_at)
    }

    /// Copies the start of `data` into the send queue and returns how many bytes were accepted. If these are
    /// fewer than all, an [`Event::Writable`](crate::Event::Writable) follows once there is room. After
    /// `shutdown`, and for a stale label, 0 is returned and no event follows.
    pub fn write(&mut self, now: Instant, label: FlowLabel, data: &[u8]) -> usize {
        self.push(now, label, data, None)
    }

    /// As [`Stack::write`], for bytes in a buffer lent by this stack ([`Stack::lend`]). They remain there
    /// until they are acknowledged, unless that would hold much more memory than their length; then they are
    /// copied.
    pub fn write_in(&mut self, now: Instant, label: FlowLabel, data: &[u8], buffer: &Buffer) -> usize {
        let place = buffer.place_of(data).filter(|_| buffer.direction == Direction::Send);
        self.push(now, label, data, place)
    }

    /// Moves up to `max` readable bytes of the connection `from` to the send queue of the connection `to`,
    /// and returns how many. They are copied once, from the memory for received data to that for written
    /// data.
    /// If the queue accepted fewer, an [`Event::Writable`](crate::Event::Writable) of `to` follows once there
    /// is room, as after [`Stack::write`].
    pub fn pass(&mut self, now: Instant, from: FlowLabel, to: FlowLabel, max: usize) -> usize {
        let (wanted, room) = (self.readable(from).min(max), self.writable(to));
        let (Some(source), Some(target)) = (self.slot(from), self.slot(to)) else { return 0 };
        let pair = [source as usize, target as usize];
        let Ok([Some(source), Some(tcb)]) = self.tcbs.get_disjoint_mut(pair) else { return 0 };
        if wanted == 0 || !tcb.accepts_data() {
            return 0;
        }
        let capacity = tcb.send_capacity(&self.config, &self.send_blocks);
        tcb.note_queued(now);
        let mut moved = 0;
        for slice in source.receive.slices(&self.blocks, wanted) {
            let taken = tcb.send.push(&mut self.send_blocks, slice, None, capacity);
            moved += taken;
            if taken < slice.len() {
                break;
            }
        }
        tcb.rearm = true;
        tcb.maybe_transmit |= moved > 0;
        if moved < wanted {
            tcb.write_blocked = true;
            if moved < room {
                self.block_waiters.push_back(target);
            }
        }
        self.settle(target, now);
        self.consume(now, from, moved)
    }

    fn push(&mut self, now: Instant, label: FlowLabel, data: &[u8], place: Option<Place>) -> usize {
        let room = self.writable(label);
        let Some(slot) = self.slot(label) else { return 0 };
        let Some((tcb, cx)) = self.split(slot, now) else { return 0 };
        if !tcb.accepts_data() {
            return 0;
        }
        let capacity = tcb.send_capacity(cx.config, cx.send_blocks);
        tcb.note_queued(now);
        let taken = tcb.send.push(cx.send_blocks, data, place, capacity);
        tcb.maybe_transmit |= taken > 0;
        if taken < data.len() {
            tcb.write_blocked = true;
            if taken < room {
                self.block_waiters.push_back(slot);
            }
        }
        self.settle(slot, now);
        taken
    }
}
