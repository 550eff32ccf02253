//! Links over one VI provider: handshake, descriptor credits, heartbeat, CLOSE.

mod admission;
mod handshake;
mod in_place;
mod link;
mod progress;
mod resume;
mod silence;
mod strangers;
mod table;

use std::collections::VecDeque;

use csp_types::{Grant, Instant};
use csp_vi::{Armed, BufferId, MESSAGE_LEN_MAX, Provider, ViAddress, ViError, ViId, Wake};
use csp_wire::link::{HEADER_LEN, Kind};

use crate::config::{EndpointConfig, RECEIVE_DEPTH_MIN};
use crate::counters::Counters;
use crate::event::{DeathCause, DownReason, LinkEvent, LinkId, MessageKind, Received, SendError};
use crate::identity::{PeerIdentity, Purpose, kind_of, wire_kind};
use crate::token::Token;
use link::{Link, State};
use table::Table;

pub use in_place::InPlace;

/// Largest number of parts in the gather list of [`Endpoint::send`].
pub const GATHER_MAX: usize = 15;

/// The state of a link, as the admin endpoint shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkInfo {
    /// The link.
    pub link: LinkId,
    /// The VI below it.
    pub vi: ViId,
    /// The link's purpose.
    pub purpose: Purpose,
    /// Identity of the peer; `None` until the handshake is complete.
    pub peer: Option<PeerIdentity>,
    /// The protocol version in use, the highest that both ends speak; 0 before the handshake.
    pub version: u16,
    /// The time at which the link came up.
    pub up_since: Option<Instant>,
    /// Whether the link's VI broke and the link waits for another one.
    pub interrupted: bool,
    /// The time at which the peer's last message was polled.
    pub last_received: Instant,
    /// Data messages that may be sent now.
    pub credits: u32,
    /// Messages sent on it, control included.
    pub messages_sent: u64,
    /// Messages received on it, control included.
    pub messages_received: u64,
}

/// Smallest VI message length, into which HELLO fits.
const MESSAGE_LEN_MIN: u32 = 1024;

/// Largest number of links of one endpoint.
const LINKS_MAX: u32 = 4096;

/// A data message that the owner has not received. Its body is still in the VI's buffer, or was copied
/// (`kept`) when the VI ended.
#[derive(Debug)]
struct Ready {
    link: LinkId,
    buffer: BufferId,
    kind: MessageKind,
    immediate: u32,
    body_len: usize,
    kept: Option<Box<[u8]>>,
}

/// Links over one VI provider, owned by one thread.
pub struct Endpoint {
    provider: Box<dyn Provider>,
    config: EndpointConfig,
    counters: Counters,
    table: Table,
    events: VecDeque<LinkEvent>,
    ready: VecDeque<Ready>,
    /// Links to serve at the end of this turn.
    dirty: Vec<LinkId>,
    /// Links whose VI is disconnected while messages received before may remain to be polled.
    hang_ups: Vec<LinkId>,
    /// Links whose HELLO resumes another link, while messages of that link may remain to be polled.
    resumptions: Vec<LinkId>,
    /// Number of handshakes begun.
    handshakes: u64,
    /// A lower bound of all links' deadlines.
    next_check: Instant,
    last_progress: Instant,
    /// The last time at which this thread ran again after not having run for a while. Peers may have sent
    /// messages meanwhile.
    back_at: Instant,
}

impl Endpoint {
    /// Creates an endpoint over `provider`. All tables are allocated here. Depths and lengths out of bounds
    /// are clamped.
    pub fn new(provider: Box<dyn Provider>, mut config: EndpointConfig) -> Self {
        config.receive_depth = config.receive_depth.clamp(RECEIVE_DEPTH_MIN, 4096);
        config.send_depth = config.send_depth.clamp(RECEIVE_DEPTH_MIN, 4096);
        config.message_len = config.message_len.clamp(MESSAGE_LEN_MIN, MESSAGE_LEN_MAX);
        config.links_max = config.links_max.clamp(1, LINKS_MAX);
        let links_max = config.links_max as usize;
        Endpoint {
            table: Table::new(config.links_max),
            events: VecDeque::with_capacity(links_max * EVENTS_PER_LINK),
            ready: VecDeque::with_capacity(links_max * config.receive_depth as usize),
            dirty: Vec::with_capacity(links_max),
            hang_ups: Vec::with_capacity(links_max),
            resumptions: Vec::with_capacity(links_max),
            handshakes: 0,
            next_check: Instant::FAR_FUTURE,
            last_progress: Instant::ZERO,
            back_at: Instant::ZERO,
            counters: Counters::default(),
            provider,
            config,
        }
    }

