//! Paths of channels: the handlers that the policy names for each, and the turns of their contexts.

use std::collections::HashMap;

use csp_handlers::FormatId;
use csp_messages::{
    ChannelId, ContextStatus, HandlerManager, HandlerStatus, MessagePlane, PathChange, PathEntry, PathError,
    PathId, PathSpec, PathStatus, QueueLimits, StageMaker, Targets, Turn,
};
use csp_quality::SharedLink;
use csp_types::Instant;

use super::channels::{Bound, Channels};
use super::contexts::{Elsewhere, ElsewhereSnapshot};
use super::placement::Placement;
use super::stage_places::{AutoPlace, StagePlace, StagePlaces};
use super::{MessageBroker, SpecError};

/// The id of a channel that is not served.
const NO_CHANNEL: ChannelId = ChannelId { index: u16::MAX, generation: u16::MAX };

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
    /// Destinations of each of its outputs; none: the next stage, or the receivers behind the last.
    pub outputs: Vec<Targets>,
}

/// The path of the messages of a channel, or of those of one format: handlers, one after the other, or
/// divided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelPath {
    /// The number of the channel's [`ChannelSpec`](super::ChannelSpec).
    pub number: u32,
    /// The format of its messages; `None`: all.
    pub format: Option<FormatId>,
    /// The handlers; none: straight to the receivers.
    pub stages: Vec<PathStage>,
    /// Which messages take the path.
    pub entry: PathEntry,
    /// Messages that a handler gives up continue unchanged.
    pub passes_faults: bool,
    /// Bounds of the queue before each handler; `None`: the default.
    pub queue: Option<QueueLimits>,
    /// Numbers of the channels behind its outlets.
    pub outlets: Vec<u32>,
}

impl ChannelPath {
    /// A path of these handlers for all messages.
    pub fn new(number: u32, stages: Vec<PathStage>) -> Self {
        ChannelPath {
            number,
            format: None,
            stages,
            entry: PathEntry::All,
            passes_faults: false,
            queue: None,
            outlets: Vec::new(),
        }
    }

    /// Returns whether the two paths differ at most in parameters that their handlers accept while they run.
    /// Handlers made for a channel's formats must be made again.
    fn is_reconfigured(&self, other: &ChannelPath) -> bool {
        let same = |(a, b): (&PathStage, &PathStage)| {
            let place = |stage: &PathStage| (stage.handler.clone(), stage.context, stage.auto.clone());
            let place = place(a) == place(b) && a.outputs == b.outputs;
            place && a.maker == b.maker && (a == b || a.maker.is_none())
        };
        let options = |path: &ChannelPath| (path.format, path.entry, path.passes_faults, path.queue);
        options(self) == options(other)
            && self.outlets == other.outlets
            && self.stages.len() == other.stages.len()
            && self.stages.iter().zip(&other.stages).all(same)
    }

    /// Returns whether a worker that has the path `other` keeps all handler instances when it changes to this
    /// one.
    pub fn keeps_handlers_of(&self, other: &ChannelPath) -> bool {
        self.number == other.number && other.is_reconfigured(self)
    }

