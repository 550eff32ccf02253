//! Chunked bodies, byte by byte (RFC 9112 §7.1).
//!
//! ```text
//!          digit        ;               CR        LF, size > 0
//!  Size ─────────▶ Size ──▶ Extension ──────▶ Lf ─────────────▶ Payload ─ all moved ─▶ Cr ─▶ EndLf ─▶ Size
//!   └─ SP ─▶ Space ─;─┘                        └─ size 0 ─▶ Trailers ─ moved ─▶ (done)
//! ```

use super::trailers::TrailerScan;
use super::{Piece, bounded};
use crate::fault::Fault;
use crate::limits::{BODY_LEN_MAX, EXTENSION_CREDIT, EXTENSION_PAYLOAD, Limits};
use crate::name::is_value_byte;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunked {
    state: State,
    /// The size read so far, then the payload that is left of the chunk.
    size: u64,
    /// Bytes of extensions that the body may still have.
    credit: u32,
    trailers: TrailerScan,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In the size. `digits`: of it so far.
    Size {
        digits: u8,
    },
    /// In whitespace behind the size, which an extension follows.
    Space,
    Extension,
    /// Before the LF of the line with the size.
    Lf,
    Payload,
    /// Before the CR behind the payload.
    Cr,
    /// Before the LF behind the payload.
    EndLf,
    Trailers,
}

impl Default for Chunked {
    fn default() -> Self {
        Chunked {
            state: State::Size { digits: 0 },
            size: 0,
            credit: EXTENSION_CREDIT,
            trailers: TrailerScan::default(),
        }
    }
}

impl Chunked {
    pub(super) fn next(&mut self, slices: &[&[u8]], limits: &Limits) -> Result<Piece, Fault> {
        match self.state {
            State::Payload => {
                let readable: usize = slices.iter().map(|slice| slice.len()).sum();
                return Ok(if readable == 0 {
                    Piece::More
                } else {
                    Piece::Payload(bounded(readable, self.size))
                });
            }
            State::Trailers => {
                let end = self.trailers.scan(slices, limits)?;
                return Ok(end.map_or(Piece::More, Piece::Trailers));
            }
            _ => {}
        }
        let mut len = 0;
        for byte in slices.iter().copied().flatten() {
            len += 1;
            self.framing(*byte)?;
            match self.state {
                State::Payload => return Ok(Piece::Framing { len, chunk: Some(self.size) }),
                State::Trailers => return Ok(Piece::Framing { len, chunk: None }),
                _ => {}
            }
        }
        Ok(if len == 0 { Piece::More } else { Piece::Framing { len, chunk: None } })
    }

    fn framing(&mut self, byte: u8) -> Result<(), Fault> {
        self.state = match (self.state, byte) {
            (State::Size { digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < 16 => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let size = self.size.checked_mul(16).map(|size| size + u64::from(digit));
                self.size = size.filter(|size| *size <= BODY_LEN_MAX).ok_or(Fault::ChunkSize)?;
                State::Size { digits: digits + 1 }
            }
            (State::Size { digits: 1.. }, b'\r') | (State::Extension, b'\r') => State::Lf,
            (State::Size { digits: 1.. } | State::Space, b';') => State::Extension,
            (State::Size { digits: 1.. } | State::Space, b' ' | b'\t') => State::Space,
            (State::Lf, b'\n') if self.size == 0 => State::Trailers,
            (State::Lf, b'\n') => {
                // The peer has to send what it announces before the next extension.
                let earned = u32::try_from(self.size / u64::from(EXTENSION_PAYLOAD)).unwrap_or(u32::MAX);
                self.credit = self.credit.saturating_add(earned).min(EXTENSION_CREDIT);
                State::Payload
            }
            (State::Cr, b'\r') => State::EndLf,
            (State::EndLf, b'\n') => State::Size { digits: 0 },
            (State::Size { .. } | State::Space | State::Extension, b'\n') => return Err(Fault::BareLf),
            (State::Lf, _) => return Err(Fault::BareCr),
            (State::Extension, byte) if is_value_byte(byte) => State::Extension,
            (State::Size { .. }, _) => return Err(Fault::ChunkSize),
            (State::Cr | State::EndLf, _) => return Err(Fault::ChunkEnd),
            (State::Extension | State::Space, _) => return Err(Fault::ChunkExtension),
            (State::Payload | State::Trailers, _) => self.state,
        };
        if matches!(self.state, State::Extension | State::Space) {
            self.credit = self.credit.checked_sub(1).ok_or(Fault::ChunkExtension)?;
        }
        Ok(())
    }

    /// Counts payload or trailers that were consumed; returns whether the body has ended.
    pub(super) fn moved(&mut self, len: usize) -> bool {
        match self.state {
            State::Payload => {
                self.size = self.size.saturating_sub(len as u64);
                if self.size == 0 {
                    self.state = State::Cr;
                }
                false
            }
            State::Trailers => self.trailers.is_complete(),
            _ => false,
        }
    }
}
