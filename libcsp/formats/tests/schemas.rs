//! Schemas: layouts, and what is refused, with its position and what would be right.

mod common;

use common::{schema, wrap};
use csp_formats::{
    ByteOrder, Constant, NODES_MAX, Presence, Primitive, SCHEMA_LEN_MAX, Scalar, Schema, SchemaProblem,
    Target, Type,
};

/// The error of a schema with these types and messages. Types begin in line 6, messages two lines behind
/// their last.
fn refused(types: &str, messages: &str, expected: &str) {
    let error = Schema::parse(&wrap(1, types, messages)).expect_err("refused").to_string();
    assert!(error.contains(expected), "\"{error}\" lacks \"{expected}\" for\n{types}\n{messages}");
}

fn message(fields: &str) -> String {
    format!("<message name=\"M\" id=\"1\">\n{fields}</message>")
}

#[test]
fn offsets_follow_from_what_precedes_and_from_the_schema() {
    let schema = schema("everything-le");
    let message = schema.message("Everything").expect("declared");
    let offset = |name: &str| message.block.field(name).expect("declared").offset;
    assert_eq!((offset("requiredChar"), offset("requiredInt8"), offset("requiredInt16")), (0, 1, 2));
    assert_eq!((offset("text"), offset("latin")), (100, 106));
    assert_eq!(schema.message("Padded").expect("declared").block.length, 64);
    assert_eq!(schema.header.length, 8);
    assert_eq!(common::schema("everything-be").byte_order, ByteOrder::Big);
    let stops = &message.block.groups[0].block.groups[0];
    assert_eq!((&*stops.name, stops.block.length, stops.dimension.length), ("stops", 12, 2));
}

#[test]
fn a_path_is_located_to_an_offset_in_its_block() {
    let schema = schema("everything-le");
    let message = schema.message("Everything").expect("declared");
    let Type::Composite(engine) = &message.block.field("engine").expect("declared").kind else {
        panic!("a composite")
    };
    assert_eq!((engine.length, &*engine.members[5].name, engine.members[5].offset), (30, "weight", 8));
    let base = message.block.field("engine").expect("declared").offset;
    let located = message.locate("engine.inner.deep").expect("declared");
    let deep = located.root_field().expect("in the root block");
    assert_eq!((deep.offset, &*deep.name, deep.own_name()), (base + 27, "engine.inner.deep", "deep"));
    assert_eq!(deep.presence, Presence::Optional);

    let located = message.locate("legs.legPrice.mantissa").expect("declared");
    assert_eq!(located.groups, [0]);
    assert!(located.root_field().is_none());
    assert!(matches!(&located.target, Target::Field(field) if field.offset == 2));
    assert!(matches!(message.locate("legs.stops").map(|found| found.target), Ok(Target::Group(0))));
    assert!(matches!(message.locate("legs.blob").map(|found| found.target), Ok(Target::Data(1))));

    let constant = message.locate("engine.maxRpm").expect("declared");
    let constant = constant.root_field().expect("in the root block");
    assert_eq!((constant.size(), &constant.constant), (0, &Some(Constant::Scalar(Scalar::UInt(9000)))));
}

#[test]
fn a_path_that_names_nothing_has_the_nearest_name() {
    let schema = schema("everything-le");
    let message = schema.message("Everything").expect("declared");
    for (path, expected) in [
        ("engin", "\"Everything\" has no \"engin\"; the nearest is \"engine\""),
        ("engine.iner.deep", "\"engine\" has no \"iner\"; the nearest is \"inner\""),
        ("legs.stop.place", "\"legs\" has no \"stop\"; the nearest is \"stops\""),
        ("legs.speed.x", "\"legs.speed\" has no \"x\""),
        ("ascii.x", "\"ascii\" has no \"x\""),
        ("", "\"Everything\" has no \"\""),
        ("legs.", "\"legs\" has no \"\""),
    ] {
        let error = message.locate(path).expect_err(path);
        assert_eq!(error.to_string(), expected, "{path}");
        assert!(path[error.position..].starts_with(&error.part), "{path}");
    }
}

#[test]
fn a_member_is_as_new_as_the_composite_it_lies_in() {
    let schema = schema("evolution-2-le");
    let located = schema.message("Order").expect("declared").locate("fee.mantissa").expect("declared");
    assert_eq!(located.root_field().map(|field| field.since_version), Some(2));
}

#[test]
fn errors_have_a_line_and_a_column() {
    let error = Schema::parse(&wrap(
        1,
        "",
        "<message name=\"M\" id=\"1\">\n  <field name=\"a\" id=\"1\" type=\"uint23\"/></message>",
    ));
    let error = error.expect_err("refused");
    assert_eq!((error.line, error.column), (9, 32), "{error}");
    assert_eq!(error.problem, SchemaProblem::UnknownType { name: "uint23".to_owned(), nearest: None });
    let error = Schema::parse("<a>\n <b></c></a>").expect_err("refused");
    assert_eq!(error.line, 2, "{error}");
}

