//! What is stored and for whom: identities, framings, keys, variants, policies, both protocols, slow readers.

use std::time::Duration;

use csp_cache::key::QueryKey;
use csp_gateway::spec::{CacheConfig, RuleConfig, ServiceConfig};
use csp_http::route::{PathRewrite, RouteSpec};

use crate::cache::{GET, MINUTE, fill, hit, plain, stored, with_cache, world, world_of};
use crate::http::{Http, service};
use crate::http2::{Client, http2};
use crate::servers::{Servers, over_http2};

/// Who has an identity shares what is said to be for all, and nothing else.
#[test]
fn identities_share_what_is_public() {
    for (fields, ignores, public, shared) in [
        ("Authorization: x", false, false, false),
        ("Authorization: x", true, false, false),
        ("Authorization: x", false, true, true),
        ("Cookie: a=b", false, false, false),
        ("Cookie: a=b", false, true, true),
        ("Cookie: a=b", true, false, true),
    ] {
        let (mut h, store) = world(CacheConfig { ignores_cookies: ignores, ..CacheConfig::default() });
        let control = if public { "public, max-age=60" } else { "max-age=60" };
        let response = MINUTE.replace("max-age=60", control);
        let asked = format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let (member, _) = fill(&mut h, (1_000, None), &asked, &response);
        assert_eq!(store.status().objects, usize::from(shared), "{fields} {ignores} {public}");
        if !shared {
            fill(&mut h, (1_001, Some(member)), GET, &response); // one without identity
        }
        assert!(hit(&mut h, 1_002, GET).ends_with("hello"));
        let text = hit(&mut h, 1_003, &asked);
        assert_eq!(text.ends_with("hello"), shared, "{fields} {ignores} {public}");
        h.assert_no_leak();
    }
}

