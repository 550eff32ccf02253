//! Length-prefixed messages: a header of fixed length with the length of the message in it.
//!
//! ```text
//!  Simple Open Framing Header (FIX), 6 bytes, big-endian; the length counts the header:
//!  | length, 4 bytes | encoding type, 2 bytes | message ...
//!
//!  a described header:
//!  |      ...      | length, 1, 2, 4 or 8 bytes |   ...    | message ...
//!  |- length_offset -|                                     |
//!  |-------------------- header_len ----------------------|
//! ```
//! Messages stay where they lie; the header alone is copied.

use thiserror::Error;

use crate::counters::Counters;
use crate::cursor::Cursor;

pub use csp_types::options::ByteOrder;

/// Longest header in bytes that can be described.
pub const PREFIX_LEN_MAX: usize = 64;
/// Length of the Simple Open Framing Header in bytes.
pub const SOFH_LEN: usize = 6;

/// Width of a length field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names say it
pub enum Width {
    One = 1,
    Two = 2,
    Four = 4,
    Eight = 8,
}

impl Width {
    /// The width of `bytes` bytes: 1, 2, 4 or 8.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        Some(match bytes {
            1 => Width::One,
            2 => Width::Two,
            4 => Width::Four,
            8 => Width::Eight,
            _ => return None,
        })
    }
}

/// A header as the policy describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description {
    /// Length of the header in bytes, at most [`PREFIX_LEN_MAX`].
    pub header_len: usize,
    /// Offset of the length field from the start of the header in bytes.
    pub length_offset: usize,
    /// Width of the length field.
    pub width: Width,
    /// Its byte order.
    pub order: ByteOrder,
    /// Offset from the start of the header of the first byte that the length counts, at most `header_len`: 0
    /// where it counts the header, `header_len` where it counts what follows the header.
    pub counted_from: usize,
    /// Most bytes of a message, header included.
    pub message_len_max: usize,
}

/// Why a description is not a header. The operator is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DescriptionError {
    /// The header is longer than [`PREFIX_LEN_MAX`], or the length field ends behind it.
    #[error(
        "the length field ends at byte {end} of a header of {header_len} bytes, at most {PREFIX_LEN_MAX}"
    )]
    Header {
        /// End of the length field.
        end: usize,
        /// Length of the header.
        header_len: usize,
    },
    /// The length would count from behind the header.
    #[error("the length counts from byte {from} of a header of {header_len} bytes")]
    Counted {
        /// Offset of the first byte that is counted.
        from: usize,
        /// Length of the header.
        header_len: usize,
    },
    /// No message fits.
    #[error("the largest message has {most} bytes, fewer than its header")]
    Bound {
        /// The bound.
        most: usize,
    },
}

/// A header whose description was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix(Description);

/// Why a stream of length-prefixed messages cannot go on. The peer is at fault, except for
/// [`Gap`](PrefixError::Gap).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PrefixError {
    /// The length is smaller than the part of the header that it counts.
    #[error("message at byte {at}: the length {found} does not count its header")]
    Short {
        /// Start of the header in the stream.
        at: u64,
        /// The length field.
        found: u64,
    },
    /// The message is larger than the bound.
    #[error("message at byte {at}: the length field {found} exceeds {most} bytes with header")]
    TooLong {
        /// Start of the header in the stream.
        at: u64,
        /// The length field.
        found: u64,
        /// The bound.
        most: usize,
    },
    /// The caller consumed bytes that have not been examined.
    #[error("the caller passed the stream from byte {found} on, but byte {at} is next")]
    Gap {
        /// The position from which bytes are needed.
        at: u64,
        /// The position of the first byte passed.
        found: u64,
    },
}

/// Why a header cannot be written: the message is larger than the bound, or than its length field can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a message of {body_len} bytes after its header is too long")]
pub struct BodyTooLong {
    /// Length of the message in bytes, without the header.
    pub body_len: usize,
}

