//! The handshake: HELLO with a token, its answer, and the confirmation. Both sides prove that they have the
//! token's secret ([`crate::proof`]).

use csp_types::{Instant, Role};
use csp_vi::{ConnectRequest, ViConfig, ViId};
use csp_wire::link::{
    HELLO_LEN_MAX, Hello, HelloAck, HelloRefused, Kind, NONCE_LEN, PROOF_LEN, Resume, SESSION_LEN, Sender,
};
use sha2::{Digest, Sha256};

use super::Endpoint;
use super::admission::{Admitted, RECEIVE_DEPTH_MAX, Refusal, RefusalReason, identity_of};
use super::link::{Link, State};
use super::resume::Resumes;
use crate::config::{EndpointConfig, RECEIVE_DEPTH_MIN};
use crate::event::{DeathCause, DownReason, LinkEvent, LinkId, ProtocolError, SendError};
use crate::identity::{PeerIdentity, ProcessId, Purpose, acceptor_role};
use crate::proof::{Handshake, same};
use crate::token::TokenClaims;

const MALFORMED: DeathCause = DeathCause::Protocol(ProtocolError::Malformed);
const UNPROVED: DeathCause = DeathCause::Protocol(ProtocolError::Proof);

/// The peer of an accepted link that has not confirmed yet.
#[derive(Debug)]
pub(super) struct Pending {
    peer: PeerIdentity,
    /// The proof that CONFIRM must contain.
    confirm: [u8; PROOF_LEN],
}

impl Endpoint {
    pub(super) fn vi_config(&self) -> ViConfig {
        ViConfig {
            receive_depth: self.config.receive_depth,
            send_depth: self.config.send_depth,
            message_len: self.config.message_len,
        }
    }

    /// Handles a request for a VI. An accepted VI occupies a slot for at most the HELLO timeout.
    /// Unauthenticated peers hold at most half of the slots, and those of one user cannot lock out another
    /// user.
    pub(super) fn on_request(&mut self, now: Instant, request: ConnectRequest) {
        let local = self.config.local.is_some_and(|local| local.admits(request.peer_uid));
        let known = self.config.verify.is_some() || local;
        if !known || !self.has_event_room() || !self.make_room_for_stranger(request.peer_uid) {
            self.counters.requests_rejected += 1;
            // The requester may have disconnected meanwhile.
            let _ = self.provider.reject(request.id);
            return;
        }
        let Ok(vi) = self.provider.accept(request.id, self.vi_config(), &[]) else {
            self.counters.requests_rejected += 1;
            return;
        };
        let until = now + self.config.hello_timeout;
        let mut link = Link::new(now, vi, self.config.identity, self.config.receive_depth, until);
        link.peer_uid = request.peer_uid;
        link.ends_reported = !self.provider.can_break();
        if self.table.insert(link).is_some() {
            self.next_check = self.next_check.min(until);
        }
    }

    /// The VI of an outgoing link is established: sends HELLO.
    pub(super) fn on_established(&mut self, now: Instant, vi: ViId) {
        let Some(id) = self.table.find(vi) else { return };
        let nonce = self.nonce(now);
        let Some(link) = self.table.get_mut(id).filter(|link| link.state == State::Connecting) else {
            return;
        };
        let (local, received) = (link.local, link.messages_received);
        let resume = link.session.filter(|_| link.interruption.is_some());
        link.attempt = link.attempt.saturating_add(u32::from(resume.is_some()));
        let attempt = link.attempt;
        let token = link.token;
        let (token, secret) = token.as_ref().map_or((&[][..], None), |token| match token.split() {
            Some((token, secret)) if link.purpose != Purpose::Message => (token, Some(secret)),
            _ => (token.as_bytes(), None),
        });
        let resume = resume.map(|session| Resume { session, received, attempt });
        let hello = Hello {
            sender: sender(&self.config, &local, link.purpose, nonce, resume),
            token,
            extension: &[],
            proof: secret.map(|_| [0; PROOF_LEN]),
        };
        let mut body = [0; HELLO_LEN_MAX];
        let len = hello.emit(&mut body).unwrap_or(0);
        let body = body.get_mut(..len).unwrap_or(&mut []);
        link.handshake = secret.and_then(|secret| Handshake::sign_hello(secret, body));
        match link.post(now, self.provider.as_mut(), &mut self.counters, Kind::Hello, 0, &[body]) {
            Ok(()) => link.state = State::AwaitAck,
            // The VI has ended already. The provider reports that, and the link then asks for another VI.
            Err(SendError::Down) if resume.is_some() => {}
            Err(error) => self.give_up(id, error.to_string()),
        }
    }

