//! Filters of HTTP requests: rules, CORS, HSTS, pages for errors (docs/http-filters.md). What is text for the
//! proxy is read by `csp-planner`.

use csp_config::{Problems, number, serde_prefixes};
use csp_types::Prefix;
use serde::{Deserialize, Deserializer, Serialize};

use super::check::{CONDITIONS_MAX, check_condition};
use super::{Condition, PathMatch, RedirectTo};
use crate::check::check_count;
use crate::framing::is_default;

/// Most rules of a service or a route.
const RULES_MAX: usize = 64;
/// Most pages of a service or a route.
const PAGES_MAX: usize = 32;
/// Keys that a table counts at a time, unless the policy says it.
const ENTRIES: u32 = 16_384;

/// Filters of a service, or of a route.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filters {
    /// Rules, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FilterRule>,
    /// Which pages of other sites may read responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,
    /// Whether browsers are to use HTTPS only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hsts: Option<Hsts>,
    /// Bodies of the proxy's own answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_pages: Vec<ErrorPage>,
    /// Which responses are compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compress>,
}

/// A rule: a request meets it if everything matches that it names. It has one of `allow`, `deny`, `redirect`,
/// `rate` and `concurrent`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterRule {
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
    /// The rules behind it in the same list do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow: bool,
    /// The proxy answers with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<Deny>,
    /// The client is sent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<RedirectTo>,
    /// Beyond this rate the proxy answers with 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Beyond so many requests at the same time the proxy answers with 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<Concurrent>,
}

/// How a request is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deny {
    /// The status, 400 to 599.
    #[serde(default = "forbidden")]
    pub status: u16,
}

/// By what requests are counted. Those without it count as one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum LimitKey {
    /// The client's address; of IPv6 its /64.
    #[default]
    Source,
    /// The host that the client names.
    Host,
    /// All requests together.
    All,
    /// A field of this name.
    Header(String),
    /// A cookie of this name.
    Cookie(String),
}

/// A rate: one of `per_second`, `per_minute` and `per_hour`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// By what requests are counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub key: LimitKey,
    /// Requests in a second.
    #[serde(default, deserialize_with = "some_requests", skip_serializing_if = "Option::is_none")]
    pub per_second: Option<u32>,
    /// Requests in a minute.
    #[serde(default, deserialize_with = "some_requests", skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Requests in an hour.
    #[serde(default, deserialize_with = "some_requests", skip_serializing_if = "Option::is_none")]
    pub per_hour: Option<u32>,
    /// Requests that pass at once after a pause; absent: those of the whole second, minute or hour.
    #[serde(default, deserialize_with = "some_requests", skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Keys that are counted at a time.
    #[serde(default = "entries", deserialize_with = "some_entries", skip_serializing_if = "is_entries")]
    pub entries: u32,
}

/// The time of a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RatePeriod {
    /// Requests.
    pub requests: u32,
    /// In so many seconds.
    pub seconds: u32,
}

impl Rate {
    /// Its requests and their time; `None` if it says none or several, which no checked policy does.
    pub fn period(&self) -> Option<RatePeriod> {
        let all = [(self.per_second, 1), (self.per_minute, 60), (self.per_hour, 3_600)];
        let named =
            |(requests, seconds): (Option<u32>, u32)| Some(RatePeriod { requests: requests?, seconds });
        let mut named = all.into_iter().filter_map(named);
        named.next().filter(|_| named.next().is_none())
    }
}

/// A bound of requests at the same time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrent {
    /// By what requests are counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub key: LimitKey,
    /// Most requests.
    #[serde(deserialize_with = "requests")]
    pub most: u32,
    /// Keys that are counted at a time.
    #[serde(default = "entries", deserialize_with = "some_entries", skip_serializing_if = "is_entries")]
    pub entries: u32,
}

/// Which pages of other sites may read responses (CORS).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Their origins: `https://app.example`, `https://*.example.com`, or `*`.
    pub origins: Vec<String>,
    /// Methods beside GET, HEAD and POST.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Fields that requests may have; `*`: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Fields of responses that scripts may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<String>,
    /// Whether requests may have cookies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub credentials: bool,
    /// How long a browser may keep the proxy's answer, in seconds.
    #[serde(default = "cors_age", deserialize_with = "day")]
    pub max_age_s: u32,
}

/// `Strict-Transport-Security`: browsers use HTTPS only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hsts {
    /// For how long, in seconds.
    #[serde(default = "year")]
    pub max_age_s: u32,
    /// For names below, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_subdomains: bool,
    /// Browsers may have it built in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preload: bool,
}

