//! A client's connection of HTTP/2: one exchange of each stream.
//!
//! ```text
//!  client's end ══ bytes ══▶ ServerConnection ── events ──▶ [Stream] ── Downstream ──▶ [Exchange]
//!       ◀══════ output ══════ (csp-http2)   ◀── heads, payload ──────────────────────────┘
//! ```
//! `csp-http2` owns frames, windows and budgets. This part moves bytes between it and the client's end, joins
//! streams to exchanges, and keeps the connection's times. The serial number of an exchange is its stream's.

mod stream;
mod times;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use csp_http::forward::PeerText;
use csp_http::head::HeadReader;
use csp_http2::{Event, Limits, Malformed, Remedy, ServerConnection};
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, OpenError, Opened};
use csp_types::{Duration, FlowLabel, Instant};

use self::stream::{Side, Stream};
use crate::Reason;
use crate::exchange::{Exchange, Flow};
use crate::held::Part;
use crate::http2::{READ_MAX, TURNS_MAX};
use crate::shared::{Cx, Shared, Slices};
use crate::spec::HttpService;
use crate::timers::Armed;

/// How long a connection is read on after GOAWAY, and after FIN, and how long its client may take no byte of
/// what is left when it closes.
const LINGER: Duration = Duration::from_secs(5);
/// Requests that begin in one call at most, apart from those of its last turn.
const REQUESTS_MAX: usize = 32;
/// Most steps of one exchange in a turn.
const STEPS_MAX: usize = 16;

/// A client's connection of HTTP/2.
#[derive(Debug)]
pub(crate) struct Connection {
    label: FlowLabel,
    machine: ServerConnection,
    streams: BTreeMap<u32, Stream>,
    /// Streams whose exchanges may go on.
    ready: VecDeque<u32>,
    service: Arc<HttpService>,
    peer: SocketAddr,
    peer_text: PeerText,
    /// Bytes that the connection has sent before it was known to be one of HTTP/2.
    first: Vec<u8>,
    /// When the present wait has begun: for a request, for what crosses GOAWAY, for the client to take what
    /// is left, or for its FIN.
    since: Instant,
    /// Whether a request has begun.
    is_used: bool,
    end: End,
    /// Its part of the memory of the worker's connections.
    held: Part,
    armed: Armed,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// GOAWAY is to be sent, or was: no further streams begin.
    Draining,
    /// The machine has closed: what is left of the output is sent, then FIN.
    Closing,
    /// FIN was sent.
    Finished,
}

