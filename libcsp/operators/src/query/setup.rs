//! How a query is run: the times of its sources, and its bounds.

use csp_formats::{Cell, Field, Load, Presence, Primitive, Scalar, Type};
use csp_handlers::Message;
use csp_queries::Plan;
use csp_types::Duration;
use thiserror::Error;

use crate::row::ROW_LEN_MAX;

/// The time of a source's messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Time {
    /// When they arrived.
    #[default]
    Arrival,
    /// A field of theirs.
    Field {
        /// Its path in the message: a whole number, not of a group.
        path: String,
        /// What it counts.
        unit: Unit,
        /// How far behind the latest time that was seen a message may be. Later ones are not used.
        lateness: Duration,
    },
}

/// What a field of time counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unit {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    Seconds,
    Minutes,
    Hours,
    Days,
}

/// Bounds of a query's state and results. Memory for all of it is allocated when the query is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rows that wait on each side of a join.
    pub rows: u32,
    /// Their bytes on each side.
    pub row_bytes: u32,
    /// Groups of all windows that are open.
    pub groups: u32,
    /// Bytes that a group keeps of its first row, for columns that are grouped by.
    pub group_bytes: u32,
    /// Longest result in bytes; at most [`ROW_LEN_MAX`].
    pub result_len: u32,
    /// Time without messages after which a source is not waited for. While all sources are silent time stands
    /// still.
    pub idle: Option<Duration>,
    /// Time without a message of any source after which the windows that are open close; rows of them that
    /// come later are late. `None`: they wait.
    pub flush: Option<Duration>,
    /// Determines the hash of keys. Publishers should not know it.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rows: 8192,
            row_bytes: 2 << 20,
            groups: 4096,
            group_bytes: 512,
            result_len: ROW_LEN_MAX,
            idle: Some(Duration::from_secs(30)),
            flush: None,
            seed: 0x6a09_e667_f3bc_c908,
        }
    }
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), QuerySetupError> {
        // 2^31 entries of a table are more than its state may have.
        let max = 1 << 24;
        for (what, value, max) in [
            ("rows", self.rows, max),
            ("row_bytes", self.row_bytes, u32::MAX / 2),
            ("groups", self.groups, max),
            ("group_bytes", self.group_bytes, ROW_LEN_MAX),
            ("result_len", self.result_len, ROW_LEN_MAX),
        ] {
            if value == 0 || value > max {
                return Err(QuerySetupError::Limit { what, value: value.into() });
            }
        }
        Ok(())
    }
}

/// Why a query cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum QuerySetupError {
    /// A query has one input for each source.
    #[error("the query has {sources} sources, and {inputs} inputs are given")]
    Inputs { sources: usize, inputs: usize },
    /// The field of time is not in the message.
    #[error("the time of {channel}: {problem}")]
    Time { channel: String, problem: String },
    /// One source has its time from a field and the other from arrival.
    #[error("{first} has the time of a field and {second} that of arrival: they cannot be compared")]
    MixedTimes { first: String, second: String },
    /// What cannot be run.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A bound that is 0 or too large.
    #[error("{what} cannot be {value}")]
    Limit { what: &'static str, value: u64 },
}

impl Unit {
    /// A number of units as microseconds.
    fn micros(self, number: i128) -> Option<i64> {
        match self {
            Unit::Nanoseconds => i64::try_from(number.div_euclid(1_000)).ok(),
            _ => {
                let micros = number.checked_mul(self.scale().into());
                micros.and_then(|micros| i64::try_from(micros).ok())
            }
        }
    }

    #[inline]
    fn micros_of_short(self, number: i64) -> Option<i64> {
        match self {
            Unit::Nanoseconds => Some(number.div_euclid(1_000)),
            _ => number.checked_mul(self.scale()),
        }
    }

