//! Formats: schemas that the policy names, the channels whose messages have them, and a channel's time.

use std::collections::HashMap;
use std::sync::Arc;

use csp_formats::{Field, Message, Name, Presence, Primitive, Schema, Type, nearest};
use csp_handlers::FormatId;
use csp_operators::FormatSet;
use serde::{Deserialize, Deserializer, Serialize};

use super::check::{check_count, check_name};
use super::framing::is_default;
use super::{Channel, Framing, Headers, UnknownFormat};
use crate::config::{Problems, number};

/// Most formats of a policy.
pub const FORMATS_MAX: usize = 64;
/// Longest schema of a policy, in bytes.
///
/// The schemas of exchanges have up to 350 KB.
pub const FORMAT_LEN_MAX: usize = 512 << 10;
/// Most formats of a channel.
pub const CHANNEL_FORMATS_MAX: usize = 8;
/// Longest time by which messages may be late, in milliseconds.
pub const LATENESS_MS_MAX: u32 = 3_600_000;

/// A format of messages: a message of an SBE schema.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// 1 to 63 of `a-z 0-9 -`, unique among formats.
    pub name: String,
    /// The schema as XML (FIX Simple Binary Encoding 1.0), at most [`FORMAT_LEN_MAX`] bytes.
    pub schema: String,
    /// The name of the message in the schema; absent: its only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Which time of a message counts in joins and windows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelTime {
    /// The path of a whole number in each of the channel's formats.
    pub field: String,
    /// The unit of that number.
    #[serde(default)]
    pub unit: TimeUnit,
    /// By how much a message may be older than the newest one of the channel and still count.
    #[serde(default, deserialize_with = "lateness_ms", skip_serializing_if = "is_default")]
    pub lateness_ms: u32,
}

/// Unit of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    #[default]
    Us,
    /// Nanoseconds.
    Ns,
}

/// A format whose schema is parsed.
#[derive(Clone, Debug)]
pub struct KnownFormat {
    /// The name in the policy.
    pub name: String,
    /// The schema.
    pub schema: Arc<Schema>,
    /// The message in it.
    pub message: Name,
}

impl KnownFormat {
    /// Returns the layout of its messages.
    pub fn layout(&self) -> &Message {
        // `Format::parse` has found it.
        self.schema.message(&self.message).unwrap_or(&self.schema.messages[0])
    }
}

/// Returns the formats of a channel as operators look them up: with the ids 1, 2, ….
pub fn format_set(formats: &[KnownFormat]) -> FormatSet {
    let mut set = FormatSet::new();
    for (at, format) in formats.iter().enumerate() {
        // The ids are distinct, and the message is one of its schema's.
        let _ = set.add(FormatId(at as u32 + 1), format.schema.clone(), format.message.clone());
    }
    set
}

impl Format {
    /// Parses the schema; notes what is wrong. Equal texts share a schema.
    pub(super) fn parse<'p>(
        &'p self,
        schemas: &mut HashMap<&'p str, Option<Arc<Schema>>>,
        at: &str,
        problems: &mut Problems,
    ) -> Option<KnownFormat> {
        let field = format!("{at}.schema");
        if self.schema.len() > FORMAT_LEN_MAX {
            let message = format!("has {} bytes; allowed are {FORMAT_LEN_MAX}", self.schema.len());
            problems.add(field, message);
            return None;
        }
        let schema = match schemas.get(self.schema.as_str()) {
            Some(known) => known.clone(),
            None => {
                let parsed = Schema::parse(&self.schema).map(Arc::new);
                if let Err(error) = &parsed {
                    let place = (u64::from(error.line), u64::from(error.column));
                    problems.add_inside(&field, place, error.to_string());
                }
                schemas.entry(&self.schema).or_insert(parsed.ok()).clone()
            }
        }?;
        let names = || schema.messages.iter().map(|message| &*message.name);
        let message = match &self.message {
            None if schema.messages.len() == 1 => schema.messages[0].name.clone(),
            None => {
                let names = names().collect::<Vec<_>>().join(", ");
                let message = match names.as_str() {
                    "" => "the schema has no message".to_owned(),
                    names => format!("name the message in `message`; the schema has {names}"),
                };
                problems.add(at, message);
                return None;
            }
            Some(name) => match schema.message(name) {
                Some(message) => message.name.clone(),
                None => {
                    let near = nearest(name, names());
                    let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
                    problems.add(format!("{at}.message"), format!("the schema has no \"{name}\"{near}"));
                    return None;
                }
            },
        };
        Some(KnownFormat { name: self.name.clone(), schema, message })
    }

    /// Describes it in one line.
    pub(super) fn summary(&self) -> String {
        let Format { name, schema, message } = self;
        let message = message.as_ref().map_or_else(String::new, |message| format!(" message {message},"));
        let known = Schema::parse(schema);
        let known =
            known.map_or_else(|_| String::new(), |s| format!(" schema {} version {},", s.id, s.version));
        let digest = super::sha256(schema);
        format!("{name}{known}{message} {} bytes, sha256 {}", schema.len(), &digest[..12])
    }
}

