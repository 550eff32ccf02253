//! The frames that a client host sends and receives: ARP, and TCP over IPv4.

use std::net::{IpAddr, Ipv4Addr};

use csp_lan::{Gso, GsoKind, LanPort, TxOffload};
use csp_tcp::Transmit;
use csp_types::{FourTuple, MacAddr};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::v4;
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Segment};
use csp_wire::{Ecn, arp, ipv4};

/// The router that reports packets as too large.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 9);

/// Sends an ARP packet.
pub(crate) fn send_arp(port: &mut LanPort, destination: MacAddr, message: arp::Repr) {
    let mut frame = [0; 64];
    let header = ethernet::Repr { destination, source: port.info.mac, ether_type: EtherType::Arp };
    let at = header.emit(&mut frame).expect("64 bytes hold the header");
    let len = at + message.emit(&mut frame[at..]).expect("64 bytes hold an ARP packet");
    let _ = port.transmitter.transmit(&[&frame[..len]], None); // a frame that the port refuses is a lost frame
    port.transmitter.flush();
}

/// Returns the TCP segment for `address` in an IPv4 packet, if its checksums are valid.
pub(crate) fn segment_in(bytes: &[u8], address: Ipv4Addr) -> Option<(FourTuple, Segment<'_>)> {
    let packet = ipv4::Packet::parse(bytes).ok()?;
    let payload = packet.payload();
    let mut sum =
        Checksum::pseudo_v4(packet.source(), packet.destination(), ipv4::PROTOCOL_TCP, payload.len() as u16);
    sum.add(payload);
    if packet.protocol() != ipv4::PROTOCOL_TCP || packet.destination() != address || !sum.is_valid() {
        return None;
    }
    let segment = Segment::parse(payload).ok()?;
    let tuple = FourTuple {
        local: (packet.destination(), segment.destination_port()).into(),
        remote: (packet.source(), segment.source_port()).into(),
    };
    Some((tuple, segment))
}

/// Returns the codepoint of the IPv4 packet in `bytes`.
pub(crate) fn ecn(bytes: &[u8]) -> Ecn {
    ipv4::Packet::parse(bytes).map_or(Ecn::NotEct, |packet| packet.ecn())
}

/// Returns the length of the IPv4 packet in `bytes`; 0 if it is none.
pub(crate) fn packet_len(bytes: &[u8]) -> usize {
    ipv4::Packet::parse(bytes).map_or(0, |packet| packet.total_len())
}

/// Sends a router's report that `packet` is longer than the `mtu` of the next link (RFC 1191 §4).
pub(crate) fn send_too_big(port: &mut LanPort, gateway: MacAddr, packet: &[u8], mtu: u16) {
    let Ok(refused) = ipv4::Packet::parse(packet) else { return };
    let message = v4::Message::FragmentationNeeded { next_hop_mtu: mtu, quoted: &packet[..28] };
    let mut frame = [0; 128];
    let mac = ethernet::Repr { destination: gateway, source: port.info.mac, ether_type: EtherType::Ipv4 };
    let at_ip = mac.emit(&mut frame).expect("128 bytes hold the message");
    let ip = ipv4::Repr {
        source: ROUTER,
        destination: refused.source(),
        protocol: ipv4::PROTOCOL_ICMP,
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        payload_len: message.len() as u16,
    };
    let at = at_ip + ip.emit(&mut frame[at_ip..]).expect("128 bytes hold the message");
    let len = at + message.emit(&mut frame[at..]).expect("128 bytes hold the message");
    let _ = port.transmitter.transmit(&[&frame[..len]], None); // a frame that the port refuses is a lost frame
    port.transmitter.flush();
}

/// Sends Ethernet, IPv4 and TCP header with the payload; checksum and cutting are left to the port.
pub(crate) fn send_segment(port: &mut LanPort, gateway: MacAddr, transmit: &Transmit<'_>, ecn: Ecn) {
    let (Some(tcp), IpAddr::V4(source), IpAddr::V4(destination)) =
        (&transmit.header, transmit.tuple.local.ip(), transmit.tuple.remote.ip())
    else {
        return;
    };
    let mut head = [0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + HEADER_LEN_MAX];
    let mac = ethernet::Repr { destination: gateway, source: port.info.mac, ether_type: EtherType::Ipv4 };
    let at_ip = mac.emit(&mut head).expect("the buffer holds all headers");
    let tcp_len = tcp.header_len() + transmit.payload_len;
    let ip = ipv4::Repr {
        source,
        destination,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        dscp: 0,
        ecn,
        identification: 0,
        dont_fragment: true,
        payload_len: tcp_len as u16,
    };
    let at_tcp = at_ip + ip.emit(&mut head[at_ip..]).expect("the buffer holds all headers");
    let end = at_tcp + tcp.emit(&mut head[at_tcp..]).expect("the buffer holds all headers");
    let sum = Checksum::pseudo_v4(source, destination, ipv4::PROTOCOL_TCP, tcp_len as u16).partial();
    head[at_tcp + 16..at_tcp + 18].copy_from_slice(&sum.to_be_bytes());
    let cut = transmit.payload_len > usize::from(transmit.segment_size);
    let cwr = tcp.flags.contains(Flags::CWR);
    let offload = TxOffload {
        checksum_start: at_tcp as u16,
        checksum_offset: 16,
        gso: cut.then_some(Gso { kind: GsoKind::TcpV4, segment_size: transmit.segment_size, cwr }),
        header_len: end as u16,
    };
    let mut parts: Vec<&[u8]> = vec![&head[..end]];
    parts.extend(transmit.payload());
    let _ = port.transmitter.transmit(&parts, Some(offload)); // a frame that the port refuses is a lost frame
}
