//! Connections to members that speak HTTP/2, by prior knowledge or after ALPN.

mod event;
mod stream;

pub use event::ClientEvent;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future as _;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use csp_http::head::{HeadReader, Request, Scheme, Scratch};
use csp_types::Instant;
use h2::client::{Builder, Connection, SendRequest};

use crate::chunk::Chunk;
use crate::error::{Cause, Reason, SendError};
use crate::head::{WIDEST, response, scratch, to_http2};
use crate::limits::{Limits, SEND_BUFFER_MAX};
use crate::link::{Link, STEPS_MAX};
use crate::pipe::Pipe;
use crate::stream::Broken;
use event::Queued;
use stream::Stream;

/// Streams that are opened before the member has said how many it permits.
const STREAMS_BEFORE_SETTINGS: u32 = 100;

struct Open {
    connection: Connection<Pipe, Chunk>,
    /// `None`: no further streams are wanted.
    sender: Option<SendRequest<Chunk>>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open")
    }
}

/// A connection to a member.
#[derive(Debug)]
pub struct ClientConnection {
    /// `None`: the connection has ended.
    open: Option<Box<Open>>,
    link: Link,
    limits: Limits,
    streams: BTreeMap<u32, Stream>,
    events: VecDeque<Queued>,
    /// The text of the event that was returned last.
    text: Vec<u8>,
    scratch: Option<Box<Scratch>>,
    gone_away: bool,
}

impl ClientConnection {
    /// Creates a connection. Its preface is in the output at once.
    pub fn new(limits: &Limits) -> Self {
        let limits = limits.bounded();
        let link = Link::new(false, &limits);
        link.give_room();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(limits.streams_max.min(STREAMS_BEFORE_SETTINGS) as usize)
            .initial_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_header_list_size(limits.header_list_max)
            .max_frame_size(limits.frame_len_max)
            .max_local_error_reset_streams(Some(limits.faults_max))
            .max_send_buffer_size(SEND_BUFFER_MAX)
            // h2 would read a clock: streams are remembered until others take their place.
            .reset_stream_duration(Duration::MAX);
        let handshake = pin!(builder.handshake(link.pipe.clone()));
        let open = match handshake.poll(&mut Context::from_waker(&link.waker)) {
            Poll::Ready(Ok((sender, connection))) => {
                Some(Box::new(Open { connection, sender: Some(sender) }))
            }
            // The pipe has room for the preface.
            Poll::Ready(Err(_)) | Poll::Pending => None,
        };
        let mut connection = ClientConnection {
            open,
            link,
            limits,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            text: Vec::new(),
            scratch: None,
            gone_away: false,
        };
        connection.poll();
        connection
    }

    /// Takes bytes that the member has sent, as many as the turn permits. Returns their number.
    pub fn receive(&mut self, now: Instant, slices: &[&[u8]]) -> usize {
        match self.open {
            None => slices.iter().map(|slice| slice.len()).sum(),
            Some(_) => self.link.receive(now, slices),
        }
    }

    /// Reports that no bytes follow those that were taken.
    pub fn receive_end(&mut self) {
        self.link.pipe.receive_end();
    }

    /// Processes what was received and what was called since the last time. Call it once after any number
    /// of other calls, then fetch events and output.
    pub fn poll(&mut self) {
        if let Some(flood) = self.link.flood()
            && self.open.is_some()
        {
            self.close(Cause::Flood(flood));
        }
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
        self.open.is_some()
            && (self.link.flag.is_set() || self.streams.values().any(|stream| stream.ready.is_set()))
    }

    /// Returns the bytes that are to be sent to the member. There is a bound: h2 writes nothing more while
    /// they wait.
    pub fn output(&self) -> &[u8] {
        self.link.output()
    }

    /// Reports that the first `len` bytes of the output were sent.
    pub fn sent(&mut self, len: usize) {
        self.link.sent(len);
    }

    /// Returns whether a stream can be opened: the member permits it, and has not sent GOAWAY.
    pub fn can_open(&mut self) -> bool {
        let Some(sender) = self.open.as_mut().and_then(|open| open.sender.as_mut()) else { return false };
        let permitted = sender.current_max_send_streams().min(self.limits.streams_max as usize);
        // Pending while the stream that was opened last waits for another one to end.
        let ready = sender.poll_ready(&mut Context::from_waker(&self.link.waker));
        self.streams.len() < permitted && !self.gone_away && matches!(ready, Poll::Ready(Ok(())))
    }

