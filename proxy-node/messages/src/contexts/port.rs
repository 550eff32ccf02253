//! A handler's access to its message in the pool and to the queues behind its outputs, while it runs.

use csp_handlers::{Emit, FormatId, Full, Place, Port};

use super::outlet::Outlet;
use super::path::{PathCounters, Targets};
use crate::plane::ChannelId;
use crate::pool::derive::Origin;
use crate::pool::{FRAMES_MAX, MessageHandle, PoolError};
use crate::queue::{FullQueue, Item, Queue, QueueLimits};

/// The resource that an emit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// A later stage.
    Stage,
    /// The channel's receivers.
    Receivers,
    /// So many blocks of memory.
    Memory(u32),
}

pub(super) struct StagePort<'a> {
    pub outlet: Outlet<'a>,
    /// The message; `None` in a call of a timer.
    pub item: Option<Item>,
    pub outputs: &'a [Targets],
    /// The channels behind the path's outlets.
    pub outlets: &'a [ChannelId],
    /// The queues of the stages after this one, the first of which has the number `first`.
    pub later: &'a mut [Queue],
    pub first: usize,
    pub limits: &'a QueueLimits,
    pub new_len_max: u32,
    pub reserve: u32,
    pub counters: &'a mut PathCounters,
    /// Emits that an interrupted call has made before.
    pub skip: u32,
    /// Emits of this call.
    pub calls: u32,
    pub wait: Option<Wait>,
    /// Emits that had no room, beyond the first.
    pub refused: u32,
    /// Stages that have got a message.
    pub touched: Targets,
    pub emitted: u32,
    pub made: u64,
}

enum Made {
    Message(MessageHandle, u32),
    Wait(u32),
    NoMemory,
    Invalid,
}

