//! What belongs to the names that clients ask for.

use std::collections::HashMap;

/// Longest name that is compared, in bytes (RFC 1035 §2.3.4).
const NAME_LEN_MAX: usize = 253;

/// Values by server names: an exact name comes first, then the longest `*.NAME`, which stands for all names
/// below NAME, at any depth. Case does not matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerNames<T> {
    exact: HashMap<Box<str>, T>,
    /// By what follows `*.`.
    below: HashMap<Box<str>, T>,
}

impl<T> Default for ServerNames<T> {
    fn default() -> Self {
        ServerNames { exact: HashMap::new(), below: HashMap::new() }
    }
}

impl<T> ServerNames<T> {
    /// Sets the value of a name, or of `*.NAME`. The first of two for one name counts.
    pub fn insert(&mut self, name: &str, value: T) {
        let name = name.to_ascii_lowercase();
        let (map, name) = match name.strip_prefix("*.") {
            Some(parent) => (&mut self.below, parent),
            None => (&mut self.exact, name.as_str()),
        };
        map.entry(name.into()).or_insert(value);
    }

    /// Returns the value of the name that a client asks for.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&T> {
        let mut lower = [0; NAME_LEN_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name.as_bytes());
        lower.make_ascii_lowercase();
        let name = core::str::from_utf8(lower).ok()?;
        let parents = core::iter::successors(name.split_once('.'), |(_, parent)| parent.split_once('.'));
        self.exact.get(name).or_else(|| parents.map(|(_, parent)| parent).find_map(|p| self.below.get(p)))
    }

    /// Returns all values, in any order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.below.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_name_then_the_longest_wildcard_counts() {
        let mut names = ServerNames::default();
        for name in ["db.example.com", "*.example.com", "*.db.Example.com", "*.db.example.com"] {
            names.insert(name, name.to_owned());
        }
        for (name, expected) in [
            ("db.example.com", Some("db.example.com")),
            ("DB.EXAMPLE.COM", Some("db.example.com")),
            ("a.db.example.com", Some("*.db.Example.com")),
            ("a.b.db.example.com", Some("*.db.Example.com")),
            ("www.example.com", Some("*.example.com")),
            ("example.com", None),
            ("xdb.example.org", None),
            ("", None),
            (".", None),
        ] {
            assert_eq!(names.find(name).map(String::as_str), expected, "{name}");
        }
        assert!(names.find(&"x.".repeat(200)).is_none());
    }
}
