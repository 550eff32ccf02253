//! What can be wrong with a query.

use thiserror::Error;

/// A place in a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
}

/// Something wrong in a query.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {}, column {}: {problem}", position.line, position.column)]
pub struct QueryError {
    /// Where.
    pub position: Position,
    /// What, and what would be right.
    pub problem: QueryProblem,
}

/// What is wrong in a query.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum QueryProblem {
    /// Not the SQL that is understood.
    #[error("{0}")]
    Syntax(String),
    /// More of something than is allowed.
    #[error("more than {max} {what}")]
    TooMany { what: &'static str, max: usize },
    /// SQL that is not part of the subset.
    #[error("{what} is not supported")]
    Unsupported { what: String },
    /// No such channel, column, value or function.
    #[error("there is no {what} \"{name}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
    Unknown { what: &'static str, name: String, nearest: Option<String> },
    /// Both channels have a column of that name.
    #[error("\"{name}\" is a column of {first} and of {second}; write {first}.{name} or {second}.{name}")]
    Ambiguous { name: String, first: String, second: String },
    /// Two columns of the result, or two sources, have the same name.
    #[error("two {what} are called \"{name}\"; name one of them with AS")]
    Duplicate { what: &'static str, name: String },
    /// An operand has the wrong type.
    #[error("{operation} needs {expected}, and this is {found}")]
    Type { operation: String, expected: String, found: String },
    /// A column that is not grouped by stands beside aggregates.
    #[error("\"{name}\" is neither grouped by nor within an aggregate")]
    NotGrouped { name: String },
    /// An aggregate where none can be, or without a window.
    #[error("{function} {problem}")]
    Aggregate { function: String, problem: &'static str },
    /// A join whose condition is no equality of columns of both sides.
    #[error("a join is ON equalities between columns of both channels, joined by AND")]
    JoinCondition,
    /// A result that cannot be a message.
    #[error("the result has no format: {0}")]
    Format(String),
}

impl QueryError {
    pub(crate) fn new(position: Position, problem: QueryProblem) -> Self {
        Self { position, problem }
    }
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}
