//! Connections of clients.

mod event;
mod stream;

pub use event::Event;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use csp_http::head::{HeadReader, Response, Scratch};
use csp_types::Instant;
use h2::server::{Builder, Connection, Handshake};

use crate::budget::Flood;
use crate::chunk::Chunk;
use crate::error::{Cause, Reason, SendError};
use crate::head::{WIDEST, request, scratch, to_http2};
use crate::limits::{Limits, SEND_BUFFER_MAX};
use crate::link::{Link, STEPS_MAX};
use crate::malformed::{Malformed, Remedy};
use crate::pipe::Pipe;
use event::Queued;
use stream::Stream;

enum State {
    Handshake(Box<Handshake<Pipe, Chunk>>),
    Open(Box<Connection<Pipe, Chunk>>),
    Closed,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Handshake(_) => "Handshake",
            State::Open(_) => "Open",
            State::Closed => "Closed",
        })
    }
}

/// A connection of a client, from the preface on.
#[derive(Debug)]
pub struct ServerConnection {
    state: State,
    link: Link,
    limits: Limits,
    streams: BTreeMap<u32, Stream>,
    events: VecDeque<Queued>,
    /// The text of the event that was returned last.
    text: Vec<u8>,
    scratch: Option<Box<Scratch>>,
    seed: u64,
    drains: bool,
    calmed: bool,
}

impl ServerConnection {
    /// Creates a connection. `seed`: a random number, for the keys of WebSocket handshakes.
    pub fn new(limits: &Limits, seed: u64) -> Self {
        let limits = limits.bounded();
        let link = Link::new(true, &limits);
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(limits.streams_max)
            .initial_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_header_list_size(limits.header_list_max)
            .max_frame_size(limits.frame_len_max)
            .max_pending_accept_reset_streams(limits.pending_resets_max)
            .max_local_error_reset_streams(Some(limits.faults_max))
            .max_send_buffer_size(SEND_BUFFER_MAX)
            // h2 would read a clock: streams are remembered until others take their place.
            .reset_stream_duration(Duration::MAX)
            .enable_connect_protocol();
        let handshake = builder.handshake(link.pipe.clone());
        ServerConnection {
            state: State::Handshake(Box::new(handshake)),
            link,
            limits,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            text: Vec::new(),
            scratch: None,
            seed,
            drains: false,
            calmed: false,
        }
    }

    /// Takes bytes that the client has sent, as many as the turn permits. Returns their number; the caller
    /// leaves the others where they are, calls [`poll`](Self::poll), and may call again.
    pub fn receive(&mut self, now: Instant, slices: &[&[u8]]) -> usize {
        match self.state {
            State::Closed => slices.iter().map(|slice| slice.len()).sum(),
            _ => self.link.receive(now, slices),
        }
    }

    /// Reports that no bytes follow those that were taken.
    pub fn receive_end(&mut self) {
        self.link.pipe.receive_end();
    }

    /// Processes what was received and what was called since the last time. Call it once after any number
    /// of other calls, then fetch events and output.
    pub fn poll(&mut self) {
        self.obey_flood();
        for _ in 0..STEPS_MAX {
            self.link.give_room();
            self.link.flag.take();
            self.step();
            self.link.collect();
            self.poll_streams();
            if !self.wants_poll() {
                return;
            }
        }
    }

    /// Returns whether [`poll`](Self::poll) would do something.
    pub fn wants_poll(&self) -> bool {
        let is_open = !matches!(self.state, State::Closed);
        is_open && (self.link.flag.is_set() || self.streams.values().any(|stream| stream.ready.is_set()))
    }

    /// Returns the bytes that are to be sent to the client. There is a bound: h2 writes nothing more
    /// while they wait.
    pub fn output(&self) -> &[u8] {
        self.link.output()
    }

    /// Reports that the first `len` bytes of the output were sent.
    pub fn sent(&mut self, len: usize) {
        self.link.sent(len);
    }

