//! A context at work: one message, or one timer, through one handler.
//!
//! A message stays at the front of its queue until its handler is done. If an output has no room, the stage
//! waits, and the handler is called again with the same message; emits of the interrupted call are skipped.
//! So queues inside a path are never overrun, and only its entry drops or holds back.

use csp_handlers::{Call, FormatId, Message, Profile, Stop, Tick};
use csp_types::Instant;

use super::outlet::Outlet;
use super::path::{Path, Stage, Targets};
use super::port::{StagePort, Wait};
use super::{ChannelPaths, Contexts, queue_number, stage_of};
use crate::channel::Channel;
use crate::list::List;
use crate::pool::{MessageHandle, MessagePool};
use crate::queue::{FullQueue, Item, Pushed};
use crate::schedule::{Schedule, Turn};

/// Outcome of a queue's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A message was processed; contains its length in bytes.
    Done(u32),
    /// No message waits, or the stage waits for a resource: it is not served until that has changed.
    Idle,
}

/// A clock for profiles. `None`: calls are not measured.
pub(crate) type Clock<'a> = Option<&'a mut dyn FnMut() -> Instant>;

impl Contexts {
    /// Returns the turn of the next queue of a context, and the queue's channel.
    pub fn next_stage(&mut self, context: u16) -> Option<(Turn, u16)> {
        loop {
            let turn = self.next_queue(context)?;
            let path = self.path(stage_of(turn.flow).0);
            if let Some(channel) = path.map(|path| path.spec.channel.index) {
                return Some((turn, channel));
            }
            self.sleep(context, turn);
        }
    }

    /// Ends the turn of a queue that has nothing to do.
    pub fn sleep(&mut self, context: u16, turn: Turn) {
        if let Some(slot) = self.contexts.get_mut(usize::from(context)) {
            slot.queues.set_active(turn.flow, false);
        }
        self.end_queue(context, turn);
    }

    /// Ends the turn of a queue.
    pub fn end_stage(&mut self, context: u16, turn: Turn) {
        self.end_queue(context, turn);
    }

    /// Returns whether a context has a queue to serve.
    pub fn is_active(&self, context: u16) -> bool {
        self.has_work(context)
    }

    /// Calls the handler of a queue once.
    pub fn step(
        &mut self,
        queue: u16,
        outlet: Outlet<'_>,
        mut clock: Clock<'_>,
        schedule: &mut Schedule,
    ) -> Step {
        let (index, at) = stage_of(queue);
        let Contexts { contexts, paths, .. } = self;
        let path = paths.get_mut(usize::from(index)).and_then(|slot| slot.path.as_mut());
        let Some(path) = path.filter(|path| path.after.is_empty()) else { return Step::Idle };
        let Some(stage) = path.stages.get(at) else { return Step::Idle };
        let monitor = &mut contexts[usize::from(stage.context)].monitor;
        let begin = clock.as_mut().filter(|_| monitor.measures()).map(|clock| clock());
        let called = match stage.timer.is_some_and(|timer| timer.due && !path.retired) {
            true => tick(path, at, outlet),
            false => match path.queues[at].front() {
                Some(item) => process(path, at, item, outlet),
                None => return Step::Idle,
            },
        };
        let stage = &mut path.stages[at];
        if let (Some(begin), Some(clock)) = (begin, clock) {
            let time = clock().saturating_since(begin);
            monitor.measured(time);
            stage.profiles.of(called.format).timing.record(time);
        }
        if called.wait.is_none() && called.len.is_some() {
            monitor.processed(called.len.unwrap_or(0), path.queues[at].len());
        }
        let mut wake = called.touched;
        match called.wait {
            None if path.waits_for_stage != 0 => wake = wake.and(path.take_waiting()),
            None => {}
            Some(wait) => {
                path.record_wait(at, wait);
                if wait != Wait::Stage {
                    self.stalled.push_back(&mut self.stalled_links, u32::from(index));
                }
            }
        }
        wake.stages().for_each(|stage| self.wake(index, stage, schedule));
        match called.wait {
            Some(_) => Step::Idle,
            None => Step::Done(called.len.unwrap_or(0)),
        }
    }

