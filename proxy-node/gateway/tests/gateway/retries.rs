//! Requests that are sent again, and those that are not.

use csp_gateway::spec::{PoolOptions, Reuse, ServiceConfig};
use csp_wire::channel::MessageKind;

use crate::http::{A, Http, service};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Has the process refuse the oldest offer; returns it.
fn refuse(h: &mut Http) -> u32 {
    let (process, label) = h.w.offers.pop_front().expect("it was offered");
    h.w.says(label, MessageKind::Refused, 0, &[]);
    process
}

#[test]
fn a_refused_connection_is_tried_at_another_member_even_for_post() {
    let mut h = Http::new(service());
    h.w.connect(1_000);
    h.send(1_000, POST);
    let first = refuse(&mut h);
    let (second, label) = h.w.accept(1 << 20);
    assert_ne!(first, second);
    assert!(h.hears(label).ends_with("\r\n\r\nab"), "with its body");
    h.says(label, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    let records = h.records();
    assert_eq!((records[0].attempts, records[0].code()), (2, "ok"));
    assert_eq!(h.gateway().snapshot().services[0].1.rules[0].retries, 1);
    // All refuse.
    h.send(1_000, CHUNKED);
    refuse(&mut h);
    refuse(&mut h);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    assert_eq!(h.codes(), [(502, "member-refused")]);
    h.assert_no_leak();
}

#[test]
fn with_one_member_a_refusal_is_answered() {
    let mut h = Http::with_members(service(), &[A]);
    h.w.connect(1_000);
    h.send(1_000, GET);
    refuse(&mut h);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    assert_eq!(h.codes(), [(502, "member-refused")], "not that no other member is left");
    h.assert_no_leak();
}

/// The kept connection closes before the request: a fresh one is used, whatever the method is.
#[test]
fn a_kept_connection_that_has_closed_is_not_used() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, EMPTY);
    h.closes(member);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 0);
    h.reads(1_000);
    h.send(1_000, POST);
    let member = h.accept();
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

/// The kept connection closes while the request is on its way: neither a 502, nor a second kept connection
/// that may have closed, too.
#[test]
fn a_kept_connection_that_closes_under_a_request_is_replaced() {
    let mut h = Http::new(service());
    // Two kept connections.
    let first = h.asks(1_000, GET);
    let second = h.asks(1_001, GET);
    h.says(first, EMPTY);
    h.says(second, EMPTY);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 2);
    h.reads(1_000);
    h.send(1_000, GET);
    assert_eq!(h.hears(first), GET.repeat(2), "that which was idle longest");
    h.closes(first);
    let third = h.accept();
    assert_eq!((h.hears(third), h.hears(second)), (GET.to_owned(), GET.to_owned()));
    h.says(third, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    assert_eq!(h.gateway().snapshot().upstreams.stale, 1);
    h.assert_no_leak();
}

/// A request that must not be sent again, and is not kept, does not use a connection that may turn out
/// closed.
#[test]
fn a_post_of_unknown_length_gets_a_fresh_connection() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, EMPTY);
    h.send(1_000, CHUNKED);
    let fresh = h.accept();
    assert_eq!(h.hears(member), GET);
    h.says(fresh, EMPTY);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 2, "and is kept afterwards");
    h.assert_no_leak();
}

#[test]
fn a_post_on_a_kept_connection_is_never_done_twice() {
    let pool = PoolOptions { reuse: Reuse::Always, ..PoolOptions::default() };
    let mut h = Http::new(ServiceConfig { pool, ..service() });
    let member = h.asks(1_000, GET);
    h.says(member, EMPTY);
    h.reads(1_000);
    h.send(1_000, POST);
    assert!(h.hears(member).ends_with("ab"));
    h.closes(member);
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    h.assert_no_leak();
}

#[test]
fn what_a_member_may_have_done_is_repeated_only_if_idempotent() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.resets(member);
    let other = h.accept();
    assert_eq!(h.hears(other), GET);
    assert_ne!(h.w.served[&member.to_wire()].process, h.w.served[&other.to_wire()].process);
    // No more than the retries.
    h.resets(other);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    // POST.
    h.send(1_000, POST);
    let member = h.accept();
    h.resets(member);
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    // PUT, of whose body a part was passed on and is not kept.
    h.send(1_000, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 16385\r\n\r\nab");
    let member = h.accept();
    h.resets(member);
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    // A response has begun.
    h.w.connect(1_001);
    h.send(1_001, GET);
    let member = h.accept();
    h.says(member, "HTTP/1.1 200 OK\r\nCont");
    h.closes(member);
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_001).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    let codes = [(502, "member-closed"); 3];
    assert_eq!(h.codes(), [&codes[..], &[(502, "truncated-head")]].concat());
    h.assert_no_leak();
}

