//! Routes: which rule of a policy a request falls under.
//!
//! Routes are compiled once for a generation of the policy ([`Routes::compile`]). Finding one allocates
//! nothing, and takes a search in a sorted table for each label of the host and each length of a prefix, then
//! the conditions of the routes found there; expressions take time linear in the text.
//!
//! **Which route wins.** The first one in this order, of those of which everything matches:
//!
//! 1. the greater [`priority`](RouteSpec::priority);
//! 2. the more specific host: exact, then the longer wildcard, then any;
//! 3. the more specific path: exact, then an expression, then the longer prefix;
//! 4. with a method, then the greater number of headers, cookies, query parameters, and with a source;
//! 5. the earlier one in the policy.
//!
//! That is the order of the Kubernetes Gateway API, so that routes of several people can be joined without
//! one hiding another. Users of HAProxy and Envoy, whose rules are tried in the order of their text, give
//! each route a priority. Unlike virtual hosts of nginx and Envoy, a less specific host is asked when no
//! route of a more specific one matches, as with HAProxy; a last route of the specific host prevents that.

mod conditions;
mod paths;
mod rewrite;
mod table;
mod text;
mod weights;

pub use rewrite::{PathRewrite, Redirect, RewriteError};
pub use table::{Found, Routes, Subject};
pub use text::{EXPRESSION_LEN_MAX, ExpressionError};
pub use weights::Weights;

use csp_types::Prefix;

use crate::fault::Fault;

/// Most routes of one table.
pub const ROUTES_MAX: usize = 4_096;
/// Most hosts, methods, sources, and conditions of one kind of a route.
pub const CONDITIONS_MAX: usize = 16;
/// Most expressions of one table. Each takes up to 256 KiB, and up to 0.3 s to compile.
pub const EXPRESSIONS_MAX: usize = 256;

/// What a text has to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextSpec {
    /// There, with any value.
    Present,
    /// Not there.
    Absent,
    /// Equal to this.
    Exact(String),
    /// This at its start.
    Prefix(String),
    /// Matched as a whole by this expression: syntax of the crate `regex`, bytes, without Unicode classes.
    Regex(String),
}

/// What a path has to be. It is compared in its [normal form](crate::head::normalised).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PathSpec {
    /// Any path, and `*`.
    #[default]
    Any,
    /// This path.
    Exact(String),
    /// This path, or a path below it: `/a` has `/a/b` and `/a/` below it, but not `/ab`.
    Prefix(String),
    /// A path that this expression matches as a whole.
    Regex(String),
}

/// What a request has to be to fall under a route. All that is named has to match; what is empty matches
/// always.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteSpec {
    /// Comes before everything else in the order; the greater one wins.
    pub priority: i32,
    /// One of these hosts: a name, or `*.` and a name for all names that end with it, at any depth. The case,
    /// the port and a last dot do not matter.
    pub hosts: Vec<String>,
    /// The path.
    pub path: PathSpec,
    /// One of these methods.
    pub methods: Vec<String>,
    /// Fields of these names, of which one has the value.
    pub headers: Vec<(String, TextSpec)>,
    /// Cookies of these names.
    pub cookies: Vec<(String, TextSpec)>,
    /// Query parameters of these names, both decoded.
    pub query: Vec<(String, TextSpec)>,
    /// One of these networks has the client's address.
    pub sources: Vec<Prefix>,
}

impl RouteSpec {
    /// Returns the number of expressions.
    fn expressions(&self) -> usize {
        let named = [&self.headers, &self.cookies, &self.query].into_iter().flatten();
        let texts = named.filter(|(_, text)| matches!(text, TextSpec::Regex(_))).count();
        texts + usize::from(matches!(self.path, PathSpec::Regex(_)))
    }
}

/// Why a table of routes is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("route {route}: {what}")]
pub struct RouteError {
    /// The position of the route, from 0 on.
    pub route: usize,
    /// What is wrong with it.
    pub what: RouteMistake,
}

/// What is wrong with a route.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RouteMistake {
    /// More routes than [`ROUTES_MAX`].
    #[error("more than {ROUTES_MAX} routes")]
    TooMany,
    /// More expressions than [`EXPRESSIONS_MAX`] in this route and those before it.
    #[error("more than {EXPRESSIONS_MAX} expressions in all routes up to this one")]
    TooManyExpressions,
    /// More conditions of one kind than [`CONDITIONS_MAX`].
    #[error("more than {CONDITIONS_MAX} {0}")]
    TooManyConditions(&'static str),
    /// A host is no name.
    #[error("{0:?} is no host: expected a name without a port, or *. and a name")]
    Host(String),
    /// A path has no normal form.
    #[error("{0:?} is no path ({code}): expected /SEGMENT/…, percent-encoded where needed", code = .1.code())]
    Path(String, Fault),
    /// A method is no token.
    #[error("{0:?} is no method")]
    Method(String),
    /// A name of a field, a cookie or a parameter is empty or malformed.
    #[error("{0:?} is no name of a {1}")]
    Name(String, &'static str),
    /// An expression is malformed or too large.
    #[error("the expression {0:?}: {1}")]
    Expression(String, ExpressionError),
}

/// Returns the start of a text of the policy, for a message about it.
fn quoted(text: &str) -> String {
    text.chars().take(80).collect()
}