/// Compression of responses, for clients that accept it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Compress {
    /// `false`: a route leaves its responses as they are, although its service compresses.
    #[serde(skip_serializing_if = "is_true")]
    pub enabled: bool,
    /// The algorithms, the preferred one first.
    pub algorithms: Vec<CompressAlgorithm>,
    /// The level of br, 0 to 11.
    pub br_level: u8,
    /// The level of gzip, 1 to 9.
    pub gzip_level: u8,
    /// Media types in lower case; `text/*` is all of text. Empty: text, JavaScript, JSON, XML, SVG,
    /// WebAssembly, fonts that are not compressed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Shorter bodies are left alone, in bytes.
    pub min_length: u32,
}

impl Default for Compress {
    fn default() -> Self {
        use CompressAlgorithm::{Br, Gzip};
        let (algorithms, types) = (vec![Br, Gzip], Vec::new());
        Compress { enabled: true, algorithms, br_level: 4, gzip_level: 5, types, min_length: 1_024 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_true(enabled: &bool) -> bool {
    *enabled
}

/// An algorithm of compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressAlgorithm {
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

/// The body of some of the proxy's own answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorPage {
    /// Statuses of these answers, 400 to 599.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<u16>,
    /// Their codes (docs/limits.md).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<String>,
    /// The body, at most 16 KiB.
    pub body: String,
    /// The body's type.
    #[serde(default = "html")]
    pub content_type: String,
}

/// What a rule does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterAct<'a> {
    /// The rules behind it in the same list do not count.
    Allow,
    /// The proxy answers with an error.
    Deny(Deny),
    /// The client is sent elsewhere.
    Redirect(&'a RedirectTo),
    /// A rate.
    Rate(&'a Rate),
    /// A bound of requests at the same time.
    Concurrent(&'a Concurrent),
}

impl FilterRule {
    /// What it does; `None` if it says none or several, which no checked policy does.
    pub fn act(&self) -> Option<FilterAct<'_>> {
        let all = [
            self.allow.then_some(FilterAct::Allow),
            self.deny.map(FilterAct::Deny),
            self.redirect.as_ref().map(FilterAct::Redirect),
            self.rate.as_ref().map(FilterAct::Rate),
            self.concurrent.as_ref().map(FilterAct::Concurrent),
        ];
        let mut named = all.into_iter().flatten();
        named.next().filter(|_| named.next().is_none())
    }
}

/// Notes what is wrong with filters.
pub(super) fn check(filters: &Filters, at: &str, problems: &mut Problems) {
    check_count(&format!("{at}.rules"), filters.rules.len(), 0, RULES_MAX, problems);
    check_count(&format!("{at}.error_pages"), filters.error_pages.len(), 0, PAGES_MAX, problems);
    for (index, rule) in filters.rules.iter().enumerate() {
        check_rule(rule, &format!("{at}.rules[{index}]"), problems);
    }
}

fn check_rule(rule: &FilterRule, at: &str, problems: &mut Problems) {
    if rule.act().is_none() {
        let message = "a rule has one of allow, deny, redirect, rate and concurrent";
        problems.add(at.to_owned(), message.to_owned());
    }
    for (field, len) in [
        ("hosts", rule.hosts.len()),
        ("methods", rule.methods.len()),
        ("headers", rule.headers.len()),
        ("cookies", rule.cookies.len()),
        ("query", rule.query.len()),
        ("sources", rule.sources.len()),
    ] {
        check_count(&format!("{at}.{field}"), len, 0, CONDITIONS_MAX, problems);
    }
    for (field, conditions) in
        [("headers", &rule.headers), ("cookies", &rule.cookies), ("query", &rule.query)]
    {
        for (index, condition) in conditions.iter().enumerate() {
            check_condition(condition, &format!("{at}.{field}[{index}]"), problems);
        }
    }
    if rule.rate.as_ref().is_some_and(|rate| rate.period().is_none()) {
        let message = "a rate has one of per_second, per_minute and per_hour";
        problems.add(format!("{at}.rate"), message.to_owned());
    }
    let scheme = rule.redirect.as_ref().and_then(|redirect| redirect.scheme.as_ref());
    if let Some(scheme) = scheme.filter(|scheme| !matches!(scheme.as_str(), "http" | "https")) {
        let message = format!("{scheme:?} is no scheme; allowed are http and https");
        problems.add(format!("{at}.redirect.scheme"), message);
    }
}

const fn forbidden() -> u16 {
    403
}

const fn entries() -> u32 {
    ENTRIES
}

const fn cors_age() -> u32 {
    600
}

const fn year() -> u32 {
    31_536_000
}

fn html() -> String {
    "text/html; charset=utf-8".to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_entries(entries: &u32) -> bool {
    *entries == ENTRIES
}

fn requests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 1_000_000, "a number of requests")? as u32)
}

fn some_requests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    requests(deserializer).map(Some)
}

fn some_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 64, 1 << 20, "a number of entries")? as u32)
}

fn day<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 86_400, "a time in seconds")? as u32)
}

#[cfg(test)]
mod tests;
