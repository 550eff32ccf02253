//! Requests that plain servers answer, or do not: which server gets one, and what happens when one cannot be
//! reached.

use std::time::Duration;

use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ended, Excluded, OpenError, Opened, Request, Upstream};
use csp_proxy_core::{
    AllDown, BacklogLimits, NO_SERVER_GRACE, PoolServer, ProxyHeader, ServerHost, ServerOptions, ServiceSpec,
};
use csp_types::FlowLabel;
use csp_wire::tunnel::Record;

use crate::script::{Script, Told, request};
use crate::world::plain::{SERVER_PORT, plain, server};
use crate::world::{CLIENT, PORT, VIP, World, pool};

const MS: Duration = Duration::from_millis(1);
const A: u16 = 8001;

/// A pool with these plain servers.
pub fn spec(numbers: &[u8]) -> ServiceSpec {
    ServiceSpec { pool: numbers.iter().copied().map(plain).collect(), ..pool(&[]) }
}

/// A world whose pool has these plain servers, all of which listen.
pub fn world(numbers: &[u8]) -> World<Script> {
    let mut w = World::script(&[]);
    w.add_servers(numbers);
    w.policy(spec(numbers));
    w
}

/// Opens a connection, which a plain server accepts.
pub fn opened(w: &mut World<Script>) -> Opened {
    assert_eq!(w.open_only(request(9)), None);
    let [Told::Opened(9, Ok(opened))] = w.told()[..] else { panic!("it is opened") };
    opened
}

/// Has a server refuse connections.
fn refuses(w: &mut World<Script>, number: u8) {
    assert!(w.server(number).tcp.unlisten((server(number), SERVER_PORT).into()));
}

fn outcome(w: &mut World<Script>) -> Result<Opened, OpenError> {
    let [Told::Opened(_, outcome)] = w.told()[..] else { panic!("it is answered") };
    outcome
}

#[test]
fn a_plain_server_is_the_other_end_of_a_request() {
    let mut w = world(&[1]);
    let Opened { label, address, .. } = opened(&mut w);
    assert_eq!(address, (ServerHost::Address(server(1).into()), SERVER_PORT));
    w.serve(label, b"hello", None);
    let of_server = w.server(1).accepted[0];
    assert_eq!(w.server(1).at(of_server).read, b"hello");
    w.server(1).write(of_server, b"back");
    w.settle();
    assert_eq!(w.core.local().read[&label], b"back");
    let flows = w.core.flows(w.now, 8);
    let states: Vec<&str> = flows.iter().map(|flow| flow.state.as_str()).collect();
    assert_eq!(states, ["Established/joined", "Upstream/joined"]);
    assert_eq!((flows[0].bytes, flows[1].bytes), ((4, 5), (5, 4)), "each as it sees them");
    assert_eq!(flows[1].plain, Some((server(1), SERVER_PORT).into()));
    assert_eq!(w.core.counters().joined_bytes, 9);
    assert_eq!(flows[1].credit, (0, 0), "the engine's connection alone has a window");
    w.serve(label, b"", Some(Step::Close));
    assert_eq!(w.told(), [Told::Gone(label, Ended::ByService)]);
    assert_eq!(w.core.upstream_count(), 0, "the engine ends the connection by itself");
    assert!(w.server(1).at(of_server).finished);
    w.server(1).finish(of_server);
    w.pass(Duration::from_secs(2));
    w.assert_empty();
}

#[test]
fn servers_of_both_kinds_get_requests_in_turn() {
    let mut w = World::script(&[A]);
    w.add_servers(&[1]);
    w.policy(ServiceSpec { pool: [pool(&[A]).pool, vec![plain(1)]].concat(), ..pool(&[]) });
    for token in 0..6 {
        assert_eq!(w.open_only(request(token)), None);
    }
    assert_eq!((w.offers.len(), w.server(1).accepted.len()), (3, 3));
    for _ in 0..3 {
        w.accept(1 << 16);
    }
    assert_eq!(w.told().len(), 6);
    // One that is excluded gets none.
    let labels: Vec<FlowLabel> = w.core.local().finished.keys().copied().collect();
    labels.into_iter().for_each(|label| w.serve(label, b"", Some(Step::Reset)));
    w.told();
    w.pass(MS);
    w.assert_empty();
    let plain = loop {
        assert_eq!(w.open_only(request(9)), None);
        while !w.offers.is_empty() {
            w.accept(0);
        }
        let opened = outcome(&mut w).unwrap();
        if matches!(opened.address.0, ServerHost::Address(_)) {
            break opened;
        }
    };
    let mut excluded = Excluded::NONE;
    excluded.insert(plain.server);
    for token in 20..23 {
        assert_eq!(w.open_only(Upstream { excluded, ..request(token) }), None);
        w.accept(0);
        assert!(matches!(outcome(&mut w), Ok(Opened { address: (ServerHost::Node(_), _), .. })));
    }
}

