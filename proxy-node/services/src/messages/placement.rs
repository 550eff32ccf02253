//! Where channels live: each at its owner, the proxy worker to which network nodes and programs of the
//! cluster send its connections. A worker that is no longer the owner closes its connections, so that the
//! peers connect again and reach the owner.
//!
//! ```text
//!  the view names another owner ── STABLE ──▶ senders get FIN; what they had written until their own FIN is distributed
//!                                                 │ no sender is left, or SENDERS_TIME is over
//!                                                 ▼
//!                                             receivers get what waits for them, then FIN ── RECEIVERS_TIME ──▶ closed
//! ```
//! The view is made of registrations, and a network node may know better: a proxy may be dead while its lease
//! is alive. A peer that came while the view named another owner is therefore left alone for
//! [`STRANGER_TIME`], and for twice as long each time that peers come back.

mod place;

use std::collections::{HashMap, VecDeque};

use csp_messages::{ChannelKind, MessagePlane, PeerStatus, Role};
use csp_proxy_core::service::local::Step;
use csp_types::{Duration, Instant, Owner, PlacementKey};

use super::MessageBroker;
use super::channels::{Bound, Channels};
use super::connections::Connections;
use super::peer::Peer;
use place::{Move, Place};

pub(super) use place::Ending;
pub use place::{MoveNotice, Moved, View};

/// How long the view must name another owner before connections are closed.
pub const STABLE: Duration = Duration::from_secs(3);
/// Time for senders to end their streams after they were sent FIN.
pub const SENDERS_TIME: Duration = Duration::from_secs(5);
/// Time for receivers to read waiting messages, counted from when no sender is left or [`SENDERS_TIME`] is
/// over.
pub const RECEIVERS_TIME: Duration = Duration::from_secs(5);
/// How long a peer is left alone that arrived while the view named another owner.
pub const STRANGER_TIME: Duration = Duration::from_secs(30);
/// Largest number of doublings of that time: 32 minutes.
const DOUBLINGS_MAX: u32 = 5;
/// How long a publisher that arrives at a new owner waits for the subscribers. They leave the former owner a
/// little later, and libzmq waits 100 to 200 ms before it connects again.
pub const GATHER_TIME: Duration = Duration::from_millis(400);
/// How long an owner counts as new.
const NEW_TIME: Duration = Duration::from_secs(13);
const _: () =
    assert!(NEW_TIME.as_secs() == STABLE.as_secs() + SENDERS_TIME.as_secs() + RECEIVERS_TIME.as_secs());
/// Interval between examinations of connections while some of them will be closed later.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between examinations of publishers that wait for subscribers.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);
/// Notices that wait to be logged; beyond this number the oldest are dropped.
const NOTICES_MAX: usize = 64;

/// Where the channels of one worker live.
#[derive(Debug, Default)]
pub(super) struct Placement {
    view: Option<View>,
    places: HashMap<u32, Place>,
    /// When the first view came.
    began: Option<Instant>,
    /// When to look at the connections.
    due: Option<Instant>,
    notices: VecDeque<MoveNotice>,
    /// Whether this worker is the new owner of any channel.
    is_new: bool,
}

/// The parts of a broker that moves of channels read and change.
pub(super) struct Movable<'a> {
    plane: &'a mut Option<MessagePlane>,
    channels: &'a Channels,
    connections: &'a mut Connections,
}

impl Placement {
    /// Returns the owner of a channel, if it is another worker.
    pub(super) fn elsewhere(&self, number: u32) -> Option<Owner> {
        let here = self.view.as_ref()?.here;
        self.owner(number).filter(|owner| *owner != here)
    }

    /// Returns the owner of a channel according to the view.
    pub(super) fn owner(&self, number: u32) -> Option<Owner> {
        self.places.get(&number)?.owner
    }

    /// Returns the totals of a channel's moves.
    pub(super) fn moved(&self, number: u32) -> Moved {
        self.places.get(&number).map_or(Moved::default(), |place| place.totals)
    }

    /// Records a new connection. It is examined later if another worker owns the channel, or this worker is
    /// its new owner.
    pub(super) fn arrived(&mut self, now: Instant, number: u32) {
        if self.elsewhere(number).is_some() {
            self.look_at(now + STRANGER_TIME);
        } else if self.places.get(&number).is_some_and(|place| place.is_new(now)) {
            self.look_at(now + GATHER_TIME);
        }
    }

