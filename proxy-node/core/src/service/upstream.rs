//! Upstream connections: a local service is the client's end of a flow whose other end is a server of a pool,
//! which is a process or a plain server.
//!
//! ```text
//!  client ── bytes, end ──▶ ┌──────────────┐ ── DATA, SHUTDOWN ──▶ channel of a process
//!   [ClientEnd]             │ local service│      [UpstreamEnd]
//!         ◀── bytes, end ── └──────────────┘ ◀── DATA, CREDIT ────
//!                  └────────── splice ──────────┘            or TCP, to a plain server
//!
//!  Request::Open ──▶ pending ── OPEN, ACCEPTED ──▶ opened(Ok) ──▶ served ──▶ upstream_gone
//!                       │  └── SYN, SYN/ACK ─────────┘
//!                       ├─ no server, refused, deadline ─▶ opened(Err)
//!                       └─ Request::Cancel ─▶ (no report)
//! ```
//! The flow has the stages, offers, credits and time limits of any other flow. What the server sends stays
//! in the memory in which it arrived until the service consumes it or moves it to a client. It is bounded by
//! the window: that of a process, for which memory is reserved, or that of the TCP engine. What the service
//! writes leaves as DATA at once, within the process's credit, and nothing is queued; or it is copied into
//! the TCP engine's send queue, within its capacity, for which memory is reserved.
//!
//! A service may have any number of upstream connections, and use each for one client after the other. It
//! [relates](Ends::relate) the two when a request passes, so that a trace shows both.
//!
//! Where the two kinds of servers differ:
//!
//! | | process | plain server |
//! |---|---|---|
//! | does not accept | [`OpenError::Refused`] at once | up to three servers are tried before that |
//! | window of the server | that of the request, and wider on demand | the TCP engine sizes it |
//! | after [`Step::Close`] | has [`CLOSING_MAX`](crate::CLOSING_MAX) to close | the TCP engine closes by itself |
//! | sees as its peer | [`Upstream::client`] | the egress address; the client by the PROXY protocol |

use std::net::SocketAddr;
use std::sync::Arc;

use csp_tcp::Buffer;
use csp_types::{FlowLabel, Instant};

use super::ClientEnd;
use super::local::Step;
use crate::dispatch::pool::MemberId;
use crate::dispatch::services::ServerHost;

pub use crate::dispatch::pool::ServerId;

/// Largest number of members that a request excludes.
pub const EXCLUDED_MAX: usize = 16;

/// The window of a process at an upstream connection, in bytes, if the request names none.
pub const UPSTREAM_WINDOW: u32 = 64 * 1024;

/// Pool members that a request must not use, such as those that were tried before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Excluded {
    servers: [Option<ServerId>; EXCLUDED_MAX],
}

impl Excluded {
    /// No members.
    pub const NONE: Excluded = Excluded { servers: [None; EXCLUDED_MAX] };

    /// Adds a member; `false` if there are [`EXCLUDED_MAX`] others.
    pub fn insert(&mut self, server: ServerId) -> bool {
        let place = self.servers.iter_mut().find(|known| known.is_none_or(|known| known == server));
        place.map(|place| *place = Some(server)).is_some()
    }

    /// Returns whether a member is excluded.
    pub fn contains(&self, server: ServerId) -> bool {
        self.servers.iter().map_while(|known| *known).any(|known| known == server)
    }

    /// Returns whether the member with this index is excluded.
    pub(crate) fn has(&self, member: MemberId) -> bool {
        self.servers.iter().map_while(|known| *known).any(|known| known.member == member)
    }

    /// Returns the excluded members for which `known` returns true.
    pub(crate) fn only(&self, known: impl Fn(ServerId) -> bool) -> Excluded {
        let mut kept = Excluded::NONE;
        self.servers.iter().map_while(|server| *server).filter(|server| known(*server)).for_each(|server| {
            kept.insert(server);
        });
        kept
    }

    /// Returns whether no member is excluded.
    pub fn is_empty(&self) -> bool {
        self.servers[0].is_none()
    }
}

/// A request for an upstream connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// Identifies the request in its answer and its cancellation. Unique among the service's unanswered
    /// requests; below 2⁶³.
    pub token: u64,
    /// The name of a service of the policy with a pool.
    pub service: Arc<str>,
    /// Members that must not be chosen.
    pub excluded: Excluded,
    /// The address that the process sees as its peer's, and that a header of the PROXY protocol names. If it
    /// is unspecified, no client is named, since the connection is to serve several: the process sees the
    /// address to which the client has connected, with this port, and the header names none.
    pub client: SocketAddr,
    /// The client's connection whose request is served first, for the trace and for the address that a header
    /// of the PROXY protocol names; [`FlowLabel::NONE`] if there is none.
    pub client_flow: FlowLabel,
    /// Largest window of a process in bytes; 0: [`UPSTREAM_WINDOW`]. It is smaller while memory is short.
    pub window: u32,
    /// Time at which the request fails if no server has accepted it. With excluded members it fails after
    /// [`NO_SERVER_GRACE`](crate::NO_SERVER_GRACE) at the latest. `None`: otherwise the limits of the
    /// service's backlog apply, and a process that was offered the connection may take as long as it wants.
    pub deadline: Option<Instant>,
}

/// A request of a local service to the core.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Open a connection. Answered by [`opened`](super::local::LocalServices::opened), unless it is
    /// cancelled.
    Open(Upstream),
    /// Withdraw the request with this token. Nothing is reported afterwards. Has no effect if it was answered
    /// before.
    Cancel(u64),
}

