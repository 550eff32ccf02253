//! Short texts that are safe to print.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};

/// Longest [`Text`], in bytes.
pub const TEXT_LEN_MAX: usize = 1024;

/// A text of at most [`TEXT_LEN_MAX`] bytes without control characters. Each control character becomes a
/// space and what is too long is cut off, when a text is made as when it is read: it may come from a hostile
/// process and end up on a terminal.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Text(String);

impl Text {
    /// The text as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Text {
    fn from(mut text: String) -> Self {
        if text.len() > TEXT_LEN_MAX {
            text.truncate(text.floor_char_boundary(TEXT_LEN_MAX));
        }
        if text.contains(char::is_control) {
            text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            // A control character of two bytes (U+0080 to U+009F) became a space of one: the text did not
            // grow.
        }
        Text(text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::from(text[..text.floor_char_boundary(TEXT_LEN_MAX)].to_owned())
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Text::from(text.as_str())
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Text::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_short_and_safe_to_print() {
        let read = |json: &str| serde_json::from_str::<Text>(json).unwrap();
        assert_eq!(read("\"\\u001b[2Jnginx\\u009b\""), " [2Jnginx ");
        let long = Text::from("é".repeat(TEXT_LEN_MAX));
        assert_eq!(long.len(), TEXT_LEN_MAX);
        let odd = Text::from(format!("x{}", "é".repeat(TEXT_LEN_MAX)).as_str());
        assert_eq!(odd.len(), TEXT_LEN_MAX - 1);
        assert_eq!(serde_json::to_string(&Text::from("web")).unwrap(), "\"web\"");
    }
}
