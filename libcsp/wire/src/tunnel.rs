//! Records of a tunnel message (CSP §4.1): whole IP packets, or compacted TCP segments, between network node
//! and proxy node.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! |    version    |     type      | proxy worker  |     flags     |  0
//! +---------------+---------------+---------------+---------------+
//! |                             label                             |  4
//! +---------------------------------------------------------------+
//! |                 age, in nanoseconds, saturating               |  8
//! +-------------------------------+-------------------------------+
//! |       coalesced packets       |         segment size          | 12
//! +-------------------------------+-------------------------------+
//! |                        payload length                         | 16
//! +---------------------------------------------------------------+
//! |          payload, padded with zeros to a multiple of 4        | 20
//! ```
//! Integers are little-endian. The payload is opaque here.
//!
//! No clock reading crosses the tunnel, since the clocks of two hosts have nothing in common. A record
//! carries its [`Age`]: how long the segment lay in the network node until the message with the record was
//! posted. The proxy subtracts it from the time at which it receives the message, on its own clock. Records
//! towards the network node carry age 0.

use core::ops::BitOr;

use csp_types::{Duration, FlowLabel, Instant};

use crate::bytes::{Writer, array_at, check_padding, slice_at};
use crate::{Ecn, WireError};

/// Length of a record's header in bytes.
pub const RECORD_HEADER_LEN: usize = 20;
/// The version in every record.
pub const VERSION: u8 = 3;
/// The first protocol version of links whose ends know [`RecordKind::Election`].
pub const ELECTION_SINCE: u16 = 6;
/// Records are padded to a multiple of this many bytes.
pub const ALIGNMENT: usize = 4;

/// Offset of the age in a record.
const AGE_AT: usize = 8;
const PAYLOAD_LEN_AT: usize = 16;

const ECN_SHIFT: u32 = 4;
/// All of [`Flags`]; the bits between them are those of ECN.
const FLAGS: u8 = 0b0100_1111;
const RESERVED_FLAGS: u8 = 0b1000_0000;

/// The type of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A TCP segment.
    Segment = 1,
    /// An ICMP error that quotes a segment of the proxy.
    IcmpError = 2,
    /// The flow of this label has ended, and no segment is left to send. No payload.
    FlowEnd = 3,
    /// A segment that was sent with [`Flags::RETURN_UNKNOWN`], returned as a whole packet: the proxy has no
    /// connection for it.
    Unknown = 4,
    /// A message of [`crate::election`], on links of protocol version [`ELECTION_SINCE`] and later.
    Election = 5,
}

impl RecordKind {
    /// The kind with this wire number.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => RecordKind::Segment,
            2 => RecordKind::IcmpError,
            3 => RecordKind::FlowEnd,
            4 => RecordKind::Unknown,
            5 => RecordKind::Election,
            _ => return None,
        })
    }
}

/// A record's flags, without the ECN bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// The network node has verified the packet's TCP checksum. The checksum field has no meaning.
    pub const CHECKSUM_VERIFIED: Flags = Flags(1);
    /// The IP header is omitted: the payload is TCP header and data. Requires a label.
    pub const COMPACTED: Flags = Flags(2);
    /// First record of the label: its packet contains the 4-tuple.
    pub const FLOW_NEW: Flags = Flags(4);
    /// Last record of the label.
    pub const FLOW_END: Flags = Flags(8);
    /// The network node does not know which proxy has the connection. A proxy without the connection answers
    /// with [`RecordKind::Unknown`] instead of a RST.
    pub const RETURN_UNKNOWN: Flags = Flags(0x40);

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags and those of `other`.
    #[must_use]
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The flags as encoded in the record.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        self.union(other)
    }
}

/// Time that a segment spent in the network node before its record was posted.
///
/// 32 bits of nanoseconds, exact up to 4.29 s. [`Age::MAX`] stands for that time and every longer one. The
/// segment is then considered younger than it is, so that a round-trip sample may be too long, but never too
/// short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Age(u32);

impl Age {
    /// Posted at once.
    pub const ZERO: Age = Age(0);
    /// The largest age, or any greater one.
    pub const MAX: Age = Age(u32::MAX);

