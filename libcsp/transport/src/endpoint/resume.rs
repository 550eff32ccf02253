//! Resumption: a link outlives its VI (docs/decisions/0016).
//!
//! ```text
//! connector                                   acceptor
//!   VI ends without CLOSE ─ Interrupted        VI ends, or its end is not noticed yet
//!   another VI, HELLO(session, received) ─────▶ receives all that arrived on the old VI, then
//!   drops messages up to `received`,       ◀─── HELLO_ACK(session, received), retransmits the others
//!   retransmits the others
//! ```
//! HELLO and its answer prove knowledge of the secret of the link's token. A HELLO that resumes needs no
//! CONFIRM: each attempt has a higher number, which the acceptor remembers, so that a copy of an earlier
//! HELLO resumes nothing.
//!
//! When the VI is lost, both sides copy the messages that the owner has not received and the sent messages
//! that the provider still holds. Sequence numbers continue, so that a lost or duplicated message is
//! detected; descriptor credit starts anew.

use std::collections::VecDeque;

use csp_types::{Duration, Instant};
use csp_vi::{Provider, ViError};
use csp_wire::link::{HEADER_LEN, Header, Kind, SESSION_LEN, Sender};

use super::admission::{Refusal, RefusalReason, refusal};
use super::link::{Descriptors, Link, State};
use super::{Endpoint, Ready};
use crate::config::{EndpointConfig, Heartbeat};
use crate::event::{DeathCause, DownReason, LinkId, ProtocolError};
use crate::identity::{PeerIdentity, RefusalCode};
use crate::proof::same;

/// Delay before another VI is requested after one that ended before the link had resumed.
const RETRY: Duration = Duration::from_millis(50);

/// Largest number of messages kept for an owner that does not read while VIs break, as a multiple of the
/// receive depth.
const KEPT_DEPTHS_MAX: u32 = 4;

/// Attempts that may fail because the peer is unreachable: the fault that broke the VI may also break the
/// next one while it is set up.
const UNREACHABLE_MAX: u32 = 4;

const LOST: DownReason = DownReason::Died(DeathCause::HangUp);

/// A message that was sent, copied from the provider's memory.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) sequence: u64,
    pub(super) kind: Kind,
    pub(super) immediate: u32,
    pub(super) body: Box<[u8]>,
}

/// State of an interrupted link.
#[derive(Debug)]
pub(super) struct Interruption {
    /// The last messages sent, contiguous up to the very last.
    saved: VecDeque<Saved>,
    /// Connector: the time of the next request for a VI.
    pub(super) retry_at: Instant,
    /// The time of the interruption.
    since: Instant,
    /// The deadline was extended because this thread did not run for a while.
    extended: bool,
    /// Connector: number of attempts that found the peer unreachable.
    unreachable: u32,
}

/// The link that a HELLO resumes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumes {
    pub(super) link: LinkId,
    /// Messages that the peer has received.
    pub(super) received: u64,
    /// Number of the attempt.
    pub(super) attempt: u32,
    /// Its receive descriptors.
    pub(super) depth: u32,
}

pub(super) const NO_SESSION: Refusal =
    refusal(RefusalCode::NoSession, RefusalReason::Session, "there is no such link to be resumed");

impl Endpoint {
    /// The VI of a link that is up broke: the link waits for another VI. Returns `false` if it cannot.
    pub(super) fn interrupt(&mut self, now: Instant, id: LinkId) -> bool {
        let Some(link) = self.table.get(id) else { return false };
        let until = wait_until(now, self.back_at, link, &self.config);
        let unread = link.waiting > self.config.receive_depth * KEPT_DEPTHS_MAX;
        if link.session.is_none() || until <= now || unread {
            return false;
        }
        let Some(saved) = saved_of(self.provider.as_ref(), link) else { return false };
        if !copy_unread(self.provider.as_ref(), &mut self.ready, link, id) {
            return false;
        }
        let Some(link) = self.table.get_mut(id) else { return false };
        // All messages in the VI's buffers are copied.
        let _ = self.provider.disconnect(link.vi);
        let retry_at = if link.outgoing { now } else { Instant::FAR_FUTURE };
        link.interruption =
            Some(Interruption { saved, retry_at, since: now, extended: false, unreachable: 0 });
        link.replay.clear();
        link.grace_until = None;
        self.wait(id, until);
        self.counters.links_interrupted += 1;
        if retry_at <= now {
            self.connect_again(id);
        }
        true
    }

