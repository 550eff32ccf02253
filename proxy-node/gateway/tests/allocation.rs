//! Requests over connections that exist allocate nothing, once lists and buffers have their size.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "gateway/http.rs"]
#[allow(dead_code, reason = "another test asks for more")]
mod http;
#[path = "../../core/tests/upstream/world.rs"]
#[allow(dead_code, reason = "another test asks for more")]
mod world;

use csp_filters::{Act, Key, Limit, RateSpec, RuleSpec, Spec};
use csp_gateway::Records;
use csp_gateway::spec::{PoolOptions, Reuse, ServiceConfig};
use csp_http::forward::OriginFields;
use csp_http::route::{PathSpec, RouteSpec};
use csp_support::allocation;

use http::{Http, service};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Filters that all requests pass.
fn filters() -> Spec {
    let of = RouteSpec { path: PathSpec::Prefix("/admin".to_owned()), ..RouteSpec::default() };
    let any = |act| RuleSpec { of: RouteSpec::default(), act };
    let rate = RateSpec { requests: 100_000, period_s: 1, burst: 100_000 };
    let rules = vec![
        RuleSpec { of, act: Act::Deny(404) },
        any(Act::Rate(Limit { key: Key::Source, of: rate, entries: 64 })),
        any(Act::Concurrent(Limit { key: Key::Header("User-Agent".to_owned()), of: 9, entries: 64 })),
    ];
    Spec { rules, ..Spec::default() }
}

#[test]
fn a_request_over_connections_that_exist_allocates_nothing() {
    let pool = PoolOptions { reuse: Reuse::Always, ..PoolOptions::default() };
    let origin = OriginFields { x_forwarded: true, forwarded: false };
    let config =
        ServiceConfig { pool, origin, trace: true, request_id: true, filters: filters(), ..service() };
    let mut h = Http::new(config);
    h.w.connect(1_000);
    let body = "x".repeat(2_000);
    let chunked = format!("7d0\r\n{body}\r\n0\r\n\r\n");
    let fields = "Host: a\r\nUser-Agent: agent\r\nAccept: */*\r\n";
    let exchanges = [
        (format!("GET /a?b HTTP/1.1\r\n{fields}\r\n"), "HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
        (
            format!("POST / HTTP/1.1\r\n{fields}Content-Length: 2000\r\n\r\n{body}"),
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n{body}"),
        ),
        (
            format!("PUT / HTTP/1.1\r\n{fields}Transfer-Encoding: chunked\r\n\r\n{chunked}"),
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}"),
        ),
    ];
    let mut allocations = Vec::new();
    let (mut member, mut records) = (None, Records::default());
    for _ in 0..200 {
        let before = h.w.allocations - h.w.out.allocations;
        for (request, response) in &exchanges {
            h.send(1_000, request);
            let member = *member.get_or_insert_with(|| h.w.accept(1 << 20).1);
            h.hears(member);
            h.says(member, response);
            assert_eq!(h.reads(1_000), *response);
        }
        (records, _) = h.gateway().take_records(records);
        allocations.push(h.w.allocations - h.w.out.allocations - before);
    }
    assert_eq!(h.gateway().snapshot().upstreams.opened, 1, "one connection for all");
    assert_eq!(allocations[100..], [0; 100], "{allocations:?}");
}

/// A response from the cache: its head is written into memory of the worker, its body into the connection's.
#[test]
fn a_response_from_the_cache_allocates_nothing() {
    let mut config = service();
    config.rules.iter_mut().for_each(|rule| rule.cache = Some(csp_gateway::spec::CacheConfig::default()));
    let mut h = Http::new(config);
    h.gateway().set_cache(Some(csp_cache::Store::new(1 << 20, 7)));
    let request = "GET /a?b HTTP/1.1\r\nHost: a\r\nUser-Agent: agent\r\nAccept: */*\r\n\r\n";
    let body = "x".repeat(2_000);
    let member = h.asks(1_000, request);
    h.says(
        member,
        format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2000\r\n\r\n{body}"),
    );
    assert!(h.reads(1_000).ends_with(&body));
    let (mut allocations, mut records) = (Vec::new(), Records::default());
    for _ in 0..200 {
        let before = h.w.allocations - h.w.out.allocations;
        h.send(1_000, request);
        assert!(h.reads(1_000).ends_with(&body));
        (records, _) = h.gateway().take_records(records);
        allocations.push(h.w.allocations - h.w.out.allocations - before);
    }
    assert_eq!(allocations[100..], [0; 100], "{allocations:?}");
}
