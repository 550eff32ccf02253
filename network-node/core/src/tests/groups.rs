//! Addresses that several network nodes can answer for: this one does while it holds their group.

use std::net::{IpAddr, Ipv4Addr};

use csp_election::{GroupId, Held};
use csp_types::{Duration, MacAddr};
use csp_wire::arp;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::v6;
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record};

use super::fixture::*;
use crate::*;

const GROUP: GroupId = GroupId(5);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x44]);
const VIP_IP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 100);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);

/// A core whose addresses are all in one group.
fn grouped() -> (Fixture, Held) {
    let (mut f, held) = (Fixture::new(), Held::default());
    let services = [VIP.parse().unwrap(), VIP6.parse().unwrap()];
    let egress: IpAddr = EGRESS.parse().unwrap();
    let before = [VIP_IP.into(), "2001:db8::100".parse().unwrap(), egress];
    let networks = ["10.76.0.100/31", "2001:db8::100/128"];
    let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
    let group = AddressGroup { id: GROUP, networks, held: held.clone() };
    let rules = RuleSet::new(16, &services, &[], Default::default(), &[egress], &before).unwrap();
    f.core.exchange_rules(f.now, &mut rules.with_groups(vec![group], &[]), &mut f.out);
    f.core.set_lan_time(f.now);
    assert!(f.out.lan.is_empty());
    (f, held)
}

fn arp_frame(source: MacAddr, repr: &arp::Repr) -> Vec<u8> {
    let mut packet = [0; arp::PACKET_LEN];
    repr.emit(&mut packet).unwrap();
    frame(source, MacAddr::BROADCAST, EtherType::Arp, &packet)
}

fn arp_of(frame: &[u8]) -> arp::Repr {
    arp::Repr::parse(&arp::Packet::parse(ethernet::Frame::parse(frame).unwrap().payload()).unwrap())
}

/// Returns the number of answers to a request for the VIP, and to one for its IPv6 address.
fn answers(f: &mut Fixture) -> [usize; 2] {
    f.frame(&arp_frame(CLIENT_MAC, &arp::Repr::request(CLIENT_MAC, CLIENT_IP, VIP_IP)));
    let first = f.out.lan.drain(..).count();
    let (source, target) = ("2001:db8::1".parse().unwrap(), "2001:db8::100".parse().unwrap());
    let message = v6::Message::NeighborSolicitation { target, source_link: Some(CLIENT_MAC) };
    let mut bytes = vec![0; message.len()];
    message.emit(source, v6::solicited_node(target), &mut bytes).unwrap();
    f.frame(&ip_frame(&ip_packet(source.into(), v6::solicited_node(target).into(), 58, &bytes)));
    [first, f.out.lan.drain(..).count()]
}

#[test]
fn an_address_is_answered_for_while_its_group_is_held() {
    let (mut f, held) = grouped();
    assert_eq!(answers(&mut f), [0, 0]);
    let until = f.now + Duration::from_millis(600);
    held.set(Some(until));
    assert_eq!(answers(&mut f), [1, 1]);
    // The process was stopped meanwhile: what counts is the clock.
    f.core.set_lan_time(until);
    assert_eq!(answers(&mut f), [0, 0]);
}

#[test]
fn all_addresses_are_announced_when_the_group_comes() {
    let (mut f, held) = grouped();
    f.core.announce_group(f.now, GROUP, &mut f.out);
    assert!(f.out.lan.is_empty(), "it is not held");
    held.set(Some(f.now + Duration::from_secs(9)));
    f.core.announce_group(f.now, GROUP, &mut f.out);
    assert_eq!(f.out.lan.drain(..).count(), 3, "VIP, its IPv6 address, egress address");
    // It is lost before the announcements are repeated.
    held.set(None);
    f.timeout(f.now + Duration::from_secs(2));
    assert!(f.out.lan.is_empty());
}

#[test]
fn segments_are_passed_on_by_a_node_that_does_not_hold_their_group() {
    let (mut f, _) = grouped();
    // A client that has not learnt yet that the address has moved.
    f.client_sends(Tcp::ACK, b"late");
    assert_eq!(f.sent().proxy, ProxyId(0));
}

#[test]
fn another_owner_is_no_conflict_unless_the_group_is_held() {
    let (mut f, held) = grouped();
    let claim = arp_frame(PEER_MAC, &arp::Repr::announcement(PEER_MAC, VIP_IP));
    f.frame(&claim);
    assert_eq!((f.core.counters().address_conflicts, f.out.lan.len()), (0, 0), "it is the holder");
    held.set(Some(f.now + Duration::from_secs(9)));
    for _ in 0..3 {
        f.frame(&claim);
    }
    let (defence, _) = f.transmitted();
    assert_eq!(arp_of(&defence), arp::Repr::announcement(OUR_MAC, VIP_IP), "once in a second");
    assert_eq!(f.core.counters().address_conflicts, 3);
}

#[test]
fn neighbours_are_not_asked_in_the_name_of_another_nodes_address() {
    let (mut f, held) = grouped();
    let syn = |last: u8| tcp_packet("10.76.0.101:50000", &format!("10.76.0.{last}:443"), Tcp::SYN, &[]);
    for (last, holds) in [(9, false), (10, true)] {
        held.set(holds.then(|| f.now + Duration::from_secs(9)));
        f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(last.into()), &syn(last)) });
        let (question, _) = f.transmitted();
        let sender = if holds { EGRESS.parse().unwrap() } else { Ipv4Addr::UNSPECIFIED };
        let target = Ipv4Addr::new(10, 76, 0, last);
        assert_eq!(arp_of(&question), arp::Repr::request(OUR_MAC, sender, target));
    }
}
