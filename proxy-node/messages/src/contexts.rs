//! Contexts, and the paths of messages through them.
//!
//! ```text
//!   publish ─▶ channel ─ no path ─────────────────────────────────────────────▶ subscribers' queues
//!                 └─ path of the format ─▶ [queue] context a ─▶ [queue] context b ─▶ ┘
//! ```
//! A *context* is a slot of the worker that runs handlers. A *path* processes a channel's messages of one
//! format, or all of its messages: stages, each a handler with its state in a context, joined by bounded
//! queues. A stage with several outputs divides the path: each output leads to later stages, to the channel's
//! receivers, or to an outlet for other channels. Messages go from stage to stage by handle of the pool.
//!
//! Three look-ups route a message: the framing finds the connection's buffer in which it is assembled;
//! [`ChannelPaths::find`] finds its path, and with it the handler of the first stage; each stage's
//! [`Targets`] name the next queues, so that no table is searched on the way.
//!
//! | what | where |
//! |---|---|
//! | paths: checked | [`control_manager`] |
//! | paths: activated, replaced between two messages | [`replace`] |
//! | handlers: stored, made, profiled | [`handler_manager`], [`profiles`] |
//! | where stages run by themselves | [`placement`] |
//! | load of contexts, at resource-management points | [`resource_monitor`] |
//! | a context elsewhere | [`remote`] |
//! | one message through one handler | [`run`], [`port`], [`outlet`] |

mod control_manager;
mod handler_manager;
mod outlet;
mod path;
mod placement;
mod port;
mod profiles;
mod remote;
mod replace;
mod resource_monitor;
mod run;
mod status;

pub use control_manager::{FormatStage, PathError, check_formats, check_stage};
pub use handler_manager::{
    DeployError, HandlerManager, HandlerStatus, MakeHandler, StageMaker, StageObject, StageSupply,
};
pub use path::{
    OUTLETS_MAX, PathChange, PathCounters, PathEntry, PathId, PathSpec, STAGES_MAX, StageSpec, Targets,
};
pub use placement::{Placement, PlacementBounds, Rule, Sample, Side, Why};
pub use remote::{GIVEN_BYTES_MAX, RemoteCall, RemoteDone, RemoteError, RemoteStage, Ticket};
pub use replace::StateRefusal;
pub use resource_monitor::ContextReport;
pub use status::{ContextStatus, PathState, PathStatus, StageStatus};

pub(crate) use outlet::{Fed, Outlet};
pub(crate) use run::{Entry, Step};

use csp_handlers::FormatId;
use csp_types::Instant;

use crate::list::{Links, List};
use crate::plane::ChannelId;
use crate::schedule::{RoundRobin, Schedule, Turn, TurnBudget};
use path::Path;
use resource_monitor::ResourceMonitor;

/// Number of measured calls after which each look decays the weight of earlier calls.
const AGED_FROM: u32 = 400;

/// Bounds of a worker's contexts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextsConfig {
    /// Contexts of the worker, those elsewhere included.
    pub contexts_max: u16,
    /// Paths of all channels, with those that are replaced and not empty yet.
    pub paths_max: u16,
    /// Bytes of state of all handlers of a context.
    pub state_bytes_max: u64,
    /// Messages between two resource-management points of a context.
    pub point_every: u32,
    /// Every `measure_every`th call of a context is timed.
    pub measure_every: u32,
}

impl Default for ContextsConfig {
    fn default() -> Self {
        ContextsConfig {
            contexts_max: csp_handlers::CONTEXTS_MAX,
            // Each path that a policy may have, and the one that it replaces.
            paths_max: 2 * csp_handlers::PATHS_MAX,
            state_bytes_max: 16 << 20,
            point_every: 64,
            measure_every: 16,
        }
    }
}

/// A slot of the worker that runs handlers.
#[derive(Debug)]
struct Context {
    /// Which of its queues is served next.
    queues: RoundRobin,
    /// Bytes of state of its handlers.
    state_bytes: u64,
    /// Messages of each stage that a remote context may have; 0: the context is local.
    remote_credit: u32,
    monitor: ResourceMonitor,
}

/// The paths of a channel, by format.
#[derive(Debug, Default)]
pub(crate) struct ChannelPaths {
    entries: Vec<(Option<FormatId>, u16)>,
    /// Which messages enter the path of all formats.
    entry: PathEntry,
    /// Blocks that must be free beside a message that enters any of the paths, so that each path can
    /// continue: the largest number that one of them needs.
    pub reserve: u32,
    /// Channels that outputs of the paths lead to, replaced paths included.
    pub outlets: Vec<ChannelId>,
}

