//! What a channel keeps for subscribers that join later.

use serde::{Deserialize, Deserializer, Serialize};

use super::channels::{CHANNEL_MIB_MAX, Channel, Pattern};
use crate::config::{Problems, number};

/// Most last values of a channel: a new subscription looks at all of them.
pub const LAST_VALUES_MAX: u32 = 1 << 20;
/// Longest key that is the beginning of a message, in bytes.
pub const KEY_BYTES_MAX: u16 = 2_048;

/// The last message of each key, which a subscriber gets when it subscribes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastValue {
    /// Most keys; the one whose message is oldest gives way.
    #[serde(default = "entries", deserialize_with = "read_entries")]
    pub entries: u32,
    /// Most memory for these messages in KiB, part of the channel's.
    #[serde(default = "kib", deserialize_with = "read_kib")]
    pub kib: u32,
    /// What messages have in common of which the later one replaces the earlier.
    #[serde(default)]
    pub key: LastValueKey,
}

/// What distinguishes last values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LastValueKey {
    /// The first frame.
    #[default]
    Topic,
    /// The first so many bytes of the message.
    Bytes(#[serde(deserialize_with = "read_key_bytes")] u16),
}

impl LastValue {
    /// Notes what does not fit the channel.
    pub(super) fn check(&self, channel: &Channel, at: &str, problems: &mut Problems) {
        if channel.pattern == Pattern::Push {
            let message = "a channel with `pattern: push` has no last values".to_owned();
            problems.add(format!("{at}.last_value"), message);
        }
        let most = channel.memory.max_mib << 9;
        if self.kib > most {
            let message = format!("{} KiB are more than half of memory.max_mib, {most} KiB", self.kib);
            problems.add(format!("{at}.last_value.kib"), message);
        }
    }

    /// Describes it in one line.
    pub(super) fn summary(&self) -> String {
        let LastValue { entries, kib, key } = self;
        match key {
            LastValueKey::Topic => format!(", last values of {entries} topics in {kib} KiB"),
            LastValueKey::Bytes(bytes) => {
                format!(", last values of {entries} keys of {bytes} bytes in {kib} KiB")
            }
        }
    }
}

const fn entries() -> u32 {
    10_000
}

const fn kib() -> u32 {
    1_024
}

fn read_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, LAST_VALUES_MAX.into(), "a number of keys")? as u32)
}

fn read_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, u64::from(CHANNEL_MIB_MAX) << 10, "a size in KiB")? as u32)
}

fn read_key_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 1, KEY_BYTES_MAX.into(), "a length in bytes")? as u16)
}
