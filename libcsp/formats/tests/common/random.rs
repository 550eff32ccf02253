//! Random schemas, and random messages of a schema.

use std::fmt::Write as _;

use csp_formats::{Block, Charset, Encoded, Field, Message, Presence, Primitive, Scalar, Type};
use csp_support::Random;
use serde_json::{Map, Value as Json, json};

/// A random message, as JSON.
pub fn message(message: &Message, random: &mut Random) -> Json {
    let mut members = record(&message.block, random);
    members.insert("$message".to_owned(), json!(&*message.name));
    Json::Object(members)
}

fn record(block: &Block, random: &mut Random) -> Map<String, Json> {
    let mut members = fields(&block.fields, random);
    for group in &block.groups {
        let entries = (0..random.below(4)).map(|_| Json::Object(record(&group.block, random))).collect();
        members.insert(group.name.to_string(), Json::Array(entries));
    }
    for data in &block.data {
        let len = random.below(20) as usize;
        let value = match data.charset {
            Some(charset) => json!(text(charset, len, random)),
            None => json!("AAECAwQFBgcICQ=="[..4 * (len / 5).min(3)].to_owned()),
        };
        members.insert(data.name.to_string(), value);
    }
    members
}

fn fields(fields: &[Field], random: &mut Random) -> Map<String, Json> {
    let own = fields.iter().filter(|field| field.presence != Presence::Constant);
    own.map(|field| (field.name.to_string(), value(field, random))).collect()
}

fn value(field: &Field, random: &mut Random) -> Json {
    let optional = field.presence == Presence::Optional && random.below(4) == 0;
    match &field.kind {
        Type::Encoded(encoded) if encoded.is_array() && encoded.primitive == Primitive::Char => {
            let text = text(encoded.charset.unwrap_or(Charset::Ascii), encoded.length as usize, random);
            if optional || (field.presence == Presence::Optional && text.is_empty()) {
                Json::Null
            } else {
                json!(text)
            }
        }
        Type::Encoded(encoded) if encoded.is_array() => {
            (0..encoded.length).map(|_| number(encoded, field.presence, random)).collect()
        }
        Type::Encoded(_) if optional => Json::Null,
        Type::Encoded(encoded) => number(encoded, field.presence, random),
        Type::Enum(kind) => match kind.values.get(random.below(kind.values.len() as u64 + 1) as usize) {
            Some(value) => json!(&*value.name),
            None => Json::Null,
        },
        Type::Set(kind) => {
            let chosen = kind.choices.iter().filter(|_| random.below(2) == 0);
            chosen.map(|choice| json!(&*choice.name)).collect()
        }
        Type::Composite(composite) => Json::Object(fields(&composite.members, random)),
    }
}

fn number(encoded: &Encoded, presence: Presence, random: &mut Random) -> Json {
    let bits = random.number() >> random.below(64);
    let sign: i64 = if random.below(2) == 0 { 1 } else { -1 };
    let found = match encoded.primitive {
        Primitive::Char => return json!(char::from(b'!' + random.below(90) as u8).to_string()),
        // Floating-point numbers with few digits, which every printer has alike.
        Primitive::Float | Primitive::Double => return json!((bits % 10_000) as f64 * sign as f64 / 16.0),
        Primitive::UInt8 | Primitive::UInt16 | Primitive::UInt32 | Primitive::UInt64 => {
            Scalar::UInt(bits & (u64::MAX >> (64 - 8 * encoded.primitive.size())))
        }
        primitive => {
            let unused = 64 - 8 * primitive.size();
            Scalar::Int((((bits << unused) as i64) >> unused).wrapping_mul(sign))
        }
    };
    let below = encoded.min.is_some_and(|min| found.compare(min).is_none_or(|order| order.is_lt()));
    let above = encoded.max.is_some_and(|max| found.compare(max).is_none_or(|order| order.is_gt()));
    let null = presence == Presence::Optional && found.same(encoded.null);
    let holds = encoded.primitive.holds(found);
    match found {
        _ if !holds || below || above || null => match encoded.min.unwrap_or(Scalar::UInt(1)) {
            Scalar::Int(number) => json!(number),
            Scalar::UInt(number) => json!(number),
            Scalar::Char(_) | Scalar::Float(_) => json!(1),
        },
        Scalar::Int(number) if number.unsigned_abs() < 1 << 53 => json!(number),
        Scalar::UInt(number) if number < 1 << 53 => json!(number),
        found => json!(found.to_string()),
    }
}

