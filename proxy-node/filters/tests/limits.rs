//! Limits by key: rates and requests at the same time.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::net::IpAddr;

use csp_filters::{Act, Asker, Filters, Key, Limit, Permit, RateSpec, RuleSpec, Spec, Stop};
use csp_http::Limits;
use csp_http::head::{HeadReader, Scratch};
use csp_http::route::{PathSpec, RouteSpec, Subject, TextSpec};
use csp_types::{Duration, Instant};

/// Judges a request of GET / with these fields.
fn judge(filters: &Filters, fields: &str, source: &str, now: Instant, permits: &mut Vec<Permit>) -> String {
    of_path(filters, ("/", fields), source, now, permits)
}

fn of_path(
    filters: &Filters,
    (path, fields): (&str, &str),
    source: &str,
    now: Instant,
    permits: &mut Vec<Permit>,
) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let limits = Limits::default();
    let mut scratch = Scratch::new(&limits);
    let mut reader = HeadReader::default();
    let request = reader.request(&[head.as_bytes()], true, &limits, &mut scratch).unwrap().unwrap();
    let source: IpAddr = source.parse().unwrap();
    let is_preflight = fields.starts_with("Origin:");
    let subject = Subject::new(&request, request.path(), source);
    match filters.rules.judge(&subject, Asker { source, is_preflight }, now, |permit| permits.push(permit)) {
        None => "passes".to_owned(),
        Some(Stop::Denied(status)) => format!("denied {status}"),
        Some(Stop::Redirected(..)) => "redirected".to_owned(),
        Some(Stop::Limited(wait_s)) => format!("wait {wait_s}"),
        Some(Stop::TooMany) => "too many".to_owned(),
    }
}

fn filters(rules: Vec<RuleSpec>) -> Filters {
    Filters::new(Spec { rules, ..Spec::default() }, [1, 2]).unwrap()
}

fn any(act: Act) -> RuleSpec {
    RuleSpec { of: RouteSpec::default(), act }
}

fn rate(key: Key, requests: u32, period_s: u32, burst: u32, entries: usize) -> Filters {
    filters(vec![any(Act::Rate(Limit { key, of: RateSpec { requests, period_s, burst }, entries }))])
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(7_000_000_000_000) + Duration::from_millis(ms)
}

#[test]
fn a_rate_lets_a_burst_pass_and_then_its_rate() {
    let filters = rate(Key::Source, 10, 1, 5, 64);
    let ask = |ms| judge(&filters, "", "10.0.0.1", at(ms), &mut Vec::new());
    for _ in 0..5 {
        assert_eq!(ask(0), "passes");
    }
    assert_eq!([ask(0), ask(99)], ["wait 1", "wait 1"]);
    assert_eq!([ask(100), ask(100), ask(200)], ["passes", "wait 1", "passes"]);
    // In a minute, with one request all 50 ms: the burst that is back, and 600.
    let passed = (0..1_200).filter(|turn| ask(10_000 + 50 * turn) == "passes").count();
    assert!((600..=606).contains(&passed), "{passed}");
    // After a pause of any length, which the times of places outlast or wrap in, it is as before.
    for days in [1, 100, 203, 204, 1_000] {
        let later = 1_000 * 86_400 * days;
        let all = [0; 6].map(|_| ask(later));
        assert_eq!(all, ["passes", "passes", "passes", "passes", "passes", "wait 1"], "{days}");
    }
}

#[test]
fn rates_of_minutes_say_when_the_next_request_passes() {
    let filters = rate(Key::Source, 5, 60, 5, 64);
    let ask = |ms| judge(&filters, "", "10.0.0.1", at(ms), &mut Vec::new());
    assert_eq!([0; 6].map(|_| ask(0))[5], "wait 12");
    assert_eq!([ask(3_000), ask(11_999), ask(12_000)], ["wait 9", "wait 1", "passes"]);
}

