//! A client's connection of HTTP/1.1.
//!
//! ```text
//!          first byte      head complete             response written
//!  Idle ──────────────▶ Head ──────────▶ [Exchange] ─────────────────┬─▶ Idle
//!    │ idle               │ late: 408                                ├─▶ FIN, Lingering ─▶ closed
//!    └──▶ closed          └──▶ FIN, Lingering                        └─▶ reset
//! ```
//! The machine of `csp-http` says what the readable bytes are; this part reads them, writes what waits for
//! the client, and keeps the connection's times.

mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use csp_http::exchange::{After, ClientSide, FromClient, StreamEnd};
use csp_http::forward::PeerText;
use csp_http::head::{Request, Scheme};
use csp_http::limits::HEAD_LEN_MAX;
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, OpenError, Opened};
use csp_types::{Duration, FlowLabel, Instant};

use self::stream::{Carry, Stream};
use super::{Downstream, h2};
use crate::Reason;
use crate::exchange::{Exchange, Flow};
use crate::out::Out;
use crate::shared::{Cx, Shared, Slices};
use crate::spec::HttpService;
use crate::timers::Armed;

/// How long a connection is read on after FIN, so that its client receives the response and no reset.
const LINGER: Duration = Duration::from_secs(5);
/// Most bytes of parts of heads that a worker keeps for connections of TLS.
const CARRIED_MAX: usize = 8 << 20;
/// Most steps of one call; then other connections have their turn.
const STEPS_MAX: usize = 64;

/// Outcome of serving a connection.
pub(crate) enum Outcome {
    Step(Step),
    /// The connection is one of HTTP/2, and [`Connection::into_http2`] continues.
    Http2,
}

/// Outcome of one step.
enum Go {
    Http2,
    Moved,
    Wait,
    End(Step),
}

/// A client's connection of HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    exchange: Option<Box<Exchange>>,
    service: Arc<HttpService>,
    peer: SocketAddr,
    peer_text: PeerText,
    /// Number of exchanges begun.
    serial: u32,
    /// When the present wait has begun: for a request, for the rest of one, or for the client's FIN.
    since: Instant,
    /// When the first byte of the head that is read came.
    head_since: Option<Instant>,
    /// FIN was sent.
    finished: bool,
    /// Nothing follows once all is written.
    closing: bool,
    armed: Armed,
}

impl Connection {
    /// Creates the connection of a client that has connected now.
    pub(crate) fn new(now: Instant, label: FlowLabel, peer: SocketAddr, service: &Arc<HttpService>) -> Self {
        let side = ClientSide::default();
        let (out, carry) = (Out::default(), Carry::default());
        let stream = Stream { label, side, out, carry, limits: service.limits, after: None };
        Connection {
            stream,
            exchange: None,
            service: Arc::clone(service),
            peer,
            peer_text: PeerText::new(peer.ip()),
            serial: 0,
            since: now,
            head_since: None,
            finished: false,
            closing: false,
            armed: Armed::default(),
        }
    }

    /// Returns the number of the service.
    pub(crate) fn number(&self) -> u32 {
        self.service.number
    }

    /// Records that its timer is due.
    pub(crate) fn timer_due(&mut self) {
        self.armed.clear();
    }

    /// Ends the connection after its exchange. Returns whether it has none, and has to be served. One that
    /// has had none yet waits for its first request, which is on its way: no client sends that again.
    pub(crate) fn drain(&mut self, _: Instant) -> bool {
        let is_idle = self.stream.side.close_after_exchange() && self.head_since.is_none() && self.serial > 0;
        self.closing |= is_idle;
        is_idle
    }

    /// Moves what can be moved.
    pub(crate) fn serve(&mut self, cx: &mut Cx<'_, impl Ends>) -> Outcome {
        let mut moved = false;
        for _ in 0..STEPS_MAX {
            match self.step(cx) {
                Go::Moved => moved = true,
                Go::End(step) => return self.leave(cx, step),
                Go::Http2 => return Outcome::Http2,
                Go::Wait => {
                    if self.deadline() > cx.now || moved {
                        self.arm(cx);
                        return Outcome::Step(if moved { Step::Moved } else { Step::Idle });
                    }
                    if let Go::End(step) = self.overdue(cx) {
                        return self.leave(cx, step);
                    }
                    moved = true;
                }
            }
        }
        cx.shared.ready.push_back(self.stream.label);
        self.arm(cx);
        Outcome::Step(Step::Moved)
    }

