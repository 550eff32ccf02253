//! The formats of the LAN. Those with a checksum are checked with the bytes as given, and again with a
//! correct checksum, which the fuzzer would seldom find.

use core::net::Ipv6Addr;

use csp_wire::checksum::{Checksum, checksum};
use csp_wire::icmp::{QuotedTcp, v4, v6};
use csp_wire::proxy_protocol::{self, ACCEPTED_MAX, Parsed, ProxyHeader};
use csp_wire::{
    Ecn, arp as wire_arp, ethernet as wire_ethernet, ipv4 as wire_ipv4, ipv6 as wire_ipv6, tcp as wire_tcp,
};

use crate::{Target, check_error};

/// A frame.
pub static ETHERNET: Target = Target::plain("ethernet", ethernet, lan_examples);
/// A packet of ARP.
pub static ARP: Target = Target::plain("arp", arp, lan_examples);
/// A packet of IPv4.
pub static IPV4: Target = Target::plain("ipv4", ipv4, lan_examples);
/// A packet of IPv6.
pub static IPV6: Target = Target::plain("ipv6", ipv6, lan_examples);
/// A message of ICMP of either family.
pub static ICMP: Target = Target::plain("icmp", icmp, lan_examples);
/// A segment.
pub static TCP: Target = Target::plain("tcp", tcp, lan_examples);

/// The start of a connection of a balancer.
pub static PROXY_PROTOCOL: Target = Target::plain("proxy_protocol", proxy_header, proxy_header_examples);

fn proxy_header_examples() -> Vec<Vec<u8>> {
    let ends = [("192.0.2.7:258", "198.51.100.7:443"), ("[2001:db8::1]:258", "[2001:db8::2]:443")];
    let all = ends.iter().flat_map(|(client, service)| {
        let (client, service) = (client.parse().expect("an address"), service.parse().expect("an address"));
        [ProxyHeader::V1, ProxyHeader::V2].map(|version| version.bytes(client, service).to_vec())
    });
    all.chain([ProxyHeader::V1.local().to_vec(), ProxyHeader::V2.local().to_vec()]).collect()
}

/// The PROXY protocol: the outcome does not depend on how the bytes arrive, and the address that was read is
/// read again from a header that names it.
fn proxy_header(bytes: &[u8]) {
    let whole = proxy_protocol::parse(bytes);
    let len = match whole {
        Parsed::Header { len, client } => {
            assert!(len <= bytes.len().min(ACCEPTED_MAX));
            if let Some(client) = client {
                for version in [ProxyHeader::V1, ProxyHeader::V2] {
                    let again = version.bytes(client, client);
                    let expected = Parsed::Header { len: again.len(), client: Some(client) };
                    assert_eq!(proxy_protocol::parse(&again), expected);
                }
            }
            assert_eq!(proxy_protocol::parse(&bytes[..len]), whole);
            len
        }
        Parsed::More => bytes.len(),
        Parsed::Other => 0,
    };
    for end in 0..len {
        assert_eq!(proxy_protocol::parse(&bytes[..end]), Parsed::More, "{end} bytes");
    }
}

/// A frame with an IPv4 datagram with a SYN and its options, and each of its layers; the same of others.
fn lan_examples() -> Vec<Vec<u8>> {
    const MACS: &[u8] = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02";
    const SYN: &[u8] = b"\x9c\x40\0\x50\0\0\0\x05\0\0\0\0\xa0\x02\xff\xff\0\0\0\0\x02\x04\x05\xb4\x04\x02\x08\x0a\0\0\0\x09\0\0\0\0\x01\x03\x03\x07";
    const IPV4: &[u8] = b"\x45\0\0\x3c\0\x01\x40\0\x40\x06\0\0\xc0\0\x02\x01\xc6\x33\x64\x07";
    const IPV6: &[u8] = b"\x60\0\0\0\0\x28\x06\x40\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02";
    const ARP: &[u8] =
        b"\0\x01\x08\0\x06\x04\0\x01\x02\0\0\0\0\x01\xc0\0\x02\x01\0\0\0\0\0\0\xc6\x33\x64\x07";
    const UNREACHABLE: &[u8] = b"\x03\x04\0\0\0\0\x05\x78";
    const ECHO: &[u8] = b"\x08\0\0\0\x12\x34\0\x01payload";
    const SOLICITATION: &[u8] =
        b"\x87\0\0\0\0\0\0\0\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x01\x01\x02\0\0\0\0\x01";
    vec![
        [MACS, b"\x08\0", IPV4, SYN].concat(),
        [MACS, b"\x08\x06", ARP].concat(),
        ARP.to_vec(),
        [IPV4, SYN].concat(),
        [IPV6, SYN].concat(),
        SYN.to_vec(),
        [UNREACHABLE, IPV4, SYN].concat(),
        ECHO.to_vec(),
        SOLICITATION.to_vec(),
    ]
}