#[test]
fn fields_that_do_not_fit_are_refused() {
    let field = |attributes: &str| message(&format!("<field name=\"a\" id=\"1\" {attributes}/>"));
    refused("", &field("type=\"txt\""), "no type is called \"txt\"; the nearest is \"text\"");
    refused("", &field("type=\"text\""), "\"text\" has no fixed length; use <data> for it");
    refused("", &field("type=\"int8\" presence=\"maybe\""), "expected required, optional or constant");
    refused("", &field("type=\"int8\" sinceVersion=\"2\""), "expected at most the schema's version, 1");
    refused("", &field("type=\"int8\" offset=\"-1\""), "offset=\"-1\": expected a whole number");
    refused("", &field("type=\"int8\" offset=\"65534\""), "65535 bytes are more than the 65534");
    refused("", &field("type=\"int8\" presence=\"constant\""), "the constant \"a\" has no value");
    refused(
        "",
        &field("type=\"int8\" presence=\"constant\" valueRef=\"text.x\""),
        "the name of an enumeration",
    );
    let enumeration =
        "<enum name=\"E\" encodingType=\"uint8\"><validValue name=\"One\">1</validValue></enum>";
    refused(
        enumeration,
        &field("type=\"E\" presence=\"constant\" valueRef=\"E.Oone\""),
        "the nearest is E.One",
    );
    refused(
        "",
        &message("<field name=\"a\" id=\"1\" type=\"int8\"/>\n<field name=\"a\" id=\"2\" type=\"int8\"/>"),
        "two of <field> have the name \"a\"",
    );
    refused(
        "",
        &message(
            "<field name=\"a\" id=\"1\" type=\"int32\"/><field name=\"b\" id=\"2\" type=\"int8\" offset=\"3\"/>",
        ),
        "offset 3 lies within what precedes it; the least is 4",
    );
    refused(
        "",
        &message("<data name=\"d\" id=\"1\" type=\"text\"/><field name=\"a\" id=\"2\" type=\"int8\"/>"),
        "(fields come first)",
    );
    refused(
        "",
        &message("<data name=\"d\" id=\"1\" type=\"text\"/><group name=\"a\" id=\"2\"/>"),
        "(groups come before it)",
    );
    refused(
        "",
        "<message name=\"M\" id=\"1\" blockLength=\"3\"><field name=\"a\" id=\"1\" type=\"int32\"/></message>",
        "blockLength 3 is less than the 4 bytes",
    );
    refused(
        "",
        "<message name=\"M\" id=\"1\"/><message name=\"N\" id=\"1\"/>",
        "two of <message> have the id \"1\"",
    );
    refused("", "<message name=\"M\" id=\"70000\"/>", "expected a whole number from 0 to 65535");
    refused("", "<message name=\"1M\" id=\"1\"/>", "no digit first");
    refused(
        "",
        &message("<group name=\"g\" id=\"1\" dimensionType=\"text\"/>"),
        "the composite \"text\" has no \"blockLength\"",
    );
    refused(
        "",
        &message("<data name=\"d\" id=\"1\" type=\"messageHeader\"/>"),
        "\"messageHeader\" is no encoding of variable data",
    );
    refused("", "<massage/>", "<massage> where types or message is expected");
}

#[test]
fn types_that_make_no_sense_are_refused() {
    refused("<type name=\"t\" primitiveType=\"int9\"/>", "", "expected one of char, int8");
    refused("<type name=\"t\"/>", "", "<type> lacks the attribute primitiveType");
    refused(
        "<type name=\"t\" primitiveType=\"uint8\" nullValue=\"256\"/>",
        "",
        "nullValue=\"256\": expected a value of uint8",
    );
    refused(
        "<type name=\"t\" primitiveType=\"char\" characterEncoding=\"UTF-16\"/>",
        "",
        "expected US-ASCII, ISO-8859-1 or UTF-8",
    );
    refused(
        "<type name=\"t\" primitiveType=\"int64\" length=\"9000\"/>",
        "",
        "72000 bytes are more than the 65534",
    );
    refused(
        "<type name=\"t\" primitiveType=\"uint8\" presence=\"constant\"/>",
        "",
        "the constant \"t\" has no value",
    );
    refused(
        "<type name=\"t\" primitiveType=\"uint8\" presence=\"constant\">x</type>",
        "",
        "\"x\": expected a value of uint8",
    );
    refused(
        "<type name=\"t\" primitiveType=\"char\" length=\"2\" presence=\"constant\">abc</type>",
        "",
        "at least 3",
    );
    refused(
        "<type name=\"t\" primitiveType=\"int8\"/><type name=\"t\" primitiveType=\"int8\"/>",
        "",
        "have the name \"t\"",
    );
}

