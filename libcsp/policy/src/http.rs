//! HTTP of a service's clients, which proxies read, and which of other services gets a request.
//!
//! ```text
//!  services:
//!    - {name: web, vip: 10.76.0.100, port: 80, http: {routes: [{name: app, path: {prefix: /app}, to: [{service: app}]}]}}
//!    - {name: app, pool: [{node: an-1, port: 8080}]}        # no end of its own: routes lead to it
//! ```
//! What is text for the proxy here, such as expressions and fields, is read by `csp-planner`.

mod cache;
mod check;
mod filters;
mod options;
mod routes;

use std::net::{IpAddr, Ipv4Addr};

use csp_config::serde_prefixes;
use csp_types::Prefix;
use serde::{Deserialize, Serialize};

use super::framing::is_default;
use super::{Policy, Service};

pub use cache::{Cache, CacheQuery};
pub use filters::{
    Compress, CompressAlgorithm, Concurrent, Cors, Deny, ErrorPage, FilterAct, FilterRule, Filters, Hsts,
    LimitKey, Rate, RatePeriod,
};
pub use options::{HttpLimits, HttpTimeouts, OriginField, RouteTimeouts, Upstream, UpstreamReuse};
pub use routes::{
    Condition, HeaderEdit, PathMatch, RedirectTo, Respond, Rewrite, Route, RouteAction, RouteTarget,
};

/// Protocols that a service with HTTP and TLS offers, unless it names some (RFC 7301 §6, RFC 9113 §3.1).
pub const HTTP_ALPN: [&str; 3] = ["h2", "http/1.1", "http/1.0"];
/// Most routes of a service.
pub const ROUTES_MAX: usize = 1_024;
/// Most targets of a route.
pub const ROUTE_TARGETS_MAX: usize = 32;
/// Most networks of trusted proxies.
pub const TRUSTED_PROXIES_MAX: usize = 64;
/// Most times that a request is sent again.
pub const RETRIES_MAX: u8 = 8;

/// How requests of a service's clients are read and where they go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where requests go, and what is changed of them; at least one. A request that falls under none is
    /// answered with 404.
    pub routes: Vec<Route>,
    /// Whether clients without TLS may speak HTTP/2 by prior knowledge (RFC 9113 §3.3). With TLS it is what
    /// `tls.alpn` offers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub h2c: bool,
    /// The host that servers see for a request of HTTP/1.0 without one; absent: the service's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_host: Option<String>,
    /// Networks of proxies in front that are believed what they say of clients (`X-Forwarded-For`,
    /// `Forwarded`, `X-Request-Id`); of others these fields are removed.
    #[serde(default, with = "serde_prefixes", skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<Prefix>,
    /// The fields by which servers learn of the client.
    #[serde(default = "options::x_forwarded", skip_serializing_if = "options::is_x_forwarded")]
    pub origin: Vec<OriginField>,
    /// Whether requests get an `X-Request-Id`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub request_id: bool,
    /// Whether requests get a `traceparent` (W3C Trace Context), or are a span of the client's.
    #[serde(default = "super::yes", skip_serializing_if = "super::is_yes")]
    pub trace: bool,
    /// Most times that a request is sent again to another server: one that no server has read, or that may be
    /// repeated.
    #[serde(
        default = "options::one_retry",
        deserialize_with = "options::retries",
        skip_serializing_if = "options::is_one_retry"
    )]
    pub retries: u8,
    /// Filters of all requests, before those of routes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filters: Filters,
    /// Bounds of heads and bodies.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: HttpLimits,
    /// Times that clients and servers may take.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: HttpTimeouts,
    /// Connections to servers that are kept.
    #[serde(default, skip_serializing_if = "is_default")]
    pub upstream: Upstream,
}

impl Http {
    /// In one line, for differences of policies.
    pub(super) fn summary(&self) -> String {
        let routes: Vec<String> = self.routes.iter().map(Route::summary).collect();
        let mut without = self.clone();
        without.routes.clear();
        let options = serde_json::to_string(&without).unwrap_or_default();
        format!(
            "{} {}",
            routes.join("; "),
            options.replace("\"routes\":[],", "").replace("\"routes\":[]", "")
        )
    }

    /// The services to which its routes lead, each route's in order.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().flat_map(|route| &route.to).map(|target| target.service.as_str())
    }
}

impl Service {
    /// The application protocols that its clients are offered by TLS, the preferred one first.
    pub fn alpn(&self) -> Vec<String> {
        let named = self.tls.as_ref().map(|tls| tls.alpn.clone()).unwrap_or_default();
        match named.is_empty() && self.http.is_some() {
            true => HTTP_ALPN.map(str::to_owned).to_vec(),
            false => named,
        }
    }

    /// Whether its clients may speak HTTP/2.
    pub fn has_http2(&self) -> bool {
        let by_tls = self.tls.is_some() && self.alpn().iter().any(|name| name == HTTP_ALPN[0]);
        self.http.as_ref().is_some_and(|http| by_tls || self.tls.is_none() && http.h2c)
    }

    /// Whether clients can connect to it. Otherwise routes of other services lead to it.
    pub fn has_end(&self) -> bool {
        !self.vip.is_unspecified() || self.port != 0
    }
}

impl Policy {
    /// The services whose HTTP proxies read.
    pub fn http_services(&self) -> impl Iterator<Item = (&Service, &Http)> {
        self.services.iter().filter_map(|service| Some((service, service.http.as_ref()?)))
    }
}

/// The address of a service without an end.
pub(super) const fn no_vip() -> IpAddr {
    IpAddr::V4(Ipv4Addr::UNSPECIFIED)
}

pub(super) use check::{check, check_end};

#[cfg(test)]
mod tests;