    /// Returns the connection as one of HTTP/2; `None` if its service has none.
    pub(crate) fn into_http2(mut self, now: Instant, shared: &mut Shared) -> Option<h2::Connection> {
        shared.timers.disarm(self.stream.label, &mut self.armed);
        let limits = self.service.http2?;
        let first = self.stream.carry.take(&mut shared.work);
        let seed = shared.work.random.next();
        let peer = (self.peer, self.peer_text);
        Some(h2::Connection::new(now, self.stream.label, peer, &self.service, (&limits, seed), first))
    }

    fn arm(&mut self, cx: &mut Cx<'_, impl Ends>) {
        let deadline = self.deadline();
        cx.shared.timers.arm(self.stream.label, &mut self.armed, Some(deadline));
    }

    /// Ends the connection, or its direction to the client.
    fn leave(&mut self, cx: &mut Cx<'_, impl Ends>, step: Step) -> Outcome {
        if step == Step::Finish {
            (self.finished, self.since) = (true, cx.now);
            // Bytes that are readable already cause no further call.
            cx.shared.ready.push_back(self.stream.label);
            self.arm(cx);
        }
        Outcome::Step(step)
    }

    fn step(&mut self, cx: &mut Cx<'_, impl Ends>) -> Go {
        let waiting = self.stream.out.waiting().len();
        let is_flushed = self.stream.flush(cx.ends, &mut cx.shared.work.buffers);
        self.stream.carry.settle(&mut cx.shared.work);
        if self.stream.out.waiting().len() < waiting && !self.finished {
            self.since = cx.now;
        }
        match self.stream.after {
            Some(After::Reset) => return Go::End(Step::Reset),
            Some(_) if !is_flushed => return Go::Wait,
            Some(After::Keep) => {
                (self.stream.after, self.since, self.head_since) = (None, cx.now, None);
            }
            Some(After::Finish) => {
                self.stream.after = None;
                if !self.finished && !self.closing {
                    return Go::End(Step::Finish);
                }
            }
            None => {}
        }
        if self.closing {
            return if is_flushed { Go::End(Step::Close) } else { Go::Wait };
        }
        match (self.read(cx), self.advance(cx)) {
            (Go::Http2, _) => Go::Http2,
            (Go::End(step), _) | (_, Go::End(step)) => Go::End(step),
            (Go::Moved, _) | (_, Go::Moved) => Go::Moved,
            (Go::Wait, Go::Wait | Go::Http2) => Go::Wait,
        }
    }

    /// Has the exchange take a step.
    fn advance(&mut self, cx: &mut Cx<'_, impl Ends>) -> Go {
        match &mut self.exchange {
            Some(exchange) => {
                let flow = exchange.advance(cx, &mut self.stream);
                self.after(cx, flow)
            }
            None => Go::Wait,
        }
    }

    /// Continues after a step of the exchange.
    fn after(&mut self, cx: &mut Cx<'_, impl Ends>, flow: Flow) -> Go {
        match flow {
            Flow::Wait => Go::Wait,
            Flow::Moved => Go::Moved,
            Flow::Over => {
                if let Some(exchange) = self.exchange.take() {
                    self.since = cx.now;
                    self.closing |= exchange.was_tunnel();
                    exchange.finish(cx.now, cx.shared);
                }
                Go::Moved
            }
        }
    }