    /// The replacement VI ended too: another one is requested after a delay.
    pub(super) fn interrupt_again(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.table.get_mut(id) else { return };
        // No message of the link arrived on it.
        let _ = self.provider.disconnect(link.vi);
        let (outgoing, until) = (link.outgoing, link.handshake_until);
        if let Some(interruption) = link.interruption.as_mut().filter(|_| outgoing) {
            interruption.retry_at = now + RETRY;
            self.next_check = self.next_check.min(interruption.retry_at);
        }
        self.wait(id, until);
    }

    fn wait(&mut self, id: LinkId, until: Instant) {
        let own_depth = self.config.receive_depth;
        let Some(link) = self.table.get_mut(id) else { return };
        link.state = State::Interrupted;
        link.descriptors = Descriptors::new(own_depth);
        link.hung_up = None;
        link.handshake_until = until;
        self.next_check = self.next_check.min(until);
    }

    /// Requests another VI if it is due.
    pub(super) fn retry(&mut self, now: Instant, id: LinkId) {
        let due = |link: &Link| link.interruption.as_ref().is_some_and(|known| known.retry_at <= now);
        if self.table.get(id).is_some_and(due) {
            self.connect_again(id);
        }
    }

    fn connect_again(&mut self, id: LinkId) {
        let config = self.vi_config();
        let Some(address) = self.table.get(id).and_then(|link| link.address.as_ref()) else { return };
        match self.provider.connect(address, config, &[]) {
            Ok(vi) => {
                self.table.rebind(id, vi);
                if let Some(link) = self.table.get_mut(id) {
                    link.state = State::Connecting;
                }
            }
            Err(_) => self.end(id, LOST),
        }
    }

    /// The VI was refused. An unreachable peer is tried again, up to the limit; a refusal by the peer itself
    /// is final.
    pub(super) fn on_vi_refused(&mut self, now: Instant, id: LinkId, reason: &ViError) {
        let link = self.table.get_mut(id).filter(|link| link.state == State::Connecting);
        let again = link.and_then(|link| link.interruption.as_mut()).is_some_and(|known| {
            known.unreachable += 1;
            matches!(reason, ViError::Unreachable { .. }) && known.unreachable < UNREACHABLE_MAX
        });
        if again {
            self.interrupt_again(now, id);
        } else {
            self.give_up(id, reason.to_string());
        }
    }

    /// Ends a link whose handshake failed. `why` is reported only for a link that was never up.
    pub(super) fn give_up(&mut self, id: LinkId, why: String) {
        let resuming = self.table.get(id).is_some_and(|link| link.interruption.is_some());
        self.end(id, if resuming { LOST } else { DownReason::Unreachable { why } });
    }

    /// Connector: the acceptor resumes the link.
    pub(super) fn on_resumed(
        &mut self,
        now: Instant,
        id: LinkId,
        peer: PeerIdentity,
        resume: Option<csp_wire::link::Resume>,
    ) -> Result<(), DeathCause> {
        let identity = DeathCause::Protocol(ProtocolError::Identity);
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        let resume = resume.filter(|resume| link.session == Some(resume.session)).ok_or(identity)?;
        if link.peer != Some(peer) {
            return Err(identity);
        }
        if !link.covers(resume.received) {
            return Err(DeathCause::Protocol(ProtocolError::Sequence));
        }
        self.resume_link(now, id, resume.received);
        Ok(())
    }

