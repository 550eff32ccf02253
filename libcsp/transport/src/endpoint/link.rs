//! One link: its state, its descriptor credit, its sequence numbers.
//!
//! ```text
//! connector:  Connecting --Established, HELLO sent--> AwaitAck --HELLO_ACK, CONFIRM sent--> Up --+
//! acceptor:   AwaitHello --HELLO good, HELLO_ACK sent--> AwaitConfirm --CONFIRM--> Up --+--> Ending --last message
//!                                                                                              received--> gone
//! VI broken:  Up --> Interrupted, at the connector --> Connecting --> AwaitAck --> Up
//!                    at the acceptor --another VI's HELLO resumes the link-------> Up
//! ```
//! `Ending` lasts while the owner has messages to receive. A link that ends before `Up` is removed at once.

use std::collections::VecDeque;

use csp_types::{Grant, Instant};
use csp_vi::{Place, Provider, ViAddress, ViError, ViId};
use csp_wire::link::{HEADER_LEN, Header, Kind, NONCE_LEN, SESSION_LEN};

use super::GATHER_MAX;
use super::handshake::Pending;
use super::resume::{Interruption, Resumes, Saved};
use crate::counters::Counters;
use crate::event::{DeathCause, DownReason, ProtocolError, SendError};
use crate::identity::{PeerIdentity, Purpose};
use crate::proof::Handshake;
use crate::token::Token;

/// Descriptors of the peer that data never uses. With two, each side can always send a heartbeat and its
/// answer. Only a message that returns credit uses the last one, so the sides never wait for each other.
pub(super) const CONTROL_RESERVE: u32 = 2;

/// State of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Connector: the VI is not established yet.
    Connecting,
    /// Connector: HELLO was sent.
    AwaitAck,
    /// Acceptor: nothing was received yet.
    AwaitHello,
    /// Acceptor: HELLO_ACK was sent.
    AwaitConfirm,
    /// Acceptor: HELLO resumes another link, which takes over this VI once it has received everything.
    Resuming,
    /// Data may be sent.
    Up,
    /// The VI broke and no other has replaced it.
    Interrupted,
    /// Ended, except for messages that the owner has not received.
    Ending(DownReason),
}

/// Descriptor credit in both directions.
///
/// `available` counts the peer's descriptors that this side may fill. `taken` counts this side's descriptors
/// that the peer has filled and that were not returned to it; `owed` of these are posted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptors {
    peer_depth: u32,
    available: u32,
    own_depth: u32,
    taken: u32,
    owed: u32,
}

impl Descriptors {
    /// The credit before the handshake: one message, HELLO or its answer.
    pub(super) const fn new(own_depth: u32) -> Self {
        Descriptors { peer_depth: 1, available: 1, own_depth, taken: 0, owed: 0 }
    }

    /// Sets the depth that the peer stated; `used` of its descriptors hold messages of this side.
    pub(super) const fn set_peer_depth(&mut self, depth: u32, used: u32) {
        self.peer_depth = depth;
        self.available = depth.saturating_sub(used);
    }

    /// Data messages that may be sent.
    pub(super) const fn data(&self) -> u32 {
        self.available.saturating_sub(CONTROL_RESERVE)
    }

    pub(super) const fn allows(&self, kind: Kind) -> bool {
        match kind {
            Kind::Tunnel | Kind::Channel | Kind::Message | Kind::Packets => self.data() > 0,
            Kind::Ping | Kind::Pong | Kind::Credit => {
                self.available >= 2 || (self.available == 1 && self.owed > 0)
            }
            Kind::Hello | Kind::HelloAck | Kind::Confirm | Kind::HelloRefused | Kind::Close => {
                self.available >= 1
            }
        }
    }

    const fn sent(&mut self, returned: u16) {
        self.available = self.available.saturating_sub(1);
        self.owed = self.owed.saturating_sub(returned as u32);
        self.taken = self.taken.saturating_sub(returned as u32);
    }

