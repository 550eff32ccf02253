//! Why a policy's service is refused.

use std::sync::Arc;

use csp_http::forward::EditError;
use csp_http::route::{RewriteError, RouteMistake};

use super::{ANSWER_LEN_MAX, EDITS_LEN_MAX, NAME_LEN_MAX, RETRIES_MAX, TARGETS_MAX, TRUSTED_MAX};

/// What is wrong with a service, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The name of the rule; `None`: it is the service itself.
    pub rule: Option<Arc<str>>,
    /// What is wrong.
    pub what: Mistake,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.rule {
            Some(rule) => write!(f, "rule {rule:?}: {}", self.what),
            None => write!(f, "{}", self.what),
        }
    }
}

impl std::error::Error for ConfigError {}

/// What is wrong with a service or a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mistake {
    /// A name is empty, too long, or has characters that labels of metrics should not have.
    #[error("{0:?} is no name: expected 1 to {NAME_LEN_MAX} characters of visible ASCII")]
    Name(String),
    /// Two rules have this rule's name.
    #[error("another rule has the same name")]
    RuleTwice,
    /// A host is no host.
    #[error("{0:?} is no host: expected a name or an address, and perhaps a port")]
    Host(String),
    /// No target would get a request, or there are too many.
    #[error("expected 1 to {TARGETS_MAX} targets, one of a weight above 0")]
    Targets,
    /// A status that the gateway cannot answer with.
    #[error("{0} is no status of an answer: expected 200 to 599, and no body with 204, 205 and 304")]
    Status(u16),
    /// A body is too long.
    #[error("the body has {0} bytes: expected at most {ANSWER_LEN_MAX}")]
    AnswerLen(usize),
    /// A content type has characters that no field has.
    #[error("{0:?} is no content type: expected TYPE/SUBTYPE of visible ASCII")]
    ContentType(String),
    /// Edits add too much.
    #[error("edits of one direction add {0} bytes: expected at most {EDITS_LEN_MAX}")]
    EditsLen(usize),
    /// Too many retries.
    #[error("{0} retries: expected at most {RETRIES_MAX}")]
    Retries(u8),
    /// Too many networks.
    #[error("{0} trusted networks: expected at most {TRUSTED_MAX}")]
    Trusted(usize),
    /// No stream could be opened.
    #[error("no connections or streams of HTTP/2 to members: expected 1 or more")]
    MemberHttp2,
    /// The cache of a rule.
    #[error("cache: {0}")]
    Cache(&'static str),
    /// A time is 0 that must not be.
    #[error("the time {0} is 0: expected more")]
    Timeout(&'static str),
    /// The route is wrong.
    #[error(transparent)]
    Route(RouteMistake),
    /// The rewrite or the redirect is wrong.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// A filter is wrong.
    #[error("filters: {0}")]
    Filter(#[from] csp_filters::FilterError),
    /// All filters together are too large.
    #[error("filters: {0}")]
    AllFilters(csp_filters::Mistake),
    /// An edit is wrong.
    #[error(transparent)]
    Edit(#[from] EditError),
}