    /// Returns the age of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u32) -> Self {
        Age(nanos)
    }

    /// Returns this age plus `by`, limited to [`Age::MAX`].
    #[must_use]
    pub fn older(self, by: Duration) -> Self {
        Age(self.0.saturating_add(u32::try_from(by.as_nanos()).unwrap_or(u32::MAX)))
    }

    /// Returns the time at which the segment arrived at the network node, on the clock of the receiver that
    /// got its record at `received`.
    pub fn before(self, received: Instant) -> Instant {
        Instant::from_nanos(received.as_nanos().saturating_sub(self.0.into()))
    }
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its kind.
    pub kind: RecordKind,
    /// The flow, or [`FlowLabel::NONE`] while it has no label.
    pub label: FlowLabel,
    /// The proxy's worker that owns the flow.
    pub worker: u8,
    /// Flags.
    pub flags: Flags,
    /// ECN field of the IP header, whether the header is omitted or not.
    pub ecn: Ecn,
    /// Time that the packet spent in the network node; zero towards the network node.
    pub age: Age,
    /// Number of packets that were coalesced into the segment; 0 or 1 if none were.
    pub coalesced: u16,
    /// TCP payload bytes per packet: of the coalesced packets, or of those to split the segment into; 0 if
    /// the segment is one packet.
    pub segment_size: u16,
    /// The packet or segment.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record that ends a flow without a segment.
    pub const fn flow_end(label: FlowLabel, worker: u8) -> Record<'static> {
        Record {
            kind: RecordKind::FlowEnd,
            label,
            worker,
            flags: Flags::FLOW_END,
            ecn: Ecn::NotEct,
            age: Age::ZERO,
            coalesced: 0,
            segment_size: 0,
            payload: &[],
        }
    }

    /// Returns the record by which worker `worker` returns `asked`, a segment that was sent with
    /// [`Flags::RETURN_UNKNOWN`]. It has the payload of `asked`.
    pub const fn unknown(asked: &Record<'a>, worker: u8) -> Self {
        let (kind, label) = (RecordKind::Unknown, FlowLabel::NONE);
        Record { kind, label, worker, flags: Flags::NONE, age: Age::ZERO, ..*asked }
    }

    /// Returns the record of a message of the election, for or from worker `worker` of a proxy.
    pub const fn election(worker: u8, payload: &'a [u8]) -> Self {
        Record {
            kind: RecordKind::Election,
            label: FlowLabel::NONE,
            worker,
            flags: Flags::NONE,
            ecn: Ecn::NotEct,
            age: Age::ZERO,
            coalesced: 0,
            segment_size: 0,
            payload,
        }
    }

    /// Parses the record at the start of `bytes`; returns also its length in bytes, padding included.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), WireError> {
        let raw = array_at::<RECORD_HEADER_LEN>(bytes, 0, "tunnel record header")?;
        if raw[0] != VERSION {
            return Err(WireError::Version {
                what: "tunnel record version",
                offset: 0,
                found: raw[0].into(),
            });
        }
        let kind = RecordKind::from_u8(raw[1]).ok_or(WireError::Kind {
            what: "tunnel record type",
            offset: 1,
            found: raw[1].into(),
        })?;
        if raw[3] & RESERVED_FLAGS != 0 {
            return Err(WireError::Reserved { what: "tunnel record flags", offset: 3 });
        }
        let raw_label = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        let label = FlowLabel::from_wire(raw_label)
            .ok_or(WireError::Reserved { what: "tunnel record label", offset: 4 })?;
        let payload_len = u32::from_le_bytes([raw[16], raw[17], raw[18], raw[19]]) as usize;
        let payload = slice_at(bytes, RECORD_HEADER_LEN, payload_len, "tunnel record payload")?;
        let payload_end = RECORD_HEADER_LEN + payload_len;
        let end = padded_len(payload_end);
        let padding = slice_at(bytes, payload_end, end - payload_end, "tunnel record padding")?;
        check_padding(padding, payload_end, "tunnel record padding")?;
        let record = Record {
            kind,
            label,
            worker: raw[2],
            flags: Flags(raw[3] & FLAGS),
            ecn: Ecn::from_bits(raw[3] >> ECN_SHIFT),
            age: Age(u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]])),
            coalesced: u16::from_le_bytes([raw[12], raw[13]]),
            segment_size: u16::from_le_bytes([raw[14], raw[15]]),
            payload,
        };
        record.check_meaning()?;
        Ok((record, end))
    }

    /// Checks the relations between fields.
    fn check_meaning(&self) -> Result<(), WireError> {
        let needs_label = self.flags.contains(Flags::COMPACTED) || self.kind == RecordKind::FlowEnd;
        if needs_label && self.label.is_none() {
            return Err(WireError::Value { what: "tunnel record label", offset: 4 });
        }
        let needs_header = self.flags.contains(Flags::RETURN_UNKNOWN) || self.kind == RecordKind::Unknown;
        if needs_header && self.flags.contains(Flags::COMPACTED) {
            return Err(WireError::Value { what: "tunnel record flags", offset: 3 });
        }
        if (self.kind == RecordKind::FlowEnd) != self.payload.is_empty() {
            let found = self.payload.len();
            return Err(WireError::Length {
                what: "tunnel record payload length",
                offset: PAYLOAD_LEN_AT,
                found,
            });
        }
        Ok(())
    }

    /// The header for a payload of `payload_len` bytes. The record's own `payload` is ignored, so that the
    /// payload can be posted as a gather list; the caller adds the padding.
    pub fn emit_header(&self, payload_len: u32) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2] = self.worker;
        out[3] = self.flags.bits() | self.ecn.bits() << ECN_SHIFT;
        out[4..8].copy_from_slice(&self.label.to_wire().to_le_bytes());
        out[8..12].copy_from_slice(&self.age.0.to_le_bytes());
        out[12..14].copy_from_slice(&self.coalesced.to_le_bytes());
        out[14..16].copy_from_slice(&self.segment_size.to_le_bytes());
        out[16..20].copy_from_slice(&payload_len.to_le_bytes());
        out
    }

    /// Writes header, payload and padding; returns their length. The payload is in `parts`, the record's own
    /// is ignored. `None` if `out` is too short, or the payload exceeds a record's length field.
    pub fn emit_parts(&self, parts: &[&[u8]], out: &mut [u8]) -> Option<usize> {
        let payload_len: usize = parts.iter().map(|part| part.len()).sum();
        let header = self.emit_header(u32::try_from(payload_len).ok()?);
        let len = padded_len(RECORD_HEADER_LEN.saturating_add(payload_len));
        let mut room = out.get_mut(..len)?;
        for part in core::iter::once(&header[..]).chain(parts.iter().copied()) {
            let (here, rest) = core::mem::take(&mut room).split_at_mut_checked(part.len())?;
            here.copy_from_slice(part);
            room = rest;
        }
        room.fill(0);
        Some(len)
    }

    /// Length of the record in bytes, header and padding included.
    pub fn len(&self) -> usize {
        padded_len(RECORD_HEADER_LEN + self.payload.len())
    }

    /// Always false: every record has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes header, payload and padding; returns their length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        self.emit_to(&mut writer)?;
        Ok(writer.len())
    }

    /// Appends header, payload and padding. Appends nothing if they do not fit.
    pub fn emit_to(&self, writer: &mut Writer<'_>) -> Result<(), WireError> {
        let too_large = WireError::TooLarge { what: "tunnel record payload" };
        let payload_len = u32::try_from(self.payload.len()).map_err(|_| too_large)?;
        let out = writer.take(self.len(), "tunnel record")?;
        let (header, rest) = out.split_at_mut(RECORD_HEADER_LEN);
        let (payload, padding) = rest.split_at_mut(self.payload.len());
        header.copy_from_slice(&self.emit_header(payload_len));
        payload.copy_from_slice(self.payload);
        padding.fill(0);
        Ok(())
    }
}

/// `len` rounded up to the record alignment.
pub const fn padded_len(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Adds `by` to the age of every record in a message body, for a sender that could not post it at once.
/// `body` holds whole records as written by [`Record::emit_header`]; the first one that cannot be parsed ends
/// the walk.
pub fn grow_older(body: &mut [u8], by: Duration) {
    let mut rest = body;
    while let Some(header) = rest.first_chunk_mut::<RECORD_HEADER_LEN>() {
        let field =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (age, payload_len) = (Age(field(AGE_AT)).older(by), field(PAYLOAD_LEN_AT) as usize);
        header[AGE_AT..AGE_AT + 4].copy_from_slice(&age.0.to_le_bytes());
        let len = padded_len(RECORD_HEADER_LEN.saturating_add(payload_len));
        rest = rest.get_mut(len..).unwrap_or_default();
    }
}

/// Iterator over the records of a message body, in order. It ends after the first error, whose offset counts
/// from the start of the body.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// The records in `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Records { body, at: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        match Record::parse(rest) {
            Ok((record, len)) => {
                self.at += len;
                Some(Ok(record))
            }
            Err(error) => {
                let error = error.shifted(self.at);
                self.at = self.body.len();
                Some(Err(error))
            }
        }
    }
}
