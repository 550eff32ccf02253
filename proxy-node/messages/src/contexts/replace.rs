//! The Control Manager's second half: changes the paths of a channel between two messages.
//!
//! ```text
//!   entering ─▶ [new path: waits] ···▶ [old path: retired] ─▶ receivers      until the old one is empty;
//!   entering ─▶ [new path] ──────────────────────────────────▶ receivers      then with its state, if it is the same handler's
//! ```
//! Nothing is lost, doubled or overtaken: messages that have entered the old path leave through it first. A
//! path that is removed is replaced by a *transient* one that only keeps that order, and ends when both are
//! empty.
//!
//! The paths of a channel change together, so that a path of all formats gives way to paths of single ones,
//! and the reverse, in the same order: each new path waits for all that its messages may still be in.

use csp_handlers::FormatId;
use csp_types::Instant;

use super::Contexts;
use super::control_manager::PathError;
use super::path::{Path, PathChange, PathId, PathSpec, Stage, Targets};
use crate::channel::Channel;
use crate::plane::ChannelId;
use crate::pool::MessagePool;
use crate::schedule::Schedule;

/// Most refusals of state that wait to be reported.
const REFUSALS_MAX: usize = 64;

/// A handler that has refused the state of its predecessor, and has begun with none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateRefusal {
    /// The channel of the path.
    pub channel: ChannelId,
    /// Name of the handler.
    pub handler: String,
}

/// A path of the channel before the change.
struct Old {
    key: Option<FormatId>,
    index: u16,
    /// Messages go on entering it.
    stays: bool,
    /// A new path has the same key.
    is_replaced: bool,
}

impl Contexts {
    /// Makes the paths that a channel is to have of those that it has. Returns them in the order of `wanted`.
    /// Nothing is changed if one is refused.
    pub fn replace(
        &mut self,
        now: Instant,
        wanted: Vec<PathChange>,
        (ch, channel): (&mut Channel, ChannelId),
        pool: &MessagePool,
        schedule: &mut Schedule,
    ) -> Result<Vec<PathId>, PathError> {
        let (kept, news) = self.checked(now, wanted, (&*ch, channel), pool)?;
        let new_keys: Vec<Option<FormatId>> = news.iter().flatten().map(|path| path.spec.format).collect();
        // The entry of the new path of all formats.
        let entry = news.iter().flatten().map(|path| &path.spec).find(|spec| spec.format.is_none());
        let entry = entry.map(|spec| spec.entry);
        let takes = |key: Option<FormatId>| entry.zip(key).is_some_and(|(entry, format)| entry.takes(format));
        let old = |(key, index): &(Option<FormatId>, u16)| {
            let is_kept = kept.iter().flatten().any(|id| id.index == *index);
            let is_transient = self.path(*index).is_some_and(|path| path.transient);
            let is_replaced = new_keys.contains(key);
            // One that keeps the order goes on doing so, unless a new path has to wait for it.
            let is_alone = new_keys.is_empty() || (key.is_some() && !takes(*key));
            let stays = is_kept || (is_transient && !is_replaced && is_alone);
            Old { key: *key, index: *index, stays, is_replaced }
        };
        let old: Vec<Old> = ch.paths.entries.iter().map(old).collect();
        // The order of messages whose path is removed, unless the path of all formats takes them.
        let leaves = |old: &&Old| !old.stays && !old.is_replaced && !takes(old.key);
        let transients =
            old.iter().filter(leaves).map(|old| self.transient(old)).collect::<Result<Vec<_>, _>>()?;
        let free = self.paths.iter().filter(|slot| slot.path.is_none()).count();
        if new_keys.len() + transients.len() > free {
            return Err(PathError::TooMany);
        }
        let stays = |index: u16| old.iter().any(|old| old.index == index && old.stays);
        ch.paths.entries.retain(|(_, index)| stays(*index));
        let mut ids = Vec::new();
        for (kept, new) in kept.into_iter().zip(news) {
            // Exactly one of both is there.
            ids.extend(kept.or_else(|| new.map(|new| self.install(*new, &old, ch))));
        }
        for path in transients {
            self.install(path, &old, ch);
        }
        self.keep_needs(ch);
        let over: Vec<u16> = old.iter().filter(|old| !old.stays).map(|old| old.index).collect();
        for index in &over {
            if let Some(path) = self.path_mut(*index) {
                path.retired = true;
            }
        }
        over.into_iter().for_each(|index| self.settle(index, ch, schedule));
        Ok(ids)
    }

