use super::*;
use crate::Policy;

const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 443
  tls: {certificates: [www.example.com]}
  http:
    filters:
      rules:
      - {sources: [10.0.0.0/8], allow: true}
      - {path: {prefix: /admin}, deny: {}}
      - {methods: [POST], path: {exact: /login}, rate: {per_minute: 5}}
      - {concurrent: {key: {header: x-key}, most: 20, entries: 1024}}
      hsts: {include_subdomains: true}
      error_pages:
      - {statuses: [502, 503], body: <h1>Later</h1>}
    routes:
    - name: all
      to: [{service: api}]
      filters:
        cors: {origins: ['https://*.example.com'], methods: [PUT], credentials: true}
- {name: api, pool: [{node: an-1, port: 8080}]}
";

fn refuses(from: &str, to: &str, message: &str) {
    assert!(POLICY.contains(from), "{from}");
    let error = Policy::parse_yaml(&POLICY.replacen(from, to, 1), "p").unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn filters_are_read_and_written() {
    let policy = Policy::parse_yaml(POLICY, "p").unwrap();
    let (_, http) = policy.http_services().next().unwrap();
    let rules = &http.filters.rules;
    assert_eq!(rules[0].act(), Some(FilterAct::Allow));
    assert_eq!(rules[1].act(), Some(FilterAct::Deny(Deny { status: 403 })));
    let rate = rules[2].rate.as_ref().unwrap();
    assert_eq!(rate.period(), Some(RatePeriod { requests: 5, seconds: 60 }));
    assert_eq!((&rate.key, rate.entries), (&LimitKey::Source, 16_384));
    assert_eq!(http.filters.error_pages[0].content_type, "text/html; charset=utf-8");
    assert_eq!(http.routes[0].filters.cors.as_ref().map(|cors| cors.max_age_s), Some(600));
    assert_eq!(Policy::from_json(&policy.to_json(), "p").unwrap(), policy);
}

#[test]
fn what_is_wrong_is_named() {
    for (from, to, message) in [
        ("deny: {}", "deny: {}, allow: true", "a rule has one of allow, deny, redirect, rate and concurrent"),
        ("deny: {}", "methods: [GET]", "11:9: services[0].http.filters.rules[1]: a rule has one of"),
        ("per_minute: 5", "per_minute: 5, per_second: 1", "rules[2].rate: a rate has one of per_second"),
        ("per_minute: 5", "burst: 5", "rules[2].rate: a rate has one of per_second"),
        ("per_minute: 5", "per_minute: 0", "per_minute"),
        ("entries: 1024", "entries: 10", "entries"),
        ("most: 20, ", "", "most"),
        ("  tls: {certificates: [www.example.com]}\n", "", "filters with hsts are of services with tls"),
        ("{header: x-key}", "{head: x-key}", "`head`"),
        ("statuses: [502, 503]", "status: 502", "`status`"),
    ] {
        refuses(from, to, message);
    }
}
