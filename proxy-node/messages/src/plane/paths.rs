//! Paths of channels: activated, entered, and served in the turns of contexts.

use csp_handlers::FormatId;
use csp_quality::{FlowId, SharedLink};
use csp_types::Instant;

use super::publish::{Arrival, refused};
use super::{ChannelId, MessagePlane, PublishError, Published};
use crate::contexts::{
    ContextStatus, HandlerManager, HandlerStatus, Outlet, PathChange, PathError, PathId, PathSpec,
    PathStatus, StateRefusal, Step,
};
use crate::pool::{MessageHandle, MessagePool, PoolError};
use crate::queue::{FullQueue, Item};
use crate::schedule::Turn;

impl MessagePlane {
    /// Activates a path for its channel and format. Messages in the former path leave through it first.
    ///
    /// # Errors
    /// When the path is not valid: the former one stays.
    pub fn activate_path(&mut self, now: Instant, spec: PathSpec) -> Result<PathId, PathError> {
        let ch = self.channels.get_mut(spec.channel).ok_or(PathError::UnknownChannel)?;
        self.contexts.activate(now, spec, ch, &self.pool, &mut self.schedule)
    }

    /// Gives a channel these paths, new ones and some that it has, in place of all that it has. Messages in
    /// former paths leave through them first. Returns the paths in the order of `wanted`.
    ///
    /// # Errors
    /// When one is not valid: all former ones stay.
    pub fn replace_paths(
        &mut self,
        now: Instant,
        channel: ChannelId,
        wanted: Vec<PathChange>,
    ) -> Result<Vec<PathId>, PathError> {
        let ch = self.channels.get_mut(channel).ok_or(PathError::UnknownChannel)?;
        self.contexts.replace(now, wanted, (ch, channel), &self.pool, &mut self.schedule)
    }

    /// Sets the channels behind the outlets of a path ([`PathSpec::outlets`]): one may have been replaced.
    pub fn set_outlets(&mut self, id: PathId, outlets: Vec<ChannelId>) {
        let Some(slot) = self.contexts.channel_of(id.index) else { return };
        if let Some(ch) = self.channels.at_mut(slot) {
            self.contexts.set_outlets(id, outlets, ch);
        }
    }

    /// Returns the handlers that have refused the state of their predecessors since the last call.
    pub fn take_state_refusals(&mut self) -> Vec<StateRefusal> {
        self.contexts.take_refusals()
    }

    /// Changes the parameters of a stage's handler between two messages.
    ///
    /// # Errors
    /// When there is no such stage, or the handler refuses the parameters: the former ones then stay.
    pub fn configure_handler(&mut self, id: PathId, stage: usize, parameters: &str) -> Result<(), PathError> {
        self.contexts.configure(id, stage, parameters)
    }

    /// Decays the weight of earlier calls in the quantiles of a stage, which is placed by its present costs.
    pub fn age_times(&mut self, id: PathId, stage: usize) {
        self.contexts.age_times(id, stage);
    }

    /// Returns the handlers, to store more.
    pub fn handlers_mut(&mut self) -> &mut HandlerManager {
        &mut self.contexts.handlers
    }

    /// Returns whether a turn is that of a context, for [`run_context`](Self::run_context).
    pub fn is_context(&self, turn: &Turn) -> bool {
        self.schedule.context_of(turn).is_some()
    }

    /// Returns whether a context has work.
    pub fn contexts_have_work(&self) -> bool {
        self.contexts.any_work()
    }

    /// Runs handlers of a context until its turn is over or no message waits for it. Returns the number of
    /// messages processed. `clock` times some of the calls. `link`: if information flows share the output
    /// link, messages at the end of a path go to its queues.
    pub fn run_context(
        &mut self,
        now: Instant,
        turn: &mut Turn,
        mut clock: Option<&mut dyn FnMut() -> Instant>,
        mut link: Option<&mut SharedLink>,
    ) -> u32 {
        let Some(context) = self.schedule.context_of(turn) else { return 0 };
        let mut done = 0;
        while !turn.is_over() {
            let Some((mut queue, slot)) = self.contexts.next_stage(context) else { break };
            let (mut idle, before) = (false, done);
            while !idle && !turn.is_over() && !queue.is_over() && !self.feeds_fill(slot) {
                // The closure's lifetime ends with each call.
                let clock = clock.as_mut().map(|clock| &mut **clock as &mut dyn FnMut() -> Instant);
                let watched =
                    if self.distribution.traces().is_armed() { self.watch(queue.flow) } else { None };
                let step = self.step(now, slot, (queue.flow, None), clock, link.as_deref_mut());
                if let (Some(watched), Step::Done(_)) = (watched, step) {
                    self.trace_passed(slot, queue.flow, watched);
                }
                self.feed_stored();
                match step {
                    Step::Done(len) => {
                        queue.charge(len);
                        turn.charge(len);
                        done += 1;
                    }
                    Step::Idle => idle = true,
                }
            }
            let number = queue.flow;
            match idle {
                true => self.contexts.sleep(context, queue),
                false => self.contexts.end_stage(context, queue),
            }
            if let Some(ch) = self.channels.at_mut(slot) {
                if let Some(path) = self.contexts.ending(number) {
                    self.contexts.settle(path, ch, &mut self.schedule);
                }
                self.schedule.set_channel(slot, ch);
            }
            if done == before && !idle {
                break; // it waits for the channels that it feeds: others have their turns, in this context and elsewhere
            }
        }
        self.schedule.set_context(context, self.contexts.is_active(context));
        done
    }

