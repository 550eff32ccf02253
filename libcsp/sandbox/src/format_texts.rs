//! Formats as bytes, for a program that has no policy: what [`SbeFields`] is made of there.
//!
//! ```text
//!  of each format: id (4) | length of the message's name (4) | length of the schema (4; all ones: the schema before) | name | schema, XML
//! ```
//! Numbers are little-endian.

use std::sync::Arc;

use csp_formats::Schema;
use csp_handlers::FormatId;
use thiserror::Error;

use crate::fields::SbeFields;

/// Most formats.
const FORMATS_MAX: usize = 4096;
/// Length of a schema that is the one before.
const SAME: u32 = u32::MAX;

/// Why bytes are no formats.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatsError {
    /// They are cut off, or a length is wrong.
    #[error("the formats are cut off at byte {0}")]
    Cut(usize),
    /// A schema is none; contains the format's number and what is wrong.
    #[error("the schema of format {0}: {1}")]
    Schema(u32, String),
    /// A schema has no message of the name.
    #[error("the schema of format {0} has no message `{1}`")]
    Message(u32, String),
    /// There are too many.
    #[error("there are more than {FORMATS_MAX} formats")]
    TooMany,
}

/// Returns formats as bytes: of each its id, the name of its message, and its schema as XML.
#[must_use]
pub fn encode<'a>(formats: impl Iterator<Item = (FormatId, &'a str, &'a str)>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), None);
    for (id, name, schema) in formats {
        let is_same = before.replace(schema) == Some(schema);
        let len = |text: &str| u32::try_from(text.len()).unwrap_or(SAME - 1);
        let schema_len = if is_same { SAME } else { len(schema) };
        [id.0, len(name), schema_len]
            .iter()
            .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(if is_same { b"" } else { schema.as_bytes() });
    }
    bytes
}

impl SbeFields {
    /// Reads formats that [`encode`] has written.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatsError> {
        let (mut fields, mut rest) = (SbeFields::default(), bytes);
        let mut before: Option<Arc<Schema>> = None;
        for _ in 0..FORMATS_MAX {
            if rest.is_empty() {
                return Ok(fields);
            }
            let cut = FormatsError::Cut(bytes.len() - rest.len());
            let mut number = || {
                let (number, after) = rest.split_first_chunk()?;
                rest = after;
                Some(u32::from_le_bytes(*number))
            };
            let head = (number(), number(), number());
            let (Some(id), Some(name_len), Some(schema_len)) = head else { return Err(cut) };
            let mut text = |len: u32| {
                let (text, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                rest = after;
                std::str::from_utf8(text).ok()
            };
            let name = text(name_len).ok_or_else(|| cut.clone())?;
            let schema = match (schema_len, &before) {
                (SAME, Some(schema)) => schema.clone(),
                (SAME, None) => return Err(cut),
                (len, _) => {
                    let xml = text(len).ok_or(cut)?;
                    let parsed =
                        Schema::parse(xml).map_err(|error| FormatsError::Schema(id, error.to_string()))?;
                    before.insert(Arc::new(parsed)).clone()
                }
            };
            if !fields.add(FormatId(id), &schema, name) {
                return Err(FormatsError::Message(id, name.to_owned()));
            }
        }
        if rest.is_empty() { Ok(fields) } else { Err(FormatsError::TooMany) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;
    use crate::fields::Fields as _;

    const SCHEMA: &str = r#"<?xml version="1.0"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="p" id="7" version="0" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
  </types>
  <sbe:message name="A" id="1"><field name="n" id="1" type="uint32"/></sbe:message>
  <sbe:message name="B" id="2"><field name="m" id="1" type="uint8"/><field name="n" id="2" type="uint32"/></sbe:message>
</sbe:messageSchema>"#;

    #[test]
    fn formats_come_back_and_what_is_none_is_refused() {
        let all = [(FormatId(1), "A", SCHEMA), (FormatId(9), "B", SCHEMA)];
        let bytes = encode(all.into_iter());
        assert!(bytes.len() < SCHEMA.len() + 100, "a schema is there once");
        let fields = SbeFields::parse(&bytes).unwrap();
        assert_eq!(fields.formats(), [FormatId(1), FormatId(9)]);
        let offset = |format| fields.locate(FormatId(format), "n").unwrap().offset;
        assert_eq!((offset(1), offset(9)), (8, 9));
        assert!(SbeFields::parse(b"").unwrap().formats().is_empty());
        for len in 1..bytes.len() {
            // The first format alone is whole.
            assert!(SbeFields::parse(&bytes[..len]).is_err() || len == 13 + SCHEMA.len(), "{len}");
        }
        let unknown = encode([(FormatId(1), "C", SCHEMA)].into_iter());
        assert_eq!(SbeFields::parse(&unknown).err(), Some(FormatsError::Message(1, "C".to_owned())));
        let none = encode([(FormatId(3), "A", "<no/>")].into_iter());
        assert!(matches!(SbeFields::parse(&none), Err(FormatsError::Schema(3, _))));
    }
}
