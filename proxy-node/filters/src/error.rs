//! Why filters are refused.

use csp_http::route::{RewriteError, RouteMistake};

use crate::compress::TYPES_MAX;
use crate::rate::RATE_MAX;
use crate::{ALL_ENTRIES_MAX, CONCURRENT_MAX, CORS_LEN_MAX, CORS_LIST_MAX, ENTRIES_MAX, EXPRESSIONS_MAX};
use crate::{PAGE_LEN_MAX, PAGES_MAX, RULES_MAX};

/// A part of filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All rules.
    Rules,
    /// The rule at this position.
    Rule(usize),
    /// All pages.
    Pages,
    /// The page at this position.
    Page(usize),
    /// CORS.
    Cors,
    /// Compression.
    Compress,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Rules => f.write_str("rules"),
            Part::Rule(at) => write!(f, "rules[{at}]"),
            Part::Pages => f.write_str("error_pages"),
            Part::Page(at) => write!(f, "error_pages[{at}]"),
            Part::Cors => f.write_str("cors"),
            Part::Compress => f.write_str("compress"),
        }
    }
}

/// What is wrong with filters, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{part}: {what}")]
pub struct FilterError {
    /// Where.
    pub part: Part,
    /// What.
    pub what: Mistake,
}

/// What is wrong with filters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mistake {
    /// No coding.
    #[error("no algorithm; one of br, gzip")]
    NoCoding,
    /// A coding that stands twice.
    #[error("{0} stands twice")]
    CodingTwice(&'static str),
    /// A level that a coding does not have.
    #[error("{0} has no level {1}: br has 0 to 11, gzip 1 to 9")]
    Level(&'static str, u8),
    /// Too many types.
    #[error("{0} types; allowed are {TYPES_MAX}")]
    Types(usize),
    /// A type that is none.
    #[error("{0:?} is no media type in lower case, like application/json or text/*")]
    Type(String),
    /// Too many rules.
    #[error("{0} rules; allowed are {RULES_MAX}")]
    Rules(usize),
    /// Too many rules that limit requests at the same time.
    #[error("more than {CONCURRENT_MAX} rules with `concurrent`")]
    Concurrent,
    /// Too many expressions.
    #[error("{0} expressions in all filters of the service; allowed are {EXPRESSIONS_MAX}")]
    Expressions(usize),
    /// Tables that are too large together.
    #[error("tables of {0} entries in all filters of the service; allowed are {ALL_ENTRIES_MAX}")]
    AllEntries(usize),
    /// A table of a wrong size.
    #[error("a table of {0} entries; allowed are 64 to {ENTRIES_MAX}")]
    Entries(usize),
    /// A limit that lets nothing pass.
    #[error("a limit of 0 requests; use deny")]
    Zero,
    /// A burst that takes too long to be paid back.
    #[error("a burst that lasts longer than a day at that rate; allowed are up to {0} requests")]
    Burst(u64),
    /// A rate that the table cannot measure.
    #[error("a rate of more than {RATE_MAX} requests a second")]
    Rate,
    /// A key that is no name.
    #[error("{0:?} is no name of a {1}")]
    Name(String, &'static str),
    /// A status that denies nothing.
    #[error("{0} denies nothing; allowed are 400 to 599")]
    Status(u16),
    /// A status that comes with a field, which the proxy does not send.
    #[error("{0} needs a field that the proxy does not send (RFC 9110); use 403")]
    StatusWithField(u16),
    /// What the rule is about is wrong.
    #[error(transparent)]
    Route(#[from] RouteMistake),
    /// The redirect is wrong.
    #[error(transparent)]
    Redirect(#[from] RewriteError),
    /// Too many pages.
    #[error("{0} pages; allowed are {PAGES_MAX}")]
    Pages(usize),
    /// A page for nothing.
    #[error("a page names statuses or codes")]
    PageForNothing,
    /// A page for an answer that has none.
    #[error("{0} is no status of an error; allowed are 400 to 599")]
    PageStatus(u16),
    /// A page that is too long.
    #[error("has {0} bytes; allowed are {PAGE_LEN_MAX}")]
    PageLen(usize),
    /// A type that is none.
    #[error("{0:?} is no content type; allowed is TYPE/SUBTYPE of visible ASCII")]
    ContentType(String),
    /// A list of CORS is too long, or empty.
    #[error("{1} {0}; allowed are {min} to {CORS_LIST_MAX}", min = usize::from(*.0 == "origins"))]
    CorsList(&'static str, usize),
    /// A list of CORS is too long as a field.
    #[error("{0} of {1} bytes together; allowed are {CORS_LEN_MAX}")]
    CorsLen(&'static str, usize),
    /// An origin that no browser sends.
    #[error("{0:?} names the usual port of its scheme, which browsers leave out: leave it out, too")]
    UsualPort(String),
    /// An origin that is none.
    #[error("{0:?} is no origin; allowed are *, https://HOST, https://HOST:PORT and https://*.DOMAIN")]
    Origin(String),
    /// Any site would read what a user's cookies give access to.
    #[error("credentials with the origin *: every site could read what users may; name the origins")]
    AnyWithCredentials,
}

impl Mistake {
    pub(crate) fn at(self, part: Part) -> FilterError {
        FilterError { part, what: self }
    }
}
