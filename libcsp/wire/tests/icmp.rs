//! ICMP of both families: round trips, what neighbour discovery must refuse, quoted segments, damage.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use common::{check_error, damaged, damages, noise};
use csp_types::MacAddr;
use csp_wire::icmp::{QuotedTcp, v4, v6};
use csp_wire::{Ecn, WireError, ipv4, ipv6};
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

#[derive(Clone, Debug)]
struct Parts {
    variant: u8,
    code: u8,
    numbers: (u16, u16),
    data: Vec<u8>,
    flags: (bool, bool, bool),
    target: Ipv6Addr,
    link: Option<MacAddr>,
}

fn any_parts() -> impl Strategy<Value = Parts> {
    let target = any::<[u8; 16]>().prop_map(|mut octets| {
        octets[0] = 0xfe;
        Ipv6Addr::from(octets)
    });
    let link = any::<Option<[u8; 6]>>().prop_map(|mac| mac.map(MacAddr));
    (any::<u8>(), any::<u8>(), any::<(u16, u16)>(), noise(), any::<(bool, bool, bool)>(), target, link)
        .prop_map(|(variant, code, numbers, data, flags, target, link)| Parts {
            variant,
            code,
            numbers,
            data,
            flags,
            target,
            link,
        })
}

fn message_v4(parts: &Parts) -> v4::Message<'_> {
    let (first, second) = parts.numbers;
    let rest = &parts.data[..];
    match parts.variant % 5 {
        0 => v4::Message::EchoRequest { identifier: first, sequence: second, data: rest },
        1 => v4::Message::EchoReply { identifier: first, sequence: second, data: rest },
        2 => {
            let code = v4::UnreachableCode::from_u8(parts.code % 16).unwrap_or(v4::UnreachableCode::PORT);
            v4::Message::DestinationUnreachable { code, quoted: rest }
        }
        3 => v4::Message::FragmentationNeeded { next_hop_mtu: first, quoted: rest },
        _ => v4::Message::TimeExceeded { code: parts.code % 2, quoted: rest },
    }
}

fn message_v6(parts: &Parts) -> v6::Message<'_> {
    let (first, second) = parts.numbers;
    let word = u32::from(first) << 16 | u32::from(second);
    let rest = &parts.data[..];
    let (router, solicited, override_cache) = parts.flags;
    match parts.variant % 8 {
        0 => v6::Message::EchoRequest { identifier: first, sequence: second, data: rest },
        1 => v6::Message::EchoReply { identifier: first, sequence: second, data: rest },
        2 => v6::Message::DestinationUnreachable { code: parts.code, quoted: rest },
        3 => v6::Message::PacketTooBig { mtu: word, quoted: rest },
        4 => v6::Message::TimeExceeded { code: parts.code % 2, quoted: rest },
        5 => v6::Message::ParameterProblem { code: parts.code, pointer: word, quoted: rest },
        6 => v6::Message::NeighborSolicitation { target: parts.target, source_link: parts.link },
        _ => v6::Message::NeighborAdvertisement {
            router,
            solicited,
            override_cache,
            target: parts.target,
            target_link: parts.link,
        },
    }
}

fn bytes_v4(message: &v4::Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa; message.len()];
    assert_eq!(message.emit(&mut bytes), Ok(message.len()));
    bytes
}

