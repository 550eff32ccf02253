//! Admission of HELLOs: which one opens or resumes a link, and why others are refused.

use std::borrow::Cow;

use csp_types::{Grant, Role};
use csp_wire::WireError;
use csp_wire::link::{Hello, Resume, Sender, Versions};

use super::Endpoint;
use super::link::State;
use super::resume::NO_SESSION;
use crate::config::RECEIVE_DEPTH_MIN;
use crate::event::LinkId;
use crate::identity::{PeerIdentity, ProcessId, Purpose, RefusalCode, acceptor_role, connector_role};
use crate::proof::Handshake;
use crate::token::{TokenClaims, TokenError};

/// Largest number of receive descriptors that a peer may claim.
pub(super) const RECEIVE_DEPTH_MAX: u32 = 4096;

/// The refusal of a HELLO: the code and text sent to the peer, and the reason, which selects the counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) code: RefusalCode,
    pub(super) text: Cow<'static, str>,
    pub(super) reason: RefusalReason,
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
    Refusal { code, text: Cow::Borrowed(text), reason }
}

const UNPROVED: Refusal = refusal(
    RefusalCode::BadToken,
    RefusalReason::BadToken,
    "HELLO does not prove that its sender has the token's secret",
);

const OVER_SHARE: Refusal =
    refusal(RefusalCode::Full, RefusalReason::Share, "this user's processes have their share of links");

/// A HELLO that is admitted.
#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for one call")]
pub(super) enum Admitted<'a> {
    /// It opens a link.
    New {
        hello: Hello<'a>,
        claims: TokenClaims,
        /// `None` on links within a host.
        handshake: Option<Handshake>,
        /// The version that both ends speak.
        version: u16,
    },
    /// It resumes a link over another VI.
    Resumed {
        of: LinkId,
        resume: Resume,
        /// The peer's receive descriptors.
        depth: u32,
        handshake: Handshake,
    },
}

