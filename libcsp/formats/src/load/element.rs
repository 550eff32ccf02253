//! An XML element with checked attributes. Attributes that SBE does not define, and those that do not matter
//! here (descriptions, semantic types), are not looked at.

use core::str::FromStr;

use roxmltree::Node;

use super::problem::{SchemaError, SchemaProblem};
use crate::schema::NAME_LEN_MAX;
use crate::types::{Name, Presence};

#[derive(Clone, Copy)]
pub(super) struct Element<'a, 'x>(pub Node<'a, 'x>);

impl<'a, 'x> Element<'a, 'x> {
    /// The name without its prefix.
    pub(super) fn name(self) -> &'a str {
        self.0.tag_name().name()
    }

    pub(super) fn children(self) -> impl Iterator<Item = Self> {
        self.0.children().filter(Node::is_element).map(Element)
    }

    pub(super) fn attribute(self, name: &str) -> Option<&'a str> {
        self.0.attribute(name)
    }

    pub(super) fn required(self, attribute: &'static str) -> Result<&'a str, SchemaError> {
        let element = self.name().to_owned();
        self.attribute(attribute).ok_or_else(|| self.error(SchemaProblem::Missing { element, attribute }))
    }

    /// An attribute that is a whole number; `default` where it is missing, if there is one.
    pub(super) fn number<T: FromStr + Copy + Bound>(
        self,
        attribute: &'static str,
        default: Option<T>,
    ) -> Result<T, SchemaError> {
        match (self.attribute(attribute), default) {
            (None, Some(default)) => Ok(default),
            _ => self.required(attribute)?.trim().parse().map_err(|_| self.bad(attribute, T::EXPECTED)),
        }
    }

    pub(super) fn optional_number<T: FromStr + Copy + Bound>(
        self,
        attribute: &'static str,
    ) -> Result<Option<T>, SchemaError> {
        self.attribute(attribute).map(|_| self.number(attribute, None)).transpose()
    }

    /// The attribute `name`, a symbolic name.
    pub(super) fn symbol(self) -> Result<Name, SchemaError> {
        let name = self.required("name")?;
        let mut bytes = name.bytes();
        let begins = bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
        if !begins
            || name.len() > NAME_LEN_MAX
            || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Err(self.bad("name", "at most 64 letters, digits and underscores, no digit first"));
        }
        Ok(name.into())
    }

    pub(super) fn presence(self) -> Result<Option<Presence>, SchemaError> {
        match self.attribute("presence") {
            None => Ok(None),
            Some("required") => Ok(Some(Presence::Required)),
            Some("optional") => Ok(Some(Presence::Optional)),
            Some("constant") => Ok(Some(Presence::Constant)),
            Some(_) => Err(self.bad("presence", "required, optional or constant")),
        }
    }

    /// `sinceVersion`, at most the schema's own.
    pub(super) fn since(self, schema_version: u16) -> Result<u16, SchemaError> {
        let since = self.number("sinceVersion", Some(0))?;
        if since > schema_version {
            return Err(self.bad("sinceVersion", format!("at most the schema's version, {schema_version}")));
        }
        Ok(since)
    }

    /// The element's text without surrounding space.
    pub(super) fn text(self) -> &'a str {
        self.0.text().unwrap_or_default().trim()
    }

    pub(super) fn expect(self, name: &'static str) -> Result<(), SchemaError> {
        if self.name() == name { Ok(()) } else { Err(self.unexpected(name)) }
    }

    pub(super) fn unexpected(self, expected: &'static str) -> SchemaError {
        self.error(SchemaProblem::Unexpected { found: self.name().to_owned(), expected })
    }

    pub(super) fn duplicate(self, element: &str, what: &'static str, value: &str) -> SchemaError {
        self.error(SchemaProblem::Duplicate { element: element.to_owned(), what, value: value.to_owned() })
    }

    pub(super) fn bad(self, attribute: &'static str, expected: impl Into<String>) -> SchemaError {
        let value = self.attribute(attribute).unwrap_or_default().to_owned();
        self.error_in(attribute, SchemaProblem::Bad { attribute, value, expected: expected.into() })
    }

    pub(super) fn bad_text(self, expected: impl Into<String>) -> SchemaError {
        let (element, value) = (self.name().to_owned(), self.text().to_owned());
        self.error(SchemaProblem::BadText { element, value, expected: expected.into() })
    }

    /// An error at the element.
    pub(super) fn error(self, problem: SchemaProblem) -> SchemaError {
        self.error_at(self.0.range().start, problem)
    }

    /// An error at an attribute's value, or at the element if it lacks the attribute.
    pub(super) fn error_in(self, attribute: &str, problem: SchemaProblem) -> SchemaError {
        let start = self.0.attribute_node(attribute).map(|node| node.range_value().start);
        self.error_at(start.unwrap_or(self.0.range().start), problem)
    }

    fn error_at(self, byte: usize, problem: SchemaProblem) -> SchemaError {
        let position = self.0.document().text_pos_at(byte);
        SchemaError::at(position.row, position.col, problem)
    }
}

/// What a number's type can hold, for errors.
pub(super) trait Bound {
    const EXPECTED: &'static str;
}

impl Bound for u16 {
    const EXPECTED: &'static str = "a whole number from 0 to 65535";
}

impl Bound for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";
}
