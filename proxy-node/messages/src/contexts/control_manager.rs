//! The Control Manager: checks a path before it is activated. [`replace`](super::replace) puts it in place of
//! others.
//!
//! A path that a handler has *ended* stays and drops all further messages: none reaches receivers without
//! passing the handler.

use csp_handlers::{FormatId, Handler, Needs, ParameterError, State};
use csp_types::Instant;
use thiserror::Error;

use super::Contexts;
use super::path::{Path, PathCounters, PathId, PathSpec, STAGES_MAX, Stage, StageSpec, Targets, Timer};
use crate::channel::Channel;
use crate::pool::{MessagePool, Usage};
use crate::queue::{FullQueue, Queue};
use crate::schedule::Schedule;

/// Why a path is not activated.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PathError {
    /// The channel was removed, or is another worker's.
    #[error("the worker does not have the channel")]
    UnknownChannel,
    /// The path is over.
    #[error("the worker does not have the path")]
    UnknownPath,
    /// A path has 1 to [`STAGES_MAX`] stages; contains how many.
    #[error("a path has 1 to {STAGES_MAX} handlers, not {0}")]
    Stages(usize),
    /// The worker has no handler of this name.
    #[error("there is no handler `{0}`")]
    UnknownHandler(String),
    /// The worker has no context of this number.
    #[error("there is no context c{0}: the worker has {1}, from c0 on")]
    UnknownContext(u16, u16),
    /// A stage does not say where each output of its handler goes.
    #[error("stage {stage} has {has} outputs, and its handler has {needs}")]
    Outputs {
        /// The stage, from 0 on.
        stage: usize,
        /// Outputs of the stage.
        has: usize,
        /// Outputs of the handler.
        needs: u8,
    },
    /// An output goes to a stage that does not come later.
    #[error("stage {0} emits to stage {1}, which does not come later")]
    Order(usize, usize),
    /// No output goes to a stage.
    #[error("no output goes to stage {0}")]
    Unreachable(usize),
    /// A handler does not process the format that it would get.
    #[error("handler `{0}` does not process format {1}, which it would get")]
    Format(String, u32),
    /// A handler refuses its parameters.
    #[error("handler `{0}`: {1}")]
    Parameters(String, ParameterError),
    /// A mark of the queues is 0.
    #[error("a path's queue needs room for a message")]
    Queue,
    /// The handler has a timer, and its context is not the worker's own.
    #[error("handler `{0}` has a timer, which only contexts of the proxy worker run")]
    Timer(String),
    /// Only the worker's own contexts can make the handler.
    #[error("handler `{0}` runs in contexts of the proxy worker only")]
    Elsewhere(String),
    /// The context has too little memory for the state of its handlers.
    #[error("context c{context} has {left} bytes of state left, and {needed} are needed")]
    State {
        /// Number of the context.
        context: u16,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The channel's guaranteed memory has no room for a message and for the messages that its handlers make
    /// of it.
    #[error(
        "the longest message and what handlers make of it need {needed} blocks of guaranteed memory, and the channel has {has}"
    )]
    Memory {
        /// Blocks that are needed.
        needed: u32,
        /// Blocks of the guarantee.
        has: u32,
    },
    /// A channel is to have two paths for one format, or a path for all formats beside others.
    #[error("a channel has one path for all formats, or one for each of some formats")]
    Overlap,
    /// The worker has no room for another path.
    #[error("the worker has as many paths as it may have")]
    TooMany,
}

impl Contexts {
    /// Checks a path.
    pub(super) fn check(
        &mut self,
        now: Instant,
        spec: PathSpec,
        ch: &Channel,
        pool: &MessagePool,
    ) -> Result<Path, PathError> {
        for stage in spec.stages.iter().filter(|stage| stage.maker.is_some()) {
            self.handlers.know(&stage.handler);
        }
        let (stages, reserve) = self.prepare(now, &spec, pool)?;
        if let Some(format) = spec.format {
            let parts = spec.stages.iter().zip(&stages);
            let parts: Vec<FormatStage<'_>> = parts
                .map(|(spec, stage)| (spec.handler.as_str(), &*stage.handler, &stage.outputs[..]))
                .collect();
            check_formats(format, &parts)?;
        }
        let usage = pool.usage(spec.channel.index);
        check_memory(reserve, ch, pool, usage)?;
        Ok(Path { reserve, ..Path::new(spec, stages) })
    }