    /// Returns a number that no other handshake with the same token has: each end counts its handshakes, and
    /// its incarnation differs after each start.
    fn nonce(&mut self, now: Instant) -> [u8; NONCE_LEN] {
        self.handshakes += 1;
        let own = &self.config.identity;
        let mut hash = Sha256::new();
        for part in [self.provider.name(), own.node.as_str(), own.process.as_str()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update([own.role as u8, own.worker]);
        for number in [own.incarnation, self.handshakes, now.as_nanos()] {
            hash.update(number.to_le_bytes());
        }
        hash.finalize().first_chunk().copied().unwrap_or_default()
    }

    /// Handles the first message on an accepted VI.
    pub(super) fn on_hello(
        &mut self,
        now: Instant,
        unix_now_s: u64,
        id: LinkId,
        body: &[u8],
    ) -> Result<(), DeathCause> {
        let nonce = self.nonce(now);
        let admitted = match self.admit(unix_now_s, id, body) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.refuse(now, id, refusal);
                return Ok(());
            }
        };
        let can_resume = self.can_resume();
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        link.own_nonce = nonce;
        let (hello, claims) = match admitted {
            Admitted::New { hello, claims, handshake, version } => {
                (link.handshake, link.version) = (handshake, version);
                (hello, claims)
            }
            Admitted::Resumed { of, resume: Resume { received, attempt, .. }, depth, handshake } => {
                link.handshake = Some(handshake);
                link.state = State::Resuming;
                link.resumes = Some(Resumes { link: of, received, attempt, depth });
                self.resumptions.push(id);
                return Ok(());
            }
        };
        link.session = link.handshake.as_ref().filter(|_| can_resume).map(|known| known.session(&nonce));
        let peer = link.adopt(&hello.sender, &claims);
        match self.acknowledge(now, id).map_err(|_| DeathCause::HangUp)? {
            // The kernel identifies the peer of a link within a host: there is nothing to confirm.
            None => self.up(now, id, peer),
            Some(confirm) => {
                if let Some(link) = self.table.get_mut(id) {
                    link.state = State::AwaitConfirm;
                    link.pending = Some(Box::new(Pending { peer, confirm }));
                }
            }
        }
        Ok(())
    }

    /// Handles CONFIRM, by which the connector proves that its HELLO is no copy of an earlier one.
    pub(super) fn on_confirm(
        &mut self,
        now: Instant,
        id: LinkId,
        credits: u16,
        body: &[u8],
    ) -> Result<(), DeathCause> {
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        let pending = link.pending.take().ok_or(DeathCause::Protocol(ProtocolError::Unexpected))?;
        let proof: &[u8; PROOF_LEN] = body.try_into().map_err(|_| MALFORMED)?;
        if !same(proof, &pending.confirm) {
            return Err(UNPROVED);
        }
        if !link.descriptors.returned(credits) {
            return Err(DeathCause::CreditViolation);
        }
        let (peer, nonce) = (pending.peer, link.nonce);
        // Other links may have taken the place, or the user's share, since HELLO.
        if nonce.is_some_and(|nonce| self.is_replay(&peer, nonce)) {
            self.counters.refused_replay += 1;
            return Err(DeathCause::Protocol(ProtocolError::Unexpected));
        }
        if !self.is_within_share(&peer) {
            self.counters.refused_share += 1;
            return Err(DeathCause::Protocol(ProtocolError::Unexpected));
        }
        if let Some(nonce) = nonce {
            self.end_superseded(id, nonce);
        }
        self.up(now, id, peer);
        Ok(())
    }

    /// Handles HELLO_ACK, the acceptor's answer.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        id: LinkId,
        credits: u16,
        body: &[u8],
    ) -> Result<(), DeathCause> {
        let HelloAck { sender: acceptor, proof, .. } = HelloAck::parse(body).map_err(|_| MALFORMED)?;
        let process = ProcessId::parse(acceptor.process_id.as_bytes()).ok_or(MALFORMED)?;
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        let confirm = match (&link.handshake, proof) {
            (Some(handshake), Some(_)) => Some(handshake.check_ack(body).ok_or(UNPROVED)?),
            // Of links within a host the kernel names the peer's user. Without a token, nothing says who
            // accepted another link.
            (None, None) if link.purpose == Purpose::Message => None,
            _ => return Err(UNPROVED),
        };
        if acceptor.role != acceptor_role(link.purpose) || acceptor.purpose != link.purpose {
            return Err(DeathCause::Protocol(ProtocolError::Identity));
        }
        link.version = self.config.versions.common(acceptor.versions).ok_or(MALFORMED)?;
        if !(RECEIVE_DEPTH_MIN..=RECEIVE_DEPTH_MAX).contains(&acceptor.receive_depth) {
            return Err(MALFORMED);
        }
        link.descriptors.set_peer_depth(acceptor.receive_depth, 1);
        if !link.descriptors.returned(credits) {
            return Err(DeathCause::CreditViolation);
        }
        let peer = identity_of(&acceptor, process, None);
        if link.interruption.is_some() {
            return self.on_resumed(now, id, peer, acceptor.resume);
        }
        link.session = acceptor.resume.map(|resume| resume.session);
        if let Some(confirm) = confirm {
            let posted =
                link.post(now, self.provider.as_mut(), &mut self.counters, Kind::Confirm, 0, &[&confirm]);
            posted.map_err(|_| DeathCause::HangUp)?;
        }
        self.up(now, id, peer);
        Ok(())
    }

    /// Handles HELLO_REFUSED.
    pub(super) fn on_refused(&mut self, id: LinkId, body: &[u8]) -> Result<(), DeathCause> {
        let refused = HelloRefused::parse(body).map_err(|_| MALFORMED)?;
        let resuming = self.table.get(id).is_some_and(|link| link.interruption.is_some());
        let reason = match resuming {
            true => DownReason::Died(DeathCause::HangUp),
            false => DownReason::Refused { code: refused.code, text: refused.text.to_owned() },
        };
        self.end(id, reason);
        Ok(())
    }

    fn up(&mut self, now: Instant, id: LinkId, peer: PeerIdentity) {
        let Some(link) = self.table.get_mut(id) else { return };
        link.state = State::Up;
        link.peer = Some(peer);
        link.up_since = Some(now);
        link.used(now, &self.config.heartbeat);
        // A peer that gives the link a session has a provider whose VIs can break: a hang-up then does not
        // prove the peer's end.
        link.ends_reported &= link.session.is_none();
        self.next_check = self.next_check.min(link.next_deadline(now, &self.config.heartbeat));
        self.counters.links_up += 1;
        self.events.push_back(LinkEvent::Up { link: id, purpose: link.purpose, peer });
    }

    /// Sends HELLO_ACK. Returns the proof that CONFIRM must contain.
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        id: LinkId,
    ) -> Result<Option<[u8; PROOF_LEN]>, SendError> {
        let link = self.table.get_mut(id).ok_or(SendError::Down)?;
        let (local, received, attempt) = (link.local, link.messages_received, link.attempt);
        let resume = |session: [u8; SESSION_LEN]| Resume { session, received, attempt };
        let ack = HelloAck {
            sender: sender(&self.config, &local, link.purpose, link.own_nonce, link.session.map(resume)),
            extension: &[],
            proof: link.handshake.as_ref().map(|_| [0; PROOF_LEN]),
        };
        let mut body = [0; HELLO_LEN_MAX];
        let len = ack.emit(&mut body).unwrap_or(0);
        let body = body.get_mut(..len).unwrap_or(&mut []);
        let confirm = link.handshake.as_ref().and_then(|handshake| handshake.sign_ack(body));
        link.post(now, self.provider.as_mut(), &mut self.counters, Kind::HelloAck, 0, &[body])?;
        Ok(confirm)
    }

    pub(super) fn refuse(&mut self, now: Instant, id: LinkId, refusal: Refusal) {
        let counter = match refusal.reason {
            RefusalReason::Parameters => &mut self.counters.refused_parameters,
            RefusalReason::BadToken => &mut self.counters.refused_bad_token,
            RefusalReason::Expired => &mut self.counters.refused_expired,
            RefusalReason::Identity => &mut self.counters.refused_identity,
            RefusalReason::Replay => &mut self.counters.refused_replay,
            RefusalReason::Session => &mut self.counters.refused_session,
            RefusalReason::Share => &mut self.counters.refused_share,
        };
        *counter += 1;
        let mut body = [0; 256];
        let refused = HelloRefused { code: refusal.code, text: &refusal.text };
        let len = refused.emit(&mut body).unwrap_or(0);
        let body = body.get(..len).unwrap_or(&[]);
        if let Some(link) = self.table.get_mut(id) {
            // Fails if the peer is gone, which then needs no answer.
            let _ =
                link.post(now, self.provider.as_mut(), &mut self.counters, Kind::HelloRefused, 0, &[body]);
        }
        if let Some(link) = self.table.remove(id) {
            // Fails only if the VI has ended already.
            let _ = self.provider.disconnect(link.vi);
        }
    }
}