#[test]
fn a_server_that_refuses_is_passed_over_and_nobody_notices() {
    let mut w = world(&[1, 2, 3]);
    (1..=2).for_each(|number| refuses(&mut w, number));
    for _ in 0..3 {
        assert_eq!(opened(&mut w).address.0, ServerHost::Address(server(3).into()));
    }
    assert_eq!((w.down(), w.core.counters().calls_failed), (vec![true, true, false], 2));
    assert_eq!(w.open_count(), 3);
}

#[test]
fn after_three_servers_the_request_has_failed() {
    let mut w = world(&[1, 2, 3, 4]);
    (1..=4).for_each(|number| refuses(&mut w, number));
    assert!(matches!(w.open_only(request(1)), Some(OpenError::Refused(_))));
    assert_eq!((w.core.counters().calls_failed, w.down().iter().filter(|down| **down).count()), (3, 3));
    w.assert_empty();
    // The last one is tried, then nobody is there for the next request: it waits.
    assert_eq!(w.open_only(request(2)), None);
    assert_eq!((w.core.counters().calls_failed, w.core.waiting_count()), (4, 1));
    w.pass(Duration::from_millis(500));
    w.server(2).tcp.listen((server(2), SERVER_PORT).into(), 0).unwrap();
    w.pass(NO_SERVER_GRACE);
    assert_eq!(outcome(&mut w).unwrap().address.0, ServerHost::Address(server(2).into()));
}

#[test]
fn while_all_are_down_requests_wait_for_a_time() {
    let mut w = world(&[1]);
    refuses(&mut w, 1);
    assert_eq!(w.open_only(request(1)), None, "it waits for the only one");
    w.pass(Duration::from_millis(2_999));
    assert!(w.told().is_empty() && w.core.waiting_count() == 1);
    w.pass(MS);
    assert_eq!(outcome(&mut w), Err(OpenError::NoServer));
    w.assert_empty();
    // Those that exclude members wait apart, and are tried at the same times.
    let mut w = world(&[1, 2]);
    let first = opened(&mut w);
    let mut excluded = Excluded::NONE;
    excluded.insert(first.server);
    let ServerHost::Address(address) = first.address.0 else { panic!("a plain server") };
    let other = if address == server(1) { 2 } else { 1 };
    refuses(&mut w, other);
    let deadline = Some(w.now + Duration::from_secs(20));
    assert_eq!(w.open_only(Upstream { excluded, deadline, ..request(1) }), None);
    assert_eq!((w.core.waiting_count(), w.core.counters().calls_failed), (0, 1));
    w.server(other).tcp.listen((server(other), SERVER_PORT).into(), 0).unwrap();
    w.pass(Duration::from_millis(1_001));
    assert_eq!(w.core.counters().calls_failed, 1, "tried again after a second");
    assert_eq!(outcome(&mut w).unwrap().address.0, ServerHost::Address(server(other).into()));
    assert_eq!(w.open_only(Upstream { excluded, ..request(2) }), None);
    assert_eq!(outcome(&mut w).unwrap().address.0, ServerHost::Address(server(other).into()));
    excluded.insert(w.core.local().server_of.values().copied().find(|s| *s != first.server).unwrap());
    assert_eq!(w.open_only(Upstream { excluded, ..request(3) }), Some(OpenError::AllExcluded));
}

