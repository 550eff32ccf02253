//! The broker's interface to the proxy's core: it processes changes of connections, and selects the next
//! connection to serve.

use csp_messages::{ChannelId, MessagePlane, Role, Turn};
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::between::{Between, Examined, Towards};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{Ended, Ends, OpenError, Opened, Request};
use csp_quality::{OutputLink, SharedLink};
use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};
use csp_zmtp::{Connection, Counters, Mechanism};

use super::batch::Batch;
use super::flows::Classifier;
use super::framing::Speech;
use super::given::Given;
use super::inbound::Door;
use super::keys::Refusals;
use super::outbound::Bounds;
use super::peer::Peer;
use super::placement::{Ending, Placement};
use super::requested::Requested;
use super::requests::Requests;
use super::{Bound, MessageBroker, inbound, outbound, paths, sealed};

/// Every `PLANE_EVERY`th connection that is served is one for which messages wait, if there is one.
const PLANE_EVERY: u32 = 8;
/// Largest number of bytes of incomplete messages of all connections of a worker together.
const KEPT_MAX: usize = 256 << 20;

impl Between for MessageBroker {
    fn begun(&mut self, _: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        self.streams.begun(label, number, tuple.local.port())
    }

    fn examine<'a>(
        &mut self,
        label: FlowLabel,
        towards: Towards,
        at: u64,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Examined {
        self.streams.examine(label, towards, at, bytes)
    }

    fn may_end(&mut self, label: FlowLabel, towards: Towards) -> bool {
        self.streams.may_end(label, towards)
    }

    fn ended(&mut self, label: FlowLabel) {
        self.streams.ended(label);
    }
}

impl LocalServices for MessageBroker {
    const QUEUES_FOR_LINK: bool = true;

    fn connected(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        let Some(bound) = self.channels.get(&number) else { return false };
        let port = tuple.local.port();
        let prefixed = bound.spec.prefixed.iter().position(|prefixed| prefixed.port == port);
        let mut peer = match prefixed {
            None => {
                let Some(connection) = bound.begin(&mut self.entropy, now) else { return false };
                Peer::new(label, number, Speech::Zmtp(Box::new(connection)))
            }
            Some(at) => {
                let port = bound.spec.prefixed[at];
                if bound.spec.derived && port.role.sends() {
                    self.refusals.may_not_publish += 1;
                    return false;
                }
                let mut peer = Peer::new(label, number, Speech::prefixed(port, at));
                let Some(plane) = &mut self.plane else { return false };
                let Ok(id) = plane.attach(bound.id, port.role) else {
                    self.refusals.peers_full += 1; // the channel is there, and has such peers
                    return false;
                };
                if port.role.subscribes() && plane.subscribe(now, id, b"").is_err() {
                    plane.detach(id, |_| {});
                    return false;
                }
                self.labels[id.index as usize] = label;
                peer.id = Some(id);
                peer.given = (port.role == Role::Puller).then(Given::new);
                peer
            }
        };
        (peer.client, peer.server) = (tuple.remote, tuple.local);
        let at = peer.connection.next_timeout();
        Self::set_deadline(&mut self.deadlines, &mut peer, at);
        peer.arrived = now;
        self.placement.arrived(now, number);
        self.request_touched(now, number);
        self.connections.insert(label, peer);
        true
    }

    fn elsewhere(&self, number: u32) -> Option<Owner> {
        self.placement.elsewhere(number)
    }

    fn serve(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends, link: &mut OutputLink) -> Step {
        match ends.client(label) {
            Some(mut client) => self.serve_peer(now, label, &mut client, link),
            None => Step::Idle,
        }
    }

    fn next_request(&mut self) -> Option<Request> {
        self.next_context_request()
    }

    fn opened(&mut self, now: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        self.context_opened(now, token, outcome.ok().map(|opened| opened.label));
    }

