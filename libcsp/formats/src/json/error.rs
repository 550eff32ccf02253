//! What can be wrong with JSON.

use thiserror::Error;

use crate::view::ViewError;
use crate::writer::{WriteError, WriteProblem};

/// Something wrong in a JSON text, or in a message to be printed.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}{problem}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct JsonError {
    /// The way to the member, such as `legs[2].price.mantissa`; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub problem: JsonProblem,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum JsonProblem {
    /// No JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// The text is longer than allowed.
    #[error("the text is longer than {max} bytes")]
    TooLong { max: usize },
    /// Another kind of value is expected.
    #[error("expected {expected}")]
    Expected { expected: String },
    /// The message has no such member.
    #[error("there is no member \"{name}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
    Unknown { name: String, nearest: Option<String> },
    /// A required member is missing.
    #[error("the required member \"{name}\" is missing")]
    Missing { name: String },
    /// The value cannot be written.
    #[error("{0}")]
    Write(WriteProblem),
    /// The message cannot be read.
    #[error("{0}")]
    View(ViewError),
}

impl JsonError {
    pub(super) fn new(problem: JsonProblem) -> Self {
        Self { path: String::new(), problem }
    }

    pub(super) fn expected(expected: impl Into<String>) -> Self {
        Self::new(JsonProblem::Expected { expected: expected.into() })
    }

    /// The error one step further out.
    pub(super) fn within(mut self, step: &str) -> Self {
        let point = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{point}{}", self.path);
        self
    }
}

impl From<WriteError> for JsonProblem {
    fn from(error: WriteError) -> Self {
        Self::Write(error.problem)
    }
}

impl From<WriteError> for JsonError {
    fn from(error: WriteError) -> Self {
        Self::new(error.into())
    }
}

impl From<ViewError> for JsonError {
    fn from(error: ViewError) -> Self {
        Self::new(JsonProblem::View(error))
    }
}
