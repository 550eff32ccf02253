//! What a policy says of the cache of a rule.

use std::hash::{DefaultHasher, Hash, Hasher};

use csp_cache::freshness::Rules;
use csp_cache::key::QueryKey;
use csp_http::name::is_token;

use super::{Action, Mistake, RuleConfig};

/// Most names of parameters or fields of a rule's key.
const NAMES_MAX: usize = 64;

/// What a policy says of the cache of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Freshness where responses say nothing of it, bounds of it, and stale responses.
    pub rules: Rules,
    /// Longest body that is stored, in bytes.
    pub body_len_max: usize,
    /// Which parameters of the query count.
    pub query: QueryKey,
    /// Fields of requests that count.
    pub fields: Vec<String>,
    /// Whether cookies of requests do not count: servers answer the same with any.
    pub ignores_cookies: bool,
    /// Whether `Cache-Control` of clients counts.
    pub obeys_clients: bool,
    /// Whether clients get `Cache-Status` (RFC 9211).
    pub reports: bool,
    /// Whether clients get the fields with tags.
    pub keeps_tags: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            rules: Rules::default(),
            body_len_max: 4 << 20,
            query: QueryKey::All,
            fields: Vec::new(),
            ignores_cookies: false,
            obeys_clients: false,
            reports: false,
            keeps_tags: false,
        }
    }
}

/// The cache of a rule, checked.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) config: CacheConfig,
    /// Distinguishes the rule, its targets, and how it changes requests: what was stored for another one
    /// is not served.
    pub(crate) scope: u64,
}

impl Cache {
    /// Checks the cache of a rule. `of_service`: what of the service decides the requests that servers get.
    pub(super) fn new(rule: &RuleConfig, of_service: &str) -> Result<Option<Cache>, Mistake> {
        let Some(config) = &rule.cache else { return Ok(None) };
        if !matches!(rule.action, Action::Forward(_)) {
            return Err(Mistake::Cache("it is for rules that forward requests"));
        }
        if rule.upgrade {
            return Err(Mistake::Cache("connections that are upgraded cannot be cached"));
        }
        let names = match &config.query {
            QueryKey::Only(names) | QueryKey::Without(names) => names.len(),
            QueryKey::All | QueryKey::Nothing => 0,
        };
        if names > NAMES_MAX || config.fields.len() > NAMES_MAX {
            return Err(Mistake::Cache("expected at most 64 parameters and fields of the key"));
        }
        if !config.fields.iter().all(|name| is_token(name.as_bytes())) {
            return Err(Mistake::Cache("a field of the key has no name of a field"));
        }
        let mut hasher = DefaultHasher::new();
        let changes = (&rule.action, &rule.host, &rule.rewrite, &rule.request_edits);
        // Whatever decides what is stored, for how long and for whom: but for what a response does not show.
        let stores = CacheConfig { body_len_max: 0, reports: false, ..config.clone() };
        format!("{of_service} {:?} {changes:?} {stores:?}", rule.name).hash(&mut hasher);
        Ok(Some(Cache { config: config.clone(), scope: hasher.finish() }))
    }
}
