//! One connection of HTTP/2 to a member.

use std::collections::{BTreeMap, VecDeque};

use csp_http2::{ClientConnection, ClientEvent, Limits, Reason as Code};
use csp_proxy_core::ServerHost;
use csp_proxy_core::service::upstream::{Ends, Opened, ServerId, UpstreamEnd};
use csp_types::{Duration, FlowLabel, Instant};

use crate::http2::READ_MAX;
use crate::pool::{PoolId, stream_end};
use crate::shared::Slices;
use crate::timers::Armed;

/// What a stream may send before it waits for its client, in bytes. The connection's window has room for that
/// of every stream, so that streams whose clients are slow never stop the others.
const STREAM_WINDOW: u32 = 64 << 10;
/// The window of a process at the connection in bytes.
const WIDE_WINDOW: u32 = 256 << 10;

/// The exchange of a stream: the client's connection and the serial number.
pub(crate) type Who = (FlowLabel, u32);

/// A head of a response that its exchange has not processed.
#[derive(Debug)]
pub(crate) struct Head {
    /// As text of HTTP/1.1.
    pub(crate) text: Vec<u8>,
}

/// How a stream has ended without a complete response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    /// The member has said that it has not processed the request.
    pub(crate) unprocessed: bool,
    /// The stream was reset; otherwise it was lost with its connection.
    pub(crate) is_reset: bool,
    /// It was reset since the member has violated the protocol.
    pub(crate) is_fault: bool,
}

/// What was received on a stream beside payload, which the machine keeps.
#[derive(Debug)]
pub(crate) struct Stream {
    who: Who,
    pub(crate) heads: VecDeque<Head>,
    /// The trailer section, once all payload was taken.
    pub(crate) trailers: Option<Vec<u8>>,
    pub(crate) reset: Option<Reset>,
    /// The machine has released the stream.
    is_over: bool,
}

/// A connection to a member.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) machine: ClientConnection,
    pub(super) label: FlowLabel,
    pub(super) server: ServerId,
    pub(super) address: (ServerHost, u16),
    pub(super) pool: PoolId,
    pub(super) streams: BTreeMap<u32, Stream>,
    /// Streams that were opened.
    pub(super) requests: u32,
    /// The member has sent something: its settings are known.
    pub(super) is_heard: bool,
    /// No further streams are opened.
    pub(super) is_retired: bool,
    /// It makes room for another one: it is reset.
    pub(super) is_evicted: bool,
    is_input_ended: bool,
    is_closed: bool,
    /// The core has removed the connection.
    pub(super) is_gone: bool,
    pub(super) is_dirty: bool,
    /// How long it is kept without streams.
    idle: Duration,
    /// When the last stream was left, or the connection has begun.
    since: Instant,
    pub(super) armed: Armed,
}

impl Link {
    pub(super) fn new(
        now: Instant,
        opened: &Opened,
        pool: PoolId,
        (streams_max, idle): (u32, Duration),
    ) -> Self {
        let limits = Limits {
            streams_max,
            stream_window: STREAM_WINDOW,
            connection_window: STREAM_WINDOW.saturating_mul(streams_max),
            ..Limits::default()
        };
        Link {
            machine: ClientConnection::new(&limits),
            label: opened.label,
            server: opened.server,
            address: opened.address,
            pool,
            streams: BTreeMap::new(),
            requests: 0,
            is_heard: false,
            is_retired: false,
            is_evicted: false,
            is_input_ended: false,
            is_closed: false,
            is_gone: false,
            is_dirty: false,
            idle,
            since: now,
            armed: Armed::default(),
        }
    }

    /// Returns whether a stream can be opened. Before the member's settings are known, there is one.
    pub(super) fn can_open(&mut self) -> bool {
        !self.is_retired && (self.is_heard || self.streams.is_empty()) && self.machine.can_open()
    }

    /// Records a stream that was opened.
    pub(super) fn begun(&mut self, number: u32, who: Who) {
        self.requests = self.requests.saturating_add(1);
        let stream = Stream { who, heads: VecDeque::new(), trailers: None, reset: None, is_over: false };
        self.streams.insert(number, stream);
    }