#[test]
fn enumerations_sets_and_composites_that_make_no_sense_are_refused() {
    refused(
        "<enum name=\"e\" encodingType=\"float\"/>",
        "",
        "expected char, an integer type, or a <type> of one",
    );
    refused(
        "<enum name=\"e\" encodingType=\"uint8\"><validValue name=\"a\">255</validValue></enum>",
        "",
        "other than the null value",
    );
    refused(
        "<enum name=\"e\" encodingType=\"uint8\"><validValue name=\"a\">1</validValue><validValue name=\"b\">1</validValue></enum>",
        "",
        "have the number \"1\"",
    );
    refused("<set name=\"s\" encodingType=\"int8\"/>", "", "expected uint8, uint16, uint32, uint64");
    refused(
        "<set name=\"s\" encodingType=\"uint8\"><choice name=\"a\">8</choice></set>",
        "",
        "the number of a bit, 0 to 7",
    );
    refused(
        "<composite name=\"c\"><ref name=\"a\" type=\"c\"/></composite>",
        "",
        "the composite \"c\" contains itself",
    );
    refused(
        "<composite name=\"c\"><ref name=\"a\" type=\"d\"/></composite><composite name=\"d\"><ref name=\"b\" type=\"c\"/></composite>",
        "",
        "contains itself",
    );
    refused(
        "<composite name=\"c\"><type name=\"a\" primitiveType=\"int8\" length=\"0\"/></composite>",
        "",
        "\"a\" has no fixed length",
    );
    refused(
        "<composite name=\"c\"><type name=\"varData\" primitiveType=\"int8\" length=\"0\"/><type name=\"b\" primitiveType=\"int8\"/></composite>",
        "",
        "\"varData\" has no fixed length",
    );
}

#[test]
fn a_schema_without_a_header_is_refused() {
    let plain = wrap(0, "", "");
    for (from, to, expected) in [
        ("name=\"messageHeader\"", "name=\"other\"", "no type is called \"messageHeader\""),
        ("name=\"templateId\"", "name=\"template\"", "the composite \"messageHeader\" has no \"templateId\""),
        ("id=\"7\"", "", "<messageSchema> lacks the attribute id"),
        ("version=\"0\"", "version=\"0\" byteOrder=\"middle\"", "expected littleEndian or bigEndian"),
        ("messageSchema", "schema", "<schema> where messageSchema is expected"),
    ] {
        let error = Schema::parse(&plain.replace(from, to)).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn types_are_declared_in_any_order_and_may_bear_a_primitive_s_name() {
    let xml = wrap(
        1,
        "<composite name=\"c\"><ref name=\"a\" type=\"later\"/></composite><type name=\"later\" primitiveType=\"int32\"/>\
         <type name=\"uint8\" primitiveType=\"uint8\" presence=\"optional\" nullValue=\"7\"/>",
        &message("<field name=\"a\" id=\"1\" type=\"c\"/><field name=\"b\" id=\"2\" type=\"uint8\"/>"),
    );
    let schema = Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}"));
    let fields = &schema.messages[0].block.fields;
    assert_eq!((fields[1].offset, fields[1].presence), (4, Presence::Optional));
    assert!(
        matches!(&fields[1].kind, Type::Encoded(encoded) if encoded.null == Scalar::UInt(7) && encoded.primitive == Primitive::UInt8)
    );
}

#[test]
fn hostile_schemas_are_bounded() {
    let deep = |element: &str, count: usize| {
        format!("<{element}>").repeat(count) + &format!("</{element}>").repeat(count)
    };
    for xml in [
        deep("types", 70_000),
        format!("<messageSchema>{}</messageSchema>", "<a/>".repeat(NODES_MAX as usize)),
        " ".repeat(SCHEMA_LEN_MAX + 1),
        "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>".to_owned(),
        String::new(),
    ] {
        Schema::parse(&xml).expect_err("refused");
    }
    // Each composite has 30 of the one before it: thirty to the power of seven values.
    let mut types = String::from(
        "<composite name=\"c0\"><type name=\"a\" primitiveType=\"char\" presence=\"constant\">x</type></composite>",
    );
    for level in 1..8 {
        types += &format!("<composite name=\"c{level}\">");
        for member in 0..30 {
            types += &format!("<ref name=\"m{member}\" type=\"c{}\"/>", level - 1);
        }
        types += "</composite>";
    }
    refused(&types, "", "more than 4096 values in a block or composite");
    let chain = |from: usize| -> String {
        (0..from)
            .map(|level| {
                format!("<composite name=\"d{level}\"><ref name=\"a\" type=\"d{}\"/></composite>", level + 1)
            })
            .collect()
    };
    refused(&(chain(8) + "<composite name=\"d8\"/>"), "", "composites are nested deeper than 8");
    let groups = "<group name=\"g\" id=\"1\">".repeat(9) + &"</group>".repeat(9);
    refused("", &message(&groups), "groups are nested deeper than 8");
    let fields: String =
        (0..1025).map(|id| format!("<field name=\"f{id}\" id=\"{id}\" type=\"int8\"/>")).collect();
    refused("", &message(&fields), "more than 1024 fields, groups and data");
}
