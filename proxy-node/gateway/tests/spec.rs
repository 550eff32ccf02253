//! What a policy may say, and what is refused, with the place and what would be right.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use csp_gateway::HttpService;
use csp_gateway::spec::{ANSWER_LEN_MAX, Action, RETRIES_MAX, RuleConfig, ServiceConfig};
use csp_http::forward::Edit;
use csp_http::head::Scheme;
use csp_http::route::{PathRewrite, PathSpec, Redirect, RouteSpec};

fn forward() -> Action {
    Action::Forward(vec![("pool".into(), 1)])
}

fn rule() -> RuleConfig {
    RuleConfig::new("r", RouteSpec::default(), forward())
}

fn service(rules: Vec<RuleConfig>) -> ServiceConfig {
    ServiceConfig { rules, ..ServiceConfig::new(1, "web", Scheme::Http) }
}

fn error(config: ServiceConfig) -> String {
    HttpService::new(config).unwrap_err().to_string()
}

fn answer(status: u16, body: &[u8], content_type: &str) -> RuleConfig {
    RuleConfig {
        action: Action::Answer { status, body: body.into(), content_type: content_type.into() },
        ..rule()
    }
}

#[test]
fn mistakes_of_rules_are_reported_with_the_rule() {
    let long = vec![0; ANSWER_LEN_MAX + 1];
    let cases: Vec<(RuleConfig, &str)> = vec![
        (RuleConfig { name: "".into(), ..rule() }, "rule \"\": \"\" is no name"),
        (RuleConfig { action: Action::Forward(Vec::new()), ..rule() }, "expected 1 to 32 targets"),
        (RuleConfig { action: Action::Forward(vec![("p".into(), 0)]), ..rule() }, "of a weight above 0"),
        (RuleConfig { host: Some("a b".to_owned()), ..rule() }, "\"a b\" is no host"),
        (RuleConfig { rewrite: Some(PathRewrite::Full("x".to_owned())), ..rule() }, "\"x\" is no path"),
        (
            RuleConfig { request_edits: vec![Edit::Remove("Connection".into())], ..rule() },
            "the proxy writes it",
        ),
        (
            RuleConfig { response_edits: vec![Edit::Add("X".into(), vec![b'x'; 20_000].into())], ..rule() },
            "edits of one direction add 20005 bytes",
        ),
        (answer(99, b"", ""), "99 is no status"),
        (answer(204, b"x", ""), "no body with 204"),
        (answer(200, &long, ""), "the body has 16385 bytes: expected at most 16384"),
        (
            RuleConfig {
                action: Action::Answer { status: 200, body: b""[..].into(), content_type: "a\r\nb".into() },
                ..rule()
            },
            "is no content type",
        ),
        (
            RuleConfig {
                action: Action::Redirect(Redirect {
                    status: 200,
                    scheme: None,
                    host: None,
                    port: None,
                    path: None,
                }),
                ..rule()
            },
            "200 is no redirect",
        ),
        (
            RuleConfig {
                route: RouteSpec { path: PathSpec::Regex("(".to_owned()), ..RouteSpec::default() },
                ..rule()
            },
            "the expression \"(\"",
        ),
    ];
    for (wrong, expected) in cases {
        let name = format!("rule {:?}: ", wrong.name);
        let error = error(service(vec![RuleConfig::new("first", RouteSpec::default(), forward()), wrong]));
        assert!(error.starts_with(&name) && error.contains(expected), "{error}");
    }
    assert_eq!(error(service(vec![rule(), rule()])), "rule \"r\": another rule has the same name");
}

#[test]
fn mistakes_of_services_are_reported() {
    let right = || service(vec![rule()]);
    assert!(HttpService::new(right()).is_ok());
    let mut wrong = right();
    wrong.timeouts.idle = std::time::Duration::ZERO;
    assert_eq!(error(wrong), "the time idle is 0: expected more");
    let wrong = ServiceConfig { retries: RETRIES_MAX + 1, ..right() };
    assert_eq!(error(wrong), "9 retries: expected at most 8");
    let wrong = ServiceConfig { default_host: String::new(), ..right() };
    assert!(error(wrong).contains("is no host"));
    let wrong = ServiceConfig { name: "a\nb".into(), ..right() };
    assert!(error(wrong).contains("is no name"));
    for (connections, streams_max) in [(0, 1), (1, 0)] {
        let mut wrong = right();
        (wrong.member_http2.connections, wrong.member_http2.streams_max) = (connections, streams_max);
        let expected = "no connections or streams of HTTP/2 to members: expected 1 or more";
        assert_eq!(error(wrong), expected);
    }
}

/// The documentation has a row of each reason.
#[test]
fn every_reason_is_documented() {
    let text = include_str!("../README.md");
    for reason in csp_gateway::Reason::ALL {
        let row = format!("| `{}` | {} | {} |", reason.code(), reason.status(), reason.text());
        assert!(text.contains(&row), "{row}");
    }
}
