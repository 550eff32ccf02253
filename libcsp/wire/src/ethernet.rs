//! Ethernet II frames. VLAN tags and 802.3 length frames are recognised and refused.

use csp_types::MacAddr;

use crate::WireError;
use crate::bytes::{array_at, room};

/// Length of a frame's header in bytes.
pub const HEADER_LEN: usize = 14;

/// Smallest value of the type field that is a type, not an 802.3 length (IEEE 802.3 §3.2.6).
const TYPE_MIN: u16 = 0x0600;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_SERVICE_VLAN: u16 = 0x88a8;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum EtherType {
    /// [`crate::ipv4`]
    Ipv4 = 0x0800,
    /// [`crate::arp`]
    Arp = 0x0806,
    /// [`crate::ipv6`]
    Ipv6 = 0x86dd,
}

impl EtherType {
    /// The type with this number, if this crate has a parser for it.
    pub const fn from_u16(value: u16) -> Option<Self> {
        Some(match value {
            0x0800 => EtherType::Ipv4,
            0x0806 => EtherType::Arp,
            0x86dd => EtherType::Ipv6,
            _ => return None,
        })
    }
}

/// A checked frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks that the header is complete, that there is no VLAN tag, and that the sender is not a group
    /// address.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = array_at::<HEADER_LEN>(bytes, 0, "ethernet header")?;
        let frame = Frame { header, payload: &bytes[HEADER_LEN..] };
        let unsupported = |what| Err(WireError::Unsupported { what, offset: 12 });
        match frame.type_number() {
            TYPE_VLAN | TYPE_SERVICE_VLAN => unsupported("ethernet vlan tag"),
            number if number < TYPE_MIN => unsupported("ethernet 802.3 length"),
            _ if frame.source().is_multicast() => {
                Err(WireError::Value { what: "ethernet source", offset: 6 })
            }
            _ => Ok(frame),
        }
    }

    /// Receiver.
    pub fn destination(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = *self.header;
        MacAddr([a, b, c, d, e, f])
    }

    /// Sender.
    pub fn source(&self) -> MacAddr {
        let [_, _, _, _, _, _, a, b, c, d, e, f, _, _] = *self.header;
        MacAddr([a, b, c, d, e, f])
    }

    /// The type field.
    pub fn type_number(&self) -> u16 {
        u16::from_be_bytes([self.header[12], self.header[13]])
    }

    /// The type of the payload, if this crate has a parser for it.
    pub fn ether_type(&self) -> Option<EtherType> {
        EtherType::from_u16(self.type_number())
    }

    /// What follows the header, the padding of short frames included.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Receiver.
    pub destination: MacAddr,
    /// Sender.
    pub source: MacAddr,
    /// What the frame carries.
    pub ether_type: EtherType,
}

impl Repr {
    /// The frame's header; a type without a parser here is [`WireError::Unsupported`].
    pub fn parse(frame: &Frame<'_>) -> Result<Self, WireError> {
        let unsupported = WireError::Unsupported { what: "ethernet type", offset: 12 };
        let ether_type = frame.ether_type().ok_or(unsupported)?;
        Ok(Repr { destination: frame.destination(), source: frame.source(), ether_type })
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
        let out = room(out, HEADER_LEN, "ethernet header")?;
        out[0..6].copy_from_slice(&self.destination.0);
        out[6..12].copy_from_slice(&self.source.0);
        out[12..14].copy_from_slice(&(self.ether_type as u16).to_be_bytes());
        Ok(HEADER_LEN)
    }
}
