//! What makes the HTTP of services valid, and services without an end of their own.

use std::collections::{HashMap, HashSet};

use csp_config::Problems;

use super::filters::check as check_filters;
use super::{
    Condition, HTTP_ALPN, HeaderEdit, Http, ROUTE_TARGETS_MAX, ROUTES_MAX, Respond, Route, RouteTimeouts,
    TRUSTED_PROXIES_MAX, cache,
};
use crate::check::{check_count, check_name, check_unicast};
use crate::{Backlog, Balance, Policy, Protocol, ProxyProtocol, ServerOptions, Service, Via};

/// Most hosts, methods, networks, conditions of one kind and edits of a route.
pub(super) const CONDITIONS_MAX: usize = 16;
/// Longest text of a route in bytes.
const TEXT_LEN_MAX: usize = 1_024;
/// Longest text of all edits of a route's requests, or responses, in bytes.
const EDITS_LEN_MAX: usize = 14 << 10;
/// Longest body of an answer in bytes.
const BODY_LEN_MAX: usize = 16 << 10;

/// Notes what is wrong with services that read HTTP, and with those that they lead to.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    let services = policy.by_name();
    let routed: HashSet<&str> = policy.http_services().flat_map(|(_, http)| http.targets()).collect();
    let passed = policy.services.iter().flat_map(|service| &service.sni).map(|sni| sni.service.as_str());
    let reached: HashSet<&str> = routed.iter().copied().chain(passed).collect();
    for (index, service) in policy.services.iter().enumerate() {
        let at = format!("services[{index}]");
        if !service.has_end() {
            check_without_end(service, &reached, &at, problems);
        }
        if service.servers.http2 && !routed.contains(service.name.as_str()) {
            let message = "no route of a service with http leads to it: its servers get what clients send";
            problems.add(format!("{at}.servers.http2"), message.to_owned());
        }
        if let Some(http) = &service.http {
            check_service(service, &at, problems);
            check_http(http, &services, &format!("{at}.http"), problems);
            for (index, route) in http.routes.iter().enumerate() {
                cache::check(route, service, &format!("{at}.http.routes[{index}]"), problems);
            }
        }
    }
}

/// Notes what is wrong with the address and port of a service.
pub(crate) fn check_end(service: &Service, at: &str, problems: &mut Problems) {
    match (service.vip.is_unspecified(), service.port) {
        (true, 0) => {}
        (false, 0) => problems.add(at.to_owned(), "it has a vip and no port; a service has both, or none"),
        (true, _) if service.vip == super::no_vip() => {
            problems.add(at.to_owned(), "it has a port and no vip; a service has both, or none");
        }
        _ => check_unicast(service.vip, &format!("{at}.vip"), problems),
    }
}

/// A service without an end is reached by routes only: what is said of its clients would be missed.
fn check_without_end(service: &Service, reached: &HashSet<&str>, at: &str, problems: &mut Problems) {
    if service
        .servers
        .check
        .as_ref()
        .and_then(|check| check.http.as_ref())
        .is_some_and(|http| http.host.is_none())
    {
        let message = "the request of a check needs a host: a service without vip has no address of its own";
        problems.add(format!("{at}.servers.check.http"), message.to_owned());
    }
    if !reached.contains(service.name.as_str()) {
        let message = "no client reaches it: it has no vip and port, and neither a route of a service with http nor a name of sni leads to it";
        problems.add(at.to_owned(), message.to_owned());
    }
    for (field, is_named) in [
        ("tls", service.tls.is_some()),
        ("http", service.http.is_some()),
        ("sni", !service.sni.is_empty()),
        ("accept_proxy_from", !service.accept_proxy_from.is_empty()),
        ("via", service.via == Via::Network),
        ("protocol", service.protocol == Protocol::Udp),
    ] {
        if is_named {
            let message = format!("{field} is for a service that clients connect to, with vip and port");
            problems.add(format!("{at}.{field}"), message);
        }
    }
}

