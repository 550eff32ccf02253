//! Connections of clients. Each protocol joins its streams to exchanges by [`Downstream`].
//!
//! ```text
//!  [h1::Connection] ── one exchange at a time ──▶ [Exchange] ──▶ member
//!  [h2::Connection] ── one exchange of each stream    │
//!         ◀── Downstream: respond, write, pass ───────┘
//! ```
//! A connection is one of HTTP/1.1 until its first bytes: it is one of HTTP/2 if ALPN has chosen that, or,
//! without ALPN, if they are its preface.

pub(crate) mod h1;
pub(crate) mod h2;

use csp_http::Refusal;
use csp_http::exchange::Plan;
use csp_http::head::Framing;
use csp_proxy_core::service::upstream::{Ends, OpenError, Opened};
use csp_types::{FlowLabel, Instant};

use crate::out::{Buffers, Out};
use crate::shared::Shared;

/// A client's connection.
#[allow(clippy::large_enum_variant, reason = "most connections are of HTTP/1.1, and stay so")]
#[derive(Debug)]
pub(crate) enum Client {
    Http1(h1::Connection),
    Http2(Box<h2::Connection>),
}

/// Calls a method of either protocol's connection.
macro_rules! of_either {
    ($client:ident, $connection:ident => $call:expr) => {
        match $client {
            Client::Http1($connection) => $call,
            Client::Http2($connection) => $call,
        }
    };
}

impl Client {
    /// Returns the number of the service.
    pub(crate) fn number(&self) -> u32 {
        of_either!(self, connection => connection.number())
    }

    /// Records that its timer is due.
    pub(crate) fn timer_due(&mut self) {
        of_either!(self, connection => connection.timer_due());
    }

    /// Ends the connection after its exchanges. Returns whether it has to be served.
    pub(crate) fn drain(&mut self, now: Instant) -> bool {
        of_either!(self, connection => connection.drain(now))
    }

    /// Has the exchange of this serial number served when the connection is.
    pub(crate) fn wake(&mut self, serial: u32) {
        if let Client::Http2(connection) = self {
            connection.wake(serial);
        }
    }

    /// Processes the core's answer to a request for a connection. Returns whether it was awaited.
    pub(crate) fn opened(
        &mut self,
        now: Instant,
        serial: u32,
        outcome: Result<Opened, OpenError>,
        shared: &mut Shared,
    ) -> bool {
        of_either!(self, connection => connection.opened(now, serial, outcome, shared))
    }

    /// Has an exchange ask again for a connection to a member.
    pub(crate) fn ask_again(&mut self, now: Instant, serial: u32, shared: &mut Shared) {
        of_either!(self, connection => connection.ask_again(now, serial, shared));
    }

    /// Releases what the connection has, after it has ended.
    pub(crate) fn gone(self, now: Instant, shared: &mut Shared) {
        of_either!(self, connection => connection.gone(now, shared));
    }
}

/// A client's side of one exchange, whatever protocol its connection speaks.
pub(crate) trait Downstream {
    /// Returns whether an interim response goes to the client, and records it.
    fn interim(&mut self, status: u16) -> bool;

    /// Begins the response, whose sender frames its body by `framing`. `None`: one has begun before.
    /// `closes`: the connection ends after it.
    fn respond(&mut self, framing: Framing, closes: bool) -> Option<Plan>;

    /// Begins an answer to a request that is read no further. `None`: a response has begun before.
    fn refuse(&mut self, framing: Framing) -> Option<Plan>;

    /// Switches to another protocol.
    fn switched(&mut self) -> Result<(), Refusal>;

    /// Returns whether a response may begin.
    fn is_awaited(&self) -> bool;

    /// Returns whether the client waits for 100 before it sends the body.
    fn awaits_continue(&self) -> bool;

    /// Reports that payload or trailers of the request were consumed.
    fn moved(&mut self, len: usize);

    /// Consumes bytes of the request that are no payload.
    fn consume(&mut self, ends: &mut impl Ends, len: usize);

    /// Copies bytes of the request that are readable to `room`.
    fn copy(&mut self, ends: &mut impl Ends, len: usize, room: &mut Vec<u8>);

    /// Moves payload of the request to a member's connection. Returns the number of bytes moved.
    fn pass_request(&mut self, ends: &mut impl Ends, to: FlowLabel, len: usize) -> usize;

    /// Consumes payload of the request, of `len` readable bytes as much as `take` takes. Returns the number
    /// of bytes taken.
    fn take_request(
        &mut self,
        ends: &mut impl Ends,
        len: usize,
        take: &mut dyn FnMut(&[u8]) -> usize,
    ) -> usize;

    /// Returns what the gateway writes itself, before payload that passes later.
    fn out(&mut self) -> &mut Out;

    /// Writes a head, whose text is of HTTP/1.1. `is_bodyless`: no body follows. Returns `false` if the
    /// client's protocol cannot carry it.
    fn head(&mut self, ends: &mut impl Ends, text: &[u8], is_bodyless: bool, buffers: &mut Buffers) -> bool;

    /// Writes the trailers of a response whose body the client's protocol frames by itself: the section that
    /// was received.
    fn trailers(&mut self, section: &[u8]);

    /// Writes what waits in [`out`](Self::out). Returns whether nothing waits any more.
    fn flush(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> bool;

    /// Moves payload of the response from a member's connection. Returns the number of bytes moved.
    fn pass_response(&mut self, ends: &mut impl Ends, from: FlowLabel, len: usize) -> usize;

    /// Writes payload of the response. Returns the number of bytes written.
    fn write(&mut self, ends: &mut impl Ends, payload: &[u8]) -> usize;

    /// Ends the response: all of it was written.
    fn end(&mut self);

    /// Ends the response before all of it was written, in a way that the client can see.
    fn cut(&mut self);
}