    fn serve_upstream(
        &mut self,
        now: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        link: &mut OutputLink,
    ) -> Step {
        self.paths.now = now;
        match ends.upstream(label) {
            Some(mut upstream) => self.serve_context(now, label, &mut upstream, link.shared_mut()),
            None => Step::Idle,
        }
    }

    fn upstream_gone(&mut self, now: Instant, label: FlowLabel, _: Ended) {
        self.context_gone(now, label);
    }

    fn take_lent(&mut self) -> Option<Buffer> {
        self.batch.end()
    }

    fn gone(&mut self, now: Instant, label: FlowLabel) {
        self.note_departure(label);
        let Some(mut peer) = self.connections.remove(&label) else { return };
        Self::set_deadline(&mut self.deadlines, &mut peer, None);
        self.kept -= peer.kept.capacity();
        self.unread.release(&mut peer);
        self.requested.supply.gone(label);
        self.requested.plans.gone(label);
        if let (Some(plane), Some(id)) = (&mut self.plane, peer.id) {
            plane.lost(id, peer.given.map_or(0, |given| given.messages()));
            plane.detach(id, |_| {});
        }
        self.request_left(now, peer.number, peer.id.is_some());
        self.departed(peer.number, peer.ending);
    }

    fn next_ready(&mut self, link: &mut OutputLink) -> Option<FlowLabel> {
        // Peers that have more to say come first, so that what they say is sent together; but they keep
        // nobody from what waits for it.
        self.named = (self.named + 1) % PLANE_EVERY;
        if self.named == 0 {
            return self.next_of_plane(link).or_else(|| self.next_listed());
        }
        self.next_listed().or_else(|| self.next_of_plane(link))
    }

    fn run_contexts(&mut self, now: Instant, link: &mut OutputLink) -> bool {
        self.paths.now = now;
        let mut processed = 0;
        for turns in 0..paths::CONTEXT_TURNS_MAX {
            let Some(plane) = &mut self.plane else { return false };
            let Some(turn) = self.turn.take().or_else(|| plane.next_flow()) else { return processed > 0 };
            if !plane.is_context(&turn) {
                self.turn = Some(turn);
                return turns > 0; // the channel's receivers are next
            }
            processed += self.run_context(turn, link.shared_mut());
        }
        processed > 0
    }

    fn release(&mut self, now: Instant, link: &mut OutputLink) {
        match &mut self.plane {
            Some(plane) => link.release(now, plane),
            None => link.release(now, &mut ()),
        }
    }

