//! Where in a YAML file a value stands, found by its path: what lets a check on the finished value name line and column.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Line and column (both from 1) of every value of a document, by path such as `services[0].pool[1].port`.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    by_path: HashMap<String, (u64, u64)>,
    keys: HashMap<String, (u64, u64)>,
}

impl Positions {
    /// Reads the positions of `text`; empty when it is no YAML.
    pub(crate) fn of(text: &str) -> Self {
        let mut positions = Positions::default();
        if let Ok(tree) = serde_saphyr::from_str::<Spanned<Tree>>(text) {
            positions.enter(String::new(), &tree);
        }
        positions
    }

    /// The position of the value at `path`, or of the closest value around it.
    pub(crate) fn find(&self, path: &str) -> Option<(u64, u64)> {
        let mut path = path;
        loop {
            if let Some(position) = self.by_path.get(path) {
                return Some(*position);
            }
            if path.is_empty() {
                return None;
            }
            path = path.rfind(['.', '[']).map_or("", |end| &path[..end]);
        }
    }

    /// The position of the key of the field at `path`.
    pub(crate) fn find_key(&self, path: &str) -> Option<(u64, u64)> {
        self.keys.get(path).copied()
    }

    fn enter(&mut self, path: String, tree: &Spanned<Tree>) {
        match &tree.value {
            Tree::Scalar => {}
            Tree::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.enter(format!("{path}[{index}]"), item);
                }
            }
            Tree::Map(entries) => {
                for (key, value) in entries {
                    let dot = if path.is_empty() { "" } else { "." };
                    let path = format!("{path}{dot}{}", key.value);
                    self.keys.insert(path.clone(), (key.referenced.line(), key.referenced.column()));
                    self.enter(path, value);
                }
            }
        }
        self.by_path.insert(path, (tree.referenced.line(), tree.referenced.column()));
    }
}

enum Tree {
    Scalar,
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}
