//! The start of a TCP segment that an ICMP error quotes.

use core::net::{IpAddr, SocketAddr};

use crate::bytes::array_at;
use crate::{WireError, ipv4, ipv6};

/// The connection and sequence number of a quoted segment. The receiver of the error has sent it, so `source`
/// is the local address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotedTcp {
    /// Sender of the quoted segment.
    pub source: SocketAddr,
    /// Its receiver.
    pub destination: SocketAddr,
    /// Its sequence number.
    pub sequence: u32,
}

impl QuotedTcp {
    /// Parses the IPv4 packet an ICMP error quotes.
    pub fn parse_v4(quoted: &[u8]) -> Result<Self, WireError> {
        let packet = ipv4::Packet::parse_quoted(quoted)?;
        if packet.protocol() != ipv4::PROTOCOL_TCP || packet.fragment_offset() != 0 {
            return Err(WireError::Unsupported { what: "quoted ipv4 protocol", offset: 9 });
        }
        let (source, destination) = (packet.source().into(), packet.destination().into());
        Self::parse_tcp(source, destination, packet.payload())
            .map_err(|error| error.shifted(packet.header_len()))
    }

    /// Parses the IPv6 packet an ICMPv6 error quotes.
    pub fn parse_v6(quoted: &[u8]) -> Result<Self, WireError> {
        let packet = ipv6::Packet::parse_quoted(quoted)?;
        if packet.protocol() != ipv6::PROTOCOL_TCP {
            return Err(WireError::Unsupported { what: "quoted ipv6 protocol", offset: 6 });
        }
        let (source, destination) = (packet.source().into(), packet.destination().into());
        Self::parse_tcp(source, destination, packet.payload())
            .map_err(|error| error.shifted(packet.header_len()))
    }

    /// The 8 bytes that RFC 792 guarantees.
    fn parse_tcp(source: IpAddr, destination: IpAddr, tcp: &[u8]) -> Result<Self, WireError> {
        let [a, b, c, d, sequence @ ..] = *array_at::<8>(tcp, 0, "quoted tcp header")?;
        Ok(QuotedTcp {
            source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
            destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
            sequence: u32::from_be_bytes(sequence),
        })
    }
}