/// An IPv6 packet with `payload` as ICMPv6 and the given hop limit.
fn packet_v6(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let repr = ipv6::Repr {
        source,
        destination,
        protocol: ipv6::PROTOCOL_ICMPV6,
        hop_limit,
        dscp: 0,
        ecn: Ecn::NotEct,
        flow_label: 0,
        payload_len: payload.len() as u16,
    };
    let mut bytes = vec![0; ipv6::HEADER_LEN];
    repr.emit(&mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

fn message_packet_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    message: &v6::Message<'_>,
) -> Vec<u8> {
    let mut payload = vec![0xaa; message.len()];
    assert_eq!(message.emit(source, destination, &mut payload), Ok(message.len()));
    packet_v6(source, destination, hop_limit, &payload)
}

fn unicast() -> (Ipv6Addr, Ipv6Addr) {
    ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
}

#[test]
fn a_known_echo_request() {
    let message = v4::Message::EchoRequest { identifier: 0x1234, sequence: 1, data: b"abcd" };
    // Sum of 0800 1234 0001 6162 6364 is defb; its complement 2104.
    let expected = [8, 0, 0x21, 0x04, 0x12, 0x34, 0, 1, b'a', b'b', b'c', b'd'];
    assert_eq!(bytes_v4(&message), expected);
    assert_eq!(v4::Message::parse(&expected), Ok(message));
}

#[test]
fn the_error_names_what_is_wrong() {
    let mut bytes = bytes_v4(&v4::Message::EchoReply { identifier: 1, sequence: 2, data: b"x" });
    bytes[8] ^= 1;
    assert_eq!(v4::Message::parse(&bytes), Err(WireError::Checksum { what: "icmp checksum", offset: 2 }));
    // Redirect: type 5, with the right checksum.
    let mut bytes = [5, 1, 0, 0, 10, 0, 0, 1];
    let field = csp_wire::checksum::checksum(&bytes);
    bytes[2..4].copy_from_slice(&field.to_be_bytes());
    assert_eq!(v4::Message::parse(&bytes), Err(WireError::Unsupported { what: "icmp type", offset: 0 }));
    assert!(v4::UnreachableCode::from_u8(4).is_none(), "fragmentation needed is a message of its own");
}

#[test]
fn a_quoted_segment_names_its_connection() {
    let (source, destination) = (Ipv4Addr::new(10, 76, 0, 100), Ipv4Addr::new(10, 76, 0, 1));
    let header = ipv4::Repr {
        source,
        destination,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 60,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        payload_len: 1480,
    };
    let tcp = [0, 80, 0x9c, 0x40, 0xde, 0xad, 0xbe, 0xef];
    let mut quoted = vec![0; 20];
    header.emit(&mut quoted).unwrap();
    quoted.extend(tcp);
    let expected = QuotedTcp {
        source: SocketAddr::new(source.into(), 80),
        destination: SocketAddr::new(destination.into(), 40_000),
        sequence: 0xdead_beef,
    };
    assert_eq!(QuotedTcp::parse_v4(&quoted), Ok(expected), "28 bytes are all that RFC 792 promises");
    quoted[10] ^= 1;
    assert_eq!(QuotedTcp::parse_v4(&quoted), Ok(expected), "routers may have changed the header");
    let error = QuotedTcp::parse_v4(&quoted[..27]).unwrap_err();
    assert_eq!(error, WireError::Truncated { what: "quoted tcp header", offset: 20, needed: 28 });
    quoted[9] = 17;
    assert!(matches!(QuotedTcp::parse_v4(&quoted), Err(WireError::Unsupported { .. })));

    let (source, destination) = unicast();
    let mut packet = packet_v6(source, destination, 60, &tcp);
    packet[6] = ipv6::PROTOCOL_TCP;
    let found = QuotedTcp::parse_v6(&packet).unwrap();
    assert_eq!(found.source, SocketAddr::new(source.into(), 80));
    assert_eq!((found.destination.port(), found.sequence), (40_000, 0xdead_beef));
}

/// The `what` of the error that `message` meets between these addresses, if any.
fn discovery_error(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    message: v6::Message<'_>,
) -> Option<&'static str> {
    let bytes = message_packet_v6(source, destination, hop_limit, &message);
    v6::Message::parse(&ipv6::Packet::parse(&bytes).unwrap()).err().map(|error| error.what())
}

#[test]
fn neighbour_discovery_is_checked_as_rfc_4861_7_1_wants() {
    let (source, target) = unicast();
    let group = v6::solicited_node(target);
    assert_eq!(group, "ff02::1:ff00:2".parse::<Ipv6Addr>().unwrap());
    let nobody = Ipv6Addr::UNSPECIFIED;
    let ask = |link| v6::Message::NeighborSolicitation { target, source_link: link };
    assert_eq!(discovery_error(source, group, 255, ask(Some(MAC))), None);
    assert_eq!(discovery_error(nobody, group, 255, ask(None)), None, "duplicate address detection");
    assert_eq!(discovery_error(source, group, 254, ask(None)), Some("neighbour discovery hop limit"));
    assert_eq!(discovery_error(nobody, target, 255, ask(None)), Some("neighbour solicitation source"));
    assert_eq!(discovery_error(nobody, group, 255, ask(Some(MAC))), Some("neighbour solicitation source"));
    let ask_group = v6::Message::NeighborSolicitation { target: group, source_link: None };
    assert_eq!(discovery_error(source, target, 255, ask_group), Some("neighbour target"));
    let advertisement = |solicited| v6::Message::NeighborAdvertisement {
        router: false,
        solicited,
        override_cache: true,
        target,
        target_link: Some(MAC),
    };
    let all_nodes = "ff02::1".parse().unwrap();
    assert_eq!(discovery_error(target, all_nodes, 255, advertisement(false)), None);
    assert_eq!(
        discovery_error(target, all_nodes, 255, advertisement(true)),
        Some("neighbour advertisement flags")
    );
}

