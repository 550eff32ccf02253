//! Which worker of a network node receives a frame.
//!
//! Workers share nothing, so each flow must stay with one of them, and the answers to connections that the
//! proxy opens must arrive at the worker through which it sends. Hence one rule, known to both ends
//! ([`csp_types::steering`]):
//!
//! ```text
//!  TCP, UDP                             (last 4 bytes of the source address + both ports) × 0x9e3779b1 >> 16, modulo workers
//!  ICMP errors about TCP and UDP                                      the worker of the packets that the quoted one answers
//!  ARP replies, neighbour advertisements, fragments of TCP and UDP                                              every worker
//!  everything else: other ARP, ICMP, protocols and fragments                                                        worker 0
//! ```
//! Only the first fragment of a datagram has ports. Each worker therefore reassembles, and the owner of the
//! flow processes the datagram.
//!
//! The kernel applies it as classic BPF programs (`program`), the memory hub by [`worker_of`] and
//! [`is_shared`].

pub(crate) mod program;

use csp_types::steering::{MULTIPLIER, SHIFT};

const ETHERNET_LEN: usize = 14;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const ARP_REPLY: u16 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const ICMP_V4: u8 = 1;
/// Types of ICMP errors that quote a packet: Destination Unreachable and Time Exceeded (RFC 792).
const ERRORS_V4: [u8; 2] = [3, 11];
/// ICMPv6 types from this value on are not errors (RFC 4443 §2.1).
const INFORMATIONAL_V6: u8 = 128;
/// Length of the ICMP header in front of the quoted packet.
const ICMP_LEN: u8 = 8;
/// More fragments, and the fragment's offset (RFC 791 §3.1).
const FRAGMENT: u16 = 0x3fff;
const V6_LEN: u8 = 40;
/// Protocol number of IPv6 fragment headers, and the offset and flag in them that show that the packet is not
/// whole (RFC 8200 §4.5, RFC 6946).
const V6_FRAGMENT: u8 = 44;
const V6_OFFSET_AND_MORE: u16 = 0xfff9;

/// Returns which of `workers` workers receives this Ethernet frame. Truncated frames go to worker 0.
pub fn worker_of(frame: &[u8], workers: usize) -> usize {
    frame.get(ETHERNET_LEN..).and_then(|packet| hash(ethertype(frame)?, packet)).unwrap_or(0) as usize
        % workers.max(1)
}

/// Returns whether every worker receives this Ethernet frame, because nothing in it names the worker that
/// needs it: an ARP reply, a neighbour advertisement, or a fragment of TCP or UDP. In IPv6 the fragment
/// header follows the base header; fragments with other extension headers go to worker 0.
pub fn is_shared(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(ETHERNET_LEN..) else { return false };
    match ethertype(frame) {
        Some(ETHERTYPE_ARP) => half(packet, 6) == Some(ARP_REPLY),
        Some(ETHERTYPE_V4) => {
            packet.get(9).is_some_and(has_ports) && half(packet, 6).is_some_and(|flags| flags & FRAGMENT != 0)
        }
        Some(ETHERTYPE_V6) => match (packet.get(6), packet.get(40)) {
            (Some(&ICMP_V6), Some(&kind)) => kind == NEIGHBOUR_ADVERTISEMENT,
            (Some(&V6_FRAGMENT), Some(protocol)) if has_ports(protocol) => {
                half(packet, 42).is_some_and(|offset| offset & V6_OFFSET_AND_MORE != 0)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Returns whether a frame that all workers share is a fragment.
pub(crate) fn is_fragment(frame: &[u8]) -> bool {
    match ethertype(frame) {
        Some(ETHERTYPE_V4) => true,
        Some(ETHERTYPE_V6) => frame.get(ETHERNET_LEN + 6) == Some(&V6_FRAGMENT),
        _ => false,
    }
}

/// Whether the packets of a protocol begin with ports, by which they are distributed.
fn has_ports(protocol: &u8) -> bool {
    matches!(*protocol, TCP | UDP)
}

fn ethertype(frame: &[u8]) -> Option<u16> {
    half(frame, 12)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn hash(ethertype: u16, packet: &[u8]) -> Option<u32> {
    match ethertype {
        ETHERTYPE_V4 => hash_v4(packet),
        ETHERTYPE_V6 => hash_v6(packet),
        _ => None,
    }
}

fn hash_v4(packet: &[u8]) -> Option<u32> {
    let header_len = |packet: &[u8]| Some(usize::from(packet.first()? & 0x0f) << 2);
    if half(packet, 6)? & FRAGMENT != 0 {
        return None;
    }
    let at = header_len(packet)?;
    match *packet.get(9)? {
        TCP | UDP => Some(hash_of(half(packet, at)?, word(packet, 12)?, half(packet, at + 2)?)),
        ICMP_V4 if ERRORS_V4.contains(packet.get(at)?) => {
            let quoted = packet.get(at + usize::from(ICMP_LEN)..)?;
            if !has_ports(quoted.get(9)?) || half(quoted, 6)? & FRAGMENT != 0 {
                return None;
            }
            let at = header_len(quoted)?;
            Some(hash_of(half(quoted, at + 2)?, word(quoted, 16)?, half(quoted, at)?))
        }
        _ => None,
    }
}

fn hash_v6(packet: &[u8]) -> Option<u32> {
    let at = usize::from(V6_LEN);
    match *packet.get(6)? {
        TCP | UDP => Some(hash_of(half(packet, at)?, word(packet, 20)?, half(packet, at + 2)?)),
        ICMP_V6 if *packet.get(at)? < INFORMATIONAL_V6 => {
            let quoted = packet.get(at + usize::from(ICMP_LEN)..)?;
            if !has_ports(quoted.get(6)?) {
                return None;
            }
            Some(hash_of(half(quoted, at + 2)?, word(quoted, 36)?, half(quoted, at)?))
        }
        _ => None,
    }
}

/// The peer's port and the last 4 bytes of its address, and the port of the cluster.
fn hash_of(peer_port: u16, peer: u32, own_port: u16) -> u32 {
    csp_types::steering::hash(peer_port, peer, own_port)
}
