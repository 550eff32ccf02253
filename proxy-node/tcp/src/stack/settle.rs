//! Updates of lists, timers and tables after a change of a connection.

use csp_types::{Duration, FlowLabel, FourTuple, Instant};

use crate::api::State;
use crate::seq::Seq;
use crate::stack::Stack;
use crate::tcb::{Context, Tcb};
use crate::timewait::TimeWait;

/// In the tuple map, slots from this value on belong to the TIME-WAIT table.
pub(super) const TIME_WAIT_SLOTS: u32 = 1 << 31;

/// Shortest time in TIME-WAIT before this side may use the addresses again: one tick of any timestamp clock
/// (RFC 7323 §5.4).
const TIME_WAIT_MIN: Duration = Duration::from_secs(1);
/// Distance of a new connection's first sequence number from the former one's last: more than any window
/// without window scaling.
const ISN_STEP: u32 = 1 << 17;

impl Stack {
    /// The slot of a label that is valid for the caller.
    pub(super) fn slot(&self, label: FlowLabel) -> Option<u32> {
        let slot = label.index().checked_sub(self.config.first_label_index as usize)?;
        let tcb = self.tcbs.get(slot)?.as_ref()?;
        (tcb.label == label && !tcb.events_off).then_some(slot as u32)
    }

    pub(super) fn tcb(&self, label: FlowLabel) -> Option<&Tcb> {
        self.slot(label).and_then(|slot| self.tcbs[slot as usize].as_ref())
    }

