//! `cspctl policy schema`: the JSON Schema (2020-12) of policies, made of what their reader accepts.
//!
//! The schema knows shapes: fields, types, names of choices, ranges of numbers, fields without which nothing
//! is read. What fields say of each other, and of texts such as networks, the reader alone knows.

#[cfg(test)]
mod tests;

use csp_policy::Policy;
use serde_json::{Map, Value, json};

use super::error::CliError;
use super::put;
use crate::probe::{Shape, Step, required, shape};

/// Longest way into a policy; types that contain themselves end earlier, as each is described once.
const DEPTH_MAX: usize = 32;

/// Prints the schema.
pub(super) fn print() -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(&schema())
        .map_err(|error| CliError::Protocol(format!("cannot write JSON: {error}")))?;
    put(&(text + "\n"))
}

/// The schema of policies.
pub(super) fn schema() -> Value {
    let mut types = Types::default();
    let mut schema = types.of(&mut Vec::new());
    if let Some(object) = schema.as_object_mut() {
        object.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        object.insert("title".into(), format!("Policy of CSP {}", csp_policy::API_VERSION).into());
        object.insert(
            "$defs".into(),
            Value::Object(types.known.into_iter().map(|known| (known.1, known.2)).collect()),
        );
    }
    schema
}

/// The types that are described already: fields, name and schema of each.
#[derive(Default)]
struct Types {
    known: Vec<(&'static [&'static str], String, Value)>,
}

impl Types {
    /// The schema of what stands at `path`.
    fn of(&mut self, path: &mut Vec<Step>) -> Value {
        let found = shape::<Policy>(path).filter(|_| path.len() < DEPTH_MAX);
        match found {
            Some(Shape::Struct(name, fields)) => self.structure(path, name, fields),
            Some(Shape::Enum(variants)) => self.choice(path, variants),
            // An empty value is an empty list or mapping.
            Some(Shape::List) => {
                json!({ "type": ["array", "null"], "items": self.below(path, Step::Element) })
            }
            Some(Shape::Map) => {
                json!({ "type": ["object", "null"], "additionalProperties": self.below(path, Step::Value) })
            }
            // YAML's plain scalars are texts where a text is asked for.
            Some(Shape::Text) => json!({ "type": ["string", "number", "boolean"] }),
            Some(Shape::Integer(min, max)) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Some(Shape::Number) => json!({ "type": "number" }),
            Some(Shape::Bool) => json!({ "type": "boolean" }),
            Some(Shape::Any(words)) => described(&words),
            Some(Shape::Unit) | None => json!({}),
        }
    }

    fn below(&mut self, path: &mut Vec<Step>, step: Step) -> Value {
        path.push(step);
        let schema = self.of(path);
        path.pop();
        schema
    }

    /// A reference to a type, which is described when it is met first.
    fn structure(&mut self, path: &mut Vec<Step>, name: &str, fields: &'static [&'static str]) -> Value {
        if path.is_empty() {
            return self.fields(path, fields);
        }
        // Types of one name are distinguished by their fields, and numbered.
        let is_of =
            |of: &str| of.strip_prefix(name).is_some_and(|end| end.bytes().all(|b| b.is_ascii_digit()));
        let mut same = self.known.iter().filter(|(_, of, _)| is_of(of));
        if let Some((_, name, _)) = same.clone().find(|(known, ..)| *known == fields) {
            return json!({ "$ref": format!("#/$defs/{name}") });
        }
        let name = same.next().map_or(name.to_owned(), |_| format!("{name}{}", self.known.len()));
        let at = self.known.len();
        self.known.push((fields, name.clone(), Value::Null));
        self.known[at].2 = self.fields(path, fields);
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    fn fields(&mut self, path: &mut Vec<Step>, fields: &'static [&'static str]) -> Value {
        let properties: Map<String, Value> =
            fields.iter().map(|&field| (field.to_owned(), self.below(path, Step::Field(field)))).collect();
        let required = required::<Policy>(path);
        let types = if required.is_empty() { json!(["object", "null"]) } else { json!("object") };
        let mut schema = json!({ "type": types, "properties": properties, "additionalProperties": false });
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        schema
    }

    fn choice(&mut self, path: &mut Vec<Step>, variants: &'static [&'static str]) -> Value {
        let mut names = Vec::new();
        let mut others = Vec::new();
        for &variant in variants {
            path.push(Step::Variant(variant));
            match shape::<Policy>(path) {
                Some(Shape::Unit) | None => names.push(variant),
                Some(_) => {
                    let content = self.of(path);
                    others.push(json!({
                        "type": "object", "properties": { variant: content },
                        "required": [variant], "additionalProperties": false
                    }));
                }
            }
            path.pop();
        }
        let plain = json!({ "enum": names });
        if others.is_empty() {
            return plain;
        }
        others.extend((!names.is_empty()).then_some(plain));
        json!({ "anyOf": others })
    }
}

/// What a hand-written reader accepts, by the words with which it refuses others: `a port: a number from 1 to
/// 65535` is a number, also as text. Other words describe, and allow anything.
fn described(words: &str) -> Value {
    let range = words.split_once("a number from ").and_then(|(_, range)| {
        let (min, max) = range.split_once(" to ")?;
        Some((min.parse::<u64>().ok()?, max.parse::<u64>().ok()?))
    });
    match range {
        Some((min, max)) => json!({
            "description": words, "type": ["integer", "string"], "minimum": min, "maximum": max, "pattern": "^[0-9]+$"
        }),
        None => json!({ "description": words }),
    }
}