fn check_service(service: &Service, at: &str, problems: &mut Problems) {
    if service.protocol == Protocol::Udp || service.via == Via::Network {
        let message = "http is for connections that a proxy ends: protocol tcp and via proxy";
        problems.add(format!("{at}.http"), message.to_owned());
    }
    if !service.pool.is_empty() {
        let message = "a service with http has no pool: its routes lead to other services, which may have no vip and port";
        problems.add(format!("{at}.pool"), message.to_owned());
    }
    let clients = "is for servers of the services that routes lead to";
    let has_hsts = |http: &Http| {
        http.filters.hsts.is_some() || http.routes.iter().any(|route| route.filters.hsts.is_some())
    };
    if service.tls.is_none() && service.http.as_ref().is_some_and(has_hsts) {
        let message = "filters with hsts are of services with tls: browsers ignore the field without it";
        problems.add(format!("{at}.http"), message.to_owned());
    }
    for (field, is_named, message) in [
        ("servers", service.servers != ServerOptions::default(), clients),
        ("backlog", service.backlog != Backlog::default(), clients),
        (
            "http.h2c",
            service.tls.is_some() && service.http.as_ref().is_some_and(|http| http.h2c),
            "is for clients without TLS; with it tls.alpn says it",
        ),
    ] {
        if is_named {
            problems.add(format!("{at}.{field}"), format!("{field} {message}"));
        }
    }
    let mut offered = service.tls.iter().flat_map(|tls| &tls.alpn).enumerate();
    if let Some((index, name)) = offered.find(|(_, name)| !HTTP_ALPN.contains(&name.as_str())) {
        let message = format!("{name:?} is not what the proxy speaks; allowed are {}", HTTP_ALPN.join(", "));
        problems.add(format!("{at}.tls.alpn[{index}]"), message);
    }
}

fn check_http(http: &Http, services: &HashMap<&str, &Service>, at: &str, problems: &mut Problems) {
    check_count(&format!("{at}.routes"), http.routes.len(), 1, ROUTES_MAX, problems);
    check_count(
        &format!("{at}.trusted_proxies"),
        http.trusted_proxies.len(),
        0,
        TRUSTED_PROXIES_MAX,
        problems,
    );
    check_count(&format!("{at}.origin"), http.origin.len(), 0, 2, problems);
    check_filters(&http.filters, &format!("{at}.filters"), problems);
    let mut names = HashMap::new();
    for (index, route) in http.routes.iter().enumerate() {
        let at = format!("{at}.routes[{index}]");
        check_name(&route.name, "route", &at, problems);
        if let Some(first) = names.insert(route.name.as_str(), index) {
            let message =
                format!("{:?} is the name of routes[{first}] already; names are unique", route.name);
            problems.add(format!("{at}.name"), message);
        }
        check_route(route, &at, problems);
        check_targets((route, http), services, &at, problems);
    }
}

fn check_route(route: &Route, at: &str, problems: &mut Problems) {
    for (field, len) in [
        ("hosts", route.hosts.len()),
        ("methods", route.methods.len()),
        ("headers", route.headers.len()),
        ("cookies", route.cookies.len()),
        ("query", route.query.len()),
        ("sources", route.sources.len()),
        ("request_headers", route.request_headers.len()),
        ("response_headers", route.response_headers.len()),
    ] {
        check_count(&format!("{at}.{field}"), len, 0, CONDITIONS_MAX, problems);
    }
    check_action(route, at, problems);
    check_filters(&route.filters, &format!("{at}.filters"), problems);
    for (field, conditions) in
        [("headers", &route.headers), ("cookies", &route.cookies), ("query", &route.query)]
    {
        for (index, condition) in conditions.iter().enumerate() {
            check_condition(condition, &format!("{at}.{field}[{index}]"), problems);
        }
    }
    for (field, edits) in
        [("request_headers", &route.request_headers), ("response_headers", &route.response_headers)]
    {
        let texts = edits.iter().flat_map(|edit| [&edit.set, &edit.add, &edit.value]).flatten();
        let len: usize = texts.map(|text| text.len() + 4).sum();
        if len > EDITS_LEN_MAX {
            problems.add(format!("{at}.{field}"), format!("{len} bytes in all; allowed are {EDITS_LEN_MAX}"));
        }
        for (index, edit) in edits.iter().enumerate() {
            check_edit(edit, &format!("{at}.{field}[{index}]"), problems);
        }
    }
}