#[test]
fn neighbour_options_of_other_kinds_are_skipped_and_empty_ones_refused() {
    let (source, target) = unicast();
    let with_options = |options: &[u8]| {
        let mut payload = vec![135, 0, 0, 0, 0, 0, 0, 0];
        payload.extend(target.octets());
        payload.extend(options);
        let mut sum = csp_wire::checksum::Checksum::pseudo_v6(source, target, 58, payload.len() as u32);
        sum.add(&payload);
        payload[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let bytes = packet_v6(source, target, 255, &payload);
        match v6::Message::parse(&ipv6::Packet::parse(&bytes).unwrap()) {
            Ok(v6::Message::NeighborSolicitation { source_link, .. }) => Ok(source_link),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err((error.what(), error.offset())),
        }
    };
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let link = [1, 1, 2, 0, 0, 0, 0, 7];
    assert_eq!(with_options(&[nonce, link].concat()), Ok(Some(MAC)));
    assert_eq!(with_options(&nonce), Ok(None));
    assert_eq!(with_options(&[1, 0, 0, 0, 0, 0, 0, 0]), Err(("neighbour option length", 25)));
    assert_eq!(with_options(&[1, 2, 0, 0, 0, 0, 0, 0]), Err(("neighbour option", 24)));
    assert_eq!(with_options(&[1]), Err(("neighbour option", 24)));
}

fn check_hostile(bytes: &[u8]) {
    if let Err(error) = v4::Message::parse(bytes) {
        check_error(error, bytes);
    }
    // Give the damage a right checksum, so that it gets behind that check.
    if let Some(fixed) = bytes.get(..bytes.len().min(300)).filter(|bytes| bytes.len() >= 4) {
        let mut fixed = fixed.to_vec();
        fixed[2..4].fill(0);
        let field = csp_wire::checksum::checksum(&fixed);
        fixed[2..4].copy_from_slice(&field.to_be_bytes());
        match v4::Message::parse(&fixed) {
            Ok(message) => assert_eq!(message.len(), fixed.len()),
            Err(error) => check_error(error, &fixed),
        }
        let (source, destination) = unicast();
        fixed[2..4].fill(0);
        let mut sum = csp_wire::checksum::Checksum::pseudo_v6(source, destination, 58, fixed.len() as u32);
        sum.add(&fixed);
        fixed[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let packet = packet_v6(source, destination, 255, &fixed);
        match v6::Message::parse(&ipv6::Packet::parse(&packet).unwrap()) {
            Ok(message) => assert!(message.len() <= fixed.len()),
            Err(error) => check_error(error, &fixed),
        }
    }
    for result in [QuotedTcp::parse_v4(bytes), QuotedTcp::parse_v6(bytes)] {
        if let Err(error) = result {
            assert!(!error.what().is_empty() && error.offset() <= bytes.len());
        }
    }
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn v4_round_trip(parts in any_parts()) {
        let message = message_v4(&parts);
        let bytes = bytes_v4(&message);
        prop_assert_eq!(v4::Message::parse(&bytes), Ok(message));
    }

    #[test]
    fn v6_round_trip(parts in any_parts()) {
        let (source, destination) = unicast();
        let message = message_v6(&parts);
        let bytes = message_packet_v6(source, destination, 255, &message);
        prop_assert_eq!(v6::Message::parse(&ipv6::Packet::parse(&bytes).unwrap()), Ok(message));
    }

    #[test]
    fn a_flipped_bit_fails_the_checksum(parts in any_parts(), bit in any::<usize>()) {
        let flip = |bytes: &mut [u8]| {
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        };
        let mut bytes = bytes_v4(&message_v4(&parts));
        flip(&mut bytes);
        let found = v4::Message::parse(&bytes).map_err(|error| error.what());
        prop_assert_eq!(found, Err("icmp checksum"));
        let (source, destination) = unicast();
        let mut bytes = message_packet_v6(source, destination, 255, &message_v6(&parts));
        flip(&mut bytes[ipv6::HEADER_LEN..]);
        let found = v6::Message::parse(&ipv6::Packet::parse(&bytes).unwrap()).map_err(|error| error.what());
        prop_assert_eq!(found, Err("icmpv6 checksum"));
    }

    #[test]
    fn noise_is_survived(bytes in noise(), kind in any::<u8>()) {
        check_hostile(&bytes);
        let mut bytes = bytes;
        if let Some([first, second, ..]) = bytes.first_chunk_mut::<2>() {
            (*first, *second) = (kind, 0);
        }
        check_hostile(&bytes);
    }

    #[test]
    fn damage_is_survived(parts in any_parts(), damages in damages()) {
        check_hostile(&damaged(bytes_v4(&message_v4(&parts)), &damages));
        let (source, destination) = unicast();
        let packet = message_packet_v6(source, destination, 255, &message_v6(&parts));
        check_hostile(&damaged(packet[ipv6::HEADER_LEN..].to_vec(), &damages));
        check_hostile(&damaged(packet, &damages));
    }
}
