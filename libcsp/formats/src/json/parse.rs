//! JSON as messages.

use serde_json::{Map, Value as Json};

use super::text::bytes;
use super::{JsonError, JsonProblem, MESSAGE_MEMBER};
use crate::names::nearest;
use crate::primitive::{Primitive, Scalar};
use crate::schema::{Block, Data, Message, Schema};
use crate::types::{Charset, Constant, Encoded, EnumType, Field, Presence, SetType, Type};
use crate::writer::Writer;

type Members = Map<String, Json>;

/// The message that a JSON object names.
pub(super) fn message<'s, 'j>(
    schema: &'s Schema,
    value: &'j Json,
) -> Result<(&'s Message, &'j Members), JsonError> {
    let Json::Object(members) = value else { return Err(JsonError::expected("an object")) };
    let Some(Json::String(name)) = members.get(MESSAGE_MEMBER) else {
        return Err(JsonError::new(JsonProblem::Missing { name: MESSAGE_MEMBER.to_owned() }));
    };
    let found = schema.message(name).ok_or_else(|| {
        let near = nearest(name, schema.messages.iter().map(|message| &*message.name));
        let near = near.map(|near| format!("; the nearest to \"{name}\" is \"{near}\"")).unwrap_or_default();
        JsonError::expected(format!("the name of a message{near}")).within(MESSAGE_MEMBER)
    });
    Ok((found?, members))
}

pub(super) struct Parser<'s, 'o> {
    writer: Writer<'s, 'o>,
}

impl<'s, 'o> Parser<'s, 'o> {
    pub(super) fn new(writer: Writer<'s, 'o>) -> Self {
        Self { writer }
    }

    pub(super) fn message(mut self, members: &Members) -> Result<usize, JsonError> {
        self.record(members, true)?;
        Ok(self.writer.finish()?)
    }

    fn record(&mut self, members: &Members, root: bool) -> Result<(), JsonError> {
        let layout = self.writer.layout();
        let names: Vec<&str> = names(layout).collect();
        check_names(members, &names, root)?;
        for field in &layout.fields {
            self.member(field, 0, members)?;
        }
        for (index, group) in layout.groups.iter().enumerate() {
            match members.get(&*group.name) {
                None | Some(Json::Null) => (),
                Some(Json::Array(entries)) => self.group(index, entries, &group.name)?,
                Some(_) => return Err(JsonError::expected("a list of objects").within(&group.name)),
            }
        }
        for (index, data) in layout.data.iter().enumerate() {
            self.data(index, data, members.get(&*data.name)).map_err(|error| error.within(&data.name))?;
        }
        Ok(())
    }

    fn group(&mut self, index: usize, entries: &[Json], name: &str) -> Result<(), JsonError> {
        self.writer.begin_group(index)?;
        for (number, entry) in entries.iter().enumerate() {
            let at = |error: JsonError| error.within(&format!("[{number}]")).within(name);
            self.writer.entry().map_err(|error| at(error.into()))?;
            match entry {
                Json::Object(members) => self.record(members, false).map_err(at)?,
                _ => return Err(at(JsonError::expected("an object"))),
            }
        }
        Ok(self.writer.end_group()?)
    }

    fn data(&mut self, index: usize, data: &Data, value: Option<&Json>) -> Result<(), JsonError> {
        let bytes = match value {
            None | Some(Json::Null) => return Ok(()),
            Some(value) => bytes(value, data.charset)?,
        };
        Ok(self.writer.data(index, [&*bytes])?)
    }

    /// A field of a block, or a member of a composite that lies `base` bytes into the block.
    fn member(&mut self, field: &Field, base: u32, members: &Members) -> Result<(), JsonError> {
        let mut field = field.clone();
        field.offset += base;
        match members.get(&*field.name) {
            None if field.presence == Presence::Required && !matches!(field.kind, Type::Enum(_)) => {
                Err(JsonError::new(JsonProblem::Missing { name: field.name.to_string() }))
            }
            // The block has null there already.
            None | Some(Json::Null) if field.presence != Presence::Required => Ok(()),
            None => Ok(()),
            Some(value) => self.value(&field, value).map_err(|error| error.within(&field.name)),
        }
    }

    fn value(&mut self, field: &Field, value: &Json) -> Result<(), JsonError> {
        if value.is_null() {
            return Ok(self.writer.null(field)?);
        }
        match &field.kind {
            Type::Encoded(encoded) if encoded.is_array() && encoded.primitive == Primitive::Char => {
                self.text(field, encoded, value)
            }
            Type::Encoded(encoded) if encoded.is_array() => self.array(field, encoded, value),
            Type::Encoded(encoded) => Ok(self.writer.scalar(field, scalar(encoded, value)?)?),
            Type::Enum(kind) => Ok(self.writer.scalar(field, enumeration(kind, value)?)?),
            Type::Set(kind) => Ok(self.writer.scalar(field, set(kind, value)?)?),
            Type::Composite(composite) => {
                let Json::Object(members) = value else { return Err(JsonError::expected("an object")) };
                let names: Vec<&str> = composite.members.iter().map(|member| &*member.name).collect();
                check_names(members, &names, false)?;
                composite.members.iter().try_for_each(|member| self.member(member, field.offset, members))
            }
        }
    }

