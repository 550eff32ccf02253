//! Stages that choose their context: examined every second, and moved by replacing their path between two
//! messages.

use std::collections::HashMap;

use csp_handlers::{CONTEXTS_MAX, FormatId};
use csp_messages::{MessagePlane, PathId, PathState, Placement, PlacementBounds, Rule, Sample, Side, Why};
use csp_messages::{PathStatus, StageStatus};
use csp_types::options::OnStop;
use csp_types::{Duration, Instant};

use super::channels::Channels;
use super::contexts::{ContextNotice, Elsewhere};
use super::paths::{ActivePaths, ChannelPath, PathStage};
use super::placement;

/// Interval between examinations of stages.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How a stage chooses its context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AutoPlace {
    /// The rule of the choice.
    pub rule: Rule,
    /// Its bounds.
    pub bounds: PlacementBounds,
    /// Numbers at the plane of the contexts that it may use, in the order of preference.
    pub contexts: Vec<u16>,
}

impl AutoPlace {
    /// Returns the context in which the stage begins; `None` if that side has none.
    pub fn first(&self) -> Option<u16> {
        let side = Placement::begins(self.rule);
        self.contexts.iter().copied().find(|context| side_of(*context) == side)
    }
}

fn side_of(context: u16) -> Side {
    if context < CONTEXTS_MAX { Side::Worker } else { Side::Elsewhere }
}

/// Where a stage that places itself runs, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagePlace {
    /// Its path.
    pub path: PathId,
    /// The stage.
    pub stage: usize,
    /// Why it is there.
    pub why: Why,
    /// How long the stage has been in its context.
    pub age: Duration,
    /// How often it was moved.
    pub moves: u64,
}

#[derive(Debug)]
struct Place {
    placement: Placement,
    context: u16,
}

/// A path by its channel's number and its format.
type Key = (u32, Option<FormatId>);

/// The stages of all paths that place themselves.
#[derive(Debug, Default)]
pub(super) struct StagePlaces {
    paths: HashMap<Key, Vec<Option<Place>>>,
    due: Option<Instant>,
}

impl StagePlaces {
    /// Records a channel's new path. Its stages begin where the path says.
    pub fn begin(&mut self, now: Instant, path: &ChannelPath) {
        let place = |stage: &PathStage| {
            let auto = stage.auto.as_ref()?;
            let placement = Placement::new(now, auto.rule, auto.bounds);
            Some(Place { placement, context: stage.context })
        };
        let stages: Vec<Option<Place>> = path.stages.iter().map(place).collect();
        match stages.iter().any(Option::is_some) {
            true => _ = self.paths.insert((path.number, path.format), stages),
            false => _ = self.paths.remove(&(path.number, path.format)),
        }
        let next = now + LOOK_INTERVAL;
        self.due =
            if self.paths.is_empty() { None } else { Some(self.due.map_or(next, |due| due.min(next))) };
    }

    /// Removes the stages of all paths for which `keeps` returns false.
    pub fn retain(&mut self, mut keeps: impl FnMut(Key) -> bool) {
        self.paths.retain(|key, _| keeps(*key));
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.due
    }
}