    /// Listens at `address`. Peers are accepted only if `verify` or `local` is configured.
    pub fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.provider.listen(address)
    }

    /// Opens a link; `Up` or `Down` follows. `worker` is this side's worker that the link serves, `pool` is
    /// the link's index in its pool and the pool's size, `token` proves the identity. After `hello_timeout`
    /// the link ends as `Unreachable`.
    ///
    /// A token opens each place of its pool once at a time. Further links, and a link that replaces one whose
    /// loss the peer may not have noticed, need a token with another nonce (or another attempt after
    /// `Duplicate`).
    pub fn connect(
        &mut self,
        now: Instant,
        address: &ViAddress,
        purpose: Purpose,
        worker: u8,
        pool: (u8, u8),
        token: &[u8],
    ) -> Result<LinkId, ViError> {
        let too_long = ViError::TooLong { len: token.len(), max: crate::token::TOKEN_LEN_MAX };
        let token = Token::from_bytes(token).ok_or(too_long)?;
        if self.table.available() == 0 || !self.has_event_room() {
            return Err(ViError::Exhausted("link"));
        }
        let vi = self.provider.connect(address, self.vi_config(), &[])?;
        let local = PeerIdentity { worker, pool_index: pool.0, pool_size: pool.1, ..self.config.identity };
        let until = now + self.config.hello_timeout;
        let link = Link {
            outgoing: true,
            state: State::Connecting,
            purpose,
            token: Some(token),
            address: Some(address.clone()),
            ends_reported: !self.provider.can_break(),
            ..Link::new(now, vi, local, self.config.receive_depth, until)
        };
        self.next_check = self.next_check.min(until);
        self.table.insert(link).ok_or(ViError::Exhausted("link"))
    }

    /// Returns the next link event, if any.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        let event = self.events.pop_front()?;
        if let LinkEvent::Up { link, .. } = event
            && let Some(link) = self.table.get_mut(link)
        {
            link.up_polled = true;
        }
        Some(event)
    }

    /// Returns the next data message. Its body is copied to `into` (a body longer than `into` is truncated;
    /// [`message_len`](Self::message_len) bytes always suffice), and its buffer returns to the peer. The
    /// messages of a link lie between its `Up` and its `Down`: while an unpolled `Up` precedes the next
    /// message, this returns `None`, so poll events first.
    pub fn receive(&mut self, now: Instant, into: &mut [u8]) -> Option<Received> {
        loop {
            let Some(link) = self.table.get_mut(self.ready.front()?.link) else {
                // The owner closed or failed the link; the buffer was released with the VI.
                self.ready.pop_front();
                continue;
            };
            if !link.up_polled {
                return None;
            }
            let ready = self.ready.pop_front()?;
            link.waiting = link.waiting.saturating_sub(1);
            let vi = link.vi;
            let wanted = ready.body_len.min(into.len());
            let room = into.get_mut(..wanted).unwrap_or(&mut []);
            let copied = match &ready.kept {
                Some(kept) => {
                    room.copy_from_slice(kept.get(..wanted).unwrap_or(&[]));
                    wanted
                }
                None => {
                    let copied = self.provider.read(vi, ready.buffer, HEADER_LEN, room).unwrap_or(0);
                    self.repost(ready.link, ready.buffer);
                    copied
                }
            };
            self.counters.receive_cut += u64::from(copied < ready.body_len);
            self.after_receive(now, ready.link);
            let Ready { link, kind, immediate, .. } = ready;
            return Some(Received { link, kind, immediate, len: copied });
        }
    }

    /// Credit that is due is returned at once, since the owner may receive many messages between two turns.
    fn after_receive(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.table.get(id) else { return };
        if matches!(link.state, State::Ending(_)) {
            if link.waiting == 0 {
                self.remove_link(id);
            }
        } else if link.credit_due(now, &self.config.heartbeat) {
            self.serve(now, id);
        } else {
            self.next_check = self.next_check.min(link.next_deadline(now, &self.config.heartbeat));
        }
    }

    /// Sends one message whose body is the concatenation of `gather` (at most [`GATHER_MAX`] parts). `kind`
    /// must match the link's purpose, else the call fails with [`SendError::Down`].
    pub fn send(
        &mut self,
        now: Instant,
        link: LinkId,
        kind: MessageKind,
        immediate: u32,
        gather: &[&[u8]],
    ) -> Result<(), SendError> {
        let body_len: usize = gather.iter().map(|part| part.len()).sum();
        if body_len > self.message_len() {
            return Err(SendError::TooLong);
        }
        let lives = |link: &&mut Link| link.can_send() || link.is_interrupted();
        let link = self.table.get_mut(link).filter(|link| lives(link) && kind_of(link.purpose) == kind);
        let link = link.ok_or(SendError::Down)?;
        if !link.can_send() {
            self.counters.no_credit += 1;
            return Err(SendError::NoCredit);
        }
        let heartbeat = &self.config.heartbeat;
        let kind = wire_kind(kind);
        let mut result = link.post(now, self.provider.as_mut(), &mut self.counters, kind, immediate, gather);
        if result == Err(SendError::Down) && link.session.is_some() {
            // The provider will report the end of the VI, and the link may outlive it.
            result = Err(SendError::NoCredit);
        }
        match result {
            Ok(()) => {
                self.counters.bytes_sent += body_len as u64;
                link.used(now, heartbeat);
                self.next_check = self.next_check.min(link.next_deadline(now, heartbeat));
            }
            Err(SendError::NoCredit) => self.counters.no_credit += 1,
            Err(_) => {}
        }
        result
    }

    /// Number of data messages that can be sent on `link` now; 0 if it is not up, or if its VI broke and no
    /// other has replaced it.
    pub fn credits(&self, link: LinkId) -> u32 {
        self.table.get(link).map_or(0, Link::credits)
    }

    /// Longest body of a message, in bytes.
    pub fn message_len(&self) -> usize {
        (self.config.message_len as usize).saturating_sub(HEADER_LEN)
    }

    /// Closes a link: sends CLOSE, then disconnects cleanly. Messages not yet received are dropped; `Down`
    /// (`Closed`) follows.
    pub fn close(&mut self, now: Instant, link: LinkId) {
        self.drop_link(now, link, DownReason::Closed);
    }

    /// Breaks a link whose peer sent an ill-formed or forbidden body; `Down` (`Died(Owner)`) follows.
    pub fn fail(&mut self, now: Instant, link: LinkId) {
        self.drop_link(now, link, DownReason::Died(DeathCause::Owner));
    }

    fn drop_link(&mut self, now: Instant, id: LinkId, reason: DownReason) {
        let Some(link) = self.table.get_mut(id) else { return };
        if link.can_send() {
            // Without credit, or if the peer is gone, the disconnect alone ends the link.
            let _ = link.post(now, self.provider.as_mut(), &mut self.counters, Kind::Close, 0, &[]);
        }
        if !matches!(link.state, State::Ending(_)) {
            link.state = State::Ending(reason);
        }
        self.remove_link(id);
    }

    /// The configured identity of this side.
    pub fn identity(&self) -> &PeerIdentity {
        &self.config.identity
    }

    /// Latest time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.next_check < Instant::FAR_FUTURE).then_some(self.next_check)
    }

    /// Arms the provider's wake descriptors. Also returns `Busy` while received messages or events are
    /// pending in the endpoint.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        if !self.ready.is_empty() || !self.events.is_empty() {
            return Ok(Armed::Busy);
        }
        self.provider.arm()
    }

    /// The descriptors to wait on after [`arm`](Self::arm), appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.provider.wake(into);
    }

    /// Generation of the set that [`wake`](Self::wake) returns; it changes with the set.
    pub fn wake_generation(&self) -> u64 {
        self.provider.wake_generation()
    }

    /// The provider, for operations that the endpoint does not offer.
    pub fn provider_mut(&mut self) -> &mut dyn Provider {
        self.provider.as_mut()
    }

    /// Returns the provider. Nothing is sent to any peer.
    pub fn into_provider(self) -> Box<dyn Provider> {
        self.provider
    }

    /// Abandons all links in a forked child. Nothing is sent to the peers, for which the links remain the
    /// parent's.
    pub fn abandon_after_fork(self) {
        self.provider.abandon_after_fork();
    }

    /// Appends every descriptor that the provider owns now to `into`: the application must not close them.
    pub fn descriptors(&self, into: &mut Vec<Wake>) {
        self.provider.descriptors(into);
    }

    /// Totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Name of the provider, such as `shm`.
    pub fn provider_name(&self) -> &'static str {
        self.provider.name()
    }

    /// Whether a link's VI can end while both of its ends live ([`Provider::can_break`]).
    pub fn can_break(&self) -> bool {
        self.provider.can_break()
    }

    /// Errors counted by the provider: VIs set up wrongly, violations of the shared memory's rules.
    pub fn provider_counters(&self) -> csp_vi::Counters {
        self.provider.counters()
    }

    /// The grant in the token of the process at the other end of an accepted link; [`Grant::NONE`] for other
    /// links.
    pub fn grant(&self, link: LinkId) -> Grant {
        self.table.get(link).and_then(|link| link.grant.as_deref().copied()).unwrap_or(Grant::NONE)
    }

    /// All links, in slot order.
    pub fn links(&self) -> impl Iterator<Item = LinkInfo> + '_ {
        self.table.iter().map(|(id, link)| info(id, link))
    }

    /// One link, while it exists.
    pub fn link(&self, link: LinkId) -> Option<LinkInfo> {
        self.table.get(link).map(|found| info(link, found))
    }

    /// Whether the bounded event queue has room for the events of a new link. If the owner has not polled
    /// earlier events, no new link is accepted or opened.
    fn has_event_room(&self) -> bool {
        self.events.len() + 2 * self.table.capacity() <= self.table.capacity() * EVENTS_PER_LINK
    }
}

/// Events that the queue holds per slot: `Up` and `Down` of the link in it and of one earlier link.
const EVENTS_PER_LINK: usize = 4;

fn info(id: LinkId, link: &Link) -> LinkInfo {
    LinkInfo {
        link: id,
        vi: link.vi,
        purpose: link.purpose,
        peer: link.peer,
        version: link.version,
        up_since: link.up_since,
        interrupted: link.is_interrupted(),
        last_received: link.last_received,
        credits: link.credits(),
        messages_sent: link.messages_sent,
        messages_received: link.messages_received,
    }
}