    fn text(&mut self, field: &Field, encoded: &Encoded, value: &Json) -> Result<(), JsonError> {
        // Constants are text of an XML document, whatever their encoding.
        let charset = if field.constant.is_some() { Some(Charset::Utf8) } else { encoded.charset };
        let bytes = bytes(value, charset)?;
        if field.constant.is_none() && bytes.contains(&0) {
            return Err(JsonError::expected("text without NUL, which would end it"));
        }
        Ok(self.writer.text(field, &bytes)?)
    }

    fn array(&mut self, field: &Field, encoded: &Encoded, value: &Json) -> Result<(), JsonError> {
        let Json::Array(elements) = value else { return Err(JsonError::expected("a list of numbers")) };
        let mut numbers = Vec::with_capacity(elements.len().min(encoded.length as usize + 1));
        for (index, element) in elements.iter().enumerate().take(encoded.length as usize + 1) {
            let null = element.is_null() && field.presence == Presence::Optional;
            let number = if null { Ok(encoded.null) } else { scalar(encoded, element) };
            numbers.push(number.map_err(|error| error.within(&format!("[{index}]")))?);
        }
        Ok(self.writer.numbers(field, numbers)?)
    }
}

fn names(layout: &Block) -> impl Iterator<Item = &str> {
    let fields = layout.fields.iter().map(|field| &*field.name);
    let groups = layout.groups.iter().map(|group| &*group.name);
    fields.chain(groups).chain(layout.data.iter().map(|data| &*data.name))
}

fn check_names(members: &Members, names: &[&str], root: bool) -> Result<(), JsonError> {
    let known: std::collections::HashSet<&str> = names.iter().copied().collect();
    let is_known = |name: &str| known.contains(name) || (root && name == MESSAGE_MEMBER);
    let unknown = members.keys().find(|name| !is_known(name));
    match unknown {
        None => Ok(()),
        Some(name) => {
            let nearest = nearest(name, names.iter().copied());
            Err(JsonError::new(JsonProblem::Unknown { name: name.clone(), nearest }))
        }
    }
}

fn scalar(encoded: &Encoded, value: &Json) -> Result<Scalar, JsonError> {
    match encoded.primitive {
        Primitive::Char => {
            // A constant may have a character that its encoding has not; it is compared, not encoded.
            match bytes(value, encoded.charset)?.as_slice() {
                [] => Ok(Scalar::Char(0)),
                [byte] => Ok(Scalar::Char(*byte)),
                _ => Err(JsonError::expected("text of one character")),
            }
        }
        Primitive::Float | Primitive::Double => {
            let number =
                float(value).ok_or_else(|| JsonError::expected("a number, \"NaN\" or \"Infinity\""))?;
            // Constants are compared with what the type can hold.
            let single = matches!(encoded.constant, Some(Constant::Scalar(_)))
                && encoded.primitive == Primitive::Float;
            Ok(Scalar::Float(if single { f64::from(number as f32) } else { number }))
        }
        primitive => integer(value, primitive),
    }
}

fn integer(value: &Json, primitive: Primitive) -> Result<Scalar, JsonError> {
    let number = match value {
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Some(Scalar::UInt(number)),
            (None, Some(number)) => Some(Scalar::Int(number)),
            (None, None) => None,
        },
        Json::String(text) => text.parse().map(Scalar::UInt).or_else(|_| text.parse().map(Scalar::Int)).ok(),
        _ => None,
    };
    let converted = number.and_then(|number| match (primitive, number) {
        (Primitive::Char, number) => {
            number.unsigned().and_then(|code| u8::try_from(code).ok()).map(Scalar::Char)
        }
        _ => primitive.convert(number),
    });
    converted.ok_or_else(|| JsonError::expected(format!("a whole number that {} holds", primitive.name())))
}

fn float(value: &Json) -> Option<f64> {
    match value {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn enumeration(kind: &EnumType, value: &Json) -> Result<Scalar, JsonError> {
    let Json::String(name) = value else { return integer(value, kind.primitive) };
    if let Some(value) = kind.named(name) {
        return Ok(value.number);
    }
    // A number that is too great for JSON is text.
    integer(value, kind.primitive).map_err(|_| {
        let near = nearest(name, kind.values.iter().map(|value| &*value.name));
        let near = near.map(|near| format!("; the nearest is \"{near}\"")).unwrap_or_default();
        JsonError::expected(format!("a value of {}{near}", kind.name))
    })
}

fn set(kind: &SetType, value: &Json) -> Result<Scalar, JsonError> {
    let Json::Array(names) = value else { return Err(JsonError::expected("a list of choices")) };
    let mut bits = 0u64;
    for name in names {
        let bit = match name {
            Json::String(name) => kind.named(name).map(|choice| u64::from(choice.bit)),
            name => name.as_u64().filter(|&bit| bit < u64::from(8 * kind.primitive.size())),
        };
        let Some(bit) = bit else {
            let names: Vec<&str> = kind.choices.iter().map(|choice| &*choice.name).collect();
            return Err(JsonError::expected(format!("choices of {}: {}", kind.name, names.join(", "))));
        };
        bits |= 1 << bit;
    }
    Ok(Scalar::UInt(bits))
}
