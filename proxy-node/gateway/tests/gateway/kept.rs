//! Which kept connections to members serve requests, and which end.

use csp_proxy_core::{ChannelId, PoolServer, ServiceSpec};
use csp_types::FlowLabel;
use csp_wire::channel::{MessageHeader, MessageKind};

use crate::http::{A, B, Http, service};
use crate::world::plain::plain;
use crate::world::{node, pool};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A client's request that a member has answered; returns the kept connection to that member.
fn kept(h: &mut Http, port: u16) -> FlowLabel {
    let member = h.asks(port, GET);
    h.says(member, EMPTY);
    assert_eq!(h.reads(port), EMPTY);
    member
}

fn idle(h: &mut Http) -> u64 {
    h.gateway().snapshot().upstreams.idle
}

fn process_of(h: &Http, label: FlowLabel) -> u16 {
    h.w.served[&label.to_wire()].process as u16
}

/// Checks that a kept connection was ended in order, and that the next request goes to another member.
fn assert_left(h: &mut Http, left: FlowLabel) {
    assert_eq!(idle(h), 0);
    let served = &h.w.served[&left.to_wire()];
    assert!(served.finished && !served.reset);
    h.send(1_000, GET);
    let other = h.accept();
    assert_ne!(process_of(h, other), process_of(h, left));
    h.says(other, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

#[test]
fn kept_connections_to_a_node_that_drains_end_at_once() {
    let mut h = Http::new(service());
    let member = kept(&mut h, 1_000);
    let of_member = node(process_of(&h, member));
    h.w.core.set_draining(h.w.now, [of_member].into(), &mut h.w.out);
    h.w.settle();
    assert_left(&mut h, member);
}

/// One that is in use serves its request, and is not kept.
#[test]
fn a_connection_in_use_to_a_node_that_drains_ends_with_its_request() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    let of_member = node(process_of(&h, member));
    h.w.core.set_draining(h.w.now, [of_member].into(), &mut h.w.out);
    h.w.settle();
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    assert_left(&mut h, member);
}

#[test]
fn kept_connections_to_a_member_without_weight_or_out_of_the_pool_end() {
    for is_named in [true, false] {
        let mut h = Http::new(service());
        let member = kept(&mut h, 1_000);
        let left = process_of(&h, member);
        let mut changed = pool(&[A, B]);
        match is_named {
            true => changed.pool.iter_mut().filter(|m| m.port == left).for_each(|m| m.weight = 0),
            false => changed.pool.retain(|m| m.port != left),
        }
        h.w.policy(changed);
        assert_left(&mut h, member);
    }
}

#[test]
fn kept_connections_to_a_backup_end_when_another_member_is_up() {
    let mut h = Http::with_members(service(), &[A]);
    let mut backed = pool(&[A, B]);
    backed.pool[0].backup = true;
    h.w.policy(backed);
    let member = kept(&mut h, 1_000);
    assert_eq!((process_of(&h, member), idle(&mut h)), (A, 1));
    h.w.process(B.into(), 64);
    assert_left(&mut h, member);
}

/// The process that listened is not the one with the connection: the member is down when nobody listens.
#[test]
fn kept_connections_to_a_member_where_nobody_listens_end() {
    let mut h = Http::new(service());
    let member = kept(&mut h, 1_000);
    let process = u32::from(process_of(&h, member));
    h.w.message(process, MessageHeader::new(MessageKind::Unlisten, 7, 0, 0), &[]);
    assert_left(&mut h, member);
}

/// Changes of other members leave a kept connection alone.
#[test]
fn kept_connections_to_other_members_stay() {
    let mut h = Http::new(service());
    let member = kept(&mut h, 1_000);
    let other = if process_of(&h, member) == A { B } else { A };
    h.w.core.set_draining(h.w.now, [node(other)].into(), &mut h.w.out);
    h.w.core.channel_down(h.w.now, ChannelId(other.into()), true, &mut h.w.out);
    let only = PoolServer::of_node(node(process_of(&h, member)), process_of(&h, member));
    h.w.policy(ServiceSpec { pool: vec![only], ..pool(&[]) });
    h.send(1_000, GET);
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

/// Requests one after the other go to all members with kept connections.
#[test]
fn kept_connections_have_their_turn() {
    let mut h = Http::new(service());
    let members = [h.asks(1_000, GET), h.asks(1_001, GET)];
    assert_ne!(process_of(&h, members[0]), process_of(&h, members[1]));
    members.into_iter().for_each(|member| h.says(member, EMPTY));
    for member in members.repeat(2) {
        h.hears(member);
        h.send(1_000, GET);
        assert!(h.hears(member).starts_with("GET / HTTP/1.1\r\n"));
        h.says(member, EMPTY);
    }
    h.assert_no_leak();
}

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// A gateway before one plain server that takes four connections, each of which answers one request.
fn before_a_bounded_server() -> Http {
    let mut h = Http::with_members(service(), &[]);
    h.w.add_servers(&[1]);
    h.w.policy(ServiceSpec { pool: vec![PoolServer { connections_max: 4, ..plain(1) }], ..pool(&[]) });
    for port in 1_000..1_004 {
        h.w.connect(port);
        h.send(port, GET);
    }
    assert_eq!(h.w.server(1).accepted.len(), 4);
    h
}

/// Has the server answer on its connection with this number.
fn answers(h: &mut Http, number: usize) {
    let label = h.w.server(1).accepted[number];
    h.w.server(1).write(label, EMPTY.as_bytes());
    h.w.settle();
}

/// A bounded member has no place for a fresh connection while idle ones hold all: the oldest one goes.
#[test]
fn an_idle_connection_leaves_its_place_to_a_request_that_waits() {
    let mut h = before_a_bounded_server();
    (0..4).for_each(|number| answers(&mut h, number));
    assert_eq!((h.reads(1_003).as_str(), idle(&mut h)), (EMPTY, 4));
    h.send(1_000, POST);
    assert_eq!((h.w.server(1).accepted.len(), idle(&mut h)), (5, 3));
    h.reads(1_000);
    answers(&mut h, 4);
    assert_eq!((h.reads(1_000).as_str(), idle(&mut h)), (EMPTY, 4));
    h.assert_no_leak();
}

/// A connection whose request ends while another one waits is not kept.
#[test]
fn a_connection_is_not_kept_while_a_request_waits_for_its_place() {
    let mut h = before_a_bounded_server();
    h.w.connect(1_010);
    h.send(1_010, POST);
    assert_eq!(h.w.server(1).accepted.len(), 4, "it waits");
    answers(&mut h, 0);
    assert_eq!((h.w.server(1).accepted.len(), idle(&mut h)), (5, 0));
    answers(&mut h, 4);
    assert_eq!((h.reads(1_010).as_str(), idle(&mut h)), (EMPTY, 1));
    // One that is gone waits no more.
    h.w.connect(1_011);
    h.send(1_011, POST);
    h.send(1_010, POST);
    for port in [1_010, 1_011] {
        h.w.segment(port, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    }
    answers(&mut h, 1);
    assert!(idle(&mut h) >= 1);
    h.assert_no_leak();
}
