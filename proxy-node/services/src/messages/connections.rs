//! The connections of a worker's channels: found by label and by peer, and which of them are to be served.

use std::collections::{BTreeSet, HashMap, VecDeque};

use csp_messages::PeerId;
use csp_types::{FlowLabel, Instant};
use csp_zmtp::Counters;

use super::framing::Speech;
use super::keys::Refusals;
use super::peer::Peer;
use super::requests::Requests;
use super::seen::{PeerName, name_of};

/// Every `PLANE_EVERY`th connection that is served is one for which messages wait, if there is one.
const PLANE_EVERY: u32 = 8;
/// Largest number of bytes of incomplete messages of all connections of a worker together.
const KEPT_MAX: usize = 256 << 20;
/// Number of departed peers whose names are kept while messages are traced.
const DEPARTED_MAX: usize = 64;

/// The connections of a worker.
#[derive(Debug, Default)]
pub(super) struct Connections {
    peers: HashMap<FlowLabel, Peer>,
    /// The connection of each peer of the plane, by its index.
    labels: Vec<FlowLabel>,
    schedule: Schedule,
    /// Bytes of incomplete messages that connections keep.
    kept: usize,
    /// Peers that have left while messages are traced.
    departed: Vec<(PeerId, PeerName)>,
}

/// Connections that are to be served for a reason other than waiting messages.
#[derive(Debug, Default)]
struct Schedule {
    ready: VecDeque<FlowLabel>,
    /// Deadlines of connections; each has at most one.
    deadlines: BTreeSet<(Instant, FlowLabel)>,
    /// Number of connections returned to be served. Its remainder decides where the next one comes from.
    named: u32,
}

impl Schedule {
    /// Adds a connection to the list of ready ones, unless it is in the list.
    fn make_ready(&mut self, peer: &mut Peer) {
        if !std::mem::replace(&mut peer.listed, true) {
            self.ready.push_back(peer.label);
        }
    }

    /// Sets the deadline of a connection to `at`; `None` removes it.
    fn set_deadline(&mut self, peer: &mut Peer, at: Option<Instant>) {
        if peer.deadline == at {
            return;
        }
        if let Some(before) = peer.deadline {
            self.deadlines.remove(&(before, peer.label));
        }
        if let Some(at) = at {
            self.deadlines.insert((at, peer.label));
        }
        peer.deadline = at;
    }
}

/// One connection while it is served.
pub(super) struct Visit<'a> {
    pub peer: &'a mut Peer,
    labels: &'a mut [FlowLabel],
    schedule: &'a mut Schedule,
    kept: &'a mut usize,
    /// Bytes that the peer kept before the visit.
    before: usize,
}

impl Visit<'_> {
    /// Records the peer of the plane that the connection has become, and how much memory of incomplete
    /// messages it has added to that of all connections, or released. A peer that adds beyond the bound of
    /// the worker ends.
    #[inline]
    pub fn received(&mut self, refusals: &mut Refusals) {
        let now = self.peer.kept.capacity();
        *self.kept = *self.kept + now - self.before;
        if *self.kept > KEPT_MAX && now > self.before {
            self.peer.ended = true;
            refusals.incomplete += 1;
        }
        if let Some(id) = self.peer.id {
            self.labels[id.index as usize] = self.peer.label;
        }
    }

    /// Adds the connection to those that are to be served.
    pub fn make_ready(&mut self) {
        self.schedule.make_ready(self.peer);
    }

    /// Sets the deadline to that of the connection's framing.
    pub fn set_deadline(&mut self) {
        let at = self.peer.connection.next_timeout();
        self.schedule.set_deadline(self.peer, at);
    }
}

impl Connections {
    /// Allocates what is sized by the number of peers.
    pub fn prepare(&mut self, peers_max: u32) {
        self.labels = vec![FlowLabel::NONE; peers_max as usize];
    }

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns the bytes of incomplete messages that connections keep.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Adds a connection.
    pub fn insert(&mut self, mut peer: Peer) {
        if let Some(id) = peer.id {
            self.labels[id.index as usize] = peer.label;
        }
        let at = peer.connection.next_timeout();
        self.schedule.set_deadline(&mut peer, at);
        self.peers.insert(peer.label, peer);
    }