impl StagePort<'_> {
    /// Returns the resource that an emit to these targets must wait for.
    fn wait_of(&self, targets: Targets) -> Option<Wait> {
        if targets.delivers() && self.outlet.holds_back() && !self.outlet.ch.has_room() {
            return Some(Wait::Receivers);
        }
        let is_full = |stage: usize| {
            stage
                .checked_sub(self.first)
                .and_then(|at| self.later.get(at))
                .is_some_and(|q| q.is_full(self.limits))
        };
        targets.stages().any(is_full).then_some(Wait::Stage)
    }

    /// Returns the message to emit, with one reference.
    fn make(&mut self, emit: Emit<'_>) -> Made {
        let len = match &emit {
            Emit::Same => return self.same(),
            Emit::New { frames, .. } => frames.iter().fold(0u32, |sum, len| sum.saturating_add(*len)),
            Emit::Range { len, .. } => *len,
            Emit::Frames { first, count, .. } => self.lens(*first, *count).map_or(0, |(_, len, _)| len),
        };
        if len > self.new_len_max || len > self.outlet.ch.config.message_len_max {
            return Made::Invalid;
        }
        // A part may refer to the message instead; then it needs less.
        let needed = self.outlet.pool.blocks_for(len) + self.reserve;
        if self.outlet.holds_back() && !self.outlet.pool.admits(self.outlet.id.index, needed) {
            return Made::Wait(needed);
        }
        let made = match emit {
            Emit::Same => return self.same(),
            Emit::Frames { format, first, count } => match self.lens(first, count) {
                Some((start, _, lens)) => self.part(format, start, &lens[..usize::from(count)]),
                None => Err(PoolError::LengthMismatch),
            },
            Emit::Range { format, start, len } => self.part(format, start, &[len]),
            Emit::New { format, frames, pieces } => {
                let now = self.outlet.now;
                let of = self.item.and_then(|item| self.outlet.pool.info(item.handle));
                let (arrived, sequence) =
                    of.map_or((now, self.outlet.ch.sequence), |of| (of.arrived, of.sequence));
                let of = self.item.map(|item| item.handle);
                let origin = Origin { channel: self.outlet.id.index, arrived, sequence, of };
                let made = self.outlet.pool.compose(origin, frames, pieces);
                made.inspect(|made| self.outlet.pool.set_format(*made, format))
            }
        };
        match made {
            Ok(handle) => {
                let len = self.outlet.pool.info(handle).map_or(0, |info| info.len);
                self.made += u64::from(len);
                Made::Message(handle, len)
            }
            Err(PoolError::Budget | PoolError::Exhausted) if self.outlet.holds_back() => Made::Wait(needed),
            Err(PoolError::Budget | PoolError::Exhausted) => Made::NoMemory,
            Err(_) => Made::Invalid,
        }
    }

    fn same(&mut self) -> Made {
        match self.item {
            Some(item) if self.outlet.pool.refer(item.handle, 1) => Made::Message(item.handle, item.len),
            _ => Made::Invalid,
        }
    }

    /// Returns where frames of the message begin, how long they are together, and how long each is.
    fn lens(&self, first: u8, count: u8) -> Option<(u32, u32, [u32; FRAMES_MAX])> {
        let (first, count) = (usize::from(first), usize::from(count));
        let (mut lens, mut start, mut len, mut known) = ([0; FRAMES_MAX], 0, 0, 0);
        for (at, frame) in self.outlet.pool.frame_lens(self.item?.handle).enumerate() {
            if at < first {
                start += frame;
            } else if known < count {
                lens[known] = frame;
                len += frame;
                known += 1;
            }
        }
        (known == count && count > 0).then_some((start, len, lens))
    }

    fn part(&mut self, format: FormatId, start: u32, frames: &[u32]) -> Result<MessageHandle, PoolError> {
        let Some(item) = self.item else { return Err(PoolError::LengthMismatch) };
        let made = self.outlet.pool.part(item.handle, start, frames)?;
        self.outlet.pool.set_format(made, format);
        Ok(made)
    }

    /// Puts a message, with one reference, where an output goes.
    fn put(&mut self, targets: Targets, handle: MessageHandle, len: u32) {
        let item = Item { handle, len, cached: false };
        if targets.count() > 1 {
            self.outlet.pool.refer(handle, targets.count() - 1);
        }
        for stage in targets.stages() {
            match stage.checked_sub(self.first).and_then(|at| self.later.get_mut(at)) {
                Some(queue) => _ = queue.push(item, self.limits, FullQueue::Block),
                None => _ = self.outlet.pool.release(handle),
            }
        }
        for outlet in targets.outlets() {
            match self.outlets.get(usize::from(outlet)) {
                Some(to) => self.outlet.branch(*to, item),
                None => _ = self.outlet.pool.release(handle),
            }
        }
        self.touched = self.touched.and(targets);
        if targets.delivers() {
            self.counters.delivered += 1;
            self.outlet.deliver(item);
        }
    }

    /// Emits the unchanged message to the first output, in place of the handler's own emits. Returns whether
    /// there was room.
    pub fn pass(&mut self) -> bool {
        self.emit(0, Emit::Same).is_ok()
    }

    fn wait(&mut self, wait: Wait) -> Result<(), Full> {
        self.wait = Some(wait);
        Err(Full)
    }
}

impl Port for StagePort<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        self.item.map_or((&[], place), |item| self.outlet.pool.chunk(item.handle, place))
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        self.outlet.pool.frame_lens(self.item?.handle).nth(usize::from(frame))
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full> {
        if self.wait.is_some() {
            self.refused += 1;
            return Err(Full);
        }
        if self.calls < self.skip {
            self.calls += 1;
            return Ok(());
        }
        let Some(&targets) = self.outputs.get(usize::from(output)) else {
            self.counters.dropped_invalid += 1;
            self.calls += 1;
            return Ok(());
        };
        if let Some(wait) = self.wait_of(targets) {
            return self.wait(wait);
        }
        if targets != Targets::NONE {
            match self.make(emit) {
                Made::Message(handle, len) => self.put(targets, handle, len),
                Made::Wait(blocks) => return self.wait(Wait::Memory(blocks)),
                Made::NoMemory => {
                    self.counters.dropped_memory += 1;
                    self.outlet.ch.counters.dropped_path += 1;
                }
                Made::Invalid => self.counters.dropped_invalid += 1,
            }
        }
        self.calls += 1;
        self.emitted += 1;
        Ok(())
    }
}
