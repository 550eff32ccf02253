//! Clients that mean harm: what they cost, and what they get past.

use std::time::Duration;

use csp_gateway::spec::{Action, RuleConfig, ServiceConfig, Timeouts};
use csp_http::route::{PathSpec, RouteSpec};
use csp_http2::Limits;

use crate::http::{Http, service};
use crate::http2::{Client, GET, http2};

/// Windows that are wider than what a connection has in memory.
fn wide() -> Limits {
    Limits { stream_window: 1 << 22, connection_window: 1 << 23, ..Limits::default() }
}

#[test]
fn a_client_of_http_2_that_reads_nothing_is_reset() {
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { body_idle: second, idle: second, ..Timeouts::default() };
    let mut h = Http::new(ServiceConfig { timeouts, ..http2() });
    let mut client = Client::with_limits(&mut h, 1_000, &wide());
    client.ask(&mut h, GET, true);
    let member = h.accept();
    h.w.clients.get_mut(&1_000).unwrap().stalled = true;
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n");
    while h.w.sends(member, &[b'x'; 16 << 10]) > 0 {}
    // A second for the response, one or two without a request, five for what crosses GOAWAY, five for the
    // rest.
    h.w.pass(11 * second);
    assert_eq!(h.gateway().connections().0, 1);
    assert_eq!(h.codes(), [(200, "client-stalled")]);
    h.w.pass(3 * second);
    assert_eq!(h.gateway().connections().0, 0);
    h.assert_no_leak();
}

/// What the gateway has framed itself is not there a second time.
#[test]
fn a_request_of_http_2_whose_last_chunk_was_sent_is_not_repeated() {
    let mut h = Http::new(http2());
    let mut client = Client::connect(&mut h, 1_000);
    let put = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for trailers in [false, true] {
        let stream = client.ask(&mut h, put, false);
        let member = h.accept();
        match trailers {
            true => client.machine.trailers(stream, b"X-Sum: 0\r\n\r\n").unwrap(),
            false => assert_eq!(client.machine.send(stream, b"", true), 0),
        }
        client.run(&mut h);
        assert!(h.hears(member).ends_with(if trailers {
            "0\r\nx-sum: 0\r\n\r\n"
        } else {
            "\r\n\r\n0\r\n\r\n"
        }));
        h.resets(member);
        client.run(&mut h);
        assert!(h.w.offers.is_empty());
        assert!(client.got[&stream].heads[0].starts_with("HTTP/1.1 502 "), "{:?}", client.got);
    }
    assert_eq!(h.codes(), [(502, "member-closed"); 2]);
    h.assert_no_leak();
}

