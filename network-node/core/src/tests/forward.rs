//! Packets that are forwarded to servers of the LAN: which server, what changes in the packet, and what is
//! refused.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use csp_support::Random;
use csp_types::{MacAddr, Prefix, Transport};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::{v4, v6};
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind, TxOffload};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::{arp, ipv4, ipv6};

use super::fixture::*;
use crate::*;

pub(super) const WEB: &str = "10.76.0.102:80";
pub(super) const DNS: &str = "10.76.0.102:53";
pub(super) const DNS6: &str = "[2001:db8::102]:53";
const UDP: u8 = 17;

fn server(id: u32) -> PoolServer {
    PoolServer { id, address: IpAddr::from([10, 76, 0, 200 + id as u8]), tunnel: None, weight: 1, up: true }
}

fn server6(id: u32) -> PoolServer {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x200 + id as u16).into();
    PoolServer { address, ..server(id) }
}

fn mac_of(server: &PoolServer) -> MacAddr {
    MacAddr([2, 0, 0, 0, u8::from(server.address.is_ipv6()) + 1, server.id as u8])
}

pub(super) fn udp_packet(source: &str, destination: &str, data: &[u8]) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let mut bytes = Vec::new();
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(((8 + data.len()) as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend_from_slice(data);
    let mut sum = Checksum::pseudo(from.ip(), to.ip(), UDP, bytes.len() as u32).unwrap();
    sum.add(&bytes);
    bytes[6..8].copy_from_slice(&sum.finish().to_be_bytes());
    ip_packet(from.ip(), to.ip(), UDP, &bytes)
}

fn pools(servers: &[PoolServer], servers6: &[PoolServer]) -> Arc<Pools> {
    let pool = |end: &str, protocol, servers: &[PoolServer]| {
        Pool::new(end.parse().unwrap(), protocol, servers.to_vec())
    };
    let (tcp, udp) = (Transport::Tcp, Transport::Udp);
    let all = vec![pool(WEB, tcp, servers), pool(DNS, udp, servers), pool(DNS6, udp, servers6)];
    Arc::new(Pools::new(1, all))
}

/// A core with services that are forwarded to `servers`, whose Ethernet addresses are known.
fn forwarding(servers: &[PoolServer]) -> Fixture {
    forwarding_on(PortConfig::new(OUR_MAC, 1500), servers)
}

fn forwarding_on(port: PortConfig, servers: &[PoolServer]) -> Fixture {
    forwarding_by(CoreConfig::new(vec![port], (1, 2)), servers)
}

fn forwarding_by(config: CoreConfig, servers: &[PoolServer]) -> Fixture {
    let mut f = Fixture::with(config);
    let servers6: Vec<PoolServer> = servers.iter().map(|s| server6(s.id + 100)).collect();
    let before = f.core.classifier.addresses().to_vec();
    let services = [VIP.parse().unwrap(), VIP6.parse().unwrap()];
    let egress = [EGRESS.parse().unwrap(), "2001:db8::101".parse().unwrap()];
    let mut rules = RuleSet::new(64, &services, &[], pools(servers, &servers6), &egress, &before).unwrap();
    f.core.exchange_rules(f.now, &mut rules, &mut f.out);
    servers.iter().chain(&servers6).for_each(|server| answer(&mut f, server));
    f.timeout(seconds(12));
    f.timeout(seconds(14));
    f.out.lan.clear();
    f
}

/// Has a server answer the request for its Ethernet address.
fn answer(f: &mut Fixture, server: &PoolServer) {
    neighbour_answers(f, server.address, mac_of(server));
}

pub(super) fn neighbour_answers(f: &mut Fixture, address: IpAddr, mac: MacAddr) {
    match address {
        IpAddr::V4(address) => {
            let request = arp::Repr::request(OUR_MAC, [10, 76, 0, 101].into(), address);
            let mut packet = [0; arp::PACKET_LEN];
            request.answer(mac).emit(&mut packet).unwrap();
            f.frame(&frame(mac, OUR_MAC, EtherType::Arp, &packet));
        }
        IpAddr::V6(target) => {
            let asker = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x101);
            let (router, solicited, override_cache, target_link) = (false, true, true, Some(mac));
            let message =
                v6::Message::NeighborAdvertisement { router, solicited, override_cache, target, target_link };
            let mut bytes = vec![0; message.len()];
            message.emit(target, asker, &mut bytes).unwrap();
            let packet = ip_packet(target.into(), asker.into(), 58, &bytes);
            f.frame(&frame(mac, OUR_MAC, EtherType::Ipv6, &packet));
        }
    }
}

