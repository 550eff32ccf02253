//! CORS, pages for errors, and what a policy may not say.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use csp_filters::{
    Act, CorsSpec, Filters, Hsts, Key, Limit, PAGE_LEN_MAX, PageSpec, Preference, RateSpec, RuleSpec, Spec,
};
use csp_http::route::{PathSpec, RouteSpec};

fn cors(origins: &[&str]) -> CorsSpec {
    CorsSpec { origins: origins.iter().map(|origin| (*origin).to_owned()).collect(), ..CorsSpec::default() }
}

fn made(spec: Spec) -> Filters {
    Filters::new(spec, [0; 2]).unwrap()
}

fn refused(spec: Spec) -> String {
    Filters::new(spec, [0; 2]).unwrap_err().to_string()
}

#[test]
fn origins_are_whole_names() {
    let spec = cors(&["https://app.example", "https://*.example.com", "http://localhost:3000"]);
    let filters = made(Spec { cors: Some(spec), ..Spec::default() });
    let cors = filters.cors.as_ref().unwrap();
    for right in
        ["https://app.example", "https://a.example.com", "https://a.b.example.com", "http://localhost:3000"]
    {
        assert!(cors.allows(right.as_bytes()), "{right}");
    }
    for wrong in [
        "",
        "null",
        "*",
        "http://app.example",
        "https://app.example:444",
        "https://app.example.evil.test",
        "https://example.com",
        "https://.example.com",
        "https://evil.test/.example.com",
        "https://evil.test#.example.com",
        "https://evil.test:1@a.example.com",
        "https://a.example.com:8443",
        "https://aexample.com",
        "http://a.example.com",
        "http://localhost",
    ] {
        assert!(!cors.allows(wrong.as_bytes()), "{wrong}");
    }
    assert!(filters.edits().iter().any(|edit| format!("{edit:?}").contains("Vary")));
}

#[test]
fn pages_are_chosen_by_status_code_and_accept() {
    let page = |statuses: &[u16], codes: &[&str], body: &str, kind: &str| PageSpec {
        statuses: statuses.to_vec(),
        codes: codes.iter().map(|code| (*code).to_owned()).collect(),
        body: body.as_bytes().into(),
        content_type: kind.to_owned(),
    };
    let pages = vec![
        page(&[502, 503], &[], "h", "text/html; charset=utf-8"),
        page(&[502, 503], &[], "j", "application/problem+json"),
        page(&[], &["rate-limited"], "r", "text/plain"),
    ];
    let filters = made(Spec { pages, ..Spec::default() });
    let of = |status, code, accept: &str| {
        let found = filters.pages.find(status, code, Preference::of(accept.as_bytes()));
        found.map(|page| String::from_utf8_lossy(page.body).into_owned())
    };
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, expected) in [
        ("", "h"),
        ("*/*", "h"),
        (browser, "h"),
        ("application/json", "j"),
        ("application/json, text/html;q=0.9", "j"),
        ("application/json;q=0.5, text/html;q=0.501", "h"),
        ("application/vnd.api+json", "j"),
        ("text/html;q=0, application/json;q=0.001", "j"),
        ("text/html;q=2, application/json;q=0.1", "j"),
    ] {
        assert_eq!(of(503, "no-server", accept).as_deref(), Some(expected), "{accept}");
    }
    assert_eq!(of(429, "rate-limited", "text/html").as_deref(), Some("r"));
    assert_eq!(of(404, "no-route", browser), None);
    let is_choice = |status, code| filters.pages.find(status, code, Preference::Any).unwrap().is_choice;
    assert!(is_choice(503, "no-server") && !is_choice(429, "rate-limited"));
}

#[test]
fn mistakes_have_their_place() {
    let rule = |act| Spec { rules: vec![RuleSpec { of: RouteSpec::default(), act }], ..Spec::default() };
    let rate = |requests, burst, entries| {
        rule(Act::Rate(Limit { key: Key::Source, of: RateSpec { requests, period_s: 1, burst }, entries }))
    };
    let regex = RouteSpec { path: PathSpec::Regex("(".to_owned()), ..RouteSpec::default() };
    let page = PageSpec {
        statuses: vec![503],
        codes: Vec::new(),
        body: vec![0; PAGE_LEN_MAX + 1].into(),
        content_type: "a/b".to_owned(),
    };
    let of_cors = |cors| Spec { cors: Some(cors), ..Spec::default() };
    let many = vec![RuleSpec { of: RouteSpec::default(), act: Act::Allow }; 65];
    let cases = [
        (rule(Act::Deny(200)), "rules[0]: 200 denies nothing"),
        (rule(Act::Deny(401)), "rules[0]: 401 needs a field that the proxy does not send"),
        (rate(100_001, 1, 64), "rules[0]: a rate of more than 100000 requests a second"),
        (of_cors(cors(&["https://a:443"])), "cors: \"https://a:443\" names the usual port"),
        (of_cors(cors(&["http://*.a.test:80"])), "cors: \"http://*.a.test:80\" names the usual port"),
        (
            of_cors(CorsSpec { expose: vec!["x".repeat(128); 8], ..cors(&["*"]) }),
            "expose of 1040 bytes together",
        ),
        (rate(0, 1, 64), "rules[0]: a limit of 0 requests"),
        (rate(1, 0, 64), "rules[0]: a limit of 0 requests"),
        (rate(1, 90_000, 64), "a burst that lasts longer than a day at that rate; allowed are up to 86400"),
        (rate(1, 1, 63), "a table of 63 entries"),
        (Spec { rules: many, ..Spec::default() }, "rules: 65 rules; allowed are 64"),
        (
            Spec { rules: vec![RuleSpec { of: regex, act: Act::Allow }], ..Spec::default() },
            "rules[0]: the expression",
        ),
        (Spec { pages: vec![page], ..Spec::default() }, "error_pages[0]: has 16385 bytes"),
        (of_cors(cors(&[])), "cors: 0 origins; allowed are 1 to 64"),
        (of_cors(cors(&["https://a/b"])), "cors: \"https://a/b\" is no origin"),
        (of_cors(cors(&["*.example.com"])), "cors: \"*.example.com\" is no origin"),
        (of_cors(cors(&["https://*"])), "cors: \"https://*\" is no origin"),
        (of_cors(CorsSpec { credentials: true, ..cors(&["*"]) }), "credentials with the origin *"),
        (of_cors(CorsSpec { methods: vec!["P T".to_owned()], ..cors(&["*"]) }), "is no name of a method"),
    ];
    for (spec, message) in cases {
        assert_eq!(Filters::check(spec.clone()).unwrap_err().to_string(), refused(spec.clone()));
        let error = refused(spec);
        assert!(error.contains(message), "{error}");
    }
    let large = rate(1, 1, 1 << 20);
    let error = Spec::check_all([&large; 5].into_iter()).unwrap_err().to_string();
    assert!(error.contains("tables of 5242880 entries"), "{error}");
}

#[test]
fn hsts_is_a_field_of_every_response() {
    let hsts = Hsts { max_age_s: 60, include_subdomains: true, preload: false };
    let filters = made(Spec { hsts: Some(hsts), ..Spec::default() });
    let edits = filters.edits();
    assert!(edits.len() == 1 && filters.is_empty(), "{edits:?}");
    let text = b"max-age=60; includeSubDomains"[..].into();
    assert_eq!(edits[0], csp_http::forward::Edit::Set("Strict-Transport-Security".into(), text));
}
