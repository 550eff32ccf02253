//! Links over one VI provider: handshake, descriptor credits, heartbeat, CLOSE.

use csp_types::Instant;
use csp_vi::{Armed, Provider, ViAddress, ViError, Wake};

use crate::config::EndpointConfig;
use crate::counters::Counters;
use crate::event::{LinkEvent, LinkId, MessageKind, Received, SendError};
use crate::identity::{PeerIdentity, Purpose};

/// Most parts of the gather list given to [`Endpoint::send`].
pub const GATHER_MAX: usize = 15;

/// A link as the admin endpoint shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkInfo {
    /// The link.
    pub link: LinkId,
    /// What it carries.
    pub purpose: Purpose,
    /// The other end; `None` until the handshake is over.
    pub peer: Option<PeerIdentity>,
    /// Since when it is up.
    pub up_since: Option<Instant>,
    /// When the peer's last message was polled.
    pub last_heard: Instant,
    /// Descriptors that data may use now.
    pub credits: u32,
    /// Messages sent on it, control included.
    pub messages_sent: u64,
    /// Messages received on it, control included.
    pub messages_received: u64,
}

/// Links over one VI provider; one thread's own.
pub struct Endpoint {
    provider: Box<dyn Provider>,
    config: EndpointConfig,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint over `provider`. All tables are allocated here.
    pub fn new(provider: Box<dyn Provider>, config: EndpointConfig) -> Self {
        Endpoint { provider, config, counters: Counters::default() }
    }

    /// Starts to listen at `address`; peers are accepted only where `verify` is configured.
    pub fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.provider.listen(address)
    }

    /// Starts a link; `Up` or `Down` follows. `worker` is this side's worker that the link serves, `pool` its index
    /// and the pool's size, `token` proves the identity. The link ends as `Unreachable` after `hello_timeout`.
    pub fn connect(
        &mut self,
        now: Instant,
        address: &ViAddress,
        purpose: Purpose,
        worker: u8,
        pool: (u8, u8),
        token: &[u8],
    ) -> Result<LinkId, ViError> {
        let _ = (now, address, purpose, worker, pool, token);
        Err(ViError::NotConnected)
    }

    /// Polls completions and events, answers PING, returns credits, sends heartbeats, enforces deadlines. Returns
    /// whether anything happened. `unix_now_s` (seconds) is what tokens are checked against.
    pub fn progress(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let _ = (now, unix_now_s);
        false
    }

    /// The next link event, if any.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        None
    }

    /// The next data message, its body copied to `into` (at least [`message_len`](Self::message_len) bytes, else it
    /// is cut); its buffer goes back to the peer. Messages of a link come between its `Up` and its `Down`: poll the
    /// events first, this returns `None` while an unpolled `Up` stands before the next message.
    pub fn receive(&mut self, now: Instant, into: &mut [u8]) -> Option<Received> {
        let _ = (now, into);
        None
    }

    /// Sends one message with the parts of `gather` (at most [`GATHER_MAX`]) as its body. `kind` must fit the link's
    /// purpose.
    pub fn send(
        &mut self,
        now: Instant,
        link: LinkId,
        kind: MessageKind,
        immediate: u32,
        gather: &[&[u8]],
    ) -> Result<(), SendError> {
        let _ = (now, link, kind, immediate, gather);
        Err(SendError::Down)
    }

    /// How many data messages can be sent on `link` now; 0 when it is not up.
    pub fn credits(&self, link: LinkId) -> u32 {
        let _ = link;
        0
    }

    /// Longest body of a message, in bytes.
    pub fn message_len(&self) -> usize {
        (self.config.message_len as usize).saturating_sub(16)
    }

    /// Closes a link: CLOSE, then a clean disconnect. Messages not yet received are dropped; `Down` (`Closed`) follows.
    pub fn close(&mut self, now: Instant, link: LinkId) {
        let _ = (now, link);
    }

    /// Breaks a link whose peer sent an ill-formed or forbidden body; `Down` (`Died(Owner)`) follows.
    pub fn fail(&mut self, now: Instant, link: LinkId) {
        let _ = (now, link);
    }

    /// When to call [`progress`](Self::progress) at the latest, though nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Arms the provider's wake descriptors; `Busy` also while received messages or events wait in the endpoint.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        self.provider.arm()
    }

    /// The descriptors to wait on after [`arm`](Self::arm), appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.provider.wake(into);
    }

    /// Counts changes of the set that [`wake`](Self::wake) tells.
    pub fn wake_generation(&self) -> u64 {
        self.provider.wake_generation()
    }

    /// The provider, for what only it can do.
    pub fn provider_mut(&mut self) -> &mut dyn Provider {
        self.provider.as_mut()
    }

    /// Takes the provider back without a word to any peer (a forked child abandons its parent's VIs so).
    pub fn into_provider(self) -> Box<dyn Provider> {
        self.provider
    }

    /// Totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All links, in slot order.
    pub fn links(&self) -> impl Iterator<Item = LinkInfo> + '_ {
        core::iter::empty()
    }

    /// One link, while it exists.
    pub fn link(&self, link: LinkId) -> Option<LinkInfo> {
        let _ = link;
        None
    }
}
