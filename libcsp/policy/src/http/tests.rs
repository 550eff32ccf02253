use super::*;

const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 443
  tls: {certificates: [www.example.com], alpn: [http/1.1]}
  http:
    routes:
    - {name: api, hosts: [api.example.com], path: {prefix: /v1}, methods: [GET], to: [{service: api, weight: 9}, {service: canary}]}
    - {name: old, path: {exact: /old}, redirect: {status: 301, scheme: https, path: {path: /new}}}
    - {name: no, path: {regex: '/(a|b)+'}, headers: [{name: x, exact: y}], respond: {status: 403, body: no}}
    - {name: all, upgrade: true, request_headers: [{set: x-a, value: b}, {remove: x-c}], to: [{service: api}], timeouts: {total_ms: 5000}}
    limits: {head_kib: 16}
- {name: api, pool: [{node: an-1, port: 8080}]}
- {name: canary, pool: [{node: an-2, port: 8080}]}
";

fn refuses(from: &str, to: &str, message: &str) {
    assert!(POLICY.contains(from), "{from}");
    let error = Policy::parse_yaml(&POLICY.replacen(from, to, 1), "p").unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn routes_lead_to_services_without_an_end() {
    let policy = Policy::parse_yaml(POLICY, "p").unwrap();
    let (service, http) = policy.http_services().next().unwrap();
    assert_eq!((service.name.as_str(), service.has_end(), service.pool.len()), ("web", true, 0));
    assert_eq!(http.targets().collect::<Vec<_>>(), ["api", "canary", "api"]);
    assert!(matches!(http.routes[0].action(), Some(RouteAction::Forward([first, _])) if first.weight == 9));
    assert_eq!(http.limits, HttpLimits { head_kib: 16, ..HttpLimits::default() });
    assert_eq!(http.routes[3].timeouts.total_ms, Some(5_000));
    assert!(!policy.services[1].has_end());
    assert_eq!(policy.ends().count(), 1, "clients connect to one of them");
    assert_eq!(policy.addresses().len(), 1);
}

#[test]
fn the_canonical_form_says_the_same() {
    let policy = Policy::parse_yaml(POLICY, "p").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "p").unwrap(), policy);
    let plain = POLICY.replace("http/1.1", "h2");
    let without = "apiVersion: csp/v1\nservices: [{name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}]";
    let without = Policy::parse_yaml(without, "p").unwrap().to_json();
    assert!(!without.contains("http") && plain != POLICY, "policies of before have their hashes");
}

#[test]
fn differences_name_routes() {
    let policy = Policy::parse_yaml(POLICY, "p").unwrap();
    let other = Policy::parse_yaml(&POLICY.replacen("status: 403", "status: 404", 1), "p").unwrap();
    let lines = policy.diff(&other);
    assert!(lines.len() == 1 && lines[0].starts_with("~ service web: http"), "{lines:?}");
}

#[test]
fn what_is_wrong_is_named() {
    for (from, to, message) in [
        ("services:\n- name: web", "services:\n- name: api", "is the name of services[0] already"),
        (
            "to: [{service: api, weight: 9}",
            "to: [{service: app, weight: 9}",
            "\"app\" is no service of this policy",
        ),
        (
            "to: [{service: api, weight: 9}, {service: canary}]",
            "to: [{service: web}, {service: canary}]",
            "web has http itself",
        ),
        (
            "- {name: canary",
            "- {name: spare, pool: [{node: an-2, port: 1}]}\n- {name: canary",
            "services[2]: no client reaches it",
        ),
        ("- {name: canary", "- {name: canary, port: 80", "services[2]: it has a port and no vip"),
        ("- {name: canary", "- {name: canary, vip: 10.76.0.100", "services[2]: it has a vip and no port"),
        (
            "- {name: canary",
            "- {name: canary, tls: {certificates: [x]}",
            "services[2].tls: tls is for a service that clients connect to",
        ),
        ("name: old", "name: api", "\"api\" is the name of routes[0] already"),
        (
            "respond: {status: 403, body: no}",
            "upgrade: false",
            "routes[2]: a route has one of to, redirect and respond",
        ),
        (
            "respond: {status: 403, body: no}",
            "to: [{service: api}], respond: {status: 403}",
            "a route has one of to, redirect and respond",
        ),
        ("respond: {", "host: x, respond: {", "routes[2].host: host is for routes with `to`"),
        ("exact: y", "exact: y, absent: true", "routes[2].headers[0]: has one of exact"),
        ("{set: x-a, value: b}", "{set: x-a, add: x-b, value: b}", "has one of set, add and remove"),
        ("{remove: x-c}", "{remove: x-c, value: d}", "set and add have a value"),
        ("scheme: https", "scheme: ftp", "\"ftp\" is no scheme"),
        ("port: 443", "port: 443\n  pool: [{node: an-1, port: 80}]", "a service with http has no pool"),
        (
            "alpn: [http/1.1]",
            "alpn: [http/1.1, h3]",
            "services[0].tls.alpn[1]: \"h3\" is not what the proxy speaks; allowed are h2, http/1.1",
        ),
        ("port: 443", "port: 443\n  backlog: {time_s: 5}", "services[0].backlog: backlog is for servers"),
        ("limits:", "h2c: true\n    limits:", "http.h2c is for clients without TLS"),
        ("redirect: {", "timeouts: {total_ms: 5}, redirect: {", "timeouts is for routes with `to`"),
        ("status: 403, body", "status: 204, body", "204 has no body"),
        (
            "an-1, port: 8080}]}",
            "an-1, port: 8080}], servers: {balance: source}}",
            "upstream.idle: 0 keeps none",
        ),
        (
            "an-1, port: 8080}]}",
            "an-1, port: 8080}], servers: {check: {http: {}}}}",
            "the request of a check needs a host",
        ),
        ("vip: 10.76.0.100", "servers: {http2: true}\n  vip: 10.76.0.100", "services[0].servers"),
        ("port: 443", "port: 443\n  via: network", "http is for connections that a proxy ends"),
        ("weight: 9}, {service: canary}", "weight: 0}", "all weights are 0"),
        ("head_kib: 16", "head_kib: 64", "head_kib"),
        ("{regex:", "{rex:", "`rex` is not known; allowed are exact, prefix, regex"),
    ] {
        refuses(from, to, message);
    }
}
