//! A handler's input and output while it runs: one message in memory, and the records for the proxy.

use csp_handlers::{Emit, FormatId, Full, Piece, Place, Port};
use csp_wire::context::{FRAMES_MAX, Place as StagePlace, Record, message_of};

/// Longest record without the bytes of its message.
const HEAD_LEN_MAX: usize = csp_wire::context::RECORD_HEADER_LEN + 4 * FRAMES_MAX;

/// The port of one call.
pub(crate) struct Emitter<'a> {
    pub place: StagePlace,
    pub bytes: &'a [u8],
    pub frames: &'a [u32],
    pub out: &'a mut Vec<u8>,
    /// Bytes of records that the stage may still emit; the last record may exceed them.
    pub room: &'a mut i64,
    /// Emits that an interrupted call with the same message has made before.
    pub skip: u32,
    /// Emits of this call.
    pub calls: u32,
    /// An emit had no room.
    pub full: bool,
    /// Emits that no record can carry, or that ask for bytes that the message does not have.
    pub invalid: u64,
}

impl Emitter<'_> {
    fn record(&mut self, record: Record<'_>, message: Option<(&[u32], usize)>) -> bool {
        let mut head = [0; HEAD_LEN_MAX];
        let Ok(len) = record.emit_head(message, &mut head) else { return false };
        self.out.extend_from_slice(&head[..len]);
        *self.room -= len as i64;
        true
    }

    fn new_message(&mut self, output: u8, format: FormatId, frames: &[u32], pieces: &[Piece<'_>]) -> bool {
        let place = self.place;
        let len: u64 = frames.iter().map(|len| u64::from(*len)).sum();
        let found: Option<u64> = pieces.iter().map(|piece| Some(self.piece(piece)?.len() as u64)).sum();
        let Ok(total) = usize::try_from(len) else { return false };
        if found != Some(len) {
            return false;
        }
        let record = Record::New { place, output, message: message_of(format.0) };
        if !self.record(record, Some((frames, total))) {
            return false;
        }
        for piece in pieces {
            let bytes = match piece {
                Piece::Of { start, len } => part(self.bytes, *start, *len).unwrap_or(&[]),
                Piece::Bytes(bytes) => bytes,
            };
            self.out.extend_from_slice(bytes);
        }
        *self.room -= total as i64;
        true
    }

    fn piece<'p>(&'p self, piece: &'p Piece<'p>) -> Option<&'p [u8]> {
        match piece {
            Piece::Of { start, len } => part(self.bytes, *start, *len),
            Piece::Bytes(bytes) => Some(bytes),
        }
    }
}

fn part(bytes: &[u8], start: u32, len: u32) -> Option<&[u8]> {
    let start = start as usize;
    bytes.get(start..start.checked_add(len as usize)?)
}

impl Port for Emitter<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let rest = self.bytes.get(place.at as usize..).unwrap_or(&[]);
        (rest, Place { at: place.at + rest.len() as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        self.frames.get(usize::from(frame)).copied()
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full> {
        if self.full {
            return Err(Full);
        }
        if self.calls < self.skip {
            self.calls += 1;
            return Ok(());
        }
        if *self.room <= 0 {
            self.full = true;
            return Err(Full);
        }
        let place = self.place;
        let emitted = match emit {
            Emit::Same => self.record(Record::Same { place, output }, None),
            Emit::Frames { format: FormatId(format), first, count } => {
                self.record(Record::Frames { place, output, format, first, count }, None)
            }
            Emit::Range { format: FormatId(format), start, len } => {
                self.record(Record::Range { place, output, format, start, len }, None)
            }
            Emit::New { format, frames, pieces } => self.new_message(output, format, frames, pieces),
        };
        self.calls += 1;
        self.invalid += u64::from(!emitted);
        Ok(())
    }
}
