//! Upstream connections: connections of a local service to processes of a pool.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod ends;
mod families;
mod lines;
mod plain_ends;
mod plain_requests;
mod proxied;
mod script;
mod secure;
mod talk;
mod world;

use std::time::Duration;

use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ended, Excluded, OpenError, Request, Upstream};
use csp_proxy_core::{BacklogLimits, ChannelId, EXCLUDING_MAX, NO_SERVER_GRACE, ServiceSpec};
use csp_types::{FlowLabel, TraceKind};
use csp_wire::channel::MessageKind;

use script::{Told, request};
use world::{CLIENT, PORT, UPSTREAMS, World, member, node, pool};

const A: u16 = 8001;
const B: u16 = 8002;

#[test]
fn a_process_accepts_a_request_and_sees_the_client_s_address() {
    let mut w = World::script(&[A]);
    assert_eq!(w.open(Upstream { window: 20_000, ..request(9) }), None);
    assert!(w.told().is_empty(), "it was offered, and no process has accepted it");
    let (_, label) = w.accept(1 << 16);
    let [Told::Opened(9, Ok(opened))] = w.told()[..] else { panic!("it is opened") };
    assert_eq!((opened.label, opened.address), (label, member(A)));
    let served = &w.served[&label.to_wire()];
    assert_eq!((served.peer, served.window), (Some((CLIENT, 4_711).into()), 20_000));
    w.serve(label, b"hello", None);
    assert_eq!(w.served[&label.to_wire()].received, b"hello");
    w.sends(label, b"back");
    assert_eq!(w.core.local().read[&label], b"back");
    w.serve(label, b"", Some(Step::Close));
    assert_eq!(w.told(), [Told::Gone(label, Ended::ByService)]);
    assert!(w.served[&label.to_wire()].finished);
    w.says(label, MessageKind::Close, 0, &[]);
    w.assert_empty();
}

#[test]
fn a_request_that_cannot_be_fulfilled_is_answered_with_the_reason() {
    let mut w = World::script(&[A, B]);
    let error = |w: &mut World<script::Script>, upstream| {
        let error = w.open(upstream);
        w.assert_empty();
        error
    };
    let to = |service: &str| Upstream { service: service.into(), ..request(1) };
    assert_eq!(error(&mut w, to("nowhere")), Some(OpenError::NoService));
    assert_eq!(error(&mut w, to("front")), Some(OpenError::NoService), "it ends at the proxy");
    w.policy(pool(&[]));
    assert_eq!(error(&mut w, request(1)), Some(OpenError::NoMember));
    w.policy(pool(&[A, B]));
    w.core.set_draining(w.now, [node(A), node(B)].into(), &mut w.out);
    assert_eq!(error(&mut w, request(1)), Some(OpenError::Draining));
    w.core.set_draining(w.now, [node(A)].into(), &mut w.out);
    let opened = w.opened(0);
    assert_eq!(opened.address, member(B), "the other one drains");
    let mut excluded = Excluded::NONE;
    assert!(excluded.insert(opened.server) && excluded.insert(opened.server) && !excluded.is_empty());
    let others = Upstream { excluded, ..request(1) };
    assert_eq!(w.open(others.clone()), Some(OpenError::Draining));
    w.policy(pool(&[B]));
    assert_eq!(w.open(others), Some(OpenError::AllExcluded));
    w.policy(ServiceSpec { backlog: BacklogLimits { connections: 0, time: None }, ..pool(&[B]) });
    assert_eq!(w.open(request(1)), Some(OpenError::NoRoom), "the backlog is full");
    w.policy(pool(&[B]));
    assert_eq!((w.open(request(1)), w.open(request(1))), (None, Some(OpenError::TokenInUse)));
    for token in 2..UPSTREAMS as u64 {
        assert_eq!(w.open(request(token)), None);
    }
    assert_eq!(w.open(request(99)), Some(OpenError::NoRoom), "the table is full");
    let counters = w.core.counters();
    assert_eq!(counters.upstream_opens_failed, 9);
    assert_eq!(counters.connections_upstream, 9 + UPSTREAMS as u64, "those that failed, too");
}

