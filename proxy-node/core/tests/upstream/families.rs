//! The addresses that processes see of upstream connections: always of one family.

use std::net::SocketAddr;

use csp_proxy_core::service::upstream::{OpenError, Upstream};
use csp_proxy_core::{EgressRule, PoolServer, ServiceSpec, ServiceTcp};
use csp_types::FlowLabel;
use csp_wire::channel::{ConnectPayload, MessageHeader, MessageKind};

use crate::script::{Script, request};
use crate::world::{NUMBER, World, node, pool};

const A: u16 = 8001;
const PROGRAM: u32 = 9001;

fn v6(port: u16) -> SocketAddr {
    SocketAddr::new("2001:db8::1".parse().unwrap(), port)
}

/// Has a program connect to an IPv6 front from an IPv6 address; returns that connection.
fn front_of_ipv6(w: &mut World<Script>) -> FlowLabel {
    let front = ServiceSpec { local: Some(NUMBER), ..ServiceSpec::new("front".to_owned(), v6(80)) };
    let rule = EgressRule {
        address: v6(0).ip(),
        destinations: vec!["2001:db8::/64".parse().unwrap()],
        except: Vec::new(),
        tcp: ServiceTcp::default(),
    };
    w.core.set_policy(w.now, vec![front, pool(&[A])], vec![rule], &mut w.out);
    w.process(PROGRAM, 0);
    let mut payload = [0; 64];
    let len = ConnectPayload { remote: v6(80), local: None }.emit(&mut payload).unwrap();
    let header = MessageHeader::new(MessageKind::Connect, 9, 1 << 16, len as u32);
    w.message(PROGRAM, header, &payload[..len]);
    w.core.local().clients[0]
}

/// A target without an address of its own has 0.0.0.0, whose family is not the client's.
#[test]
fn a_process_behind_an_ipv6_front_sees_two_ipv6_addresses() {
    let mut w = World::script(&[A]);
    let client_flow = front_of_ipv6(&mut w);
    assert_eq!(w.open(Upstream { client: v6(4_711), client_flow, ..request(1) }), None);
    let (_, label) = w.accept(1 << 16);
    let served = &w.served[&label.to_wire()];
    assert_eq!((served.own, served.peer), (Some(v6(80)), Some(v6(4_711))));
    // One that is to serve several clients names none.
    let client = SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), 4_712);
    assert_eq!(w.open(Upstream { client, client_flow, ..request(2) }), None);
    let (_, label) = w.accept(1 << 16);
    let served = &w.served[&label.to_wire()];
    assert_eq!((served.own, served.peer), (Some(v6(80)), Some(v6(4_712))));
}

#[test]
fn the_address_of_a_target_of_the_client_s_family_is_the_process_s_own() {
    let mut w = World::script(&[A]);
    let address: SocketAddr = ([10, 0, 0, 7], 90).into();
    w.core.set_policy(w.now, vec![ServiceSpec { address, ..pool(&[A]) }], Vec::new(), &mut w.out);
    assert_eq!(w.open(request(1)), None);
    let (_, label) = w.accept(1 << 16);
    assert_eq!(w.served[&label.to_wire()].own, Some(address));
}

/// Otherwise the process would end its link with all connections.
#[test]
fn addresses_of_two_families_are_refused_before_a_process_is_asked() {
    let mut w = World::script(&[A]);
    assert_eq!(w.open(Upstream { client: v6(4_711), ..request(1) }), Some(OpenError::MixedFamilies));
    assert!(w.offers.is_empty());
    w.assert_empty();
    // A plain server sees the egress address.
    let host = csp_proxy_core::ServerHost::Address([10, 0, 0, 30].into());
    let plain = PoolServer { host, ..PoolServer::of_node(node(A), 80) };
    w.policy(ServiceSpec { pool: vec![plain], ..pool(&[]) });
    assert_eq!(w.open(Upstream { client: v6(4_711), ..request(2) }), None);
}
