//! Times: who keeps an exchange waiting, and what becomes of it.

use std::time::Duration;

use csp_gateway::spec::{ServiceConfig, Timeouts};

use crate::http::{Http, service};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

const SECOND: Duration = Duration::from_secs(1);
const ALMOST: Duration = Duration::from_millis(999);
const MOMENT: Duration = Duration::from_millis(2);

fn times() -> Timeouts {
    Timeouts {
        head: SECOND,
        body_idle: 2 * SECOND,
        connect: 3 * SECOND,
        response: 4 * SECOND,
        idle: 5 * SECOND,
        upstream_idle: 6 * SECOND,
        tunnel_idle: 7 * SECOND,
        total: Duration::ZERO,
    }
}

fn http() -> Http {
    Http::new(ServiceConfig { timeouts: times(), retries: 0, ..service() })
}

#[test]
fn a_head_has_to_come_in_time() {
    let mut h = http();
    h.w.connect(1_000);
    h.send(1_000, "GET / HT");
    h.w.pass(ALMOST);
    h.send(1_000, "TP/1.1\r\nHost:");
    assert_eq!(h.reads(1_000), "");
    h.w.pass(MOMENT);
    let answer = h.reads(1_000);
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n") && answer.contains("Connection: close"));
    assert!(h.w.clients[&1_000].fin);
    // Without a byte the connection is closed in silence.
    h.w.connect(1_001);
    h.w.pass(SECOND + MOMENT);
    assert_eq!((h.reads(1_001), h.w.clients[&1_001].fin), (String::new(), true));
    assert_eq!(h.codes(), [(408, "head-timeout")]);
    h.assert_no_leak();
}

#[test]
fn idle_connections_of_both_sides_end() {
    let mut h = http();
    let member = h.asks(1_000, GET);
    h.says(member, EMPTY);
    h.w.pass(5 * SECOND - MOMENT);
    h.send(1_000, GET);
    h.says(member, EMPTY);
    h.w.pass(5 * SECOND - MOMENT);
    assert!(!h.w.clients[&1_000].fin, "its time begins with each response");
    h.w.pass(2 * MOMENT);
    assert!(h.w.clients[&1_000].fin && !h.w.clients[&1_000].rst);
    assert!(!h.w.served[&member.to_wire()].finished);
    h.w.pass(SECOND);
    assert!(h.w.served[&member.to_wire()].finished);
    h.assert_no_leak();
}

#[test]
fn the_rest_of_a_request_has_to_come_in_time() {
    let mut h = http();
    let member = h.asks(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nab");
    for _ in 0..3 {
        h.w.pass(SECOND + ALMOST);
        h.send(1_000, "c");
    }
    assert_eq!(h.reads(1_000), "");
    h.w.pass(2 * SECOND + MOMENT);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    assert!(h.w.served[&member.to_wire()].reset && h.w.clients[&1_000].fin);
    assert_eq!(h.codes(), [(408, "body-timeout")]);
    h.assert_no_leak();
}

/// A member that does not read the body is to blame for it, not the client.
#[test]
fn a_member_that_reads_nothing_is_to_blame() {
    let mut h = http();
    h.room = 200;
    let member = h.asks(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    h.send(1_000, vec![b'x'; 900]);
    h.w.pass(2 * SECOND + MOMENT);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
    assert!(h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(504, "member-stalled")]);
    h.assert_no_leak();
}

#[test]
fn a_response_has_to_begin_in_time() {
    let mut h = http();
    let member = h.asks(1_000, GET);
    h.w.pass(4 * SECOND - MOMENT);
    assert_eq!(h.reads(1_000), "");
    h.w.pass(2 * MOMENT);
    let answer = h.reads(1_000);
    assert!(answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n") && !answer.contains("Connection: close"));
    assert!(h.w.served[&member.to_wire()].reset);
    // The connection goes on.
    h.send(1_000, GET);
    let member = h.accept();
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    assert_eq!(h.codes(), [(504, "response-timeout"), (200, "ok")]);
    h.assert_no_leak();
}

#[test]
fn a_connection_has_to_be_accepted_in_time() {
    let mut h = http();
    h.w.connect(1_000);
    h.send(1_000, GET);
    h.w.pass(3 * SECOND + MOMENT);
    let answer = h.reads(1_000);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After"), "{answer}");
    assert_eq!(h.codes(), [(503, "connect-timeout")]);
    h.assert_no_leak();
}

#[test]
fn the_rest_of_a_response_has_to_come_in_time() {
    let mut h = http();
    let member = h.asks(1_000, GET);
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab");
    h.w.pass(SECOND + ALMOST);
    h.says(member, "c");
    h.w.pass(SECOND + ALMOST);
    assert!(!h.w.clients[&1_000].fin);
    h.w.pass(MOMENT);
    assert!(h.w.clients[&1_000].fin && h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(200, "member-stalled")]);
    h.assert_no_leak();
}

#[test]
fn a_client_that_reads_nothing_is_cut() {
    let mut h = http();
    let member = h.asks(1_000, GET);
    h.w.clients.get_mut(&1_000).unwrap().stalled = true;
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    while h.w.sends(member, &[b'x'; 10_000]) > 0 {}
    h.w.pass(2 * SECOND + MOMENT);
    assert!(h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(200, "client-stalled")]);
    h.w.pass(10 * SECOND);
    assert_eq!(h.gateway().connections(), (0, 0));
    h.assert_no_leak();
}

#[test]
fn an_exchange_has_a_time_in_all() {
    let timeouts = Timeouts { total: 3 * SECOND, connect: Duration::ZERO, ..times() };
    let mut h = Http::new(ServiceConfig { timeouts, ..service() });
    // It waits for a member.
    h.w.connect(1_000);
    h.send(1_000, GET);
    h.w.pass(3 * SECOND + MOMENT);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
    let offers = std::mem::take(&mut h.w.offers); // it was offered to one member after the other
    assert!(offers.iter().all(|(_, label)| h.w.served[&label.to_wire()].reset));
    // A response that trickles.
    h.send(1_000, GET);
    let member = h.accept();
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    for _ in 0..4 {
        h.w.pass(SECOND - MOMENT);
        if !h.w.served[&member.to_wire()].reset {
            h.says(member, "a");
        }
    }
    let (reset, client) = (h.w.served[&member.to_wire()].reset, &h.w.clients[&1_000]);
    assert_eq!((reset, client.fin, client.rst), (true, true, false));
    assert_eq!(h.codes(), [(504, "total-timeout"), (200, "total-timeout")]);
    h.assert_no_leak();
}

/// After FIN a client may send for some time, and then its connection is over.
#[test]
fn a_connection_lingers_within_bounds() {
    let mut h = http();
    h.w.connect(1_000);
    h.send(1_000, "nonsense\r\n\r\n");
    assert!(h.w.clients[&1_000].fin);
    h.send(1_000, "more of it");
    assert!(!h.w.clients[&1_000].rst, "it can read the answer");
    assert_eq!(h.gateway().connections().0, 1);
    h.w.pass(6 * SECOND);
    assert_eq!(h.gateway().connections().0, 0);
    h.assert_no_leak();
}