#[test]
fn other_requests_pass_the_cache() {
    let (mut h, _) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    for (at, fields) in ["X-HTTP-Method-Override: DELETE", "X-Original-URL: /b", "Content-Length: 1\r\n\r\nx"]
        .iter()
        .enumerate()
    {
        let port = 1_001 + at as u16;
        assert_eq!(
            hit(&mut h, port, &format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")),
            "",
            "{fields}"
        );
    }
    h.assert_no_leak();
}

/// Bodies of every framing; parts, and those without an end of their own, are not stored.
#[test]
fn whole_bodies_are_stored() {
    let chunked = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX: y\r\n\r\n";
    for (response, closes, is_stored) in [
        (chunked, false, true),
        (&chunked[..chunked.len() - 9], true, false),
        (&MINUTE[..MINUTE.len() - 1], true, false),
        ("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\nhello", true, false),
        ("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 0\r\n\r\n", false, true),
        ("HTTP/1.1 204 No Content\r\nCache-Control: max-age=60\r\n\r\n", false, true),
    ] {
        let (mut h, store) = plain();
        let (member, _) = fill(&mut h, (1_000, None), GET, response);
        if closes {
            h.closes(member);
        }
        assert_eq!(store.status().objects, usize::from(is_stored), "{response}");
        assert_eq!(store.status().filling, 0);
        if is_stored {
            let text = hit(&mut h, 1_001, GET);
            assert!(text.contains("Age: 0\r\n"), "{text}");
            assert_eq!(text.contains("Content-Length: "), !response.contains(" 204 "), "{text}");
        }
        h.assert_no_leak();
    }
}

#[test]
fn bodies_beyond_the_bound_pass() {
    let (mut h, store) = world(CacheConfig { body_len_max: 4, ..CacheConfig::default() });
    let (member, _) = fill(&mut h, (1_000, None), GET, MINUTE);
    assert_eq!(h.reads(1_000), MINUTE);
    let chunked = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    fill(&mut h, (1_001, Some(member)), GET, chunked);
    assert_eq!(h.reads(1_001), chunked);
    assert_eq!((store.status().objects, store.status().filling), (0, 0));
    h.assert_no_leak();
}

#[test]
fn the_key_has_what_the_rule_says() {
    let query = QueryKey::Without(["utm".into()].into());
    let (mut h, _) = world(CacheConfig { query, fields: vec!["X-Lang".into()], ..CacheConfig::default() });
    fill(&mut h, (1_000, None), "GET /a?utm=1 HTTP/1.1\r\nHost: a\r\nX-Lang: de\r\n\r\n", MINUTE);
    assert_eq!(hit(&mut h, 1_001, "GET /a?utm=2 HTTP/1.1\r\nHost: a\r\nX-Lang: de\r\n\r\n"), stored(0));
    assert_eq!(hit(&mut h, 1_002, "GET /a?utm=2 HTTP/1.1\r\nHost: a\r\nX-Lang: fr\r\n\r\n"), "");
    h.assert_no_leak();
}

#[test]
fn variants_by_vary() {
    let (mut h, store) = plain();
    let response = MINUTE.replace("ETag", "Vary: Accept-Encoding\r\nETag");
    let ask = |coding: &str| format!("GET /a HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n");
    let (member, _) = fill(&mut h, (1_000, None), &ask("gzip"), &response);
    fill(&mut h, (1_001, Some(member)), &ask("br"), &response.replace("hello", "small"));
    assert!(hit(&mut h, 1_002, &ask("gzip")).ends_with("hello"));
    assert!(hit(&mut h, 1_003, &ask("br")).ends_with("small"));
    assert_eq!(store.status().objects, 2);
    h.assert_no_leak();
}

/// What was stored for another target or rewrite is not served; edits of responses are those of now.
#[test]
fn a_policy_that_changes_requests_begins_anew() {
    let (mut h, store) = plain();
    fill(&mut h, (1_000, None), GET, MINUTE);
    let rule = |change: &dyn Fn(&mut RuleConfig)| {
        let mut config = with_cache(service(), CacheConfig::default());
        config.rules.iter_mut().for_each(change);
        config
    };
    h.set(rule(&|rule| {
        rule.response_edits = vec![csp_http::forward::Edit::Set("X".into(), b"new"[..].into())]
    }));
    let text = hit(&mut h, 1_001, GET);
    assert!(text.contains("X: new\r\n") && text.ends_with("hello"), "{text}");
    h.set(rule(&|rule| rule.rewrite = Some(PathRewrite::Full("/b".into()))));
    assert_eq!(hit(&mut h, 1_002, GET), "");
    h.set(rule(&|_| {}));
    assert_eq!(hit(&mut h, 1_003, GET), stored(0));
    h.gateway().set_cache(None);
    assert_eq!(hit(&mut h, 1_004, GET), "", "without memory nothing is served");
    assert_eq!(store.status().objects, 1);
    h.assert_no_leak();
}

#[test]
fn clients_that_are_obeyed() {
    let (mut h, _) = world(CacheConfig { obeys_clients: true, ..CacheConfig::default() });
    let ask = |control: &str| format!("GET /a HTTP/1.1\r\nHost: a\r\nCache-Control: {control}\r\n\r\n");
    let text = hit(&mut h, 1_000, &ask("only-if-cached"));
    assert!(text.starts_with("HTTP/1.1 504 ") && text.contains("only-if-cached: "), "{text}");
    let (member, _) = fill(&mut h, (1_001, None), GET, MINUTE);
    assert_eq!(hit(&mut h, 1_002, &ask("only-if-cached")), stored(0));
    let (_, heard) = fill(&mut h, (1_003, Some(member)), &ask("no-cache"), MINUTE);
    assert!(heard.contains("If-None-Match"), "{heard}");
    let (mut h, _) = plain();
    fill(&mut h, (1_001, None), GET, MINUTE);
    assert_eq!(hit(&mut h, 1_002, &ask("no-cache")), stored(0), "as with nginx and Varnish");
    h.assert_no_leak();
}

#[test]
fn clients_and_members_of_http2() {
    let config = ServiceConfig { http2: http2().http2, ..over_http2() };
    let (mut h, store) = world_of(with_cache(config, CacheConfig::default()));
    let mut client = Client::connect(&mut h, 1_000);
    let mut servers = Servers::new();
    let first = client.ask(&mut h, GET, true);
    let second = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all[0].got.len(), 1, "one stream asks for both");
    servers.all[0].respond(
        &mut h,
        1,
        "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\netag: \"1\"\r\n\r\n",
        false,
    );
    servers.all[0].send(&mut h, 1, b"hello", true);
    servers.settle(&mut h, &mut client);
    for stream in [first, second] {
        assert!(
            client.got[&stream].done && client.got[&stream].body == b"hello",
            "{:?}",
            client.got[&stream]
        );
    }
    assert!(client.got[&second].heads[0].contains("age: 0\r\n"), "{:?}", client.got[&second]);
    assert_eq!(store.status().objects, 1);
    // To a client of HTTP/1.1, and validated over HTTP/2.
    assert!(hit(&mut h, 1_001, GET).ends_with("hello"));
    h.w.pass(Duration::from_secs(61));
    let mut client = Client::connect(&mut h, 1_002);
    let stale = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    let server = servers.all.last_mut().unwrap();
    let at = *server.got.keys().last().unwrap();
    assert!(server.got[&at].head.contains("if-none-match: \"1\"\r\n"), "{:?}", server.got[&at]);
    server.respond(&mut h, at, "HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\n\r\n", true);
    servers.settle(&mut h, &mut client);
    assert!(client.got[&stale].done && client.got[&stale].body == b"hello", "{:?}", client.got[&stale]);
    h.assert_no_leak();
}

