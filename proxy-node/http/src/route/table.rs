//! The table of routes: hosts, then paths, then conditions.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::conditions::Conditions;
use super::paths::{Path, Paths};
use super::{EXPRESSIONS_MAX, ROUTES_MAX, RouteError, RouteMistake, RouteSpec, quoted};
use crate::head::{Fields, Host, Request};
use crate::limits::HOST_LEN_MAX;

/// What of a request decides its route. `F`: its fields, of any version of HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a, F> {
    /// The fields.
    pub fields: &'a F,
    /// The method's name.
    pub method: &'a [u8],
    /// The host's name, without a port. `None`: the request names none.
    pub host: Option<&'a [u8]>,
    /// The path in its [normal form](crate::head::normalised).
    pub path: &'a [u8],
    /// The query without its question mark.
    pub query: Option<&'a [u8]>,
    /// The client's address: its connection's peer, or what a trusted peer says. `None`: what that says
    /// cannot be read; no [source](super::RouteSpec::sources) has it.
    pub source: Option<IpAddr>,
}

impl<'a> Subject<'a, Request<'a>> {
    /// Creates the subject of a request whose path is `path` in its normal form.
    pub fn new(request: &'a Request<'a>, path: &'a [u8], source: IpAddr) -> Self {
        let host = request.host().map(|host| host.name);
        let (method, query, source) = (request.method_name(), request.query(), Some(source));
        Subject { fields: request, method, host, path, query, source }
    }
}

/// The route of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The position of its spec.
    pub route: usize,
    /// Length of the part of the path that the route names: all of it for an exact path, 0 for an
    /// expression.
    pub prefix_len: usize,
}

/// A compiled spec.
#[derive(Clone, Debug)]
struct Route {
    path: Path,
    conditions: Conditions,
}

/// Routes of one host or wildcard: its name in lower case; of a wildcard from the dot on.
type OfHost = (Box<[u8]>, Paths);

/// Compiled routes.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    /// The route of each rank. A route with several hosts has several ranks.
    ranks: Vec<u32>,
    exact: Vec<OfHost>,
    wildcards: Vec<OfHost>,
    any: Paths,
}

/// A host of a route.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HostPattern {
    Any,
    /// From the dot on, behind its length so that longer ones are greater.
    Wildcard(usize, Box<[u8]>),
    Exact(Box<[u8]>),
}

impl HostPattern {
    /// Returns what counts in the order; the greater comes first.
    fn specificity(&self) -> (u8, usize) {
        match self {
            HostPattern::Exact(_) => (2, 0),
            HostPattern::Wildcard(len, _) => (1, *len),
            HostPattern::Any => (0, 0),
        }
    }

    fn new(text: &str) -> Result<Self, RouteMistake> {
        let mistake = || RouteMistake::Host(quoted(text));
        let (is_wildcard, name) = text.strip_prefix("*.").map_or((false, text), |name| (true, name));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let host = Host::parse(name.as_bytes()).ok_or_else(mistake)?;
        if host.port.is_some() || is_wildcard && name.starts_with('[') {
            return Err(mistake());
        }
        Ok(match is_wildcard {
            true => HostPattern::Wildcard(name.len(), format!(".{name}").into_bytes().into()),
            false => HostPattern::Exact(name.into_bytes().into()),
        })
    }
}

impl Routes {
    /// Compiles routes.
    pub fn compile(specs: &[RouteSpec]) -> Result<Routes, RouteError> {
        Self::compiled(specs, false)
    }

    /// Compiles what a rule guards against. A name of a field with `_` for `-`, which servers may take for
    /// the same, meets a condition of its value, and does not count where the field has to be absent. In
    /// routes it is the other way round.
    pub fn guard(spec: &RouteSpec) -> Result<Routes, RouteMistake> {
        Self::compiled(std::slice::from_ref(spec), true).map_err(|error| error.what)
    }

