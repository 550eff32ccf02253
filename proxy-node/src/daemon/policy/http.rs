//! Services whose HTTP the proxy reads, as the gateway needs them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_cache::freshness::Rules;
use csp_cache::key::QueryKey;
use csp_gateway::spec::{
    Action, CacheConfig, ConfigError, MemberHttp2, PoolOptions, Reuse, RuleConfig, ServiceConfig,
    TimeoutOverrides, Timeouts,
};
use csp_gateway::{CertificateFields, HttpService};
use csp_http::Limits;
use csp_http::forward::OriginFields;
use csp_http::head::Scheme;
use csp_http2::Limits as Http2Limits;
use csp_planner::http::{edits, redirect, rewrite, route_spec};
use csp_planner::http_filters::filters;
use csp_policy::{
    Cache, CacheQuery, CertificateField, Http, HttpLimits, OriginField, Respond, Route, RouteAction, Service,
    UpstreamReuse,
};
use csp_tls::ClientTls;
use csp_types::Duration;

use crate::LocalServices;

/// Longest body of a request where the policy sets no bound.
const BODY_LEN_MAX: u64 = 1 << 40;

/// What a service was made of: what the policy says of it, of how many requests one is recorded, and which
/// services speak HTTP/2 to which it leads.
type Source = (Service, Option<u32>, Vec<Arc<str>>);
/// How the servers are reached over TLS of each service to which one leads.
type Reached = Vec<OfTarget>;
type OfTarget = (String, Option<ClientTls>);

/// The services of the policy in force. One that has not changed is not compiled again.
#[derive(Debug, Default)]
pub struct HttpServices {
    known: HashMap<String, (Source, Reached, Arc<HttpService>)>,
    /// Number of times that servers of one were to be reached in another way.
    changes: u64,
    /// Whether requests are recorded at this node.
    logs: bool,
    /// Of the hashes of filters' keys; random, so that no client knows it.
    secret: [u64; 2],
}

impl HttpServices {
    /// None yet. `logs`: whether requests are recorded at this node.
    pub fn new(logs: bool) -> Self {
        HttpServices { logs, secret: rand::random(), ..HttpServices::default() }
    }

    /// Returns the services of a policy; `number` gives each its number among local services of its kind,
    /// and `towards` says how the servers of one are reached over TLS.
    ///
    /// # Errors
    /// What of which service is wrong.
    pub fn of(
        &mut self,
        policy: &csp_policy::Policy,
        (mut number_of, towards): (impl FnMut(&str) -> u32, impl Fn(&Service) -> Option<ClientTls>),
    ) -> Result<Vec<Arc<HttpService>>, String> {
        let mut services = HashMap::new();
        for (service, http) in policy.http_services() {
            let log = policy.http_log.as_ref().filter(|_| self.logs);
            let sample = log.map(|log| log.sample(&service.name));
            let targets = speaking_http2(policy, http);
            let source = (service.clone(), sample, targets.clone());
            let towards = reached(policy, http, &towards);
            let former = self.known.remove(&service.name);
            let number = match &former {
                Some((_, known, made)) if keeps(&towards, known) => made.reached,
                _ => {
                    self.changes += 1;
                    self.changes
                }
            };
            let made = match former.filter(|(known, ..)| *known == source) {
                Some((.., made)) if made.reached == number => made,
                Some((.., made)) => reached_as(HttpService::clone(&made), number),
                None => {
                    let member_http2 = MemberHttp2 { services: targets, ..MemberHttp2::default() };
                    let config = config(service, http, number_of(&service.name));
                    let made = HttpService::new(ServiceConfig {
                        log: sample,
                        member_http2,
                        secret: self.secret,
                        ..config
                    });
                    let wrong = |error: ConfigError| format!("service {}: {error}", service.name);
                    reached_as(made.map_err(wrong)?, number)
                }
            };
            services.insert(service.name.clone(), (source, towards, made));
        }
        self.known = services;
        Ok(self.known.values().map(|(.., made)| Arc::clone(made)).collect())
    }
}

fn reached_as(mut service: HttpService, reached: u64) -> Arc<HttpService> {
    service.reached = reached;
    Arc::new(service)
}

/// Returns how the servers are reached of the services to which routes lead.
fn reached(
    policy: &csp_policy::Policy,
    http: &Http,
    towards: impl Fn(&Service) -> Option<ClientTls>,
) -> Reached {
    let named = policy.services.iter().filter(|service| http.targets().any(|name| name == service.name));
    named.map(|service| (service.name.clone(), towards(service))).collect()
}