    /// Processes what the client has sent next.
    fn read(&mut self, cx: &mut Cx<'_, impl Ends>) -> Go {
        let waits = match &self.exchange {
            Some(exchange) => !exchange.takes_request(),
            // The next request begins when the response before it is written.
            None => !self.stream.out.is_empty(),
        };
        let Some(mut end) = cx.ends.client(self.stream.label).filter(|_| !waits) else { return Go::Wait };
        let (readable, is_finished) = (end.readable(), end.is_finished());
        let carried = self.stream.carry.len();
        let identity = if self.service.certificate.any() { end.identity().cloned() } else { None };
        let may_be_http2 = self.serial == 0 && self.service.http2.is_some();
        // RFC 9113 §3.2: what ALPN has chosen is spoken. Without it the first bytes decide.
        let chosen = if may_be_http2 { end.protocol().map(|name| name == b"h2") } else { None };
        let slices = Slices::of(self.stream.carry.slice().into_iter().chain(end.peek(HEAD_LEN_MAX)));
        let stream_end = match is_finished && slices.bytes == carried + readable {
            true => StreamEnd::Finished,
            false => StreamEnd::Open,
        };
        if readable > 0 && self.exchange.is_none() && self.head_since.is_none() {
            self.head_since = Some(cx.now);
        }
        let is_http2 = || may_be_http2 && chosen.unwrap_or_else(|| begins_with(slices.get(), PREFACE));
        if slices.bytes > 0 && is_http2() {
            return Go::Http2;
        }
        let limits = self.stream.limits;
        let Shared { scratch, work, services, spare, .. } = &mut *cx.shared;
        let from = match self.stream.side.read(slices.get(), stream_end, &limits, scratch) {
            Ok(from) => from,
            Err(refusal) => {
                drop(slices);
                drop(end);
                return self.refuse(cx, Reason::Client(refusal.fault));
            }
        };
        if let FromClient::Request(request) = &from {
            if let Some(served) = services.get(&self.service.number)
                && !Arc::ptr_eq(&served.spec, &self.service)
            {
                self.service = Arc::clone(&served.spec);
                self.stream.limits = self.service.limits;
            }
            self.serial = self.serial.wrapping_add(1);
            let first = self.head_since.take().unwrap_or(cx.now);
            let of = (self.stream.label, self.peer);
            let mut exchange = spare.place(Exchange::new(&self.service, of, self.serial, (first, cx.now)));
            work.identity = identity;
            let begun = exchange.begin(request, &self.peer_text, true, work);
            self.stream.side.accept(request);
            let len = Request::head_len(request);
            drop(slices);
            drop(end);
            self.stream.consume(cx.ends, len);
            return self.begun(cx, exchange, begun);
        }
        let (said, is_partial) = (Said::of(&from), matches!(from, FromClient::More) && readable > 0);
        drop(slices);
        drop(end);
        if is_partial && self.service.scheme == Scheme::Https {
            return self.carry(cx);
        }
        self.process(cx, said)
    }

    /// Takes a part of a head or of trailers out of the connection: of TLS only one record is readable at a
    /// time, and the next one when that is consumed.
    fn carry(&mut self, cx: &mut Cx<'_, impl Ends>) -> Go {
        let Some(mut end) = cx.ends.client(self.stream.label) else { return Go::Wait };
        let slices = Slices::of(end.peek(HEAD_LEN_MAX));
        let len = slices.bytes;
        let work = &mut cx.shared.work;
        if work.carried + len > CARRIED_MAX {
            drop(slices);
            drop(end);
            return self.refuse(cx, Reason::NoRoom);
        }
        self.stream.carry.push(slices.get(), work);
        drop(slices);
        end.consume(len);
        Go::Moved
    }

    /// Begins an exchange whose head was processed.
    fn begun(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        exchange: Box<Exchange>,
        begun: Result<(), Reason>,
    ) -> Go {
        cx.shared.exchanges += 1;
        let exchange = self.exchange.insert(exchange);
        match begun {
            Ok(()) => {
                exchange.open(cx);
                Go::Moved
            }
            Err(reason) => {
                let flow = exchange.fail(cx, &mut self.stream, reason);
                self.after(cx, flow)
            }
        }
    }

    fn process(&mut self, cx: &mut Cx<'_, impl Ends>, said: Said) -> Go {
        let flow = match (said, &mut self.exchange) {
            (Said::Nothing, _) => return Go::Wait,
            (Said::Body(piece), Some(exchange)) => exchange.request_piece(cx, &mut self.stream, piece),
            (Said::End, Some(exchange)) => {
                exchange.request_end(cx);
                Flow::Moved
            }
            (Said::Tunnel(len), Some(exchange)) => exchange.tunnel_up(cx, &mut self.stream, len),
            (Said::TunnelEnd, Some(exchange)) => exchange.tunnel_up_end(cx),
            (Said::Discard(len), _) => {
                self.stream.consume(cx.ends, len);
                self.head_since = None;
                if !self.finished {
                    self.since = cx.now;
                }
                Flow::Moved
            }
            (Said::Finish, _) if !self.finished => return Go::End(Step::Finish),
            (Said::Closed, _) => return Go::End(Step::Close),
            _ => return Go::Wait,
        };
        self.after(cx, flow)
    }

    /// Answers a fault of the client.
    fn refuse(&mut self, cx: &mut Cx<'_, impl Ends>, reason: Reason) -> Go {
        if self.exchange.is_none() {
            cx.shared.exchanges += 1;
            self.serial = self.serial.wrapping_add(1);
            let first = self.head_since.take().unwrap_or(cx.now);
            let of = (self.stream.label, self.peer);
            self.exchange =
                Some(cx.shared.spare.place(Exchange::new(&self.service, of, self.serial, (first, cx.now))));
        }
        self.stream.carry.clear(&mut cx.shared.work);
        let Some(exchange) = &mut self.exchange else { return Go::Wait };
        let flow = exchange.fail(cx, &mut self.stream, reason);
        self.after(cx, flow)
    }

