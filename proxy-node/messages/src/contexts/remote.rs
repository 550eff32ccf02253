//! A context elsewhere: a queue out and a queue in, where local contexts call their handlers.
//!
//! ```text
//!   queue of the stage   | m1 m2 | m3 m4 m5 |        m1 and m2 are passed on: as many as there is credit for
//!                          │ next_call            ▲ emit, emit, …, done: of m1 first
//!                          ▼                      │
//!                        ──── link ──▶ handler ───┘
//! ```
//! Messages in transit are bounded by number and by bytes for each stage; a single message is passed on
//! whatever its length. A message stays at the front of its queue until the other end is done with it. If
//! that end is lost, its messages are passed on again, and emits that were processed before are skipped. An
//! emit without room waits at the link and holds back later emits of its stage only: room may become free
//! through another stage's record on the same link.

use csp_handlers::{Emit, Port, Reported, Standing};
use thiserror::Error;

use super::handler_manager::StageSupply;
use super::outlet::Outlet;
use super::path::{Path, PathId, Targets};
use super::port::{StagePort, Wait};
use super::{Contexts, stage_of};
use crate::channel::Channel;
use crate::pool::{MessageHandle, MessagePool};
use crate::schedule::Schedule;

/// Bytes of the messages of a stage that a remote context may have, if they are more than one.
pub const GIVEN_BYTES_MAX: u64 = 256 << 10;

/// Identifies a message at a remote context: the oldest unfinished message of a stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The path.
    pub path: PathId,
    /// The stage.
    pub stage: u8,
}

/// A message for a handler of a remote context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteCall {
    /// Identifies the stage. Its calls are answered in order.
    pub ticket: Ticket,
    /// Names the message, to read it.
    pub handle: MessageHandle,
}

/// Description of a stage for a remote context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteStage<'a> {
    /// Name of its handler.
    pub handler: &'a str,
    /// The handler's parameters.
    pub parameters: &'a str,
    /// Needed to make the handler, if its name is not enough.
    pub supply: Option<&'a StageSupply>,
}

/// Outcome of a message at a remote context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteDone {
    /// It was processed.
    Processed,
    /// The handler has given it up.
    GivenUp,
    /// The handler has given it up, and ends the path: it would give up all later ones.
    Ended,
}

/// Why a record of a remote context is not processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RemoteError {
    /// There is no room yet. The caller passes the same record again later, and no later record of the stage
    /// before it.
    #[error("an output has no room")]
    Full,
    /// The path has ended; its messages are released.
    #[error("the path is over")]
    Stale,
    /// The context was passed no message that this could answer.
    #[error("the remote context answers what it was not given")]
    NotGiven,
}

impl Contexts {
    /// Makes a context remote, with credit for `credit` messages of each stage; 0: local.
    pub fn set_remote(&mut self, context: u16, credit: u32) -> bool {
        let Some(slot) = self.contexts.get_mut(usize::from(context)) else { return false };
        slot.remote_credit = credit;
        true
    }

    /// Returns whether a context's messages are fetched from elsewhere.
    pub(super) fn is_remote(&self, context: u16) -> bool {
        self.contexts.get(usize::from(context)).is_some_and(|slot| slot.remote_credit > 0)
    }

    /// Returns the next message for a remote context, if a message waits and there is credit for it.
    pub fn next_call(&mut self, context: u16) -> Option<RemoteCall> {
        let credit = self.contexts.get(usize::from(context))?.remote_credit;
        loop {
            let turn = self.next_queue(context)?;
            let (index, at) = stage_of(turn.flow);
            let generation = self.paths.get(usize::from(index)).map_or(0, |slot| slot.generation);
            let call = self.path_mut(index).filter(|path| path.after.is_empty()).and_then(|path| {
                let (stage, queue) = (path.stages.get_mut(at)?, path.queues.get(at)?);
                let item = queue.get(stage.given as usize).filter(|_| stage.given < credit)?;
                let bytes = stage.given_bytes + u64::from(item.len);
                if stage.given > 0 && bytes > GIVEN_BYTES_MAX {
                    return None;
                }
                (stage.given, stage.given_bytes) = (stage.given + 1, bytes);
                let path = PathId { index, generation };
                Some(RemoteCall { ticket: Ticket { path, stage: at as u8 }, handle: item.handle })
            });
            match call {
                Some(call) => {
                    self.end_queue(context, turn);
                    return Some(call);
                }
                None => self.sleep(context, turn),
            }
        }
    }

