//! Frame headers (37/ZMTP, "Framing").
//!
//! ```text
//!  short   | flags | length |        body of 0 to 255 bytes
//!  long    | flags |        length, 8 bytes, big-endian        | body of 0 to 2^63-1 bytes
//!
//!  flags   bits 7-3 zero | 2 COMMAND | 1 LONG | 0 MORE
//! ```

use crate::cursor::Cursor;
use crate::error::ZmtpError;

/// More frames of the message follow.
pub(crate) const MORE: u8 = 1;
/// The length has 8 bytes.
pub(crate) const LONG: u8 = 2;
/// The frame is a command.
pub(crate) const COMMAND: u8 = 4;
const RESERVED: u8 = !(MORE | LONG | COMMAND);

const SHORT_LEN: usize = 2;
/// Length of the longest frame header in bytes.
pub const FRAME_HEADER_LEN_MAX: usize = 9;
/// Largest body in bytes of a short frame.
const SHORT_BODY_MAX: usize = 255;

/// The header of a frame to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    bytes: [u8; FRAME_HEADER_LEN_MAX],
    len: u8,
}

impl FrameHeader {
    /// The header of a message's frame with a body of `body_len` bytes. `more`: another frame of the message
    /// follows.
    pub fn message(body_len: usize, more: bool) -> Self {
        Self::with_flags(body_len, if more { MORE } else { 0 })
    }

    /// The header of a frame with these flags, LONG apart.
    pub(crate) fn with_flags(body_len: usize, flags: u8) -> Self {
        let mut bytes = [0; FRAME_HEADER_LEN_MAX];
        if body_len <= SHORT_BODY_MAX {
            bytes[0] = flags;
            bytes[1] = body_len as u8;
            return FrameHeader { bytes, len: SHORT_LEN as u8 };
        }
        bytes[0] = flags | LONG;
        bytes[1..].copy_from_slice(&(body_len as u64).to_be_bytes());
        FrameHeader { bytes, len: FRAME_HEADER_LEN_MAX as u8 }
    }

    /// Returns the bytes to send before the body: 2 or 9.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

/// The header of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    /// Position of its first byte.
    pub at: u64,
    /// Flags without LONG.
    pub flags: u8,
    /// Length of the header in bytes.
    pub header_len: u8,
    /// Length of the body in bytes, below 2⁶³.
    pub body_len: u64,
}

impl Received {
    pub fn is_command(&self) -> bool {
        self.flags & COMMAND != 0
    }

    pub fn has_more(&self) -> bool {
        self.flags & MORE != 0
    }
}

/// Reads frame headers, whatever the slices that they arrive in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeaderReader {
    bytes: [u8; FRAME_HEADER_LEN_MAX],
    have: usize,
}

impl HeaderReader {
    /// Bytes of an incomplete header that have been read.
    pub fn have(&self) -> usize {
        self.have
    }

    /// Bytes that the header certainly lacks; at least one.
    pub fn lacks(&self) -> usize {
        let len = if self.have > 0 && self.bytes[0] & LONG != 0 { FRAME_HEADER_LEN_MAX } else { SHORT_LEN };
        len.saturating_sub(self.have).max(1)
    }

    /// Reads on; returns the header when it is complete. Flags are checked as soon as they arrive.
    pub fn read<'a, I>(&mut self, input: &mut Cursor<'a, I>) -> Result<Option<Received>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        // Most headers lie in one slice and are read there.
        if self.have == 0
            && let Some(&[flags, length @ ..]) = input.slice().first_chunk::<FRAME_HEADER_LEN_MAX>()
            && matches!(flags & !LONG, 0 | MORE | COMMAND)
            && (flags & LONG == 0 || length[0] >> 7 == 0)
        {
            let at = input.position();
            let (header_len, body_len) = match flags & LONG {
                0 => (SHORT_LEN, length[0].into()),
                _ => (FRAME_HEADER_LEN_MAX, u64::from_be_bytes(length)),
            };
            input.pass(header_len);
            return Ok(Some(Received { at, flags: flags & !LONG, header_len: header_len as u8, body_len }));
        }
        self.read_slowly(input)
    }

    fn read_slowly<'a, I>(&mut self, input: &mut Cursor<'a, I>) -> Result<Option<Received>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        if self.have == 0 {
            let Some(flags) = input.byte() else { return Ok(None) };
            let at = input.position() - 1;
            if flags & RESERVED != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
                return Err(ZmtpError::Flags { at, found: flags });
            }
            self.bytes[0] = flags;
            self.have = 1;
        }
        let long = self.bytes[0] & LONG != 0;
        let len = if long { FRAME_HEADER_LEN_MAX } else { SHORT_LEN };
        self.have += self.bytes.get_mut(self.have..len).map_or(0, |out| input.copy(out));
        if self.have < len {
            return Ok(None);
        }
        self.have = 0;
        let at = input.position() - len as u64;
        let [flags, length @ ..] = self.bytes;
        let body_len = if long { u64::from_be_bytes(length) } else { length[0].into() };
        // 37/ZMTP, "Framing": a long frame has at most 2^63-1 bytes.
        if body_len >> 63 != 0 {
            return Err(ZmtpError::Length { at, found: body_len });
        }
        Ok(Some(Received { at, flags: flags & !LONG, header_len: len as u8, body_len }))
    }
}
