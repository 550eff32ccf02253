//! Header fields from bytes: what is classified, and what is malformed.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use csp_classify::multifield::{
    Direction, Fields, Fragment, Malformed, NoFields, Parsed, parse_ethernet, parse_ip,
};
use csp_support::Random;
use csp_wire::{Ecn, ipv4};

fn tcp(flags: u8) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..4].copy_from_slice(&[0x03, 0xe8, 0x00, 0x50]);
    header[12] = 5 << 4;
    header[13] = flags;
    header
}

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let repr = ipv4::Repr {
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.2".parse().unwrap(),
        protocol,
        ttl: 64,
        dscp: 46,
        ecn: Ecn::Ect0,
        identification: 7,
        dont_fragment: false,
        payload_len: payload.len() as u16,
    };
    let mut packet = vec![0; 20];
    repr.emit(&mut packet).unwrap();
    packet.extend_from_slice(payload);
    packet
}

/// Sets flags and offset of an IPv4 header, and its checksum.
fn fragment_v4(mut packet: Vec<u8>, flags_and_offset: u16) -> Vec<u8> {
    packet[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    packet[10..12].fill(0);
    let sum = csp_wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn v6(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x6b, 0x80, 0, 0, 0, body.len() as u8, first, 64];
    packet.extend_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend_from_slice(&"2001:db8::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend_from_slice(body);
    packet
}

fn parse(packet: &[u8]) -> Result<Parsed, Malformed> {
    parse_ip(packet, 3, Direction::Egress)
}

fn ethernet(types: &[u16], packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (at, ether_type) in types.iter().enumerate() {
        frame.extend_from_slice(&ether_type.to_be_bytes());
        if at + 1 < types.len() {
            frame.extend_from_slice(&[0, 5]);
        }
    }
    frame.extend_from_slice(packet);
    frame
}

#[test]
fn fields_of_whole_packets() {
    let parsed = parse(&v4(6, &tcp(0x12))).unwrap();
    let expected = Fields {
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.2".parse().unwrap(),
        ports: Some((1000, 80)),
        protocol: 6,
        interface: 3,
        direction: Direction::Egress,
        tcp_flags: Some(0x12),
        dscp: 46,
    };
    assert_eq!((parsed.fields, parsed.fragment), (expected, Fragment::Whole));
    assert_eq!((parsed.ip, parsed.transport, parsed.end), (0, 20, 40));
    let udp = parse(&v4(17, &[0, 53, 0, 54, 0, 8, 0, 0])).unwrap().fields;
    assert_eq!((udp.ports, udp.tcp_flags), (Some((53, 54)), None));
    let icmp = parse(&v4(1, &[8, 0, 0, 0])).unwrap().fields;
    assert_eq!((icmp.protocol, icmp.ports), (1, None));
    let parsed = parse(&v6(6, &tcp(2))).unwrap();
    assert_eq!(parsed.fields.source, "2001:db8::1".parse::<std::net::IpAddr>().unwrap());
    assert_eq!((parsed.fields.ports, parsed.fields.dscp, parsed.transport), (Some((1000, 80)), 46, 40));
}

#[test]
fn frames_have_types_tags_and_padding() {
    let packet = v4(17, &[0, 53, 0, 54, 0, 8, 0, 0]);
    let padded = [&packet[..], &[0; 18]].concat();
    let parse = |frame: &[u8]| parse_ethernet(frame, 0, Direction::Ingress);
    let plain = parse(&ethernet(&[0x0800], &padded)).unwrap();
    assert_eq!((plain.ip, plain.transport, plain.end), (14, 34, 42));
    let tagged = parse(&ethernet(&[0x88a8, 0x8100, 0x0800], &padded)).unwrap();
    assert_eq!((tagged.ip, tagged.fields), (22, plain.fields));
    let malformed = |error| Err(NoFields::Malformed(error));
    assert_eq!(parse(&ethernet(&[0x8100, 0x8100, 0x8100, 0x0800], &packet)), malformed(Malformed::VlanTags));
    assert_eq!(parse(&ethernet(&[0x86dd], &packet)), malformed(Malformed::Version));
    assert_eq!(parse(&ethernet(&[0x0806], &[0; 28])), Err(NoFields::NotIp(0x0806)));
    assert_eq!(parse(&ethernet(&[0x0800], &[])), malformed(Malformed::Truncated));
    assert_eq!(parse(&[0; 13]), malformed(Malformed::Truncated));
}

#[test]
fn later_fragments_have_no_ports() {
    let first = parse(&fragment_v4(v4(6, &tcp(2)), 0x2000)).unwrap();
    assert_eq!((first.fragment, first.fields.ports), (Fragment::First, Some((1000, 80))));
    let later = parse(&fragment_v4(v4(6, &tcp(2)), 0x0003)).unwrap();
    assert_eq!((later.fragment, later.fields.ports, later.fields.tcp_flags), (Fragment::Later, None, None));
    assert_eq!(
        parse(&fragment_v4(v4(6, &tcp(2)[..8]), 0x2000)),
        Err(Malformed::Truncated),
        "flags in the next one"
    );
    let header = |offset_and_more: u16| {
        let [a, b] = offset_and_more.to_be_bytes();
        [&[6, 0, a, b, 0, 0, 0, 1][..], &tcp(2)].concat()
    };
    for (offset_and_more, fragment) in
        [(0, Fragment::Whole), (1, Fragment::First), (8, Fragment::Later), (9, Fragment::Later)]
    {
        let parsed = parse(&v6(44, &header(offset_and_more))).unwrap();
        assert_eq!(parsed.fragment, fragment);
        assert_eq!(parsed.fields.ports.is_some(), fragment != Fragment::Later);
        assert_eq!((parsed.fields.protocol, parsed.transport), (6, 48));
    }
}

#[test]
fn extension_headers_are_passed_over() {
    let body = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &[60, 0, 0, 0, 0, 0, 0, 0], &[6, 1, 0, 0], &[0; 12], &tcp(2)]
        .concat();
    let parsed = parse(&v6(0, &body)).unwrap();
    assert_eq!((parsed.fields.protocol, parsed.transport, parsed.fields.ports), (6, 72, Some((1000, 80))));
    let authentication = [&[17, 4, 0, 0][..], &[0; 20], &[0, 53, 0, 54, 0, 8, 0, 0]].concat();
    assert_eq!(parse(&v6(51, &authentication)).unwrap().fields.ports, Some((53, 54)));
    let esp = parse(&v6(50, &[0; 16])).unwrap().fields;
    assert_eq!((esp.protocol, esp.ports), (50, None));
    let late = [&[0, 0, 0, 0, 0, 0, 0, 0][..], &[6, 0, 0, 0, 0, 0, 0, 0], &tcp(2)].concat();
    assert_eq!(parse(&v6(60, &late)), Err(Malformed::Extension), "hop-by-hop options are first or nowhere");
    let many = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    assert_eq!(parse(&v6(60, &many)), Err(Malformed::Extension));
    let twice = [&[44, 0, 0, 1, 0, 0, 0, 1][..], &[6, 0, 0, 1, 0, 0, 0, 1], &tcp(2)].concat();
    assert_eq!(parse(&v6(44, &twice)), Err(Malformed::Extension));
}

#[test]
fn packets_that_contradict_themselves_are_malformed() {
    let good = v4(6, &tcp(2));
    let changed = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet
    };
    let summed = |packet: Vec<u8>| {
        let flags = u16::from_be_bytes([packet[6], packet[7]]);
        fragment_v4(packet, flags)
    };
    for (packet, expected) in [
        (Vec::new(), Malformed::Truncated),
        (changed(0, 0x55), Malformed::Version),
        (changed(0, 0x44), Malformed::Length),
        (changed(8, 63), Malformed::Checksum),
        (summed(changed(6, 0x80)), Malformed::Reserved),
        (summed(changed(3, 19)), Malformed::Length),
        (summed(changed(3, 41)), Malformed::Truncated),
        (changed(32, 4 << 4), Malformed::Length),
        (changed(32, 6 << 4), Malformed::Truncated),
        (v6(6, &tcp(2)[..19]), Malformed::Truncated),
        (v6(60, &[6]), Malformed::Truncated),
        (v6(60, &[6, 9, 0, 0, 0, 0, 0, 0]), Malformed::Truncated),
        (v6(6, &tcp(2))[..50].to_vec(), Malformed::Truncated),
    ] {
        assert_eq!(parse(&packet), Err(expected), "{packet:02x?}");
    }
}

#[test]
fn no_bytes_panic_the_parser_or_lead_it_outside() {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CSP_SEED={seed}");
    let mut random = Random::new(seed);
    let whole = [v4(6, &tcp(2)), v6(0, &[&[6, 0, 0, 0, 0, 0, 0, 0][..], &tcp(2)].concat())];
    for round in 0..200_000 {
        let packet = &whole[round % 2];
        let mut frame = ethernet(&[if round % 2 == 0 { 0x0800 } else { 0x86dd }], packet);
        for _ in 0..random.below(4) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.number() as u8;
        }
        frame.truncate(random.below(frame.len() as u64 + 20) as usize);
        if let Ok(parsed) = parse_ethernet(&frame, 0, Direction::Ingress) {
            assert!(
                parsed.ip < parsed.transport && parsed.transport <= parsed.end && parsed.end <= frame.len()
            );
        }
    }
}
