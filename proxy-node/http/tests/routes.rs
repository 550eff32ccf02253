//! Which route a request falls under, and what redirects and rewrites make of it.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::cmp::Reverse;

use common::with_request;
use csp_http::Limits;
use csp_http::head::{Scheme, normalised};
use csp_http::route::{
    ExpressionError, Found, PathRewrite, PathSpec, Redirect, RewriteError, RouteMistake, RouteSpec, Routes,
    Subject, TextSpec,
};
use proptest::prelude::*;

fn find(routes: &Routes, text: &str) -> Option<Found> {
    with_request(text.as_bytes(), &[], &Limits::default(), |request| {
        let mut room = Vec::new();
        let path = if request.path() == b"*" { b"*" } else { normalised(request.path(), &mut room).unwrap() };
        routes.find(&Subject::new(&request, path, "192.0.2.7".parse().unwrap()))
    })
    .unwrap()
    .unwrap()
}

/// Compiles specs and returns which of them a request falls under.
fn route(specs: &[RouteSpec], text: &str) -> Option<usize> {
    find(&Routes::compile(specs).unwrap(), text).map(|found| found.route)
}

fn get(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn host(host: &str) -> RouteSpec {
    RouteSpec { hosts: vec![host.to_owned()], ..RouteSpec::default() }
}

fn path(path: PathSpec) -> RouteSpec {
    RouteSpec { path, ..RouteSpec::default() }
}

fn prefix(text: &str) -> RouteSpec {
    path(PathSpec::Prefix(text.to_owned()))
}

fn exact(text: &str) -> RouteSpec {
    path(PathSpec::Exact(text.to_owned()))
}

fn regex(text: &str) -> RouteSpec {
    path(PathSpec::Regex(text.to_owned()))
}

#[test]
fn hosts_by_specificity() {
    let routes =
        [RouteSpec::default(), host("*.example.com"), host("*.b.Example.com"), host("a.b.example.COM.")];
    for (asked, expected) in [
        ("a.b.example.com", 3),
        ("A.B.example.com.:8080", 3),
        ("c.b.example.com", 2),
        ("d.c.b.example.com", 2),
        ("b.example.com", 1),
        ("example.com", 0),
        ("badexample.com", 0),
        ("[2001:db8::1]", 0),
    ] {
        assert_eq!(route(&routes, &get(asked, "/")), Some(expected), "{asked}");
    }
    assert_eq!(route(&routes[1..], &get("other", "/")), None);
    assert_eq!(route(&routes, "GET / HTTP/1.0\r\n\r\n"), Some(0));
    assert_eq!(route(&[host("[2001:DB8::1]")], &get("[2001:db8::1]:80", "/")), Some(0));
}

#[test]
fn paths_by_specificity_whatever_their_order() {
    let routes = [prefix("/"), prefix("/a"), prefix("/a/b/"), regex("/a/.*x"), exact("/a/b/cx"), exact("*")];
    for (asked, expected) in [
        ("/", 0),
        ("/ab", 0),
        ("/a", 1),
        ("/a/", 1),
        ("/a/bc", 1),
        ("/a/b", 2),
        ("/a/b/", 2),
        ("/a/b/c", 2),
        ("/a/b/dx", 3),
        ("/a/b/cx", 4),
        ("/a/b/cx?q", 4),
        // The normal form counts.
        ("/c/../a/%62/c%78", 4),
        ("/a%2Fb", 0),
    ] {
        assert_eq!(route(&routes, &get("h", asked)), Some(expected), "{asked}");
    }
    assert_eq!(route(&routes, "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), Some(5));
    assert_eq!(route(&[exact("/A")], &get("h", "/a")), None, "paths have cases");
}

#[test]
fn an_expression_matches_all_of_a_path() {
    for (pattern, asked, expected) in [
        ("/a|/ab", "/ab", true),
        ("/a", "/ab", false),
        ("/.*", "/", true),
        ("/[0-9]{3}", "/123", true),
        ("/[0-9]{3}", "/1234", false),
        (r"/v\d+/.*", "/v12/x", true),
        ("/(?i:abc)", "/aBC", true),
        ("a", "/a", false),
    ] {
        assert_eq!(route(&[regex(pattern)], &get("h", asked)).is_some(), expected, "{pattern} {asked}");
    }
}

#[test]
fn a_less_specific_host_is_asked_if_no_route_of_the_specific_one_matches() {
    let specific = RouteSpec { hosts: vec!["a".into()], ..prefix("/x") };
    let routes = [RouteSpec::default(), specific];
    assert_eq!(route(&routes, &get("a", "/x")), Some(1));
    assert_eq!(route(&routes, &get("a", "/y")), Some(0));
}

#[test]
fn priority_comes_before_everything_else() {
    let routes = [host("a"), exact("/x"), RouteSpec { priority: 1, ..RouteSpec::default() }];
    assert_eq!(route(&routes[..2], &get("a", "/x")), Some(0));
    assert_eq!(route(&routes, &get("a", "/x")), Some(2));
}

#[test]
fn conditions() {
    let with = |change: &dyn Fn(&mut RouteSpec)| {
        let mut spec = RouteSpec::default();
        change(&mut spec);
        Routes::compile(&[spec]).unwrap()
    };
    let named = |name: &str, text: TextSpec| vec![(name.to_owned(), text)];
    let is = |text: &str| TextSpec::Exact(text.to_owned());
    let request = |line: &str, fields: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let met = |routes: &Routes, line: &str, fields: &str| find(routes, &request(line, fields)).is_some();

    let methods = with(&|spec| spec.methods = vec!["GET".into(), "FROB".into()]);
    assert!(met(&methods, "GET /", "") && met(&methods, "FROB /", ""));
    assert!(!met(&methods, "get /", "") && !met(&methods, "POST /", ""));

    let headers = with(&|spec| spec.headers = named("X-A", is("1")));
    assert!(met(&headers, "GET /", "x-a: 1\r\n") && met(&headers, "GET /", "X-A: 2\r\nX-A: 1\r\n"));
    assert!(!met(&headers, "GET /", "X-A: 11\r\n") && !met(&headers, "GET /", ""));
    let absent = with(&|spec| spec.headers = named("X-A", TextSpec::Absent));
    assert!(met(&absent, "GET /", "X-B: 1\r\n") && !met(&absent, "GET /", "X-A:\r\n"));
    let pattern =
        with(&|spec| spec.headers = named("User-Agent", TextSpec::Regex(".*Chrome/[0-9]+.*".into())));
    assert!(
        met(&pattern, "GET /", "User-Agent: x Chrome/99 y\r\n")
            && !met(&pattern, "GET /", "User-Agent: x\r\n")
    );

    let cookies = with(&|spec| spec.cookies = named("id", TextSpec::Prefix("a".into())));
    assert!(
        met(&cookies, "GET /", "Cookie: x=y; id=ab\r\n")
            && met(&cookies, "GET /", "Cookie: x\r\nCookie: id=a\r\n")
    );
    assert!(!met(&cookies, "GET /", "Cookie: ID=ab; xid=a; y=id=a\r\n"));

    let query = with(&|spec| spec.query = named("a b", is("c&d")));
    assert!(met(&query, "GET /?x&a+b=c%26d", "") && met(&query, "GET /?a%20b=c%26d&y", ""));
    assert!(!met(&query, "GET /?a%20b=c&d", "") && !met(&query, "GET /?", "") && !met(&query, "GET /", ""));
    let present = with(&|spec| spec.query = named("flag", TextSpec::Present));
    assert!(
        met(&present, "GET /?flag", "")
            && met(&present, "GET /?flag=%zz", "")
            && !met(&present, "GET /?flags", "")
    );

    let sources = |network: &str| with(&|spec| spec.sources = vec![network.parse().unwrap()]);
    assert!(met(&sources("192.0.2.0/24"), "GET /", "") && !met(&sources("192.0.3.0/24"), "GET /", ""));
}

#[test]
fn a_guard_is_met_in_doubt() {
    let of = |text| RouteSpec { headers: vec![("x-a".to_owned(), text)], ..RouteSpec::default() };
    let met = |routes: &Routes, fields: &str| {
        find(routes, &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).is_some()
    };
    for (text, fields, by_route, by_guard) in [
        (TextSpec::Exact("1".to_owned()), "X-A: 1\r\n", true, true),
        (TextSpec::Exact("1".to_owned()), "X_A: 1\r\n", false, true),
        (TextSpec::Present, "X_A: 1\r\n", false, true),
        (TextSpec::Present, "XA: 1\r\n", false, false),
        (TextSpec::Absent, "", true, true),
        (TextSpec::Absent, "X-A: 1\r\n", false, false),
        (TextSpec::Absent, "X_A: 1\r\n", false, true),
    ] {
        let spec = of(text);
        let both = [Routes::compile(std::slice::from_ref(&spec)).unwrap(), Routes::guard(&spec).unwrap()];
        assert_eq!(both.map(|routes| met(&routes, fields)), [by_route, by_guard], "{spec:?} {fields}");
    }
}

#[test]
fn mistakes_name_the_route_and_what_is_wrong() {
    let mistake = |spec: RouteSpec| {
        let error = Routes::compile(&[RouteSpec::default(), spec]).unwrap_err();
        assert_eq!(error.route, 1);
        error
    };
    for wrong in ["", "a:80", "*", "*.", "a b", "a/b", "*.[::1]", "a.*.b"] {
        assert_eq!(mistake(host(wrong)).what, RouteMistake::Host(wrong.into()), "{wrong}");
    }
    for wrong in ["", "a", "/a b", "/..", "/%zz", "/a?b", "/\u{e4}"] {
        for spec in [prefix(wrong), exact(wrong)] {
            assert!(matches!(mistake(spec).what, RouteMistake::Path(..)), "{wrong}");
        }
    }
    let expression = |pattern: &str| match mistake(regex(pattern)).what {
        RouteMistake::Expression(_, error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(expression("/a("), ExpressionError::Syntax("unclosed group".into()));
    assert_eq!(mistake(regex("/a(")).to_string(), "route 1: the expression \"/a(\": unclosed group");
    assert_eq!(expression(&"a".repeat(1_025)), ExpressionError::TooLong);
    // Expressions whose automaton doubles with each repetition, or that are huge.
    assert_eq!(expression("(a|b)*a(a|b){20}"), ExpressionError::TooLarge);
    assert_eq!(expression("((a{100}){100}){100}"), ExpressionError::TooLarge);
    let routes = vec![regex("/a"); 257];
    assert_eq!(Routes::compile(&routes).unwrap_err().what, RouteMistake::TooManyExpressions);
    let many = RouteSpec { methods: vec!["GET".into(); 17], ..RouteSpec::default() };
    assert_eq!(mistake(many).what, RouteMistake::TooManyConditions("methods"));
    let name = RouteSpec { headers: vec![("a b".into(), TextSpec::Present)], ..RouteSpec::default() };
    assert_eq!(mistake(name).to_string(), "route 1: \"a b\" is no name of a field");
}

#[test]
fn rewrites_replace_what_the_route_names() {
    let rewritten = |spec: RouteSpec, rewrite: PathRewrite, target: &str| {
        rewrite.check().unwrap();
        let found = find(&Routes::compile(&[spec]).unwrap(), &get("h", target)).unwrap();
        let mut room = Vec::new();
        String::from_utf8(rewrite.apply(target.as_bytes(), found, &mut room).to_vec()).unwrap()
    };
    let to = |text: &str| PathRewrite::Prefix(text.to_owned());
    assert_eq!(rewritten(prefix("/a"), to("/v1"), "/a/x"), "/v1/x");
    assert_eq!(rewritten(prefix("/a"), to("/v1/"), "/a/x"), "/v1/x");
    assert_eq!(rewritten(prefix("/a/"), to("/"), "/a/x"), "/x");
    assert_eq!(rewritten(prefix("/a"), to("/"), "/a"), "/");
    assert_eq!(rewritten(prefix("/a"), to("/v1"), "/a/"), "/v1/");
    assert_eq!(rewritten(prefix("/"), to("/v1"), "/x"), "/v1/x");
    assert_eq!(rewritten(exact("/a"), to("/v1"), "/a"), "/v1");
    assert_eq!(rewritten(regex("/.*"), to("/v1"), "/x"), "/v1/x");
    assert_eq!(rewritten(prefix("/a"), PathRewrite::Full("/z".into()), "/a/x"), "/z");
    for wrong in ["", "x", "/a b", "/a?b", "/a\r\n"] {
        assert_eq!(to(wrong).check(), Err(RewriteError::Path(wrong.into())));
    }
}

#[test]
fn redirects_keep_what_they_do_not_name() {
    let keep = Redirect { status: 308, scheme: None, host: None, port: None, path: None };
    let location = |redirect: &Redirect, host: &str, target: &str| {
        redirect.check().unwrap();
        with_request(get(host, target).as_bytes(), &[], &Limits::default(), |request| {
            let mut out = Vec::new();
            let found = Found { route: 0, prefix_len: 2 };
            assert!(redirect.location(&request, Scheme::Http, request.path(), found, &mut out));
            String::from_utf8(out).unwrap()
        })
        .unwrap()
        .unwrap()
    };
    let https = Redirect { scheme: Some(Scheme::Https), ..keep.clone() };
    assert_eq!(location(&https, "a:8080", "/x?y=z"), "https://a/x?y=z");
    assert_eq!(location(&Redirect { port: Some(8443), ..https.clone() }, "a", "/"), "https://a:8443/");
    let moved =
        Redirect { host: Some("b".into()), path: Some(PathRewrite::Prefix("/v1".into())), ..keep.clone() };
    assert_eq!(location(&moved, "a:81", "/a/x?q"), "http://b/v1/x?q");
    assert_eq!(location(&keep, "a:81", "/x"), "http://a:81/x");
    assert_eq!(location(&keep, "a:80", "//b"), "http://a//b", "never relative, which would lead to host b");
    assert_eq!(Redirect { status: 200, ..keep.clone() }.check(), Err(RewriteError::Status(200)));
    assert_eq!(Redirect { host: Some("b:1".into()), ..keep }.check(), Err(RewriteError::Host("b:1".into())));
}

/// The definition: every route is tried, in the order of the documentation.
fn by_definition(specs: &[RouteSpec], host: &str, path: &str, method: &str) -> Option<usize> {
    let host_rank = |spec: &RouteSpec| {
        let one = |pattern: &String| match pattern.strip_prefix('*') {
            None if pattern == host => Some((2, 0)),
            Some(suffix) if host.ends_with(suffix) && host.len() >= suffix.len() => Some((1, suffix.len())),
            _ => None,
        };
        if spec.hosts.is_empty() { Some((0, 0)) } else { spec.hosts.iter().filter_map(one).max() }
    };
    let path_rank = |spec: &RouteSpec| match &spec.path {
        PathSpec::Any => Some((0, 0)),
        PathSpec::Exact(exact) => (exact == path).then_some((2, exact.len())),
        PathSpec::Prefix(prefix) => {
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            let is_below = path == prefix || path.starts_with(&format!("{prefix}/"));
            is_below.then_some((0, prefix.len()))
        }
        PathSpec::Regex(_) => None,
    };
    let matching = specs.iter().enumerate().filter_map(|(at, spec)| {
        let (host, path) = (host_rank(spec)?, path_rank(spec)?);
        let has_method = spec.methods.is_empty() || spec.methods.iter().any(|known| known == method);
        has_method.then_some((Reverse((spec.priority, host, path, !spec.methods.is_empty())), at))
    });
    matching.min().map(|(_, at)| at)
}

fn any_spec() -> impl Strategy<Value = RouteSpec> {
    let hosts = prop::sample::subsequence(vec!["a", "b.a", "*.a", "*.b.a", "c.b.a"], 0..3);
    let text = prop::sample::select(vec!["/", "/x", "/x/", "/x/y", "/xy", "/x/y/z", "//"]);
    let path = (0..4u8, text).prop_map(|(kind, text)| match kind {
        0 => PathSpec::Any,
        1 => PathSpec::Exact(text.to_owned()),
        _ => PathSpec::Prefix(text.to_owned()),
    });
    let methods = prop::sample::subsequence(vec!["GET", "PUT"], 0..2);
    (hosts, path, methods, -1..2i32).prop_map(|(hosts, path, methods, priority)| RouteSpec {
        priority,
        hosts: hosts.into_iter().map(str::to_owned).collect(),
        path,
        methods: methods.into_iter().map(str::to_owned).collect(),
        ..RouteSpec::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_finds_what_the_definition_says(
        specs in prop::collection::vec(any_spec(), 0..9),
        host in prop::sample::select(vec!["a", "b.a", "c.b.a", "d.c.b.a", "x.a", "other"]),
        path in prop::sample::select(vec!["/", "/x", "/x/", "/x/y", "/xy", "/x/y/z", "/x/yz", "//", "/q"]),
        method in prop::sample::select(vec!["GET", "PUT", "POST"]),
    ) {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        prop_assert_eq!(route(&specs, &text), by_definition(&specs, host, path, method));
    }
}
