//! Packets that are packed into others on their way to servers behind a router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use csp_types::{Encapsulation, MacAddr, Transport};
use csp_wire::checksum::{Checksum, checksum};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::v4;
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind, TxOffload};
use csp_wire::tcp::{Flags as Tcp, Segment};
use csp_wire::{Ecn, ipv4, ipv6};

use super::fixture::*;
use super::forward::{DNS, DNS6, WEB, neighbour_answers, udp_packet, with_ttl};
use crate::*;

const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 254);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 7));
const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 99, 0, 0, 0, 0, 7));
const EGRESS6: &str = "2001:db8::101";

/// A core whose services have one server, behind a router.
fn tunnelled(encapsulation: Encapsulation, address: IpAddr) -> Fixture {
    let port = PortConfig {
        on_link: vec!["10.76.0.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()],
        gateways: vec![ROUTER.into(), ROUTER6.into()],
        ..PortConfig::new(OUR_MAC, 1500)
    };
    let mut f = Fixture::with(CoreConfig::new(vec![port], (1, 2)));
    let server = PoolServer { id: 1, address, tunnel: Some(encapsulation), weight: 1, up: true };
    let pool = |end: &str, protocol| Pool::new(end.parse().unwrap(), protocol, vec![server]);
    let (tcp, udp) = (Transport::Tcp, Transport::Udp);
    let pools = Arc::new(Pools::new(1, vec![pool(WEB, tcp), pool(DNS, udp), pool(DNS6, udp)]));
    let before = f.core.classifier.addresses().to_vec();
    let egress = [EGRESS.parse().unwrap(), EGRESS6.parse().unwrap()];
    let mut rules = RuleSet::new(64, &[], &[], pools, &egress, &before).unwrap();
    f.core.exchange_rules(f.now, &mut rules, &mut f.out);
    neighbour_answers(&mut f, ROUTER.into(), ROUTER_MAC);
    neighbour_answers(&mut f, ROUTER6.into(), ROUTER_MAC);
    f.timeout(seconds(12));
    f.timeout(seconds(14));
    f.out.lan.clear();
    f
}

/// Completes the checksum that is left to the port.
fn completed(mut frame: Vec<u8>, offload: Option<TxOffload>) -> Vec<u8> {
    if let Some(offload) = offload {
        assert_eq!(offload.gso, None);
        let start = usize::from(offload.checksum_start);
        let field = start + usize::from(offload.checksum_offset);
        let sum = checksum(&frame[start..]);
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Checks what is around a packet, and returns the packet.
fn unpacked(frame: &[u8], encapsulation: Encapsulation, server: IpAddr) -> Vec<u8> {
    let link = ethernet::Frame::parse(frame).unwrap();
    assert_eq!((link.source(), link.destination()), (OUR_MAC, ROUTER_MAC));
    let (source, destination, protocol, payload, ecn): (IpAddr, IpAddr, u8, Vec<u8>, Ecn);
    if server.is_ipv4() {
        assert_eq!(link.ether_type(), Some(EtherType::Ipv4));
        let view = ipv4::Packet::parse(link.payload()).unwrap();
        assert!(view.dont_fragment());
        (source, destination, ecn) = (view.source().into(), view.destination().into(), view.ecn());
        (protocol, payload) = (view.protocol(), view.payload().to_vec());
        assert_eq!(source, EGRESS.parse::<IpAddr>().unwrap());
    } else {
        assert_eq!(link.ether_type(), Some(EtherType::Ipv6));
        let view = ipv6::Packet::parse(link.payload()).unwrap();
        (source, destination, ecn) = (view.source().into(), view.destination().into(), view.ecn());
        (protocol, payload) = (view.protocol(), view.payload().to_vec());
        assert_eq!(source, EGRESS6.parse::<IpAddr>().unwrap());
    }
    assert_eq!((destination, ecn), (server, Ecn::Ect0), "the inner packet's mark");
    let (number, inner) = match encapsulation {
        Encapsulation::IpIp => (protocol, payload),
        Encapsulation::Gue => {
            assert_eq!(protocol, 17);
            assert_eq!(
                payload[2..6],
                [&6_080u16.to_be_bytes()[..], &(payload.len() as u16).to_be_bytes()].concat()
            );
            assert!(payload[0] >= 0xc0, "a port of the dynamic range");
            if server.is_ipv6() {
                let mut sum = Checksum::pseudo(source, destination, 17, payload.len() as u32).unwrap();
                sum.add(&payload);
                assert!(sum.is_valid() && payload[6..8] != [0, 0]);
            }
            assert_eq!([payload[8], payload[10], payload[11]], [0; 3]);
            (payload[9], payload[12..].to_vec())
        }
    };
    assert_eq!(number, if inner[0] >> 4 == 4 { 4 } else { 41 });
    inner
}

#[test]
fn a_packet_reaches_its_server_in_another_one() {
    for encapsulation in [Encapsulation::IpIp, Encapsulation::Gue] {
        for server in [FAR, FAR6] {
            let mut f = tunnelled(encapsulation, server);
            for packet in [
                tcp_packet(CLIENT, WEB, Tcp::SYN, &[]),
                udp_packet(CLIENT, DNS, b"odd"),
                udp_packet(CLIENT6, DNS6, &[9; 1_000]),
            ] {
                // A router may lie on the way of the client, too: it is not the server.
                let ether_type = if packet[0] >> 4 == 4 { EtherType::Ipv4 } else { EtherType::Ipv6 };
                f.frame(&frame(ROUTER_MAC, OUR_MAC, ether_type, &packet));
                let (frame, offload) = f.transmitted();
                assert_eq!(unpacked(&completed(frame, offload), encapsulation, server), with_ttl(&packet, 1));
            }
        }
    }
}

/// Of what a device put together each segment is packed, with headers of its own and valid checksums.
#[test]
fn what_a_device_put_together_is_cut_first() {
    for encapsulation in [Encapsulation::IpIp, Encapsulation::Gue] {
        for server in [FAR, FAR6] {
            let mut f = tunnelled(encapsulation, server);
            let data: Vec<u8> = (0..3_500u32).map(|at| at as u8).collect();
            let packet = tcp_packet(CLIENT, WEB, Tcp::ACK | Tcp::PSH, &data);
            let gso = Gso { kind: GsoKind::TcpV4, segment_size: 1_001, cwr: false };
            f.offloaded(&ip_frame(&packet), FrameChecksum::Verified, Some(gso));
            let frames: Vec<_> = f.out.lan.drain(..).collect();
            assert_eq!(frames.len(), 4);
            let mut seen = Vec::new();
            for (at, (frame, offload)) in frames.into_iter().enumerate() {
                let inner = unpacked(&completed(frame, offload), encapsulation, server);
                let view = ipv4::Packet::parse(&inner).unwrap();
                let segment = Segment::parse(view.payload()).unwrap();
                assert_eq!(segment.flags().contains(Tcp::PSH), at == 3);
                assert_eq!(segment.seq() as usize, 1_000 + seen.len());
                let (source, destination) = (view.source().into(), view.destination().into());
                let mut sum = Checksum::pseudo(source, destination, 6, view.payload().len() as u32).unwrap();
                sum.add(view.payload());
                assert!(sum.is_valid());
                seen.extend_from_slice(segment.payload());
            }
            assert_eq!(seen, data);
        }
    }
}

#[test]
fn a_packet_that_leaves_no_room_for_the_outer_headers_is_too_long() {
    for (encapsulation, room) in [(Encapsulation::IpIp, 1_480), (Encapsulation::Gue, 1_468)] {
        let mut f = tunnelled(encapsulation, FAR);
        f.frame(&ip_frame(&tcp_packet(CLIENT, WEB, Tcp::ACK, &vec![0; usize::from(room) - 39])));
        let (error, _) = f.transmitted();
        let view = ipv4::Packet::parse(&error[14..]).unwrap();
        let Ok(v4::Message::FragmentationNeeded { next_hop_mtu, .. }) = v4::Message::parse(view.payload())
        else {
            panic!("{error:?}");
        };
        assert_eq!(next_hop_mtu, room);
        f.frame(&ip_frame(&tcp_packet(CLIENT, WEB, Tcp::ACK, &vec![0; usize::from(room) - 40])));
        assert_eq!(f.transmitted().0.len(), 1_514);
        // What may be cut is cut, so that each part has room.
        let mut packet = udp_packet(CLIENT, DNS, &[5; 1_470]);
        packet[6] = 0;
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        f.frame(&ip_frame(&packet));
        let frames: Vec<_> = f.out.lan.drain(..).map(|(frame, offload)| completed(frame, offload)).collect();
        let parts: Vec<Vec<u8>> = frames.iter().map(|frame| unpacked(frame, encapsulation, FAR)).collect();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts.iter().flat_map(|part| part[20..].to_vec()).collect::<Vec<_>>(), packet[20..]);
    }
}

#[test]
fn a_server_whose_router_does_not_answer_is_asked_for() {
    let mut f = tunnelled(Encapsulation::IpIp, FAR);
    let servers: Vec<ServerView> = f.core.forward_servers().collect();
    assert!(servers.iter().all(|server| server.mac == Some(ROUTER_MAC) && !server.far));
    f.timeout(seconds(90));
    for second in [91, 92, 93, 94, 95] {
        f.frame(&ip_frame(&tcp_packet(CLIENT, WEB, Tcp::SYN, &[])));
        f.timeout(seconds(second));
    }
    let requests = f.out.lan.iter().filter(|(frame, _)| frame[12..14] == [8, 6]);
    let target = |frame: &[u8]| Ipv4Addr::from(*frame[38..].first_chunk::<4>().unwrap());
    assert!(requests.clone().count() > 1 && requests.clone().all(|(frame, _)| target(frame) == ROUTER));
}