impl ChannelPaths {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the path of a format: its own, else that of all formats.
    pub fn find(&self, format: FormatId) -> Option<u16> {
        let own = self.entries.iter().find(|(key, _)| *key == Some(format));
        let all = || self.entries.iter().find(|(key, _)| key.is_none());
        let own = match self.entry.takes(format) {
            true => own.or_else(all),
            false => own,
        };
        own.map(|(_, path)| *path)
    }

    fn remove(&mut self, path: u16) {
        self.entries.retain(|(_, known)| *known != path);
    }

    fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.entries.iter().map(|(_, path)| *path)
    }
}

/// Handlers, contexts and paths of a worker.
#[derive(Debug)]
pub(crate) struct Contexts {
    config: ContextsConfig,
    pub handlers: HandlerManager,
    contexts: Vec<Context>,
    paths: Vec<PathSlot>,
    /// Paths with a stage that waits for receivers or for memory.
    stalled: List,
    stalled_links: Links,
    /// Stages with a timer.
    timers: usize,
    /// Handlers that have refused state, and were not reported yet.
    refusals: Vec<StateRefusal>,
}

#[derive(Debug)]
struct PathSlot {
    generation: u16,
    path: Option<Path>,
}

impl Contexts {
    pub fn new(config: ContextsConfig, turn: TurnBudget) -> Self {
        let paths = usize::from(config.paths_max);
        let context = |_| Context {
            queues: RoundRobin::new(turn, paths * STAGES_MAX),
            state_bytes: 0,
            remote_credit: 0,
            monitor: ResourceMonitor::new(&config),
        };
        Contexts {
            handlers: HandlerManager::default(),
            contexts: (0..config.contexts_max).map(context).collect(),
            paths: (0..paths).map(|_| PathSlot { generation: 0, path: None }).collect(),
            stalled: List::EMPTY,
            stalled_links: Links::new(paths),
            timers: 0,
            refusals: Vec::new(),
            config,
        }
    }

    fn path(&self, index: u16) -> Option<&Path> {
        self.paths.get(usize::from(index))?.path.as_ref()
    }

    fn path_mut(&mut self, index: u16) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(index))?.path.as_mut()
    }

    /// Decays the weight of earlier calls in the quantiles of a stage, if enough calls were measured.
    pub fn age_times(&mut self, id: PathId, stage: usize) {
        let path = self.find(id).and_then(|index| self.path_mut(index));
        if let Some(stage) = path.and_then(|path| path.stages.get_mut(stage)) {
            stage.profiles.age(AGED_FROM);
        }
    }

    fn find(&self, id: PathId) -> Option<u16> {
        let slot = self.paths.get(usize::from(id.index))?;
        slot.path.as_ref().filter(|_| slot.generation == id.generation).map(|_| id.index)
    }

    /// Returns the turn of the next queue of a context.
    fn next_queue(&mut self, context: u16) -> Option<Turn> {
        self.contexts.get_mut(usize::from(context))?.queues.next_flow()
    }

    fn end_queue(&mut self, context: u16, turn: Turn) {
        if let Some(context) = self.contexts.get_mut(usize::from(context)) {
            context.queues.end_turn(turn);
        }
    }

    fn has_work(&self, context: u16) -> bool {
        self.contexts.get(usize::from(context)).is_some_and(|context| context.queues.has_work())
    }

    /// Returns whether any context has work.
    pub fn any_work(&self) -> bool {
        self.contexts.iter().any(|context| context.remote_credit == 0 && context.queues.has_work())
    }

    /// Makes a stage eligible to be served, unless its path waits for the one that it replaces.
    fn wake(&mut self, path: u16, stage: usize, schedule: &mut Schedule) {
        let Some(known) = self.path(path).filter(|known| known.after.is_empty()) else { return };
        let Some(context) = known.stages.get(stage).map(|stage| stage.context) else { return };
        if let Some(slot) = self.contexts.get_mut(usize::from(context)) {
            slot.queues.set_active(queue_number(path, stage), true);
            if slot.remote_credit == 0 {
                schedule.set_context(context, true);
            }
        }
    }

    /// Returns when a handler's timer is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.timers == 0 {
            return None;
        }
        let paths = self.paths.iter().filter_map(|slot| slot.path.as_ref()).filter(|path| !path.retired);
        paths.flat_map(|path| &path.stages).filter_map(|stage| stage.timer.map(|timer| timer.next)).min()
    }
}

/// The number of a stage's queue in the schedule of its context.
fn queue_number(path: u16, stage: usize) -> u16 {
    path * STAGES_MAX as u16 + stage as u16
}

/// The path and stage of a queue's number.
fn stage_of(queue: u16) -> (u16, usize) {
    (queue / STAGES_MAX as u16, usize::from(queue) % STAGES_MAX)
}
