//! Messages as the connection delivers them: where their frames lie.

use core::ops::Range;

use crate::config::Config;
use crate::error::{Excess, ZmtpError};
use crate::frame::Received;
use crate::metadata::Peer;

/// Where a frame's body lies: in the stream under NULL, in the connection's buffer of decrypted bytes under
/// CURVE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Position of the body's first byte: in the stream, or in the buffer.
    pub at: u64,
    /// Length of the body in bytes.
    pub len: usize,
    /// Length in bytes of the header that precedes the body in the stream; 0 under CURVE.
    pub header_len: u8,
}

/// A complete message. It is valid until the connection is asked for the next item.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub(crate) frames: &'a [Frame],
    pub(crate) span: (u64, u64),
    pub(crate) len: usize,
    pub(crate) decrypted: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// Returns the frames; at least one. Topics are matched against the first.
    pub fn frames(&self) -> &'a [Frame] {
        self.frames
    }

    /// Returns the positions in the stream of the first frame's header and of the end of the last frame.
    pub fn span(&self) -> Range<u64> {
        self.span.0..self.span.1
    }

    /// Returns the bytes of all bodies together.
    pub fn body_len(&self) -> usize {
        self.len
    }

    /// Returns the decrypted body of `frame` under CURVE; `None` under NULL, where the body lies in the
    /// caller's memory.
    pub fn decrypted(&self, frame: &Frame) -> Option<&'a [u8]> {
        let at = usize::try_from(frame.at).ok()?;
        self.decrypted?.get(at..)?.get(..frame.len)
    }

    /// Returns the number of frames that are the envelope of a request: those up to and including the first
    /// empty one (28/REQREP). `None`: there is no empty frame.
    pub fn envelope_len(&self) -> Option<usize> {
        self.frames.iter().position(|frame| frame.len == 0).map(|at| at + 1)
    }
}

/// What a connection has received.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// CURVE: the peer has proved that it owns this long-term public key. The handshake waits for
    /// [`allow`](crate::Connection::allow) or [`deny`](crate::Connection::deny).
    Authorise(&'a Peer),
    /// The handshake is complete.
    Ready(&'a Peer),
    /// The peer subscribes to messages whose first frame starts with this topic.
    Subscribe(&'a [u8]),
    /// The peer cancels its subscription to this topic, however often it was made.
    Cancel(&'a [u8]),
    /// A message.
    Message(Message<'a>),
}

/// Why a message is refused, and its connection is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It has too many frames.
    Frames,
    /// Its frames are too long together.
    Length,
}

/// The message that arrives, frame by frame.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    frames: Vec<Frame>,
    /// The message is refused: its frames are passed over up to its last one.
    refused: Option<Refusal>,
    frames_max: usize,
    start: u64,
    end: u64,
    /// Bytes of all bodies.
    len: usize,
    len_max: usize,
    /// Decrypted bodies, each after its octet of flags. Empty under NULL.
    pub scratch: Vec<u8>,
    /// Bytes of `scratch` in use.
    pub filled: usize,
}

impl Assembly {
    pub fn new(config: &Config) -> Self {
        Assembly {
            frames: Vec::with_capacity(config.frames_max),
            refused: None,
            frames_max: config.frames_max,
            start: 0,
            end: 0,
            len: 0,
            len_max: config.message_len_max,
            scratch: Vec::new(),
            filled: 0,
        }
    }

    /// Allocates the memory for decrypted bodies, each with its flags; a command of `command_len_max` bytes
    /// fits behind a message of the largest size.
    pub fn allocate(&mut self, command_len_max: usize) {
        self.scratch = vec![0; self.len_max + self.frames_max + 1 + command_len_max];
    }

    /// Releases a message that was delivered or refused.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.refused = None;
        (self.len, self.filled) = (0, 0);
    }

    /// Whether no frame has begun.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.refused.is_none()
    }

    /// Why the message is refused, whose frames are passed over.
    pub fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    /// Where the message that has begun starts.
    pub fn start(&self) -> Option<u64> {
        (!self.frames.is_empty()).then_some(self.start)
    }

    /// Checks whether the message can have another frame, whose body is `body_len` bytes long; `false`: the
    /// message is refused, `alone`, and the frame is to be passed over. A frame that is longer than the
    /// longest message ends the connection, before it has arrived.
    pub fn admit(&mut self, at: u64, body_len: u64, alone: bool) -> Result<bool, ZmtpError> {
        let most = self.len_max;
        let found = body_len.saturating_add(self.len as u64);
        let refusal = match () {
            () if self.frames.len() >= self.frames_max => Some(Refusal::Frames),
            () if found > most as u64 => Some(Refusal::Length),
            () => self.refused,
        };
        match refusal {
            None => return Ok(true),
            Some(refusal) if alone && body_len <= most as u64 => {
                self.clear();
                self.refused = Some(refusal);
            }
            Some(Refusal::Frames) if !alone => {
                return Err(ZmtpError::TooManyFrames { at, most: self.frames_max });
            }
            Some(_) => return Err(ZmtpError::TooLong { what: Excess::Message, at, found, most }),
        }
        Ok(false)
    }

    /// Adds a frame of the stream, which [`admit`](Self::admit) permitted.
    pub fn push_received(&mut self, header: Received) {
        let at = header.at + u64::from(header.header_len);
        self.push(header.at, Frame { at, len: header.body_len as usize, header_len: header.header_len });
    }

    /// Adds a decrypted frame whose sealed form starts at `start` of the stream: `len` bytes after the octet
    /// of flags at the end of what is in use.
    pub fn push_decrypted(&mut self, start: u64, len: usize) {
        let at = self.filled as u64 + 1;
        self.filled += 1 + len;
        self.push(start, Frame { at, len, header_len: 0 });
    }

    fn push(&mut self, start: u64, frame: Frame) {
        if self.frames.is_empty() {
            self.start = start;
        }
        self.frames.push(frame);
        self.len += frame.len;
    }

    /// Records the end of the last frame.
    pub fn complete(&mut self, end: u64) {
        self.end = end;
    }

    /// The complete message.
    pub fn message(&self) -> Message<'_> {
        let decrypted = (!self.scratch.is_empty()).then_some(self.scratch.as_slice());
        Message { frames: &self.frames, span: (self.start, self.end), len: self.len, decrypted }
    }
}