/// A body that was not touched is sent to the next member, as it waits at the client's connection.
#[test]
fn a_put_with_expect_goes_to_another_member_before_its_body() {
    let mut h = Http::new(service());
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let member = h.asks(1_000, head);
    h.resets(member);
    let other = h.accept();
    assert!(h.hears(other).contains("Expect"));
    h.says(other, "HTTP/1.1 100 Continue\r\n\r\n");
    h.send(1_000, "ab");
    assert_eq!(h.hears(other), "ab");
    h.says(other, EMPTY);
    assert!(h.reads(1_000).ends_with(EMPTY));
    h.assert_no_leak();
}

#[test]
fn a_pool_without_a_server_or_room_is_answered_with_503() {
    let mut h = Http::with_members(service(), &[]);
    h.w.connect(1_000);
    h.send(1_000, GET);
    let answer = h.reads(1_000);
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 1\r\n") && !answer.contains("Connection: close"));
    // A member without a process: when the time has passed.
    h.w.policy(crate::world::pool(&[A]));
    h.send(1_000, GET);
    assert_eq!(h.reads(1_000), "");
    h.w.pass(std::time::Duration::from_secs(30));
    assert!(h.reads(1_000).starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    // The table of upstream connections is full.
    h.w.process(A.into(), 64);
    for port in 1_001..1_009 {
        h.asks(port, GET);
    }
    h.send(1_000, GET);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    let codes = h.codes();
    assert_eq!(codes, [(503, "no-server"), (503, "no-server"), (503, "no-room")]);
    h.assert_no_leak();
}

#[test]
fn kept_connections_are_bounded_in_number_and_requests() {
    let pool = PoolOptions { idle_max: 1, requests_max: 2, ..PoolOptions::default() };
    let mut h = Http::new(ServiceConfig { pool, ..service() });
    let first = h.asks(1_000, GET);
    let second = h.asks(1_001, GET);
    h.says(first, EMPTY);
    h.says(second, EMPTY);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 1);
    assert!(h.w.served[&second.to_wire()].finished, "closed, without a reset");
    h.send(1_000, GET);
    h.says(first, EMPTY);
    assert!(h.w.served[&first.to_wire()].finished, "after two requests");
    assert_eq!(h.gateway().snapshot().upstreams.idle, 0);
    h.assert_no_leak();
}

/// A kept connection serves several clients, so a program must not take the first one for its peer.
#[test]
fn a_program_sees_its_client_s_address_only_where_no_connection_is_kept() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    assert_eq!(h.w.served[&member.to_wire()].peer, Some((crate::world::VIP, 1_000).into()));
    h.says(member, EMPTY);
    h.assert_no_leak();
    let pool = PoolOptions { idle_max: 0, ..PoolOptions::default() };
    let mut h = Http::new(ServiceConfig { pool, ..service() });
    let member = h.asks(1_000, GET);
    assert_eq!(h.w.served[&member.to_wire()].peer, Some((crate::world::CLIENT, 1_000).into()));
    h.says(member, EMPTY);
    assert!(h.w.served[&member.to_wire()].finished);
    h.assert_no_leak();
}

/// A member that ends its connections after each response is taken at its word.
#[test]
fn a_connection_that_its_member_does_not_keep_is_closed() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(h.reads(1_000), EMPTY);
    assert!(h.w.served[&member.to_wire()].finished);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 0);
    h.assert_no_leak();
}

/// Idle connections do not take the room of requests that need fresh ones.
#[test]
fn an_idle_connection_makes_room() {
    let mut h = Http::new(service());
    let members: Vec<_> = (1_000..1_008).map(|port| h.asks(port, GET)).collect();
    members.iter().for_each(|member| h.says(*member, EMPTY));
    assert_eq!(h.gateway().snapshot().upstreams.idle, 8, "the table is full");
    h.reads(1_000);
    h.send(1_000, CHUNKED);
    let fresh = h.accept();
    h.says(fresh, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    assert!(h.w.served[&members[0].to_wire()].reset, "that which was idle longest");
    h.assert_no_leak();
}

#[test]
fn a_target_that_is_no_pool_is_answered_with_503() {
    let mut config = service();
    config.rules[0].action = csp_gateway::spec::Action::Forward(vec![("nowhere".into(), 1)]);
    let mut h = Http::new(config);
    h.w.connect(1_000);
    h.send(1_000, GET);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 503 "));
    assert_eq!(h.codes(), [(503, "no-server")]);
    h.assert_no_leak();
}
