//! Responses that are stored, and requests that need no server.

use std::sync::Arc;
use std::time::Duration;

use csp_cache::freshness::Rules;
use csp_cache::{Purge, Store};
use csp_gateway::spec::{CacheConfig, ServiceConfig};
use csp_types::FlowLabel;

use crate::http::{Http, service};

pub const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
pub const MINUTE: &str =
    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\nhello";
/// The same from the cache, of this age.
pub fn stored(age: u64) -> String {
    MINUTE.replace("Content-Length", &format!("Age: {age}\r\nContent-Length"))
}

pub fn with_cache(mut config: ServiceConfig, cache: CacheConfig) -> ServiceConfig {
    config.rules.iter_mut().for_each(|rule| rule.cache = Some(cache.clone()));
    config
}

pub fn world_of(config: ServiceConfig) -> (Http, Arc<Store>) {
    let mut h = Http::new(config);
    let store = Store::new(4 << 20, 7);
    h.gateway().set_cache(Some(Arc::clone(&store)));
    (h, store)
}

pub fn world(cache: CacheConfig) -> (Http, Arc<Store>) {
    world_of(with_cache(service(), cache))
}

pub fn plain() -> (Http, Arc<Store>) {
    world(CacheConfig::default())
}

/// Has a client connect and ask; returns what it gets without a server.
pub fn hit(h: &mut Http, port: u16, request: &str) -> String {
    h.w.connect(port);
    h.send(port, request);
    h.reads(port)
}

/// Has a client connect and ask, and the server, at its kept connection, respond; returns what the server
/// got.
pub fn fill(
    h: &mut Http,
    (port, member): (u16, Option<FlowLabel>),
    request: &str,
    response: &str,
) -> (FlowLabel, String) {
    h.w.connect(port);
    h.send(port, request);
    let member = member.unwrap_or_else(|| h.accept());
    let heard = h.hears(member);
    h.says(member, response);
    (member, heard)
}

#[test]
fn a_fresh_response_needs_no_server() {
    let (mut h, store) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    assert_eq!(h.reads(1_000), MINUTE);
    h.send(1_000, GET);
    assert_eq!(h.reads(1_000), stored(0));
    h.w.pass(Duration::from_secs(30));
    assert_eq!(hit(&mut h, 1_001, GET), stored(30));
    assert_eq!(hit(&mut h, 1_002, &GET.replace("GET", "HEAD")), stored(30).replace("hello", ""));
    assert_eq!(hit(&mut h, 1_003, "GET http://A/x/../%61 HTTP/1.1\r\nHost: a\r\n\r\n"), stored(30));
    assert!(hit(&mut h, 1_004, &GET.replace("1.1", "1.0")).contains("Connection: close"));
    let results: Vec<_> = h.records().iter().map(|record| record.cache.unwrap().name()).collect();
    assert_eq!(results, ["miss", "hit", "hit", "hit", "hit", "hit"]);
    let (_, counters) = h.gateway().snapshot().services.remove(0);
    assert_eq!((counters.rules[0].by_cache, counters.rules[0].cached), ([5, 1, 0, 0, 0, 0], 20));
    assert_eq!(store.status().objects, 1);
    // Other keys.
    for (port, other) in
        [(1_010, "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n"), (1_011, "GET /a HTTP/1.1\r\nHost: b\r\n\r\n")]
    {
        assert_eq!(hit(&mut h, port, other), "", "the server is asked");
    }
    h.assert_no_leak();
}

