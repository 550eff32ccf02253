//! The application's end of the transport: sockets over channels to any number of proxy workers.
//!
//! [`AppSide`] is the part that the socket filter, the C API and the simulation share. It keeps a link to
//! every announced proxy worker (and reconnects when one is lost), listeners with their accept queues, and
//! flows with their receive queues and byte credit. It implements the semantics of kernel TCP sockets: end of
//! stream after the peer's SHUTDOWN, `ECONNRESET` after the delivered data, `EPIPE`, `EAGAIN`. Bytes accepted
//! by [`AppSide::write`] are in the VI's ring when it returns, so that they are delivered even if the process
//! ends right after.
//!
//! It has no clock and no threads, uses no descriptors of the program and never blocks: the owner passes
//! `now`, queries [readiness](AppSide::readiness), and waits on [`AppSide::wake`].
//!
//! ```text
//!   OPEN ──▶ accept queue ──accept()──▶ ACCEPTED, Open ──close()──▶ CLOSE sent ──peer's CLOSE──▶ gone
//!              │  peer's CLOSE/RESET,     │  peer's RESET: CLOSE sent, label free, errors stay readable
//!              ▼  no interest: REFUSED    ▼
//!             gone                       link lost: ECONNRESET after what was delivered
//! ```

mod channel;
mod config;
mod counters;
mod errors;
mod flow;
mod handover;
mod input;
mod listener;
mod options;
mod peek;
mod records;
mod redirect;
mod refused;
mod slots;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;

use csp_types::{Instant, TraceEvent, TraceKind, TraceRing};
use csp_vi::{Armed, ViError, Wake};

use channel::{AppChannel, Lane};
pub use config::{AppConfig, CHANNELS_MAX, ProxyTarget};
pub use counters::AppCounters;
use csp_transport::Endpoint;
use csp_transport::token::Token;
pub use errors::{AppError, errno};
pub use flow::{Directions, FlowInfo, FlowPhase};
pub use handover::{HandOver, LeftFlow};
pub use listener::{Accepted, PAUSE_MAX};
use records::{Flow, Listener};
use slots::Slots;
pub use slots::{FlowId, ListenerId};

/// A socket of the application: a listener or a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Handle {
    /// A socket that accepts connections.
    Listener(ListenerId),
    /// A connection, established or in progress.
    Flow(FlowId),
}

/// The operations that a socket permits without blocking: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Readiness(pub u8);

impl Readiness {
    /// Data, end of stream, an error, or a connection to accept.
    pub const READABLE: Readiness = Readiness(1);
    /// Room to write (at least a third of the window), or an error that writing would report.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The peer will send no more.
    pub const PEER_SHUTDOWN: Readiness = Readiness(4);
    /// Both directions are over.
    pub const HANG_UP: Readiness = Readiness(8);
    /// An error is pending.
    pub const ERROR: Readiness = Readiness(16);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit is set.
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

/// Largest number of trace events that wait for [`AppSide::poll_trace`]. Older ones are dropped here and
/// remain in the ring.
const FRESH_TRACE_MAX: usize = 1024;

/// Largest number of messages handled by one call of [`AppSide::progress`], so that a flood does not delay
/// the caller.
const MESSAGES_PER_PROGRESS: usize = 512;

/// The application's end. It has one owner (the filter keeps it under its lock).
pub struct AppSide {
    endpoint: Endpoint,
    config: AppConfig,
    token: Token,
    token_refused: bool,
    channels: Vec<AppChannel>,
    listeners: Slots<Listener>,
    flows: Slots<Flow>,
    /// Listeners that proxies refused and that are announced again later.
    listen_again: Vec<refused::Retry>,
    /// Connections that wait for a link to the proxy worker that serves them.
    redirected: Vec<redirect::Waiting>,
    ready: VecDeque<Handle>,
    /// Flows with corked bytes.
    held: Vec<FlowId>,
    scratch: Vec<u8>,
    packing: Vec<u8>,
    counters: AppCounters,
    trace: TraceRing,
    fresh_trace: VecDeque<TraceEvent>,
    next_lane: usize,
    /// Listeners whose interest is [paused](records::Interest::Paused).
    paused: Vec<ListenerId>,
    /// Accept credit was held back because the table of flows was full.
    flows_were_full: bool,
    now: Instant,
}

impl AppSide {
    /// Creates an application end over `endpoint` (created with
    /// [`EndpointConfig::channel`](csp_transport::EndpointConfig::channel)), which proves its identity with
    /// `token`. It connects to no proxy before [`set_proxies`](Self::set_proxies).
    pub fn new(endpoint: Endpoint, config: AppConfig, token: Token) -> Self {
        let message_len = endpoint.message_len();
        AppSide {
            channels: Vec::new(),
            listeners: Slots::new(config.listeners_max),
            flows: Slots::new(config.flows_max),
            listen_again: Vec::new(),
            redirected: Vec::new(),
            ready: VecDeque::new(),
            held: Vec::new(),
            scratch: vec![0; message_len],
            packing: Vec::with_capacity(message_len),
            counters: AppCounters::default(),
            trace: TraceRing::new(config.trace_capacity),
            fresh_trace: VecDeque::new(),
            next_lane: 0,
            paused: Vec::new(),
            flows_were_full: false,
            now: Instant::ZERO,
            token_refused: false,
            endpoint,
            config,
            token,
        }
    }