    /// Records a received message. Returns `false` if the peer had no descriptor for it.
    const fn received(&mut self) -> bool {
        if self.taken >= self.own_depth {
            return false;
        }
        self.taken += 1;
        true
    }

    /// Records returned credit. Returns `false` if it exceeds the descriptors that this side has used.
    pub(super) const fn returned(&mut self, count: u16) -> bool {
        let available = self.available + count as u32;
        if available > self.peer_depth {
            return false;
        }
        self.available = available;
        true
    }

    /// Records that a received message's buffer was posted again.
    pub(super) const fn reposted(&mut self) {
        self.owed += 1;
    }

    /// Whether a message may be retransmitted after an interruption. If this side has credit to return, the
    /// message may use the last descriptors: other messages that carry credits wait behind it.
    pub(super) const fn allows_replay(&self) -> bool {
        self.data() > 0 || (self.available >= 1 && self.owed > 0)
    }

    /// Whether a CREDIT message is due. For a single descriptor both sides would answer endlessly.
    pub(super) const fn return_due(&self) -> bool {
        self.owed >= 2 && self.owed >= self.own_depth / 2
    }

    /// Whether the peer lacks descriptors for data, because the owner holds messages, while some are posted
    /// again and not returned yet. A heartbeat would return them; without one a CREDIT message has to.
    pub(super) const fn starves_peer(&self) -> bool {
        self.owed > 0 && self.taken + CONTROL_RESERVE >= self.own_depth
    }
}

/// The fields of a message besides its body.
#[derive(Clone, Copy)]
struct Head {
    kind: Kind,
    immediate: u32,
    sequence: u64,
}

/// One link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) vi: ViId,
    pub(super) outgoing: bool,
    pub(super) state: State,
    pub(super) purpose: Purpose,
    /// Identity of this side, as stated in HELLO.
    pub(super) local: PeerIdentity,
    pub(super) token: Option<Token>,
    /// Connector: the address for reconnecting.
    pub(super) address: Option<ViAddress>,
    /// Identifies the link for resumption after the loss of its VI; `None`: the link is lost with its VI.
    pub(super) session: Option<[u8; SESSION_LEN]>,
    /// The handshake over the current VI, with the secret of the token; `None` on links within a host.
    pub(super) handshake: Option<Handshake>,
    /// Acceptor: its nonce in the handshake.
    pub(super) own_nonce: [u8; NONCE_LEN],
    /// Acceptor: the peer that has to confirm.
    pub(super) pending: Option<Box<Pending>>,
    /// Number of the last attempt to resume the link.
    pub(super) attempt: u32,
    /// The protocol version in use; 0 before the handshake.
    pub(super) version: u16,
    /// Present from the loss of a VI until another VI replaces it.
    pub(super) interruption: Option<Interruption>,
    /// Messages sent over a lost VI, to be retransmitted before any other message, oldest first.
    pub(super) replay: VecDeque<Saved>,
    /// Acceptor: the link that resumes over this link's VI.
    pub(super) resumes: Option<Resumes>,
    pub(super) peer: Option<PeerIdentity>,
    /// Acceptor: the peer's user, if the provider knows it.
    pub(super) peer_uid: Option<u32>,
    /// The grant in the token of the process at the other end.
    pub(super) grant: Option<Box<Grant>>,
    /// Acceptor: the nonce of the peer's token.
    pub(super) nonce: Option<u64>,
    pub(super) descriptors: Descriptors,
    pub(super) handshake_until: Instant,
    pub(super) up_since: Option<Instant>,
    pub(super) last_received: Instant,
    /// Bytes of an incomplete message that were there at the last check.
    pub(super) incomplete: usize,
    pub(super) last_sent: Instant,
    /// The time at which a message other than a heartbeat was last sent or received.
    pub(super) last_used: Instant,
    /// The time at which the link was last used again after it was quiet. Silence before it has no meaning.
    pub(super) used_since: Instant,
    /// The provider reports every end of the peer ([`Provider::can_break`] is false).
    pub(super) ends_reported: bool,
    pub(super) messages_sent: u64,
    pub(super) messages_received: u64,
    pub(super) pong_due: bool,
    pub(super) ping_unanswered: bool,
    /// The time at which the last PING was sent.
    pub(super) ping_sent_at: Instant,
    /// The peer is silent, but this thread did not run for a while: end of the peer's extra time.
    pub(super) grace_until: Option<Instant>,
    /// Set when the VI is disconnected; `true` if cleanly.
    pub(super) hung_up: Option<bool>,
    /// Number of messages that the owner has not received.
    pub(super) waiting: u32,
    /// Whether the owner has polled the `Up` event.
    pub(super) up_polled: bool,
    /// Whether the link is in the list of links to serve.
    pub(super) dirty: bool,
}

