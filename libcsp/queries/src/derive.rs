//! The format of a query's result, as an SBE schema: for subscribers, and for what writes it.

use std::fmt::Write as _;
use std::sync::Arc;

use csp_formats::{
    Charset, Composite, Constant, Data, Encoded, EnumType, Field, Group, Presence, Primitive, Scalar, Schema,
    SetType, Slot, Type,
};

use crate::columns::Columns;
use crate::plan::{ColumnPlace, Kind, Output};

/// The name of the message of a derived format.
pub const ROW: &str = "Row";

/// The format of a query's result.
#[derive(Debug)]
pub struct Derived {
    /// The schema as XML.
    pub xml: String,
    /// The schema. It has one message, "Row".
    pub schema: Arc<Schema>,
    /// Of each output, its index among the fields, the groups or the data of the message.
    pub(crate) places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Field(usize),
    Group(usize),
    Data(usize),
}

/// Describes outputs. The error is that of the schema: a name that is none, or too long a row.
pub(crate) fn derive(outputs: &[Output], columns: &Columns, schema_id: u16) -> Result<Derived, String> {
    let mut writer = Writer { types: String::new(), next: 0, id: 0 };
    let (mut fields, mut groups, mut data) = (String::new(), String::new(), String::new());
    let (mut places, mut counts) = (Vec::with_capacity(outputs.len()), [0; 3]);
    for output in outputs {
        check_name(&output.name)?;
        let like = output.like.map(|column| &columns.columns[column]);
        let format = |column: &crate::plan::Column| &columns.sources[column.source];
        let place = match like.map(|column| (column, &column.place)) {
            Some((_, ColumnPlace::Field(field))) => {
                writer.field(&mut fields, &output.name, field);
                Place::Field(0)
            }
            Some((column, ColumnPlace::Data(index))) => {
                writer.data(&mut data, &output.name, &format(column).format().block.data[*index]);
                Place::Data(0)
            }
            Some((column, ColumnPlace::Group(index))) => {
                writer.group(&mut groups, &output.name, &format(column).format().block.groups[*index]);
                Place::Group(0)
            }
            None => {
                writer.computed(&mut fields, output)?;
                Place::Field(0)
            }
        };
        let (kind, make): (usize, fn(usize) -> Place) = match place {
            Place::Field(_) => (0, Place::Field),
            Place::Group(_) => (1, Place::Group),
            Place::Data(_) => (2, Place::Data),
        };
        places.push(make(counts[kind]));
        counts[kind] += 1;
    }
    let order = match columns.sources[0].schema.byte_order {
        csp_formats::ByteOrder::Little => "littleEndian",
        csp_formats::ByteOrder::Big => "bigEndian",
    };
    let xml = format!(
        "<sbe:messageSchema xmlns:sbe=\"http://fixprotocol.io/2016/sbe\" package=\"query\" id=\"{schema_id}\" \
         version=\"0\" byteOrder=\"{order}\">\n<types>\n{HEADER}{}</types>\n<sbe:message name=\"{ROW}\" id=\"1\">\n\
         {fields}{groups}{data}</sbe:message>\n</sbe:messageSchema>\n",
        writer.types
    );
    let schema = Schema::parse(&xml).map_err(|error| error.problem.to_string())?;
    Ok(Derived { xml, schema: Arc::new(schema), places })
}

const HEADER: &str = "<composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/><type \
    name=\"templateId\" primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/><type \
    name=\"version\" primitiveType=\"uint16\"/></composite>\n";

fn check_name(name: &str) -> Result<(), String> {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first
        && name.len() <= csp_formats::NAME_LEN_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Ok(());
    }
    Err(format!(
        "\"{name}\" is no name of a column: at most 64 letters, digits and underscores, no digit first"
    ))
}

struct Writer {
    types: String,
    next: u32,
    id: u32,
}

