//! One request and its response, whatever protocol the client speaks.
//!
//! ```text
//!            kept connection
//!  begin ─┬───────────────────────▶ Joined ── 101 ──▶ Tunnel
//!         │ open      opened           │ │               │
//!         ├─────▶ Opening ─────────────▶ │               │
//!         │          ▲  │   lost, may be sent again      │
//!         │          └──┼────────────────┘               │
//!         ▼ refused     ▼ failed          ▼ response end ▼ both ends
//!       answer ───────────────────────────────────────────────▶ (over: log, counters)
//! ```
//! An exchange keeps the head that goes to the member, so that it can be sent again, and no part of a body
//! but the start of one that goes to a member of HTTP/2: a body stays at the client's connection until the
//! member's connection is there. A request of a method that is not idempotent is not sent again unless the
//! member has provably read nothing of it.

mod answer;
mod begin;
pub(crate) mod cache;
mod compressed;
mod end;
mod filter;
mod late;
mod member;
mod open;
mod request;
mod response;
mod stored;
mod stream;

use filter::Filtered;
use std::net::SocketAddr;
use std::sync::Arc;

use csp_http::forward::Edits;
use csp_http::head::Framing;
use csp_proxy_core::service::upstream::Excluded;
use csp_types::{Duration, FlowLabel, Instant};

use crate::Reason;
use crate::compressor::Compressor;
use crate::framer::Framer;
use crate::links::StreamId;
use crate::out::Out;
use crate::pool::PoolId;
use crate::record::Record;
use crate::spec::{HttpService, Rule, Timeouts};

/// Outcome of one step of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Something was moved, and more may be.
    Moved,
    /// Nothing can be moved now.
    Wait,
    /// The exchange is over.
    Over,
}

/// How far an exchange is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No member is asked.
    New,
    /// A connection was asked for.
    Opening,
    /// It uses this connection.
    Joined(FlowLabel),
    /// This connection carries another protocol.
    Tunnel(FlowLabel),
    /// It waits for a stream of a connection of HTTP/2.
    Waiting,
    /// It uses this stream.
    Stream(StreamId),
    /// It waits for a response that another exchange stores.
    Shared,
    /// The client gets a stored response.
    Stored,
}

/// What an exchange keeps whose target speaks HTTP/2.
#[derive(Clone, Copy, Debug, Default)]
struct OverHttp2 {
    /// Whether the members of its target speak HTTP/2.
    is_spoken: bool,
    /// The end of the request was sent.
    is_ended: bool,
    /// An interim response has come.
    is_begun: bool,
    /// No connection is opened beside others.
    is_narrow: bool,
    /// How often the request was sent again, since a connection that had carried others has not processed it.
    again: u8,
    /// The connection that has not processed it last.
    avoid: Option<u32>,
}

/// What of the request is needed after its head.
#[derive(Clone, Copy, Debug)]
struct Asked {
    framing: Framing,
    is_head: bool,
    is_idempotent: bool,
    is_upgrade: bool,
    /// Whether it is a call of gRPC.
    is_grpc: bool,
}

/// An exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    service: Arc<HttpService>,
    rule: Option<usize>,
    peer: SocketAddr,
    /// Distinguishes it from other exchanges of the same connection.
    serial: u32,
    stage: Stage,
    asked: Asked,
    /// The head for the member; of a redirect, where it leads.
    head: Vec<u8>,
    head_sent: usize,
    /// Framing of the body for the member.
    up: Out,
    up_framer: Framer,
    /// Of members of HTTP/2.
    over_http2: OverHttp2,
    /// What the member was sent of the body, while it can be sent again.
    replay: Vec<u8>,
    /// How much of that a member of HTTP/1.1 was sent again.
    replay_sent: u16,
    /// The time that a call of gRPC has.
    grpc_timeout: Option<Duration>,
    /// A byte of the body was consumed and is kept nowhere: it cannot be sent again.
    body_touched: bool,
    request_ended: bool,
    /// The service whose pool gets the request.
    target: Option<Arc<str>>,
    /// That pool, once it was asked.
    pool: Option<PoolId>,
    excluded: Excluded,
    /// Members that have failed.
    tried: u8,
    /// Kept connections are not used any more.
    fresh: bool,
    /// A kept connection was ended for this exchange.
    has_evicted: bool,
    /// How the last member has failed.
    failed: Option<Reason>,
    /// Why no connection could be opened.
    failure: Option<Reason>,
    /// The response, once its head has come.
    down_framer: Option<Framer>,
    /// Bytes of the gateway's own body.
    answered: u64,
    /// Which directions of a tunnel have ended: client's, member's.
    tunnel_ended: (bool, bool),
    /// When the connection to the member was there.
    joined: Option<Instant>,
    /// When all of the request was sent.
    sent: Option<Instant>,
    /// When something has moved last.
    progress: Instant,
    /// What filters have found and keep.
    filtered: Filtered,
    /// What it has to do with the cache, if its rule has one.
    cache: Option<Box<cache::State>>,
    /// What compresses the response.
    compressor: Option<Box<Compressor>>,
    record: Record,
}

