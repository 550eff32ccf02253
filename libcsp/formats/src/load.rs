//! Reads a schema from XML (SBE 1.0, "XML Message Schema"). What is wrong is reported with its line and
//! column.

mod element;
mod encoded;
mod messages;
mod problem;
mod types;

use std::collections::HashMap;

use roxmltree::{Document, ParsingOptions};

use crate::primitive::ByteOrder;
use crate::schema::{
    Counts, ELEMENT_DEPTH_MAX, Header, MESSAGES_MAX, NODES_MAX, SCHEMA_LEN_MAX, Schema, Slot,
};
use crate::types::{Composite, Name, Presence, Type};
use element::Element;
pub use problem::{SchemaError, SchemaProblem};
use types::Types;

impl Schema {
    /// Parses a schema.
    ///
    /// # Errors
    /// The first thing that is wrong, with its position and what would be right.
    pub fn parse(xml: &str) -> Result<Self, SchemaError> {
        if xml.len() > SCHEMA_LEN_MAX {
            return Err(SchemaError::at(
                1,
                1,
                SchemaProblem::TooLong { len: xml.len(), max: SCHEMA_LEN_MAX },
            ));
        }
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
        let document = Document::parse_with_options(xml, options).map_err(|error| {
            let position = error.pos();
            SchemaError::at(position.row, position.col, SchemaProblem::Xml(error.to_string()))
        })?;
        check_depth(&document)?;
        schema(Element(document.root_element()))
    }
}

/// Elements are visited by recursion later; this visit has none.
fn check_depth(document: &Document<'_>) -> Result<(), SchemaError> {
    let mut depths = HashMap::new();
    for node in document.descendants() {
        let depth = node
            .parent()
            .and_then(|parent| depths.get(&parent.id()).copied())
            .map_or(0, |above: usize| above + 1);
        if depth > ELEMENT_DEPTH_MAX {
            return Err(
                Element(node).error(SchemaProblem::TooDeep { what: "elements", max: ELEMENT_DEPTH_MAX })
            );
        }
        depths.insert(node.id(), depth);
    }
    Ok(())
}

fn schema(root: Element<'_, '_>) -> Result<Schema, SchemaError> {
    root.expect("messageSchema")?;
    let byte_order = match root.attribute("byteOrder") {
        None | Some("littleEndian") => ByteOrder::Little,
        Some("bigEndian") => ByteOrder::Big,
        Some(_) => return Err(root.bad("byteOrder", "littleEndian or bigEndian")),
    };
    let id = root.number("id", None)?;
    let version = root.number("version", Some(0))?;
    let mut types = Types::new(version);
    let mut messages = Vec::new();
    for child in root.children() {
        match child.name() {
            "types" => {
                for kind in child.children() {
                    types.declare(kind)?;
                }
            }
            "message" => messages.push(child),
            _ => return Err(child.unexpected("types or message")),
        }
    }
    child_limit(&messages, MESSAGES_MAX, "messages")?;
    types.resolve_all()?;
    let header = header(root, &mut types)?;
    let mut schema = Schema {
        package: root.attribute("package").unwrap_or_default().into(),
        id,
        version,
        semantic_version: root.attribute("semanticVersion").map(Name::from),
        byte_order,
        header,
        messages: Vec::with_capacity(messages.len()),
        by_id: Vec::new(),
        types: HashMap::new(),
    };
    for message in messages {
        add_message(message, &mut schema, &mut types)?;
    }
    schema.types = types.into_resolved();
    Ok(schema)
}

fn add_message(
    element: Element<'_, '_>,
    schema: &mut Schema,
    types: &mut Types<'_, '_>,
) -> Result<(), SchemaError> {
    let message = messages::message(element, types, &schema.header)?;
    if schema.message(&message.name).is_some() {
        return Err(element.duplicate("message", "name", &message.name));
    }
    match schema.by_id.binary_search_by_key(&message.id, |&(id, _)| id) {
        Ok(_) => return Err(element.duplicate("message", "id", &message.id.to_string())),
        Err(at) => schema.by_id.insert(at, (message.id, schema.messages.len() as u16)),
    }
    schema.messages.push(message);
    Ok(())
}

fn child_limit(children: &[Element<'_, '_>], max: usize, what: &'static str) -> Result<(), SchemaError> {
    match children.get(max) {
        Some(child) => Err(child.error(SchemaProblem::TooMany { what, max })),
        None => Ok(()),
    }
}

fn header(root: Element<'_, '_>, types: &mut Types<'_, '_>) -> Result<Header, SchemaError> {
    let name = root.attribute("headerType").unwrap_or("messageHeader");
    let composite = composite(root, "headerType", name, types)?;
    let slot = |part| slot(root, "headerType", &composite, part);
    Ok(Header {
        length: composite.length,
        block_length: slot("blockLength")?,
        template_id: slot("templateId")?,
        schema_id: slot("schemaId")?,
        version: slot("version")?,
        counts: counts(root, "headerType", &composite)?,
    })
}

/// The composite that an attribute names.
fn composite(
    element: Element<'_, '_>,
    attribute: &'static str,
    name: &str,
    types: &mut Types<'_, '_>,
) -> Result<std::sync::Arc<Composite>, SchemaError> {
    match types.named(name, element, attribute)? {
        Type::Composite(composite) => Ok(composite),
        _ => Err(element.bad(attribute, "the name of a composite")),
    }
}

/// The place of a number in a header.
fn slot(
    element: Element<'_, '_>,
    attribute: &'static str,
    composite: &Composite,
    part: &'static str,
) -> Result<Slot, SchemaError> {
    let problem = SchemaProblem::HeaderPart { composite: composite.name.clone(), part };
    let Some(field) = composite.member(part) else { return Err(element.error_in(attribute, problem)) };
    match &field.kind {
        Type::Encoded(encoded)
            if encoded.primitive.is_unsigned()
                && encoded.primitive.size() <= 4
                && !encoded.is_array()
                && field.presence != Presence::Constant =>
        {
            Ok(Slot { offset: field.offset, primitive: encoded.primitive })
        }
        _ => Err(element.error_in(attribute, problem)),
    }
}

fn counts(
    element: Element<'_, '_>,
    attribute: &'static str,
    composite: &Composite,
) -> Result<Counts, SchemaError> {
    let optional = |part| match composite.member(part) {
        Some(_) => slot(element, attribute, composite, part).map(Some),
        None => Ok(None),
    };
    Ok(Counts { groups: optional("numGroups")?, data: optional("numVarDataFields")? })
}

const _: () = assert!(MESSAGES_MAX <= u16::MAX as usize);