#[test]
fn a_request_waits_for_a_process_as_long_as_it_may() {
    let mut w = World::script(&[]);
    w.policy(pool(&[A]));
    let failed = |token, error| vec![Told::Opened(token, Err(error))];
    assert_eq!(w.open(request(1)), None);
    w.pass(NO_SERVER_GRACE);
    assert_eq!(w.told(), failed(1, OpenError::NoServer));
    // A process that comes in time gets it.
    assert_eq!(w.open(request(2)), None);
    w.process(A.into(), 1);
    assert_eq!(w.accept(0).0, u32::from(A));
    w.told();
    // It accepts no more: the time of the request, then that of the backlog.
    let deadline = Some(w.now + Duration::from_millis(300));
    assert_eq!((w.open(Upstream { deadline, ..request(3) }), w.open(request(4))), (None, None));
    w.pass(Duration::from_millis(299));
    assert!(w.told().is_empty());
    w.pass(Duration::from_millis(1));
    assert_eq!((w.told(), w.core.waiting_count()), (failed(3, OpenError::TimedOut), 1));
    w.pass(Duration::from_secs(60));
    assert_eq!(w.told(), failed(4, OpenError::TimedOut));
    // Offered, and not answered.
    w.message(A.into(), csp_wire::channel::MessageHeader::new(MessageKind::AcceptCredit, 7, 1, 0), &[]);
    assert_eq!(w.open(Upstream { deadline: Some(w.now + Duration::from_secs(1)), ..request(5) }), None);
    let (_, label) = w.offers.pop_front().unwrap();
    w.pass(Duration::from_secs(1));
    assert_eq!(w.told(), failed(5, OpenError::TimedOut));
    assert!(w.served[&label.to_wire()].reset);
    w.says(label, MessageKind::Accepted, 10, &[]);
    assert_eq!((w.told(), w.core.upstream_count()), (Vec::new(), 1), "the answer comes too late");
}

#[test]
fn a_member_that_refuses_is_excluded_from_the_next_try() {
    let mut w = World::script(&[A, B]);
    let (mut excluded, mut refused) = (Excluded::NONE, Vec::new());
    for token in 1..=2 {
        assert_eq!(w.open(Upstream { excluded, ..request(token) }), None);
        let (process, label) = w.offers.pop_front().unwrap();
        w.says(label, MessageKind::Refused, 0, &[]);
        let [Told::Opened(_, Err(OpenError::Refused(server)))] = w.told()[..] else { panic!("refused") };
        assert!(excluded.insert(server));
        refused.push(process);
    }
    refused.sort_unstable();
    assert_eq!(refused, [u32::from(A), u32::from(B)], "another one each time");
    assert_eq!(w.open(Upstream { excluded, ..request(3) }), Some(OpenError::AllExcluded));
    w.assert_empty();
}

/// Requests with exclusions wait apart: a request that nobody is for holds up no others.
#[test]
fn a_request_with_exclusions_waits_for_the_others_and_holds_up_nobody() {
    let mut w = World::script(&[A]);
    w.policy(pool(&[A, B]));
    let first = w.opened(0);
    assert_eq!(first.address, member(A));
    let mut excluded = Excluded::NONE;
    excluded.insert(first.server);
    assert_eq!(w.open(Upstream { excluded, ..request(1) }), None);
    assert!(w.offers.is_empty(), "only A listens");
    assert_eq!(w.open(request(2)), None);
    assert_eq!(w.accept(0).0, u32::from(A), "the request behind it");
    w.process(B.into(), 1);
    assert_eq!(w.accept(0).0, u32::from(B));
    assert_eq!(w.told().len(), 2);
    // For a short time, even if the request has a longer one.
    for deadline in [None, Some(w.now + Duration::from_secs(60))] {
        assert_eq!(w.open(Upstream { excluded, deadline, ..request(3) }), None);
        w.pass(NO_SERVER_GRACE);
        assert_eq!(w.told(), [Told::Opened(3, Err(OpenError::TimedOut))]);
    }
    assert_eq!(w.core.upstream_count(), 3);
}