impl Exchange {
    /// Creates the exchange of a client's connection, whose request's first byte came at `first`.
    pub(crate) fn new(
        service: &Arc<HttpService>,
        (client, peer): (FlowLabel, SocketAddr),
        serial: u32,
        (first, now): (Instant, Instant),
    ) -> Self {
        let mut record = Record::new(&service.name, peer, client, now);
        record.phases.head = now - first;
        Exchange {
            service: Arc::clone(service),
            rule: None,
            peer,
            serial,
            stage: Stage::New,
            asked: Asked {
                framing: Framing::None,
                is_head: false,
                is_idempotent: false,
                is_upgrade: false,
                is_grpc: false,
            },
            head: Vec::new(),
            head_sent: 0,
            up: Out::default(),
            up_framer: Framer::new(Framing::None, Framing::None),
            over_http2: OverHttp2::default(),
            replay: Vec::new(),
            replay_sent: 0,
            grpc_timeout: None,
            body_touched: false,
            request_ended: false,
            target: None,
            pool: None,
            excluded: Excluded::NONE,
            tried: 0,
            fresh: false,
            has_evicted: false,
            failed: None,
            failure: None,
            down_framer: None,
            answered: 0,
            tunnel_ended: (false, false),
            joined: None,
            sent: None,
            progress: now,
            filtered: Filtered::default(),
            cache: None,
            compressor: None,
            record,
        }
    }

    fn rule(&self) -> Option<&Rule> {
        self.service.rules().get(self.rule?)
    }

    /// Returns the edits of responses.
    fn response_edits(&self) -> &Edits {
        self.rule().map_or(&self.service.edits, |rule| &rule.response_edits)
    }

    fn timeouts(&self) -> &Timeouts {
        self.rule().map_or(&self.service.timeouts, |rule| &rule.timeouts)
    }

    /// Returns the connection to the member that it uses.
    fn member(&self) -> Option<FlowLabel> {
        match self.stage {
            Stage::Joined(label) | Stage::Tunnel(label) => Some(label),
            Stage::New | Stage::Opening | Stage::Waiting | Stage::Stream(_) => None,
            Stage::Shared | Stage::Stored => None,
        }
    }

    /// Returns the token of its request for a connection. A label has 32 bits, and tokens have 63.
    fn token(&self, client: FlowLabel) -> u64 {
        u64::from(client.to_wire()) << 31 | u64::from(self.serial & 0x7fff_ffff)
    }

    /// Returns whether further bytes of the request may be read: the member gets them next.
    pub(crate) fn takes_request(&self) -> bool {
        match self.stage {
            Stage::Joined(_) => self.is_written(),
            Stage::Tunnel(_) => !self.tunnel_ended.0,
            Stage::Stream(_) => true,
            Stage::New | Stage::Opening | Stage::Waiting | Stage::Shared | Stage::Stored => false,
        }
    }

    /// Returns whether it has become a tunnel.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self.stage, Stage::Tunnel(_))
    }

    /// Returns when it has taken too long.
    pub(crate) fn deadline(&self) -> Instant {
        let times = self.timeouts();
        let after = |since: Instant, time: Duration| match time.is_zero() {
            true => Instant::FAR_FUTURE,
            false => since + time,
        };
        let of_stage = match (self.stage, self.sent) {
            (Stage::Tunnel(_), _) => return after(self.progress, times.tunnel_idle),
            (Stage::New | Stage::Opening, _) => Instant::FAR_FUTURE,
            (Stage::Waiting, _) => after(self.progress, times.connect),
            (Stage::Shared, _) => {
                let wait = self.cache.as_ref().and_then(|state| state.wait);
                wait.map_or(Instant::FAR_FUTURE, |(_, look)| look)
            }
            (Stage::Stored, _) => after(self.progress, times.body_idle),
            (Stage::Joined(_) | Stage::Stream(_), Some(sent)) if self.down_framer.is_none() => {
                after(sent, times.response)
            }
            (Stage::Joined(_) | Stage::Stream(_), _) => after(self.progress, times.body_idle),
        };
        of_stage.min(self.total_deadline())
    }

    /// Returns when the exchange has taken too long as a whole.
    fn total_deadline(&self) -> Instant {
        let total = Some(self.timeouts().total).filter(|total| !total.is_zero());
        match [total, self.grpc_timeout].into_iter().flatten().min() {
            Some(total) => self.record.began + total,
            None => Instant::FAR_FUTURE,
        }
    }
}

/// Returns the client's connection and the serial number in a token.
pub(crate) fn of_token(token: u64) -> Option<(FlowLabel, u32)> {
    let label = FlowLabel::from_wire(u32::try_from(token >> 31).ok()?)?;
    Some((label, (token & 0x7fff_ffff) as u32))
}