    /// Checks that the channel has the kept paths, and can have the new ones beside them. Returns, for each
    /// that is wanted, the kept path or the new one.
    #[allow(clippy::type_complexity)]
    fn checked(
        &mut self,
        now: Instant,
        wanted: Vec<PathChange>,
        (ch, channel): (&Channel, ChannelId),
        pool: &MessagePool,
    ) -> Result<(Vec<Option<PathId>>, Vec<Option<Box<Path>>>), PathError> {
        let (mut kept, mut news, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for change in wanted {
            let (id, path) = match change {
                PathChange::Keep(id) => (Some(self.live(id, ch)?), None),
                PathChange::New(spec) if spec.channel == channel => {
                    (None, Some(Box::new(self.check(now, spec, ch, pool)?)))
                }
                PathChange::New(_) => return Err(PathError::UnknownChannel),
            };
            let kept_key = id.and_then(|id| self.path(id.index)).map(|path| path.spec.format);
            keys.extend(kept_key.or(path.as_ref().map(|path| path.spec.format)));
            kept.push(id);
            news.push(path);
        }
        let twice = (1..keys.len()).any(|at| keys[..at].contains(&keys[at]));
        if twice || (keys.len() > 1 && keys.contains(&None)) {
            return Err(PathError::Overlap);
        }
        self.check_state(news.iter().flatten().flat_map(|path| &path.stages))?;
        Ok((kept, news))
    }

    /// Returns a path of the channel that messages enter.
    fn live(&self, id: PathId, ch: &Channel) -> Result<PathId, PathError> {
        let index = self.find(id).filter(|index| ch.paths.iter().any(|known| known == *index));
        let path = index.and_then(|index| self.path(index)).filter(|path| !path.retired && !path.transient);
        path.map(|_| id).ok_or(PathError::UnknownPath)
    }

    /// Activates a path beside those that the channel has for other formats, in place of all others.
    pub fn activate(
        &mut self,
        now: Instant,
        spec: PathSpec,
        ch: &mut Channel,
        pool: &MessagePool,
        schedule: &mut Schedule,
    ) -> Result<PathId, PathError> {
        let (channel, key) = (spec.channel, spec.format);
        let mut wanted = self.keeps(ch, |other| key.is_some() && other.is_some() && other != key);
        wanted.push(PathChange::New(spec));
        let ids = self.replace(now, wanted, (ch, channel), pool, schedule)?;
        ids.last().copied().ok_or(PathError::UnknownPath)
    }

    /// Returns the paths of a channel that messages enter, and whose format `keeps` accepts, to be kept.
    fn keeps(&self, ch: &Channel, keeps: impl Fn(Option<FormatId>) -> bool) -> Vec<PathChange> {
        let kept = ch
            .paths
            .entries
            .iter()
            .filter(|(key, index)| keeps(*key) && self.path(*index).is_some_and(|path| !path.transient));
        let id = |index: u16| PathId { index, generation: self.paths[usize::from(index)].generation };
        kept.map(|(_, index)| PathChange::Keep(id(*index))).collect()
    }

    /// Returns what takes the place of a path that is removed.
    fn transient(&self, old: &Old) -> Result<Path, PathError> {
        let known = self.path(old.index).ok_or(PathError::UnknownPath)?;
        let context = known.stages.first().map(|stage| stage.context);
        let context = context.filter(|context| !self.is_remote(*context)).unwrap_or(0);
        let spec = PathSpec {
            format: known.spec.format,
            entry: known.spec.entry,
            queue: known.spec.queue,
            ..PathSpec::chain(known.spec.channel, &[("forward", context, "")])
        };
        let stage = self.prepare_stage(Instant::ZERO, 0, &spec.stages[0])?;
        Ok(Path { transient: true, ..Path::new(spec, vec![stage]) })
    }

    /// Puts a checked path into a free place, behind the former paths in which its messages may be.
    fn install(&mut self, mut path: Path, old: &[Old], ch: &mut Channel) -> PathId {
        let free = self.paths.iter().position(|slot| slot.path.is_none());
        let free = free.unwrap_or(0); // there are enough: `replace` has counted
        let (index, key) = (free as u16, path.spec.format);
        for stage in &path.stages {
            self.handlers.placed(stage.number);
            self.contexts[usize::from(stage.context)].state_bytes += stage.state_bytes();
            self.timers += usize::from(stage.timer.is_some());
        }
        let may_hold = |old: &&Old| !old.stays && (old.key == key || old.key.is_none() || key.is_none());
        path.after = old.iter().filter(may_hold).map(|old| old.index).collect();
        for before in &path.after {
            if let Some(before) = self.path_mut(*before) {
                before.then.push(index);
            }
        }
        if key.is_none() {
            ch.paths.entry = path.spec.entry;
        }
        ch.paths.entries.push((key, index));
        let slot = &mut self.paths[free];
        slot.path = Some(path);
        PathId { index, generation: slot.generation }
    }

    /// Ends a replaced path that is empty, and then each path behind it that is replaced and empty.
    pub fn settle(&mut self, index: u16, ch: &mut Channel, schedule: &mut Schedule) {
        let mut wait = vec![index];
        while let Some(index) = wait.pop() {
            let over =
                |path: &Path| path.after.is_empty() && (path.retired || path.transient) && path.is_empty();
            if !self.path(index).is_some_and(over) {
                continue;
            }
            let slot = &mut self.paths[usize::from(index)];
            slot.generation = slot.generation.wrapping_add(1);
            let Some(mut old) = slot.path.take() else { continue };
            ch.paths.remove(index);
            self.stalled.remove(&mut self.stalled_links, u32::from(index));
            self.remove_stages(index, &old);
            self.keep_needs(ch);
            for next in std::mem::take(&mut old.then) {
                let Some(path) = self.path_mut(next) else { continue };
                path.after.retain(|before| *before != index);
                let goes_on = path.after.is_empty();
                if path.spec.format == old.spec.format {
                    let refused = path.take_over(&mut old);
                    self.note_refused(next, refused);
                }
                if goes_on {
                    self.wake_all(next, schedule);
                    wait.push(next);
                }
            }
        }
    }

    /// Records which stages of a path have refused the state of their predecessors.
    fn note_refused(&mut self, index: u16, refused: Targets) {
        for at in refused.stages() {
            let Some(path) = self.paths[usize::from(index)].path.as_mut() else { return };
            let Some(stage) = path.stages.get_mut(at) else { return };
            stage.state_refused = true;
            let (number, channel) = (stage.number, path.spec.channel);
            let handler = path.spec.stages[at].handler.clone();
            self.handlers.refused_state(number);
            if self.refusals.len() < REFUSALS_MAX {
                self.refusals.push(StateRefusal { channel, handler });
            }
        }
    }

    /// Returns the handlers that have refused state since the last call, the first [`REFUSALS_MAX`] of them.
    pub fn take_refusals(&mut self) -> Vec<StateRefusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Records how much memory the channel's paths need to continue, and the channels that they lead to,
    /// including replaced paths and those that wait.
    fn keep_needs(&self, ch: &mut Channel) {
        let (mut reserve, mut outlets) = (0, Vec::new());
        for path in self.of_channel(ch).into_iter().filter_map(|index| self.path(index)) {
            reserve = path.reserve.max(reserve);
            let further = path.spec.outlets.iter().filter(|outlet| !outlets.contains(*outlet));
            let further: Vec<ChannelId> = further.copied().collect();
            outlets.extend(further);
        }
        (ch.paths.reserve, ch.paths.outlets) = (reserve, outlets);
    }

    /// Sets the channels behind the outlets of a path, in the order of their numbers.
    pub fn set_outlets(&mut self, id: PathId, outlets: Vec<ChannelId>, ch: &mut Channel) {
        if let Some(path) = self.find(id).and_then(|index| self.path_mut(index)) {
            path.spec.outlets = outlets;
        }
        self.keep_needs(ch);
    }

    /// Returns the paths of a channel, with those that are replaced, the latter behind those that wait for
    /// them.
    pub(super) fn of_channel(&self, ch: &Channel) -> Vec<u16> {
        let mut all: Vec<u16> = ch.paths.iter().collect();
        let mut at = 0;
        while let Some(index) = all.get(at) {
            let after = self.path(*index).map(|path| &path.after[..]).unwrap_or_default();
            let further: Vec<u16> = after.iter().copied().filter(|before| !all.contains(before)).collect();
            all.extend(further);
            at += 1;
        }
        all
    }
}

impl Path {
    /// Continues with the state of the path that this one replaces. Returns the stages that have refused it.
    fn take_over(&mut self, old: &mut Path) -> Targets {
        let mut refused = Targets::NONE;
        if !self.spec.keeps_state {
            return refused;
        }
        let before = old.spec.stages.iter().zip(&mut old.stages);
        let stages = self.spec.stages.iter().zip(&mut self.stages).zip(before).enumerate();
        for (at, ((spec, stage), (old_spec, old))) in stages {
            if spec.handler == old_spec.handler && !stage.take_over(old, &spec.parameters) {
                refused = refused.and(Targets::stage(at));
            }
        }
        refused
    }
}

impl Stage {
    /// Continues with the state of the stage of the same handler that it replaces. Returns false if there is
    /// state to keep, and this stage does not take it.
    fn take_over(&mut self, old: &mut Stage, parameters: &str) -> bool {
        let keeps = old.handler.keeps_state();
        // What lies in the former handler's own memory.
        let handed = old.handler.hand_over(&mut old.state);
        let taken = handed.map(|(layout, bytes)| self.handler.take_over(layout, bytes));
        let fits = old.state.fits(&self.handler.needs());
        if fits {
            std::mem::swap(&mut self.state, &mut old.state);
            // Whether it has a timer, and of which period, is its own.
            if let (Some(timer), Some(old)) = (&mut self.timer, old.timer) {
                (timer.due, timer.next) = (old.due, timer.next.min(old.next));
            }
            if !parameters.is_empty() {
                // They were accepted when the path was activated.
                let _ = self.handler.configure(parameters, &mut self.state);
            }
        }
        taken.unwrap_or(fits || !keeps)
    }
}
