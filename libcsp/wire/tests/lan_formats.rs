//! Ethernet, ARP, IPv4 and IPv6: what is emitted parses to the same; what is damaged is refused or read,
//! never worse.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::net::{Ipv4Addr, Ipv6Addr};

use common::{check_error, damaged, damages, noise};
use csp_types::MacAddr;
use csp_wire::{Ecn, WireError, arp, ethernet, ipv4, ipv6};
use proptest::prelude::*;

fn any_station() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(|mut mac| {
        mac[0] &= !1;
        MacAddr(mac)
    })
}

fn any_ethernet() -> impl Strategy<Value = ethernet::Repr> {
    let kind = prop_oneof![
        Just(ethernet::EtherType::Ipv4),
        Just(ethernet::EtherType::Arp),
        Just(ethernet::EtherType::Ipv6)
    ];
    (any::<[u8; 6]>(), any_station(), kind).prop_map(|(destination, source, ether_type)| ethernet::Repr {
        destination: MacAddr(destination),
        source,
        ether_type,
    })
}

fn any_arp() -> impl Strategy<Value = arp::Repr> {
    let operation = prop_oneof![Just(arp::Operation::Request), Just(arp::Operation::Reply)];
    (operation, any_station(), any::<Ipv4Addr>(), any::<[u8; 6]>(), any::<Ipv4Addr>()).prop_map(
        |(operation, sender_mac, sender_ip, target_mac, target_ip)| arp::Repr {
            operation,
            sender_mac,
            sender_ip,
            target_mac: MacAddr(target_mac),
            target_ip,
        },
    )
}

fn any_ecn() -> impl Strategy<Value = Ecn> {
    (0u8..4).prop_map(Ecn::from_bits)
}

/// An IPv4 header and a payload of the length it states.
fn any_ipv4() -> impl Strategy<Value = (ipv4::Repr, Vec<u8>)> {
    let addresses = (any::<Ipv4Addr>(), any::<Ipv4Addr>());
    let rest = (any::<u8>(), any::<u8>(), 0u8..64, any_ecn(), any::<u16>(), any::<bool>());
    (addresses, rest, prop::collection::vec(any::<u8>(), 0..100)).prop_map(
        |((source, destination), (protocol, ttl, dscp, ecn, identification, dont_fragment), payload)| {
            let payload_len = payload.len() as u16;
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
            (repr, payload)
        },
    )
}

/// An IPv6 header without extension headers and a payload of the length it states.
fn any_ipv6() -> impl Strategy<Value = (ipv6::Repr, Vec<u8>)> {
    let addresses = (any::<Ipv6Addr>(), any::<Ipv6Addr>());
    let protocol = prop_oneof![Just(ipv6::PROTOCOL_TCP), Just(ipv6::PROTOCOL_ICMPV6), Just(17), Just(59)];
    let rest = (protocol, any::<u8>(), 0u8..64, any_ecn(), 0u32..1 << 20);
    (addresses, rest, prop::collection::vec(any::<u8>(), 0..100)).prop_map(
        |((source, destination), (protocol, hop_limit, dscp, ecn, flow_label), payload)| {
            let payload_len = payload.len() as u16;
            let repr =
                ipv6::Repr { source, destination, protocol, hop_limit, dscp, ecn, flow_label, payload_len };
            (repr, payload)
        },
    )
}

fn ipv4_bytes(repr: &ipv4::Repr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xaa; repr.len()];
    assert_eq!(repr.emit(&mut bytes), Ok(repr.len()));
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv6_bytes(repr: &ipv6::Repr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xaa; repr.len()];
    assert_eq!(repr.emit(&mut bytes), Ok(repr.len()));
    bytes.extend_from_slice(payload);
    bytes
}

/// An IPv6 packet whose base header is followed by `chain` (with `first` as its type).
fn ipv6_chain(first: u8, chain: &[u8]) -> Vec<u8> {
    let repr = ipv6::Repr {
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::LOCALHOST,
        protocol: first,
        hop_limit: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        flow_label: 0,
        payload_len: chain.len() as u16,
    };
    ipv6_bytes(&repr, chain)
}

