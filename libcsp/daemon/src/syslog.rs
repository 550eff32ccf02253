//! Messages of syslog (RFC 5424): how they are written, and how they are sent, as datagrams over UDP
//! (RFC 5426) or a Unix socket such as `/dev/log`.
//!
//! Texts come from peers: what is not allowed where they stand is replaced or escaped, and a message has a
//! bound.

mod sender;
#[cfg(test)]
mod tests;

use std::fmt;

use csp_api::time::utc;
use serde::{Deserialize, Deserializer};

pub use sender::{Sender, Target};

/// Longest value of a parameter before it is escaped, in bytes.
const VALUE_LEN_MAX: usize = 512;
/// The last millisecond of which RFC 3339 has a year of four digits.
const TIME_MS_MAX: u64 = 253_402_300_799_999;
/// Lengths of the fields, RFC 5424 §6.
const HOST_LEN_MAX: usize = 255;
const APPLICATION_LEN_MAX: usize = 48;
const KIND_LEN_MAX: usize = 32;
const NAME_LEN_MAX: usize = 32;

/// The facilities that daemons may use, RFC 5424 §6.2.1, by name.
const FACILITIES: [(&str, u8); 12] = [
    ("user", 1),
    ("daemon", 3),
    ("auth", 4),
    ("authpriv", 10),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// A facility.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facility(u8);

impl Default for Facility {
    fn default() -> Self {
        Facility(3)
    }
}

impl<'de> Deserialize<'de> for Facility {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = FACILITIES.iter().find(|(known, _)| *known == name);
        found.map(|(_, number)| Facility(*number)).ok_or_else(|| {
            let names: Vec<&str> = FACILITIES.iter().map(|(name, _)| *name).collect();
            serde::de::Error::custom(format!(
                "{name:?} is no facility of syslog; allowed are {}",
                names.join(", ")
            ))
        })
    }
}

/// How much a message matters, RFC 5424 §6.2.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Error.
    Error = 3,
    /// Warning.
    Warning = 4,
    /// Normal, and worth a look.
    Notice = 5,
    /// Informational.
    Info = 6,
}

/// What a message says before its text.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its facility.
    pub facility: Facility,
    /// How much it matters.
    pub level: Level,
    /// When it happened, in milliseconds of the Unix epoch.
    pub time_ms: u64,
    /// HOSTNAME: the node that it comes from.
    pub host: &'a str,
    /// APP-NAME.
    pub application: &'a str,
    /// PROCID; `None`: `-`.
    pub process: Option<u32>,
    /// MSGID: the kind of message.
    pub kind: &'a str,
}

/// Writes a message into `out` in place of what is there, at most `len_max` bytes. Parameters of structured
/// data that do not fit are left out, and the text is cut.
pub fn write(
    out: &mut String,
    len_max: usize,
    head: &Head<'_>,
    data: Option<(&str, &mut dyn Iterator<Item = (String, String)>)>,
    text: &str,
) {
    out.clear();
    let priority = head.facility.0 * 8 + head.level as u8;
    let process = head.process.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let time = utc(head.time_ms.min(TIME_MS_MAX));
    push(out, format_args!("<{priority}>1 {time} "));
    word(out, head.host, HOST_LEN_MAX, "");
    out.push(' ');
    word(out, head.application, APPLICATION_LEN_MAX, "");
    push(out, format_args!(" {process} "));
    word(out, head.kind, KIND_LEN_MAX, "");
    out.push(' ');
    match data {
        None => out.push('-'),
        Some((id, parameters)) => {
            out.push('[');
            word(out, id, NAME_LEN_MAX, NOT_IN_NAMES);
            for (name, value) in parameters {
                let before = out.len();
                parameter(out, &name, &value);
                // The bracket and at least the space before the text follow.
                if out.len() + 2 > len_max {
                    out.truncate(before);
                }
            }
            out.push(']');
        }
    }
    out.push(' ');
    let room = len_max.saturating_sub(out.len());
    out.extend(cut(text, room).chars().map(printable));
}

/// What names of structured data do not have, RFC 5424 §6.3.2.
const NOT_IN_NAMES: &str = "=]\"";

/// Adds to a string; which cannot fail.
fn push(out: &mut String, text: fmt::Arguments<'_>) {
    let _ = fmt::Write::write_fmt(out, text);
}

/// Writes printable ASCII without spaces; `-` for nothing.
fn word(out: &mut String, text: &str, len_max: usize, not: &str) {
    let allowed = |c: char| c.is_ascii_graphic() && !not.contains(c);
    out.extend(text.chars().take(len_max).map(|c| if allowed(c) { c } else { '_' }));
    if text.is_empty() {
        out.push('-');
    }
}

/// Writes ` NAME="VALUE"`, escaped as RFC 5424 §6.3.3 says.
fn parameter(out: &mut String, name: &str, value: &str) {
    out.push(' ');
    word(out, name, NAME_LEN_MAX, NOT_IN_NAMES);
    out.push_str("=\"");
    for c in cut(value, VALUE_LEN_MAX).chars() {
        if matches!(c, '"' | '\\' | ']') {
            out.push('\\');
        }
        out.push(printable(c));
    }
    out.push('"');
}

/// Returns a space for a control character: a line break within a message would begin another one for some
/// receivers.
fn printable(c: char) -> char {
    if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') { ' ' } else { c }
}

/// Returns the first bytes of a text, up to the end of a character.
fn cut(text: &str, len_max: usize) -> &str {
    &text[..text.floor_char_boundary(len_max.min(text.len()))]
}