/// Returns whether connections to servers that were reached as `known` may be used further.
fn keeps(wanted: &Reached, known: &Reached) -> bool {
    let same = |((name, tls), (other, before)): (&OfTarget, &OfTarget)| {
        name == other
            && match (tls, before) {
                (None, None) => true,
                (Some(tls), Some(before)) => tls.keeps(before),
                _ => false,
            }
    };
    wanted.len() == known.len() && wanted.iter().zip(known).all(same)
}

/// Returns the services to which routes lead and whose servers speak HTTP/2.
fn speaking_http2(policy: &csp_policy::Policy, http: &Http) -> Vec<Arc<str>> {
    let of_policy = policy.services.iter().filter(|service| service.servers.http2);
    let named = of_policy.filter(|service| http.targets().any(|target| target == service.name));
    named.map(|service| service.name.as_str().into()).collect()
}

/// Returns the number by which connections to a service come to the gateway.
pub fn local_number(number: u32) -> u32 {
    LocalServices::second_number(number)
}

fn config(service: &Service, http: &Http, number: u32) -> ServiceConfig {
    let scheme = if service.tls.is_some() { Scheme::Https } else { Scheme::Http };
    let has = |field| http.origin.contains(&field);
    ServiceConfig {
        default_host: http.default_host.clone().unwrap_or_else(|| host(service.vip, service.port)),
        limits: limits(&http.limits),
        timeouts: timeouts(http),
        body_len_max: match http.limits.body_mib {
            0 => BODY_LEN_MAX,
            mib => u64::from(mib) << 20,
        },
        trusted: http.trusted_proxies.clone(),
        origin: OriginFields {
            x_forwarded: has(OriginField::XForwarded),
            forwarded: has(OriginField::Forwarded),
        },
        certificate: certificate_fields(service),
        request_id: http.request_id,
        trace: http.trace,
        retries: http.retries,
        pool: PoolOptions {
            idle_max: http.upstream.idle as usize,
            requests_max: http.upstream.requests,
            reuse: match http.upstream.reuse {
                UpstreamReuse::Repeatable => Reuse::Repeatable,
                UpstreamReuse::Unread => Reuse::Unread,
                UpstreamReuse::Always => Reuse::Always,
            },
        },
        filters: filters(&http.filters),
        rules: http.routes.iter().map(rule).collect(),
        http2: service.has_http2().then(|| http2_limits(&http.limits)),
        ..ServiceConfig::new(number, &service.name, scheme)
    }
}

/// Returns the fields by which servers learn of clients' certificates.
fn certificate_fields(service: &Service) -> CertificateFields {
    let clients = service.tls.as_ref().and_then(|tls| tls.clients.as_ref());
    let has = |field| clients.is_some_and(|clients| clients.fields.contains(&field));
    CertificateFields {
        client_cert: has(CertificateField::ClientCert),
        x_ssl: has(CertificateField::XSslClient),
    }
}

fn host(vip: IpAddr, port: u16) -> String {
    SocketAddr::from((vip, port)).to_string()
}

fn limits(limits: &HttpLimits) -> Limits {
    let head_len_max = usize::from(limits.head_kib) << 10;
    Limits {
        head_len_max,
        line_len_max: head_len_max,
        fields_max: limits.fields.into(),
        target_len_max: usize::from(limits.target_kib) << 10,
        ..Limits::default()
    }
}

/// 32 bytes more count for each field (RFC 9113 §6.5.2).
fn http2_limits(limits: &HttpLimits) -> Http2Limits {
    let fields_max = usize::from(limits.fields);
    let header_list_max = (u32::from(limits.head_kib) << 10) + 32 * u32::from(limits.fields);
    Http2Limits { fields_max, header_list_max, ..Http2Limits::default() }.bounded()
}

fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

fn timeouts(http: &Http) -> Timeouts {
    let times = &http.timeouts;
    Timeouts {
        head: ms(times.head_ms),
        body_idle: ms(times.body_idle_ms),
        connect: ms(times.connect_ms),
        response: ms(times.response_ms),
        idle: ms(times.idle_ms),
        upstream_idle: ms(times.upstream_idle_ms),
        tunnel_idle: ms(times.tunnel_idle_ms),
        total: ms(times.total_ms),
    }
}

