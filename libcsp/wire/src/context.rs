//! Records between a proxy worker and a context in another program, in a stream of bytes.
//!
//! ```text
//!  0 length with header (4) | 4 kind (1) | 5 stage (1) | 6 path (2) | 8 generation (2) | 10 output (1) | 11 frames (1) | 12 format (4)
//! 16 kind's own: two integers of 8 bytes | 32 length of each frame (4) | bytes
//! ```
//! Integers are little-endian; fields that a kind does not use are 0. The proxy sends HELLO, STAGE, CALL,
//! ROOM, PART and GONE. The context sends HELLO; and for each call of a stage, oldest first, SAME, FRAMES,
//! RANGE and NEW for the messages that the handler emits, then DONE. A stage emits while it has room. STAGE
//! grants the initial room, and ROOM returns room that was used. Each emitted record uses its length; the
//! last one may exceed the room that is left.
//!
//! STAGE names the objects that a handler needs by their SHA-256: its module, and the formats of its
//! messages. The context requests missing objects by WANT and receives them in PARTs, in order. REPORT
//! contains the counters of a stage, and uses no room.

mod supply;

pub use supply::{Hash, OBJECT_LEN_MAX, PART_LEN_MAX, Report, ReportNumbers, STOP_REASONS, Supply};

use csp_types::options::Standing;

use crate::WireError;

/// Length of a record's header in bytes.
pub const RECORD_HEADER_LEN: usize = 32;
/// Longest record in bytes: a message of 64 MiB, with the fields that precede it.
pub const RECORD_LEN_MAX: usize = (64 << 20) + 4096;
/// Largest number of frames in a message.
pub const FRAMES_MAX: usize = 16;
/// The version of this format.
pub const VERSION: u64 = 2;

/// Identifies a stage of a path at the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Index of the path.
    pub path: u16,
    /// Number of times that the path's slot was used before.
    pub generation: u16,
    /// Index of the stage.
    pub stage: u8,
}

/// A message: the length of each frame, and the bytes of all frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Number of the message's format in its channel.
    pub format: u32,
    /// The frame lengths, four bytes each.
    lens: &'a [u8],
    /// The bytes of all frames.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the length of each frame in bytes.
    pub fn frame_lens(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.lens.chunks_exact(4).map(|len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]))
    }
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Version of the format, and the number of unanswered calls per stage that the sender permits.
    Hello {
        /// Number of calls.
        credit: u64,
    },
    /// Defines a stage: its handler and parameters. For a known stage: its parameters have changed.
    Stage {
        /// The stage.
        place: Place,
        /// Bytes of records that the stage may emit before the proxy sends ROOM. Ignored for a known stage.
        room: u64,
        /// Name of the handler.
        handler: &'a str,
        /// Its parameters.
        parameters: &'a str,
        /// What the handler needs beside its name.
        supply: Supply<'a>,
    },
    /// Passes a message to a handler.
    Call {
        /// The stage.
        place: Place,
        /// Sequence number of the message in its channel.
        sequence: u64,
        /// Time since the message arrived, in nanoseconds. (Clocks of different hosts are not comparable.)
        age_ns: u64,
        /// The message.
        message: Message<'a>,
    },
    /// The handler emits the message of the call unchanged.
    Same {
        /// The stage.
        place: Place,
        /// The output of the stage.
        output: u8,
    },
    /// The handler emits some frames of the message.
    Frames {
        /// The stage.
        place: Place,
        /// The output of the stage.
        output: u8,
        /// Format of the emitted frames.
        format: u32,
        /// Index of the first frame.
        first: u8,
        /// Number of frames.
        count: u8,
    },
    /// The handler emits some bytes of the message.
    Range {
        /// The stage.
        place: Place,
        /// The output of the stage.
        output: u8,
        /// Format of the emitted bytes.
        format: u32,
        /// Offset of the first byte.
        start: u32,
        /// Number of bytes.
        len: u32,
    },
    /// The handler emits a new message.
    New {
        /// The stage.
        place: Place,
        /// The output of the stage.
        output: u8,
        /// The message.
        message: Message<'a>,
    },
    /// The handler has finished the oldest call.
    Done {
        /// The stage.
        place: Place,
        /// Whether the handler failed to process the message, which is dropped.
        fault: bool,
        /// Whether the handler has ended the path, so that all later messages are dropped as well.
        ended: bool,
    },
    /// The stage has ended.
    Gone {
        /// The stage.
        place: Place,
    },
    /// The proxy has processed records that the stage has emitted.
    Room {
        /// The stage.
        place: Place,
        /// Total length of these records in bytes.
        bytes: u64,
    },
    /// The context lacks an object that STAGE names.
    Want {
        /// The stage.
        place: Place,
        /// SHA-256 of the object.
        object: &'a Hash,
    },
    /// Bytes of a requested object. A total of 0 without bytes: the stage has ended, and no other stage needs
    /// the object.
    Part {
        /// SHA-256 of the object.
        object: &'a Hash,
        /// Length of the object in bytes.
        total: u32,
        /// Offset of these bytes in the object.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Counters of a stage since it began at the context.
    Report {
        /// The stage.
        place: Place,
        /// State of the stage.
        standing: Standing,
        /// Counters and times; see [`Report::read`].
        numbers: &'a ReportNumbers,
        /// Why it does not run; empty if it does.
        why: &'a str,
    },
}