    fn look_at(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    fn is_young(&self, now: Instant) -> bool {
        self.began.is_none_or(|began| now < began + NEW_TIME)
    }

    /// Returns when [`Placement::settle`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether a peer's messages wait until the channel's subscribers have arrived.
    pub(super) fn holds(&self, now: Instant, peer: &Peer, plane: &MessagePlane) -> bool {
        if !self.is_new || now >= peer.arrived + GATHER_TIME {
            return false;
        }
        let role = peer.id.and_then(|id| plane.peer_status(id)).map(|status| status.role);
        // Pushed messages wait for pullers by themselves.
        let publishes = role.is_some_and(|role| role.sends() && role != Role::Pusher);
        publishes && self.places.get(&peer.number).is_some_and(|place| place.is_new(peer.arrived))
    }

    /// Returns the next step of a connection that moves, after it was served; `None` if the connection
    /// continues.
    pub(super) fn step(peer: &mut Peer, plane: &mut MessagePlane) -> Option<Step> {
        match peer.ending {
            // A peer that receives too gets what waits for it first.
            Ending::Finish { sender } if has_all(peer, plane) => {
                if let Some(id) = peer.id {
                    plane.set_parked(id, true);
                }
                peer.ending = Ending::Finished { sender };
            }
            Ending::Drains if has_all(peer, plane) => {
                if let Some(id) = peer.id.take() {
                    plane.detach(id, |_| {});
                }
                peer.ending = Ending::Finished { sender: false };
            }
            Ending::Over => return Some(Step::Close),
            _ => return None,
        }
        Some(Step::Finish)
    }

    fn places_changed(&mut self, now: Instant) {
        self.is_new = self.places.values().any(|place| place.is_new(now));
        self.due = (!self.places.is_empty()).then_some(now);
    }

    fn notify(&mut self, notice: MoveNotice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }
}

/// Returns the number of messages that are lost when a receiver is closed. Messages that wait for a puller go
/// to other pullers.
fn lost_with(status: &PeerStatus) -> u64 {
    match status.role {
        Role::Puller => status.in_flight as u64,
        _ => (status.waiting + status.in_flight) as u64,
    }
}

/// Returns whether a receiver has been sent everything that waited for it.
fn has_all(peer: &Peer, plane: &MessagePlane) -> bool {
    let waits = peer.id.and_then(|id| plane.peer_status(id)).is_some_and(|s| {
        let channel = s.channel;
        let on_the_way = plane.waiting_in_paths(channel) + plane.waiting_in_flows(channel);
        s.waiting + s.in_flight + on_the_way > 0
    });
    peer.writing.is_none() && peer.own.is_empty() && !waits
}

impl MessageBroker {
    /// Sets the keys that decide where each channel lives, by the channel's number. A channel without a key
    /// stays at this worker.
    pub(super) fn set_places(&mut self, now: Instant, keys: impl IntoIterator<Item = (u32, PlacementKey)>) {
        self.elsewhere.look(now);
        self.placement.set_keys(now, keys.into_iter().collect());
    }

    /// Sets the workers that channels may live at.
    pub fn set_view(&mut self, now: Instant, view: View) {
        self.elsewhere.look(now);
        self.placement.set_view(now, view);
    }

    /// Returns the next event for the log, if any.
    pub fn poll_notice(&mut self) -> Option<MoveNotice> {
        self.placement.notices.pop_front()
    }

    /// Returns the moves of channels, and the parts that they change.
    pub(super) fn moves(&mut self) -> (&mut Placement, Movable<'_>) {
        let MessageBroker { placement, plane, channels, connections, .. } = self;
        (placement, Movable { plane, channels, connections })
    }
}

impl Placement {
    fn set_keys(&mut self, now: Instant, keys: HashMap<u32, PlacementKey>) {
        let young = self.is_young(now);
        let Placement { view, places, .. } = self;
        places.retain(|number, place| keys.get(number) == Some(&place.key));
        for (number, key) in keys {
            let place = places.entry(number).or_insert_with(|| Place::new(key, now));
            if let Some(view) = view {
                place.look_up(now, view, young);
            }
        }
        self.places_changed(now);
    }

    fn set_view(&mut self, now: Instant, view: View) {
        let young = self.is_young(now);
        self.began.get_or_insert(now);
        self.places.values_mut().for_each(|place| place.look_up(now, &view, young));
        self.view = Some(view);
        self.places_changed(now);
    }

    /// Closes connections of channels that another worker owns, once they are due.
    pub(super) fn settle(&mut self, now: Instant, movable: &mut Movable<'_>) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let Some(here) = self.view.as_ref().map(|view| view.here) else { return };
        let numbers: Vec<u32> = self.places.keys().copied().collect();
        for number in numbers {
            self.end_late(now, number, movable);
            match self.owner(number) {
                Some(owner) if owner != here => self.end_due(now, number, (here, owner), movable),
                _ => self.keep_receivers(number, movable),
            }
            self.release_publishers(now, number, movable.connections);
        }
        // After the moves of all channels have begun: those that lead to others are among them.
        let moving: Vec<u32> = self
            .places
            .iter()
            .filter(|(_, place)| place.moving.is_some())
            .map(|(number, _)| *number)
            .collect();
        moving.into_iter().for_each(|number| self.drain_receivers(now, number, movable));
    }

