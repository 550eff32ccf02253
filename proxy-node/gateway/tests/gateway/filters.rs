//! Filters between the route of a request and its member.

use csp_filters::{Act, CorsSpec, Hsts, Key, Limit, PageSpec, RateSpec, RuleSpec, Spec};
use csp_gateway::spec::{RuleConfig, ServiceConfig};
use csp_http::head::Scheme;
use csp_http::route::{PathSpec, Redirect, RouteSpec, TextSpec};

use crate::http::{Http, service, to_pool};
use crate::http2::{Client, http2};

fn prefix(path: &str) -> RouteSpec {
    RouteSpec { path: PathSpec::Prefix(path.to_owned()), ..RouteSpec::default() }
}

fn deny(path: &str, status: u16) -> RuleSpec {
    RuleSpec { of: prefix(path), act: Act::Deny(status) }
}

fn rate(requests: u32, period_s: u32) -> RuleSpec {
    let of = RateSpec { requests, period_s, burst: requests };
    RuleSpec { of: RouteSpec::default(), act: Act::Rate(Limit { key: Key::Source, of, entries: 64 }) }
}

fn with(rules: Vec<RuleSpec>) -> ServiceConfig {
    ServiceConfig { filters: Spec { rules, ..Spec::default() }, ..service() }
}

/// Sends a request without a body and returns the answer, which no member has given.
fn refused(h: &mut Http, port: u16, head: &str) -> String {
    h.send(port, format!("{head}\r\n\r\n"));
    assert!(h.w.offers.is_empty(), "{head}");
    h.reads(port)
}

