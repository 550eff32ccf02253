//! Values of fields.

use super::{WriteError, WriteProblem, Writer};
use crate::primitive::{ByteOrder, Primitive, Scalar};
use crate::types::{Constant, Encoded, EnumType, Field, Presence, SetType, Type};
use crate::view::{BlockView, Value};

impl Writer<'_, '_> {
    /// Sets a number, a character, an enumeration's number or a set's bits. Integers of any type are accepted
    /// where they fit.
    ///
    /// # Errors
    /// The number does not fit, is outside the schema's range, or stands for null; or the field is of another
    /// type.
    pub fn scalar(&mut self, field: &Field, number: impl Into<Scalar>) -> Result<(), WriteError> {
        let number = number.into();
        if let Some(constant) = &field.constant {
            return self.constant(field, *constant == Constant::Scalar(number));
        }
        let (primitive, number) = match &field.kind {
            Type::Encoded(encoded) if !encoded.is_array() => {
                (encoded.primitive, checked(field, encoded, number))
            }
            Type::Enum(kind) => (kind.primitive, enum_number(kind, number)),
            Type::Set(kind) => (kind.primitive, set_bits(kind, number)),
            Type::Encoded(_) => (Primitive::Char, Err(WriteProblem::WrongType { expected: "array" })),
            Type::Composite(_) => (Primitive::Char, Err(WriteProblem::WrongType { expected: "composite" })),
        };
        let number = number.map_err(|problem| WriteError::new(&field.name, problem))?;
        let order = self.order;
        put_word(self.room(field)?, 0, primitive, number, order);
        Ok(())
    }

    /// Sets null, in all members of a composite.
    ///
    /// # Errors
    /// The field is constant, or neither optional nor an enumeration nor a composite.
    pub fn null(&mut self, field: &Field) -> Result<(), WriteError> {
        let nullable =
            field.presence == Presence::Optional || matches!(field.kind, Type::Enum(_) | Type::Composite(_));
        if field.constant.is_some() || !nullable {
            return Err(WriteError::new(&field.name, WriteProblem::Required));
        }
        let order = self.order;
        let room = self.room(field)?;
        room.fill(0);
        // The room begins at the field.
        let optional = Field { offset: 0, presence: Presence::Optional, ..field.clone() };
        blank(room, &optional, order);
        Ok(())
    }

    /// Sets a `char` array; NUL fills what is left of it.
    ///
    /// # Errors
    /// The text is longer than the array, or the field is of another type.
    pub fn text(&mut self, field: &Field, text: &[u8]) -> Result<(), WriteError> {
        self.text_of(field, text.len(), text.iter().copied())
    }

    /// Sets an array of numbers. Missing ones are null if the field is optional, and zero otherwise.
    ///
    /// # Errors
    /// There are more numbers than elements, one does not fit, or the field is of another type.
    pub fn numbers(
        &mut self,
        field: &Field,
        numbers: impl IntoIterator<Item = Scalar>,
    ) -> Result<(), WriteError> {
        let fail = |problem| Err(WriteError::new(&field.name, problem));
        let encoded = match &field.kind {
            Type::Encoded(encoded) if encoded.is_array() && encoded.primitive != Primitive::Char => encoded,
            _ => return fail(WriteProblem::WrongType { expected: "array of numbers" }),
        };
        if field.constant.is_some() {
            return fail(WriteProblem::Constant);
        }
        let (order, primitive) = (self.order, encoded.primitive);
        let room = self.room(field)?;
        room.fill(0);
        blank(room, &Field { offset: 0, ..field.clone() }, order);
        for (index, number) in numbers.into_iter().enumerate() {
            if index >= encoded.length as usize {
                return fail(WriteProblem::TooLong { len: index + 1, max: u64::from(encoded.length) });
            }
            let Some(number) = primitive.convert(number) else {
                return fail(WriteProblem::OutOfRange { value: number });
            };
            put_word(room, index as u32 * primitive.size(), primitive, number, order);
        }
        Ok(())
    }

    /// Sets a number to that of a field of another message by its bytes. Returns whether that is possible:
    /// both are of one type and byte order, and its writer knew the field.
    ///
    /// # Errors
    /// The field does not lie in the current block.
    #[inline]
    pub fn copy(&mut self, field: &Field, block: &BlockView<'_>, from: &Field) -> Result<bool, WriteError> {
        let Some((word, size)) = block.same_bytes(from, field, self.order) else { return Ok(false) };
        self.room(field)?.copy_from_slice(&word[..size]);
        Ok(true)
    }