    /// Returns the message that is next in a queue, and the counters of its stage, for a trace.
    #[cold]
    pub fn next_of(&self, queue: u16) -> Option<NextOf<'_>> {
        let (index, at) = stage_of(queue);
        let path = self.path(index)?;
        let (stage, item) = (path.stages.get(at)?, path.queues.get(at)?.front()?);
        let (context, handler) = (stage.context, path.spec.stages.get(at)?.handler.as_str());
        Some(NextOf { handle: item.handle, len: item.len, context, handler, profile: stage.profiles.total() })
    }

    /// Returns the counters of a queue's stage.
    #[cold]
    pub fn profile_of(&self, queue: u16) -> Option<Profile> {
        let (index, at) = stage_of(queue);
        Some(self.path(index)?.stages.get(at)?.profiles.total())
    }

    /// Puts a message into a path. `None`: it was queued. Otherwise the message that was dropped; the caller
    /// releases its reference.
    pub fn enter(
        &mut self,
        index: u16,
        item: Item,
        policy: FullQueue,
        schedule: &mut Schedule,
    ) -> Option<MessageHandle> {
        let path = self.path_mut(index)?;
        // Messages that a remote context has been given stay in front.
        let policy = if path.stages[0].given > 0 { FullQueue::DropNewest } else { policy };
        let was_empty = path.queues[0].len() == path.stages[0].given as usize;
        let dropped = match path.queues[0].push(item, &path.spec.queue, policy) {
            Pushed::Queued => None,
            Pushed::DroppedOldest(oldest) => {
                path.counters.dropped_oldest += 1;
                path.stages[0].skip = 0;
                Some(oldest.handle)
            }
            Pushed::DroppedNewest => {
                path.counters.dropped_newest += 1;
                return Some(item.handle);
            }
        };
        path.counters.entered += 1;
        if was_empty {
            self.wake(index, 0, schedule);
        }
        dropped
    }

    /// Puts a message at the end of the queue of a path that the caller serves itself.
    pub fn enter_served(&mut self, index: u16, item: Item) {
        if let Some(path) = self.path_mut(index) {
            path.queues[0].append(item, &path.spec.queue);
            path.counters.entered += 1;
        }
    }

    /// Puts a message into a path that the worker's contexts serve, even if the path is full.
    pub fn enter_late(&mut self, index: u16, item: Item, schedule: &mut Schedule) {
        self.enter_served(index, item);
        self.wake(index, 0, schedule);
    }

    /// Returns whether contexts of this worker run all stages of a path.
    pub fn is_local(&self, index: u16) -> bool {
        self.path(index).is_some_and(|path| !path.stages.iter().any(|stage| self.is_remote(stage.context)))
    }

    /// Returns the queue of the last stage of a path that has messages. When it is served first, its emits
    /// find room.
    pub fn last_waiting(&self, index: u16) -> Option<u16> {
        let stage = self.path(index)?.queues.iter().rposition(|queue| !queue.is_empty())?;
        Some(queue_number(index, stage))
    }

    /// Returns whether messages are in a path.
    pub fn is_occupied(&self, index: u16) -> bool {
        self.path(index).is_some_and(|path| !path.is_empty())
    }

    /// Removes the stages of an empty path from the schedule, except those whose timer is due.
    pub fn rest(&mut self, index: u16) {
        let Some(path) = self.paths.get(usize::from(index)).and_then(|slot| slot.path.as_ref()) else {
            return;
        };
        for (at, stage) in path.stages.iter().enumerate() {
            // One whose timer is due keeps its turn.
            if !stage.timer.is_some_and(|timer| timer.due)
                && let Some(slot) = self.contexts.get_mut(usize::from(stage.context))
            {
                slot.queues.set_active(queue_number(index, at), false);
            }
        }
    }

    /// Returns the room at the entry of a path.
    pub fn entry(&self, index: u16) -> Entry {
        self.path(index).map_or(Entry::default(), |path| {
            let (queue, limits) = (&path.queues[0], &path.spec.queue);
            let is_here = !self.is_remote(path.stages[0].context);
            Entry {
                is_ended: path.ended,
                is_full: queue.is_full(limits),
                was_full: queue.was_full(),
                is_half: is_here && queue.is_half(limits),
                waits: !is_here || path.waits_for_memory != 0 || path.waits_for_receivers != 0,
            }
        })
    }

    /// Counts a message that did not enter a path, because its queue was full or there was no memory.
    pub fn refuse(&mut self, index: u16, for_memory: bool) {
        if let Some(path) = self.path_mut(index) {
            path.counters.dropped_memory += u64::from(for_memory);
            path.counters.dropped_newest += u64::from(!for_memory);
        }
    }

    /// Counts a message that did not enter a path that a handler has ended.
    pub fn refuse_ended(&mut self, index: u16) {
        if let Some(path) = self.path_mut(index) {
            path.counters.dropped_faults += 1;
        }
    }

    /// Returns whether all paths of a channel have room for more messages of publishers that are held back.
    pub fn have_room(&self, paths: &ChannelPaths) -> bool {
        paths.iter().filter_map(|index| self.path(index)).all(|path| !path.queues[0].was_full())
    }

    /// Returns the paths with a stage that waits for receivers or memory.
    pub fn stalled(&self) -> List {
        self.stalled
    }

    /// Returns the stalled path after another, and the channel of this one.
    pub fn after_stalled(&self, index: u32) -> Option<u32> {
        self.stalled.after(&self.stalled_links, index)
    }

    /// Returns the channel of a path.
    pub fn channel_of(&self, index: u16) -> Option<u16> {
        self.path(index).map(|path| path.spec.channel.index)
    }

    /// Wakes the stages of a path that were waiting for room that is available now.
    pub fn resume(&mut self, index: u16, ch: &Channel, pool: &MessagePool, schedule: &mut Schedule) {
        let Some(path) = self.path_mut(index) else { return };
        let slot = path.spec.channel.index;
        let receivers = path.waits_for_receivers == 0 || ch.has_room();
        let memory = path.waits_for_memory == 0 || pool.admits(slot, path.wanted);
        if !receivers || !memory {
            return;
        }
        path.wanted = 0;
        let waiting = path.take_waiting();
        self.stalled.remove(&mut self.stalled_links, u32::from(index));
        waiting.stages().for_each(|stage| self.wake(index, stage, schedule));
    }

    /// Records which timers are due.
    pub fn on_timeout(&mut self, now: Instant, schedule: &mut Schedule) {
        if self.timers == 0 {
            return;
        }
        for index in 0..self.paths.len() as u16 {
            let Some(path) = self.path_mut(index).filter(|path| !path.retired) else { continue };
            let mut due = Targets::NONE;
            for (at, timer) in path.stages.iter_mut().map(|stage| stage.timer.as_mut()).enumerate() {
                let Some(timer) = timer.filter(|timer| timer.next <= now) else { continue };
                (timer.due, timer.next) = (true, now + timer.period);
                due = due.and(Targets::stage(at));
            }
            due.stages().for_each(|stage| self.wake(index, stage, schedule));
        }
    }

    /// Returns the path of a queue, if the path must end once it is empty.
    pub fn ending(&self, queue: u16) -> Option<u16> {
        let (index, _) = stage_of(queue);
        self.path(index).filter(|path| (path.retired || path.transient) && path.is_empty()).map(|_| index)
    }
}

