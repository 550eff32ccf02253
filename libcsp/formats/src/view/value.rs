//! Values of fields.

use super::{BlockView, ViewError, ViewProblem};
use crate::bytes::Bytes;
use crate::primitive::{ByteOrder, Primitive, Scalar};
use crate::types::{Constant, Encoded, Field, Presence, Type};

/// A field's value. What it is called and which names its numbers have, the field says.
#[derive(Clone, Copy, Debug)]
pub enum Value<'v> {
    /// Null, or the writer did not know the field.
    Null,
    /// A number or a character.
    Scalar(Scalar),
    /// The number of an enumeration's value.
    Enum(Scalar),
    /// The bits of a set.
    Set(u64),
    /// The bytes of a `char` array, with what follows a NUL.
    Text(Bytes<'v>),
    /// The text of a constant `char` array.
    Literal(&'v [u8]),
    /// Numbers.
    Array(Array<'v>),
    /// A composite, whose members are read like fields of a block.
    Composite(BlockView<'v>),
}

/// An array of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Array<'b> {
    bytes: Bytes<'b>,
    primitive: Primitive,
    order: ByteOrder,
}

impl<'b> BlockView<'b> {
    /// The value of a field of this block: one of the layout's, or one that was located in it.
    ///
    /// # Errors
    /// The field lies outside the block, though the writer's version has it.
    #[inline]
    pub fn value<'v>(&self, field: &'v Field) -> Result<Value<'v>, ViewError>
    where
        'b: 'v,
    {
        if let Some(constant) = &field.constant {
            return Ok(match (constant, &field.kind) {
                (Constant::Text(text), _) => Value::Literal(text),
                (Constant::Scalar(scalar), Type::Enum(_)) => Value::Enum(*scalar),
                (Constant::Scalar(scalar), _) => Value::Scalar(*scalar),
            });
        }
        if field.since_version > self.version {
            return Ok(Value::Null);
        }
        match &field.kind {
            Type::Encoded(encoded) if encoded.is_array() => self.array(field, encoded),
            Type::Encoded(encoded) => {
                let scalar = self.scalar(field, encoded.primitive)?;
                let null = field.presence == Presence::Optional && scalar.same(encoded.null);
                Ok(if null { Value::Null } else { Value::Scalar(scalar) })
            }
            Type::Enum(kind) => {
                let scalar = self.scalar(field, kind.primitive)?;
                Ok(if scalar == kind.null { Value::Null } else { Value::Enum(scalar) })
            }
            Type::Set(kind) => {
                let bits = self.scalar(field, kind.primitive)?.unsigned();
                Ok(bits.map_or(Value::Null, Value::Set))
            }
            Type::Composite(_) => {
                let bytes = self.bytes(field)?;
                Ok(Value::Composite(BlockView { bytes, ..*self }))
            }
        }
    }

    /// The bytes of a number, as the first of a word, if they are the same value in a field of another block.
    #[inline]
    pub(crate) fn same_bytes(&self, from: &Field, to: &Field, order: ByteOrder) -> Option<([u8; 8], usize)> {
        let (Type::Encoded(source), Type::Encoded(target)) = (&from.kind, &to.kind) else { return None };
        let is_number = source.primitive == target.primitive && source.length == 1 && target.length == 1;
        let is_free = target.min.is_none() && target.max.is_none();
        let is_there = from.since_version <= self.version && from.constant.is_none() && to.constant.is_none();
        let nulls = from.presence == to.presence
            && (from.presence == Presence::Required || source.null.same(target.null));
        if !(is_number && is_free && is_there && nulls && order == self.order) {
            return None;
        }
        let size = source.primitive.size();
        Some((self.bytes.word(from.offset as usize, size)?, size as usize))
    }

    /// The bytes of a field.
    fn bytes(&self, field: &Field) -> Result<Bytes<'b>, ViewError> {
        let range = self.bytes.range(field.offset as usize, field.size() as usize);
        range.ok_or_else(|| self.too_short(field))
    }

    #[inline]
    fn scalar(&self, field: &Field, primitive: Primitive) -> Result<Scalar, ViewError> {
        match self.bytes.word(field.offset as usize, primitive.size()) {
            Some(word) => Ok(primitive.decode(word, self.order)),
            None => Err(self.too_short(field)),
        }
    }

    fn array<'v>(&self, field: &Field, encoded: &Encoded) -> Result<Value<'v>, ViewError>
    where
        'b: 'v,
    {
        let bytes = self.bytes(field)?;
        if encoded.primitive != Primitive::Char {
            return Ok(Value::Array(Array { bytes, primitive: encoded.primitive, order: self.order }));
        }
        let first = bytes.word(0, 1).map(|word| Scalar::Char(word[0]));
        let null = field.presence == Presence::Optional && first == Some(encoded.null);
        Ok(if null { Value::Null } else { Value::Text(bytes) })
    }

    #[cold]
    fn too_short(&self, field: &Field) -> ViewError {
        let problem = ViewProblem::BlockTooShort { end: field.end(), length: self.bytes.len() };
        ViewError::new(&field.name, problem)
    }
}

impl<'b> Array<'b> {
    /// The bytes, if a field of that type has as many of the same primitive type and order: they can be
    /// copied.
    pub(crate) fn as_written(&self, field: &Field, order: ByteOrder) -> Option<Bytes<'b>> {
        let Type::Encoded(encoded) = &field.kind else { return None };
        let same = encoded.primitive == self.primitive && order == self.order && field.constant.is_none();
        (same && encoded.is_array() && encoded.size() as usize == self.bytes.len()).then_some(self.bytes)
    }

    /// The numbers, in order. Nulls are numbers here.
    pub fn iter(self) -> impl Iterator<Item = Scalar> + use<'b> {
        let size = self.primitive.size();
        let count = self.bytes.len() / size as usize;
        (0..count).filter_map(move |index| {
            let word = self.bytes.word(index * size as usize, size)?;
            Some(self.primitive.decode(word, self.order))
        })
    }
}

impl Value<'_> {
    /// The value as a number, where it is one.
    #[must_use]
    pub fn number(&self) -> Option<Scalar> {
        match self {
            Value::Scalar(scalar) | Value::Enum(scalar) => Some(*scalar),
            Value::Set(bits) => Some(Scalar::UInt(*bits)),
            _ => None,
        }
    }
}
