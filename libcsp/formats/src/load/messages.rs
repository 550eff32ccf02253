//! `<message>`, and the fields, groups and data in it.

use std::collections::HashSet;

use super::element::Element;
use super::problem::{SchemaError, SchemaProblem};
use super::types::{Layout, Types, fixed};
use super::{child_limit, composite, counts, slot};
use crate::primitive::Primitive;
use crate::schema::{
    BLOCK_LEN_MAX, Block, Data, Dimension, GROUP_DEPTH_MAX, Group, Header, MEMBERS_MAX, Message, Slot,
};
use crate::types::{Composite, Type};

pub(super) fn message(
    element: Element<'_, '_>,
    types: &mut Types<'_, '_>,
    header: &Header,
) -> Result<Message, SchemaError> {
    Ok(Message {
        name: element.symbol()?,
        id: element.number("id", None)?,
        since_version: element.since(types.schema_version)?,
        deprecated: element.optional_number("deprecated")?,
        block: block(element, types, header.block_length, 0)?,
    })
}

fn block(
    element: Element<'_, '_>,
    types: &mut Types<'_, '_>,
    length_slot: Slot,
    depth: usize,
) -> Result<Block, SchemaError> {
    let children: Vec<_> = element.children().collect();
    child_limit(&children, MEMBERS_MAX, "fields, groups and data of a block")?;
    let mut block = Block { length: 0, fields: Vec::new(), groups: Vec::new(), data: Vec::new() };
    let mut layout = Layout::default();
    let mut names = HashSet::new();
    for child in children {
        let name = child.symbol()?;
        if !names.insert(name.clone()) {
            return Err(child.duplicate(child.name(), "name", &name));
        }
        match child.name() {
            "field" if block.is_flat() => {
                let kind = types.named(child.required("type")?, child, "type")?;
                let kind = fixed(child, kind)?;
                block.fields.push(types.field(child, kind, Some(child.number("id", None)?), &mut layout)?);
            }
            "group" if block.data.is_empty() => block.groups.push(group(child, types, depth + 1)?),
            "data" => block.data.push(data(child, types)?),
            "field" => return Err(child.unexpected("group or data (fields come first)")),
            "group" => return Err(child.unexpected("data (groups come before it)")),
            _ => return Err(child.unexpected("field, group or data")),
        }
    }
    block.length = block_length(element, layout.end, length_slot)?;
    Ok(block)
}

/// The declared length, or that of the fields; at most what the slot can say.
fn block_length(element: Element<'_, '_>, least: u32, slot: Slot) -> Result<u32, SchemaError> {
    // The schema of FIX has 0 for "not given".
    let declared = element.optional_number("blockLength")?.filter(|&length| length != 0);
    let length = declared.unwrap_or(least);
    if length < least {
        return Err(element.error_in("blockLength", SchemaProblem::BlockLength { length, least }));
    }
    let max = if slot.primitive == Primitive::UInt8 { 254 } else { BLOCK_LEN_MAX };
    if length > max {
        let length = u64::from(length);
        return Err(element.error_in("blockLength", SchemaProblem::BlockTooLong { length, max }));
    }
    Ok(length)
}

fn group(element: Element<'_, '_>, types: &mut Types<'_, '_>, depth: usize) -> Result<Group, SchemaError> {
    if depth > GROUP_DEPTH_MAX {
        return Err(element.error(SchemaProblem::TooDeep { what: "groups", max: GROUP_DEPTH_MAX }));
    }
    let name = element.attribute("dimensionType").unwrap_or("groupSizeEncoding");
    let composite = composite(element, "dimensionType", name, types)?;
    let dimension = Dimension {
        length: composite.length,
        block_length: slot(element, "dimensionType", &composite, "blockLength")?,
        num_in_group: slot(element, "dimensionType", &composite, "numInGroup")?,
        counts: counts(element, "dimensionType", &composite)?,
    };
    Ok(Group {
        name: element.symbol()?,
        id: element.number("id", None)?,
        since_version: element.since(types.schema_version)?,
        deprecated: element.optional_number("deprecated")?,
        block: block(element, types, dimension.block_length, depth)?,
        dimension,
    })
}

fn data(element: Element<'_, '_>, types: &mut Types<'_, '_>) -> Result<Data, SchemaError> {
    let composite = composite(element, "type", element.required("type")?, types)?;
    let problem = SchemaProblem::NoData { composite: composite.name.clone() };
    let Some(charset) = var_data(&composite) else { return Err(element.error_in("type", problem)) };
    let length = slot(element, "type", &composite, "length")?;
    let limit = (1u64 << (8 * length.primitive.size())) - 1;
    let length_max = match composite.member("length").map(|member| &member.kind) {
        Some(Type::Encoded(encoded)) => encoded.max.and_then(|max| max.unsigned()).unwrap_or(limit - 1),
        _ => limit - 1,
    };
    Ok(Data {
        name: element.symbol()?,
        id: element.number("id", None)?,
        since_version: element.since(types.schema_version)?,
        deprecated: element.optional_number("deprecated")?,
        length,
        bytes_offset: composite.length,
        length_max,
        charset,
    })
}

/// How the variable part of an encoding is text; `None` if the composite has no such part.
fn var_data(composite: &Composite) -> Option<Option<crate::types::Charset>> {
    let last = composite.members.last().filter(|last| &*last.name == "varData")?;
    match &last.kind {
        Type::Encoded(encoded)
            if encoded.length == 0 && matches!(encoded.primitive, Primitive::Char | Primitive::UInt8) =>
        {
            Some(encoded.charset)
        }
        _ => None,
    }
}
