//! ICMP errors that network nodes pass on: what they say about one connection's path (RFC 1191, 8201, 5927).

use csp_tcp::PathError;
use csp_types::{FourTuple, Instant};
use csp_wire::icmp::{QuotedTcp, v4, v6};
use csp_wire::{ipv4, ipv6};

use super::ProxyCore;

/// MTU assumed where an old router tells none: RFC 1191 §7.1's plateau for Ethernet-like links that are not Ethernet.
const MTU_UNTOLD: u16 = 1_006;

impl ProxyCore {
    /// Takes an ICMP error, a whole IP packet. What does not parse, or quotes no segment in flight, is dropped.
    pub(super) fn on_icmp_error(&mut self, now: Instant, packet: &[u8]) {
        let Some((quoted, error)) = judge(packet) else {
            self.counters.drop_malformed += 1;
            return;
        };
        let tuple = FourTuple { local: quoted.source, remote: quoted.destination };
        if !self.tcp.on_path_error(now, &tuple, quoted.sequence, error) {
            self.counters.drop_tcp += 1;
        }
    }
}

/// The quoted segment and what became of it; `None` for messages that tell nothing about a path.
fn judge(packet: &[u8]) -> Option<(QuotedTcp, PathError)> {
    match packet.first()? >> 4 {
        4 => judge_v4(packet),
        6 => judge_v6(packet),
        _ => None,
    }
}

fn judge_v4(packet: &[u8]) -> Option<(QuotedTcp, PathError)> {
    let packet = ipv4::Packet::parse(packet).ok().filter(|p| p.protocol() == ipv4::PROTOCOL_ICMP)?;
    let (quoted, error) = match v4::Message::parse(packet.payload()).ok()? {
        v4::Message::FragmentationNeeded { next_hop_mtu, quoted } => {
            let mtu = if next_hop_mtu == 0 { MTU_UNTOLD } else { next_hop_mtu };
            (quoted, PathError::PacketTooBig { mtu })
        }
        v4::Message::DestinationUnreachable { quoted, .. } => (quoted, PathError::Unreachable),
        _ => return None,
    };
    Some((QuotedTcp::parse_v4(quoted).ok()?, error))
}

fn judge_v6(packet: &[u8]) -> Option<(QuotedTcp, PathError)> {
    let packet = ipv6::Packet::parse(packet).ok()?;
    let (quoted, error) = match v6::Message::parse(&packet).ok()? {
        v6::Message::PacketTooBig { mtu, quoted } => {
            (quoted, PathError::PacketTooBig { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) })
        }
        v6::Message::DestinationUnreachable { quoted, .. } => (quoted, PathError::Unreachable),
        _ => return None,
    };
    Some((QuotedTcp::parse_v6(quoted).ok()?, error))
}
