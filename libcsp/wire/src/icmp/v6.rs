//! ICMP of IPv6 (RFC 4443) and neighbour discovery of hosts (RFC 4861 §4.3, §4.4).

use core::net::Ipv6Addr;

use csp_types::MacAddr;

use crate::bytes::{array_at, room, slice_at};
use crate::checksum::Checksum;
use crate::{WireError, ipv6};

/// Length of the header before echo data or a quoted packet, in bytes.
pub const HEADER_LEN: usize = 8;
/// Most bytes of a packet that an error should quote: the whole error then fits the smallest MTU (RFC 4443
/// §2.4 (c)).
pub const QUOTED_LEN_MAX: usize = 1280 - ipv6::HEADER_LEN - HEADER_LEN;
/// Hop limit of every neighbour discovery message, which proves that no router has forwarded it (RFC 4861
/// §7.1).
pub const NEIGHBOR_HOP_LIMIT: u8 = 255;

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;

const TARGET_LEN: usize = 16;
const LINK_OPTION_LEN: usize = 8;
const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_TARGET_LINK: u8 = 2;
const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// An ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// An echo request.
    EchoRequest {
        /// Distinguishes the processes that send echo requests.
        identifier: u16,
        /// Distinguishes the requests of one process.
        sequence: u16,
        /// Data to return unchanged.
        data: &'a [u8],
    },
    /// Answer to `EchoRequest`.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// A packet could not be delivered.
    DestinationUnreachable {
        /// Why (RFC 4443 §3.1).
        code: u8,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// A packet was larger than the MTU of the next link.
    PacketTooBig {
        /// That link's MTU, in bytes.
        mtu: u32,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// A packet's hop limit expired (code 0), or it was not reassembled in time (code 1).
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// A field of a packet's header is invalid or unknown.
    ParameterProblem {
        /// Why (RFC 4443 §3.4).
        code: u8,
        /// Offset of the field in that packet, in bytes.
        pointer: u32,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// Neighbour solicitation: asks for the link-layer address of `target`.
    NeighborSolicitation {
        /// The address in question.
        target: Ipv6Addr,
        /// Link-layer address of the sender; `None` if the option is absent, as from a sender without IP
        /// address.
        source_link: Option<MacAddr>,
    },
    /// Neighbour advertisement: the link-layer address of `target`.
    NeighborAdvertisement {
        /// The sender is a router.
        router: bool,
        /// The message replies to a solicitation.
        solicited: bool,
        /// Replaces an existing cache entry.
        override_cache: bool,
        /// The address in question.
        target: Ipv6Addr,
        /// Its link-layer address.
        target_link: Option<MacAddr>,
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of `packet`, which has protocol ICMPv6, and verifies its checksum; neighbour
    /// discovery messages must pass the checks of RFC 4861 §7.1. Offsets of errors count from the start of
    /// the payload.
    pub fn parse(packet: &ipv6::Packet<'a>) -> Result<Self, WireError> {
        let bytes = packet.payload();
        let [kind, code, _, _, a, b, c, d] = *array_at::<HEADER_LEN>(bytes, 0, "icmpv6 header")?;
        if !covering_sum(packet.source(), packet.destination(), bytes).is_valid() {
            return Err(WireError::Checksum { what: "icmpv6 checksum", offset: 2 });
        }
        let word = u32::from_be_bytes([a, b, c, d]);
        let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let rest = &bytes[HEADER_LEN..];
        match (kind, code) {
            (ECHO_REQUEST, 0) => Ok(Message::EchoRequest { identifier, sequence, data: rest }),
            (ECHO_REPLY, 0) => Ok(Message::EchoReply { identifier, sequence, data: rest }),
            (DESTINATION_UNREACHABLE, _) => Ok(Message::DestinationUnreachable { code, quoted: rest }),
            // RFC 4443 §3.2: the code is ignored.
            (PACKET_TOO_BIG, _) => Ok(Message::PacketTooBig { mtu: word, quoted: rest }),
            (TIME_EXCEEDED, 0 | 1) => Ok(Message::TimeExceeded { code, quoted: rest }),
            (PARAMETER_PROBLEM, _) => Ok(Message::ParameterProblem { code, pointer: word, quoted: rest }),
            (NEIGHBOR_SOLICITATION, 0) => parse_solicitation(packet, bytes),
            (NEIGHBOR_ADVERTISEMENT, 0) => parse_advertisement(packet, word, bytes),
            (
                ECHO_REQUEST | ECHO_REPLY | TIME_EXCEEDED | NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT,
                _,
            ) => Err(WireError::Kind { what: "icmpv6 code", offset: 1, found: code.into() }),
            _ => Err(WireError::Unsupported { what: "icmpv6 type", offset: 0 }),
        }
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        HEADER_LEN
            + match *self {
                Message::EchoRequest { data: rest, .. }
                | Message::EchoReply { data: rest, .. }
                | Message::DestinationUnreachable { quoted: rest, .. }
                | Message::PacketTooBig { quoted: rest, .. }
                | Message::TimeExceeded { quoted: rest, .. }
                | Message::ParameterProblem { quoted: rest, .. } => rest.len(),
                Message::NeighborSolicitation { source_link: link, .. }
                | Message::NeighborAdvertisement { target_link: link, .. } => {
                    TARGET_LEN + if link.is_some() { LINK_OPTION_LEN } else { 0 }
                }
            }
    }

    /// Always false: the encoding is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message with its checksum for a packet between these addresses; returns its length.
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr, out: &mut [u8]) -> Result<usize, WireError> {
        let out = room(out, self.len(), "icmpv6 message")?;
        let (kind, code, word) = self.header_fields();
        out[0] = kind;
        out[1] = code;
        out[2..4].fill(0);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        self.emit_rest(&mut out[HEADER_LEN..]);
        let field = covering_sum(source, destination, out).finish();
        out[2..4].copy_from_slice(&field.to_be_bytes());
        Ok(out.len())
    }

    /// Type, code and the header's second word.
    fn header_fields(&self) -> (u8, u8, u32) {
        let echo_word = |identifier: u16, sequence: u16| u32::from(identifier) << 16 | u32::from(sequence);
        let bit = |set: bool, mask: u32| if set { mask } else { 0 };
        match *self {
            Message::EchoRequest { identifier, sequence, .. } => {
                (ECHO_REQUEST, 0, echo_word(identifier, sequence))
            }
            Message::EchoReply { identifier, sequence, .. } => {
                (ECHO_REPLY, 0, echo_word(identifier, sequence))
            }
            Message::DestinationUnreachable { code, .. } => (DESTINATION_UNREACHABLE, code, 0),
            Message::PacketTooBig { mtu, .. } => (PACKET_TOO_BIG, 0, mtu),
            Message::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0),
            Message::ParameterProblem { code, pointer, .. } => (PARAMETER_PROBLEM, code, pointer),
            Message::NeighborSolicitation { .. } => (NEIGHBOR_SOLICITATION, 0, 0),
            Message::NeighborAdvertisement { router, solicited, override_cache, .. } => {
                let flags = bit(router, ROUTER) | bit(solicited, SOLICITED) | bit(override_cache, OVERRIDE);
                (NEIGHBOR_ADVERTISEMENT, 0, flags)
            }
        }
    }

    /// Writes what follows the header; `out` has exactly that length.
    fn emit_rest(&self, out: &mut [u8]) {
        match *self {
            Message::EchoRequest { data: rest, .. }
            | Message::EchoReply { data: rest, .. }
            | Message::DestinationUnreachable { quoted: rest, .. }
            | Message::PacketTooBig { quoted: rest, .. }
            | Message::TimeExceeded { quoted: rest, .. }
            | Message::ParameterProblem { quoted: rest, .. } => out.copy_from_slice(rest),
            Message::NeighborSolicitation { target, source_link } => {
                emit_neighbor(target, OPTION_SOURCE_LINK, source_link, out);
            }
            Message::NeighborAdvertisement { target, target_link, .. } => {
                emit_neighbor(target, OPTION_TARGET_LINK, target_link, out);
            }
        }
    }
}

/// The solicited-node multicast group of `target` (RFC 4291 §2.7.1).
pub const fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = target.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

fn covering_sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Checksum {
    let mut sum = Checksum::pseudo_v6(source, destination, ipv6::PROTOCOL_ICMPV6, message.len() as u32);
    sum.add(message);
    sum
}

fn emit_neighbor(target: Ipv6Addr, option: u8, link: Option<MacAddr>, out: &mut [u8]) {
    let (address, options) = out.split_at_mut(TARGET_LEN);
    address.copy_from_slice(&target.octets());
    if let Some(mac) = link {
        options[0] = option;
        options[1] = (LINK_OPTION_LEN / 8) as u8;
        options[2..LINK_OPTION_LEN].copy_from_slice(&mac.0);
    }
}

fn parse_solicitation<'a>(packet: &ipv6::Packet<'a>, bytes: &[u8]) -> Result<Message<'a>, WireError> {
    let (target, source_link) = parse_neighbor(packet, bytes, OPTION_SOURCE_LINK)?;
    // RFC 4861 §7.1.1: a sender without an address solicits the group, without a link-layer address option.
    let to_group = packet.destination() == solicited_node(target);
    if packet.source().is_unspecified() && (source_link.is_some() || !to_group) {
        return Err(WireError::Value { what: "neighbour solicitation source", offset: HEADER_LEN });
    }
    Ok(Message::NeighborSolicitation { target, source_link })
}

