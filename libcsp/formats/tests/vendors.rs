//! Schemas in the manner of exchanges: what they write that is not in the standard's examples. The schemas
//! themselves are not theirs.

use csp_formats::{MessageView, Schema, TYPE_DEPTH_MAX, json};

const HEADER: &str = r#"<composite name="messageHeader" description="Template ID and length of message root"><type name="blockLength" primitiveType="uint16"/><type
    name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>"#;

fn schema(prefix: &str, types: &str, messages: &str) -> Schema {
    let xml = format!(
        "<{prefix}:messageSchema xmlns:{prefix}=\"http://www.fixprotocol.org/ns/simple/1.0\" package=\"p\" id=\"1\" version=\"9\" semanticVersion=\"FIX5SP2\" \
         byteOrder=\"littleEndian\"><types>{HEADER}{types}</types>{messages}</{prefix}:messageSchema>"
    );
    Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}"))
}

/// Writes JSON as a message, and prints the message.
fn again(schema: &Schema, text: &str) -> (Vec<u8>, String) {
    let mut out = vec![0; 4096];
    let len =
        json::parse(schema, text.as_bytes(), &mut out).unwrap_or_else(|error| panic!("{text}: {error}"));
    out.truncate(len);
    let slices = [&out[..]];
    let view = MessageView::new(schema, &slices).expect("valid");
    let mut printed = Vec::new();
    json::print(&view, &mut printed, 1 << 16).expect("valid");
    let printed = String::from_utf8(printed).expect("UTF-8");
    (out, printed)
}

