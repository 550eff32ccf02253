//! The declared types of a schema, resolved when they are first named: XML may declare them in any order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::child_limit;
use super::element::Element;
use super::encoded::{built_in, encoded, enumeration, set};
use super::problem::{SchemaError, SchemaProblem};
use crate::names::nearest;
use crate::primitive::{Primitive, Scalar};
use crate::schema::{BLOCK_LEN_MAX, COMPOSITE_DEPTH_MAX, LEAVES_MAX, MEMBERS_MAX, TYPE_DEPTH_MAX, TYPES_MAX};
use crate::types::{Composite, Constant, Encoded, EnumType, Field, Name, Presence, Type};

pub(super) struct Types<'a, 'x> {
    pub(super) schema_version: u16,
    declared: HashMap<&'a str, Element<'a, 'x>>,
    order: Vec<&'a str>,
    resolved: HashMap<Name, Type>,
    /// Declared types that are being resolved, each within the one before it.
    active: Vec<&'a str>,
    /// Composites that are being read, each within the one before it; those within an element are not in
    /// `active`.
    depth: usize,
}

impl<'a, 'x> Types<'a, 'x> {
    pub(super) fn new(schema_version: u16) -> Self {
        Self {
            schema_version,
            declared: HashMap::new(),
            order: Vec::new(),
            resolved: HashMap::new(),
            active: Vec::new(),
            depth: 0,
        }
    }

    pub(super) fn declare(&mut self, element: Element<'a, 'x>) -> Result<(), SchemaError> {
        element.symbol()?;
        let name = element.required("name")?;
        if self.order.len() == TYPES_MAX {
            return Err(element.error(SchemaProblem::TooMany { what: "types", max: TYPES_MAX }));
        }
        if self.declared.insert(name, element).is_some() {
            return Err(element.duplicate("types", "name", name));
        }
        self.order.push(name);
        Ok(())
    }

    /// Resolves what no message names, too: a schema with an error in it is refused whole.
    pub(super) fn resolve_all(&mut self) -> Result<(), SchemaError> {
        for name in self.order.clone() {
            let element = self.declared[name];
            self.named(name, element, "name")?;
        }
        Ok(())
    }

    pub(super) fn into_resolved(self) -> HashMap<Name, Type> {
        self.resolved
    }

    /// The type that an attribute of `user` names.
    pub(super) fn named(
        &mut self,
        name: &str,
        user: Element<'_, '_>,
        attribute: &'static str,
    ) -> Result<Type, SchemaError> {
        if let Some(kind) = self.resolved.get(name) {
            return Ok(kind.clone());
        }
        let Some((&name, &element)) = self.declared.get_key_value(name) else {
            return Primitive::from_name(name).map(built_in).ok_or_else(|| {
                let nearest = nearest(name, self.order.iter().copied());
                user.error_in(attribute, SchemaProblem::UnknownType { name: name.to_owned(), nearest })
            });
        };
        // A type under a primitive's name may be made of that primitive.
        if let (true, Some(primitive)) = (self.active.contains(&name), Primitive::from_name(name)) {
            return Ok(built_in(primitive));
        }
        if self.active.contains(&name) {
            return Err(user.error_in(attribute, SchemaProblem::Cycle { name: name.to_owned() }));
        }
        // Each of them takes a part of the stack.
        if self.active.len() == TYPE_DEPTH_MAX {
            let problem = SchemaProblem::TooDeep { what: "types that name others", max: TYPE_DEPTH_MAX };
            return Err(user.error_in(attribute, problem));
        }
        self.active.push(name);
        let kind = self.read(element);
        self.active.pop();
        let kind = kind?;
        self.resolved.insert(name.into(), kind.clone());
        Ok(kind)
    }

    fn read(&mut self, element: Element<'_, '_>) -> Result<Type, SchemaError> {
        match element.name() {
            "type" => encoded(element, self).map(|kind| Type::Encoded(Arc::new(kind))),
            "enum" => enumeration(element, self).map(|kind| Type::Enum(Arc::new(kind))),
            "set" => set(element, self).map(|kind| Type::Set(Arc::new(kind))),
            "composite" => {
                if self.depth == COMPOSITE_DEPTH_MAX {
                    let max = COMPOSITE_DEPTH_MAX;
                    return Err(element.error(SchemaProblem::TooDeep { what: "composites", max }));
                }
                self.depth += 1;
                let kind = self.composite(element);
                self.depth -= 1;
                kind.map(|kind| Type::Composite(Arc::new(kind)))
            }
            _ => Err(element.unexpected("type, enum, set or composite")),
        }
    }

    fn composite(&mut self, element: Element<'_, '_>) -> Result<Composite, SchemaError> {
        let name = element.symbol()?;
        let children: Vec<_> = element.children().collect();
        child_limit(&children, MEMBERS_MAX, "members of a composite")?;
        let mut members: Vec<Field> = Vec::with_capacity(children.len());
        let mut layout = Layout::default();
        let mut names = HashSet::new();
        for child in children {
            if let Some(last) = members.last().filter(|last| is_variable(&last.kind)) {
                return Err(child.error(SchemaProblem::Variable { name: last.name.clone() }));
            }
            let kind = match child.name() {
                "ref" => {
                    let kind = self.named(child.required("type")?, child, "type")?;
                    fixed(child, kind)?
                }
                _ => var_data(child, self.read(child)?, &members),
            };
            let field = self.field(child, kind, None, &mut layout)?;
            if is_variable(&field.kind) && &*field.name != "varData" {
                return Err(child.error(SchemaProblem::Variable { name: field.name }));
            }
            if !names.insert(field.name.clone()) {
                return Err(child.duplicate(child.name(), "name", &field.name));
            }
            members.push(field);
        }
        Ok(Composite { name, members, length: layout.end, leaves: layout.leaves })
    }

