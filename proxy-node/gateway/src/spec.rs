//! What a policy says of a service: checked when it is built, immutable afterwards.
//!
//! ```text
//!  ServiceConfig { rules: [RuleConfig { route, action, … }, …] }
//!       │ HttpService::new: routes compiled, texts and bounds checked
//!       ▼
//!  Arc<HttpService> ── Gateway::set_services ──▶ the next request of each connection
//! ```

mod cache;
mod error;
mod timeouts;

use std::sync::Arc;

use csp_filters::Filters;
use csp_http::Limits;
use csp_http::forward::{Edit, Edits, OriginFields};
use csp_http::head::{Host, Scheme};
use csp_http::route::{PathRewrite, Redirect, RouteSpec, Routes, Weights};
use csp_types::Prefix;

use crate::CertificateFields;

pub(crate) use cache::Cache;
pub use cache::CacheConfig;
pub use error::{ConfigError, Mistake};
pub use timeouts::{TimeoutOverrides, Timeouts};

/// Longest body of an [`Action::Answer`] in bytes: it is copied into the client's connection.
pub const ANSWER_LEN_MAX: usize = 16 << 10;
/// Most targets of a rule.
pub const TARGETS_MAX: usize = 32;
/// Longest name of a rule, of a service and of a target in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Most retries of a request.
pub const RETRIES_MAX: u8 = 8;
/// Most bytes of all edits of one direction of a rule.
pub const EDITS_LEN_MAX: usize = 16 << 10;
/// Most networks of trusted proxies.
pub const TRUSTED_MAX: usize = 64;

/// What a rule does with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// The request goes to a member of the pool of one of these services of the policy, chosen by weight.
    Forward(Vec<(Arc<str>, u32)>),
    /// The gateway answers with a redirect.
    Redirect(Redirect),
    /// The gateway answers.
    Answer {
        /// The status, from 200 to 599.
        status: u16,
        /// The body.
        body: Arc<[u8]>,
        /// The value of `Content-Type`; empty: none.
        content_type: Box<str>,
    },
}

/// What a policy says of one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleConfig {
    /// Its name in metrics and logs, unique within the service.
    pub name: Arc<str>,
    /// The requests that fall under it.
    pub route: RouteSpec,
    /// What is done with them.
    pub action: Action,
    /// The host that the member sees instead of the client's.
    pub host: Option<String>,
    /// How the path changes.
    pub rewrite: Option<PathRewrite>,
    /// Edits of the request's head.
    pub request_edits: Vec<Edit>,
    /// Edits of the response's head.
    pub response_edits: Vec<Edit>,
    /// Whether a request to upgrade the connection, such as to WebSocket, goes to the member.
    pub upgrade: bool,
    /// Times that differ from those of the service.
    pub timeouts: TimeoutOverrides,
    /// Its filters, behind those of the service.
    pub filters: csp_filters::Spec,
    /// Whether responses are stored, and how; `None`: they are not.
    pub cache: Option<CacheConfig>,
}

impl RuleConfig {
    /// Creates a rule that changes nothing.
    pub fn new(name: &str, route: RouteSpec, action: Action) -> Self {
        RuleConfig {
            name: name.into(),
            route,
            action,
            host: None,
            rewrite: None,
            request_edits: Vec::new(),
            response_edits: Vec::new(),
            upgrade: false,
            timeouts: TimeoutOverrides::default(),
            filters: csp_filters::Spec::default(),
            cache: None,
        }
    }
}

/// Which requests use a kept connection to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// Those of idempotent methods without a body. Others get a fresh connection, which is kept afterwards.
    Repeatable,
    /// These, and to processes all with a short body: what was not read is sent again.
    #[default]
    Unread,
    /// All requests. One that cannot be sent again is answered with 502 if its connection turns out closed.
    Always,
}

/// Connections to members, by worker and pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// Most idle connections that are kept. 0: none is kept or used again, and a program sees its client's
    /// address as its peer's. Otherwise it sees the address to which the client has connected, with the
    /// client's port, since a connection serves several clients; theirs are in the fields of origin.
    pub idle_max: usize,
    /// Most requests of one connection; 0: any number.
    pub requests_max: u32,
    /// Which requests use a kept connection.
    pub reuse: Reuse,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { idle_max: 64, requests_max: 0, reuse: Reuse::default() }
    }
}