#[test]
fn a_denied_request_gets_its_status_and_the_connection_is_kept() {
    let mut h = Http::new(with(vec![deny("/admin", 404), deny("/x", 403)]));
    h.w.connect(1_000);
    let answer = refused(&mut h, 1_000, "GET /admin/a HTTP/1.1\r\nHost: a");
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\ndenied: a rule of the proxy denies the request\n"), "{answer}");
    let answer = refused(&mut h, 1_000, "HEAD /x HTTP/1.1\r\nHost: a");
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = refused(&mut h, 1_000, "GET /%61dmin HTTP/1.1\r\nHost: a");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    // A member that merges slashes would see /admin.
    let answer = refused(&mut h, 1_000, "GET //admin HTTP/1.1\r\nHost: a");
    assert!(answer.contains("path-ambiguous"), "{answer}");
    h.w.connect(1_001);
    let answer = refused(&mut h, 1_001, "GET /x HTTP/1.0");
    assert!(answer.starts_with("HTTP/1.1 403 ") && h.w.clients[&1_001].fin, "{answer}");
    // An answer of gRPC would have the status 200.
    h.w.connect(1_003);
    let answer = refused(&mut h, 1_003, "GET /admin HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc");
    assert!(
        answer.starts_with("HTTP/1.1 404 ") && answer.contains("\r\nCache-Control: no-store\r\n"),
        "{answer}"
    );
    let member = h.asks(1_002, "GET //other HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    let codes = h.codes();
    assert_eq!(codes[..3], [(404, "denied"), (403, "denied"), (404, "denied")]);
    h.assert_no_leak();
}

/// The client has not sent its body: it gets the answer instead of 100.
#[test]
fn a_body_that_waits_for_100_is_not_asked_for() {
    let mut h = Http::new(with(vec![deny("/", 403)]));
    h.w.connect(1_000);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nExpect: 100-continue";
    let answer = refused(&mut h, 1_000, head);
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    // One that is on its way is discarded within bounds.
    h.w.connect(1_001);
    h.send(1_001, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    h.send(1_001, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(h.reads(1_001).matches("HTTP/1.1 403 Forbidden\r\n").count(), 2);
    h.assert_no_leak();
}

#[test]
fn a_rate_is_that_of_all_connections_of_a_client() {
    let mut h = Http::new(with(vec![rate(2, 60)]));
    let member = h.asks(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    h.w.connect(1_001);
    h.send(1_001, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    h.reads(1_001);
    let answer = refused(&mut h, 1_001, "GET / HTTP/1.1\r\nHost: a");
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 30\r\n"), "{answer}");
    h.w.pass(std::time::Duration::from_secs(31));
    h.w.connect(1_002);
    h.send(1_002, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(h.reads(1_002), "", "a member is asked");
    h.w.client_finishes(1_002);
    let codes: Vec<&str> = h.codes().into_iter().map(|(_, code)| code).collect();
    assert_eq!(codes[..3], ["ok", "ok", "rate-limited"]);
}

#[test]
fn requests_at_the_same_time_are_counted_until_they_end() {
    let limit = Limit { key: Key::Source, of: 1, entries: 64 };
    let rule = RuleSpec { of: RouteSpec::default(), act: Act::Concurrent(limit) };
    let mut h = Http::new(with(vec![rule]));
    let member = h.asks(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.w.connect(1_001);
    let answer = refused(&mut h, 1_001, "GET / HTTP/1.1\r\nHost: a");
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    h.send(1_001, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    assert!(h.reads(1_001).starts_with("HTTP/1.1 204 "));
    // A client that leaves in the middle gives its place back.
    h.send(1_000, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.w.segment(1_000, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    let again = h.asks(1_002, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(again, "HTTP/1.1 204 No Content\r\n\r\n");
    assert!(h.reads(1_002).starts_with("HTTP/1.1 204 "));
    h.assert_no_leak();
}

/// Rules of the service are for requests without a route, too.
#[test]
fn rules_of_service_and_route_come_in_this_order() {
    let mut api = RuleConfig::new("api", prefix("/api"), to_pool());
    api.filters.rules = vec![deny("/api/b", 403)];
    let redirect = Redirect { status: 308, scheme: Some(Scheme::Https), host: None, port: None, path: None };
    let to_https = RuleSpec { of: prefix("/old"), act: Act::Redirect(redirect) };
    let rules = vec![deny("/api/a", 404), to_https];
    let mut h = Http::new(ServiceConfig { rules: vec![api], ..with(rules) });
    h.w.connect(1_000);
    for (path, expected) in [
        ("/api/a", "HTTP/1.1 404 "),
        ("/api/b", "HTTP/1.1 403 "),
        ("/old?q", "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://a/old?q\r\n"),
        ("/none", "HTTP/1.1 404 "),
    ] {
        let answer = refused(&mut h, 1_000, &format!("GET {path} HTTP/1.1\r\nHost: a"));
        assert!(answer.starts_with(expected), "{answer}");
    }
    let expected = [(404, "denied"), (403, "denied"), (308, "redirect"), (404, "no-route")];
    assert_eq!(h.codes(), expected);
    h.assert_no_leak();
}

fn with_cors(cors: CorsSpec) -> ServiceConfig {
    let mut rule = RuleConfig::new("all", RouteSpec::default(), to_pool());
    rule.route.methods = vec!["GET".to_owned(), "PUT".to_owned()];
    rule.filters.cors = Some(cors);
    ServiceConfig { rules: vec![rule], ..service() }
}

fn site() -> CorsSpec {
    CorsSpec {
        origins: vec!["https://app.example".to_owned()],
        methods: vec!["PUT".to_owned()],
        headers: vec!["x-a".to_owned()],
        credentials: true,
        max_age_s: 60,
        ..CorsSpec::default()
    }
}

#[test]
fn a_preflight_is_answered_and_responses_name_the_origin() {
    let mut h = Http::new(with_cors(site()));
    h.w.connect(1_000);
    let head = "OPTIONS /a HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\n\
                Access-Control-Request-Method: PUT";
    let answer = refused(&mut h, 1_000, head);
    assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    for line in [
        "Access-Control-Allow-Origin: https://app.example",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Allow-Methods: GET, HEAD, POST, PUT",
        "Access-Control-Allow-Headers: x-a",
        "Access-Control-Max-Age: 60",
        "Vary: Origin",
    ] {
        assert!(answer.contains(&format!("\r\n{line}\r\n")), "{line}: {answer}");
    }
    let evil = head.replace("app.example", "evil.example");
    let answer = refused(&mut h, 1_000, &evil);
    assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("Allow-Origin"), "{answer}");
    // What the member says of CORS does not count.
    let member = h.asks(1_001, "GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\n\r\n");
    let response = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\n\r\n";
    h.says(member, response);
    let answer = h.reads(1_001);
    assert_eq!(answer.matches("Access-Control-Allow-Origin: ").count(), 1, "{answer}");
    assert!(answer.contains("\r\nAccess-Control-Allow-Origin: https://app.example\r\n"), "{answer}");
    h.send(1_001, "GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://evil.example\r\n\r\n");
    h.says(member, response);
    let answer = h.reads(1_001);
    assert!(!answer.contains("Allow-Origin") && answer.contains("\r\nVary: Origin\r\n"), "{answer}");
    let codes: Vec<&str> = h.codes().into_iter().map(|(_, code)| code).collect();
    assert_eq!(codes, ["preflight", "cors-origin", "ok", "ok"]);
    h.assert_no_leak();
}

/// OPTIONS that is no preflight is a request like others.
#[test]
fn options_without_an_origin_goes_on() {
    let mut h = Http::new(with_cors(site()));
    h.w.connect(1_000);
    let answer = refused(&mut h, 1_000, "OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    h.assert_no_leak();
}

#[test]
fn clients_of_http2_and_calls_are_denied_likewise() {
    let rules = vec![deny("/no", 451), rate(1, 60)];
    let filters = Spec { rules, ..Spec::default() };
    let mut h = Http::new(ServiceConfig { filters, ..http2() });
    let mut client = Client::connect(&mut h, 1_000);
    let ask = |client: &mut Client, h: &mut Http, head: &str| {
        let stream = client.ask(h, head, true);
        client.got[&stream].heads[0].clone()
    };
    let answer = ask(&mut client, &mut h, "GET /no HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 451"), "{answer}");
    let call = "POST /no HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\r\n";
    let answer = ask(&mut client, &mut h, call).to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200") && answer.contains("grpc-status: 7\r\n"), "{answer}");
    h.assert_no_leak();
}

#[test]
fn errors_have_the_pages_of_the_policy() {
    let page = |body: &str, content_type: &str| PageSpec {
        statuses: vec![400, 403, 404],
        codes: Vec::new(),
        body: body.as_bytes().into(),
        content_type: content_type.to_owned(),
    };
    let pages = vec![page("<h1>No</h1>", "text/html"), page("{}", "application/json")];
    let hsts = Hsts { max_age_s: 9, include_subdomains: false, preload: false };
    let filters = Spec { rules: vec![deny("/no", 403)], pages, hsts: Some(hsts), ..Spec::default() };
    let rules = vec![RuleConfig::new("some", prefix("/some"), to_pool())];
    let mut h = Http::new(ServiceConfig { filters, rules, ..service() });
    h.w.connect(1_000);
    let answer = refused(&mut h, 1_000, "GET /no HTTP/1.1\r\nHost: a\r\nAccept: text/html");
    let expected = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nCache-Control: no-store\r\nVary: Accept\r\n\
                    Strict-Transport-Security: max-age=9\r\nContent-Length: 11\r\n\r\n<h1>No</h1>";
    assert_eq!(answer, expected);
    let answer = refused(&mut h, 1_000, "GET /other HTTP/1.1\r\nHost: a\r\nAccept: application/json");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("\r\n\r\n{}"), "{answer}");
    assert!(answer.contains("\r\nStrict-Transport-Security: max-age=9\r\n"), "{answer}");
    // Answers that come before the filters have them, too.
    h.w.connect(1_002);
    let answer = refused(&mut h, 1_002, "GET /some/..%2Fno HTTP/1.1\r\nHost: a\r\nAccept: application/json");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("\r\n\r\n{}"), "{answer}");
    let member = h.asks(1_001, "GET /some HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nx");
    let answer = h.reads(1_001);
    assert!(
        answer.ends_with("\r\n\r\nx") && answer.contains("max-age=9"),
        "pages are not for members: {answer}"
    );
    h.assert_no_leak();
}

/// The example of docs/http-filters.md: a key that every request has to have.
#[test]
fn rules_by_fields_and_limits_let_a_preflight_pass() {
    let mut config = with_cors(CorsSpec { headers: vec!["x-api-key".to_owned()], ..site() });
    let of = RouteSpec { headers: vec![("x-api-key".to_owned(), TextSpec::Absent)], ..RouteSpec::default() };
    let by_key = Limit {
        key: Key::Header("x-api-key".to_owned()),
        of: RateSpec { requests: 1, period_s: 60, burst: 1 },
        entries: 64,
    };
    let puts = RouteSpec { methods: vec!["PUT".to_owned()], ..RouteSpec::default() };
    let of_puts = Limit { key: Key::Source, ..by_key.clone() };
    config.rules[0].filters.rules = vec![
        RuleSpec { of, act: Act::Deny(403) },
        RuleSpec { of: RouteSpec::default(), act: Act::Rate(by_key) },
        RuleSpec { of: puts, act: Act::Rate(of_puts) },
        deny("/no", 404),
    ];
    let mut h = Http::new(config);
    h.w.connect(1_000);
    let preflight = |path: &str, method: &str| {
        format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\n\
             Access-Control-Request-Method: {method}\r\nAccess-Control-Request-Headers: x-api-key"
        )
    };
    for _ in 0..3 {
        let answer = refused(&mut h, 1_000, &preflight("/a", "PUT"));
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        assert!(answer.contains("\r\nAccess-Control-Allow-Headers: x-api-key\r\n"), "{answer}");
    }
    let answer = refused(&mut h, 1_000, &preflight("/no", "PUT"));
    assert!(answer.starts_with("HTTP/1.1 404 "), "rules by path stay: {answer}");
    let answer = refused(&mut h, 1_000, "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let put = "PUT /a HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\nContent-Length: 0";
    let member = h.asks(1_001, &format!("{put}\r\n\r\n"));
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    let answer = refused(&mut h, 1_000, put);
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    h.assert_no_leak();
}

/// A client of HTTP/1.0 that names no host gets what the default host has.
#[test]
fn rules_of_a_host_are_not_passed_without_a_host() {
    let of = RouteSpec { hosts: vec!["www.example".to_owned()], ..RouteSpec::default() };
    let config = with(vec![RuleSpec { of, act: Act::Deny(403) }]);
    let mut h = Http::new(ServiceConfig { default_host: "www.example:8080".to_owned(), ..config });
    h.w.connect(1_000);
    let answer = refused(&mut h, 1_000, "GET / HTTP/1.0");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    h.assert_no_leak();
}

/// A trusted proxy that names no address: nobody is let in for it, and rules against its own one hold.
#[test]
fn an_unknown_source_is_that_of_the_peer_for_denials() {
    let nets = || RouteSpec { sources: vec!["0.0.0.0/0".parse().unwrap()], ..RouteSpec::default() };
    for (rules, expected) in [
        (vec![RuleSpec { of: nets(), act: Act::Deny(403) }], "HTTP/1.1 403 "),
        (vec![RuleSpec { of: nets(), act: Act::Allow }, deny("/", 404)], "HTTP/1.1 404 "),
    ] {
        let trusted = vec!["0.0.0.0/0".parse().unwrap()];
        let mut h = Http::new(ServiceConfig { trusted, ..with(rules) });
        h.w.connect(1_000);
        let answer = refused(&mut h, 1_000, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: unknown");
        assert!(answer.starts_with(expected), "{answer}");
        h.assert_no_leak();
    }
}

/// A reading of the path counts where the rest of the rule is met.
#[test]
fn readings_meet_the_rules_of_their_host_only() {
    let of = RouteSpec { hosts: vec!["b".to_owned()], ..prefix("/admin") };
    let mut h = Http::new(with(vec![RuleSpec { of, act: Act::Deny(404) }]));
    let member = h.asks(1_000, "GET //admin HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    h.w.connect(1_001);
    let answer = refused(&mut h, 1_001, "GET //admin HTTP/1.1\r\nHost: b");
    assert!(answer.contains("path-ambiguous"), "{answer}");
    h.assert_no_leak();
}