    /// Begins to close the connections of a channel that another worker owns.
    fn end_due(&mut self, now: Instant, number: u32, (here, to): (Owner, Owner), movable: &mut Movable<'_>) {
        let Movable { plane, channels, connections } = movable;
        let Some(place) = self.places.get_mut(&number) else { return };
        let (mut began, mut senders, mut strangers, mut later) = (0, 0, false, None::<Instant>);
        connections.for_each_of(number, |peer| {
            if peer.ending != Ending::Stays {
                return false;
            }
            let due = place.due(peer.arrived);
            if due > now {
                later = Some(later.map_or(due, |at| at.min(due)));
                return false;
            }
            let status = peer.id.zip(plane.as_ref()).and_then(|(id, plane)| plane.peer_status(id));
            peer.ending = match status {
                Some(status) if !status.role.sends() => Ending::Waits,
                _ => Ending::Finish { sender: true },
            };
            strangers |= peer.arrived > place.since;
            began += 1;
            senders += u64::from(peer.ending.is_sender());
            true
        });
        if strangers {
            let patience = STRANGER_TIME * (2 << place.doublings);
            (place.strangers_from, place.doublings) =
                (now + patience, (place.doublings + 1).min(DOUBLINGS_MAX));
        }
        let due = later.map(|later| later.max(now + LOOK_INTERVAL));
        due.into_iter().for_each(|due| self.look_at(due));
        if began == 0 {
            return;
        }
        let senders_until = now + SENDERS_TIME;
        let receivers_until = senders_until + RECEIVERS_TIME;
        let Some(place) = self.places.get_mut(&number) else { return };
        let moving = place.moving.get_or_insert(Move {
            to,
            senders: 0,
            left: 0,
            connections: 0,
            lost: 0,
            senders_until: None,
            receivers_until,
        });
        (moving.to, moving.receivers_until) = (to, receivers_until);
        (moving.senders, moving.left) = (moving.senders + senders, moving.left + began);
        moving.connections += began;
        moving.senders_until = (moving.senders > 0).then_some(senders_until);
        place.totals.connections += began;
        self.look_at(senders_until);
        let channel = channels.name(number);
        self.notify(MoveNotice::Began { channel, from: here, to, connections: began });
    }

    /// Sends moving receivers the messages that wait for them, once no sender is left, and nothing comes from
    /// other channels.
    fn drain_receivers(&mut self, now: Instant, number: u32, movable: &mut Movable<'_>) {
        let moving = self.places.get(&number).and_then(|place| place.moving.as_ref());
        if moving.is_none_or(|moving| moving.senders_until.is_some()) {
            return;
        }
        if self.awaits_sources(number, movable) {
            return self.look_at(now + RELEASE_INTERVAL);
        }
        movable.connections.for_each_of(number, |peer| {
            let drains = peer.ending == Ending::Waits;
            if drains {
                peer.ending = Ending::Drains;
            }
            drains
        });
    }

    /// Returns whether messages may still come to a channel that moves from those that lead to it, which move
    /// with it: senders are left there, or messages are on their way.
    fn awaits_sources(&self, number: u32, movable: &Movable<'_>) -> bool {
        let Some(plane) = &movable.plane else { return false };
        let is_busy = |source: u32| {
            let moving = self.places.get(&source).and_then(|place| place.moving.as_ref());
            let waiting = |id| plane.waiting_in_paths(id) + plane.waiting_in_flows(id);
            moving.is_some_and(|moving| moving.senders_until.is_some())
                || movable.channels.get(source).is_some_and(|bound| waiting(bound.id) > 0)
        };
        movable.sources_of(number).into_iter().any(is_busy)
    }

    /// Keeps the receivers that were not sent FIN, because the channel has returned.
    fn keep_receivers(&mut self, number: u32, movable: &mut Movable<'_>) {
        let Some(place) = self.places.get_mut(&number) else { return };
        let Some(moving) = &mut place.moving else { return };
        movable.connections.for_each_of(number, |peer| {
            if matches!(peer.ending, Ending::Waits | Ending::Drains) {
                peer.ending = Ending::Stays;
                moving.left -= 1;
            }
            false
        });
        self.end_move(number, movable);
    }