    /// The accepted link that `session` identifies.
    pub(super) fn find_session(&self, session: &[u8; SESSION_LEN]) -> Option<LinkId> {
        let is_it = |link: &Link| link.session.as_ref().is_some_and(|of| same(of, session));
        self.table.iter().find(|(_, link)| !link.outgoing && is_it(link)).map(|(id, _)| id)
    }

    /// Checks that a HELLO, which came over the VI of `id` and whose proof is valid, resumes the link `of`.
    pub(super) fn check_resumed(&self, id: LinkId, of: LinkId, sender: &Sender<'_>) -> Result<(), Refusal> {
        let lives = |link: &&Link| matches!(link.state, State::Up | State::Interrupted);
        let link = self.table.get(of).filter(lives).ok_or(NO_SESSION)?;
        let peer = link.peer.ok_or(NO_SESSION)?;
        let uid = self.table.get(id).and_then(|new| new.peer_uid);
        let same_end = (peer.role, peer.node, peer.process.as_str())
            == (sender.role, sender.node_id, sender.process_id)
            && peer.incarnation == sender.incarnation
            && link.purpose == sender.purpose
            && (peer.worker, peer.pool_index, peer.pool_size)
                == (sender.worker, sender.pool_index, sender.pool_size)
            && (uid.is_none() || peer.uid.is_none() || uid == peer.uid);
        let later = sender.resume.is_some_and(|resume| resume.attempt > link.attempt);
        if same_end && later { Ok(()) } else { Err(NO_SESSION) }
    }

    /// Acceptor: all messages that had arrived are received, so the links named by resuming HELLOs are
    /// resumed.
    pub(super) fn settle_resumptions(&mut self, now: Instant) {
        while let Some(id) = self.resumptions.pop() {
            let Some(link) = self.table.get(id).filter(|link| link.state == State::Resuming) else {
                continue;
            };
            let Some(resumes) = link.resumes else { continue };
            let still_up = self.table.get(resumes.link).is_some_and(|of| of.state == State::Up);
            if still_up && !self.interrupt(now, resumes.link) {
                self.end(resumes.link, LOST);
            }
            if !self.hand_over(now, id, resumes) {
                self.end(resumes.link, LOST);
                self.refuse(now, id, NO_SESSION);
            }
        }
    }

    /// Whether links of the cluster outlive their VIs here.
    pub(super) fn can_resume(&self) -> bool {
        self.config.resume_deadline > Duration::ZERO && self.provider.can_break()
    }

    /// Moves the VI of `from`, whose HELLO names the interrupted link, to that link.
    fn hand_over(&mut self, now: Instant, from: LinkId, resumes: Resumes) -> bool {
        let interrupted = |link: &Link| link.state == State::Interrupted && link.covers(resumes.received);
        if !self.table.get(resumes.link).is_some_and(interrupted) {
            return false;
        }
        let Some(new) = self.table.remove(from) else { return false };
        self.table.rebind(resumes.link, new.vi);
        if let Some(link) = self.table.get_mut(resumes.link) {
            (link.handshake, link.own_nonce, link.attempt) = (new.handshake, new.own_nonce, resumes.attempt);
            link.descriptors = new.descriptors;
            link.descriptors.set_peer_depth(resumes.depth, 0);
        }
        // If this fails, the VI has ended and the peer tries again.
        if self.acknowledge(now, resumes.link).is_ok() {
            self.resume_link(now, resumes.link, resumes.received);
        }
        true
    }

    /// Brings the link up again. The peer has received `received` of its messages; later ones are
    /// retransmitted.
    fn resume_link(&mut self, now: Instant, id: LinkId, received: u64) {
        let Some(link) = self.table.get_mut(id) else { return };
        let Some(Interruption { mut saved, .. }) = link.interruption.take() else { return };
        let missing = usize::try_from(link.messages_sent.saturating_sub(received)).unwrap_or(usize::MAX);
        saved.drain(..saved.len().saturating_sub(missing));
        link.replay = saved;
        link.state = State::Up;
        (link.last_received, link.last_sent) = (now, now);
        (link.pong_due, link.ping_unanswered, link.grace_until) = (false, false, None);
        self.counters.links_resumed += 1;
        self.serve(now, id);
    }