/// Ethernet: a frame that parses is emitted unchanged.
fn ethernet(bytes: &[u8]) {
    match wire_ethernet::Frame::parse(bytes) {
        Ok(frame) => {
            assert_eq!(frame.payload().len() + wire_ethernet::HEADER_LEN, bytes.len());
            let Ok(repr) = wire_ethernet::Repr::parse(&frame) else { return };
            let mut out = [0xaa; wire_ethernet::HEADER_LEN];
            assert_eq!(repr.emit(&mut out), Ok(out.len()));
            assert!(bytes.starts_with(&out));
        }
        Err(error) => check_error(error, bytes),
    }
}

/// ARP: a packet that parses is emitted unchanged.
fn arp(bytes: &[u8]) {
    match wire_arp::Packet::parse(bytes) {
        Ok(packet) => {
            let mut out = [0xaa; wire_arp::PACKET_LEN];
            assert_eq!(wire_arp::Repr::parse(&packet).emit(&mut out), Ok(out.len()));
            assert!(bytes.starts_with(&out));
        }
        Err(error) => check_error(error, bytes),
    }
}

/// IPv4: whole packets and packets quoted by ICMP.
fn ipv4(bytes: &[u8]) {
    check_ipv4(bytes);
    let mut bytes = bytes.to_vec();
    let header_len = usize::from(bytes.first().map_or(0, |first| first & 0xf)) * 4;
    if header_len >= wire_ipv4::HEADER_LEN && header_len <= bytes.len() {
        bytes[10..12].fill(0);
        let field = checksum(&bytes[..header_len]);
        bytes[10..12].copy_from_slice(&field.to_be_bytes());
        check_ipv4(&bytes);
    }
}

fn check_ipv4(bytes: &[u8]) {
    for parse in [wire_ipv4::Packet::parse, wire_ipv4::Packet::parse_quoted] {
        match parse(bytes) {
            Ok(packet) => assert!(packet.header_len() + packet.payload().len() <= packet.total_len()),
            Err(error) => check_error(error, bytes),
        }
    }
    let Ok(packet) = wire_ipv4::Packet::parse(bytes) else { return };
    let Ok(repr) = wire_ipv4::Repr::parse(&packet) else { return };
    let mut out = vec![0xaa; repr.len()];
    assert_eq!(repr.emit(&mut out), Ok(wire_ipv4::HEADER_LEN));
    out.extend_from_slice(packet.payload());
    let again = wire_ipv4::Packet::parse(&out).expect("what was emitted parses");
    assert_eq!(wire_ipv4::Repr::parse(&again), Ok(repr));
    assert_eq!(again.payload(), packet.payload());
}

/// IPv6: whole packets and packets quoted by ICMP.
fn ipv6(bytes: &[u8]) {
    for parse in [wire_ipv6::Packet::parse, wire_ipv6::Packet::parse_quoted] {
        match parse(bytes) {
            Ok(packet) => assert!(packet.header_len() + packet.payload().len() <= packet.total_len()),
            Err(error) => check_error(error, bytes),
        }
    }
    let Ok(packet) = wire_ipv6::Packet::parse(bytes) else { return };
    let repr = wire_ipv6::Repr::parse(&packet);
    let mut out = vec![0xaa; repr.len()];
    assert_eq!(repr.emit(&mut out), Ok(wire_ipv6::HEADER_LEN));
    out.extend_from_slice(packet.payload());
    let again = wire_ipv6::Packet::parse(&out).expect("what was emitted parses");
    assert_eq!(wire_ipv6::Repr::parse(&again), repr);
}