    /// Performs all pending work: handshakes, received messages, messages that waited for credit, retries.
    /// Returns whether there was any. `unix_now_s` as for [`Endpoint::progress`].
    pub fn progress(&mut self, now: Instant, unix_now_s: u64) -> bool {
        self.now = now;
        let mut any = self.endpoint.progress(now, unix_now_s);
        any |= self.process_input();
        self.check_pauses();
        self.announce_refused();
        self.settle_redirected();
        self.grant_held_back();
        self.connect_channels();
        for channel in 0..self.channels.len() {
            for lane in (0..self.config.pool.into()).map(|index| Lane { channel, index }) {
                self.flush(lane);
                any |= self.wake_blocked(lane);
            }
        }
        any
    }

    /// Returns the next socket whose readiness may have changed since it was last returned. Each arrival
    /// makes a socket eligible again, as edge-triggered waiting requires.
    pub fn poll_ready(&mut self) -> Option<Handle> {
        while let Some(handle) = self.ready.pop_front() {
            let known = match handle {
                Handle::Listener(id) => self.listeners.get_mut(id.0).map(|l| l.queued_ready = false),
                Handle::Flow(id) => self.flows.get_mut(id.0).map(|f| f.queued_ready = false),
            };
            if known.is_some() {
                return Some(handle);
            }
        }
        None
    }

    /// The readiness of a socket; empty for an unknown one.
    pub fn readiness(&self, handle: Handle) -> Readiness {
        match handle {
            Handle::Listener(id) => self.listener_readiness(id),
            Handle::Flow(id) => self.flow_readiness(id),
        }
    }

    /// Latest time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let retries = self.channels.iter().flat_map(AppChannel::next_tries);
        let again = self.listen_again.iter().map(|(due, ..)| *due);
        let own = self.pause_deadline().into_iter().chain(self.redirect_deadline());
        retries.chain(self.endpoint.next_timeout()).chain(own).chain(again).min()
    }

    /// Arms the descriptors of [`wake`](Self::wake), after sending all corked bytes.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        self.release_all_held();
        if !self.ready.is_empty() {
            return Ok(Armed::Busy);
        }
        self.endpoint.arm()
    }

    /// The descriptors to wait on after [`arm`](Self::arm), appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.endpoint.wake(into);
    }

    /// Generation of the set that [`wake`](Self::wake) returns; it changes with the set.
    pub fn wake_generation(&self) -> u64 {
        self.endpoint.wake_generation()
    }

    /// Totals.
    pub fn counters(&self) -> &AppCounters {
        &self.counters
    }

    /// The flight recorder.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// Returns the next event recorded since the last call, for an owner that publishes events elsewhere.
    pub fn poll_trace(&mut self) -> Option<TraceEvent> {
        self.fresh_trace.pop_front()
    }

    /// Number of events that wait for [`poll_trace`](Self::poll_trace); beyond 1,024 the oldest are dropped.
    pub fn trace_waiting(&self) -> usize {
        self.fresh_trace.len()
    }

    /// The endpoint below, for its counters and links.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the endpoint without sending anything to any peer (a forked child thus abandons its parent's
    /// links).
    pub fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// Number of flows, including those that wait to be accepted and those that are closing.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Number of listeners.
    pub fn listener_count(&self) -> usize {
        self.listeners.len()
    }

    /// Whether a proxy refused the token as expired or bad since the last [`set_token`](Self::set_token).
    pub fn token_refused(&self) -> bool {
        self.token_refused
    }

    /// Sets the token for links opened from now on.
    pub fn set_token(&mut self, token: Token) {
        self.token = token;
        self.token_refused = false;
    }

    fn notify(&mut self, handle: Handle) {
        let queued = match handle {
            Handle::Listener(id) => self.listeners.get_mut(id.0).map(|l| &mut l.queued_ready),
            Handle::Flow(id) => self.flows.get_mut(id.0).filter(|f| !f.orphan).map(|f| &mut f.queued_ready),
        };
        if let Some(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.ready.push_back(handle);
        }
    }

    fn record(&mut self, kind: TraceKind, id: FlowId, len: usize) {
        let flow = self.flows.get(id.0).map(|f| (f.traced_label, f.traced_proxy));
        let Some((label, proxy)) = flow else { return };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let event = TraceEvent { at: self.now, label, kind, proxy, len, ..TraceEvent::default() };
        self.trace.record(event);
        if self.fresh_trace.len() == FRESH_TRACE_MAX {
            self.fresh_trace.pop_front();
        }
        self.fresh_trace.push_back(event);
    }
}
