//! Routes of HTTP: what the policy says of them, as `csp-http` has it.

pub mod trial;

use csp_config::Problems;
use csp_http::forward::{Edit, Edits};
use csp_http::head::{Host, Scheme};
use csp_http::route::{PathRewrite, PathSpec, Redirect, RouteMistake, RouteSpec, Routes, TextSpec};
use csp_policy::{Condition, HeaderEdit, Http, PathMatch, Policy, RedirectTo, Rewrite, Route};

/// Returns the requests that fall under a route.
pub fn route_spec(route: &Route) -> RouteSpec {
    RouteSpec {
        priority: route.priority,
        hosts: route.hosts.clone(),
        path: path_spec(route.path.as_ref()),
        methods: route.methods.clone(),
        headers: conditions(&route.headers),
        cookies: conditions(&route.cookies),
        query: conditions(&route.query),
        sources: route.sources.clone(),
    }
}

pub(crate) fn path_spec(path: Option<&PathMatch>) -> PathSpec {
    match path {
        None => PathSpec::Any,
        Some(PathMatch::Exact(path)) => PathSpec::Exact(path.clone()),
        Some(PathMatch::Prefix(path)) => PathSpec::Prefix(path.clone()),
        Some(PathMatch::Regex(expression)) => PathSpec::Regex(expression.clone()),
    }
}

pub(crate) fn conditions(conditions: &[Condition]) -> Vec<(String, TextSpec)> {
    conditions.iter().map(condition).collect()
}

fn condition(condition: &Condition) -> (String, TextSpec) {
    let Condition { name, exact, prefix, regex, absent } = condition;
    let exact = exact.clone().map(TextSpec::Exact);
    let text = exact.or(prefix.clone().map(TextSpec::Prefix)).or(regex.clone().map(TextSpec::Regex));
    let otherwise = if *absent { TextSpec::Absent } else { TextSpec::Present };
    (name.clone(), text.unwrap_or(otherwise))
}

/// Returns a redirect.
pub fn redirect(to: &RedirectTo) -> Redirect {
    let scheme = to.scheme.as_deref().map(|scheme| match scheme {
        "https" => Scheme::Https,
        _ => Scheme::Http,
    });
    let path = to.path.as_ref().map(rewrite);
    Redirect { status: to.status, scheme, host: to.host.clone(), port: to.port, path }
}

/// Returns how a path changes.
pub fn rewrite(to: &Rewrite) -> PathRewrite {
    match to {
        Rewrite::Path(path) => PathRewrite::Full(path.clone()),
        Rewrite::Prefix(path) => PathRewrite::Prefix(path.clone()),
    }
}

/// Returns changes of fields.
pub fn edits(edits: &[HeaderEdit]) -> Vec<Edit> {
    let edit = |edit: &HeaderEdit| {
        let value = || edit.value.as_deref().unwrap_or_default().as_bytes().into();
        let set = edit.set.as_deref().map(|name| Edit::Set(name.into(), value()));
        let add = || edit.add.as_deref().map(|name| Edit::Add(name.into(), value()));
        let remove = || edit.remove.as_deref().map(|name| Edit::Remove(name.into()));
        set.or_else(add).or_else(remove)
    };
    edits.iter().filter_map(edit).collect()
}

/// Notes what is wrong with the routes of all services.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    crate::http_filters::check_policy(policy, problems);
    for (index, service) in policy.services.iter().enumerate() {
        if let Some(http) = &service.http {
            check_service(http, &format!("services[{index}].http"), problems);
        }
    }
}

fn check_service(http: &Http, at: &str, problems: &mut Problems) {
    if let Some(host) = http.default_host.as_ref().filter(|host| !is_host(host)) {
        problems.add(format!("{at}.default_host"), not_a_host(host));
    }
    for (index, route) in http.routes.iter().enumerate() {
        check_route(route, &format!("{at}.routes[{index}]"), problems);
    }
    crate::http_filters::check(http, at, problems);
    let specs: Vec<RouteSpec> = http.routes.iter().map(route_spec).collect();
    let Err(first) = Routes::compile(&specs) else { return };
    // Each alone says all that is wrong; together they have bounds.
    let alone = specs.iter().map(|spec| Routes::compile(std::slice::from_ref(spec)).err());
    let mut wrong: Vec<(usize, RouteMistake)> =
        alone.enumerate().filter_map(|(index, mistake)| Some((index, mistake?.what))).collect();
    if wrong.is_empty() {
        wrong.push((first.route, first.what));
    }
    for (index, mistake) in wrong {
        problems.add(place(&format!("{at}.routes[{index}]"), &mistake), mistake.to_string());
    }
}