    /// Microseconds as a number of units.
    pub(super) fn of_micros(self, micros: i64) -> i128 {
        match self {
            Unit::Nanoseconds => i128::from(micros) * 1_000,
            _ => i128::from(micros.div_euclid(self.scale())),
        }
    }

    /// Microseconds of a unit that is at least one.
    fn scale(self) -> i64 {
        match self {
            Unit::Nanoseconds | Unit::Microseconds => 1,
            Unit::Milliseconds => 1_000,
            Unit::Seconds => 1_000_000,
            Unit::Minutes => 60_000_000,
            Unit::Hours => 3_600_000_000,
            Unit::Days => 86_400_000_000,
        }
    }
}

/// The clock of a source.
#[derive(Debug)]
pub(super) struct SourceTime {
    field: Option<(Field, Unit)>,
    /// How the field is read at its fixed place.
    load: Option<Load>,
    /// In microseconds.
    pub lateness: i64,
}

impl SourceTime {
    pub fn new(plan: &Plan, source: usize, time: &Time) -> Result<Self, QuerySetupError> {
        let Time::Field { path, unit, lateness } = time else {
            return Ok(SourceTime { field: None, load: None, lateness: 0 });
        };
        let source = &plan.sources[source];
        let refuse = |problem: String| QuerySetupError::Time { channel: source.alias.clone(), problem };
        let location = source.format().locate(path).map_err(|error| refuse(error.to_string()))?;
        let Some(field) = location.root_field() else {
            return Err(refuse(format!("\"{path}\" has no one value in a message")));
        };
        let is_whole = match &field.kind {
            Type::Encoded(encoded) => {
                !encoded.is_array()
                    && !matches!(encoded.primitive, Primitive::Char | Primitive::Float | Primitive::Double)
                    && field.presence != Presence::Constant
            }
            _ => false,
        };
        if !is_whole {
            return Err(refuse(format!("\"{path}\" is no whole number")));
        }
        let lateness = i64::try_from(lateness.as_micros()).unwrap_or(i64::MAX);
        let load = Load::new(field, source.schema.header.length as usize, source.schema.byte_order);
        Ok(SourceTime { field: Some((field.clone(), *unit)), load, lateness })
    }

    pub fn is_arrival(&self) -> bool {
        self.field.is_none()
    }

    /// The field of time, if there is one.
    pub fn field(&self) -> Option<&Field> {
        self.field.as_ref().map(|(field, _)| field)
    }

    /// What its field counts; times of arrival are microseconds.
    pub fn unit(&self) -> Unit {
        self.field.as_ref().map_or(Unit::Microseconds, |(_, unit)| *unit)
    }

    /// As [`of`](Self::of), of header and block. `None`: the message has to be viewed.
    #[inline]
    pub fn of_fixed(&self, message: &Message, row: &[u8]) -> Option<Option<i64>> {
        let (Some((_, unit)), Some(load)) = (&self.field, &self.load) else {
            return self.is_arrival().then(|| Some(arrival(message.arrived)));
        };
        Some(match load.read(row)? {
            Cell::Int(number) => unit.micros_of_short(number),
            _ => None,
        })
    }

    /// The time of a message in microseconds; `None` if its field is null or beyond 64 bits.
    #[inline]
    pub fn of(
        &self,
        message: &Message,
        record: &csp_formats::Record<'_, '_>,
    ) -> Result<Option<i64>, csp_formats::ViewError> {
        let Some((field, unit)) = &self.field else { return Ok(Some(arrival(message.arrived))) };
        Ok(match record.fixed().value(field)?.number() {
            Some(Scalar::Int(number)) => unit.micros(i128::from(number)),
            Some(Scalar::UInt(number)) => unit.micros(i128::from(number)),
            _ => None,
        })
    }
}

/// An instant in microseconds.
pub(super) fn arrival(at: csp_types::Instant) -> i64 {
    // 2^64 ns are fewer microseconds than 2^63.
    (at.as_nanos() / 1_000) as i64
}
