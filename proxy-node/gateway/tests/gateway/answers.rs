//! Answers of the gateway itself: each with a status, a code, and what becomes of the connection.

use csp_gateway::Reason;
use csp_gateway::spec::{Action, RuleConfig, ServiceConfig};
use csp_http::head::Scheme;
use csp_http::route::{PathRewrite, PathSpec, Redirect, RouteSpec};

use crate::http::{Http, named, service, to_pool};

fn prefix(path: &str) -> RouteSpec {
    RouteSpec { path: PathSpec::Prefix(path.to_owned()), ..RouteSpec::default() }
}

#[test]
fn a_request_without_a_rule_is_answered_and_the_connection_kept() {
    let mut h = Http::new(named());
    h.gateway().set_clock(csp_types::Instant::ZERO, 784_111_777_000_000_000);
    h.w.connect(1_000);
    h.send(1_000, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
    let body = "no-route: no rule names this host and path\n";
    let answer = format!(
        "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:38 GMT\r\nContent-Type: text/plain; \
         charset=utf-8\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(h.reads(1_000), answer);
    h.send(1_000, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = h.reads(1_000);
    assert!(answer.ends_with(&format!("Content-Length: {}\r\n\r\n", body.len())), "{answer}");
    assert_eq!(h.codes(), [(404, "no-route"); 2]);
    h.assert_no_leak();
}

#[test]
fn rules_redirect_and_answer() {
    let redirect = Redirect {
        status: 308,
        scheme: Some(Scheme::Https),
        host: None,
        port: None,
        path: Some(PathRewrite::Prefix("/new".to_owned())),
    };
    let (body, content_type) = (b"User-agent: *\n"[..].into(), "text/plain".into());
    let answer = Action::Answer { status: 200, body, content_type };
    let rules = vec![
        RuleConfig::new("old", prefix("/old"), Action::Redirect(redirect)),
        RuleConfig::new("robots", prefix("/robots.txt"), answer),
    ];
    let mut h = Http::new(ServiceConfig { rules, ..named() });
    h.w.connect(1_000);
    h.send(1_000, "GET /old/a?q HTTP/1.1\r\nHost: a:80\r\n\r\n");
    let expected =
        "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://a/new/a?q\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(h.reads(1_000), expected);
    h.send(1_000, "GET /robots.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        h.reads(1_000).ends_with("Content-Type: text/plain\r\nContent-Length: 14\r\n\r\nUser-agent: *\n")
    );
    h.send(1_000, "OPTIONS /old HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n");
    assert!(h.reads(1_000).starts_with("HTTP/1.1 204 No Content\r\nAllow: OPTIONS\r\n"));
    h.w.connect(1_001);
    h.send(1_001, "GET /old HTTP/1.0\r\n\r\n");
    assert!(h.reads(1_001).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    let codes = [(308, "redirect"), (200, "answer"), (204, "max-forwards"), (400, "no-host")];
    assert_eq!(h.codes(), codes);
    h.assert_no_leak();
}

/// An authority's request is answered before any rule, and any other one by the rules.
#[test]
fn a_challenge_comes_before_the_rules() {
    let scheme = Some(Scheme::Https);
    let redirect = Redirect { status: 301, scheme, host: None, port: None, path: None };
    let rules = vec![RuleConfig::new("all", prefix("/"), Action::Redirect(redirect))];
    let mut h = Http::new(ServiceConfig { rules, ..named() });
    let get = "GET /.well-known/acme-challenge/abc HTTP/1.1\r\nHost: a\r\n\r\n";
    let one = csp_gateway::Challenges::new([(b"abc".to_vec(), b"abc.key".to_vec())]);
    h.gateway().set_challenges(one);
    h.w.connect(1_000);
    h.send(1_000, get);
    let expected =
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 7\r\n\r\nabc.key";
    assert_eq!(h.reads(1_000), expected);
    h.send(1_000, get.replace("abc", "abd"));
    assert!(h.reads(1_000).starts_with("HTTP/1.1 301 "));
    h.gateway().set_challenges(csp_gateway::Challenges::default());
    h.send(1_000, get);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 301 "));
    assert_eq!(h.codes(), [(200, "acme-challenge"), (301, "redirect"), (301, "redirect")]);
    h.assert_no_leak();
}

/// What a client has wrong is answered, and its connection ends: after it, nothing can be trusted.
#[test]
fn faults_of_clients_are_answered() {
    let cases = [
        ("GET / HTTP/1.1\r\n\r\n", 400, "host-missing"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n", 400, "content-length"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400, "content-length"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", 400, "content-length"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            400,
            "content-length-twice",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "two-lengths",
        ),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "space-in-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", 400, "fold"),
        ("GET / HTTP/1.1\nHost: a\n\n", 400, "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400, "nul"),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "connect"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http2-preface"),
        ("GET /../a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "path-above-root"),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host-differs"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "transfer-coding"),
    ];
    let mut h = Http::new(service());
    for (port, (request, status, code)) in (1_000..).zip(cases) {
        h.w.connect(port);
        h.send(port, request);
        let answer = h.reads(port);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        assert!(
            answer.contains("Connection: close\r\n") && answer.contains(&format!("\r\n\r\n{code}: ")),
            "{answer}"
        );
        assert!(h.w.clients[&port].fin && !h.w.clients[&port].rst);
        assert_eq!(h.codes(), [(status, code)]);
        assert!(h.w.offers.is_empty());
        h.w.segment(port, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    }
    h.assert_no_leak();
}

/// A fault in a body: the member must not take the part for a whole request.
#[test]
fn a_fault_in_a_body_resets_the_member() {
    let mut h = Http::new(service());
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let member = h.asks(1_000, request);
    h.send(1_000, "zz\r\n");
    assert!(h.reads(1_000).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    assert!(h.w.served[&member.to_wire()].reset && h.w.clients[&1_000].fin);
    // The client ends in the middle.
    let member = h.asks(1_001, request);
    h.w.client_finishes(1_001);
    assert!(h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(400, "chunk-size"), (400, "truncated-body")]);
    h.assert_no_leak();
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let mut h = Http::new(ServiceConfig { body_len_max: 10, ..service() });
    h.w.connect(1_000);
    h.send(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n");
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_000).starts_with("HTTP/1.1 413 Content Too Large\r\n"));
    assert!(h.w.clients[&1_000].fin);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let member = h.asks(1_001, chunked);
    h.send(1_001, "6\r\n");
    assert!(h.reads(1_001).starts_with("HTTP/1.1 413 Content Too Large\r\n"));
    assert!(h.w.served[&member.to_wire()].reset);
    assert_eq!(h.codes(), [(413, "body-too-long"); 2]);
    h.assert_no_leak();
}

#[test]
fn faults_of_members_are_answered_with_502() {
    let cases = [
        ("nonsense\r\n\r\n", "start-line"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "content-length-twice"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "unexpected-switch",
        ),
        ("HTTP/2 200\r\n\r\n", "version"),
    ];
    let mut h = Http::new(service());
    h.w.connect(1_000);
    for (response, code) in cases {
        h.send(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let member = h.accept();
        h.says(member, response);
        let answer = h.reads(1_000);
        assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}: {answer}");
        assert!(!answer.contains("Connection: close"), "the client is not to blame");
        assert!(h.w.served[&member.to_wire()].reset);
        assert_eq!(h.codes(), [(502, code)]);
    }
    // Bytes behind a response: the response is whole, the connection is not kept.
    h.send(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let member = h.accept();
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(h.w.served[&member.to_wire()].reset);
    h.assert_no_leak();
}

#[test]
fn a_rule_changes_host_path_and_heads() {
    use csp_http::forward::Edit;
    let mut rule = RuleConfig::new("api", prefix("/api"), to_pool());
    rule.host = Some("inside".to_owned());
    rule.rewrite = Some(PathRewrite::Prefix("/v1".to_owned()));
    rule.request_edits = vec![Edit::Set("X-Zone".into(), b"a"[..].into()), Edit::Remove("Cookie".into())];
    rule.response_edits = vec![Edit::Set("Server".into(), b"csp"[..].into())];
    let config = ServiceConfig {
        rules: vec![rule],
        origin: csp_http::forward::OriginFields { x_forwarded: true, forwarded: false },
        trace: true,
        request_id: true,
        ..named()
    };
    let mut h = Http::new(config);
    let member =
        h.asks(1_000, "GET /api/x HTTP/1.1\r\nHost: a\r\nCookie: b\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n");
    let head = h.hears(member);
    assert!(head.starts_with("GET /v1/x HTTP/1.1\r\nHost: inside\r\n"), "{head}");
    for line in ["X-Forwarded-For: 10.0.0.2", "X-Forwarded-Host: a", "X-Forwarded-Proto: http", "X-Zone: a"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    assert!(!head.contains("Cookie") && head.contains("\r\ntraceparent: 00-"));
    h.says(member, "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nServer: csp\r\nContent-Length: 0\r\n\r\n");
    let record = &h.records()[0];
    let id: String = record.request_id.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(head.contains(&format!("\r\nX-Request-Id: {id}\r\n")), "{head}");
    let trace: String = record.trace.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(head.contains(&format!("traceparent: 00-{trace}-")), "{head}");
    h.assert_no_leak();
}

#[test]
fn reasons_have_codes_of_their_own() {
    let mut codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    codes.extend(csp_http::Fault::ALL.iter().map(|fault| fault.code()));
    let count = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), count);
}

/// What a trusted proxy says of its client decides the rule, and is passed on.
#[test]
fn a_trusted_proxy_is_believed() {
    let source = |net: &str| RouteSpec { sources: vec![net.parse().unwrap()], ..RouteSpec::default() };
    let rules = vec![RuleConfig::new("inner", source("192.0.2.0/24"), to_pool())];
    let origin = csp_http::forward::OriginFields { x_forwarded: true, forwarded: false };
    let config = ServiceConfig { rules, origin, trace: false, ..named() };
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1, 192.0.2.7, 10.0.0.3\r\n\r\n";
    let mut h = Http::new(config.clone());
    h.w.connect(1_000);
    h.send(1_000, request);
    assert_eq!(h.codes(), [(404, "no-route")], "the peer is nobody's proxy");
    h.assert_no_leak();
    let trusted = vec!["10.0.0.0/24".parse().unwrap()];
    let mut h = Http::new(ServiceConfig { trusted, ..config });
    let member = h.asks(1_000, request);
    let forwarded = "X-Forwarded-For: 198.51.100.1, 192.0.2.7, 10.0.0.3, 10.0.0.2\r\n";
    assert!(h.hears(member).contains(forwarded));
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    let record = &h.records()[0];
    assert_eq!(record.source, std::net::IpAddr::from([192, 0, 2, 7]));
    h.assert_no_leak();
}