#[test]
fn a_silent_server_is_given_up_after_its_time() {
    let mut w = world(&[1, 2]);
    let servers = ServerOptions { connect_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    w.policy(ServiceSpec { servers, ..spec(&[1, 2]) });
    w.server(1).silent = true;
    let mut tries = 0;
    while w.down() != [true, false] {
        assert_eq!(w.open_only(request(tries)), None);
        w.pass(Duration::from_millis(299));
        let before = w.told().len();
        w.pass(MS);
        tries += 1;
        assert_eq!(before + w.told().len(), 1, "another server has it");
    }
    assert!(tries <= 2);
    // Both are silent: the last one is tried for as long.
    w.server(2).silent = true;
    assert_eq!(w.open_only(request(9)), None);
    w.pass(Duration::from_millis(300));
    assert_eq!((w.down(), w.core.waiting_count()), (vec![true, true], 1));
    let deadline = Some(w.now + Duration::from_secs(1));
    assert_eq!(w.open_only(Upstream { deadline, ..request(10) }), None);
    w.pass(Duration::from_secs(1));
    assert_eq!(w.told(), [Told::Opened(10, Err(OpenError::TimedOut))]);
    w.pass(NO_SERVER_GRACE);
    assert!(matches!(w.told()[..], [Told::Opened(9, Err(_))]));
}

#[test]
fn a_request_is_cancelled_or_late_while_its_server_is_called() {
    for is_cancelled in [true, false] {
        let mut w = world(&[1]);
        w.server(1).silent = true;
        let deadline = Some(w.now + 500 * MS);
        assert_eq!(w.open_only(Upstream { deadline, ..request(1) }), None);
        assert_eq!((w.core.upstream_count(), w.core.flow_count(), w.open_count()), (1, 2, 1));
        if is_cancelled {
            w.request(Request::Cancel(1));
            assert!(w.told().is_empty());
        } else {
            w.pass(500 * MS);
            assert_eq!(w.told(), [Told::Opened(1, Err(OpenError::TimedOut))]);
        }
        w.assert_empty();
        assert_eq!(w.down(), [false], "that says nothing of the server");
        w.server(1).silent = false;
        w.pass(Duration::from_secs(5));
        assert_eq!(w.server(1).accepted.len(), 0);
        opened(&mut w);
    }
    // In one turn with the request, before anything is sent.
    let mut w = world(&[1]);
    w.core.local_mut().requests.extend([Request::Open(request(1)), Request::Cancel(1)]);
    w.settle();
    w.assert_empty();
    assert!(w.server(1).accepted.is_empty() && w.told().is_empty());
}

/// Another proxy has a connection from the same port: the next one is tried, and the service sees nothing.
#[test]
fn a_port_that_another_proxy_uses_is_left() {
    let mut w = world(&[1]);
    w.server(1).silent = true;
    assert_eq!(w.open_only(request(1)), None);
    let called = |w: &World<Script>| {
        let flows = w.core.flows(w.now, 8);
        let flow = flows.iter().find(|flow| flow.state == "SynSent/called").unwrap();
        (flow.label, flow.tuple.local.port())
    };
    let (label, port) = called(&w);
    w.core.on_record(w.now, 1, &Record::flow_end(label, 0), None, &mut w.out);
    w.settle();
    let (again, next) = called(&w);
    assert!(again != label && next != port && w.told().is_empty());
    w.server(1).silent = false;
    w.core.on_record(w.now, 1, &Record::flow_end(again, 0), None, &mut w.out);
    w.settle();
    let opened = outcome(&mut w).unwrap();
    w.serve(opened.label, b"hello", None);
    let of_server = w.server(1).accepted[0];
    assert_eq!(w.server(1).at(of_server).read, b"hello");
    assert_eq!((w.core.upstream_count(), w.core.flow_count(), w.open_count()), (1, 2, 1));
}

#[test]
fn a_bound_of_connections_holds_requests_back() {
    let mut w = world(&[1]);
    let bounded = PoolServer { connections_max: 2, ..plain(1) };
    w.policy(ServiceSpec { pool: vec![bounded], ..spec(&[]) });
    let labels = [0; 2].map(|_| opened(&mut w).label);
    let mut excluded = Excluded::NONE;
    excluded.insert(opened_of(&w, labels[0]));
    assert_eq!((w.open_only(request(1)), w.core.waiting_count()), (None, 1));
    w.serve(labels[0], b"", Some(Step::Close));
    assert!(matches!(w.told()[..], [Told::Gone(..), Told::Opened(1, Ok(_))]), "in its place");
    assert_eq!((w.open_count(), w.server(1).accepted.len()), (2, 3));
    assert_eq!(w.open_only(Upstream { deadline: Some(w.now + MS), ..request(2) }), None);
    w.pass(MS);
    assert_eq!(outcome(&mut w), Err(OpenError::TimedOut));
}

fn opened_of(w: &World<Script>, label: FlowLabel) -> csp_proxy_core::service::upstream::ServerId {
    w.core.local().server_of[&label]
}

#[test]
fn a_request_with_exclusions_waits_for_a_bounded_server() {
    let mut w = world(&[1, 2]);
    let bounded = |number| PoolServer { connections_max: 1, ..plain(number) };
    w.policy(ServiceSpec { pool: vec![bounded(1), bounded(2)], ..spec(&[]) });
    let (first, second) = (opened(&mut w), opened(&mut w));
    let mut excluded = Excluded::NONE;
    excluded.insert(first.server);
    assert_eq!(w.open_only(Upstream { excluded, ..request(1) }), None);
    w.serve(first.label, b"", Some(Step::Close));
    assert_eq!(w.told(), [Told::Gone(first.label, Ended::ByService)], "that one is excluded");
    w.serve(second.label, b"", Some(Step::Close));
    assert_eq!(w.told().len(), 2);
}

#[test]
fn nothing_can_be_sent_and_no_server_is_to_blame() {
    let mut w = world(&[1]);
    w.out.no_node = true;
    assert_eq!(w.open_only(request(1)), None);
    assert_eq!((w.core.waiting_count(), w.down(), w.core.counters().calls_unsent), (1, vec![false], 1));
    w.out.no_node = false;
    w.pass(Duration::from_secs(1));
    assert!(outcome(&mut w).is_ok());
    // An address that no egress rule has.
    let far = PoolServer { host: ServerHost::Address([192, 0, 2, 1].into()), ..plain(1) };
    let backlog = BacklogLimits { connections: 8, time: Some(Duration::from_secs(2)) };
    w.policy(ServiceSpec { pool: vec![far], backlog, ..spec(&[]) });
    assert_eq!(w.open_only(request(2)), None);
    w.pass(Duration::from_secs(2));
    assert_eq!(outcome(&mut w), Err(OpenError::TimedOut));
}

#[test]
fn a_server_that_the_policy_no_longer_names_keeps_its_connections() {
    let mut w = world(&[1, 2]);
    w.server(1).echoes = true;
    w.policy(spec(&[1]));
    let label = opened(&mut w).label;
    w.server(1).silent = true;
    assert_eq!(w.open_only(request(1)), None);
    w.policy(spec(&[2]));
    w.server(1).silent = false;
    w.serve(label, b"after", None);
    assert_eq!(w.core.local().read[&label], b"after");
    w.pass(Duration::from_secs(2));
    assert!(outcome(&mut w).is_ok(), "its SYN was under way");
    assert_eq!(w.open_count(), 0, "the other one's");
    assert_eq!(opened(&mut w).address.0, ServerHost::Address(server(2).into()));
    w.policy(spec(&[]));
    assert_eq!(w.open_only(request(2)), Some(OpenError::NoMember));
    w.serve(label, b", too", None);
    assert_eq!(w.core.local().read[&label], b"after, too");
    let labels: Vec<FlowLabel> = w.core.local().finished.keys().copied().collect();
    labels.into_iter().for_each(|label| w.serve(label, b"", Some(Step::Close)));
    w.pass(Duration::from_secs(61)); // server 2 does not end its stream
    w.assert_empty();
    assert_eq!(w.core.member_count(), 0, "nobody names one");
}

#[test]
fn servers_that_checks_have_put_out_of_use_are_used_if_the_policy_says_so() {
    let mut w = world(&[1]);
    let check = csp_proxy_core::CheckSpec {
        interval: Duration::from_secs(1),
        timeout: 200 * MS,
        rise: 1,
        fall: 1,
        port: Some(81),
        question: None,
        header: None,
        tls: None,
    };
    for all_down in [AllDown::Refuse, AllDown::Serve] {
        let servers =
            ServerOptions { all_down, check: Some(check.clone().into()), ..ServerOptions::default() };
        w.policy(ServiceSpec { servers, ..spec(&[1]) });
        w.pass(Duration::from_secs(3));
        assert_eq!(w.down(), [true], "nobody listens at the port of the check");
        assert_eq!(w.open_only(request(1)), None);
        w.pass(NO_SERVER_GRACE);
        match all_down {
            AllDown::Refuse => assert_eq!(outcome(&mut w), Err(OpenError::NoServer)),
            AllDown::Serve => assert!(outcome(&mut w).is_ok()),
        }
    }
}

/// The header names the client of the first request, and the address to which it has connected.
#[test]
fn a_server_learns_the_client_s_address() {
    let mut w = world(&[1]);
    let servers = ServerOptions { header: Some(ProxyHeader::V1), ..ServerOptions::default() };
    w.policy(ServiceSpec { servers, ..spec(&[1]) });
    w.connect(1_000);
    let client_flow = w.core.local().clients[0];
    let client = (CLIENT, 4_711).into();
    let none = FlowLabel::NONE;
    let v6 = ([1; 16], 1).into();
    for (client, client_flow, header) in [
        (client, client_flow, format!("PROXY TCP4 {CLIENT} {VIP} 4711 {PORT}\r\n")),
        (client, none, format!("PROXY TCP4 {CLIENT} 0.0.0.0 4711 0\r\n")),
        (v6, client_flow, "PROXY UNKNOWN\r\n".to_owned()),
        (([0; 4], 0).into(), none, "PROXY UNKNOWN\r\n".to_owned()),
    ] {
        assert_eq!(w.open_only(Upstream { client, client_flow, ..request(9) }), None);
        let label = outcome(&mut w).unwrap().label;
        w.serve(label, b"GET", None);
        let of_server = *w.server(1).accepted.last().unwrap();
        assert_eq!(w.server(1).at(of_server).read, [header.as_bytes(), b"GET"].concat());
    }
}
