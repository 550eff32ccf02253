//! The two halves of a stream.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use h2::{Reason, RecvStream, SendStream};

use crate::chunk::{Chunk, Unsent};
use crate::error::SendError;
use crate::head::{section, to_http2};
use crate::inbox::Inbox;
use crate::limits::{SEND_BUFFER_LOW, SEND_BUFFER_MAX};
use crate::wake::Flag;

/// Longest piece of payload that h2 gets, in bytes: one frame, unless the peer permits longer ones.
const PIECE_LEN_MAX: usize = 16 << 10;

/// Whether a stream is to be polled.
#[derive(Debug)]
pub(crate) struct Ready {
    flag: Arc<Flag>,
    waker: Waker,
}

impl Ready {
    pub(crate) fn new() -> Self {
        let (flag, waker) = Flag::new();
        Ready { flag, waker }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.flag.is_set()
    }

    pub(crate) fn take(&self) -> bool {
        self.flag.take()
    }

    pub(crate) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }
}

/// Why a stream was reset.
#[derive(Debug)]
pub(crate) enum Broken {
    /// By h2 or by the peer, or with the connection.
    Error(h2::Error),
    /// The trailers are malformed.
    Trailers,
    /// More interim responses than the limit.
    TooManyInterim,
}

impl Broken {
    /// Returns the reason for the peer, if it does not know.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Broken::TooManyInterim => Reason::ENHANCE_YOUR_CALM,
            Broken::Error(_) | Broken::Trailers => Reason::PROTOCOL_ERROR,
        }
    }
}

/// What the peer sends.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    stream: Option<RecvStream>,
    inbox: Inbox,
    trailers: Vec<u8>,
    /// All has been received.
    ended: bool,
    /// `Readable` has been reported since the inbox was empty.
    readable_reported: bool,
    end_reported: bool,
}

impl Incoming {
    /// `ended`: the head was all; its event says so.
    pub(crate) fn new(stream: RecvStream, ended: bool) -> Self {
        Incoming { stream: Some(stream), ended, end_reported: ended, ..Incoming::default() }
    }

    /// Moves what h2 has received to the inbox. The window bounds it.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Result<(), Broken> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while !self.ended {
            match stream.poll_data(context) {
                Poll::Ready(Some(Ok(bytes))) if bytes.is_empty() => {}
                Poll::Ready(Some(Ok(bytes))) => self.inbox.push(bytes),
                Poll::Ready(Some(Err(error))) => return Err(Broken::Error(error)),
                Poll::Ready(None) => match stream.poll_trailers(context) {
                    Poll::Ready(Ok(trailers)) => {
                        let trailers = trailers.unwrap_or_default();
                        if !trailers.is_empty() {
                            section::write(&mut self.trailers, &trailers).map_err(|_| Broken::Trailers)?;
                        }
                        self.ended = true;
                    }
                    Poll::Ready(Err(error)) => return Err(Broken::Error(error)),
                    Poll::Pending => return Ok(()),
                },
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns whether there is payload that was not reported yet, and marks it as reported.
    pub(crate) fn report_readable(&mut self) -> bool {
        let is_new = !self.inbox.is_empty() && !self.readable_reported;
        self.readable_reported |= is_new;
        is_new
    }

    /// Returns whether the end is due and was not reported yet, and marks it as reported.
    pub(crate) fn report_end(&mut self) -> bool {
        let is_new = self.ended && self.inbox.is_empty() && !self.end_reported;
        self.end_reported |= is_new;
        is_new
    }

    /// Returns the trailer section; empty if there is none.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    pub(crate) fn data(&self) -> &[u8] {
        self.inbox.front()
    }

    /// Returns the bytes of payload that the caller has not taken.
    pub(crate) fn len(&self) -> usize {
        self.inbox.len()
    }

    /// Removes `len` bytes from the front and lets the peer send as many.
    pub(crate) fn release(&mut self, len: usize) {
        let len = self.inbox.consume(len);
        if self.inbox.is_empty() {
            self.readable_reported = false;
        }
        if let Some(stream) = &mut self.stream {
            // It fails for more than was received only, and the inbox has no more than that.
            let _ = stream.flow_control().release_capacity(len);
        }
    }

    /// Drops what was received and what is still to come.
    pub(crate) fn discard(&mut self) {
        self.release(self.inbox.len());
        *self = Incoming { ended: true, end_reported: true, ..Incoming::default() };
    }

    /// Returns whether all was received.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether all was received and taken.
    pub(crate) fn is_done(&self) -> bool {
        self.end_reported
    }
}

/// What is sent to the peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    stream: Option<SendStream<Chunk>>,
    unsent: Unsent,
    ended: bool,
    wants_room: bool,
}

impl Outgoing {
    /// A half whose head has not been sent.
    pub(crate) fn new() -> Self {
        Outgoing { stream: None, unsent: Unsent::default(), ended: false, wants_room: false }
    }

    /// Begins the body; `ended`: there is none.
    pub(crate) fn begin(&mut self, stream: SendStream<Chunk>, ended: bool) {
        (self.stream, self.ended) = (Some(stream), ended);
    }

    /// Returns whether the head was sent and the end was not.
    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_some() && !self.ended
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the bytes that h2 has not written.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    pub(crate) fn room(&self) -> usize {
        if self.is_open() { SEND_BUFFER_MAX.saturating_sub(self.unsent()) } else { 0 }
    }

    /// Copies as much of `bytes` as there is room for; returns the number of bytes. `end`: the body ends with
    /// the last of them.
    pub(crate) fn send(&mut self, bytes: &[u8], end: bool) -> usize {
        let len = bytes.len().min(self.room());
        let end = end && len == bytes.len();
        // Callers ask for room before, or see what was taken afterwards.
        self.wants_room = len < bytes.len() || self.unsent() + len > SEND_BUFFER_LOW;
        let Some(stream) = self.stream.as_mut().filter(|_| !self.ended) else { return 0 };
        if len == 0 && !end {
            return 0;
        }
        let mut rest = &bytes[..len];
        loop {
            // Piece by piece: a piece stays in memory until its last byte was written.
            let (piece, behind) = rest.split_at(rest.len().min(PIECE_LEN_MAX));
            let is_last = behind.is_empty();
            // It fails if the stream was reset, which an event reports.
            if stream.send_data(Chunk::new(piece, &self.unsent), end && is_last).is_err() {
                return 0;
            }
            if is_last {
                break;
            }
            rest = behind;
        }
        self.ended = end;
        len
    }

    /// Ends the body with a trailer section as text of HTTP/1.1, of which nothing is sent that may not trail.
    pub(crate) fn trailers(&mut self, section: &[u8]) -> Result<(), SendError> {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.ended) else { return Err(SendError::State) };
        let trailers = to_http2::trailers(section)?;
        self.ended = true;
        let sent = match trailers.is_empty() {
            true => stream.send_data(Chunk::new(b"", &self.unsent), true),
            false => stream.send_trailers(trailers),
        };
        // It fails if the stream was reset.
        sent.map_err(|_| SendError::NoStream)
    }

    /// Returns whether there is room again after the buffer was more than half full, and marks it as
    /// reported.
    pub(crate) fn report_room(&mut self) -> bool {
        let is_new = self.wants_room && self.is_open() && self.unsent() <= SEND_BUFFER_LOW;
        self.wants_room &= !is_new;
        is_new
    }

    pub(crate) fn stream(&mut self) -> Option<&mut SendStream<Chunk>> {
        self.stream.as_mut()
    }
}