/// A client that does not read has its response in the cache alone, and holds no other.
#[test]
fn slow_readers_hold_nobody() {
    let (mut h, _) = world_of(with_cache(http2(), CacheConfig::default()));
    let body = "x".repeat(300_000);
    let response = format!(
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    fill(&mut h, (1_000, None), GET, &response);
    assert_eq!(h.reads(1_000), response);
    let mut slow = Client::connect(&mut h, 1_001);
    slow.stalled = true;
    let stream = slow.ask(&mut h, GET, true);
    slow.run(&mut h);
    assert!(hit(&mut h, 1_002, GET).ends_with(&body[..1_000]));
    assert!(slow.got[&stream].body.is_empty() && !slow.got[&stream].done);
    let mut fast = Client::connect(&mut h, 1_003);
    let other = fast.ask(&mut h, GET, true);
    all_of(&mut h, &mut fast, other);
    assert_eq!(fast.got[&other].body, body.as_bytes());
    assert!(slow.got[&stream].body.is_empty() && !slow.got[&stream].done);
    slow.stalled = false;
    all_of(&mut h, &mut slow, stream);
    assert_eq!(slow.got[&stream].body, body.as_bytes());
    h.assert_no_leak();
}

/// Has a client receive all of a response, as fast as its connection carries it.
fn all_of(h: &mut Http, client: &mut Client, stream: u32) {
    for _ in 0..200 {
        client.run(h);
        if client.got[&stream].done {
            return;
        }
        h.w.pass(Duration::from_millis(20));
    }
    panic!("{} bytes", client.got[&stream].body.len());
}

#[test]
fn rules_that_cannot_be_cached() {
    use csp_gateway::HttpService;
    use csp_gateway::spec::Action;
    let refused = |change: &dyn Fn(&mut ServiceConfig)| {
        let mut config = with_cache(service(), CacheConfig::default());
        change(&mut config);
        HttpService::new(config).unwrap_err().to_string()
    };
    assert!(refused(&|config| config.rules[0].upgrade = true).contains("upgraded"));
    assert!(refused(&|config| config.certificate.x_ssl = true).contains("certificates"));
    assert!(
        refused(&|config| {
            let answer = Action::Answer { status: 200, body: b""[..].into(), content_type: "".into() };
            config.rules = vec![RuleConfig {
                cache: Some(CacheConfig::default()),
                ..RuleConfig::new("a", RouteSpec::default(), answer)
            }];
        })
        .contains("forward requests")
    );
}
