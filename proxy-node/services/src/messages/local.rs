//! The broker's interface to the proxy's core: it processes changes of connections, and selects the next
//! connection to serve.

use csp_messages::{MessagePlane, Role};
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::between::{Between, Examined, Towards};
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{Ended, Ends, OpenError, Opened, Request};
use csp_quality::{OutputLink, SharedLink};
use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};
use csp_zmtp::Counters;

use super::direct::Direct;
use super::flows::Classifier;
use super::framing::Speech;
use super::given::Given;
use super::inbound::Door;
use super::keys::Refusals;
use super::peer::Peer;
use super::placement::Placement;
use super::requested::Requested;
use super::requests::Requests;
use super::sending::IsChannels;
use super::{Bound, MessageBroker, inbound, paths};

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
        let Some(bound) = self.channels.get(number) else { return false };
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
                peer.id = Some(id);
                peer.given = (port.role == Role::Puller).then(Given::new);
                peer
            }
        };
        (peer.client, peer.server) = (tuple.remote, tuple.local);
        peer.arrived = now;
        self.placement.arrived(now, number);
        // On a channel with keys its owner is not known yet, and it keeps no query alive.
        if bound.spec.keys.is_none() {
            self.requested.touch(now, number);
        }
        self.connections.insert(peer);
        true
    }

    fn elsewhere(&self, number: u32) -> Option<Owner> {
        self.placement.elsewhere(number)
    }

    fn serve(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends, link: &mut OutputLink) -> Step {
        let is_direct = link.shared().is_none() && self.begin_direct(label, ends);
        let step = match ends.client(label) {
            Some(mut client) => self.serve_peer(now, label, &mut client, link),
            None => Step::Idle,
        };
        if is_direct {
            let MessageBroker { direct, channels, connections, .. } = self;
            let number = connections.get(label).map(|peer| peer.number);
            let bound = number.and_then(|number| channels.get_mut(number));
            direct.finish(bound, connections, ends);
        }
        step
    }

    fn next_request(&mut self) -> Option<Request> {
        self.elsewhere.next_request()
    }

    fn opened(&mut self, now: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        let lens = self.channels.iter().map(|bound| bound.spec.channel.message_len_max);
        let longest = lens.max().unwrap_or(0);
        self.elsewhere.opened(now, token, outcome.ok().map(|opened| opened.label), longest);
    }

    fn serve_upstream(
        &mut self,
        now: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        link: &mut OutputLink,
    ) -> Step {
        self.paths.now = now;
        let (Some(mut upstream), Some(plane)) = (ends.upstream(label), &mut self.plane) else {
            return Step::Idle;
        };
        self.elsewhere.serve(now, label, &mut upstream, (plane, link.shared_mut()), &self.channels)
    }

    fn upstream_gone(&mut self, now: Instant, label: FlowLabel, _: Ended) {
        self.elsewhere.gone(now, label, self.plane.as_mut());
    }

    fn take_lent(&mut self) -> Option<Buffer> {
        self.sending.take_lent()
    }

    fn gone(&mut self, now: Instant, label: FlowLabel) {
        let is_tracing = self.plane.as_ref().is_some_and(MessagePlane::is_tracing);
        let Some(mut peer) = self.connections.remove(label, is_tracing) else { return };
        self.unread.release(&mut peer);
        self.requested.supply.gone(label);
        self.requested.plans.gone(label);
        if let (Some(plane), Some(id)) = (&mut self.plane, peer.id) {
            plane.lost(id, peer.given.map_or(0, |given| given.messages()));
            plane.detach(id, |_| {});
        }
        let (requested, mut served) = self.parts();
        requested.left(now, (peer.number, peer.id.is_some()), &mut served);
        let (placement, mut movable) = self.moves();
        placement.departed(now, (peer.number, peer.ending), &mut movable);
    }

    fn next_ready(&mut self, link: &mut OutputLink) -> Option<FlowLabel> {
        // Peers that have more to say come first, so that what they say is sent together; but they keep
        // nobody from what waits for it.
        if self.connections.is_turn_of_messages() {
            return self.next_of_plane(link).or_else(|| self.connections.next_ready());
        }
        self.connections.next_ready().or_else(|| self.next_of_plane(link))
    }

    fn run_contexts(&mut self, now: Instant, link: &mut OutputLink) -> bool {
        self.paths.now = now;
        let mut processed = 0;
        for turns in 0..paths::CONTEXT_TURNS_MAX {
            let Some(plane) = &mut self.plane else { return false };
            match self.sending.next_context(plane) {
                Err(IsChannels) => return turns > 0, // the channel's receivers are next
                Ok(None) => return processed > 0,
                Ok(Some(turn)) => processed += self.paths.run_context(plane, turn, link.shared_mut()),
            }
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
        let deadline = self.connections.next_timeout();
        let places = self.placement.next_timeout();
        let contexts = self.elsewhere.next_timeout().into_iter().chain(self.requested.next_timeout());
        let contexts = contexts.chain(self.paths.next_timeout(self.plane.as_ref()));
        deadline.into_iter().chain(places).chain(contexts).min()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.paths.now = now;
        if let Some(plane) = &mut self.plane {
            plane.on_timeout(now);
        }
        let (placement, mut movable) = self.moves();
        placement.settle(now, &mut movable);
        let (requested, mut served) = self.parts();
        requested.settle(now, &mut served);
        let MessageBroker { plane, paths, elsewhere, channels, placement, .. } = self;
        if let Some(plane) = plane {
            paths.settle(now, plane, elsewhere, channels);
        }
        let may_be_placed = |context| paths.may_be_placed(context, placement);
        elsewhere.settle(now, plane.as_mut(), (channels, placement), may_be_placed);
        self.connections.on_timeout(now, &mut self.zmtp);
    }
}