/// The next message of a stage.
pub(crate) struct NextOf<'a> {
    pub handle: MessageHandle,
    pub len: u32,
    pub context: u16,
    pub handler: &'a str,
    /// Costs of the stage so far.
    pub profile: Profile,
}

/// Room at the entry of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    pub is_full: bool,
    /// A handler has ended the path: nothing enters.
    pub is_ended: bool,
    /// The path was full, and has been more than half full since: publishers are held back, unless the
    /// channel drops.
    pub was_full: bool,
    /// It is more than half full, and a context of this worker is to empty it.
    pub is_half: bool,
    /// Turns of this worker's contexts do not empty it: a stage waits for memory or receivers, or the first
    /// one is elsewhere.
    pub waits: bool,
}

/// A call of a handler.
struct Called {
    /// Length of the message, if there was one.
    len: Option<u32>,
    /// Its format.
    format: Option<FormatId>,
    wait: Option<Wait>,
    touched: Targets,
}

/// Calls a handler with the message at the front of its queue.
fn process(path: &mut Path, at: usize, item: Item, outlet: Outlet<'_>) -> Called {
    let now = outlet.now;
    let Some(info) = outlet.pool.info(item.handle) else {
        path.queues[at].pop(&path.spec.queue);
        return Called { len: Some(0), format: None, wait: None, touched: Targets::NONE };
    };
    let format = outlet.pool.format(item.handle);
    let Path { spec, stages, queues, counters, ended, .. } = path;
    let Stage { handler, state, outputs, new_len_max, reserve, skip, profiles, .. } = &mut stages[at];
    let profile = profiles.of(Some(format));
    let (own, later) = queues.split_at_mut(at + 1);
    let mut port = StagePort {
        item: Some(item),
        outputs,
        outlets: &spec.outlets,
        later,
        first: at + 1,
        limits: &spec.queue,
        new_len_max: *new_len_max,
        reserve: *reserve,
        counters,
        skip: *skip,
        outlet,
        calls: 0,
        wait: None,
        refused: 0,
        touched: Targets::NONE,
        emitted: 0,
        made: 0,
    };
    let message = Message {
        format,
        sequence: info.sequence,
        arrived: info.arrived,
        len: info.len,
        frames: info.frames,
    };
    let mut done = handler.on_message(&mut Call::new(message, now, state, &mut port));
    if done == Err(Stop::Full) && port.wait.is_none() {
        done = Err(Stop::Fault("the handler waits for room that it has"));
    }
    let again = done == Err(Stop::Full);
    if let Err(Stop::Fault(_)) = done {
        profile.faults += 1;
        // The Control Manager keeps later messages out of the path.
        *ended |= handler.is_ended();
        match spec.passes_faults && !*ended && port.wait.is_none() && port.pass() {
            true => {}
            false if port.wait.is_some() => {}
            false => port.counters.dropped_faults += 1,
        }
    }
    let again = again || (done != Ok(()) && port.wait.is_some());
    let StagePort { wait, refused, touched, emitted, made, calls, outlet, counters, .. } = port;
    profile.emitted += u64::from(emitted);
    profile.bytes_made += made;
    if again {
        profile.full += 1;
        *skip = calls;
        return Called { len: Some(item.len), format: Some(format), wait, touched };
    }
    // The handler has gone on without what had no room.
    counters.dropped_ignored += u64::from(refused) + u64::from(wait.is_some());
    *skip = 0;
    profile.messages += 1;
    profile.bytes += u64::from(item.len);
    own[at].pop(&spec.queue);
    outlet.pool.release(item.handle);
    Called { len: Some(item.len), format: Some(format), wait: None, touched }
}

