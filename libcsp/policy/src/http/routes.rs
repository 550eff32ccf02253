//! Routes: which requests fall under one, and what happens to them.

use csp_config::serde_prefixes;
use csp_types::Prefix;
use serde::{Deserialize, Serialize};

use super::{Cache, Filters, RouteTimeouts};
use crate::framing::is_default;
use crate::servers::{is_one, one, weight};

/// A route. A request falls under it if everything matches that it names; of several the most specific one
/// counts (docs/http.md).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name in metrics and logs, unique within the service: 1 to 63 of `a-z 0-9 -`.
    pub name: String,
    /// The greater one comes first, whatever else the routes say.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// One of these hosts: a name, or `*.` and a name for all names below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The path; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// One of these methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Fields of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<Condition>,
    /// Cookies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cookies: Vec<Condition>,
    /// Parameters of the query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<Condition>,
    /// Networks of clients.
    #[serde(default, with = "serde_prefixes", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Prefix>,
    /// The services that get the request, by weight. A route has one of `to`, `redirect` and `respond`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<RouteTarget>,
    /// The client is sent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<RedirectTo>,
    /// The proxy answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub respond: Option<Respond>,
    /// The host that the server sees instead of the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How the path changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,
    /// Changes of the request's fields, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<HeaderEdit>,
    /// Changes of the response's fields, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<HeaderEdit>,
    /// Whether a request may make a tunnel of its connection, as WebSocket does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
    /// Times that differ from those of the service.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: RouteTimeouts,
    /// Its filters, behind those of the service.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filters: Filters,
    /// Which responses are stored; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
}

/// What a path has to be: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum PathMatch {
    /// This path.
    Exact(String),
    /// This path or one below it: `/a` has `/a/b` below it, but not `/ab`.
    Prefix(String),
    /// A path that this expression matches as a whole.
    Regex(String),
}

/// What the value of a name has to be: one of these, or just there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The name of the field, cookie or parameter.
    pub name: String,
    /// This value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// A value that begins so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A value that this expression matches as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// None of this name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
}

/// A service that gets requests of a route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTarget {
    /// Its name. It has a pool.
    pub service: String,
    /// Its share, relative to the other targets; 0: none.
    #[serde(default = "one", deserialize_with = "weight", skip_serializing_if = "is_one")]
    pub weight: u16,
}

/// A redirect. What it does not name stays as the client has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedirectTo {
    /// 301, 302, 303, 307 or 308.
    #[serde(default = "moved")]
    pub status: u16,
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Rewrite>,
}

/// A new path: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Rewrite {
    /// This one.
    Path(String),
    /// This in the place of the prefix that the route names.
    Prefix(String),
}

/// An answer of the proxy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Respond {
    /// The status, 200 to 599.
    pub status: u16,
    /// The body, at most 16 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// The body's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

/// A change of fields: `set`, `add` or `remove` names the field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderEdit {
    /// All fields of this name become one with `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// A further field of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<String>,
    /// All fields of this name go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<String>,
    /// The value that is set or added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteAction<'a> {
    /// The request goes to one of these.
    Forward(&'a [RouteTarget]),
    /// The client is sent elsewhere.
    Redirect(&'a RedirectTo),
    /// The proxy answers.
    Respond(&'a Respond),
}

impl Route {
    /// What it does; `None` if it says none or several, which no checked policy does.
    pub fn action(&self) -> Option<RouteAction<'_>> {
        let forward = (!self.to.is_empty()).then_some(RouteAction::Forward(&self.to));
        let redirect = self.redirect.as_ref().map(RouteAction::Redirect);
        let respond = self.respond.as_ref().map(RouteAction::Respond);
        let mut named = [forward, redirect, respond].into_iter().flatten();
        named.next().filter(|_| named.next().is_none())
    }

    /// In a few words, for differences of policies.
    pub(super) fn summary(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        text.replace('"', "")
    }
}

const fn moved() -> u16 {
    302
}