    /// Returns the next event. The caller calls until `None`; what it does meanwhile is processed, too.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        loop {
            // What the caller did upon the last event may have an event of its own.
            if self.events.is_empty() && self.wants_poll() {
                self.poll();
            }
            match self.events.pop_front()? {
                Queued::Request(stream) => match self.begin(stream) {
                    Some(Ok(websocket)) => {
                        let end = self.streams.get(&stream)?.incoming.is_done();
                        return Some(Event::Request { stream, head: &self.text, end, websocket });
                    }
                    Some(Err(fault)) => return Some(Event::Refused { stream, fault }),
                    None => {}
                },
                Queued::Readable(stream) if self.streams.contains_key(&stream) => {
                    return Some(Event::Readable { stream });
                }
                Queued::End(stream) if self.streams.contains_key(&stream) => {
                    let trailers = self.streams.get(&stream)?.incoming.trailers();
                    return Some(Event::End { stream, trailers });
                }
                Queued::Room(stream) if self.streams.contains_key(&stream) => {
                    return Some(Event::Room { stream });
                }
                Queued::Readable(_) | Queued::End(_) | Queued::Room(_) => {}
                Queued::Reset(stream, reason, by_peer) => {
                    return Some(Event::Reset { stream, reason, by_peer });
                }
                Queued::Done(stream) => {
                    // Only now: the events before it show what the stream has. What its release schedules
                    // is written in the next turn.
                    self.streams.remove(&stream);
                    self.link.flag.set();
                    return Some(Event::Done { stream });
                }
                Queued::Closed(cause) => return Some(Event::Closed { cause }),
            }
        }
    }

    /// Returns payload of a request that lies together; empty if there is none.
    pub fn data(&self, stream: u32) -> &[u8] {
        self.streams.get(&stream).map_or(&[], |stream| stream.incoming.data())
    }

    /// Reports that `len` bytes of payload were taken by the member: the client may send as many more.
    pub fn release(&mut self, stream: u32, len: usize) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        found.incoming.release(len);
        if found.incoming.report_end() {
            self.events.push_back(Queued::End(stream));
        }
    }

    /// Sends a response: final or interim (1xx). `end`: it has no body.
    pub fn respond(&mut self, stream: u32, head: &Response<'_>, end: bool) -> Result<(), SendError> {
        let found = self.streams.get_mut(&stream).ok_or(SendError::NoStream)?;
        found.respond(to_http2::response(head, found.websocket)?, head.is_interim(), end)
    }

    /// The same for a response as text of HTTP/1.1, such as [`csp_http::forward::response`] writes.
    pub fn respond_text(&mut self, stream: u32, head: &[u8], end: bool) -> Result<(), SendError> {
        // Taken, since the head that is read borrows it.
        let mut memory = self.scratch.take().unwrap_or_else(scratch);
        let read = HeadReader::default().response(&[head], true, &WIDEST, &mut memory);
        let outcome = match read {
            Ok(Some(head)) => self.respond(stream, &head, end),
            _ => Err(SendError::Head),
        };
        self.scratch = Some(memory);
        outcome
    }

    /// Returns how many bytes of a response [`send`](Self::send) would take.
    pub fn room(&self, stream: u32) -> usize {
        self.streams.get(&stream).map_or(0, |stream| stream.outgoing.room())
    }

    /// Returns the bytes of a response that were sent and are not in the output yet.
    pub fn unsent(&self, stream: u32) -> usize {
        self.streams.get(&stream).map_or(0, |stream| stream.outgoing.unsent())
    }

    /// Sends bytes of a response behind its head. Returns how many were taken: if not all, `Room` follows.
    /// `end`: the response ends with the last of them.
    pub fn send(&mut self, stream: u32, bytes: &[u8], end: bool) -> usize {
        let Some(found) = self.streams.get_mut(&stream) else { return 0 };
        let taken = found.outgoing.send(bytes, end);
        self.link.budget.earn_sent(taken);
        taken
    }

    /// Ends a response with a trailer section as text of HTTP/1.1, of which nothing is sent that may not
    /// trail.
    pub fn trailers(&mut self, stream: u32, section: &[u8]) -> Result<(), SendError> {
        self.streams.get_mut(&stream).ok_or(SendError::NoStream)?.outgoing.trailers(section)
    }

    /// Resets a stream and releases it. No event follows.
    pub fn reset(&mut self, stream: u32, reason: Reason) {
        if let Some(mut found) = self.streams.remove(&stream) {
            found.reset(reason);
        }
        self.events.retain(|event| event.stream() != Some(stream));
    }

    /// Asks the client to open no further streams (GOAWAY), and closes once all are done.
    pub fn go_away(&mut self) {
        self.drains = true;
        if let State::Open(connection) = &mut self.state {
            connection.graceful_shutdown();
            self.link.flag.set();
        }
    }

    /// Ends the connection and all streams with GOAWAY of this reason.
    pub fn abrupt(&mut self, reason: Reason) {
        match &mut self.state {
            State::Open(connection) => {
                connection.abrupt_shutdown(reason);
                self.link.flag.set();
            }
            State::Handshake(_) => self.close(Cause::Fault(reason)),
            State::Closed => {}
        }
    }

    /// Returns the number of streams that are not done.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the bytes of payload that streams have in memory here, in both directions.
    pub fn buffered(&self) -> usize {
        let of = |stream: &Stream| stream.incoming.len() + stream.outgoing.unsent();
        self.streams.values().map(of).sum::<usize>() + self.link.output().len()
    }

    /// Sets the window of the connection, in bytes: more while the service's budget permits, less if not. At
    /// least twice the window of a stream.
    pub fn set_window(&mut self, len: u32) {
        self.limits.connection_window = len;
        self.limits = self.limits.bounded();
        if let State::Open(connection) = &mut self.state {
            connection.set_target_window_size(self.limits.connection_window);
        }
    }

    /// Releases memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.link.shrink();
        self.scratch = None;
        self.text = Vec::new();
        self.events.shrink_to_fit();
    }

    fn obey_flood(&mut self) {
        if self.link.flood().is_some() && !self.calmed {
            self.calmed = true;
            match self.state {
                State::Handshake(_) => self.fail(None),
                _ => self.abrupt(Reason::ENHANCE_YOUR_CALM),
            }
        }
    }

    fn step(&mut self) {
        let waker = self.link.waker.clone();
        let context = &mut Context::from_waker(&waker);
        if let State::Handshake(handshake) = &mut self.state {
            match Pin::new(&mut **handshake).poll(context) {
                Poll::Ready(Ok(mut connection)) => {
                    if self.drains {
                        connection.graceful_shutdown();
                    }
                    connection.set_target_window_size(self.limits.connection_window);
                    self.state = State::Open(Box::new(connection));
                }
                Poll::Ready(Err(error)) => self.fail(Some(&error)),
                Poll::Pending => {}
            }
        }
        // As many requests as streams may be open: h2 bounds them, and those that were reset before.
        while let State::Open(connection) = &mut self.state {
            match connection.poll_accept(context) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let id = respond.stream_id().as_u32();
                    if let Some(stream) = Stream::accept(request, respond) {
                        self.streams.insert(id, stream);
                        self.events.push_back(Queued::Request(id));
                    }
                }
                Poll::Ready(Some(Err(error))) => self.fail(Some(&error)),
                Poll::Ready(None) => self.fail(None),
                Poll::Pending => return,
            }
        }
    }

    fn poll_streams(&mut self) {
        let Self { streams, events, link, .. } = self;
        streams.retain(|id, stream| {
            if let Some((reason, by_peer)) = stream.poll() {
                // A request that the caller has not seen is not begun at all.
                if stream.request.is_none() {
                    events.push_back(Queued::Reset(*id, reason, by_peer));
                }
                return false;
            }
            if stream.incoming.report_readable() {
                events.push_back(Queued::Readable(*id));
            }
            if stream.incoming.report_end() {
                events.push_back(Queued::End(*id));
            }
            if stream.outgoing.report_room() {
                events.push_back(Queued::Room(*id));
            }
            if stream.report_done() {
                events.push_back(Queued::Done(*id));
                link.budget.earn_stream();
            }
            true
        });
    }

    /// Writes the head of a request; `None` if the stream was reset before.
    fn begin(&mut self, id: u32) -> Option<Result<bool, Malformed>> {
        let stream = self.streams.get_mut(&id)?;
        let parts = stream.request.take()?;
        let key = request::key(self.seed, id);
        let ended = stream.incoming.is_done();
        let written = request::write(&mut self.text, &parts, ended, key, &self.limits);
        match written {
            Ok(websocket) => stream.websocket = websocket,
            Err(fault) if fault.remedy() == Remedy::Reset => self.reset(id, Reason::PROTOCOL_ERROR),
            Err(_) => {}
        }
        Some(written)
    }

    /// Ends the connection after h2 has. `error`: what it has reported.
    fn fail(&mut self, error: Option<&h2::Error>) {
        self.link.collect();
        // Those whose last bytes were written in this turn are done.
        self.poll_streams();
        let cause = match (self.link.flood(), error) {
            (Some(flood), _) => Cause::Flood(flood),
            (None, Some(error)) => Cause::of(error),
            (None, None) if self.streams.values().all(Stream::is_done) => Cause::Finished,
            (None, None) => Cause::Lost,
        };
        self.close(cause);
    }

    fn close(&mut self, cause: Cause) {
        self.state = State::Closed;
        self.streams.retain(|_, stream| stream.is_done());
        self.events.retain(|event| match event {
            Queued::Request(id) | Queued::Readable(id) | Queued::End(id) | Queued::Room(id) => {
                self.streams.contains_key(id)
            }
            Queued::Done(_) => true,
            Queued::Reset(..) | Queued::Closed(_) => false,
        });
        self.events.push_back(Queued::Closed(cause));
    }

    /// Returns the budget that the client has exhausted, if any.
    pub fn flood(&self) -> Option<Flood> {
        self.link.flood()
    }
}