impl MessageBroker {
    /// Prepares direct delivery for the visit of a connection, if it is a publisher's that is not held back.
    fn begin_direct(&mut self, label: FlowLabel, ends: &mut impl Ends) -> bool {
        let MessageBroker { plane: Some(plane), channels, connections, direct, .. } = self else {
            return false;
        };
        let sends = |peer: &&Peer| peer.held.is_empty() && peer.id.is_some_and(|id| plane.is_sender(id));
        let peer = connections.get(label).filter(sends);
        let bound = peer.and_then(|peer| channels.get_mut(peer.number));
        bound.is_some_and(|bound| direct.begin(label, bound, plane, connections, ends))
    }

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
            sending,
            direct,
            zmtp,
            refusals,
            placement,
            requested,
            unread,
            ..
        } = self;
        let (Some(plane), Some(mut visit)) = (plane, connections.visit(label)) else { return Step::Reset };
        visit.peer.queued = false;
        let Some(bound) = channels.get_mut(visit.peer.number) else { return Step::Close };
        if visit.peer.ended {
            return Step::Close;
        }
        let held = placement.holds(now, visit.peer, plane);
        let local = client.is_local();
        let flows = link.shared_mut().map(|link| (Classifier::begin(plane, visit.peer, local), link));
        let direct = direct.is_open().then_some(direct);
        let door = bound.door(visit.peer.number, (requested, direct), refusals, flows);
        // The next request is read when the answer to the one before was sent.
        let is_pending = visit.peer.requests.as_ref().is_some_and(Requests::is_pending);
        let answering = is_pending || (visit.peer.requests.is_some() && !visit.peer.own.is_empty());
        let received = receive(now, visit.peer, client, plane, door, zmtp, held || answering);
        visit.received(refusals);
        if visit.peer.requests.as_ref().is_some_and(Requests::has_one) {
            let (requested, mut served) = self.parts();
            requested.answer(now, label, &mut served);
            // The answer is sent, and nothing more is read before it was.
            let step = self.serve_peer(now, label, client, link);
            return if step == Step::Idle && received.moved { Step::Moved } else { step };
        }
        let quantum = link.shared().map(SharedLink::quantum);
        let sent = sending.send(now, (visit.peer, client), (plane, bound.id), quantum, zmtp);
        if visit.peer.own.is_empty() {
            unread.release(visit.peer);
        }
        let can_answer = answering && !is_pending && visit.peer.own.is_empty();
        if received.more || (can_answer && client.readable() > 0) {
            visit.make_ready();
        }
        visit.set_deadline();
        let step = ending(bound, visit.peer, client, received.more || held);
        if let Some(step) = step.or_else(|| Placement::step(visit.peer, plane)) {
            return step;
        }
        if received.moved || sent { Step::Moved } else { Step::Idle }
    }

    /// Returns the next connection to serve for messages: a publisher that was held back and may continue, or
    /// a receiver in its channel's turn.
    fn next_of_plane(&mut self, link: &mut OutputLink) -> Option<FlowLabel> {
        self.release(self.paths.now, link);
        let resumed = self.plane.as_mut()?.next_resumed(link.shared());
        let resumed = resumed.and_then(|id| self.connections.of(id)).map(|peer| peer.label);
        let plane = self.plane.as_mut()?;
        let context = || self.elsewhere.next_to_serve(self.paths.now, plane);
        resumed
            .or_else(context)
            .or_else(|| self.sending.next_receiver(plane, &mut self.connections, self.channels.len()))
    }
}

impl Bound {
    /// Returns what admits the channel's peers and publishes their messages, for one visit of a connection.
    fn door<'a>(
        &'a mut self,
        number: u32,
        (requested, direct): (&'a Requested, Option<&'a mut Direct>),
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
            direct,
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

/// Returns how a connection ends after a visit; `None` if it continues. `waits`: received bytes are left that
/// can be processed later.
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
