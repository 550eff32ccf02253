//! Messages rewritten member by member: what translating and anonymising share.
//!
//! A mapping is made once from two layouts. Members of composites are mapped by themselves, with their offset
//! in the block.

use csp_formats::{
    Block, Charset, Field, Presence, Primitive, Record, Scalar, Type, Value, WriteProblem, Writer,
};
use csp_queries::EmitError;

pub(crate) use crate::hide::Key;
use crate::hide::{HASH_LEN, Hide};

/// How the members of a block become those of another.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    pub fields: Vec<FieldMap>,
    pub groups: Vec<GroupMap>,
    pub data: Vec<DataMap>,
}

#[derive(Debug)]
pub(crate) struct FieldMap {
    pub to: Field,
    /// `None`: the source has no such field.
    pub from: Option<Field>,
    pub how: How,
    /// What stands for a value that is missing or null, where null cannot be said.
    pub default: Option<Default>,
}

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Default {
    Number(Scalar),
    Text(Vec<u8>),
}

/// What is done to a value.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// Nothing: numbers are converted where they are exact.
    Copy,
    /// Numbers of an enumeration's values, by their names.
    Enum(Vec<(Scalar, Scalar)>),
    /// Bits of a set's choices, by their names.
    Set(Vec<(u8, u8)>),
    Hide(Hide),
}

#[derive(Debug)]
pub(crate) struct GroupMap {
    pub to: usize,
    pub from: usize,
    pub entry: Mapping,
    pub dropped: bool,
}

#[derive(Debug)]
pub(crate) struct DataMap {
    pub to: usize,
    pub from: usize,
    pub hide: Option<Hide>,
}

/// The fields of a block that have a value of their own: members of composites in the place of composites.
pub(crate) fn leaves(fields: &[Field]) -> Vec<Field> {
    let mut all = Vec::new();
    fields.iter().for_each(|field| add_leaves(field, &mut all));
    all
}

fn add_leaves(field: &Field, all: &mut Vec<Field>) {
    let Type::Composite(composite) = &field.kind else { return all.push(field.clone()) };
    for member in &composite.members {
        let inner = Field {
            name: format!("{}.{}", field.name, member.name).into(),
            offset: field.offset + member.offset,
            since_version: field.since_version.max(member.since_version),
            ..member.clone()
        };
        add_leaves(&inner, all);
    }
}

impl Mapping {
    /// Maps members by their names; `Err` names what the target cannot say.
    pub fn by_name(
        from: &Block,
        to: &Block,
        defaults: &mut Vec<(String, Default)>,
    ) -> Result<Mapping, String> {
        let sources = leaves(&from.fields);
        let mut mapping = Mapping::default();
        for target in leaves(&to.fields) {
            let source = sources.iter().find(|source| source.name == target.name);
            let given = defaults.iter().position(|(path, _)| *path == *target.name);
            let default = given.map(|at| defaults[at].1.clone());
            let how = match source {
                Some(source) => convert(source, &target)?,
                None if target.constant.is_some() => continue,
                None if default.is_none() && !is_nullable(&target) => {
                    return Err(format!("\"{}\" is required, and the message has none", target.name));
                }
                None => How::Copy,
            };
            mapping.fields.push(FieldMap { from: source.cloned(), to: target, how, default });
        }
        for (index, target) in to.groups.iter().enumerate() {
            let Some(source) = from.group(&target.name) else { continue };
            let entry = Mapping::by_name(&from.groups[source].block, &target.block, defaults)
                .map_err(|error| format!("in group \"{}\": {error}", target.name))?;
            mapping.groups.push(GroupMap { to: index, from: source, entry, dropped: false });
        }
        for (index, target) in to.data.iter().enumerate() {
            let Some(source) = from.data(&target.name) else { continue };
            let (had, has) = (from.data[source].charset, target.charset);
            if !can_say(had, has) {
                return Err(format!("\"{}\" is in another encoding", target.name));
            }
            mapping.data.push(DataMap { to: index, from: source, hide: None });
        }
        Ok(mapping)
    }

    /// Maps each member to itself. Constants need no bytes.
    pub fn identity(block: &Block) -> Mapping {
        let fields = leaves(&block.fields).into_iter().filter(|field| field.constant.is_none());
        let field =
            |field: Field| FieldMap { from: Some(field.clone()), to: field, how: How::Copy, default: None };
        let group = |(index, group): (usize, &csp_formats::Group)| {
            let entry = Mapping::identity(&group.block);
            GroupMap { to: index, from: index, entry, dropped: false }
        };
        Mapping {
            fields: fields.map(field).collect(),
            groups: block.groups.iter().enumerate().map(group).collect(),
            data: (0..block.data.len()).map(|index| DataMap { to: index, from: index, hide: None }).collect(),
        }
    }

