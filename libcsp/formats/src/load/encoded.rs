//! `<type>`, `<enum>` and `<set>`.

use std::collections::HashSet;
use std::sync::Arc;

use super::child_limit;
use super::element::Element;
use super::problem::{SchemaError, SchemaProblem};
use super::types::Types;
use crate::primitive::{Primitive, Scalar};
use crate::schema::{BLOCK_LEN_MAX, MEMBERS_MAX};
use crate::types::{Charset, Choice, Constant, Encoded, EnumType, EnumValue, Presence, SetType, Type};

pub(super) fn encoded(element: Element<'_, '_>, types: &mut Types<'_, '_>) -> Result<Encoded, SchemaError> {
    let primitive = primitive(element, "primitiveType")?;
    let presence = element.presence()?.unwrap_or_default();
    let scalar = |attribute| match element.attribute(attribute) {
        None => Ok(None),
        Some(text) => match primitive.parse(text) {
            Some(value) => Ok(Some(value)),
            None => Err(element.bad(attribute, format!("a value of {}", primitive.name()))),
        },
    };
    let mut length = element.number("length", Some(1))?;
    let constant =
        if presence == Presence::Constant { Some(constant(element, primitive, types)?) } else { None };
    if let Some(Constant::Text(text)) = &constant {
        let shown = u32::try_from(text.len()).unwrap_or(u32::MAX);
        if element.attribute("length").is_some() && length < shown {
            return Err(element.bad("length", format!("at least {shown}, the length of the constant")));
        }
        length = shown;
    }
    let size = u64::from(length) * u64::from(primitive.size());
    if size > u64::from(BLOCK_LEN_MAX) {
        return Err(element.error(SchemaProblem::BlockTooLong { length: size, max: BLOCK_LEN_MAX }));
    }
    Ok(Encoded {
        name: element.symbol()?,
        primitive,
        length,
        presence,
        null: scalar("nullValue")?.unwrap_or(primitive.null()),
        min: scalar("minValue")?,
        max: scalar("maxValue")?,
        charset: charset(element, primitive)?,
        constant,
    })
}

fn primitive(element: Element<'_, '_>, attribute: &'static str) -> Result<Primitive, SchemaError> {
    Primitive::from_name(element.required(attribute)?).ok_or_else(|| {
        let names = Primitive::ALL.map(Primitive::name).join(", ");
        element.bad(attribute, format!("one of {names}"))
    })
}

fn charset(element: Element<'_, '_>, primitive: Primitive) -> Result<Option<Charset>, SchemaError> {
    let text = matches!(primitive, Primitive::Char | Primitive::UInt8);
    let Some(name) = element.attribute("characterEncoding").filter(|name| text && !name.is_empty()) else {
        return Ok((primitive == Primitive::Char).then_some(Charset::Ascii));
    };
    match name.to_ascii_uppercase().replace('_', "-").as_str() {
        "US-ASCII" | "ASCII" => Ok(Some(Charset::Ascii)),
        "ISO-8859-1" | "ISO8859-1" | "LATIN1" => Ok(Some(Charset::Latin1)),
        "UTF-8" | "UTF8" => Ok(Some(Charset::Utf8)),
        _ => Err(element.bad("characterEncoding", "US-ASCII, ISO-8859-1 or UTF-8")),
    }
}

/// The value of a constant type: by `valueRef`, or the element's text.
fn constant(
    element: Element<'_, '_>,
    primitive: Primitive,
    types: &mut Types<'_, '_>,
) -> Result<Constant, SchemaError> {
    if element.attribute("valueRef").is_some() {
        let (_, number) = types.value_ref(element)?;
        return match primitive.convert(number) {
            Some(number) => Ok(Constant::Scalar(number)),
            None => Err(element.bad("valueRef", format!("a value that {} holds", primitive.name()))),
        };
    }
    let text = element.text();
    if text.is_empty() {
        let name = element.attribute("name").unwrap_or_default().to_owned();
        return Err(element.error(SchemaProblem::NoConstant { name }));
    }
    let declared: u32 = element.number("length", Some(1))?;
    if primitive == Primitive::Char && (text.len() != 1 || declared > 1) {
        return Ok(Constant::Text(text.as_bytes().into()));
    }
    match primitive.parse(text) {
        Some(number) if declared == 1 => Ok(Constant::Scalar(number)),
        _ => Err(element.bad_text(format!("a value of {}", primitive.name()))),
    }
}