impl Writer {
    /// A name for a type. Fields' names are free, and types' names do not meet a primitive's.
    fn type_name(&mut self) -> String {
        self.next += 1;
        format!("T{}", self.next)
    }

    fn next_id(&mut self) -> u32 {
        self.id += 1;
        self.id
    }

    /// A field of the same type. A constant is a value of every row.
    fn field(&mut self, out: &mut String, name: &str, field: &Field) {
        let kind = self.type_name();
        let presence = nullable(field);
        let mut text = String::new();
        describe(&mut text, &kind, field, presence, &mut self.types);
        self.types.push_str(&text);
        let id = self.next_id();
        let _ = writeln!(
            out,
            "<field name=\"{name}\" id=\"{id}\" type=\"{kind}\" presence=\"{}\"/>",
            word(presence)
        );
    }

    /// A field of what an expression gives: it may always be null.
    fn computed(&mut self, out: &mut String, output: &Output) -> Result<(), String> {
        let kind = self.type_name();
        match &output.kind {
            Kind::Integer => {
                self.types +=
                    &format!("<type name=\"{kind}\" primitiveType=\"int64\" presence=\"optional\"/>\n")
            }
            Kind::Float => {
                self.types +=
                    &format!("<type name=\"{kind}\" primitiveType=\"double\" presence=\"optional\"/>\n")
            }
            Kind::Boolean => {
                let values =
                    "<validValue name=\"False\">0</validValue><validValue name=\"True\">1</validValue>";
                self.types += &format!("<enum name=\"{kind}\" encodingType=\"uint8\">{values}</enum>\n");
            }
            Kind::Text(text) => {
                // One character alone would be no text.
                let (length, encoding) = (output.text_len.max(2), charset(*text));
                self.types += &format!(
                    "<type name=\"{kind}\" primitiveType=\"char\" length=\"{length}\" presence=\"optional\"{encoding}/>\n"
                );
            }
            _ => return Err(format!("\"{}\" is a constant of type {}", output.name, output.kind.name())),
        }
        let id = self.next_id();
        let name = &output.name;
        let _ = writeln!(out, "<field name=\"{name}\" id=\"{id}\" type=\"{kind}\" presence=\"optional\"/>");
        Ok(())
    }

    fn data(&mut self, out: &mut String, name: &str, data: &Data) {
        let kind = self.type_name();
        let length = data.length.primitive.name();
        let charset = data.charset.map(charset).unwrap_or_default();
        self.types += &format!(
            "<composite name=\"{kind}\"><type name=\"length\" primitiveType=\"{length}\" maxValue=\"{}\"/><type \
             name=\"varData\" primitiveType=\"uint8\" length=\"0\"{charset}/></composite>\n",
            data.length_max
        );
        let id = self.next_id();
        let _ = writeln!(out, "<data name=\"{name}\" id=\"{id}\" type=\"{kind}\"/>");
    }

    fn group(&mut self, out: &mut String, name: &str, group: &Group) {
        let kind = self.type_name();
        let slot = |name: &str, slot: Slot| {
            format!("<type name=\"{name}\" primitiveType=\"{}\"/>", slot.primitive.name())
        };
        let length = slot("blockLength", Slot { primitive: Primitive::UInt16, offset: 0 });
        let count = slot("numInGroup", group.dimension.num_in_group);
        self.types += &format!("<composite name=\"{kind}\">{length}{count}</composite>\n");
        let id = self.next_id();
        let _ = writeln!(out, "<group name=\"{name}\" id=\"{id}\" dimensionType=\"{kind}\">");
        for field in group.block.fields.iter() {
            self.field(out, &field.name, field);
        }
        for inner in &group.block.groups {
            self.group(out, &inner.name, inner);
        }
        for data in &group.block.data {
            self.data(out, &data.name, data);
        }
        out.push_str("</group>\n");
    }
}