impl StagePlaces {
    /// Examines the stages that choose their context, and moves them as decided.
    pub fn settle(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        active: &mut ActivePaths,
        (elsewhere, channels): (&mut Elsewhere, &Channels),
    ) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = (!self.paths.is_empty()).then(|| now + LOOK_INTERVAL);
        let keys: Vec<Key> = self.paths.keys().copied().collect();
        keys.into_iter().for_each(|key| self.look_at(now, key, (plane, active), (elsewhere, channels)));
    }

    fn look_at(
        &mut self,
        now: Instant,
        key: Key,
        (plane, active): (&mut MessagePlane, &mut ActivePaths),
        (elsewhere, channels): (&mut Elsewhere, &Channels),
    ) {
        let Some((id, path)) = active.of(key) else { return };
        // One that waits for the former path, or was ended, is not moved.
        let Some(status) = plane.path_status(*id).filter(|path| path.state == PathState::Active) else {
            return;
        };
        let Some(places) = self.paths.get_mut(&key) else { return };
        let stages = path.stages.iter().zip(&status.stages).zip(places.iter_mut()).enumerate();
        let mut decided = None;
        for (at, ((spec, stage), place)) in stages {
            let (Some(auto), Some(place)) = (&spec.auto, place) else { continue };
            let placement = &mut place.placement;
            if let Some(why) = bound_to(at, spec, &status) {
                placement.stays(why);
                continue;
            }
            plane.age_times(*id, at);
            let Some(side) = placement.look(now, &sample(stage)) else { continue };
            let is_there = |context: &u16| side == Side::Worker || elsewhere.is_up(*context);
            let found =
                auto.contexts.iter().copied().filter(|context| side_of(*context) == side).find(is_there);
            match found {
                Some(context) => {
                    decided = Some((at, context));
                    break; // the next one when the path has been replaced
                }
                None => placement.waits(Why::NobodyElsewhere),
            }
        }
        let Some((at, to)) = decided else { return };
        let mut moved = path.clone();
        for (stage, place) in moved.stages.iter_mut().zip(places.iter()) {
            stage.context = place.as_ref().map_or(stage.context, |place| place.context);
        }
        let from = std::mem::replace(&mut moved.stages[at].context, to);
        let handler = moved.stages[at].handler.clone();
        let done = plane.activate_path(now, moved.spec(status.channel, status.outlets));
        let Some(place) = places[at].as_mut() else { return };
        let why = place.placement.why();
        let error = match done {
            Ok(new) => {
                place.context = to;
                place.placement.moved(now);
                if let Some((id, _)) = active.of_mut(key) {
                    *id = new;
                }
                None
            }
            Err(error) => {
                place.placement.stays(why);
                Some(error)
            }
        };
        elsewhere.paths_changed(now);
        let channel = channels.name(key.0);
        elsewhere.note(ContextNotice::Moved { channel, handler, from, to, why, error });
    }

    /// Returns whether a stage of a channel that this worker owns may choose the context.
    pub fn may_be_placed(
        &self,
        context: u16,
        active: &ActivePaths,
        placement: &placement::Placement,
    ) -> bool {
        let lists =
            |stage: &PathStage| stage.auto.as_ref().is_some_and(|auto| auto.contexts.contains(&context));
        self.paths.keys().any(|key| {
            let path = active.of(*key).map(|(_, path)| path);
            placement.elsewhere(key.0).is_none() && path.is_some_and(|path| path.stages.iter().any(lists))
        })
    }

    /// Returns the places of all stages that choose their context.
    pub fn snapshots(&self, now: Instant, active: &ActivePaths) -> Vec<StagePlace> {
        let mut all = Vec::new();
        for (key, places) in &self.paths {
            let Some((path, _)) = active.of(*key) else { continue };
            let known = places.iter().enumerate().filter_map(|(stage, place)| Some((stage, place.as_ref()?)));
            all.extend(known.map(|(stage, Place { placement, .. })| StagePlace {
                path: *path,
                stage,
                why: placement.why(),
                age: now.saturating_since(placement.since()),
                moves: placement.moves(),
            }));
        }
        all
    }
}

/// Returns the reason for which a stage stays in its context whatever its calls cost.
fn bound_to(at: usize, spec: &PathStage, path: &PathStatus) -> Option<Why> {
    let stage = &path.stages[at];
    // State in another program ends with the path that is replaced.
    let would_end =
        |(n, stage): (usize, &StageStatus)| stage.keeps_state && (n == at || stage.context >= CONTEXTS_MAX);
    if path.stages.iter().enumerate().any(would_end) {
        return Some(Why::KeepsState);
    }
    // A module that is not to be restarted would be.
    let supply = spec.maker.as_ref().and_then(|maker| maker.supply());
    let is_final = supply.is_some_and(|supply| supply.on_stop != OnStop::Restart);
    (is_final && stage.usage.stops > 0).then_some(Why::Stopped(stage.usage.stops))
}

/// Returns the measurements of a stage since it began in its present context.
fn sample(stage: &StageStatus) -> Sample {
    let profile = &stage.profile;
    let len = profile.bytes.checked_div(profile.messages).unwrap_or(0);
    let stops = stage.usage.stops;
    match (stage.context < CONTEXTS_MAX, stage.times) {
        (true, _) => {
            let (mean, p99) = (profile.timing.mean(), profile.timing.quantile(990));
            Sample { measured: profile.timing.measured, mean, p99, len, stops }
        }
        (false, Some(times)) => {
            Sample { measured: times.measured, mean: times.mean, p99: times.p99, len, stops }
        }
        (false, None) => Sample { len, stops, ..Sample::default() },
    }
}
