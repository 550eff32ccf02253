//! Messages as JSON.

use serde::Serialize;

use super::text::{BASE64_OPEN, Shown, base64, shown};
use super::{JsonError, JsonProblem, MESSAGE_MEMBER};
use crate::bytes::Bytes;
use crate::primitive::{Primitive, Scalar};
use crate::schema::Data;
use crate::types::{Charset, Encoded, EnumType, Field, Presence, SetType, Type};
use crate::view::{Array, BlockView, MessageView, Record, Value};

/// The greatest integer up to which all have a `double` of their own: what JSON numbers are to most readers.
pub(super) const EXACT_MAX: u64 = (1 << 53) - 1;

pub(super) struct Printer<'o> {
    out: &'o mut Vec<u8>,
    /// The length that `out` may reach.
    end: usize,
    len_max: usize,
}

impl<'o> Printer<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>, len_max: usize) -> Self {
        let end = out.len().saturating_add(len_max);
        Self { out, end, len_max }
    }

    pub(super) fn message(mut self, view: &MessageView<'_, '_>) -> Result<(), JsonError> {
        self.raw("{")?;
        self.json(MESSAGE_MEMBER)?;
        self.raw(":")?;
        self.json(&*view.message.name)?;
        self.record(view, true)?;
        self.raw("}")
    }

    /// The members of a record, each after a comma but for the first if there is none before it. Returns the
    /// bytes behind the record: each member begins where the one before it was found to end.
    fn record<'b>(
        &mut self,
        record: &Record<'_, 'b>,
        mut after_member: bool,
    ) -> Result<Bytes<'b>, JsonError> {
        let layout = record.layout();
        for field in &layout.fields {
            self.name(&field.name, &mut after_member)?;
            self.field(&record.fixed(), field)?;
        }
        let mut at = record.tail();
        for (index, group) in layout.groups.iter().enumerate() {
            self.name(&group.name, &mut after_member)?;
            let view = record.group_at(index, at)?;
            at = view.begin();
            self.raw("[")?;
            for (_, comma) in (0..view.count()).zip(commas()) {
                self.raw(comma)?;
                self.raw("{")?;
                at = self.record(&view.record(at)?, false)?;
                self.raw("}")?;
            }
            self.raw("]")?;
        }
        for (index, data) in layout.data.iter().enumerate() {
            self.name(&data.name, &mut after_member)?;
            let (bytes, behind) = record.data_at(index, at)?;
            self.data(data, bytes)?;
            at = behind;
        }
        Ok(at)
    }

    fn data(&mut self, data: &Data, bytes: Option<Bytes<'_>>) -> Result<(), JsonError> {
        let Some(bytes) = bytes else { return self.raw("null") };
        // Before the copy: Base64 and escapes only make it longer.
        if bytes.len() > self.end - self.out.len() {
            return Err(self.too_long());
        }
        let bytes: Vec<u8> = bytes.iter().collect();
        match data.charset {
            Some(charset) => self.text(bytes, charset),
            None => self.json(&base64(&bytes)),
        }
    }

    fn field(&mut self, block: &BlockView<'_>, field: &Field) -> Result<(), JsonError> {
        match (block.value(field)?, &field.kind) {
            (Value::Null, _) => self.raw("null"),
            (Value::Scalar(number), Type::Encoded(encoded)) => self.scalar(number, encoded),
            (Value::Enum(number), Type::Enum(kind)) => self.enumeration(number, kind),
            (Value::Set(bits), Type::Set(kind)) => self.set(bits, kind),
            (Value::Text(bytes), Type::Encoded(encoded)) => {
                let text = bytes.iter().take_while(|&byte| byte != 0).collect();
                self.text(text, encoded.charset.unwrap_or(Charset::Ascii))
            }
            (Value::Literal(text), Type::Encoded(encoded)) => {
                // Constants are text of an XML document, whatever their encoding.
                let text = core::str::from_utf8(text).map(str::to_owned);
                match text {
                    Ok(text) => self.json(&text),
                    Err(_) => self.text(Vec::new(), encoded.charset.unwrap_or(Charset::Ascii)),
                }
            }
            (Value::Array(array), Type::Encoded(encoded)) => self.array(array, encoded, field.presence),
            (Value::Composite(block), Type::Composite(composite)) => {
                self.raw("{")?;
                let mut after_member = false;
                for member in &composite.members {
                    self.name(&member.name, &mut after_member)?;
                    self.field(&block, member)?;
                }
                self.raw("}")
            }
            // The value follows from the type: no other pair exists.
            (Value::Scalar(number) | Value::Enum(number), _) => self.integer(number),
            _ => self.raw("null"),
        }
    }

    fn scalar(&mut self, number: Scalar, encoded: &Encoded) -> Result<(), JsonError> {
        match number {
            Scalar::Char(0) => self.json(""),
            Scalar::Char(byte) => self.text(vec![byte], encoded.charset.unwrap_or(Charset::Ascii)),
            Scalar::Float(number) if encoded.primitive == Primitive::Float => self.single(number as f32),
            Scalar::Float(number) => self.float(number),
            Scalar::Int(_) | Scalar::UInt(_) => self.integer(number),
        }
    }

    fn integer(&mut self, number: Scalar) -> Result<(), JsonError> {
        match number {
            Scalar::Int(number) if number.unsigned_abs() <= EXACT_MAX => self.json(&number),
            Scalar::UInt(number) if number <= EXACT_MAX => self.json(&number),
            Scalar::Char(byte) => self.json(&byte),
            _ => self.json(&number.to_string()),
        }
    }

    fn float(&mut self, number: f64) -> Result<(), JsonError> {
        if number.is_nan() {
            self.json("NaN")
        } else if number.is_infinite() {
            self.json(if number > 0.0 { "Infinity" } else { "-Infinity" })
        } else {
            self.json(&number)
        }
    }

    /// The shortest digits of a `float`, unless a reader of `double` would round them to another.
    fn single(&mut self, number: f32) -> Result<(), JsonError> {
        let read = number.to_string().parse::<f64>();
        if number.is_finite() && read.is_ok_and(|read| read as f32 == number) {
            self.json(&number)
        } else {
            self.float(f64::from(number))
        }
    }

    fn enumeration(&mut self, number: Scalar, kind: &EnumType) -> Result<(), JsonError> {
        match kind.value(number) {
            Some(value) => self.json(&*value.name),
            None => self.integer(number),
        }
    }

    fn set(&mut self, bits: u64, kind: &SetType) -> Result<(), JsonError> {
        let mut unknown = bits;
        let mut commas = commas();
        self.raw("[")?;
        for choice in kind.choices.iter().filter(|choice| bits >> choice.bit & 1 == 1) {
            unknown &= !(1 << choice.bit);
            self.raw(commas.next().unwrap_or_default())?;
            self.json(&*choice.name)?;
        }
        for bit in (0..64).filter(|bit| unknown >> bit & 1 == 1) {
            self.raw(commas.next().unwrap_or_default())?;
            self.json(&bit)?;
        }
        self.raw("]")
    }

    fn array(&mut self, array: Array<'_>, encoded: &Encoded, presence: Presence) -> Result<(), JsonError> {
        self.raw("[")?;
        for (number, comma) in array.iter().zip(commas()) {
            self.raw(comma)?;
            if presence == Presence::Optional && number.same(encoded.null) {
                self.raw("null")?;
            } else {
                self.scalar(number, encoded)?;
            }
        }
        self.raw("]")
    }

    fn text(&mut self, bytes: Vec<u8>, charset: Charset) -> Result<(), JsonError> {
        match shown(bytes, charset) {
            Shown::Text(text) => self.json(&text),
            Shown::Base64(text) => {
                self.raw(BASE64_OPEN)?;
                self.json(&text)?;
                self.raw("}")
            }
        }
    }

    fn name(&mut self, name: &str, after_member: &mut bool) -> Result<(), JsonError> {
        if core::mem::replace(after_member, true) {
            self.raw(",")?;
        }
        self.json(name)?;
        self.raw(":")
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JsonError> {
        serde_json::to_writer(&mut *self.out, value)
            .map_err(|error| JsonError::new(JsonProblem::Syntax(error.to_string())))?;
        self.within()
    }

    fn raw(&mut self, text: &str) -> Result<(), JsonError> {
        self.out.extend_from_slice(text.as_bytes());
        self.within()
    }

    fn within(&self) -> Result<(), JsonError> {
        if self.out.len() > self.end { Err(self.too_long()) } else { Ok(()) }
    }

    fn too_long(&self) -> JsonError {
        JsonError::new(JsonProblem::TooLong { max: self.len_max })
    }
}

/// What precedes the elements of a list.
fn commas() -> impl Iterator<Item = &'static str> {
    core::iter::once("").chain(core::iter::repeat(","))
}