/// All addresses of a network of IPv6 are one client's.
#[test]
fn keys_are_addresses_networks_fields_and_cookies() {
    let ask =
        |filters: &Filters, fields: &str, source| judge(filters, fields, source, at(0), &mut Vec::new());
    let one = |key| rate(key, 1, 60, 1, 64);
    let filters = one(Key::Source);
    assert_eq!(ask(&filters, "", "10.0.0.1"), "passes");
    assert_eq!(ask(&filters, "", "::ffff:10.0.0.1"), "wait 60");
    assert_eq!(ask(&filters, "", "10.0.0.2"), "passes");
    assert_eq!(ask(&filters, "", "2001:db8::1"), "passes");
    assert_eq!(ask(&filters, "", "2001:db8::2:3"), "wait 60");
    assert_eq!(ask(&filters, "", "2001:db8:0:1::1"), "passes");
    let filters = one(Key::Header("X-Key".to_owned()));
    for (fields, expected) in [
        ("", "passes"),
        ("", "wait 60"),
        ("x-key: a\r\n", "passes"),
        ("X-Key: a\r\n", "wait 60"),
        ("X-Key: b\r\n", "passes"),
        // A server may take any of two values: they count as none.
        ("X-Key: c\r\nX-Key: 1\r\n", "wait 60"),
        ("X_Key: d\r\n", "wait 60"),
    ] {
        assert_eq!(ask(&filters, fields, "10.0.0.1"), expected, "{fields}");
    }
    let filters = one(Key::Cookie("id".to_owned()));
    assert_eq!(ask(&filters, "Cookie: id=1; b=2\r\n", "10.0.0.1"), "passes");
    assert_eq!(ask(&filters, "Cookie: b=3; id=1\r\n", "10.0.0.1"), "wait 60");
    assert_eq!(ask(&filters, "Cookie: b=3\r\n", "10.0.0.1"), "passes");
    assert_eq!(ask(&filters, "Cookie: id=5; id=6\r\n", "10.0.0.1"), "wait 60");
    let filters = one(Key::All);
    assert_eq!(ask(&filters, "", "10.0.0.1"), "passes");
    assert_eq!(ask(&filters, "", "10.0.0.2"), "wait 60");
}

/// Many keys: the table stays as it is, and keys that are within their rate again make room first.
#[test]
fn a_full_table_evicts_what_is_nearest_to_its_rate() {
    let filters = rate(Key::Source, 1, 1, 1, 64);
    let source = |number: u32| IpAddr::from(number.to_be_bytes()).to_string();
    for number in 0..10_000 {
        assert_eq!(judge(&filters, "", &source(number), at(0), &mut Vec::new()), "passes");
    }
    let lost = filters.rules.lost();
    assert!((9_800..10_000).contains(&lost), "{lost}");
    // A second later all places are free.
    for number in 0..50 {
        judge(&filters, "", &source(number), at(2_000), &mut Vec::new());
    }
    assert!(filters.rules.lost() < lost + 10, "{}", filters.rules.lost());
}

#[test]
fn permits_count_requests_at_the_same_time() {
    let limit = Limit { key: Key::Source, of: 2, entries: 64 };
    let filters = filters(vec![any(Act::Concurrent(limit))]);
    let ask = |permits: &mut Vec<Permit>, source: &str| judge(&filters, "", source, at(0), permits);
    let mut permits = Vec::new();
    assert_eq!([0; 3].map(|_| ask(&mut permits, "10.0.0.1")), ["passes", "passes", "too many"]);
    assert_eq!(ask(&mut permits, "10.0.0.2"), "passes");
    permits.remove(0);
    assert_eq!([0; 2].map(|_| ask(&mut permits, "10.0.0.1")), ["passes", "too many"]);
    permits.clear();
    // More keys than places: those beyond pass, uncounted, and leave the others' counts alone.
    for number in 0..200 {
        assert_eq!(ask(&mut permits, &format!("10.1.0.{number}")), "passes");
    }
    assert_eq!(permits.len() as u64 + filters.rules.lost(), 200);
    permits.clear();
    assert_eq!([0; 3].map(|_| ask(&mut permits, "10.0.0.1")), ["passes", "passes", "too many"]);
}