    /// Sets what was read from another message. Composites are copied member by member.
    ///
    /// # Errors
    /// The value is not of the field's type, or does not fit.
    pub fn put(&mut self, field: &Field, value: Value<'_>) -> Result<(), WriteError> {
        match value {
            Value::Null => self.null(field),
            Value::Scalar(number) | Value::Enum(number) => self.scalar(field, number),
            Value::Set(bits) => self.scalar(field, Scalar::UInt(bits)),
            Value::Text(bytes) => {
                let len = bytes.iter().take_while(|&byte| byte != 0).count();
                self.text_of(field, len, bytes.iter().take(len))
            }
            Value::Literal(text) => self.text(field, text),
            Value::Array(array) => match array.as_written(field, self.order) {
                Some(bytes) => {
                    let room = self.room(field)?;
                    let mut at = 0;
                    for part in bytes.parts() {
                        room[at..at + part.len()].copy_from_slice(part);
                        at += part.len();
                    }
                    Ok(())
                }
                None => self.numbers(field, array.iter()),
            },
            Value::Composite(_) => {
                Err(WriteError::new(&field.name, WriteProblem::WrongType { expected: "single value" }))
            }
        }
    }

    fn text_of(
        &mut self,
        field: &Field,
        len: usize,
        text: impl Iterator<Item = u8>,
    ) -> Result<(), WriteError> {
        if let Some(constant) = &field.constant {
            let same = matches!(constant, Constant::Text(value) if value.iter().copied().eq(text));
            return self.constant(field, same);
        }
        match &field.kind {
            Type::Encoded(encoded) if encoded.is_array() && encoded.primitive == Primitive::Char => (),
            _ => {
                return Err(WriteError::new(&field.name, WriteProblem::WrongType { expected: "char array" }));
            }
        }
        let max = u64::from(field.size());
        if len as u64 > max {
            return Err(WriteError::new(&field.name, WriteProblem::TooLong { len, max }));
        }
        let room = self.room(field)?;
        room.fill(0);
        room.iter_mut().zip(text).for_each(|(into, byte)| *into = byte);
        Ok(())
    }

    fn constant(&self, field: &Field, same: bool) -> Result<(), WriteError> {
        if same { Ok(()) } else { Err(WriteError::new(&field.name, WriteProblem::Constant)) }
    }

    /// The bytes of a field in the current block.
    fn room(&mut self, field: &Field) -> Result<&mut [u8], WriteError> {
        let frame = *self.record()?;
        if field.end() > frame.layout.length {
            return Err(WriteError::new(&field.name, WriteProblem::Outside));
        }
        // The block is written: its bytes lie in the buffer.
        let start = frame.start + field.offset as usize;
        Ok(&mut self.out[start..start + field.size() as usize])
    }
}

fn checked(field: &Field, encoded: &Encoded, number: Scalar) -> Result<Scalar, WriteProblem> {
    let Some(number) = encoded.primitive.convert(number) else {
        return Err(WriteProblem::OutOfRange { value: number });
    };
    if field.presence == Presence::Optional && number.same(encoded.null) {
        return Err(WriteProblem::StandsForNull { value: number });
    }
    let below = encoded.min.is_some_and(|min| number.compare(min).is_none_or(core::cmp::Ordering::is_lt));
    let above = encoded.max.is_some_and(|max| number.compare(max).is_none_or(core::cmp::Ordering::is_gt));
    if below || above {
        return Err(WriteProblem::OutOfRange { value: number });
    }
    Ok(number)
}

fn enum_number(kind: &EnumType, number: Scalar) -> Result<Scalar, WriteProblem> {
    match kind.primitive.convert(number) {
        Some(number) if number == kind.null => Err(WriteProblem::StandsForNull { value: number }),
        Some(number) => Ok(number),
        None => Err(WriteProblem::OutOfRange { value: number }),
    }
}

fn set_bits(kind: &SetType, bits: Scalar) -> Result<Scalar, WriteProblem> {
    kind.primitive.convert(bits).ok_or(WriteProblem::OutOfRange { value: bits })
}

/// Writes null into a zeroed block where a field, or a member of it, can be null.
pub(super) fn blank(block: &mut [u8], field: &Field, order: ByteOrder) {
    if field.constant.is_some() {
        return;
    }
    match &field.kind {
        Type::Enum(kind) => put_word(block, field.offset, kind.primitive, kind.null, order),
        Type::Encoded(encoded) if field.presence == Presence::Optional => {
            // Of text only the first character says whether it is null.
            let elements = if encoded.primitive == Primitive::Char { 1 } else { encoded.length };
            for index in 0..elements {
                let offset = field.offset + index * encoded.primitive.size();
                put_word(block, offset, encoded.primitive, encoded.null, order);
            }
        }
        Type::Composite(composite) => {
            let block = &mut block[field.offset as usize..];
            composite.members.iter().for_each(|member| blank(block, member, order));
        }
        Type::Encoded(_) | Type::Set(_) => (),
    }
}

/// Writes a number where its bytes lie; the caller has checked that they do.
#[inline]
pub(super) fn put_word(
    block: &mut [u8],
    offset: u32,
    primitive: Primitive,
    number: Scalar,
    order: ByteOrder,
) {
    let (offset, size) = (offset as usize, primitive.size() as usize);
    let word = primitive.encode(number, order);
    block[offset..offset + size].copy_from_slice(&word[..size]);
}

impl From<u64> for Scalar {
    fn from(number: u64) -> Self {
        Self::UInt(number)
    }
}

impl From<i64> for Scalar {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for Scalar {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}
