//! Connections that are upgraded to another protocol.

use std::time::Duration;

use csp_gateway::spec::{ServiceConfig, Timeouts};
use csp_wire::channel::MessageKind;

use crate::http::{Http, service};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";

fn upgrading() -> ServiceConfig {
    let mut config = service();
    config.rules[0].upgrade = true;
    config
}

#[test]
fn bytes_pass_both_ways_after_an_upgrade() {
    let mut h = Http::new(upgrading());
    let member = h.asks(1_000, ASK);
    assert!(h.hears(member).ends_with("Upgrade: websocket\r\nConnection: upgrade\r\n\r\n"));
    // With bytes behind the head, in both directions.
    h.says(member, format!("{SWITCH}first"));
    assert_eq!(h.reads(1_000), format!("{SWITCH}first"));
    h.send(1_000, "hello");
    assert_eq!(h.hears(member), "hello");
    h.says(member, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\n\r\n", "that is no response any more");
    // The client ends its direction; the member goes on, and ends.
    h.w.client_finishes(1_000);
    assert!(h.w.served[&member.to_wire()].finished);
    h.says(member, "bye");
    assert_eq!(h.reads(1_000), "bye");
    h.w.says(member, MessageKind::Shutdown, 0, &[]);
    assert!(h.w.clients[&1_000].fin && !h.w.clients[&1_000].rst);
    let record = &h.records()[0];
    assert_eq!((record.status, record.code(), record.received, record.sent), (101, "ok", 5, 27));
    assert_eq!(h.gateway().connections(), (0, 0));
    h.assert_no_leak();
}

#[test]
fn the_member_may_end_its_direction_first() {
    let mut h = Http::new(upgrading());
    let member = h.asks(1_000, ASK);
    h.says(member, SWITCH);
    h.w.says(member, MessageKind::Shutdown, 0, &[]);
    assert!(h.w.clients[&1_000].fin);
    h.hears(member);
    h.send(1_000, "still here");
    assert_eq!(h.hears(member), "still here");
    h.w.client_finishes(1_000);
    let served = &h.w.served[&member.to_wire()];
    assert_eq!((served.finished, served.closed, served.reset), (true, true, false));
    assert_eq!(h.gateway().connections(), (0, 0));
    h.assert_no_leak();
}

#[test]
fn a_lost_tunnel_is_seen_at_the_other_end() {
    let mut h = Http::new(upgrading());
    let member = h.asks(1_000, ASK);
    h.says(member, SWITCH);
    h.resets(member);
    assert!(h.w.clients[&1_000].rst);
    let member = h.asks(1_001, ASK);
    h.says(member, SWITCH);
    h.w.segment(1_001, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    assert!(h.w.served[&member.to_wire()].reset);
    let member = h.asks(1_002, ASK);
    h.says(member, SWITCH);
    h.closes(member);
    assert!(h.w.clients[&1_002].fin);
    assert_eq!(h.gateway().connections(), (0, 0));
    h.assert_no_leak();
}

#[test]
fn an_upgrade_that_is_not_permitted_or_not_made_is_a_request() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, ASK);
    assert_eq!(h.hears(member), "GET /chat HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, SWITCH);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    // Other versions of HTTP would carry requests past all rules.
    let mut h = Http::new(upgrading());
    let member = h.asks(1_000, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x, H2C\r\n\r\n");
    assert_eq!(h.hears(member), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut h = Http::new(upgrading());
    let member = h.asks(1_000, ASK);
    h.says(member, "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n");
    h.reads(1_000);
    h.send(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 204 No Content\r\n\r\n");
    h.assert_no_leak();
}

#[test]
fn an_idle_tunnel_ends() {
    let timeouts = Timeouts { tunnel_idle: Duration::from_secs(10), ..Timeouts::default() };
    let mut h = Http::new(ServiceConfig { timeouts, ..upgrading() });
    let member = h.asks(1_000, ASK);
    h.says(member, SWITCH);
    for _ in 0..3 {
        h.w.pass(Duration::from_secs(9));
        h.send(1_000, "ping");
    }
    assert!(!h.w.clients[&1_000].rst);
    h.w.pass(Duration::from_millis(10_002));
    assert!(h.w.clients[&1_000].rst && h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(101, "tunnel-idle")]);
    h.assert_no_leak();
}