    /// Calls the handler of a queue once. `flow`: that of the message, if a context of flows processes it.
    pub(super) fn step(
        &mut self,
        now: Instant,
        slot: u16,
        (queue, flow): (u16, Option<FlowId>),
        clock: Option<&mut dyn FnMut() -> Instant>,
        link: Option<&mut SharedLink>,
    ) -> Step {
        let (id, number) = (self.channels.id(slot), self.channels.number(slot));
        let Some(ch) = self.channels.at_mut(slot) else { return Step::Idle };
        let outlet = Outlet {
            now,
            id,
            number,
            ch,
            pool: &mut self.pool,
            distribution: &mut self.distribution,
            fed: &mut self.fed,
            link: link.map(|link| (link, &self.fields)),
            flow,
        };
        self.contexts.step(queue, outlet, clock, &mut self.schedule)
    }

    /// Stores a message and puts it into the queue of its path's first stage. Not inlined, to keep the
    /// default path small.
    #[inline(never)]
    pub(super) fn enter<'a>(
        &mut self,
        slot: u16,
        path: Option<u16>,
        format: FormatId,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Result<Published, PublishError> {
        let Arrival { now, frames, parts, len } = message;
        let store = |pool: &mut MessagePool, sequence| pool.store(slot, (now, sequence), frames, parts);
        self.enter_with(slot, path, format, (frames, len), store)
    }

    /// The same for a message that `store` stores with the number that it is passed.
    pub(super) fn enter_with(
        &mut self,
        slot: u16,
        path: Option<u16>,
        format: FormatId,
        (frames, len): (&[u32], u32),
        store: impl FnOnce(&mut MessagePool, u64) -> Result<MessageHandle, PoolError>,
    ) -> Result<Published, PublishError> {
        let MessagePlane { pool, channels, schedule, contexts, distribution, .. } = self;
        let (Some(path), Some(ch)) = (path, channels.at_mut(slot)) else {
            return Err(PublishError::UnknownPeer);
        };
        if ch.backlog_limits().is_none() {
            distribution.check_topic(frames)?;
        }
        let (policy, entry) = (ch.policy(), contexts.entry(path));
        let holds_back = policy == FullQueue::Block;
        let dropped = |ch: &mut crate::channel::Channel| {
            ch.counters.dropped_path += 1;
            Ok(Published { sequence: ch.number(len), receivers: 0, dropped: 1, yields: false })
        };
        if entry.is_ended {
            contexts.refuse_ended(path);
            return dropped(ch);
        }
        if holds_back && (entry.is_full || entry.was_full) {
            return Err(PublishError::Held);
        }
        if entry.is_full && policy == FullQueue::DropNewest {
            contexts.refuse(path, false);
            return dropped(ch);
        }
        let blocks = pool.blocks_for(len) + ch.paths.reserve;
        if holds_back && !pool.admits(slot, blocks) {
            let wanted = u64::from(blocks) * u64::from(self.config.pool.block_len);
            return Err(refused(ch, PoolError::Budget, u32::try_from(wanted).unwrap_or(u32::MAX)));
        }
        let handle = match store(pool, ch.sequence + 1) {
            Ok(handle) => handle,
            Err(PoolError::Budget | PoolError::Exhausted) if !holds_back => {
                contexts.refuse(path, true);
                return dropped(ch);
            }
            Err(error) => return Err(refused(ch, error, len)),
        };
        pool.set_format(handle, format);
        let item = Item { handle, len, cached: false };
        let oldest = contexts.enter(path, item, policy, schedule);
        let sequence = ch.number(len);
        if let Some(oldest) = oldest {
            let traces = distribution.traces_mut();
            if traces.is_armed()
                && let Some(info) = pool.info(oldest)
            {
                traces.left_path(slot, info.sequence);
            }
            pool.release(oldest);
            ch.counters.dropped_path += 1;
        }
        let yields = contexts.entry(path).is_half;
        let receivers = u32::from(oldest != Some(handle));
        Ok(Published { sequence, receivers, dropped: u32::from(oldest.is_some()), yields })
    }

    /// Wakes stages that have waited for receivers or memory.
    pub(super) fn resume_paths(&mut self) {
        let mut next = self.contexts.stalled().front();
        while let Some(index) = next {
            next = self.contexts.after_stalled(index);
            let index = index as u16;
            let Some(slot) = self.contexts.channel_of(index) else { continue };
            let Some(ch) = self.channels.at(slot) else { continue };
            self.contexts.resume(index, ch, &self.pool, &mut self.schedule);
        }
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        self.contexts.next_timeout()
    }

    /// Records which handlers' timers are due; they are called in the turns of their contexts.
    pub fn on_timeout(&mut self, now: Instant) {
        self.contexts.on_timeout(now, &mut self.schedule);
    }

    /// Returns how many messages are in the paths of a channel.
    pub fn waiting_in_paths(&self, channel: ChannelId) -> usize {
        self.contexts.waiting_of(channel)
    }

    /// Returns all paths.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.contexts.path_statuses()
    }

    /// Returns a path; `None` once it is over.
    pub fn path_status(&self, id: PathId) -> Option<PathStatus> {
        self.contexts.path_status(id)
    }

    /// Returns all contexts.
    pub fn contexts(&self) -> Vec<ContextStatus> {
        self.contexts.context_statuses()
    }

    /// Returns all handlers.
    pub fn handlers(&self) -> Vec<HandlerStatus> {
        self.contexts.handler_statuses()
    }
}
