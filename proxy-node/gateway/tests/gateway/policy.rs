//! Policies that change, services that are drained, and what is counted.

use csp_gateway::Records;
use csp_gateway::spec::{Action, RuleConfig, ServiceConfig};
use csp_http::route::{PathSpec, RouteSpec};

use crate::http::{Http, named, service, to_pool};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Of unknown length: it gets a connection of its own.
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Requests in progress continue by the rules by which they began.
#[test]
fn the_next_request_uses_the_new_rules() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    let answer = Action::Answer { status: 200, body: b"new"[..].into(), content_type: "".into() };
    let rule = RuleConfig::new("new", RouteSpec::default(), answer);
    h.set(ServiceConfig { rules: vec![rule], ..named() });
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    assert!(h.w.served[&member.to_wire()].finished, "the pool may have changed");
    h.send(1_000, GET);
    assert!(h.reads(1_000).ends_with("\r\n\r\nnew"));
    h.assert_no_leak();
}

/// Idle connections to members outlast a policy that changes nothing of them.
#[test]
fn idle_connections_to_members_end_with_their_policy() {
    let mut other_rules = service();
    let nowhere = RouteSpec { path: PathSpec::Exact("/nowhere".to_owned()), ..RouteSpec::default() };
    let answer = Action::Answer { status: 200, body: b"new"[..].into(), content_type: "".into() };
    other_rules.rules.push(RuleConfig::new("new", nowhere, answer));
    let mut other_target = service();
    other_target.rules.push(RuleConfig::new(
        "new",
        RouteSpec::default(),
        Action::Forward(vec![("x".into(), 1)]),
    ));
    let mut other_pool = service();
    other_pool.pool.requests_max = 100;
    let changes = [(service(), true), (other_rules, true), (other_target, false), (other_pool, false)];
    for (config, stay) in changes {
        let mut h = Http::new(service());
        let member = h.asks(1_000, GET);
        h.says(member, EMPTY);
        h.set(config);
        let served = &h.w.served[&member.to_wire()];
        assert_eq!((served.finished, served.reset), (!stay, false), "closed, without a reset");
        h.send(1_000, GET);
        let next = if stay { member } else { h.accept() };
        h.says(next, EMPTY);
        assert_eq!(h.reads(1_000), EMPTY.repeat(2));
        h.assert_no_leak();
    }
}

#[test]
fn a_drained_service_ends_its_connections_in_order() {
    let mut h = Http::new(service());
    let idle = h.asks(1_000, GET);
    h.says(idle, EMPTY);
    let member = h.asks(1_001, POST);
    let (now, pool) = (h.w.now, crate::world::pool(&[8001, 8002]));
    h.w.core.set_policy(now, vec![pool], Vec::new(), &mut h.w.out);
    h.w.settle();
    assert!(h.w.clients[&1_000].fin && !h.w.clients[&1_001].fin);
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_001), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(h.w.clients[&1_001].fin);
    h.assert_no_leak();
}

/// The proxy's own drain: the services stay.
#[test]
fn all_clients_of_a_gateway_that_drains_end_in_order() {
    let mut h = Http::new(service());
    let idle = h.asks(1_000, GET);
    h.says(idle, EMPTY);
    let member = h.asks(1_001, POST);
    h.w.connect(1_002);
    h.send(1_002, &GET[..20]);
    let now = h.w.now;
    h.gateway().drain_all(now);
    h.w.settle();
    let is_over = |h: &Http, port: u16| h.w.clients[&port].fin && !h.w.clients[&port].rst;
    assert_eq!([1_000, 1_001, 1_002].map(|port| is_over(&h, port)), [true, false, false]);
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    h.says(member, EMPTY);
    assert_eq!((h.reads(1_001).as_str(), is_over(&h, 1_001)), (last, true));
    // A head that has begun to come is a request, too.
    h.send(1_002, &GET[20..]);
    h.says(idle, EMPTY);
    assert_eq!((h.reads(1_002).as_str(), is_over(&h, 1_002)), (last, true));
    let _ = [idle, member].map(|kept| h.hears(kept));
    // One that comes later is served, and not only once.
    h.w.connect(1_003);
    for _ in 0..2 {
        h.send(1_003, GET);
        let kept = if h.hears(idle).is_empty() { member } else { idle };
        h.says(kept, EMPTY);
        assert_eq!(h.reads(1_003), EMPTY);
    }
    h.assert_no_leak();
}

