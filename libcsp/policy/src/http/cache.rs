//! The cache of a route.

use csp_config::{Problems, number};
use serde::{Deserialize, Deserializer, Serialize};

use super::Route;
use crate::Service;
use crate::check::check_count;
use crate::framing::is_default;

/// Most names of parameters, and of fields, of a key.
const NAMES_MAX: usize = 64;
/// Longest name in bytes.
const NAME_LEN_MAX: usize = 128;

/// Which responses of a route the proxies store, and for how long (RFC 9111).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Seconds for which a response is fresh that says nothing of that; absent: it is not stored.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_seconds")]
    pub default_ttl_s: Option<u32>,
    /// Most seconds for which a response is fresh, whatever it says.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_seconds")]
    pub max_ttl_s: Option<u32>,
    /// Seconds for which a stale response is served while one request asks the server, where the response
    /// does not say it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "seconds")]
    pub stale_while_revalidate_s: u32,
    /// The same while the server fails.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "seconds")]
    pub stale_if_error_s: u32,
    /// Longest body that is stored in KiB.
    #[serde(skip_serializing_if = "is_object", deserialize_with = "object")]
    pub object_kib: u32,
    /// Which parameters of the query distinguish responses; absent: the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<CacheQuery>,
    /// Fields of requests that distinguish responses, beside those that `Vary` names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Whether cookies of requests say nothing of the response. Otherwise a request with cookies shares those
    /// that say `public` or `s-maxage`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_cookies: bool,
    /// Whether `Cache-Control` of clients counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub client_control: bool,
    /// Whether clients get `Cache-Status` (RFC 9211).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cache_status: bool,
    /// Whether clients get `Cache-Tag` and `Surrogate-Key`, by which servers tag responses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_tags: bool,
}

/// Which parameters of a query distinguish responses: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum CacheQuery {
    /// Those of these names; with an empty list none.
    Only(Vec<String>),
    /// All but those of these names.
    Without(Vec<String>),
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            default_ttl_s: None,
            max_ttl_s: None,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            object_kib: OBJECT_KIB,
            query: None,
            fields: Vec::new(),
            ignore_cookies: false,
            client_control: false,
            cache_status: false,
            keep_tags: false,
        }
    }
}

/// Longest body that is stored unless a route says otherwise, in KiB.
const OBJECT_KIB: u32 = 4_096;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_object(kib: &u32) -> bool {
    *kib == OBJECT_KIB
}

fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 1 << 20, "a length in KiB")? as u32)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 1 << 31, "a time in seconds")? as u32)
}

fn some_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    seconds(deserializer).map(Some)
}

/// Notes what is wrong with the cache of a route. A stored response is the same for all clients, so that what
/// distinguishes them must not lie behind it.
pub(super) fn check(route: &Route, service: &Service, at: &str, problems: &mut Problems) {
    let Some(cache) = &route.cache else { return };
    let at = format!("{at}.cache");
    let of_service = service.http.as_ref().is_some_and(|http| http.filters.cors.is_some());
    let has_cors = of_service || route.filters.cors.is_some();
    let has_clients = service.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    for (is_wrong, message) in [
        (route.to.is_empty(), "cache is for routes with `to`"),
        (route.upgrade, "a route with upgrade has connections, which cannot be cached"),
        (has_clients, "tls.clients of the service distinguishes clients, and a cached response is for all"),
        (has_cors, "filters.cors answers by the origin of each request, and a cached response is for all"),
    ] {
        if is_wrong {
            problems.add(at.clone(), message.to_owned());
        }
    }
    let names = match &cache.query {
        Some(CacheQuery::Only(names) | CacheQuery::Without(names)) => &names[..],
        None => &[],
    };
    check_count(&format!("{at}.query"), names.len(), 0, NAMES_MAX, problems);
    check_count(&format!("{at}.fields"), cache.fields.len(), 0, NAMES_MAX, problems);
    for name in names.iter().chain(&cache.fields).filter(|name| !(1..=NAME_LEN_MAX).contains(&name.len())) {
        problems.add(at.clone(), format!("{name:?} is no name; allowed are 1 to {NAME_LEN_MAX} bytes"));
    }
    for (index, name) in cache.fields.iter().enumerate() {
        let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !name.bytes().all(is_byte) {
            let message =
                format!("{name:?} is no name of a field: expected letters, digits and !#$%&'*+-.^_`|~");
            problems.add(format!("{at}.fields[{index}]"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 443
  tls: {certificates: [www.example.com]}
  http:
    routes:
    - {name: all, to: [{service: app}], cache: {default_ttl_s: 60, query: {without: [utm_source]}, fields: [X-Lang]}}
    - {name: rest, path: {prefix: /x}, to: [{service: app}], cache: {}}
- {name: app, pool: [{node: an-1, port: 8080}]}
";

    #[test]
    fn the_cache_of_a_route() {
        let policy = Policy::parse_yaml(POLICY, "p").unwrap();
        assert_eq!(Policy::from_json(&policy.to_json(), "p").unwrap(), policy);
        let (_, http) = policy.http_services().next().unwrap();
        let cache = http.routes[0].cache.as_ref().unwrap();
        assert_eq!((cache.default_ttl_s, cache.object_kib, cache.max_ttl_s), (Some(60), 4_096, None));
        assert_eq!(http.routes[1].cache, Some(super::Cache::default()));
        for (from, to, message) in [
            ("cache: {}", "cache: {ttl: 1}", "allowed are default_ttl_s, max_ttl_s"),
            ("cache: {}", "cache: {default_ttl_s: -1}", "a time in seconds"),
            ("cache: {}", "cache: {object_kib: 0}", "a length in KiB"),
            ("cache: {}", "cache: {query: {all: []}}", "only"),
            (
                "cache: {}",
                "upgrade: true, cache: {}",
                "services[0].http.routes[1].cache: a route with upgrade",
            ),
            ("cache: {}", "cache: {fields: ['a b']}", "cache.fields[0]: \"a b\" is no name of a field"),
            ("cache: {}", "cache: {fields: ['']}", "is no name; allowed are 1 to"),
            (
                "path: {prefix: /x}, to: [{service: app}]",
                "respond: {status: 204}",
                "services[0].http.routes[1].cache: cache is for routes with `to`",
            ),
            ("cache: {}", "filters: {cors: {origins: ['*']}}, cache: {}", "routes[1].cache: filters.cors"),
            (
                "tls: {certificates: [www.example.com]}",
                "tls: {certificates: [www.example.com], clients: {authority: a}}",
                "tls.clients of the service",
            ),
        ] {
            assert!(POLICY.contains(from), "{from}");
            let error = Policy::parse_yaml(&POLICY.replacen(from, to, 1), "p").unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
