//! Where a field lies, resolved once and used for every message: the seam between formats and what reads
//! them.
//!
//! SBE resolves a path to an offset when the schema is loaded. A format whose offsets differ from message to
//! message (Protobuf) yields the same [`Field`] over a table of offsets that one scan of the message fills.

use thiserror::Error;

use crate::names::nearest;
use crate::schema::{Block, Message};
use crate::types::{Field, Type};
use crate::view::{Record, Value, ViewError};
use crate::{Bytes, GroupView};

/// A located field, group or data.
#[derive(Clone, Debug)]
pub struct Location {
    /// Indexes of the groups it lies in, from the message's root inwards.
    pub groups: Vec<usize>,
    /// What was found.
    pub target: Target,
}

/// What a path names.
#[derive(Clone, Debug)]
pub enum Target {
    /// A field, or a member of a composite, with its offset from the begin of the block it lies in.
    Field(Field),
    /// The index of a group.
    Group(usize),
    /// The index of variable data.
    Data(usize),
}

/// What a visit of a location meets.
#[derive(Clone, Copy, Debug)]
pub enum Found<'s, 'b> {
    /// The value of a field.
    Value(Value<'b>),
    /// A group.
    Group(GroupView<'s, 'b>),
    /// Variable data; `None` if the writer did not know it.
    Data(Option<Bytes<'b>>),
}

/// A path names nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{within}\" has no \"{part}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
pub struct LocateError {
    /// The message, or the path up to the part that is not found.
    pub within: String,
    /// The part that is not found.
    pub part: String,
    /// Its position in the path, in bytes.
    pub position: usize,
    /// The name that is most like it.
    pub nearest: Option<String>,
}

impl Message {
    /// Finds what a path names: names of groups, fields and composites' members, joined by points.
    ///
    /// # Errors
    /// A part of the path is not found; the error has its position and the nearest name.
    pub fn locate(&self, path: &str) -> Result<Location, LocateError> {
        let (mut block, mut groups, mut position) = (&self.block, Vec::new(), 0);
        loop {
            let rest = &path[position..];
            let part = rest.split('.').next().unwrap_or(rest);
            let behind = (part.len() < rest.len()).then_some(position + part.len() + 1);
            if let Some(field) = block.field(part) {
                let target = Target::Field(member(self, path, field, behind)?);
                return Ok(Location { groups, target });
            }
            if let Some(index) = block.data(part) {
                return match behind {
                    None => Ok(Location { groups, target: Target::Data(index) }),
                    Some(next) => Err(self.missing(path, next, core::iter::empty())),
                };
            }
            let Some(index) = block.group(part) else {
                return Err(self.missing(path, position, names(block)));
            };
            let Some(next) = behind else { return Ok(Location { groups, target: Target::Group(index) }) };
            groups.push(index);
            block = &block.groups[index].block;
            position = next;
        }
    }

    fn missing<'a>(&self, path: &str, position: usize, names: impl Iterator<Item = &'a str>) -> LocateError {
        let rest = &path[position..];
        let part = rest.split('.').next().unwrap_or(rest);
        let within = if position == 0 { &*self.name } else { &path[..position - 1] };
        LocateError {
            within: within.to_owned(),
            part: part.to_owned(),
            position,
            nearest: nearest(part, names),
        }
    }
}

fn names(block: &Block) -> impl Iterator<Item = &str> {
    let fields = block.fields.iter().map(|field| &*field.name);
    let groups = block.groups.iter().map(|group| &*group.name);
    fields.chain(groups).chain(block.data.iter().map(|data| &*data.name))
}

/// The field itself, or the member of a composite that the path from `behind` on names.
fn member(
    message: &Message,
    path: &str,
    field: &Field,
    mut behind: Option<usize>,
) -> Result<Field, LocateError> {
    let begin = behind.map_or(path.len(), |behind| behind - 1) - field.name.len();
    let mut found = field.clone();
    while let Some(position) = behind {
        let rest = &path[position..];
        let part = rest.split('.').next().unwrap_or(rest);
        let Type::Composite(composite) = &found.kind else {
            return Err(message.missing(path, position, core::iter::empty()));
        };
        let Some(next) = composite.member(part) else {
            let names = composite.members.iter().map(|member| &*member.name);
            return Err(message.missing(path, position, names));
        };
        found = Field {
            name: path[begin..position + part.len()].into(),
            // A composite that the writer did not know has none of its members.
            since_version: found.since_version.max(next.since_version),
            offset: found.offset + next.offset,
            id: field.id,
            ..next.clone()
        };
        behind = (part.len() < rest.len()).then_some(position + part.len() + 1);
    }
    Ok(found)
}

impl Location {
    /// The field, if it lies in the root block: it then has one value in every message.
    #[must_use]
    pub fn root_field(&self) -> Option<&Field> {
        match &self.target {
            Target::Field(field) if self.groups.is_empty() => Some(field),
            _ => None,
        }
    }

    /// Visits what the location names in a message: once, or once for every entry of its groups. `visit`
    /// returns whether to go on.
    ///
    /// # Errors
    /// The first thing wrong on the way.
    pub fn visit<'v>(
        &'v self,
        record: &Record<'v, 'v>,
        visit: &mut dyn FnMut(Found<'v, 'v>) -> bool,
    ) -> Result<(), ViewError> {
        self.descend(record, &self.groups, visit).map(|_| ())
    }

    fn descend<'v>(
        &'v self,
        record: &Record<'v, 'v>,
        groups: &[usize],
        visit: &mut dyn FnMut(Found<'v, 'v>) -> bool,
    ) -> Result<bool, ViewError> {
        if let [first, rest @ ..] = groups {
            for entry in record.group(*first)?.iter() {
                if !self.descend(&entry?, rest, visit)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        Ok(visit(match &self.target {
            Target::Field(field) => Found::Value(record.fixed().value(field)?),
            Target::Group(index) => Found::Group(record.group(*index)?),
            Target::Data(index) => Found::Data(record.data(*index)?),
        }))
    }
}