#[test]
fn a_stored_response_answers_conditions_and_ranges() {
    let (mut h, _) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    let asks = |h: &mut Http, port, fields: &str| {
        hit(h, port, &format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"))
    };
    let not_modified =
        "HTTP/1.1 304 Not Modified\r\nCache-Control: max-age=60\r\nETag: \"1\"\r\nAge: 0\r\n\r\n";
    assert_eq!(asks(&mut h, 1_001, "If-None-Match: \"0\", \"1\""), not_modified);
    h.send(1_001, GET);
    assert_eq!(h.reads(1_001), stored(0), "the connection goes on");
    let range = asks(&mut h, 1_002, "Range: bytes=1-3");
    assert!(range.starts_with("HTTP/1.1 206 Partial Content\r\n"), "{range}");
    assert!(
        range.ends_with("Age: 0\r\nContent-Range: bytes 1-3/5\r\nContent-Length: 3\r\n\r\nell"),
        "{range}"
    );
    let none = asks(&mut h, 1_003, "Range: bytes=5-");
    assert!(none.starts_with("HTTP/1.1 416 ") && none.contains("Content-Range: bytes */5\r\n"), "{none}");
    assert!(none.ends_with("Content-Length: 0\r\n\r\n"), "{none}");
    assert!(!none.contains("Cache-Control") && !none.contains("ETag"), "{none}");
    assert_eq!(asks(&mut h, 1_004, "Range: bytes=1-3\r\nIf-Range: \"0\""), stored(0));
    h.assert_no_leak();
}

/// A miss that asks for a part goes on as it is; of a request that fills, servers get no condition.
#[test]
fn servers_get_no_conditions_of_clients() {
    let (mut h, _) = plain();
    let asked = "GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nIf-Range: \"1\"\r\n\r\n";
    let part = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/5\r\nContent-Length: 2\r\n\r\nhe";
    let (member, heard) = fill(&mut h, (1_000, None), asked, part);
    assert!(heard.contains("Range: bytes=0-1\r\n"), "{heard}");
    assert_eq!(h.reads(1_000), part);
    let asked = "GET /a HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"1\"\r\nIf-Modified-Since: x\r\nA: b\r\n\r\n";
    let (_, heard) = fill(&mut h, (1_001, Some(member)), asked, MINUTE);
    assert_eq!(heard, "GET /a HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n");
    assert_eq!(h.reads(1_001), MINUTE);
    assert_eq!(hit(&mut h, 1_002, GET), stored(0));
    h.assert_no_leak();
}

#[test]
fn one_request_asks_for_many() {
    let (mut h, _) = plain();
    let ports = 1_001..1_005;
    let member = h.asks(1_000, GET);
    for port in ports.clone() {
        assert_eq!(hit(&mut h, port, GET), "");
    }
    h.hears(member);
    let (head, rest) = MINUTE.split_at(MINUTE.len() - 3);
    h.says(member, head);
    assert!(ports.clone().all(|port| h.reads(port).is_empty()), "the response is not complete");
    h.says(member, rest);
    for port in ports {
        assert_eq!(h.reads(port), stored(0));
    }
    assert_eq!(h.gateway().snapshot().upstreams.opened, 1);
    h.assert_no_leak();
}

/// The client that has begun the request to the server goes, or the server does: the next one asks.
#[test]
fn a_fill_that_fails_is_begun_again() {
    for by_client in [true, false] {
        let (mut h, store) = plain();
        let member = h.asks(1_000, GET);
        assert_eq!(hit(&mut h, 1_001, GET), "");
        assert_eq!(hit(&mut h, 1_002, GET), "");
        h.says(member, &MINUTE[..MINUTE.len() - 2]);
        match by_client {
            true => h.w.segment(1_000, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]),
            false => h.resets(member),
        }
        assert_eq!((store.status().objects, store.status().filling), (0, 0), "a part is never stored");
        let member = h.accept();
        h.says(member, MINUTE);
        let got = (h.reads(1_001), h.reads(1_002));
        assert!(got == (MINUTE.into(), stored(0)) || got == (stored(0), MINUTE.into()), "{got:?}");
        if by_client {
            h.w.clients.get_mut(&1_000).unwrap().rst = true;
        }
        h.assert_no_leak();
    }
}

#[test]
fn what_is_not_stored_keeps_nobody_waiting() {
    let (mut h, store) = plain();
    let first = h.asks(1_000, GET);
    assert_eq!(hit(&mut h, 1_001, GET), "");
    assert_eq!(hit(&mut h, 1_002, GET), "");
    let private = "HTTP/1.1 200 OK\r\nCache-Control: private\r\nContent-Length: 1\r\n\r\n";
    h.says(first, private);
    let (second, third) = (h.accept(), h.accept());
    assert_eq!(hit(&mut h, 1_003, GET), "");
    let fourth = h.accept();
    h.says(first, "x");
    [second, third, fourth].iter().for_each(|member| h.says(*member, format!("{private}x")));
    for port in 1_000..1_004 {
        let text = h.reads(port);
        assert!(text.ends_with("\r\n\r\nx"), "{port}: {text}");
    }
    assert_eq!(store.status().objects, 0);
    h.assert_no_leak();
}

/// After five seconds a request asks the server itself, after thirty another one stores.
#[test]
fn a_slow_server_holds_others_for_five_seconds() {
    let (mut h, store) = plain();
    let slow = h.asks(1_000, GET);
    assert_eq!(hit(&mut h, 1_001, GET), "");
    h.w.pass(Duration::from_secs(6));
    let other = h.accept();
    h.says(other, MINUTE);
    assert_eq!(h.reads(1_001), MINUTE);
    assert_eq!(hit(&mut h, 1_002, GET), stored(1), "it is stored, too: the server took a second");
    h.says(slow, MINUTE);
    assert_eq!(h.reads(1_000), MINUTE);
    assert_eq!(store.status().objects, 1);
    h.assert_no_leak();
}