    /// Returns the handler of a remote call.
    pub fn remote_stage(&self, ticket: Ticket) -> Option<RemoteStage<'_>> {
        let path = self.path(self.find(ticket.path)?)?;
        let stage = path.spec.stages.get(usize::from(ticket.stage))?;
        let supply = stage.maker.as_ref().and_then(|maker| maker.supply());
        Some(RemoteStage { handler: &stage.handler, parameters: &stage.parameters, supply })
    }

    /// Records a remote context's report of a stage. `why`: the reason for which the context does not run it.
    /// Returns whether the reason is new.
    pub fn remote_report(&mut self, ticket: Ticket, report: &Reported, why: &str) -> bool {
        let path = self.find(ticket.path).and_then(|index| self.path_mut(index));
        let Some(stage) = path.and_then(|path| path.stages.get_mut(usize::from(ticket.stage))) else {
            return false;
        };
        stage.handler.on_report(report);
        stage.times = (report.times.measured > 0).then_some(report.times);
        let was_refused = stage.refused.is_some();
        stage.refused = (report.standing == Standing::Refused).then(|| why.to_owned());
        stage.refused.is_some() && !was_refused
    }

    /// Returns whether messages that handlers of a remote call's path give up go on as they are.
    pub fn passes_faults(&self, ticket: Ticket) -> bool {
        let path = self.find(ticket.path).and_then(|index| self.path(index));
        path.is_some_and(|path| path.spec.passes_faults && !path.ended)
    }

    /// Returns the channel of a remote call.
    pub fn channel_of_call(&self, ticket: Ticket) -> Option<u16> {
        self.channel_of(self.find(ticket.path)?)
    }

    fn given(&mut self, ticket: Ticket) -> Result<(u16, &mut Path), RemoteError> {
        let index = self.find(ticket.path).ok_or(RemoteError::Stale)?;
        let path = self.path_mut(index).ok_or(RemoteError::Stale)?;
        let stage = path.stages.get(usize::from(ticket.stage)).ok_or(RemoteError::NotGiven)?;
        if stage.given == 0 { Err(RemoteError::NotGiven) } else { Ok((index, path)) }
    }

    /// Processes an emit of a remote handler for the oldest message that it was passed.
    pub fn remote_emit(
        &mut self,
        ticket: Ticket,
        (output, emit): (u8, Emit<'_>),
        outlet: Outlet<'_>,
        schedule: &mut Schedule,
    ) -> Result<(), RemoteError> {
        let (index, path) = self.given(ticket)?;
        let at = usize::from(ticket.stage);
        let Path { spec, stages, queues, counters, .. } = path;
        let (own, later) = queues.split_at_mut(at + 1);
        let stage = &mut stages[at];
        if stage.remote_calls < stage.skip {
            stage.remote_calls += 1;
            return Ok(());
        }
        let item = own[at].front();
        let format = item.map(|item| outlet.pool.format(item.handle));
        let mut port = StagePort {
            item,
            outputs: &stage.outputs,
            outlets: &spec.outlets,
            later,
            first: at + 1,
            limits: &spec.queue,
            new_len_max: stage.new_len_max,
            reserve: stage.reserve,
            counters,
            skip: 0,
            outlet,
            calls: 0,
            wait: None,
            refused: 0,
            touched: Targets::NONE,
            emitted: 0,
            made: 0,
        };
        let done = port.emit(output, emit);
        let StagePort { wait, touched, emitted, made, .. } = port;
        let profile = stage.profiles.of(format);
        profile.emitted += u64::from(emitted);
        profile.bytes_made += made;
        if done.is_err() {
            profile.full += 1;
            if let Some(wait) = wait {
                path.record_wait(at, wait);
                if wait != Wait::Stage {
                    self.stalled.push_back(&mut self.stalled_links, u32::from(index));
                }
            }
            return Err(RemoteError::Full);
        }
        stage.skip += 1;
        stage.remote_calls += 1;
        touched.stages().for_each(|stage| self.wake(index, stage, schedule));
        Ok(())
    }

    /// Releases the oldest message that a stage's remote handler was passed. `passed`: the message continues
    /// although the handler gave it up. Returns its handle, and the queue that has become shorter.
    pub fn remote_done(
        &mut self,
        ticket: Ticket,
        (done, passed): (RemoteDone, bool),
        pool: &MessagePool,
        schedule: &mut Schedule,
    ) -> Result<(MessageHandle, u16), RemoteError> {
        let (index, path) = self.given(ticket)?;
        let at = usize::from(ticket.stage);
        let item = path.queues[at].pop(&path.spec.queue).ok_or(RemoteError::NotGiven)?;
        let stage = &mut path.stages[at];
        (stage.skip, stage.remote_calls) = (0, 0);
        (stage.given, stage.given_bytes) = (stage.given - 1, stage.given_bytes - u64::from(item.len));
        let profile = stage.profiles.of(Some(pool.format(item.handle)));
        let fault = done != RemoteDone::Processed;
        profile.faults += u64::from(fault);
        profile.messages += 1;
        profile.bytes += u64::from(item.len);
        path.counters.dropped_faults += u64::from(fault && !passed);
        // The Control Manager keeps later messages out of the path.
        path.ended |= done == RemoteDone::Ended;
        let (context, left) = (stage.context, path.queues[at].len());
        let mut wake = Targets::stage(at);
        if path.waits_for_stage != 0 {
            wake = wake.and(path.take_waiting());
        }
        if let Some(slot) = self.contexts.get_mut(usize::from(context)) {
            slot.monitor.processed(item.len, left);
        }
        wake.stages().for_each(|stage| self.wake(index, stage, schedule));
        Ok((item.handle, super::queue_number(index, at)))
    }

    /// Records the loss of a remote context: its messages are passed to its successor.
    pub fn remote_lost(&mut self, context: u16, schedule: &mut Schedule) {
        for index in 0..self.paths.len() as u16 {
            let Some(path) = self.path_mut(index) else { continue };
            let mut again = Targets::NONE;
            for (at, stage) in
                path.stages.iter_mut().enumerate().filter(|(_, stage)| stage.context == context)
            {
                (stage.given, stage.given_bytes, stage.remote_calls) = (0, 0, 0);
                again = again.and(Targets::stage(at));
            }
            again.stages().for_each(|stage| self.wake(index, stage, schedule));
        }
    }

    /// Discards messages that wait for a remote context in replaced or removed paths: those of stages that it
    /// does not run, and if the context is lost, those of all stages. Returns their number.
    pub fn give_up(
        &mut self,
        (index, context, is_lost): (u16, u16, bool),
        ch: &mut Channel,
        pool: &mut MessagePool,
        schedule: &mut Schedule,
    ) -> u64 {
        let Some(path) = self.path_mut(index).filter(|path| path.retired || path.transient) else { return 0 };
        let (limits, mut lost, mut wake) = (path.spec.queue, 0, Targets::NONE);
        for (queue, stage) in path.queues.iter_mut().zip(&mut path.stages) {
            let is_idle = is_lost && stage.given == 0;
            if stage.context != context || !(is_idle || stage.refused.is_some()) {
                continue;
            }
            (stage.given, stage.given_bytes, stage.remote_calls) = (0, 0, 0);
            stage.skip = 0;
            while let Some(item) = queue.pop(&limits) {
                pool.release(item.handle);
                lost += 1;
            }
        }
        path.counters.lost += lost;
        if lost > 0 && path.waits_for_stage != 0 {
            wake = path.take_waiting();
        }
        wake.stages().for_each(|stage| self.wake(index, stage, schedule));
        self.settle(index, ch, schedule);
        lost
    }

    /// Returns the slots of paths that are replaced or removed and have messages for a context, with their
    /// channels.
    pub fn retired_at(&self, context: u16) -> Vec<(u16, u16)> {
        let waits = |path: &Path| {
            let mut stages = path.stages.iter().zip(&path.queues);
            (path.retired || path.transient) && stages.any(|(s, q)| s.context == context && !q.is_empty())
        };
        let known = (0u16..).zip(&self.paths).filter_map(|(index, slot)| Some((index, slot.path.as_ref()?)));
        known.filter(|(_, path)| waits(path)).map(|(index, path)| (index, path.spec.channel.index)).collect()
    }
}
