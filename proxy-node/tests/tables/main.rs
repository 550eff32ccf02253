//! The core between a scripted network node, clients and processes: none of them can delay the others, and no
//! table keeps what has ended.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod backlog;
mod hairpin;
mod idle;
mod link;
mod local;
mod offers;
mod resets;
mod shares;
mod unknown;
mod world;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use csp_proxy_node::core::{ChannelId, EgressRule, Lane, ServiceSpec, ServiceTcp};
use csp_tcp::EcnMode;
use csp_types::FlowLabel;
use csp_wire::channel::{ConnectPayload, MessageHeader, MessageKind};
use csp_wire::tcp::Flags as TcpFlags;

use world::{NOW, VIP, World, web};

#[test]
fn a_network_node_without_room_holds_up_its_own_clients_only() {
    let mut w = World::new(&[8001]);
    w.out.stuck.insert(1);
    w.client(1, 1000, 100, 0, TcpFlags::SYN, &[]);
    w.client(2, 2000, 100, 0, TcpFlags::SYN, &[]);
    let through: Vec<(u32, u16)> = w.out.records.iter().map(|r| (r.0, r.1)).collect();
    assert_eq!(through, [(2, 2000)]);
    w.out.stuck.clear();
    w.core.drive(NOW, &mut w.out);
    assert_eq!(w.out.records.last().map(|r| (r.0, r.1)), Some((1, 1000)));
}

#[test]
fn flows_of_a_process_that_takes_nothing_are_not_tried_again_until_it_does() {
    let mut w = World::new(&[8001, 8002]);
    w.out.descriptors.insert(Lane(8001), 0);
    for port in 1000..1020 {
        let ack = w.connect(1, port);
        w.accept_all();
        w.client(1, port, 101, ack, TcpFlags::ACK, b"request");
    }
    assert_eq!(w.out.take(8002, MessageKind::Data).len(), 10, "the other process is served");
    let tried = w.out.refused;
    assert_eq!(w.core.parked_count(), 10);
    for _ in 0..100 {
        w.core.drive(NOW, &mut w.out);
    }
    assert_eq!(w.out.refused, tried);
    // Descriptors are returned a few at a time: as many flows are served, in the order in which they were
    // parked.
    let mut served = Vec::new();
    for _ in 0..5 {
        w.out.descriptors.insert(Lane(8001), 2);
        w.core.drive(NOW, &mut w.out);
        served.extend(w.out.take(8001, MessageKind::Data));
    }
    assert_eq!((served.len(), served.is_sorted(), w.core.parked_count()), (10, true, 0));
    assert!(w.out.refused <= tried + 5, "{} tries in vain", w.out.refused - tried);
}

#[test]
fn the_end_of_a_process_ends_its_flows_and_no_others() {
    let mut w = World::new(&[8001, 8002]);
    w.connect_all(1000..1010);
    let taken = w.accept_all();
    w.out.descriptors.insert(Lane(8001), 0);
    w.processes.remove(&8001);
    w.core.channel_down(NOW, ChannelId(8001), false, &mut w.out);
    let (lost, kept): (Vec<_>, Vec<_>) = taken.into_iter().partition(|t| t.0 == 8001);
    assert_eq!((lost.len(), kept.len(), w.core.flow_count()), (5, 5, 5));
    let left: BTreeSet<u32> = w.core.flows(NOW, 64).iter().map(|f| f.label.to_wire()).collect();
    assert_eq!(left, kept.into_iter().map(|t| t.1).collect());
    assert_eq!(w.core.parked_count(), 0);
}

#[test]
fn a_process_that_ends_ends_its_flows_on_every_link_as_the_kernel_would() {
    for (hangup, wanted) in [(true, TcpFlags::FIN), (false, TcpFlags::RST)] {
        let mut w = World::new(&[8001]);
        w.connect_all(1000..1001);
        w.accept_all();
        // The first of its links whose loss is noticed: others of the pool appear to be up.
        w.core.lane_down(NOW, ChannelId(8001), Lane(8001), hangup, &mut w.out);
        assert!(w.out.flags.contains(wanted), "{hangup}: {:?}", w.out.flags);
    }
}

#[test]
fn what_was_offered_to_a_process_that_ends_is_offered_to_another() {
    let mut w = World::new(&[8001, 8002]);
    w.connect_all(1000..1006);
    assert_eq!(w.out.take(8001, MessageKind::Open).len(), 3);
    assert_eq!(w.out.take(8002, MessageKind::Open).len(), 3);
    w.core.channel_down(NOW, ChannelId(8001), true, &mut w.out);
    assert_eq!(w.out.take(8002, MessageKind::Open).len(), 3);
    assert_eq!(w.core.flow_count(), 6);
}