#[test]
fn a_stale_response_is_validated() {
    let (mut h, store) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    h.w.pass(Duration::from_secs(61));
    let asked = "GET /a HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"0\"\r\n\r\n";
    h.w.connect(1_001);
    h.send(1_001, asked);
    let member = h.accept();
    assert_eq!(h.hears(member), "GET /a HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"1\"\r\n\r\n");
    h.says(member, "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nCache-Control: max-age=90\r\n\r\n");
    let text = h.reads(1_001);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("max-age=90\r\n"), "{text}");
    assert!(text.ends_with("Age: 0\r\nContent-Length: 5\r\n\r\nhello"), "{text}");
    h.w.pass(Duration::from_secs(80));
    assert!(hit(&mut h, 1_002, GET).contains("Age: 80\r\n"));
    h.w.pass(Duration::from_secs(11));
    // Another one has come.
    h.w.connect(1_003);
    h.send(1_003, GET);
    let member = h.accept();
    let new = MINUTE.replace("hello", "other");
    h.says(member, &new);
    assert_eq!(h.reads(1_003), new);
    assert!(hit(&mut h, 1_004, GET).ends_with("other"));
    let results: Vec<_> = h.records().iter().map(|record| record.cache.unwrap().name()).collect();
    assert_eq!(results, ["miss", "revalidated", "hit", "expired", "hit"]);
    assert_eq!(store.status().objects, 1);
    h.assert_no_leak();
}

/// The member's connection is kept after 304.
#[test]
fn a_validation_leaves_the_connection() {
    let (mut h, _) = plain();
    let now = MINUTE.replace("max-age=60", "no-cache");
    let (member, _) = fill(&mut h, (1_000, None), GET, &now);
    for port in 1_001..1_004 {
        let (_, heard) =
            fill(&mut h, (port, Some(member)), GET, "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n");
        assert!(heard.contains("If-None-Match: \"1\"\r\n"), "{heard}");
        assert!(h.reads(port).ends_with("hello"));
    }
    assert_eq!(h.gateway().snapshot().upstreams.opened, 1);
    h.assert_no_leak();
}

#[test]
fn stale_responses_cover_failures_of_servers() {
    let rules = Rules { stale_if_error: 600, stale_while_revalidate: 5, ..Rules::default() };
    let (mut h, store) = world(CacheConfig { rules, reports: true, ..CacheConfig::default() });
    fill(&mut h, (1_000, None), GET, MINUTE);
    assert!(h.reads(1_000).contains("Cache-Status: csp; fwd=miss; stored\r\n"));
    h.w.pass(Duration::from_secs(62));
    // While one asks, others get the stale one.
    let member = h.asks(1_001, GET);
    let text = hit(&mut h, 1_002, GET);
    assert!(text.contains("Age: 62\r\nCache-Status: csp; hit; ttl=0\r\n"), "{text}");
    h.says(member, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nno!");
    assert!(h.reads(1_001).ends_with("hello"));
    // The server cannot be reached.
    h.w.pass(Duration::from_secs(30));
    let member = h.asks(1_003, GET);
    h.resets(member);
    let member = h.accept();
    h.resets(member);
    let text = h.reads(1_003);
    assert!(text.ends_with("hello") && text.contains("Age: 92\r\n"), "{text}");
    let results: Vec<_> = h.records().iter().map(|r| (r.cache.unwrap().name(), r.code(), r.status)).collect();
    assert_eq!(
        results,
        [("miss", "ok", 200), ("stale", "ok", 200), ("stale", "ok", 200), ("stale", "ok", 200)]
    );
    assert_eq!(store.status().objects, 1);
    // Without an error what the server says counts: it is stored no more.
    let member = h.asks(1_004, GET);
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
    assert!(h.reads(1_004).ends_with("x"));
    assert_eq!(store.status().objects, 0);
    h.assert_no_leak();
}

#[test]
fn requests_that_change_something_invalidate() {
    let (mut h, store) = plain();
    let (member, _) = fill(&mut h, (1_000, None), GET, MINUTE);
    // Of unknown length: it gets a connection of its own.
    let put =
        |path: &str| format!("PUT {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    let mut port = 1_010;
    for (path, status, left) in [("/b", 200, 1), ("/a", 500, 1), ("/a", 204, 0)] {
        port += 1;
        h.w.connect(port);
        h.send(port, put(path));
        let other = h.accept();
        let length = if status == 204 { "" } else { "Content-Length: 0\r\n" };
        h.says(other, format!("HTTP/1.1 {status} X\r\n{length}\r\n"));
        assert!(h.reads(port).starts_with(&format!("HTTP/1.1 {status} ")));
        assert_eq!(store.status().objects, left, "{path} {status}");
    }
    // A response that was on its way is not stored.
    h.w.connect(1_001);
    h.send(1_001, GET);
    h.hears(member);
    h.w.connect(1_002);
    h.send(1_002, put("/a"));
    let other = h.accept();
    h.says(other, "HTTP/1.1 204 X\r\n\r\n");
    assert!(h.reads(1_002).starts_with("HTTP/1.1 204 "));
    store.purge(&Purge::Tag("none"));
    h.w.settle();
    h.assert_no_leak();
    assert_eq!(store.status().objects, 0);
}
