//! Random formats, queries over them, and messages, for tests that compare one way of computing results with
//! another.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fmt::Write as _;
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_queries::Catalog;
use csp_support::Random;

const VERSION: u64 = 2;
const INTEGERS: [&str; 8] = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"];

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    Number,
    Text,
    Enum,
    Set,
    Other,
}

/// A format of random fields, and the paths that expressions can use.
pub struct Format {
    pub schema: Arc<Schema>,
    pub columns: Vec<(String, Kind)>,
}

pub fn pick<'a, T: ?Sized>(random: &mut Random, all: &[&'a T]) -> &'a T {
    all[random.below(all.len() as u64) as usize]
}

pub fn header(random: &mut Random) -> String {
    let mut fields = ["blockLength", "templateId", "schemaId", "version"];
    let odd = random.below(3) == 0;
    if odd {
        fields.swap(random.below(4) as usize, random.below(4) as usize);
    }
    let mut text = "<composite name=\"messageHeader\">".to_owned();
    for field in fields {
        let kind = if odd { pick(random, &["uint16", "uint32"]) } else { "uint16" };
        let _ = write!(text, "<type name=\"{field}\" primitiveType=\"{kind}\"/>");
    }
    text + "</composite>"
}

/// The type of a field with its presence in the message, and what it is in expressions.
pub fn field_type(random: &mut Random, name: &str) -> (String, &'static str, Kind) {
    let optional = random.below(2) == 0;
    let presence = if optional { "optional" } else { "required" };
    let plain = |primitive: &str, more: &str| {
        format!("<type name=\"{name}\" primitiveType=\"{primitive}\" presence=\"{presence}\"{more}/>")
    };
    match random.below(10) {
        0..=2 => {
            let null = if optional && random.below(2) == 0 { " nullValue=\"1\"" } else { "" };
            (plain(pick(random, &INTEGERS), null), presence, Kind::Number)
        }
        3 => {
            let null = if optional && random.below(2) == 0 { " nullValue=\"0\"" } else { "" };
            (plain(pick(random, &["float", "double"]), null), presence, Kind::Number)
        }
        4 | 5 => {
            let null = if optional && random.below(3) == 0 { " nullValue=\"X\"" } else { "" };
            (plain("char", &format!(" length=\"{}\"{null}", 1 + random.below(11))), presence, Kind::Text)
        }
        6 => {
            let encoding = pick(random, &["char", "uint8"]);
            let values = "<validValue name=\"One\">1</validValue><validValue name=\"Two\">2</validValue>";
            (
                format!("<enum name=\"{name}\" encodingType=\"{encoding}\">{values}</enum>"),
                "required",
                Kind::Enum,
            )
        }
        7 => {
            let encoding = pick(random, &["uint8", "uint16", "uint32", "uint64"]);
            let choices = "<choice name=\"low\">0</choice><choice name=\"high\">7</choice>";
            (
                format!("<set name=\"{name}\" encodingType=\"{encoding}\">{choices}</set>"),
                "required",
                Kind::Set,
            )
        }
        8 => {
            let more = pick(random, &["", " sinceVersion=\"1\""]);
            (
                format!(
                    "<composite name=\"{name}\"><type name=\"part\" primitiveType=\"int32\" presence=\"{presence}\"/>\
                     <type name=\"text\" primitiveType=\"char\" length=\"5\"{more}/>\
                     <type name=\"fix\" primitiveType=\"int8\" presence=\"constant\">-2</type></composite>"
                ),
                "required",
                Kind::Other,
            )
        }
        _ => match random.below(3) {
            0 => (plain("uint16", " length=\"3\""), presence, Kind::Other),
            1 => (
                format!("<type name=\"{name}\" primitiveType=\"uint16\" presence=\"constant\">180</type>"),
                "constant",
                Kind::Number,
            ),
            _ => (
                format!("<type name=\"{name}\" primitiveType=\"char\" presence=\"constant\">AB</type>"),
                "constant",
                Kind::Text,
            ),
        },
    }
}

pub fn format(random: &mut Random, id: u64) -> Format {
    let (mut types, mut fields) = (header(random), String::new());
    let mut columns = vec![("k".to_owned(), Kind::Number)];
    fields += "<field name=\"k\" id=\"1\" type=\"int32\"/>";
    let mut since = 0;
    for at in 0..2 + random.below(7) {
        let (name, kind_name) = (format!("f{at}"), format!("T{at}"));
        let (text, presence, kind) = field_type(random, &kind_name);
        types += &text;
        if random.below(6) == 0 {
            since = (since + 1).min(VERSION);
        }
        let _ = write!(
            fields,
            "<field name=\"{name}\" id=\"{}\" type=\"{kind_name}\" presence=\"{presence}\" sinceVersion=\"{since}\"/>",
            at + 2
        );
        if text.starts_with("<composite") {
            columns.push((format!("{name}.part"), Kind::Number));
            columns.push((format!("{name}.text"), Kind::Text));
            columns.push((format!("{name}.fix"), Kind::Number));
        }
        columns.push((name, kind));
    }
    let order = pick(random, &["littleEndian", "bigEndian"]);
    let xml = format!(
        "<messageSchema id=\"{id}\" version=\"{VERSION}\" byteOrder=\"{order}\"><types>{types}</types>\
         <message name=\"M\" id=\"1\">{fields}</message><message name=\"N\" id=\"2\">{fields}</message></messageSchema>"
    );
    let schema = Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
    Format { schema: Arc::new(schema), columns }
}