    /// Closes connections that did not end by themselves in time.
    fn end_late(&mut self, now: Instant, number: u32, movable: &mut Movable<'_>) {
        let Movable { plane, connections, .. } = &mut *movable;
        let Some(moving) = self.places.get_mut(&number).and_then(|place| place.moving.as_mut()) else {
            return;
        };
        let senders_late = moving.senders_until.is_some_and(|until| until <= now);
        let receivers_late = moving.senders_until.is_none() && moving.receivers_until <= now;
        if senders_late {
            (moving.senders, moving.senders_until) = (0, None);
            moving.receivers_until = now + RECEIVERS_TIME;
        }
        connections.for_each_of(number, |peer| {
            let status = peer.id.zip(plane.as_ref()).and_then(|(id, plane)| plane.peer_status(id));
            let late = match peer.ending {
                Ending::Stays | Ending::Over => false,
                ending if ending.is_sender() => senders_late,
                _ => receivers_late,
            };
            if late {
                moving.lost +=
                    status.map_or(0, |status| lost_with(&status)) + u64::from(!peer.held.is_empty());
                peer.ending = Ending::Over;
            }
            late
        });
        let next = moving.senders_until.unwrap_or(moving.receivers_until);
        if next > now {
            self.look_at(next);
        }
        self.drain_receivers(now, number, movable);
    }

    /// Processes the end of a connection that was moving.
    pub(super) fn departed(
        &mut self,
        now: Instant,
        (number, ending): (u32, Ending),
        movable: &mut Movable<'_>,
    ) {
        let Some(moving) = self.places.get_mut(&number).and_then(|place| place.moving.as_mut()) else {
            return;
        };
        moving.left = moving.left.saturating_sub(u64::from(ending != Ending::Stays));
        moving.senders = moving.senders.saturating_sub(u64::from(ending.is_sender()));
        if moving.senders == 0 && moving.senders_until.take().is_some() {
            self.drain_receivers(now, number, movable);
        }
        self.end_move(number, movable);
    }

    /// Ends a move, if none of its connections is left.
    fn end_move(&mut self, number: u32, movable: &mut Movable<'_>) {
        let Movable { plane, channels, connections } = movable;
        let (Some(place), Some(view)) = (self.places.get_mut(&number), &self.view) else { return };
        let Some(mut done) = place.moving.take_if(|moving| moving.left == 0) else { return };
        let is_empty = !connections.iter().any(|peer| peer.number == number);
        if is_empty && let (Some(plane), Some(bound)) = (plane, channels.get(number)) {
            // What is in the paths of a channel that leads to others has receivers there.
            let leads = channels.iter().any(|to| plane.leads_to(bound.id, to.id));
            if !leads || matches!(bound.spec.channel.kind, ChannelKind::PushPull { .. }) {
                done.lost += plane.discard_backlog(bound.id);
            }
        }
        place.totals.lost += done.lost;
        let channel = channels.name(number);
        let Move { to, connections, lost, .. } = done;
        let from = view.here;
        self.notify(MoveNotice::Done { channel, from, to, connections, lost });
    }

    /// Releases publishers that have waited for subscribers for long enough.
    fn release_publishers(&mut self, now: Instant, number: u32, connections: &mut Connections) {
        let Some(place) = self.places.get_mut(&number) else { return };
        let Some(until) = place.new_until else { return };
        // Others were released at an earlier look.
        let (since, released) = (place.since, place.released.replace(now));
        let mut next = None::<Instant>;
        connections.for_each_of(number, |peer| {
            let due = peer.arrived + GATHER_TIME;
            if peer.arrived < since || released.is_some_and(|released| due <= released) {
                return false;
            }
            if due > now {
                next = Some(next.map_or(due, |at| at.min(due)));
            }
            due <= now
        });
        if next.is_none() && now >= until {
            place.new_until = None;
        }
        if let Some(next) = next {
            self.look_at(next.max(now + RELEASE_INTERVAL));
        }
    }
}

impl Movable<'_> {
    /// Returns the channels whose messages reach a channel, in any number of steps.
    fn sources_of(&self, number: u32) -> Vec<u32> {
        let Some(plane) = &self.plane else { return Vec::new() };
        let (mut all, mut at) = (vec![number], 0);
        while let Some(to) = all.get(at).and_then(|number| self.channels.get(*number)) {
            let is_source =
                |from: &&Bound| !all.contains(&from.spec.number) && plane.leads_to(from.id, to.id);
            let sources: Vec<u32> =
                self.channels.iter().filter(is_source).map(|from| from.spec.number).collect();
            all.extend(sources);
            at += 1;
        }
        all.split_off(1)
    }
}
