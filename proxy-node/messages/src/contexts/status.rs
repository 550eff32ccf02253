//! State of contexts, paths and handlers, for display.

use csp_handlers::{FormatId, Losses, Profile, ReportedTimes, Usage};

use super::path::{Path, PathCounters, PathId, Stage};
use super::resource_monitor::ContextReport;
use super::{Contexts, HandlerStatus};
use crate::plane::ChannelId;
use crate::queue::Queue;

/// A context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextStatus {
    /// Its number.
    pub number: u16,
    /// Stages that it runs.
    pub stages: u32,
    /// Messages that wait for them.
    pub waiting: u64,
    /// Bytes of these messages.
    pub bytes_waiting: u64,
    /// Bytes of state of its handlers.
    pub state_bytes: u64,
    /// Its load.
    pub report: ContextReport,
}

/// The state of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// Messages pass it.
    Active,
    /// Messages enter it, and wait until the path that it replaces is empty.
    Waiting,
    /// It is replaced or removed, and not empty yet.
    Retired,
    /// A handler has ended it: messages are dropped until it is replaced.
    Ended,
}

/// A path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathStatus {
    /// Names it.
    pub id: PathId,
    /// Its channel.
    pub channel: ChannelId,
    /// Its format; `None`: all without a path of their own.
    pub format: Option<FormatId>,
    /// The state of the path.
    pub state: PathState,
    /// The channels behind its outlets.
    pub outlets: Vec<ChannelId>,
    /// Its counters.
    pub counters: PathCounters,
    /// Its stages.
    pub stages: Vec<StageStatus>,
}

/// A stage of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageStatus {
    /// Name of its handler.
    pub handler: String,
    /// Number of its context.
    pub context: u16,
    /// Messages that wait for it.
    pub waiting: usize,
    /// Bytes of these messages.
    pub bytes_waiting: u64,
    /// It waits for a later stage, for receivers or for memory.
    pub held: bool,
    /// Bytes of its state that are in use.
    pub state_bytes: usize,
    /// Its calls.
    pub profile: Profile,
    /// The same by format; `None`: timers, and formats without an entry.
    pub formats: Vec<(Option<FormatId>, Profile)>,
    /// Resources used by its handler.
    pub usage: Usage,
    /// Rows that its handler has received and not used.
    pub losses: Losses,
    /// Times of calls that a context elsewhere has measured.
    pub times: Option<ReportedTimes>,
    /// Why a context elsewhere does not run it.
    pub refused: Option<String>,
    /// Its handler has state that it declares to keep.
    pub keeps_state: bool,
    /// Its handler has refused the state of its predecessor, and has begun with none.
    pub state_refused: bool,
}

impl Contexts {
    fn status_of(&self, index: u16, path: &Path) -> PathStatus {
        let held = path.waits_for_stage | path.waits_for_receivers | path.waits_for_memory;
        let stage = |at: usize, stage: &Stage| StageStatus {
            handler: path.spec.stages[at].handler.clone(),
            context: stage.context,
            waiting: path.queues[at].len(),
            bytes_waiting: path.queues[at].bytes(),
            held: held & (1 << at) != 0,
            state_bytes: stage.state.len(),
            profile: stage.profiles.total(),
            formats: stage.profiles.by_format(),
            usage: stage.handler.usage(),
            losses: stage.handler.losses(&stage.state),
            times: stage.times,
            refused: stage.refused.clone(),
            keeps_state: stage.handler.keeps_state(),
            state_refused: stage.state_refused,
        };
        let state = match (path.retired || path.transient, path.after.is_empty()) {
            (true, _) => PathState::Retired,
            (false, false) => PathState::Waiting,
            (false, true) if path.ended => PathState::Ended,
            (false, true) => PathState::Active,
        };
        PathStatus {
            id: PathId { index, generation: self.paths[usize::from(index)].generation },
            channel: path.spec.channel,
            format: path.spec.format,
            state,
            outlets: path.spec.outlets.clone(),
            counters: path.counters,
            stages: path.stages.iter().enumerate().map(|(at, known)| stage(at, known)).collect(),
        }
    }

    /// Returns how many messages are in the paths of a channel.
    pub fn waiting_of(&self, channel: ChannelId) -> usize {
        let paths = self.paths.iter().filter_map(|slot| slot.path.as_ref());
        paths.filter(|path| path.spec.channel == channel).flat_map(|path| &path.queues).map(Queue::len).sum()
    }

    /// Returns all paths.
    pub fn path_statuses(&self) -> Vec<PathStatus> {
        let known = (0u16..).zip(&self.paths).filter_map(|(index, slot)| Some((index, slot.path.as_ref()?)));
        known.map(|(index, path)| self.status_of(index, path)).collect()
    }

    /// Returns a path.
    pub fn path_status(&self, id: PathId) -> Option<PathStatus> {
        let index = self.find(id)?;
        self.path(index).map(|path| self.status_of(index, path))
    }

    /// Returns all contexts.
    pub fn context_statuses(&self) -> Vec<ContextStatus> {
        let mut all: Vec<ContextStatus> = (0u16..)
            .zip(&self.contexts)
            .map(|(number, context)| ContextStatus {
                number,
                stages: 0,
                waiting: 0,
                bytes_waiting: 0,
                state_bytes: context.state_bytes,
                report: context.monitor.report(),
            })
            .collect();
        for path in self.paths.iter().filter_map(|slot| slot.path.as_ref()) {
            for (stage, queue) in path.stages.iter().zip(&path.queues) {
                let context = &mut all[usize::from(stage.context)];
                context.stages += 1;
                context.waiting += queue.len() as u64;
                context.bytes_waiting += queue.bytes();
            }
        }
        all
    }

    /// Returns all handlers.
    pub fn handler_statuses(&self) -> Vec<HandlerStatus> {
        let mut all = self.handlers.past();
        for stage in self.paths.iter().filter_map(|slot| slot.path.as_ref()).flat_map(|path| &path.stages) {
            if let Some(status) = all.get_mut(stage.number) {
                status.profile.add(&stage.profiles.total());
                status.usage.add(stage.handler.usage());
            }
        }
        all
    }
}