fn parse_advertisement<'a>(
    packet: &ipv6::Packet<'a>,
    flags: u32,
    bytes: &[u8],
) -> Result<Message<'a>, WireError> {
    let (target, target_link) = parse_neighbor(packet, bytes, OPTION_TARGET_LINK)?;
    let solicited = flags & SOLICITED != 0;
    // RFC 4861 §7.1.2: an advertisement to a group must not be marked as solicited.
    if solicited && packet.destination().is_multicast() {
        return Err(WireError::Value { what: "neighbour advertisement flags", offset: 4 });
    }
    Ok(Message::NeighborAdvertisement {
        router: flags & ROUTER != 0,
        solicited,
        override_cache: flags & OVERRIDE != 0,
        target,
        target_link,
    })
}

/// Parses the target and the link-layer address option of type `wanted`; other options are skipped (RFC 4861
/// §4.6).
fn parse_neighbor(
    packet: &ipv6::Packet<'_>,
    bytes: &[u8],
    wanted: u8,
) -> Result<(Ipv6Addr, Option<MacAddr>), WireError> {
    if packet.hop_limit() != NEIGHBOR_HOP_LIMIT {
        return Err(WireError::Value { what: "neighbour discovery hop limit", offset: 0 });
    }
    let target = Ipv6Addr::from(*array_at::<TARGET_LEN>(bytes, HEADER_LEN, "neighbour target")?);
    if target.is_multicast() {
        return Err(WireError::Value { what: "neighbour target", offset: HEADER_LEN });
    }
    let mut link = None;
    let mut at = HEADER_LEN + TARGET_LEN;
    while at < bytes.len() {
        let [kind, units] = *array_at::<2>(bytes, at, "neighbour option")?;
        let len = usize::from(units) * 8;
        if len == 0 {
            return Err(WireError::Length { what: "neighbour option length", offset: at + 1, found: 0 });
        }
        let option = slice_at(bytes, at, len, "neighbour option")?;
        // RFC 2464 §6: on Ethernet the option is exactly 8 bytes.
        if let (true, [_, _, a, b, c, d, e, f]) = (kind == wanted, option) {
            link = Some(MacAddr([*a, *b, *c, *d, *e, *f]));
        }
        at += len;
    }
    Ok((target, link))
}