impl Endpoint {
    /// Decides whether the HELLO opens a link, or which link it resumes. Of a HELLO that opens a link, token
    /// and proof are verified before any other field is used, but the purpose and those that select the key.
    /// A HELLO that resumes a link proves that its sender has the secret of that link's token, which need
    /// have been valid only when the link opened.
    pub(super) fn admit<'a>(
        &self,
        unix_now_s: u64,
        id: LinkId,
        body: &'a [u8],
    ) -> Result<Admitted<'a>, Refusal> {
        let spoken = self.config.versions;
        let hello = Hello::parse(body).map_err(|error| match error {
            WireError::Version { found, .. } => {
                let only = found.try_into().unwrap_or(u16::MAX);
                no_common_version(spoken, Versions { lowest: only, highest: only })
            }
            _ => refusal(RefusalCode::Malformed, RefusalReason::Parameters, "HELLO is ill-formed"),
        })?;
        let common = spoken.common(hello.sender.versions);
        let version = common.ok_or_else(|| no_common_version(spoken, hello.sender.versions))?;
        if hello.sender.purpose == Purpose::Message {
            let claims = self.admit_local(id, &hello)?;
            return Ok(Admitted::New { hello, claims, handshake: None, version });
        }
        if let Some(resume) = hello.sender.resume
            && let Some(of) = self.find_session(&resume.session)
        {
            let handshake = self.admit_resumed(id, of, &hello, body)?;
            return Ok(Admitted::Resumed { of, resume, depth: hello.sender.receive_depth, handshake });
        }
        let (claims, handshake) = self.authenticate(unix_now_s, &hello, body)?;
        let known_uid = self.table.get(id).and_then(|link| link.peer_uid);
        if let (Some(claimed), Some(known)) = (claims.uid, known_uid)
            && claimed != known
        {
            let text = "the token belongs to another user";
            return Err(refusal(RefusalCode::BadToken, RefusalReason::Identity, text));
        }
        check_depth(&hello)?;
        if hello.sender.resume.is_some() {
            return Err(NO_SESSION);
        }
        let peer = identity_of(&hello.sender, claims.process, claims.uid.or(known_uid));
        if !self.is_within_share(&peer) {
            return Err(OVER_SHARE);
        }
        if self.is_replay(&peer, claims.nonce) {
            let text = "the token is in use already";
            return Err(refusal(RefusalCode::Duplicate, RefusalReason::Replay, text));
        }
        Ok(Admitted::New { hello, claims, handshake: Some(handshake), version })
    }

    /// Verifies the token of a HELLO and the proof of its holder, and that they are those of the peer that it
    /// names.
    fn authenticate(
        &self,
        unix_now_s: u64,
        hello: &Hello<'_>,
        body: &[u8],
    ) -> Result<(TokenClaims, Handshake), Refusal> {
        use RefusalReason::{BadToken, Identity};
        let own = &self.config.identity;
        let wrong_role = refusal(RefusalCode::WrongRole, Identity, "this role may not open such a link here");
        if acceptor_role(hello.sender.purpose) != own.role {
            return Err(wrong_role);
        }
        let no_key = refusal(RefusalCode::BadToken, BadToken, "no links are accepted here");
        let keys = self.config.verify.as_ref().ok_or(no_key)?.current();
        let host = (hello.sender.purpose == Purpose::Packets).then_some(own.node);
        let verified = keys.verify(hello.token, unix_now_s, host).map_err(refusal_of)?;
        let claims = verified.claims;
        let handshake = hello.proof.and_then(|_| Handshake::check_hello(&verified.secret, body));
        let handshake = handshake.ok_or(UNPROVED)?;
        let same = claims.role == hello.sender.role
            && claims.node == hello.sender.node_id
            && claims.process.as_str() == hello.sender.process_id;
        if !same {
            let text = "the token belongs to another role, node or process";
            return Err(refusal(RefusalCode::BadToken, Identity, text));
        }
        let fits = connector_role(hello.sender.purpose) == hello.sender.role;
        match fits && (hello.sender.role == Role::Process) != claims.process.is_empty() {
            true => Ok((claims, handshake)),
            false => Err(wrong_role),
        }
    }

    /// Verifies that a HELLO comes from the peer of the link that it resumes, and is not the copy of an
    /// earlier one.
    fn admit_resumed(
        &self,
        id: LinkId,
        of: LinkId,
        hello: &Hello<'_>,
        body: &[u8],
    ) -> Result<Handshake, Refusal> {
        let secret = self.table.get(of).and_then(|link| link.handshake.as_ref()).map(Handshake::secret);
        let handshake = secret.filter(|_| hello.proof.is_some()).ok_or(UNPROVED)?;
        let handshake = Handshake::check_hello(handshake, body).ok_or(UNPROVED)?;
        check_depth(hello)?;
        self.check_resumed(id, of, &hello.sender)?;
        Ok(handshake)
    }

    /// Admits a message link between processes of this host. The kernel certifies the user; the peer's names
    /// are not certified.
    fn admit_local(&self, id: LinkId, hello: &Hello<'_>) -> Result<TokenClaims, Refusal> {
        use RefusalReason::{Identity, Parameters, Session};
        let uid = self.table.get(id).and_then(|link| link.peer_uid);
        if !self.config.local.is_some_and(|local| local.admits(uid)) || hello.sender.role != Role::Process {
            let text = "no links for messages are accepted here from this user or role";
            return Err(refusal(RefusalCode::WrongRole, Identity, text));
        }
        check_depth(hello)?;
        if hello.sender.resume.is_some() {
            return Err(refusal(RefusalCode::NoSession, Session, "such links are not resumed"));
        }
        if hello.proof.is_some() {
            return Err(refusal(RefusalCode::Malformed, Parameters, "such links have no proof"));
        }
        let process = ProcessId::parse(hello.sender.process_id.as_bytes());
        let too_long = refusal(RefusalCode::Malformed, Parameters, "the process id is too long");
        let process = process.ok_or(too_long)?;
        let (role, node) = (hello.sender.role, hello.sender.node_id);
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

    /// Whether a token, by its nonce, is in use: it serves one incarnation, and each place of its pool once
    /// at a time. An interrupted link does not hold its place against its own peer.
    pub(super) fn is_replay(&self, new: &PeerIdentity, nonce: u64) -> bool {
        self.table.iter().any(|(_, link)| {
            let Some(peer) = link.peer.filter(|_| link.nonce == Some(nonce)) else { return false };
            let same_owner = (peer.node, peer.process) == (new.node, new.process);
            let free = peer.pool_index != new.pool_index || link.state == State::Interrupted;
            let fits = peer.incarnation == new.incarnation && peer.pool_size == new.pool_size && free;
            same_owner && !fits
        })
    }
}

/// The sender of a HELLO or HELLO_ACK.
pub(super) fn identity_of(sender: &Sender<'_>, process: ProcessId, uid: Option<u32>) -> PeerIdentity {
    PeerIdentity {
        role: sender.role,
        node: sender.node_id,
        process,
        incarnation: sender.incarnation,
        uid,
        worker: sender.worker,
        pool_index: sender.pool_index,
        pool_size: sender.pool_size,
    }
}

fn check_depth(hello: &Hello<'_>) -> Result<(), Refusal> {
    if (RECEIVE_DEPTH_MIN..=RECEIVE_DEPTH_MAX).contains(&hello.sender.receive_depth) {
        return Ok(());
    }
    Err(refusal(RefusalCode::Malformed, RefusalReason::Parameters, "receive depth must be 4 to 4096"))
}

fn no_common_version(own: Versions, peer: Versions) -> Refusal {
    let text = format!(
        "no common protocol version: the acceptor speaks {own}, the connector {peer}; upgrade the older one"
    );
    Refusal { code: RefusalCode::Version, text: text.into(), reason: RefusalReason::Parameters }
}

fn refusal_of(error: TokenError) -> Refusal {
    use RefusalReason::{BadToken, Expired};
    match error {
        TokenError::Malformed => refusal(RefusalCode::BadToken, BadToken, "the token is ill-formed"),
        TokenError::Signature => refusal(
            RefusalCode::BadToken,
            BadToken,
            "the token is not signed with its node's key, or with one that is not valid here",
        ),
        TokenError::Expired => refusal(RefusalCode::ExpiredToken, Expired, "the token has expired"),
        TokenError::NotYetValid => {
            refusal(RefusalCode::ExpiredToken, Expired, "the token is not valid yet: check the clocks")
        }
    }
}
