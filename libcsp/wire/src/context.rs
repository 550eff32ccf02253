//! Records between a proxy worker and a context elsewhere, in a stream of bytes.
//!
//! ```text
//!  0 length with header (4) | 4 kind (1) | 5 stage (1) | 6 path (2) | 8 generation (2) | 10 output (1) | 11 frames (1) | 12 format (4)
//! 16 kind's own: two integers of 8 bytes | 32 length of each frame (4) | bytes
//! ```
//! Integers are little-endian; fields that a kind does not use are 0. The proxy sends HELLO, STAGE, CALL, ROOM, PART and GONE; the context
//! HELLO, and of each stage SAME, FRAMES, RANGE and NEW for what it emits of the oldest call, then DONE. A stage emits while it has
//! room, which STAGE gives first and ROOM gives back: each record takes its length of it, the last one possibly more than there is.
//!
//! STAGE names by SHA-256 what a handler needs beside its name: its module, and the formats of its messages. The context asks by WANT for
//! what it does not have; PARTs bring it, in order. REPORT says what a stage has counted, and takes no room.

mod supply;

pub use supply::{
    Hash, OBJECT_LEN_MAX, OnStop, PART_LEN_MAX, Report, ReportNumbers, STOP_REASONS, Standing, Supply,
};

use crate::WireError;

/// Length of a record's header in bytes.
pub const RECORD_HEADER_LEN: usize = 32;
/// Longest record in bytes: a message of 64 MiB, with what stands before it.
pub const RECORD_LEN_MAX: usize = (64 << 20) + 4096;
/// Most frames of a message.
pub const FRAMES_MAX: usize = 16;
/// The version of this format.
pub const VERSION: u64 = 2;

/// A stage of a path at the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Index of the path.
    pub path: u16,
    /// How often its slot was used before.
    pub generation: u16,
    /// The stage.
    pub stage: u8,
}

/// A message: the length of each frame, and the bytes of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Format of the bytes, in its channel.
    pub format: u32,
    /// Four bytes for each frame.
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
    /// Version of the format, and how many unanswered calls of each stage the sender permits.
    Hello {
        /// Calls.
        credit: u64,
    },
    /// What a stage's handler is: its name and parameters. The same stage again: its parameters have changed.
    Stage {
        /// The stage.
        place: Place,
        /// Bytes of records that the stage may emit before the proxy gives room back; of a stage that is known, it means nothing.
        room: u64,
        /// Name of the handler.
        handler: &'a str,
        /// Its parameters.
        parameters: &'a str,
        /// What the handler needs beside its name.
        supply: Supply<'a>,
    },
    /// A message for a handler.
    Call {
        /// The stage.
        place: Place,
        /// Number of the message in its channel.
        sequence: u64,
        /// How long ago the message arrived, in ns: no clock crosses hosts.
        age_ns: u64,
        /// The message.
        message: Message<'a>,
    },
    /// The message of the call is emitted.
    Same {
        /// The stage.
        place: Place,
        /// The output.
        output: u8,
    },
    /// Some of its frames are.
    Frames {
        /// The stage.
        place: Place,
        /// The output.
        output: u8,
        /// Format of these.
        format: u32,
        /// Number of the first.
        first: u8,
        /// How many.
        count: u8,
    },
    /// Some of its bytes are.
    Range {
        /// The stage.
        place: Place,
        /// The output.
        output: u8,
        /// Format of these.
        format: u32,
        /// Bytes before the first.
        start: u32,
        /// How many.
        len: u32,
    },
    /// A new message is emitted.
    New {
        /// The stage.
        place: Place,
        /// The output.
        output: u8,
        /// The message.
        message: Message<'a>,
    },
    /// The handler is done with the oldest call.
    Done {
        /// The stage.
        place: Place,
        /// The handler has given the message up.
        fault: bool,
        /// It has ended the path: it gives up all later messages too.
        ended: bool,
    },
    /// The stage is over.
    Gone {
        /// The stage.
        place: Place,
    },
    /// The proxy has processed what the stage has emitted.
    Room {
        /// The stage.
        place: Place,
        /// Length of these records in bytes.
        bytes: u64,
    },
    /// The context does not have what STAGE has named.
    Want {
        /// The stage.
        place: Place,
        /// What it needs.
        object: &'a Hash,
    },
    /// Bytes of what was asked for. A total of 0 without bytes: the stage has ended, and no other one needs it.
    Part {
        /// What they belong to.
        object: &'a Hash,
        /// Length of the whole in bytes.
        total: u32,
        /// Bytes before these.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// What a stage has counted since it began, at the context.
    Report {
        /// The stage.
        place: Place,
        /// How it stands.
        standing: Standing,
        /// Counters and times: [`Report::read`].
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
    /// Returns the stage that the record is about; `None` for HELLO and PART.
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

    /// Returns the length of the record at the start of `bytes`, whether all of it is there or not; `None` if that is not there.
    pub fn len_at(bytes: &[u8]) -> Option<usize> {
        bytes.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize)
    }

    /// Parses the record at the start of `bytes`. Returns it with its length; `None` if more bytes are needed.
    ///
    /// # Errors
    /// When the bytes cannot be the start of a record, however they continue.
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

    /// Writes a record without the bytes of a message, which follow it: CALL and NEW give their frames and how many bytes these are in
    /// `message`. Returns the length of what was written.
    ///
    /// # Errors
    /// When it is too long, a message has no frame or too many, or `into` is too small.
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

    /// Returns the fixed fields, and what follows them.
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

/// A message of which only the format is given: for [`Record::emit_head`].
pub const fn message_of(format: u32) -> Message<'static> {
    Message { format, lens: &[], bytes: &[] }
}

impl Header {
    /// Reads the fields of a whole header.
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
        // What a kind does not use is 0, so that each record has one form.
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
        // No part is empty but that of nothing, or reaches past the end.
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
        let standing = Standing::of(self.own[0]).ok_or(wrong)?;
        Ok(Record::Report { place: self.place, standing, numbers, why })
    }
}

fn narrow<T: TryFrom<u64>>(value: u64, offset: usize) -> Result<T, WireError> {
    T::try_from(value).map_err(|_| WireError::Value { what: "context record part", offset })
}

#[cfg(test)]
mod tests;