    /// Releases a stream; the member learns if its response is wanted no more.
    pub(super) fn leave(&mut self, now: Instant, number: u32) {
        let Some(stream) = self.streams.remove(&number) else { return };
        if !stream.is_over {
            self.machine.reset(number, Code::CANCEL);
        }
        self.since = now;
    }

    /// Passes received bytes to the machine. Returns whether there were any, or the stream has ended.
    pub(super) fn read(&mut self, now: Instant, ends: &mut impl Ends) -> bool {
        let Some(mut end) = ends.upstream(self.label) else { return self.end_input() };
        let (readable, is_open) = (end.readable(), stream_end(&end) == csp_http::exchange::StreamEnd::Open);
        if !self.is_heard && readable > 0 {
            self.is_heard = true;
            end.widen(WIDE_WINDOW);
        }
        let slices = Slices::of(end.peek(READ_MAX));
        let len = if readable > 0 { self.machine.receive(now, slices.get()) } else { 0 };
        drop(slices);
        if len > 0 {
            end.consume(len);
        }
        drop(end);
        let ended = !is_open && len == readable && self.end_input();
        len > 0 || ended
    }

    /// Reports that no bytes follow. Returns whether that is new.
    pub(super) fn end_input(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.is_input_ended, true);
        if is_new {
            self.machine.receive_end();
        }
        is_new
    }

    /// Writes output of the machine. Returns whether something was written.
    pub(super) fn write(&mut self, ends: &mut impl Ends) -> bool {
        if self.machine.output().is_empty() {
            return false;
        }
        let end = ends.upstream(self.label).filter(|end| end.ended().is_none());
        let written = match end {
            Some(mut end) => end.write(&[self.machine.output()]),
            None => self.machine.output().len(), // nobody receives it
        };
        self.machine.sent(written);
        written > 0
    }

    /// Processes what the machine reports, and adds the exchanges that have to continue to `woken`. Returns
    /// whether there was anything.
    pub(super) fn events(&mut self, woken: &mut VecDeque<Who>) -> bool {
        let Link { machine, streams, is_retired, is_closed, .. } = self;
        let mut any = false;
        while let Some(event) = machine.next_event() {
            any = true;
            let number = match event {
                ClientEvent::Response { stream, head, end, .. } => {
                    if let Some(found) = streams.get_mut(&stream) {
                        found.heads.push_back(Head { text: head.to_vec() });
                        if end {
                            found.trailers = Some(Vec::new());
                        }
                    }
                    stream
                }
                ClientEvent::End { stream, trailers } => {
                    if let Some(found) = streams.get_mut(&stream) {
                        found.trailers = Some(trailers.to_vec());
                    }
                    stream
                }
                ClientEvent::Reset { stream, reason, by_peer, unprocessed } => {
                    if let Some(found) = streams.get_mut(&stream) {
                        let is_reset = reason.is_some();
                        let is_fault = is_reset && !by_peer && !unprocessed;
                        found.reset = Some(Reset { unprocessed, is_reset, is_fault });
                        found.is_over = true;
                    }
                    stream
                }
                ClientEvent::Done { stream } => {
                    if let Some(found) = streams.get_mut(&stream) {
                        found.is_over = true;
                    }
                    stream
                }
                ClientEvent::Readable { stream } | ClientEvent::Room { stream } => stream,
                ClientEvent::GoneAway => {
                    *is_retired = true;
                    continue;
                }
                ClientEvent::Closed { .. } => {
                    (*is_retired, *is_closed) = (true, true);
                    continue;
                }
            };
            if let Some(found) = streams.get(&number)
                && woken.back() != Some(&found.who)
            {
                woken.push_back(found.who);
            }
        }
        any
    }

    /// Opens no further streams.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
        self.machine.go_away();
    }

    /// Returns whether all was sent on a connection that has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closed && self.machine.output().is_empty()
    }

    /// Returns whether it has no streams, and can have some.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty() && !self.is_retired
    }

    /// Returns when it is closed if it stays without streams.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.is_idle().then(|| self.since + self.idle)
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn rest(&mut self) {
        if self.streams.is_empty() && self.machine.output().is_empty() && !self.machine.wants_poll() {
            self.machine.shrink();
        }
    }
}
