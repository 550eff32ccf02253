//! Where in a file a value stands, found by its path: what lets a check on the finished value name line and
//! column.

use std::collections::HashMap;

use crate::collect::join;
use crate::tree::{Node, Place, Value};

/// The places of all values of a document, by path such as `services[0].pool[1].port`.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    by_path: HashMap<String, Place>,
    keys: HashMap<String, Place>,
}

impl Positions {
    /// Reads the places of a tree.
    pub(crate) fn of(root: &Node) -> Self {
        let mut positions = Positions::default();
        positions.enter(String::new(), root);
        positions
    }

    /// The place of the value at `path`, or of the closest value around it.
    pub(crate) fn find(&self, path: &str) -> Option<Place> {
        let mut path = path;
        loop {
            if let Some(place) = self.by_path.get(path) {
                return Some(*place);
            }
            if path.is_empty() {
                return None;
            }
            path = path.rfind(['.', '[']).map_or("", |end| &path[..end]);
        }
    }

    /// The place of the key of the field at `path`.
    pub(crate) fn find_key(&self, path: &str) -> Option<Place> {
        self.keys.get(path).copied()
    }

    fn enter(&mut self, path: String, node: &Node) {
        match &node.value {
            Value::Scalar(_) | Value::Neutral(_) => {}
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.enter(format!("{path}[{index}]"), item);
                }
            }
            Value::Map(entries) => {
                for entry in entries {
                    let path = join(&path, &entry.key);
                    self.keys.insert(path.clone(), entry.key_at);
                    self.enter(path, &entry.node);
                }
            }
        }
        self.by_path.insert(path, node.at);
    }
}