    /// Returns when the connection has waited too long.
    fn deadline(&self) -> Instant {
        let times = &self.service.timeouts;
        match (&self.exchange, self.head_since) {
            (Some(exchange), _) => exchange.deadline(),
            _ if self.finished => self.since + LINGER,
            // What waits to be written, or the rest of a request that is discarded.
            _ if !self.stream.out.is_empty() || !self.stream.side.is_idle() => self.since + times.body_idle,
            (None, Some(first)) => first + times.head,
            (None, None) if self.serial == 0 => self.since + times.head,
            (None, None) => self.since + times.idle,
        }
    }

    /// The deadline has passed, and nothing can be moved.
    fn overdue(&mut self, cx: &mut Cx<'_, impl Ends>) -> Go {
        if let Some(exchange) = &mut self.exchange {
            let readable = cx.ends.client(self.stream.label).map_or(0, |end| end.readable());
            let flow = exchange.overdue(cx, &mut self.stream, readable);
            return self.after(cx, flow);
        }
        if self.finished {
            return Go::End(Step::Close);
        }
        if !self.stream.out.is_empty() || !self.stream.side.is_idle() {
            return Go::End(Step::Reset);
        }
        if self.head_since.is_some() {
            return self.refuse(cx, Reason::HeadTimeout);
        }
        Go::End(Step::Close)
    }

    /// Processes the core's answer to the exchange's request for a connection. Returns whether it waits for
    /// one.
    pub(crate) fn opened(
        &mut self,
        now: Instant,
        serial: u32,
        outcome: Result<Opened, OpenError>,
        shared: &mut Shared,
    ) -> bool {
        let label = self.stream.label;
        let exchange = self.exchange.as_mut();
        exchange.is_some_and(|exchange| exchange.opened(now, (label, serial), outcome, shared))
    }

    /// Has the exchange ask again for a connection to a member.
    pub(crate) fn ask_again(&mut self, now: Instant, serial: u32, shared: &mut Shared) {
        if let Some(exchange) = &mut self.exchange {
            exchange.ask_again(now, self.stream.label, serial, shared);
        }
    }

    /// Releases what the connection has, after it has ended.
    pub(crate) fn gone(mut self, now: Instant, shared: &mut Shared) {
        shared.timers.disarm(self.stream.label, &mut self.armed);
        self.stream.out.clear(&mut shared.work.buffers);
        self.stream.carry.clear(&mut shared.work);
        if let Some(exchange) = self.exchange.take() {
            exchange.abandon(now, self.stream.label, shared);
        }
    }
}

/// How a connection of HTTP/2 begins (RFC 9113 §3.4): no method of HTTP/1.1 has this name.
const PREFACE: &[u8] = b"PRI ";

/// Returns whether the bytes begin with `preface`.
fn begins_with(slices: &[&[u8]], preface: &[u8]) -> bool {
    let mut bytes = slices.iter().copied().flatten();
    preface.iter().all(|expected| bytes.next() == Some(expected))
}

/// What the client has said, without its bytes, but for requests.
enum Said {
    Nothing,
    Body(csp_http::body::Piece),
    End,
    Tunnel(usize),
    TunnelEnd,
    Discard(usize),
    Finish,
    Closed,
}

impl Said {
    fn of(from: &FromClient<'_>) -> Said {
        match from {
            FromClient::More | FromClient::Waiting | FromClient::Request(_) => Said::Nothing,
            FromClient::Body(piece) => Said::Body(*piece),
            FromClient::RequestEnd => Said::End,
            FromClient::Tunnel(len) => Said::Tunnel(*len),
            FromClient::TunnelEnd => Said::TunnelEnd,
            FromClient::Discard(len) => Said::Discard(*len),
            FromClient::Finish => Said::Finish,
            FromClient::Closed => Said::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an idle connection takes, and an exchange on top of it.
    #[test]
    fn connections_are_small() {
        assert!(size_of::<Connection>() <= 360, "{}", size_of::<Connection>());
        assert!(size_of::<Exchange>() <= 1_056, "{}", size_of::<Exchange>());
        assert!(size_of::<crate::pool::Member>() <= 232, "{}", size_of::<crate::pool::Member>());
    }
}