    /// Removes a connection that has ended. `named`: messages are traced, and its name is kept.
    pub fn remove(&mut self, label: FlowLabel, named: bool) -> Option<Peer> {
        let mut peer = self.peers.remove(&label)?;
        self.schedule.set_deadline(&mut peer, None);
        self.kept -= peer.kept.capacity();
        if named
            && self.departed.len() < DEPARTED_MAX
            && let Some(id) = peer.id
        {
            self.departed.push((id, name_of(&peer)));
        }
        Some(peer)
    }

    /// Returns a connection, to be served.
    #[inline]
    pub fn visit(&mut self, label: FlowLabel) -> Option<Visit<'_>> {
        let Connections { peers, labels, schedule, kept, .. } = self;
        let peer = peers.get_mut(&label)?;
        let before = peer.kept.capacity();
        Some(Visit { peer, labels, schedule, kept, before })
    }

    /// Calls `each` with the connections of a channel. Those for which it returns true are served next.
    pub fn for_each_of(&mut self, number: u32, mut each: impl FnMut(&mut Peer) -> bool) {
        for peer in self.peers.values_mut().filter(|peer| peer.number == number) {
            if each(peer) {
                self.schedule.make_ready(peer);
            }
        }
    }

    /// Returns all connections.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// Returns the connection of a peer of the plane.
    pub fn of(&self, id: PeerId) -> Option<&Peer> {
        let label = self.labels.get(id.index as usize)?;
        self.peers.get(label).filter(|peer| peer.id == Some(id))
    }

    /// Returns a connection.
    #[inline]
    pub fn get(&self, label: FlowLabel) -> Option<&Peer> {
        self.peers.get(&label)
    }

    /// Returns a connection, to write to it.
    #[inline]
    pub fn get_mut(&mut self, label: FlowLabel) -> Option<&mut Peer> {
        self.peers.get_mut(&label)
    }

    /// Returns the peer of the plane with this index that is connected.
    pub fn at(&self, index: u32) -> Option<PeerId> {
        self.peers.get(self.labels.get(index as usize)?)?.id.filter(|id| id.index == index)
    }

    /// Returns the label of the connection of a receiver, which is about to be served; `None` if that is
    /// known already.
    pub fn queue(&mut self, id: PeerId) -> Option<FlowLabel> {
        let label = *self.labels.get(id.index as usize)?;
        let peer = self.peers.get_mut(&label).filter(|peer| peer.id == Some(id) && !peer.queued)?;
        peer.queued = true;
        Some(label)
    }

    /// Counts a connection that is returned to be served. Returns whether it is one for which messages wait,
    /// if there is one.
    pub fn is_turn_of_messages(&mut self) -> bool {
        self.schedule.named = (self.schedule.named + 1) % PLANE_EVERY;
        self.schedule.named == 0
    }

    /// Removes and returns the next connection of the list of ready ones.
    pub fn next_ready(&mut self) -> Option<FlowLabel> {
        let label = self.schedule.ready.pop_front()?;
        if let Some(peer) = self.peers.get_mut(&label) {
            peer.listed = false;
        }
        Some(label)
    }

    /// Returns the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.schedule.deadlines.first().map(|(at, _)| *at)
    }

    /// Processes the deadlines that have expired. Their connections are served next.
    pub fn on_timeout(&mut self, now: Instant, zmtp: &mut Counters) {
        while let Some((_, label)) = self.schedule.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.schedule.deadlines.pop_first();
            let Some(peer) = self.peers.get_mut(&label) else { continue };
            peer.deadline = None;
            // What a peer that is held back, or waits for an answer, has sent is not examined.
            let is_pending = peer.requests.as_ref().is_some_and(Requests::is_pending);
            let is_read = peer.held.is_empty() && !is_pending;
            if let (Speech::Zmtp(connection), false) = (&mut peer.connection, is_read) {
                connection.heard();
            }
            peer.connection.on_timeout(now, zmtp);
            self.schedule.make_ready(peer);
        }
    }

    /// Returns the name of a peer that is connected, or was when messages were traced.
    pub fn name(&self, id: PeerId) -> Option<PeerName> {
        let departed = || self.departed.iter().find(|(known, _)| *known == id).map(|(_, name)| *name);
        self.of(id).map(name_of).or_else(departed)
    }

    /// Forgets the names of peers that have left.
    pub fn clear_departed(&mut self) {
        self.departed = Vec::new();
    }
}