/// A message whose header is mostly right, with bytes that are often those of nulls and NULs.
pub fn message(random: &mut Random, schema: &Schema) -> Vec<u8> {
    let (header, block) = (&schema.header, &schema.messages[0].block);
    let odd = random.below(3) == 0;
    let more = if odd { random.below(24) as i64 - 12 } else { 0 };
    let length = (i64::from(block.length) + more).max(0) as u64;
    let version = if odd { random.below(VERSION + 2) } else { VERSION };
    let (template, id) = if random.below(30) == 0 { (2, 7) } else { (1, u64::from(schema.id)) };
    let mut bytes = vec![0; header.length as usize];
    for (slot, number) in [
        (header.block_length, length),
        (header.template_id, template),
        (header.schema_id, id),
        (header.version, version),
    ] {
        let (at, size) = (slot.offset as usize, slot.primitive.size() as usize);
        let into = &mut bytes[at..at + size];
        into.copy_from_slice(&number.to_le_bytes()[..size]);
        if schema.byte_order == csp_formats::ByteOrder::Big {
            into.reverse();
        }
    }
    let mut repeat = 0;
    let mut byte = 0;
    for _ in 0..length {
        if repeat == 0 {
            repeat = 1 + random.below(8);
            byte = [0, 0, 1, 2, b'A', b'B', b'X', 0x7f, 0x80, 0xff, random.number() as u8]
                [random.below(11) as usize];
        }
        repeat -= 1;
        bytes.push(byte);
    }
    if random.below(10) == 0 {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    bytes
}

pub struct Channels(pub [Arc<Schema>; 2]);

impl Catalog for Channels {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        let at = ["a", "b"].iter().position(|name| *name == channel)?;
        Some((self.0[at].clone(), "M".into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }
}

pub struct Expressions<'r> {
    pub random: &'r mut Random,
    pub columns: Vec<(String, Kind)>,
    /// Whether CASE, COALESCE, ABS and CAST are among them.
    pub functions: bool,
}

impl Expressions<'_> {
    /// A number by a function.
    fn function(&mut self, depth: u32) -> String {
        match self.random.below(5) {
            0 => format!("ABS({})", self.number(depth - 1)),
            1 => format!("COALESCE({}, {})", self.number(depth - 1), self.number(depth - 1)),
            2 => {
                let to = pick(self.random, &["BIGINT", "DOUBLE"]);
                format!("CAST({} AS {to})", self.number(depth - 1))
            }
            3 => format!("CAST({} AS BIGINT)", self.truth(depth - 1)),
            _ => {
                let (condition, value) = (self.truth(depth - 1), self.number(depth - 1));
                format!("CASE WHEN {condition} THEN {value} ELSE {} END", self.number(depth - 1))
            }
        }
    }

    fn column(&mut self, kind: Kind) -> Option<String> {
        let fitting: Vec<_> = self.columns.iter().filter(|column| column.1 == kind).collect();
        let at = self.random.below(fitting.len().max(1) as u64) as usize;
        fitting.get(at).map(|column| column.0.clone())
    }

    pub fn number(&mut self, depth: u32) -> String {
        match self.random.below(if depth == 0 { 4 } else { 8 }) {
            0 | 1 => self.column(Kind::Number).unwrap_or_else(|| "3".to_owned()),
            2 | 3 => pick(self.random, &["0", "1", "-7", "255", "1.5", "9000000000000000000"]).to_owned(),
            4 if self.functions => self.function(depth),
            _ => {
                let operator = pick(self.random, &["+", "-", "*", "/", "%"]);
                format!("({} {operator} {})", self.number(depth - 1), self.number(depth - 1))
            }
        }
    }

    pub fn truth(&mut self, depth: u32) -> String {
        let comparison = pick(self.random, &["=", "<>", "<", "<=", ">", ">="]);
        match self.random.below(if depth == 0 { 6 } else { 9 }) {
            0 | 1 => format!("{} {comparison} {}", self.number(1), self.number(1)),
            2 => {
                let text = pick(self.random, &["''", "'A'", "'AA'", "'AB'", "'XXXXXXXXX'", "'AAAAAAAA'"]);
                match (self.column(Kind::Text), self.column(Kind::Text), self.random.below(3)) {
                    (Some(left), Some(right), 0) => format!("{left} {comparison} {right}"),
                    (Some(left), _, 1) => format!("{left} {comparison} {text}"),
                    (Some(left), ..) => format!("{text} {comparison} {left}"),
                    _ => "TRUE".to_owned(),
                }
            }
            3 => self.column(Kind::Enum).map_or("FALSE".to_owned(), |column| format!("{column} = 'Two'")),
            4 => self.column(Kind::Set).map_or("TRUE".to_owned(), |column| format!("HAS({column}, 'high')")),
            5 => {
                let kind = [Kind::Number, Kind::Text, Kind::Enum][self.random.below(3) as usize];
                let column = self.column(kind).unwrap_or_else(|| "1".to_owned());
                format!("{column} IS {}NULL", pick(self.random, &["", "NOT "]))
            }
            6 => format!("({} AND {})", self.truth(depth - 1), self.truth(depth - 1)),
            7 => format!("({} OR {})", self.truth(depth - 1), self.truth(depth - 1)),
            _ => format!("NOT ({})", self.truth(depth - 1)),
        }
    }
}