#[test]
fn a_service_that_policy_drops_goes_with_its_last_connection_and_its_members_with_it() {
    let mut w = World::new(&[8001]);
    let ack = w.connect(1, 1000);
    let taken = w.accept_all();
    w.policy(Vec::new());
    w.client(1, 1000, 101, ack, TcpFlags::ACK, b"still served");
    assert_eq!(w.out.take(8001, MessageKind::Data).len(), 1, "its connection lives on");
    assert_eq!(w.core.flows(NOW, 8)[0].service, "web");
    // A handshake that completes after the service was removed reaches no other service.
    w.policy(vec![web(&[8001])]);
    w.client(1, 1001, 100, 0, TcpFlags::SYN, &[]);
    let syn_ack = w.out.records.last().unwrap().2;
    w.policy(Vec::new());
    let label = FlowLabel::from_wire(taken[0].1).unwrap();
    w.send(8001, MessageHeader::of_flow(MessageKind::Reset, label, 0, 0), &[]);
    assert_eq!(w.core.flow_count(), 0);
    w.processes.clear();
    w.core.channel_down(NOW, ChannelId(8001), true, &mut w.out);
    assert_eq!(w.core.member_count(), 0);
    let other = ServiceSpec { name: "other".to_owned(), address: (VIP, 81).into(), ..web(&[8002]) };
    w.policy(vec![other]);
    w.process(8002);
    w.client(1, 1001, 101, syn_ack.wrapping_add(1), TcpFlags::ACK, &[]);
    assert_eq!((w.out.take(8002, MessageKind::Open), w.core.flow_count()), (vec![], 0));
    assert_eq!(w.core.counters().drop_no_server, 1);
}

#[test]
fn those_that_wait_for_a_process_are_served_in_order_or_given_up_in_time() {
    let mut w = World::new(&[]);
    w.policy(vec![web(&[8001])]);
    w.connect_all(1000..1003);
    let until = w.core.next_timeout().unwrap();
    assert!(until <= NOW + csp_proxy_node::core::NO_SERVER_GRACE);
    w.client(1, 1000, 101, 0, TcpFlags::RST, &[]);
    w.process(8001);
    assert_eq!(w.out.take(8001, MessageKind::Open).len(), 2, "the one that left is not offered");
    w.core.channel_down(NOW, ChannelId(8001), true, &mut w.out);
    w.core.on_timeout(NOW + csp_proxy_node::core::NO_SERVER_GRACE, &mut w.out);
    assert_eq!((w.core.flow_count(), w.core.counters().drop_no_server), (0, 2));
}

#[test]
fn connections_that_applications_open_behave_as_their_egress_rule_specifies() {
    for (ecn, proposed) in [(EcnMode::Active, true), (EcnMode::Passive, false)] {
        let mut w = World::new(&[8001]);
        let tcp = ServiceTcp { ecn: Some(ecn), ..ServiceTcp::default() };
        let destinations = vec!["192.0.2.0/24".parse().unwrap()];
        let address = Ipv4Addr::new(10, 0, 0, 9).into();
        let rule = EgressRule { address, destinations, except: Vec::new(), tcp };
        w.core.set_policy(NOW, vec![web(&[8001])], vec![rule], &mut w.out);
        let connect = ConnectPayload { remote: "192.0.2.7:443".parse().unwrap(), local: None };
        let mut payload = [0; ConnectPayload::LEN_MAX];
        let len = connect.emit(&mut payload).unwrap();
        w.send(8001, MessageHeader::new(MessageKind::Connect, 1, 1 << 16, len as u32), &payload[..len]);
        assert_eq!(w.out.records.last().map(|r| (r.0, r.1)), Some((1, 443)));
        assert_eq!(
            w.out.flags,
            if proposed { TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::SYN }
        );
    }
}

#[test]
fn recent_flows_come_newest_first() {
    let mut w = World::new(&[8001]);
    w.connect_all(1000..1010);
    w.accept_all();
    let ports: Vec<u16> = w.core.recent_flows(3).iter().map(|f| f.tuple.remote.port()).collect();
    assert_eq!(ports, [1009, 1008, 1007]);
}

/// Establishes a connection of a service with these options; returns also what its client expects next.
fn connection_with(tcp: ServiceTcp) -> (World, u32, (u32, u32)) {
    let mut w = World::new(&[8001]);
    w.policy(vec![ServiceSpec { tcp, ..web(&[8001]) }]);
    let expects = w.connect(1, 1000);
    let flow = w.accept_all()[0];
    (w, expects, flow)
}

#[test]
fn a_service_sets_when_silent_clients_are_probed() {
    let silent = Duration::from_secs(60);
    let probes = |tcp| {
        let (mut w, expects, _) = connection_with(tcp);
        w.out.records.clear();
        w.pass(silent);
        w.out.records.iter().filter(|r| **r == (1, 1000, expects.wrapping_sub(1))).count()
    };
    assert_eq!(probes(ServiceTcp { keepalive_s: Some(40), ..ServiceTcp::default() }), 1);
    assert_eq!(probes(ServiceTcp { keepalive_s: Some(0), ..ServiceTcp::default() }), 0);
    assert_eq!(probes(ServiceTcp::default()), 0, "the configuration specifies two hours");
}

#[test]
fn a_service_sets_how_long_clients_may_leave_data_unacknowledged() {
    let lives = |tcp, time| {
        let (mut w, _, (channel, label)) = connection_with(tcp);
        let label = FlowLabel::from_wire(label).unwrap();
        w.send(channel, MessageHeader::of_flow(MessageKind::Data, label, 0, 8), b"response");
        w.pass(time);
        w.core.flow_count() == 1
    };
    let tcp = ServiceTcp { user_timeout_s: Some(5), ..ServiceTcp::default() };
    assert!(lives(tcp, Duration::from_secs(4)) && !lives(tcp, Duration::from_secs(10)));
    assert!(lives(ServiceTcp::default(), Duration::from_secs(10)));
}