fn check_action(route: &Route, at: &str, problems: &mut Problems) {
    if route.action().is_none() {
        problems.add(at.to_owned(), "a route has one of to, redirect and respond".to_owned());
    }
    let forwards = !route.to.is_empty();
    for (field, is_named) in [
        ("host", route.host.is_some()),
        ("rewrite", route.rewrite.is_some()),
        ("request_headers", !route.request_headers.is_empty()),
        ("upgrade", route.upgrade),
        ("timeouts", route.timeouts != RouteTimeouts::default()),
    ] {
        if is_named && !forwards {
            problems.add(format!("{at}.{field}"), format!("{field} is for routes with `to`"));
        }
    }
    let is_bodyless = |respond: &&Respond| matches!(respond.status, 204 | 205 | 304);
    if let Some(respond) = route.respond.as_ref().filter(is_bodyless).filter(|of| !of.body.is_empty()) {
        problems.add(format!("{at}.respond.body"), format!("{} has no body", respond.status));
    }
    if let Some(respond) = route.respond.as_ref().filter(|respond| respond.body.len() > BODY_LEN_MAX) {
        let message = format!("has {} bytes; allowed are {BODY_LEN_MAX}", respond.body.len());
        problems.add(format!("{at}.respond.body"), message);
    }
    let scheme = route.redirect.as_ref().and_then(|redirect| redirect.scheme.as_ref());
    if let Some(scheme) = scheme.filter(|scheme| !matches!(scheme.as_str(), "http" | "https")) {
        let message = format!("{scheme:?} is no scheme; allowed are http and https");
        problems.add(format!("{at}.redirect.scheme"), message);
    }
}

pub(super) fn check_condition(condition: &Condition, at: &str, problems: &mut Problems) {
    let Condition { name, exact, prefix, regex, absent } = condition;
    let texts = [exact, prefix, regex];
    if texts.iter().filter(|text| text.is_some()).count() + usize::from(*absent) > 1 {
        let message = "has one of exact, prefix, regex and absent; none: it is there";
        problems.add(at.to_owned(), message.to_owned());
    }
    for text in std::iter::once(name).chain(texts.into_iter().flatten()) {
        if text.len() > TEXT_LEN_MAX {
            problems.add(at.to_owned(), format!("{} bytes of text; allowed are {TEXT_LEN_MAX}", text.len()));
        }
    }
}

fn check_edit(edit: &HeaderEdit, at: &str, problems: &mut Problems) {
    let HeaderEdit { set, add, remove, value } = edit;
    if [set, add, remove].into_iter().flatten().count() != 1 {
        problems.add(at.to_owned(), "has one of set, add and remove, with the field's name".to_owned());
    } else if value.is_some() == remove.is_some() {
        let message = "set and add have a value, remove has none";
        problems.add(at.to_owned(), message.to_owned());
    }
    for text in [set, add, remove, value].into_iter().flatten().filter(|text| text.len() > TEXT_LEN_MAX) {
        problems.add(at.to_owned(), format!("{} bytes of text; allowed are {TEXT_LEN_MAX}", text.len()));
    }
}

fn check_targets(
    (route, http): (&Route, &Http),
    services: &HashMap<&str, &Service>,
    at: &str,
    problems: &mut Problems,
) {
    check_count(&format!("{at}.to"), route.to.len(), 0, ROUTE_TARGETS_MAX, problems);
    if !route.to.is_empty() && route.to.iter().all(|target| target.weight == 0) {
        problems.add(format!("{at}.to"), "all weights are 0: no service gets requests".to_owned());
    }
    for (index, target) in route.to.iter().enumerate() {
        let field = format!("{at}.to[{index}].service");
        let name = &target.service;
        let message = match services.get(name.as_str()) {
            None => format!("{name:?} is no service of this policy"),
            Some(service) if service.http.is_some() => {
                format!("{name} has http itself: routes lead to services with a pool")
            }
            Some(service) if service.via == Via::Network => {
                format!("{name} has via: network: no proxy reaches its servers")
            }
            Some(service)
                if http.upstream.idle > 0 && service.servers.proxy_protocol != ProxyProtocol::Off =>
            {
                format!(
                    "{name} has servers.proxy_protocol, whose header names one client, and kept connections have requests of many; upstream.idle: 0 keeps none"
                )
            }
            Some(service) if http.upstream.idle > 0 && service.servers.balance == Balance::Source => {
                format!(
                    "{name} has servers.balance: source, and kept connections have requests of many clients; upstream.idle: 0 keeps none"
                )
            }
            Some(_) => continue,
        };
        problems.add(field, message);
    }
}