/// The presence in a derived format: what some writers of the source do not know may be null.
fn nullable(field: &Field) -> Presence {
    match field.presence {
        Presence::Required if field.since_version > 0 => Presence::Optional,
        Presence::Constant => Presence::Required,
        presence => presence,
    }
}

fn word(presence: Presence) -> &'static str {
    if presence == Presence::Optional { "optional" } else { "required" }
}

/// Writes a field's type under a name. Types that it needs go to `types`.
fn describe(out: &mut String, name: &str, field: &Field, presence: Presence, types: &mut String) {
    match &field.kind {
        Type::Encoded(encoded) => type_of(out, name, encoded, field, presence),
        Type::Enum(kind) => enumeration(out, name, kind, types),
        Type::Set(kind) => set(out, name, kind),
        Type::Composite(kind) => composite(out, name, kind, types),
    }
}

fn type_of(out: &mut String, name: &str, encoded: &Encoded, field: &Field, presence: Presence) {
    let length = match &field.constant {
        Some(Constant::Text(text)) => text.len() as u32,
        Some(Constant::Scalar(_)) => 1,
        None => encoded.length,
    };
    let primitive = encoded.primitive.name();
    let _ = write!(
        out,
        "<type name=\"{name}\" primitiveType=\"{primitive}\" length=\"{length}\" presence=\"{}\"",
        word(presence)
    );
    if !encoded.null.same(encoded.primitive.null()) && presence == Presence::Optional {
        let _ = write!(out, " nullValue=\"{}\"", number(encoded.null));
    }
    // Constants are text of an XML document.
    let text = if field.constant.is_some() && encoded.charset.is_some() {
        Some(Charset::Utf8)
    } else {
        encoded.charset
    };
    let _ = writeln!(out, "{}/>", text.map(charset).unwrap_or_default());
}

fn enumeration(out: &mut String, name: &str, kind: &EnumType, types: &mut String) {
    let primitive = kind.primitive.name();
    let encoding = if kind.null.same(kind.primitive.null()) {
        primitive.to_owned()
    } else {
        let null = number(kind.null);
        // The name of each type is taken once, and so is this.
        let encoding = format!("Null{}_{}", types.len(), out.len());
        let _ = writeln!(
            types,
            "<type name=\"{encoding}\" primitiveType=\"{primitive}\" presence=\"optional\" nullValue=\"{null}\"/>"
        );
        encoding
    };
    let _ = write!(out, "<enum name=\"{name}\" encodingType=\"{encoding}\">");
    for value in &kind.values {
        let _ = write!(out, "<validValue name=\"{}\">{}</validValue>", value.name, number(value.number));
    }
    out.push_str("</enum>\n");
}

fn set(out: &mut String, name: &str, kind: &SetType) {
    let _ = write!(out, "<set name=\"{name}\" encodingType=\"{}\">", kind.primitive.name());
    for choice in &kind.choices {
        let _ = write!(out, "<choice name=\"{}\">{}</choice>", choice.name, choice.bit);
    }
    out.push_str("</set>\n");
}

/// A composite with the same members; constants become values.
fn composite(out: &mut String, name: &str, kind: &Composite, types: &mut String) {
    let _ = write!(out, "<composite name=\"{name}\">");
    for member in &kind.members {
        describe(out, &member.name, member, nullable(member), types);
    }
    out.push_str("</composite>\n");
}

/// A scalar as schemas have it.
fn number(scalar: Scalar) -> String {
    match scalar {
        Scalar::Char(byte) if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        // Three digits: one alone would be a character.
        Scalar::Char(byte) => format!("{byte:03}"),
        Scalar::Float(number) => format!("{number:?}"),
        number => number.to_string(),
    }
}

fn charset(charset: Charset) -> String {
    let name = match charset {
        Charset::Ascii => "US-ASCII",
        Charset::Latin1 => "ISO-8859-1",
        Charset::Utf8 => "UTF-8",
    };
    format!(" characterEncoding=\"{name}\"")
}