/// Requests that failed while they waited take no place of others, although no process has become ready
/// since.
#[test]
fn requests_with_exclusions_that_failed_take_no_place() {
    let mut w = World::script(&[A]);
    w.policy(pool(&[A, B]));
    let mut excluded = Excluded::NONE;
    excluded.insert(w.opened(0).server);
    for _ in 0..=EXCLUDING_MAX {
        let deadline = Some(w.now + Duration::from_millis(1));
        assert_eq!(w.open(Upstream { excluded, deadline, ..request(1) }), None);
        w.pass(Duration::from_millis(1));
        assert_eq!(w.told(), [Told::Opened(1, Err(OpenError::TimedOut))]);
    }
    assert_eq!(w.open(Upstream { excluded, ..request(1) }), None);
    w.process(B.into(), 1);
    assert_eq!(w.accept(0).0, u32::from(B));
}

#[test]
fn a_request_is_cancelled_until_it_is_answered() {
    let mut w = World::script(&[]);
    w.policy(pool(&[A]));
    // It waits for a process.
    assert_eq!((w.open(request(1)), w.core.waiting_count()), (None, 1));
    w.request(Request::Cancel(1));
    w.assert_empty();
    w.process(A.into(), 8);
    assert!(w.offers.is_empty());
    // It was offered; the answer crosses.
    assert_eq!(w.open(request(1)), None);
    let (_, label) = w.offers.pop_front().unwrap();
    w.request(Request::Cancel(1));
    assert!(w.served[&label.to_wire()].reset);
    w.says(label, MessageKind::Accepted, 10, &[]);
    w.says(label, MessageKind::Close, 0, &[]);
    w.assert_empty();
    // In the same turn, and the token is free again.
    let both = [Request::Open(request(1)), Request::Cancel(1), Request::Open(request(1))];
    w.core.local_mut().requests.extend(both);
    w.settle();
    assert_eq!(w.core.upstream_count(), 1);
    let label = w.offers.pop_back().unwrap().1;
    w.says(label, MessageKind::Accepted, 10, &[]);
    assert!(matches!(w.told()[..], [Told::Opened(1, Ok(_))]));
    // It was answered.
    w.request(Request::Cancel(1));
    assert_eq!((w.told(), w.core.upstream_count()), (Vec::new(), 1));
}

#[test]
fn a_process_that_dies_before_it_answers_leaves_the_request_to_another() {
    let mut w = World::script(&[A, B]);
    assert_eq!(w.open(request(1)), None);
    let (process, _) = w.offers.pop_front().unwrap();
    w.core.channel_down(w.now, ChannelId(process), true, &mut w.out);
    w.settle();
    assert_ne!(w.accept(0).0, process);
    assert!(matches!(w.told()[..], [Told::Opened(1, Ok(_))]));
}

#[test]
fn traces_of_the_client_and_the_upstream_connection_name_each_other() {
    let mut w = World::script(&[A]);
    w.connect(1_000);
    let client = w.core.local().clients[0];
    assert_eq!(w.open(Upstream { client_flow: client, ..request(9) }), None);
    let (_, label) = w.accept(0);
    let related: Vec<(FlowLabel, u32)> = w
        .core
        .trace()
        .iter()
        .filter(|event| event.kind == TraceKind::Related)
        .map(|event| (event.label, event.aux))
        .collect();
    assert_eq!(related, [(client, label.to_wire()), (label, client.to_wire())]);
    let states: Vec<String> = w.core.flows(w.now, 8).into_iter().map(|flow| flow.state).collect();
    assert_eq!(states, ["Upstream/open", "Established/local"]);
    assert_eq!(w.clients[&1_000].seq, 101, "{PORT}");
}
