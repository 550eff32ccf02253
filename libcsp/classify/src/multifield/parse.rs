//! Parses a packet into the fields that rules compare.
//!
//! Nothing is repaired or guessed: a contradictory packet is [`NoFields::Malformed`], and the caller decides
//! its fate. The parsers of csp-wire accept what the cluster's own addresses may receive. This one also
//! handles VLAN tags, fragments and all IPv6 extension headers with a known layout, since packets for others
//! are classified, too.

use core::net::{IpAddr, Ipv6Addr};

use csp_wire::{WireError, ipv4};

use super::fields::{Direction, Fields, has_ports};

/// Largest number of VLAN tags (IEEE 802.1Q, 802.1ad) before the IP header.
pub const VLAN_TAGS_MAX: usize = 2;
/// Largest number of IPv6 extension headers. A packet with more is treated as malformed.
pub const EXTENSION_HEADERS_MAX: usize = 8;

const ETHERNET_LEN: usize = 14;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_SERVICE_VLAN: u16 = 0x88a8;

const PROTOCOL_TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;

/// Whether a packet is a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fragment {
    /// It is a whole packet.
    Whole,
    /// The first fragment, which contains the transport header.
    First,
    /// A later fragment, with unknown ports and flags.
    Later,
}

/// The fields of a packet, and the positions of its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The fields that rules compare.
    pub fields: Fields,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// Start of the IP header, in bytes from the start of the parsed data.
    pub ip: usize,
    /// Start of the transport header, in bytes; in a later fragment the start of its payload.
    pub transport: usize,
    /// End of the packet by its IP header, in bytes. Padding follows.
    pub end: usize,
}

impl Parsed {
    /// Returns whether an Ethernet frame is plain: not a fragment, and without VLAN tag, IPv4 options and
    /// IPv6 extension headers. The program in the driver classifies only plain frames.
    pub const fn is_plain(&self) -> bool {
        let header_len = match self.fields.source {
            IpAddr::V4(_) => IPV4_LEN,
            IpAddr::V6(_) => IPV6_LEN,
        };
        self.ip == ETHERNET_LEN
            && self.transport == ETHERNET_LEN + header_len
            && matches!(self.fragment, Fragment::Whole)
    }
}

/// How a packet is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends before its headers, or before the length in its IP header.
    #[error("truncated")]
    Truncated,
    /// The IP version does not match the Ethernet type, or is neither 4 nor 6.
    #[error("the IP version is wrong")]
    Version,
    /// A length field is too small for its own header.
    #[error("a length field contradicts the packet")]
    Length,
    /// A reserved bit of the IPv4 header is set.
    #[error("a reserved bit is set")]
    Reserved,
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    Checksum,
    /// An IPv6 extension header is in a forbidden position, or there are too many.
    #[error("the chain of extension headers is wrong")]
    Extension,
    /// More VLAN tags than [`VLAN_TAGS_MAX`].
    #[error("too many VLAN tags")]
    VlanTags,
}

/// Why a packet has no fields to classify.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NoFields {
    /// It is not IP; with its Ethernet type.
    #[error("not IP: Ethernet type {0:#06x}")]
    NotIp(u16),
    /// It is malformed.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
}

impl From<WireError> for Malformed {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Checksum { .. } => Malformed::Checksum,
            WireError::Truncated { .. } => Malformed::Truncated,
            WireError::Version { .. } => Malformed::Version,
            WireError::Reserved { .. } => Malformed::Reserved,
            _ => Malformed::Length,
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let pair = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>()).ok_or(Malformed::Truncated)?;
    Ok(u16::from_be_bytes(*pair))
}

/// Parses an Ethernet frame.
pub fn parse_ethernet(frame: &[u8], interface: u16, direction: Direction) -> Result<Parsed, NoFields> {
    let mut at = ETHERNET_LEN - 2;
    let mut ether_type = be16(frame, at)?;
    let mut tags = 0;
    while matches!(ether_type, TYPE_VLAN | TYPE_SERVICE_VLAN) {
        if tags == VLAN_TAGS_MAX {
            return Err(Malformed::VlanTags.into());
        }
        tags += 1;
        at += 4;
        ether_type = be16(frame, at)?;
    }
    let ip = at + 2;
    let packet = &frame[ip..];
    let version = packet.first().map(|first| first >> 4);
    match ether_type {
        TYPE_IPV4 | TYPE_IPV6 if version.is_none() => return Err(Malformed::Truncated.into()),
        TYPE_IPV4 if version == Some(4) => {}
        TYPE_IPV6 if version == Some(6) => {}
        TYPE_IPV4 | TYPE_IPV6 => return Err(Malformed::Version.into()),
        other => return Err(NoFields::NotIp(other)),
    }
    let parsed = parse_ip(packet, interface, direction)?;
    Ok(Parsed { ip: parsed.ip + ip, transport: parsed.transport + ip, end: parsed.end + ip, ..parsed })
}

