//! Contexts elsewhere (g-contexts): programs of the cluster that run handlers of paths, each reached by a
//! connection that the worker opens to a process of the context's pool.
//!
//! ```text
//!   a path of a channel of this worker has a stage in g0 ─▶ open ─▶ HELLO ─▶ calls ─┐ lost: what is not answered
//!                                      ▲                                            │ is given again
//!                                      └──────────────── RETRY ─────────────────────┘
//! ```
//! While a context is absent, its messages wait in their queues, as they do before any stage that cannot
//! continue. A path that is replaced or removed waits for a bounded time: after [`PATIENCE`] its messages are
//! discarded, and counted as lost.

mod body;
mod link;
mod supply;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use csp_handlers::{CONTEXTS_MAX, G_CONTEXTS_MAX};
use csp_messages::{MessagePlane, PathError, PathState, PathStatus, StateRefusal, Why};
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Excluded, Request, Upstream, UpstreamEnd};
use csp_quality::SharedLink;
use csp_types::{Duration, FlowLabel, Instant};

use self::link::{CREDIT, Link};
use super::MessageBroker;
use super::channels::Channels;
use super::placement::Placement;

/// Time between the end of a connection to a context and the next one.
pub const RETRY: Duration = Duration::from_millis(250);
/// How long messages of a replaced or removed path wait for an absent context, and how long a process of its
/// pool has to send HELLO.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the need for each context is examined.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A context elsewhere, as the policy names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContextSpec {
    /// Its number: 0 is `g0`.
    pub number: u16,
    /// The name of the service whose processes are the context
    /// ([`ServiceSpec::name`](csp_proxy_core::ServiceSpec::name)).
    pub service: String,
}

/// State of a context's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// No path of a channel of this worker needs it.
    Unused,
    /// It is needed, and no process has sent HELLO.
    Absent,
    /// It runs handlers.
    Connected,
}

/// Something to log about a stage and the context that runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ContextNotice {
    /// A context elsewhere does not run a stage: its messages wait.
    Refused {
        /// Name of the channel.
        channel: String,
        /// Name of the handler.
        handler: String,
        /// Number of the context at the plane.
        context: u16,
        /// Why.
        why: String,
    },
    /// A handler has refused the state of the one that it replaces, and has begun with none.
    StateRefused {
        /// Name of the channel.
        channel: String,
        /// Name of the handler.
        handler: String,
    },
    /// A stage that chooses its context moves to another one, or could not be moved.
    Moved {
        /// Name of the channel.
        channel: String,
        /// Name of the handler.
        handler: String,
        /// Number of the former context at the plane.
        from: u16,
        /// Number of the new one.
        to: u16,
        /// What was measured.
        why: Why,
        /// Why it could not be moved.
        error: Option<PathError>,
    },
}

/// Notices that are kept until they are fetched.
const NOTICES_MAX: usize = 64;

/// The state of a context elsewhere, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElsewhereSnapshot {
    /// Its number at the plane.
    pub context: u16,
    /// Whether it is there.
    pub presence: Presence,
    /// Calls sent to it.
    pub calls: u64,
    /// Connections that were lost.
    pub losses: u64,
    /// Of these, connections that the worker closed because the context violated the protocol.
    pub violations: u64,
}

/// What became of the request for a connection to a context. Its token is the context's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Requested {
    /// There is none.
    #[default]
    No,
    /// It is to be made.
    ToMake,
    /// It is not answered.
    Made,
    /// It is to be cancelled.
    ToCancel,
}

#[derive(Debug, Default)]
struct Slot {
    service: Option<Arc<str>>,
    link: Option<Link>,
    request: Requested,
    wanted: bool,
    /// No connection is opened before this time.
    retry_at: Instant,
    /// Since when the context is absent, or does not run a stage for which a replaced path waits.
    absent_since: Option<Instant>,
    /// When the connection was requested, then when it was opened.
    opened: Instant,
    /// Calls of former connections.
    calls: u64,
    losses: u64,
    violations: u64,
}

impl Slot {
    /// Withdraws a request for a connection.
    fn withdraw(&mut self) {
        self.request = match self.request {
            Requested::Made | Requested::ToCancel => Requested::ToCancel,
            Requested::No | Requested::ToMake => Requested::No,
        };
    }
}

/// The contexts elsewhere of one worker.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    slots: Vec<Slot>,
    /// Number of connections: most workers have none.
    links: usize,
    due: Option<Instant>,
    /// Changed whenever the paths change.
    epoch: u64,
    notices: VecDeque<ContextNotice>,
}

/// Returns the number at the plane of a context elsewhere.
pub(super) const fn at_plane(number: u16) -> u16 {
    CONTEXTS_MAX + number
}

/// Prepares the plane's contexts that are elsewhere; they follow its own ones.
pub(super) fn prepare(plane: &mut MessagePlane) {
    for number in 0..G_CONTEXTS_MAX {
        plane.set_remote(at_plane(number), CREDIT);
    }
}

