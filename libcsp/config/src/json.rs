//! JSON that programs have written into a tree: what the control plane keeps and sends.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::collect::{join, path_of};
use crate::problems::{ConfigError, Problem};
use crate::read::{Kind, read};
use crate::tree::{Entry, Meaning, Node, Place, Scalar, Value};
use crate::words;

/// Reads JSON `text`; `origin` names it for errors. It stops at the first mistake.
pub fn from_json<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, ConfigError> {
    let root: Node =
        serde_json::from_str(text).map_err(|error| ConfigError::new(origin, "", error.to_string()))?;
    read(&root).map_err(|mistake| {
        let path = path_of(&mistake.steps());
        let field = match &mistake.kind {
            Kind::UnknownField(name, _) => join(&path, name),
            _ => path,
        };
        let problem = Problem { position: None, field, message: words::message(&mistake.kind, None) };
        ConfigError { file: origin.to_owned(), problems: vec![problem] }
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

/// A scalar that is no text.
fn scalar<E>(text: String, meaning: Meaning) -> Result<Node, E> {
    Ok(Node { value: Value::Scalar(Scalar { text, meaning }), at: Place::default() })
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::null(Place::default()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        scalar(value.to_string(), Meaning::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        scalar(number.to_string(), Meaning::Unsigned(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        scalar(number.to_string(), Meaning::Signed(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        scalar(number.to_string(), Meaning::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        scalar(text.to_owned(), Meaning::Text)
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        scalar(text, Meaning::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node { value: Value::List(items), at: Place::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let (mut entries, mut keys) = (Vec::new(), std::collections::HashSet::new());
        while let Some((key, node)) = map.next_entry::<String, Node>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format!("duplicate field `{key}`")));
            }
            entries.push(Entry { key, key_at: Place::default(), node });
        }
        Ok(Node { value: Value::Map(entries), at: Place::default() })
    }
}