impl Prefix {
    /// Checks a description.
    pub fn new(description: Description) -> Result<Self, DescriptionError> {
        let Description { header_len, length_offset, width, counted_from, message_len_max, .. } = description;
        let end = length_offset.saturating_add(width as usize);
        if header_len > PREFIX_LEN_MAX || end > header_len {
            return Err(DescriptionError::Header { end, header_len });
        }
        if counted_from > header_len {
            return Err(DescriptionError::Counted { from: counted_from, header_len });
        }
        if message_len_max < header_len {
            return Err(DescriptionError::Bound { most: message_len_max });
        }
        Ok(Prefix(description))
    }

    /// The Simple Open Framing Header, for messages of up to `message_len_max` bytes with header.
    pub fn sofh(message_len_max: usize) -> Result<Self, DescriptionError> {
        Self::new(Description {
            header_len: SOFH_LEN,
            length_offset: 0,
            width: Width::Four,
            order: ByteOrder::Big,
            counted_from: 0,
            message_len_max,
        })
    }

    /// Returns the description.
    pub fn description(&self) -> &Description {
        &self.0
    }

    /// Writes the length of a message of `body_len` bytes after the header to `header`, whose other bytes are
    /// the caller's. `header` has at least `header_len` bytes.
    pub fn write_length(&self, body_len: usize, header: &mut [u8]) -> Result<(), BodyTooLong> {
        let Description { header_len, length_offset, width, order, counted_from, message_len_max } = self.0;
        let error = BodyTooLong { body_len };
        let total =
            body_len.checked_add(header_len).filter(|total| *total <= message_len_max).ok_or(error)?;
        let length = (total - counted_from) as u64; // it counts from within the header
        let width = width as usize;
        let field = header.get_mut(length_offset..length_offset + width).ok_or(error)?;
        let (big, little) = (length.to_be_bytes(), length.to_le_bytes());
        let (unused, bytes) = match order {
            ByteOrder::Big => (&big[..8 - width], &big[8 - width..]),
            ByteOrder::Little => (&little[width..], &little[..width]),
        };
        if unused.iter().any(|byte| *byte != 0) {
            return Err(error);
        }
        field.copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the length field of a complete header.
    fn length(&self, header: &[u8]) -> u64 {
        let Description { length_offset, width, order, .. } = self.0;
        let field = header.get(length_offset..length_offset + width as usize).unwrap_or_default();
        let append = |length: u64, byte: &u8| length << 8 | u64::from(*byte);
        match order {
            ByteOrder::Big => field.iter().fold(0, append),
            ByteOrder::Little => field.iter().rev().fold(0, append),
        }
    }

    /// Returns the length of the message after a header that starts at position `at`.
    fn body_len(&self, header: &[u8], at: u64) -> Result<usize, PrefixError> {
        let found = self.length(header);
        let Description { header_len, counted_from, message_len_max: most, .. } = self.0;
        let counted = (header_len - counted_from) as u64; // bytes of the header that the length counts
        let body_len = found.checked_sub(counted).ok_or(PrefixError::Short { at, found })?;
        usize::try_from(body_len).ok().filter(|len| *len <= most - header_len).ok_or(PrefixError::TooLong {
            at,
            found,
            most,
        })
    }
}

/// Returns a Simple Open Framing Header with this encoding type for a message of `body_len` bytes after it.
pub fn sofh_header(prefix: &Prefix, body_len: usize, encoding: u16) -> Result<[u8; SOFH_LEN], BodyTooLong> {
    let mut out = [0; SOFH_LEN];
    prefix.write_length(body_len, &mut out)?;
    out[4..].copy_from_slice(&encoding.to_be_bytes());
    Ok(out)
}

/// Returns the encoding type in a Simple Open Framing Header; `None` if the header is shorter.
pub fn sofh_encoding(header: &[u8]) -> Option<u16> {
    header.get(4..SOFH_LEN)?.try_into().ok().map(u16::from_be_bytes)
}

/// A complete message. It is valid until the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefixed<'a> {
    /// Position of the header in the stream; the message follows it.
    pub at: u64,
    /// The header.
    pub header: &'a [u8],
    /// Bytes after the header.
    pub body_len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Header { have: usize },
    Body { left: u64 },
    Failed(PrefixError),
}

