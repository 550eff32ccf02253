//! Answers to ARP, neighbour discovery, echo and closed ports; announcements; connections that applications
//! open.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_types::{FlowLabel, MacAddr};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::{v4, v6};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record};
use csp_wire::{arp, ipv4, ipv6};

use super::fixture::*;
use crate::*;

const VIP_IP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 100);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x33]);
const PEER: &str = "10.76.0.9:443";
const EGRESS_END: &str = "10.76.0.101:50000";

fn arp_frame(source: MacAddr, destination: MacAddr, repr: &arp::Repr) -> Vec<u8> {
    let mut packet = [0; arp::PACKET_LEN];
    repr.emit(&mut packet).unwrap();
    frame(source, destination, EtherType::Arp, &packet)
}

fn arp_of(frame: &[u8]) -> arp::Repr {
    arp::Repr::parse(&arp::Packet::parse(ethernet::Frame::parse(frame).unwrap().payload()).unwrap())
}

fn icmp_v6_frame(message: &v6::Message<'_>, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let mut bytes = vec![0; message.len()];
    message.emit(source, destination, &mut bytes).unwrap();
    ip_frame(&ip_packet(source.into(), destination.into(), 58, &bytes))
}

#[test]
fn arp_requests_for_our_addresses_are_answered_and_no_others() {
    let mut f = Fixture::new();
    let question = arp::Repr::request(CLIENT_MAC, CLIENT_IP, VIP_IP);
    f.frame(&arp_frame(CLIENT_MAC, MacAddr::BROADCAST, &question));
    let (answer, offload) = f.transmitted();
    assert_eq!((&answer[..6], offload), (&CLIENT_MAC.0[..], None));
    assert_eq!(arp_of(&answer), question.answer(OUR_MAC));
    // An egress address is answered for as well; a neighbour's address is not.
    for (last, answers) in [(101, 1), (9, 0)] {
        let question = arp::Repr::request(CLIENT_MAC, CLIENT_IP, Ipv4Addr::new(10, 76, 0, last));
        f.frame(&arp_frame(CLIENT_MAC, MacAddr::BROADCAST, &question));
        assert_eq!(f.out.lan.drain(..).count(), answers);
    }
    assert_eq!(f.core.counters().neighbour_answers, 2);
}

#[test]
fn another_host_with_our_address_is_counted_not_believed() {
    let mut f = Fixture::new();
    let claim = arp::Repr::announcement(PEER_MAC, VIP_IP);
    f.frame(&arp_frame(PEER_MAC, MacAddr::BROADCAST, &claim));
    assert_eq!((f.core.counters().address_conflicts, f.out.lan.len()), (1, 0));
}

#[test]
fn neighbour_solicitations_are_answered() {
    let mut f = Fixture::new();
    let target: Ipv6Addr = "2001:db8::100".parse().unwrap();
    let requester: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let question = v6::Message::NeighborSolicitation { target, source_link: Some(CLIENT_MAC) };
    f.frame(&icmp_v6_frame(&question, requester, v6::solicited_node(target)));
    let (frame, _) = f.transmitted();
    let packet = ipv6::Packet::parse(ethernet::Frame::parse(&frame).unwrap().payload()).unwrap();
    assert_eq!((packet.source(), packet.destination(), packet.hop_limit()), (target, requester, 255));
    let expected = v6::Message::NeighborAdvertisement {
        router: false,
        solicited: true,
        override_cache: true,
        target,
        target_link: Some(OUR_MAC),
    };
    assert_eq!(v6::Message::parse(&packet), Ok(expected));
    // Duplicate address detection sends from the unspecified address: the answer goes to all nodes.
    let probe = v6::Message::NeighborSolicitation { target, source_link: None };
    f.frame(&icmp_v6_frame(&probe, Ipv6Addr::UNSPECIFIED, v6::solicited_node(target)));
    let (frame, _) = f.transmitted();
    assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
    // The address of another host is not answered for.
    let other: Ipv6Addr = "2001:db8::7".parse().unwrap();
    let question = v6::Message::NeighborSolicitation { target: other, source_link: Some(CLIENT_MAC) };
    f.frame(&icmp_v6_frame(&question, requester, v6::solicited_node(other)));
    assert_eq!(f.out.lan.len(), 0);
}