/// Returns whom a frame is for, the offload, and the packet.
fn forwarded(f: &mut Fixture) -> (MacAddr, Option<TxOffload>, Vec<u8>) {
    let (bytes, offload) = f.transmitted();
    let frame = ethernet::Frame::parse(&bytes).unwrap();
    assert_eq!(frame.source(), OUR_MAC);
    (frame.destination(), offload, frame.payload().to_vec())
}

pub(super) fn with_ttl(packet: &[u8], less: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 6 {
        packet[7] -= less;
        return packet;
    }
    packet[8] -= less;
    packet[10..12].fill(0);
    let sum = csp_wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn client(port: u16) -> String {
    format!("10.76.0.1:{port}")
}

fn syn(port: u16) -> Vec<u8> {
    ip_frame(&tcp_packet(&client(port), WEB, Tcp::SYN, &[]))
}

/// Returns the server that gets the client's next segment.
fn server_of(f: &mut Fixture, port: u16, flags: Tcp) -> MacAddr {
    f.frame(&ip_frame(&tcp_packet(&client(port), WEB, flags, b"x")));
    forwarded(f).0
}

fn exchange(f: &mut Fixture, servers: &[PoolServer]) {
    let servers6: Vec<PoolServer> = servers.iter().map(|s| server6(s.id + 100)).collect();
    let mut pools = pools(servers, &servers6);
    f.core.set_pools(f.now, &mut pools, &mut f.out);
}

#[test]
fn a_packet_goes_to_a_server_as_it_came_but_for_its_time_to_live() {
    let mut f = forwarding(&[server(1)]);
    for (packet, id) in [
        (tcp_packet(CLIENT, WEB, Tcp::SYN, &[]), 1),
        (tcp_packet(CLIENT, WEB, Tcp::ACK, &[7; 1_000]), 1),
        (udp_packet(CLIENT, DNS, b"question"), 1),
        (udp_packet(CLIENT6, DNS6, b"question"), 101),
    ] {
        f.frame(&ip_frame(&packet));
        let (to, offload, sent) = forwarded(&mut f);
        let server = if id > 100 { server6(id) } else { server(id) };
        assert_eq!((to, offload, sent), (mac_of(&server), None, with_ttl(&packet, 1)));
    }
    assert!(f.out.tunnel.is_empty());
    assert_eq!(f.core.counters().packets_forwarded, 4);
    let counts = f.core.forward_servers().map(|server| server.counts.packets);
    assert_eq!(counts.collect::<Vec<_>>(), [2, 1, 1], "by service and server");
    // The other services of the node are what they were.
    f.client_sends(Tcp::SYN, &[]);
    f.sent();
}

#[test]
fn servers_are_asked_for_when_they_come_and_serve_while_they_are_asked_again() {
    let mut f = Fixture::new();
    let egress: [IpAddr; 2] = [EGRESS.parse().unwrap(), "2001:db8::101".parse().unwrap()];
    let before = [ip(DNS6), ip(WEB), egress[0], egress[1]];
    let mut rules = RuleSet::new(64, &[], &[], pools(&[server(1)], &[server6(2)]), &egress, &before).unwrap();
    f.core.exchange_rules(f.now, &mut rules, &mut f.out);
    let asked: Vec<Vec<u8>> = f.out.lan.drain(..).map(|(frame, _)| frame).collect();
    assert_eq!(asked.len(), 2, "one request for each server");
    let request = arp::Packet::parse(ethernet::Frame::parse(&asked[0]).unwrap().payload()).unwrap();
    let request = arp::Repr::parse(&request);
    assert_eq!(request, arp::Repr::request(OUR_MAC, [10, 76, 0, 101].into(), [10, 76, 0, 201].into()));
    let packet = ipv6::Packet::parse(ethernet::Frame::parse(&asked[1]).unwrap().payload()).unwrap();
    assert_eq!(IpAddr::from(packet.source()), egress[1], "not the address that the server has, too");
    let IpAddr::V6(target) = server6(2).address else { unreachable!() };
    let message = v6::Message::parse(&packet).unwrap();
    assert_eq!(message, v6::Message::NeighborSolicitation { target, source_link: Some(OUR_MAC) });

    f.frame(&syn(1));
    assert_eq!((f.out.lan.len(), f.core.counters().drop_unresolved), (0, 1));
    answer(&mut f, &server(1));
    f.now = seconds(12);
    assert_eq!(server_of(&mut f, 1, Tcp::SYN), mac_of(&server(1)));
    // Confirmed a minute ago: asked for again, and used meanwhile.
    f.now = seconds(80);
    f.frame(&syn(1));
    assert_eq!(f.out.lan.len(), 2, "a request, and the packet");
    f.out.lan.clear();
    for second in [81, 82, 83] {
        f.timeout(seconds(second));
    }
    f.out.lan.clear();
    f.now = seconds(84);
    f.frame(&syn(1));
    assert_eq!(f.core.counters().drop_unresolved, 2, "three requests were not answered");
}

#[test]
fn a_server_whose_ethernet_address_is_not_found_loses_its_flows_to_others() {
    let mut f = forwarding(&[server(1), server(2)]);
    let of_first = |f: &mut Fixture| {
        (1..=100).filter(|port| server_of(f, *port, Tcp::SYN) == mac_of(&server(1))).collect::<Vec<u16>>()
    };
    let lost = of_first(&mut f);
    assert!(lost.len() > 20);
    // Only the second one answers from now on.
    f.now = seconds(90);
    f.frame(&syn(lost[0]));
    f.out.lan.clear();
    for second in [91, 92, 93] {
        f.timeout(seconds(second));
    }
    f.frame(&syn(lost[0]));
    answer(&mut f, &server(2));
    f.timeout(seconds(97));
    f.out.lan.clear();
    for port in &lost {
        assert_eq!(server_of(&mut f, *port, Tcp::ACK), mac_of(&server(2)), "client port {port}");
    }
    // It is looked for without packets, and gets new flows when it is back.
    f.timeout(seconds(98));
    assert!(!f.out.lan.is_empty(), "it is asked for again");
    answer(&mut f, &server(1));
    f.timeout(seconds(99));
    f.out.lan.clear();
    assert_eq!(of_first(&mut f), [0; 0], "flows stay where they are");
    assert!((200..300).any(|port| server_of(&mut f, port, Tcp::SYN) == mac_of(&server(1))));
}

#[test]
fn a_packet_of_the_server_itself_does_not_go_back_to_it() {
    let mut f = forwarding(&[server(1)]);
    let packet = tcp_packet(CLIENT, WEB, Tcp::ACK, b"x");
    f.frame(&frame(mac_of(&server(1)), OUR_MAC, EtherType::Ipv4, &packet));
    // Nor does one that every network node gets.
    f.frame(&frame(CLIENT_MAC, MacAddr::BROADCAST, EtherType::Ipv4, &packet));
    let counters = f.core.counters();
    assert_eq!((counters.drop_went_round, counters.drop_not_ours, f.out.lan.len()), (1, 1, 0));
}

#[test]
fn a_connection_that_a_proxy_has_stays_there() {
    let mut f = Fixture::new();
    f.establish(label(1));
    let pool = Pool::new(VIP.parse().unwrap(), Transport::Tcp, vec![server(1)]);
    let pools = Arc::new(Pools::new(1, vec![pool]));
    let egress = [EGRESS.parse().unwrap()];
    let mut rules = RuleSet::new(64, &[], &[], pools, &egress, &[ip(VIP), egress[0]]).unwrap();
    f.core.exchange_rules(f.now, &mut rules, &mut f.out);
    answer(&mut f, &server(1));
    f.now = seconds(12);
    f.out.lan.clear();
    f.client_sends(Tcp::ACK, b"more");
    f.sent();
    let new = CLIENT.replace("40000", "40001");
    f.frame(&ip_frame(&tcp_packet(&new, VIP, Tcp::SYN, &[])));
    assert_eq!(forwarded(&mut f).0, mac_of(&server(1)));
}

fn ip(end: &str) -> IpAddr {
    end.parse::<SocketAddr>().unwrap().ip()
}

#[test]
fn a_flow_stays_with_its_server_while_others_come_and_go() {
    let all: Vec<PoolServer> = (1..=10).map(server).collect();
    let mut f = forwarding(&all);
    let first: HashMap<u16, MacAddr> =
        (1..=200).map(|port| (port, server_of(&mut f, port, Tcp::SYN))).collect();
    assert_eq!(first.values().collect::<std::collections::HashSet<_>>().len(), 10);
    // One drains, one is down, one is new.
    let mut now = all.clone();
    now[0].weight = 0;
    now[1].up = false;
    now.push(server(11));
    exchange(&mut f, &now);
    answer(&mut f, &server(11));
    f.out.lan.clear();
    let (drains, down) = (mac_of(&all[0]), mac_of(&all[1]));
    for (port, before) in &first {
        let after = server_of(&mut f, *port, Tcp::ACK);
        assert_eq!(after == *before, *before != down, "client port {port}");
        assert_ne!(after, down);
    }
    // Pools of another policy do not belong to the rules in force.
    let mut other = Arc::new(Pools::new(2, Vec::new()));
    f.core.set_pools(f.now, &mut other, &mut f.out);
    // A new connection, also one on ports of an old one, does not go to a server that drains.
    for (port, _) in first.iter().filter(|(_, before)| **before == drains) {
        assert_ne!(server_of(&mut f, *port, Tcp::SYN), drains);
    }
    let new = (1_000..1_300).map(|port| server_of(&mut f, port, Tcp::SYN));
    let new: std::collections::HashSet<MacAddr> = new.collect();
    assert!(!new.contains(&drains) && !new.contains(&down) && new.contains(&mac_of(&server(11))));
}

#[test]
fn without_a_server_a_segment_is_reset_and_a_datagram_dropped() {
    let mut f = forwarding(&[PoolServer { up: false, ..server(1) }]);
    f.frame(&syn(7));
    let (reset, offload) = f.transmitted();
    let (tuple, flags, _) = check_tcp_frame(&reset, offload);
    assert_eq!(tuple.local, WEB.parse().unwrap());
    assert!(flags.rst());
    f.frame(&ip_frame(&udp_packet(CLIENT, DNS, b"question")));
    assert_eq!((f.out.lan.len(), f.core.counters().drop_no_server), (0, 2));
}

#[test]
fn what_a_device_put_together_is_left_to_be_cut_again() {
    let mut f = forwarding(&[server(1)]);
    let packet = tcp_packet(CLIENT, WEB, Tcp::ACK | Tcp::PSH, &[3; 4_000]);
    let gso = Gso { kind: GsoKind::TcpV4, segment_size: 1_000, cwr: false };
    f.offloaded(&ip_frame(&packet), FrameChecksum::Verified, Some(gso));
    let (bytes, offload) = f.transmitted();
    let (tuple, ..) = check_tcp_frame(&bytes, offload);
    assert_eq!(tuple.remote, WEB.parse().unwrap());
    assert_eq!(offload.unwrap().gso, Some(gso));
    assert_eq!(bytes[54..], [3; 4_000]);
    // From the same host: the sum is left to the device.
    let partial = FrameChecksum::Partial { start: 34, offset: 16 };
    f.offloaded(&ip_frame(&tcp_packet(CLIENT, WEB, Tcp::ACK, b"x")), partial, None);
    let offload = f.transmitted().1.unwrap();
    assert_eq!((offload.checksum_start, offload.checksum_offset, offload.gso), (34, 16, None));
}

#[test]
fn a_path_error_goes_to_the_server_whose_packet_was_too_long() {
    let servers: Vec<PoolServer> = (1..=5).map(server).collect();
    let mut f = forwarding(&servers);
    let router: IpAddr = [10, 76, 9, 9].into();
    for port in 1..=30 {
        let serves = server_of(&mut f, port, Tcp::SYN);
        let lost = tcp_packet(WEB, &client(port), Tcp::ACK, &[0; 1_400]);
        let message = v4::Message::FragmentationNeeded { next_hop_mtu: 1_280, quoted: &lost[..28] };
        let mut bytes = vec![0; message.len()];
        message.emit(&mut bytes).unwrap();
        let error = ip_packet(router, ip(WEB), ipv4::PROTOCOL_ICMP, &bytes);
        f.frame(&ip_frame(&error));
        assert_eq!(forwarded(&mut f), (serves, None, with_ttl(&error, 1)));
    }
    let (flows, _) = f.core.forward_flows();
    assert_eq!(flows, 30, "errors make no flows");
    // A quotation of another address's packet is nobody's.
    let lost = tcp_packet(VIP, &client(1), Tcp::ACK, &[]);
    let message = v4::Message::FragmentationNeeded { next_hop_mtu: 1_280, quoted: &lost[..28] };
    let mut bytes = vec![0; message.len()];
    message.emit(&mut bytes).unwrap();
    f.frame(&ip_frame(&ip_packet(router, ip(WEB), ipv4::PROTOCOL_ICMP, &bytes)));
    assert!(f.out.lan.is_empty());
}

#[test]
fn a_datagram_in_fragments_goes_on_in_fragments() {
    let mut f = forwarding(&[server(1)]);
    let data: Vec<u8> = (0..4_000u32).map(|at| at as u8).collect();
    for (packet, v6) in [(udp_packet(CLIENT, DNS, &data), false), (udp_packet(CLIENT6, DNS6, &data), true)] {
        for frame in super::fragments::in_fragments(&packet, &[1_024, 2_048]) {
            f.frame(&frame);
        }
        let sent: Vec<Vec<u8>> = f.out.lan.drain(..).map(|(frame, _)| frame).collect();
        assert!(sent.len() == 3 && sent.iter().all(|frame| frame.len() <= 1_514), "{}", sent.len());
        let header = if v6 { ethernet::HEADER_LEN + 48 } else { ethernet::HEADER_LEN + 20 };
        let payload: Vec<u8> = sent.iter().flat_map(|frame| frame[header..].to_vec()).collect();
        assert_eq!(payload, packet[if v6 { 40 } else { 20 }..]);
        let server = if v6 { server6(101) } else { server(1) };
        assert!(sent.iter().all(|frame| frame[..6] == mac_of(&server).0));
    }
}

/// All workers receive the fragments of a datagram, and the one that receives the flow's other datagrams
/// forwards it.
#[test]
fn one_worker_forwards_a_datagram_in_fragments() {
    let mut workers = [0, 1, 2].map(|worker| {
        let config = CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2));
        forwarding_by(CoreConfig { worker, workers: 3, ..config }, &[server(1)])
    });
    let mut used = [0; 3];
    for port in 2_000..2_030 {
        let v6 = format!("[2001:db8::1]:{port}");
        for (from, to) in [(client(port), DNS), (v6, DNS6)] {
            let packet = udp_packet(&from, to, &[1; 3_000]);
            let tuple = csp_types::FourTuple { local: to.parse().unwrap(), remote: from.parse().unwrap() };
            let owner = usize::from(csp_types::steering::worker_of(&tuple, 3));
            used[owner] += 1;
            for (at, f) in workers.iter_mut().enumerate() {
                for frame in super::fragments::in_fragments(&packet, &[1_024, 2_048]) {
                    f.frame(&frame);
                }
                assert_eq!(f.out.lan.drain(..).count(), if at == owner { 3 } else { 0 }, "{from}");
            }
        }
    }
    assert!(used.iter().all(|count| *count > 5), "{used:?}");
}

