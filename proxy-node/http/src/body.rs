//! Bodies: which of the readable bytes are payload, and which are framing (RFC 9112 §6, §7.1).
//!
//! ```text
//!  5;x=y CRLF  hello  CRLF 0 CRLF  Name: value CRLF CRLF
//!  ─ framing ─ payload ── framing ─ ───── trailers ─────
//! ```
//! The reader examines bytes where they lie and says what the next ones are. The caller moves payload from
//! one connection to another without a copy, and consumes framing. Chunk extensions are dropped with it.

mod chunked;
mod encode;
mod trailers;

pub use encode::{CHUNK_HEADER_LEN_MAX, ChunkHeader, LAST_CHUNK};
pub use trailers::trailer_fields;

use chunked::Chunked;

use crate::fault::Fault;
use crate::head::Framing;
use crate::limits::Limits;

/// What the next readable bytes of a body are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// This many bytes are payload. The caller reports what it has moved by
    /// [`moved`](BodyReader::moved).
    Payload(usize),
    /// This many bytes are framing, which the caller consumes at once: it is not returned again.
    Framing {
        /// The number of bytes.
        len: usize,
        /// The size of the chunk that begins behind them.
        chunk: Option<u64>,
    },
    /// This many bytes are the trailer section with its empty line. The caller forwards what it wants of it
    /// ([`trailer_fields`]), consumes all of it and reports that by [`moved`](BodyReader::moved).
    Trailers(usize),
    /// More bytes are needed.
    More,
    /// The body has ended: further bytes do not belong to it.
    End,
}

/// The state of a body that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyReader(State);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

impl BodyReader {
    /// Creates the reader of a body.
    pub fn new(framing: Framing) -> Self {
        BodyReader(match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::default()),
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// Returns what the first bytes of `slices` are, which hold the readable bytes of the connection.
    /// `finished`: no bytes follow them.
    pub fn next(&mut self, slices: &[&[u8]], finished: bool, limits: &Limits) -> Result<Piece, Fault> {
        let readable = || slices.iter().map(|slice| slice.len()).sum::<usize>();
        let piece = match &mut self.0 {
            State::Done => Piece::End,
            State::Length(left) => match readable() {
                0 => Piece::More,
                readable => Piece::Payload(bounded(readable, *left)),
            },
            State::Chunked(chunked) => chunked.next(slices, limits)?,
            State::UntilClose => match readable() {
                0 if finished => {
                    self.0 = State::Done;
                    Piece::End
                }
                0 => Piece::More,
                readable => Piece::Payload(readable),
            },
        };
        if piece == Piece::More && finished {
            return Err(Fault::TruncatedBody);
        }
        Ok(piece)
    }

    /// Reports that the caller has consumed `len` bytes of what [`next`](Self::next) called payload, or the
    /// trailers.
    pub fn moved(&mut self, len: usize) {
        match &mut self.0 {
            State::Length(left) => {
                *left = left.saturating_sub(len as u64);
                if *left == 0 {
                    self.0 = State::Done;
                }
            }
            State::Chunked(chunked) => {
                if chunked.moved(len) {
                    self.0 = State::Done;
                }
            }
            State::UntilClose | State::Done => {}
        }
    }

    /// Returns whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.0 == State::Done
    }

    /// Returns the payload that is still to come, if its length is known.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            State::Length(left) => Some(left),
            State::Done => Some(0),
            State::Chunked(_) | State::UntilClose => None,
        }
    }
}

/// Returns the lesser of both.
fn bounded(readable: usize, left: u64) -> usize {
    usize::try_from(left).map_or(readable, |left| left.min(readable))
}
