//! The handshake: HELLO with a token, and its answer.

use csp_types::{Grant, Instant, Role};
use csp_vi::{ConnectRequest, ViConfig, ViId};
use csp_wire::WireError;
use csp_wire::link::{HELLO_LEN_MAX, Hello, HelloAck, HelloRefused, Kind, Resume};

use super::Endpoint;
use super::link::{Link, State};
use super::resume::Resumes;
use crate::config::RECEIVE_DEPTH_MIN;
use crate::event::{DeathCause, DownReason, LinkEvent, LinkId, ProtocolError, SendError};
use crate::identity::{PeerIdentity, ProcessId, Purpose, RefusalCode, acceptor_role, connector_role};
use crate::token::{self, TokenClaims, TokenError};

/// Largest number of receive descriptors that a peer may claim.
const RECEIVE_DEPTH_MAX: u32 = 4096;

/// The refusal of a HELLO: the code and text sent to the peer, and the reason, which selects the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    code: RefusalCode,
    text: &'static str,
    reason: RefusalReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RefusalReason {
    Parameters,
    BadToken,
    Expired,
    Identity,
    Replay,
    Session,
    Share,
}

pub(super) const fn refusal(code: RefusalCode, reason: RefusalReason, text: &'static str) -> Refusal {
    Refusal { code, text, reason }
}

impl Endpoint {
    pub(super) fn vi_config(&self) -> ViConfig {
        ViConfig {
            receive_depth: self.config.receive_depth,
            send_depth: self.config.send_depth,
            message_len: self.config.message_len,
        }
    }

