//! What a channel keeps for subscribers that join later.

use csp_config::{Problems, number};
use csp_types::options::LastValueKey;
use serde::{Deserialize, Deserializer, Serialize};

use super::bounds::BLOCK_KIB;
use super::channels::{CHANNEL_MIB_MAX, Channel, Pattern};

/// Most last values of a channel: a new subscription looks at all of them.
pub const LAST_VALUES_MAX: u32 = 1 << 20;
/// Longest key that is the beginning of a message, in bytes.
pub const KEY_BYTES_MAX: u16 = 2_048;

/// The last message of each key, which a subscriber gets when it subscribes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Given")]
pub struct LastValue {
    /// Most keys; the one whose message is oldest gives way.
    pub entries: u32,
    /// Most memory for these messages in KiB, part of the channel's. Each takes at least `BLOCK_KIB`.
    pub kib: u32,
    /// What messages have in common of which the later one replaces the earlier.
    pub key: LastValueKey,
}

/// What the policy says. A bound that it does not say follows from the other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    #[serde(default, deserialize_with = "read_entries")]
    entries: Option<u32>,
    #[serde(default, deserialize_with = "read_kib")]
    kib: Option<u32>,
    #[serde(default)]
    key: LastValueKey,
}

impl From<Given> for LastValue {
    fn from(Given { entries, kib, key }: Given) -> Self {
        let fitting = |entries: u32| entries.saturating_mul(BLOCK_KIB).max(KIB);
        let kib = kib.unwrap_or_else(|| entries.map_or(KIB, fitting));
        LastValue { entries: entries.unwrap_or((kib / BLOCK_KIB).max(1)), kib, key }
    }
}

impl LastValue {
    /// Notes what does not fit the channel.
    pub(super) fn check(&self, channel: &Channel, at: &str, problems: &mut Problems) {
        if channel.pattern == Pattern::Push {
            let message = "a channel with `pattern: push` has no last values".to_owned();
            problems.add(format!("{at}.last_value"), message);
        }
        if let LastValueKey::Bytes(bytes) = self.key
            && !(1..=KEY_BYTES_MAX).contains(&bytes)
        {
            let message = format!("{bytes} is not a length in bytes; allowed is 1 to {KEY_BYTES_MAX}");
            problems.add(format!("{at}.last_value.key.bytes"), message);
        }
        let most = channel.memory.max_mib << 9;
        if self.kib > most {
            let message = format!("{} KiB are more than half of memory.max_mib, {most} KiB", self.kib);
            return problems.add(format!("{at}.last_value.kib"), message);
        }
        let needed = self.entries.saturating_mul(BLOCK_KIB);
        if needed > self.kib {
            let or = if needed <= most { format!(", or `kib: {needed}`") } else { String::new() };
            let message = format!(
                "{} last values take {BLOCK_KIB} KiB each at least, and `kib` is {}: write at most {}{or}",
                self.entries,
                self.kib,
                self.kib / BLOCK_KIB
            );
            problems.add_unless(
                &[&format!("{at}.last_value.kib")],
                format!("{at}.last_value.entries"),
                message,
            );
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

/// Memory for last values in KiB, if the policy does not say it.
const KIB: u32 = 1_024;

fn read_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Some(number(deserializer, 1, LAST_VALUES_MAX.into(), "a number of keys")? as u32))
}

fn read_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let (least, most) = (BLOCK_KIB.into(), u64::from(CHANNEL_MIB_MAX) << 10);
    Ok(Some(number(deserializer, least, most, "a size in KiB")? as u32))
}