fn rule(route: &Route) -> RuleConfig {
    let action = match route.action() {
        Some(RouteAction::Redirect(to)) => Action::Redirect(redirect(to)),
        Some(RouteAction::Respond(respond)) => answer(respond),
        Some(RouteAction::Forward(targets)) => {
            let target =
                |target: &csp_policy::RouteTarget| (target.service.as_str().into(), target.weight.into());
            Action::Forward(targets.iter().map(target).collect())
        }
        None => Action::Forward(Vec::new()), // no checked policy has it
    };
    let times = &route.timeouts;
    RuleConfig {
        host: route.host.clone(),
        rewrite: route.rewrite.as_ref().map(rewrite),
        request_edits: edits(&route.request_headers),
        response_edits: edits(&route.response_headers),
        upgrade: route.upgrade,
        timeouts: TimeoutOverrides {
            body_idle: times.body_idle_ms.map(ms),
            connect: times.connect_ms.map(ms),
            response: times.response_ms.map(ms),
            tunnel_idle: times.tunnel_idle_ms.map(ms),
            total: times.total_ms.map(ms),
        },
        filters: filters(&route.filters),
        cache: route.cache.as_ref().map(cache),
        ..RuleConfig::new(&route.name, route_spec(route), action)
    }
}

fn cache(cache: &Cache) -> CacheConfig {
    let seconds = |time: Option<u32>| time.map(u64::from);
    let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
    CacheConfig {
        rules: Rules {
            default_ttl: seconds(cache.default_ttl_s),
            max_ttl: seconds(cache.max_ttl_s),
            stale_while_revalidate: cache.stale_while_revalidate_s.into(),
            stale_if_error: cache.stale_if_error_s.into(),
        },
        body_len_max: (cache.object_kib as usize) << 10,
        query: match &cache.query {
            None => QueryKey::All,
            Some(CacheQuery::Only(only)) if only.is_empty() => QueryKey::Nothing,
            Some(CacheQuery::Only(only)) => QueryKey::Only(names(only)),
            Some(CacheQuery::Without(without)) => QueryKey::Without(names(without)),
        },
        fields: cache.fields.clone(),
        ignores_cookies: cache.ignore_cookies,
        obeys_clients: cache.client_control,
        reports: cache.cache_status,
        keeps_tags: cache.keep_tags,
    }
}

fn answer(respond: &Respond) -> Action {
    let kind = respond.content_type.clone().unwrap_or_else(|| match respond.body.is_empty() {
        true => String::new(),
        false => "text/plain; charset=utf-8".to_owned(),
    });
    Action::Answer { status: respond.status, body: respond.body.as_bytes().into(), content_type: kind.into() }
}

#[cfg(test)]
mod tests {
    use csp_tls::{ClientOptions, TlsVersion, Trust};
    use rustls::crypto::ring;
    use rustls::time_provider::DefaultTimeProvider;

    use super::*;

    const POLICY: &str = "apiVersion: csp/v1
services:
  - {name: web, vip: 10.76.0.100, port: 80, http: {routes: [{name: all, to: [{service: behind}]}]}}
  - {name: behind, pool: [{address: 10.1.2.3, port: 8443}], servers: {tls: {verify: false}}}
egress: [{address: 10.76.0.120, destinations: [10.1.0.0/16]}]
";

    /// Connections that were verified by former settings must serve no more requests.
    #[test]
    fn a_service_has_another_number_once_its_servers_are_reached_in_another_way() {
        let policy = csp_policy::Policy::parse_yaml(POLICY, "p.yaml").unwrap();
        let tls = || {
            let with = (Arc::new(ring::default_provider()), Arc::new(DefaultTimeProvider) as Arc<_>);
            let (trust, least) = (Trust::Anybody, TlsVersion::Tls12);
            let options = ClientOptions { trust, certificate: None, least, protocol: None, name: None };
            ClientTls::new(with, &options).unwrap()
        };
        let (first, second) = (tls(), tls());
        let mut services = HttpServices::new(false);
        let mut of = |tls: Option<&ClientTls>| {
            let towards = |of: &Service| tls.filter(|_| of.name == "behind").cloned();
            services.of(&policy, (|_: &str| 0, towards)).unwrap()[0].clone()
        };
        let (one, same, other, none) = (of(Some(&first)), of(Some(&first)), of(Some(&second)), of(None));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(one.reached != other.reached && other.reached != none.reached);
        assert!(one.reached != none.reached && of(None).reached == none.reached);
    }
}