/// The request of a connection that has just been opened is on its way.
#[test]
fn a_drain_serves_the_first_request_of_a_fresh_connection() {
    let mut h = Http::new(service());
    h.w.connect(1_000);
    let now = h.w.now;
    h.gateway().drain_all(now);
    h.w.settle();
    assert!(!h.w.clients[&1_000].fin);
    h.send(1_000, GET);
    let member = h.accept();
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(h.w.clients[&1_000].fin);
    h.assert_no_leak();
}

#[test]
fn requests_are_counted_by_rule_and_counts_outlast_a_policy() {
    let of_path = |path: &str| RouteSpec { path: PathSpec::Prefix(path.to_owned()), ..RouteSpec::default() };
    let a = RuleConfig::new("a", of_path("/a"), to_pool());
    let b = RuleConfig::new("b", of_path("/b"), to_pool());
    let mut h = Http::new(ServiceConfig { rules: vec![a.clone(), b.clone()], ..service() });
    let member = h.asks(1_000, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, EMPTY);
    h.send(1_000, "GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nabc");
    h.send(1_000, "GET /c HTTP/1.1\r\nHost: a\r\n\r\n");
    let snapshot = h.gateway().snapshot();
    let counters = &snapshot.services[0].1;
    let classes: Vec<[u64; 5]> = counters.rules.iter().map(|rule| rule.by_class).collect();
    assert_eq!(classes, [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]);
    assert_eq!((counters.connections, counters.open, counters.rules[1].sent), (1, 1, 3));
    assert_eq!(counters.rules[0].latency.iter().sum::<u64>(), 1);
    // Another order: the counts follow the names.
    h.set(ServiceConfig { rules: vec![b, a], ..service() });
    let snapshot = h.gateway().snapshot();
    let classes: Vec<[u64; 5]> = snapshot.services[0].1.rules.iter().map(|rule| rule.by_class).collect();
    assert_eq!(classes, [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]);
    h.assert_no_leak();
}

#[test]
fn the_log_says_what_became_of_a_request() {
    let mut h = Http::new(service());
    h.w.connect(1_000);
    h.send(1_000, "GET /a?b=c HTTP/1.1\r\nHost: example.com:80\r\nUser-Agent: agent\r\n");
    h.w.pass(std::time::Duration::from_millis(10));
    h.send(1_000, "Referer: from\r\n\r\n");
    h.w.pass(std::time::Duration::from_millis(20));
    let member = h.accept();
    h.w.pass(std::time::Duration::from_millis(30));
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na");
    h.w.pass(std::time::Duration::from_millis(40));
    h.says(member, "b");
    let record = &h.records()[0];
    let texts = [record.method(), record.host(), record.path(), record.user_agent(), record.referer()];
    assert_eq!(texts, [&b"GET"[..], b"example.com", b"/a?b=c", b"agent", b"from"]);
    assert_eq!((&*record.service, record.rule.as_deref()), ("web", Some("all")));
    let ms = |time: std::time::Duration| time.as_millis();
    let phases = record.phases;
    let times = [phases.head, phases.connect, phases.first_byte.unwrap(), phases.total].map(ms);
    assert_eq!(times, [10, 20, 30, 90]);
    assert_eq!((record.client, record.sent), (([10, 0, 0, 2], 1_000).into(), 2));
    let process = h.w.served[&member.to_wire()].process;
    assert_eq!(record.member, Some(crate::world::member(process as u16)));
    h.assert_no_leak();
}

/// Records that nobody reads are lost, and counted.
#[test]
fn the_log_is_bounded() {
    let mut h = Http::new(named());
    h.w.connect(1_000);
    for _ in 0..200 {
        h.send(1_000, GET.repeat(100));
    }
    let (records, lost) = h.gateway().take_records(Records::default());
    assert_eq!(
        (records.as_slice().len(), lost),
        (csp_gateway::RECORDS_MAX, 20_000 - csp_gateway::RECORDS_MAX as u64)
    );
    let (none, lost) = h.gateway().take_records(records);
    assert_eq!((none.as_slice().len(), lost), (0, 0));
    h.send(1_000, GET);
    assert_eq!(h.codes(), [(404, "no-route")]);
    h.assert_no_leak();
}