#[test]
fn a_known_ipv4_header() {
    // A UDP packet from 192.168.0.1 to 192.168.0.199, its checksum worked out by hand: b861.
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];
    let mut bytes = header.to_vec();
    bytes.resize(0x73, 0);
    let packet = ipv4::Packet::parse(&bytes).unwrap();
    let repr = ipv4::Repr::parse(&packet).unwrap();
    assert_eq!(repr.source, Ipv4Addr::new(192, 168, 0, 1));
    assert_eq!(repr.destination, Ipv4Addr::new(192, 168, 0, 199));
    assert_eq!((repr.protocol, repr.ttl, repr.dont_fragment, repr.payload_len), (17, 64, true, 0x5f));
    let mut again = [0; 20];
    repr.emit(&mut again).unwrap();
    assert_eq!(again, header);
}

#[test]
fn a_known_arp_exchange() {
    let (asker, owner) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let request = arp::Repr::request(asker, Ipv4Addr::new(10, 76, 0, 1), Ipv4Addr::new(10, 76, 0, 100));
    let mut bytes = [0; 28];
    request.emit(&mut bytes).unwrap();
    let expected = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 76, 0, 1, 0, 0, 0, 0, 0, 0, 10, 76, 0, 100];
    assert_eq!(bytes, expected);
    request.answer(owner).emit(&mut bytes).unwrap();
    let expected = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 76, 0, 100, 2, 0, 0, 0, 0, 1, 10, 76, 0, 1];
    assert_eq!(bytes, expected);
}

#[test]
fn frames_that_are_not_for_this_stack_are_named() {
    let frame = |kind: [u8; 2], source: u8| {
        let mut bytes = vec![0xff; 6];
        bytes.extend([source, 0, 0, 0, 0, 9]);
        bytes.extend(kind);
        ethernet::Frame::parse(&bytes).map(|_| ()).map_err(|error| error.what())
    };
    assert_eq!(frame([0x81, 0x00], 2), Err("ethernet vlan tag"));
    assert_eq!(frame([0x88, 0xa8], 2), Err("ethernet vlan tag"));
    assert_eq!(frame([0x00, 0x2e], 2), Err("ethernet 802.3 length"));
    assert_eq!(frame([0x08, 0x00], 3), Err("ethernet source"));
    assert_eq!(frame([0x88, 0xcc], 2), Ok(()), "unknown types are the caller's to count");
}

#[test]
fn ipv4_options_are_skipped_and_fragments_reported() {
    let mut bytes = vec![0x46, 0, 0, 28, 0, 7, 0x20, 0x03, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0];
    let field = csp_wire::checksum::checksum(&bytes);
    bytes[10..12].copy_from_slice(&field.to_be_bytes());
    bytes.extend(*b"data and padding");
    let packet = ipv4::Packet::parse(&bytes).unwrap();
    assert_eq!((packet.options(), packet.payload()), (&[1, 1, 1, 0][..], &b"data"[..]));
    assert!(packet.is_fragment() && packet.more_fragments());
    assert_eq!(packet.fragment_offset(), 24);
    let refused = ipv4::Repr::parse(&packet);
    assert_eq!(refused, Err(WireError::Unsupported { what: "ipv4 fragment", offset: 6 }));
}

#[test]
fn ipv6_options_are_walked_to_the_payload() {
    // Hop-by-hop (router alert, PadN), destination options (Pad1s), a fragment header of a whole packet, TCP.
    let chain =
        [&[60, 0, 5, 2, 0, 0, 1, 0][..], &[44, 0, 0, 0, 0, 0, 0, 0], &[6, 0, 0, 0, 1, 2, 3, 4], b"segment"];
    let bytes = ipv6_chain(0, &chain.concat());
    let packet = ipv6::Packet::parse(&bytes).unwrap();
    assert_eq!((packet.protocol(), packet.header_len(), packet.payload()), (6, 64, &b"segment"[..]));
}

