//! One stream of a connection of HTTP/2, as an exchange uses it.

use csp_http::body::Piece;
use csp_http::exchange::{Connection, Plan};
use csp_http::head::Framing;
use csp_http::{Fault, Refusal};
use csp_http2::{Reason as Code, ServerConnection};
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::{FlowLabel, Instant};

use crate::client::Downstream;
use crate::exchange::{Exchange, Flow};
use crate::out::{Buffers, Out};
use crate::shared::{Cx, Slices};

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// Until it is over; the response may still be on its way.
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) side: Side,
    /// The trailer section of the request.
    pub(super) trailers: Vec<u8>,
    /// When the exchange was over, or a check since has found that the client had taken something.
    pub(super) since: Instant,
    /// What the client had not taken then, in bytes.
    pub(super) unsent: usize,
}

impl Stream {
    /// Creates the stream of an exchange.
    pub(super) fn new(exchange: Box<Exchange>, side: Side, now: Instant) -> Self {
        Stream { exchange: Some(exchange), side, trailers: Vec::new(), since: now, unsent: usize::MAX }
    }
}

/// What a stream keeps beside its exchange.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) websocket: bool,
    pub(super) awaits_continue: bool,
    /// All payload of the request was taken.
    pub(super) is_complete: bool,
    /// The exchange has got the end of the request.
    is_end_passed: bool,
    /// The final response has begun.
    is_answered: bool,
    /// The end of the response was sent, or is part of its head.
    is_ended: bool,
    /// The end of the response is to be sent behind what waits.
    ends: bool,
    pub(super) is_reset: bool,
    /// The gateway's own body.
    pub(super) out: Out,
}

/// A stream with the connection's machine.
pub(super) struct Joined<'a> {
    stream: u32,
    side: &'a mut Side,
    machine: &'a mut ServerConnection,
}

impl Side {
    /// Creates what a stream keeps, of a request with these properties.
    pub(super) fn new(websocket: bool, awaits_continue: bool) -> Self {
        Side { websocket, awaits_continue, ..Side::default() }
    }

    /// Returns the stream with the connection's machine.
    pub(super) fn joined<'a>(&'a mut self, stream: u32, machine: &'a mut ServerConnection) -> Joined<'a> {
        Joined { stream, side: self, machine }
    }
}

impl Joined<'_> {
    /// Writes what waits, and the end behind it. Returns whether something was written.
    pub(super) fn finish_writing(&mut self) -> bool {
        let waiting = self.side.out.waiting().len();
        let written = match waiting {
            0 => 0,
            _ => self.machine.send(self.stream, self.side.out.waiting(), false),
        };
        self.side.out.written(written, &mut Buffers::default());
        if written == waiting && self.side.ends && !self.side.is_ended {
            self.machine.send(self.stream, &[], true);
            self.side.is_ended = true;
        }
        written > 0
    }
}

/// Passes on what the client has sent of a request.
pub(super) fn pass_request(
    cx: &mut Cx<'_, impl Ends>,
    exchange: &mut Exchange,
    down: &mut Joined<'_>,
    trailers: &mut Vec<u8>,
) -> Flow {
    if !exchange.takes_request() {
        return Flow::Wait;
    }
    let readable = down.machine.data(down.stream).len();
    if readable > 0 {
        return match exchange.is_tunnel() {
            true => exchange.tunnel_up(cx, down, readable),
            false if down.side.websocket => Flow::Wait,
            false => exchange.request_payload(cx, down, readable),
        };
    }
    if !down.side.is_complete || down.side.is_end_passed {
        return Flow::Wait;
    }
    if down.side.websocket {
        if !exchange.is_tunnel() {
            return Flow::Wait;
        }
        down.side.is_end_passed = true;
        return exchange.tunnel_up_end(cx);
    }
    down.side.is_end_passed = true;
    if !trailers.is_empty() {
        exchange.request_trailers(cx, &std::mem::take(trailers));
    }
    exchange.request_end(cx);
    Flow::Moved
}

