//! Clients and servers that would have others wait, or get what is not for them.

use std::sync::Arc;
use std::time::Duration;

use csp_cache::freshness::Rules;
use csp_gateway::spec::{CacheConfig, ServiceConfig, Timeouts};

use crate::cache::{GET, MINUTE, fill, hit, plain, stored, with_cache, world_of};
use crate::http::service;
use crate::http2::{Client, Got, http2};

const PRIVATE: &str = "HTTP/1.1 200 OK\r\nCache-Control: private\r\nContent-Length: 0\r\n\r\n";

fn is_hello(got: &Got) -> bool {
    got.done && got.body == b"hello"
}

/// The fill is one of another worker: nobody wakes those that wait.
#[test]
fn a_stream_gets_what_another_worker_has_stored() {
    let config = with_cache(http2(), CacheConfig::default());
    let (mut other, store) = world_of(config.clone());
    let (mut h, _) = world_of(config);
    h.gateway().set_cache(Some(Arc::clone(&store)));
    let member = other.asks(1_000, GET);
    let mut client = Client::connect(&mut h, 1_001);
    let stream = client.ask(&mut h, GET, true);
    h.w.pass(Duration::from_millis(50));
    client.run(&mut h);
    assert!(!client.got.contains_key(&stream), "it waits");
    other.says(member, MINUTE);
    h.w.pass(Duration::from_millis(200));
    client.run(&mut h);
    assert!(is_hello(&client.got[&stream]), "{:?}", client.got[&stream]);
    assert_eq!(h.gateway().snapshot().upstreams.opened, 0);
    h.assert_no_leak();
    other.assert_no_leak();
}

#[test]
fn a_stream_that_has_waited_asks_over_a_kept_connection() {
    let (mut h, _) = world_of(with_cache(http2(), CacheConfig::default()));
    let slow = h.asks(1_000, GET);
    let (kept, _) = fill(&mut h, (1_001, None), "GET /b HTTP/1.1\r\nHost: a\r\n\r\n", PRIVATE);
    let mut client = Client::connect(&mut h, 1_002);
    let stream = client.ask(&mut h, GET, true);
    h.w.pass(Duration::from_secs(6));
    assert!(h.hears(kept).starts_with("GET /a "));
    h.says(kept, MINUTE);
    client.run(&mut h);
    assert!(is_hello(&client.got[&stream]), "{:?}", client.got[&stream]);
    h.says(slow, MINUTE);
    assert_eq!(h.reads(1_000), MINUTE);
    h.assert_no_leak();
}

#[test]
fn a_stream_gets_a_stale_response_of_a_server_that_is_silent() {
    let rules = Rules { stale_if_error: 600, ..Rules::default() };
    let timeouts = Timeouts { response: Duration::from_secs(5), ..Timeouts::default() };
    let config = ServiceConfig { timeouts, ..http2() };
    let (mut h, _) = world_of(with_cache(config, CacheConfig { rules, ..CacheConfig::default() }));
    fill(&mut h, (1_000, None), GET, MINUTE);
    h.w.pass(Duration::from_secs(61));
    let mut client = Client::connect(&mut h, 1_001);
    let stream = client.ask(&mut h, GET, true);
    for _ in 0..3 {
        h.w.pass(Duration::from_secs(6));
        client.run(&mut h);
    }
    assert!(is_hello(&client.got[&stream]), "{:?}", client.got[&stream]);
    h.assert_no_leak();
}

/// What is validated before each use is validated by all at once.
#[test]
fn validations_do_not_wait_for_each_other() {
    let (mut h, _) = plain();
    let each = MINUTE.replace("max-age=60", "no-cache");
    let (kept, _) = fill(&mut h, (1_000, None), GET, &each);
    h.w.connect(1_001);
    h.send(1_001, GET);
    assert!(h.hears(kept).contains("If-None-Match: \"1\"\r\n"));
    let second = h.asks(1_002, GET);
    assert!(h.hears(second).contains("If-None-Match: \"1\"\r\n"));
    for member in [second, kept] {
        h.says(member, "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n");
    }
    assert!(h.reads(1_001).ends_with("hello") && h.reads(1_002).ends_with("hello"));
    h.assert_no_leak();
}

