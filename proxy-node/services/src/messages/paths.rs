//! Paths of channels: the handlers that the policy names for each, and the turns of their contexts.

use std::collections::HashMap;

use csp_handlers::FormatId;
use csp_messages::{
    ChannelId, ContextStatus, HandlerManager, HandlerStatus, MessagePlane, PathEntry, PathError, PathId,
    PathSpec, PathStatus, QueueLimits, StageMaker, Turn,
};
use csp_quality::SharedLink;
use csp_types::Instant;

use super::contexts::ElsewhereSnapshot;
use super::stage_places::{AutoPlace, StagePlace};
use super::{MessageBroker, SpecError};

/// Turns of contexts before connections are served again.
pub(super) const CONTEXT_TURNS_MAX: u32 = 32;

/// A handler of a channel's path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathStage {
    /// Name of the handler.
    pub handler: String,
    /// Number of the context.
    pub context: u16,
    /// The handler's parameters.
    pub parameters: String,
    /// Makes the handler, if its name is not enough.
    pub maker: Option<StageMaker>,
    /// The stage chooses its context, and begins in `context`.
    pub auto: Option<AutoPlace>,
}

/// The path of all messages of a channel: handlers, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelPath {
    /// The number of the channel's [`ChannelSpec`](super::ChannelSpec).
    pub number: u32,
    /// The handlers; none: straight to the receivers.
    pub stages: Vec<PathStage>,
    /// Which messages take the path.
    pub entry: PathEntry,
    /// Messages that a handler gives up continue unchanged.
    pub passes_faults: bool,
    /// Bounds of the queue before each handler; `None`: the default.
    pub queue: Option<QueueLimits>,
}

impl ChannelPath {
    /// A path of these handlers for all messages.
    pub fn new(number: u32, stages: Vec<PathStage>) -> Self {
        ChannelPath { number, stages, entry: PathEntry::All, passes_faults: false, queue: None }
    }

    /// Returns whether the two paths differ at most in parameters that their handlers accept while they run.
    /// Handlers made for a channel's formats must be made again.
    fn is_reconfigured(&self, other: &ChannelPath) -> bool {
        let same = |(a, b): (&PathStage, &PathStage)| {
            let place = (&a.handler, a.context, &a.auto) == (&b.handler, b.context, &b.auto);
            place && a.maker == b.maker && (a == b || a.maker.is_none())
        };
        let options = |path: &ChannelPath| (path.entry, path.passes_faults, path.queue);
        options(self) == options(other)
            && self.stages.len() == other.stages.len()
            && self.stages.iter().zip(&other.stages).all(same)
    }

    /// Returns whether a worker that has the path `other` keeps all handler instances when it changes to this
    /// one.
    pub fn keeps_handlers_of(&self, other: &ChannelPath) -> bool {
        self.number == other.number && other.is_reconfigured(self)
    }

    pub(super) fn spec(&self, channel: csp_messages::ChannelId) -> PathSpec {
        let stages = self.stages.iter();
        let chain: Vec<(&str, u16, &str)> =
            stages.map(|stage| (&stage.handler[..], stage.context, &stage.parameters[..])).collect();
        let mut spec = PathSpec::chain(channel, &chain);
        for (stage, known) in spec.stages.iter_mut().zip(&self.stages) {
            stage.maker.clone_from(&known.maker);
        }
        let queue = self.queue.unwrap_or(spec.queue);
        PathSpec { entry: self.entry, passes_faults: self.passes_faults, queue, ..spec }
    }
}

/// The state of a worker's contexts, paths and handlers, for display.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContextsSnapshot {
    /// Contexts that have paths.
    pub contexts: Vec<ContextStatus>,
    /// Paths, each with the name of its channel.
    pub paths: Vec<(String, PathStatus)>,
    /// Handlers that have been called or are part of a path.
    pub handlers: Vec<HandlerStatus>,
    /// Contexts that are other programs.
    pub elsewhere: Vec<ElsewhereSnapshot>,
    /// Stages that place themselves.
    pub places: Vec<StagePlace>,
}

/// The paths in force, and the time at which handlers run.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// The path of each channel as the policy has it, by the channel's number.
    pub(super) active: HashMap<u32, (PathId, ChannelPath)>,
    pub(super) now: Instant,
    pub(super) clock: Option<fn() -> Instant>,
}

impl MessageBroker {
    /// Sets the clock that measures some calls of handlers.
    pub fn set_clock(&mut self, clock: fn() -> Instant) {
        self.paths.clock = Some(clock);
    }

    /// Returns the handlers, to which more can be added, once a channel was added.
    pub fn handlers_mut(&mut self) -> Option<&mut HandlerManager> {
        self.plane.as_mut().map(MessagePlane::handlers_mut)
    }

