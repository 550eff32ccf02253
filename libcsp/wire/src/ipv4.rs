//! IPv4 headers (RFC 791). Options are skipped. Fragments are reported; their reassembly belongs to the
//! caller.

use core::net::Ipv4Addr;

use crate::bytes::{array_at, room};
use crate::checksum::checksum;
use crate::{Ecn, WireError};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;
const RESERVED_FLAG: u16 = 0x8000;

/// A checked IPv4 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    fixed: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks lengths and header checksum. Bytes after the total length (Ethernet padding) are cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let packet = Self::parse_header(bytes)?;
        let header_len = packet.header_len();
        if checksum(&bytes[..header_len]) != 0 {
            return Err(WireError::Checksum { what: "ipv4 header checksum", offset: 10 });
        }
        let payload_len = packet.total_len() - header_len;
        let payload = packet.payload.get(..payload_len).ok_or(WireError::Truncated {
            what: "ipv4 payload",
            offset: header_len,
            needed: packet.total_len(),
        })?;
        Ok(Packet { payload, ..packet })
    }

    /// As [`parse`](Self::parse) for a packet quoted by an ICMP error: it may be truncated, and routers may
    /// have changed its header, so the checksum is not checked.
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<Self, WireError> {
        let packet = Self::parse_header(bytes)?;
        let payload_len = packet.total_len() - packet.header_len();
        let payload = &packet.payload[..payload_len.min(packet.payload.len())];
        Ok(Packet { payload, ..packet })
    }

    /// Checks all lengths, except that the payload is complete.
    fn parse_header(bytes: &'a [u8]) -> Result<Self, WireError> {
        let fixed = array_at::<HEADER_LEN>(bytes, 0, "ipv4 header")?;
        if fixed[0] >> 4 != 4 {
            return Err(WireError::Version {
                what: "ipv4 version",
                offset: 0,
                found: (fixed[0] >> 4).into(),
            });
        }
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        if header_len < HEADER_LEN {
            return Err(WireError::Length { what: "ipv4 header length", offset: 0, found: header_len });
        }
        let (header, payload) = bytes.split_at_checked(header_len).ok_or(WireError::Truncated {
            what: "ipv4 options",
            offset: HEADER_LEN,
            needed: header_len,
        })?;
        let packet = Packet { fixed, options: &header[HEADER_LEN..], payload };
        if packet.total_len() < header_len {
            let found = packet.total_len();
            return Err(WireError::Length { what: "ipv4 total length", offset: 2, found });
        }
        if packet.flags_and_offset() & RESERVED_FLAG != 0 {
            return Err(WireError::Reserved { what: "ipv4 flags", offset: 6 });
        }
        Ok(packet)
    }

    /// Sender.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.fixed[12], self.fixed[13], self.fixed[14], self.fixed[15])
    }

    /// Receiver.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.fixed[16], self.fixed[17], self.fixed[18], self.fixed[19])
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Time to live, in hops.
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Differentiated services codepoint, 6 bits.
    pub fn dscp(&self) -> u8 {
        self.fixed[1] >> 2
    }

    /// ECN field.
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.fixed[1])
    }

    /// Identification.
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// Whether routers must not fragment the packet.
    pub fn dont_fragment(&self) -> bool {
        self.flags_and_offset() & DONT_FRAGMENT != 0
    }

    /// Whether further fragments follow this one.
    pub fn more_fragments(&self) -> bool {
        self.flags_and_offset() & MORE_FRAGMENTS != 0
    }

    /// Offset of this fragment's payload in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.flags_and_offset() & OFFSET_MASK) * 8
    }

    /// Whether this is a fragment.
    pub fn is_fragment(&self) -> bool {
        self.flags_and_offset() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Bytes of the header with its options.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Length of the packet according to its header, in bytes.
    pub fn total_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.fixed[2], self.fixed[3]]))
    }

    /// The options, unparsed.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn flags_and_offset(&self) -> u16 {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]])
    }
}

/// Rewrites the header at the start of `packet`, the first fragment's, into that of the whole datagram of
/// `packet.len()` bytes: no fragment, and a valid checksum (RFC 791 §3.2). Returns `false` if the header or
/// the length is invalid.
pub fn make_whole(packet: &mut [u8], ecn: Ecn) -> bool {
    let Ok(total_len) = u16::try_from(packet.len()) else { return false };
    let Some(header_len) = packet.first().map(|byte| usize::from(byte & 0xf) * 4) else { return false };
    let Some(header) = packet.get_mut(..header_len).filter(|_| header_len >= HEADER_LEN) else {
        return false;
    };
    header[1] = header[1] & !3 | ecn.bits();
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    let flags = u16::from_be_bytes([header[6], header[7]]) & DONT_FRAGMENT;
    header[6..8].copy_from_slice(&flags.to_be_bytes());
    header[10..12].fill(0);
    let field = checksum(header);
    header[10..12].copy_from_slice(&field.to_be_bytes());
    true
}

/// A header without options, of a packet that is no fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Differentiated services codepoint; only the low 6 bits count.
    pub dscp: u8,
    /// ECN field.
    pub ecn: Ecn,
    /// Identification; may be 0 with `dont_fragment` (RFC 6864 §4.1).
    pub identification: u16,
    /// Whether routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Bytes that follow the header.
    pub payload_len: u16,
}

impl Repr {
    /// The packet's header without its options. Fragments are [`WireError::Unsupported`].
    pub fn parse(packet: &Packet<'_>) -> Result<Self, WireError> {
        if packet.is_fragment() {
            return Err(WireError::Unsupported { what: "ipv4 fragment", offset: 6 });
        }
        Ok(Repr {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            ttl: packet.ttl(),
            dscp: packet.dscp(),
            ecn: packet.ecn(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
            payload_len: (packet.total_len() - packet.header_len()) as u16,
        })
    }

    /// Bytes of the header.
    pub const fn len(&self) -> usize {
        HEADER_LEN
    }

    /// Always false: the encoding is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header with its checksum; returns its length. Header and payload together must fit 16 bits.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = room(out, HEADER_LEN, "ipv4 header")?;
        let total_len = self
            .payload_len
            .checked_add(HEADER_LEN as u16)
            .ok_or(WireError::TooLarge { what: "ipv4 total length" })?;
        out[0] = 0x45;
        out[1] = self.dscp << 2 | self.ecn.bits();
        out[2..4].copy_from_slice(&total_len.to_be_bytes());
        out[4..6].copy_from_slice(&self.identification.to_be_bytes());
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        out[6..8].copy_from_slice(&flags.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..20].copy_from_slice(&self.destination.octets());
        let field = checksum(out);
        out[10..12].copy_from_slice(&field.to_be_bytes());
        Ok(HEADER_LEN)
    }
}