impl Request {
    /// Returns the request with a changed token.
    pub(super) fn with_token(self, f: impl FnOnce(u64) -> u64) -> Self {
        match self {
            Request::Open(upstream) => Request::Open(Upstream { token: f(upstream.token), ..upstream }),
            Request::Cancel(token) => Request::Cancel(f(token)),
        }
    }
}

/// An upstream connection that a server has accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its label.
    pub label: FlowLabel,
    /// The member that has accepted, to exclude it from other requests.
    pub server: ServerId,
    /// The member's node or address, and port.
    pub address: (ServerHost, u16),
}

/// Why a request for an upstream connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The policy has no service of this name, or its connections end at a service of the proxy.
    NoService,
    /// The service has no members.
    NoMember,
    /// The client's address is of another family than those of the service and of the front, and a process
    /// may be chosen.
    MixedFamilies,
    /// All members are excluded.
    AllExcluded,
    /// All members that are not excluded are on nodes that get no new connections.
    Draining,
    /// No process of the pool has listened, and no plain server been up, for
    /// [`NO_SERVER_GRACE`](crate::NO_SERVER_GRACE).
    NoServer,
    /// A process of this member has refused the connection; or this plain server, the last one tried, could
    /// not be reached.
    Refused(ServerId),
    /// The deadline or the time limit of the service's backlog has passed.
    TimedOut,
    /// The backlog, the table of upstream connections or the memory for windows is full.
    NoRoom,
    /// The service has an unanswered request with this token.
    TokenInUse,
}

/// How an upstream connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Both sides have finished, or the process has closed the connection or ended: all its bytes arrived.
    Closed,
    /// The server has reset it or closed it with unread bytes, or its link or its host was lost: bytes may be
    /// missing.
    Reset,
    /// The service has ended it.
    ByService,
}

/// The service's end of an upstream connection: a byte stream each way.
pub trait UpstreamEnd {
    /// Returns the number of readable bytes.
    fn readable(&self) -> usize;

    /// Returns up to `max` readable bytes without copying, slice by slice in order. A service must first
    /// return memory that it has borrowed ([`ClientEnd::lend`]), since it may be in the same region as these
    /// bytes.
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]>;

    /// Removes the first `len` readable bytes; the server may send as many more.
    fn consume(&mut self, len: usize);

    /// Returns whether the server has finished: no bytes follow the readable ones.
    fn is_finished(&self) -> bool;

    /// Returns how the connection has ended on the server's side; `None` if it has not. Readable bytes can
    /// still be read; writing has no effect.
    fn ended(&self) -> Option<Ended>;

    /// Returns whether the server's process will say what it has read when it closes the connection, as it
    /// now seems: it is no plain server, and has not got the connection from another process.
    fn tells_reads(&self) -> bool {
        false
    }

    /// Returns how many of the bytes that were written the server's process has read, once it has ended its
    /// stream or closed the connection, and said so. What follows these it has not seen. `None`: nobody
    /// knows.
    fn bytes_read(&self) -> Option<u64> {
        None
    }

    /// Returns the number of bytes that a process, or the send queue to a plain server, has room for. The
    /// connection is served again when there is more.
    fn room(&self) -> usize;

    /// Sends bytes, gathered from `parts`, in as few messages as possible. Returns the number sent. If these
    /// are fewer than all, the connection is served again when more can be sent.
    fn write(&mut self, parts: &[&[u8]]) -> usize;

    /// Returns the window of the process in bytes; the largest one of the TCP engine for a plain server.
    fn window(&self) -> u32;

    /// Widens the window of the process if memory permits; returns the new one. It is never narrowed. That of
    /// a plain server is the TCP engine's business.
    fn widen(&mut self, window: u32) -> u32;
}

/// The ends of a local service's connections, while one of them is served.
pub trait Ends {
    /// Returns the client's end of a connection that ends at a local service; `None` if it has ended, or the
    /// service has finished with it.
    fn client(&mut self, label: FlowLabel) -> Option<impl ClientEnd>;

    /// Returns the end of an upstream connection; `None` if it has ended, or the service has finished with
    /// it.
    fn upstream(&mut self, label: FlowLabel) -> Option<impl UpstreamEnd>;

    /// Moves up to `max` readable bytes from a client's end to an upstream end, or from an upstream end to
    /// a client's end, as far as the receiving end has room. Bytes of a process to a client over TCP stay
    /// in the memory in which they arrived, unless they are short; all others are copied once, into the
    /// message that carries them or into the send queue. Returns the number moved. If the receiving end has
    /// no room for all, that end's connection is served again when it has.
    fn splice(&mut self, from: FlowLabel, to: FlowLabel, max: usize) -> usize;

    /// Returns whether the server of an upstream connection would get a new one now, apart from limits of
    /// their number. A service that keeps connections for later requests ends those for which this is
    /// `false`: the policy names the server no longer or with weight 0, it is down, its node drains, or it is
    /// a backup that is not needed any more. When it becomes `false` the connection is served.
    fn is_wanted(&self, _upstream: FlowLabel) -> bool {
        true
    }

    /// Ends a connection as if serving it had returned `how`, after this call of the service. Nothing follows
    /// if it has ended, or the service is done with it; of several ways to end it the first one counts.
    fn end(&mut self, label: FlowLabel, how: Step);

    /// Records that this upstream connection serves requests of this client's connection from now on.
    fn relate(&mut self, client: FlowLabel, upstream: FlowLabel);

    /// Returns memory that a client's end has lent.
    fn give_back(&mut self, buffer: Buffer);
}
