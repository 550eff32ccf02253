//! Objects that a stage's handler needs beside its name, and the report of a context about a stage.

use csp_types::options::{OnStop, Standing};

use crate::WireError;

/// SHA-256 of a module or of formats.
pub type Hash = [u8; 32];

/// Largest number of object bytes in a PART.
pub const PART_LEN_MAX: usize = 16 << 10;
/// Largest object that WANT can request, in bytes.
pub const OBJECT_LEN_MAX: usize = 4 << 20;
/// Number of reasons for which a module is stopped, in the order of [`Report::stops`].
pub const STOP_REASONS: usize = 10;

/// The objects that a stage's handler needs beside its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Supply<'a> {
    /// The module; `None` for a handler that is built into the context.
    pub module: Option<&'a Hash>,
    /// The formats of its messages; `None` if it needs none.
    pub formats: Option<&'a Hash>,
    /// Action when the module was stopped.
    pub on_stop: OnStop,
}

impl<'a> Supply<'a> {
    pub(super) fn flags(&self) -> u8 {
        u8::from(self.module.is_some()) | u8::from(self.formats.is_some()) << 1 | (self.on_stop as u8) << 2
    }

    pub(super) fn parts(&self) -> [&'a [u8]; 2] {
        [self.module, self.formats].map(|hash| hash.map_or(&[][..], |hash| &hash[..]))
    }

    /// Parses the fields that precede a record's text. Returns them and the text.
    pub(super) fn split(flags: u8, body: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let wrong = WireError::Value { what: "context record supply", offset: 10 };
        let on_stop = OnStop::from_u8(flags >> 2).ok_or(wrong)?;
        let mut rest = body;
        let mut hash = |is_there: bool| -> Result<Option<&'a Hash>, WireError> {
            if !is_there {
                return Ok(None);
            }
            let (hash, after) = rest.split_first_chunk().ok_or(wrong)?;
            rest = after;
            Ok(Some(hash))
        };
        let (module, formats) = (hash(flags & 1 != 0)?, hash(flags & 2 != 0)?);
        Ok((Supply { module, formats, on_stop }, rest))
    }
}

/// Parses the hash in a WANT.
pub(super) fn want(body: &[u8]) -> Result<&Hash, WireError> {
    let found = body.len();
    body.try_into().map_err(|_| WireError::Length { what: "context record object", offset: 32, found })
}

/// The numbers of a [`Report`] in the encoding of REPORT.
pub type ReportNumbers = [u8; 8 * NUMBERS];

const NUMBERS: usize = 12 + STOP_REASONS;

/// Counters of a stage since it began at the context. Times are in nanoseconds, over the calls that were
/// measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// State of the stage.
    pub standing: Standing,
    /// Calls of the module that returned normally.
    pub calls: u64,
    /// Fuel consumed by these calls.
    pub fuel: u64,
    /// Largest amount of fuel that one call consumed.
    pub fuel_max: u64,
    /// Messages dropped by the module.
    pub given_up: u64,
    /// Messages dropped because the module was stopped.
    pub waited: u64,
    /// Messages that bypassed the module.
    pub passed: u64,
    /// Restarts.
    pub restarts: u64,
    /// Number of stops, by reason.
    pub stops: [u64; STOP_REASONS],
    /// Number of measured calls.
    pub measured: u64,
    /// Mean duration of recent calls.
    pub mean_ns: u64,
    /// Median duration of recent calls.
    pub p50_ns: u64,
    /// 99th percentile of the duration of recent calls.
    pub p99_ns: u64,
    /// Longest duration of a call.
    pub max_ns: u64,
}

impl Report {
    fn numbers(&mut self) -> [&mut u64; NUMBERS] {
        let Report { standing: _, calls, fuel, fuel_max, given_up, waited, passed, restarts, stops, .. } =
            self;
        let (measured, mean_ns, p50_ns) = (&mut self.measured, &mut self.mean_ns, &mut self.p50_ns);
        let (p99_ns, max_ns) = (&mut self.p99_ns, &mut self.max_ns);
        let [a, b, c, d, e, f, g, h, i, j] = stops;
        [
            calls, fuel, fuel_max, given_up, waited, passed, restarts, a, b, c, d, e, f, g, h, i, j,
            measured, mean_ns, p50_ns, p99_ns, max_ns,
        ]
    }

    /// Encodes the numbers for REPORT.
    pub fn write(mut self) -> ReportNumbers {
        let mut into = [0; 8 * NUMBERS];
        for (bytes, number) in into.as_chunks_mut::<8>().0.iter_mut().zip(self.numbers()) {
            *bytes = number.to_le_bytes();
        }
        into
    }

    /// Decodes the report of a record.
    pub fn read(standing: Standing, numbers: &ReportNumbers) -> Self {
        let mut report = Report { standing, ..Report::default() };
        for (number, bytes) in report.numbers().into_iter().zip(numbers.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        report
    }
}
