//! Messages as JSON and back, by the mapping of `docs/formats.md`. For people and tools: it allocates.

mod error;
mod parse;
mod print;
mod text;

use crate::schema::Schema;
use crate::view::MessageView;
use crate::writer::Writer;
pub use error::{JsonError, JsonProblem};

/// The member that names the message. No field is called so: `$` is no letter of a name.
pub const MESSAGE_MEMBER: &str = "$message";
/// Longest JSON text of a message that is parsed, in bytes.
pub const JSON_LEN_MAX: usize = 4 << 20;

/// Appends a message to `out` as one line of JSON without a line's end.
///
/// # Errors
/// The message is not valid, or the text would be longer than `len_max`; what was appended is then of no use.
pub fn print(view: &MessageView<'_, '_>, out: &mut Vec<u8>, len_max: usize) -> Result<(), JsonError> {
    print::Printer::new(out, len_max).message(view)
}

/// Writes the message that a JSON text has into `out` and returns its length. Members that are missing are
/// null, or empty.
///
/// # Errors
/// The text is no JSON, it does not match the message's fields, or the buffer is too small.
pub fn parse(schema: &Schema, text: &[u8], out: &mut [u8]) -> Result<usize, JsonError> {
    if text.len() > JSON_LEN_MAX {
        return Err(JsonError::new(JsonProblem::TooLong { max: JSON_LEN_MAX }));
    }
    let value = serde_json::from_slice(text)
        .map_err(|error| JsonError::new(JsonProblem::Syntax(error.to_string())))?;
    let (message, members) = parse::message(schema, &value)?;
    let writer = Writer::new(schema, message, out).map_err(|error| JsonError::new(error.into()))?;
    parse::Parser::new(writer).message(members)
}