    /// Opens a stream with a request as it was written for a member of HTTP/1.1, and returns its number.
    /// `end`: it has no body. Upgrades are not carried: they need a connection of HTTP/1.1.
    pub fn request(&mut self, head: &Request<'_>, scheme: Scheme, end: bool) -> Result<u32, SendError> {
        if head.is_upgrade() {
            return Err(SendError::Head);
        }
        let to_head = head.method_name() == b"HEAD";
        let request = to_http2::request(head, scheme)?;
        if self.open.is_none() {
            return Err(SendError::Closed);
        }
        if !self.can_open() {
            return Err(SendError::Full);
        }
        let sender = self.open.as_mut().and_then(|open| open.sender.as_mut()).ok_or(SendError::Full)?;
        let (response, body) = sender.send_request(request, end).map_err(|_| SendError::Full)?;
        let id = response.stream_id().as_u32();
        self.streams.insert(id, Stream::new(response, body, to_head, end));
        Ok(id)
    }

    /// The same for a request as text of HTTP/1.1, such as [`csp_http::forward::request`] writes.
    pub fn request_text(&mut self, head: &[u8], scheme: Scheme, end: bool) -> Result<u32, SendError> {
        // Taken, since the head that is read borrows it.
        let mut memory = self.scratch.take().unwrap_or_else(scratch);
        let read = HeadReader::default().request(&[head], true, &WIDEST, &mut memory);
        let outcome = match read {
            Ok(Some(head)) => self.request(&head, scheme, end),
            _ => Err(SendError::Head),
        };
        self.scratch = Some(memory);
        outcome
    }

    /// Returns how many bytes of a request [`send`](Self::send) would take.
    pub fn room(&self, stream: u32) -> usize {
        self.streams.get(&stream).map_or(0, |stream| stream.outgoing.room())
    }

    /// Sends bytes of a request behind its head. Returns how many were taken: if not all, `Room` follows.
    /// `end`: the request ends with the last of them.
    pub fn send(&mut self, stream: u32, bytes: &[u8], end: bool) -> usize {
        let Some(found) = self.streams.get_mut(&stream) else { return 0 };
        let taken = found.outgoing.send(bytes, end);
        self.link.budget.earn_sent(taken);
        taken
    }

    /// Ends a request with a trailer section as text of HTTP/1.1, of which nothing is sent that may not
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

    /// Returns payload of a response that lies together; empty if there is none.
    pub fn data(&self, stream: u32) -> &[u8] {
        self.streams.get(&stream).map_or(&[], |stream| stream.incoming.data())
    }