/// A 304 that forbids storing: those that waited ask at once, and so do others.
#[test]
fn a_validation_that_is_not_stored_keeps_nobody_waiting() {
    let (mut h, _) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    h.w.pass(Duration::from_secs(61));
    let first = h.asks(1_001, GET);
    assert_eq!(hit(&mut h, 1_002, GET), "");
    assert_eq!(hit(&mut h, 1_003, GET), "");
    h.hears(first);
    let refused = "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nCache-Control: no-store\r\n\r\n";
    h.says(first, refused);
    assert!(h.reads(1_001).ends_with("hello"));
    let second = h.accept();
    let asked = [h.hears(first), h.hears(second)];
    assert!(asked.iter().all(|text| text.contains("If-None-Match: \"1\"\r\n")), "{asked:?}");
    [first, second].iter().for_each(|member| h.says(*member, refused));
    assert!(h.reads(1_002).ends_with("hello") && h.reads(1_003).ends_with("hello"));
    h.assert_no_leak();
}

/// While a server fails, requests for a key reach it one after the other.
#[test]
fn a_failure_does_not_let_all_pass() {
    let (mut h, _) = plain();
    let member = h.asks(1_000, GET);
    assert_eq!(hit(&mut h, 1_001, GET), "");
    h.hears(member);
    h.says(member, "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
    assert!(h.reads(1_000).starts_with("HTTP/1.1 500 "));
    assert_eq!(hit(&mut h, 1_002, GET), "");
    assert_eq!(h.hears(member).matches("GET ").count(), 1);
    h.says(member, MINUTE);
    assert!(h.reads(1_001).ends_with("hello") && h.reads(1_002).ends_with("hello"));
    assert_eq!(h.gateway().snapshot().upstreams.opened, 1);
    h.assert_no_leak();
}

/// The server does not get the field by which its response was chosen, for all that the cache sees.
#[test]
fn fields_that_a_client_nominates_choose_nothing() {
    let (mut h, store) = plain();
    let response = MINUTE.replace("ETag", "Vary: X-Lang\r\nETag");
    let asked = "GET /a HTTP/1.1\r\nHost: a\r\nX-Lang: fr\r\nConnection: X-Lang\r\n\r\n";
    let (_, heard) = fill(&mut h, (1_000, None), asked, &response);
    assert!(!heard.contains("X-Lang"), "{heard}");
    assert_eq!((h.reads(1_000), store.status().objects), (response, 0));
    h.assert_no_leak();
}

#[test]
fn conditions_of_changes_reach_the_server() {
    let (mut h, _) = plain();
    let (kept, _) = fill(&mut h, (1_000, None), GET, MINUTE);
    for (port, field) in [(1_001, "If-Match: \"0\""), (1_002, "If-Unmodified-Since: x")] {
        let asked = format!("GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n{field}\r\n\r\n");
        let failed = "HTTP/1.1 412 X\r\nContent-Length: 0\r\n\r\n";
        let (_, heard) = fill(&mut h, (port, Some(kept)), &asked, failed);
        assert!(heard.contains(field), "{heard}");
        assert_eq!(h.reads(port), failed);
    }
    h.assert_no_leak();
}

/// Fields that a trusted proxy sends are part of the cache's key.
#[test]
fn what_trusted_proxies_tell_is_of_the_key() {
    let config = ServiceConfig { trusted: vec!["0.0.0.0/0".parse().unwrap()], ..service() };
    let (mut h, _) = world_of(with_cache(config, CacheConfig::default()));
    let ask = |prefix: &str, from: &str| {
        format!(
            "GET /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-Prefix: {prefix}\r\nX-Forwarded-For: {from}\r\n\r\n"
        )
    };
    fill(&mut h, (1_000, None), &ask("/x", "192.0.2.1"), MINUTE);
    assert_eq!(hit(&mut h, 1_001, &ask("/x", "192.0.2.2")), stored(0));
    assert_eq!(hit(&mut h, 1_002, &ask("/y", "192.0.2.1")), "");
    h.assert_no_leak();
}

/// What was stored under other rules of storing is not served.
#[test]
fn other_rules_of_storing_begin_anew() {
    let (mut h, _) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    let of = |cache| with_cache(service(), cache);
    h.set(of(CacheConfig { body_len_max: 9, ..CacheConfig::default() }));
    assert_eq!(hit(&mut h, 1_001, GET), stored(0));
    let rules = Rules { max_ttl: Some(1), ..Rules::default() };
    h.set(of(CacheConfig { rules, ..CacheConfig::default() }));
    assert_eq!(hit(&mut h, 1_002, GET), "");
    h.set(of(CacheConfig { ignores_cookies: true, ..CacheConfig::default() }));
    assert_eq!(hit(&mut h, 1_003, GET), "");
    h.assert_no_leak();
}