/// Fixed fields of a record.
#[derive(Clone, Copy, Default)]
struct Header {
    kind: u8,
    place: Place,
    output: u8,
    frames: u8,
    format: u32,
    own: [u64; 2],
}

impl<'a> Record<'a> {
    /// Returns the stage that the record concerns; `None` for HELLO and PART.
    pub fn place(&self) -> Option<Place> {
        match *self {
            Record::Hello { .. } | Record::Part { .. } => None,
            Record::Stage { place, .. }
            | Record::Call { place, .. }
            | Record::Same { place, .. }
            | Record::Frames { place, .. }
            | Record::Range { place, .. }
            | Record::New { place, .. }
            | Record::Done { place, .. }
            | Record::Gone { place }
            | Record::Room { place, .. }
            | Record::Want { place, .. }
            | Record::Report { place, .. } => Some(place),
        }
    }

    /// Returns the length of the record at the start of `bytes`, even if the record is incomplete. `None` if
    /// the length field is incomplete.
    pub fn len_at(bytes: &[u8]) -> Option<usize> {
        bytes.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize)
    }

    /// Parses the record at the start of `bytes`. Returns the record and its length; `None` if more bytes are
    /// needed.
    ///
    /// # Errors
    /// The bytes cannot be the start of a valid record.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<(Record<'a>, usize)>, WireError> {
        let Some(len) = bytes.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if !(RECORD_HEADER_LEN..=RECORD_LEN_MAX).contains(&len) {
            return Err(WireError::Length { what: "context record length", offset: 0, found: len });
        }
        let Some(record) = bytes.get(..len) else { return Ok(None) };
        let (head, body) = record.split_at(RECORD_HEADER_LEN);
        let header = Header::parse(head);
        let canonical = header.for_kind(body)?;
        Ok(Some((canonical, len)))
    }

    /// Writes a record without the bytes of its message, which the caller appends. For CALL and NEW,
    /// `message` has the frame lengths and the number of bytes of the message. Returns the length written.
    ///
    /// # Errors
    /// The record is too long, the message has no frames or too many, or `into` is too small.
    pub fn emit_head(&self, message: Option<(&[u32], usize)>, into: &mut [u8]) -> Result<usize, WireError> {
        let (mut header, parts) = self.header();

        let (frames, len) = message.unwrap_or((&[], 0));
        let carries = matches!(self, Record::Call { .. } | Record::New { .. });
        if frames.len() > FRAMES_MAX || frames.is_empty() == carries {
            return Err(WireError::TooLarge { what: "context record frames" });
        }
        header.frames = frames.len() as u8;
        let needed =
            RECORD_HEADER_LEN + 4 * frames.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let total = needed.saturating_add(len);
        if total > RECORD_LEN_MAX {
            return Err(WireError::TooLarge { what: "context record length" });
        }
        if into.len() < needed {
            return Err(WireError::NoSpace { what: "context record", needed });
        }
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let Header { kind, place, output, frames: count, format, own } = header;
        put(&(total as u32).to_le_bytes());
        put(&[kind, place.stage]);
        put(&place.path.to_le_bytes());
        put(&place.generation.to_le_bytes());
        put(&[output, count]);
        put(&format.to_le_bytes());
        own.iter().for_each(|own| put(&own.to_le_bytes()));
        frames.iter().for_each(|len| put(&len.to_le_bytes()));
        parts.into_iter().for_each(put);
        Ok(needed)
    }

    /// Returns the fixed fields, and the parts that follow them.
    fn header(&self) -> (Header, [&'a [u8]; 4]) {
        let head = |kind, place| Header { kind, place, ..Header::default() };
        let mut parts: [&'a [u8]; 4] = [&[]; 4];
        let header = match *self {
            Record::Hello { credit } => Header { own: [VERSION, credit], ..head(1, Place::default()) },
            Record::Stage { place, room, handler, parameters, supply } => {
                let [module, formats] = supply.parts();
                parts = [module, formats, handler.as_bytes(), parameters.as_bytes()];
                Header { output: supply.flags(), own: [handler.len() as u64, room], ..head(2, place) }
            }
            Record::Call { place, sequence, age_ns, message } => {
                Header { format: message.format, own: [sequence, age_ns], ..head(3, place) }
            }
            Record::Same { place, output } => Header { output, ..head(4, place) },
            Record::Frames { place, output, format, first, count } => {
                Header { output, format, own: [first.into(), count.into()], ..head(5, place) }
            }
            Record::Range { place, output, format, start, len } => {
                Header { output, format, own: [start.into(), len.into()], ..head(6, place) }
            }
            Record::New { place, output, message } => {
                Header { output, format: message.format, ..head(7, place) }
            }
            Record::Done { place, fault, ended } => {
                Header { own: [fault.into(), ended.into()], ..head(8, place) }
            }
            Record::Gone { place } => head(9, place),
            Record::Room { place, bytes } => Header { own: [bytes, 0], ..head(10, place) },
            Record::Want { place, object } => {
                parts[0] = object;
                head(11, place)
            }
            Record::Part { object, total, offset, bytes } => {
                (parts[0], parts[1]) = (object, bytes);
                Header { own: [total.into(), offset.into()], ..head(12, Place::default()) }
            }
            Record::Report { place, standing, numbers, why } => {
                (parts[0], parts[1]) = (why.as_bytes(), numbers);
                Header { own: [standing as u64, why.len() as u64], ..head(13, place) }
            }
        };
        (header, parts)
    }
}

/// Returns a message that has only a format, for [`Record::emit_head`].
pub const fn message_of(format: u32) -> Message<'static> {
    Message { format, lens: &[], bytes: &[] }
}

