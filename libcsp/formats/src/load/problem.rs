//! What can be wrong with a schema.

use thiserror::Error;

use crate::types::Name;

/// Something wrong in a schema, with its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct SchemaError {
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// What is wrong, and what would be right.
    pub problem: SchemaProblem,
}

/// What is wrong in a schema.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum SchemaProblem {
    /// The XML is not well-formed, or has more nodes than are allowed.
    #[error("not well-formed XML: {0}")]
    Xml(String),
    /// The schema is longer than allowed.
    #[error("the schema has {len} bytes, more than {max}")]
    TooLong { len: usize, max: usize },
    /// More of something than is allowed.
    #[error("more than {max} {what}")]
    TooMany { what: &'static str, max: usize },
    /// Nested deeper than is allowed.
    #[error("{what} are nested deeper than {max}")]
    TooDeep { what: &'static str, max: usize },
    /// An element where another is expected.
    #[error("<{found}> where {expected} is expected")]
    Unexpected { found: String, expected: &'static str },
    /// An attribute is missing.
    #[error("<{element}> lacks the attribute {attribute}")]
    Missing { element: String, attribute: &'static str },
    /// An attribute's value is not valid.
    #[error("{attribute}=\"{value}\": expected {expected}")]
    Bad { attribute: &'static str, value: String, expected: String },
    /// An element's text is not valid.
    #[error("<{element}>: \"{value}\": expected {expected}")]
    BadText { element: String, value: String, expected: String },
    /// A type is not declared.
    #[error("no type is called \"{name}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
    UnknownType { name: String, nearest: Option<String> },
    /// A type contains itself.
    #[error("the composite \"{name}\" contains itself")]
    Cycle { name: String },
    /// Two things have the same name, id, number or bit.
    #[error("two of <{element}> have the {what} \"{value}\"")]
    Duplicate { element: String, what: &'static str, value: String },
    /// A field would overlap the one before it.
    #[error("offset {offset} lies within what precedes it; the least is {least}")]
    Offset { offset: u32, least: u32 },
    /// A block is shorter than its fields.
    #[error("blockLength {length} is less than the {least} bytes of the fields")]
    BlockLength { length: u32, least: u32 },
    /// A block or composite is longer than allowed, or than its header can say.
    #[error("{length} bytes are more than the {max} that a block or composite may have here")]
    BlockTooLong { length: u64, max: u32 },
    /// A header lacks a part or has it in another type.
    #[error(
        "the composite \"{composite}\" has no \"{part}\" that is a single uint8, uint16 or uint32 and not constant"
    )]
    HeaderPart { composite: Name, part: &'static str },
    /// A composite does not describe variable data, or variable data stands elsewhere.
    #[error(
        "\"{composite}\" is no encoding of variable data: a composite of \"length\" and, last, \"varData\" (length=\"0\", char or uint8)"
    )]
    NoData { composite: Name },
    /// A type of variable length where a fixed one is expected.
    #[error("\"{name}\" has no fixed length; use <data> for it")]
    Variable { name: Name },
    /// A constant without a value.
    #[error("the constant \"{name}\" has no value: give the type a text, or valueRef=\"Enum.value\"")]
    NoConstant { name: String },
}

impl SchemaError {
    pub(super) fn at(line: u32, column: u32, problem: SchemaProblem) -> Self {
        Self { line, column, problem }
    }
}