    /// Makes the handlers of a path. Returns them with the blocks that must be free beside a message that
    /// enters.
    fn prepare(
        &self,
        now: Instant,
        spec: &PathSpec,
        pool: &MessagePool,
    ) -> Result<(Vec<Stage>, u32), PathError> {
        if spec.stages.is_empty() || spec.stages.len() > STAGES_MAX {
            return Err(PathError::Stages(spec.stages.len()));
        }
        if spec.queue.messages == 0 || spec.queue.bytes == 0 {
            return Err(PathError::Queue);
        }
        let mut stages = Vec::new();
        let mut reached = Targets::stage(0);
        for (at, stage) in spec.stages.iter().enumerate() {
            if !reached.stages().any(|stage| stage == at) {
                return Err(PathError::Unreachable(at));
            }
            for targets in &stage.outputs {
                if let Some(wrong) = targets.stages().find(|to| *to <= at || *to >= spec.stages.len()) {
                    return Err(PathError::Order(at, wrong));
                }
                reached = reached.and(*targets);
            }
            stages.push(self.prepare_stage(now, at, stage)?);
        }
        // What stages after each need, from the last on.
        let mut reserve = 0;
        for stage in stages.iter_mut().rev() {
            stage.reserve = reserve;
            reserve += if stage.new_len_max > 0 { pool.blocks_for(stage.new_len_max) } else { 0 };
        }
        Ok((stages, reserve))
    }

    pub(super) fn prepare_stage(
        &self,
        now: Instant,
        at: usize,
        spec: &StageSpec,
    ) -> Result<Stage, PathError> {
        let contexts = self.contexts.len() as u16;
        if spec.context >= contexts {
            return Err(PathError::UnknownContext(spec.context, contexts));
        }
        let unknown = || PathError::UnknownHandler(spec.handler.clone());
        let number = self.handlers.find(&spec.handler).ok_or_else(unknown)?;
        let is_remote = self.is_remote(spec.context);
        let made = match &spec.maker {
            Some(maker) if is_remote && maker.supply().is_none() => {
                return Err(PathError::Elsewhere(spec.handler.clone()));
            }
            Some(maker) if is_remote => maker.describe(),
            Some(maker) => maker.make(),
            None => self.handlers.make(number),
        };
        let (mut handler, needs) = made.ok_or_else(unknown)?;
        check_stage((at, &spec.handler), spec.outputs.len(), &needs, is_remote)?;
        self.check_stage_state(spec.context, u64::from(needs.state) + u64::from(needs.more_max))?;
        let mut state = State::new(&needs);
        // A handler without parameters keeps its defaults.
        if !spec.parameters.is_empty() {
            let configured = handler.configure(&spec.parameters, &mut state);
            configured.map_err(|error| PathError::Parameters(spec.handler.clone(), error))?;
        }
        Ok(Stage {
            number,
            state,
            context: spec.context,
            outputs: spec.outputs.clone(),
            new_len_max: needs.new_len_max,
            timer: needs.period.map(|period| Timer { period, next: now + period, due: false }),
            skip: 0,
            given: 0,
            given_bytes: 0,
            remote_calls: 0,
            skip_tick: 0,
            reserve: 0,
            profiles: Default::default(),
            times: None,
            refused: None,
            state_refused: false,
            handler,
        })
    }

    fn check_stage_state(&self, context: u16, needed: u64) -> Result<(), PathError> {
        let used = self.contexts.get(usize::from(context)).map_or(0, |context| context.state_bytes);
        let left = self.config.state_bytes_max.saturating_sub(used);
        if needed > left { Err(PathError::State { context, needed, left }) } else { Ok(()) }
    }

    /// Checks that the contexts have room for the state of all stages together.
    pub(super) fn check_state<'a>(
        &self,
        stages: impl Iterator<Item = &'a Stage> + Clone,
    ) -> Result<(), PathError> {
        for context in 0..self.contexts.len() as u16 {
            let of_context = stages.clone().filter(|stage| stage.context == context);
            self.check_stage_state(context, of_context.map(Stage::state_bytes).sum())?;
        }
        Ok(())
    }

    /// Wakes all stages of a path that have work.
    pub fn wake_all(&mut self, index: u16, schedule: &mut Schedule) {
        let Some(path) = self.path(index) else { return };
        let is_due = |stage: &Stage| stage.timer.is_some_and(|timer| timer.due);
        let mut work = Targets::NONE;
        for (at, (queue, stage)) in path.queues.iter().zip(&path.stages).enumerate() {
            if !queue.is_empty() || is_due(stage) {
                work = work.and(Targets::stage(at));
            }
        }
        work.stages().for_each(|stage| self.wake(index, stage, schedule));
    }

    /// Records that the stages of a path have ended.
    pub(super) fn remove_stages(&mut self, index: u16, path: &Path) {
        for (at, stage) in path.stages.iter().enumerate() {
            self.handlers.removed(stage.number, &stage.profiles.total(), stage.handler.usage());
            self.timers -= usize::from(stage.timer.is_some());
            let context = &mut self.contexts[usize::from(stage.context)];
            context.state_bytes -= stage.state_bytes();
            context.queues.set_active(super::queue_number(index, at), false);
        }
    }

    /// Removes all paths of a channel that is removed. Returns how many messages were in them.
    pub fn remove_channel(&mut self, ch: &mut Channel, pool: &mut MessagePool) -> u64 {
        let mut lost = 0;
        for index in self.of_channel(ch) {
            let slot = &mut self.paths[usize::from(index)];
            slot.generation = slot.generation.wrapping_add(1);
            let Some(mut path) = slot.path.take() else { continue };
            for queue in &mut path.queues {
                while let Some(item) = queue.pop_back() {
                    pool.release(item.handle);
                    lost += 1;
                }
            }
            self.stalled.remove(&mut self.stalled_links, u32::from(index));
            self.remove_stages(index, &path);
            ch.paths.remove(index);
        }
        lost
    }

    /// Discards all messages in the paths of a channel. Returns how many.
    pub fn discard(&mut self, ch: &mut Channel, pool: &mut MessagePool, schedule: &mut Schedule) -> u64 {
        let mut lost = 0;
        for index in self.of_channel(ch).into_iter().rev() {
            let Some(path) = self.path_mut(index) else { continue };
            let limits = path.spec.queue;
            for (queue, stage) in path.queues.iter_mut().zip(&mut path.stages) {
                // What a context elsewhere has been given leaves when it is answered.
                let given = stage.given as usize;
                stage.skip = if given == 0 { 0 } else { stage.skip };
                while let Some(item) = if given == 0 { queue.pop(&limits) } else { queue.pop_newer(given) } {
                    pool.release(item.handle);
                    path.counters.lost += 1;
                    lost += 1;
                }
            }
            self.settle(index, ch, schedule);
        }
        lost
    }

    /// Changes the parameters of a stage's handler.
    pub fn configure(&mut self, id: PathId, stage: usize, parameters: &str) -> Result<(), PathError> {
        let index = self.find(id).ok_or(PathError::UnknownPath)?;
        let path = self.path_mut(index).ok_or(PathError::UnknownPath)?;
        let count = path.stages.len();
        let (Some(known), Some(spec)) = (path.stages.get_mut(stage), path.spec.stages.get_mut(stage)) else {
            return Err(PathError::Stages(count));
        };
        let done = known.handler.configure(parameters, &mut known.state);
        done.map_err(|error| PathError::Parameters(spec.handler.clone(), error))?;
        parameters.clone_into(&mut spec.parameters);
        Ok(())
    }
}