/// The primitive type and null value of an encodingType: a primitive, or a type of one.
fn encoding(
    element: Element<'_, '_>,
    types: &mut Types<'_, '_>,
    expected: &'static str,
    fits: fn(Primitive) -> bool,
) -> Result<(Primitive, Scalar), SchemaError> {
    let name = element.required("encodingType")?;
    match types.named(name, element, "encodingType")? {
        Type::Encoded(encoded)
            if fits(encoded.primitive) && !encoded.is_array() && encoded.presence != Presence::Constant =>
        {
            Ok((encoded.primitive, encoded.null))
        }
        _ => Err(element.bad("encodingType", expected)),
    }
}

pub(super) fn enumeration(
    element: Element<'_, '_>,
    types: &mut Types<'_, '_>,
) -> Result<EnumType, SchemaError> {
    let (primitive, null) =
        encoding(element, types, "char, an integer type, or a <type> of one", |primitive| {
            !matches!(primitive, Primitive::Float | Primitive::Double)
        })?;
    // The enumeration's own null value comes before that of its encoding, as sbe-tool has it.
    let null = match element.attribute("nullValue") {
        None => null,
        Some(text) => match primitive.parse(text) {
            Some(null) => null,
            None => return Err(element.bad("nullValue", format!("a value of {}", primitive.name()))),
        },
    };
    let children: Vec<_> = element.children().collect();
    child_limit(&children, MEMBERS_MAX, "values of an enumeration")?;
    let mut values = Vec::with_capacity(children.len());
    let mut names = HashSet::new();
    for child in children {
        child.expect("validValue")?;
        let name = child.symbol()?;
        let Some(number) = primitive.parse(child.text()).filter(|number| *number != null) else {
            return Err(child.bad_text(format!("a value of {} other than the null value", primitive.name())));
        };
        if !names.insert(name.clone()) {
            return Err(child.duplicate("validValue", "name", &name));
        }
        values.push(EnumValue { name, number, since_version: child.since(types.schema_version)? });
    }
    let mut by_number: Vec<u16> = (0..values.len() as u16).collect();
    let number = |index: u16| values[usize::from(index)].number;
    by_number
        .sort_by(|&left, &right| number(left).compare(number(right)).unwrap_or(core::cmp::Ordering::Equal));
    if let Some(pair) = by_number.windows(2).find(|pair| number(pair[0]) == number(pair[1])) {
        return Err(element.duplicate("validValue", "number", &number(pair[0]).to_string()));
    }
    Ok(EnumType { name: element.symbol()?, primitive, null, values, by_number })
}

pub(super) fn set(element: Element<'_, '_>, types: &mut Types<'_, '_>) -> Result<SetType, SchemaError> {
    let (primitive, _) = encoding(
        element,
        types,
        "uint8, uint16, uint32, uint64, or a <type> of one",
        Primitive::is_unsigned,
    )?;
    let bits = 8 * primitive.size();
    let mut choices: Vec<Choice> = Vec::new();
    for child in element.children() {
        child.expect("choice")?;
        let name = child.symbol()?;
        let bit = child.text().parse().ok().filter(|&bit| u32::from(bit) < bits);
        let bit: u8 = bit.ok_or_else(|| child.bad_text(format!("the number of a bit, 0 to {}", bits - 1)))?;
        if choices.iter().any(|choice| choice.bit == bit) {
            return Err(child.duplicate("choice", "bit", child.text()));
        }
        if choices.iter().any(|choice| choice.name == name) {
            return Err(child.duplicate("choice", "name", &name));
        }
        choices.push(Choice { name, bit, since_version: child.since(types.schema_version)? });
    }
    Ok(SetType { name: element.symbol()?, primitive, choices })
}

/// A primitive type under its own name.
pub(super) fn built_in(primitive: Primitive) -> Type {
    Type::Encoded(Arc::new(Encoded {
        name: primitive.name().into(),
        primitive,
        length: 1,
        presence: Presence::Required,
        null: primitive.null(),
        min: None,
        max: None,
        charset: (primitive == Primitive::Char).then_some(Charset::Ascii),
        constant: None,
    }))
}