/// Members that speak HTTP/2, by worker and pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberHttp2 {
    /// Services of the policy whose members speak HTTP/2 by prior knowledge (RFC 9113 §3.3), such as servers
    /// of gRPC. Members of other services are asked by HTTP/1.1.
    pub services: Vec<Arc<str>>,
    /// Connections among which the requests of a worker and pool are spread. Others are opened while all have
    /// as many streams as their members permit.
    pub connections: usize,
    /// Most streams of a connection at a time, if its member permits more.
    pub streams_max: u32,
}

impl Default for MemberHttp2 {
    fn default() -> Self {
        MemberHttp2 { services: Vec::new(), connections: 4, streams_max: 100 }
    }
}

/// What a policy says of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// The number of the local service, by which connections come.
    pub number: u32,
    /// Its name in metrics and logs.
    pub name: Arc<str>,
    /// The scheme of its clients: HTTPS if their connections are of TLS, whose records become readable one
    /// after the other.
    pub scheme: Scheme,
    /// The host that members see for a request of HTTP/1.0 without one.
    pub default_host: String,
    /// Bounds of heads and bodies.
    pub limits: Limits,
    /// Bounds of connections of HTTP/2, which begin with its preface, by ALPN or prior knowledge; `None`:
    /// there are none.
    pub http2: Option<csp_http2::Limits>,
    /// Times.
    pub timeouts: Timeouts,
    /// Longest body of a request in bytes.
    pub body_len_max: u64,
    /// Proxies that are believed what they say of clients.
    pub trusted: Vec<Prefix>,
    /// The fields of origin that members see.
    pub origin: OriginFields,
    /// What members see of clients' certificates.
    pub certificate: CertificateFields,
    /// Whether requests get an `X-Request-Id`.
    pub request_id: bool,
    /// Whether requests get a `traceparent`.
    pub trace: bool,
    /// Most times that a request is sent again to another member.
    pub retries: u8,
    /// Connections to members.
    pub pool: PoolOptions,
    /// Members that speak HTTP/2.
    pub member_http2: MemberHttp2,
    /// Of so many requests that pass one is recorded, 0: none, and all others; `None`: nothing is recorded.
    pub log: Option<u32>,
    /// Filters of all requests.
    pub filters: csp_filters::Spec,
    /// Of the hashes of filters' keys; clients must not know it.
    pub secret: [u64; 2],
    /// Rules, in the order of the policy.
    pub rules: Vec<RuleConfig>,
}

impl ServiceConfig {
    /// Creates a service with the defaults of the gateway.
    pub fn new(number: u32, name: &str, scheme: Scheme) -> Self {
        ServiceConfig {
            number,
            name: name.into(),
            scheme,
            default_host: "localhost".to_owned(),
            limits: Limits::default(),
            http2: None,
            timeouts: Timeouts::default(),
            body_len_max: 1 << 40,
            trusted: Vec::new(),
            origin: OriginFields { x_forwarded: true, forwarded: false },
            certificate: CertificateFields::default(),
            request_id: false,
            trace: true,
            retries: 1,
            pool: PoolOptions::default(),
            member_http2: MemberHttp2::default(),
            log: Some(1),
            filters: csp_filters::Spec::default(),
            secret: [0; 2],
            rules: Vec::new(),
        }
    }
}

/// A rule that was checked.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: Arc<str>,
    pub(crate) action: Action,
    pub(crate) weights: Weights,
    pub(crate) host: Option<Box<[u8]>>,
    pub(crate) rewrite: Option<PathRewrite>,
    pub(crate) request_edits: Edits,
    pub(crate) response_edits: Edits,
    pub(crate) upgrade: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) filters: Filters,
    pub(crate) cache: Option<Cache>,
}

/// A service that was checked.
#[derive(Clone, Debug)]
pub struct HttpService {
    /// The number of the local service.
    pub number: u32,
    /// Its name.
    pub name: Arc<str>,
    pub(crate) scheme: Scheme,
    pub(crate) default_host: Box<[u8]>,
    pub(crate) limits: Limits,
    pub(crate) http2: Option<csp_http2::Limits>,
    pub(crate) timeouts: Timeouts,
    pub(crate) body_len_max: u64,
    pub(crate) trusted: Box<[Prefix]>,
    pub(crate) origin: OriginFields,
    pub(crate) certificate: CertificateFields,
    pub(crate) request_id: bool,
    pub(crate) trace: bool,
    pub(crate) retries: u8,
    pub(crate) pool: PoolOptions,
    pub(crate) member_http2: MemberHttp2,
    pub(crate) log: Option<u32>,
    pub(crate) filters: Filters,
    /// Whether a rule has CORS.
    pub(crate) has_cors: bool,
    /// Whether there are pages for errors.
    pub(crate) has_pages: bool,
    /// Changes of responses that no rule has.
    pub(crate) edits: Edits,
    pub(crate) routes: Routes,
    /// Whether a rule has a cache.
    pub(crate) caches: bool,
    /// Another number if members are to be reached in another way, such as by other certificates, so that
    /// connections of before serve no more requests.
    pub reached: u64,
    rules: Box<[Rule]>,
}