    fn unshare(&mut self, now: Instant, link: &mut OutputLink) {
        match &mut self.plane {
            Some(plane) => link.unshare(now, plane),
            None => link.unshare(now, &mut ()),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let places = self.placement.next_timeout();
        let contexts = self.elsewhere.next_timeout().into_iter().chain(self.requested.next_timeout());
        let contexts = contexts.chain(self.stage_places.next_timeout());
        deadline.into_iter().chain(places).chain(contexts).chain(self.contexts_timeout()).min()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.paths.now = now;
        if let Some(plane) = &mut self.plane {
            plane.on_timeout(now);
        }
        self.settle_places(now);
        self.settle_requests(now);
        self.settle_stage_places(now);
        self.settle_contexts(now);
        while let Some((_, label)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_first();
            let Some(peer) = self.connections.get_mut(&label) else { continue };
            peer.deadline = None;
            // What a peer that is held back, or waits for an answer, has sent is not examined.
            let is_pending = peer.requests.as_ref().is_some_and(Requests::is_pending);
            let is_read = peer.held.is_empty() && !is_pending;
            if let (Speech::Zmtp(connection), false) = (&mut peer.connection, is_read) {
                connection.heard();
            }
            peer.connection.on_timeout(now, &mut self.zmtp);
            peer.make_ready(&mut self.ready);
        }
    }
}

impl MessageBroker {
    /// Serves the connection of a peer.
    fn serve_peer(
        &mut self,
        now: Instant,
        label: FlowLabel,
        client: &mut impl ClientEnd,
        link: &mut OutputLink,
    ) -> Step {
        self.paths.now = now;
        let MessageBroker {
            plane,
            channels,
            connections,
            labels,
            ready,
            deadlines,
            turn,
            zmtp,
            refusals,
            batch,
            placement,
            sealing,
            kept,
            requested,
            unread,
            ..
        } = self;
        let (Some(plane), Some(peer)) = (plane, connections.get_mut(&label)) else { return Step::Reset };
        peer.queued = false;
        let Some(bound) = channels.get_mut(&peer.number) else { return Step::Close };
        if peer.ended {
            return Step::Close;
        }
        let held = placement.holds(now, peer, plane);
        let before = peer.kept.capacity();
        let flows = link.shared_mut().map(|link| (Classifier::begin(plane, peer, client.is_local()), link));
        let door = bound.door(peer.number, requested, refusals, flows);
        // The next request is read when the answer to the one before was sent.
        let is_pending = peer.requests.as_ref().is_some_and(Requests::is_pending);
        let answering = is_pending || (peer.requests.is_some() && !peer.own.is_empty());
        let received = receive(now, peer, client, plane, door, zmtp, held || answering);
        charge_kept(kept, before, peer, refusals);
        if let Some(id) = peer.id {
            labels[id.index as usize] = label;
        }
        if peer.requests.as_ref().is_some_and(Requests::has_one) {
            self.answer_request(now, label);
            // The answer is sent, and nothing more is read before it was.
            let step = self.serve_peer(now, label, client, link);
            return if step == Step::Idle && received.moved { Step::Moved } else { step };
        }
        let quantum = link.shared().map(SharedLink::quantum);
        let sending = Sending { plane: &mut *plane, turn, quantum, batch, sealing, zmtp };
        let sent = sending.send(now, peer, client, bound.id);
        if peer.own.is_empty() {
            unread.release(peer);
        }
        if received.more || (answering && !is_pending && peer.own.is_empty() && client.readable() > 0) {
            peer.make_ready(ready);
        }
        let at = peer.connection.next_timeout();
        Self::set_deadline(deadlines, peer, at);
        let step = ending(bound, peer, client, received.more || held);
        if let Some(step) = step.or_else(|| Placement::step(peer, plane)) {
            return step;
        }
        if received.moved || sent { Step::Moved } else { Step::Idle }
    }

    /// Removes and returns the next connection of the list.
    fn next_listed(&mut self) -> Option<FlowLabel> {
        let label = self.ready.pop_front()?;
        if let Some(peer) = self.connections.get_mut(&label) {
            peer.listed = false;
        }
        Some(label)
    }

    /// Returns the next connection to serve for messages: a publisher that was held back and may continue, or
    /// a receiver in its channel's turn.
    fn next_of_plane(&mut self, link: &mut OutputLink) -> Option<FlowLabel> {
        self.release(self.paths.now, link);
        self.next_resumed(link.shared()).or_else(|| self.next_context()).or_else(|| self.next_peer())
    }

    fn next_resumed(&mut self, link: Option<&SharedLink>) -> Option<FlowLabel> {
        self.plane.as_mut()?.next_resumed(link).and_then(|id| self.label_of(id))
    }