#[test]
fn ipv6_extension_headers_that_are_refused_are_named() {
    let refusal = |first, chain: &[u8]| {
        let error = ipv6::Packet::parse(&ipv6_chain(first, chain)).unwrap_err();
        (error.what(), error.offset())
    };
    assert_eq!(refusal(43, &[6, 0, 0, 0, 0, 0, 0, 0]), ("ipv6 routing header", 40));
    assert_eq!(refusal(44, &[6, 0, 0, 1, 0, 0, 0, 0]), ("ipv6 fragment", 40));
    let twice = [0, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(refusal(0, &twice), ("ipv6 hop-by-hop options", 48));
    assert_eq!(refusal(0, &[6, 0, 0xc2, 4, 0, 1, 0, 0]), ("ipv6 hop-by-hop options", 42), "jumbo payload");
    assert_eq!(refusal(60, &[6, 0, 1, 5, 0, 0, 0, 0]), ("ipv6 destination options", 43), "option too long");
    assert_eq!(refusal(60, &[6, 1, 1, 4, 0, 0, 0, 0]), ("ipv6 destination options", 40), "header too long");
    let endless = [60, 0, 1, 4, 0, 0, 0, 0].repeat(8);
    assert_eq!(refusal(60, &endless), ("ipv6 extension headers", 40 + 8 * 5));
}

/// Parses damaged bytes with everything that takes them; checks what comes out.
fn check_hostile(bytes: &[u8]) {
    match ethernet::Frame::parse(bytes) {
        Ok(frame) => assert_eq!(frame.payload().len() + ethernet::HEADER_LEN, bytes.len()),
        Err(error) => check_error(error, bytes),
    }
    match arp::Packet::parse(bytes) {
        Ok(packet) => {
            let mut again = [0; arp::PACKET_LEN];
            arp::Repr::parse(&packet).emit(&mut again).unwrap();
            assert_eq!(again, bytes[..arp::PACKET_LEN]);
        }
        Err(error) => check_error(error, bytes),
    }
    for parse in [ipv4::Packet::parse, ipv4::Packet::parse_quoted] {
        match parse(bytes) {
            Ok(packet) => assert!(packet.header_len() + packet.payload().len() <= packet.total_len()),
            Err(error) => check_error(error, bytes),
        }
    }
    for parse in [ipv6::Packet::parse, ipv6::Packet::parse_quoted] {
        match parse(bytes) {
            Ok(packet) => assert!(packet.header_len() + packet.payload().len() <= packet.total_len()),
            // The headers must end within the payload length, whatever follows.
            Err(WireError::Truncated { offset, needed, .. }) => {
                assert!(offset <= bytes.len() && needed > offset)
            }
            Err(error) => check_error(error, bytes),
        }
    }
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn ethernet_round_trip(repr in any_ethernet(), payload in noise()) {
        let mut bytes = vec![0xaa; repr.len()];
        prop_assert_eq!(repr.emit(&mut bytes), Ok(repr.len()));
        bytes.extend_from_slice(&payload);
        let frame = ethernet::Frame::parse(&bytes).unwrap();
        prop_assert_eq!(ethernet::Repr::parse(&frame), Ok(repr));
        prop_assert_eq!(frame.payload(), &payload[..]);
    }

    #[test]
    fn arp_round_trip(repr in any_arp(), padding in noise()) {
        let mut bytes = vec![0xaa; repr.len()];
        prop_assert_eq!(repr.emit(&mut bytes), Ok(repr.len()));
        bytes.extend_from_slice(&padding);
        prop_assert_eq!(arp::Repr::parse(&arp::Packet::parse(&bytes).unwrap()), repr);
    }

    #[test]
    fn ipv4_round_trip((repr, payload) in any_ipv4(), padding in noise()) {
        let mut bytes = ipv4_bytes(&repr, &payload);
        bytes.extend_from_slice(&padding);
        let packet = ipv4::Packet::parse(&bytes).unwrap();
        prop_assert_eq!(ipv4::Repr::parse(&packet), Ok(repr));
        prop_assert_eq!(packet.payload(), &payload[..], "padding is cut off");
    }

    #[test]
    fn ipv6_round_trip((repr, payload) in any_ipv6(), padding in noise()) {
        let mut bytes = ipv6_bytes(&repr, &payload);
        bytes.extend_from_slice(&padding);
        let packet = ipv6::Packet::parse(&bytes).unwrap();
        prop_assert_eq!(ipv6::Repr::parse(&packet), repr);
        prop_assert_eq!(packet.payload(), &payload[..], "padding is cut off");
    }

    #[test]
    fn every_flipped_bit_of_an_ipv4_header_is_noticed((repr, payload) in any_ipv4(), bit in 0usize..160) {
        let mut bytes = ipv4_bytes(&repr, &payload);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(ipv4::Packet::parse(&bytes).is_err());
    }

    #[test]
    fn a_cut_packet_is_refused_and_a_cut_quote_is_read(
        (repr, payload) in any_ipv4(), (repr6, payload6) in any_ipv6(), cut in 1usize..200,
    ) {
        let bytes = ipv4_bytes(&repr, &payload);
        let short = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert!(ipv4::Packet::parse(short).is_err());
        prop_assert_eq!(ipv4::Packet::parse_quoted(short).is_ok(), short.len() >= ipv4::HEADER_LEN);
        let bytes = ipv6_bytes(&repr6, &payload6);
        let short = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert!(ipv6::Packet::parse(short).is_err());
        prop_assert_eq!(ipv6::Packet::parse_quoted(short).is_ok(), short.len() >= ipv6::HEADER_LEN);
    }

    #[test]
    fn emitting_into_too_little_room_writes_nothing((repr, _) in any_ipv4(), (repr6, _) in any_ipv6(), len in 0usize..20) {
        let mut out = vec![0xaa; len];
        prop_assert_eq!(repr.emit(&mut out), Err(WireError::NoSpace { what: "ipv4 header", needed: 20 }));
        prop_assert_eq!(repr6.emit(&mut out), Err(WireError::NoSpace { what: "ipv6 header", needed: 40 }));
        prop_assert!(out.iter().all(|&b| b == 0xaa));
    }

    #[test]
    fn noise_is_survived(bytes in noise(), first in prop_oneof![Just(0x45u8), Just(0x46), Just(0x4f), Just(0x60), any::<u8>()]) {
        check_hostile(&bytes);
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        check_hostile(&bytes);
    }

    #[test]
    fn damage_is_survived(
        frame in any_ethernet(), arp in any_arp(), v4 in any_ipv4(), v6 in any_ipv6(), damages in damages(),
        chain in prop::collection::vec((prop_oneof![Just(0u8), Just(43), Just(44), Just(60), Just(6)], 0u8..3), 0..6),
    ) {
        let mut bytes = vec![0; ethernet::HEADER_LEN];
        frame.emit(&mut bytes).unwrap();
        check_hostile(&damaged(bytes, &damages));
        let mut bytes = vec![0; arp::PACKET_LEN];
        arp.emit(&mut bytes).unwrap();
        check_hostile(&damaged(bytes, &damages));
        check_hostile(&damaged(ipv4_bytes(&v4.0, &v4.1), &damages));
        check_hostile(&damaged(ipv6_bytes(&v6.0, &v6.1), &damages));
        let headers = chain.iter().flat_map(|&(next, units)| {
            let mut header = vec![0; (usize::from(units) + 1) * 8];
            (header[0], header[1]) = (next, units);
            header
        });
        check_hostile(&damaged(ipv6_chain(60, &headers.collect::<Vec<u8>>()), &damages));
    }
}
