//! What can be wrong with what is to be written.

use thiserror::Error;

use crate::primitive::Scalar;
use crate::types::Name;

/// Something that cannot be written.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{field}: {problem}")]
pub struct WriteError {
    /// The field, group, data or message.
    pub field: Name,
    /// What is wrong.
    pub problem: WriteProblem,
}

/// Why something cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum WriteProblem {
    /// The buffer is too small.
    #[error("{need} more bytes do not fit in the {room} that are left of the buffer")]
    NoSpace { need: usize, room: usize },
    /// The value is not of the field's type.
    #[error("the value is not of type {expected}")]
    WrongType { expected: &'static str },
    /// The number does not fit in the type, or lies outside the schema's range.
    #[error("{value} is outside the range of the field")]
    OutOfRange { value: Scalar },
    /// The number means null.
    #[error("{value} stands for null")]
    StandsForNull { value: Scalar },
    /// Null in a field that is required.
    #[error("the field is required and cannot be null")]
    Required,
    /// Another value than the constant.
    #[error("the field is constant and has another value")]
    Constant,
    /// More bytes or elements than the field or the schema has room for.
    #[error("{len} bytes or elements are more than {max}")]
    TooLong { len: usize, max: u64 },
    /// More entries than the dimension can say.
    #[error("more than {max} entries")]
    TooManyEntries { max: u64 },
    /// The field does not lie in the current block.
    #[error("the field lies outside the current block")]
    Outside,
    /// The record has no such group or data.
    #[error("there is no group or data of that index")]
    NoMember,
    /// The group or data comes before what is written already.
    #[error("groups and data are written in the schema's order, each once")]
    Passed,
    /// No group is begun.
    #[error("no group is begun")]
    NoGroup,
    /// A group is begun, and no entry of it.
    #[error("no entry of the group is begun")]
    NoEntry,
}

impl WriteError {
    #[cold]
    pub(crate) fn new(field: &Name, problem: WriteProblem) -> Self {
        Self { field: field.clone(), problem }
    }
}