impl HttpService {
    /// Checks what a policy says of a service, and compiles its routes.
    pub fn new(config: ServiceConfig) -> Result<HttpService, ConfigError> {
        let of_service = |what| ConfigError { rule: None, what };
        check_service(&config).map_err(of_service)?;
        let of_rules = config.rules.iter().map(|rule| &rule.filters);
        csp_filters::Spec::check_all(std::iter::once(&config.filters).chain(of_rules))
            .map_err(|mistake| of_service(Mistake::AllFilters(mistake)))?;
        let filters =
            Filters::new(config.filters, config.secret).map_err(|error| of_service(error.into()))?;
        let specs: Vec<RouteSpec> = config.rules.iter().map(|rule| rule.route.clone()).collect();
        let routes = Routes::compile(&specs).map_err(|error| {
            let rule = config.rules.get(error.route).map(|rule| Arc::clone(&rule.name));
            ConfigError { rule, what: Mistake::Route(error.what) }
        })?;
        let of_requests = format!("{} {:?} {}", config.name, config.origin, config.default_host);
        let rule = |config_of_rule: RuleConfig| {
            let name = Arc::clone(&config_of_rule.name);
            let of_service = (&config.timeouts, &*of_requests, config.certificate.any());
            Rule::new(config_of_rule, of_service, (&filters, config.secret))
                .map_err(|what| ConfigError { rule: Some(name), what })
        };
        let rules = config.rules.into_iter().map(rule).collect::<Result<Box<[Rule]>, _>>()?;
        for (at, rule) in rules.iter().enumerate() {
            if rules[..at].iter().any(|other| other.name == rule.name) {
                let name = Some(Arc::clone(&rule.name));
                return Err(ConfigError { rule: name, what: Mistake::RuleTwice });
            }
        }
        Ok(HttpService {
            number: config.number,
            name: config.name,
            scheme: config.scheme,
            default_host: config.default_host.into_bytes().into(),
            limits: config.limits.bounded(),
            http2: config.http2.map(csp_http2::Limits::bounded),
            timeouts: config.timeouts,
            body_len_max: config.body_len_max,
            trusted: config.trusted.into(),
            origin: config.origin,
            certificate: config.certificate,
            request_id: config.request_id,
            trace: config.trace,
            retries: config.retries,
            pool: config.pool,
            member_http2: config.member_http2,
            log: config.log,
            edits: edits(filters.edits()).map_err(of_service)?,
            has_pages: std::iter::once(&filters)
                .chain(rules.iter().map(|rule| &rule.filters))
                .any(|filters| !filters.pages.is_empty()),
            filters,
            has_cors: rules.iter().any(|rule| rule.filters.cors.is_some()),
            routes,
            caches: rules.iter().any(|rule| rule.cache.is_some()),
            reached: 0,
            rules,
        })
    }

    /// Returns the rules, in the order of the policy.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns how many keys of limits there was no place for, at all workers: evicted, or not counted.
    pub fn filter_losses(&self) -> u64 {
        let of_rules = self.rules.iter().map(|rule| rule.filters.rules.lost()).sum::<u64>();
        self.filters.rules.lost() + of_rules
    }

    /// Returns whether the members of a target speak HTTP/2.
    pub(crate) fn speaks_http2(&self, target: &Arc<str>) -> bool {
        self.member_http2.services.contains(target)
    }

    /// Returns whether connections that were kept for `other` may serve this service's requests: the services
    /// whose pools get requests, how their members are reached and the options of kept connections are the
    /// same.
    pub(crate) fn keeps_as(&self, other: &HttpService) -> bool {
        let idle = (self.timeouts.upstream_idle, other.timeouts.upstream_idle);
        let same = self.pool == other.pool && self.member_http2 == other.member_http2;
        same && idle.0 == idle.1 && self.reached == other.reached && self.targets().eq(other.targets())
    }