impl Header {
    /// Parses the fields of a complete header.
    fn parse(head: &[u8]) -> Self {
        let two = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let four = |at: usize| u32::from(two(at)) | u32::from(two(at + 2)) << 16;
        let eight = |at: usize| u64::from(four(at)) | u64::from(four(at + 4)) << 32;
        Header {
            kind: head[4],
            place: Place { stage: head[5], path: two(6), generation: two(8) },
            output: head[10],
            frames: head[11],
            format: four(12),
            own: [eight(16), eight(24)],
        }
    }

    fn for_kind<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, WireError> {
        let Header { kind, place, output, format, own, .. } = *self;
        let carries = matches!(kind, 3 | 7);
        let message = if carries { self.message(body)? } else { message_of(format) };
        if matches!(kind, 1 | 4..=6 | 8..=10) && !body.is_empty() {
            return Err(WireError::Length { what: "context record body", offset: 32, found: body.len() });
        }
        let record = match kind {
            1 if own[0] != VERSION => {
                let found = u32::try_from(own[0]).unwrap_or(u32::MAX);
                return Err(WireError::Version { what: "context records", offset: 16, found });
            }
            1 => Record::Hello { credit: own[1] },
            2 => self.stage(body)?,
            3 => Record::Call { place, sequence: own[0], age_ns: own[1], message },
            4 => Record::Same { place, output },
            5 => Record::Frames {
                place,
                output,
                format,
                first: narrow(own[0], 16)?,
                count: narrow(own[1], 24)?,
            },
            6 => {
                Record::Range { place, output, format, start: narrow(own[0], 16)?, len: narrow(own[1], 24)? }
            }
            7 => Record::New { place, output, message },
            8 => Record::Done { place, fault: own[0] == 1, ended: own[1] == 1 },
            9 => Record::Gone { place },
            10 => Record::Room { place, bytes: own[0] },
            11 => Record::Want { place, object: supply::want(body)? },
            12 => self.part(body)?,
            13 => self.report(body)?,
            _ => return Err(WireError::Kind { what: "context record kind", offset: 4, found: kind.into() }),
        };
        // Fields that a kind does not use must be 0, so that each record has one encoding.
        let (mut same, _) = record.header();
        same.frames = if carries { self.frames } else { 0 };
        let fields = |h: &Header| (h.place, h.output, h.frames, h.format, h.own);
        match fields(&same) == fields(self) {
            true => Ok(record),
            false => Err(WireError::Reserved { what: "context record header", offset: 5 }),
        }
    }