/// Finds the messages in a stream.
///
/// ```text
///  [Header] ── length accepted ──▶ [Body] ── complete ──▶ [Header]
///      └────── length refused ──▶ [Failed]
/// ```
#[derive(Clone, Debug)]
pub struct PrefixReader {
    prefix: Prefix,
    step: Step,
    header: [u8; PREFIX_LEN_MAX],
    position: u64,
    start: u64,
    body_len: usize,
}

impl PrefixReader {
    /// Creates a reader at the start of a stream.
    pub fn new(prefix: Prefix) -> Self {
        let step = Step::Header { have: 0 };
        PrefixReader { prefix, step, header: [0; PREFIX_LEN_MAX], position: 0, start: 0, body_len: 0 }
    }

    /// Examines received bytes up to the end of the next message; `None`: more bytes are needed. An error is
    /// returned by every later call.
    pub fn next<'a, I>(
        &mut self,
        input: &mut Cursor<'a, I>,
        counters: &mut Counters,
    ) -> Result<Option<Prefixed<'_>>, PrefixError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        if let Step::Failed(error) = self.step {
            return Err(error);
        }
        let complete = self.advance(input).inspect_err(|error| {
            let counter = match error {
                PrefixError::Short { .. } => &mut counters.prefixed_failed_short,
                PrefixError::TooLong { .. } => &mut counters.prefixed_failed_too_long,
                PrefixError::Gap { .. } => &mut counters.failed_gap,
            };
            *counter += 1;
            self.step = Step::Failed(*error);
        })?;
        if !complete {
            return Ok(None);
        }
        counters.prefixed_received += 1;
        let header = self.header.get(..self.prefix.0.header_len).unwrap_or_default();
        Ok(Some(Prefixed { at: self.start, header, body_len: self.body_len }))
    }

    /// Returns the position before which no bytes are needed: the start of the message that is incomplete.
    pub fn released(&self) -> u64 {
        match self.step {
            Step::Header { have } => self.position - have as u64,
            _ => self.start,
        }
    }

    /// Returns the number of bytes of the stream that have been examined.
    pub fn examined(&self) -> u64 {
        self.position
    }

    /// Returns a position up to which bytes are needed at least before a message can be complete.
    pub fn needed(&self) -> u64 {
        self.position
            + match self.step {
                Step::Header { have } => (self.prefix.0.header_len - have) as u64,
                Step::Body { left } => left,
                Step::Failed(_) => 0,
            }
    }

    /// Returns whether a message is complete.
    fn advance<'a, I>(&mut self, input: &mut Cursor<'a, I>) -> Result<bool, PrefixError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        let Some(known) = self.position.checked_sub(input.position()) else {
            return Err(PrefixError::Gap { at: self.position, found: input.position() });
        };
        if input.skip(known) < known {
            return Ok(false);
        }
        if let Step::Header { have } = self.step {
            let header_len = self.prefix.0.header_len;
            let have = have + self.header.get_mut(have..header_len).map_or(0, |room| input.copy(room));
            self.step = Step::Header { have };
            self.position = input.position();
            if have < header_len {
                return Ok(false);
            }
            self.start = self.position - header_len as u64;
            self.body_len = self.prefix.body_len(&self.header, self.start)?;
            self.step = Step::Body { left: self.body_len as u64 };
        }
        let Step::Body { left } = self.step else { return Ok(false) };
        let left = left - input.skip(left);
        self.position = input.position();
        self.step = if left == 0 { Step::Header { have: 0 } } else { Step::Body { left } };
        Ok(left == 0)
    }
}
