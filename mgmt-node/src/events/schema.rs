//! The JSON Schema (2020-12) of events, made of what the types of `csp_api` read.

use csp_api::events::{Event, What};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::probe::{Shape, Step, required, shape};

/// Fields of an event whose schema is not only that of their type.
const KIND: &str = "kind";
const FIELDS: &str = "fields";

/// Returns the schema of an event. Kinds and fields of later releases fit it.
pub fn schema() -> Value {
    let kinds = match shape::<What>(&[Step::Field(KIND)]) {
        Some(Shape::Enum(kinds)) => kinds,
        _ => &[],
    };
    let mut schema = structure::<Event>(&mut Vec::new());
    let mut defs = Map::new();
    let mut rules = Vec::new();
    for &kind in kinds {
        defs.insert(kind.to_owned(), structure::<What>(&mut vec![Step::Beside(KIND, kind, FIELDS)]));
        rules.push(json!({
            "if": { "properties": { KIND: { "const": kind } }, "required": [KIND] },
            "then": { "properties": { FIELDS: { "$ref": format!("#/$defs/{kind}") } } }
        }));
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Event of CSP".into();
    schema["allOf"] = rules.into();
    schema["$defs"] = defs.into();
    schema
}

/// Returns the schema of a mapping, whose fields are all required, or have a default that a reader makes.
fn structure<T: DeserializeOwned>(path: &mut Vec<Step>) -> Value {
    let required = required::<T>(path);
    let mut properties = Map::new();
    for &field in &required {
        path.push(Step::Field(field));
        properties.insert(field.to_owned(), plain(shape::<T>(path)));
        path.pop();
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

fn plain(shape: Option<Shape>) -> Value {
    match shape {
        Some(Shape::Text) => json!({ "type": "string" }),
        Some(Shape::Bool) => json!({ "type": "boolean" }),
        Some(Shape::Number) => json!({ "type": "number" }),
        Some(Shape::Integer(min, max)) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Some(Shape::Enum(names)) => json!({ "enum": names }),
        Some(Shape::List) => json!({ "type": "array" }),
        Some(Shape::Map | Shape::Struct(..)) => json!({ "type": "object" }),
        Some(Shape::Any(words)) => json!({ "description": words }),
        Some(Shape::Unit) | None => json!({}),
    }
}

#[cfg(test)]
mod tests;