/// Returns the field that a mistake is about.
fn place(at: &str, mistake: &RouteMistake) -> String {
    match mistake {
        RouteMistake::Host(_) => format!("{at}.hosts"),
        RouteMistake::Path(..) => format!("{at}.path"),
        RouteMistake::Method(_) => format!("{at}.methods"),
        _ => at.to_owned(),
    }
}

fn check_route(route: &Route, at: &str, problems: &mut Problems) {
    let mut note = |field: &str, error: Option<String>| {
        if let Some(error) = error {
            problems.add(format!("{at}.{field}"), error);
        }
    };
    note("host", route.host.as_ref().filter(|host| !is_host(host)).map(|host| not_a_host(host)));
    let wrong = |rewrite: PathRewrite| rewrite.check().err().map(|error| error.to_string());
    note("rewrite", route.rewrite.as_ref().map(rewrite).and_then(wrong));
    let redirect = route.redirect.as_ref().and_then(|to| redirect(to).check().err());
    note("redirect", redirect.map(|error| error.to_string()));
    for (field, named) in
        [("request_headers", &route.request_headers), ("response_headers", &route.response_headers)]
    {
        note(field, Edits::new(edits(named)).err().map(|error| error.to_string()));
    }
    let status = route.respond.as_ref().map(|respond| respond.status);
    let wrong = status.filter(|status| !(200..600).contains(status));
    note("respond.status", wrong.map(|status| format!("{status} is no status; allowed are 200 to 599")));
    let kind = route.respond.as_ref().and_then(|respond| respond.content_type.as_ref());
    let is_text = |text: &str| text.trim() == text && text.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    let wrong = kind.filter(|kind| !is_text(kind));
    note("respond.content_type", wrong.map(|kind| format!("{kind:?} is no type; allowed is visible ASCII")));
}

fn is_host(host: &str) -> bool {
    Host::parse(host.as_bytes()).is_some()
}

fn not_a_host(host: &str) -> String {
    format!("{host:?} is no host; allowed are a name or an address, and perhaps a port")
}

#[cfg(test)]
mod tests {
    use crate::checked;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 80
  http:
    routes:
    - {name: api, hosts: ['*.example.com'], path: {regex: '/v[0-9]+/.*'}, methods: [GET], to: [{service: api}]}
    - {name: old, path: {prefix: /old}, redirect: {status: 301, path: {prefix: /new}}}
    - {name: all, request_headers: [{set: x-a, value: b}], host: inner.example, to: [{service: api}]}
- {name: api, pool: [{node: an-1, port: 8080}]}
";

    #[test]
    fn what_routes_say_is_read() {
        checked(POLICY, "p").unwrap();
        for (from, to, message) in [
            (
                "'*.example.com'",
                "'*.exa mple'",
                "8:26: services[0].http.routes[0].hosts: \"*.exa mple\" is no host",
            ),
            ("/v[0-9]+/.*", "/v[0-9+/.*", "services[0].http.routes[0]: the expression"),
            ("prefix: /old", "prefix: old", "services[0].http.routes[1].path: \"old\" is no path"),
            ("prefix: /new", "prefix: new", "services[0].http.routes[1].redirect: \"new\" is no path"),
            ("status: 301", "status: 300", "300 is no redirect"),
            ("[GET]", "['G T']", "services[0].http.routes[0].methods: \"G T\" is no method"),
            (
                "set: x-a",
                "set: content-length",
                "services[0].http.routes[2].request_headers: content-length belongs",
            ),
            ("host: inner.example", "host: a/b", "services[0].http.routes[2].host: \"a/b\" is no host"),
        ] {
            assert!(POLICY.contains(from), "{from}");
            let error = checked(&POLICY.replacen(from, to, 1), "p").unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
