//! Formats: schemas that the policy names, the channels whose messages have them, and a channel's time. What
//! a schema says the planner reads.

use std::collections::HashMap;

use csp_config::{Problems, nearest, number};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Policy;
use crate::channels::{Channel, UnknownFormat};
use crate::check::{check_count, check_name};
use crate::framing::{Framing, Headers, is_default};

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

impl Format {
    /// Describes it in one line.
    pub(crate) fn summary(&self) -> String {
        let Format { name, schema, message } = self;
        let message = message.as_ref().map_or_else(String::new, |message| format!(" message {message},"));
        let digest = crate::sha256(schema);
        format!("{name}{message} {} bytes, sha256 {}", schema.len(), &digest[..12])
    }
}

impl ChannelTime {
    /// Describes it in words, for a difference.
    pub(crate) fn summary(&self) -> String {
        let ChannelTime { field, unit, lateness_ms } = self;
        format!(", time {field} in {}, late by {lateness_ms} ms", unit.as_str())
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

/// Checks the formats of a policy and those that channels name, all but what the schemas say.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    let formats = &policy.formats;
    check_count("formats", formats.len(), 0, FORMATS_MAX, problems);
    let mut names = HashMap::new();
    for (index, format) in formats.iter().enumerate().take(FORMATS_MAX) {
        let (name, at) = (format.name.as_str(), format!("formats[{index}]"));
        check_name(name, "format", &at, problems);
        if let Some(first) = names.insert(name, index) {
            let message = format!("{name:?} is the name of formats[{first}] already; names are unique");
            problems.add(format!("{at}.name"), message);
        }
        if format.schema.len() > FORMAT_LEN_MAX {
            let message = format!("has {} bytes; allowed are {FORMAT_LEN_MAX}", format.schema.len());
            problems.add(format!("{at}.schema"), message);
        }
    }
    for (index, channel) in policy.channels.iter().enumerate() {
        check_channel(channel, formats, &format!("channels[{index}]"), problems);
    }
}

fn check_channel(channel: &Channel, formats: &[Format], at: &str, problems: &mut Problems) {
    check_count(&format!("{at}.formats"), channel.formats.len(), 0, CHANNEL_FORMATS_MAX, problems);
    for (index, name) in channel.formats.iter().enumerate() {
        if !formats.iter().any(|format| format.name == *name) {
            let near = nearest(name, formats.iter().map(|format| format.name.as_str()));
            let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
            problems.add(format!("{at}.formats[{index}]"), format!("there is no format \"{name}\"{near}"));
        }
    }
    if !channel.formats.is_empty() || channel.takes_formats() {
        check_ports(channel, at, problems);
    }
    if channel.formats.is_empty() && channel.unknown != UnknownFormat::Pass {
        problems.add(format!("{at}.unknown"), "is for channels with formats; name them in `formats`");
    }
    if channel.formats.is_empty() && channel.time.is_some() {
        problems.add(format!("{at}.time"), "is for channels with formats; name them in `formats`");
    }
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