    fn message<'a>(&self, body: &'a [u8]) -> Result<Message<'a>, WireError> {
        let frames = usize::from(self.frames);
        if !(1..=FRAMES_MAX).contains(&frames) {
            return Err(WireError::Length { what: "context record frames", offset: 11, found: frames });
        }
        let Some((lens, bytes)) = body.split_at_checked(4 * frames) else {
            let needed = RECORD_HEADER_LEN + 4 * frames;
            return Err(WireError::Truncated { what: "context record frame lengths", offset: 32, needed });
        };
        let message = Message { format: self.format, lens, bytes };
        match message.frame_lens().map(u64::from).sum::<u64>() == bytes.len() as u64 {
            true => Ok(message),
            false => {
                Err(WireError::Length { what: "context record message", offset: 32, found: bytes.len() })
            }
        }
    }

    fn stage<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, WireError> {
        let wrong = WireError::Value { what: "context record handler", offset: 32 };
        let (supply, text) = Supply::split(self.output, body)?;
        let text = core::str::from_utf8(text).map_err(|_| wrong)?;
        let at = usize::try_from(self.own[0]).map_err(|_| wrong)?;
        let (handler, parameters) = text.split_at_checked(at).ok_or(wrong)?;
        Ok(Record::Stage { place: self.place, room: self.own[1], handler, parameters, supply })
    }

    fn part<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, WireError> {
        let wrong = WireError::Length { what: "context record part", offset: 32, found: body.len() };
        let (object, bytes) = body.split_first_chunk().ok_or(wrong)?;
        let (total, offset) = (narrow::<u32>(self.own[0], 16)?, narrow::<u32>(self.own[1], 24)?);
        // A part is empty only if its object has length 0, and never extends past the object's end.
        let end = u64::from(offset) + bytes.len() as u64;
        match (total == 0 || !bytes.is_empty()) && bytes.len() <= PART_LEN_MAX && end <= u64::from(total) {
            true => Ok(Record::Part { object, total, offset, bytes }),
            false => Err(wrong),
        }
    }

    fn report<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, WireError> {
        let wrong = WireError::Value { what: "context record report", offset: 32 };
        let len = usize::try_from(self.own[1]).map_err(|_| wrong)?;
        let (why, numbers) = body.split_at_checked(len).ok_or(wrong)?;
        let why = core::str::from_utf8(why).map_err(|_| wrong)?;
        let numbers = numbers.try_into().map_err(|_| wrong)?;
        let standing = u8::try_from(self.own[0]).ok().and_then(Standing::from_u8).ok_or(wrong)?;
        Ok(Record::Report { place: self.place, standing, numbers, why })
    }
}

fn narrow<T: TryFrom<u64>>(value: u64, offset: usize) -> Result<T, WireError> {
    T::try_from(value).map_err(|_| WireError::Value { what: "context record part", offset })
}

#[cfg(test)]
mod tests;