impl Stage {
    pub(super) fn state_bytes(&self) -> u64 {
        let needs = self.handler.needs();
        u64::from(needs.state) + u64::from(needs.more_max)
    }
}

impl Path {
    pub(super) fn new(spec: PathSpec, stages: Vec<Stage>) -> Self {
        let queues = stages.iter().map(|_| Queue::new(&spec.queue)).collect();
        Path {
            spec,
            stages,
            queues,
            after: Vec::new(),
            then: Vec::new(),
            retired: false,
            transient: false,
            ended: false,
            waits_for_stage: 0,
            waits_for_receivers: 0,
            waits_for_memory: 0,
            wanted: 0,
            reserve: 0,
            counters: PathCounters::default(),
        }
    }
}

/// Checks that a handler with these needs fits a stage with this number of outputs; `is_remote`: in a context
/// that is another program. Code that accepts a path before a worker activates it calls this, too.
///
/// # Errors
/// The reason for which the worker would refuse the stage.
pub fn check_stage(
    (at, handler): (usize, &str),
    outputs: usize,
    needs: &Needs,
    is_remote: bool,
) -> Result<(), PathError> {
    if outputs != usize::from(needs.outputs) {
        return Err(PathError::Outputs { stage: at, has: outputs, needs: needs.outputs });
    }
    match needs.period.is_some() && is_remote {
        true => Err(PathError::Timer(handler.to_owned())),
        false => Ok(()),
    }
}

/// A stage by what [`check_formats`] looks at: name of the handler, the handler, and where its outputs lead.
pub type FormatStage<'a> = (&'a str, &'a dyn Handler, &'a [Targets]);

/// Checks that each stage of a path of one format processes the formats that reach it. Code that accepts a
/// path before a worker activates it calls this, too.
///
/// # Errors
/// The first handler that does not.
pub fn check_formats(format: FormatId, stages: &[FormatStage<'_>]) -> Result<(), PathError> {
    let mut inputs: Vec<Vec<FormatId>> = vec![Vec::new(); stages.len()];
    inputs.first_mut().into_iter().for_each(|first| first.push(format));
    for (at, (name, handler, outputs)) in stages.iter().enumerate() {
        for format in std::mem::take(&mut inputs[at]) {
            if !handler.accepts(format) {
                return Err(PathError::Format((*name).to_owned(), format.0));
            }
            for (output, targets) in outputs.iter().enumerate() {
                let yields = handler.yields(output as u8, format);
                for to in targets.stages() {
                    if let Some(input) = inputs.get_mut(to).filter(|input| !input.contains(&yields)) {
                        input.push(yields);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that a path of a channel that holds publishers back can continue independently of other channels.
fn check_memory(made: u32, ch: &Channel, pool: &MessagePool, usage: Usage) -> Result<(), PathError> {
    let needed = pool.blocks_for(ch.config.message_len_max) + made;
    match ch.policy() == FullQueue::Block && made > 0 && needed > usage.guaranteed {
        true => Err(PathError::Memory { needed, has: usage.guaranteed }),
        false => Ok(()),
    }
}