impl Elsewhere {
    fn link_of(&mut self, label: FlowLabel) -> Option<(usize, &mut Link)> {
        if self.links == 0 {
            return None;
        }
        let links =
            self.slots.iter_mut().enumerate().filter_map(|(at, slot)| Some((at, slot.link.as_mut()?)));
        links.into_iter().find(|(_, link)| link.label == label)
    }

    /// Returns when [`Elsewhere::settle`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Records that paths, or their parameters, have changed.
    pub(super) fn paths_changed(&mut self, now: Instant) {
        self.epoch += 1;
        self.look_at_slots(now);
    }

    /// Schedules an examination of the contexts, if there were ever any.
    fn look_at_slots(&mut self, now: Instant) {
        if !self.slots.is_empty() {
            self.due = Some(now);
        }
    }

    /// Returns whether the context with this number at the plane is connected.
    pub(super) fn is_up(&self, context: u16) -> bool {
        let slot = context.checked_sub(CONTEXTS_MAX).and_then(|number| self.slots.get(usize::from(number)));
        slot.and_then(|slot| slot.link.as_ref()).is_some_and(|link| link.is_up() && !link.ended)
    }

    pub(super) fn note(&mut self, notice: ContextNotice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    /// Schedules an examination of the contexts, because the owner of a channel has changed.
    pub(super) fn look(&mut self, now: Instant) {
        if self.slots.iter().any(|slot| slot.service.is_some()) {
            self.due = Some(now);
        }
    }

    /// Replaces the contexts elsewhere. Connections to contexts that remain continue.
    pub(super) fn set(&mut self, now: Instant, specs: &[ContextSpec]) {
        // The worker goes through them whenever it looks for the next connection: without contexts there are
        // none.
        let needed = specs.iter().map(|spec| usize::from(spec.number) + 1).max().unwrap_or(0);
        self.slots.resize_with(self.slots.len().max(needed), Slot::default);
        for (number, slot) in (0u16..).zip(&mut self.slots) {
            let spec = specs.iter().find(|spec| spec.number == number);
            let service = spec.map(|spec| spec.service.as_str());
            if slot.service.as_deref() != service {
                slot.service = service.map(Arc::from);
                slot.withdraw();
                if let Some(link) = &mut slot.link {
                    link.ended = true;
                }
            }
        }
        self.look_at_slots(now);
    }

    /// Opens and closes connections as contexts are needed, and discards messages that have waited for longer
    /// than [`PATIENCE`]. `may_be_placed`: whether a stage may choose a context, by its number at the plane.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        plane: Option<&mut MessagePlane>,
        (channels, placement): (&Channels, &Placement),
        may_be_placed: impl Fn(u16) -> bool,
    ) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let Some(plane) = plane else { return };
        let paths = plane.paths();
        let here: Vec<bool> = paths
            .iter()
            .map(|path| {
                let bound = channels.of(plane, path.channel);
                bound.is_some_and(|bound| placement.elsewhere(bound.spec.number).is_none())
            })
            .collect();
        let mut due = None;
        for (number, slot) in (0u16..).zip(&mut self.slots) {
            let context = at_plane(number);
            let needs = |path: &PathStatus| path.stages.iter().any(|stage| stage.context == context);
            let waits = |path: &PathStatus| path.stages.iter().any(|s| s.context == context && s.waiting > 0);
            slot.wanted = may_be_placed(context)
                || paths.iter().zip(&here).any(|(path, here)| needs(path) && (*here || waits(path)));
            let is_up = slot.link.as_ref().is_some_and(|link| link.is_up() && !link.ended);
            if !slot.wanted {
                slot.withdraw();
                slot.link.iter_mut().for_each(|link| link.ended = true);
            }
            // It is there, and does not run what a path that is replaced waits for.
            let refuses = |path: &PathStatus| {
                let mut stages = path.stages.iter();
                path.state == PathState::Retired
                    && stages.any(|s| s.context == context && s.waiting > 0 && s.refused.is_some())
            };
            if !slot.wanted || (is_up && !paths.iter().any(refuses)) {
                slot.absent_since = None;
                continue;
            }
            let since = *slot.absent_since.get_or_insert(now);
            if let Some(link) = slot.link.as_mut().filter(|_| !is_up && now >= slot.opened + PATIENCE) {
                link.ended = true; // what listens there is no context, or does not run
            }
            let is_free = slot.link.is_none() && slot.request == Requested::No;
            if is_free && slot.service.is_some() && slot.retry_at <= now {
                (slot.request, slot.opened) = (Requested::ToMake, now);
            }
            if now >= since + PATIENCE {
                plane.give_up(context, !is_up);
            }
            let next = if slot.retry_at > now { slot.retry_at } else { now + LOOK_INTERVAL };
            due = Some(due.map_or(next, |due: Instant| due.min(next)));
        }
        self.due = due;
    }

    /// Removes and returns a request for a connection to a context, or its withdrawal.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        let slots = (0u64..).zip(&mut self.slots);
        let (token, slot) = slots
            .into_iter()
            .find(|(_, slot)| matches!(slot.request, Requested::ToMake | Requested::ToCancel))?;
        if slot.request == Requested::ToCancel {
            slot.request = Requested::No;
            return Some(Request::Cancel(token));
        }
        slot.request = Requested::Made;
        Some(Request::Open(Upstream {
            token,
            service: slot.service.clone()?,
            excluded: Excluded::NONE,
            // The broker has no address of its own.
            client: (Ipv4Addr::UNSPECIFIED, 0).into(),
            client_flow: FlowLabel::NONE,
            window: 0,
            deadline: Some(slot.opened + PATIENCE),
        }))
    }

    /// Processes the answer to a request for a connection to a context; `None`: no process has accepted it.
    /// The channels' longest message has `longest` bytes.
    pub(super) fn opened(&mut self, now: Instant, token: u64, label: Option<FlowLabel>, longest: u32) {
        let Ok(number) = u16::try_from(token) else { return };
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        let request = std::mem::take(&mut slot.request);
        match label {
            Some(label) => {
                let mut link = Link::new(label, at_plane(number), longest);
                link.ended = request == Requested::ToCancel;
                slot.link = Some(link);
                slot.opened = now;
                self.links += 1;
            }
            None => {
                slot.retry_at = now + RETRY;
                self.due = Some(self.due.map_or(slot.retry_at, |due| due.min(slot.retry_at)));
            }
        }
    }

    /// Serves the connection to a context.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        label: FlowLabel,
        upstream: &mut impl UpstreamEnd,
        (plane, output): (&mut MessagePlane, Option<&mut SharedLink>),
        channels: &Channels,
    ) -> Step {
        let epoch = self.epoch;
        let Some((at, link)) = self.link_of(label) else { return Step::Reset };
        if link.ended {
            return Step::Close;
        }
        let was_up = link.is_up();
        let Ok(moved) = link.serve(now, upstream, (plane, output), epoch) else {
            link.ended = true;
            let slot = &mut self.slots[at];
            (slot.losses, slot.violations) = (slot.losses + 1, slot.violations + 1);
            return Step::Reset;
        };
        let (refused, has_changed) = (std::mem::take(&mut link.refused), link.is_up() != was_up);
        if has_changed {
            self.due = Some(now);
        }
        let context = at_plane(at as u16);
        for (ticket, why) in refused {
            let Some(stage) = plane.remote_stage(ticket) else { continue };
            let bound = plane.path_status(ticket.path).and_then(|path| channels.of(plane, path.channel));
            let channel = bound.map(|bound| bound.name().to_owned()).unwrap_or_default();
            self.note(ContextNotice::Refused { channel, handler: stage.handler.to_owned(), context, why });
        }
        match upstream.is_finished() && upstream.readable() == 0 {
            true => Step::Close,
            false if moved => Step::Moved,
            false => Step::Idle,
        }
    }

    /// Processes the end of a connection to a context.
    pub(super) fn gone(&mut self, now: Instant, label: FlowLabel, plane: Option<&mut MessagePlane>) {
        let Some((at, _)) = self.link_of(label) else { return };
        let slot = &mut self.slots[at];
        if let Some(link) = slot.link.take() {
            slot.calls += link.calls;
            slot.losses += u64::from(!link.ended);
        }
        slot.retry_at = now + RETRY;
        self.links -= 1;
        self.due = Some(now);
        if let Some(plane) = plane {
            plane.remote_lost(at_plane(at as u16));
        }
    }

    /// Returns a connection to a context that has something to send now.
    pub(super) fn next_to_serve(&mut self, now: Instant, plane: &MessagePlane) -> Option<FlowLabel> {
        for (number, slot) in (0u16..).zip(&mut self.slots) {
            match &mut slot.link {
                Some(link) if link.has_work(plane) => {
                    link.queued = true;
                    return Some(link.label);
                }
                Some(_) => {}
                None if slot.service.is_some() && !slot.wanted && plane.has_calls(at_plane(number)) => {
                    // A message of a channel that lives elsewhere by the view.
                    slot.wanted = true;
                    self.due = Some(now);
                }
                None => {}
            }
        }
        None
    }

    /// Returns the contexts elsewhere that the policy names.
    pub(super) fn snapshots(&self) -> Vec<ElsewhereSnapshot> {
        let known = (0u16..).zip(&self.slots).filter(|(_, slot)| slot.service.is_some());
        known
            .map(|(number, slot)| ElsewhereSnapshot {
                context: at_plane(number),
                presence: match &slot.link {
                    Some(link) if link.is_up() => Presence::Connected,
                    _ if slot.wanted => Presence::Absent,
                    _ => Presence::Unused,
                },
                calls: slot.calls + slot.link.as_ref().map_or(0, |link| link.calls),
                losses: slot.losses,
                violations: slot.violations,
            })
            .collect()
    }
}

impl MessageBroker {
    /// Removes and returns the oldest notice about contexts.
    pub fn poll_context_notice(&mut self) -> Option<ContextNotice> {
        if let Some(plane) = &mut self.plane {
            for StateRefusal { channel, handler } in plane.take_state_refusals() {
                let bound = self.channels.of(plane, channel);
                let channel = bound.map(|bound| bound.name().to_owned()).unwrap_or_default();
                self.elsewhere.note(ContextNotice::StateRefused { channel, handler });
            }
        }
        self.elsewhere.notices.pop_front()
    }
}