/// What this end states of itself in HELLO and HELLO_ACK.
fn sender<'a>(
    config: &EndpointConfig,
    local: &'a PeerIdentity,
    purpose: Purpose,
    nonce: [u8; NONCE_LEN],
    resume: Option<Resume>,
) -> Sender<'a> {
    Sender {
        versions: config.versions,
        role: local.role,
        purpose,
        worker: local.worker,
        pool_index: local.pool_index,
        pool_size: local.pool_size,
        receive_depth: config.receive_depth,
        incarnation: local.incarnation,
        nonce,
        node_id: local.node,
        process_id: local.process.as_str(),
        resume,
    }
}

impl Link {
    /// Takes what an admitted HELLO states. Returns the peer's identity.
    fn adopt(&mut self, sender: &Sender<'_>, claims: &TokenClaims) -> PeerIdentity {
        self.purpose = sender.purpose;
        self.grant = (sender.role == Role::Process).then(|| Box::new(claims.grant));
        self.nonce = (sender.purpose != Purpose::Message).then_some(claims.nonce);
        self.local.pool_index = sender.pool_index;
        self.local.pool_size = sender.pool_size;
        self.descriptors.set_peer_depth(sender.receive_depth, 0);
        identity_of(sender, claims.process, claims.uid.or(self.peer_uid))
    }
}
