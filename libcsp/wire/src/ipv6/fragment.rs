//! Fragments of IPv6 packets (RFC 8200 §4.5).
//!
//! ```text
//!  base header │ hop-by-hop, destination options │ fragment header │ part of the fragmentable part
//!  └────────── per-fragment headers ───────────┘   └─── 8 bytes ──┘
//! ```

use core::net::Ipv6Addr;

use super::{
    DESTINATION_OPTIONS, EXTENSION_HEADERS_MAX, FRAGMENT, HEADER_LEN, HOP_BY_HOP, options_header, parse_fixed,
};
use crate::bytes::{array_at, slice_at};
use crate::{Ecn, WireError};

/// Bytes of a fragment header.
const FRAGMENT_LEN: usize = 8;
/// Position of the next header field in the base header.
const NEXT_HEADER_AT: usize = 6;

/// A checked fragment. A packet whose fragment header describes a whole packet (RFC 6946) is not a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment<'a> {
    fixed: &'a [u8; HEADER_LEN],
    headers: &'a [u8],
    next_header_at: usize,
    header: &'a [u8; FRAGMENT_LEN],
    payload: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Parses a fragment. Returns `None` if the packet is not a fragment or is malformed.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::parse_checked(bytes).ok().flatten()
    }

    fn parse_checked(bytes: &'a [u8]) -> Result<Option<Self>, WireError> {
        let fixed = parse_fixed(bytes)?;
        let body_len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let body = slice_at(bytes, HEADER_LEN, body_len, "ipv6 payload")?;
        let (mut kind, mut next_header_at, mut at) = (fixed[NEXT_HEADER_AT], NEXT_HEADER_AT, 0);
        for walked in 0..EXTENSION_HEADERS_MAX {
            let rest = &body[at..];
            let len = match kind {
                FRAGMENT => {
                    let header = array_at::<FRAGMENT_LEN>(rest, 0, "ipv6 fragment")?;
                    let (headers, payload) = (&bytes[..HEADER_LEN + at], &rest[FRAGMENT_LEN..]);
                    let fragment = Fragment { fixed, headers, next_header_at, header, payload };
                    return Ok((fragment.offset() > 0 || fragment.more()).then_some(fragment));
                }
                HOP_BY_HOP if walked == 0 => options_header(rest, "ipv6 hop-by-hop options")?.len(),
                DESTINATION_OPTIONS => options_header(rest, "ipv6 destination options")?.len(),
                _ => return Ok(None),
            };
            kind = rest[0];
            next_header_at = HEADER_LEN + at;
            at += len;
        }
        Ok(None)
    }

    /// Sender.
    pub fn source(&self) -> Ipv6Addr {
        self.address_at(8)
    }

    /// Receiver.
    pub fn destination(&self) -> Ipv6Addr {
        self.address_at(24)
    }

    /// ECN field.
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.fixed[1] >> 4)
    }

    /// The headers in front of the fragment header.
    pub fn headers(&self) -> &'a [u8] {
        self.headers
    }

    /// Protocol of the first header in the fragmentable part. That of the first fragment applies.
    pub fn protocol(&self) -> u8 {
        self.header[0]
    }

    /// Offset of the payload in the fragmentable part, in bytes.
    pub fn offset(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[2], self.header[3]]) & 0xfff8)
    }

    /// Whether further fragments follow this one.
    pub fn more(&self) -> bool {
        self.header[3] & 1 == 1
    }

    /// Identification: equal in all fragments of a packet.
    pub fn identification(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// What follows the fragment header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Position in [`headers`](Self::headers) of the field that names the fragment header. In the whole
    /// packet it holds [`protocol`](Self::protocol).
    pub fn next_header_at(&self) -> usize {
        self.next_header_at
    }

    fn address_at(&self, at: usize) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.fixed[at..at + 16]);
        Ipv6Addr::from(octets)
    }
}

/// Sets the payload length and ECN field of the base header at the start of `packet`, which has
/// `packet.len()` bytes. Returns `false` if the length is invalid.
pub fn make_whole(packet: &mut [u8], ecn: Ecn) -> bool {
    let len = packet.len().checked_sub(HEADER_LEN).and_then(|len| u16::try_from(len).ok());
    let Some(len) = len else { return false };
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet[1] = packet[1] & !0x30 | ecn.bits() << 4;
    true
}