#[test]
fn echo_is_answered_for_both_families() {
    let mut f = Fixture::new();
    let request = v4::Message::EchoRequest { identifier: 3, sequence: 4, data: b"ping" };
    let mut bytes = vec![0; request.len()];
    request.emit(&mut bytes).unwrap();
    f.frame(&ip_frame(&ip_packet(CLIENT_IP.into(), VIP_IP.into(), 1, &bytes)));
    let (frame, _) = f.transmitted();
    let packet = ipv4::Packet::parse(ethernet::Frame::parse(&frame).unwrap().payload()).unwrap();
    assert_eq!((packet.source(), packet.destination()), (VIP_IP, CLIENT_IP));
    let reply = v4::Message::EchoReply { identifier: 3, sequence: 4, data: b"ping" };
    assert_eq!(v4::Message::parse(packet.payload()), Ok(reply));

    let request = v6::Message::EchoRequest { identifier: 3, sequence: 4, data: b"ping" };
    let (us, client) = ("2001:db8::100".parse().unwrap(), "2001:db8::1".parse().unwrap());
    f.frame(&icmp_v6_frame(&request, client, us));
    let (frame, _) = f.transmitted();
    let packet = ipv6::Packet::parse(ethernet::Frame::parse(&frame).unwrap().payload()).unwrap();
    let reply = v6::Message::EchoReply { identifier: 3, sequence: 4, data: b"ping" };
    assert_eq!(v6::Message::parse(&packet), Ok(reply));
    assert_eq!(f.core.counters().echo_answers, 2);
}

#[test]
fn answers_are_limited_by_the_second() {
    let mut f = Fixture::new();
    let closed = ip_frame(&tcp_packet(CLIENT, "10.76.0.100:81", Tcp::SYN, &[]));
    for _ in 0..10_500 {
        f.frame(&closed);
    }
    assert_eq!((f.core.counters().resets_sent, f.core.counters().drop_answer_limit), (10_000, 500));
    f.now = seconds(11);
    f.frame(&closed);
    assert_eq!(f.core.counters().resets_sent, 10_001);
}

#[test]
fn a_port_that_nothing_serves_refuses() {
    let mut f = Fixture::new();
    f.frame(&ip_frame(&tcp_packet(CLIENT, "10.76.0.100:81", Tcp::SYN, &[])));
    let (frame, offload) = f.transmitted();
    let (tuple, flags, _) = check_tcp_frame(&frame, offload);
    assert_eq!((tuple.local.port(), flags), (81, Tcp::RST | Tcp::ACK));
    assert_eq!(frame[42..46], 1001u32.to_be_bytes(), "acknowledges the SYN");
    f.frame(&ip_frame(&tcp_packet(CLIENT, "10.76.0.100:81", Tcp::RST, &[])));
    assert_eq!((f.out.lan.len(), f.core.counters().drop_no_service, f.core.flow_count()), (0, 1, 0));
    // Nor are there connections to an egress address.
    f.frame(&ip_frame(&tcp_packet(CLIENT, EGRESS_END, Tcp::SYN, &[])));
    let (frame, offload) = f.transmitted();
    assert_eq!(check_tcp_frame(&frame, offload).1, Tcp::RST | Tcp::ACK);
}

#[test]
fn new_addresses_are_announced_three_times_and_old_ones_not_again() {
    let config = CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2));
    let (mut core, mut out) = (NetworkCore::new(config), Output::default());
    core.set_services(seconds(0), &[VIP.parse().unwrap()], &[], &mut out).unwrap();
    for second in [2, 4] {
        assert_eq!(core.next_timeout(), Some(seconds(second)));
        core.on_timeout(seconds(second), &mut out);
    }
    assert_eq!((out.lan.len(), core.next_timeout()), (3, None));
    for (frame, _) in out.lan.drain(..) {
        assert_eq!(frame[..6], MacAddr::BROADCAST.0);
        assert_eq!(arp_of(&frame), arp::Repr::announcement(OUR_MAC, VIP_IP));
    }
    core.set_services(seconds(5), &[VIP.parse().unwrap(), VIP6.parse().unwrap()], &[], &mut out).unwrap();
    assert_eq!(out.lan.len(), 1);
    assert_eq!(out.lan[0].0[..6], [0x33, 0x33, 0, 0, 0, 1]);
}