impl Link {
    /// Creates a link at the start of its handshake.
    pub(super) fn new(now: Instant, vi: ViId, local: PeerIdentity, own_depth: u32, until: Instant) -> Self {
        Link {
            vi,
            outgoing: false,
            state: State::AwaitHello,
            purpose: Purpose::Channel,
            local,
            token: None,
            address: None,
            session: None,
            handshake: None,
            own_nonce: [0; NONCE_LEN],
            pending: None,
            attempt: 0,
            version: 0,
            interruption: None,
            replay: VecDeque::new(),
            resumes: None,
            peer: None,
            peer_uid: None,
            grant: None,
            nonce: None,
            descriptors: Descriptors::new(own_depth),
            handshake_until: until,
            up_since: None,
            last_received: now,
            incomplete: 0,
            last_sent: now,
            last_used: now,
            used_since: now,
            ends_reported: false,
            messages_sent: 0,
            messages_received: 0,
            pong_due: false,
            ping_unanswered: false,
            ping_sent_at: Instant::ZERO,
            grace_until: None,
            hung_up: None,
            waiting: 0,
            up_polled: false,
            dirty: false,
        }
    }

    /// Whether messages may be sent.
    pub(super) fn can_send(&self) -> bool {
        matches!(self.state, State::Up) && self.hung_up.is_none()
    }

    /// Whether the link waits for another VI, or its VI broke and it is not decided yet whether it can wait.
    pub(super) fn is_interrupted(&self) -> bool {
        let broken = matches!(self.state, State::Up) && self.hung_up == Some(false);
        self.interruption.is_some() || (broken && self.session.is_some())
    }

    /// Data messages that may be sent now.
    pub(super) fn credits(&self) -> u32 {
        if self.can_send() && self.replay.is_empty() { self.descriptors.data() } else { 0 }
    }

    /// Whether silence of the peer means its death.
    pub(super) fn peer_is_daemon(&self) -> bool {
        self.peer.is_some_and(|peer| peer.is_daemon())
    }

    /// Whether the owner knows of the link, so that its end has to be reported.
    pub(super) fn known_to_owner(&self) -> bool {
        self.outgoing || self.up_since.is_some()
    }

    /// Posts one message. Nothing changes on an error.
    pub(super) fn post(
        &mut self,
        now: Instant,
        provider: &mut dyn Provider,
        counters: &mut Counters,
        kind: Kind,
        immediate: u32,
        gather: &[&[u8]],
    ) -> Result<(), SendError> {
        if !self.descriptors.allows(kind) || !self.replay.is_empty() {
            return Err(SendError::NoCredit);
        }
        // The handshake of a resumed link is not counted.
        let counted = self.interruption.is_none();
        let head = Head { kind, immediate, sequence: if counted { self.messages_sent } else { 0 } };
        self.transmit(now, provider, counters, head, gather)?;
        self.messages_sent += u64::from(counted);
        Ok(())
    }

    /// Retransmits the messages that the peer did not receive over the lost VI, as far as there is credit.
    pub(super) fn post_replay(&mut self, now: Instant, provider: &mut dyn Provider, counters: &mut Counters) {
        while let Some(saved) = self.replay.pop_front() {
            let head = Head { kind: saved.kind, immediate: saved.immediate, sequence: saved.sequence };
            let sent = self.descriptors.allows_replay()
                && self.transmit(now, provider, counters, head, &[&saved.body]).is_ok();
            if !sent {
                self.replay.push_front(saved);
                return;
            }
            counters.messages_reposted += 1;
        }
    }