#[test]
fn what_cannot_go_on_is_counted_by_its_reason() {
    let mut f = forwarding(&[server(1)]);
    let mut last = tcp_packet(CLIENT, WEB, Tcp::ACK, b"x");
    last = with_ttl(&last, 62);
    f.frame(&ip_frame(&last));
    f.frame(&ip_frame(&tcp_packet(CLIENT, WEB, Tcp::ACK, &[0; 1_500])));
    let counters = f.core.counters();
    assert_eq!((counters.drop_expired, counters.drop_too_long), (1, 1));
    // The sender learns how long its packets may be.
    let (to, _, error) = forwarded(&mut f);
    let view = ipv4::Packet::parse(&error).unwrap();
    assert_eq!(
        (to, IpAddr::from(view.source()), IpAddr::from(view.destination())),
        (CLIENT_MAC, ip(WEB), ip(CLIENT))
    );
    let Ok(v4::Message::FragmentationNeeded { next_hop_mtu: 1_500, quoted }) =
        v4::Message::parse(view.payload())
    else {
        panic!("{error:?}");
    };
    assert_eq!(csp_wire::icmp::QuotedTcp::parse_v4(quoted).unwrap().destination, WEB.parse().unwrap());
    // A server behind a router: only an Ethernet address would lead there.
    let mut port = PortConfig::new(OUR_MAC, 1500);
    port.on_link = vec!["10.76.0.0/24".parse::<Prefix>().unwrap()];
    port.gateways = vec!["10.76.0.254".parse().unwrap()];
    let far = PoolServer { address: "10.9.9.9".parse().unwrap(), ..server(1) };
    let mut f = forwarding_on(port, &[far]);
    f.frame(&syn(1));
    assert_eq!((f.out.lan.len(), f.core.counters().drop_unresolved), (0, 1));
    assert!(f.core.forward_servers().next().unwrap().far);
}