    /// Returns the path as the plane takes it; `outlets`: the channels behind its outlets.
    pub(super) fn spec(&self, channel: ChannelId, outlets: Vec<ChannelId>) -> PathSpec {
        let stages = self.stages.iter();
        let chain: Vec<(&str, u16, &str)> =
            stages.map(|stage| (&stage.handler[..], stage.context, &stage.parameters[..])).collect();
        let mut spec = PathSpec::chain(channel, &chain);
        for (stage, known) in spec.stages.iter_mut().zip(&self.stages) {
            stage.maker.clone_from(&known.maker);
            if !known.outputs.is_empty() {
                stage.outputs.clone_from(&known.outputs);
            }
        }
        let queue = self.queue.unwrap_or(spec.queue);
        let (format, entry, passes_faults) = (self.format, self.entry, self.passes_faults);
        PathSpec { format, entry, passes_faults, outlets, queue, ..spec }
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

/// The paths of each channel as the policy has them, by the channel's number: one of all formats, or one for
/// each of some.
#[derive(Debug, Default)]
pub(super) struct ActivePaths(HashMap<u32, Vec<(PathId, ChannelPath)>>);

impl ActivePaths {
    /// Returns the path of a channel, by its number, and of a format.
    pub fn of(&self, (number, format): (u32, Option<FormatId>)) -> Option<&(PathId, ChannelPath)> {
        self.0.get(&number)?.iter().find(|(_, path)| path.format == format)
    }

    /// The same, to change it.
    pub fn of_mut(
        &mut self,
        (number, format): (u32, Option<FormatId>),
    ) -> Option<&mut (PathId, ChannelPath)> {
        self.0.get_mut(&number)?.iter_mut().find(|(_, path)| path.format == format)
    }

    /// Removes the paths of a channel, and returns those that the channel still has.
    fn take(&mut self, plane: &MessagePlane, bound: &Bound) -> Vec<(PathId, ChannelPath)> {
        let mut active = self.0.remove(&bound.spec.number).unwrap_or_default();
        let has = |id| plane.path_status(id).is_some_and(|path| path.channel == bound.id);
        active.retain(|(id, _)| has(*id));
        active
    }

    fn insert(&mut self, number: u32, paths: Vec<(PathId, ChannelPath)>) {
        if !paths.is_empty() {
            self.0.insert(number, paths);
        }
    }
}

/// The paths in force, where their stages run, and the time at which handlers run.
#[derive(Debug, Default)]
pub(super) struct Paths {
    active: ActivePaths,
    /// Stages that place themselves.
    places: StagePlaces,
    /// Now.
    pub(super) now: Instant,
    clock: Option<fn() -> Instant>,
}

impl Paths {
    /// Returns whether a channel has a path.
    fn has(&self, number: u32) -> bool {
        self.active.0.contains_key(&number)
    }

    /// Gives a channel these paths in place of those that it has. If one is refused, all former ones stay.
    pub fn set(
        &mut self,
        plane: &mut MessagePlane,
        channels: &Channels,
        number: u32,
        wanted: &[&ChannelPath],
    ) -> Result<(), SpecError> {
        let Some(bound) = channels.get(number) else { return Ok(()) };
        let active = self.active.take(plane, bound);
        match self.replace(plane, channels, bound, &active, wanted) {
            Ok(paths) => {
                self.places
                    .retain(|(of, format)| of != number || wanted.iter().any(|path| path.format == format));
                self.active.insert(number, paths);
                Ok(())
            }
            Err(error) => {
                // The former paths stay.
                self.active.insert(number, active);
                Err(SpecError::Path(bound.name().to_owned(), error))
            }
        }
    }

    /// Has the plane replace the `active` paths of a channel by those that are `wanted`.
    fn replace(
        &mut self,
        plane: &mut MessagePlane,
        channels: &Channels,
        bound: &Bound,
        active: &[(PathId, ChannelPath)],
        wanted: &[&ChannelPath],
    ) -> Result<Vec<(PathId, ChannelPath)>, PathError> {
        let outlets = |path: &ChannelPath| -> Vec<ChannelId> {
            // One that is not served here is left out: an id that no channel has.
            let id = |number: &u32| channels.get(*number).map_or(NO_CHANNEL, |bound| bound.id);
            path.outlets.iter().map(id).collect()
        };
        let kept: Vec<Option<&(PathId, ChannelPath)>> = wanted
            .iter()
            .map(|wanted| active.iter().find(|(_, known)| known.is_reconfigured(wanted)))
            .collect();
        let changes = wanted.iter().zip(&kept).map(|(wanted, kept)| match kept {
            Some((id, _)) => PathChange::Keep(*id),
            None => PathChange::New(wanted.spec(bound.id, outlets(wanted))),
        });
        let mut configured = Ok(());
        for (wanted, (id, known)) in
            wanted.iter().zip(&kept).filter_map(|(wanted, kept)| Some((wanted, (*kept)?)))
        {
            plane.set_outlets(*id, outlets(wanted));
            let stages = known.stages.iter().zip(&wanted.stages).enumerate();
            for (at, (_, stage)) in stages.filter(|(_, (a, b))| a != b) {
                configured = configured.and_then(|()| plane.configure_handler(*id, at, &stage.parameters));
            }
        }
        configured?;
        let is_new = active.len() != wanted.len() || kept.iter().any(Option::is_none);
        let ids = match is_new {
            true => plane.replace_paths(self.now, bound.id, changes.collect())?,
            false => kept.iter().flatten().map(|(id, _)| *id).collect(),
        };
        let new = wanted.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        new.for_each(|(path, _)| self.places.begin(self.now, path));
        Ok(ids.into_iter().zip(wanted.iter().map(|path| (*path).clone())).collect())
    }

    /// Removes the paths of channels that are no longer served.
    fn retain(&mut self, channels: &Channels) {
        self.active.0.retain(|number, _| channels.contains(*number));
        self.places.retain(|(number, _)| self.active.0.contains_key(&number));
    }

    /// Moves stages that choose their context, as decided.
    pub fn settle(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        elsewhere: &mut Elsewhere,
        channels: &Channels,
    ) {
        self.places.settle(now, plane, &mut self.active, (elsewhere, channels));
    }

    /// Returns whether a stage of a channel that this worker owns may choose the context.
    pub fn may_be_placed(&self, context: u16, placement: &Placement) -> bool {
        self.places.may_be_placed(context, &self.active, placement)
    }

    /// Runs a context's handlers in its turn. Returns the number of messages processed.
    pub fn run_context(
        &self,
        plane: &mut MessagePlane,
        mut turn: Turn,
        link: Option<&mut SharedLink>,
    ) -> u32 {
        let processed = match self.clock {
            Some(clock) => plane.run_context(self.now, &mut turn, Some(&mut { clock }), link),
            None => plane.run_context(self.now, &mut turn, None, link),
        };
        plane.end_turn(turn);
        processed
    }

    /// Returns when contexts must run again, or stages be examined.
    pub fn next_timeout(&self, plane: Option<&MessagePlane>) -> Option<Instant> {
        let contexts = plane.and_then(|plane| match plane.contexts_have_work() {
            true => Some(self.now),
            false => plane.next_timeout(),
        });
        contexts.into_iter().chain(self.places.next_timeout()).min()
    }
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
    /// parameters, keep their messages in place. A channel whose new path is not valid keeps its former path.
    /// If it has none, it is no longer served.
    ///
    /// # Errors
    /// The first path that is not valid. The others are in force.
    pub(super) fn set_paths(&mut self, now: Instant, paths: &[ChannelPath]) -> Result<(), SpecError> {
        self.paths.now = now;
        let mut result = Ok(());
        let requested: Vec<ChannelPath> = self.requested.paths().cloned().collect();
        for number in self.channels.numbers() {
            let of_channel = |path: &&ChannelPath| path.number == number && !path.stages.is_empty();
            let wanted: Vec<&ChannelPath> = paths.iter().chain(&requested).filter(of_channel).collect();
            let set = self.served().set_paths(now, number, &wanted);
            if set.is_err() && !self.paths.has(number) {
                // Its messages would reach receivers as they are, past handlers that hide or filter.
                self.served().remove(number);
            }
            result = result.and(set);
        }
        self.paths.retain(&self.channels);
        self.elsewhere.paths_changed(now);
        result
    }

    /// Returns the name of a format of a channel, or of one that a handler of its path makes.
    pub fn format_name(&self, channel: ChannelId, format: FormatId) -> Option<String> {
        let bound = self.channels.of(self.plane.as_ref()?, channel)?;
        Some(bound.spec.formats.as_ref()?.set().get(format)?.name.to_string())
    }

    /// Returns the state of contexts, paths and handlers that are in use.
    pub fn contexts(&self) -> ContextsSnapshot {
        let Some(plane) = &self.plane else { return ContextsSnapshot::default() };
        let name = |path: PathStatus| {
            let bound = self.channels.of(plane, path.channel)?;
            Some((bound.name().to_owned(), path))
        };
        let elsewhere = self.elsewhere.snapshots();
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
            places: self.paths.places.snapshots(self.paths.now, &self.paths.active),
        }
    }
}