    /// Returns the services whose pools get requests.
    fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().flat_map(Rule::targets).map(|(name, _)| name)
    }

    /// Returns whether a peer is a trusted proxy.
    pub(crate) fn trusts(&self, peer: std::net::IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted.iter().any(|net| net.contains(peer))
    }
}

fn check_service(config: &ServiceConfig) -> Result<(), Mistake> {
    check_name(&config.name)?;
    if Host::parse(config.default_host.as_bytes()).is_none() {
        return Err(Mistake::Host(config.default_host.clone()));
    }
    if config.retries > RETRIES_MAX {
        return Err(Mistake::Retries(config.retries));
    }
    if config.trusted.len() > TRUSTED_MAX {
        return Err(Mistake::Trusted(config.trusted.len()));
    }
    let http2 = &config.member_http2;
    http2.services.iter().try_for_each(|name| check_name(name))?;
    if http2.connections == 0 || http2.streams_max == 0 {
        return Err(Mistake::MemberHttp2);
    }
    config.timeouts.check()
}

fn check_name(name: &str) -> Result<(), Mistake> {
    let is_right =
        (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    if is_right { Ok(()) } else { Err(Mistake::Name(name.chars().take(80).collect())) }
}

impl Rule {
    fn targets(&self) -> &[(Arc<str>, u32)] {
        match &self.action {
            Action::Forward(targets) => targets,
            Action::Redirect(_) | Action::Answer { .. } => &[],
        }
    }

    fn new(
        config: RuleConfig,
        (of_service, of_requests, is_identified): (&Timeouts, &str, bool),
        (above, secret): (&Filters, [u64; 2]),
    ) -> Result<Rule, Mistake> {
        check_name(&config.name)?;
        let weights = match &config.action {
            Action::Forward(targets) => {
                targets.iter().try_for_each(|(name, _)| check_name(name))?;
                if targets.len() > TARGETS_MAX || targets.iter().all(|(_, weight)| *weight == 0) {
                    return Err(Mistake::Targets);
                }
                Weights::new(targets.iter().map(|(_, weight)| *weight))
            }
            Action::Redirect(redirect) => {
                redirect.check()?;
                Weights::default()
            }
            Action::Answer { status, body, content_type } => {
                check_answer(*status, body, content_type)?;
                Weights::default()
            }
        };
        if let Some(host) = config.host.as_ref().filter(|host| Host::parse(host.as_bytes()).is_none()) {
            return Err(Mistake::Host(host.clone()));
        }
        if let Some(rewrite) = &config.rewrite {
            rewrite.check()?;
        }
        let timeouts = config.timeouts.over(of_service);
        timeouts.check()?;
        let cache = Cache::new(&config, of_requests)?;
        let has_cors = config.filters.cors.is_some() || above.cors.is_some();
        if cache.is_some() && has_cors {
            return Err(Mistake::Cache("CORS answers by the origin of each request"));
        }
        if cache.is_some() && is_identified {
            return Err(Mistake::Cache("servers learn of clients' certificates, and answer by them"));
        }
        let filters = Filters::new(config.filters, secret)?.below(above);
        let response_edits = config.response_edits.into_iter().chain(filters.edits());
        Ok(Rule {
            name: config.name,
            action: config.action,
            weights,
            host: config.host.map(|host| host.into_bytes().into()),
            rewrite: config.rewrite,
            request_edits: edits(config.request_edits)?,
            response_edits: edits(response_edits.collect())?,
            upgrade: config.upgrade,
            timeouts,
            filters,
            cache,
        })
    }
}

fn edits(edits: Vec<Edit>) -> Result<Edits, Mistake> {
    let len: usize = edits
        .iter()
        .map(|edit| match edit {
            Edit::Set(name, value) | Edit::Add(name, value) => name.len() + value.len() + 4,
            Edit::Remove(_) => 0,
        })
        .sum();
    match len > EDITS_LEN_MAX {
        true => Err(Mistake::EditsLen(len)),
        false => Ok(Edits::new(edits)?),
    }
}

fn check_answer(status: u16, body: &[u8], content_type: &str) -> Result<(), Mistake> {
    if !(200..600).contains(&status) || (matches!(status, 204 | 205 | 304) && !body.is_empty()) {
        return Err(Mistake::Status(status));
    }
    if body.len() > ANSWER_LEN_MAX {
        return Err(Mistake::AnswerLen(body.len()));
    }
    let is_text = content_type.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    match is_text && content_type.trim() == content_type {
        true => Ok(()),
        false => Err(Mistake::ContentType(content_type.into())),
    }
}