/// Workers share a table: what they let pass together is the limit.
#[test]
fn threads_share_a_limit() {
    let requests = RateSpec { requests: 1, period_s: 3_600, burst: 20 };
    let act = Act::Rate(Limit { key: Key::All, of: requests, entries: 64 });
    let limit = Limit { key: Key::All, of: 7, entries: 64 };
    let rates = filters(vec![any(act)]);
    let places = filters(vec![any(Act::Concurrent(limit))]);
    // The key has its place before threads look for it.
    assert_eq!(judge(&rates, "", "10.0.0.1", at(0), &mut Vec::new()), "passes");
    let passed = std::sync::atomic::AtomicUsize::new(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    if judge(&rates, "", "10.0.0.1", at(0), &mut Vec::new()) == "passes" {
                        passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    let mut permits = Vec::new();
                    judge(&places, "", "10.0.0.1", at(0), &mut permits);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 20);
    let mut permits = Vec::new();
    let entered = (0..20).filter(|_| judge(&places, "", "10.0.0.1", at(0), &mut permits) == "passes");
    assert_eq!(entered.count(), 7, "all permits came back");
}

#[test]
fn the_first_rule_that_decides_counts() {
    let of_path = |path: &str| RouteSpec { path: PathSpec::Prefix(path.to_owned()), ..RouteSpec::default() };
    let of_source = RouteSpec { sources: vec!["10.0.0.0/8".parse().unwrap()], ..RouteSpec::default() };
    let filters = filters(vec![
        RuleSpec { of: of_source, act: Act::Allow },
        RuleSpec { of: of_path("/admin"), act: Act::Deny(404) },
        RuleSpec { of: of_path("/a"), act: Act::Deny(403) },
    ]);
    let ask = |path, source| self::of_path(&filters, (path, ""), source, at(0), &mut Vec::new());
    assert_eq!(ask("/admin/x", "10.1.1.1"), "passes");
    assert_eq!(ask("/admin/x", "192.0.2.1"), "denied 404");
    assert_eq!(ask("/a", "192.0.2.1"), "denied 403");
    assert_eq!(ask("/adminx", "192.0.2.1"), "passes");
}

/// A preflight has none of the fields that the request has.
#[test]
fn rules_by_fields_do_not_judge_preflights() {
    let of = |headers: &[(&str, TextSpec)]| RouteSpec {
        headers: headers.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect(),
        ..RouteSpec::default()
    };
    let by_key = Limit {
        key: Key::Header("x-key".to_owned()),
        of: RateSpec { requests: 1, period_s: 60, burst: 1 },
        entries: 64,
    };
    let posts = RouteSpec { methods: vec!["GET".to_owned()], ..RouteSpec::default() };
    let of_posts = Limit { key: Key::All, ..by_key.clone() };
    let filters = filters(vec![
        RuleSpec { of: of(&[("x-key", TextSpec::Absent)]), act: Act::Deny(403) },
        any(Act::Rate(by_key)),
        RuleSpec { of: posts, act: Act::Rate(of_posts) },
        RuleSpec { of: of(&[("x-key", TextSpec::Exact("a".to_owned()))]), act: Act::Allow },
        any(Act::Deny(404)),
    ]);
    let ask = |fields: &str| judge(&filters, fields, "10.0.0.1", at(0), &mut Vec::new());
    assert_eq!([0; 3].map(|_| ask("Origin: https://a\r\n")), ["passes"; 3]);
    assert_eq!(ask(""), "denied 403");
    assert_eq!(ask("x-key: a\r\n"), "passes");
    assert_eq!(
        ask("x-key: b\r\n"),
        "wait 60",
        "the preflights were not counted, and this one is a second GET"
    );
}

#[test]
fn what_is_denied_by_a_field_is_denied_by_its_other_spelling() {
    let of = RouteSpec { headers: vec![("x-debug".to_owned(), TextSpec::Present)], ..RouteSpec::default() };
    let filters = filters(vec![RuleSpec { of, act: Act::Deny(403) }]);
    let ask = |fields: &str| judge(&filters, fields, "10.0.0.1", at(0), &mut Vec::new());
    assert_eq!(
        ["X-Debug: 1\r\n", "X_Debug: 1\r\n", "X-Debu: 1\r\n"].map(ask),
        ["denied 403", "denied 403", "passes"]
    );
}
