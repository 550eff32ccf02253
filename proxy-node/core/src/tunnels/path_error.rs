//! ICMP errors passed on by network nodes, and what they report about a connection's path (RFC 1191, 8201,
//! 5927).

use csp_tcp::PathError;
use csp_types::FourTuple;
use csp_wire::icmp::{QuotedTcp, v4, v6};
use csp_wire::{ipv4, ipv6};

use crate::context::Context;

/// MTU assumed if an old router reports none: RFC 1191 §7.1's plateau for Ethernet-like links that are not
/// Ethernet.
const MTU_NOT_REPORTED: u16 = 1_006;

/// Processes an ICMP error, a whole IP packet. It is dropped if it is malformed or quotes no segment in
/// flight.
pub(super) fn on_icmp_error<O>(cx: &mut Context<'_, O>, packet: &[u8]) {
    let Some((quoted, error)) = judge(packet) else {
        cx.recorder.counters.drop_malformed += 1;
        return;
    };
    let tuple = FourTuple { local: quoted.source, remote: quoted.destination };
    if !cx.tcp.on_path_error(cx.now, &tuple, quoted.sequence, error) {
        cx.recorder.counters.drop_tcp += 1;
    }
}

/// Returns the quoted segment and the error; `None` for messages that do not concern the path.
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
            let mtu = if next_hop_mtu == 0 { MTU_NOT_REPORTED } else { next_hop_mtu };
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    use csp_wire::Ecn;

    use super::*;

    const TCP: [u8; 8] = [0, 80, 0x9c, 0x41, 1, 2, 3, 4];

    fn of_v4(message: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let [local, remote] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let packet = |source, destination, protocol, payload: &[u8]| {
            let (payload_len, ecn) = (payload.len() as u16, Ecn::NotEct);
            let (ttl, dscp, identification, dont_fragment) = (64, 0, 0, true);
            let repr = ipv4::Repr {
                source,
                destination,
                protocol,
                ttl,
                dscp,
                ecn,
                identification,
                dont_fragment,
                payload_len,
            };
            let mut bytes = vec![0; ipv4::HEADER_LEN];
            repr.emit(&mut bytes).unwrap();
            [bytes, payload.to_vec()].concat()
        };
        let quoted = packet(local, remote, ipv4::PROTOCOL_TCP, &TCP);
        packet(Ipv4Addr::new(10, 0, 0, 9), local, ipv4::PROTOCOL_ICMP, &message(&quoted))
    }

    fn of_v6(message: v6::Message<'_>) -> Vec<u8> {
        let [local, router] = [1, 9].map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
        let mut bytes = vec![0; ipv6::HEADER_LEN + message.len()];
        let repr = ipv6::Repr {
            source: router,
            destination: local,
            protocol: ipv6::PROTOCOL_ICMPV6,
            hop_limit: 64,
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
            payload_len: message.len() as u16,
        };
        let at = repr.emit(&mut bytes).unwrap();
        message.emit(router, local, &mut bytes[at..]).unwrap();
        bytes
    }

    fn emitted(message: v4::Message<'_>) -> Vec<u8> {
        let mut bytes = vec![0; message.len()];
        message.emit(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn routers_of_either_family_report_the_mtu_of_their_next_link() {
        for (next_hop_mtu, mtu) in [(1_300, 1_300), (0, MTU_NOT_REPORTED)] {
            let error = |quoted: &[u8]| emitted(v4::Message::FragmentationNeeded { next_hop_mtu, quoted });
            let (quoted, error) = judge(&of_v4(error)).unwrap();
            assert_eq!(error, PathError::PacketTooBig { mtu });
            let ends = ["10.0.0.1:80", "10.0.0.2:40001"].map(|end| end.parse::<SocketAddr>().unwrap());
            assert_eq!((quoted.source, quoted.destination, quoted.sequence), (ends[0], ends[1], 0x0102_0304));
        }
        let [local, remote] = [1, 2].map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
        let mut quoted = vec![0; ipv6::HEADER_LEN];
        let header = ipv6::Repr {
            source: local,
            destination: remote,
            protocol: ipv6::PROTOCOL_TCP,
            hop_limit: 64,
            dscp: 0,
            ecn: Ecn::Ect0,
            flow_label: 0,
            payload_len: 1_440,
        };
        header.emit(&mut quoted).unwrap();
        quoted.extend_from_slice(&TCP);
        for (reported, mtu) in [(1_400, 1_400), (1 << 20, u16::MAX)] {
            let (found, error) =
                judge(&of_v6(v6::Message::PacketTooBig { mtu: reported, quoted: &quoted })).unwrap();
            assert_eq!(error, PathError::PacketTooBig { mtu });
            assert_eq!((found.source.ip(), found.destination.ip()), (local.into(), remote.into()));
        }
    }

    #[test]
    fn messages_that_concern_no_path_are_ignored() {
        let exceeded = |quoted: &[u8]| emitted(v4::Message::TimeExceeded { code: 0, quoted });
        assert_eq!(judge(&of_v4(exceeded)), None, "RFC 9293 MUST-56");
        assert_eq!(judge(&of_v6(v6::Message::ParameterProblem { code: 0, pointer: 0, quoted: &TCP })), None);
        let good = of_v4(|quoted| emitted(v4::Message::FragmentationNeeded { next_hop_mtu: 1_300, quoted }));
        for len in 0..good.len() {
            assert_eq!(judge(&good[..len]), None, "{len} bytes");
        }
    }
}
