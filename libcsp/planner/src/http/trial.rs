//! What routes make of a request that somebody describes: which one it falls under, or why none.

use std::net::IpAddr;

use csp_http::head::{HeadReader, Scheme, Scratch, normalised, other_readings};
use csp_http::route::{Routes, Subject};
use csp_http::{Fault, Limits};
use csp_policy::{Http, RouteAction};

use super::{redirect, rewrite, route_spec};

/// A request.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// The method.
    pub method: &'a str,
    /// The host, perhaps with a port.
    pub host: &'a str,
    /// The path with the query.
    pub target: &'a str,
    /// Further fields.
    pub headers: &'a [(String, String)],
    /// The client's address.
    pub source: IpAddr,
    /// Whether the client uses TLS.
    pub is_tls: bool,
}

/// The route of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The position of the route.
    pub route: usize,
    /// The path that servers get, without the query; `None`: no server gets the request.
    pub path: Option<String>,
    /// Where a redirect leads.
    pub location: Option<String>,
}

/// Why a request has no route.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoute {
    /// The proxy refuses its head.
    #[error("the proxy refuses it: {} {}: {}", .0.status(), .0.code(), .0.text())]
    Refused(Fault),
    /// It is no request.
    #[error("a request cannot be written so: its method, host, path and fields are of one line each")]
    NotARequest,
    /// It falls under no route.
    #[error("it falls under no route: 404 no-route")]
    None,
    /// The routes cannot be compiled.
    #[error("{0}")]
    Routes(String),
}

/// Finds the route of a request, as proxies do.
pub fn find(http: &Http, trial: &Trial<'_>) -> Result<Outcome, NoRoute> {
    let specs: Vec<_> = http.routes.iter().map(route_spec).collect();
    let routes = Routes::compile(&specs).map_err(|error| NoRoute::Routes(error.to_string()))?;
    let head = head(trial).ok_or(NoRoute::NotARequest)?;
    let limits = Limits::default();
    let mut scratch = Scratch::new(&limits);
    let request = HeadReader::default()
        .request(&[head.as_bytes()], true, &limits, &mut scratch)
        .map_err(|refusal| NoRoute::Refused(refusal.fault))?
        .ok_or(NoRoute::NotARequest)?;
    let (mut room, mut other) = (Vec::new(), Vec::new());
    let path = match request.path() {
        b"*" => b"*",
        path => normalised(path, &mut room).map_err(NoRoute::Refused)?,
    };
    let subject = Subject::new(&request, path, trial.source);
    let found = routes.find(&subject).ok_or(NoRoute::None)?;
    other_readings(path, &mut other, |path| {
        routes.find(&Subject { path, ..subject }).is_some_and(|other| other.route == found.route)
    })
    .map_err(NoRoute::Refused)?;
    let mut outcome = Outcome { route: found.route, path: None, location: None };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut written = Vec::new();
    let route = http.routes.get(found.route).ok_or(NoRoute::None)?;
    match route.action() {
        Some(RouteAction::Forward(_)) => {
            let path = match &route.rewrite {
                Some(to) => text(rewrite(to).apply(path, found, &mut written)),
                None => text(path),
            };
            outcome.path = Some(path);
        }
        Some(RouteAction::Redirect(to)) => {
            let scheme = if trial.is_tls { Scheme::Https } else { Scheme::Http };
            let is_written = redirect(to).location(&request, scheme, path, found, &mut written);
            outcome.location = is_written.then(|| text(&written));
        }
        Some(RouteAction::Respond(_)) | None => {}
    }
    Ok(outcome)
}

/// Writes the request; `None`: a part of it would be another line.
fn head(trial: &Trial<'_>) -> Option<String> {
    let Trial { method, host, target, headers, .. } = trial;
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
    let has_line = |text: &str| text.contains(['\r', '\n', '\0']);
    if [method, host, target].into_iter().any(|part| has_line(part) || part.contains(' ')) {
        return None;
    }
    for (name, value) in *headers {
        if has_line(name) || has_line(value) {
            return None;
        }
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    Some(head + "\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 80
  http:
    routes:
    - {name: api, hosts: [api.example.com], path: {prefix: /v1}, rewrite: {prefix: /}, to: [{service: api}]}
    - {name: beta, cookies: [{name: beta, exact: 'yes'}], to: [{service: api}]}
    - {name: inner, path: {prefix: /inner}, sources: [10.0.0.0/8], respond: {status: 200}}
    - {name: admin, path: {prefix: /admin}, respond: {status: 403}}
    - {name: old, path: {prefix: /old}, redirect: {status: 301, scheme: https, path: {prefix: /new}}}
- {name: api, pool: [{node: an-1, port: 8080}]}
";

    fn find_in(target: &str, host: &str, headers: &[(&str, &str)]) -> Result<(usize, String), NoRoute> {
        let policy = checked(POLICY, "p").unwrap();
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let source = "192.0.2.1".parse().unwrap();
        let trial = Trial { method: "GET", host, target, headers: &headers, source, is_tls: false };
        let http = policy.services[0].http.clone().unwrap();
        let Outcome { route, path, location } = find(&http, &trial)?;
        Ok((route, path.or(location).unwrap_or_default()))
    }

    #[test]
    fn a_request_falls_under_the_route_that_proxies_take() {
        assert_eq!(find_in("/v1/users?x=1", "api.example.com", &[]), Ok((0, "/users".into())));
        assert_eq!(find_in("/v1/users", "www.example.com", &[]), Err(NoRoute::None));
        assert_eq!(find_in("/a", "www", &[("Cookie", "a=b; beta=yes")]), Ok((1, "/a".into())));
        assert_eq!(find_in("/inner", "www", &[]), Err(NoRoute::None));
        assert_eq!(find_in("/old/a?b=c", "www:8080", &[]), Ok((4, "https://www/new/a?b=c".into())));
    }

    #[test]
    fn what_proxies_refuse_is_refused() {
        assert_eq!(
            find_in("//admin", "www", &[("Cookie", "beta=yes")]),
            Err(NoRoute::Refused(Fault::PathAmbiguous))
        );
        assert_eq!(
            find_in("/../a", "www", &[]).map_err(|error| error.to_string().contains("400")),
            Err(true)
        );
        assert_eq!(find_in("/a", "www", &[("X", "a\r\nHost: b")]), Err(NoRoute::NotARequest));
        assert_eq!(find_in("/a b", "www", &[]), Err(NoRoute::NotARequest));
    }
}