#[test]
fn many_new_addresses_are_announced_in_parts_and_each_three_times() {
    let config = CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2));
    let (mut core, mut out) = (NetworkCore::new(config), Output::default());
    let services: Vec<SocketAddr> =
        (0..1000u32).map(|n| (Ipv4Addr::from(0x0a10_0000 + n), 80).into()).collect();
    core.set_services(seconds(0), &services, &[], &mut out).unwrap();
    assert!(out.lan.len() < 200, "{} frames in one turn", out.lan.len());
    for turn in [0, 2, 4] {
        while core.next_timeout().is_some_and(|due| due <= seconds(turn)) {
            core.on_timeout(seconds(turn), &mut out);
        }
    }
    assert_eq!((out.lan.len(), core.next_timeout()), (3000, None));
}

#[test]
fn an_active_open_waits_for_its_neighbour() {
    let mut f = Fixture::new();
    let syn = tcp_packet(EGRESS_END, PEER, Tcp::SYN, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(7), &syn) });
    let (question, _) = f.transmitted();
    let expected = arp::Repr::request(OUR_MAC, Ipv4Addr::new(10, 76, 0, 101), Ipv4Addr::new(10, 76, 0, 9));
    assert_eq!((&question[..6], arp_of(&question)), (&MacAddr::BROADCAST.0[..], expected));

    f.frame(&arp_frame(PEER_MAC, OUR_MAC, &expected.answer(PEER_MAC)));
    let (frame, offload) = f.transmitted();
    assert_eq!(frame[..6], PEER_MAC.0);
    let (tuple, flags, _) = check_tcp_frame(&frame, offload);
    assert_eq!((tuple.local.to_string().as_str(), tuple.remote.to_string().as_str()), (EGRESS_END, PEER));
    assert_eq!(flags, Tcp::SYN);

    f.frame(&ip_frame(&tcp_packet(PEER, EGRESS_END, Tcp::SYN | Tcp::ACK, &[])));
    let sent = f.sent();
    assert_eq!((sent.label, sent.flags), (label(7), Flags::CHECKSUM_VERIFIED | Flags::COMPACTED));
    // The next connection finds the neighbour in the cache.
    let syn = tcp_packet("10.76.0.101:50001", PEER, Tcp::SYN, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(8), &syn) });
    assert_eq!(f.transmitted().0[..6], PEER_MAC.0);
}

#[test]
fn an_absent_neighbour_is_asked_thrice_and_given_up() {
    let mut f = Fixture::new();
    let syn = tcp_packet(EGRESS_END, PEER, Tcp::SYN, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(7), &syn) });
    for second in 11..17 {
        f.timeout(seconds(second));
    }
    let questions = f.out.lan.iter().filter(|(frame, _)| arp_of(frame).target_ip.octets()[3] == 9).count();
    assert_eq!((questions, f.core.counters().neighbour_requests), (3, 3));
    assert_eq!(f.core.counters().drop_unresolved, 1);
}

#[test]
fn hosts_beyond_the_networks_on_link_are_reached_by_the_gateway() {
    let port = PortConfig {
        on_link: vec!["10.76.0.0/24".parse().unwrap()],
        gateways: vec!["10.76.0.254".parse().unwrap()],
        ..PortConfig::new(OUR_MAC, 1500)
    };
    let mut f = Fixture::with(CoreConfig::new(vec![port], (1, 2)));
    for (peer, asked) in [("10.76.0.9:1", [10, 76, 0, 9]), ("192.0.2.1:1", [10, 76, 0, 254])] {
        let syn = tcp_packet(EGRESS_END, peer, Tcp::SYN, &[]);
        f.record(whole(FlowLabel::NONE, &syn));
        assert_eq!(arp_of(&f.transmitted().0).target_ip.octets(), asked);
    }
}