    /// Handles a request for a VI. An accepted VI occupies a slot for at most the HELLO timeout. Unauthenticated peers
    /// hold at most half of the slots, and those of one user cannot lock out another user.
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
        let Some(link) = self.table.get_mut(id).filter(|link| link.state == State::Connecting) else {
            return;
        };
        let local = link.local;
        let token = link.token;
        let received = link.messages_received;
        let resume = link.session.filter(|_| link.interruption.is_some());
        let hello = Hello {
            role: local.role,
            purpose: link.purpose,
            worker: local.worker,
            pool_index: local.pool_index,
            pool_size: local.pool_size,
            receive_depth: self.config.receive_depth,
            incarnation: local.incarnation,
            node_id: local.node,
            process_id: local.process.as_str(),
            resume: resume.map(|session| Resume { session, received }),
            token: token.as_ref().map_or(&[], |token| token.as_bytes()),
        };
        let mut body = [0; HELLO_LEN_MAX];
        let len = hello.emit(&mut body).unwrap_or(0);
        let body = body.get(..len).unwrap_or(&[]);
        match link.post(now, self.provider.as_mut(), &mut self.counters, Kind::Hello, 0, &[body]) {
            Ok(()) => link.state = State::AwaitAck,
            // The VI has ended already. The provider reports that, and the link then asks for another VI.
            Err(SendError::Down) if resume.is_some() => {}
            Err(error) => self.give_up(id, error.to_string()),
        }
    }

    /// Handles the first message on an accepted VI.
    pub(super) fn on_hello(
        &mut self,
        now: Instant,
        unix_now_s: u64,
        id: LinkId,
        body: &[u8],
    ) -> Result<(), DeathCause> {
        let verdict = self.admit(unix_now_s, id, body);
        let (hello, claims, resumed) = match verdict {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.refuse(now, id, refusal);
                return Ok(());
            }
        };
        if let (Some(of), Some(Resume { received, .. })) = (resumed, hello.resume) {
            if let Some(link) = self.table.get_mut(id) {
                link.state = State::Resuming;
                link.resumes = Some(Resumes { link: of, received, depth: hello.receive_depth });
                self.resumptions.push(id);
            }
            return Ok(());
        }
        let session = self.new_session(&claims, &hello);
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        let peer = PeerIdentity {
            role: hello.role,
            node: hello.node_id,
            process: claims.process,
            incarnation: hello.incarnation,
            uid: claims.uid.or(link.peer_uid),
            worker: hello.worker,
            pool_index: hello.pool_index,
            pool_size: hello.pool_size,
        };
        link.purpose = hello.purpose;
        link.grant = (hello.role == Role::Process).then(|| Box::new(claims.grant));
        link.nonce = (hello.purpose != Purpose::Message).then_some(claims.nonce);
        link.local.pool_index = hello.pool_index;
        link.local.pool_size = hello.pool_size;
        (link.session, link.admitted_at) = (session, unix_now_s);
        link.descriptors.set_peer_depth(hello.receive_depth, 0);
        if let Some(nonce) = link.nonce {
            self.end_superseded(id, nonce);
        }
        self.acknowledge(now, id).map_err(|_| DeathCause::HangUp)?;
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
        let malformed = DeathCause::Protocol(ProtocolError::Malformed);
        let ack = HelloAck::parse(body).map_err(|_| malformed)?;
        let process = ProcessId::parse(ack.process_id.as_bytes()).ok_or(malformed)?;
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        if ack.role != acceptor_role(link.purpose) || ack.purpose != link.purpose {
            return Err(DeathCause::Protocol(ProtocolError::Identity));
        }
        if !(RECEIVE_DEPTH_MIN..=RECEIVE_DEPTH_MAX).contains(&ack.receive_depth) {
            return Err(malformed);
        }
        link.descriptors.set_peer_depth(ack.receive_depth, 1);
        if !link.descriptors.returned(credits) {
            return Err(DeathCause::CreditViolation);
        }
        let peer = PeerIdentity {
            role: ack.role,
            node: ack.node_id,
            process,
            incarnation: ack.incarnation,
            uid: None,
            worker: ack.worker,
            pool_index: ack.pool_index,
            pool_size: ack.pool_size,
        };
        if self.table.get(id).is_some_and(|link| link.interruption.is_some()) {
            return self.on_resumed(now, id, peer, ack.resume);
        }
        if let Some(link) = self.table.get_mut(id) {
            link.session = ack.resume.map(|resume| resume.session);
        }
        self.up(now, id, peer);
        Ok(())
    }

    /// Handles HELLO_REFUSED.
    pub(super) fn on_refused(&mut self, id: LinkId, body: &[u8]) -> Result<(), DeathCause> {
        let refused =
            HelloRefused::parse(body).map_err(|_| DeathCause::Protocol(ProtocolError::Malformed))?;
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
        // A peer that gives the link a session has a provider whose VIs can break: a hang-up then does not prove the
        // peer's end.
        link.ends_reported &= link.session.is_none();
        self.next_check = self.next_check.min(link.next_deadline(now, &self.config.heartbeat));
        self.counters.links_up += 1;
        self.events.push_back(LinkEvent::Up { link: id, purpose: link.purpose, peer });
    }

    pub(super) fn acknowledge(&mut self, now: Instant, id: LinkId) -> Result<(), SendError> {
        let link = self.table.get_mut(id).ok_or(SendError::Down)?;
        let local = link.local;
        let ack = HelloAck {
            role: local.role,
            purpose: link.purpose,
            worker: local.worker,
            pool_index: local.pool_index,
            pool_size: local.pool_size,
            receive_depth: self.config.receive_depth,
            incarnation: local.incarnation,
            node_id: local.node,
            process_id: local.process.as_str(),
            resume: link.session.map(|session| Resume { session, received: link.messages_received }),
        };
        let mut body = [0; HELLO_LEN_MAX];
        let len = ack.emit(&mut body).unwrap_or(0);
        let body = body.get(..len).unwrap_or(&[]);
        link.post(now, self.provider.as_mut(), &mut self.counters, Kind::HelloAck, 0, &[body])
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
        let refused = HelloRefused { code: refusal.code, text: refusal.text };
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

    /// Decides whether the HELLO opens a link, or which link it resumes. The token is verified before any other field
    /// of HELLO is used. The token of a resumed link need only have been valid when the link was opened.
    fn admit<'a>(
        &self,
        unix_now_s: u64,
        id: LinkId,
        body: &'a [u8],
    ) -> Result<(Hello<'a>, TokenClaims, Option<LinkId>), Refusal> {
        use RefusalReason::*;
        let hello = Hello::parse(body).map_err(|error| match error {
            WireError::Version { .. } => {
                refusal(RefusalCode::Version, Parameters, "no common protocol version")
            }
            _ => refusal(RefusalCode::Malformed, Parameters, "HELLO is ill-formed"),
        })?;
        if hello.purpose == Purpose::Message {
            let claims = self.admit_local(id, &hello)?;
            return Ok((hello, claims, None));
        }
        let resumed = hello.resume.and_then(|resume| self.find_session(&resume.session));
        let admitted_at = resumed.and_then(|of| self.table.get(of)).map(|link| link.admitted_at);
        let at = admitted_at.unwrap_or(unix_now_s);
        let key = self.config.verify.as_ref();
        let no_key = refusal(RefusalCode::BadToken, BadToken, "no links are accepted here");
        let claims = token::verify(key.ok_or(no_key)?, hello.token, at).map_err(refusal_of)?;
        let same = claims.role == hello.role
            && claims.node == hello.node_id
            && claims.process.as_str() == hello.process_id;
        if !same {
            let text = "the token belongs to another role, node or process";
            return Err(refusal(RefusalCode::BadToken, Identity, text));
        }
        let own_role = self.config.identity.role;
        let fits = connector_role(hello.purpose) == hello.role && acceptor_role(hello.purpose) == own_role;
        if !fits || (hello.role == Role::Process) == claims.process.is_empty() {
            let text = "this role may not open such a link here";
            return Err(refusal(RefusalCode::WrongRole, Identity, text));
        }
        let known_uid = self.table.get(id).and_then(|link| link.peer_uid);
        if let (Some(claimed), Some(known)) = (claims.uid, known_uid)
            && claimed != known
        {
            return Err(refusal(RefusalCode::BadToken, Identity, "the token belongs to another user"));
        }
        check_depth(&hello)?;
        if hello.resume.is_some() {
            let of = self.check_resumed(resumed, &hello, &claims)?;
            return Ok((hello, claims, Some(of)));
        }
        self.check_share(id, &hello, &claims)?;
        if self.is_replay(&hello, &claims) {
            return Err(refusal(RefusalCode::Duplicate, Replay, "the token is in use already"));
        }
        Ok((hello, claims, None))
    }

    /// Admits a message link between processes of this host. The kernel certifies the user; the peer's names are not
    /// certified.
    fn admit_local(&self, id: LinkId, hello: &Hello<'_>) -> Result<TokenClaims, Refusal> {
        use RefusalReason::Identity;
        let uid = self.table.get(id).and_then(|link| link.peer_uid);
        if !self.config.local.is_some_and(|local| local.admits(uid)) || hello.role != Role::Process {
            let text = "no links for messages are accepted here from this user or role";
            return Err(refusal(RefusalCode::WrongRole, Identity, text));
        }
        check_depth(hello)?;
        if hello.resume.is_some() {
            return Err(refusal(
                RefusalCode::NoSession,
                RefusalReason::Session,
                "such links are not resumed",
            ));
        }
        let process = ProcessId::parse(hello.process_id.as_bytes());
        let too_long =
            refusal(RefusalCode::Malformed, RefusalReason::Parameters, "the process id is too long");
        let process = process.ok_or(too_long)?;
        let (role, node) = (hello.role, hello.node_id);
        Ok(TokenClaims {
            role,
            node,
            process,
            uid,
            grant: Grant::NONE,
            not_before: 0,
            expires: u64::MAX,
            nonce: 0,
        })
    }

    /// Whether the token is in use: it serves one incarnation, and each place of its pool once at a time. An
    /// interrupted link does not hold its place against its own peer.
    fn is_replay(&self, hello: &Hello<'_>, claims: &TokenClaims) -> bool {
        self.table.iter().any(|(_, link)| {
            let Some(peer) = link.peer.filter(|_| link.nonce == Some(claims.nonce)) else { return false };
            let same_owner = peer.node == claims.node && peer.process == claims.process;
            let free = peer.pool_index != hello.pool_index || link.state == State::Interrupted;
            let fits = peer.incarnation == hello.incarnation && peer.pool_size == hello.pool_size && free;
            same_owner && !fits
        })
    }
}

fn check_depth(hello: &Hello<'_>) -> Result<(), Refusal> {
    if (RECEIVE_DEPTH_MIN..=RECEIVE_DEPTH_MAX).contains(&hello.receive_depth) {
        return Ok(());
    }
    Err(refusal(RefusalCode::Malformed, RefusalReason::Parameters, "receive depth must be 4 to 4096"))
}

fn refusal_of(error: TokenError) -> Refusal {
    use RefusalReason::*;
    match error {
        TokenError::Malformed => refusal(RefusalCode::BadToken, BadToken, "the token is ill-formed"),
        TokenError::Signature => {
            refusal(RefusalCode::BadToken, BadToken, "the token is not signed with this cluster's key")
        }
        TokenError::Expired => refusal(RefusalCode::ExpiredToken, Expired, "the token has expired"),
        TokenError::NotYetValid => {
            refusal(RefusalCode::ExpiredToken, Expired, "the token is not valid yet: check the clocks")
        }
    }
}