/// Text of at most `len` bytes without NUL.
fn text(charset: Charset, len: usize, random: &mut Random) -> String {
    let mut text = String::new();
    let mut left = random.below(len as u64 + 1) as usize;
    while left > 0 {
        let (character, size) = match (charset, random.below(4)) {
            (Charset::Latin1, 0) => ('é', 1),
            (Charset::Utf8, 0) if left >= 3 => ('€', 3),
            _ => (char::from(b'!' + random.below(90) as u8), 1),
        };
        text.push(character);
        left -= size;
    }
    text
}

/// A random schema with one message, "M", as XML.
pub fn schema(random: &mut Random) -> String {
    let order = if random.below(2) == 0 { "littleEndian" } else { "bigEndian" };
    let header = format!("version=\"3\" byteOrder=\"{order}\">");
    let mut types = String::new();
    for index in 0..4 {
        kind(&mut types, index, random);
    }
    let mut message = String::from("<message name=\"M\" id=\"1\">");
    members(&mut message, 0, &mut 0, random);
    message.push_str("</message>");
    super::wrap(3, &types, &message).replace("version=\"3\">", &header)
}

/// Types `t0 e0 s0 c0` and so on; a composite refers to those before it.
fn kind(out: &mut String, index: u64, random: &mut Random) {
    let primitive = Primitive::ALL[random.below(11) as usize].name();
    let presence = ["required", "optional"][random.below(2) as usize];
    let length = [1, 1, 1, 2, 5][random.below(5) as usize];
    let width = [8, 16, 32, 64][random.below(4) as usize];
    let _ = write!(
        out,
        "<type name=\"t{index}\" primitiveType=\"{primitive}\" presence=\"{presence}\" length=\"{length}\"/>\
         <enum name=\"e{index}\" encodingType=\"uint{width}\"><validValue name=\"a\">{}</validValue><validValue \
         name=\"b\">200</validValue></enum>\
         <set name=\"s{index}\" encodingType=\"uint{width}\"><choice name=\"x\">{}</choice><choice name=\"y\">7</choice></set>\
         <composite name=\"c{index}\"><type name=\"n\" primitiveType=\"int16\"/>",
        random.below(100),
        random.below(7)
    );
    for member in 0..random.below(4) {
        let gap = random.below(3);
        let offset = if member == 0 { format!(" offset=\"{}\"", 2 + gap) } else { String::new() };
        let kind = match (random.below(4), index) {
            (0, 1..) => format!("c{}", random.below(index)),
            (1, _) => format!("e{index}"),
            (2, _) => format!("s{index}"),
            _ => format!("t{index}"),
        };
        let _ = write!(out, "<ref name=\"m{member}\" type=\"{kind}\"{offset}/>");
    }
    out.push_str("</composite>");
}

fn members(out: &mut String, depth: u32, id: &mut u32, random: &mut Random) {
    let mut next = || {
        *id += 1;
        *id
    };
    for _ in 0..random.below(6) {
        let kind = ["t", "e", "s", "c"][random.below(4) as usize];
        let id = next();
        let _ = write!(out, "<field name=\"f{id}\" id=\"{id}\" type=\"{kind}{}\"/>", random.below(4));
    }
    for _ in 0..if depth < 3 { random.below(3) } else { 0 } {
        *id += 1;
        let _ = write!(out, "<group name=\"g{id}\" id=\"{id}\">");
        members(out, depth + 1, id, random);
        out.push_str("</group>");
    }
    for _ in 0..random.below(3) {
        *id += 1;
        let _ = write!(out, "<data name=\"d{id}\" id=\"{id}\" type=\"text\"/>");
    }
}