impl Downstream for Joined<'_> {
    fn interim(&mut self, status: u16) -> bool {
        self.side.awaits_continue &= status != 100;
        !self.side.is_answered
    }

    fn respond(&mut self, framing: Framing, _: bool) -> Option<Plan> {
        if std::mem::replace(&mut self.side.is_answered, true) {
            return None;
        }
        // HTTP/2 frames the body by itself.
        let framing = match framing {
            Framing::Chunked => Framing::UntilClose,
            framing => framing,
        };
        Some(Plan { framing, connection: Connection::Implied })
    }

    fn refuse(&mut self, framing: Framing) -> Option<Plan> {
        self.respond(framing, false)
    }

    fn switched(&mut self) -> Result<(), Refusal> {
        match self.side.websocket && !std::mem::replace(&mut self.side.is_answered, true) {
            true => Ok(()),
            false => Err(Refusal { fault: Fault::UnexpectedSwitch, line: 0 }),
        }
    }

    fn is_awaited(&self) -> bool {
        !self.side.is_answered
    }

    fn awaits_continue(&self) -> bool {
        self.side.awaits_continue
    }

    fn moved(&mut self, _: usize) {
        self.side.awaits_continue = false;
    }

    fn consume(&mut self, _: &mut impl Ends, _: usize) {}

    fn copy(&mut self, _: &mut impl Ends, _: usize, _: &mut Vec<u8>) {}

    fn pass_request(&mut self, ends: &mut impl Ends, to: FlowLabel, len: usize) -> usize {
        let Some(mut end) = ends.upstream(to) else { return 0 };
        let data = self.machine.data(self.stream);
        let written = end.write(&[&data[..data.len().min(len)]]);
        drop(end);
        self.machine.release(self.stream, written);
        written
    }

    fn take_request(&mut self, _: &mut impl Ends, len: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let data = self.machine.data(self.stream);
        let taken = take(&data[..data.len().min(len)]);
        self.machine.release(self.stream, taken);
        taken
    }

    fn out(&mut self) -> &mut Out {
        &mut self.side.out
    }

    fn head(&mut self, _: &mut impl Ends, text: &[u8], is_bodyless: bool, _: &mut Buffers) -> bool {
        let is_sent = self.machine.respond_text(self.stream, text, is_bodyless).is_ok();
        self.side.is_ended |= is_bodyless && is_sent;
        is_sent
    }

    fn trailers(&mut self, section: &[u8]) {
        if self.machine.trailers(self.stream, section).is_ok() {
            self.side.is_ended = true;
        }
    }

    fn flush(&mut self, _: &mut impl Ends, _: &mut Buffers) -> bool {
        self.finish_writing();
        self.side.out.is_empty()
    }

    fn pass_response(&mut self, ends: &mut impl Ends, from: FlowLabel, len: usize) -> usize {
        let Some(mut end) = ends.upstream(from) else { return 0 };
        let slices = Slices::of(end.peek(len));
        let mut moved = 0;
        for slice in slices.get() {
            let taken = self.machine.send(self.stream, slice, false);
            moved += taken;
            if taken < slice.len() {
                break;
            }
        }
        drop(slices);
        end.consume(moved);
        moved
    }

    fn write(&mut self, _: &mut impl Ends, payload: &[u8]) -> usize {
        self.machine.send(self.stream, payload, false)
    }

    fn end(&mut self) {
        self.side.ends = true;
        self.finish_writing();
    }

    fn cut(&mut self) {
        self.machine.reset(self.stream, Code::INTERNAL_ERROR);
        self.side.is_reset = true;
    }
}

impl Exchange {
    /// Passes on payload of a request.
    fn request_payload(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut Joined<'_>, len: usize) -> Flow {
        self.request_piece(cx, down, Piece::Payload(len))
    }
}
