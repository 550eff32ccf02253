//! What can be wrong with a message.

use thiserror::Error;

use crate::bytes::Bytes;
use crate::types::Name;

/// Something wrong in a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {problem}", field.as_deref().unwrap_or("message header"))]
pub struct ViewError {
    /// The message, field, group or data that is wrong; `None` for the message header.
    pub field: Option<Name>,
    /// What is wrong.
    pub problem: ViewProblem,
}

/// What is wrong in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum ViewProblem {
    /// The message ends within it.
    #[error("{need} bytes do not fit in the {have} that are left of the message")]
    Truncated { need: u64, have: usize },
    /// The field lies outside the block, though the writer's version has it.
    #[error("the field ends at byte {end} of a block of {length}")]
    BlockTooShort { end: u32, length: usize },
    /// The message is of another schema.
    #[error("the message is of schema {found}, not {expected}")]
    WrongSchema { found: u64, expected: u16 },
    /// The schema has no such message.
    #[error("the schema has no message of template {id}")]
    UnknownTemplate { id: u64 },
    /// Entries that take no bytes, more than are believed.
    #[error("{count} entries that take no bytes are more than {max}")]
    EmptyEntries { count: u64, max: u64 },
}

impl ViewError {
    #[cold]
    pub(super) fn new(field: &Name, problem: ViewProblem) -> Self {
        Self { field: Some(field.clone()), problem }
    }

    #[cold]
    pub(super) fn header(problem: ViewProblem) -> Self {
        Self { field: None, problem }
    }

    #[cold]
    pub(super) fn truncated(field: Option<&Name>, need: impl Into<u64>, left: Bytes<'_>) -> Self {
        Self {
            field: field.cloned(),
            problem: ViewProblem::Truncated { need: need.into(), have: left.len() },
        }
    }
}