/// ICMP for both families, and the packets that errors quote.
fn icmp(bytes: &[u8]) {
    icmp_v4(bytes);
    icmp_v6(bytes);
    for quoted in [QuotedTcp::parse_v4(bytes), QuotedTcp::parse_v6(bytes)] {
        let _ = quoted.map_err(|error| check_error(error, bytes));
    }
}

fn icmp_v4(bytes: &[u8]) {
    let _ = v4::Message::parse(bytes).map_err(|error| check_error(error, bytes));
    let mut bytes = bytes.to_vec();
    if bytes.len() < v4::HEADER_LEN {
        return;
    }
    bytes[2..4].fill(0);
    let field = checksum(&bytes);
    bytes[2..4].copy_from_slice(&field.to_be_bytes());
    match v4::Message::parse(&bytes) {
        Ok(message) => {
            let mut out = vec![0xaa; message.len()];
            assert_eq!(message.emit(&mut out), Ok(bytes.len()));
            assert_eq!(v4::Message::parse(&out), Ok(message));
        }
        Err(error) => check_error(error, &bytes),
    }
}

fn icmp_v6(bytes: &[u8]) {
    if bytes.len() < v6::HEADER_LEN || bytes.len() > usize::from(u16::MAX) {
        return;
    }
    let source = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    // The relevant messages ignore the code or require 0, so its byte selects the destination address
    // instead.
    let group = bytes[1] & 1 != 0;
    let destination = if group { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { source };
    let mut payload = bytes.to_vec();
    payload[1] >>= 1;
    payload[2..4].fill(0);
    let mut sum = Checksum::pseudo_v6(source, destination, wire_ipv6::PROTOCOL_ICMPV6, payload.len() as u32);
    sum.add(&payload);
    payload[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let packet = ipv6_packet(source, destination, &payload);
    let packet = wire_ipv6::Packet::parse(&packet).expect("the packet made here is whole");
    match v6::Message::parse(&packet) {
        Ok(message) => {
            let mut out = vec![0xaa; message.len()];
            assert_eq!(message.emit(source, destination, &mut out), Ok(out.len()));
            let again = ipv6_packet(source, destination, &out);
            let again = wire_ipv6::Packet::parse(&again).expect("the packet made here is whole");
            assert_eq!(v6::Message::parse(&again), Ok(message));
        }
        Err(error) => check_error(error, &payload),
    }
}

fn ipv6_packet(source: Ipv6Addr, destination: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let repr = wire_ipv6::Repr {
        source,
        destination,
        protocol: wire_ipv6::PROTOCOL_ICMPV6,
        hop_limit: v6::NEIGHBOR_HOP_LIMIT,
        dscp: 0,
        ecn: Ecn::NotEct,
        flow_label: 0,
        payload_len: payload.len() as u16,
    };
    let mut out = vec![0; wire_ipv6::HEADER_LEN];
    assert_eq!(repr.emit(&mut out), Ok(wire_ipv6::HEADER_LEN));
    out.extend_from_slice(payload);
    out
}

/// TCP: header and options, which have the same meaning after emission.
fn tcp(bytes: &[u8]) {
    match wire_tcp::Segment::parse(bytes) {
        Ok(segment) => {
            assert_eq!(segment.header_len() + segment.payload().len(), bytes.len());
            let repr = wire_tcp::Repr::parse(&segment);
            let mut out = [0xaa; 60];
            let len = repr.emit(&mut out).expect("60 bytes hold every header");
            assert_eq!(len, repr.header_len());
            let again = wire_tcp::Segment::parse(&out[..len]).expect("what was emitted parses");
            let again = wire_tcp::Repr::parse(&again);
            assert_eq!((again.seq, again.ack, again.flags), (repr.seq, repr.ack, repr.flags));
            assert_eq!(wire_tcp::Options { sack: repr.options.sack, ..again.options }, repr.options);
        }
        Err(error) => check_error(error, bytes),
    }
}