/// Market data: dimensions of one byte behind a gap, named types of one primitive, decimals with a constant
/// exponent.
#[test]
fn market_data_in_the_manner_of_mdp() {
    let types = r#"<type name="uInt8" primitiveType="uint8"/><type name="uInt8NULL" description="optional" nullValue="255" presence="optional" primitiveType="uint8"/>
        <type name="Int32NULL" nullValue="2147483647" presence="optional" primitiveType="int32"/>
        <type name="Source" presence="constant" length="1" primitiveType="char" semanticType="char">8</type>
        <composite name="PRICENULL9"><type name="mantissa" presence="optional" nullValue="9223372036854775807" primitiveType="int64"/><type name="exponent"
        presence="constant" primitiveType="int8">-9</type></composite>
        <composite name="groupSize8Byte"><type name="blockLength" primitiveType="uint16"/><type name="numInGroup" offset="7" primitiveType="uint8"/></composite>
        <enum name="Side" encodingType="uInt8NULL"><validValue name="Buy" description="Buy">1</validValue><validValue name="Sell">2</validValue></enum>
        <set name="Match" encodingType="uInt8"><choice name="LastTrade" description="last">0</choice><choice name="Reserved">6</choice></set>"#;
    let messages = r#"<ns2:message name="Refresh46" id="46" blockLength="11" description="book" semanticType="X" sinceVersion="9">
        <field name="At" id="60" type="uint64" description="time" offset="0" semanticType="UTCTimestamp"/><field name="Event" id="5799" type="Match" offset="8"/>
        <group name="NoEntries" id="268" description="entries" blockLength="32" dimensionType="groupSize8Byte"><field name="Px" id="270" type="PRICENULL9" offset="0"/><field
        name="Size" id="271" type="Int32NULL" offset="8"/><field name="Side" id="54" type="Side" offset="12"/><field name="Source" id="22" type="Source"/></group></ns2:message>"#;
    let schema = schema("ns2", types, messages);
    let text = r#"{"$message":"Refresh46","At":5,"Event":["LastTrade"],"NoEntries":[{"Px":{"mantissa":null},"Size":null,"Side":null},{"Px":{"mantissa":7},"Size":3,"Side":"Sell"}]}"#;
    let (bytes, printed) = again(&schema, text);
    assert_eq!(bytes.len(), 8 + 11 + 8 + 2 * 32);
    assert_eq!(&bytes[27..40], [255, 255, 255, 255, 255, 255, 255, 127, 255, 255, 255, 127, 255]);
    assert!(
        printed.contains(r#""Px":{"mantissa":null,"exponent":-9},"Size":null,"Side":null,"Source":"8""#),
        "{printed}"
    );
}

/// Variable data whose type does not say `length="0"`, in each way of an order entry and of an exchange's
/// API.
#[test]
fn variable_data_without_a_length() {
    for (more, text) in [
        (r#"primitiveType="char""#, true),
        (r#"primitiveType="char" semanticType="data""#, true),
        (r#"primitiveType="uint8" semanticType="String" characterEncoding="UTF-8""#, true),
        (r#"length="0" primitiveType="uint8" characterEncoding="UTF-8""#, true),
        (r#"primitiveType="uint8" description="bytes""#, false),
    ] {
        let types = format!(
            r#"<composite name="DATA" description="DATA Field" semanticType="data"><type name="length" primitiveType="uint16" semanticType="Length" maxValue="65533"/><type
            name="varData" {more}/></composite>"#
        );
        let messages = r#"<ns2:message name="Negotiate500" id="500" blockLength="0"><data name="Credentials" id="39008" type="DATA" semanticType="data"/><data
            name="More" id="39009" type="DATA"/></ns2:message>"#;
        let schema = schema("ns2", &types, messages);
        let value = if text { r#""ab""# } else { r#""YWI=""# };
        let (bytes, printed) =
            again(&schema, &format!(r#"{{"$message":"Negotiate500","Credentials":{value},"More":{value}}}"#));
        assert_eq!(&bytes[8..], [2, 0, b'a', b'b', 2, 0, b'a', b'b'], "{more}");
        assert!(printed.contains(&format!(r#""More":{value}"#)), "{printed}");
    }
    // Elsewhere the name means nothing.
    let types = r#"<composite name="P"><type name="varData" primitiveType="char"/></composite>"#;
    let schema = schema(
        "ns2",
        types,
        r#"<ns2:message name="M" id="1"><field name="p" id="1" type="P"/></ns2:message>"#,
    );
    assert_eq!(schema.messages[0].block.length, 1);
}

#[test]
fn an_enumerations_own_null_value_counts() {
    let types = r#"<type name="small" primitiveType="uint8" presence="optional" nullValue="200"/>
        <enum name="Own" encodingType="uint8" nullValue="0"><validValue name="One">1</validValue><validValue name="Most">255</validValue></enum>
        <enum name="Both" encodingType="small" nullValue="9"><validValue name="One">1</validValue><validValue name="Twohundred">200</validValue></enum>
        <enum name="Letter" encodingType="char" nullValue="N"><validValue name="A">A</validValue></enum>"#;
    let fields = r#"<sbe:message name="M" id="1"><field name="own" id="1" type="Own"/><field name="both" id="2" type="Both"/><field name="letter" id="3" type="Letter"/></sbe:message>"#;
    let schema = schema("sbe", types, fields);
    let (bytes, printed) = again(&schema, r#"{"$message":"M","own":null,"both":null,"letter":null}"#);
    assert_eq!(&bytes[8..], [0, 9, b'N']);
    assert_eq!(printed.trim(), r#"{"$message":"M","own":null,"both":null,"letter":null}"#);
    let (bytes, _) = again(&schema, r#"{"$message":"M","own":"Most","both":"Twohundred","letter":"A"}"#);
    assert_eq!(&bytes[8..], [255, 200, b'A']);
    let wrong = format!(
        "<messageSchema id=\"1\"><types>{HEADER}<enum name=\"E\" encodingType=\"uint8\" nullValue=\"256\"><validValue name=\"A\">1</validValue></enum></types></messageSchema>"
    );
    let error = Schema::parse(&wrong).expect_err("no uint8").to_string();
    assert!(error.contains("nullValue=\"256\": expected a value of uint8"), "{error}");
}

/// Each type is named by the one before it: the stack that this takes is bounded.
#[test]
fn chains_of_types_are_bounded() {
    let chain = |length: usize| {
        let link = |at: usize| {
            format!(
                "<type name=\"T{at}\" primitiveType=\"uint8\" presence=\"constant\" valueRef=\"E{}.A\"/><enum name=\"E{at}\" encodingType=\"T{at}\"><validValue \
                 name=\"A\">1</validValue></enum>",
                at + 1
            )
        };
        let links: String = (0..length).map(link).collect();
        let xml = format!(
            "<messageSchema id=\"1\"><types>{HEADER}{links}<enum name=\"E{length}\" encodingType=\"uint8\"><validValue name=\"A\">1</validValue></enum></types></messageSchema>"
        );
        Schema::parse(&xml)
    };
    for length in [TYPE_DEPTH_MAX, 100, 2000] {
        let error = chain(length).expect_err("too deep").to_string();
        assert!(error.contains("types that name others are nested deeper than 32"), "{length}: {error}");
    }
    // A constant is no encoding, which is found at the end of the chain.
    let error = chain(3).expect_err("constants").to_string();
    assert!(error.contains("encodingType="), "{error}");
}

/// As large as those of exchanges: the bound is that of the crate, not of a message.
#[test]
fn a_schema_of_half_a_megabyte_is_parsed() {
    let description = "x".repeat(400);
    let message = |at: usize| {
        format!(
            "<sbe:message name=\"M{at}\" id=\"{at}\" description=\"{description}\"><field name=\"a\" id=\"1\" type=\"uint64\" description=\"{description}\"/></sbe:message>"
        )
    };
    let messages: String = (1..=500).map(message).collect();
    assert!(messages.len() > 400_000);
    assert_eq!(schema("sbe", "", &messages).messages.len(), 500);
}