    /// A field or a member at the next offset of a layout.
    pub(super) fn field(
        &mut self,
        element: Element<'_, '_>,
        kind: Type,
        id: Option<u16>,
        layout: &mut Layout,
    ) -> Result<Field, SchemaError> {
        let declared = match &kind {
            Type::Encoded(encoded) => encoded.presence,
            _ => Presence::Required,
        };
        let mut constant = match &kind {
            Type::Encoded(encoded) => encoded.constant.clone(),
            _ => None,
        };
        let presence = match constant {
            Some(_) => Presence::Constant,
            None => element.presence()?.unwrap_or(declared),
        };
        if presence == Presence::Constant && constant.is_none() {
            constant = Some(self.field_constant(element, &kind)?);
        }
        let mut field = Field {
            name: element.symbol()?,
            id,
            offset: 0,
            presence,
            since_version: element.since(self.schema_version)?,
            deprecated: element.optional_number("deprecated")?,
            kind,
            constant,
        };
        field.offset = layout.place(element, &field)?;
        Ok(field)
    }

    fn field_constant(&mut self, element: Element<'_, '_>, kind: &Type) -> Result<Constant, SchemaError> {
        if element.attribute("valueRef").is_none() {
            let name = element.attribute("name").unwrap_or_default().to_owned();
            return Err(element.error(SchemaProblem::NoConstant { name }));
        }
        let (of, number) = self.value_ref(element)?;
        let number = match kind {
            Type::Enum(kind) => (kind.name == of.name).then_some(number),
            Type::Encoded(encoded) if !encoded.is_array() => encoded.primitive.convert(number),
            _ => None,
        };
        number.map(Constant::Scalar).ok_or_else(|| element.bad("valueRef", "a value of the field's type"))
    }

    /// The enumeration and number that `valueRef` names.
    pub(super) fn value_ref(
        &mut self,
        element: Element<'_, '_>,
    ) -> Result<(Arc<EnumType>, Scalar), SchemaError> {
        let expected = "the name of an enumeration, a point, and the name of one of its values";
        let Some((kind, value)) = element.required("valueRef")?.split_once('.') else {
            return Err(element.bad("valueRef", expected));
        };
        let Type::Enum(kind) = self.named(kind, element, "valueRef")? else {
            return Err(element.bad("valueRef", expected));
        };
        match kind.named(value).map(|value| value.number) {
            Some(number) => Ok((kind, number)),
            None => {
                let near = nearest(value, kind.values.iter().map(|value| &*value.name));
                let near =
                    near.map(|near| format!("; the nearest is {}.{near}", kind.name)).unwrap_or_default();
                Err(element.bad("valueRef", format!("{expected}{near}")))
            }
        }
    }
}

/// The type of a composite's member. `varData` behind a `length` has any length, also where the schema does
/// not say `length="0"`.
fn var_data(element: Element<'_, '_>, kind: Type, before: &[Field]) -> Type {
    match kind {
        Type::Encoded(encoded)
            if &*encoded.name == "varData"
                && element.attribute("length").is_none()
                && encoded.constant.is_none()
                && before.iter().any(|member| &*member.name == "length") =>
        {
            Type::Encoded(Arc::new(Encoded { length: 0, ..(*encoded).clone() }))
        }
        kind => kind,
    }
}

/// Refuses types of variable length.
pub(super) fn fixed(element: Element<'_, '_>, kind: Type) -> Result<Type, SchemaError> {
    if is_variable(&kind) {
        return Err(element.error_in("type", SchemaProblem::Variable { name: kind.name().clone() }));
    }
    Ok(kind)
}

fn is_variable(kind: &Type) -> bool {
    match kind {
        Type::Encoded(encoded) => encoded.length == 0 && encoded.constant.is_none(),
        Type::Composite(composite) => composite.members.last().is_some_and(|last| is_variable(&last.kind)),
        _ => false,
    }
}

/// Where the next field of a block or composite goes.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) end: u32,
    pub(super) leaves: u32,
}

impl Layout {
    fn place(&mut self, element: Element<'_, '_>, field: &Field) -> Result<u32, SchemaError> {
        let offset = element.number("offset", Some(self.end))?;
        if field.presence == Presence::Constant {
            self.add_leaves(element, 1)?;
            return Ok(self.end);
        }
        if offset < self.end {
            return Err(element.error_in("offset", SchemaProblem::Offset { offset, least: self.end }));
        }
        let length = u64::from(offset) + u64::from(field.size());
        if length > u64::from(BLOCK_LEN_MAX) {
            return Err(element.error(SchemaProblem::BlockTooLong { length, max: BLOCK_LEN_MAX }));
        }
        self.end = length as u32;
        self.add_leaves(element, field.kind.leaves())?;
        Ok(offset)
    }

    fn add_leaves(&mut self, element: Element<'_, '_>, leaves: u32) -> Result<(), SchemaError> {
        self.leaves = self.leaves.saturating_add(leaves);
        if self.leaves > LEAVES_MAX {
            let max = LEAVES_MAX as usize;
            return Err(element.error(SchemaProblem::TooMany { what: "values in a block or composite", max }));
        }
        Ok(())
    }
}
