//! What several tests of formats share.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod random;

use csp_formats::{MessageView, Schema, ViewError, json};
use csp_support::Random;
use serde_json::Value as Json;

/// A schema of `tests/vectors`.
pub fn schema(name: &str) -> Schema {
    let path = format!("{}/tests/vectors/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    let xml = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Schema::parse(&xml).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A schema with these types and messages, little-endian, with the usual headers.
pub fn wrap(version: u16, types: &str, messages: &str) -> String {
    format!(
        r#"<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="test" id="7" version="{version}">
<types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
{types}
</types>
{messages}
</sbe:messageSchema>"#
    )
}

/// A message's JSON, read from slices and checked whole.
pub fn printed(schema: &Schema, slices: &[&[u8]]) -> Result<Json, ViewError> {
    let view = MessageView::new(schema, slices)?;
    view.check()?;
    let mut text = Vec::new();
    json::print(&view, &mut text, 1 << 20)
        .unwrap_or_else(|error| panic!("a checked message is printed: {error}"));
    Ok(serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text))))
}

/// The bytes of a message from its JSON.
pub fn written(schema: &Schema, message: &Json) -> Vec<u8> {
    let mut out = vec![0xee; 1 << 17];
    let len = json::parse(schema, message.to_string().as_bytes(), &mut out)
        .unwrap_or_else(|error| panic!("{error}: {message}"));
    out.truncate(len);
    out
}

/// Cuts bytes into at most `parts` slices, of which some may be empty.
pub fn split<'b>(bytes: &'b [u8], parts: usize, random: &mut Random) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = (1..parts).map(|_| random.below(bytes.len() as u64 + 1) as usize).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

pub fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
