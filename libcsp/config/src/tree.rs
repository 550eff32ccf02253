//! A document as a tree: what YAML and JSON have in common.

/// Line and column in the text, both from 1; both 0 where the text has no lines of its own (JSON between
/// programs).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    pub line: u32,
    pub column: u32,
}

/// A value and where it begins.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub value: Value,
    pub at: Place,
}

/// A value of a document.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Stands for a value that cannot be read: candidate number n of [`neutral`](crate::neutral).
    Neutral(usize),
}

/// A field of a mapping. The keys of a mapping are distinct.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_at: Place,
    pub node: Node,
}

/// A value without parts: the text, and what it means where no type is asked for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Scalar {
    pub text: String,
    pub meaning: Meaning,
}

/// The type of an unquoted text (YAML 1.2.2 §10.3.2, and the booleans of YAML 1.1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Meaning {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text,
}

/// A step from a node to one of its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Field(String),
    Index(usize),
}

impl Node {
    /// A null value.
    pub fn null(at: Place) -> Node {
        Node { value: Value::Scalar(Scalar { text: String::new(), meaning: Meaning::Null }), at }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning == Meaning::Null)
    }

    /// Returns the part to which the steps lead.
    pub fn find_mut(&mut self, steps: &[Step]) -> Option<&mut Node> {
        steps.iter().try_fold(self, |node, step| match (step, &mut node.value) {
            (Step::Index(index), Value::List(items)) => items.get_mut(*index),
            (Step::Field(name), Value::Map(entries)) => {
                entries.iter_mut().find(|entry| entry.key == *name).map(|entry| &mut entry.node)
            }
            _ => None,
        })
    }

    /// Returns the entries of a mapping. Null counts as an empty one.
    pub fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        if self.is_null() {
            self.value = Value::Map(Vec::new());
        }
        match &mut self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }
}

impl Scalar {
    /// A quoted text.
    pub fn quoted(text: String) -> Scalar {
        Scalar { text, meaning: Meaning::Text }
    }

    /// An unquoted text.
    pub fn plain(text: String) -> Scalar {
        Scalar { meaning: Meaning::of(&text), text }
    }
}

impl Meaning {
    /// Returns what an unquoted text means.
    pub fn of(text: &str) -> Meaning {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() || text == "~" || text.eq_ignore_ascii_case("null") {
            return Meaning::Null;
        }
        if let Some(value) = boolean(text) {
            return Meaning::Bool(value);
        }
        if let Some(number) = whole_number(text) {
            return match (u64::try_from(number), i64::try_from(number)) {
                (Ok(number), _) => Meaning::Unsigned(number),
                (_, Ok(number)) => Meaning::Signed(number),
                _ => Meaning::Float(number as f64),
            };
        }
        float(text).map_or(Meaning::Text, Meaning::Float)
    }
}

/// Reads a boolean of YAML 1.1.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(["true", "yes", "y", "on"]) => Some(true),
        () if is(["false", "no", "n", "off"]) => Some(false),
        () => None,
    }
}

/// Reads a whole number: decimal without leading zeros, or with the prefix 0x, 0o or 0b; `_` may stand
/// between digits.
pub(crate) fn whole_number(text: &str) -> Option<i128> {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = rest.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match prefixed.as_deref() {
        Some("0x") => (16, &rest[2..]),
        Some("0o") => (8, &rest[2..]),
        Some("0b") => (2, &rest[2..]),
        _ => (10, rest),
    };
    if radix == 10 && digits.starts_with('0') && digits != "0" {
        return None;
    }
    if digits.starts_with(['+', '-', '_']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if is_negative { -number } else { number })
}

/// Reads a number with a fraction or an exponent. Infinities and what is none are texts.
pub(crate) fn float(text: &str) -> Option<f64> {
    let is_number = text
        .starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.'))
        && text.ends_with(|last: char| last.is_ascii_digit() || last == '.')
        && text.contains(|one: char| one.is_ascii_digit());
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    number.is_finite().then_some(number)
}
