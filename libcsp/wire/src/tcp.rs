//! TCP headers (RFC 9293 §3.1): a checked view, the options an endpoint negotiates, and the emitter.
//!
//! This module contains the byte layout only: no sequence number arithmetic, no state, no checksums. The
//! checksum field is parsed, and emitted as 0, because the network node (or its hardware) fills it in.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use crate::WireError;

/// Length of a header without options, in bytes.
pub const HEADER_LEN_MIN: usize = 20;
/// Length of the longest header (data offset 15), in bytes.
pub const HEADER_LEN_MAX: usize = 60;
/// Position of the checksum in the header.
pub const CHECKSUM_AT: usize = 16;
/// Room for options in the longest header, in bytes.
pub const OPTIONS_LEN_MAX: usize = HEADER_LEN_MAX - HEADER_LEN_MIN;
/// Most SACK blocks a header has room for (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;
/// Largest shift of the window scale option; larger ones are replaced by it (RFC 7323 §2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// The control bits of a header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether FIN is set.
    pub const fn fin(self) -> bool {
        self.contains(Flags::FIN)
    }

    /// Whether SYN is set.
    pub const fn syn(self) -> bool {
        self.contains(Flags::SYN)
    }

    /// Whether RST is set.
    pub const fn rst(self) -> bool {
        self.contains(Flags::RST)
    }

    /// Whether ACK is set.
    pub const fn ack(self) -> bool {
        self.contains(Flags::ACK)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, rhs: Flags) -> Flags {
        Flags(self.0 | rhs.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, rhs: Flags) {
        self.0 |= rhs.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        for (bit, name) in "FSRPAUEC".chars().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{name}")?;
            }
        }
        Ok(())
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the newest TSval of the peer; valid only with ACK.
    pub echo: u32,
}

/// One block of the SACK option: the sequence numbers `start .. end` were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub start: u32,
    /// The sequence number after its last.
    pub end: u32,
}

/// Up to four SACK blocks, in the order of the option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; SACK_BLOCKS_MAX],
    len: u8,
}

impl SackBlocks {
    /// No block.
    pub const EMPTY: SackBlocks =
        SackBlocks { blocks: [SackBlock { start: 0, end: 0 }; SACK_BLOCKS_MAX], len: 0 };