    /// Replaces the paths of all channels between two messages. Paths that stay the same, or differ only in
    /// parameters, keep their messages in place. Called after the channels are set. A channel whose new path
    /// is not valid keeps its former path. If it has none, it is no longer served.
    ///
    /// # Errors
    /// The first path that is not valid. The others are in force.
    pub fn set_paths(&mut self, now: Instant, paths: &[ChannelPath]) -> Result<(), SpecError> {
        self.paths.now = now;
        let numbers: Vec<u32> = self.channels.keys().copied().collect();
        let mut result = Ok(());
        let requested: Vec<ChannelPath> = self.requested.paths().cloned().collect();
        for number in numbers {
            let set = match paths
                .iter()
                .chain(&requested)
                .find(|path| path.number == number && !path.stages.is_empty())
            {
                Some(path) => self.set_path(path),
                None => self.remove_path(number),
            };
            if set.is_err() && !self.paths.active.contains_key(&number) {
                // Its messages would reach receivers as they are, past handlers that hide or filter.
                self.remove(number);
            }
            result = result.and(set);
        }
        self.paths.active.retain(|number, _| self.channels.contains_key(number));
        self.stage_places.retain(|number| self.paths.active.contains_key(&number));
        self.elsewhere.paths_changed(now);
        result
    }

    /// Removes the path of a channel from the active ones, and returns it.
    fn take_path(&mut self, number: u32) -> Option<(PathId, ChannelPath)> {
        let (plane, bound) = (self.plane.as_ref()?, self.channels.get(&number)?);
        let is_its = |(id, _): &(PathId, ChannelPath)| {
            plane.path_status(*id).is_some_and(|path| path.channel == bound.id)
        };
        self.paths.active.remove(&number).filter(is_its)
    }

    fn remove_path(&mut self, number: u32) -> Result<(), SpecError> {
        let (Some(active), Some(plane)) = (self.take_path(number), &mut self.plane) else { return Ok(()) };
        plane.deactivate_path(active.0).map_err(|error| {
            // The former path stays.
            self.paths.active.insert(number, active);
            self.path_error(number, error)
        })
    }

    pub(super) fn set_path(&mut self, wanted: &ChannelPath) -> Result<(), SpecError> {
        let number = wanted.number;
        let active = self.take_path(number);
        let (Some(plane), Some(bound)) = (&mut self.plane, self.channels.get(&number)) else { return Ok(()) };
        let keeps = active.as_ref().is_some_and(|(_, known)| known.is_reconfigured(wanted));
        let done = match &active {
            Some((id, known)) if keeps => {
                let stages = known.stages.iter().zip(&wanted.stages).enumerate();
                let changed = stages.filter(|(_, (a, b))| a != b);
                let configured =
                    changed.map(|(at, (_, stage))| plane.configure_handler(*id, at, &stage.parameters));
                configured.collect::<Result<(), _>>().map(|()| *id)
            }
            _ => plane.activate_path(self.paths.now, wanted.spec(bound.id)),
        };
        match done {
            Ok(id) => {
                if !keeps {
                    self.stage_places.begin(self.paths.now, wanted);
                }
                self.paths.active.insert(number, (id, wanted.clone()));
            }
            Err(error) => {
                // The former path stays.
                self.paths.active.extend(active.map(|active| (number, active)));
                return Err(self.path_error(number, error));
            }
        }
        Ok(())
    }

    fn path_error(&self, number: u32, error: PathError) -> SpecError {
        let name = self.channels.get(&number).map(|bound| bound.spec.channel.name.clone());
        SpecError::Path(name.unwrap_or_default(), error)
    }

    /// Runs a context's handlers in its turn. Returns the number of messages processed.
    pub(super) fn run_context(&mut self, mut turn: Turn, link: Option<&mut SharedLink>) -> u32 {
        let Some(plane) = &mut self.plane else { return 0 };
        let processed = match self.paths.clock {
            Some(clock) => plane.run_context(self.paths.now, &mut turn, Some(&mut { clock }), link),
            None => plane.run_context(self.paths.now, &mut turn, None, link),
        };
        plane.end_turn(turn);
        processed
    }

    /// Returns when contexts must run again.
    pub(super) fn contexts_timeout(&self) -> Option<Instant> {
        let plane = self.plane.as_ref()?;
        if plane.contexts_have_work() { Some(self.paths.now) } else { plane.next_timeout() }
    }

    /// Returns the name of a format of a channel, or of one that a handler of its path makes.
    pub fn format_name(&self, channel: ChannelId, format: FormatId) -> Option<String> {
        let bound = self.channels.values().find(|bound| bound.id == channel)?;
        Some(bound.spec.formats.as_ref()?.set().get(format)?.name.to_string())
    }

    /// Returns the state of contexts, paths and handlers that are in use.
    pub fn contexts(&self) -> ContextsSnapshot {
        let Some(plane) = &self.plane else { return ContextsSnapshot::default() };
        let name = |path: PathStatus| {
            let bound = self.channels.values().find(|bound| bound.id == path.channel)?;
            Some((bound.spec.channel.name.clone(), path))
        };
        let elsewhere = self.elsewhere_snapshots();
        let used = |context: &ContextStatus| {
            let is_named = elsewhere.iter().any(|known| known.context == context.number);
            is_named || context.stages > 0 || context.report.messages > 0
        };
        ContextsSnapshot {
            contexts: plane.contexts().into_iter().filter(used).collect(),
            paths: plane.paths().into_iter().filter_map(name).collect(),
            handlers: plane
                .handlers()
                .into_iter()
                .filter(|handler| handler.stages > 0 || handler.profile.messages > 0)
                .collect(),
            elsewhere,
            places: self.stage_place_snapshots(),
        }
    }
}
