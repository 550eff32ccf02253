//! The bytes of a message in its format: which frame they are, and as a list of slices.

use crate::counters::Counter;
use crate::row::{ROW_LEN_MAX, TOO_LONG};
use csp_formats::Fixed;
use csp_handlers::{Call, Emit, FormatId, Piece, Stop};

/// Most slices of a message that operators read. A message of 1 MiB in blocks of 2 KiB has 513.
pub const SLICES_MAX: usize = 520;
/// Slices for which no large list is made.
const FEW: usize = 16;
/// Most frames of a message.
pub const FRAMES_MAX: usize = 16;

/// The frame that has a format: the only one, or the second behind the topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Body {
    /// The frame's number.
    pub frame: u8,
    /// Bytes of the message before it.
    pub start: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// The number of the frame that has the format, of a message of so many frames: the only one, or the one
/// behind the topic.
#[must_use]
pub fn body_frame(frames: u8) -> u8 {
    u8::from(frames > 1)
}

impl Body {
    /// The frame of the message of a call.
    #[inline]
    pub fn of(call: &Call<'_>) -> Body {
        let message = call.message();
        let frame = body_frame(message.frames);
        if frame == 0 {
            return Body { frame, start: 0, len: message.len };
        }
        let start = call.frame_len(0).unwrap_or(0);
        Body { frame, start, len: call.frame_len(frame).unwrap_or(0) }
    }

    /// Header and block of the frame, if they lie in its first slice as fixed places need them.
    #[inline]
    pub fn fixed<'c>(self, call: &'c Call<'_>, fixed: &Fixed) -> Option<&'c [u8]> {
        let first = call.range(self.start, self.len).next().unwrap_or_default();
        fixed.of(first, self.len as usize)
    }

    /// Reads the frame as a list of slices. `None`: it has more than [`SLICES_MAX`].
    #[inline]
    pub fn read<R>(self, call: &Call<'_>, read: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let mut slices = [&[][..]; FEW];
        match self.fill(call, &mut slices) {
            Some(count) => Some(read(&slices[..count])),
            None => self.read_many(call, read),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_many<R>(self, call: &Call<'_>, read: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let mut slices = [&[][..]; SLICES_MAX];
        let count = self.fill(call, &mut slices)?;
        Some(read(&slices[..count]))
    }

    #[inline]
    fn fill<'a>(self, call: &'a Call<'_>, slices: &mut [&'a [u8]]) -> Option<usize> {
        let mut count = 0;
        for slice in call.range(self.start, self.len) {
            *slices.get_mut(count)? = slice;
            count += 1;
        }
        Some(count)
    }

    /// Emits a message with pieces in the place of this frame; topic and further frames stay.
    #[inline]
    pub fn emit(
        self,
        call: &mut Call<'_>,
        output: u8,
        format: FormatId,
        pieces: &[Piece<'_>],
    ) -> Result<(), Stop> {
        // Most messages have one frame, and most results one piece.
        if let [Piece::Bytes(bytes)] = pieces
            && call.message().frames <= 1
            && self.len == call.message().len
            && !bytes.is_empty()
            && bytes.len() <= ROW_LEN_MAX as usize
        {
            let frames = &[bytes.len() as u32];
            return Ok(call.emit(output, Emit::New { format, frames, pieces })?);
        }
        self.emit_among(call, output, format, pieces)
    }

    fn emit_among(
        self,
        call: &mut Call<'_>,
        output: u8,
        format: FormatId,
        pieces: &[Piece<'_>],
    ) -> Result<(), Stop> {
        /// Pieces of a row, and the frames around it.
        const PIECES: usize = PIECES_MAX + 2;
        let mut all = [Piece::Bytes(&[]); PIECES];
        let mut frames = [0; FRAMES_MAX];
        let count = usize::from(call.message().frames).clamp(1, FRAMES_MAX);
        for (frame, len) in frames.iter_mut().enumerate().take(count) {
            *len = call.frame_len(frame as u8).unwrap_or(0);
        }
        frames[usize::from(self.frame)] =
            pieces.iter().fold(0, |sum: u32, piece| sum.saturating_add(len(piece)));
        let made = frames.iter().fold(0u32, |sum, len| sum.saturating_add(*len));
        if made > ROW_LEN_MAX {
            Counter::TooLong.add(call.state(), 1);
            return Err(TOO_LONG);
        }
        let (behind, whole) = (self.start.saturating_add(self.len), call.message().len);
        let mut at = 0;
        let mut add = |piece| {
            if len(&piece) > 0 && at < PIECES {
                all[at] = piece;
                at += 1;
            }
        };
        add(Piece::Of { start: 0, len: self.start });
        pieces.iter().for_each(|piece| add(*piece));
        add(Piece::Of { start: behind, len: whole.saturating_sub(behind) });
        Ok(call.emit(output, Emit::New { format, frames: &frames[..count], pieces: &all[..at] })?)
    }
}

/// Most pieces of a row.
pub(crate) const PIECES_MAX: usize = 2 * csp_queries::APART_MAX + 1;

pub(crate) fn len(piece: &Piece<'_>) -> u32 {
    match piece {
        Piece::Of { len, .. } => *len,
        Piece::Bytes(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
    }
}