#[test]
fn no_bytes_for_a_forwarded_service_panic_or_reach_anybody_else() {
    let mut f = forwarding(&[server(1), server(2)]);
    let mut random = Random::new(39);
    for _ in 0..20_000 {
        let mut packet = match random.below(4) {
            0 => tcp_packet(CLIENT, WEB, Tcp(random.number() as u8), &[0; 40]),
            1 => udp_packet(CLIENT, DNS, &[1; 40]),
            2 => udp_packet(CLIENT6, DNS6, &[1; 40]),
            _ => ip_packet(ip(CLIENT), ip(WEB), 1, &[random.number() as u8; 60]),
        };
        for _ in 0..random.below(4) {
            let at = random.below(packet.len() as u64) as usize;
            packet[at] = random.number() as u8;
        }
        packet.truncate(random.below(packet.len() as u64 + 1) as usize);
        if packet.is_empty() {
            continue;
        }
        f.frame(&ip_frame(&packet));
        for (frame, _) in f.out.lan.drain(..) {
            let servers = [server(1), server(2), server6(101), server6(102)];
            let to = MacAddr(frame[..6].try_into().unwrap());
            let ours = to == CLIENT_MAC || to.is_multicast();
            assert!(ours || servers.iter().any(|server| mac_of(server) == to));
        }
        f.out.tunnel.clear();
    }
}