    /// Returns the next receiver to serve; `None` also while it is a context's turn, which
    /// [`run_contexts`](LocalServices::run_contexts) takes.
    fn next_peer(&mut self) -> Option<FlowLabel> {
        // A receiver that is to be served is not named again: then all of the channel's have been.
        for _ in 0..=self.channels.len() {
            let plane = self.plane.as_mut()?;
            let mut turn = match self.turn.take() {
                Some(turn) => turn,
                None => plane.next_flow()?,
            };
            if plane.is_context(&turn) {
                self.turn = Some(turn);
                return None;
            }
            let label = plane.next_peer(&turn).and_then(|id| self.label_of(id));
            let peer = label.and_then(|label| self.connections.get_mut(&label)).filter(|peer| !peer.queued);
            if let Some(peer) = peer {
                peer.queued = true;
                turn.charge(0); // a visit is worth at least a message, so that a channel of many receivers has its turns too
                self.turn = Some(turn);
                return label;
            }
            self.plane.as_mut()?.end_turn(turn);
        }
        None
    }
}

impl Bound {
    /// Returns what admits the channel's peers and publishes their messages, for one visit of a connection.
    fn door<'a>(
        &'a mut self,
        number: u32,
        requested: &'a Requested,
        refusals: &'a mut Refusals,
        flows: Option<(Classifier, &'a mut SharedLink)>,
    ) -> Door<'a> {
        Door {
            channel: self.id,
            keys: self.spec.keys.as_deref(),
            formats: self.spec.formats.as_ref().map(|formats| &**formats.set()),
            brought: requested.brought.set(number),
            requested,
            derived: self.spec.derived,
            drops_unknown: self.spec.drops_unknown,
            unknown: &mut self.unknown,
            refused: &mut self.refused,
            refusals,
            yields: false,
            flows,
        }
    }
}

/// Receives what a peer has sent, unless it `waits`.
#[inline]
fn receive(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    mut door: Door<'_>,
    counters: &mut Counters,
    waits: bool,
) -> inbound::Received {
    let received = match waits {
        true => inbound::Received::default(),
        false => inbound::receive(now, peer, client, plane, &mut door, counters),
    };
    if let Some((classifier, _)) = door.flows {
        peer.run = Some(classifier.run);
    }
    received
}

/// What the broker needs to send messages to a peer.
struct Sending<'a> {
    plane: &'a mut MessagePlane,
    turn: &'a mut Option<Turn>,
    /// See [`Bounds::quantum`].
    quantum: Option<u32>,
    batch: &'a mut Batch,
    sealing: &'a mut [u8],
    zmtp: &'a mut Counters,
}

impl Sending<'_> {
    /// Sends what waits for a peer of a channel. Returns whether bytes were written.
    fn send(self, now: Instant, peer: &mut Peer, client: &mut impl ClientEnd, channel: ChannelId) -> bool {
        let Sending { plane, turn, quantum, batch, sealing, zmtp } = self;
        // Messages of this channel are not charged to the turn of another one.
        let mut none = None;
        let is_its_turn = turn.as_ref().is_some_and(|turn| turn.flow == channel.index);
        let bounds = Bounds { turn: if is_its_turn { turn } else { &mut none }, quantum };
        let before = peer.before_visit(client);
        let sent = match peer.connection.zmtp().map(Connection::mechanism) {
            _ if matches!(peer.ending, Ending::Finished { .. }) => false,
            Some(Mechanism::Curve) => sealed::send(now, peer, client, plane, bounds, sealing, zmtp),
            _ => outbound::send(now, peer, client, plane, bounds, batch, zmtp),
        };
        peer.after_visit(before, client);
        sent
    }
}

/// Records how much memory of incomplete messages a visit has added to `kept`, the sum of all connections, or
/// released; `before`: what the peer kept before the visit. A peer that adds beyond the bound of the worker ends.
fn charge_kept(kept: &mut usize, before: usize, peer: &mut Peer, refusals: &mut Refusals) {
    *kept = *kept + peer.kept.capacity() - before;
    if *kept > KEPT_MAX && peer.kept.capacity() > before {
        peer.ended = true;
        refusals.incomplete += 1;
    }
}

/// Returns how a connection ends after a visit; `None` if it continues. `waits`: received bytes are left that can be
/// processed later.
fn ending(bound: &mut Bound, peer: &Peer, client: &impl ClientEnd, waits: bool) -> Option<Step> {
    // What is left of a stream that has ended is no whole message.
    let over = client.is_finished() && peer.held.is_empty() && !waits;
    let is_prefixed = matches!(peer.connection, Speech::Prefixed(_));
    if is_prefixed && (peer.connection.has_failed() || (over && peer.has_rest(client.readable()))) {
        bound.malformed += 1;
        return Some(Step::Reset);
    }
    (peer.ended || peer.connection.has_failed() || over).then_some(Step::Close)
}
