//! Types of a schema, resolved: every offset, length and null value is a number.

use std::sync::Arc;

use crate::primitive::{Primitive, Scalar};

/// Names are shared, so that errors and resolved fields carry them without copying.
pub type Name = Arc<str>;

/// Whether a field has a value in every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Presence {
    /// Always a value.
    #[default]
    Required,
    /// A value or null.
    Optional,
    /// The schema has the value; the message has no bytes of it.
    Constant,
}

/// How bytes are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    /// `US-ASCII`, also where a `char` type names no encoding.
    Ascii,
    /// `ISO-8859-1`: each byte is the character of that code.
    Latin1,
    /// `UTF-8`.
    Utf8,
}

/// A constant of the schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// A number, a character or the number of an enumeration's value.
    Scalar(Scalar),
    /// The characters of a `char` array.
    Text(Arc<[u8]>),
}

/// A number, character or array of them (`<type>`).
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The type's name.
    pub name: Name,
    /// Its primitive type.
    pub primitive: Primitive,
    /// Elements; 1 for a single value. 0 only in the variable part of a `data` encoding.
    pub length: u32,
    /// The type's own presence; a field's may override it.
    pub presence: Presence,
    /// The value that stands for null.
    pub null: Scalar,
    /// The least valid value, where the schema has one.
    pub min: Option<Scalar>,
    /// The greatest valid value, where the schema has one.
    pub max: Option<Scalar>,
    /// How bytes are text: of `char` always, of `uint8` if the schema says so.
    pub charset: Option<Charset>,
    /// The value, if the presence is constant.
    pub constant: Option<Constant>,
}

/// An enumeration.
#[derive(Debug)]
pub struct EnumType {
    /// The type's name.
    pub name: Name,
    /// The type of the numbers: `char` or an integer.
    pub primitive: Primitive,
    /// The number that stands for null.
    pub null: Scalar,
    /// The values as declared.
    pub values: Vec<EnumValue>,
    /// Indexes of `values`, in the order of their numbers.
    pub(crate) by_number: Vec<u16>,
}

/// One value of an enumeration.
#[derive(Debug)]
pub struct EnumValue {
    /// The value's name.
    pub name: Name,
    /// Its number.
    pub number: Scalar,
    /// The schema version that added it.
    pub since_version: u16,
}

/// A set of bits.
#[derive(Debug)]
pub struct SetType {
    /// The type's name.
    pub name: Name,
    /// An unsigned integer that holds the bits.
    pub primitive: Primitive,
    /// The choices as declared.
    pub choices: Vec<Choice>,
}

/// One bit of a set.
#[derive(Debug)]
pub struct Choice {
    /// The choice's name.
    pub name: Name,
    /// The bit's position; 0 is the least significant.
    pub bit: u8,
    /// The schema version that added it.
    pub since_version: u16,
}

/// A fixed sequence of members.
#[derive(Debug)]
pub struct Composite {
    /// The type's name.
    pub name: Name,
    /// The members, in order; their offsets count from the composite's begin.
    pub members: Vec<Field>,
    /// Bytes on the wire.
    pub length: u32,
    /// Values in it, those of nested composites included.
    pub(crate) leaves: u32,
}

/// The type of a field.
#[derive(Clone, Debug)]
pub enum Type {
    /// A number, character or array.
    Encoded(Arc<Encoded>),
    /// An enumeration.
    Enum(Arc<EnumType>),
    /// A set.
    Set(Arc<SetType>),
    /// A composite.
    Composite(Arc<Composite>),
}

/// A field at a fixed offset: of a message's root block, of a group's entry, or a member of a composite.
///
/// [`crate::Message::locate`] yields fields too: members of composites with their offset from the block's
/// begin.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name; of a located member of a composite, the path to it.
    pub name: Name,
    /// The id; members of composites have none.
    pub id: Option<u16>,
    /// Bytes from the begin of the block or composite.
    pub offset: u32,
    /// Whether it may be null.
    pub presence: Presence,
    /// The schema version that added it. Messages of earlier versions read as null.
    pub since_version: u16,
    /// The schema version that deprecated it.
    pub deprecated: Option<u16>,
    /// The type.
    pub kind: Type,
    /// The value, if the presence is constant.
    pub constant: Option<Constant>,
}

impl Type {
    /// The type's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        match self {
            Self::Encoded(encoded) => &encoded.name,
            Self::Enum(kind) => &kind.name,
            Self::Set(kind) => &kind.name,
            Self::Composite(kind) => &kind.name,
        }
    }

    /// Bytes on the wire of a value that is not constant.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self {
            Self::Encoded(encoded) => encoded.size(),
            Self::Enum(kind) => kind.primitive.size(),
            Self::Set(kind) => kind.primitive.size(),
            Self::Composite(kind) => kind.length,
        }
    }

    pub(crate) fn leaves(&self) -> u32 {
        match self {
            Self::Composite(composite) => composite.leaves,
            _ => 1,
        }
    }
}

impl Encoded {
    /// Bytes on the wire of a value that is not constant.
    #[must_use]
    pub fn size(&self) -> u32 {
        // At most 65535 elements of 8 bytes.
        self.length * self.primitive.size()
    }

    /// Whether values are arrays of numbers, or text.
    #[must_use]
    pub fn is_array(&self) -> bool {
        self.length != 1
    }
}

impl Field {
    /// Bytes on the wire; none of a constant.
    #[must_use]
    pub fn size(&self) -> u32 {
        if self.presence == Presence::Constant { 0 } else { self.kind.size() }
    }

    /// The offset behind the field.
    #[must_use]
    pub(crate) fn end(&self) -> u32 {
        self.offset.saturating_add(self.size())
    }

    /// The name's last part: of a located member of a composite, its own.
    #[must_use]
    pub fn own_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

impl EnumType {
    /// The value of that number.
    #[must_use]
    pub fn value(&self, number: Scalar) -> Option<&EnumValue> {
        let found = self.by_number.binary_search_by(|&index| {
            let value = self.values[usize::from(index)].number;
            value.compare(number).unwrap_or(core::cmp::Ordering::Less)
        });
        found.ok().map(|at| &self.values[usize::from(self.by_number[at])])
    }

    /// The value of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&EnumValue> {
        self.values.iter().find(|value| &*value.name == name)
    }
}

impl SetType {
    /// The bit of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Choice> {
        self.choices.iter().find(|choice| &*choice.name == name)
    }
}

impl Composite {
    /// The member of that name.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Field> {
        self.members.iter().find(|member| &*member.name == name)
    }
}