    fn transmit(
        &mut self,
        now: Instant,
        provider: &mut dyn Provider,
        counters: &mut Counters,
        head: Head,
        gather: &[&[u8]],
    ) -> Result<(), SendError> {
        let Head { kind, immediate, sequence } = head;
        let body_len: usize = gather.iter().map(|part| part.len()).sum();
        let returned = u16::try_from(self.descriptors.owed).unwrap_or(u16::MAX);
        let body_len = u32::try_from(body_len).map_err(|_| SendError::TooLong)?;
        let header = Header { kind, credits: returned, body_len, sequence }.emit();
        let mut parts: [&[u8]; GATHER_MAX + 1] = [&[]; GATHER_MAX + 1];
        let parts = parts.get_mut(..gather.len() + 1).ok_or(SendError::TooLong)?;
        for (slot, part) in parts.iter_mut().zip(core::iter::once(&header[..]).chain(gather.iter().copied()))
        {
            *slot = part;
        }
        provider.post_send(self.vi, sequence, immediate, parts, false).map_err(send_error)?;
        self.transmitted(now, counters, returned);
        Ok(())
    }

    fn transmitted(&mut self, now: Instant, counters: &mut Counters, returned: u16) {
        self.descriptors.sent(returned);
        self.last_sent = now;
        // Any message shows the peer that this side lives.
        self.pong_due = false;
        counters.messages_sent += 1;
    }

    /// Posts a message whose body, of at most `room` bytes, `fill` writes in its place. Returns the length of
    /// the body; nothing is posted if it is 0.
    pub(super) fn post_filled(
        &mut self,
        now: Instant,
        provider: &mut dyn Provider,
        counters: &mut Counters,
        (kind, immediate, room): (Kind, u32, usize),
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, SendError> {
        if !self.descriptors.allows(kind) || !self.replay.is_empty() {
            return Err(SendError::NoCredit);
        }
        let returned = u16::try_from(self.descriptors.owed).unwrap_or(u16::MAX);
        let (sequence, mut body_len) = (self.messages_sent, 0);
        let mut make = |place: &Place<'_>| {
            body_len = fill(&place.part(HEADER_LEN, room)).min(room);
            let header = Header { kind, credits: returned, body_len: body_len as u32, sequence };
            if body_len > 0 && place.write(0, &header.emit()) { HEADER_LEN + body_len } else { 0 }
        };
        let sent = provider.post_send_filled(self.vi, immediate, HEADER_LEN + room, &mut make);
        if sent.map_err(send_error)? == 0 {
            return Ok(0);
        }
        self.transmitted(now, counters, returned);
        self.messages_sent += 1;
        Ok(body_len)
    }

    /// Checks the header of a received message and takes its credits, except during the handshake, which
    /// advertises the depth.
    pub(super) fn check(&mut self, raw: &[u8; HEADER_LEN], len: usize) -> Result<Header, DeathCause> {
        let counted = self.interruption.is_none();
        let sequence = if counted { self.messages_received } else { 0 };
        self.messages_received += u64::from(counted);
        if !self.descriptors.received() {
            return Err(DeathCause::CreditViolation);
        }
        let header = Header::parse_prefix(raw, len).map_err(|error| {
            DeathCause::Protocol(match error {
                csp_wire::WireError::Length { .. } => ProtocolError::Length,
                _ => ProtocolError::Malformed,
            })
        })?;
        if header.sequence != sequence {
            return Err(DeathCause::Protocol(ProtocolError::Sequence));
        }
        if self.state == State::Up && !self.descriptors.returned(header.credits) {
            return Err(DeathCause::CreditViolation);
        }
        Ok(header)
    }
}

fn send_error(error: ViError) -> SendError {
    match error {
        ViError::Full | ViError::Exhausted(_) => SendError::NoCredit,
        ViError::TooLong { .. } => SendError::TooLong,
        _ => SendError::Down,
    }
}
