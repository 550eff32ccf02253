//! Flow labels in JSON and on command lines: hexadecimal digits.
//!
//! `#[serde(with = "csp_api::label")]` writes a label as 8 digits, `00000000` for a flow that has none yet,
//! and reads 8 digits.

use csp_types::FlowLabel;
use serde::{Deserialize, Deserializer, Serializer, de};

use crate::Text;

/// Writes the 8 digits.
pub fn serialize<S: Serializer>(label: &FlowLabel, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(label)
}

/// Reads 8 digits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FlowLabel, D::Error> {
    exact(&Text::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// A label or `null`: `#[serde(with = "csp_api::label::option")]`.
pub mod option {
    use super::{Deserialize, Deserializer, FlowLabel, Serializer, Text, de, exact};

    /// Writes the 8 digits, or `null`.
    pub fn serialize<S: Serializer>(label: &Option<FlowLabel>, serializer: S) -> Result<S::Ok, S::Error> {
        match label {
            Some(label) => serializer.collect_str(label),
            None => serializer.serialize_none(),
        }
    }

    /// Reads 8 digits, or `null`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FlowLabel>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        text.map(|text| exact(&text)).transpose().map_err(de::Error::custom)
    }
}

/// A label or the empty text: `#[serde(with = "csp_api::label::or_empty")]`.
pub mod or_empty {
    use super::{Deserialize, Deserializer, FlowLabel, Serializer, Text, de, exact};

    /// Writes the 8 digits, or nothing.
    pub fn serialize<S: Serializer>(label: &Option<FlowLabel>, serializer: S) -> Result<S::Ok, S::Error> {
        match label {
            Some(label) => serializer.collect_str(label),
            None => serializer.serialize_str(""),
        }
    }

    /// Reads 8 digits, or nothing.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FlowLabel>, D::Error> {
        let text = Text::deserialize(deserializer)?;
        if text.is_empty() { Ok(None) } else { exact(&text).map(Some).map_err(de::Error::custom) }
    }
}

/// A label as operators write it: 1 to 8 hexadecimal digits, `0x` in front allowed. `None` for anything else,
/// and for digits that no label has.
pub fn parse(text: &str) -> Option<FlowLabel> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    FlowLabel::from_wire(u32::from_str_radix(digits, 16).ok()?)
}

fn exact(text: &str) -> Result<FlowLabel, String> {
    let label = Some(text).filter(|text| text.len() == 8 && !text.starts_with("0x")).and_then(parse);
    label.ok_or_else(|| {
        format!("{text:?} is no flow label; a label has 8 hexadecimal digits, such as 0040001f")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_write_one_to_eight_digits() {
        assert_eq!(parse("0x0000001f"), FlowLabel::from_wire(31));
        assert_eq!(parse("1f"), FlowLabel::from_wire(31));
        for wrong in ["", "0x", "123456789", "+1", "xyz", "ffffffff"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn json_has_exactly_eight() {
        assert_eq!(exact("0040001f").unwrap().to_string(), "0040001f");
        for wrong in ["1f", "0x00001f", "", "004000zz"] {
            assert!(exact(wrong).unwrap_err().contains("8 hexadecimal digits"), "{wrong}");
        }
    }
}