/// A rule that denies a path denies it in every way in which a member may read that path.
#[test]
fn rules_on_paths_are_not_passed_by_another_spelling() {
    let denies = |name, path| {
        let action = Action::Answer { status: 403, body: Vec::new().into(), content_type: "".into() };
        RuleConfig::new(name, RouteSpec { path, ..RouteSpec::default() }, action)
    };
    let mut config = service();
    config.rules.push(denies("admin", PathSpec::Prefix("/admin".into())));
    config.rules.push(denies("delete", PathSpec::Exact("/a:delete".into())));
    let mut h = Http::new(config);
    let cases = [
        ("/admin", 403, "answer"),
        ("/admin/x", 403, "answer"),
        ("/%61dmin", 403, "answer"),
        ("/x/../admin", 403, "answer"),
        ("/a%3Adelete", 403, "answer"),
        ("/admin//x;y/%2F", 403, "answer"),
        ("//admin", 400, "path-ambiguous"),
        ("/%2Fadmin", 400, "path-ambiguous"),
        ("/admin%2Fx", 400, "path-ambiguous"),
        ("/x/..%2fadmin", 400, "path-ambiguous"),
        ("/admin;x", 400, "path-ambiguous"),
        ("/admin%3bx", 400, "path-ambiguous"),
        ("/x/..;/admin", 400, "path-ambiguous"),
        ("/;/admin", 400, "path-ambiguous"),
        ("/a:delete;x", 400, "path-ambiguous"),
        ("/..%2fx", 400, "path-ambiguous"),
        ("/%2e%2e/admin", 400, "path-above-root"),
    ];
    for (port, (path, status, code)) in (1_000..).zip(cases) {
        h.w.connect(port);
        h.send(port, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(h.codes(), [(status, code)], "{path}");
    }
    // Others go on as they are.
    for (port, path) in (2_000..).zip(["/x//y", "/x%2Fadmin", "/x;admin/y", "/adminx"]) {
        let member = h.asks(port, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(h.hears(member).starts_with(&format!("GET {path} ")), "{path}");
    }
    h.assert_no_leak();
}

#[test]
fn a_body_without_a_length_is_bounded() {
    let mut h = Http::new(ServiceConfig { body_len_max: 10, ..http2() });
    let mut client = Client::connect(&mut h, 1_000);
    let put = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (len, status) in [(10, 200), (11, 413)] {
        let stream = client.ask(&mut h, put, false);
        let member = h.accept();
        client.send(&mut h, stream, &[b'x'; 8], false);
        assert!(h.hears(member).ends_with("xxxxxxxx"));
        client.send(&mut h, stream, &b"xxx"[..len - 8], true);
        if status == 200 {
            h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        } else {
            assert!(h.w.served[&member.to_wire()].reset);
        }
        client.run(&mut h);
        assert!(client.got[&stream].heads[0].starts_with(&format!("HTTP/1.1 {status} ")));
    }
    assert_eq!(h.codes(), [(200, "ok"), (413, "body-too-long")]);
    h.assert_no_leak();
}

/// What a trusted proxy says of the client, in several lines and with ports; what cannot be read is nobody.
#[test]
fn the_source_is_the_last_address_that_is_of_no_trusted_proxy() {
    let sources = vec!["198.51.100.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let inside = RouteSpec { sources, ..RouteSpec::default() };
    let answer = Action::Answer { status: 204, body: Vec::new().into(), content_type: "".into() };
    let denied = Action::Answer { status: 403, body: Vec::new().into(), content_type: "".into() };
    let rules = vec![
        RuleConfig::new("inside", inside, answer),
        RuleConfig::new("others", RouteSpec::default(), denied),
    ];
    let trusted = vec!["10.0.0.0/24".parse().unwrap()];
    let mut h = Http::new(ServiceConfig { rules, trusted, ..service() });
    h.w.connect(1_000);
    for (lines, status, source) in [
        (&["198.51.100.7"][..], 204, "198.51.100.7"),
        (&["198.51.100.7:4711"], 204, "198.51.100.7"),
        (&["[2001:db8::1]:80"], 204, "2001:db8::1"),
        (&["[2001:db8::1], 10.0.0.9"], 204, "2001:db8::1"),
        (&["198.51.100.7", "10.0.0.9", ""], 204, "198.51.100.7"),
        (&["198.51.100.7, 203.0.113.1", "10.0.0.9"], 403, "203.0.113.1"),
        (&["198.51.100.7", "203.0.113.1"], 403, "203.0.113.1"),
        (&["198.51.100.7, unknown"], 403, "10.0.0.2"),
        (&["198.51.100.7", "unknown, 10.0.0.9"], 403, "10.0.0.2"),
        (&[], 403, "10.0.0.2"),
    ] {
        let lines: String = lines.iter().map(|line| format!("X-Forwarded-For: {line}\r\n")).collect();
        h.send(1_000, format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
        let record = &h.records()[0];
        assert_eq!((record.status, record.source.to_string().as_str()), (status, source), "{lines}");
    }
    h.assert_no_leak();
}

/// Bodies that no member reads stay in memory: of all clients within one bound.
#[test]
fn the_memory_of_all_connections_of_http_2_is_bounded() {
    let limits = Limits { stream_window: 12 << 20, connection_window: 24 << 20, ..Limits::default() };
    let mut h = Http::new(ServiceConfig { http2: Some(limits), ..service() });
    let piece = vec![b'x'; 32 << 10];
    for port in 1_000..1_008 {
        let mut client = Client::with_limits(&mut h, port, &limits);
        let put = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let stream = client.ask(&mut h, put, false);
        for _ in 0..(12 << 20) / piece.len() {
            client.machine.send(stream, &piece, false);
            client.run(&mut h);
        }
    }
    let left = h.gateway().connections().0;
    assert!((5..=6).contains(&left), "{left} of 8 connections with 12 MiB each, where 64 MiB are permitted");
    assert_eq!(h.codes(), vec![(499, "client-gone"); 8 - left]);
    h.assert_no_leak();
}

#[test]
fn a_204_that_names_a_body_ends_its_connection_and_1xx_is_an_answer() {
    let mut h = Http::new(service());
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (port, (field, idle)) in (1_000..).zip([
        ("Content-Length: 3\r\n", 0),
        ("Transfer-Encoding: chunked\r\n", 0),
        ("Content-Length: 0\r\n", 1),
    ]) {
        let member = h.asks(port, get);
        h.says(member, format!("HTTP/1.1 204 No\r\n{field}\r\n"));
        assert_eq!(h.reads(port), "HTTP/1.1 204 No\r\n\r\n");
        assert_eq!(h.gateway().snapshot().upstreams.idle, idle, "{field}");
        if idle == 1 {
            h.closes(member);
        }
    }
    let member = h.asks(2_000, get);
    h.says(member, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    h.resets(member);
    assert!(h.w.offers.is_empty());
    assert!(h.reads(2_000).contains("HTTP/1.1 502 "));
    h.assert_no_leak();
}