    /// Appends a block; `false` if there is no room for it.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *slot = block;
        self.len += 1;
        true
    }

    /// The blocks.
    pub fn as_slice(&self) -> &[SackBlock] {
        self.blocks.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Whether there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The options that an endpoint uses. Other options are skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size; only on SYN.
    pub mss: Option<u16>,
    /// Window scale shift, at most [`WINDOW_SCALE_MAX`]; only on SYN.
    pub window_scale: Option<u8>,
    /// SACK permitted; only on SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks; those that do not fit into the header are not emitted.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the options area of a header. An option with an invalid length ends parsing: options before it
    /// are valid, everything after it is ignored (RFC 9293 §3.1, MUST-7).
    pub fn parse(mut area: &[u8]) -> Options {
        let mut options = Options::default();
        while let [kind, rest @ ..] = area {
            match *kind {
                KIND_END => break,
                KIND_NOP => area = rest,
                kind => {
                    let Some((&len, _)) = rest.split_first() else { break };
                    let Some(body) = area.get(2..usize::from(len)) else { break };
                    options.take(kind, body);
                    area = area.get(usize::from(len)..).unwrap_or(&[]);
                }
            }
        }
        options
    }

    /// Parses one option; an option whose body has the wrong length for its kind is skipped.
    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (KIND_MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            // RFC 7323 §2.3: a shift above 14 is used as 14.
            (KIND_WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
            (KIND_SACK_PERMITTED, []) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            (KIND_SACK, body) if body.len() % 8 == 0 => {
                self.sack = SackBlocks::EMPTY;
                for block in body.chunks_exact(8) {
                    self.sack.push(SackBlock { start: be32(block, 0), end: be32(block, 4) });
                }
            }
            _ => {}
        }
    }

    /// Length of the options in a header in bytes, padded to a multiple of 4.
    pub fn len(&self) -> usize {
        let sack = self.sack_count();
        self.fixed_len() + if sack == 0 { 0 } else { 4 + 8 * sack }
    }

    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of everything but the SACK blocks, padded.
    fn fixed_len(&self) -> usize {
        usize::from(self.mss.is_some()) * 4
            + usize::from(self.window_scale.is_some()) * 4
            + usize::from(self.sack_permitted) * 4
            + usize::from(self.timestamps.is_some()) * 12
    }

    /// How many SACK blocks fit next to the other options.
    fn sack_count(&self) -> usize {
        let room = OPTIONS_LEN_MAX - self.fixed_len();
        self.sack.as_slice().len().min(room.saturating_sub(4) / 8)
    }

    /// Writes the options into `area`, which is [`Options::len`] bytes long.
    fn emit(&self, area: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(slot) = area.get_mut(at..at + bytes.len()) {
                slot.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[KIND_MSS, 4]);
            put(&mss.to_be_bytes());
        }
        if self.sack_permitted {
            put(&[KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            put(&[KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[KIND_NOP, KIND_WINDOW_SCALE, 3, shift]);
        }
        let count = self.sack_count();
        if count > 0 {
            put(&[KIND_NOP, KIND_NOP, KIND_SACK, (2 + 8 * count) as u8]);
            for block in &self.sack.as_slice()[..count] {
                put(&block.start.to_be_bytes());
                put(&block.end.to_be_bytes());
            }
        }
    }
}

/// A segment with a checked header: the data offset lies within the bytes.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    bytes: &'a [u8],
    header_len: usize,
}

impl<'a> Segment<'a> {
    /// Checks the header at the start of `bytes`; the bytes after it are the payload.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Length`]: the bytes are too short, or the data offset is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let len = bytes.len();
        if len < HEADER_LEN_MIN {
            return Err(WireError::Truncated { what: "TCP header", offset: 0, needed: HEADER_LEN_MIN });
        }
        let header_len = usize::from(bytes[12] >> 4) * 4;
        if header_len < HEADER_LEN_MIN || header_len > len {
            return Err(WireError::Length { what: "TCP data offset", offset: 12, found: header_len });
        }
        Ok(Segment { bytes, header_len })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        be16(self.bytes, 0)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.bytes, 2)
    }

    /// Sequence number.
    pub fn seq(&self) -> u32 {
        be32(self.bytes, 4)
    }

    /// Acknowledgement number; valid only with [`Flags::ACK`].
    pub fn ack(&self) -> u32 {
        be32(self.bytes, 8)
    }

    /// Control bits.
    pub fn flags(&self) -> Flags {
        Flags(self.bytes[13])
    }

    /// The window field, unscaled.
    pub fn window(&self) -> u16 {
        be16(self.bytes, 14)
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.bytes, 16)
    }

    /// The urgent pointer.
    pub fn urgent(&self) -> u16 {
        be16(self.bytes, 18)
    }

    /// Length of the header with options, in bytes.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// The options area.
    pub fn options_bytes(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN_MIN..self.header_len).unwrap_or(&[])
    }

    /// The parsed options.
    pub fn options(&self) -> Options {
        Options::parse(self.options_bytes())
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_len..).unwrap_or(&[])
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}>{} {:?} seq {} ack {} win {} len {}",
            self.source_port(),
            self.destination_port(),
            self.flags(),
            self.seq(),
            self.ack(),
            self.window(),
            self.payload().len()
        )
    }
}

/// A header to be emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// The window field, already scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Repr {
    /// The header of `segment`, without checksum, urgent pointer and unknown options.
    pub fn parse(segment: &Segment<'_>) -> Repr {
        Repr {
            source_port: segment.source_port(),
            destination_port: segment.destination_port(),
            seq: segment.seq(),
            ack: segment.ack(),
            flags: segment.flags(),
            window: segment.window(),
            options: segment.options(),
        }
    }

    /// Length of the header in bytes, 20 to 60.
    pub fn header_len(&self) -> usize {
        HEADER_LEN_MIN + self.options.len()
    }

    /// Writes the header to the start of `buffer`, with checksum and urgent pointer 0, and returns its
    /// length; `None` if `buffer` is shorter than [`Repr::header_len`].
    pub fn emit(&self, buffer: &mut [u8]) -> Option<usize> {
        let len = self.header_len();
        let header = buffer.get_mut(..len)?;
        header[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..8].copy_from_slice(&self.seq.to_be_bytes());
        header[8..12].copy_from_slice(&self.ack.to_be_bytes());
        header[12] = ((len / 4) as u8) << 4;
        header[13] = self.flags.0;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..20].fill(0);
        self.options.emit(&mut header[HEADER_LEN_MIN..]);
        Some(len)
    }
}

/// Two bytes at `at`, which `parse` has checked to be there; 0 otherwise.
fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// Four bytes at `at`, which `parse` has checked to be there; 0 otherwise.
fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(test)]
mod tests;