impl Connection {
    /// Creates the connection of a client whose first bytes are `first`.
    pub(crate) fn new(
        now: Instant,
        label: FlowLabel,
        (peer, peer_text): (SocketAddr, PeerText),
        service: &Arc<HttpService>,
        (limits, seed): (&Limits, u64),
        first: Vec<u8>,
    ) -> Self {
        Connection {
            label,
            machine: ServerConnection::new(limits, seed),
            streams: BTreeMap::new(),
            ready: VecDeque::new(),
            service: Arc::clone(service),
            peer,
            peer_text,
            first,
            since: now,
            is_used: false,
            end: End::Open,
            held: Part::default(),
            armed: Armed::default(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.service.number
    }

    pub(crate) fn timer_due(&mut self) {
        self.armed.clear();
    }

    /// Has the exchange of this serial number served, and the connection.
    pub(crate) fn wake(&mut self, serial: u32) {
        self.ready.push_back(serial);
    }

    /// Asks the client for no further requests. Returns that the connection has to be served.
    pub(crate) fn drain(&mut self, now: Instant) -> bool {
        if self.end == End::Open {
            (self.end, self.since) = (End::Draining, now);
            self.machine.go_away();
        }
        true
    }

    /// Moves what can be moved, and keeps the memory of all connections of the worker within its bound.
    pub(crate) fn serve(&mut self, cx: &mut Cx<'_, impl Ends>) -> Step {
        let step = self.turns(cx);
        let held = if matches!(step, Step::Idle | Step::Moved) { self.machine.buffered() } else { 0 };
        cx.shared.held.set(self.label, &mut self.held, held);
        match cx.shared.held.excess() {
            Some(label) if label == self.label => {
                cx.shared.held.set(self.label, &mut self.held, 0);
                Step::Reset
            }
            Some(label) => {
                cx.shared.ready.push_back(label);
                step
            }
            None => step,
        }
    }

    fn turns(&mut self, cx: &mut Cx<'_, impl Ends>) -> Step {
        let mut moved = false;
        let mut begun = 0;
        for _ in 0..TURNS_MAX {
            if self.end == End::Finished {
                return self.linger(cx);
            }
            // What comes behind the last stream would have answers that renew the wait.
            let read = self.end != End::Closing && self.read(cx);
            self.machine.poll();
            let heard = self.events(cx, &mut begun);
            let worked = self.work(cx);
            self.machine.poll();
            let wrote = self.write(cx);
            if self.end == End::Closing && self.machine.output().is_empty() {
                (self.end, self.since) = (End::Finished, cx.now);
                cx.shared.ready.push_back(self.label);
                return Step::Finish;
            }
            if self.end == End::Closing && self.deadline() <= cx.now {
                return Step::Reset;
            }
            let rests = !(read || heard || worked || wrote);
            if rests && (self.deadline() > cx.now || !self.overdue(cx)) {
                self.arm(cx);
                self.rest();
                return if moved { Step::Moved } else { Step::Idle };
            }
            moved = true;
            if begun >= REQUESTS_MAX {
                break;
            }
        }
        cx.shared.ready.push_back(self.label);
        self.arm(cx);
        Step::Moved
    }

    fn arm(&mut self, cx: &mut Cx<'_, impl Ends>) {
        let deadline = self.deadline();
        cx.shared.timers.arm(self.label, &mut self.armed, Some(deadline));
    }

    /// Releases memory that an idle connection does not need.
    fn rest(&mut self) {
        if self.streams.is_empty() && self.machine.output().is_empty() && !self.machine.wants_poll() {
            self.machine.shrink();
        }
    }

    /// Passes received bytes to the machine. Returns whether there were any.
    fn read(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        if !self.first.is_empty() {
            let len = self.machine.receive(cx.now, &[&self.first]);
            self.first.drain(..len);
            return len > 0;
        }
        let Some(mut end) = cx.ends.client(self.label) else { return false };
        let (readable, is_finished) = (end.readable(), end.is_finished());
        let slices = Slices::of(end.peek(READ_MAX));
        let len = if readable > 0 { self.machine.receive(cx.now, slices.get()) } else { 0 };
        drop(slices);
        if len > 0 {
            end.consume(len);
        }
        if is_finished && len == readable {
            self.machine.receive_end();
        }
        len > 0
    }

    /// Writes output of the machine. Returns whether something was written.
    fn write(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        if self.machine.output().is_empty() {
            return false;
        }
        let Some(mut end) = cx.ends.client(self.label) else { return false };
        let written = end.write(self.machine.output(), None);
        self.machine.sent(written);
        if !self.machine.output().is_empty() {
            end.call_again();
        }
        // Not while draining: a client that sends PING would renew it for ever.
        if written > 0 && (self.end == End::Closing || self.end == End::Open && self.streams.is_empty()) {
            self.since = cx.now;
        }
        written > 0
    }

    /// Processes what the machine reports, up to [`REQUESTS_MAX`] requests of a call. Returns whether there
    /// was anything. `begun`: how many requests the call has begun.
    fn events(&mut self, cx: &mut Cx<'_, impl Ends>, begun: &mut usize) -> bool {
        let mut any = false;
        while *begun < REQUESTS_MAX
            && let Some(event) = self.machine.next_event()
        {
            any = true;
            *begun += usize::from(matches!(event, Event::Request { .. } | Event::Refused { .. }));
            match event {
                Event::Request { stream, head, end, websocket } => {
                    let head = {
                        let mut copy = cx.shared.work.buffers.take();
                        copy.extend_from_slice(head);
                        copy
                    };
                    self.request(cx, stream, &head, (end, websocket));
                    cx.shared.work.buffers.give(head);
                }
                Event::Refused { stream, fault } => self.refused(cx, stream, fault),
                Event::Readable { stream } | Event::Room { stream } => self.ready.push_back(stream),
                Event::End { stream, trailers } => {
                    if let Some(found) = self.streams.get_mut(&stream) {
                        found.trailers = trailers.to_vec();
                        found.side.is_complete = true;
                        self.ready.push_back(stream);
                    }
                }
                Event::Reset { stream, .. } => self.gone_stream(cx.now, stream, cx.shared),
                Event::Done { stream } => self.gone_stream(cx.now, stream, cx.shared),
                Event::Closed { .. } => {
                    (self.end, self.since) = (End::Closing, cx.now);
                    while let Some((stream, _)) = self.streams.first_key_value() {
                        let stream = *stream;
                        self.gone_stream(cx.now, stream, cx.shared);
                    }
                }
            }
        }
        any
    }

    /// Begins the exchange of a request. `end`: it has no body.
    fn request(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        stream: u32,
        head: &[u8],
        (end, websocket): (bool, bool),
    ) {
        if let Some(served) = cx.shared.services.get(&self.service.number)
            && !Arc::ptr_eq(&served.spec, &self.service)
        {
            self.service = Arc::clone(&served.spec);
        }
        self.is_used = true;
        let of = (self.label, self.peer);
        let mut exchange = cx.shared.spare.place(Exchange::new(&self.service, of, stream, (cx.now, cx.now)));
        cx.shared.exchanges += 1;
        let limits = csp_http::Limits { head_len_max: csp_http::limits::HEAD_LEN_MAX, ..self.service.limits };
        let client = cx.ends.client(self.label).filter(|_| self.service.certificate.any());
        let identity = client.and_then(|client| client.identity().cloned());
        let Shared { scratch, work, .. } = &mut *cx.shared;
        work.identity = identity;
        let (begun, awaits_continue) = match HeadReader::default().request(&[head], true, &limits, scratch) {
            Ok(Some(request)) => {
                let begun = exchange.begin(&request, &self.peer_text, false, work);
                (begun, request.expects_continue())
            }
            Ok(None) => (Err(Reason::Client(csp_http::Fault::TruncatedHead)), false),
            Err(refusal) => (Err(Reason::Client(refusal.fault)), false),
        };
        let mut side = Side::new(websocket, awaits_continue);
        side.is_complete = end;
        let found = Stream::new(exchange, side, cx.now);
        let found = self.streams.entry(stream).insert_entry(found).into_mut();
        let Some(exchange) = &mut found.exchange else { return };
        let flow = match begun {
            Ok(()) => {
                if websocket {
                    exchange.request_end(cx); // what follows belongs to the tunnel
                }
                exchange.open(cx);
                Flow::Moved
            }
            Err(reason) => {
                let mut down = found.side.joined(stream, &mut self.machine);
                exchange.fail(cx, &mut down, reason)
            }
        };
        self.after(cx, stream, flow);
        self.ready.push_back(stream);
    }

    /// Answers a request that the machine has refused, or records that its stream was reset.
    fn refused(&mut self, cx: &mut Cx<'_, impl Ends>, stream: u32, fault: Malformed) {
        self.is_used = true;
        let of = (self.label, self.peer);
        let mut exchange = cx.shared.spare.place(Exchange::new(&self.service, of, stream, (cx.now, cx.now)));
        cx.shared.exchanges += 1;
        let mut side = Side::default();
        match fault.remedy() {
            Remedy::Answer(_) => {
                let mut down = side.joined(stream, &mut self.machine);
                exchange.fail(cx, &mut down, Reason::Malformed(fault));
                self.streams.insert(stream, Stream::new(exchange, side, cx.now));
                self.after(cx, stream, Flow::Over);
            }
            Remedy::Reset => exchange.refuse_stream(cx.now, Reason::Malformed(fault), cx.shared),
        }
    }

    /// Lets exchanges take steps. Returns whether one did.
    fn work(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        let mut moved = false;
        for _ in 0..self.ready.len() {
            let Some(stream) = self.ready.pop_front() else { break };
            let mut again = true;
            for _ in 0..STEPS_MAX {
                again = self.step(cx, stream);
                if !again {
                    break;
                }
                moved = true;
            }
            if again {
                self.ready.push_back(stream);
            }
        }
        moved
    }

    /// Takes a step of one exchange, in both directions. Returns whether something was moved.
    fn step(&mut self, cx: &mut Cx<'_, impl Ends>, stream: u32) -> bool {
        let Connection { streams, machine, .. } = self;
        let Some(found) = streams.get_mut(&stream) else { return false };
        let Stream { exchange, side, trailers, .. } = found;
        let Some(exchange) = exchange else {
            // The answer is written as the client makes room.
            return side.joined(stream, machine).finish_writing();
        };
        let up = stream::pass_request(cx, exchange, &mut side.joined(stream, machine), trailers);
        let down = match up {
            Flow::Over => Flow::Over,
            _ => exchange.advance(cx, &mut side.joined(stream, machine)),
        };
        self.after(cx, stream, down);
        up != Flow::Wait || down != Flow::Wait
    }

    /// Continues after a step of an exchange.
    fn after(&mut self, cx: &mut Cx<'_, impl Ends>, stream: u32, flow: Flow) {
        let Some(found) = self.streams.get_mut(&stream).filter(|_| flow == Flow::Over) else { return };
        if let Some(exchange) = found.exchange.take() {
            self.since = cx.now;
            found.since = cx.now;
            exchange.finish(cx.now, cx.shared);
        }
        let is_reset = found.side.is_reset;
        found.side.joined(stream, &mut self.machine).finish_writing();
        found.unsent = self.machine.unsent(stream) + found.side.out.waiting().len();
        if is_reset {
            self.streams.remove(&stream);
        }
    }

    /// Releases a stream that has ended.
    fn gone_stream(&mut self, now: Instant, stream: u32, shared: &mut Shared) {
        let Some(mut found) = self.streams.remove(&stream) else { return };
        self.since = now;
        found.side.out.clear(&mut shared.work.buffers);
        if let Some(exchange) = found.exchange.take() {
            exchange.abandon(now, self.label, shared);
        }
    }

    pub(crate) fn opened(
        &mut self,
        now: Instant,
        serial: u32,
        outcome: Result<Opened, OpenError>,
        shared: &mut Shared,
    ) -> bool {
        self.ready.push_back(serial);
        let exchange = self.streams.get_mut(&serial).and_then(|stream| stream.exchange.as_mut());
        exchange.is_some_and(|exchange| exchange.opened(now, (self.label, serial), outcome, shared))
    }

    pub(crate) fn ask_again(&mut self, now: Instant, serial: u32, shared: &mut Shared) {
        if let Some(exchange) = self.streams.get_mut(&serial).and_then(|stream| stream.exchange.as_mut()) {
            exchange.ask_again(now, self.label, serial, shared);
        }
    }

    pub(crate) fn gone(mut self, now: Instant, shared: &mut Shared) {
        shared.timers.disarm(self.label, &mut self.armed);
        shared.held.set(self.label, &mut self.held, 0);
        shared.work.buffers.give(std::mem::take(&mut self.first));
        while let Some((stream, _)) = self.streams.first_key_value() {
            let stream = *stream;
            self.gone_stream(now, stream, shared);
        }
    }
}