    /// Ends an interrupted link whose place in the pool a new link of the same token has taken: the peer gave
    /// the old one up.
    pub(super) fn end_superseded(&mut self, new: LinkId, nonce: u64) {
        let old = self.table.iter().find(|(id, link)| {
            let place = |link: &Link| (link.local.pool_index, link.local.pool_size);
            let same = |other: &Link| link.nonce == Some(nonce) && place(other) == place(link);
            *id != new && link.state == State::Interrupted && self.table.get(new).is_some_and(same)
        });
        if let Some((id, _)) = old {
            self.end(id, LOST);
        }
    }
}

impl Link {
    /// If this thread did not run for a while since the VI broke, the peer gets the whole time once more.
    /// Only once, since some processes call in rarely.
    pub(super) fn extend_wait(&mut self, back_at: Instant, heartbeat: &Heartbeat) {
        if let Some(known) =
            self.interruption.as_mut().filter(|known| known.since < back_at && !known.extended)
        {
            known.extended = true;
            self.handshake_until = self.handshake_until.max(back_at + heartbeat.deadline);
        }
    }

    /// Whether the saved messages include all that a peer which has received `received` messages lacks.
    fn covers(&self, received: u64) -> bool {
        let saved = self.interruption.as_ref().map_or(0, |interruption| interruption.saved.len() as u64);
        received <= self.messages_sent && self.messages_sent - received <= saved
    }
}

/// End of the time for which a link may wait: as long as its peer may be silent. Messages that the peer sent
/// before `back_at`, while this thread did not run, are not received yet. A process may be silent for longer.
fn wait_until(now: Instant, back_at: Instant, link: &Link, config: &EndpointConfig) -> Instant {
    let silent_until = link.last_received.max(back_at) + config.heartbeat.deadline;
    match config.resume_deadline {
        Duration::ZERO => now,
        _ if link.peer_is_daemon() => silent_until,
        at_least => silent_until.max(now + at_least),
    }
}

/// Copies the messages that the peer may not have received, contiguous up to the last message sent.
fn saved_of(provider: &dyn Provider, link: &Link) -> Option<VecDeque<Saved>> {
    let mut saved: VecDeque<Saved> = VecDeque::new();
    let walked = provider.unconfirmed(link.vi, &mut |immediate, bytes| {
        let Ok((header, body)) = Header::parse(bytes) else { return };
        // Messages of a resumed link's handshake are not counted. Those of the first have arrived, or the
        // acceptor does not know the link.
        if matches!(header.kind, Kind::Hello | Kind::HelloAck | Kind::HelloRefused | Kind::Confirm) {
            return;
        }
        if saved.back().is_some_and(|last| last.sequence + 1 != header.sequence) {
            saved.clear();
        }
        let (sequence, kind) = (header.sequence, header.kind);
        saved.push_back(Saved { sequence, kind, immediate, body: body.into() });
    });
    walked.ok()?;
    // Messages that were to be retransmitted over this VI and were not follow those that were.
    if let (Some(last), Some(next)) = (saved.back(), link.replay.front())
        && last.sequence + 1 != next.sequence
    {
        saved.clear();
    }
    saved.extend(link.replay.iter().cloned());
    let complete = saved.back().is_none_or(|last| last.sequence + 1 == link.messages_sent);
    complete.then_some(saved)
}

/// Copies the messages that the owner has not received out of the VI's buffers.
fn copy_unread(provider: &dyn Provider, ready: &mut VecDeque<Ready>, link: &Link, id: LinkId) -> bool {
    let unread = ready.iter_mut().filter(|ready| ready.link == id && ready.kept.is_none());
    for message in unread {
        let mut body = vec![0; message.body_len];
        if provider.read(link.vi, message.buffer, HEADER_LEN, &mut body) != Ok(message.body_len) {
            return false;
        }
        message.kept = Some(body.into());
    }
    true
}
