//! IPv6 headers (RFC 8200). Hop-by-hop and destination options are skipped, up to a bound; other extension
//! headers are errors that name them.

mod fragment;

use core::net::Ipv6Addr;

pub use fragment::{Fragment, make_whole};

use crate::bytes::{array_at, room, slice_at};
use crate::{Ecn, WireError};

/// Bytes of the base header.
pub const HEADER_LEN: usize = 40;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// Most extension headers that are skipped; packets with more are refused.
pub const EXTENSION_HEADERS_MAX: usize = 4;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// A checked IPv6 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    fixed: &'a [u8; HEADER_LEN],
    protocol: u8,
    /// From the start of the packet to its payload.
    header_len: usize,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks lengths and skips the extension headers. Bytes after the payload length (Ethernet padding) are
    /// cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let fixed = parse_fixed(bytes)?;
        let payload_len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let body = slice_at(bytes, HEADER_LEN, payload_len, "ipv6 payload")?;
        Self::walk(fixed, body)
    }

    /// As [`parse`](Self::parse) for a packet quoted by an ICMP error, which may be truncated.
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<Self, WireError> {
        let fixed = parse_fixed(bytes)?;
        let payload_len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let body = &bytes[HEADER_LEN..];
        Self::walk(fixed, &body[..payload_len.min(body.len())])
    }

    /// Follows the chain of extension headers through `body`, which is everything after the base header.
    fn walk(fixed: &'a [u8; HEADER_LEN], body: &'a [u8]) -> Result<Self, WireError> {
        let mut protocol = fixed[6];
        let mut at = 0;
        for walked in 0..=EXTENSION_HEADERS_MAX {
            let offset = HEADER_LEN + at;
            // RFC 8200 §4.1: hop-by-hop options only directly after the base header.
            let misplaced = protocol == HOP_BY_HOP && walked > 0;
            if !matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                return Ok(Packet { fixed, protocol, header_len: offset, payload: &body[at..] });
            }
            if misplaced {
                return Err(WireError::Value { what: "ipv6 hop-by-hop options", offset });
            }
            let header = extension_header(protocol, &body[at..]).map_err(|error| error.shifted(offset))?;
            protocol = header[0];
            at += header.len();
        }
        Err(WireError::Unsupported { what: "ipv6 extension headers", offset: HEADER_LEN + at })
    }

    /// Sender.
    pub fn source(&self) -> Ipv6Addr {
        self.address_at(8)
    }

    /// Receiver.
    pub fn destination(&self) -> Ipv6Addr {
        self.address_at(24)
    }

    /// Protocol of the payload, after all extension headers.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Differentiated services codepoint, 6 bits.
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// ECN field.
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class())
    }

    /// IPv6 flow label, 20 bits (not a CSP label).
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.fixed[1], self.fixed[2], self.fixed[3]]) & FLOW_LABEL_MASK
    }

    /// Bytes of base and extension headers.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Bytes of the packet as its header says.
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(u16::from_be_bytes([self.fixed[4], self.fixed[5]]))
    }

    /// What follows the headers.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    fn address_at(&self, at: usize) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.fixed[at..at + 16]);
        Ipv6Addr::from(octets)
    }
}

fn parse_fixed(bytes: &[u8]) -> Result<&[u8; HEADER_LEN], WireError> {
    let fixed = array_at::<HEADER_LEN>(bytes, 0, "ipv6 header")?;
    match fixed[0] >> 4 {
        6 => Ok(fixed),
        found => Err(WireError::Version { what: "ipv6 version", offset: 0, found: found.into() }),
    }
}

/// Returns the extension header of type `protocol` at the start of `bytes`, or an error if packets with it
/// are rejected.
fn extension_header(protocol: u8, bytes: &[u8]) -> Result<&[u8], WireError> {
    match protocol {
        HOP_BY_HOP => options_header(bytes, "ipv6 hop-by-hop options"),
        DESTINATION_OPTIONS => options_header(bytes, "ipv6 destination options"),
        FRAGMENT => fragment_header(bytes),
        _ => Err(WireError::Unsupported { what: "ipv6 routing header", offset: 0 }),
    }
}

fn options_header<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], WireError> {
    let [_, units] = *array_at::<2>(bytes, 0, what)?;
    let header = slice_at(bytes, 0, (usize::from(units) + 1) * 8, what)?;
    let mut at = 2;
    while let Some(&kind) = header.get(at) {
        // Pad1, the only option without a length.
        if kind == 0 {
            at += 1;
            continue;
        }
        // RFC 8200 §4.2: a receiver that does not know an option may skip it only if its two high bits are
        // 00.
        if kind >> 6 != 0 {
            return Err(WireError::Unsupported { what, offset: at });
        }
        // An option whose length byte or data does not fit overruns the header, however long the packet is.
        let option = &header[at..];
        let len = option.get(1).map_or(usize::MAX, |&len| usize::from(len).saturating_add(2));
        if len > option.len() {
            return Err(WireError::Length { what, offset: at + 1, found: len });
        }
        at += len;
    }
    Ok(header)
}

/// Skips a fragment header, provided that it describes a whole packet (RFC 6946).
fn fragment_header(bytes: &[u8]) -> Result<&[u8], WireError> {
    const OFFSET_AND_MORE: u16 = 0xfff9;
    let header = array_at::<8>(bytes, 0, "ipv6 fragment")?;
    if u16::from_be_bytes([header[2], header[3]]) & OFFSET_AND_MORE != 0 {
        return Err(WireError::Unsupported { what: "ipv6 fragment", offset: 0 });
    }
    Ok(header)
}

/// A base header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Differentiated services codepoint; only the low 6 bits count.
    pub dscp: u8,
    /// ECN field.
    pub ecn: Ecn,
    /// IPv6 flow label; only the low 20 bits count.
    pub flow_label: u32,
    /// Bytes that follow the header.
    pub payload_len: u16,
}

impl Repr {
    /// The packet's header, as if there were no extension headers.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Repr {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            hop_limit: packet.hop_limit(),
            dscp: packet.dscp(),
            ecn: packet.ecn(),
            flow_label: packet.flow_label(),
            payload_len: packet.total_len().saturating_sub(packet.header_len()) as u16,
        }
    }

    /// Bytes of the header.
    pub const fn len(&self) -> usize {
        HEADER_LEN
    }

    /// Always false: the encoding is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = room(out, HEADER_LEN, "ipv6 header")?;
        let traffic_class = u32::from(self.dscp << 2 | self.ecn.bits());
        let first_word = 6 << 28 | traffic_class << 20 | self.flow_label & FLOW_LABEL_MASK;
        out[0..4].copy_from_slice(&first_word.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.protocol;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..40].copy_from_slice(&self.destination.octets());
        Ok(HEADER_LEN)
    }
}