/// Calls a handler because its period has passed.
fn tick(path: &mut Path, at: usize, outlet: Outlet<'_>) -> Called {
    let now = outlet.now;
    let Path { spec, stages, queues, counters, .. } = path;
    let Stage { handler, state, outputs, new_len_max, reserve, skip_tick, profiles, timer, .. } =
        &mut stages[at];
    let profile = profiles.of(None);
    let (_, later) = queues.split_at_mut(at + 1);
    let mut port = StagePort {
        item: None,
        outputs,
        outlets: &spec.outlets,
        later,
        first: at + 1,
        limits: &spec.queue,
        new_len_max: *new_len_max,
        reserve: *reserve,
        counters,
        skip: *skip_tick,
        outlet,
        calls: 0,
        wait: None,
        refused: 0,
        touched: Targets::NONE,
        emitted: 0,
        made: 0,
    };
    let done = handler.on_timer(&mut Tick::new(now, state, &mut port));
    profile.emitted += u64::from(port.emitted);
    profile.bytes_made += port.made;
    if done == Err(Stop::Full) && port.wait.is_some() {
        profile.full += 1;
        *skip_tick = port.calls;
        return Called { len: None, format: None, wait: port.wait, touched: port.touched };
    }
    profile.faults += u64::from(done.is_err());
    port.counters.dropped_ignored += u64::from(port.refused) + u64::from(port.wait.is_some());
    profile.ticks += 1;
    *skip_tick = 0;
    if let Some(timer) = timer {
        timer.due = false;
    }
    Called { len: None, format: None, wait: None, touched: port.touched }
}

impl Path {
    pub(super) fn record_wait(&mut self, at: usize, wait: Wait) {
        let bit = 1 << at;
        match wait {
            Wait::Stage => self.waits_for_stage |= bit,
            Wait::Receivers => self.waits_for_receivers |= bit,
            Wait::Memory(blocks) => {
                self.waits_for_memory |= bit;
                self.wanted = self.wanted.max(blocks);
            }
        }
    }
}