/// Parses an IP packet.
pub fn parse_ip(packet: &[u8], interface: u16, direction: Direction) -> Result<Parsed, Malformed> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => parse_v4(packet, interface, direction),
        Some(6) => parse_v6(packet, interface, direction),
        Some(_) => Err(Malformed::Version),
        None => Err(Malformed::Truncated),
    }
}

fn parse_v4(bytes: &[u8], interface: u16, direction: Direction) -> Result<Parsed, Malformed> {
    let packet = ipv4::Packet::parse(bytes)?;
    let fragment = match (packet.fragment_offset(), packet.more_fragments()) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    let upper = upper_fields(packet.protocol(), packet.payload(), fragment)?;
    let fields = Fields {
        source: packet.source().into(),
        destination: packet.destination().into(),
        ports: upper.0,
        protocol: packet.protocol(),
        interface,
        direction,
        tcp_flags: upper.1,
        dscp: packet.dscp(),
    };
    Ok(Parsed { fields, fragment, ip: 0, transport: packet.header_len(), end: packet.total_len() })
}

fn parse_v6(bytes: &[u8], interface: u16, direction: Direction) -> Result<Parsed, Malformed> {
    let header = bytes.first_chunk::<IPV6_LEN>().ok_or(Malformed::Truncated)?;
    let end = IPV6_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = bytes.get(..end).ok_or(Malformed::Truncated)?;
    let chain = walk_extensions(packet, header[6])?;
    let (ports, tcp_flags) = upper_fields(chain.protocol, &packet[chain.transport..], chain.fragment)?;
    let address = |at: usize| -> IpAddr {
        let octets = header[at..].first_chunk::<16>().copied().unwrap_or_default();
        Ipv6Addr::from(octets).into()
    };
    let fields = Fields {
        source: address(8),
        destination: address(24),
        ports,
        protocol: chain.protocol,
        interface,
        direction,
        tcp_flags,
        dscp: (header[0] << 4 | header[1] >> 4) >> 2,
    };
    Ok(Parsed { fields, fragment: chain.fragment, ip: 0, transport: chain.transport, end })
}

struct Chain {
    protocol: u8,
    transport: usize,
    fragment: Fragment,
}

/// Follows the chain of extension headers (RFC 8200 §4). It ends at the first other header, or where a later
/// fragment's part ends; `ESP` and `No Next Header` are treated as protocols.
fn walk_extensions(packet: &[u8], first: u8) -> Result<Chain, Malformed> {
    let mut chain = Chain { protocol: first, transport: IPV6_LEN, fragment: Fragment::Whole };
    for walked in 0..=EXTENSION_HEADERS_MAX {
        let at = chain.transport;
        let units = match chain.protocol {
            // RFC 8200 §4.1: only directly after the IPv6 header.
            HOP_BY_HOP if walked > 0 => return Err(Malformed::Extension),
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => 8,
            // RFC 4302 §2.2: in 4-byte units, minus 2.
            AUTHENTICATION => 4,
            FRAGMENT => 0,
            _ => return Ok(chain),
        };
        let [next, length] = be16(packet, at)?.to_be_bytes();
        let length = usize::from(length);
        let header_len = match units {
            0 => 8,
            4 => (length + 2) * 4,
            _ => (length + 1) * 8,
        };
        if at + header_len > packet.len() {
            return Err(Malformed::Truncated);
        }
        if chain.protocol == FRAGMENT {
            let offset_and_more = be16(packet, at + 2)?;
            chain.fragment = match (chain.fragment, offset_and_more >> 3, offset_and_more & 1) {
                // A packet has at most one fragment header.
                (Fragment::First, ..) => return Err(Malformed::Extension),
                // RFC 6946: an atomic fragment is a whole packet.
                (_, 0, 0) => Fragment::Whole,
                (_, 0, _) => Fragment::First,
                _ => Fragment::Later,
            };
        }
        chain.protocol = next;
        chain.transport = at + header_len;
        if chain.fragment == Fragment::Later {
            // The payload is from the middle of a packet; `next` is the first header of its fragmentable
            // part.
            return Ok(chain);
        }
    }
    Err(Malformed::Extension)
}

type Upper = (Option<(u16, u16)>, Option<u8>);

/// Returns ports and TCP flags. A whole packet must contain its whole transport header. So must a first
/// fragment: otherwise its flags would be in the next fragment, where no rule sees them (RFC 1858, RFC 7112).
fn upper_fields(protocol: u8, payload: &[u8], fragment: Fragment) -> Result<Upper, Malformed> {
    if fragment == Fragment::Later || !has_ports(protocol) {
        return Ok((None, None));
    }
    let ports = Some((be16(payload, 0)?, be16(payload, 2)?));
    if protocol != PROTOCOL_TCP {
        return Ok((ports, None));
    }
    let header = payload.first_chunk::<TCP_LEN>().ok_or(Malformed::Truncated)?;
    let header_len = usize::from(header[12] >> 4) * 4;
    if header_len < TCP_LEN {
        return Err(Malformed::Length);
    }
    if header_len > payload.len() {
        return Err(Malformed::Truncated);
    }
    Ok((ports, Some(header[13])))
}