    /// Reports that `len` bytes of payload were taken by the client: the member may send as many more.
    pub fn release(&mut self, stream: u32, len: usize) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        found.incoming.release(len);
        if found.incoming.report_end() {
            found.done_reported = true;
            self.events.extend([Queued::End(stream), Queued::Done(stream)]);
        }
    }

    /// Opens no further streams; the connection ends once all are done.
    pub fn go_away(&mut self) {
        if let Some(open) = &mut self.open {
            open.sender = None;
            self.link.flag.set();
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

    /// Sets the window of the connection, in bytes. At least twice the window of a stream.
    pub fn set_window(&mut self, len: u32) {
        self.limits.connection_window = len;
        self.limits = self.limits.bounded();
        if let Some(open) = &mut self.open {
            open.connection.set_target_window_size(self.limits.connection_window);
        }
    }

    /// Releases memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.link.shrink();
        self.scratch = None;
        self.text = Vec::new();
        self.events.shrink_to_fit();
    }

    /// Returns the next event. The caller calls until `None`; what it does meanwhile is processed, too.
    pub fn next_event(&mut self) -> Option<ClientEvent<'_>> {
        loop {
            // What the caller did upon the last event may have an event of its own.
            if self.events.is_empty() && self.wants_poll() {
                self.poll();
            }
            match self.events.pop_front()? {
                Queued::Interim(stream) => {
                    if self.begin(stream) {
                        return Some(ClientEvent::Response {
                            stream,
                            head: &self.text,
                            interim: true,
                            end: false,
                        });
                    }
                }
                Queued::Response(stream) => {
                    if self.begin(stream) {
                        let end = self.streams.get(&stream)?.had_no_body;
                        return Some(ClientEvent::Response { stream, head: &self.text, interim: false, end });
                    }
                }
                Queued::Readable(stream) if self.streams.contains_key(&stream) => {
                    return Some(ClientEvent::Readable { stream });
                }
                Queued::End(stream) if self.streams.contains_key(&stream) => {
                    let trailers = self.streams.get(&stream)?.incoming.trailers();
                    return Some(ClientEvent::End { stream, trailers });
                }
                Queued::Room(stream) if self.streams.contains_key(&stream) => {
                    return Some(ClientEvent::Room { stream });
                }
                Queued::Readable(_) | Queued::End(_) | Queued::Room(_) => {}
                Queued::Reset { stream, reason, by_peer, unprocessed } => {
                    return Some(ClientEvent::Reset { stream, reason, by_peer, unprocessed });
                }
                Queued::Done(stream) => {
                    // Only now: the events before it show what the stream has.
                    self.streams.remove(&stream);
                    self.link.flag.set();
                    return Some(ClientEvent::Done { stream });
                }
                Queued::GoneAway => return Some(ClientEvent::GoneAway),
                Queued::Closed(cause) => return Some(ClientEvent::Closed { cause }),
            }
        }
    }

    fn step(&mut self) {
        let waker = self.link.waker.clone();
        let Some(open) = &mut self.open else { return };
        match Pin::new(&mut open.connection).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(())) if self.streams.is_empty() => self.close(Cause::Finished),
            Poll::Ready(Ok(())) => self.close(Cause::Lost),
            Poll::Ready(Err(error)) => self.close(Cause::of(&error)),
            Poll::Pending => {}
        }
        if self.link.frames.gone_away().is_some() && !self.gone_away && self.open.is_some() {
            self.gone_away = true;
            self.go_away();
            self.events.push_back(Queued::GoneAway);
        }
    }

    fn poll_streams(&mut self) {
        let Self { streams, events, link, open, .. } = self;
        let (is_open, gone_away) = (open.is_some(), link.frames.gone_away());
        streams.retain(|id, stream| {
            let outcome = stream.poll();
            while let Some(interim) = stream.report_head() {
                events.push_back(if interim { Queued::Interim(*id) } else { Queued::Response(*id) });
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
            if stream.incoming.is_done() && !stream.done_reported {
                stream.done_reported = true;
                events.push_back(Queued::Done(*id));
            }
            let is_lost = !is_open && !stream.incoming.is_ended();
            if outcome.is_ok() && !is_lost {
                return true;
            }
            let (reason, by_peer) = match outcome {
                Err(Broken::Error(error)) => (error.reason(), error.is_remote()),
                Err(broken) => {
                    stream.reset(broken.reason());
                    (Some(broken.reason()), false)
                }
                Ok(()) => (None, false),
            };
            let is_refused = by_peer && reason == Some(Reason::REFUSED_STREAM) && !stream.is_answered();
            let unprocessed = is_refused || gone_away.is_some_and(|last| *id > last);
            events.push_back(Queued::Reset { stream: *id, reason, by_peer, unprocessed });
            false
        });
    }

    /// Writes the head of a response; `false` if the stream has gone, or the head is malformed.
    fn begin(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let Some(parts) = stream.next_head() else { return false };
        let ended = stream.had_no_body;
        if response::write(&mut self.text, &parts, ended, stream.to_head, &self.limits).is_ok() {
            return true;
        }
        self.reset(id, Reason::PROTOCOL_ERROR);
        let reason = Some(Reason::PROTOCOL_ERROR);
        self.events.push_back(Queued::Reset { stream: id, reason, by_peer: false, unprocessed: false });
        false
    }

    /// Ends the connection. Streams whose response is complete can still be read.
    fn close(&mut self, cause: Cause) {
        self.link.collect();
        self.open = None;
        self.poll_streams();
        self.events.push_back(Queued::Closed(cause));
    }
}