impl ChannelTime {
    /// Describes it in words, for a difference.
    pub(super) fn summary(&self) -> String {
        let ChannelTime { field, unit, lateness_ms } = self;
        format!(", time {field} in {}, late by {lateness_ms} ms", unit.as_str())
    }

    pub(super) fn check(&self, formats: &[KnownFormat], at: &str, problems: &mut Problems) {
        for format in formats {
            let located = format.layout().locate(&self.field);
            let message = match &located {
                Ok(location) => match location.root_field() {
                    Some(field) if is_whole(field) => continue,
                    _ => format!(
                        "\"{}\" of format {} is no whole number of the root block",
                        self.field, format.name
                    ),
                },
                Err(error) => format!("format {}: {error}", format.name),
            };
            problems.add(format!("{at}.time.field"), message);
        }
    }
}

impl TimeUnit {
    /// Its name in the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            TimeUnit::S => "s",
            TimeUnit::Ms => "ms",
            TimeUnit::Us => "us",
            TimeUnit::Ns => "ns",
        }
    }
}

fn is_whole(field: &Field) -> bool {
    match &field.kind {
        Type::Encoded(encoded) => {
            let other = matches!(encoded.primitive, Primitive::Char | Primitive::Float | Primitive::Double);
            !other && !encoded.is_array() && field.presence != Presence::Constant
        }
        _ => false,
    }
}

/// Parses the formats; notes what is wrong. Those that are wrong are left out.
pub(super) fn known(formats: &[Format], problems: &mut Problems) -> HashMap<String, KnownFormat> {
    check_count("formats", formats.len(), 0, FORMATS_MAX, problems);
    let (mut schemas, mut names, mut known) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (index, format) in formats.iter().enumerate().take(FORMATS_MAX) {
        let (name, at) = (format.name.as_str(), format!("formats[{index}]"));
        check_name(name, "format", &at, problems);
        if let Some(first) = names.insert(name, index) {
            let message = format!("{name:?} is the name of formats[{first}] already; names are unique");
            problems.add(format!("{at}.name"), message);
        }
        if let Some(parsed) = format.parse(&mut schemas, &at, problems) {
            known.insert(name.to_owned(), parsed);
        }
    }
    known
}

/// Returns the formats of a channel in the order of their ids; notes what is wrong.
pub(super) fn of_channel(
    channel: &Channel,
    all: &[Format],
    known: &HashMap<String, KnownFormat>,
    at: &str,
    problems: &mut Problems,
) -> Vec<KnownFormat> {
    check_count(&format!("{at}.formats"), channel.formats.len(), 0, CHANNEL_FORMATS_MAX, problems);
    let (mut formats, mut ids) = (Vec::new(), HashMap::new());
    for (index, name) in channel.formats.iter().enumerate() {
        let field = format!("{at}.formats[{index}]");
        let Some(format) = known.get(name) else {
            // What is wrong with the format itself was noted there.
            if !all.iter().any(|format| format.name == *name) {
                let near = nearest(name, all.iter().map(|format| format.name.as_str()));
                let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
                problems.add(field, format!("there is no format \"{name}\"{near}"));
            }
            continue;
        };
        // What a message's header says is all that distinguishes formats.
        if let Some(first) = ids.insert((format.schema.id, format.layout().id), name) {
            let message =
                format!("has the schema id and template id of \"{first}\": messages of both look alike");
            problems.add(field, message);
        }
        formats.push(format.clone());
    }
    if !channel.formats.is_empty() || channel.takes_formats() {
        check_ports(channel, at, problems);
    }
    if channel.formats.is_empty() && channel.unknown != UnknownFormat::Pass {
        problems.add(format!("{at}.unknown"), "is for channels with formats; name them in `formats`");
    }
    match &channel.time {
        Some(_) if channel.formats.is_empty() => {
            problems.add(format!("{at}.time"), "is for channels with formats; name them in `formats`");
        }
        Some(time) => time.check(&formats, at, problems),
        None => {}
    }
    formats
}

fn check_ports(channel: &Channel, at: &str, problems: &mut Problems) {
    if !channel.pool.is_empty() {
        problems.add(
            format!("{at}.formats"),
            "a channel with a pool has no formats: its messages stay in their streams",
        );
        return;
    }
    for (index, port) in channel.ports().enumerate() {
        if port.framing != Framing::Zmtp && port.header == Headers::Keep {
            let at =
                index.checked_sub(1).map_or_else(|| at.to_owned(), |port| format!("{at}.listen[{port}]"));
            let message =
                "a record begins with its own header: with formats, `header: strip` removes this one";
            problems.add_unless(&[&format!("{at}.framing")], format!("{at}.header"), message);
        }
    }
}

fn lateness_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, LATENESS_MS_MAX.into(), "a time in milliseconds")? as u32)
}