    /// The parts of the stack that a connection uses.
    pub(super) fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            config: &self.config,
            blocks: &mut self.blocks,
            send_blocks: &mut self.send_blocks,
            ranges: &mut self.ranges,
            records: &mut self.records,
            paths: &mut self.paths,
            counters: &mut self.counters,
            meters: &mut self.meters,
        }
    }

    /// A connection, and the parts of the stack that it uses.
    pub(super) fn split(&mut self, slot: u32, now: Instant) -> Option<(&mut Tcb, Context<'_>)> {
        let tcb = self.tcbs.get_mut(slot as usize)?.as_mut()?;
        tcb.rearm = true;
        let cx = Context {
            now,
            config: &self.config,
            blocks: &mut self.blocks,
            send_blocks: &mut self.send_blocks,
            ranges: &mut self.ranges,
            records: &mut self.records,
            paths: &mut self.paths,
            counters: &mut self.counters,
            meters: &mut self.meters,
        };
        Some((tcb, cx))
    }

    /// Applies `f` to a live connection, then updates lists and timers.
    pub(super) fn with<R>(
        &mut self,
        now: Instant,
        label: FlowLabel,
        f: impl FnOnce(&mut Tcb, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slot(label)?;
        let (tcb, mut cx) = self.split(slot, now)?;
        let result = f(tcb, &mut cx);
        self.settle(slot, now);
        Some(result)
    }

    /// Creates a connection in SYN-SENT; `None` if the table is full.
    pub(super) fn open(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        via: u32,
        service: u32,
        isn: Seq,
    ) -> Option<u32> {
        let label = self.labels.allocate()?;
        let slot = (label.index() - self.config.first_label_index as usize) as u32;
        let cx = self.context(now);
        let mut tcb = Tcb::new(&cx, label, tuple, via, service, isn);
        tcb.timestamp_offset = self.keys.timestamp_offset(&tuple);
        self.tcbs[slot as usize] = Some(tcb);
        self.tuples.insert(self.keys.table_hash(&tuple), slot);
        Some(slot)
    }

    /// Updates lists, timers and tables after a connection changed.
    pub(super) fn settle(&mut self, slot: u32, now: Instant) {
        let Some(tcb) = self.tcbs[slot as usize].as_ref() else { return };
        if tcb.state != State::SynReceived {
            self.half_open.remove(slot);
        }
        if tcb.state == State::Done && !tcb.detached {
            self.detach(slot, now);
        }
        let Some(tcb) = self.tcbs[slot as usize].as_ref() else { return };
        if tcb.is_over() {
            return self.release(slot);
        }
        if tcb.maybe_transmit {
            self.dirty.push_back(slot, tcb.via);
        }
        if tcb.has_event() {
            self.eventful.push_back(slot);
        }
        self.wheel.schedule(slot, if tcb.rearm { tcb.deadline() } else { tcb.delayed_ack });
        if !self.meters.is_empty() {
            self.note_wanting(slot);
        }
    }

    /// The protocol has ended: removes the connection from the tuple map and the timer wheel, and enters
    /// TIME-WAIT if required.
    fn detach(&mut self, slot: u32, now: Instant) {
        let Some((tcb, cx)) = self.split(slot, now) else { return };
        tcb.detached = true;
        let (label, tuple, follows) = (tcb.label, tcb.tuple, tcb.time_wait);
        let mut entry = TimeWait {
            tuple,
            hash: 0,
            snd_nxt: tcb.snd_nxt,
            rcv_nxt: tcb.rcv_nxt,
            window: tcb.window_field(&cx, false),
            timestamps: tcb.timestamps.then_some((tcb.ts_recent, tcb.timestamp_offset)),
            deadline: now + cx.config.time_wait,
        };
        entry.hash = self.keys.table_hash(&tuple);
        self.tuples.remove(entry.hash, slot);
        self.wheel.cancel(slot);
        self.block_waiters.remove(slot);
        self.forget_meter(slot, label);
        if follows {
            self.enter_time_wait(entry);
        }
    }

    fn enter_time_wait(&mut self, entry: TimeWait) {
        self.counters.time_wait_entered += 1;
        if self.time_wait.len() == self.time_wait.capacity()
            && let Some((oldest, _)) = self.time_wait.oldest()
        {
            self.counters.time_wait_evicted += 1;
            self.leave_time_wait(oldest);
        }
        if let Some(slot) = self.time_wait.insert(entry) {
            self.tuples.insert(entry.hash, TIME_WAIT_SLOTS + slot);
        }
    }

    /// Returns the initial sequence number of a connection that this side opens with the addresses of one in
    /// TIME-WAIT, and removes the entry `slot` of that one. `None` if `slot` is no such entry, or the
    /// addresses may not be used again yet. They may after a second if timestamps were in use: the peer
    /// drops segments of the former connection by their timestamps (RFC 7323 §5). RFC 6191 has the rule of
    /// the side that receives the SYN.
    pub(super) fn isn_after_time_wait(&mut self, now: Instant, tuple: &FourTuple, slot: u32) -> Option<Seq> {
        let slot = slot.checked_sub(TIME_WAIT_SLOTS)?;
        let entry = *self.time_wait.get(slot)?;
        let waited = now + self.config.time_wait >= entry.deadline + TIME_WAIT_MIN;
        if entry.timestamps.is_none() || !waited {
            return None;
        }
        self.counters.time_wait_reused += 1;
        self.leave_time_wait(slot);
        let isn = self.keys.isn(now, tuple);
        Some(if isn.after(entry.snd_nxt) { isn } else { entry.snd_nxt.plus(ISN_STEP) })
    }

    /// Removes a TIME-WAIT entry.
    pub(super) fn leave_time_wait(&mut self, slot: u32) {
        if let Some(entry) = self.time_wait.remove(slot) {
            self.tuples.remove(entry.hash, TIME_WAIT_SLOTS + slot);
        }
    }

    pub(super) fn expire_time_wait(&mut self, now: Instant) {
        while let Some((slot, entry)) = self.time_wait.oldest()
            && entry.deadline <= now
        {
            self.leave_time_wait(slot);
        }
    }

    /// Releases the slot, its label and its memory.
    pub(super) fn release(&mut self, slot: u32) {
        let Some(mut tcb) = self.tcbs[slot as usize].take() else { return };
        self.last_figures = (tcb.label, tcb.figures());
        tcb.send.clear(&mut self.send_blocks);
        tcb.receive.clear(&mut self.blocks, &mut self.ranges);
        tcb.recovery.clear(&mut self.records);
        self.labels.release(tcb.label);
        for list in [&mut self.half_open, &mut self.eventful, &mut self.block_waiters] {
            list.remove(slot);
        }
        self.forget_meter(slot, tcb.label);
        self.dirty.remove(slot);
        self.wheel.cancel(slot);
    }

    /// Notifies writers that wait for blocks, as long as more than a quarter of the blocks is free.
    pub(super) fn wake_block_waiters(&mut self) {
        while self.send_blocks.free() > self.send_blocks.capacity() / 4
            && let Some(slot) = self.block_waiters.pop_front()
        {
            let Some(tcb) = self.tcbs[slot as usize].as_mut() else { continue };
            tcb.notify_writer(&self.config, &self.send_blocks);
            if tcb.has_event() {
                self.eventful.push_back(slot);
            }
        }
    }
}
