//! Points in time in whole seconds, as certificates have them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The end of the year 9999, the latest time that a certificate can express (RFC 5280 §4.1.2.5).
const LATEST_S: i64 = 253_402_300_799;

/// A point in time in whole seconds since 1970 (UTC), between 1970 and 9999. Formatted as in RFC 3339:
/// `2026-11-23T19:11:01Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Reads the system's clock. A clock before 1970 counts as 1970.
    #[allow(clippy::disallowed_types)] // The one place of this crate that reads a clock, for its callers.
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(0).plus(since.unwrap_or(Duration::ZERO))
    }

    /// Returns the time `s` seconds after 1970, limited to the range of this type.
    pub const fn from_unix_s(s: i64) -> Self {
        match s {
            ..0 => Timestamp(0),
            LATEST_S.. => Timestamp(LATEST_S),
            _ => Timestamp(s),
        }
    }

    /// Returns the seconds since 1970.
    pub const fn unix_s(self) -> i64 {
        self.0
    }

    /// Returns the time `span` later, limited to the range of this type. Fractions of a second are cut off.
    pub fn plus(self, span: Duration) -> Self {
        let s = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_unix_s(self.0.saturating_add(s))
    }

    /// Returns the time `span` earlier, limited to the range of this type. Fractions of a second are cut off.
    pub fn minus(self, span: Duration) -> Self {
        let s = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_unix_s(self.0.saturating_sub(s))
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_secs(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// Returns the time in the form that rcgen expects.
    pub(crate) fn date(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(self.0).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.date().format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Timestamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is no time; one looks like 2026-11-23T19:11:01Z", text.escape_debug());
        let date = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| wrong())?;
        match date.unix_timestamp() {
            s @ 0..=LATEST_S => Ok(Timestamp(s)),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
