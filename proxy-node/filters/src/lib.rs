#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod compress;
mod concurrent;
mod cors;
mod error;
mod key;
mod pages;
mod rate;
mod rules;

use compress::{Compress, CompressSpec};
use csp_http::forward::Edit;
use rules::Tables;

pub use concurrent::{ConcurrentTable, Permit};
pub use cors::{CORS_LEN_MAX, CORS_LIST_MAX, Cors, CorsSpec, Preflight, requested_method};
pub use error::{FilterError, Mistake, Part};
pub use key::Key;
pub use pages::{PAGE_LEN_MAX, PAGES_MAX, PageFound, PageSpec, Pages, Preference};
pub use rate::{RateSpec, RateTable};
pub use rules::{Act, Asker, CONCURRENT_MAX, ENTRIES_MAX, Limit, RULES_MAX, RuleSpec, Rules, Stop};

/// Most expressions of all filters of a service.
pub const EXPRESSIONS_MAX: usize = 256;
/// Most places of all tables of a service.
pub const ALL_ENTRIES_MAX: usize = 4 << 20;
/// Most places of all tables of a policy.
pub const POLICY_ENTRIES_MAX: usize = 16 << 20;

/// `Strict-Transport-Security` (RFC 6797).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hsts {
    /// How long browsers use HTTPS only, in seconds.
    pub max_age_s: u32,
    /// Whether that holds for names below, too.
    pub include_subdomains: bool,
    /// Whether browsers may have it built in.
    pub preload: bool,
}

impl Hsts {
    fn text(self) -> String {
        let below = if self.include_subdomains { "; includeSubDomains" } else { "" };
        let preload = if self.preload { "; preload" } else { "" };
        format!("max-age={}{below}{preload}", self.max_age_s)
    }
}

/// What a policy says of the filters of a service or of a route.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spec {
    /// Rules, in order.
    pub rules: Vec<RuleSpec>,
    /// Pages for errors.
    pub pages: Vec<PageSpec>,
    /// Which pages of other sites may read responses.
    pub cors: Option<CorsSpec>,
    /// Whether browsers are to use HTTPS only. Of services with TLS.
    pub hsts: Option<Hsts>,
    /// Which responses are compressed.
    pub compress: Option<CompressSpec>,
}

impl Spec {
    /// Returns the number of expressions and of places in tables.
    pub fn sizes(&self) -> (usize, usize) {
        let sizes = self.rules.iter().map(RuleSpec::sizes);
        sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Checks the bounds of all filters of a service together.
    pub fn check_all<'a>(all: impl Iterator<Item = &'a Spec>) -> Result<(), Mistake> {
        let sizes = all.map(Spec::sizes).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        match sizes {
            (expressions, _) if expressions > EXPRESSIONS_MAX => Err(Mistake::Expressions(expressions)),
            (_, entries) if entries > ALL_ENTRIES_MAX => Err(Mistake::AllEntries(entries)),
            _ => Ok(()),
        }
    }
}

/// Filters that were checked.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// Rules.
    pub rules: Rules,
    /// Pages for errors.
    pub pages: Pages,
    /// CORS.
    pub cors: Option<Cors>,
    /// Compression.
    pub compress: Option<Compress>,
    hsts: Option<Hsts>,
}

impl Filters {
    /// Checks filters. `secret`: of the hashes of keys; clients must not know it.
    pub fn new(spec: Spec, secret: [u64; 2]) -> Result<Filters, FilterError> {
        Self::made(spec, secret, Tables::Whole)
    }

    /// Checks filters without the memory of their tables.
    pub fn check(spec: Spec) -> Result<(), FilterError> {
        Self::made(spec, [0; 2], Tables::Least).map(|_| ())
    }

    fn made(spec: Spec, secret: [u64; 2], tables: Tables) -> Result<Filters, FilterError> {
        Ok(Filters {
            rules: Rules::new(spec.rules, secret, tables)?,
            pages: Pages::new(spec.pages)?,
            cors: spec.cors.map(Cors::new).transpose()?,
            compress: spec.compress.map(Compress::new).transpose()?,
            hsts: spec.hsts,
        })
    }

    /// Returns whether requests are not affected at all.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.pages.is_empty() && self.cors.is_none() && self.compress.is_none()
    }

    /// Returns filters of a route with what those of its service say where it says nothing: CORS,
    /// compression and HSTS.
    #[must_use]
    pub fn below(self, above: &Filters) -> Filters {
        let cors = self.cors.or_else(|| above.cors.clone());
        let compress = self.compress.or_else(|| above.compress.clone());
        Filters { cors, compress, hsts: self.hsts.or(above.hsts), ..self }
    }

    /// Returns the changes of every response.
    pub fn edits(&self) -> Vec<Edit> {
        let hsts = self.hsts.map(|hsts| {
            Edit::Set("Strict-Transport-Security".into(), hsts.text().into_bytes().into_boxed_slice())
        });
        let cors = self.cors.iter().flat_map(Cors::edits);
        hsts.into_iter().chain(cors).collect()
    }
}