    fn compiled(specs: &[RouteSpec], is_guard: bool) -> Result<Routes, RouteError> {
        let error = |route| move |what| RouteError { route, what };
        if specs.len() > ROUTES_MAX {
            return Err(error(ROUTES_MAX)(RouteMistake::TooMany));
        }
        let (mut table, mut order, mut expressions) = (Routes::default(), Vec::new(), 0);
        for (at, spec) in specs.iter().enumerate() {
            expressions += spec.expressions();
            if expressions > EXPRESSIONS_MAX {
                return Err(error(at)(RouteMistake::TooManyExpressions));
            }
            let path = Path::new(&spec.path).map_err(error(at))?;
            let conditions = Conditions::new(spec, is_guard).map_err(error(at))?;
            let hosts = spec.hosts.iter().map(|host| HostPattern::new(host));
            let mut hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(error(at))?;
            if hosts.is_empty() {
                hosts.push(HostPattern::Any);
            }
            order.extend(hosts.into_iter().map(|host| (at, host)));
            table.routes.push(Route { path, conditions });
        }
        order.sort_by_key(|(at, host)| {
            let route = &table.routes[*at];
            let specificity = (
                specs[*at].priority,
                host.specificity(),
                route.path.specificity(),
                route.conditions.specificity(),
            );
            (Reverse(specificity), *at)
        });
        for (rank, (at, host)) in order.into_iter().enumerate() {
            table.ranks.push(at as u32);
            let paths = match &host {
                HostPattern::Any => &mut table.any,
                HostPattern::Wildcard(_, suffix) => of_host(&mut table.wildcards, suffix),
                HostPattern::Exact(name) => of_host(&mut table.exact, name),
            };
            paths.add(&table.routes[at].path, rank as u32);
        }
        Ok(table)
    }

    /// Returns the route of a request; `None` if it falls under none.
    pub fn find(&self, subject: &Subject<'_, impl Fields>) -> Option<Found> {
        let is_met = |rank: u32| {
            let route = self.ranks.get(rank as usize).and_then(|at| self.routes.get(*at as usize));
            route.is_some_and(|route| route.is_met(subject))
        };
        let mut best = None;
        let mut room = [0; HOST_LEN_MAX];
        let host = subject.host.and_then(|host| lower(host, &mut room));
        if let Some(host) = host {
            if let Some(paths) = search(&self.exact, host) {
                best = paths.find(subject.path, best, is_met);
            }
            let dots = memchr::memchr_iter(b'.', host).filter(|_| !self.wildcards.is_empty());
            for dot in dots {
                if let Some(paths) = search(&self.wildcards, &host[dot..]) {
                    best = paths.find(subject.path, best, is_met);
                }
            }
        }
        best = self.any.find(subject.path, best, is_met);
        let route = *self.ranks.get(best? as usize)? as usize;
        let prefix_len = self.routes.get(route)?.path.prefix_len(subject.path);
        Some(Found { route, prefix_len })
    }
}

impl Route {
    fn is_met(&self, subject: &Subject<'_, impl Fields>) -> bool {
        let matches = match &self.path {
            Path::Regex(expression) => expression.matches(subject.path.iter().copied()),
            Path::Exact(_) | Path::Prefix(_) => true,
        };
        matches && self.conditions.are_met(subject)
    }
}

/// Returns a host in lower case and without a last dot.
fn lower<'a>(host: &[u8], room: &'a mut [u8; HOST_LEN_MAX]) -> Option<&'a [u8]> {
    let room = room.get_mut(..host.len())?;
    room.copy_from_slice(host);
    room.make_ascii_lowercase();
    Some(room.strip_suffix(b".").unwrap_or(room))
}

fn of_host<'a>(hosts: &'a mut Vec<OfHost>, name: &[u8]) -> &'a mut Paths {
    let at = hosts.binary_search_by(|(known, _)| (**known).cmp(name)).unwrap_or_else(|at| {
        hosts.insert(at, (name.into(), Paths::default()));
        at
    });
    &mut hosts[at].1
}

fn search<'a>(hosts: &'a [OfHost], name: &[u8]) -> Option<&'a Paths> {
    let at = hosts.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
    Some(&hosts[at].1)
}