    /// Hides what a path names in an identity mapping of a block.
    pub fn hide(&mut self, block: &Block, path: &str, hide: Hide) -> Result<(), String> {
        if let Some((group, rest)) = path.split_once('.')
            && let Some(index) = block.group(group)
        {
            return self.groups[index].entry.hide(&block.groups[index].block, rest, hide);
        }
        if let Some(index) = block.group(path) {
            self.groups[index].dropped = true;
            let what =
                format!("\"{path}\" is a group: it can be dropped, and its fields hidden as {path}.field");
            return if hide == Hide::Drop { Ok(()) } else { Err(what) };
        }
        if let Some(index) = block.data(path) {
            if hide == Hide::Hash && block.data[index].length_max < HASH_LEN {
                return Err(format!("\"{path}\" has no room for {HASH_LEN} digits"));
            }
            self.data[index].hide = Some(hide);
            return Ok(());
        }
        let inner = format!("{path}.");
        let mut found = false;
        for map in &mut self.fields {
            if *map.to.name == *path || map.to.name.starts_with(&inner) {
                hide.check(&map.to)?;
                map.how = How::Hide(hide);
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        let own = self.fields.iter().map(|map| &*map.to.name);
        let groups = block.groups.iter().map(|group| &*group.name);
        let names: Vec<&str> = own.chain(groups).chain(block.data.iter().map(|data| &*data.name)).collect();
        let nearest = csp_formats::nearest(path, names.into_iter());
        let near = nearest.map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default();
        Err(format!("there is no column \"{path}\"{near}"))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The record is not valid, or has a value that the target cannot say.
    pub fn write(
        &self,
        record: &Record<'_, '_>,
        writer: &mut Writer<'_, '_>,
        hash: &Key,
    ) -> Result<(), EmitError> {
        let block = record.fixed();
        for map in &self.fields {
            let value = match &map.from {
                Some(from) => block.value(from)?,
                None => Value::Null,
            };
            map.put(value, writer, hash)?;
        }
        for map in self.groups.iter().filter(|map| !map.dropped) {
            let group = record.group(map.from)?;
            if group.count() == 0 {
                continue;
            }
            writer.begin_group(map.to)?;
            for entry in group.iter() {
                writer.entry()?;
                map.entry.write(&entry?, writer, hash)?;
            }
            writer.end_group()?;
        }
        for map in &self.data {
            let Some(bytes) = record.data(map.from)? else { continue };
            match &map.hide {
                None => writer.data(map.to, bytes.parts())?,
                Some(hide) => hide.data(map.to, bytes, writer, hash)?,
            }
        }
        Ok(())
    }
}

impl FieldMap {
    fn put(&self, value: Value<'_>, writer: &mut Writer<'_, '_>, hash: &Key) -> Result<(), EmitError> {
        let to = &self.to;
        if let How::Hide(hide) = &self.how {
            return hide.field(to, value, writer, hash);
        }
        if matches!(value, Value::Null) {
            return match &self.default {
                Some(Default::Number(number)) => Ok(writer.scalar(to, *number)?),
                Some(Default::Text(text)) => Ok(writer.text(to, text)?),
                // A set of which nothing is known has no bits.
                None if matches!(to.kind, Type::Set(_)) => Ok(()),
                None => Ok(writer.null(to)?),
            };
        }
        let cannot = |value: Scalar| {
            let problem = WriteProblem::OutOfRange { value };
            EmitError::Result(csp_formats::WriteError { field: to.name.clone(), problem })
        };
        match (&self.how, value) {
            (How::Enum(numbers), Value::Enum(number)) => {
                let found = numbers.iter().find(|(from, _)| *from == number);
                Ok(writer.scalar(to, found.ok_or_else(|| cannot(number))?.1)?)
            }
            (How::Set(choices), Value::Set(bits)) => {
                let mut left = bits;
                let mut said = 0u64;
                for (from, into) in choices {
                    if bits >> from & 1 == 1 {
                        left &= !(1 << from);
                        said |= 1 << into;
                    }
                }
                if left != 0 {
                    return Err(cannot(Scalar::UInt(left)));
                }
                Ok(writer.scalar(to, said)?)
            }
            (_, value) => Ok(writer.put(to, value)?),
        }
    }
}

fn is_nullable(field: &Field) -> bool {
    field.presence == Presence::Optional || matches!(field.kind, Type::Enum(_) | Type::Set(_))
}

/// Whether text in one encoding is text in another.
fn can_say(had: Option<Charset>, has: Option<Charset>) -> bool {
    had == has || (had == Some(Charset::Ascii) && has.is_some())
}

/// How values of a field become those of another.
fn convert(from: &Field, to: &Field) -> Result<How, String> {
    let wrong = |what: &str| Err(format!("\"{}\": {what}", to.name));
    match (&from.kind, &to.kind) {
        (Type::Enum(source), Type::Enum(target)) => {
            let numbers = source
                .values
                .iter()
                .filter_map(|value| Some((value.number, target.named(&value.name)?.number)));
            Ok(How::Enum(numbers.collect()))
        }
        (Type::Set(source), Type::Set(target)) => {
            let bits = source
                .choices
                .iter()
                .filter_map(|choice| Some((choice.bit, target.named(&choice.name)?.bit)));
            Ok(How::Set(bits.collect()))
        }
        (Type::Encoded(source), Type::Encoded(target)) => {
            let is_text = |primitive: Primitive| primitive == Primitive::Char;
            let is_float = |primitive: Primitive| matches!(primitive, Primitive::Float | Primitive::Double);
            let is_array = |field: &Field, length: u32| match &field.constant {
                Some(csp_formats::Constant::Text(_)) => true,
                Some(csp_formats::Constant::Scalar(_)) => false,
                None => length != 1,
            };
            if is_text(source.primitive) != is_text(target.primitive) {
                return wrong("text is no number");
            }
            if is_text(source.primitive) && !can_say(source.charset, target.charset) {
                return wrong("the text is in another encoding");
            }
            if is_array(from, source.length) != is_array(to, target.length) {
                return wrong("an array is no single value");
            }
            if is_float(source.primitive) && !is_float(target.primitive) {
                return wrong("a floating-point number is no whole one");
            }
            Ok(How::Copy)
        }
        _ => wrong("the types have nothing in common"),
    }
}
