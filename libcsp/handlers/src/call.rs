//! One call of a handler: the message or the timer, and the port through which the handler reads and emits.
//!
//! The call owns the only way to the port while the handler runs, and the port does no more than account for
//! what is emitted. A handler can therefore not be entered while it runs: no value that it has reaches the
//! context or another handler.

use csp_types::Instant;
use thiserror::Error;

use crate::handler::FormatId;
use crate::state::State;

/// Properties of the message of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Format of the bytes, in its channel.
    pub format: FormatId,
    /// Number of the message in its channel. A message that a handler makes has the number of the message it
    /// was made from.
    pub sequence: u64,
    /// When the message arrived.
    pub arrived: Instant,
    /// Length of all frames in bytes.
    pub len: u32,
    /// Number of frames.
    pub frames: u8,
}

/// A position in a message. The port finds it again without a search if it has returned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Bytes before the position.
    pub at: u32,
    /// The port's own note of where that is; 0: none.
    pub note: u32,
}

/// An output has no room, or the channel no memory. Nothing was emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the output has no room")]
pub struct Full;

/// What a handler emits. Format ids are those of what is emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit<'a> {
    /// The message itself, not copied.
    Same,
    /// Some of its frames, which follow one another.
    Frames {
        /// The format of these frames.
        format: FormatId,
        /// Number of the first.
        first: u8,
        /// How many, at least one.
        count: u8,
    },
    /// Some of its bytes, as a message of one frame.
    Range {
        /// The format of these bytes.
        format: FormatId,
        /// Bytes before the first one.
        start: u32,
        /// How many.
        len: u32,
    },
    /// A message that is put together from pieces.
    New {
        /// The format of the message.
        format: FormatId,
        /// The length of each frame in bytes; at least one frame.
        frames: &'a [u32],
        /// The bytes of all frames in order, cut in any way.
        pieces: &'a [Piece<'a>],
    },
}

/// A part of a new message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// Bytes of the message of the call.
    Of {
        /// Bytes before the first one.
        start: u32,
        /// How many.
        len: u32,
    },
    /// Bytes of the handler's own.
    Bytes(&'a [u8]),
}

/// What a context gives a handler for one call.
pub trait Port {
    /// Returns the bytes from a position to the end of their slice, and the position after them. Empty at the
    /// end of the message.
    fn slice(&self, place: Place) -> (&[u8], Place);

    /// Returns the length of a frame in bytes; `None` if the message has no such frame.
    fn frame_len(&self, frame: u8) -> Option<u32>;

    /// Emits to an output, and accounts for it before it returns.
    ///
    /// # Errors
    /// Nothing was emitted. See [`Stop::Full`](crate::Stop::Full) for what a handler does then.
    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full>;
}

/// A call with a message.
pub struct Call<'a> {
    message: Message,
    now: Instant,
    state: &'a mut State,
    port: &'a mut dyn Port,
}

impl<'a> Call<'a> {
    /// A call of a handler with `state` at the time `now`.
    #[inline]
    pub fn new(message: Message, now: Instant, state: &'a mut State, port: &'a mut dyn Port) -> Self {
        Call { message, now, state, port }
    }

    /// Returns the properties of the message.
    #[inline]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the time of the call.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the length of a frame in bytes; `None` if the message has no such frame.
    #[inline]
    pub fn frame_len(&self, frame: u8) -> Option<u32> {
        self.port.frame_len(frame)
    }

    /// Returns the bytes of the message, slice by slice.
    #[inline]
    pub fn slices(&self) -> Slices<'_> {
        self.range(0, u32::MAX)
    }

    /// Returns up to `len` bytes from byte `start` on, slice by slice.
    #[inline]
    pub fn range(&self, start: u32, len: u32) -> Slices<'_> {
        Slices { port: &*self.port, place: Place { at: start, note: 0 }, left: len }
    }

    /// Copies bytes from byte `start` on into `into`. Returns how many there were.
    #[inline]
    pub fn copy(&self, start: u32, into: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.range(start, u32::try_from(into.len()).unwrap_or(u32::MAX)) {
            into[done..done + slice.len()].copy_from_slice(slice);
            done += slice.len();
        }
        done
    }

    /// Returns the handler's state.
    #[inline]
    pub fn state(&mut self) -> &mut State {
        self.state
    }

    /// Emits to an output. See [`Port::emit`].
    ///
    /// # Errors
    /// When the output has no room.
    #[inline]
    pub fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full> {
        self.port.emit(output, emit)
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("message", &self.message).finish_non_exhaustive()
    }
}

/// A call because the handler's period has passed. It has no message.
pub struct Tick<'a> {
    now: Instant,
    state: &'a mut State,
    port: &'a mut dyn Port,
}

impl<'a> Tick<'a> {
    /// A call of a handler with `state` at the time `now`.
    #[inline]
    pub fn new(now: Instant, state: &'a mut State, port: &'a mut dyn Port) -> Self {
        Tick { now, state, port }
    }

    /// Returns the time of the call.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the handler's state.
    #[inline]
    pub fn state(&mut self) -> &mut State {
        self.state
    }

    /// Emits a message of the handler's own bytes. See [`Port::emit`].
    ///
    /// # Errors
    /// When the output has no room.
    #[inline]
    pub fn emit(&mut self, output: u8, format: FormatId, frames: &[u32], bytes: &[u8]) -> Result<(), Full> {
        self.port.emit(output, Emit::New { format, frames, pieces: &[Piece::Bytes(bytes)] })
    }
}

impl std::fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tick").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Bytes of a message, slice by slice.
#[derive(Clone)]
pub struct Slices<'a> {
    port: &'a dyn Port,
    place: Place,
    left: u32,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (slice, place) = self.port.slice(self.place);
        let slice = slice.get(..self.left as usize).unwrap_or(slice);
        self.place = place;
        self.left -= slice.len() as u32;
        (!slice.is_empty()).then_some(slice)
    }
}

impl std::fmt::Debug for Slices<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slices").field("place", &self.place).field("left", &self.left).finish_non_exhaustive()
    }
}
