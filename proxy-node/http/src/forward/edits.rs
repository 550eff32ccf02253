//! Edits of heads that a policy names.

use crate::name::{Name, is_same, is_token, is_value_byte};

/// One edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Removes all fields of this name and adds one.
    Set(Box<str>, Box<[u8]>),
    /// Adds a field.
    Add(Box<str>, Box<[u8]>),
    /// Removes all fields of this name.
    Remove(Box<str>),
}

/// Why an edit is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError {
    /// The name is no token.
    #[error("{0:?} is not a field's name: expected letters, digits and !#$%&'*+-.^_`|~")]
    Name(Box<str>),
    /// The value has a control character, or whitespace at an end.
    #[error("the value of {0} has a control character, or whitespace at an end")]
    Value(Box<str>),
    /// The proxy writes the field itself.
    #[error("{0} belongs to one connection or frames the message: the proxy writes it")]
    Framing(Box<str>),
}

/// Edits that were checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edits {
    removed: Vec<Box<str>>,
    added: Vec<(Box<str>, Box<[u8]>)>,
}

impl Edits {
    /// No edits.
    pub const NONE: &'static Edits = &Edits { removed: Vec::new(), added: Vec::new() };

    /// Checks edits, which act in order: what removes fields of a name also removes those that edits before
    /// it have added. Names are the same with `_` for `-`.
    pub fn new(edits: impl IntoIterator<Item = Edit>) -> Result<Edits, EditError> {
        let (mut removed, mut added) = (Vec::new(), Vec::<(Box<str>, Box<[u8]>)>::new());
        for edit in edits {
            let (name, value, removes) = match edit {
                Edit::Set(name, value) => (name, Some(value), true),
                Edit::Add(name, value) => (name, Some(value), false),
                Edit::Remove(name) => (name, None, true),
            };
            if !is_token(name.as_bytes()) {
                return Err(EditError::Name(name));
            }
            if Name::of(name.as_bytes()).is_framing() {
                return Err(EditError::Framing(name));
            }
            if removes {
                added.retain(|(known, _)| !is_same(known.as_bytes(), name.as_bytes()));
                removed.push(name.clone());
            }
            let Some(value) = value else { continue };
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
            let at_ends = value.first().is_some_and(is_space) || value.last().is_some_and(is_space);
            if at_ends || !value.iter().all(|byte| is_value_byte(*byte)) {
                return Err(EditError::Value(name));
            }
            added.push((name, value));
        }
        Ok(Edits { removed, added })
    }

    /// Returns whether fields of this name are removed.
    #[inline]
    pub(super) fn removes(&self, name: &[u8]) -> bool {
        self.removed.iter().any(|removed| is_same(removed.as_bytes(), name))
    }

    /// Returns the fields that are added.
    pub(super) fn added(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.added.iter().map(|(name, value)| (name.as_bytes(), &value[..]))
    }
}
