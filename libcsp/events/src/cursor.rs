//! What a reader has: the last event of each origin.
//!
//! As text: `1~INSTANCE~ARRIVAL,ORIGIN~INCARNATION~SEQUENCE,…`, numbers in hex. It goes into a query as it
//! is: `~` and `,` need no escapes (RFC 3986 §3.4).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use csp_api::Text;

/// Longest cursor that is read, in bytes.
pub const CURSOR_LEN_MAX: usize = 60 << 10;
/// Version of the text.
const VERSION: &str = "1";

/// Why a text is no cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoCursor;

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is no cursor; use the `cursor` of an answer, or leave it out")
    }
}

impl std::error::Error for NoCursor {}

/// A stream of events: an origin and its incarnation.
pub(crate) type Stream = (Text, u64);

/// The place up to which a reader has read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The management node's process that made it.
    pub(crate) instance: u64,
    /// There: the number of arrivals that were looked at.
    pub(crate) arrivals: u64,
    /// By stream: the last event that was read or looked at.
    pub(crate) seen: BTreeMap<Stream, u64>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}~{:x}~{:x}", self.instance, self.arrivals)?;
        for ((origin, incarnation), sequence) in &self.seen {
            write!(f, ",{origin}~{incarnation:x}~{sequence:x}")?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        if text.len() > CURSOR_LEN_MAX {
            return Err(NoCursor);
        }
        let hex = |part: &str| u64::from_str_radix(part, 16).map_err(|_| NoCursor);
        let three = |part: &'_ str| -> Option<[String; 3]> {
            let mut parts = part.split('~').map(str::to_owned);
            let three = [parts.next()?, parts.next()?, parts.next()?];
            parts.next().is_none().then_some(three)
        };
        let mut parts = text.split(',');
        let [version, instance, arrivals] = parts.next().and_then(three).ok_or(NoCursor)?;
        if version != VERSION {
            return Err(NoCursor);
        }
        let mut cursor =
            Cursor { instance: hex(&instance)?, arrivals: hex(&arrivals)?, seen: BTreeMap::new() };
        for part in parts {
            let [origin, incarnation, sequence] = three(part).ok_or(NoCursor)?;
            cursor.seen.insert((Text::from(origin), hex(&incarnation)?), hex(&sequence)?);
        }
        Ok(cursor)
    }
}
